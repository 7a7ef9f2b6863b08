//! Phase 1 of re-ranking, while the walk goes on: vectors of candidates that have been the best for a while are prefetched, and taken off
//! when they come in.
//!
//! Where a search may stop early they are ranked then: it is the only way to learn how near its candidates are before the walk is done.

use super::*;

impl Reranker<'_> {
    /// Notes that a candidate was expanded; `touched` is the first place of the candidate list that it changed.
    pub(crate) fn expanded(&mut self, frontier: &Frontier, touched: usize) {
        self.asked = self.asked.min(touched);
        self.unchanged = if touched < frontier.behind(0, self.head) {
            0
        } else {
            self.unchanged + 1
        };
    }

    /// Reads of vectors that are on their way.
    pub(crate) fn in_flight(&self) -> usize {
        self.awaited.len()
    }

    /// Phase 1: asks for the vectors of the best candidates, if they have been stable, so that at most `most` are on
    /// their way. They start with the reads of the graph.
    pub(crate) fn prefetch(
        &mut self,
        frontier: &Frontier,
        most: usize,
        counters: &mut Counters,
    ) -> Result<(), Error> {
        let waits = self.rerank.ratio > 0.0 || self.unchanged < self.rerank.batch;
        if waits || frontier.live() < self.head {
            return Ok(());
        }
        let before = counters.vector_reads;
        let end = frontier.behind(0, self.head);
        while self.asked < end && self.awaited.len() < most {
            if let Some(key) = frontier.get(self.asked)
                && !frontier.is_refused(self.asked)
            {
                self.ask(node_of(key), counters)?;
            }
            self.asked += 1;
        }
        counters.prefetched += counters.vector_reads - before;
        Ok(())
    }

    /// Takes off what has come in.
    pub(crate) fn take(&mut self) -> Result<(), Error> {
        for segment in 0..self.queues.len() {
            while let Some(queue) = &mut self.queues[segment]
                && let Some(done) = queue.try_next()
            {
                self.open(segment, done)?;
            }
        }
        Ok(())
    }

    /// Ranks candidates of the head whose vectors were prefetched and are here, and that were not ranked before. One that may be no answer
    /// is refused at once.
    pub(crate) fn rank_arrived(
        &mut self,
        frontier: &mut Frontier,
        ranking: &mut Ranking<'_>,
        counters: &mut Counters,
    ) -> Result<(), Error> {
        for at in 0..self.asked {
            let Some(key) = frontier.get(at) else {
                break;
            };
            let (node, known) = (node_of(key), &self.ranked);
            let Err(rank) = known.binary_search_by_key(&key, |&(key, _)| key) else {
                continue;
            };
            let place = self.segments.place_of(node);
            if self.segments.get(place.segment).end <= node {
                self.let_go_of_unwritten(place);
            }
            if frontier.is_refused(at) || self.is_awaited(place) || !self.is_here(place) {
                continue;
            }
            match self.rank(key, place, ranking)? {
                Some(Exact { distance, came_in }) => {
                    // In their order, as at the end of a round: `finish` is not to rank them once more.
                    self.ranked.insert(rank, (key, came_in));
                    self.known = self.ranked.len();
                    counters.reranked += 1;
                    ranking.promise.met(distance);
                    ranking.promise.learn(distance - distance_of(key));
                }
                None => frontier.refuse(key),
            }
        }
        Ok(())
    }
}
