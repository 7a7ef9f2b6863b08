//! Points of a byte a dimension: floats, rounded.
//!
//! ```text
//!   byte i = round((x_i - mean_i) / step), from -63 to 63           one step for all dimensions, a mean for each
//! ```
//!
//! With one step for all, squared distances of such points are those of the floats in units of step²: what a build needs to know is
//! only which of two is less. What lies beyond the largest byte is cut off; the step is such that next to nothing does.
//!
//! A build then moves a quarter of the bytes and compares four times as many elements at a time ([`Kernel::narrow`]: hence seven bits). Its graph is one over points that are
//! all a little beside their places. That is as good where the places are far more exact than neighbours are apart, and that is looked
//! at in a sample before anything is rounded ([`Rounding::of`]). Codes, and the vectors themselves, are made of the rows, not of these.

use stratann_vector::{Element, Kernel, Metric};

/// Bytes of the points of a sample, at most, and its rows at least: builds under a memory cap look at one too.
const SAMPLE_BYTES: usize = 4 << 20;
const LEAST_ROWS: usize = 64;
const MOST_ROWS: usize = 2048;

/// The largest byte.
const LARGEST: f32 = Kernel::NARROW as f32;

/// Of the numbers of a sample such a share may be beyond the largest byte.
const CUT_OFF: f64 = 1e-4;

/// The mean squared error may be such a share of the variance: a step of an eighth of the standard deviation.
const MOST_ERROR: f64 = 0.0013;

/// Rows of the sample whose neighbours in it are looked for, how many neighbours, and which share of them has to be the same.
const PROBES: usize = 64;
const NEIGHBOURS: usize = 10;
const LEAST_SAME: f64 = 0.95;

/// How floats become bytes.
#[derive(Clone, Debug)]
pub(super) struct Rounding {
    means: Vec<f32>,
    /// 1 / step.
    steps: f32,
}

impl Rounding {
    /// The type of the bytes.
    pub(super) const ELEMENT: Element = Element::I8;

    /// What measures distances of such points.
    pub(super) fn kernel(dim: usize) -> Kernel {
        Kernel::narrow(dim)
    }

    /// How many of `rows` are looked at, where a point takes `point_bytes` in floats.
    pub(super) fn sample(rows: usize, point_bytes: usize) -> usize {
        (SAMPLE_BYTES / point_bytes)
            .clamp(LEAST_ROWS, MOST_ROWS)
            .min(rows)
    }

    /// How points like those of a sample are rounded; `None` if that would not keep who is near whom, or there are too few to tell.
    pub(super) fn of(sample: &[f32], dim: usize) -> Option<Rounding> {
        let rows = sample.len() / dim;
        if rows < LEAST_ROWS {
            return None;
        }
        let mut sums = vec![0.0f64; dim];
        for point in sample.chunks_exact(dim) {
            for (sum, &value) in sums.iter_mut().zip(point) {
                *sum += f64::from(value);
            }
        }
        let means: Vec<f32> = sums.iter().map(|sum| (sum / rows as f64) as f32).collect();
        let centred = |(at, &value): (usize, &f32)| (value - means[at % dim]).abs();
        let mut away: Vec<f32> = sample.iter().enumerate().map(centred).collect();
        let variance: f64 = away.iter().map(|&x| f64::from(x).powi(2)).sum();
        let beyond = (away.len() as f64 * CUT_OFF) as usize;
        let last = away.len() - 1 - beyond;
        let (_, &mut largest, _) = away.select_nth_unstable_by(last, f32::total_cmp);
        drop(away);
        let rounding = Rounding {
            means,
            steps: LARGEST / largest,
        };
        // All rows the same, or numbers that are none.
        if !(rounding.steps.is_normal() && variance.is_normal()) {
            return None;
        }
        let mut bytes = Vec::with_capacity(sample.len());
        let mut error = 0.0;
        for point in sample.chunks_exact(dim) {
            let from = bytes.len();
            rounding.append(point, &mut bytes);
            for ((&byte, &value), &mean) in bytes[from..].iter().zip(point).zip(&rounding.means) {
                let back = f32::from(byte.cast_signed()) / rounding.steps;
                error += f64::from(value - mean - back).powi(2);
            }
        }
        let keeps =
            error <= MOST_ERROR * variance && same_neighbours(sample, &bytes, dim) >= LEAST_SAME;
        keeps.then_some(rounding)
    }

    /// Appends the bytes of a point.
    #[inline]
    pub(super) fn append(&self, point: &[f32], bytes: &mut Vec<u8>) {
        let round = |(&value, &mean): (&f32, &f32)| {
            let steps = ((value - mean) * self.steps).clamp(-LARGEST, LARGEST);
            (steps.round_ties_even() as i8).cast_unsigned()
        };
        bytes.extend(point.iter().zip(&self.means).map(round));
    }
}

/// The share of the nearest neighbours within a sample that are the same by its floats and by its bytes.
fn same_neighbours(floats: &[f32], bytes: &[u8], dim: usize) -> f64 {
    let rows = floats.len() / dim;
    let as_bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
    let nearest = |rows_of: &[u8], kernel: Kernel, probe: usize| -> Vec<usize> {
        let mut distances = vec![0.0; rows];
        let row = kernel.row_bytes();
        kernel.distances_dense(&rows_of[probe * row..][..row], rows_of, &mut distances);
        distances[probe] = f32::INFINITY;
        let mut order: Vec<usize> = (0..rows).collect();
        order.select_nth_unstable_by(NEIGHBOURS, |&a, &b| distances[a].total_cmp(&distances[b]));
        order.truncate(NEIGHBOURS);
        order
    };
    let mut same = 0;
    for i in 0..PROBES {
        let probe = i * rows / PROBES;
        let exact = nearest(&as_bytes, Kernel::new(Metric::L2, Element::F32, dim), probe);
        let rounded = nearest(bytes, Rounding::kernel(dim), probe);
        same += rounded.iter().filter(|row| exact.contains(row)).count();
    }
    same as f64 / (PROBES * NEIGHBOURS) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::random::Random;

    /// Rows of numbers about as normal as the sum of four evenly spread ones.
    fn rows(count: usize, dim: usize, seed: u64) -> Vec<f32> {
        let mut random = Random::new(seed);
        let mut one = || (random.below(1 << 16) as f32) / 65536.0 - 0.5;
        (0..count * dim)
            .map(|_| one() + one() + one() + one())
            .collect()
    }

    #[test]
    fn what_is_spread_evenly_is_rounded_and_keeps_its_neighbours() {
        let (count, dim) = (500, 96);
        let floats = rows(count, dim, 1);
        let rounding = Rounding::of(&floats, dim).unwrap();
        let mut bytes = Vec::new();
        floats
            .chunks_exact(dim)
            .for_each(|point| rounding.append(point, &mut bytes));
        assert_eq!(bytes.len(), count * dim);
        assert!(same_neighbours(&floats, &bytes, dim) > 0.97);
    }

    #[test]
    fn means_do_not_matter() {
        let (count, dim) = (300, 64);
        let mut floats = rows(count, dim, 2);
        floats
            .iter_mut()
            .enumerate()
            .for_each(|(i, x)| *x += (i % dim) as f32 * 40.0);
        assert!(Rounding::of(&floats, dim).is_some());
    }

    #[test]
    fn a_dimension_that_drowns_the_others_is_left_alone() {
        let (count, dim) = (300, 64);
        let mut floats = rows(count, dim, 3);
        floats.iter_mut().step_by(dim).for_each(|x| *x *= 1_000.0);
        // Its own step would be larger than all that the others say; but then they say nothing of who is near either.
        // What must not be is that neighbours change.
        if let Some(rounding) = Rounding::of(&floats, dim) {
            let mut bytes = Vec::new();
            floats
                .chunks_exact(dim)
                .for_each(|point| rounding.append(point, &mut bytes));
            assert!(same_neighbours(&floats, &bytes, dim) >= LEAST_SAME);
        }
        // Two clusters far apart, in each of which neighbours are decided by little.
        let mut floats = rows(count, dim, 4);
        for (i, point) in floats.chunks_exact_mut(dim).enumerate() {
            point
                .iter_mut()
                .for_each(|x| *x = *x * 0.001 + (i % 2) as f32);
        }
        assert!(Rounding::of(&floats, dim).is_none());
    }

    #[test]
    fn what_has_no_spread_or_is_no_number_is_left_alone() {
        assert!(Rounding::of(&[0.5; 100 * 8], 8).is_none(), "all the same");
        assert!(Rounding::of(&rows(10, 8, 5), 8).is_none(), "too few");
        for strange in [f32::NAN, f32::INFINITY, f32::MAX] {
            let mut floats = rows(100, 8, 6);
            floats.iter_mut().step_by(5).for_each(|x| *x = strange);
            assert!(Rounding::of(&floats, 8).is_none(), "{strange}");
        }
    }
}
