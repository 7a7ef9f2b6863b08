//! Every vector of an index that takes direct inserts meanwhile: what a search looks at where its walk found too few.
//!
//! Pages are written, records move between them and nodes are added while they are read. So what is looked for is every node below
//! a bound that is taken first, where it is *now*: in memory, on its way to a page; on a page that is not written yet; or on storage. These
//! are looked at in the order in which a record passes through them, so that one that moves on meanwhile is met later. One that was
//! missed all the same is looked for again; a search does not fail because of it.

use stratann_layout::BLOCK;
use stratann_tier::Volume;

use super::Counters;
use crate::Error;
use crate::index::Index;
use crate::nodes::placement::{NOWHERE, Placement};
use crate::nodes::segments::Segments;
use crate::nodes::{NodePages, PageView};
use crate::progress::Progress;

/// Bytes that are read at a time where pages are wanted one behind the other, about.
const PIECE: u64 = 1 << 20;
/// Pages that may be left out between two that are read at once.
const GAP: u64 = 16;
/// How often a node is looked for before it is passed over.
const TRIES: usize = 8;
/// Nodes between two looks at whether it is interrupted.
const LOOK: u32 = 1 << 10;

/// Takes a node: its number, outside id and vector.
type Each<'a> = dyn FnMut(u32, u64, &[u8]) + 'a;

/// Calls `each` with every node that an index has by now.
///
/// # Errors
/// An interruption. A node that cannot be had is passed over.
pub(super) fn each_vector_now<N: NodePages>(
    index: &Index,
    pages: &N,
    placement: &Placement,
    progress: &dyn Progress,
    counters: &mut Counters,
    each: &mut Each<'_>,
) -> Result<(), Error> {
    let graph = index.graph();
    let mut vector = vec![0; index.dim() * index.element().size()];
    match &graph.segments {
        None => {
            let page_bytes = graph.pages.file(graph.nodes).page_bytes;
            let mut ahead = Ahead::new(index.volume().as_ref(), &graph.name, page_bytes);
            let outcome = each_node(index, progress, &mut |node, again| {
                let record = (pages, placement, node);
                from_page(record, &mut ahead, again, &mut vector, each)
            });
            counters.graph_reads += ahead.reads;
            counters.bytes_read += ahead.reads * page_bytes as u64;
            outcome
        }
        Some(segments) => {
            let mut ahead: Vec<_> = segments
                .iter()
                .map(|segment| {
                    let page_bytes = segment.pages.shape.page_bytes();
                    Ahead::new(index.volume().as_ref(), &segment.name, page_bytes)
                })
                .collect();
            let outcome = each_node(index, progress, &mut |node, again| {
                from_segment(segments, node, &mut ahead, again, &mut vector, each)
            });
            for ahead in &ahead {
                counters.vector_reads += ahead.reads;
                counters.bytes_read += ahead.reads * ahead.page_bytes as u64;
            }
            outcome
        }
    }
}

/// Looks for every node that there is by now with `find`, which says whether it was where it was looked for and is told
/// whether it was not before.
fn each_node(
    index: &Index,
    progress: &dyn Progress,
    find: &mut dyn FnMut(u32, bool) -> Result<bool, Error>,
) -> Result<(), Error> {
    let mut passed_over = 0_u64;
    let mut last = None;
    for node in 0..index.len() as u32 {
        if node % LOOK == 0 && progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let mut found = false;
        for again in 0..TRIES {
            if again > 0 {
                std::thread::yield_now();
            }
            match find(node, again > 0) {
                Ok(here) => found = here,
                Err(error) => last = Some(error),
            }
            if found {
                break;
            }
        }
        passed_over += u64::from(!found);
    }
    if passed_over > 0 {
        let error = last.map(|error| error.to_string());
        tracing::debug!(
            index = %index.path().display(),
            passed_over,
            error,
            "nodes that a search of all vectors could not read"
        );
    }
    Ok(())
}

/// Calls `each` with a node whose vector stands beside its list; false if it is not where it should be.
fn from_page<N: NodePages>(
    (pages, placement, node): (&N, &Placement, u32),
    ahead: &mut Ahead<'_>,
    again: bool,
    vector: &mut [u8],
    each: &mut Each<'_>,
) -> Result<bool, Error> {
    let page = placement.page_of(node);
    if let Some(record) = placement.pending.record(page, node) {
        each(node, record.id, &record.vector);
        return Ok(true);
    }
    if page == NOWHERE {
        return Ok(false);
    }
    let unwritten = placement.unwritten.get(page);
    let bytes = match &unwritten {
        Some(bytes) => bytes,
        None => ahead.page(page.into(), again)?,
    };
    let view = pages.view(bytes, page.into(), unwritten.is_none())?;
    let Some(slot) = view.slot_of(node) else {
        return Ok(false);
    };
    let record = view.record(slot)?;
    each(node, record.id, pages.vector(node, &record, vector)?);
    Ok(true)
}

/// Calls `each` with a node whose vector is apart from its list.
fn from_segment(
    segments: &Segments,
    node: u32,
    ahead: &mut [Ahead<'_>],
    again: bool,
    vector: &mut [u8],
    each: &mut Each<'_>,
) -> Result<bool, Error> {
    let place = segments.place_of(node);
    let segment = segments.get(place.segment);
    let Some(ahead) = ahead.get_mut(place.segment) else {
        return Ok(false);
    };
    let unwritten = segments.unwritten(place);
    let bytes = match &unwritten {
        Some(bytes) => bytes,
        None => ahead.page(place.page, again)?,
    };
    let view = segment.view(bytes, place.page, unwritten.is_none())?;
    if !segment.nodes(place.page, &view).contains(&node) {
        return Ok(false);
    }
    let id = segment.vector(node, place.page, &view, vector)?;
    each(node, id, vector);
    Ok(true)
}

/// The pages of a file, many at a time where they are asked for one behind the other.
struct Ahead<'a> {
    volume: &'a dyn Volume,
    name: &'a str,
    page_bytes: usize,
    /// Pages that were read at once, from `first` on, and a page that was read alone.
    piece: Vec<u8>,
    first: u64,
    alone: Option<u64>,
    page: Vec<u8>,
    /// Pages that were read.
    reads: u64,
}

impl<'a> Ahead<'a> {
    fn new(volume: &'a dyn Volume, name: &'a str, page_bytes: usize) -> Self {
        Self {
            volume,
            name,
            page_bytes,
            piece: Vec::new(),
            first: 0,
            alone: None,
            page: Vec::new(),
            reads: 0,
        }
    }

    /// A page as it was on storage at some time since the scan began; as it is now, if it is asked for `again`.
    fn page(&mut self, page: u64, again: bool) -> Result<&[u8], Error> {
        let bytes = self.page_bytes;
        let end = self.first + (self.piece.len() / bytes) as u64;
        if again || !(self.first..end).contains(&page) {
            if !again && self.alone == Some(page) {
                return Ok(&self.page);
            }
            let behind = self.alone.map(|alone| alone + 1) == Some(page);
            let next = (end..end + GAP).contains(&page) || behind;
            if again || !next || !self.read_piece(page)? {
                self.alone = None;
                self.page.resize(bytes, 0);
                let offset = BLOCK as u64 + page * bytes as u64;
                self.volume.read_at(self.name, offset, &mut self.page)?;
                self.reads += 1;
                self.alone = Some(page);
                return Ok(&self.page);
            }
        }
        let at = (page - self.first) as usize * bytes;
        Ok(&self.piece[at..at + bytes])
    }

    /// Reads pages from `page` on; false if the file ends before there is one.
    fn read_piece(&mut self, page: u64) -> Result<bool, Error> {
        let bytes = self.page_bytes as u64;
        let stored = self.volume.len(self.name)?.saturating_sub(BLOCK as u64) / bytes;
        let pages = stored.saturating_sub(page).min((PIECE / bytes).max(1));
        self.first = page;
        // Empty until all of it is there.
        let mut piece = std::mem::take(&mut self.piece);
        piece.resize((pages * bytes) as usize, 0);
        let offset = BLOCK as u64 + page * bytes;
        self.volume.read_at(self.name, offset, &mut piece)?;
        self.reads += pages;
        self.piece = piece;
        Ok(pages > 0)
    }
}
