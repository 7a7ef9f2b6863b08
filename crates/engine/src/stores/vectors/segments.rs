//! Segments of compressed vectors: where the decoupled layout re-ranks from (DecoupleVS §3.3).
//!
//! A node's segment and chunk are divisions; its page is found in the segment's directory, made from the chunk metadata's
//! boundaries. The record of a vector holds its outside id. Vectors that came after the build are on pages that were added behind
//! those of the last segment.
//!
//! A segment whose file a merge [kept](Kept) has fewer nodes than records, and numbers them otherwise than its pages do: then its
//! nodes are looked up by where segments begin, and a node's slot is counted over the dead ones of its page.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use stratann_codec::SegmentModel;
use stratann_layout::manifest::{FILE_NAME as MANIFEST, KEPT};
use stratann_layout::{DeadSlots, FileKind, Manifest};
use stratann_tier::{Tier, Volume};

use super::added::Added;
use crate::stores::resident::Resident;
use crate::stores::slotted::{Slotted, SlottedPages, model};
use crate::stores::topology::placement::PageBytes;
use crate::stores::{PageView, Placed, Record, undecodable};
use crate::{Error, stored};

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
    /// What its file says otherwise, where a merge kept it.
    pub(crate) kept: Option<Kept>,
}

/// What the file of a segment that a merge kept says otherwise.
pub(crate) struct Kept {
    /// Its first node, as the pages number nodes.
    pub(crate) first: u32,
    /// The records that are garbage.
    pub(crate) dead: DeadSlots,
}

/// The segments of an index.
pub(crate) struct Segments {
    segments: Vec<Segment>,
    /// Vectors of every segment but the last; of no use where `firsts` is.
    capacity: u32,
    /// The first node of each segment, where these hold not equally many; empty where they do.
    firsts: Vec<u32>,
    /// The end of the last one, once it takes vectors or has taken some.
    added: OnceLock<Added>,
}

/// A page of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentPage {
    pub(crate) segment: usize,
    pub(crate) page: u64,
}

impl Segments {
    /// Opens those that the manifest names. Reads tables and models; no pages.
    ///
    /// # Errors
    /// A file that is missing, damaged, of a later format or of another index.
    pub(crate) fn open(volume: &dyn Volume, manifest: &Manifest) -> Result<Self, Error> {
        let segments = (0..manifest.segments.len() as u32)
            .map(|n| Segment::open(volume, manifest, n))
            .collect::<Result<Vec<_>, _>>()?;
        let uneven = manifest.reader_features & KEPT != 0;
        Self::new(segments, uneven).ok_or_else(|| Error::Damaged {
            file: stored::name_of(volume, MANIFEST),
            what: "its segments do not hold equally many vectors each".into(),
        })
    }

    /// Takes segments in the order of their nodes. They hold equally many each, but the last, unless they may be
    /// `uneven`; else there are none.
    pub(crate) fn new(segments: Vec<Segment>, uneven: bool) -> Option<Self> {
        let capacity = segments.first().map_or(0, |first| first.end - first.first);
        let starts = |n: usize| n as u64 * u64::from(capacity);
        let divides = |(n, segment): (usize, &Segment)| u64::from(segment.first) == starts(n);
        let even = segments.iter().enumerate().all(divides);
        if capacity == 0 || !(even || uneven) {
            return None;
        }
        Some(Self {
            firsts: match even {
                true => Vec::new(),
                false => segments.iter().map(|segment| segment.first).collect(),
            },
            segments,
            capacity,
            added: OnceLock::new(),
        })
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
    pub(crate) fn unwritten(&self, place: SegmentPage) -> Option<PageBytes> {
        let added = self.added.get()?;
        let last = place.segment + 1 == self.segments.len();
        last.then(|| added.unwritten(place.page)).flatten()
    }

    /// Where a node's vector stands.
    #[inline]
    pub(crate) fn place_of(&self, node: u32) -> SegmentPage {
        let last = self.segments.len() - 1;
        if let Some(added) = self.added.get().filter(|added| added.has(node)) {
            return SegmentPage {
                segment: last,
                page: added.page_of(node),
            };
        }
        let segment = match self.firsts.is_empty() {
            true => (node / self.capacity) as usize,
            false => self.firsts.partition_point(|&first| first <= node) - 1,
        };
        let segment = segment.min(last);
        SegmentPage {
            segment,
            page: self.segments[segment].pages.page_of(node),
        }
    }

    /// The nodes of a segment, in an index of `all` nodes: those of the last one go on behind its build.
    pub(crate) fn nodes_of(&self, segment: usize, all: u32) -> Range<u32> {
        let Segment { first, end, .. } = self.segments[segment];
        match segment + 1 == self.segments.len() {
            true => first..all,
            false => first..end,
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
        let added = self.added.get().map_or(0, Added::memory_bytes);
        segments + 4 * self.firsts.capacity() + added
    }
}

impl Segment {
    /// Opens segment `n`.
    fn open(volume: &dyn Volume, manifest: &Manifest, n: u32) -> Result<Self, Error> {
        let (shape, _, entry) = stored::slotted(volume, manifest, FileKind::Vectors, Some(n))?;
        let (chunks, (_, span)) = (
            stored::chunks(volume, manifest, n)?,
            stored::span(volume, manifest, n)?,
        );
        let kept = manifest.segments.get(n as usize).and_then(|s| s.kept);
        let file = stored::file_of(volume, manifest, FileKind::Chunks, Some(n))?;
        Ok(Self {
            tier: volume.open_tier(&entry.name)?,
            pages: SlottedPages {
                shape,
                directory: chunks.pages(span.first),
                file: stored::name_of(volume, &entry.name),
                placement: Placed::default(),
            },
            model: model(&file, SegmentModel::from_bytes(&chunks.model))?,
            chunk_vectors: chunks.chunk_vectors,
            first: span.first,
            // Both are the manifest's, whose nodes are `u32`.
            end: span.first + span.nodes as u32,
            name: entry.name.clone(),
            resident: Resident::default(),
            bases: chunks.chunks.into_iter().map(|chunk| chunk.base).collect(),
            kept: kept.map(|kept| Kept {
                first: kept.first,
                dead: chunks.dead,
            }),
        })
    }

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

    /// The slot of `node`, which stands on page `number`.
    #[inline]
    fn slot_of(&self, node: u32, number: u64, page: &Slotted<'_>) -> usize {
        match &self.kept {
            None => node.wrapping_sub(page.first()) as usize,
            Some(kept) => {
                let first = self.pages.directory.first_of(number).unwrap_or(node);
                kept.dead
                    .live_slot(number, node.wrapping_sub(first) as usize)
            }
        }
    }

    /// Decodes the vector of `node`, which stands on this page, the segment's `number`-th, into `out`. Returns its outside id.
    #[inline]
    pub(crate) fn vector(
        &self,
        node: u32,
        number: u64,
        page: &Slotted<'_>,
        out: &mut [u8],
    ) -> Result<u64, Error> {
        let slot = self.slot_of(node, number, page);
        let record: Record<'_> = page.record(slot)?;
        // Chunks are so many records, whatever became of their nodes.
        let at = match &self.kept {
            None => node.saturating_sub(self.first),
            Some(kept) => page
                .first()
                .wrapping_add(slot as u32)
                .wrapping_sub(kept.first),
        };
        let chunk = (at / self.chunk_vectors) as usize;
        // What came later is coded for itself.
        let base = self.bases.get(chunk).filter(|_| node < self.end);
        let base = base.and_then(Option::as_deref);
        match self.model.decode(record.vector, base, out) {
            Ok(()) => Ok(record.id),
            Err(error) => Err(undecodable(&self.pages.file, node, &error)),
        }
    }

    /// The nodes of a page, the segment's `number`-th, in the order of their slots.
    pub(crate) fn nodes(&self, number: u64, page: &Slotted<'_>) -> Range<u32> {
        let (first, garbage) = match &self.kept {
            None => (page.first(), 0),
            Some(kept) => {
                let first = self.pages.directory.first_of(number).unwrap_or(0);
                (first, kept.dead.of_page(number).len())
            }
        };
        // A file that has other records than its tables say is refused when they are read.
        first..first.saturating_add(page.len().saturating_sub(garbage) as u32)
    }

    /// The slot of a node, and its record, on this page, the segment's `number`-th.
    pub(crate) fn record<'p>(
        &self,
        node: u32,
        number: u64,
        page: &Slotted<'p>,
    ) -> Result<(u16, Record<'p>), Error> {
        let slot = self.slot_of(node, number, page);
        Ok((slot as u16, page.record(slot)?))
    }

    /// The records of its file, of which some may be garbage.
    pub(crate) fn records(&self) -> u32 {
        let garbage = self.kept.as_ref().map_or(0, |kept| kept.dead.count());
        self.end - self.first + garbage as u32
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
        let dead = self
            .kept
            .as_ref()
            .map_or(0, |kept| kept.dead.memory_bytes());
        self.pages.directory.memory_bytes() + bases + dead
    }
}
