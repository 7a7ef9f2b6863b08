//! What a traversal tells [`Promise`](crate::search::promise::Promise), and which candidates it takes therefore.
//!
//! ```text
//!   a node is expanded ──record──> its distance     now, though whole-page search ranks when the walk is done
//!   a page is shared   ──codes elsewhere──> distances of all its nodes, of some of which an estimate is in the list
//!   seeds of the navigation graph ──> their distances are known
//! ```

use super::*;
use crate::frontier::KeyIs;

impl<'a, N: NodePages> Traversal<'a, N> {
    /// The nearest candidate that nobody has asked for, while so many reads are on their way: if it has promise, where a search may
    /// stop early, or is among as many as a recall takes.
    #[inline]
    pub(crate) fn take(&mut self, on_their_way: usize) -> Option<u64> {
        if let Some(depth) = self.ranking.promise.depth() {
            return self.frontier.take_unread_among(depth);
        }
        match self.ranking.promise.bounds(on_their_way) {
            None => self.frontier.take_unread(),
            Some(bounds) => self.frontier.take_unread_within(&bounds),
        }
    }

    /// Prefetches vectors, where those are apart, with what the reads of the graph leave of `width`. Where a search may stop early, those
    /// that have come in are ranked.
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

    /// Where vectors are apart and a search may stop early, exact distances are wanted soon: asks for the vectors of the best candidates
    /// before lists are asked for. Returns how many reads of vectors are on their way, and leave the lists so many fewer.
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

    /// Learns from the nodes of the navigation graph that a query starts from, nearest first, the first of `scores` being their estimates.
    pub(super) fn learn_from_seeds(&mut self, seeds: usize, distances: &[f32]) {
        // Some may be no answers, and their ids are not known.
        let all = self.ranking.admission().is_of_all();
        let promise = &mut self.ranking.promise;
        let kth = self.k.checked_sub(1).and_then(|kth| distances.get(kth));
        promise.limit(kth.copied().filter(|_| all));
        // Where vectors are beside lists, they are learned from when they are expanded; and where codes are as well, what is in the list are
        // no estimates.
        if !N::VECTORS {
            for (estimate, distance) in self.scores[..seeds].iter().zip(distances) {
                promise.learn(distance - estimate);
            }
        }
    }

    /// Re-ranking on the path.
    pub(super) fn rank_on_the_path(&mut self, key: u64, record: &Record<'_>) -> Result<(), Error> {
        let distance = self.rank(key, record)?;
        self.note(key, distance);
        Ok(())
    }

    /// Ranks a candidate that is expanded in whole-page search, which otherwise waits until the walk is done.
    pub(super) fn rank_early(&mut self, key: u64, record: &Record<'_>) -> Result<(), Error> {
        if !N::CODES {
            self.rank_on_the_path(key, record)?;
            self.ranked.push(key);
            return Ok(());
        }
        // It was ranked when its page was shared.
        let node = node_of(key);
        let mut shared = self.distances.iter().rev();
        if let Some(&(_, distance)) = shared.find(|&&(shared, _)| shared == node) {
            let may = self.ranking.admission().admits(record.id, node);
            self.note(key, may.then_some(distance));
        }
        Ok(())
    }

    /// Learns from a candidate whose vector says that it is so far, unless it may be no answer or was learned from before.
    pub(super) fn note(&mut self, key: u64, distance: Option<f32>) {
        if !self.ranking.promise.is_on() {
            return;
        }
        let Some(distance) = distance else { return };
        let Some(is) = self.frontier.note(key) else {
            return;
        };
        self.ranking.promise.met(distance);
        // An exact key says nothing of codes.
        if is == KeyIs::Estimated {
            self.ranking.promise.learn(distance - distance_of(key));
        }
    }

    /// Takes the distance of a node whose page was shared, where codes are elsewhere; `fresh` if it was not seen before, and came into
    /// the list with that distance. Otherwise what it is in the list with is known when it is expanded.
    pub(super) fn note_shared(&mut self, node: u32, id: u64, distance: f32, fresh: bool) {
        if !fresh {
            self.distances.push((node, distance));
        } else if self.ranking.admission().admits(id, node) {
            self.ranking.promise.met(distance);
        }
    }

    /// A candidate of which the exact distance is known into the list; `noted` if promise was told of it.
    pub(super) fn admit_exactly(
        frontier: &mut Frontier,
        ranking: &Ranking<'_>,
        key: u64,
        noted: bool,
    ) {
        frontier.insert_exact_unless(key, noted, |node| ranking.admission().rules_out(node));
    }
}
