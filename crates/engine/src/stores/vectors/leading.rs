//! The leading parts of vectors whose trailing parts are in segments, for who reads all vectors: node after node, off the pages that have
//! them beside the lists.

use stratann_layout::BLOCK;
use stratann_tier::Volume;

use crate::Error;
use crate::stores::{NodePages, PageView, Pages, on_pages};

/// Bytes of pages that are read at a time, about.
const PIECE: usize = 1 << 20;

/// Pages with leading parts, some at a time.
#[derive(Default)]
pub(crate) struct LeadingParts {
    bytes: Vec<u8>,
    /// The first page that is here, and how many are.
    first: u64,
    count: u64,
    /// The page that was verified last.
    verified: Option<u64>,
}

impl LeadingParts {
    /// The outside id of a node and the leading part of its vector. Quick where nodes ascend; the pages of an index that took no direct
    /// inserts, of the file with this name.
    ///
    /// # Errors
    /// A page that cannot be read or is damaged, or has not the node.
    pub(crate) fn of<'s>(
        &'s mut self,
        volume: &dyn Volume,
        name: &str,
        pages: &'s Pages,
        node: u32,
    ) -> Result<(u64, &'s [u8]), Error> {
        on_pages!(pages, pages => self.find(volume, name, pages, node))
    }

    fn find<'s, N: NodePages>(
        &'s mut self,
        volume: &dyn Volume,
        name: &str,
        pages: &'s N,
        node: u32,
    ) -> Result<(u64, &'s [u8]), Error> {
        let page = pages.page_of(node);
        let (offset, page_bytes) = pages.place(page);
        if page < self.first || page - self.first >= self.count {
            let stored = volume.len(name)?.saturating_sub(BLOCK as u64) / page_bytes as u64;
            let most = (PIECE / page_bytes).max(1) as u64;
            // One behind the end is an error of the read.
            let count = stored.saturating_sub(page).clamp(1, most);
            (self.count, self.verified) = (0, None);
            self.bytes.resize(count as usize * page_bytes, 0);
            volume.read_at(name, offset, &mut self.bytes)?;
            (self.first, self.count) = (page, count);
        }
        let at = (page - self.first) as usize * page_bytes;
        let bytes = &self.bytes[at..at + page_bytes];
        let view = pages.view(bytes, page, self.verified != Some(page))?;
        self.verified = Some(page);
        let slot = view.slot_of(node).ok_or_else(|| Error::Damaged {
            file: name.to_owned(),
            what: format!("node {node} is not on page {page}, where it should be"),
        })?;
        let record = view.record(slot)?;
        Ok((record.id, record.vector))
    }
}
