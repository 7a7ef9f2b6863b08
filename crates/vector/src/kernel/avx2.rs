//! The primitives for AVX2 and F16C: two registers of 8 floats or 16 words.

use std::arch::x86_64::*;

use super::body::{LANES, Lanes, padded};

pub(crate) struct Avx2;

/// The sum of 8 lanes, by the last steps of the tree in [`super::body`].
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(crate) unsafe fn sum_of_eight(a: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

// SAFETY of all blocks below: the caller promises that the processor has the instruction set, and
// that the pointers have the elements that `Lanes` describes. Comments name the accessed bytes.
impl Lanes for Avx2 {
    type F = [__m256; 2];
    type W = [__m256i; 2];
    type I = [__m256i; 2];
    type X = [__m256i; 2];

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self::F {
        // SAFETY: `p` has 64 bytes.
        unsafe { [_mm256_loadu_ps(p.cast()), _mm256_loadu_ps(p.add(32).cast())] }
    }

    #[inline(always)]
    unsafe fn load_part(p: *const u8, n: usize) -> Self::F {
        // SAFETY: `p` has `4 * n` bytes; the copy has 64 bytes.
        unsafe { Self::load(padded::<64>(p, 4 * n).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn load_half(p: *const u8) -> Self::F {
        // SAFETY: `p` has 32 bytes.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast())),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_half_part(p: *const u8, n: usize) -> Self::F {
        // SAFETY: `p` has `2 * n` bytes; the copy has 32 bytes.
        unsafe { Self::load_half(padded::<32>(p, 2 * n).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, a: Self::F) {
        // SAFETY: `p` has room for 64 bytes.
        unsafe {
            _mm256_storeu_ps(p, a[0]);
            _mm256_storeu_ps(p.add(8), a[1]);
        }
    }

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn sum(a: Self::F) -> f32 {
        // SAFETY: as above.
        unsafe { sum_of_eight(_mm256_add_ps(a[0], a[1])) }
    }

    #[inline(always)]
    unsafe fn splat_index(x: u32) -> Self::X {
        // SAFETY: as above.
        unsafe { [_mm256_set1_epi32(x.cast_signed()); 2] }
    }

    #[inline(always)]
    unsafe fn lesser(least: Self::F, of: Self::X, a: Self::F, group: u32) -> (Self::F, Self::X) {
        // SAFETY: as above.
        unsafe {
            let group = _mm256_set1_epi32(group.cast_signed());
            let low = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_LT_OQ>(a[0], least[0]));
            let high = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_LT_OQ>(a[1], least[1]));
            let of = [
                _mm256_blendv_epi8(of[0], group, low),
                _mm256_blendv_epi8(of[1], group, high),
            ];
            (Self::min(a, least), of)
        }
    }

    #[inline(always)]
    unsafe fn least(least: Self::F, of: Self::X) -> (f32, u32) {
        // SAFETY: as above. No lane is NaN: `lesser` takes a value only if it compares as less.
        unsafe {
            let eight = _mm256_min_ps(least[0], least[1]);
            let four = _mm_min_ps(
                _mm256_castps256_ps128(eight),
                _mm256_extractf128_ps::<1>(eight),
            );
            let two = _mm_min_ps(four, _mm_movehl_ps(four, four));
            let value = _mm_cvtss_f32(_mm_min_ss(two, _mm_movehdup_ps(two)));

            let lanes = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
            let index = [
                _mm256_or_si256(_mm256_slli_epi32::<4>(of[0]), lanes),
                _mm256_or_si256(
                    _mm256_slli_epi32::<4>(of[1]),
                    _mm256_add_epi32(lanes, _mm256_set1_epi32(8)),
                ),
            ];
            // Other lanes get the largest unsigned index, so the minimum is the first lane with the
            // least distance.
            let other = [
                _mm256_castps_si256(_mm256_cmp_ps::<_CMP_NEQ_UQ>(
                    least[0],
                    _mm256_set1_ps(value),
                )),
                _mm256_castps_si256(_mm256_cmp_ps::<_CMP_NEQ_UQ>(
                    least[1],
                    _mm256_set1_ps(value),
                )),
            ];
            let eight = _mm256_min_epu32(
                _mm256_or_si256(index[0], other[0]),
                _mm256_or_si256(index[1], other[1]),
            );
            let four = _mm_min_epu32(
                _mm256_castsi256_si128(eight),
                _mm256_extracti128_si256::<1>(eight),
            );
            let two = _mm_min_epu32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            let one = _mm_min_epu32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
            (value, _mm_cvtsi128_si32(one).cast_unsigned())
        }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::W {
        // SAFETY: `p` has 32 bytes.
        unsafe {
            [
                _mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast())),
                _mm256_cvtepu8_epi16(_mm_loadu_si128(p.add(16).cast())),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_u8_part(p: *const u8, n: usize) -> Self::W {
        // SAFETY: `p` has `n` bytes; the copy has 32 bytes.
        unsafe { Self::load_u8(padded::<32>(p, n).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self::W {
        // SAFETY: `p` has 32 bytes.
        unsafe {
            [
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast())),
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(16).cast())),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_i8_part(p: *const u8, n: usize) -> Self::W {
        // SAFETY: `p` has `n` bytes; the copy has 32 bytes.
        unsafe { Self::load_i8(padded::<32>(p, n).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn sub_wide(a: Self::W, b: Self::W) -> Self::W {
        // SAFETY: as above.
        unsafe { [_mm256_sub_epi16(a[0], b[0]), _mm256_sub_epi16(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn zero_sums() -> Self::I {
        // SAFETY: as above.
        unsafe { [_mm256_setzero_si256(); 2] }
    }

    #[inline(always)]
    unsafe fn multiply_add(sums: Self::I, a: Self::W, b: Self::W) -> Self::I {
        // SAFETY: as above.
        unsafe {
            [
                _mm256_add_epi32(sums[0], _mm256_madd_epi16(a[0], b[0])),
                _mm256_add_epi32(sums[1], _mm256_madd_epi16(a[1], b[1])),
            ]
        }
    }

    #[inline(always)]
    unsafe fn total(sums: Self::I) -> i32 {
        // SAFETY: as above.
        unsafe {
            let eight = _mm256_add_epi32(sums[0], sums[1]);
            let four = _mm_add_epi32(
                _mm256_castsi256_si128(eight),
                _mm256_extracti128_si256::<1>(eight),
            );
            let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
        }
    }

    #[inline(always)]
    unsafe fn narrow_squares(sums: Self::I, a: *const u8, b: *const u8) -> Self::I {
        // SAFETY: `a` and `b` have 64 bytes each.
        unsafe {
            [
                add_narrow(sums[0], a, b),
                add_narrow(sums[1], a.add(32), b.add(32)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn look_up(table: *const f32, code: *const u8) -> Self::F {
        // SAFETY: `code` has 16 bytes, and each index is in its row of `table`.
        unsafe {
            let rows = _mm256_slli_epi32::<8>(_mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
            let codes = _mm_loadu_si128(code.cast());
            let low = _mm256_add_epi32(_mm256_cvtepu8_epi32(codes), rows);
            let high =
                _mm256_add_epi32(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(codes, codes)), rows);
            [
                _mm256_i32gather_ps::<4>(table, low),
                _mm256_i32gather_ps::<4>(table.add(8 * 256), high),
            ]
        }
    }

    #[inline(always)]
    unsafe fn look_up_part(table: *const f32, code: *const u8, n: usize) -> Self::F {
        let mut out = [0f32; LANES];
        for (i, x) in out.iter_mut().enumerate().take(n) {
            // SAFETY: `i < n`, so `code` has byte `i`, and `table` has row `i`.
            *x = unsafe { *table.add(i * 256 + usize::from(*code.add(i))) };
        }
        // SAFETY: the array has 64 bytes.
        unsafe { Self::load(out.as_ptr().cast()) }
    }

    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: a prefetch is a hint, which never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}

/// Adds the squares of 32 differences of `i8` to `sums`. Each difference is from -127 to 127, so
/// the sum of two squares fits 16 bits.
///
/// # Safety
/// The processor has AVX2. `a` and `b` point to 32 bytes each.
#[inline(always)]
unsafe fn add_narrow(sums: __m256i, a: *const u8, b: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = (_mm256_loadu_si256(a.cast()), _mm256_loadu_si256(b.cast()));
        let away = _mm256_abs_epi8(_mm256_sub_epi8(a, b));
        let pairs = _mm256_maddubs_epi16(away, away);
        _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}

super::routines!(Avx2, "avx2,f16c");
