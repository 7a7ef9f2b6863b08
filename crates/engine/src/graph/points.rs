//! The points of a build in memory, and the kernel that computes their squared Euclidean distances.

use stratann_vector::{Element, Kernel, Metric};

/// Dense rows in memory that are compared by squared Euclidean distance ("build space").
///
/// ```text
/// bytes: | row 0: dim elements | row 1 | row 2 | ...        row i starts at i * stride
/// ```
#[derive(Clone, Copy)]
pub struct Points<'a> {
    bytes: &'a [u8],
    rows: usize,
    dim: usize,
    element: Element,
    stride: usize,
    kernel: Kernel,
}

impl<'a> Points<'a> {
    /// Makes points from rows of `dim` elements each, one after the other.
    ///
    /// # Panics
    /// Panics if `dim` is 0, or if `bytes` are not whole rows.
    pub fn new(bytes: &'a [u8], element: Element, dim: usize) -> Points<'a> {
        Points::measured_by(Kernel::new(Metric::L2, element, dim), bytes)
    }

    /// Makes points for a given kernel.
    pub(super) fn measured_by(kernel: Kernel, bytes: &'a [u8]) -> Points<'a> {
        let stride = kernel.row_bytes();
        assert!(
            bytes.len().is_multiple_of(stride),
            "{} bytes are not whole rows of {stride} bytes",
            bytes.len()
        );
        Points {
            bytes,
            rows: bytes.len() / stride,
            dim: kernel.dim(),
            element: kernel.element(),
            stride,
            kernel,
        }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of elements of a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The bytes of one row.
    #[inline]
    pub fn row(&self, id: u32) -> &'a [u8] {
        let start = id as usize * self.stride;
        &self.bytes[start..start + self.stride]
    }

    /// The squared Euclidean distance of two rows.
    #[cfg(test)]
    pub fn distance(&self, a: u32, b: u32) -> f32 {
        self.kernel.distance(self.row(a), self.row(b))
    }

    /// Computes the squared Euclidean distances from `query` (the bytes of one row) to the rows
    /// `ids`. `out` must be as long as `ids`.
    #[inline]
    pub fn distances(&self, query: &[u8], ids: &[u32], out: &mut [f32]) {
        self.kernel.distances(query, self.bytes, ids, out);
    }

    /// `out` must have space for [`dim`](Points::dim) numbers.
    #[inline]
    pub(super) fn floats(&self, id: u32, out: &mut [f32]) {
        stratann_vector::to_f32(self.element, self.row(id), out);
    }
}
