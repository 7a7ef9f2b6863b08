//! The data from which a layout plans its files, before any node is written.

use stratann_layout::{BLOCK, FileKind, SlottedShape};
use stratann_vector::Element;

use super::coding::Coding;
use crate::data::VectorSource;
use crate::{BuildOptions, Compression, Error};

/// The layout packed is chosen if a page is expected to have at least this number of nodes with
/// their vectors. Otherwise the layout is layered or decoupled, where a page has about fifty lists.
/// If pages had only a few nodes with vectors, a traversal would read many times the bytes that it
/// needs.
const NODES_WORTH_PACKING: f64 = 6.0;

/// The data from which a layout plans its files.
pub(crate) struct Choices<'a> {
    pub(crate) source: &'a dyn VectorSource,
    pub(crate) options: &'a BuildOptions,
    /// The compression of lists and vectors.
    pub(crate) compression: Compression,
    /// R, the largest number of neighbours of a node.
    pub(crate) degree: usize,
    /// The bytes of a vector's PQ code.
    pub(crate) code_bytes: usize,
    /// The expected bytes of a node's list and vector.
    pub(crate) expected: Expected,
}

impl Choices<'_> {
    /// The parameters of the codecs, before they are trained.
    pub(crate) fn coding(&self) -> Result<Coding, Error> {
        Coding::new(self.source, self.degree, self.compression)
    }

    /// The shape of slotted pages of a kind. The pages are large enough for a record of `largest`
    /// bytes.
    pub(crate) fn slotted(&self, kind: FileKind, largest: usize) -> Result<SlottedShape, Error> {
        let (element, dim) = (self.source.element(), self.source.dim());
        Ok(SlottedShape::new(kind, element, dim, self.degree, largest)?)
    }

    /// The shape of pages of vectors with at most `largest` bytes each. A record may span two
    /// pages.
    pub(crate) fn running_on(&self, largest: usize) -> Result<SlottedShape, Error> {
        let (element, dim) = (self.source.element(), self.source.dim());
        Ok(SlottedShape::running_on(
            element,
            dim,
            self.degree,
            largest,
        )?)
    }
}

/// The number of bytes that an encoded node is expected to take. Real collections differ from it by
/// up to about a third. This is accurate enough to choose a layout and to order nodes. The estimate
/// depends only on the element type and dimension of the vectors, not on the codec. So with each
/// compression, the graph is built over the same order. The nodes of a page are chosen later, by
/// the real sizes of records (`sharing.rs`).
pub(crate) struct Expected {
    vector: f64,
    leading: f64,
    pub(crate) list: f64,
}

impl Expected {
    /// The bytes of the length fields and the id of a node on a slotted page.
    const OVERHEAD: f64 = 6.0;

    pub(crate) fn of(element: Element, dim: usize, degree: usize) -> Self {
        let share = match element {
            Element::U8 | Element::I8 => 0.7,
            // In a float, only the exponent compresses well.
            Element::F32 | Element::F16 => 0.85,
        };
        Self {
            vector: share * (dim * element.size()) as f64,
            leading: 0.6 * dim as f64,
            list: 1.3 * degree as f64,
        }
    }

    /// The bytes of a list, a vector, and the fields of a slotted page for both.
    fn node(&self) -> f64 {
        self.vector + self.list + Self::OVERHEAD
    }

    /// Whether vectors are packed. If enough nodes share a page, one read gets many nodes that are
    /// near each other. Otherwise the traversal reads only pages of lists, or pages of lists and
    /// leading parts.
    pub(crate) fn are_packed(&self) -> bool {
        BLOCK as f64 / self.node() >= NODES_WORTH_PACKING
    }

    /// The number of nodes with whole vectors that fit on a page.
    pub(crate) fn nodes_a_page(&self) -> usize {
        on_page(self.node())
    }

    /// The number of nodes with the leading parts of their vectors that fit on a page. A leading
    /// part has about five bits for each element.
    pub(crate) fn leading_a_page(&self) -> usize {
        on_page(self.leading + self.list + Self::OVERHEAD)
    }

    /// The number of nodes that fit on a page that has only lists.
    pub(crate) fn lists_a_page(&self) -> usize {
        on_page(self.list)
    }
}

/// The number of records of `bytes` bytes that fit into a block, at least 1.
fn on_page(bytes: f64) -> usize {
    ((BLOCK as f64 / bytes) as usize).max(1)
}
