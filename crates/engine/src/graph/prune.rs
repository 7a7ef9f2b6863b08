//! Robust prune: which of many candidates become a node's neighbours.
//!
//! ```text
//!        c            s was chosen (nearer to p than c). c is left out when going through s is shorter by a margin:
//!       / \
//!      /   \             alpha * d(s, c) <= d(p, c)
//!     p ─── s
//! ```
//!
//! The distances are *squared* Euclidean, and alpha applies to them directly, as in DiskANN: alpha = 1.2 is a margin of
//! 1.095 on true distances. Candidates are tried nearest first, at alpha = 1 and then, while slots are free, at the full
//! alpha, so that the most diverse edges get in first when the degree is the limit.

use super::greedy::Candidate;
use super::points::Points;

/// How many chosen neighbours a candidate is compared with at once: most candidates fall at the first few.
const CHUNK: usize = 8;

/// What a prune aims at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    /// At most so many neighbours.
    pub(super) degree: usize,
    /// Margin on squared distances, at least 1.
    pub(super) alpha: f32,
    /// Fill free slots with the nearest candidates that were left out. (A round at a larger margin before that cost CPU time
    /// and gained nothing on a million rows.)
    pub(super) saturate: bool,
}

/// One thread's scratch for pruning.
pub(super) struct Pruner {
    /// The candidates: the caller fills it, [`prune`](Pruner::prune) sorts it and removes duplicates.
    pub(super) pool: Vec<Candidate>,
    chosen: Vec<u32>,
    /// For each candidate the largest d(p, c) / d(s, c) seen, and the number of chosen neighbours it was compared with.
    factors: Vec<(f32, u32)>,
    /// Distances computed by all prunes so far.
    pub(super) computed: u64,
}

impl Pruner {
    /// Empty scratch.
    pub(super) fn new() -> Pruner {
        Pruner {
            pool: Vec::new(),
            chosen: Vec::new(),
            factors: Vec::new(),
            computed: 0,
        }
    }

    /// Chooses the neighbours of `node` from the pool: diverse ones nearest first, then, if the rule saturates, the fill.
    pub(super) fn prune(&mut self, points: &Points<'_>, node: u32, rule: &Rule) -> &[u32] {
        self.pool.sort_unstable_by(Candidate::order);
        self.pool.dedup_by_key(|candidate| candidate.id);
        self.pool.retain(|candidate| candidate.id != node);
        self.chosen.clear();
        self.factors.clear();
        self.factors.resize(self.pool.len(), (0.0, 0));
        if std::env::var("ONE").is_err() {
            self.round(points, rule.degree, 1.0);
        }
        if rule.alpha > 1.0 {
            self.round(points, rule.degree, rule.alpha);
        }
        if rule.saturate {
            for (candidate, factor) in self.pool.iter().zip(&self.factors) {
                if self.chosen.len() >= rule.degree {
                    break;
                }
                if factor.1 != CHOSEN {
                    self.chosen.push(candidate.id);
                }
            }
        }
        &self.chosen
    }

    fn round(&mut self, points: &Points<'_>, degree: usize, alpha: f32) {
        let mut distances = [0.0; CHUNK];
        for (candidate, (factor, compared)) in self.pool.iter().zip(&mut self.factors) {
            if self.chosen.len() >= degree {
                return;
            }
            let row = points.row(candidate.id);
            while *factor <= alpha && (*compared as usize) < self.chosen.len() {
                let from = *compared as usize;
                let chunk = &self.chosen[from..self.chosen.len().min(from + CHUNK)];
                let distances = &mut distances[..chunk.len()];
                points.distances(row, chunk, distances);
                self.computed += chunk.len() as u64;
                for &mut distance in distances {
                    // Two equal rows: one stands for the other.
                    let ratio = if distance > 0.0 {
                        candidate.distance / distance
                    } else {
                        f32::INFINITY
                    };
                    *factor = factor.max(ratio);
                }
                *compared += chunk.len() as u32;
            }
            if *factor <= alpha {
                self.chosen.push(candidate.id);
                (*factor, *compared) = (f32::INFINITY, CHOSEN);
            }
        }
    }
}

/// Stands in the place of the count of comparisons for a candidate that was chosen.
const CHOSEN: u32 = u32::MAX;
