//! Rounds points of floats to a byte for each dimension.
//!
//! ```text
//!   byte i = round((x_i - mean_i) / step), from -63 to 63
//!            with one step for all dimensions, and a mean for each
//! ```
//!
//! With one step for all dimensions, squared distances of rounded points approximate distances of
//! floats, in units of step². Few values are cut off.
//!
//! Rounded points take a quarter of the memory, and [`Kernel::narrow`] compares values of seven
//! bits without widening. A [`Trial`] checks that rounding moves points by much less than the
//! distances between neighbours. Codes and stored vectors are made from the exact rows.

use stratann_vector::{Element, Kernel, Metric};

/// The most bytes of a sample's points as floats. The sample is small, because builds under a
/// memory cap take it too.
const SAMPLE_BYTES: usize = 2 << 20;
/// The least and the most rows of a sample. With fewer rows, floats are not rounded.
const LEAST_ROWS: usize = 64;
const MOST_ROWS: usize = 2048;

const LARGEST: f32 = Kernel::NARROW_LARGEST as f32;

/// The share of a sample's values that may be beyond the largest byte.
const CUT_OFF: f64 = 1e-4;

/// The largest mean squared error, as a share of the variance. A step of an eighth of the standard
/// deviation has this error, step² / 12.
const MOST_ERROR: f64 = 0.0013;

/// The number of probes, which are rows whose nearest neighbours are compared; the neighbours of a
/// probe; and the largest mean factor between the squared distances of neighbours by bytes and by
/// floats. With 64 probes, rounding destroyed five of six dense clusters with 2 % of the rows, in
/// 4,000 rows of 24 floats.
const PROBES: usize = 512;
const NEAREST: usize = 10;
const FARTHER: f64 = 1.01;
/// The largest factor that one probe adds to the mean, so that a single outlier does not decide.
const FARTHEST: f64 = 1.5;
/// A probe is lost if its nearest rows by bytes are farther by this factor. At most `MOST_LOST`
/// probes may be lost. On real data, no probe had a factor above 1.06. Dense clusters with a spread
/// of at most a third of a step have a factor of 1.26 to 1.7.
const LOST: f64 = 1.1;
const MOST_LOST: usize = 1;

#[derive(Clone, Debug)]
pub(super) struct Rounding {
    means: Vec<f32>,
    steps_per_unit: f32,
}

impl Rounding {
    pub(super) const ELEMENT: Element = Element::I8;

    pub(super) fn kernel(dim: usize) -> Kernel {
        Kernel::narrow(dim)
    }

    /// `None` if the sample would be too small.
    pub(super) fn sample(rows: usize, point_bytes: usize) -> Option<usize> {
        let count = (SAMPLE_BYTES / point_bytes).min(MOST_ROWS).min(rows);
        (count >= LEAST_ROWS).then_some(count)
    }

    /// `None` if all points of the sample are equal, or have values that are not finite.
    pub(super) fn of(sample: &[f32], dim: usize) -> Option<Rounding> {
        let rows = sample.len() / dim;
        let mut sums = vec![0.0f64; dim];
        for point in sample.chunks_exact(dim) {
            for (sum, &value) in sums.iter_mut().zip(point) {
                *sum += f64::from(value);
            }
        }
        let means: Vec<f32> = sums.iter().map(|sum| (sum / rows as f64) as f32).collect();
        let centred = |(at, &value): (usize, &f32)| (value - means[at % dim]).abs();
        let mut away: Vec<f32> = sample.iter().enumerate().map(centred).collect();
        let beyond = (away.len() as f64 * CUT_OFF) as usize;
        let last = away.len() - 1 - beyond;
        let (_, &mut largest, _) = away.select_nth_unstable_by(last, f32::total_cmp);
        let rounding = Rounding {
            means,
            steps_per_unit: LARGEST / largest,
        };
        rounding.steps_per_unit.is_normal().then_some(rounding)
    }

    #[inline]
    pub(super) fn append(&self, point: &[f32], bytes: &mut Vec<u8>) {
        let round = |(&value, &mean): (&f32, &f32)| {
            let steps = ((value - mean) * self.steps_per_unit).clamp(-LARGEST, LARGEST);
            (steps.round_ties_even() as i8).cast_unsigned()
        };
        bytes.extend(point.iter().zip(&self.means).map(round));
    }
}

/// Checks before rounding how far all points would move, and whether other points would become
/// nearest to a probe.
pub(super) struct Trial {
    rounding: Rounding,
    dim: usize,
    floats: Vec<u8>,
    bytes: Vec<u8>,
    by_floats: Vec<Nearest>,
    by_bytes: Vec<Nearest>,
    error: f64,
    variance: f64,
    point: Vec<u8>,
    byte_distances: Vec<f32>,
}

/// The points nearest to a probe by floats or by bytes. Each point has the distance that decides
/// its rank, and its distance by floats.
type Nearest = Vec<(f32, f32)>;

impl Trial {
    /// Some points of the sample are the probes.
    pub(super) fn new(rounding: Rounding, sample: &[f32], dim: usize) -> Trial {
        let rows = sample.len() / dim;
        let (mut floats, mut bytes) = (Vec::new(), Vec::new());
        let probes = PROBES.min(rows);
        for i in 0..probes {
            let point = &sample[i * rows / probes * dim..][..dim];
            floats.extend(point.iter().flat_map(|x| x.to_le_bytes()));
            rounding.append(point, &mut bytes);
        }
        Trial {
            rounding,
            dim,
            floats,
            bytes,
            by_floats: vec![Nearest::new(); probes],
            by_bytes: vec![Nearest::new(); probes],
            error: 0.0,
            variance: 0.0,
            point: Vec::new(),
            byte_distances: vec![0.0; probes],
        }
    }

    pub(super) fn see(&mut self, point: &[f32]) {
        self.point.clear();
        self.rounding.append(point, &mut self.point);
        let narrow = Rounding::kernel(self.dim);
        narrow.distances_dense(&self.point, &self.bytes, &mut self.byte_distances);
        for ((&byte, &value), &mean) in self.point.iter().zip(point).zip(&self.rounding.means) {
            let centred = value - mean;
            let back = f32::from(byte.cast_signed()) / self.rounding.steps_per_unit;
            self.error += f64::from(centred - back).powi(2);
            self.variance += f64::from(centred).powi(2);
        }
        self.point.clear();
        self.point
            .extend(point.iter().flat_map(|x| x.to_le_bytes()));
        let kernel = Kernel::new(Metric::L2, Element::F32, self.dim);
        // In each dimension, rounding adds at most a step to the difference of two points, and
        // cut-off values add nothing. The factor .999 allows for rounding errors of sums.
        let (moved, unit) = (
            (self.dim as f32).sqrt(),
            0.999 / self.rounding.steps_per_unit,
        );
        let probes = self.floats.chunks_exact(self.point.len());
        let nearest = self.by_floats.iter_mut().zip(&mut self.by_bytes);
        let distances = self.byte_distances.iter();
        for (((by_floats, by_bytes), &rounded), probe) in nearest.zip(distances).zip(probes) {
            let least = ((rounded.sqrt() - moved).max(0.0) * unit).powi(2);
            if !comes_in(by_floats, least) && !comes_in(by_bytes, rounded) {
                continue;
            }
            let exact = kernel.distance(&self.point, probe);
            keep(by_floats, exact, exact);
            keep(by_bytes, rounded, exact);
        }
    }

    pub(super) fn end(self) -> Option<Rounding> {
        let sum = |nearest: &Nearest| -> f64 { nearest.iter().map(|near| f64::from(near.1)).sum() };
        // In a sum over all probes, far rows would hide a dense cluster whose rows all became
        // equal.
        let farther = |(by_floats, by_bytes): (&Nearest, &Nearest)| {
            let (nearest, found) = (sum(by_floats), sum(by_bytes));
            match found > nearest {
                true => found / nearest,
                false => 1.0,
            }
        };
        let probes = self.by_floats.iter().zip(&self.by_bytes);
        let (mut sum_of_all, mut lost) = (0.0, 0);
        for farther in probes.map(farther) {
            sum_of_all += farther.min(FARTHEST);
            lost += usize::from(farther > LOST);
        }
        let farther = sum_of_all / self.by_floats.len() as f64;
        let error = self.error / self.variance;
        let small = self.variance.is_normal() && error <= MOST_ERROR;
        let keeps = small && farther <= FARTHER && lost <= MOST_LOST;
        tracing::debug!(rounded = keeps, error, farther, lost, "points of the build");
        keeps.then_some(self.rounding)
    }
}

fn comes_in(nearest: &Nearest, distance: f32) -> bool {
    // The list has the probe itself and `NEAREST` other points.
    let full = nearest.len() > NEAREST && nearest.last().is_some_and(|last| distance >= last.0);
    !full
}

fn keep(nearest: &mut Nearest, distance: f32, exact: f32) {
    if !comes_in(nearest, distance) {
        return;
    }
    let at = nearest.partition_point(|near| near.0 <= distance);
    nearest.insert(at, (distance, exact));
    nearest.truncate(NEAREST + 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::random::Random;

    fn rows(count: usize, dim: usize, seed: u64) -> Vec<f32> {
        let mut random = Random::new(seed);
        let mut one = || (random.below(1 << 16) as f32) / 65536.0 - 0.5;
        (0..count * dim)
            .map(|_| one() + one() + one() + one())
            .collect()
    }

    /// The sample has every `every`-th row.
    fn rounded(floats: &[f32], dim: usize, every: usize) -> bool {
        let sample: Vec<f32> = floats
            .chunks_exact(dim)
            .step_by(every)
            .flatten()
            .copied()
            .collect();
        let Some(rounding) = Rounding::of(&sample, dim) else {
            return false;
        };
        let mut trial = Trial::new(rounding, &sample, dim);
        floats.chunks_exact(dim).for_each(|point| trial.see(point));
        trial.end().is_some()
    }

    #[test]
    fn what_is_spread_evenly_is_rounded_whatever_its_means() {
        let (count, dim) = (2_000, 96);
        let mut floats = rows(count, dim, 1);
        assert!(rounded(&floats, dim, 4));
        floats
            .iter_mut()
            .enumerate()
            .for_each(|(i, x)| *x += (i % dim) as f32 * 40.0);
        assert!(rounded(&floats, dim, 4));
    }

    #[test]
    fn neighbours_closer_than_a_step_are_not_rounded_though_the_sample_has_one_of_each_group() {
        let (groups, each, dim) = (100, 20, 64);
        let centres = rows(groups, dim, 2);
        let mut floats = rows(groups * each, dim, 3);
        for (i, point) in floats.chunks_exact_mut(dim).enumerate() {
            let centre = &centres[i / each * dim..][..dim];
            point
                .iter_mut()
                .zip(centre)
                .for_each(|(x, c)| *x = *x * 0.001 + c);
        }
        assert!(!rounded(&floats, dim, each));
    }

    #[test]
    fn a_crowd_that_would_become_one_point_is_not_rounded_beside_rows_that_are_far_apart() {
        let (count, dim) = (2_000, 64);
        for crowd in [20, 10, 3] {
            let mut floats = rows(count, dim, 5);
            for point in floats.chunks_exact_mut(dim).step_by(crowd) {
                point.iter_mut().for_each(|x| *x = 0.25 + *x * 0.001);
            }
            assert!(!rounded(&floats, dim, 1), "one of {crowd}");
        }
    }

    #[test]
    fn a_crowd_of_two_in_a_hundred_is_not_rounded_whichever_rows_it_is_of() {
        let (count, dim) = (4_000, 24);
        for seed in 0..6 {
            for spread in [0.001, 0.02] {
                let mut floats = rows(count, dim, seed);
                assert!(
                    rounded(&floats, dim, 2),
                    "{seed}: rows without a dense cluster were not rounded"
                );
                let of = Random::new(seed + 10).sample(count, count / 50);
                for at in of {
                    let point = &mut floats[at * dim..][..dim];
                    point.iter_mut().for_each(|x| *x = 0.25 + *x * spread);
                }
                assert!(!rounded(&floats, dim, 2), "{seed}: spread {spread}");
            }
        }
    }

    #[test]
    fn one_probe_that_is_lost_does_not_decide() {
        let (count, dim) = (2_000, 24);
        let mut floats = rows(count, dim, 7);
        // One probe has more near rows than are compared. None of these rows is in the sample.
        let first: Vec<f32> = floats[..dim].to_vec();
        for point in floats.chunks_exact_mut(dim).skip(1).step_by(4).take(30) {
            let near = point.iter_mut().zip(&first);
            near.for_each(|(x, first)| *x = first + *x * 0.001);
        }
        assert!(rounded(&floats, dim, 4));
    }

    #[test]
    fn real_embeddings_are_rounded() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/package-text-2k.base.fbin"
        );
        let bytes = std::fs::read(path).unwrap();
        let floats = bytes[8..].chunks_exact(4);
        let floats: Vec<f32> = floats
            .map(|x| f32::from_le_bytes(x.try_into().unwrap()))
            .collect();
        assert!(rounded(&floats, 384, 2));
    }

    #[test]
    fn rows_far_beyond_the_sample_are_not_cut_off_unseen() {
        let (count, dim) = (2_000, 64);
        let mut floats = rows(count, dim, 4);
        assert!(rounded(&floats, dim, 8));
        // A few rows are far beyond all rows of the sample.
        let far = floats.chunks_exact_mut(dim).skip(1).step_by(40);
        far.flatten().for_each(|x| *x *= 50.0);
        assert!(!rounded(&floats, dim, 8));
    }

    #[test]
    fn what_has_no_spread_or_is_no_number_is_left_alone() {
        assert!(
            !rounded(&[0.5; 100 * 8], 8, 1),
            "equal vectors were called rounded"
        );
        for strange in [f32::NAN, f32::INFINITY, f32::MAX] {
            let mut floats = rows(100, 8, 6);
            floats.iter_mut().step_by(5).for_each(|x| *x = strange);
            assert!(!rounded(&floats, 8, 1), "{strange}");
        }
        assert_eq!(Rounding::sample(63, 4), None, "too few");
        assert_eq!(Rounding::sample(1_000_000, 65_536), None, "too wide");
        assert_eq!(Rounding::sample(1_000_000, 1_536), Some(1_365));
    }
}
