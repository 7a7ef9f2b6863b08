//! Ranking by exact distance: the answers so far, and which nodes are worth ranking.
//!
//! A code's estimate errs. How far is learned as a query goes: every ranked node gives a pair of estimate and exact
//! distance, and their difference has a mean and a deviation. A node whose estimate, corrected by the mean, is more
//! than some deviations above the k-th answer is not worth its vector. That needs no constant of the collection, the metric
//! or the codes.

use stratann_vector::{Element, Kernel, Metric, norm, to_f32};

use super::admission::Admission;
use super::leading::{ByLeading, Leading, LeadingError};
use super::parts::{Part, Timer};
use super::promise::Promise;
use super::results::Nearest;
use crate::frontier::{distance_of, node_of};

/// Deviations of the code's error within which a node may still be an answer, if knowing costs a decoded vector. On
/// photo-sift-100k, 3 ranks two of five nodes of the pages read and loses a ten-thousandth of recall@10; 2 loses a
/// thousandth.
const WORTH_DECODING: f32 = 3.0;
/// The same if knowing costs a read. On package-text with all lists in memory, recall@10 0.971 takes 25 reads with 3,
/// 22.4 with 2 and 20.9 with 1.75, each at its own list size.
pub(crate) const WORTH_READING: f32 = 1.75;
/// Pairs before the error counts as known.
pub(super) const LEAST: u32 = 8;

/// What a candidate is by its vector.
#[derive(Clone, Copy)]
pub(crate) struct Exact {
    pub(crate) distance: f32,
    /// Whether it is an answer for now.
    pub(crate) came_in: bool,
}

/// One query's exact side.
pub(crate) struct Ranking<'a> {
    kernel: Kernel,
    timer: &'a Timer,
    /// The query, in the element type of the index.
    pub(crate) query: Vec<u8>,
    pub(crate) nearest: Nearest,
    /// The nearest by the leading parts of vectors, where these stand beside lists: of those in doubt nobody knows yet whether
    /// they are answers.
    pub(crate) leading: Leading,
    /// Exact distances computed.
    pub(crate) computations: u64,
    error: CodeError,
    /// When the search may end before its list does.
    pub(crate) promise: Promise,
    /// Nodes from this on are not ruled out by their codes, if their vectors are at hand.
    untrusted_from: u32,
    /// The first node of those of which codes say little, and the distance of the nearest of them that was ranked.
    drifted_from: u32,
    nearest_drifted: f32,
    /// What may be an answer.
    admission: Admission<'a>,
    /// The k-th answer is no farther than this, whatever it will be.
    limit: f32,
}

impl<'a> Ranking<'a> {
    /// State for queries of `query_bytes` bytes.
    pub(crate) fn new(
        kernel: Kernel,
        timer: &'a Timer,
        query_bytes: usize,
        admission: Admission<'a>,
    ) -> Self {
        Self {
            kernel,
            timer,
            query: vec![0; query_bytes],
            nearest: Nearest::default(),
            leading: Leading::default(),
            computations: 0,
            error: CodeError::default(),
            promise: Promise::default(),
            untrusted_from: u32::MAX,
            drifted_from: u32::MAX,
            nearest_drifted: f32::INFINITY,
            admission,
            limit: f32::INFINITY,
        }
    }

    /// What may be an answer.
    #[inline]
    pub(crate) fn admission(&self) -> &Admission<'a> {
        &self.admission
    }

    /// Says which codes are trusted: all of the index or none, and of these none of the nodes that came from `drifted_from` on.
    pub(crate) fn trust(&mut self, codes: bool, drifted_from: Option<u32>) {
        self.drifted_from = drifted_from.unwrap_or(u32::MAX);
        self.untrusted_from = match codes {
            true => self.drifted_from,
            false => 0,
        };
    }

    /// Whether an answer is one of the nodes of which codes say little, as far as nodes on storage were ranked.
    pub(crate) fn an_answer_came(&self) -> bool {
        // By leading parts, where these stand beside lists.
        let kth = self.leading.bound().or(self.nearest.bound());
        self.nearest_drifted < f32::INFINITY && kth.is_none_or(|kth| self.nearest_drifted <= kth)
    }

    /// Notes that a node was ranked at a distance.
    #[inline]
    fn met(&mut self, node: u32, distance: f32) {
        if node >= self.drifted_from {
            self.nearest_drifted = self.nearest_drifted.min(distance);
        }
    }

    /// From the next query on, a node is no answer.
    pub(crate) fn leave_out(&mut self, node: Option<u32>) {
        self.admission = self.admission.without(node);
    }

    /// Starts a query of which `k` answers are wanted; `query` has been set. Of the nodes that the search starts from,
    /// `estimates` are those by code and `distances` the exact ones, if they are known, nearest first.
    pub(crate) fn begin(&mut self, k: usize, estimates: &[f32], distances: &[f32]) {
        self.nearest.clear(k);
        self.leading.clear(k, self.kernel.dim() + 1);
        self.computations = 0;
        self.nearest_drifted = f32::INFINITY;
        self.error = CodeError::default();
        for (estimate, distance) in estimates.iter().zip(distances) {
            self.error.add(distance - estimate);
        }
        // The seeds' ids are not known: some may be no answers.
        let exact = self.admission.is_of_all();
        let nearest = distances.get(k - 1).filter(|_| exact);
        self.limit = nearest.copied().unwrap_or(f32::INFINITY);
    }

    /// What was known of the nearest when it began was not exact: it is no limit.
    pub(crate) fn begin_without_limit(&mut self) {
        self.limit = f32::INFINITY;
    }

    /// Ranks a candidate by the vector of its node. `None` if it may be no answer.
    #[inline]
    pub(crate) fn rank(&mut self, key: u64, id: u64, vector: &[u8]) -> Option<Exact> {
        if !self.admission.admits(id, node_of(key)) {
            return None;
        }
        let Self { kernel, query, .. } = self;
        let distance = self
            .timer
            .time(Part::Exact, || kernel.distance(query, vector));
        self.computations += 1;
        self.error.add(distance - distance_of(key));
        self.met(node_of(key), distance);
        let came_in = self.nearest.offer(id, distance);
        Some(Exact { distance, came_in })
    }

    /// Ranks a candidate by the leading part of its vector, and notes that what its code says is so far off, if it has a `key`;
    /// `vector` is what that part says. Returns the distance of that, unless it may be no answer.
    #[inline]
    pub(crate) fn rank_leading(
        &mut self,
        key: Option<u64>,
        candidate: ByLeading<'_>,
        vector: &[u8],
    ) -> Option<f32> {
        if !self.admission.admits(candidate.id, candidate.node) {
            return None;
        }
        let Self { kernel, query, .. } = self;
        let distance = self
            .timer
            .time(Part::Exact, || kernel.distance(query, vector));
        self.computations += 1;
        if let Some(key) = key {
            self.error.add(distance - distance_of(key));
        }
        self.met(candidate.node, distance);
        self.leading.offer(&ByLeading {
            distance,
            ..candidate
        });
        Some(distance)
    }

    /// The exact distance of a candidate that was in doubt: that in a place of the list by leading parts.
    pub(crate) fn settle(&mut self, place: usize, vector: &[u8]) {
        let Self { kernel, query, .. } = self;
        let distance = self
            .timer
            .time(Part::Exact, || kernel.distance(query, vector));
        self.computations += 1;
        self.leading.settle(place, distance);
    }

    /// What vectors are made of.
    pub(crate) fn element(&self) -> Element {
        self.kernel.element()
    }

    /// How distances by leading parts err.
    pub(crate) fn leading_error(&self) -> LeadingError {
        let (metric, dim) = (self.kernel.metric(), self.kernel.dim());
        let query = match metric {
            Metric::InnerProduct => {
                let mut floats = vec![0.0; dim];
                to_f32(self.kernel.element(), &self.query, &mut floats);
                norm(&floats)
            }
            Metric::L2 | Metric::Cosine => 1.0,
        };
        LeadingError { metric, dim, query }
    }

    /// Offers vectors of which id and distance are known.
    pub(crate) fn offer_all(&mut self, found: &[(u64, f32)]) {
        for &(id, distance) in found {
            self.nearest.offer(id, distance);
        }
    }

    /// Makes answers of those that were ranked by leading parts, when it is known of them what is to be known. Others that were offered
    /// are to be offered again.
    pub(crate) fn answer_leading(&mut self) {
        // What a distance is expected to be may lie below all that there are. Which candidates are answers is settled by then.
        let least = match self.kernel.metric() {
            Metric::L2 | Metric::Cosine => 0.0,
            Metric::InnerProduct => f32::NEG_INFINITY,
        };
        self.nearest.clear(self.leading.k());
        for (id, distance) in self.leading.answers().take(self.leading.k()) {
            self.nearest.offer(id, distance.max(least));
        }
    }

    /// Ranks a node of which no code said anything. Returns its distance.
    #[inline]
    pub(crate) fn rank_exactly(&mut self, node: u32, id: u64, vector: &[u8]) -> f32 {
        let Self { kernel, query, .. } = self;
        let distance = self
            .timer
            .time(Part::Exact, || kernel.distance(query, vector));
        self.computations += 1;
        if self.admission.admits(id, node) {
            self.met(node, distance);
            self.nearest.offer(id, distance);
        }
        distance
    }

    /// The largest estimate by code with which a node may still be an answer, if the code errs by at most `spread`
    /// deviations.
    #[inline]
    pub(crate) fn bound(&self, spread: f32) -> f32 {
        if self.error.count < LEAST {
            return f32::INFINITY;
        }
        self.farthest() - self.error.mean + spread * self.error.deviation()
    }

    /// The largest estimates by code with which nodes whose vectors are at hand are worth decoding.
    #[inline]
    pub(crate) fn worth_decoding(&self) -> Worth {
        Worth {
            estimate: self.bound(WORTH_DECODING),
            untrusted_from: self.untrusted_from,
        }
    }

    /// How far the k-th answer is for now, at most.
    fn farthest(&self) -> f32 {
        let bound = self.nearest.bound().or(self.leading.bound());
        bound.unwrap_or(self.limit).min(self.limit)
    }

    /// How many nodes with these estimates are expected to be nearer than the k-th answer, if the code's errors are distributed
    /// normally.
    pub(crate) fn expected(&self, estimates: impl Iterator<Item = f32>) -> f64 {
        let (nearer, deviation) = (self.farthest() - self.error.mean, self.error.deviation());
        let chance = |estimate: f32| match nearer - estimate {
            above if above >= 0.0 => 1.0,
            below => tail(f64::from(-below / deviation)),
        };
        estimates.map(chance).sum()
    }
}

/// Which nodes are worth decoding whose vectors are at hand.
///
/// Of codes that tell no two vectors apart every estimate is about the mean of all. A first answer that is near then puts the bound below
/// each of them, and the nearest would be left out though its page was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Worth {
    estimate: f32,
    /// Nodes from this on are, whatever their estimate is.
    untrusted_from: u32,
}

impl Worth {
    /// Whether a node is of which the code says that it is so far.
    #[inline]
    pub(crate) fn admits(self, node: u32, estimate: f32) -> bool {
        estimate <= self.estimate || node >= self.untrusted_from
    }
}

/// The chance that a normally distributed number is more than `x` deviations above its mean, for an `x` from 0 on: the approximation by
/// Karagiannidis and Lioumpas (2007), within a sixteenth up to 3.
fn tail(x: f64) -> f64 {
    const SCALE: f64 = 1.135;
    const DECAY: f64 = 1.4;
    match x {
        x if x < 30.0 => {
            let x = x.max(1e-6);
            let of_x = (-x * x / 2.0).exp() / (SCALE * std::f64::consts::TAU.sqrt() * x);
            (1.0 - (-DECAY * x).exp()) * of_x
        }
        // Also of what is no number, as of a distance that overflowed.
        _ => 0.0,
    }
}

/// Mean and deviation of exact distance minus estimate, by Welford's recurrence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CodeError {
    count: u32,
    mean: f32,
    squares: f32,
}

impl CodeError {
    /// Pairs that it was learned from.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    #[inline]
    pub(super) fn mean(&self) -> f32 {
        self.mean
    }

    #[inline]
    pub(super) fn add(&mut self, error: f32) {
        // An estimate that overflowed says nothing of the others.
        if !error.is_finite() {
            return;
        }
        self.count += 1;
        let off = error - self.mean;
        self.mean += off / self.count as f32;
        self.squares += off * (error - self.mean);
    }

    #[inline]
    pub(super) fn deviation(&self) -> f32 {
        (self.squares / self.count as f32).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_normal_distribution_s() {
        for (x, of_x) in [
            (0.0, 0.5),
            (1.0, 0.158_66),
            (1.75, 0.040_06),
            (3.0, 0.001_35),
        ] {
            assert!((tail(x) / of_x - 1.0).abs() < 0.06, "{x}: {}", tail(x));
        }
        assert_eq!([f64::INFINITY, f64::NAN, 100.0].map(tail), [0.0; 3]);
    }

    #[test]
    fn error_has_mean_and_deviation() {
        let mut error = CodeError::default();
        for value in [1.0, 3.0, 5.0, 7.0] {
            error.add(value);
        }
        assert_eq!(error.mean, 4.0);
        assert!((error.deviation() - 5f32.sqrt()).abs() < 1e-6);
    }
}
