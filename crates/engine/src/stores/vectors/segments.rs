//! Segments of compressed vectors, which a search in the decoupled layout reads for re-ranking
//! (DecoupleVS §3.3).
//!
//! The segment and the chunk of a node follow from its number by division. The page of a node
//! follows from the directory of the segment. Vectors inserted after the build are on pages at the
//! end of the last segment.
//! last segment.
//!
//! If a merge left the file of a segment unchanged ([`Kept`]), the file has garbage records, and
//! its pages have older node numbers. The slot of a node then counts only slots without garbage.
//!
//! A record that does not fit its page continues on the next page. So the position of a vector is
//! an [`Extent`] of pages, which one read returns.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use stratann_layout::manifest::{FILE_NAME as MANIFEST, KEPT};
use stratann_layout::{BLOCK, DeadSlots, FileKind, Manifest, RunsOn, SlottedView};
use stratann_tier::{Tier, Volume};

use super::added::{Added, too_long};
use super::model::VectorModel;
use crate::stores::graph::hottest;
use crate::stores::reading;
use crate::stores::resident::{Resident, Source};
use crate::stores::slotted::{SlottedPages, model};
use crate::stores::topology::placement::PageBytes;
use crate::stores::{Placed, VectorsAt, undecodable};
use crate::{Error, stored};

pub(crate) struct Segment {
    pub(crate) tier: Arc<dyn Tier>,
    pub(crate) pages: SlottedPages,
    /// The pages of the build whose last record continues on the next page.
    runs: RunsOn,
    pub(crate) model: VectorModel,
    pub(crate) chunk_vectors: u32,
    /// For each chunk that is stored as differences, its base vector.
    pub(crate) bases: Vec<Option<Vec<u8>>>,
    pub(crate) first: u32,
    /// The node after the last node of the build in this segment.
    pub(crate) end: u32,
    pub(crate) name: String,
    pub(crate) resident: Resident,
    pub(crate) kept: Option<Kept>,
}

/// The differences between the nodes of a segment and its file, if a merge left the file unchanged.
pub(crate) struct Kept {
    /// The first node of the segment in the older numbering of its pages.
    pub(crate) first: u32,
    pub(crate) dead: DeadSlots,
}

pub(crate) struct Segments {
    segments: Vec<Segment>,
    /// The number of vectors in each segment except the last, if `firsts` is empty.
    capacity: u32,
    /// The first node of each segment; empty if segments have the same size.
    firsts: Vec<u32>,
    /// Set once the last segment may take new vectors.
    added: OnceLock<Added>,
}

/// The pages of a vector, or of all vectors that start on a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) segment: usize,
    pub(crate) page: u64,
    pub(crate) pages: u32,
}

impl Extent {
    #[inline]
    pub(crate) fn end(self) -> u64 {
        self.page + u64::from(self.pages)
    }

    #[inline]
    pub(crate) fn covers(self, other: Extent) -> bool {
        self.segment == other.segment && self.page <= other.page && other.end() <= self.end()
    }

    /// The bytes of `other` in the bytes of this range, which must cover `other`.
    #[inline]
    pub(crate) fn part(self, bytes: &[u8], other: Extent) -> &[u8] {
        let size = bytes.len() / self.pages as usize;
        let at = (other.page - self.page) as usize * size;
        &bytes[at..at + other.pages as usize * size]
    }
}

/// A page of vectors, with the following pages that have the end of its last record.
#[derive(Clone, Copy)]
pub(crate) struct VectorPage<'p> {
    view: SlottedView<'p>,
    behind: &'p [u8],
}

impl Segments {
    /// Opens the segments that the manifest names. `vectors` says whether vectors are whole or in
    /// parts.
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
            what: "its segments do not have equal numbers of vectors".into(),
        })
    }

    /// Joins segments in node order. Only with `uneven`, segments before the last may differ in
    /// size.
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

    pub(crate) fn last(&self) -> &Segment {
        &self.segments[self.segments.len() - 1]
    }

    #[inline]
    pub(crate) fn added(&self) -> Option<&Added> {
        self.added.get()
    }

    /// Lets the last segment take new vectors, from node `next` on. `firsts` has the first nodes of
    /// added pages. `runs` marks pages whose last record continues on the next page.
    pub(crate) fn grow(&self, firsts: &[u32], runs: &RunsOn, next: u32) -> &Added {
        self.added.get_or_init(|| {
            let Segment { pages, end, .. } = self.last();
            let behind = pages.directory.pages() as u32;
            Added::new(pages.shape, *end, behind, (firsts, runs), next)
        })
    }

    /// The pages of a vector, if not all of them are on storage yet.
    #[inline]
    pub(crate) fn unwritten(&self, place: Extent) -> Option<PageBytes> {
        let added = self.added.get()?;
        let last = place.segment + 1 == self.segments.len();
        last.then(|| added.unwritten(place.page, place.pages))
            .flatten()
    }

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

    /// A page, and the following pages with the end of its last record.
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

    /// The last segment also has the nodes inserted after the build.
    pub(crate) fn nodes_of(&self, segment: usize, all: u32) -> Range<u32> {
        let Segment { first, end, .. } = self.segments[segment];
        match segment + 1 == self.segments.len() {
            true => first..all,
            false => first..end,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.segments.len()
    }

    #[inline]
    pub(crate) fn get(&self, segment: usize) -> &Segment {
        &self.segments[segment]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter()
    }

    #[cfg(test)]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        self.segments.iter_mut()
    }

    /// Loads the hottest `share` of all pages, or the first pages without `heat`. No other thread
    /// may use the segments.
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
        // Page numbers continue from one segment to the next. The added pages come last.
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

    pub(crate) fn metadata_bytes(&self) -> usize {
        let segments: usize = self.segments.iter().map(Segment::metadata_bytes).sum();
        let added = self.added.get().map_or(0, Added::memory_bytes);
        segments + 4 * self.firsts.capacity() + added
    }
}

impl Segment {
    fn open(
        volume: &dyn Volume,
        manifest: &Manifest,
        vectors: VectorsAt,
        n: u32,
    ) -> Result<Self, Error> {
        let (shape, _, entry) = reading::slotted(volume, manifest, FileKind::Vectors, Some(n))?;
        let (chunks, (_, span)) = (
            reading::chunks(volume, manifest, n)?,
            reading::span(volume, manifest, n)?,
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
            // An earlier check ensures that the manifest's node numbers fit a `u32`.
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

    /// The bytes of a read: a page and the mean length of a vector, but at most the pages that a
    /// vector may span.
    pub(crate) fn read_bytes(&self) -> usize {
        let shape = &self.pages.shape;
        let all = self.pages.directory.pages() * shape.page_bytes() as u64;
        let vector = (all / u64::from(self.records().max(1))) as usize;
        (shape.page_bytes() + vector).min(shape.page_bytes() * shape.pages_per_record())
    }

    #[inline]
    fn place_of(&self, node: u32) -> (u64, u32) {
        let page = self.pages.page_of(node);
        if self.runs.has(page) && self.is_last(node, page) {
            return (page, self.pages_from(page));
        }
        (page, 1)
    }

    fn pages_from(&self, page: u64) -> u32 {
        let dead = |kept: &Kept, page| !kept.dead.of_page(page).is_empty();
        self.runs.pages(page, |page| {
            self.pages.directory.holds(page)
                || self.kept.as_ref().is_some_and(|kept| dead(kept, page))
        })
    }

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

    #[inline]
    pub(crate) fn span(&self, place: Extent) -> (u64, usize) {
        let (offset, size) = self.pages.place(place.page);
        (offset, place.pages as usize * size)
    }

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

    /// Decodes the vector of `node`, which starts on page `number`, and returns the id. If the
    /// segment has trailing parts, `leading` is the leading part. `scratch` is for a record that
    /// spans several pages.
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
        // Chunks count all records, including garbage.
        let at = match &self.kept {
            None => node.saturating_sub(self.first),
            Some(kept) => page
                .view
                .first()
                .wrapping_add(slot as u32)
                .wrapping_sub(kept.first),
        };
        let chunk = (at / self.chunk_vectors) as usize;
        // Vectors inserted after the build are coded without a base.
        let base = self.bases.get(chunk).filter(|_| node < self.end);
        let base = base.and_then(Option::as_deref);
        match self.model.decode(leading, vector, base, out) {
            Ok(()) => Ok(id),
            Err(error) => Err(undecodable(&self.pages.file, node, &error)),
        }
    }

    pub(crate) fn nodes(&self, number: u64, page: &VectorPage<'_>) -> Range<u32> {
        let (first, garbage) = match &self.kept {
            None => (page.view.first(), 0),
            Some(kept) => {
                let first = self.pages.directory.first_of(number).unwrap_or(0);
                (first, kept.dead.of_page(number).len())
            }
        };
        // If the tables have another number of records, a later read of these records fails.
        first..first.saturating_add(page.view.len().saturating_sub(garbage) as u32)
    }

    pub(crate) fn record(
        &self,
        node: u32,
        number: u64,
        page: &VectorPage<'_>,
    ) -> Result<(u16, u64, u64), Error> {
        let (slot, view) = (self.slot_of(node, number, page), &page.view);
        Ok((slot as u16, view.id(slot)?, view.vector_bytes(slot)?))
    }

    /// The number of records in the segment's file, including garbage.
    pub(crate) fn records(&self) -> u32 {
        let garbage = self.kept.as_ref().map_or(0, |kept| kept.dead.count());
        self.end - self.first + garbage as u32
    }

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
