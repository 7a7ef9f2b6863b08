//! The algorithms of the kernels, in terms of the primitives ([`Lanes`]) of an instruction set.
//!
//! Floating-point addition is not associative, so the order of summation is part of the definition:
//!
//! ```text
//!   element    0 .. 15   16 .. 31   32 .. 47   48 .. 63 | 64 .. 79  ...
//!   added to    sum 0      sum 1      sum 2      sum 3  |  sum 0    ...
//!
//!   element i goes to lane i % 16 of sum (i / 16) % 4     (cosine: % 2)
//!   total  = (sum 0 + sum 1) + (sum 2 + sum 3)            lane by lane
//!   result = tree: 16 -> 8 -> 4 -> 2 -> 1 lanes, lower half + upper half
//! ```
//!
//! Each product is rounded before it is added, because processors without fused multiply-add would
//! have to emulate that instruction. A sum starts from +0.0 and is never -0.0. So the zeros that
//! fill up the last load of a row change nothing.
//!
//! If infinities cancel in a sum of f32, or a sum for a cosine overflows or underflows, a cold
//! function sums again in f64. So **no distance of finite rows is NaN**. A distance beyond the
//! range of f32 is infinite.
//!
//! Every function here that computes with lanes is `inline(always)`, into functions that enable the
//! instruction set (see `routines!`). A closure would be compiled without the instruction set, so
//! no closure computes with lanes.

use std::ops::RangeInclusive;

use crate::element::half_to_f32;

pub(crate) const LANES: usize = 16;

const WIDE: usize = 32;

const NARROW_BLOCK: usize = 64;

/// The most integer elements whose sum of squares fits 32 bits: 16384 * 255^2 < 2^31.
const EXACT_RUN: usize = 16 * 1024;

/// The number of rows that a gather prefetches, and the bytes of each row, before the processor's
/// own prefetcher continues. A gather is slower with 4 rows, and equally fast with 8 to 16 rows.
pub(crate) const ROWS_AHEAD: usize = 8;
const BYTES_AHEAD: usize = 512;

const LINE: usize = 64;

/// The primitives of one instruction set.
///
/// # Safety
/// The processor has the instruction set of the implementation. Each pointer has as many elements
/// as the description of the function says. Pointers need no alignment.
pub(crate) trait Lanes {
    type F: Copy;
    /// 32 integers of 16 bits.
    type W: Copy;
    /// Sums of 32 bits. Their number depends on the instruction set.
    type I: Copy;
    /// 16 unsigned integers of 32 bits.
    type X: Copy;

    unsafe fn splat(x: f32) -> Self::F;
    /// 16 `f32`.
    unsafe fn load(p: *const u8) -> Self::F;
    /// `n` `f32`, `0 < n < 16`, then zeros.
    unsafe fn load_part(p: *const u8, n: usize) -> Self::F;
    /// 16 `f16`.
    unsafe fn load_half(p: *const u8) -> Self::F;
    /// `n` `f16`, `0 < n < 16`, then zeros.
    unsafe fn load_half_part(p: *const u8, n: usize) -> Self::F;
    /// Writes 16 `f32`.
    unsafe fn store(p: *mut f32, a: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// The sum of the lanes, by the tree of the module's description.
    unsafe fn sum(a: Self::F) -> f32;

    unsafe fn splat_index(x: u32) -> Self::X;
    /// The lanes with `a < least` get `a` and `group`. The other lanes are unchanged.
    unsafe fn lesser(least: Self::F, of: Self::X, a: Self::F, group: u32) -> (Self::F, Self::X);
    /// The least value, and the lowest `of * 16 + lane` of the lanes that have it.
    unsafe fn least(least: Self::F, of: Self::X) -> (f32, u32);

    /// 32 `u8`, widened.
    unsafe fn load_u8(p: *const u8) -> Self::W;
    /// `n` `u8`, `0 < n < 32`, widened, then zeros.
    unsafe fn load_u8_part(p: *const u8, n: usize) -> Self::W;
    /// 32 `i8`, widened.
    unsafe fn load_i8(p: *const u8) -> Self::W;
    /// `n` `i8`, `0 < n < 32`, widened, then zeros.
    unsafe fn load_i8_part(p: *const u8, n: usize) -> Self::W;
    unsafe fn sub_wide(a: Self::W, b: Self::W) -> Self::W;
    unsafe fn zero_sums() -> Self::I;
    /// `sums` plus the 32 products `a * b`. Each product is added to one of the sums.
    unsafe fn multiply_add(sums: Self::I, a: Self::W, b: Self::W) -> Self::I;
    /// The total of the sums, which does not overflow 32 bits.
    unsafe fn total(sums: Self::I) -> i32;
    /// `sums` plus the squares `(a - b)^2` of 64 `i8` at `a` and `b`, which differ by at most 127.
    unsafe fn narrow_squares(sums: Self::I, a: *const u8, b: *const u8) -> Self::I;
    /// Like `narrow_squares`, for `n` `i8`, `0 < n < 64`.
    #[inline(always)]
    unsafe fn narrow_squares_part(sums: Self::I, a: *const u8, b: *const u8, n: usize) -> Self::I {
        // SAFETY: `a` and `b` have `n` bytes each. The copies have 64 bytes each, and are equal
        // from `n` on.
        unsafe {
            let (a, b) = (padded::<64>(a, n), padded::<64>(b, n));
            Self::narrow_squares(sums, a.as_ptr(), b.as_ptr())
        }
    }

    /// Lane `i` is `table[i * 256 + code[i]]`. Reads 16 bytes at `code` and 16 * 256 floats at
    /// `table`.
    unsafe fn look_up(table: *const f32, code: *const u8) -> Self::F;
    /// Like `look_up` for `n` lanes, `0 < n < 16`, then zeros. Reads `n` bytes and `n` * 256
    /// floats.
    unsafe fn look_up_part(table: *const f32, code: *const u8, n: usize) -> Self::F;

    /// Prefetches the cache line at `p`, which may be any address.
    fn prefetch(p: *const u8);
}

/// Rows of floating-point elements of `SIZE` bytes.
///
/// # Safety
/// The processor has the instruction set of `L`. `p` has as many elements as the description of the
/// function says, and needs no alignment.
pub(crate) trait FloatRow {
    const SIZE: usize;
    /// 16 elements.
    unsafe fn load<L: Lanes>(p: *const u8) -> L::F;
    /// `n` elements, `0 < n < 16`, then zeros.
    unsafe fn load_part<L: Lanes>(p: *const u8, n: usize) -> L::F;
    /// One element.
    unsafe fn load_one(p: *const u8) -> f64;
}

pub(crate) struct F32Row;

impl FloatRow for F32Row {
    const SIZE: usize = 4;

    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u8) -> L::F {
        // SAFETY: the contract of the trait.
        unsafe { L::load(p) }
    }

    #[inline(always)]
    unsafe fn load_part<L: Lanes>(p: *const u8, n: usize) -> L::F {
        // SAFETY: the contract of the trait.
        unsafe { L::load_part(p, n) }
    }

    #[inline(always)]
    unsafe fn load_one(p: *const u8) -> f64 {
        // SAFETY: the contract of the trait: an element is there, 4 bytes at any alignment.
        f64::from(f32::from_le_bytes(unsafe { p.cast::<[u8; 4]>().read() }))
    }
}

pub(crate) struct F16Row;

impl FloatRow for F16Row {
    const SIZE: usize = 2;

    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u8) -> L::F {
        // SAFETY: the contract of the trait.
        unsafe { L::load_half(p) }
    }

    #[inline(always)]
    unsafe fn load_part<L: Lanes>(p: *const u8, n: usize) -> L::F {
        // SAFETY: the contract of the trait.
        unsafe { L::load_half_part(p, n) }
    }

    #[inline(always)]
    unsafe fn load_one(p: *const u8) -> f64 {
        // SAFETY: the contract of the trait: an element is there, 2 bytes at any alignment.
        let bytes = unsafe { p.cast::<[u8; 2]>().read() };
        f64::from(half_to_f32(u16::from_le_bytes(bytes)))
    }
}

/// Rows of integers of one byte.
///
/// # Safety
/// The processor has the instruction set of `L`. `p` has as many elements as the description of the
/// function says.
pub(crate) trait IntegerRow {
    /// 32 elements, widened.
    unsafe fn load<L: Lanes>(p: *const u8) -> L::W;
    /// `n` elements, `0 < n < 32`, widened, then zeros.
    unsafe fn load_part<L: Lanes>(p: *const u8, n: usize) -> L::W;
}

pub(crate) struct U8Row;

impl IntegerRow for U8Row {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u8) -> L::W {
        // SAFETY: the contract of the trait.
        unsafe { L::load_u8(p) }
    }

    #[inline(always)]
    unsafe fn load_part<L: Lanes>(p: *const u8, n: usize) -> L::W {
        // SAFETY: the contract of the trait.
        unsafe { L::load_u8_part(p, n) }
    }
}

pub(crate) struct I8Row;

impl IntegerRow for I8Row {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u8) -> L::W {
        // SAFETY: the contract of the trait.
        unsafe { L::load_i8(p) }
    }

    #[inline(always)]
    unsafe fn load_part<L: Lanes>(p: *const u8, n: usize) -> L::W {
        // SAFETY: the contract of the trait.
        unsafe { L::load_i8_part(p, n) }
    }
}

/// The term that is summed over the elements of two rows.
///
/// # Safety
/// The processor has the instruction set of `L`.
pub(crate) trait Term {
    const SIGN: i8;
    /// Whether terms can have both signs, so that overflowed terms may cancel each other to NaN.
    const CANCELS: bool;
    unsafe fn float<L: Lanes>(a: L::F, b: L::F) -> L::F;
    unsafe fn integer<L: Lanes>(sums: L::I, a: L::W, b: L::W) -> L::I;
}

pub(crate) struct SquaredDifference;

impl Term for SquaredDifference {
    const SIGN: i8 = 1;
    const CANCELS: bool = false;

    #[inline(always)]
    unsafe fn float<L: Lanes>(a: L::F, b: L::F) -> L::F {
        // SAFETY: the contract of the trait.
        unsafe {
            let difference = L::sub(a, b);
            L::mul(difference, difference)
        }
    }

    #[inline(always)]
    unsafe fn integer<L: Lanes>(sums: L::I, a: L::W, b: L::W) -> L::I {
        // SAFETY: the contract of the trait. Differences of bytes fit 16 bits.
        unsafe {
            let difference = L::sub_wide(a, b);
            L::multiply_add(sums, difference, difference)
        }
    }
}

pub(crate) struct Product;

impl Term for Product {
    const SIGN: i8 = -1;
    const CANCELS: bool = true;

    #[inline(always)]
    unsafe fn float<L: Lanes>(a: L::F, b: L::F) -> L::F {
        // SAFETY: the contract of the trait.
        unsafe { L::mul(a, b) }
    }

    #[inline(always)]
    unsafe fn integer<L: Lanes>(sums: L::I, a: L::W, b: L::W) -> L::I {
        // SAFETY: the contract of the trait.
        unsafe { L::multiply_add(sums, a, b) }
    }
}

pub(crate) trait Measure {
    /// # Safety
    /// The processor has the instruction set of `L`; `a` and `b` point to rows of `dim` elements.
    unsafe fn distance<L: Lanes>(a: *const u8, b: *const u8, dim: usize) -> f32;
}

pub(crate) struct Float<R, T>(std::marker::PhantomData<(R, T)>);

impl<R: FloatRow, T: Term> Float<R, T> {
    /// The terms of the 16 elements from `i` on.
    ///
    /// # Safety
    /// The processor has the instruction set of `L`. `a` and `b` point to rows of at least `i + 16`
    /// elements.
    #[inline(always)]
    unsafe fn term<L: Lanes>(a: *const u8, b: *const u8, i: usize) -> L::F {
        // SAFETY: the contract of the function.
        unsafe {
            T::float::<L>(
                R::load::<L>(a.add(i * R::SIZE)),
                R::load::<L>(b.add(i * R::SIZE)),
            )
        }
    }
}

impl<R: FloatRow, T: Term> Measure for Float<R, T> {
    #[inline(always)]
    unsafe fn distance<L: Lanes>(a: *const u8, b: *const u8, dim: usize) -> f32 {
        // SAFETY: every load is of elements below `dim`: blocks of 64 while 64 are left, then
        // blocks of 16 while 16 are left, then the remaining elements.
        unsafe {
            let mut sums = [L::splat(0.0); 4];
            let mut i = 0;
            while i + 4 * LANES <= dim {
                sums[0] = L::add(sums[0], Self::term::<L>(a, b, i));
                sums[1] = L::add(sums[1], Self::term::<L>(a, b, i + LANES));
                sums[2] = L::add(sums[2], Self::term::<L>(a, b, i + 2 * LANES));
                sums[3] = L::add(sums[3], Self::term::<L>(a, b, i + 3 * LANES));
                i += 4 * LANES;
            }
            // The compiler unrolls this loop. With a variable index, the sums would move to memory.
            for sum in &mut sums {
                if i + LANES <= dim {
                    *sum = L::add(*sum, Self::term::<L>(a, b, i));
                    i += LANES;
                } else if i < dim {
                    let x = R::load_part::<L>(a.add(i * R::SIZE), dim - i);
                    let y = R::load_part::<L>(b.add(i * R::SIZE), dim - i);
                    *sum = L::add(*sum, T::float::<L>(x, y));
                    i = dim;
                }
            }
            let total = L::sum(L::add(L::add(sums[0], sums[1]), L::add(sums[2], sums[3])));
            if T::CANCELS && !total.is_finite() {
                return (f64::from(T::SIGN) * wide_sums::<R>(a, b, dim).ab) as f32;
            }
            f32::from(T::SIGN) * total
        }
    }
}

struct WideSums {
    ab: f64,
    aa: f64,
    bb: f64,
}

/// Adds element after element, in the same way on every instruction set.
///
/// # Safety
/// `a` and `b` point to rows of `dim` elements.
#[cold]
#[inline(never)]
unsafe fn wide_sums<R: FloatRow>(a: *const u8, b: *const u8, dim: usize) -> WideSums {
    let mut sums = WideSums {
        ab: 0.0,
        aa: 0.0,
        bb: 0.0,
    };
    for i in 0..dim {
        // SAFETY: element `i` is below `dim`.
        let (x, y) = unsafe {
            (
                R::load_one(a.add(i * R::SIZE)),
                R::load_one(b.add(i * R::SIZE)),
            )
        };
        sums.ab += x * y;
        sums.aa += x * x;
        sums.bb += y * y;
    }
    sums
}

pub(crate) struct FloatCosine<R>(std::marker::PhantomData<R>);

impl<R: FloatRow> Measure for FloatCosine<R> {
    #[inline(always)]
    unsafe fn distance<L: Lanes>(a: *const u8, b: *const u8, dim: usize) -> f32 {
        // SAFETY: every load is of elements below `dim`, as above.
        unsafe {
            // Six accumulators, with the operands, fit the registers of AVX2.
            let (mut ab, mut aa, mut bb) =
                ([L::splat(0.0); 2], [L::splat(0.0); 2], [L::splat(0.0); 2]);
            let mut i = 0;
            while i + 2 * LANES <= dim {
                for k in 0..2 {
                    let x = R::load::<L>(a.add((i + k * LANES) * R::SIZE));
                    let y = R::load::<L>(b.add((i + k * LANES) * R::SIZE));
                    ab[k] = L::add(ab[k], L::mul(x, y));
                    aa[k] = L::add(aa[k], L::mul(x, x));
                    bb[k] = L::add(bb[k], L::mul(y, y));
                }
                i += 2 * LANES;
            }
            for k in 0..2 {
                if i < dim {
                    let n = LANES.min(dim - i);
                    let (x, y) = if n == LANES {
                        (
                            R::load::<L>(a.add(i * R::SIZE)),
                            R::load::<L>(b.add(i * R::SIZE)),
                        )
                    } else {
                        (
                            R::load_part::<L>(a.add(i * R::SIZE), n),
                            R::load_part::<L>(b.add(i * R::SIZE), n),
                        )
                    };
                    ab[k] = L::add(ab[k], L::mul(x, y));
                    aa[k] = L::add(aa[k], L::mul(x, x));
                    bb[k] = L::add(bb[k], L::mul(y, y));
                    i += n;
                }
            }
            let (ab, aa, bb) = (
                L::sum(L::add(ab[0], ab[1])),
                L::sum(L::add(aa[0], aa[1])),
                L::sum(L::add(bb[0], bb[1])),
            );
            if !(EXACT_SQUARES.contains(&aa) && EXACT_SQUARES.contains(&bb)) {
                let wide = wide_sums::<R>(a, b, dim);
                return cosine_distance(wide.ab, wide.aa, wide.bb);
            }
            cosine_distance(f64::from(ab), f64::from(aa), f64::from(bb))
        }
    }
}

/// The range of squared lengths that are accurate if summed in f32. By the inequality of Cauchy and
/// Schwarz, the inner product of two rows with such lengths is accurate too.
const EXACT_SQUARES: RangeInclusive<f32> = 1e-27..=1e38;

/// `1 - ab / sqrt(aa * bb)`. A zero vector is at distance 1 from every vector.
#[inline(always)]
fn cosine_distance(ab: f64, aa: f64, bb: f64) -> f32 {
    // In f64, aa * bb neither overflows nor underflows, and sqrt(aa * aa) is exactly aa.
    let lengths = (aa * bb).sqrt();
    if lengths > 0.0 {
        (1.0 - (ab / lengths).clamp(-1.0, 1.0)) as f32
    } else {
        1.0
    }
}

pub(crate) struct Integer<R, T>(std::marker::PhantomData<(R, T)>);

impl<R: IntegerRow, T: Term> Integer<R, T> {
    /// The sum over elements `first` to below `end`, at most [`EXACT_RUN`] elements.
    ///
    /// # Safety
    /// The processor has the instruction set of `L`. `a` and `b` point to rows of at least `end`
    /// elements.
    #[inline(always)]
    unsafe fn run<L: Lanes>(a: *const u8, b: *const u8, first: usize, end: usize) -> i64 {
        // SAFETY: the blocks cover the elements from `first` to below `end` and no others.
        unsafe {
            let mut sums = [L::zero_sums(); 2];
            let mut i = first;
            while i + 2 * WIDE <= end {
                sums[0] = T::integer::<L>(sums[0], R::load::<L>(a.add(i)), R::load::<L>(b.add(i)));
                let j = i + WIDE;
                sums[1] = T::integer::<L>(sums[1], R::load::<L>(a.add(j)), R::load::<L>(b.add(j)));
                i += 2 * WIDE;
            }
            if i + WIDE <= end {
                sums[0] = T::integer::<L>(sums[0], R::load::<L>(a.add(i)), R::load::<L>(b.add(i)));
                i += WIDE;
            }
            if i < end {
                let (x, y) = (
                    R::load_part::<L>(a.add(i), end - i),
                    R::load_part::<L>(b.add(i), end - i),
                );
                sums[1] = T::integer::<L>(sums[1], x, y);
            }
            i64::from(L::total(sums[0])) + i64::from(L::total(sums[1]))
        }
    }
}

impl<R: IntegerRow, T: Term> Measure for Integer<R, T> {
    #[inline(always)]
    unsafe fn distance<L: Lanes>(a: *const u8, b: *const u8, dim: usize) -> f32 {
        // SAFETY: the runs, and the blocks in a run, cover the elements below `dim` and no others.
        unsafe {
            let mut total = 0;
            let mut first = 0;
            while first < dim {
                let end = dim.min(first + EXACT_RUN);
                total += Self::run::<L>(a, b, first, end);
                first = end;
            }
            (i64::from(T::SIGN) * total) as f32
        }
    }
}

/// Squared differences between rows of `i8` that differ by at most 127, in half the instructions.
pub(crate) struct Narrow;

impl Measure for Narrow {
    #[inline(always)]
    unsafe fn distance<L: Lanes>(a: *const u8, b: *const u8, dim: usize) -> f32 {
        // SAFETY: the blocks in a run cover the elements below `dim` and no others.
        unsafe {
            let mut total = 0;
            let mut i = 0;
            while i < dim {
                let end = dim.min(i + EXACT_RUN);
                let mut sums = [L::zero_sums(); 2];
                while i + 2 * NARROW_BLOCK <= end {
                    sums[0] = L::narrow_squares(sums[0], a.add(i), b.add(i));
                    let j = i + NARROW_BLOCK;
                    sums[1] = L::narrow_squares(sums[1], a.add(j), b.add(j));
                    i += 2 * NARROW_BLOCK;
                }
                if i + NARROW_BLOCK <= end {
                    sums[0] = L::narrow_squares(sums[0], a.add(i), b.add(i));
                    i += NARROW_BLOCK;
                }
                if i < end {
                    sums[1] = L::narrow_squares_part(sums[1], a.add(i), b.add(i), end - i);
                    i = end;
                }
                total += i64::from(L::total(sums[0])) + i64::from(L::total(sums[1]));
            }
            total as f32
        }
    }
}

pub(crate) struct IntegerCosine<R>(std::marker::PhantomData<R>);

impl<R: IntegerRow> Measure for IntegerCosine<R> {
    #[inline(always)]
    unsafe fn distance<L: Lanes>(a: *const u8, b: *const u8, dim: usize) -> f32 {
        // SAFETY: the blocks in a run cover the elements below `dim` and no others.
        unsafe {
            let (mut total_ab, mut total_aa, mut total_bb) = (0i64, 0i64, 0i64);
            let mut i = 0;
            while i < dim {
                let end = dim.min(i + EXACT_RUN);
                let (mut ab, mut aa, mut bb) = (L::zero_sums(), L::zero_sums(), L::zero_sums());
                while i < end {
                    let n = WIDE.min(end - i);
                    let (x, y) = if n == WIDE {
                        (R::load::<L>(a.add(i)), R::load::<L>(b.add(i)))
                    } else {
                        (
                            R::load_part::<L>(a.add(i), n),
                            R::load_part::<L>(b.add(i), n),
                        )
                    };
                    ab = L::multiply_add(ab, x, y);
                    aa = L::multiply_add(aa, x, x);
                    bb = L::multiply_add(bb, y, y);
                    i += n;
                }
                total_ab += i64::from(L::total(ab));
                total_aa += i64::from(L::total(aa));
                total_bb += i64::from(L::total(bb));
            }
            cosine_distance(total_ab as f64, total_aa as f64, total_bb as f64)
        }
    }
}

/// Prefetches the cache lines of `bytes` bytes at `p`, up to [`BYTES_AHEAD`].
#[inline(always)]
pub(crate) fn prefetch_row<L: Lanes>(p: *const u8, bytes: usize) {
    let last = bytes.min(BYTES_AHEAD) - 1;
    let mut at = 0;
    while at < last {
        L::prefetch(p.wrapping_add(at));
        at += LINE;
    }
    // A row may begin within a cache line, so its last byte may be on one more line.
    L::prefetch(p.wrapping_add(last));
}

#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) start: *const u8,
    pub(crate) bytes: usize,
    pub(crate) dim: usize,
}

/// Distances from `query` to the rows `ids`.
///
/// # Safety
/// The processor has the instruction set of `L`. `rows.bytes` is at least 1. `query` has `rows.dim`
/// elements. For each `id` of `ids`, there is a row of `rows.dim` elements at `rows.start + id *
/// rows.bytes`. `out` is as long as `ids`.
#[inline(always)]
pub(crate) unsafe fn gather<L: Lanes, M: Measure>(
    query: *const u8,
    rows: Rows,
    ids: &[u32],
    out: &mut [f32],
) {
    let row = |id: u32| rows.start.wrapping_add(id as usize * rows.bytes);
    for id in ids.iter().take(ROWS_AHEAD) {
        prefetch_row::<L>(row(*id), rows.bytes);
    }
    for i in 0..ids.len().min(out.len()) {
        if let Some(ahead) = ids.get(i + ROWS_AHEAD) {
            prefetch_row::<L>(row(*ahead), rows.bytes);
        }
        // SAFETY: the caller's promise.
        out[i] = unsafe { M::distance::<L>(query, row(ids[i]), rows.dim) };
    }
}

/// Distances from `query` to the first `out.len()` rows.
///
/// # Safety
/// The processor has the instruction set of `L`. `query` has `rows.dim` elements. For each `i`
/// below `out.len()`, there is a row of `rows.dim` elements at `rows.start + i * rows.bytes`.
#[inline(always)]
pub(crate) unsafe fn dense<L: Lanes, M: Measure>(query: *const u8, rows: Rows, out: &mut [f32]) {
    let mut row = rows.start;
    for distance in out {
        // SAFETY: the caller's promise. There is no prefetch, because the processor recognises
        // adjacent rows.
        *distance = unsafe { M::distance::<L>(query, row, rows.dim) };
        row = row.wrapping_add(rows.bytes);
    }
}

/// Converts `n < 16` binary16 numbers at `p`, for instruction sets without masked loads.
///
/// # Safety
/// `p` points to `2 * n` bytes.
#[inline(always)]
pub(crate) unsafe fn halves(p: *const u8, n: usize) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for (i, x) in out.iter_mut().enumerate().take(n) {
        // SAFETY: the caller's promise, and `i < n`.
        *x = half_to_f32(u16::from_le_bytes(unsafe {
            p.add(2 * i).cast::<[u8; 2]>().read()
        }));
    }
    out
}

/// Copies `n` bytes and fills up with zeros, for instruction sets without masked loads.
///
/// # Safety
/// `p` points to `n` bytes, `n <= N`.
#[inline(always)]
pub(crate) unsafe fn padded<const N: usize>(p: *const u8, n: usize) -> [u8; N] {
    let mut out = [0; N];
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(p, out.as_mut_ptr(), n.min(N)) }
    out
}
