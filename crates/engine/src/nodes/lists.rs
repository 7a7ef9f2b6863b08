//! Pages of compressed adjacency lists alone: the graph of the decoupled layout (DecoupleVS §3.3, "block-based
//! auxiliary index organization").

use stratann_codec::{ListModel, elias_fano};

use super::slotted::{Slotted, SlottedComposer, SlottedPages};
use super::{Composable, NodePages, Record};
use crate::Error;

/// The pages of lists of a decoupled index.
pub(crate) struct ListPages {
    pub(crate) pages: SlottedPages,
    pub(crate) lists: ListModel,
}

impl NodePages for ListPages {
    const VECTORS: bool = false;
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
        self.pages.view(bytes, page, check, false)
    }

    fn cached_bytes(&self) -> usize {
        let list = elias_fano::slot_bytes(self.pages.shape.degree(), self.lists.nodes());
        Record::cached_bytes(list, 0, 0)
    }

    #[inline]
    fn list(&self, node: u32, record: &Record<'_>, out: &mut Vec<u32>) -> Result<(), Error> {
        self.pages.list(&self.lists, node, record, out)
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

impl Composable for ListPages {
    type Composer = SlottedComposer;

    fn composer(&self) -> SlottedComposer {
        SlottedComposer::new(self.pages.shape)
    }

    fn records_a_page(&self) -> usize {
        self.pages.records_a_page()
    }

    fn encode_list(&self, node: u32, list: &[u32], out: &mut Vec<u8>) -> Result<(), Error> {
        self.pages.encode_list(&self.lists, node, list, out)
    }

    /// Nothing: vectors are in segments.
    fn encode_vector(&self, _: u32, _: &[u8], _: &mut Vec<u8>) -> Result<(), Error> {
        Ok(())
    }
}
