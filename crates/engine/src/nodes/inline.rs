//! Inline pages: as coupled ones, and beside each list stand the codes of its nodes (AiSAQ §3.1).
//!
//! No codes are in memory, and nothing else that grows with the index: so a node's page follows from its number also when vectors
//! are inserted, and pages are written anew in their places.

use stratann_layout::{InlineShape, InlineView as LayoutView};

use super::coupled::words;
use super::placement::Placement;
use super::{NodePages, PageView, Record};
use crate::Error;

/// The pages of an inline index.
pub(crate) struct InlinePages {
    pub(crate) shape: InlineShape,
    pub(crate) file: String,
}

impl InlinePages {
    /// Where so many nodes are.
    pub(crate) fn even(&self, nodes: u32) -> Placement {
        Placement::even(nodes, self.shape.nodes_per_page() as u32)
    }
}

/// One of them.
#[derive(Clone, Copy)]
pub(crate) struct InlineView<'p> {
    view: LayoutView<'p>,
    first: u32,
}

impl<'p> PageView<'p> for InlineView<'p> {
    #[inline]
    fn node(self, slot: usize) -> Result<u32, Error> {
        Ok(self.first.saturating_add(slot as u32))
    }

    #[inline]
    fn slot_of(self, node: u32) -> Option<usize> {
        let slot = node.checked_sub(self.first)? as usize;
        (slot < self.view.len()).then_some(slot)
    }

    #[inline]
    fn len(self) -> usize {
        self.view.len()
    }

    #[inline]
    fn record(self, slot: usize) -> Result<Record<'p>, Error> {
        let node = self.view.node(slot)?;
        let list = node.neighbours.bytes();
        Ok(Record {
            id: node.id,
            list,
            list_and_rest: list,
            codes: node.codes,
            vector: node.vector,
        })
    }
}

impl NodePages for InlinePages {
    const VECTORS: bool = true;
    const CODES: bool = true;
    type View<'p> = InlineView<'p>;

    #[inline]
    fn page_of(&self, node: u32) -> u64 {
        self.shape.page_of(node)
    }

    #[inline]
    fn place(&self, page: u64) -> (u64, usize) {
        (self.shape.file_offset(page), self.shape.page_bytes())
    }

    #[inline]
    fn view<'p>(
        &'p self,
        bytes: &'p [u8],
        page: u64,
        check: bool,
    ) -> Result<InlineView<'p>, Error> {
        // The last page of an index that takes vectors, here or in another process, may have any number of them.
        let view = LayoutView::open(&self.shape, bytes, page, None, check, &self.file)?;
        let first = self.shape.first_node(page) as u32;
        Ok(InlineView { view, first })
    }

    fn cached_bytes(&self) -> usize {
        let shape = &self.shape;
        let codes = shape.code_bytes() * shape.degree();
        Record::cached_bytes(4 * shape.degree(), codes, shape.vector_bytes())
    }

    #[inline]
    fn list(&self, _: u32, record: &Record<'_>, out: &mut Vec<u32>) -> Result<(), Error> {
        words(record.list, out);
        Ok(())
    }

    #[inline]
    fn vector<'s>(
        &'s self,
        _: u32,
        record: &Record<'s>,
        _: &'s mut [u8],
    ) -> Result<&'s [u8], Error> {
        Ok(record.vector)
    }
}
