//! Where the bytes of a page come from: one chain, asked in one order by whoever wants a page.
//!
//! ```text
//!   held        by the walk or the re-ranking that asks, from a page before: for as long as it is current
//!   unwritten   composed anew and not on storage yet; or there, and searches go on that may have read it before it was
//!   resident    in memory since the index was opened
//!   cached      a record alone, stamped with the page that it was read from
//!   being read  for another candidate of the same query
//!   storage     a read ends with what is unwritten by then, where pages are written in their places
//! ```
//!
//! What is unwritten comes before what is resident: it is newer. That also holds where pages never change, since one that is resident is
//! never used again for something else while the index is open.
//!
//! Unwritten and resident pages are in memory for all, and found by [`GraphStores::in_memory`] and [`Segments::in_memory`]. What one query
//! holds, and what it waits for, it keeps itself: [`Traversal::fetch`](crate::search) is the chain for lists, `Reranker::ask` that for
//! vectors, and an insert goes through it in `Inserter::page_bytes`. A scan holds nothing, and looks a second time only at what is newer
//! than the opening. A merge reads whole files, and takes what is unwritten in the stead of what it read.

use std::ops::Deref;

use stratann_tier::Block;

use super::GraphStores;
use super::topology::placement::PageBytes;
use super::vectors::segments::{Extent, Segments};

/// The bytes of a page that is here.
pub(crate) enum Bytes<'a> {
    /// It was read.
    Read(Block),
    /// The index keeps it in memory.
    Resident(&'a [u8]),
    /// It waits to be written.
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
    /// Whether they are those that are unwritten `now`, if a page is.
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
    /// A page that needs no read.
    #[inline]
    pub(crate) fn in_memory(&self, page: u64) -> Option<Bytes<'_>> {
        match self.unwritten(page) {
            Some(bytes) => Some(Bytes::Unwritten(bytes)),
            None => self.resident.get(page).map(Bytes::Resident),
        }
    }

    /// A page that waits to be written.
    #[inline]
    pub(crate) fn unwritten(&self, page: u64) -> Option<PageBytes> {
        self.placement.get()?.unwritten.get(page as u32)
    }
}

impl Segments {
    /// Pages of vectors that need no read.
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
