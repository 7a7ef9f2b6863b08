//! The primitives for NEON (Advanced SIMD): four registers of 4 floats, or of 8 words.

use std::arch::aarch64::*;

use super::body::{LANES, Lanes, halves, padded};

pub(crate) struct Neon;

// SAFETY of all blocks below: the caller promises that the processor has the instruction set, and
// that the pointers have the elements that `Lanes` describes. Comments name the accessed bytes.
// Loads are by bytes, which need no alignment.
impl Lanes for Neon {
    type F = [float32x4_t; 4];
    type W = [int16x8_t; 4];
    type I = [int32x4_t; 4];
    type X = [uint32x4_t; 4];

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        // SAFETY: as above.
        unsafe { [vdupq_n_f32(x); 4] }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self::F {
        // SAFETY: `p` has 64 bytes.
        unsafe {
            [
                vreinterpretq_f32_u8(vld1q_u8(p)),
                vreinterpretq_f32_u8(vld1q_u8(p.add(16))),
                vreinterpretq_f32_u8(vld1q_u8(p.add(32))),
                vreinterpretq_f32_u8(vld1q_u8(p.add(48))),
            ]
        }
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
            let low = vreinterpretq_u16_u8(vld1q_u8(p));
            let high = vreinterpretq_u16_u8(vld1q_u8(p.add(16)));
            [
                widen_half(vget_low_u16(low)),
                widen_half(vget_high_u16(low)),
                widen_half(vget_low_u16(high)),
                widen_half(vget_high_u16(high)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_half_part(p: *const u8, n: usize) -> Self::F {
        // SAFETY: `p` has `2 * n` bytes; the array of floats has 64 bytes.
        unsafe { Self::load(halves(p, n).as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, a: Self::F) {
        // SAFETY: `p` has room for 64 bytes.
        unsafe {
            vst1q_f32(p, a[0]);
            vst1q_f32(p.add(4), a[1]);
            vst1q_f32(p.add(8), a[2]);
            vst1q_f32(p.add(12), a[3]);
        }
    }

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe {
            [
                vaddq_f32(a[0], b[0]),
                vaddq_f32(a[1], b[1]),
                vaddq_f32(a[2], b[2]),
                vaddq_f32(a[3], b[3]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe {
            [
                vsubq_f32(a[0], b[0]),
                vsubq_f32(a[1], b[1]),
                vsubq_f32(a[2], b[2]),
                vsubq_f32(a[3], b[3]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe {
            [
                vmulq_f32(a[0], b[0]),
                vmulq_f32(a[1], b[1]),
                vmulq_f32(a[2], b[2]),
                vmulq_f32(a[3], b[3]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above. The code compares and selects, because FMIN treats NaN differently.
        unsafe {
            [
                vbslq_f32(vcltq_f32(a[0], b[0]), a[0], b[0]),
                vbslq_f32(vcltq_f32(a[1], b[1]), a[1], b[1]),
                vbslq_f32(vcltq_f32(a[2], b[2]), a[2], b[2]),
                vbslq_f32(vcltq_f32(a[3], b[3]), a[3], b[3]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn sum(a: Self::F) -> f32 {
        // SAFETY: as above.
        unsafe {
            let four = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }

    #[inline(always)]
    unsafe fn splat_index(x: u32) -> Self::X {
        // SAFETY: as above.
        unsafe { [vdupq_n_u32(x); 4] }
    }

    #[inline(always)]
    unsafe fn lesser(
        mut least: Self::F,
        mut of: Self::X,
        a: Self::F,
        group: u32,
    ) -> (Self::F, Self::X) {
        for i in 0..4 {
            // SAFETY: as above.
            unsafe {
                let lesser = vcltq_f32(a[i], least[i]);
                of[i] = vbslq_u32(lesser, vdupq_n_u32(group), of[i]);
                least[i] = vbslq_f32(lesser, a[i], least[i]);
            }
        }
        (least, of)
    }

    #[inline(always)]
    unsafe fn least(least: Self::F, of: Self::X) -> (f32, u32) {
        // SAFETY: as above. No lane is NaN: `lesser` takes a value only if it compares as less.
        unsafe {
            let value = vminvq_f32(vminq_f32(
                vminq_f32(least[0], least[1]),
                vminq_f32(least[2], least[3]),
            ));
            let lanes: [u32; 4] = [0, 1, 2, 3];
            let mut lowest = vdupq_n_u32(u32::MAX);
            for i in 0..4 {
                let lanes = vaddq_u32(vld1q_u32(lanes.as_ptr()), vdupq_n_u32(4 * i as u32));
                let index = vorrq_u32(vshlq_n_u32::<4>(of[i]), lanes);
                // Lanes that are not the least become all ones, which is never the lowest.
                let other = vmvnq_u32(vceqq_f32(least[i], vdupq_n_f32(value)));
                lowest = vminq_u32(lowest, vorrq_u32(index, other));
            }
            (value, vminvq_u32(lowest))
        }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::W {
        // SAFETY: `p` has 32 bytes.
        unsafe {
            let (low, high) = (vld1q_u8(p), vld1q_u8(p.add(16)));
            [
                vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(low))),
                vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(low))),
                vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(high))),
                vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(high))),
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
            let (low, high) = (vld1q_s8(p.cast()), vld1q_s8(p.add(16).cast()));
            [
                vmovl_s8(vget_low_s8(low)),
                vmovl_s8(vget_high_s8(low)),
                vmovl_s8(vget_low_s8(high)),
                vmovl_s8(vget_high_s8(high)),
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
        unsafe {
            [
                vsubq_s16(a[0], b[0]),
                vsubq_s16(a[1], b[1]),
                vsubq_s16(a[2], b[2]),
                vsubq_s16(a[3], b[3]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn zero_sums() -> Self::I {
        // SAFETY: as above.
        unsafe { [vdupq_n_s32(0); 4] }
    }

    #[inline(always)]
    unsafe fn multiply_add(mut sums: Self::I, a: Self::W, b: Self::W) -> Self::I {
        for i in 0..4 {
            // SAFETY: as above.
            unsafe {
                let low = vmlal_s16(sums[i], vget_low_s16(a[i]), vget_low_s16(b[i]));
                sums[i] = vmlal_high_s16(low, a[i], b[i]);
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn total(sums: Self::I) -> i32 {
        // SAFETY: as above.
        unsafe {
            vaddvq_s32(vaddq_s32(
                vaddq_s32(sums[0], sums[1]),
                vaddq_s32(sums[2], sums[3]),
            ))
        }
    }

    #[inline(always)]
    unsafe fn narrow_squares(mut sums: Self::I, a: *const u8, b: *const u8) -> Self::I {
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: reads 16 of the 64 bytes of `a` and of `b`. Two squares of differences from 0
            // to 127 fit 16 bits.
            unsafe {
                let (a, b) = (
                    vld1q_s8(a.add(16 * i).cast()),
                    vld1q_s8(b.add(16 * i).cast()),
                );
                let away = vreinterpretq_u8_s8(vabdq_s8(a, b));
                let low = vmull_u8(vget_low_u8(away), vget_low_u8(away));
                let pairs = vmlal_high_u8(low, away, away);
                *sum = vreinterpretq_s32_u32(vpadalq_u16(vreinterpretq_u32_s32(*sum), pairs));
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn look_up(table: *const f32, code: *const u8) -> Self::F {
        // SAFETY: `code` has 16 bytes, and `table` has 16 rows. NEON has no gather.
        unsafe { Self::look_up_part(table, code, LANES) }
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
        // SAFETY: a prefetch is a hint. It never faults, and touches no memory or register of the
        // compiler.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
        }
    }
}

/// Converts with the arithmetic of `half_to_f32`. The intrinsic is newer than the oldest supported
/// compiler.
#[inline(always)]
unsafe fn widen_half(half: uint16x4_t) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = vmovl_u16(half);
        let magnitude = vshlq_n_u32::<13>(vandq_u32(bits, vdupq_n_u32(0x7fff)));
        let rebias = vreinterpretq_f32_u32(vdupq_n_u32((127 + 112) << 23));
        let magnitude = vreinterpretq_u32_f32(vmulq_f32(vreinterpretq_f32_u32(magnitude), rebias));
        let exponent = vdupq_n_u32(0x7c00);
        let infinite = vandq_u32(
            vceqq_u32(vandq_u32(bits, exponent), exponent),
            vdupq_n_u32(0x7f80_0000),
        );
        let sign = vshlq_n_u32::<16>(vandq_u32(bits, vdupq_n_u32(0x8000)));
        vreinterpretq_f32_u32(vorrq_u32(magnitude, vorrq_u32(infinite, sign)))
    }
}

super::routines!(Neon, "neon");
