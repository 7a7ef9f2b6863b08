//! Phase 1 of re-ranking, during the walk: prefetches the vectors of the best candidates. A search
//! that may stop early needs these distances.

use super::*;

impl Reranker<'_> {
    /// `touched` is the first position of the candidate list that changed by an expansion.
    pub(crate) fn expanded(&mut self, frontier: &Frontier, touched: usize) {
        self.asked = self.asked.min(touched);
        self.unchanged = if touched < frontier.behind(0, self.head) {
            0
        } else {
            self.unchanged + 1
        };
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.awaited.len()
    }

    /// Requests the vectors of the best candidates, once these are stable.
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
        let end = self.end_of_head(frontier);
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
                    // The entries stay sorted, so that `finish` does not rank them again.
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
