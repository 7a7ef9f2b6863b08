//! Packed pages: a node's compressed list and compressed vector side by side in slotted pages (DESIGN §2.1).

use stratann_codec::{ListModel, SegmentModel, elias_fano};
use stratann_layout::{PageDirectory, SlottedShape, SlottedView};

use super::{NodePages, Record, Slotted, decode_list, undecodable};
use crate::Error;

/// The pages of a packed index.
pub(crate) struct PackedPages {
    pub(crate) shape: SlottedShape,
    pub(crate) directory: PageDirectory,
    pub(crate) lists: ListModel,
    /// One for each `segment_vectors` nodes.
    pub(crate) vectors: Vec<SegmentModel>,
    pub(crate) segment_vectors: u32,
    pub(crate) file: String,
}

impl PackedPages {
    /// Bytes of what is kept in memory beside pages.
    pub(crate) fn metadata_bytes(&self) -> usize {
        self.directory.memory_bytes()
    }
}

impl NodePages for PackedPages {
    const VECTORS: bool = true;
    type View<'p> = Slotted<'p>;

    #[inline]
    fn page_of(&self, node: u32) -> u64 {
        self.directory.page_of(node)
    }

    #[inline]
    fn place(&self, page: u64) -> (u64, usize) {
        (self.shape.file_offset(page), self.shape.page_bytes())
    }

    #[inline]
    fn view<'p>(&'p self, bytes: &'p [u8], page: u64, check: bool) -> Result<Slotted<'p>, Error> {
        Ok(Slotted {
            view: SlottedView::open(&self.shape, bytes, page, check, &self.file)?,
            ids: true,
        })
    }

    fn cached_bytes(&self) -> usize {
        let list = elias_fano::slot_bytes(self.shape.degree(), self.lists.nodes());
        Record::cached_bytes(list, self.shape.vector_bytes() + 1)
    }

    #[inline]
    fn list(&self, node: u32, record: &Record<'_>, out: &mut Vec<u32>) -> Result<(), Error> {
        decode_list(&self.lists, &self.file, node, record, out)
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
            Err(error) => Err(undecodable(&self.file, node, &error)),
        }
    }
}
