//! Reads the leading parts of vectors, for code that reads all vectors of a layered index in order.
//!
//! ```text
//!   nodes on pages of the build:                 a window of these pages, read at once
//!   a node that moved or was inserted later:     a single page, or its dirty version in memory
//!   a node whose record waits for its page:      encoded as the page will store it
//! ```

use stratann_layout::BLOCK;
use stratann_tier::Volume;

use crate::Error;
use crate::stores::topology::placement::Placement;
use crate::stores::{NodePages, PageView, Pages, on_pages};

const PIECE: usize = 1 << 20;

#[derive(Clone, Copy)]
pub(crate) struct LeadingFile<'f> {
    pub(crate) volume: &'f dyn Volume,
    pub(crate) name: &'f str,
    pub(crate) pages: &'f Pages,
    /// Set if the file took direct inserts.
    pub(crate) placement: Option<&'f Placement>,
}

#[derive(Default)]
pub(crate) struct LeadingParts {
    window: Vec<u8>,
    first: u64,
    count: u64,
    verified: Option<u64>,
    alone: Vec<u8>,
    /// The number of the page in `alone`, if its bytes are from storage.
    alone_is: Option<u64>,
    alone_verified: bool,
    part: Vec<u8>,
}

impl LeadingParts {
    /// Successive calls are fast if their nodes ascend.
    pub(crate) fn of<'s>(
        &'s mut self,
        file: &LeadingFile<'s>,
        node: u32,
    ) -> Result<(u64, &'s [u8]), Error> {
        on_pages!(file.pages, pages => self.find(file, pages, node))
    }

    fn find<'s, N: NodePages>(
        &'s mut self,
        file: &LeadingFile<'_>,
        pages: &'s N,
        node: u32,
    ) -> Result<(u64, &'s [u8]), Error> {
        let page = pages.page_of(node);
        let mut unwritten = None;
        if let Some(placement) = file.placement {
            if let Some(record) = placement.pending.record(page as u32, node) {
                self.part.clear();
                pages.leading_part(node, &record.vector, &mut self.part)?;
                return Ok((record.id, &self.part));
            }
            unwritten = placement.unwritten.get(page as u32);
        }
        let (check, window) = match unwritten {
            Some(bytes) => {
                self.alone.clear();
                self.alone.extend_from_slice(&bytes);
                self.alone_is = None;
                (false, false)
            }
            None => {
                let moved = pages.built_page(node) != Some(page);
                self.read(file, pages, page, moved)?
            }
        };
        let bytes = match window {
            true => {
                let page_bytes = self.window.len() / self.count as usize;
                &self.window[(page - self.first) as usize * page_bytes..][..page_bytes]
            }
            false => &self.alone[..],
        };
        let view = pages.view(bytes, page, check)?;
        match window {
            true => self.verified = Some(page),
            false => self.alone_verified = true,
        }
        let slot = view.slot_of(node).ok_or_else(|| Error::Damaged {
            file: file.name.to_owned(),
            what: format!("node {node} is not on page {page}, where it should be"),
        })?;
        let record = view.record(slot)?;
        Ok((record.id, record.vector))
    }

    /// Reads a page. With `moved`, the page is read alone. Otherwise it is read with the next
    /// pages, as a window. Returns whether the page must still be verified, and whether it is in
    /// the window.
    fn read<N: NodePages>(
        &mut self,
        file: &LeadingFile<'_>,
        pages: &N,
        page: u64,
        moved: bool,
    ) -> Result<(bool, bool), Error> {
        let (offset, page_bytes) = pages.place(page);
        let end = self.first + self.count;
        let is_here = (self.first..end).contains(&page);
        if moved && !is_here {
            if self.alone_is != Some(page) {
                (self.alone_is, self.alone_verified) = (None, false);
                self.alone.resize(page_bytes, 0);
                file.volume.read_at(file.name, offset, &mut self.alone)?;
                self.alone_is = Some(page);
            }
            return Ok((!self.alone_verified, false));
        }
        if !is_here {
            let all = file.volume.len(file.name)?.saturating_sub(BLOCK as u64);
            let step = (PIECE / page_bytes).max(1) as u64;
            // If the page is beyond the end of the file, the read fails.
            let count = (all / page_bytes as u64)
                .saturating_sub(page)
                .clamp(1, step);
            (self.first, self.count, self.verified) = (page, 0, None);
            self.window.resize(count as usize * page_bytes, 0);
            file.volume.read_at(file.name, offset, &mut self.window)?;
            self.count = count;
        }
        Ok((self.verified != Some(page), true))
    }
}
