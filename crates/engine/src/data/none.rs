//! Sources without vectors. [`NoRows`] builds an empty index. An [`Outline`] has the shape of
//! unread vectors.

use stratann_vector::Element;

use super::DataError;
use super::source::{VectorSource, check_range};

/// A source that has a dimension and an element type, but no rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRows {
    dim: usize,
    element: Element,
}

impl NoRows {
    /// Makes a source without rows, for vectors of `dim` elements.
    pub fn new(element: Element, dim: usize) -> Self {
        Self { dim, element }
    }
}

impl VectorSource for NoRows {
    fn rows(&self) -> usize {
        0
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn element(&self) -> Element {
        self.element
    }

    fn name(&self) -> &str {
        "vectors"
    }

    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        check_range(self, first, out.len()).map(drop)
    }

    fn in_memory(&self) -> Option<&[u8]> {
        Some(&[])
    }
}

/// The name and the shape of vectors that were not read yet, whose rows cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    /// The name of the vectors in messages.
    pub name: String,
    /// The number of rows.
    pub rows: usize,
    /// The dimension.
    pub dim: usize,
    /// The element type.
    pub element: Element,
}

impl VectorSource for Outline {
    fn rows(&self) -> usize {
        self.rows
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn element(&self) -> Element {
        self.element
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        let none = NoRows::new(self.element, self.dim);
        check_range(&none, first, out.len()).map(drop)
    }
}
