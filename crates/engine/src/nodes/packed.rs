//! Packed pages: a node's compressed list and compressed vector side by side in slotted pages (DESIGN §2.1).

use stratann_codec::{ListModel, SegmentModel, elias_fano};

use super::slotted::{Slotted, SlottedComposer, SlottedPages};
use super::{Composable, NodePages, Record, undecodable};
use crate::Error;

/// The pages of a packed index.
pub(crate) struct PackedPages {
    pub(crate) pages: SlottedPages,
    pub(crate) lists: ListModel,
    /// One for each `segment_vectors` nodes.
    pub(crate) vectors: Vec<SegmentModel>,
    pub(crate) segment_vectors: u32,
}

impl PackedPages {
    /// The model of a node's vector. Nodes that came after the build have that of its last segment.
    #[inline]
    fn model(&self, node: u32) -> &SegmentModel {
        let segment = (node / self.segment_vectors) as usize;
        &self.vectors[segment.min(self.vectors.len() - 1)]
    }
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
        match self.model(node).decode(record.vector, None, scratch) {
            Ok(()) => Ok(scratch),
            Err(error) => Err(undecodable(&self.pages.file, node, &error)),
        }
    }
}

impl Composable for PackedPages {
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

    fn encode_vector(&self, node: u32, vector: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        match self.model(node).encode(vector, None, out) {
            Ok(_) => Ok(()),
            Err(error) => Err(undecodable(&self.pages.file, node, &error)),
        }
    }
}
