//! Ends a search early, when the search expects that no remaining candidate changes the results.
//!
//! ```text
//!   distance ─────────────────────────────────────────────────────────────>
//!      results so far      k-th          bound              candidates that are left
//!      x  x x  x  x x x  x x│             │    u    u  u      u   u  u
//!                           │<─ slack ───>│
//! ```
//!
//! A search with the list size L expands at least L nodes, and the last of these nodes hardly ever
//! lead to a result. A candidate is *without promise* if its estimated distance is beyond the
//! bound: the k-th distance so far plus some standard deviations of the codes' error (*slack*).
//! When all remaining candidates are without promise, the search ends.
//!
//! A query measures the error on the nodes that it has expanded. With [`PER_DOUBLING`], a larger L
//! still gives a higher recall. Each read in flight lowers the bound, because the read may find a
//! nearer node.
//!
//! - If codes are beside lists, some keys are exact. Exact keys have a bound of their own
//!   ([`Bounds`]).
//! - Vectors that wait for a merge are ranked before the walk, and do not count for the k-th
//!   distance.
//! - If vectors are apart from lists, prefetched vectors are ranked as they arrive
//!   ([`Reranker::rank_arrived`](super::rerank::Reranker::rank_arrived)).
//! - A candidate list with space for all nodes is expanded as a whole.
//! - With a recall target, the k-th distance so far decides how many candidates are expanded
//!   ([`recall`](crate::recall)). If vectors are apart from lists, the k-th smallest estimate in
//!   the candidate list decides.

use std::collections::BinaryHeap;

use super::depth::Depth;
use super::ranking::{CodeError, LEAST};
use crate::frontier::{Bounds, distance_of, key};

/// The slack in standard deviations: `AT_K` with the list size k, `PER_DOUBLING` more with each
/// doubling of the list size, and `PER_READ` less with each read in flight.
const AT_K: f32 = -0.5;
const PER_DOUBLING: f32 = 1.5;
const PER_READ: f32 = 0.5;

const RESERVED: usize = 1 << 12;

#[derive(Debug, Default)]
pub(crate) struct Promise {
    ends: Ends,
    /// The slack in standard deviations, or `None` if lack of promise does not end this query.
    slack: Option<f32>,
    depth: Option<Depth>,
    depth_by_code: Option<Depth>,
    k: usize,
    expanded: usize,
    error: CodeError,
    /// The keys of the k smallest exact distances, with the largest key on top of the heap.
    nearest: BinaryHeap<u64>,
    limit: f32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Ends {
    #[default]
    WithItsList,
    WithoutPromise,
    /// The recall target and the results' distances decide how many nearest candidates are
    /// expanded.
    AtDepth(Depth),
    /// As `AtDepth`, but by the estimates of the nearest candidates, because exact distances are
    /// known only after the walk.
    AtDepthByCode(Depth),
}

impl Promise {
    pub(crate) fn new(ends: Ends) -> Self {
        Self {
            ends,
            ..Self::default()
        }
    }

    pub(crate) fn begin(&mut self, k: usize, list: usize, nodes: u64) {
        let has_room_for_all = list as u64 >= nodes;
        (self.slack, self.depth, self.depth_by_code) = match self.ends {
            _ if has_room_for_all => (None, None, None),
            Ends::WithItsList => (None, None, None),
            Ends::WithoutPromise => (Some(slack(k, list)), None, None),
            Ends::AtDepth(depth) => (None, Some(depth), None),
            Ends::AtDepthByCode(depth) => (None, None, Some(depth)),
        };
        self.k = k;
        self.expanded = 0;
        self.error = CodeError::default();
        self.nearest.clear();
        if self.is_on() {
            self.nearest.reserve(k.min(RESERVED) + 1);
        }
        self.limit = f32::INFINITY;
    }

    /// The number of nearest candidates to expand, if the k-th estimate decides. `kth` returns this
    /// estimate.
    #[inline]
    pub(crate) fn depth_by_code(&self, kth: impl FnOnce() -> f32) -> Option<usize> {
        let depth = self.depth_by_code.as_ref()?;
        Some(depth.of(kth()))
    }

    /// Whether the search needs exact distances during the walk.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.slack.is_some() || self.depth.is_some()
    }

    /// The number of nearest candidates to expand, or `None` for the whole list.
    #[inline]
    pub(crate) fn depth(&self) -> Option<usize> {
        let depth = self.depth.as_ref()?;
        Some(match self.expanded < self.k {
            true => depth.most(),
            false => depth.of(self.kth().min(self.limit)),
        })
    }

    fn kth(&self) -> f32 {
        match self.nearest.peek() {
            Some(&farthest) if self.nearest.len() == self.k => distance_of(farthest),
            _ => f32::INFINITY,
        }
    }

    /// Bounds the k-th distance from above. `kth` comes from distinct nodes that may all be
    /// results, and that the walk may still report.
    pub(crate) fn limit(&mut self, kth: Option<f32>) {
        self.limit = kth.unwrap_or(f32::INFINITY).min(f32::INFINITY);
    }

    #[inline]
    pub(crate) fn expanded(&mut self) {
        self.expanded += 1;
    }

    /// Records the exact distance of a possible result. The caller reports each node once.
    pub(crate) fn met(&mut self, distance: f32) {
        self.nearest.push(key(distance, 0));
        if self.nearest.len() > self.k {
            self.nearest.pop();
        }
    }

    /// Records an expanded node that does not match the filter, because the depth was measured
    /// among all vectors.
    pub(crate) fn passed(&mut self, estimate: f32) {
        if self.depth.is_some() {
            self.met(estimate + self.error.mean());
        }
    }

    pub(crate) fn passed_exactly(&mut self, distance: f32) {
        if self.depth.is_some() {
            self.met(distance);
        }
    }

    /// Records the error of a node's code: the exact distance minus the estimate.
    #[inline]
    pub(crate) fn learn(&mut self, error: f32) {
        self.error.add(error);
    }

    /// The distances up to which candidates have promise, or `None` if all candidates have promise.
    #[inline]
    pub(crate) fn bounds(&self, on_their_way: usize) -> Option<Bounds> {
        let slack = self.slack?;
        if self.expanded < self.k || self.error.count() < LEAST {
            return None;
        }
        let kth = self.kth();
        let slack = (slack - PER_READ * on_their_way as f32).max(0.0);
        let exact = kth.min(self.limit) + slack * self.error.deviation();
        let estimated = exact - self.error.mean();
        // There is no bound if an error overflowed, or if fewer than k distances are known.
        let known = exact.is_finite() && estimated.is_finite();
        known.then_some(Bounds { estimated, exact })
    }
}

/// The slack in standard deviations for the list size `list`.
fn slack(k: usize, list: usize) -> f32 {
    let doublings = (list.max(1) as f32 / k.max(1) as f32).log2();
    (AT_K + PER_DOUBLING * doublings).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// k is 2 and the list size 8, so the slack is 2.5 deviations. The errors have mean 4 and
    /// deviation 2.
    fn learned() -> Promise {
        let mut promise = Promise::new(Ends::WithoutPromise);
        promise.begin(2, 8, 9);
        for error in [2.0, 6.0, 2.0, 6.0, f32::NAN, 2.0, 6.0, 2.0, 6.0] {
            promise.learn(error);
        }
        promise
    }

    fn are(promise: &Promise, on_their_way: usize, estimated: f32, exact: f32) -> bool {
        promise.bounds(on_their_way).is_some_and(|bounds| {
            (bounds.estimated - estimated).abs() < 1e-4 && (bounds.exact - exact).abs() < 1e-4
        })
    }

    #[test]
    fn what_is_beyond_some_deviations_has_no_promise() {
        let mut promise = learned();
        for _ in 0..2 {
            promise.expanded();
        }
        for distance in [30.0, 10.0] {
            assert_eq!(promise.bounds(0), None);
            promise.met(distance);
        }
        assert!(are(&promise, 0, 31.0, 35.0), "{promise:?}");
        promise.met(20.0);
        assert!(are(&promise, 0, 21.0, 25.0), "{promise:?}");
        assert!(are(&promise, 1, 20.0, 24.0), "{promise:?}");
        assert!(are(&promise, 5, 16.0, 20.0), "{promise:?}");
        assert!(are(&promise, 500, 16.0, 20.0), "{promise:?}");
        promise.limit(Some(15.0));
        assert!(are(&promise, 5, 11.0, 15.0), "{promise:?}");
        promise.limit(Some(f32::NAN));
        assert!(are(&promise, 5, 16.0, 20.0), "{promise:?}");
    }

    #[test]
    fn k_nodes_are_expanded_whatever_is_known() {
        let mut promise = learned();
        promise.limit(Some(15.0));
        promise.met(1.0);
        promise.met(2.0);
        promise.expanded();
        assert_eq!(promise.bounds(0), None);
        promise.expanded();
        assert!(are(&promise, 0, 3.0, 7.0), "{promise:?}");
        promise.begin(2, 8, 9);
        for _ in 0..2 {
            promise.expanded();
            promise.met(1.0);
        }
        assert_eq!(promise.bounds(0), None);
    }

    #[test]
    fn nodes_that_do_not_match_show_how_far_the_walk_has_come() {
        let depth = Depth::line(&[(10.0, 20.0), (30.0, 40.0)]);
        let mut promise = Promise::new(Ends::AtDepth(depth));
        promise.begin(2, 40, 100);
        for _ in 0..2 {
            promise.expanded();
        }
        promise.met(30.0);
        // Only one of the two distances is known, so the depth is the largest.
        assert_eq!(promise.depth(), Some(40));
        promise.learn(4.0);
        promise.passed(16.0);
        assert_eq!(promise.depth(), Some(40));
        // The second smallest distance is 20: the estimate 16, plus the mean error 4 of the codes.
        promise.passed_exactly(5.0);
        assert_eq!(promise.depth(), Some(30));
        // A search without a depth ignores nodes that do not match the filter.
        let mut promise = learned();
        promise.passed_exactly(5.0);
        promise.passed(5.0);
        assert_eq!(promise.kth(), f32::INFINITY);
    }

    #[test]
    fn the_list_says_how_many_deviations() {
        assert_eq!(slack(10, 10), 0.0);
        assert_eq!(slack(10, 20), 1.0);
        assert_eq!(slack(10, 40), 2.5);
        assert_eq!(slack(1, 1024), 14.5);
        // Callers refuse such values of k and of the list size.
        assert_eq!(slack(10, 0), 0.0);
        assert!(slack(0, usize::MAX).is_finite());
        let lists = [1, 2, 5, 10, 50, 100, 1_000];
        assert!(lists.map(|list| slack(5, list)).is_sorted());
    }

    #[test]
    fn a_list_with_room_for_all_ends_when_it_ends() {
        for (wanted, list, on) in [(true, 8, true), (true, 9, false), (false, 8, false)] {
            let mut promise = Promise::new(match wanted {
                true => Ends::WithoutPromise,
                false => Ends::WithItsList,
            });
            promise.begin(2, list, 9);
            assert_eq!(promise.is_on(), on, "{wanted} {list}");
            for _ in 0..9 {
                promise.learn(1.0);
                promise.met(1.0);
                promise.expanded();
            }
            assert_eq!(promise.bounds(0).is_some(), on);
        }
    }

    #[test]
    fn what_degenerates_stops_nothing_it_should_not() {
        // All errors are equal, so the deviation is 0.
        let mut promise = Promise::new(Ends::WithoutPromise);
        promise.begin(1, 64, 100);
        for _ in 0..8 {
            assert_eq!(promise.bounds(0), None);
            promise.learn(-3.0);
            promise.met(7.0);
            promise.expanded();
        }
        assert!(are(&promise, 0, 10.0, 7.0), "{promise:?}");
        // The squares of the first two errors overflow, and the mean of the second two overflows.
        for errors in [[1e30, -1e30], [3e38, -3e38]] {
            for list in [1, 64] {
                promise.begin(1, list, 100);
                for error in errors.into_iter().cycle().take(16) {
                    promise.learn(error);
                    promise.met(f32::MAX);
                    promise.expanded();
                }
                assert_eq!(promise.bounds(0), None, "{errors:?} {list}");
            }
        }
        promise.begin(1, 64, 100);
        for _ in 0..16 {
            promise.learn(1.0);
            promise.met(f32::NAN);
            promise.expanded();
        }
        assert_eq!(promise.bounds(0), None);
        promise.met(5.0);
        assert!(are(&promise, 0, 4.0, 5.0), "{promise:?}");
    }
}
