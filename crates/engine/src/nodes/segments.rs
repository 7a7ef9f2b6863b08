//! Segments of compressed vectors: where the decoupled layout re-ranks from (DecoupleVS §3.3).
//!
//! A node's segment and chunk are divisions; its page is found in the segment's directory, made from the chunk metadata's
//! boundaries. The record of a vector holds its outside id.

use std::sync::Arc;

use stratann_codec::SegmentModel;
use stratann_tier::Tier;

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
        Self { segments, capacity }
    }

    /// Where a node's vector stands.
    #[inline]
    pub(crate) fn place_of(&self, node: u32) -> Place {
        let segment = ((node / self.capacity) as usize).min(self.segments.len() - 1);
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
        self.segments.iter().map(Segment::metadata_bytes).sum()
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
        let base = self.bases.get(chunk).and_then(Option::as_deref);
        match self.model.decode(record.vector, base, out) {
            Ok(()) => Ok(record.id),
            Err(error) => Err(undecodable(&self.pages.file, node, &error)),
        }
    }

    fn metadata_bytes(&self) -> usize {
        let bases: usize = self.bases.iter().flatten().map(Vec::len).sum();
        self.pages.directory.memory_bytes() + bases
    }
}
