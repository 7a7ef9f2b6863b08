//! Collects the results so far by exact distance, and decides which nodes are worth ranking: nodes
//! whose estimate, corrected by the mean error of codes, is at most some deviations beyond the k-th
//! result.

use stratann_vector::{Element, Kernel, Metric, norm, to_f32};

use super::leading::{ByLeading, Leading, LeadingError};
use super::parts::{Part, Timer};
use super::promise::Promise;
use super::results::Nearest;
use crate::frontier::{distance_of, node_of};
use crate::overlay::Admission;

/// The deviations for nodes in memory. On photo-sift-100k, with 3 deviations, two of five nodes on
/// read pages are decoded, and .0001 of recall@10 is lost. With 2, .001 is lost.
const WORTH_DECODING: f32 = 3.0;
/// The deviations for nodes to read. On package-text with all lists in memory, recall@10 .971 takes
/// 25 reads with 3 deviations, 22.4 with 2 and 20.9 with 1.75.
pub(crate) const WORTH_READING: f32 = 1.75;
/// The number of pairs of estimate and distance after which a query knows the error.
pub(super) const LEAST: u32 = 8;

#[derive(Clone, Copy)]
pub(crate) struct Exact {
    pub(crate) distance: f32,
    pub(crate) came_in: bool,
}

pub(crate) struct Ranking<'a> {
    kernel: Kernel,
    timer: &'a Timer,
    pub(crate) query: Vec<u8>,
    pub(crate) nearest: Nearest,
    pub(crate) leading: Leading,
    pub(crate) computations: u64,
    error: CodeError,
    pub(crate) promise: Promise,
    /// From this node on, a node whose vector is in memory is never ruled out by its code.
    untrusted_from: u32,
    /// The first node that codes hardly distinguish, and the smallest distance of such nodes.
    drifted_from: u32,
    nearest_drifted: f32,
    admission: Admission<'a>,
    limit: f32,
}

impl<'a> Ranking<'a> {
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

    #[inline]
    pub(crate) fn admission(&self) -> &Admission<'a> {
        &self.admission
    }

    pub(crate) fn trust(&mut self, codes: bool, drifted_from: Option<u32>) {
        self.drifted_from = drifted_from.unwrap_or(u32::MAX);
        self.untrusted_from = match codes {
            true => self.drifted_from,
            false => 0,
        };
    }

    /// Whether a node on storage that codes hardly distinguish is among the results.
    pub(crate) fn an_answer_came(&self) -> bool {
        let kth = self.leading.bound().or(self.nearest.bound());
        self.nearest_drifted < f32::INFINITY && kth.is_none_or(|kth| self.nearest_drifted <= kth)
    }

    #[inline]
    fn met(&mut self, node: u32, distance: f32) {
        if node >= self.drifted_from {
            self.nearest_drifted = self.nearest_drifted.min(distance);
        }
    }

    pub(crate) fn leave_out(&mut self, node: Option<u32>) {
        self.admission = self.admission.without(node);
    }

    /// The seeds are nearest first. `estimates` are their distances by code, and `distances` their
    /// exact distances if these are known.
    pub(crate) fn begin(&mut self, k: usize, estimates: &[f32], distances: &[f32]) {
        self.nearest.clear(k);
        self.leading.clear(k, self.kernel.dim() + 1);
        self.computations = 0;
        self.nearest_drifted = f32::INFINITY;
        self.error = CodeError::default();
        for (estimate, distance) in estimates.iter().zip(distances) {
            self.error.add(distance - estimate);
        }
        // The ids of the seeds are unknown, so they give no bound if some nodes may be excluded.
        let exact = self.admission.is_of_all();
        let nearest = distances.get(k - 1).filter(|_| exact);
        self.limit = nearest.copied().unwrap_or(f32::INFINITY);
    }

    pub(crate) fn begin_without_limit(&mut self) {
        self.limit = f32::INFINITY;
    }

    /// Returns `None` if the candidate is excluded from the results.
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

    /// `vector` is decoded from the leading part. If a `key` is given, learns the error of the
    /// candidate's code.
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

    pub(crate) fn settle(&mut self, place: usize, vector: &[u8]) {
        let Self { kernel, query, .. } = self;
        let distance = self
            .timer
            .time(Part::Exact, || kernel.distance(query, vector));
        self.computations += 1;
        self.leading.settle(place, distance);
    }

    pub(crate) fn element(&self) -> Element {
        self.kernel.element()
    }

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

    pub(crate) fn offer_all(&mut self, found: &[(u64, f32)]) {
        for &(id, distance) in found {
            self.nearest.offer(id, distance);
        }
    }

    /// Replaces the results by the nearest candidates by leading parts. Vectors that were offered
    /// before must be offered again.
    pub(crate) fn answer_leading(&mut self) {
        // An expected distance may lie below the smallest possible distance. Clamping changes no
        // order.
        let least = match self.kernel.metric() {
            Metric::L2 | Metric::Cosine => 0.0,
            Metric::InnerProduct => f32::NEG_INFINITY,
        };
        self.nearest.clear(self.leading.k());
        for (id, distance) in self.leading.answers().take(self.leading.k()) {
            self.nearest.offer(id, distance.max(least));
        }
    }

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

    /// The largest estimate of a possible result, if codes err by at most `spread` deviations.
    #[inline]
    pub(crate) fn bound(&self, spread: f32) -> f32 {
        if self.error.count < LEAST {
            return f32::INFINITY;
        }
        self.farthest() - self.error.mean + spread * self.error.deviation()
    }

    #[inline]
    pub(crate) fn worth_decoding(&self) -> Worth {
        Worth {
            estimate: self.bound(WORTH_DECODING),
            untrusted_from: self.untrusted_from,
        }
    }

    fn farthest(&self) -> f32 {
        let bound = self.nearest.bound().or(self.leading.bound());
        bound.unwrap_or(self.limit).min(self.limit)
    }

    /// The expected number of nodes nearer than the k-th result, with normally distributed errors.
    pub(crate) fn expected(&self, estimates: impl Iterator<Item = f32>) -> f64 {
        let (nearer, deviation) = (self.farthest() - self.error.mean, self.error.deviation());
        let chance = |estimate: f32| match nearer - estimate {
            above if above >= 0.0 => 1.0,
            below => tail(f64::from(-below / deviation)),
        };
        estimates.map(chance).sum()
    }
}

/// The nodes in memory that are worth decoding. If codes do not distinguish vectors, one near
/// result would rule out all other nodes, so the codes of nodes from `untrusted_from` on are not
/// trusted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Worth {
    estimate: f32,
    untrusted_from: u32,
}

impl Worth {
    #[inline]
    pub(crate) fn admits(self, node: u32, estimate: f32) -> bool {
        estimate <= self.estimate || node >= self.untrusted_from
    }
}

/// The chance that a normally distributed number is more than `x` deviations above its mean, by
/// Karagiannidis and Lioumpas (2007). The error is less than a sixteenth for `x` from 0 to 3.
fn tail(x: f64) -> f64 {
    const SCALE: f64 = 1.135;
    const DECAY: f64 = 1.4;
    match x {
        x if x < 30.0 => {
            let x = x.max(1e-6);
            let of_x = (-x * x / 2.0).exp() / (SCALE * std::f64::consts::TAU.sqrt() * x);
            (1.0 - (-DECAY * x).exp()) * of_x
        }
        // NaN reaches this arm too, for instance from a distance that overflowed.
        _ => 0.0,
    }
}

/// Mean and standard deviation of exact distance minus estimate, by Welford's recurrence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CodeError {
    count: u32,
    mean: f32,
    squares: f32,
}

impl CodeError {
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
