//! Every vector of an index: what a search looks at where its list has room for all of them, its walk found too few, or a filter or a look-up says which nodes.
//! So does every search of an index of few vectors that outgrew its codes ([`looks_at`](crate::update::looks_at)).
//!
//! What is looked for is every node below a bound that is taken first, where it is *now*: in memory, on its way to a page; on a page that
//! is not written yet; or on storage. These are looked at in the order in which a record passes through them, so that one that moves on
//! meanwhile is met later. One that was missed all the same, because a page was read while another process wrote it or is
//! another one by now, is looked for again, some times. One that cannot be found at all is an error: an answer out of a
//! part of the vectors would look like one out of all.
//!
//! ```text
//!   nodes, some at a time ──page_of──> sorted by page ──> in memory?  ──yes──> each(node, id, vector)
//!        ^                                                   │no                 ^
//!        └── not where it was looked for                   queue: some runs of neighbouring pages in flight
//! ```
//!
//! Pages come through the tiers that the index holds, as those of a walk do: a merge may have removed their names. What a
//! scan holds at a time is no more than what a query is planned to hold anyway (see [`held_pages`]).

use std::collections::HashMap;
use std::future::poll_fn;
use std::ops::Range;
use std::task::Poll;
use std::time::{Duration, Instant};

use stratann_tier::{BLOCK, ReadQueue, Request, Thread, Tier, next};

mod nodes;
#[cfg(test)]
mod tests;

use super::Counters;
use super::admission::Admission;
use super::before::ByCode;
use super::leading::ByLeading;
use super::parts::Timer;
use super::ranking::Ranking;
use super::rerank::Reranker;
use super::source::CandidateSource;
use crate::Error;
use crate::filter::NodeSet;
use crate::index::Index;
use crate::plan::held_pages;
use crate::progress::Progress;
use crate::stores::page_source::Bytes;
use crate::stores::topology::placement::Standing;
use crate::stores::vectors::segments::{Segment, Segments};
use crate::stores::{GraphStores, NodePages, PageView, Record};

/// Pages behind one another that are read at once, at most.
const RUN: u64 = 4;
/// Such reads in flight, at most; of shorter ones as many as have no more pages together.
const RUNS: usize = 4;
/// Nodes that are looked for at a time.
const NODES: usize = 1 << 10;
/// Their numbers and pages, and those that were not found.
const NODE_BYTES: usize = size_of::<(u64, u32)>() + 2 * size_of::<u32>();
const _: () = assert!(RUN as usize * RUNS + (NODES * NODE_BYTES).div_ceil(BLOCK) <= held_pages(0));
/// Nodes of which it is asked at a time whether they are to be looked for.
const ASKED: u32 = 1 << 14;
/// How often a node is looked for.
const TRIES: u32 = 10;
/// How long a search waits before it looks again for the first time; then twice as long each time, up to the last of these.
const PAUSE: Duration = Duration::from_micros(50);
const PAUSES: Duration = Duration::from_millis(25);
/// How long it waits, about, for a node that is on its way from one page to another: no read is part of that, but the thread that
/// moves it may have lost its processor.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes a node: its number, outside id and vector; where that is what its leading part says, also that part.
type Each<'a> = dyn FnMut(u32, u64, &[u8], &[u8]) + 'a;

/// A scan of an index.
#[derive(Clone, Copy)]
pub(super) struct Scan<'a> {
    pub(super) index: &'a Index,
    pub(super) thread: &'a Thread,
    pub(super) progress: &'a dyn Progress,
    /// What may be an answer: nodes that it rules out need not be looked at.
    pub(super) admission: Admission<'a>,
    /// The nodes that are looked at, if not all.
    pub(super) among: Option<&'a NodeSet>,
}

impl Scan<'_> {
    /// Calls `each` with every node that the index has by now, in any order.
    ///
    /// # Errors
    /// A read that failed; a page that is damaged, or a node that is not where it should be, however often it is looked for; an
    /// interruption.
    pub(super) async fn each_vector<N: NodePages>(
        &self,
        pages: &N,
        counters: &mut Counters,
        each: &mut Each<'_>,
    ) -> Result<(), Error> {
        let (index, graph) = (self.index, self.index.graph());
        let all = index.nodes() as u32;
        let mut sought = Sought::of(index);
        let mut outcome = Ok(());
        // Where vectors are in parts, the leading ones say which trailing ones are worth a read.
        match graph.segments.as_ref().filter(|_| !N::PARTS) {
            None => {
                let source = InGraph { graph, pages };
                outcome = self
                    .each_of(&source, self.those(0..all), &mut sought, each)
                    .await;
                counters.graph_reads += sought.pages;
            }
            Some(segments) => {
                // One after the other, so that there is a door to one at a time.
                for number in 0..segments.len() {
                    let nodes = self.those(segments.nodes_of(number, all));
                    let segment = segments.get(number);
                    let source = InSegment {
                        segments,
                        number,
                        segment,
                        leading: None,
                    };
                    outcome = self.each_of(&source, nodes, &mut sought, each).await;
                    if outcome.is_err() {
                        break;
                    }
                }
                counters.vector_reads += sought.pages;
            }
        }
        counters.bytes_read += sought.bytes;
        counters.cache_hits += sought.spared;
        outcome
    }

    /// Makes answers of what was ranked by leading parts: reads the trailing parts of those in doubt, and of all answers.
    pub(super) async fn settle<N: NodePages>(
        &self,
        pages: &N,
        ranking: &mut Ranking<'_>,
        counters: &mut Counters,
    ) -> Result<(), Error> {
        let index = self.index;
        let Some(segments) = &index.graph().segments else {
            return Ok(());
        };
        let (timer, row_bytes) = (Timer::new(false), index.dim() * index.element().size());
        let rerank = (index.preset().rerank, true);
        let check = index.checks_pages();
        let mut reranker = Reranker::new(
            segments,
            self.thread,
            row_bytes,
            rerank,
            check,
            &timer,
            None,
        );
        reranker.settle(pages, ranking, counters).await
    }

    /// Some nodes after the others.
    async fn each_of<S: Source>(
        &self,
        source: &S,
        mut nodes: impl Iterator<Item = u32>,
        sought: &mut Sought,
        each: &mut Each<'_>,
    ) -> Result<(), Error> {
        let mut door = None;
        let mut all = false;
        while !all {
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            // Where pages are in memory nothing else would let other queries go on.
            let_others().await;
            for _ in 0..ASKED {
                if sought.nodes.len() == NODES {
                    break;
                }
                let Some(node) = nodes.next() else {
                    all = true;
                    break;
                };
                if !self.admission.rules_out(node) {
                    sought.nodes.push(node);
                }
            }
            sought.error = None;
            self.look(source, &mut door, sought, false, each).await?;
            let (began, mut pause, mut tries) = (Instant::now(), PAUSE, 1);
            // What holds a node up is told from one look at each: it may come to its page between two.
            let held_up = loop {
                let held_up = sought.held_up(source, self.admission);
                match held_up {
                    None => break None,
                    Some((_, Standing::Moves)) if began.elapsed() < PATIENCE => {
                        // When it has come, it is looked for as often as any other.
                        tries = 0;
                    }
                    Some((_, Standing::On(_))) if tries < TRIES => {}
                    Some(_) => break held_up,
                }
                if self.progress.interrupted() {
                    return Err(Error::Interrupted);
                }
                self.thread.sleep_until(Instant::now() + pause).await;
                pause = PAUSES.min(2 * pause);
                tries += 1;
                self.look(source, &mut door, sought, true, each).await?;
            };
            sought.nodes.clear();
            let file = source.file();
            match held_up {
                None => {}
                Some((node, Standing::On(page))) => {
                    let error = sought.error.take();
                    return Err(error.unwrap_or_else(|| not_there(file, node, page)));
                }
                Some((node, _)) => {
                    return Err(Error::Damaged {
                        file: file.to_owned(),
                        what: format!(
                            "node {node} left its page for another one {PATIENCE:?} ago, and is on none yet"
                        ),
                    });
                }
            }
        }
        Ok(())
    }

    /// Those of some nodes that are looked at.
    fn those(&self, nodes: Range<u32>) -> impl Iterator<Item = u32> + '_ {
        let (among, all) = match self.among {
            Some(among) => (Some(among.iter_in(nodes)), 0..0),
            None => (None, nodes),
        };
        among.into_iter().flatten().chain(all)
    }

    /// Looks for nodes once, and leaves those that were not where they were looked for. What was done `again` takes no page for what
    /// it was when the index was opened.
    async fn look<S: Source>(
        &self,
        source: &S,
        door: &mut Option<Box<dyn ReadQueue>>,
        sought: &mut Sought,
        again: bool,
        each: &mut Each<'_>,
    ) -> Result<(), Error> {
        let mut placed = std::mem::take(&mut sought.placed);
        placed.clear();
        let Sought {
            nodes,
            scratch,
            error,
            ..
        } = &mut *sought;
        nodes.retain(|&node| match source.standing(node) {
            Standing::Moves | Standing::NotYet => true,
            Standing::On(page) => {
                match source.waits(page, node, scratch, each) {
                    Ok(true) => {}
                    Ok(false) => placed.push((page, node)),
                    Err(wrong) => {
                        *error = Some(wrong);
                        return true;
                    }
                }
                false
            }
        });
        placed.sort_unstable();
        let (mut at, mut in_flight, mut pages_in_flight) = (0, 0, 0);
        while at < placed.len() || in_flight > 0 {
            // Long runs are few, and pages that stand alone are more.
            while at < placed.len()
                && (in_flight < RUNS || pages_in_flight + RUN <= RUN * RUNS as u64)
            {
                let page = placed[at].0;
                if let Some(bytes) = source.in_memory(page, again) {
                    sought.spared += 1;
                    let here = on_page(&placed[at..]);
                    at += here.len();
                    sought.meet(source, &bytes, false, here, each)?;
                    continue;
                }
                let (to, offset, len) = run(source, &placed, at, again);
                let queue = match &mut *door {
                    Some(queue) => queue,
                    none => none.insert(source.tier().queue(self.thread)?),
                };
                queue.submit(Request {
                    tag: (to as u64) << 32 | at as u64,
                    offset,
                    len: len as u32,
                })?;
                let pages = len / source.page_bytes() as u64;
                sought.pages += pages;
                sought.bytes += len;
                pages_in_flight += pages;
                in_flight += 1;
                at = to;
            }
            let Some(queue) = door.as_mut().filter(|_| in_flight > 0) else {
                continue;
            };
            let done = next(&mut **queue).await;
            in_flight -= 1;
            let block = done.result?;
            pages_in_flight =
                pages_in_flight.saturating_sub((block.len() / source.page_bytes()) as u64);
            let (at, to) = (done.tag as u32 as usize, (done.tag >> 32) as usize);
            let mut rest = &placed[at..to];
            let first = rest[0].0;
            while let Some(&(page, _)) = rest.first() {
                // Pages that were added to may go on on more by now than were read: not with what was looked for.
                let at = (page - first) as usize * source.page_bytes();
                let end = block.len().min(at + source.place(page).1);
                let bytes = &block[at..end];
                let here = on_page(rest);
                rest = &rest[here.len()..];
                sought.meet(source, bytes, true, here, each)?;
            }
        }
        sought.placed = placed;
        Ok(())
    }
}

/// A scan that ranks what it finds.
pub(super) struct Everything<'s, 'a, N> {
    pub(super) scan: Scan<'s>,
    pub(super) pages: &'s N,
    pub(super) ranking: &'s mut Ranking<'a>,
    /// Codes in memory, where a filter says of which nodes they are worth a look.
    pub(super) by_code: Option<ByCode<'s, 'a>>,
    pub(super) counters: Counters,
}

impl<'a, N: NodePages> CandidateSource<'a> for Everything<'_, 'a, N> {
    fn ranking(&mut self) -> &mut Ranking<'a> {
        self.ranking
    }

    /// Nothing leads to them; where there are codes of those that match, the list says how many of the nearest are looked at.
    async fn find(&mut self, list: usize) -> Result<(), Error> {
        match self.scan.admission.nodes() {
            Some(nodes) if self.by_code.is_some() => self.find_by_code(nodes, list).await,
            _ => self.find_all().await,
        }
    }

    fn take_counters(&mut self) -> Counters {
        std::mem::take(&mut self.counters)
    }
}

impl<N: NodePages> Everything<'_, '_, N> {
    /// Ranks all.
    pub(super) async fn find_all(&mut self) -> Result<(), Error> {
        let Self {
            scan,
            pages,
            ranking,
            counters,
            ..
        } = self;
        let mut each = |node, id, vector: &[u8], part: &[u8]| match N::PARTS {
            true => {
                let (distance, error) = (0.0, pages.error(node, part));
                let candidate = ByLeading {
                    node,
                    id,
                    distance,
                    part,
                    error,
                };
                ranking.rank_leading(None, candidate, vector);
            }
            false => {
                ranking.rank_exactly(node, id, vector);
            }
        };
        let mut scanned = scan.each_vector(*pages, counters, &mut each).await;
        if N::PARTS && scanned.is_ok() {
            scanned = scan.settle(*pages, ranking, counters).await;
        }
        counters.distance_computations += std::mem::take(&mut ranking.computations);
        scanned
    }
}

/// The nodes on the first page of some, which are sorted by page.
fn on_page(placed: &[(u64, u32)]) -> &[(u64, u32)] {
    let page = placed.first().map(|first| first.0);
    let here = placed.iter().take_while(|at| Some(at.0) == page);
    &placed[..here.count()]
}

/// What is read at once with the page at a place: where the nodes on other pages begin, and where it stands, offset and length.
fn run<S: Source>(source: &S, placed: &[(u64, u32)], at: usize, again: bool) -> (usize, u64, u64) {
    let (first, mut last, mut to) = (placed[at].0, placed[at].0, at);
    let end = |page: u64| {
        let (offset, bytes) = source.place(page);
        offset + bytes as u64
    };
    let (start, mut behind) = (source.place(first).0, end(first));
    while let Some(&(page, _)) = placed.get(to) {
        if page != last {
            let follows = page - first < RUN && source.place(page).0 <= behind;
            if !follows || source.in_memory(page, again).is_some() {
                break;
            }
            behind = behind.max(end(page));
        }
        last = page;
        to += 1;
    }
    (to, start, behind - start)
}

/// Lets the other tasks of the thread go on.
pub(super) async fn let_others() {
    let mut waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cold]
fn not_there(file: &str, node: u32, page: u64) -> Error {
    Error::Damaged {
        file: file.to_owned(),
        what: format!("node {node} is not on page {page}, where it should be"),
    }
}

/// Whether an error may come of a page that another process wrote meanwhile. Those of devices do not pass.
fn may_pass(error: &Error) -> bool {
    matches!(
        error,
        Error::Damaged { .. } | Error::Layout(_) | Error::Codec { .. }
    )
}

/// Where a vector is decoded, and its code put together if it stands on several pages.
#[derive(Default)]
struct Scratch {
    vector: Vec<u8>,
    code: Vec<u8>,
}

/// Nodes that are looked for, and what that took.
#[derive(Default)]
struct Sought {
    nodes: Vec<u32>,
    /// The same with their pages; scratch.
    placed: Vec<(u64, u32)>,
    /// What was wrong where the last one was that could not be read.
    error: Option<Error>,
    scratch: Scratch,
    /// Pages and bytes that were read, and pages that needed no read.
    pages: u64,
    bytes: u64,
    spared: u64,
}

impl Sought {
    /// None yet, of an index.
    fn of(index: &Index) -> Self {
        Self {
            nodes: Vec::with_capacity(NODES),
            scratch: Scratch {
                vector: vec![0; index.dim() * index.element().size()],
                code: Vec::new(),
            },
            ..Self::default()
        }
    }

    /// A node that is still looked for and could be met, and where it stands: one that moves, if there is one.
    fn held_up<S: Source>(&self, source: &S, admission: Admission<'_>) -> Option<(u32, Standing)> {
        let nodes = self.nodes.iter().copied();
        let standing = nodes
            .filter(|&node| !admission.rules_out(node))
            .map(|node| (node, source.standing(node)));
        let mut on_page = None;
        for (node, standing) in standing {
            match standing {
                Standing::Moves => return Some((node, standing)),
                Standing::On(_) => on_page = on_page.or(Some((node, standing))),
                Standing::NotYet => {}
            }
        }
        on_page
    }

    /// Takes nodes off a page on which they should be, and notes those that are not there.
    fn meet<S: Source>(
        &mut self,
        source: &S,
        bytes: &[u8],
        check: bool,
        here: &[(u64, u32)],
        each: &mut Each<'_>,
    ) -> Result<(), Error> {
        let mut check = check;
        for &(page, node) in here {
            match source.meet((bytes, page, check), node, &mut self.scratch, each) {
                Ok(true) => {}
                Ok(false) => self.nodes.push(node),
                Err(error) if may_pass(&error) => {
                    self.error = Some(error);
                    if check {
                        // None of it can be trusted.
                        self.nodes.extend(here.iter().map(|&(_, node)| node));
                        return Ok(());
                    }
                    self.nodes.push(node);
                }
                Err(error) => return Err(error),
            }
            check = false;
        }
        Ok(())
    }
}

/// A file of pages with vectors.
trait Source {
    /// Where they are read from.
    fn tier(&self) -> &dyn Tier;
    /// The file as errors name it.
    fn file(&self) -> &str;
    /// Where a node stands now.
    fn standing(&self, node: u32) -> Standing;
    /// Bytes of a page.
    fn page_bytes(&self) -> usize;
    /// Where a page stands in the file, with those that its last record goes on on: offset and length in bytes.
    fn place(&self, page: u64) -> (u64, usize);
    /// Calls `each` with a node whose record waits to be put on its page; false if there is none.
    fn waits(
        &self,
        page: u64,
        node: u32,
        scratch: &mut Scratch,
        each: &mut Each<'_>,
    ) -> Result<bool, Error>;
    /// A page that needs no read; if it is asked for `again`, not as it was when the index was opened.
    fn in_memory(&self, page: u64, again: bool) -> Option<Bytes<'_>>;
    /// Calls `each` with a node on a page, of which are given bytes, number and whether to verify its checksums; false if it is
    /// not there.
    fn meet(
        &self,
        page: (&[u8], u64, bool),
        node: u32,
        scratch: &mut Scratch,
        each: &mut Each<'_>,
    ) -> Result<bool, Error>;
}

/// Vectors that stand beside lists.
struct InGraph<'a, N> {
    graph: &'a GraphStores,
    pages: &'a N,
}

impl<N: NodePages> Source for InGraph<'_, N> {
    fn tier(&self) -> &dyn Tier {
        &*self.graph.tier
    }

    fn file(&self) -> &str {
        &self.graph.file
    }

    fn standing(&self, node: u32) -> Standing {
        let placement = self.graph.placement.get();
        match placement.filter(|placement| !placement.is_even()) {
            Some(placement) => placement.standing(node),
            None => Standing::On(self.pages.page_of(node)),
        }
    }

    fn page_bytes(&self) -> usize {
        self.pages.place(0).1
    }

    fn place(&self, page: u64) -> (u64, usize) {
        self.pages.place(page)
    }

    fn waits(
        &self,
        page: u64,
        node: u32,
        scratch: &mut Scratch,
        each: &mut Each<'_>,
    ) -> Result<bool, Error> {
        let placement = self.graph.placement.get();
        let record = placement.and_then(|placement| placement.pending.record(page as u32, node));
        let Some(record) = record else {
            return Ok(false);
        };
        if !N::PARTS {
            each(node, record.id, &record.vector, &[]);
            return Ok(true);
        }
        // By what its page will have of it, as the others are.
        let Scratch { vector, code } = scratch;
        code.clear();
        self.pages.leading_part(node, &record.vector, code)?;
        let leading = self.pages.vector(node, &Record::of_vector(code), vector)?;
        each(node, record.id, leading, code);
        Ok(true)
    }

    fn in_memory(&self, page: u64, again: bool) -> Option<Bytes<'_>> {
        match again {
            true => self.graph.unwritten(page).map(Bytes::Unwritten),
            false => self.graph.in_memory(page),
        }
    }

    fn meet(
        &self,
        (bytes, page, check): (&[u8], u64, bool),
        node: u32,
        scratch: &mut Scratch,
        each: &mut Each<'_>,
    ) -> Result<bool, Error> {
        let view = self.pages.view(bytes, page, check)?;
        let Some(slot) = view.slot_of(node) else {
            return Ok(false);
        };
        let record = view.record(slot)?;
        let part = if N::PARTS { record.vector } else { &[] };
        let vector = self.pages.vector(node, &record, &mut scratch.vector)?;
        each(node, record.id, vector, part);
        Ok(true)
    }
}

/// Vectors of a segment.
struct InSegment<'a> {
    segments: &'a Segments,
    number: usize,
    segment: &'a Segment,
    /// The leading parts of the nodes that are looked for, where the segment has trailing ones.
    leading: Option<&'a HashMap<u32, Box<[u8]>>>,
}

impl Source for InSegment<'_> {
    fn tier(&self) -> &dyn Tier {
        &*self.segment.tier
    }

    fn file(&self) -> &str {
        &self.segment.pages.file
    }

    fn standing(&self, node: u32) -> Standing {
        Standing::On(self.segments.place_of(node).page)
    }

    fn page_bytes(&self) -> usize {
        self.segment.pages.shape.page_bytes()
    }

    fn place(&self, page: u64) -> (u64, usize) {
        self.segment
            .span(self.segments.extent_of(self.number, page))
    }

    fn waits(&self, _: u64, _: u32, _: &mut Scratch, _: &mut Each<'_>) -> Result<bool, Error> {
        Ok(false)
    }

    fn in_memory(&self, page: u64, again: bool) -> Option<Bytes<'_>> {
        let place = self.segments.extent_of(self.number, page);
        match again {
            true => self.segments.unwritten(place).map(Bytes::Unwritten),
            false => self.segments.in_memory(place),
        }
    }

    fn meet(
        &self,
        (bytes, page, check): (&[u8], u64, bool),
        node: u32,
        scratch: &mut Scratch,
        each: &mut Each<'_>,
    ) -> Result<bool, Error> {
        let view = self.segment.view(bytes, page, check)?;
        if !self.segment.nodes(page, &view).contains(&node) {
            return Ok(false);
        }
        let Scratch { vector, code } = scratch;
        let leading = self.leading.and_then(|parts| parts.get(&node));
        let leading = leading.map_or(&[][..], |part| part);
        let segment = self.segment;
        let id = segment.vector(node, page, &view, leading, code, vector)?;
        each(node, id, vector, &[]);
        Ok(true)
    }
}
