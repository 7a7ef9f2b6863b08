//! Iterates over the vectors and lists of an index on storage, in any layout.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use stratann_layout::BLOCK;

use crate::Error;
use crate::index::Index;
use crate::progress::Progress;
use crate::stores::clusters::reader::ClusterReader;
use crate::stores::topology::pending::NewRecord;
use crate::stores::topology::placement::NOWHERE;
use crate::stores::vectors::added::Added;
use crate::stores::vectors::leading::{LeadingFile, LeadingParts};
use crate::stores::vectors::segments::{Extent, Segment, VectorPage};
use crate::stores::{ClusterStores, GraphStores, NodePages, PageView, Record, VectorsAt, on_pages};

const PIECE: usize = 1 << 20;

/// Receives a node: its number, external id and vector.
pub(crate) type EachVector<'a> = dyn FnMut(u32, u64, &[u8]) -> Result<(), Error> + 'a;
/// Receives a node: its number and its neighbours.
pub(crate) type EachList<'a> = dyn FnMut(u32, &[u32]) -> Result<(), Error> + 'a;
/// Receives a page of vectors: the segment and its number, and the page and its number.
pub(crate) type EachVectorPage<'a> =
    dyn FnMut(usize, &Segment, u64, &VectorPage<'_>) -> Result<(), Error> + 'a;
type EachPage<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Error> + 'a;

/// Shares of the nodes of a graph index, for several threads. No insert may run meanwhile.
pub(crate) struct Shares {
    count: u32,
    /// The pages that have nodes. The first share that needs them computes them for all shares.
    in_use: OnceLock<Vec<bool>>,
    /// The lowest number of a share that has failed, or `u64::MAX`.
    failed: AtomicU64,
}

#[derive(Clone, Copy)]
pub(crate) struct Share<'a> {
    number: u64,
    shares: &'a Shares,
}

impl Shares {
    pub(crate) fn new(count: u32) -> Self {
        Self {
            count,
            in_use: OnceLock::new(),
            failed: AtomicU64::new(u64::MAX),
        }
    }

    pub(crate) fn all(&self) -> impl ExactSizeIterator<Item = Share<'_>> + Send {
        (0..self.count).map(|number| Share {
            number: number.into(),
            shares: self,
        })
    }

    fn first(&self) -> Share<'_> {
        Share {
            number: 0,
            shares: self,
        }
    }
}

impl Share<'_> {
    fn has(self, piece: u64) -> bool {
        piece % u64::from(self.shares.count) == self.number
    }

    /// Fails after an interruption, or if an earlier share has failed. If a later share fails,
    /// earlier shares continue. So the returned error does not depend on the threads.
    fn goes_on(self, progress: &dyn Progress) -> Result<(), Error> {
        let failed = self.shares.failed.load(Ordering::Relaxed);
        match progress.interrupted() || failed < self.number {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }

    fn ended(self, done: Result<(), Error>) -> Result<(), Error> {
        if done.is_err() {
            self.shares.failed.fetch_min(self.number, Ordering::Relaxed);
        }
        done
    }

    fn has_pending(self) -> bool {
        self.number == 0
    }
}

/// Calls `each` with every node, in the order of node numbers or of pages.
pub(crate) fn each_vector(
    index: &Index,
    progress: &dyn Progress,
    each: &mut EachVector<'_>,
) -> Result<(), Error> {
    match index.clusters() {
        Some(clusters) => each_member(index, clusters, progress, each),
        None => each_vector_in(index, Shares::new(1).first(), progress, each),
    }
}

/// Calls `each` with every node of a share. The call also fails if an earlier share has failed.
pub(crate) fn each_vector_in(
    index: &Index,
    share: Share<'_>,
    progress: &dyn Progress,
    each: &mut EachVector<'_>,
) -> Result<(), Error> {
    share.ended(vectors_of(index, share, progress, each))
}

fn vectors_of(
    index: &Index,
    share: Share<'_>,
    progress: &dyn Progress,
    each: &mut EachVector<'_>,
) -> Result<(), Error> {
    let graph = index.graph();
    let mut vector = vec![0; index.dim() * index.element().size()];
    let mut scratch = Vec::new();
    if graph.segments.is_some() {
        let file = LeadingFile {
            volume: &**index.volume(),
            name: &graph.name,
            pages: &graph.pages,
            placement: graph.placement.get(),
        };
        let mut parts = match index.composition().vectors {
            VectorsAt::Parts => Some(LeadingParts::default()),
            VectorsAt::Records | VectorsAt::Segments => None,
        };
        return each_vector_page_in(index, share, progress, &mut |_, segment, page, view| {
            for node in segment.nodes(page, view) {
                if is_given_up(graph, node) {
                    continue;
                }
                let leading = match &mut parts {
                    Some(parts) => parts.of(&file, node)?.1,
                    None => &[],
                };
                let id = segment.vector(node, page, view, leading, &mut scratch, &mut vector)?;
                each(node, id, &vector)?;
            }
            Ok(())
        });
    }
    on_pages!(&graph.pages, pages => {
        from_records(index, pages, (share, progress), &mut vector, each)
    })?;
    for record in pending(graph, share) {
        each(record.node, record.id, &record.vector)?;
    }
    Ok(())
}

/// Calls `each` once with every vector of a cluster index.
fn each_member(
    index: &Index,
    clusters: &ClusterStores,
    progress: &dyn Progress,
    each: &mut EachVector<'_>,
) -> Result<(), Error> {
    let mut reader = ClusterReader::open(&**index.volume(), clusters)?;
    for (numbers, at) in clusters.member_runs(PIECE) {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        reader.each_behind(at, numbers, each)?;
    }
    for cluster in 0..clusters.clusters() {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        // Each vector is passed only once, with its own cluster.
        reader.each_own(cluster, each)?;
    }
    Ok(())
}

pub(crate) fn each_vector_page(
    index: &Index,
    progress: &dyn Progress,
    each: &mut EachVectorPage<'_>,
) -> Result<(), Error> {
    each_vector_page_in(index, Shares::new(1).first(), progress, each)
}

fn each_vector_page_in(
    index: &Index,
    share: Share<'_>,
    progress: &dyn Progress,
    each: &mut EachVectorPage<'_>,
) -> Result<(), Error> {
    let Some(segments) = &index.graph().segments else {
        return Ok(());
    };
    let nodes = index.nodes() as u64;
    let mut each = |n: usize, segment: &Segment, page: u64, view: &VectorPage<'_>| match segment
        .nodes(page, view)
        .last()
    {
        Some(node) if u64::from(node) >= nodes => {
            Err(not_there(&segment.pages.file, page, node, nodes))
        }
        _ => each(n, segment, page, view),
    };
    for (n, segment) in segments.iter().enumerate() {
        let pages = segment.pages.directory.pages();
        let bytes = segment.pages.shape.page_bytes();
        let file = PagesOf {
            name: &segment.name,
            pages,
            page_bytes: bytes,
            extent: &|page| segments.extent_of(n, page).pages.into(),
        };
        each_page(index, &file, (share, progress), &mut |page, bytes| {
            each(n, segment, page, &segment.view(bytes, page, true)?)
        })?;
    }
    let (n, last) = (segments.len() - 1, segments.last());
    let mut buffer = Vec::new();
    let added = segments.added().map_or(0..0, Added::pages);
    for page in added.filter(|&page| share.has(page)) {
        share.goes_on(progress)?;
        let place = segments.extent_of(n, page);
        buffer.resize(last.span(place).1, 0);
        vector_pages(index, place, &mut buffer)?;
        each(n, last, page, &last.view(&buffer, page, true)?)?;
    }
    Ok(())
}

#[cold]
fn not_there(file: &str, page: u64, node: u32, nodes: u64) -> Error {
    Error::Damaged {
        file: file.to_owned(),
        what: format!("page {page} has a record of node {node}, but there are {nodes} nodes"),
    }
}

pub(crate) fn vector_pages(index: &Index, place: Extent, out: &mut [u8]) -> Result<(), Error> {
    let Some(segments) = &index.graph().segments else {
        return Ok(());
    };
    if let Some(bytes) = segments.in_memory(place) {
        out.copy_from_slice(&bytes);
        return Ok(());
    }
    let segment = segments.get(place.segment);
    let (offset, _) = segment.span(place);
    Ok(index.volume().read_at(&segment.name, offset, out)?)
}

pub(crate) fn each_list(
    index: &Index,
    progress: &dyn Progress,
    each: &mut EachList<'_>,
) -> Result<(), Error> {
    each_list_in(index, Shares::new(1).first(), progress, each)
}

/// Calls `each` with every list of a share. The call also fails if an earlier share has failed.
pub(crate) fn each_list_in(
    index: &Index,
    share: Share<'_>,
    progress: &dyn Progress,
    each: &mut EachList<'_>,
) -> Result<(), Error> {
    share.ended(lists_of(index, share, progress, each))
}

fn lists_of(
    index: &Index,
    share: Share<'_>,
    progress: &dyn Progress,
    each: &mut EachList<'_>,
) -> Result<(), Error> {
    let graph = index.graph();
    on_pages!(&graph.pages, pages => lists_on(index, pages, (share, progress), each))?;
    let mut list = Vec::new();
    for record in pending(graph, share) {
        list.clear();
        list.extend_from_slice(&record.list);
        if let Some(placement) = graph.placement.get() {
            let page = placement.page_of(record.node);
            placement.pending.amend(page, record.node, &mut list);
        }
        each(record.node, &list)?;
    }
    Ok(())
}

/// Whether the insert of a node was given up after the node got its number. Its vector then waits
/// in memory. No insert may run.
pub(crate) fn is_given_up(graph: &GraphStores, node: u32) -> bool {
    let placement = graph.placement.get();
    placement.is_some_and(|placement| placement.page_of(node) == NOWHERE)
}

fn pending(graph: &GraphStores, share: Share<'_>) -> Vec<Arc<NewRecord>> {
    let placement = graph.placement.get().filter(|_| share.has_pending());
    let records = placement.map_or_else(Vec::new, |placement| placement.pending.all().1);
    records.into_iter().map(|(_, record)| record).collect()
}

fn lists_on<N: NodePages>(
    index: &Index,
    pages: &N,
    (share, progress): (Share<'_>, &dyn Progress),
    each: &mut EachList<'_>,
) -> Result<(), Error> {
    let graph = index.graph();
    let nodes = index.nodes() as u64;
    let mut list = Vec::new();
    each_record(
        index,
        pages,
        (share, progress),
        &mut |page, node, record| {
            pages.list(node, record, &mut list)?;
            if let Some(placement) = graph.placement.get() {
                placement.pending.amend(page as u32, node, &mut list);
            }
            if let Some(&link) = list.iter().find(|&&link| u64::from(link) >= nodes) {
                return Err(Error::Damaged {
                    file: graph.file.clone(),
                    what: format!("node {node} links to node {link}, but there are {nodes} nodes"),
                });
            }
            each(node, &list)
        },
    )
}

fn from_records<N: NodePages>(
    index: &Index,
    pages: &N,
    (share, progress): (Share<'_>, &dyn Progress),
    vector: &mut [u8],
    each: &mut EachVector<'_>,
) -> Result<(), Error> {
    each_record(index, pages, (share, progress), &mut |_, node, record| {
        each(node, record.id, pages.vector(node, record, vector)?)
    })
}

type EachRecord<'a> = dyn FnMut(u64, u32, &Record<'_>) -> Result<(), Error> + 'a;

fn each_record<N: NodePages>(
    index: &Index,
    pages: &N,
    (share, progress): (Share<'_>, &dyn Progress),
    each: &mut EachRecord<'_>,
) -> Result<(), Error> {
    let graph = index.graph();
    let file = graph.pages.file(graph.nodes);
    let placement = graph.placement.get();
    let nodes = index.nodes() as u64;
    let mut records_of = |page: u64, bytes: &[u8]| {
        let view = pages.view(bytes, page, true)?;
        for slot in 0..view.len() {
            let node = view.node(slot)?;
            if u64::from(node) >= nodes {
                return Err(not_there(&graph.file, page, node, nodes));
            }
            // The page may have old bytes of a record that has moved to another page.
            if placement.is_none_or(|placement| u64::from(placement.page_of(node)) == page) {
                each(page, node, &view.record(slot)?)?;
            }
        }
        Ok(())
    };
    let (name, page_bytes) = (&graph.name, file.page_bytes);
    let stored = |pages: u64| PagesOf {
        name,
        pages,
        page_bytes,
        extent: &|_| 1,
    };
    let Some(placement) = placement else {
        let stored = stored(file.pages);
        return each_page(index, &stored, (share, progress), &mut records_of);
    };
    let in_use = share.shares.in_use.get_or_init(|| placement.pages_in_use());
    // The last pages may exist only in memory.
    let there = index.volume().len(name)?.saturating_sub(BLOCK as u64);
    let there = (there / page_bytes as u64).min(in_use.len() as u64);
    each_page(
        index,
        &stored(there),
        (share, progress),
        &mut |page, bytes| {
            if !in_use[page as usize] {
                return Ok(());
            }
            match graph.unwritten(page) {
                Some(bytes) => records_of(page, &bytes),
                None => records_of(page, bytes),
            }
        },
    )?;
    let further = (there..in_use.len() as u64).filter(|&page| in_use[page as usize]);
    for page in further.filter(|&page| share.has(page)) {
        match graph.unwritten(page) {
            Some(bytes) => records_of(page, &bytes)?,
            None => {
                return Err(Error::Damaged {
                    file: graph.file.clone(),
                    what: format!("the file ends before page {page}, although this page has nodes"),
                });
            }
        }
    }
    Ok(())
}

struct PagesOf<'a> {
    name: &'a str,
    pages: u64,
    page_bytes: usize,
    extent: &'a dyn Fn(u64) -> u64,
}

/// Calls `each` with every page of a share of a file. If the last record of a page continues, the
/// bytes include the next pages.
fn each_page(
    index: &Index,
    file: &PagesOf<'_>,
    (share, progress): (Share<'_>, &dyn Progress),
    each: &mut EachPage<'_>,
) -> Result<(), Error> {
    let PagesOf {
        pages, page_bytes, ..
    } = *file;
    let step = (PIECE / page_bytes).max(1) as u64;
    let mut buffer = Vec::new();
    let pieces = (0..).zip((0..pages).step_by(step as usize));
    for (_, first) in pieces.filter(|&(piece, _)| share.has(piece)) {
        share.goes_on(progress)?;
        let last = pages.min(first + step) - 1;
        let end = pages.min(last + (file.extent)(last));
        buffer.resize((end - first) as usize * page_bytes, 0);
        let offset = BLOCK as u64 + first * page_bytes as u64;
        index.volume().read_at(file.name, offset, &mut buffer)?;
        for page in first..=last {
            let at = (page - first) as usize * page_bytes;
            let behind = pages.min(page + (file.extent)(page)) - page;
            each(page, &buffer[at..at + behind as usize * page_bytes])?;
        }
    }
    Ok(())
}
