//! Pages of compressed adjacency lists alone: the graph of the decoupled layout (DecoupleVS §3.3, "block-based
//! auxiliary index organization").

use stratann_codec::{ListModel, elias_fano};
use stratann_layout::{PageDirectory, SlottedShape, SlottedView};

use super::{NodePages, Record, Slotted, decode_list};
use crate::Error;

/// The pages of lists of a decoupled index.
pub(crate) struct ListPages {
    pub(crate) shape: SlottedShape,
    pub(crate) directory: PageDirectory,
    pub(crate) lists: ListModel,
    pub(crate) file: String,
}

impl ListPages {
    /// Bytes of what is kept in memory beside pages.
    pub(crate) fn metadata_bytes(&self) -> usize {
        self.directory.memory_bytes()
    }
}

impl NodePages for ListPages {
    const VECTORS: bool = false;
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
            ids: false,
        })
    }

    fn cached_bytes(&self) -> usize {
        let list = elias_fano::slot_bytes(self.shape.degree(), self.lists.nodes());
        Record::cached_bytes(list, 0)
    }

    #[inline]
    fn list(&self, node: u32, record: &Record<'_>, out: &mut Vec<u32>) -> Result<(), Error> {
        decode_list(&self.lists, &self.file, node, record, out)
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
