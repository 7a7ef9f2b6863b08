//! The kernels of product quantisation. To compare a point with centroids, each of the 16 lanes has
//! one centroid, and the components are added one after the other. A score adds entry `j` of a
//! table to lane `j % 16`, and then adds the lanes by the tree of [`super::body`].

use super::body::{LANES, Lanes, ROWS_AHEAD, prefetch_row};

pub(crate) const BLOCK: usize = 1024;

/// `out[i]` is the sum over `j < code_bytes` of `table[j * 256 + code[j]]`, where `code` is code
/// number `ids[i]` of `codes`.
///
/// # Safety
/// The processor has the instruction set of `L`. `code_bytes` is at least 1. `table` points to
/// `code_bytes * 256` floats. For each `id` of `ids`, `codes` has a code of `code_bytes` bytes at
/// `id * code_bytes`. `out` is as long as `ids`.
#[inline(always)]
pub(crate) unsafe fn score<L: Lanes>(
    table: *const f32,
    code_bytes: usize,
    codes: *const u8,
    ids: &[u32],
    out: &mut [f32],
) {
    let code = |id: u32| codes.wrapping_add(id as usize * code_bytes);
    for id in ids.iter().take(ROWS_AHEAD) {
        prefetch_row::<L>(code(*id), code_bytes);
    }
    for i in 0..ids.len().min(out.len()) {
        if let Some(ahead) = ids.get(i + ROWS_AHEAD) {
            prefetch_row::<L>(code(*ahead), code_bytes);
        }
        let code = code(ids[i]);
        // SAFETY: the caller's promise. All look-ups together read the bytes of the code, and the
        // rows of the table, from 0 to below `code_bytes`.
        unsafe {
            let mut sum = L::splat(0.0);
            let mut j = 0;
            while j + LANES <= code_bytes {
                sum = L::add(sum, L::look_up(table.add(j * 256), code.add(j)));
                j += LANES;
            }
            if j < code_bytes {
                let rest = L::look_up_part(table.add(j * 256), code.add(j), code_bytes - j);
                sum = L::add(sum, rest);
            }
            out[i] = L::sum(sum);
        }
    }
}

/// The 256 centroids of a chunk: component `j` of centroid `c` is at `j * 256 + c`.
#[derive(Clone, Copy)]
pub(crate) struct Codebook {
    pub(crate) transposed: *const f32,
    pub(crate) width: usize,
}

/// Evaluates `$body` with the width as a type, because the compiler unrolls loops of constant
/// length.
macro_rules! by_width {
    ($width:expr, $W:ident => $body:expr) => {
        match $width {
            2 => {
                type $W = Exactly<2>;
                $body
            }
            3 => {
                type $W = Exactly<3>;
                $body
            }
            4 => {
                type $W = Exactly<4>;
                $body
            }
            8 => {
                type $W = Exactly<8>;
                $body
            }
            _ => {
                type $W = Any;
                $body
            }
        }
    };
}

trait Width {
    fn of(book: Codebook) -> usize;
}

struct Exactly<const N: usize>;

impl<const N: usize> Width for Exactly<N> {
    #[inline(always)]
    fn of(_: Codebook) -> usize {
        N
    }
}

struct Any;

impl Width for Any {
    #[inline(always)]
    fn of(book: Codebook) -> usize {
        book.width
    }
}

/// The squared differences between a point and the 16 centroids of a group, in component `j`.
///
/// # Safety
/// The conditions of [`to_group`] hold, except for `W`. `j` is below `book.width`.
#[inline(always)]
unsafe fn square<L: Lanes>(book: Codebook, point: *const f32, group: usize, j: usize) -> L::F {
    // SAFETY: the caller's promise.
    unsafe {
        let centroids = L::load(book.transposed.add(j * 256 + group * LANES).cast());
        let difference = L::sub(L::splat(*point.add(j)), centroids);
        L::mul(difference, difference)
    }
}

/// Squared distances from a point to the 16 centroids of a group.
///
/// # Safety
/// The processor has the instruction set of `L`. `book.width` is at least 1, and equals
/// `W::of(book)`. `book.transposed` points to `256 * book.width` floats, and `point` to
/// `book.width` floats. `group` is below 16.
#[inline(always)]
unsafe fn to_group<L: Lanes, W: Width>(book: Codebook, point: *const f32, group: usize) -> L::F {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sum = square::<L>(book, point, group, 0);
        for j in 1..W::of(book) {
            sum = L::add(sum, square::<L>(book, point, group, j));
        }
        sum
    }
}

/// Point `i`, below `count`, is at `start + i * stride`. The stride is in floats.
#[derive(Clone, Copy)]
pub(crate) struct Points {
    pub(crate) start: *const f32,
    pub(crate) stride: usize,
    pub(crate) count: usize,
}

/// Writes the number of the centroid that is nearest to point `i` to `codes[i * code_stride]`; of
/// several equally near ones, the lowest number. Unless `distances` is null, writes the squared
/// distance to `distances[i]`.
///
/// # Safety
/// The processor has the instruction set of `L`. `book.width` is at least 1, and `book.transposed`
/// points to `256 * book.width` floats. For each `i` below `points.count`, point `i` has
/// `book.width` floats, and `codes` has room for a byte at `i * code_stride`. `distances` is null,
/// or has room for `points.count` floats.
#[inline(always)]
pub(crate) unsafe fn assign<L: Lanes>(
    book: Codebook,
    points: Points,
    codes: *mut u8,
    code_stride: usize,
    distances: *mut f32,
) {
    // SAFETY: the caller's promise; `W::of(book)` equals `book.width`.
    by_width!(book.width, W => unsafe {
        assign_width::<L, W>(book, points, codes, code_stride, distances);
    })
}

/// # Safety
/// The conditions of [`assign`] hold, and `W::of(book)` equals `book.width`.
#[inline(always)]
unsafe fn assign_width<L: Lanes, W: Width>(
    book: Codebook,
    points: Points,
    codes: *mut u8,
    code_stride: usize,
    distances: *mut f32,
) {
    for i in 0..points.count {
        // SAFETY: the caller's promise, for point `i`. The 16 groups have the 256 centroids of the
        // book.
        unsafe {
            let point = points.start.add(i * points.stride);
            let (mut least, mut of) = (L::splat(f32::INFINITY), L::splat_index(0));
            for group in 0..16 {
                let squares = to_group::<L, W>(book, point, group);
                (least, of) = L::lesser(least, of, squares, group as u32);
            }
            let (distance, centroid) = L::least(least, of);
            *codes.add(i * code_stride) = centroid as u8;
            if !distances.is_null() {
                *distances.add(i) = distance;
            }
        }
    }
}

/// Writes 256 floats: `scale` times the squared distance from `point` to each centroid.
///
/// # Safety
/// The processor has the instruction set of `L`. `book.width` is at least 1. `book.transposed`
/// points to `256 * book.width` floats, and `point` to `book.width` floats. `out` has room for 256
/// floats.
#[inline(always)]
pub(crate) unsafe fn squares<L: Lanes>(
    book: Codebook,
    point: *const f32,
    scale: f32,
    out: *mut f32,
) {
    // SAFETY: the caller's promise; `W::of(book)` equals `book.width`.
    by_width!(book.width, W => unsafe {
        for group in 0..16 {
            let squares = to_group::<L, W>(book, point, group);
            L::store(out.add(group * LANES), L::mul(squares, L::splat(scale)));
        }
    })
}

/// Writes 256 floats: the negated inner product of `point` with each centroid.
///
/// # Safety
/// The conditions of [`squares`] hold.
#[inline(always)]
pub(crate) unsafe fn negated_products<L: Lanes>(book: Codebook, point: *const f32, out: *mut f32) {
    // SAFETY: the caller's promise; `W::of(book)` equals `book.width`.
    by_width!(book.width, W => unsafe {
        for group in 0..16 {
            let mut sum = L::splat(0.0);
            for j in 0..W::of(book) {
                let centroids = L::load(book.transposed.add(j * 256 + group * LANES).cast());
                sum = L::sub(sum, L::mul(L::splat(*point.add(j)), centroids));
            }
            L::store(out.add(group * LANES), sum);
        }
    })
}

/// If the squared distance between point `i` and `centre` is below `least[i]`, lowers `least[i]` to
/// it. Then sums `least` over each block of [`BLOCK`] points. Component `j` of point `i` is at
/// `transposed[j * count + i]`.
///
/// # Safety
/// The processor has the instruction set of `L`. `count` is a multiple of 16. `transposed` points
/// to `count * width` floats, `centre` to `width` floats, and `least` to `count` floats, which can
/// be written. `sums` has room for a float for each block, also for a last block with fewer points.
#[inline(always)]
pub(crate) unsafe fn approach<L: Lanes>(
    transposed: *const f32,
    count: usize,
    width: usize,
    centre: *const f32,
    least: *mut f32,
    sums: *mut f32,
) {
    let mut first = 0;
    while first < count {
        let end = count.min(first + BLOCK);
        // SAFETY: the caller's promise. `i` is a multiple of 16 below `count`, so 16 floats follow
        // from `i` on.
        unsafe {
            let mut sum = L::splat(0.0);
            let mut i = first;
            while i < end {
                let mut distance = L::splat(0.0);
                for j in 0..width {
                    let points = L::load(transposed.add(j * count + i).cast());
                    let difference = L::sub(points, L::splat(*centre.add(j)));
                    distance = L::add(distance, L::mul(difference, difference));
                }
                let lower = L::min(distance, L::load(least.add(i).cast()));
                L::store(least.add(i), lower);
                sum = L::add(sum, lower);
                i += LANES;
            }
            *sums.add(first / BLOCK) = L::sum(sum);
        }
        first = end;
    }
}
