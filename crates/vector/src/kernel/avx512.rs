//! The primitives for AVX-512 (F, BW, DQ, VL): one register of 16 floats or 32 words, with masked
//! loads.

use std::arch::x86_64::*;

use super::body::Lanes;

pub(crate) struct Avx512;

#[inline(always)]
fn low_bits(n: usize) -> u32 {
    (1u32 << n) - 1
}

// SAFETY of all blocks below: the caller promises that the processor has the instruction set, and
// that the pointers have the elements that `Lanes` describes. Comments name the accessed bytes.
// Masked loads do not touch the bytes that their mask leaves out.
impl Lanes for Avx512 {
    type F = __m512;
    type W = __m512i;
    type I = __m512i;
    type X = __m512i;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512 {
        // SAFETY: `p` has 64 bytes.
        unsafe { _mm512_loadu_ps(p.cast()) }
    }

    #[inline(always)]
    unsafe fn load_part(p: *const u8, n: usize) -> __m512 {
        // SAFETY: `p` has `4 * n` bytes, and the mask selects only these.
        unsafe { _mm512_maskz_loadu_ps(low_bits(n) as __mmask16, p.cast()) }
    }

    #[inline(always)]
    unsafe fn load_half(p: *const u8) -> __m512 {
        // SAFETY: `p` has 32 bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_half_part(p: *const u8, n: usize) -> __m512 {
        // SAFETY: `p` has `2 * n` bytes, and the mask selects only these.
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(low_bits(n) as __mmask16, p.cast())) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, a: __m512) {
        // SAFETY: `p` has room for 64 bytes.
        unsafe { _mm512_storeu_ps(p, a) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sum(a: __m512) -> f32 {
        // SAFETY: as above.
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            super::avx2::sum_of_eight(eight)
        }
    }

    #[inline(always)]
    unsafe fn splat_index(x: u32) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_set1_epi32(x.cast_signed()) }
    }

    #[inline(always)]
    unsafe fn lesser(least: __m512, of: __m512i, a: __m512, group: u32) -> (__m512, __m512i) {
        // SAFETY: as above.
        unsafe {
            let lesser = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, least);
            let of = _mm512_mask_mov_epi32(of, lesser, _mm512_set1_epi32(group.cast_signed()));
            (_mm512_min_ps(a, least), of)
        }
    }

    #[inline(always)]
    unsafe fn least(least: __m512, of: __m512i) -> (f32, u32) {
        // SAFETY: as above. No lane is NaN: `lesser` takes a value only if it compares as less.
        unsafe {
            let value = _mm512_reduce_min_ps(least);
            let equal = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(least, _mm512_set1_ps(value));
            let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
            let index = _mm512_or_si512(_mm512_slli_epi32::<4>(of), lanes);
            (value, _mm512_mask_reduce_min_epu32(equal, index))
        }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512i {
        // SAFETY: `p` has 32 bytes.
        unsafe { _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_u8_part(p: *const u8, n: usize) -> __m512i {
        // SAFETY: `p` has `n` bytes, and the mask selects only these.
        unsafe { _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(low_bits(n), p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> __m512i {
        // SAFETY: `p` has 32 bytes.
        unsafe { _mm512_cvtepi8_epi16(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_i8_part(p: *const u8, n: usize) -> __m512i {
        // SAFETY: `p` has `n` bytes, and the mask selects only these.
        unsafe { _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(low_bits(n), p.cast())) }
    }

    #[inline(always)]
    unsafe fn sub_wide(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_sub_epi16(a, b) }
    }

    #[inline(always)]
    unsafe fn zero_sums() -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn multiply_add(sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_add_epi32(sums, _mm512_madd_epi16(a, b)) }
    }

    #[inline(always)]
    unsafe fn total(sums: __m512i) -> i32 {
        // SAFETY: as above.
        unsafe { _mm512_reduce_add_epi32(sums) }
    }

    #[inline(always)]
    unsafe fn narrow_squares(sums: __m512i, a: *const u8, b: *const u8) -> __m512i {
        // SAFETY: `a` and `b` have 64 bytes each.
        unsafe {
            let (a, b) = (_mm512_loadu_si512(a.cast()), _mm512_loadu_si512(b.cast()));
            add_narrow(sums, _mm512_sub_epi8(a, b))
        }
    }

    #[inline(always)]
    unsafe fn narrow_squares_part(sums: __m512i, a: *const u8, b: *const u8, n: usize) -> __m512i {
        let mask: __mmask64 = (1 << n) - 1;
        // SAFETY: loads `n` bytes of `a` and of `b`; bytes outside of the mask are zero in both.
        unsafe {
            let (a, b) = (
                _mm512_maskz_loadu_epi8(mask, a.cast()),
                _mm512_maskz_loadu_epi8(mask, b.cast()),
            );
            add_narrow(sums, _mm512_sub_epi8(a, b))
        }
    }

    #[inline(always)]
    unsafe fn look_up(table: *const f32, code: *const u8) -> __m512 {
        // SAFETY: `code` has 16 bytes, and each index is in its row of `table`.
        unsafe {
            let index =
                _mm512_add_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(code.cast())), rows());
            _mm512_i32gather_ps::<4>(index, table)
        }
    }

    #[inline(always)]
    unsafe fn look_up_part(table: *const f32, code: *const u8, n: usize) -> __m512 {
        let mask = low_bits(n) as __mmask16;
        // SAFETY: `code` has `n` bytes, and the mask leaves out the rows from `n` on.
        unsafe {
            let index = _mm512_add_epi32(
                _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, code.cast())),
                rows(),
            );
            _mm512_mask_i32gather_ps::<4>(_mm512_setzero_ps(), mask, index, table)
        }
    }

    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: a prefetch is a hint, which never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}

/// Adds the squares of 64 differences to `sums`. Each difference is from -127 to 127, so the sum of
/// two squares fits 16 bits.
#[inline(always)]
unsafe fn add_narrow(sums: __m512i, differences: __m512i) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let away = _mm512_abs_epi8(differences);
        let pairs = _mm512_maddubs_epi16(away, away);
        _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
    }
}

#[inline(always)]
unsafe fn rows() -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        _mm512_slli_epi32::<8>(lanes)
    }
}

super::routines!(Avx512, "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl");
