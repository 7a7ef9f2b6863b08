//! Distance kernels, one for each metric, element type and instruction set. A caller chooses a
//! [`Kernel`] before a loop, and calls it through a pointer.
//!
//! | module | contents |
//! |---|---|
//! | `body` | the algorithms and the order of summation, over the primitives of `Lanes` |
//! | `codes` | the same for product quantisation |
//! | `plain`, `avx2`, `avx512`, `neon` | the primitives of one instruction set |
//!
//! A new instruction set needs a file, and a line in [`Routines::of`].

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod body;
pub(crate) mod codes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;

use std::fmt;

use crate::{Element, InstructionSet, Metric};
use body::Rows;
use codes::{Codebook, Points};

type Distance = unsafe fn(*const u8, *const u8, usize) -> f32;
type Gather = unsafe fn(*const u8, Rows, &[u32], &mut [f32]);
type Dense = unsafe fn(*const u8, Rows, &mut [f32]);

#[derive(Clone, Copy)]
struct Shapes {
    distance: Distance,
    gather: Gather,
    dense: Dense,
}

const METRICS: usize = Metric::ALL.len();

/// All functions of one instruction set. Each function has the safety conditions of the function
/// with the same name in [`body`] or [`codes`].
pub(crate) struct Routines {
    /// Indexed by the code of the element type, then by the code of the metric.
    shapes: [[Shapes; METRICS]; Element::ALL.len()],
    narrow: Shapes,
    pub(crate) score: unsafe fn(*const f32, usize, *const u8, &[u32], &mut [f32]),
    pub(crate) assign: unsafe fn(Codebook, Points, *mut u8, usize, *mut f32),
    pub(crate) squares: unsafe fn(Codebook, *const f32, f32, *mut f32),
    pub(crate) negated_products: unsafe fn(Codebook, *const f32, *mut f32),
    pub(crate) approach: unsafe fn(*const f32, usize, usize, *const f32, *mut f32, *mut f32),
}

macro_rules! routines {
    ($lanes:ty $(, $features:literal)?) => {
        mod instances {
            use super::*;
            use crate::kernel::body::{self, *};
            use crate::kernel::codes::{self, Codebook, Points};
            use crate::kernel::{METRICS, Routines, Shapes};

            $(#[target_feature(enable = $features)])?
            unsafe fn distance<M: Measure>(a: *const u8, b: *const u8, dim: usize) -> f32 {
                // SAFETY: the caller keeps the contract of the called function. So below.
                unsafe { M::distance::<$lanes>(a, b, dim) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn gather<M: Measure>(query: *const u8, rows: Rows, ids: &[u32], out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { body::gather::<$lanes, M>(query, rows, ids, out) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn dense<M: Measure>(query: *const u8, rows: Rows, out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { body::dense::<$lanes, M>(query, rows, out) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn score(table: *const f32, code_bytes: usize, codes: *const u8, ids: &[u32], out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { codes::score::<$lanes>(table, code_bytes, codes, ids, out) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn assign(book: Codebook, points: Points, codes: *mut u8, stride: usize, distances: *mut f32) {
                // SAFETY: as above.
                unsafe { codes::assign::<$lanes>(book, points, codes, stride, distances) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn squares(book: Codebook, point: *const f32, scale: f32, out: *mut f32) {
                // SAFETY: as above.
                unsafe { codes::squares::<$lanes>(book, point, scale, out) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn negated_products(book: Codebook, point: *const f32, out: *mut f32) {
                // SAFETY: as above.
                unsafe { codes::negated_products::<$lanes>(book, point, out) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn approach(
                points: *const f32,
                count: usize,
                width: usize,
                centre: *const f32,
                least: *mut f32,
                sums: *mut f32,
            ) {
                // SAFETY: as above.
                unsafe { codes::approach::<$lanes>(points, count, width, centre, least, sums) }
            }

            const fn shapes<M: Measure>() -> Shapes {
                Shapes { distance: distance::<M>, gather: gather::<M>, dense: dense::<M> }
            }

            const fn floats<R: FloatRow>() -> [Shapes; METRICS] {
                [
                    shapes::<Float<R, SquaredDifference>>(),
                    shapes::<Float<R, Product>>(),
                    shapes::<FloatCosine<R>>(),
                ]
            }

            const fn integers<R: IntegerRow>() -> [Shapes; METRICS] {
                [
                    shapes::<Integer<R, SquaredDifference>>(),
                    shapes::<Integer<R, Product>>(),
                    shapes::<IntegerCosine<R>>(),
                ]
            }

            pub(crate) static ROUTINES: Routines = Routines {
                shapes: [floats::<F32Row>(), floats::<F16Row>(), integers::<U8Row>(), integers::<I8Row>()],
                narrow: shapes::<Narrow>(),
                score,
                assign,
                squares,
                negated_products,
                approach,
            };
        }
        pub(crate) use instances::ROUTINES;
    };
}
pub(crate) use routines;

impl Routines {
    /// The functions of an instruction set, which the processor must have.
    pub(crate) fn of(isa: InstructionSet) -> &'static Routines {
        assert!(
            InstructionSet::available().contains(&isa),
            "this processor lacks the instruction set {isa}"
        );
        match isa {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => &avx2::ROUTINES,
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => &avx512::ROUTINES,
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => &neon::ROUTINES,
            _ => &plain::ROUTINES,
        }
    }
}

/// Computes distances between rows of one element type and dimension, under one metric.
///
/// ```
/// use stratann_vector::{Element, Kernel, Metric};
///
/// let kernel = Kernel::new(Metric::L2, Element::U8, 3);
/// assert_eq!(kernel.distance(&[1, 2, 3], &[4, 6, 3]), 25.0);
/// ```
#[derive(Clone, Copy)]
pub struct Kernel {
    shapes: Shapes,
    row_bytes: usize,
    dim: usize,
    metric: Metric,
    element: Element,
    isa: InstructionSet,
}

impl Kernel {
    /// A kernel for the best instruction set of this processor ([`InstructionSet::current`]).
    ///
    /// # Panics
    /// Panics if `dim` is 0.
    pub fn new(metric: Metric, element: Element, dim: usize) -> Kernel {
        Kernel::with_isa(metric, element, dim, InstructionSet::current())
    }

    /// A kernel for a given instruction set; for tests and comparisons.
    ///
    /// # Panics
    /// Panics if `dim` is 0, or the processor does not have the instruction set.
    pub fn with_isa(metric: Metric, element: Element, dim: usize, isa: InstructionSet) -> Kernel {
        assert!(dim > 0, "the dimension is 0");
        let shapes =
            Routines::of(isa).shapes[usize::from(element.code())][usize::from(metric.code())];
        Kernel {
            shapes,
            row_bytes: dim * element.size(),
            dim,
            metric,
            element,
            isa,
        }
    }

    /// The largest magnitude of an element that [`Kernel::narrow`] accepts.
    pub const NARROW_LARGEST: i8 = 63;

    /// A faster kernel for squared Euclidean distances between rows of `i8` from -63 to 63.
    ///
    /// # Panics
    /// Panics if `dim` is 0.
    pub fn narrow(dim: usize) -> Kernel {
        Kernel::narrow_with_isa(dim, InstructionSet::current())
    }

    /// [`Kernel::narrow`] for a given instruction set; for tests and comparisons.
    ///
    /// # Panics
    /// Panics if `dim` is 0, or the processor does not have the instruction set.
    pub fn narrow_with_isa(dim: usize, isa: InstructionSet) -> Kernel {
        Kernel {
            shapes: Routines::of(isa).narrow,
            ..Kernel::with_isa(Metric::L2, Element::I8, dim, isa)
        }
    }

    /// Elements of a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The metric of this kernel.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// The type of the rows' elements.
    pub fn element(&self) -> Element {
        self.element
    }

    /// The instruction set that this kernel uses.
    pub fn instruction_set(&self) -> InstructionSet {
        self.isa
    }

    /// The distance between two rows: little-endian bytes of `dim` elements, at any alignment.
    ///
    /// # Panics
    /// Panics if a row's length is not [`Kernel::row_bytes`].
    #[inline]
    pub fn distance(&self, a: &[u8], b: &[u8]) -> f32 {
        assert!(
            a.len() == self.row_bytes && b.len() == self.row_bytes,
            "a row is not {} bytes long",
            self.row_bytes
        );
        // SAFETY: both rows have `dim` elements; `Routines::of` checked the instruction set.
        unsafe { (self.shapes.distance)(a.as_ptr(), b.as_ptr(), self.dim) }
    }

    /// Computes the distances from `query` to the rows `ids` of the dense matrix `rows`.
    ///
    /// # Panics
    /// Panics if a length is wrong, or an id is not below the number of whole rows.
    #[inline]
    pub fn distances(&self, query: &[u8], rows: &[u8], ids: &[u32], out: &mut [f32]) {
        assert_eq!(
            query.len(),
            self.row_bytes,
            "the query has the wrong length"
        );
        assert_eq!(
            ids.len(),
            out.len(),
            "the numbers of ids and distances differ"
        );
        let count = rows.len() / self.row_bytes;
        assert!(
            all_below(ids, count),
            "an id is not below {count}, the number of rows"
        );
        let rows = Rows {
            start: rows.as_ptr(),
            bytes: self.row_bytes,
            dim: self.dim,
        };
        // SAFETY: the query has `dim` elements; each id is the number of a whole row in `rows`;
        // `out` is as long as `ids`; the processor has the instruction set.
        unsafe { (self.shapes.gather)(query.as_ptr(), rows, ids, out) }
    }

    /// Computes the distances from `query` to consecutive rows. `out[i]` gets the distance to row
    /// `i`.
    ///
    /// # Panics
    /// Panics if a length is wrong.
    #[inline]
    pub fn distances_dense(&self, query: &[u8], rows: &[u8], out: &mut [f32]) {
        assert_eq!(
            query.len(),
            self.row_bytes,
            "the query has the wrong length"
        );
        assert_eq!(
            rows.len(),
            out.len() * self.row_bytes,
            "the numbers of rows and distances differ"
        );
        let rows = Rows {
            start: rows.as_ptr(),
            bytes: self.row_bytes,
            dim: self.dim,
        };
        // SAFETY: the query and each of the `out.len()` rows have `dim` elements; `Routines::of`
        // checked the instruction set.
        unsafe { (self.shapes.dense)(query.as_ptr(), rows, out) }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("metric", &self.metric)
            .field("element", &self.element)
            .field("dim", &self.dim)
            .field("isa", &self.isa)
            .finish()
    }
}

/// Whether all ids are below `count`. This loop has no branches, and spares the caller's loop the
/// bounds checks.
#[inline]
pub(crate) fn all_below(ids: &[u32], count: usize) -> bool {
    ids.is_empty() || (ids.iter().fold(0, |most, id| most.max(*id)) as usize) < count
}
