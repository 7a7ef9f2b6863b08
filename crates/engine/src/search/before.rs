//! The filter strategy *before*: finds the nearest nodes of a given set without a walk.
//!
//! ```text
//!   nodes ──codes──> the nearest, ──┬─ the first ─vectors─> results, and the error of codes <─┐
//!                    a few times k  └─ some more ── within the error? ──vectors───────────────┘
//! ```
//!
//! The rounds end when no single vector is worth a read, and few results are expected among all
//! unread vectors. If codes are not in memory, or hardly distinguish the nodes, or if too few
//! results were found, all vectors are read ([`scan`](super::scan)). So the search finds k results
//! whenever k vectors match.

use std::collections::HashSet;

use stratann_tier::GrowingBytes;
use stratann_vector::{DistanceTable, Element, LowCodes, Metric, Reduction, normalize, to_f32};

use super::leading::ByLeading;
use super::ranking::{LEAST as KNOWN, Ranking, WORTH_READING};
use super::scan::{Everything, Scan, let_others};
use crate::filter::NodeSet;
use crate::frontier::{distance_of, key, node_of};
use crate::stores::{CodeParts, NodePages};
use crate::{Codebook, Error};

/// The number of vectors beyond k that are read before the search relies on the measured error of
/// codes.
pub(super) const HEAD: usize = KNOWN as usize;
/// The least number of vectors of a further round. Rounds are short, because each nearer result
/// leaves fewer nodes worth a read.
const AT_ONCE: usize = 16;
/// Each later round reads as many vectors as all earlier rounds together, divided by this number,
/// but at least `AT_ONCE`.
const AT_ONCE_OF: usize = 8;
/// The number of nodes that remain after the comparison by code: `SHARES` times the list size, and
/// at least `LEAST`. If these nodes do not suffice, `MORE` times as many.
const SHARES: usize = 4;
const LEAST: usize = 256;
const MORE: usize = 4;
/// The rounds end when at most this share of the k results is expected among unread nodes.
const MISSED: f64 = 0.05;
/// The number of codes that are compared at once, and the number of such pieces between two yields.
pub(super) const PIECE: usize = 1 << 10;
const PIECES: usize = 16;

pub(super) struct ByCode<'s, 'a> {
    pub(super) table: &'s mut DistanceTable,
    pub(super) codebook: &'a Codebook,
    pub(super) metric: Metric,
    pub(super) codes: &'a GrowingBytes,
    pub(super) code_parts: Option<CodeParts<'a>>,
}

/// Estimates of some nodes, and scratch space to compute them.
#[derive(Default)]
pub(super) struct Scores {
    pub(super) scores: Vec<f32>,
    joined: Vec<u8>,
    places: Vec<u32>,
}

impl ByCode<'_, '_> {
    /// Sets the query.
    pub(super) fn fill(&mut self, query: &[u8], element: Element) {
        let mut floats = vec![0.0; query.len() / element.size()];
        to_f32(element, query, &mut floats);
        if self.metric.reduction() == Reduction::Normalised {
            normalize(&mut floats);
        }
        self.codebook.table(self.metric, &floats, self.table);
    }

    /// Computes the estimates of `nodes`.
    pub(super) fn score(&mut self, nodes: &[u32], into: &mut Scores) {
        let Scores {
            scores,
            joined,
            places,
        } = into;
        scores.resize(nodes.len(), 0.0);
        match self.code_parts {
            None => self.table.score(self.codes, nodes, scores),
            Some(parts) if parts.low_codes() == LowCodes::Separate => {
                self.table.score(parts.rest, nodes, scores);
            }
            Some(parts) => {
                places.extend(places.len() as u32..nodes.len() as u32);
                parts.join(nodes, joined);
                self.table.score(joined, &places[..nodes.len()], scores);
                parts.correct(nodes, scores);
            }
        }
    }

    /// The keys of the `most` nodes that are nearest to a query by code, nearest first.
    async fn nearest(
        &mut self,
        query: &[u8],
        element: Element,
        nodes: &NodeSet,
        most: usize,
    ) -> Vec<u64> {
        self.fill(query, element);
        let mut best = Best::new(most);
        let (mut piece, mut scores) = (Vec::with_capacity(PIECE), Scores::default());
        let mut nodes = nodes.iter();
        let mut pieces = 0;
        loop {
            piece.clear();
            piece.extend(nodes.by_ref().take(PIECE));
            if piece.is_empty() {
                return best.into_sorted();
            }
            self.score(&piece, &mut scores);
            for (&node, &score) in piece.iter().zip(&scores.scores) {
                best.offer(key(score, node));
            }
            pieces += 1;
            if pieces % PIECES == 0 {
                // The comparison waits for no read, so other queries of the thread run only during
                // this call.
                let_others().await;
            }
        }
    }
}

pub(super) struct Best {
    keys: Vec<u64>,
    most: usize,
    bound: u64,
}

impl Best {
    pub(super) fn new(most: usize) -> Self {
        Self {
            keys: Vec::new(),
            most: most.max(1),
            bound: u64::MAX,
        }
    }

    pub(super) fn offer(&mut self, key: u64) {
        if key < self.bound {
            self.keys.push(key);
            if self.keys.len() == 2 * self.most {
                self.cut();
            }
        }
    }

    fn cut(&mut self) {
        if self.keys.len() > self.most {
            self.bound = *self.keys.select_nth_unstable(self.most - 1).1;
            self.keys.truncate(self.most);
        }
    }

    pub(super) fn into_sorted(mut self) -> Vec<u64> {
        self.cut();
        self.keys.sort_unstable();
        self.keys
    }
}

struct Left {
    /// The keys of these nodes by code, nearest first.
    keys: Vec<u64>,
    /// For each vector, its segment if vectors are apart from lists, and its page.
    pages: Vec<(usize, u64)>,
    /// The estimate of the farthest node. It does not change when nodes are taken.
    last: f32,
}

impl Left {
    /// Takes the first `count` nodes, and all other nodes on the same pages, which cost no further
    /// read.
    fn take(&mut self, count: usize) -> Vec<u64> {
        let wanted: HashSet<(usize, u64)> = self.pages[..count].iter().copied().collect();
        let mut taken = Vec::with_capacity(count);
        let mut at = self.pages.iter();
        self.keys.retain(|&key| {
            let takes = at.next().is_some_and(|page| wanted.contains(page));
            if takes {
                taken.push(key);
            }
            !takes
        });
        self.pages.retain(|page| !wanted.contains(page));
        taken
    }

    /// The expected number of results among these nodes and `others` more nodes, which are at least
    /// as far as the last.
    fn expected(&self, ranking: &Ranking<'_>, others: u64) -> f64 {
        let estimates = self.keys.iter().map(|&key| distance_of(key));
        ranking.expected(estimates) + others as f64 * ranking.expected(std::iter::once(self.last))
    }
}

impl<N: NodePages> Everything<'_, '_, N> {
    pub(super) async fn find_by_code(&mut self, nodes: &NodeSet, list: usize) -> Result<(), Error> {
        let k = self.ranking.leading.k();
        let element = self.ranking.element();
        let Some(by_code) = &mut self.by_code else {
            return self.find_all().await;
        };
        let all = nodes.len();
        let mut kept = LEAST.max(SHARES * list.max(k));
        let keys = by_code
            .nearest(&self.ranking.query, element, nodes, kept)
            .await;
        self.counters.distance_computations += all;
        let mut left = self.left(keys);
        let (mut looked_at, mut step) = (0, k + HEAD);
        loop {
            let bound = self.ranking.bound(WORTH_READING);
            let mut within = left.keys.partition_point(|&key| distance_of(key) <= bound);
            if within == 0 {
                // No single node is worth a read, but all remaining nodes together may be.
                let others = all.saturating_sub(kept as u64);
                if left.expected(self.ranking, others) <= MISSED * k as f64 {
                    break;
                }
                if left.keys.is_empty() {
                    // Codes hardly distinguish the remaining nodes.
                    let Some(by_code) = self.by_code.as_mut().filter(|_| others > 0) else {
                        break;
                    };
                    let mut keys = by_code
                        .nearest(&self.ranking.query, element, nodes, MORE * kept)
                        .await;
                    self.counters.distance_computations += all;
                    left = self.left(keys.split_off(kept.min(keys.len())));
                    kept *= MORE;
                }
                within = left.keys.len();
            }
            let taken = left.take(within.min(step));
            self.rank(&taken).await?;
            looked_at += taken.len();
            step = AT_ONCE.max(looked_at / AT_ONCE_OF);
        }
        if N::PARTS {
            self.scan
                .settle(self.pages, self.ranking, &mut self.counters)
                .await?;
        }
        self.counters.distance_computations += std::mem::take(&mut self.ranking.computations);
        if self.ranking.nearest.found().len() < k && (looked_at as u64) < all {
            return self.find_all().await;
        }
        Ok(())
    }

    fn left(&self, keys: Vec<u64>) -> Left {
        Left {
            pages: keys.iter().map(|&key| self.page_of(key)).collect(),
            last: keys.last().map_or(f32::INFINITY, |&key| distance_of(key)),
            keys,
        }
    }

    fn page_of(&self, key: u64) -> (usize, u64) {
        let node = node_of(key);
        let segments = &self.scan.index.search_stores().segments;
        match segments.as_ref().filter(|_| !N::PARTS) {
            Some(segments) => {
                let place = segments.place_of(node);
                (place.segment, place.page)
            }
            None => (0, self.pages.page_of(node)),
        }
    }

    async fn rank(&mut self, keys: &[u64]) -> Result<(), Error> {
        if keys.is_empty() {
            return Ok(());
        }
        let nodes: NodeSet = keys.iter().map(|&key| node_of(key)).collect();
        let mut by_node: Vec<u64> = keys.to_vec();
        by_node.sort_unstable_by_key(|&key| node_of(key));
        let Self {
            scan,
            pages,
            ranking,
            counters,
            ..
        } = self;
        let scan = Scan {
            among: Some(&nodes),
            ..*scan
        };
        let mut each = |node: u32, id: u64, vector: &[u8], part: &[u8]| {
            let Ok(at) = by_node.binary_search_by_key(&node, |&key| node_of(key)) else {
                return;
            };
            if N::PARTS {
                let candidate = ByLeading {
                    node,
                    id,
                    distance: 0.0,
                    part,
                    error: pages.error(node, part),
                };
                ranking.rank_leading(Some(by_node[at]), candidate, vector);
            } else {
                ranking.rank(by_node[at], id, vector);
            }
        };
        scan.each_vector(*pages, counters, &mut each).await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_least_keys_are_kept(keys in prop::collection::vec(any::<u64>(), 0..200), most in 1usize..20) {
            let mut best = Best::new(most);
            keys.iter().for_each(|&key| best.offer(key));
            let mut expected = keys;
            expected.retain(|&key| key < u64::MAX);
            expected.sort_unstable();
            expected.truncate(most);
            prop_assert_eq!(best.into_sorted(), expected);
        }
    }
}
