//! The primitives in plain Rust, on arrays, which the compiler vectorises for the baseline
//! processor.

use super::body::{LANES, Lanes, halves};
use crate::element::half_to_f32;

pub(crate) struct Plain;

#[inline(always)]
fn map<T: Copy, const N: usize>(a: [T; N], b: [T; N], f: impl Fn(T, T) -> T) -> [T; N] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Lanes for Plain {
    type F = [f32; LANES];
    type W = [i16; 32];
    type I = [i32; 16];
    type X = [u32; LANES];

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self::F {
        // SAFETY: the caller's promise: 16 floats, 64 bytes.
        let bytes = unsafe { p.cast::<[[u8; 4]; LANES]>().read_unaligned() };
        std::array::from_fn(|i| f32::from_le_bytes(bytes[i]))
    }

    #[inline(always)]
    unsafe fn load_part(p: *const u8, n: usize) -> Self::F {
        let mut out = [0.0; LANES];
        for (i, x) in out.iter_mut().enumerate().take(n) {
            // SAFETY: the caller's promise, and `i < n`.
            *x = f32::from_le_bytes(unsafe { p.add(4 * i).cast::<[u8; 4]>().read() });
        }
        out
    }

    #[inline(always)]
    unsafe fn load_half(p: *const u8) -> Self::F {
        // SAFETY: the caller's promise: 16 halves, 32 bytes.
        let bytes = unsafe { p.cast::<[[u8; 2]; LANES]>().read_unaligned() };
        std::array::from_fn(|i| half_to_f32(u16::from_le_bytes(bytes[i])))
    }

    #[inline(always)]
    unsafe fn load_half_part(p: *const u8, n: usize) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe { halves(p, n) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, a: Self::F) {
        // SAFETY: the caller's promise: space for 16 floats.
        unsafe { p.cast::<Self::F>().write_unaligned(a) }
    }

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    unsafe fn sum(a: Self::F) -> f32 {
        let eight: [f32; 8] = std::array::from_fn(|i| a[i] + a[i + 8]);
        let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }

    #[inline(always)]
    unsafe fn splat_index(x: u32) -> Self::X {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn lesser(
        mut least: Self::F,
        mut of: Self::X,
        a: Self::F,
        group: u32,
    ) -> (Self::F, Self::X) {
        for i in 0..LANES {
            of[i] = if a[i] < least[i] { group } else { of[i] };
            least[i] = if a[i] < least[i] { a[i] } else { least[i] };
        }
        (least, of)
    }

    #[inline(always)]
    unsafe fn least(least: Self::F, of: Self::X) -> (f32, u32) {
        let mut best = (least[0], of[0] * 16);
        for i in 1..LANES {
            let next = (least[i], of[i] * 16 + i as u32);
            if next.0 < best.0 || (next.0 == best.0 && next.1 < best.1) {
                best = next;
            }
        }
        best
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::W {
        // SAFETY: the caller's promise: 32 bytes.
        let bytes = unsafe { p.cast::<[u8; 32]>().read() };
        bytes.map(i16::from)
    }

    #[inline(always)]
    unsafe fn load_u8_part(p: *const u8, n: usize) -> Self::W {
        let mut out = [0; 32];
        for (i, x) in out.iter_mut().enumerate().take(n) {
            // SAFETY: the caller's promise, and `i < n`.
            *x = i16::from(unsafe { *p.add(i) });
        }
        out
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self::W {
        // SAFETY: the caller's promise: 32 bytes.
        let bytes = unsafe { p.cast::<[i8; 32]>().read() };
        bytes.map(i16::from)
    }

    #[inline(always)]
    unsafe fn load_i8_part(p: *const u8, n: usize) -> Self::W {
        let mut out = [0; 32];
        for (i, x) in out.iter_mut().enumerate().take(n) {
            // SAFETY: the caller's promise, and `i < n`.
            *x = i16::from(unsafe { *p.cast::<i8>().add(i) });
        }
        out
    }

    #[inline(always)]
    unsafe fn sub_wide(a: Self::W, b: Self::W) -> Self::W {
        map(a, b, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn zero_sums() -> Self::I {
        [0; 16]
    }

    #[inline(always)]
    unsafe fn multiply_add(mut sums: Self::I, a: Self::W, b: Self::W) -> Self::I {
        for i in 0..16 {
            // Adjacent elements are paired, so that the compiler uses PMADDWD.
            sums[i] += i32::from(a[2 * i]) * i32::from(b[2 * i])
                + i32::from(a[2 * i + 1]) * i32::from(b[2 * i + 1]);
        }
        sums
    }

    #[inline(always)]
    unsafe fn total(sums: Self::I) -> i32 {
        sums.iter().sum()
    }

    #[inline(always)]
    unsafe fn narrow_squares(sums: Self::I, a: *const u8, b: *const u8) -> Self::I {
        // SAFETY: `a` and `b` have 64 bytes each, and 32 bytes are read at a time.
        unsafe {
            let first = Self::sub_wide(Self::load_i8(a), Self::load_i8(b));
            let then = Self::sub_wide(Self::load_i8(a.add(32)), Self::load_i8(b.add(32)));
            Self::multiply_add(Self::multiply_add(sums, first, first), then, then)
        }
    }

    #[inline(always)]
    unsafe fn look_up(table: *const f32, code: *const u8) -> Self::F {
        // SAFETY: the caller's promise: 16 codes, and 16 rows of 256.
        std::array::from_fn(|i| unsafe { *table.add(i * 256 + usize::from(*code.add(i))) })
    }

    #[inline(always)]
    unsafe fn look_up_part(table: *const f32, code: *const u8, n: usize) -> Self::F {
        let mut out = [0.0; LANES];
        for (i, x) in out.iter_mut().enumerate().take(n) {
            // SAFETY: the caller's promise, and `i < n`.
            *x = unsafe { *table.add(i * 256 + usize::from(*code.add(i))) };
        }
        out
    }

    #[inline(always)]
    fn prefetch(p: *const u8) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch is a hint, which never faults. SSE is part of the baseline of
            // x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = p;
    }
}
super::routines!(Plain);
