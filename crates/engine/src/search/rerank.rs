//! Re-ranking after the path: where vectors are apart from lists, they are fetched when the traversal knows which
//! (DecoupleVS §3.4, "adaptive vector prefetching").
//!
//! ```text
//!   phase 1, while the traversal goes on: the best K + B candidates by code have not changed for B expansions
//!            -> their vectors are prefetched, with the reads that the traversal leaves of W
//!   phase 2, after it:   batch 0: those K + B     batch 1: the next B     batch 2: ...
//!            rank batch i while batch i + 1 is read; end when the share of a batch that became an answer is below
//!            the benefit ratio
//! ```
//!
//! The max-heap of K + B candidates is the head of the traversal's candidate list, which is in order of estimated
//! distance anyway.
//!
//! With [`Rerank::estimate`](crate::Rerank) there is no speculative batch: once batch 0 is ranked, the k-th answer and the code's
//! error say which of the other candidates may still be answers ([`Ranking::bound`]); those are read at once, and
//! they are the last.
//!
//! Vectors are ranked batch by batch in the order of candidates, whatever the order of completions, so answers do not
//! depend on it.

use std::future::poll_fn;
use std::task::Poll;

use stratann_tier::{Block, Completion, Lane, Request, Thread};

use super::Counters;
use super::parts::{Part, Timer};
use super::ranking::{Ranking, WORTH_READING};
use crate::frontier::{Frontier, distance_of, node_of};
use crate::measure::Heat;
use crate::nodes::placement::PageBytes;
use crate::nodes::segments::{Place, Segments};
use crate::{Error, Rerank};

/// A page that is here.
enum Held {
    /// It was read.
    Read(Block),
    /// It waits to be written, or for more vectors.
    Unwritten(PageBytes),
}

impl Held {
    fn bytes(&self) -> &[u8] {
        match self {
            Held::Read(block) => block,
            Held::Unwritten(bytes) => bytes,
        }
    }
}

/// One query's reads of vectors.
pub(crate) struct Reranker<'a> {
    segments: &'a Segments,
    thread: &'a Thread,
    /// A door to each segment, opened when it is first needed.
    lanes: Vec<Option<Box<dyn Lane>>>,
    rerank: Rerank,
    check: bool,
    timer: &'a Timer,
    heat: Option<&'a Heat>,
    /// K + B.
    head: usize,
    /// Expansions in a row that left the head as it was.
    unchanged: usize,
    /// Pages asked for and not here yet, in the order in which they were asked for.
    awaited: Vec<Place>,
    /// How many of them the batch in hand waits for: they stand in front.
    due: usize,
    /// Pages that are here, until the query ends.
    held: Vec<(Place, Held)>,
    vector: Vec<u8>,
}

impl<'a> Reranker<'a> {
    /// Reads vectors of `segments` from `thread`; `check` verifies checksums, and `heat` is told which pages are read.
    pub(crate) fn new(
        segments: &'a Segments,
        thread: &'a Thread,
        vector_bytes: usize,
        rerank: Rerank,
        check: bool,
        timer: &'a Timer,
        heat: Option<&'a Heat>,
    ) -> Self {
        Self {
            segments,
            thread,
            lanes: (0..segments.len()).map(|_| None).collect(),
            rerank,
            check,
            timer,
            heat,
            head: 0,
            unchanged: 0,
            awaited: Vec::new(),
            due: 0,
            held: Vec::new(),
            vector: vec![0; vector_bytes],
        }
    }

    /// Starts a query.
    pub(crate) fn begin(&mut self, k: usize) {
        self.head = k + self.rerank.batch;
        self.unchanged = 0;
        self.held.clear();
        self.reset();
    }

    /// Forgets the reads in flight.
    pub(crate) fn reset(&mut self) {
        self.awaited.clear();
        for lane in self.lanes.iter_mut().flatten() {
            lane.reset();
        }
    }

    /// Notes that a candidate was expanded; `touched` is the first place of the candidate list that it changed.
    pub(crate) fn expanded(&mut self, touched: usize) {
        self.unchanged = if touched < self.head {
            0
        } else {
            self.unchanged + 1
        };
    }

    /// Phase 1: asks for the vectors of the best candidates, if they have been stable, with at most `spare` reads.
    pub(crate) fn prefetch(
        &mut self,
        frontier: &Frontier,
        spare: usize,
        counters: &mut Counters,
    ) -> Result<(), Error> {
        if self.unchanged < self.rerank.batch || frontier.len() < self.head {
            return Ok(());
        }
        let before = self.awaited.len();
        for place in 0..self.head {
            if self.awaited.len() >= spare {
                break;
            }
            if let Some(key) = frontier.get(place) {
                self.ask(node_of(key), counters)?;
            }
        }
        if self.awaited.len() > before {
            for lane in self.lanes.iter_mut().flatten() {
                lane.flush();
            }
        }
        Ok(())
    }

    /// Phase 2: ranks candidates until it does not pay.
    pub(crate) async fn finish(
        &mut self,
        frontier: &Frontier,
        ranking: &mut Ranking<'_>,
        counters: &mut Counters,
    ) -> Result<(), Error> {
        let (batch, mut from) = (self.rerank.batch.max(1), 0);
        let mut to = self.head.min(frontier.len());
        self.ask_all(frontier, from..to, f32::INFINITY, counters)?;
        if self.rerank.estimate {
            self.due = self.awaited.len();
            self.rank_all(frontier, from..to, f32::INFINITY, ranking)
                .await?;
            let bound = ranking.bound(WORTH_READING);
            self.ask_all(frontier, to..frontier.len(), bound, counters)?;
            self.due = self.awaited.len();
            return self
                .rank_all(frontier, to..frontier.len(), bound, ranking)
                .await
                .map(|_| ());
        }
        loop {
            let next = (to + batch).min(frontier.len());
            self.due = self.awaited.len();
            self.ask_all(frontier, to..next, f32::INFINITY, counters)?;
            let came_in = self
                .rank_all(frontier, from..to, f32::INFINITY, ranking)
                .await?;
            let share = came_in as f64 / (to - from).max(1) as f64;
            if next == to || (from > 0 && share < self.rerank.benefit) {
                self.reset();
                return Ok(());
            }
            (from, to) = (to, next);
        }
    }

    /// Asks for the vectors of candidates with an estimate of at most `bound`.
    fn ask_all(
        &mut self,
        frontier: &Frontier,
        places: std::ops::Range<usize>,
        bound: f32,
        counters: &mut Counters,
    ) -> Result<(), Error> {
        for key in places.filter_map(|place| frontier.get(place)) {
            if distance_of(key) <= bound {
                self.ask(node_of(key), counters)?;
            }
        }
        Ok(())
    }

    /// Sees to it that the page of a node's vector is here or on its way.
    fn ask(&mut self, node: u32, counters: &mut Counters) -> Result<(), Error> {
        let place = self.segments.place_of(node);
        let segment = self.segments.get(place.segment);
        if segment.end <= node && self.is_unwritten(place) {
            return Ok(());
        }
        if self.awaited.contains(&place)
            || self.held.iter().any(|(held, _)| *held == place)
            || segment.resident.get(place.page).is_some()
        {
            return Ok(());
        }
        if let Some(heat) = self.heat {
            heat.vectors(place);
        }
        let lane = match &mut self.lanes[place.segment] {
            Some(lane) => lane,
            none => none.insert(segment.tier.lane(self.thread)?),
        };
        let (offset, len) = segment.pages.place(place.page);
        lane.submit(Request {
            tag: place.page,
            offset,
            len: len as u32,
        })?;
        counters.vector_reads += 1;
        counters.bytes_read += len as u64;
        self.awaited.push(place);
        Ok(())
    }

    /// Takes a page of new vectors that is in memory, as it is now: one that was taken before may not have the one that is asked
    /// for. Says whether it is.
    #[cold]
    fn is_unwritten(&mut self, place: Place) -> bool {
        let before =
            |(held, bytes): &(Place, Held)| *held == place && matches!(bytes, Held::Unwritten(_));
        if let Some(at) = self.held.iter().position(before) {
            self.held.swap_remove(at);
        }
        let bytes = self.segments.unwritten(place);
        let found = bytes.is_some();
        self.held
            .extend(bytes.map(|bytes| (place, Held::Unwritten(bytes))));
        found
    }

    /// Ranks candidates with an estimate of at most `bound`, all of which have been asked for. Returns how many became
    /// answers.
    async fn rank_all(
        &mut self,
        frontier: &Frontier,
        places: std::ops::Range<usize>,
        bound: f32,
        ranking: &mut Ranking<'_>,
    ) -> Result<usize, Error> {
        let mut came_in = 0;
        for key in places.filter_map(|place| frontier.get(place)) {
            if distance_of(key) > bound {
                continue;
            }
            let node = node_of(key);
            let place = self.segments.place_of(node);
            while self.awaited.contains(&place) {
                let (segment, done) = self.next().await;
                self.open(segment, done)?;
            }
            came_in += usize::from(self.rank(key, place, ranking)?);
        }
        Ok(came_in)
    }

    fn rank(&mut self, key: u64, place: Place, ranking: &mut Ranking<'_>) -> Result<bool, Error> {
        let segment = self.segments.get(place.segment);
        let bytes = match self.held.iter().find(|(held, _)| *held == place) {
            Some((_, held)) => held.bytes(),
            // It was asked for, so it is held or resident.
            None => segment.resident.get(place.page).unwrap_or_default(),
        };
        let page = segment.view(bytes, place.page, false)?;
        let vector = &mut self.vector;
        let id = self.timer.time(Part::Vectors, || {
            segment.vector(node_of(key), place.page, &page, vector)
        })?;
        Ok(ranking.rank(key, id, &self.vector))
    }

    /// The next page of any segment.
    async fn next(&mut self) -> (usize, Completion) {
        let start = self.timer.start();
        // One sleep for the whole batch, if it comes through one door.
        let due = self.due;
        let mut busy = self
            .lanes
            .iter_mut()
            .flatten()
            .filter(|lane| lane.in_flight() > 0);
        if let (Some(lane), None) = (busy.next(), busy.next()) {
            lane.need(due.clamp(1, lane.in_flight()));
        }
        let done = poll_fn(|cx| {
            for (segment, lane) in self.lanes.iter_mut().enumerate() {
                let Some(lane) = lane.as_mut().filter(|lane| lane.in_flight() > 0) else {
                    continue;
                };
                if let Poll::Ready(done) = lane.poll_next(cx) {
                    return Poll::Ready((segment, done));
                }
            }
            Poll::Pending
        })
        .await;
        self.timer.stop(Part::Reads, start);
        done
    }

    fn open(&mut self, segment: usize, done: Completion) -> Result<(), Error> {
        let place = Place {
            segment,
            page: done.tag,
        };
        let block = done.result?;
        if self.check {
            let segment = self.segments.get(segment);
            segment.view(&block, place.page, true)?;
        }
        if let Some(at) = self.awaited.iter().position(|awaited| *awaited == place) {
            self.awaited.remove(at);
            self.due -= usize::from(at < self.due);
        }
        self.held.push((place, Held::Read(block)));
        Ok(())
    }
}
