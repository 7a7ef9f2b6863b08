//! Segments of compressed vectors: where the decoupled layout re-ranks from (DecoupleVS §3.3).
//!
//! A node's segment and chunk are divisions; its page is found in the segment's directory, made from the chunk metadata's
//! boundaries. The record of a vector holds its outside id. Vectors that came after the build are on pages that were added behind
//! those of the last segment.
//!
//! A segment whose file a merge [kept](Kept) has fewer nodes than records, and numbers them otherwise than its pages do: then its
//! nodes are looked up by where segments begin, and a node's slot is counted over the dead ones of its page.
//!
//! A record that does not fit the rest of its page goes on on the next. So a node's vector stands on an [`Extent`]: the page on which it
//! starts, and as many behind that as it goes on on, which are read at once.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use stratann_layout::manifest::{FILE_NAME as MANIFEST, KEPT};
use stratann_layout::{BLOCK, DeadSlots, FileKind, Manifest, RunsOn, SlottedView};
use stratann_tier::{Tier, Volume};

use super::added::{Added, too_long};
use super::model::VectorModel;
use crate::stores::graph::hottest;
use crate::stores::resident::{Resident, Source};
use crate::stores::slotted::{SlottedPages, model};
use crate::stores::topology::placement::PageBytes;
use crate::stores::{Placed, VectorsAt, undecodable};
use crate::{Error, stored};

/// One segment.
pub(crate) struct Segment {
    pub(crate) tier: Arc<dyn Tier>,
    pub(crate) pages: SlottedPages,
    /// The pages of its build whose last record goes on on the next.
    runs: RunsOn,
    pub(crate) model: VectorModel,
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

/// Pages of a segment behind one another: those that a vector stands on, or all that start on a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) segment: usize,
    /// The first of them.
    pub(crate) page: u64,
    /// How many there are.
    pub(crate) pages: u32,
}

impl Extent {
    /// The page behind its last.
    #[inline]
    pub(crate) fn end(self) -> u64 {
        self.page + u64::from(self.pages)
    }

    /// Whether all of `other` is in it.
    #[inline]
    pub(crate) fn covers(self, other: Extent) -> bool {
        self.segment == other.segment && self.page <= other.page && other.end() <= self.end()
    }

    /// The bytes of `other` in `bytes`, which are its own, if it covers it.
    #[inline]
    pub(crate) fn part(self, bytes: &[u8], other: Extent) -> &[u8] {
        let size = bytes.len() / self.pages as usize;
        let at = (other.page - self.page) as usize * size;
        &bytes[at..at + other.pages as usize * size]
    }
}

/// A page of vectors, read in place, with those behind it that its last record goes on on.
#[derive(Clone, Copy)]
pub(crate) struct VectorPage<'p> {
    view: SlottedView<'p>,
    behind: &'p [u8],
}

impl Segments {
    /// Opens those that the manifest names; `vectors` says whether they have whole ones. Reads tables and models; no pages.
    ///
    /// # Errors
    /// A file that is missing, damaged, of a later format or of another index.
    pub(crate) fn open(
        volume: &dyn Volume,
        manifest: &Manifest,
        vectors: VectorsAt,
    ) -> Result<Self, Error> {
        let segments = (0..manifest.segments.len() as u32)
            .map(|n| Segment::open(volume, manifest, vectors, n))
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

    /// Makes the last segment take vectors, behind those that a checkpoint has: the first nodes of the pages that were added before, those
    /// of them that go on, and the node that comes next.
    pub(crate) fn grow(&self, firsts: &[u32], runs: &RunsOn, next: u32) -> &Added {
        self.added.get_or_init(|| {
            let Segment { pages, end, .. } = self.last();
            let behind = pages.directory.pages() as u32;
            Added::new(pages.shape, *end, behind, (firsts, runs), next)
        })
    }

    /// Pages that are not all on storage yet.
    #[inline]
    pub(crate) fn unwritten(&self, place: Extent) -> Option<PageBytes> {
        let added = self.added.get()?;
        let last = place.segment + 1 == self.segments.len();
        last.then(|| added.unwritten(place.page, place.pages))
            .flatten()
    }

    /// Where a node's vector stands.
    #[inline]
    pub(crate) fn place_of(&self, node: u32) -> Extent {
        let last = self.segments.len() - 1;
        if let Some(added) = self.added.get().filter(|added| added.has(node)) {
            let (page, pages) = added.place_of(node);
            return Extent {
                segment: last,
                page,
                pages,
            };
        }
        let segment = match self.firsts.is_empty() {
            true => (node / self.capacity) as usize,
            false => self.firsts.partition_point(|&first| first <= node) - 1,
        };
        let segment = segment.min(last);
        let (page, pages) = self.segments[segment].place_of(node);
        Extent {
            segment,
            page,
            pages,
        }
    }

    /// A page of a segment, with those behind it that its last record goes on on.
    pub(crate) fn extent_of(&self, segment: usize, page: u64) -> Extent {
        let added = self
            .added
            .get()
            .filter(|added| added.pages().contains(&page));
        let pages = match added {
            Some(added) if segment + 1 == self.segments.len() => added.pages_from(page),
            _ => self.segments[segment].pages_from(page),
        };
        Extent {
            segment,
            page,
            pages,
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

    /// All of them, to give them other tiers.
    #[cfg(test)]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        self.segments.iter_mut()
    }

    /// Puts the hottest `share` of all pages into memory, those among them that were added behind the build's; without `heat`, the first ones.
    /// Nobody else has them yet, and nothing is added.
    pub(crate) fn load(
        &mut self,
        volume: &dyn Volume,
        heat: Option<&[u16]>,
        share: f64,
    ) -> Result<(), Error> {
        let added = self.added.get().map_or(0..0, Added::pages);
        let added = added.end - added.start;
        let built = self
            .segments
            .iter()
            .map(|segment| segment.pages.directory.pages());
        let all = vec![true; (built.sum::<u64>() + added) as usize];
        let mut hot = hottest(heat, &all, share);
        let last = self.segments.len() - 1;
        // Pages are numbered through all segments, and the added ones are behind the last.
        let mut before = 0;
        for (n, segment) in self.segments.iter_mut().enumerate() {
            let more = if n == last { added } else { 0 };
            let source = Source {
                volume,
                name: &segment.name,
                pages: segment.pages.directory.pages() + more,
                page_bytes: segment.pages.shape.page_bytes(),
                start: BLOCK as u64,
            };
            let mut wanted = |page| hot(before + page);
            let resident = Resident::load(&source, &mut wanted, &|page, bytes| {
                segment.view(bytes, page, true).map(|_| ())
            })?;
            before += source.pages;
            segment.resident = resident;
        }
        Ok(())
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
    fn open(
        volume: &dyn Volume,
        manifest: &Manifest,
        vectors: VectorsAt,
        n: u32,
    ) -> Result<Self, Error> {
        let (shape, _, entry) = stored::slotted(volume, manifest, FileKind::Vectors, Some(n))?;
        let (chunks, (_, span)) = (
            stored::chunks(volume, manifest, n)?,
            stored::span(volume, manifest, n)?,
        );
        let kept = manifest.segments.get(n as usize).and_then(|s| s.kept);
        let file = stored::file_of(volume, manifest, FileKind::Chunks, Some(n))?;
        let segment = Self {
            tier: volume.open_tier(&entry.name)?,
            pages: SlottedPages {
                shape,
                directory: chunks.pages(span.first),
                file: stored::name_of(volume, &entry.name),
                placement: Placed::default(),
            },
            runs: chunks.runs,
            model: model(&file, VectorModel::from_bytes(&chunks.model, vectors))?,
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
        };
        let pages = 0..segment.pages.directory.pages();
        let run = |page| (page, segment.pages_from(page));
        match too_long(&shape, pages.map(run)) {
            Some(what) => Err(Error::Damaged { file, what }),
            None => Ok(segment),
        }
    }

    /// Bytes that a read of a vector takes, about: its page, and as many more as a vector has, but no more than it may stand on.
    pub(crate) fn read_bytes(&self) -> usize {
        let shape = &self.pages.shape;
        let all = self.pages.directory.pages() * shape.page_bytes() as u64;
        let vector = (all / u64::from(self.records().max(1))) as usize;
        (shape.page_bytes() + vector).min(shape.page_bytes() * shape.pages_per_record())
    }

    /// The page on which a node of the build starts, and how many it stands on.
    #[inline]
    fn place_of(&self, node: u32) -> (u64, u32) {
        let page = self.pages.page_of(node);
        if self.runs.has(page) && self.is_last(node, page) {
            return (page, self.pages_from(page));
        }
        (page, 1)
    }

    /// Pages that the last record which starts on a page of the build stands on.
    fn pages_from(&self, page: u64) -> u32 {
        let dead = |kept: &Kept, page| !kept.dead.of_page(page).is_empty();
        self.runs.pages(page, |page| {
            self.pages.directory.holds(page)
                || self.kept.as_ref().is_some_and(|kept| dead(kept, page))
        })
    }

    /// Whether no other record starts behind that of a node on its page.
    fn is_last(&self, node: u32, page: u64) -> bool {
        let directory = &self.pages.directory;
        let dead_behind = |kept: &Kept| {
            let first = directory.first_of(page).unwrap_or(node);
            let slot = kept.dead.live_slot(page, node.wrapping_sub(first) as usize);
            let last = kept.dead.of_page(page).last();
            last.is_some_and(|&last| usize::from(last) > slot)
        };
        directory.is_last(node) && !self.kept.as_ref().is_some_and(dead_behind)
    }

    /// Where pages stand in the file: offset and length in bytes.
    #[inline]
    pub(crate) fn span(&self, place: Extent) -> (u64, usize) {
        let (offset, size) = self.pages.place(place.page);
        (offset, place.pages as usize * size)
    }

    /// Reads a page in place. `bytes` may go on behind it, with pages that its last record goes on on.
    #[inline]
    pub(crate) fn view<'p>(
        &'p self,
        bytes: &'p [u8],
        page: u64,
        check: bool,
    ) -> Result<VectorPage<'p>, Error> {
        let SlottedPages { shape, file, .. } = &self.pages;
        let (bytes, behind) = bytes.split_at(bytes.len().min(shape.page_bytes()));
        if check {
            shape.check(behind, page + 1, file)?;
        }
        let view = SlottedView::open(shape, bytes, page, check, file)?;
        Ok(VectorPage { view, behind })
    }

    /// The slot of `node`, which stands on page `number`.
    #[inline]
    fn slot_of(&self, node: u32, number: u64, page: &VectorPage<'_>) -> usize {
        match &self.kept {
            None => node.wrapping_sub(page.view.first()) as usize,
            Some(kept) => {
                let first = self.pages.directory.first_of(number).unwrap_or(node);
                kept.dead
                    .live_slot(number, node.wrapping_sub(first) as usize)
            }
        }
    }

    /// Decodes the vector of `node`, which starts on this page, the segment's `number`-th, into `out`; `leading` is its leading part,
    /// where only trailing ones are here. Returns its outside id. `scratch` is for one that goes on on the next.
    #[inline]
    pub(crate) fn vector(
        &self,
        node: u32,
        number: u64,
        page: &VectorPage<'_>,
        leading: &[u8],
        scratch: &mut Vec<u8>,
        out: &mut [u8],
    ) -> Result<u64, Error> {
        let slot = self.slot_of(node, number, page);
        let id = page.view.id(slot)?;
        let vector = page.view.whole(slot, page.behind, false, scratch)?;
        // Chunks are so many records, whatever became of their nodes.
        let at = match &self.kept {
            None => node.saturating_sub(self.first),
            Some(kept) => page
                .view
                .first()
                .wrapping_add(slot as u32)
                .wrapping_sub(kept.first),
        };
        let chunk = (at / self.chunk_vectors) as usize;
        // What came later is coded for itself.
        let base = self.bases.get(chunk).filter(|_| node < self.end);
        let base = base.and_then(Option::as_deref);
        match self.model.decode(leading, vector, base, out) {
            Ok(()) => Ok(id),
            Err(error) => Err(undecodable(&self.pages.file, node, &error)),
        }
    }

    /// The nodes that start on a page, the segment's `number`-th, in the order of their slots.
    pub(crate) fn nodes(&self, number: u64, page: &VectorPage<'_>) -> Range<u32> {
        let (first, garbage) = match &self.kept {
            None => (page.view.first(), 0),
            Some(kept) => {
                let first = self.pages.directory.first_of(number).unwrap_or(0);
                (first, kept.dead.of_page(number).len())
            }
        };
        // A file that has other records than its tables say is refused when they are read.
        first..first.saturating_add(page.view.len().saturating_sub(garbage) as u32)
    }

    /// The slot of a node on this page, the segment's `number`-th; its outside id, and the bytes of its vector as it stands.
    pub(crate) fn record(
        &self,
        node: u32,
        number: u64,
        page: &VectorPage<'_>,
    ) -> Result<(u16, u64, u64), Error> {
        let (slot, view) = (self.slot_of(node, number, page), &page.view);
        Ok((slot as u16, view.id(slot)?, view.vector_bytes(slot)?))
    }

    /// The records of its file, of which some may be garbage.
    pub(crate) fn records(&self) -> u32 {
        let garbage = self.kept.as_ref().map_or(0, |kept| kept.dead.count());
        self.end - self.first + garbage as u32
    }

    /// Appends a new vector as it stands on a page.
    pub(crate) fn encode(&self, vector: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let encoded = match &self.model {
            VectorModel::Whole(model) => model.encode(vector, None, out),
            VectorModel::Trailing(model) => model.encode(vector, &mut Vec::new(), out),
        };
        encoded.map_err(|error| undecodable(&self.pages.file, self.end, &error))
    }

    fn metadata_bytes(&self) -> usize {
        let bases: usize = self.bases.iter().flatten().map(Vec::len).sum();
        let dead = self
            .kept
            .as_ref()
            .map_or(0, |kept| kept.dead.memory_bytes());
        let tables = self.runs.memory_bytes() + self.model.memory_bytes();
        self.pages.directory.memory_bytes() + tables + bases + dead
    }
}
