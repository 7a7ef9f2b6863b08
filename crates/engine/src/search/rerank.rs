//! Re-ranking after the walk: if vectors are stored apart from lists, the search reads the vectors
//! of its candidates after the traversal (DecoupleVS §3.4, "adaptive vector prefetching").
//!
//! ```text
//!   phase 1, during the traversal: the best K + B candidates are unchanged for B expansions
//!            -> the reads of W that the traversal leaves free prefetch their vectors;
//!               arrivals are taken, so that more can be requested
//!   phase 2, after it:   batch 0: these K + B     batch 1: the next B     batch 2: ...
//!            rank batch 0 while batch 1 is read; rank batch 1; then read one batch after another;
//!            the first batch whose share of new results is below the benefit ratio is the last
//! ```
//!
//! The first K + B candidates are the *head*, which replaces the max-heap of the paper. Batch 1 is
//! the first that can end re-ranking. A deleted candidate is replaced by the next of the list.
//! Otherwise a batch of deleted candidates would end re-ranking too early.
//!
//! With [`Rerank::estimate`](crate::Rerank), the k-th result of batch 0 and the error of codes show
//! which other candidates may still be results ([`Ranking::bound`]). The vectors of these
//! candidates are read at once, and re-ranking ends.
//!
//! With a [re-ranking ratio](crate::Rerank::ratio), one batch has this share of the candidate list,
//! and no vector is prefetched (DistVS §3.1, "delayed re-ranking with pruning").
//!
//! Batches are ranked in the order of candidates, so results do not depend on the order of
//! completions.

mod prefetch;

use std::future::poll_fn;
use std::ops::Range;
use std::task::{Context, Poll};

use stratann_tier::{Completion, ReadQueue, Request, Thread};
use stratann_vector::{norm, to_f32};

use super::Counters;
use super::parts::{Part, Timer};
use super::ranking::{Exact, Ranking, WORTH_READING};
use crate::frontier::{Frontier, distance_of, node_of};
use crate::stores::heat::Heat;
use crate::stores::page_source::Bytes;
use crate::stores::vectors::segments::{Extent, Segment, Segments};
use crate::stores::{NodePages, Record};
use crate::{Error, Rerank};

/// The number of candidates that are ranked at a time, if some vectors are deleted.
const PIECE: usize = 64;
/// About the most pages that a query keeps, if it may read many deleted vectors.
const MOST_HELD: usize = 128;

pub(crate) struct Reranker<'a> {
    segments: &'a Segments,
    thread: &'a Thread,
    /// A read queue for each segment, opened at its first use.
    queues: Vec<Option<Box<dyn ReadQueue>>>,
    pub(super) rerank: Rerank,
    exact: bool,
    check: bool,
    timer: &'a Timer,
    heat: Option<&'a Heat>,
    /// The number of candidates in the head: K + B, but at most the list size.
    head: usize,
    /// With a recall target, only so many nearest candidates are ranked, as in a search with a
    /// candidate list of this length.
    most: usize,
    unchanged: usize,
    asked: usize,
    awaited: Vec<Extent>,
    /// The number of pages at the start of `awaited` that the current batch waits for.
    due: usize,
    /// Pages that have arrived. They stay until the end of the query, or until there are too many.
    held: Vec<(Extent, Bytes<'a>)>,
    refused: Vec<u64>,
    /// The ranked candidates, and whether each became a result. The first `known` are from earlier
    /// rounds, sorted by key.
    ranked: Vec<(u64, bool)>,
    known: usize,
    vector: Vec<u8>,
    scratch: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    live: usize,
    came_in: usize,
}

fn worth(frontier: &Frontier, places: Range<usize>, bound: f32) -> impl Iterator<Item = u64> + '_ {
    places
        .filter(|&place| !frontier.is_refused(place))
        .filter_map(|place| frontier.get(place))
        .filter(move |&key| distance_of(key) <= bound)
}

fn tag(place: Extent) -> u64 {
    u64::from(place.pages) << 32 | place.page
}

fn tagged(segment: usize, tag: u64) -> Extent {
    Extent {
        segment,
        page: tag & u64::from(u32::MAX),
        pages: (tag >> 32) as u32,
    }
}

/// The pages must be in `held` or resident in memory.
fn here<'b>(held: &'b [(Extent, Bytes<'_>)], segment: &'b Segment, place: Extent) -> &'b [u8] {
    match held.iter().find(|(held, _)| held.covers(place)) {
        Some((held, bytes)) => held.part(bytes, place),
        None => {
            let resident = segment.resident.run(place.page, place.pages);
            resident.unwrap_or_default()
        }
    }
}

impl<'a> Reranker<'a> {
    /// `check` verifies checksums, and `heat` records which pages are read.
    pub(crate) fn new(
        segments: &'a Segments,
        thread: &'a Thread,
        vector_bytes: usize,
        (rerank, exact): (Rerank, bool),
        check: bool,
        timer: &'a Timer,
        heat: Option<&'a Heat>,
    ) -> Self {
        Self {
            segments,
            thread,
            queues: (0..segments.len()).map(|_| None).collect(),
            rerank,
            exact,
            check,
            timer,
            heat,
            head: 0,
            most: usize::MAX,
            unchanged: 0,
            asked: 0,
            awaited: Vec::new(),
            due: 0,
            held: Vec::new(),
            refused: Vec::new(),
            ranked: Vec::new(),
            known: 0,
            vector: vec![0; vector_bytes],
            scratch: Vec::new(),
        }
    }

    pub(crate) fn begin(&mut self, k: usize, list: usize) {
        // A head longer than the list would never be full.
        let head = match self.rerank.ratio {
            0.0 => k.saturating_add(self.rerank.batch),
            ratio => k.max((list as f64 * ratio) as usize),
        };
        self.head = head.min(list);
        self.most = usize::MAX;
        self.unchanged = 0;
        self.asked = 0;
        self.held.clear();
        self.refused.clear();
        self.ranked.clear();
        self.known = 0;
        self.reset();
    }

    /// Limits the ranking to the `depth` nearest candidates, for this query.
    pub(crate) fn limit_to(&mut self, depth: usize) {
        self.most = depth;
    }

    /// The position after the last candidate that may be ranked.
    fn end(&self, frontier: &Frontier) -> usize {
        frontier.behind(0, self.most)
    }

    /// The position after the next `count` candidates that may be ranked, from `place` on.
    fn behind(&self, frontier: &Frontier, place: usize, count: usize) -> usize {
        let end = self.end(frontier).max(place);
        frontier.behind(place, count).min(end)
    }

    /// The position after the head.
    fn end_of_head(&self, frontier: &Frontier) -> usize {
        frontier.behind(0, self.head.min(self.most))
    }

    pub(crate) fn let_go(&mut self) {
        self.held.clear();
        self.reset();
    }

    pub(crate) fn reset(&mut self) {
        self.awaited.clear();
        for queue in self.queues.iter_mut().flatten() {
            queue.reset();
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(usize, Completion)> {
        for (segment, queue) in self.queues.iter_mut().enumerate() {
            let Some(queue) = queue.as_mut().filter(|queue| queue.in_flight() > 0) else {
                continue;
            };
            if let Poll::Ready(done) = queue.poll_next(cx) {
                return Poll::Ready((segment, done));
            }
        }
        Poll::Pending
    }

    pub(crate) async fn take_all(&mut self) -> Result<(), Error> {
        self.due = self.awaited.len();
        while !self.awaited.is_empty() {
            let (segment, done) = self.next().await;
            self.open(segment, done)?;
        }
        Ok(())
    }

    /// Phase 2 ends when too few candidates become results, or when no candidate is left.
    pub(crate) async fn finish(
        &mut self,
        frontier: &Frontier,
        ranking: &mut Ranking<'_>,
        counters: &mut Counters,
    ) -> Result<(), Error> {
        let head = 0..self.end_of_head(frontier);
        self.ask_all(frontier, head.clone(), f32::INFINITY, counters)?;
        match self.rerank.estimate {
            _ if self.rerank.ratio > 0.0 => {
                self.due = self.awaited.len();
                self.rank_batch(frontier, head, self.head, ranking, counters)
                    .await?;
            }
            true => {
                self.finish_estimated(frontier, head.end, ranking, counters)
                    .await?
            }
            false => {
                self.finish_by_batches(frontier, head, ranking, counters)
                    .await?
            }
        }
        self.ranked.sort_unstable();
        self.known = self.ranked.len();
        Ok(())
    }

    /// Ranks all candidates in doubt, and computes the results. In rare cases, a further round
    /// makes new results exact.
    pub(crate) async fn settle<N: NodePages>(
        &mut self,
        pages: &N,
        ranking: &mut Ranking<'_>,
        counters: &mut Counters,
    ) -> Result<(), Error> {
        let (errors, element) = (ranking.leading_error(), ranking.element());
        let (vector, mut floats) = (&mut self.vector, vec![0.0; errors.dim]);
        ranking.leading.expect(errors, |leading, place| {
            let (node, part) = leading.part(place);
            let vector = pages.vector(node, &Record::of_vector(part), vector)?;
            to_f32(element, vector, &mut floats);
            Ok::<_, Error>(norm(&floats))
        })?;
        let mut doubts = ranking.leading.in_doubt(self.exact);
        while !doubts.is_empty() {
            for piece in doubts.chunks(PIECE) {
                self.settle_all(piece, ranking, counters).await?;
                self.held.clear();
            }
            // If a candidate in doubt proves to be no result, another candidate becomes a result.
            ranking.leading.settled();
            doubts = match self.exact {
                true => ranking.leading.inexact(),
                false => Vec::new(),
            };
        }
        ranking.answer_leading();
        Ok(())
    }

    async fn settle_all(
        &mut self,
        places: &[usize],
        ranking: &mut Ranking<'_>,
        counters: &mut Counters,
    ) -> Result<(), Error> {
        for &place in places {
            self.ask(ranking.leading.part(place).0, counters)?;
        }
        self.take_all().await?;
        for &place in places {
            let (node, part) = ranking.leading.part(place);
            let at = self.segments.place_of(node);
            // If these pages were dirty, they may have been released for another candidate on the
            // same pages.
            if !self.is_here(at) {
                self.ask(node, counters)?;
                self.take_all().await?;
            }
            let segment = self.segments.get(at.segment);
            let page = segment.view(here(&self.held, segment, at), at.page, false)?;
            let (scratch, vector) = (&mut self.scratch, &mut self.vector);
            self.timer.time(Part::Vectors, || {
                segment.vector(node, at.page, &page, part, scratch, vector)
            })?;
            ranking.settle(place, &self.vector);
            counters.reranked += 1;
        }
        if self.held.len() > MOST_HELD {
            self.held.clear();
        }
        Ok(())
    }

    /// Phase 2 as in the paper. The vectors of the candidates at the positions `head` were
    /// requested before.
    async fn finish_by_batches(
        &mut self,
        frontier: &Frontier,
        head: Range<usize>,
        ranking: &mut Ranking<'_>,
        counters: &mut Counters,
    ) -> Result<(), Error> {
        let batch = self.rerank.batch.max(1);
        self.due = self.awaited.len();
        let next = head.end..self.behind(frontier, head.end, batch);
        self.ask_all(frontier, next, f32::INFINITY, counters)?;
        let (_, mut from) = self
            .rank_batch(frontier, head, self.head, ranking, counters)
            .await?;
        loop {
            let places = from..self.behind(frontier, from, batch);
            if places.is_empty() {
                break;
            }
            self.ask_all(frontier, places.clone(), f32::INFINITY, counters)?;
            self.due = self.awaited.len();
            let (outcome, end) = self
                .rank_batch(frontier, places, batch, ranking, counters)
                .await?;
            from = end;
            let share = outcome.came_in as f64 / outcome.live.max(1) as f64;
            if share < self.rerank.benefit && ranking.nearest.is_full() {
                break;
            }
        }
        self.reset();
        Ok(())
    }

    /// Ranks `size` candidates that are not deleted, beginning at the positions `places`. Returns
    /// the position after the last ranked candidate.
    async fn rank_batch(
        &mut self,
        frontier: &Frontier,
        mut places: Range<usize>,
        size: usize,
        ranking: &mut Ranking<'_>,
        counters: &mut Counters,
    ) -> Result<(Outcome, usize), Error> {
        let mut outcome = Outcome::default();
        loop {
            let end = places.end;
            let part = self
                .rank_all(frontier, places, f32::INFINITY, ranking, counters)
                .await?;
            outcome.live += part.live;
            outcome.came_in += part.came_in;
            places = end..self.behind(frontier, end, size.saturating_sub(outcome.live));
            if places.is_empty() {
                return Ok((outcome, end));
            }
            self.ask_all(frontier, places.clone(), f32::INFINITY, counters)?;
            self.due = self.awaited.len();
        }
    }

    /// Phase 2 by the error of codes. The first candidate after the head has the position `from`.
    async fn finish_estimated(
        &mut self,
        frontier: &Frontier,
        mut from: usize,
        ranking: &mut Ranking<'_>,
        counters: &mut Counters,
    ) -> Result<(), Error> {
        self.due = self.awaited.len();
        self.rank_all(frontier, 0..from, f32::INFINITY, ranking, counters)
            .await?;
        // If candidates can be deleted, other candidates replace them, so vectors are read in
        // pieces.
        let piece = match ranking.admission().refused() {
            0 => usize::MAX,
            _ => PIECE,
        };
        let end = self.end(frontier);
        while from < end {
            let to = from.saturating_add(piece).min(end);
            let bound = ranking.bound(WORTH_READING);
            if frontier
                .get(from)
                .is_none_or(|key| distance_of(key) > bound)
            {
                return Ok(());
            }
            self.ask_all(frontier, from..to, bound, counters)?;
            self.due = self.awaited.len();
            self.rank_all(frontier, from..to, bound, ranking, counters)
                .await?;
            from = to;
        }
        Ok(())
    }

    fn ask_all(
        &mut self,
        frontier: &Frontier,
        places: Range<usize>,
        bound: f32,
        counters: &mut Counters,
    ) -> Result<(), Error> {
        for key in worth(frontier, places, bound) {
            self.ask(node_of(key), counters)?;
        }
        Ok(())
    }

    /// Makes sure that the pages of a node's vector are in memory or in flight.
    fn ask(&mut self, node: u32, counters: &mut Counters) -> Result<(), Error> {
        let place = self.segments.place_of(node);
        let segment = self.segments.get(place.segment);
        if segment.end <= node {
            self.let_go_of_unwritten(place);
        }
        if self.is_here(place) || self.is_awaited(place) {
            return Ok(());
        }
        if let Some(heat) = self.heat {
            heat.vectors(place);
        }
        let queue = match &mut self.queues[place.segment] {
            Some(queue) => queue,
            none => none.insert(segment.tier.queue(self.thread)?),
        };
        let (offset, len) = segment.span(place);
        queue.submit(Request {
            tag: tag(place),
            offset,
            len: len as u32,
        })?;
        counters.vector_reads += 1;
        counters.bytes_read += len as u64;
        self.awaited.push(place);
        Ok(())
    }

    /// Releases copies of dirty pages, which lack vectors added later. The index has the current
    /// bytes.
    #[cold]
    fn let_go_of_unwritten(&mut self, place: Extent) {
        self.held
            .retain(|(held, bytes)| !held.covers(place) || !matches!(bytes, Bytes::Unwritten(_)));
    }

    fn is_awaited(&self, place: Extent) -> bool {
        self.awaited.iter().any(|awaited| awaited.covers(place))
    }

    /// Ranks the candidates whose estimates are at most `bound`, by their vectors.
    async fn rank_all(
        &mut self,
        frontier: &Frontier,
        places: Range<usize>,
        bound: f32,
        ranking: &mut Ranking<'_>,
        counters: &mut Counters,
    ) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        for key in worth(frontier, places, bound) {
            if let Some(came_in) = self.came_in_before(key) {
                outcome.live += 1;
                outcome.came_in += usize::from(came_in);
                continue;
            }
            let node = node_of(key);
            let place = self.segments.place_of(node);
            if self.held.len() > MOST_HELD && ranking.admission().refused() > 0 {
                self.held.clear();
            }
            // The page may have been released, or the vector may have moved.
            if !self.is_awaited(place) && !self.is_here(place) {
                self.ask(node, counters)?;
            }
            // A read for another candidate may cover this page too.
            while !self.is_here(place) && self.is_awaited(place) {
                let (segment, done) = self.next().await;
                self.open(segment, done)?;
            }
            let Some(Exact { came_in, .. }) = self.rank(key, place, ranking)? else {
                self.refused.push(key);
                continue;
            };
            self.ranked.push((key, came_in));
            counters.reranked += 1;
            outcome.live += 1;
            outcome.came_in += usize::from(came_in);
        }
        Ok(outcome)
    }

    /// Whether a candidate became a result in an earlier round. `None` if no round ranked it.
    fn came_in_before(&self, key: u64) -> Option<bool> {
        let known = &self.ranked[..self.known];
        let at = known.binary_search_by_key(&key, |&(key, _)| key).ok()?;
        Some(known[at].1)
    }

    fn is_here(&mut self, place: Extent) -> bool {
        if self.held.iter().any(|(held, _)| held.covers(place)) {
            return true;
        }
        match self.segments.in_memory(place) {
            Some(Bytes::Resident(_)) => true,
            // The query holds a dirty page, because the index may write the page and drop it from
            // memory.
            Some(bytes) => {
                self.held.push((place, bytes));
                true
            }
            None => false,
        }
    }

    /// The candidates that were excluded from the results since the last call.
    pub(crate) fn take_refused(&mut self) -> std::vec::Drain<'_, u64> {
        self.refused.drain(..)
    }

    fn rank(
        &mut self,
        key: u64,
        place: Extent,
        ranking: &mut Ranking<'_>,
    ) -> Result<Option<Exact>, Error> {
        let segment = self.segments.get(place.segment);
        let page = segment.view(here(&self.held, segment, place), place.page, false)?;
        let (scratch, vector) = (&mut self.scratch, &mut self.vector);
        let id = self.timer.time(Part::Vectors, || {
            segment.vector(node_of(key), place.page, &page, &[], scratch, vector)
        })?;
        Ok(ranking.rank(key, id, &self.vector))
    }

    async fn next(&mut self) -> (usize, Completion) {
        let start = self.timer.start();
        // If all reads of the batch are in one queue, the task waits once for all of them.
        let due = self.due;
        let mut busy = self
            .queues
            .iter_mut()
            .flatten()
            .filter(|queue| queue.in_flight() > 0);
        if let (Some(queue), None) = (busy.next(), busy.next()) {
            queue.need(due.clamp(1, queue.in_flight()));
        }
        let done = poll_fn(|cx| self.poll(cx)).await;
        self.timer.stop(Part::Reads, start);
        done
    }

    pub(crate) fn open(&mut self, segment: usize, done: Completion) -> Result<(), Error> {
        let place = tagged(segment, done.tag);
        let block = done.result?;
        if self.check {
            let segment = self.segments.get(segment);
            segment.view(&block, place.page, true)?;
        }
        if let Some(at) = self.awaited.iter().position(|awaited| *awaited == place) {
            self.awaited.remove(at);
            self.due -= usize::from(at < self.due);
        }
        self.held.push((place, Bytes::Read(block)));
        Ok(())
    }
}
