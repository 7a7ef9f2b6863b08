//! The sources of a page's bytes, which every reader tries in the same order.
//!
//! ```text
//!   held        the walk or the re-ranking of the query has the page, and it is still current
//!   unwritten   dirty: not on storage yet, or written while a search may have the old version
//!   resident    in memory since the index was opened
//!   cached      a single record, stamped with the page that it was read from
//!   being read  for another candidate of the same query
//!   storage     if pages are written in place, a read returns the dirty version if there is one
//! ```
//!
//! *Unwritten* pages are dirty. A dirty page is newer than the resident page with the same number.
//!
//! Held pages, and pages being read, belong to one query. [`Traversal::fetch`](crate::search) tries
//! the sources for pages of lists, `Reranker::ask` for vectors, and `Inserter::page_bytes` for an
//! insert.
//!
//! A scan does not hold the pages that it has read. A merge reads whole files, and replaces pages
//! by their dirty versions.

use std::ops::Deref;

use stratann_tier::Block;

use super::GraphStores;
use super::topology::placement::PageBytes;
use super::vectors::segments::{Extent, Segments};

pub(crate) enum Bytes<'a> {
    Read(Block),
    Resident(&'a [u8]),
    Unwritten(PageBytes),
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Read(block) => block,
            Bytes::Resident(bytes) => bytes,
            Bytes::Unwritten(bytes) => bytes,
        }
    }
}

impl From<Bytes<'_>> for PageBytes {
    fn from(bytes: Bytes<'_>) -> PageBytes {
        match bytes {
            Bytes::Unwritten(bytes) => bytes,
            Bytes::Read(_) | Bytes::Resident(_) => PageBytes::from(&*bytes),
        }
    }
}

impl Bytes<'_> {
    /// Whether the bytes are current. `now` is the dirty version of the page, if there is one.
    #[inline]
    pub(crate) fn are_current(&self, now: Option<&PageBytes>) -> bool {
        match (now, self) {
            (None, _) => true,
            (Some(now), Bytes::Unwritten(bytes)) => PageBytes::ptr_eq(now, bytes),
            (Some(_), Bytes::Read(_) | Bytes::Resident(_)) => false,
        }
    }
}

impl GraphStores {
    #[inline]
    pub(crate) fn in_memory(&self, page: u64) -> Option<Bytes<'_>> {
        match self.unwritten(page) {
            Some(bytes) => Some(Bytes::Unwritten(bytes)),
            None => self.resident.get(page).map(Bytes::Resident),
        }
    }

    #[inline]
    pub(crate) fn unwritten(&self, page: u64) -> Option<PageBytes> {
        self.placement.get()?.unwritten.get(page as u32)
    }
}

impl Segments {
    #[inline]
    pub(crate) fn in_memory(&self, place: Extent) -> Option<Bytes<'_>> {
        match self.unwritten(place) {
            Some(bytes) => Some(Bytes::Unwritten(bytes)),
            None => {
                let resident = &self.get(place.segment).resident;
                resident.run(place.page, place.pages).map(Bytes::Resident)
            }
        }
    }
}
