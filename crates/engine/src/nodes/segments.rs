//! Segments of compressed vectors: where the decoupled layout re-ranks from (DecoupleVS §3.3).
//!
//! A node's segment and chunk are divisions; its page is found in the segment's directory, made from the chunk metadata's
//! boundaries. The record of a vector holds its outside id. Vectors that came after the build are on pages that were added behind
//! those of the last segment.

use std::sync::{Arc, OnceLock};

use stratann_codec::SegmentModel;
use stratann_tier::Tier;

use super::added::Added;
use super::placement::PageBytes;
use super::resident::Resident;
use super::slotted::{Slotted, SlottedPages};
use super::{PageView, Record, undecodable};
use crate::Error;

/// One segment.
pub(crate) struct Segment {
    pub(crate) tier: Arc<dyn Tier>,
    pub(crate) pages: SlottedPages,
    pub(crate) model: SegmentModel,
    /// Vectors of a chunk.
    pub(crate) chunk_vectors: u32,
    /// The base vector of each chunk that is stored as its difference from one.
    pub(crate) bases: Vec<Option<Vec<u8>>>,
    /// Its first node.
    pub(crate) first: u32,
    /// The node behind its last one of the build.
    pub(crate) end: u32,
    /// The file's name in the volume.
    pub(crate) name: String,
    /// Pages that are in memory.
    pub(crate) resident: Resident,
}

/// The segments of an index.
pub(crate) struct Segments {
    segments: Vec<Segment>,
    /// Vectors of every segment but the last.
    capacity: u32,
    /// The end of the last one, once it takes vectors or has taken some.
    added: OnceLock<Added>,
}

/// A page of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: usize,
    pub(crate) page: u64,
}

impl Segments {
    /// Takes segments in the order of their nodes, of `capacity` vectors each but the last.
    pub(crate) fn new(segments: Vec<Segment>, capacity: u32) -> Self {
        Self {
            segments,
            capacity,
            added: OnceLock::new(),
        }
    }

    /// The segment that new vectors go to.
    pub(crate) fn last(&self) -> &Segment {
        &self.segments[self.segments.len() - 1]
    }

    /// The end of the last segment, if it takes vectors or has taken some.
    #[inline]
    pub(crate) fn added(&self) -> Option<&Added> {
        self.added.get()
    }

    /// Makes the last segment take vectors; `firsts` are the first nodes of the pages that were added before, and `next` is the
    /// node that comes next.
    pub(crate) fn grow(&self, firsts: &[u32], next: u32) -> &Added {
        self.added.get_or_init(|| {
            let Segment { pages, end, .. } = self.last();
            let behind = pages.directory.pages() as u32;
            Added::new(pages.shape, *end, behind, firsts, next)
        })
    }

    /// A page that is not on storage yet.
    #[inline]
    pub(crate) fn unwritten(&self, place: Place) -> Option<PageBytes> {
        let added = self.added.get()?;
        let last = place.segment + 1 == self.segments.len();
        last.then(|| added.unwritten(place.page)).flatten()
    }

    /// Where a node's vector stands.
    #[inline]
    pub(crate) fn place_of(&self, node: u32) -> Place {
        let last = self.segments.len() - 1;
        if let Some(added) = self.added.get().filter(|added| added.has(node)) {
            return Place {
                segment: last,
                page: added.page_of(node),
            };
        }
        let segment = ((node / self.capacity) as usize).min(last);
        Place {
            segment,
            page: self.segments[segment].pages.page_of(node),
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.segments.len()
    }

    /// One of them.
    #[inline]
    pub(crate) fn get(&self, segment: usize) -> &Segment {
        &self.segments[segment]
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter()
    }

    /// All of them, to load pages into.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        self.segments.iter_mut()
    }

    /// Bytes of directories and base vectors in memory.
    pub(crate) fn metadata_bytes(&self) -> usize {
        let segments: usize = self.segments.iter().map(Segment::metadata_bytes).sum();
        segments + self.added.get().map_or(0, Added::memory_bytes)
    }
}

impl Segment {
    /// Reads a page in place.
    #[inline]
    pub(crate) fn view<'p>(
        &'p self,
        bytes: &'p [u8],
        page: u64,
        check: bool,
    ) -> Result<Slotted<'p>, Error> {
        self.pages.view(bytes, page, check, true)
    }

    /// Decodes the vector of `node`, which stands on this page, into `out`. Returns its outside id.
    #[inline]
    pub(crate) fn vector(
        &self,
        node: u32,
        page: &Slotted<'_>,
        out: &mut [u8],
    ) -> Result<u64, Error> {
        let slot = node.wrapping_sub(page.first()) as usize;
        let record: Record<'_> = page.record(slot)?;
        let chunk = (node.saturating_sub(self.first) / self.chunk_vectors) as usize;
        // What came later is coded for itself.
        let base = self.bases.get(chunk).filter(|_| node < self.end);
        let base = base.and_then(Option::as_deref);
        match self.model.decode(record.vector, base, out) {
            Ok(()) => Ok(record.id),
            Err(error) => Err(undecodable(&self.pages.file, node, &error)),
        }
    }

    /// Appends a new vector as it stands on a page.
    pub(crate) fn encode(&self, vector: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        match self.model.encode(vector, None, out) {
            Ok(_) => Ok(()),
            Err(error) => Err(undecodable(&self.pages.file, self.end, &error)),
        }
    }

    fn metadata_bytes(&self) -> usize {
        let bases: usize = self.bases.iter().flatten().map(Vec::len).sum();
        self.pages.directory.memory_bytes() + bases
    }
}
