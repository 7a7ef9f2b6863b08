//! Reports distances from a traversal to [`Promise`](crate::search::promise::Promise), and takes
//! the candidates that have promise.
//!
//! ```text
//!   a node is expanded ──record──> its distance, at once, though whole-page search ranks later
//!   a page is ranked   ──codes elsewhere──> distances of all its nodes, of which some may
//!                                           be in the list by estimate
//!   seeds of the navigation graph ──> their distances are known
//! ```

use super::*;
use crate::frontier::KeyIs;

impl<'a, N: NodePages> Traversal<'a, N> {
    /// Takes the nearest unrequested candidate that has promise, or is within the depth. A
    /// candidate that does not match the filter is taken only at the first positions of the list
    /// ([`Frontier::take_unread_among`]).
    #[inline]
    pub(crate) fn take(&mut self, on_their_way: usize) -> Option<u64> {
        if let Some(bounds) = self.ranking.promise.bounds(on_their_way) {
            return self.frontier.take_unread_within(&bounds);
        }
        let through = self.setting.through;
        let depth = self.depth();
        if let (Some(depth), Some(reranker)) = (depth, &mut self.reranker) {
            reranker.limit_to(depth);
        }
        match depth {
            Some(depth) => self.frontier.take_unread_among(depth, through),
            None if through < 1.0 => self.frontier.take_unread_among(self.length, through),
            None => self.frontier.take_unread(),
        }
    }

    /// With a recall target, the number of nearest candidates to expand.
    #[inline]
    pub(crate) fn depth(&self) -> Option<usize> {
        let promise = &self.ranking.promise;
        let depth = promise.depth();
        depth.or_else(|| promise.depth_by_code(|| self.kth_by_code()))
    }

    /// The k-th smallest estimate in the candidate list. Nodes that do not match a filter count,
    /// because the depth was measured among all vectors.
    fn kth_by_code(&self) -> f32 {
        let (frontier, admission) = (&self.frontier, self.ranking.admission());
        let kth = match admission.nodes() {
            None if frontier.live() < self.k => None,
            None => frontier.behind(0, self.k).checked_sub(1),
            Some(_) => {
                let filtered = |place| {
                    let node = frontier.get(place).map(node_of);
                    node.is_some_and(|node| admission.filters_out(node))
                };
                let counts = |&place: &usize| !frontier.is_refused(place) || filtered(place);
                (0..frontier.len())
                    .filter(counts)
                    .nth(self.k.saturating_sub(1))
            }
        };
        let kth = kth.and_then(|place| frontier.get(place));
        kth.map_or(f32::INFINITY, distance_of)
    }

    /// Prefetches vectors apart from lists with the part of `width` that page reads leave free.
    pub(crate) fn prefetch(
        &mut self,
        width: usize,
        reader: &NodeReader<'a, N>,
    ) -> Result<(), Error> {
        match &mut self.reranker {
            Some(reranker) if !N::PARTS => {
                if self.ranking.promise.is_on() {
                    let Self {
                        frontier,
                        ranking,
                        counters,
                        ..
                    } = self;
                    reranker.rank_arrived(frontier, ranking, counters)?;
                }
                let most = width.saturating_sub(reader.in_flight());
                reranker.prefetch(&self.frontier, most, &mut self.counters)
            }
            _ => Ok(()),
        }
    }

    /// Requests vectors before lists, because early stop needs exact distances soon. Returns the
    /// number of vector reads in flight. The search has as many fewer reads of lists in flight.
    pub(crate) fn prefetch_first(
        &mut self,
        width: usize,
        reader: &NodeReader<'a, N>,
    ) -> Result<usize, Error> {
        if N::VECTORS || !self.ranking.promise.is_on() {
            return Ok(0);
        }
        self.prefetch(width, reader)?;
        Ok(self.reranker.as_ref().map_or(0, Reranker::in_flight))
    }

    /// The seeds are nearest first, and `scores` begins with their estimates.
    pub(super) fn learn_from_seeds(&mut self, seeds: usize, distances: &[f32]) {
        // The ids of seeds are not known, so an excluded vector may be a seed.
        let all = self.ranking.admission().is_of_all();
        let promise = &mut self.ranking.promise;
        let kth = self.k.checked_sub(1).and_then(|kth| distances.get(kth));
        promise.limit(kth.copied().filter(|_| all));
        // If vectors are in the pages, expansions show the error of codes, or keys are exact.
        if !N::VECTORS {
            for (estimate, distance) in self.scores[..seeds].iter().zip(distances) {
                promise.learn(distance - estimate);
            }
        }
    }

    pub(super) fn rank_on_the_path(&mut self, key: u64, record: &Record<'_>) -> Result<(), Error> {
        let distance = self.rank(key, record)?;
        self.note(key, distance);
        Ok(())
    }

    pub(super) fn rank_early(&mut self, key: u64, record: &Record<'_>) -> Result<(), Error> {
        if !N::CODES {
            self.rank_on_the_path(key, record)?;
            self.ranked.push(key);
            return Ok(());
        }
        // The node was ranked together with its page.
        let node = node_of(key);
        let mut shared = self.distances.iter().rev();
        if let Some(&(_, distance)) = shared.find(|&&(shared, _)| shared == node) {
            let may = self.ranking.admission().admits(record.id, node);
            self.note(key, may.then_some(distance));
        }
        Ok(())
    }

    /// Learns once from a candidate's exact distance, unless the candidate is excluded from the
    /// results.
    pub(super) fn note(&mut self, key: u64, distance: Option<f32>) {
        if !self.ranking.promise.is_on() {
            return;
        }
        let Some(distance) = distance else { return };
        let Some(is) = self.frontier.note(key) else {
            return;
        };
        self.ranking.promise.met(distance);
        // An exact key says nothing about the error of codes.
        if is == KeyIs::Estimated {
            self.ranking.promise.learn(distance - distance_of(key));
        }
    }

    /// The distance by code of a node that does not match the filter shows how far the walk has
    /// come.
    #[inline]
    pub(super) fn record_expansion(&mut self, key: u64) {
        self.counters.hops += 1;
        let Self {
            frontier, ranking, ..
        } = self;
        ranking.promise.expanded();
        if ranking.promise.is_on() && ranking.admission().filters_out(node_of(key)) {
            match frontier.note(key) {
                Some(KeyIs::Estimated) => ranking.promise.passed(distance_of(key)),
                Some(KeyIs::Exact) => ranking.promise.passed_exactly(distance_of(key)),
                None => (),
            }
        }
    }

    /// Records the exact distance of a node on a whole page. With `fresh`, the node entered the
    /// list with this distance. Otherwise the expansion of the node knows its key.
    pub(super) fn note_shared(&mut self, node: u32, id: u64, distance: f32, fresh: bool) {
        if !fresh {
            self.distances.push((node, distance));
        } else if self.ranking.admission().admits(id, node) {
            self.ranking.promise.met(distance);
        } else if self.ranking.admission().filters_out(node) {
            self.ranking.promise.passed_exactly(distance);
        }
    }

    /// If `noted` is set, [`Promise`](crate::search::promise::Promise) already has this distance.
    pub(super) fn admit_exactly(
        frontier: &mut Frontier,
        ranking: &Ranking<'_>,
        key: u64,
        noted: bool,
    ) {
        frontier.insert_exact_unless(key, noted, |node| ranking.admission().rules_out(node));
    }
}
