//! Packed pages: a node's compressed list and compressed vector side by side in slotted pages (DESIGN §2.1).

use stratann_codec::{ListModel, SegmentModel, elias_fano};

use super::slotted::{Slotted, SlottedPages};
use super::{NodePages, Record, undecodable};
use crate::Error;

/// The pages of a packed index.
pub(crate) struct PackedPages {
    pub(crate) pages: SlottedPages,
    pub(crate) lists: ListModel,
    /// One for each `segment_vectors` nodes.
    pub(crate) vectors: Vec<SegmentModel>,
    pub(crate) segment_vectors: u32,
}

impl NodePages for PackedPages {
    const VECTORS: bool = true;
    const CODES: bool = false;
    type View<'p> = Slotted<'p>;

    #[inline]
    fn page_of(&self, node: u32) -> u64 {
        self.pages.page_of(node)
    }

    #[inline]
    fn place(&self, page: u64) -> (u64, usize) {
        self.pages.place(page)
    }

    #[inline]
    fn view<'p>(&'p self, bytes: &'p [u8], page: u64, check: bool) -> Result<Slotted<'p>, Error> {
        self.pages.view(bytes, page, check, true)
    }

    fn cached_bytes(&self) -> usize {
        let list = elias_fano::slot_bytes(self.pages.shape.degree(), self.lists.nodes());
        Record::cached_bytes(list, 0, self.pages.shape.vector_bytes() + 1)
    }

    #[inline]
    fn list(&self, node: u32, record: &Record<'_>, out: &mut Vec<u32>) -> Result<(), Error> {
        self.pages.list(&self.lists, node, record, out)
    }

    #[inline]
    fn vector<'s>(
        &'s self,
        node: u32,
        record: &Record<'s>,
        scratch: &'s mut [u8],
    ) -> Result<&'s [u8], Error> {
        let segment = (node / self.segment_vectors) as usize;
        let model = &self.vectors[segment.min(self.vectors.len() - 1)];
        match model.decode(record.vector, None, scratch) {
            Ok(()) => Ok(scratch),
            Err(error) => Err(undecodable(&self.pages.file, node, &error)),
        }
    }
}
