//! Stored nodes: what a traversal and a re-ranking see of an index's files, whatever their layout.
//!
//! ```text
//!              page_of(node)          view(bytes of the page)          list, vector: decoded
//!   coupled    computed               records of one size              as they are
//!   inline     computed               records of one size              as they are, and the neighbours' codes
//!   packed     directory              slotted: list, vector, id        compressed, both
//!   lists      directory              slotted: list                    compressed; the vectors are in segments
//!   segments   chunk metadata         slotted: vector, id              compressed
//! ```
//!
//! - [`coupled`], [`inline`], [`packed`], [`lists`]: a layout of the graph each, behind [`NodePages`]
//! - [`segments`], [`added`]: the vectors of the decoupled layout, and those of them that came after the build
//! - [`slotted`]: what all files of slotted pages have in common
//! - [`resident`]: pages that the memory budget holds
//! - [`placement`], [`pending`], [`counts`]: where nodes are, what waits to be written, and how many lists lead to them, in an index
//!   that takes direct inserts
//!
//! A search is compiled once for each layout, so nothing is dispatched per hop.

pub(crate) mod added;
pub(crate) mod counts;
pub(crate) mod coupled;
pub(crate) mod inline;
pub(crate) mod lists;
mod open;
pub(crate) mod packed;
pub(crate) mod pending;
pub(crate) mod placement;
pub(crate) mod resident;
pub(crate) mod segments;
pub(crate) mod slotted;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use stratann_codec::CodecError;
use stratann_layout::{BLOCK, FileKind, HeatFile, Manifest, PlacementFile};
use stratann_tier::{Tier, Volume};

pub(crate) use self::open::open;

use self::coupled::CoupledPages;
use self::inline::InlinePages;
use self::lists::ListPages;
use self::packed::PackedPages;
use self::placement::Placement;
use self::resident::{Resident, Source};
use self::segments::Segments;
use crate::measure::Hottest;
use crate::plan::{Division, PageFile};
use crate::{Error, stored};

/// A node's bytes on a page or in a cache, not decoded yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// The outside id; 0 where the layout keeps it with the vector, elsewhere.
    pub(crate) id: u64,
    /// Bytes of the adjacency list.
    pub(crate) list: &'a [u8],
    /// `list` and what follows it in memory: room for a decoder that reads ahead.
    pub(crate) list_and_rest: &'a [u8],
    /// The neighbours' codes in the order of the list; empty where these are in memory.
    pub(crate) codes: &'a [u8],
    /// Bytes of the vector; empty where the layout keeps it elsewhere.
    pub(crate) vector: &'a [u8],
}

/// A placement that pages and graph share; empty in an index that never took a direct insert.
pub(crate) type Placed = Arc<OnceLock<Placement>>;

/// A page, read in place.
pub(crate) trait PageView<'p>: Copy {
    /// The node of a record.
    fn node(self, slot: usize) -> Result<u32, Error>;
    /// The place of a node's record, if the page has it.
    fn slot_of(self, node: u32) -> Option<usize>;
    /// Its records.
    fn len(self) -> usize;
    /// One of them.
    fn record(self, slot: usize) -> Result<Record<'p>, Error>;
}

/// The pages of a graph's nodes in one layout.
pub(crate) trait NodePages: Send + Sync {
    /// Whether a node's vector stands beside its list: then it is ranked when its page is there.
    const VECTORS: bool;
    /// Whether the neighbours' codes stand beside the list: then none but those of the entry points are in memory.
    const CODES: bool;

    /// A page of it.
    type View<'p>: PageView<'p>
    where
        Self: 'p;

    /// The page that holds `node`.
    fn page_of(&self, node: u32) -> u64;

    /// Where a page stands in the file: offset and length in bytes.
    fn place(&self, page: u64) -> (u64, usize);

    /// Reads a page in place; `check` verifies its checksums.
    fn view<'p>(&'p self, bytes: &'p [u8], page: u64, check: bool)
    -> Result<Self::View<'p>, Error>;

    /// Bytes of the longest record in a cache.
    fn cached_bytes(&self) -> usize;

    /// Decodes the list of `node`. Its ids may lie beyond the collection if the bytes are damaged.
    fn list(&self, node: u32, record: &Record<'_>, out: &mut Vec<u32>) -> Result<(), Error>;

    /// Decodes the vector of `node` into `scratch`, which has a vector's length, or finds it in the record.
    fn vector<'s>(
        &'s self,
        node: u32,
        record: &Record<'s>,
        scratch: &'s mut [u8],
    ) -> Result<&'s [u8], Error>;
}

/// A layout whose pages can be composed anew, record by record: one that takes direct inserts.
pub(crate) trait Composable: NodePages {
    /// What puts pages together.
    type Composer: Composer;

    /// One with nothing on its page.
    fn composer(&self) -> Self::Composer;

    /// Records that a page of the build has, on average.
    fn records_a_page(&self) -> usize;

    /// Appends a list, which ascends, as it stands on a page.
    fn encode_list(&self, node: u32, list: &[u32], out: &mut Vec<u8>) -> Result<(), Error>;

    /// Appends a vector as it stands on a page.
    fn encode_vector(&self, node: u32, vector: &[u8], out: &mut Vec<u8>) -> Result<(), Error>;
}

/// Puts a page together of records of any nodes, list and vector as they stand on a page.
pub(crate) trait Composer {
    /// Empties the page.
    fn start(&mut self);
    /// Adds a record; false if it does not fit.
    fn push(&mut self, node: u32, id: u64, list: &[u8], vector: &[u8]) -> bool;
    /// The page's bytes, as number `page` of its file.
    fn finish(&mut self, page: u32) -> &[u8];
}

/// The graph of an index that is open.
pub(crate) struct Graph {
    /// Where its pages are read from.
    pub(crate) tier: Arc<dyn Tier>,
    /// The file's name in the volume.
    pub(crate) name: String,
    /// The file as errors name it.
    pub(crate) file: String,
    pub(crate) nodes: u64,
    pub(crate) pages: Pages,
    /// Pages that are in memory.
    pub(crate) resident: Resident,
    /// The vectors, where they are apart.
    pub(crate) segments: Option<Segments>,
    /// Where nodes are, once it takes direct inserts or has taken some.
    pub(crate) placement: Placed,
}

/// The pages of a graph, by layout.
pub(crate) enum Pages {
    Coupled(CoupledPages),
    Inline(InlinePages),
    Packed(PackedPages),
    Lists(ListPages),
}

impl Pages {
    /// Pages in a file of `nodes` nodes, and the bytes of one.
    pub(crate) fn file(&self, nodes: u64) -> PageFile {
        let (pages, page_bytes) = match self {
            Pages::Coupled(pages) => (pages.shape.pages(nodes), pages.shape.page_bytes()),
            Pages::Inline(pages) => (pages.shape.pages(nodes), pages.shape.page_bytes()),
            Pages::Packed(pages) => (
                pages.pages.directory.pages(),
                pages.pages.shape.page_bytes(),
            ),
            Pages::Lists(pages) => (
                pages.pages.directory.pages(),
                pages.pages.shape.page_bytes(),
            ),
        };
        PageFile {
            pages,
            page_bytes,
            doubled: false,
        }
    }

    /// Reads page `page` and verifies it.
    pub(crate) fn check(&self, page: u64, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Pages::Coupled(pages) => pages.view(bytes, page, true).map(|_| ()),
            Pages::Inline(pages) => pages.view(bytes, page, true).map(|_| ()),
            Pages::Packed(pages) => pages.view(bytes, page, true).map(|_| ()),
            Pages::Lists(pages) => pages.view(bytes, page, true).map(|_| ()),
        }
    }

    /// Bytes of the longest record in a cache.
    pub(crate) fn cached_bytes(&self) -> usize {
        match self {
            Pages::Coupled(pages) => pages.cached_bytes(),
            Pages::Inline(pages) => pages.cached_bytes(),
            Pages::Packed(pages) => pages.cached_bytes(),
            Pages::Lists(pages) => pages.cached_bytes(),
        }
    }
}

impl Graph {
    /// Bytes of the tables that say where things are: directories, chunk metadata, models.
    pub(crate) fn metadata_bytes(&self) -> usize {
        let directory = match &self.pages {
            Pages::Coupled(_) | Pages::Inline(_) => 0,
            Pages::Packed(pages) => pages.pages.directory.memory_bytes(),
            Pages::Lists(pages) => pages.pages.directory.memory_bytes(),
        };
        let placement = self.placement.get().map_or(0, Placement::memory_bytes) as usize;
        directory + placement + self.segments.as_ref().map_or(0, Segments::metadata_bytes)
    }

    /// The pages of the graph, and those of all segments.
    pub(crate) fn files(&self) -> (PageFile, PageFile) {
        let mut vectors = PageFile::default();
        for segment in self.segments.iter().flat_map(Segments::iter) {
            vectors.pages += segment.pages.directory.pages();
            vectors.page_bytes = vectors.page_bytes.max(segment.pages.shape.page_bytes());
        }
        (self.pages.file(self.nodes), vectors)
    }

    /// Takes on what came of it since its build, by a checkpoint. Nobody else has it yet.
    pub(crate) fn grown(
        &self,
        volume: &dyn Volume,
        manifest: &Manifest,
        file: &PlacementFile,
    ) -> Result<(), Error> {
        if let Pages::Inline(pages) = &self.pages {
            let placement = self.placement.get_or_init(|| pages.even(file.nodes));
            placement.count(file);
            let page_bytes = pages.shape.page_bytes();
            let journal = stored::journal(volume, manifest, page_bytes)?;
            for (page, bytes) in journal.pages(page_bytes) {
                if page >= placement.pages() {
                    return Err(Error::Damaged {
                        file: stored::file_of(volume, manifest, FileKind::Journal, None)?,
                        what: format!(
                            "it has page {page} of {}; {} nodes need no more",
                            placement.pages(),
                            file.nodes
                        ),
                    });
                }
                pages.view(bytes, page.into(), true)?;
                placement.unwritten.insert(page, bytes.into());
            }
        } else {
            let pending = stored::pending(volume, manifest)?;
            let mut known = HashSet::new();
            let twice = pending
                .records
                .iter()
                .find(|record| !known.insert(record.node));
            if let Some(record) = twice {
                return Err(Error::Damaged {
                    file: stored::file_of(volume, manifest, FileKind::Pending, None)?,
                    what: format!("node {} waits for its page twice", record.node),
                });
            }
            let _ = self.placement.set(Placement::restore(file, pending));
        }
        if let Some(segments) = &self.segments {
            segments.grow(&file.added, file.nodes);
        }
        Ok(())
    }

    /// Puts the hottest pages into memory, as a division of memory says; without `heat`, the first ones.
    pub(crate) fn load(
        &mut self,
        volume: &dyn Volume,
        division: &Division,
        heat: Option<&HeatFile>,
    ) -> Result<(), Error> {
        if division.graph_share > 0.0 {
            let PageFile {
                pages, page_bytes, ..
            } = self.pages.file(self.nodes);
            let source = Source {
                volume,
                name: &self.name,
                pages,
                page_bytes,
                start: BLOCK as u64,
            };
            let mut hot = hottest(heat.map(|heat| &*heat.graph), pages, division.graph_share);
            // What a page without nodes holds is of no account, nor what one has that is to be written anew.
            let placement = self.placement.get();
            let in_use = placement.map(Placement::pages_in_use);
            let mut wanted = |page: u64| {
                let used = in_use.as_ref().is_none_or(|in_use| in_use[page as usize]);
                let old = placement.is_some_and(|p| p.unwritten.get(page as u32).is_some());
                hot(page) && used && !old
            };
            let pages = &self.pages;
            self.resident = Resident::load(&source, &mut wanted, &|page, bytes| {
                pages.check(page, bytes)
            })?;
        }
        if division.vector_share > 0.0 {
            let (_, all) = self.files();
            let mut wanted = hottest(
                heat.map(|heat| &*heat.vectors),
                all.pages,
                division.vector_share,
            );
            for segment in self.segments.iter_mut().flat_map(Segments::iter_mut) {
                let source = Source {
                    volume,
                    name: &segment.name,
                    pages: segment.pages.directory.pages(),
                    page_bytes: segment.pages.shape.page_bytes(),
                    start: BLOCK as u64,
                };
                let resident = Resident::load(&source, &mut wanted, &|page, bytes| {
                    segment.view(bytes, page, true).map(|_| ())
                })?;
                segment.resident = resident;
            }
        }
        Ok(())
    }
}

/// Says of one page after the other whether it is of the hottest `share`.
fn hottest(heat: Option<&[u16]>, pages: u64, share: f64) -> impl FnMut(u64) -> bool {
    let heat = heat.map_or_else(|| Cow::Owned(vec![0; pages as usize]), Cow::Borrowed);
    let mut hottest = Hottest::new(&heat, share);
    let mut next = 0;
    move |_| {
        next += 1;
        heat.get(next - 1)
            .is_some_and(|&reads| hottest.takes(reads))
    }
}

/// A list has grown beyond what there is room for: what it was changed from was not what it should have been.
#[cold]
pub(crate) fn too_long(file: &str, node: u32, links: usize, most: usize) -> Error {
    Error::Damaged {
        file: file.to_owned(),
        what: format!("node {node} has {links} links, {most} are the most in this index"),
    }
}

/// Names the file and the node of bytes that do not decode.
#[cold]
pub(crate) fn undecodable(file: &str, node: u32, error: &CodecError) -> Error {
    Error::Damaged {
        file: file.to_owned(),
        what: format!("node {node}: {error}"),
    }
}

/// What a cached record with a vector begins with: its id, and the lengths of its list and codes.
const CACHED_HEADER: usize = 16;
/// Zeros behind a record out of a cache, for decoders that read ahead.
const SLACK: usize = 8;

impl<'a> Record<'a> {
    /// Bytes that [`cached`](Record::cached) makes of a record whose list, codes and vector take at most so many. Where a
    /// record is a list alone (`vector` is 0) that is the list's: the entries of DecoupleVS §3.4 are of the Elias–Fano
    /// bound.
    pub(crate) fn cached_bytes(list: usize, codes: usize, vector: usize) -> usize {
        match vector {
            0 => list,
            vector => CACHED_HEADER + list + codes + vector,
        }
    }

    /// Writes the record as one run of bytes, for a cache.
    pub(crate) fn cached(&self, out: &mut Vec<u8>) {
        out.clear();
        if !self.vector.is_empty() {
            out.extend_from_slice(&self.id.to_le_bytes());
            out.extend_from_slice(&(self.list.len() as u32).to_le_bytes());
            out.extend_from_slice(&(self.codes.len() as u32).to_le_bytes());
        }
        out.extend_from_slice(self.list);
        out.extend_from_slice(self.codes);
        out.extend_from_slice(self.vector);
    }

    /// Reads what [`cached`](Record::cached) wrote for a record with or without a vector; appends some zeros to it. `None`
    /// if it is something else.
    pub(crate) fn from_cached(bytes: &'a mut Vec<u8>, vectors: bool) -> Option<Record<'a>> {
        let end = bytes.len();
        bytes.resize(end + SLACK, 0);
        let bytes = &*bytes;
        if !vectors {
            return Some(Record {
                id: 0,
                list: &bytes[..end],
                list_and_rest: bytes,
                codes: &[],
                vector: &[],
            });
        }
        let id = bytes.get(..8)?.try_into().ok()?;
        let length = |at: usize| {
            let length = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(length) as usize)
        };
        let list_end = CACHED_HEADER.checked_add(length(8)?)?;
        let codes_end = list_end.checked_add(length(12)?)?;
        Some(Record {
            id: u64::from_le_bytes(id),
            list: bytes.get(CACHED_HEADER..list_end)?,
            list_and_rest: &bytes[CACHED_HEADER..],
            codes: bytes.get(list_end..codes_end)?,
            vector: bytes.get(codes_end..end)?,
        })
    }
}
