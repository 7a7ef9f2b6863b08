//! Ranks candidates by the leading parts of their vectors, and chooses the candidates in doubt.
//!
//! ```text
//!   nearest first    1  2  ..  k-1 | k   k+1 | k+2 ..
//!                      results     | in doubt |   not results
//!                                     <---> 1.5 deviations of the leading parts' error
//!                                           from the middle between k and k + 1
//! ```
//!
//! The trailing parts of all candidates in doubt are read at once. About one in fifteen of the
//! candidates at 1.5 deviations from the middle belongs on the other side. The search assumes that
//! each element is uniformly distributed in the interval (step) of its leading part. From this
//! assumption follow the expectation and the deviation of a distance ([`LeadingError`]).

use std::cmp::Ordering;
use std::num::NonZeroUsize;

use stratann_vector::Metric;

use crate::plan::{BEYOND, CANDIDATE_BYTES};

/// A candidate within this number of deviations from the boundary of the results is in doubt.
const IN_DOUBT: f32 = 1.5;

/// The least number of known exact distances to correct the expected distances.
const LEARNED: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct Ranked {
    /// The distance of the vector that is decoded from the leading part.
    distance: f32,
    node: u32,
    id: u64,
    /// The largest difference of an element from its decoded value.
    error: f32,
    slot: u32,
    bytes: u32,
    exact: Option<f32>,
}

#[derive(Clone, Copy, Debug)]
struct Expected {
    distance: f32,
    deviation: f32,
    place: usize,
    id: u64,
}

const _: () = assert!(CANDIDATE_BYTES == size_of::<Ranked>() + size_of::<Expected>());

/// The nearest candidates of one query by leading parts, nearest first, ties by lower id.
#[derive(Debug, Default)]
pub(crate) struct Leading {
    found: Vec<Ranked>,
    k: usize,
    parts: Vec<u8>,
    slot_bytes: usize,
    expected: Vec<Expected>,
}

#[derive(Clone, Copy)]
pub(crate) struct ByLeading<'a> {
    pub(crate) node: u32,
    pub(crate) id: u64,
    pub(crate) distance: f32,
    pub(crate) part: &'a [u8],
    /// The largest difference of an element from its decoded value. It may be infinite.
    pub(crate) error: f32,
}

#[derive(Clone, Copy)]
pub(crate) struct LeadingError {
    pub(crate) metric: Metric,
    pub(crate) dim: usize,
    /// The length of the query vector, for the inner product.
    pub(crate) query: f32,
}

impl LeadingError {
    /// The expectation and the deviation of a distance, given the distance of a decoded vector
    /// whose elements are off by at most `error`.
    fn of(self, distance: f32, error: f32, length: f32) -> (f32, f32) {
        if !error.is_finite() {
            return (distance, f32::INFINITY);
        }
        // The variance of one element, and of all elements together.
        let variance = error * error / 3.0;
        let all = self.dim as f32 * variance;
        match self.metric {
            Metric::L2 => {
                let squares = self.dim as f32 * error.powi(4) * 4.0 / 45.0;
                let deviation = (4.0 * distance.max(0.0) * variance + squares).sqrt();
                (distance + all, deviation)
            }
            Metric::InnerProduct => (distance, self.query * variance.sqrt()),
            Metric::Cosine => {
                // The unknown differences make the vector longer.
                let longer = (length * length + all).sqrt();
                let expected = 1.0 - (1.0 - distance) * (length / longer);
                (expected, variance.sqrt() / longer)
            }
        }
    }
}

impl Leading {
    pub(crate) fn clear(&mut self, k: usize, slot_bytes: usize) {
        self.found.clear();
        self.expected.clear();
        self.k = k;
        self.slot_bytes = slot_bytes;
    }

    /// A candidate that is already in the list is ignored.
    pub(crate) fn offer(&mut self, candidate: &ByLeading<'_>) {
        let ByLeading {
            node,
            id,
            part,
            error,
            ..
        } = *candidate;
        // `min` turns NaN into infinity, so that the candidate comes last.
        let distance = candidate.distance.min(f32::INFINITY);
        let most = self.k.saturating_add(BEYOND);
        let before = |a: &Ranked| a.distance < distance || (a.distance == distance && a.id < id);
        if self.found.len() == most && self.found.last().is_none_or(before) {
            return;
        }
        let at = self.found.partition_point(before);
        let slot = match self.found.iter().position(|found| found.id == id) {
            Some(same) if self.found[same].node == node => return,
            // While an id is being replaced, the search may meet the old and the new vector of this
            // id.
            Some(nearer) if nearer < at => return,
            Some(farther) => self.found.remove(farther).slot,
            None if self.found.len() == most => self.found.pop().map_or(0, |last| last.slot),
            None => self.found.len() as u32,
        };
        let from = slot as usize * self.slot_bytes;
        if self.parts.len() < from + self.slot_bytes {
            self.parts.resize(from + self.slot_bytes, 0);
        }
        // Only a damaged part is longer than a slot. The truncated part later fails to decode.
        let bytes = part.len().min(self.slot_bytes);
        self.parts[from..from + bytes].copy_from_slice(&part[..bytes]);
        let ranked = Ranked {
            distance,
            node,
            id,
            error,
            slot,
            bytes: bytes as u32,
            exact: None,
        };
        self.found.insert(at, ranked);
    }

    /// The distance of the k-th candidate by leading parts, if there are k candidates.
    pub(crate) fn bound(&self) -> Option<f32> {
        let kth = self.k.checked_sub(1)?;
        self.found.get(kth).map(|ranked| ranked.distance)
    }

    pub(crate) fn k(&self) -> usize {
        self.k
    }

    pub(crate) fn part(&self, place: usize) -> (u32, &[u8]) {
        let ranked = &self.found[place];
        let from = ranked.slot as usize * self.slot_bytes;
        (ranked.node, &self.parts[from..from + ranked.bytes as usize])
    }

    /// Under cosine, `length` returns the length of a decoded vector.
    pub(crate) fn expect<E>(
        &mut self,
        errors: LeadingError,
        mut length: impl FnMut(&Self, usize) -> Result<f32, E>,
    ) -> Result<(), E> {
        let mut expected = std::mem::take(&mut self.expected);
        expected.clear();
        for (place, ranked) in self.found.iter().enumerate() {
            let (distance, deviation) = match (ranked.exact, errors.metric) {
                (Some(exact), _) => (exact, 0.0),
                (None, Metric::Cosine) => {
                    let length = length(self, place)?;
                    errors.of(ranked.distance, ranked.error, length)
                }
                (None, _) => errors.of(ranked.distance, ranked.error, 0.0),
            };
            expected.push(Expected {
                distance: distance.min(f32::INFINITY),
                deviation,
                place,
                id: ranked.id,
            });
        }
        self.expected = expected;
        self.sort();
        Ok(())
    }

    fn sort(&mut self) {
        self.expected.sort_unstable_by(|a, b| {
            let by_distance = a.distance.total_cmp(&b.distance);
            by_distance.then(a.id.cmp(&b.id))
        });
    }

    /// The positions of candidates in doubt. With `all`, also the positions of certain results.
    /// Candidates with exact distances are left out.
    pub(crate) fn in_doubt(&self, all: bool) -> Vec<usize> {
        let expected = &self.expected;
        let k =
            NonZeroUsize::new(self.k).map(|k| (expected.get(k.get() - 1), expected.get(k.get())));
        let Some((Some(last), Some(next))) = k else {
            // There are at most k candidates, so all of them are results.
            return if all { self.inexact() } else { Vec::new() };
        };
        let middle = last.distance / 2.0 + next.distance / 2.0;
        // A candidate whose distance is NaN cannot be compared, so it is in doubt.
        let is_beyond = |by: f32, it: &Expected| {
            by.partial_cmp(&(IN_DOUBT * it.deviation)) == Some(Ordering::Greater)
        };
        let may_be_out = |it: &Expected| !is_beyond(middle - it.distance, it);
        let may_be_in = |it: &Expected| !is_beyond(it.distance - middle, it);
        let doubtful = expected
            .iter()
            .filter(|it| may_be_in(it) && (all || may_be_out(it)));
        let places = doubtful.map(|it| it.place);
        places
            .filter(|&place| self.found[place].exact.is_none())
            .collect()
    }

    pub(crate) fn inexact(&self) -> Vec<usize> {
        let answers = self.expected.iter().take(self.k);
        let places = answers.map(|it| it.place);
        places
            .filter(|&place| self.found[place].exact.is_none())
            .collect()
    }

    /// The order of the candidates changes only with the next [`settled`](Leading::settled).
    pub(crate) fn settle(&mut self, place: usize, distance: f32) {
        self.found[place].exact = Some(distance.min(f32::INFINITY));
    }

    /// Sorts the candidates again, corrected by the mean difference between exact and expected
    /// distances.
    pub(crate) fn settled(&mut self) {
        let (mut off, mut count) = (0.0, 0);
        for it in &mut self.expected {
            let Some(exact) = self.found[it.place].exact else {
                continue;
            };
            if it.deviation > 0.0 && it.deviation.is_finite() && exact.is_finite() {
                off += f64::from(exact) - f64::from(it.distance);
                count += 1;
            }
            (it.distance, it.deviation) = (exact, 0.0);
        }
        if count >= LEARNED {
            let off = (off / f64::from(count)) as f32;
            let inexact = self.expected.iter_mut();
            for it in inexact.filter(|it| it.deviation > 0.0) {
                it.distance += off;
            }
        }
        self.sort();
    }

    /// The largest deviation of the results' distances, 0 if all are exact.
    pub(crate) fn deviation(&self) -> f32 {
        let answers = self.expected.iter().take(self.k);
        answers.map(|it| it.deviation).fold(0.0, f32::max)
    }

    pub(crate) fn answers(&self) -> impl Iterator<Item = (u64, f32)> + '_ {
        self.expected.iter().map(|it| (it.id, it.distance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(metric: Metric) -> LeadingError {
        LeadingError {
            metric,
            dim: 3,
            query: 1.0,
        }
    }

    fn candidate(id: u64, distance: f32, part: &[u8]) -> ByLeading<'_> {
        ByLeading {
            node: id as u32,
            id,
            distance,
            part,
            error: 0.1,
        }
    }

    fn offer(leading: &mut Leading, id: u64, distance: f32) {
        leading.offer(&candidate(id, distance, &[id as u8; 3]));
    }

    fn expect(leading: &mut Leading, metric: Metric) {
        let lengths = |_: &Leading, _| Ok::<_, ()>(1.0);
        leading.expect(errors(metric), lengths).unwrap();
    }

    #[test]
    fn those_near_the_boundary_are_in_doubt() {
        let mut leading = Leading::default();
        leading.clear(3, 4);
        for (id, distance) in [(7, 1.2), (1, 0.5), (2, 0.9), (3, 1.0), (4, 1.05), (5, 4.0)] {
            offer(&mut leading, id, distance);
        }
        assert_eq!(leading.bound(), Some(1.0));
        expect(&mut leading, Metric::InnerProduct);
        // 1.5 deviations are .087, and the boundary is at 1.025.
        assert_eq!(leading.in_doubt(false), [2, 3]);
        assert_eq!(leading.in_doubt(true), [0, 1, 2, 3]);
        assert_eq!(leading.part(3), (4, &[4; 3][..]));
        leading.settle(3, 0.95);
        leading.settle(2, 1.1);
        leading.settled();
        assert_eq!(leading.inexact(), [0, 1]);
        let answers: Vec<_> = leading.answers().collect();
        let expected = [(1, 0.5), (2, 0.9), (4, 0.95), (3, 1.1), (7, 1.2), (5, 4.0)];
        assert_eq!(answers, expected);
        assert!(leading.in_doubt(false).is_empty());
        offer(&mut leading, 3, 1.0);
        offer(&mut leading, 8, 0.1);
        expect(&mut leading, Metric::InnerProduct);
        let answers: Vec<_> = leading.answers().take(5).collect();
        assert_eq!(answers, [(8, 0.1), (1, 0.5), (2, 0.9), (4, 0.95), (3, 1.1)]);
    }

    #[test]
    fn one_of_which_a_part_says_little_is_always_in_doubt() {
        let mut leading = Leading::default();
        leading.clear(2, 4);
        for (id, distance) in [(1, 0.1), (2, 0.2), (3, 5.0), (4, f32::NAN), (5, 9.0)] {
            let error = if id == 1 || id == 5 {
                f32::INFINITY
            } else {
                1e-3
            };
            let by_leading = candidate(id, distance, &[]);
            leading.offer(&ByLeading {
                error,
                ..by_leading
            });
        }
        for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
            expect(&mut leading, metric);
            let doubts = leading.in_doubt(false);
            // A vector with infinite distance may be in doubt too.
            assert!(
                doubts == [0, 3] || doubts == [0, 3, 4],
                "{metric:?}: {doubts:?}"
            );
        }
        leading.clear(1, 4);
        for id in [1, 2] {
            leading.offer(&candidate(id, f32::INFINITY, &[]));
        }
        expect(&mut leading, Metric::L2);
        assert_eq!(leading.in_doubt(false), [0, 1]);
    }

    /// The vectors are uniformly random within their steps.
    #[test]
    fn errors_are_as_they_are_expected_to_be() {
        const DIM: usize = 64;
        let mut state = 1u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        let query: Vec<f32> = (0..DIM).map(|_| random()).collect();
        let middle: Vec<f32> = (0..DIM).map(|_| random()).collect();
        let error = 0.4;
        for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
            let kernel = stratann_vector::Kernel::new(metric, stratann_vector::Element::F32, DIM);
            let bytes = |v: &[f32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
            let errors = LeadingError {
                metric,
                dim: DIM,
                query: stratann_vector::norm(&query),
            };
            let leading = kernel.distance(&bytes(&query), &bytes(&middle));
            let length = stratann_vector::norm(&middle);
            let (expected, deviation) = errors.of(leading, error, length);
            let (mut sum, mut squares) = (0.0, 0.0);
            const TRIALS: usize = 4_000;
            for _ in 0..TRIALS {
                let vector: Vec<f32> = middle.iter().map(|x| x + error * random()).collect();
                let off = kernel.distance(&bytes(&query), &bytes(&vector)) - expected;
                sum += f64::from(off);
                squares += f64::from(off * off);
            }
            let mean = (sum / TRIALS as f64) as f32;
            let found = (squares / TRIALS as f64).sqrt() as f32;
            assert!(
                mean.abs() < 0.1 * deviation,
                "{metric:?}: {mean}, {deviation}"
            );
            assert!(
                (0.85..1.15).contains(&(found / deviation)),
                "{metric:?}: {found}, {deviation}"
            );
        }
    }

    #[test]
    fn what_is_exact_says_how_far_off_the_others_are() {
        let mut leading = Leading::default();
        leading.clear(3, 4);
        for (id, distance) in [(1, 0.5), (2, 0.99), (3, 1.0), (4, 1.01), (5, 4.0)] {
            offer(&mut leading, id, distance);
        }
        expect(&mut leading, Metric::InnerProduct);
        let doubts = leading.in_doubt(false);
        assert_eq!(doubts, [1, 2, 3]);
        // The exact distances exceed the expected distances by more than the candidates differ.
        for (place, distance) in doubts.into_iter().zip([2.0, 1.9, 1.95]) {
            leading.settle(place, distance);
        }
        leading.settled();
        let answers: Vec<_> = leading.answers().collect();
        let ids: Vec<u64> = answers.iter().map(|&(id, _)| id).collect();
        assert_eq!(ids, [1, 3, 4, 2, 5]);
        assert!((answers[0].1 - 1.45).abs() < 1e-3 && (answers[4].1 - 4.95).abs() < 1e-3);
    }

    #[test]
    fn the_nearest_are_kept_with_their_parts() {
        let mut leading = Leading::default();
        leading.clear(2, 3);
        for id in (0..200u64).map(|i| i * 77 % 200) {
            offer(&mut leading, id, id as f32);
            offer(&mut leading, id, id as f32);
        }
        assert_eq!(leading.found.len(), 2 + BEYOND);
        for place in 0..2 + BEYOND {
            assert_eq!(leading.part(place), (place as u32, &[place as u8; 3][..]));
        }
        expect(&mut leading, Metric::InnerProduct);
        assert!(leading.answers().map(|(id, _)| id).eq(0..2 + BEYOND as u64));
    }

    #[test]
    fn the_nearer_of_two_vectors_of_an_id_counts() {
        let mut leading = Leading::default();
        leading.clear(2, 3);
        for (node, distance) in [(1, 0.7), (2, 0.3), (3, 0.5)] {
            let part = [node as u8; 3];
            let by_leading = candidate(9, distance, &part);
            leading.offer(&ByLeading { node, ..by_leading });
        }
        assert_eq!(leading.part(0), (2, &[2; 3][..]));
        expect(&mut leading, Metric::InnerProduct);
        assert!(leading.answers().eq([(9, 0.3)]));
    }
}
