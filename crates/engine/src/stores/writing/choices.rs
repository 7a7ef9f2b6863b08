//! The data from which a layout plans its files, before any node is written.

use stratann_layout::{BLOCK, FileKind, SlottedShape};
use stratann_vector::Element;

use super::coding::Coding;
use crate::data::VectorSource;
use crate::{BuildOptions, Compression, Error};

/// If this number of nodes with their vectors fits on a page, the layout is packed. With fewer
/// nodes, a traversal would read many times the bytes that it needs. A page of lists alone has
/// about fifty lists.
const NODES_WORTH_PACKING: f64 = 6.0;

pub(crate) struct Choices<'a> {
    pub(crate) source: &'a dyn VectorSource,
    pub(crate) options: &'a BuildOptions,
    pub(crate) compression: Compression,
    pub(crate) degree: usize,
    pub(crate) code_bytes: usize,
    pub(crate) expected: Expected,
}

impl Choices<'_> {
    pub(crate) fn coding(&self) -> Result<Coding, Error> {
        Coding::new(self.source, self.degree, self.compression)
    }

    /// Pages of this shape have space for a record of `largest` bytes.
    pub(crate) fn slotted(&self, kind: FileKind, largest: usize) -> Result<SlottedShape, Error> {
        let (element, dim) = (self.source.element(), self.source.dim());
        Ok(SlottedShape::new(kind, element, dim, self.degree, largest)?)
    }

    /// A record of `largest` bytes may span two pages.
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

/// The expected bytes of an encoded node. The estimate depends only on the element type and the
/// dimension, so that each compression gets the same order of nodes. Real collections differ by up
/// to about a third, which is accurate enough to choose a layout.
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

    fn node(&self) -> f64 {
        self.vector + self.list + Self::OVERHEAD
    }

    /// Whether vectors are packed. Then one read returns many near nodes.
    pub(crate) fn are_packed(&self) -> bool {
        BLOCK as f64 / self.node() >= NODES_WORTH_PACKING
    }

    pub(crate) fn nodes_a_page(&self) -> usize {
        on_page(self.node())
    }

    /// A leading part has about five bits for each element.
    pub(crate) fn leading_a_page(&self) -> usize {
        on_page(self.leading + self.list + Self::OVERHEAD)
    }

    pub(crate) fn lists_a_page(&self) -> usize {
        on_page(self.list)
    }
}

fn on_page(bytes: f64) -> usize {
    ((BLOCK as f64 / bytes) as usize).max(1)
}
