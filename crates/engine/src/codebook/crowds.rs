//! Dense clusters ("crowds"), whose rows are far nearer to each other than other rows of a sample.
//!
//! ```text
//!   apart, of a row     squared distance to its third nearest among 1,024 rows of the sample
//!   wide, narrow        the upper and the lower quartile of `apart`
//!   uneven              2 % of the rows or more are 64 times less apart than `wide`, or 64 times
//!                       more than `narrow` (5 % if there are fewer than 4,096 rows)
//!   weight, of a row    wide / apart
//! ```
//!
//! Training with the least squared error puts centroids where rows are far apart. So all rows of a
//! dense cluster get the same code. With 3,000 rows of a spread of .01 and 3,000 rows of a spread
//! of 1, searches for rows with the small spread have a recall@10 of .32. Therefore the error of a
//! row is measured in units of the distances that codes must distinguish.
//!
//! If rows are spread evenly, the codebook is the same as without weights.

use stratann_vector::{Element, Kernel, Metric};

use crate::threads;

const PILOTS: usize = 1024;
const NEAREST: usize = 3;
/// Fewer rows do not show whether there is a dense cluster.
const LEAST_ROWS: usize = 64;
/// The factor between squared distances at which a row is uneven, and the least share of uneven
/// rows for weights.
const UNEVEN: f32 = 64.0;
const SHARE: f64 = 0.02;
/// The share for a sample of fewer than [`FEW_ROWS`] rows, because a codebook that is trained with
/// weights overfits few rows. If 2 % of 600 photos were near each other, a quarter of the later
/// photos seemed to have drifted.
const SHARE_OF_FEW: f64 = 0.05;
const FEW_ROWS: usize = 4_096;
const HEAVIEST: f32 = 1e6;

/// The squared distance of each row to its third nearest row in an even sample. If the sample has
/// fewer rows, the farthest row counts.
pub(crate) fn apart(rows: &[f32], dim: usize, threads: usize) -> Vec<f32> {
    let all: Vec<usize> = (0..rows.len() / dim).collect();
    among(rows, &all, dim, threads)
}

fn among(rows: &[f32], of: &[usize], dim: usize, threads: usize) -> Vec<f32> {
    let count = rows.len() / dim;
    let pilots: Vec<usize> = spread(count).collect();
    let bytes = |row: usize| {
        rows[row * dim..][..dim]
            .iter()
            .flat_map(|x| x.to_le_bytes())
    };
    let beside: Vec<u8> = pilots.iter().flat_map(|&row| bytes(row)).collect();
    let kernel = Kernel::new(Metric::L2, Element::F32, dim);
    let mut apart = vec![0.0; of.len()];
    let share = of.len().div_ceil(threads.max(1)).max(1);
    threads::shared(
        of.chunks(share).zip(apart.chunks_mut(share)),
        |(of, apart)| {
            let mut distances = vec![0.0; pilots.len()];
            let mut own = Vec::with_capacity(4 * dim);
            for (&row, apart) in of.iter().zip(apart) {
                own.clear();
                own.extend(bytes(row));
                kernel.distances_dense(&own, &beside, &mut distances);
                let mut nearest = [f32::INFINITY; NEAREST];
                let mut farthest = 0.0f32;
                for (&pilot, &distance) in pilots.iter().zip(&distances) {
                    if pilot == row || distance.is_nan() {
                        continue;
                    }
                    farthest = farthest.max(distance);
                    if distance < nearest[NEAREST - 1] {
                        nearest[NEAREST - 1] = distance;
                        nearest.sort_unstable_by(f32::total_cmp);
                    }
                }
                *apart = nearest[NEAREST - 1].min(farthest);
            }
        },
    );
    apart
}

fn spread(count: usize) -> impl Iterator<Item = usize> {
    let pilots = count.min(PILOTS);
    (0..pilots).map(move |i| i * count / pilots)
}

/// The weight of each row. `None` if there are few rows, or if rows are spread evenly.
pub(crate) fn weights(rows: &[f32], dim: usize, threads: usize) -> Option<Vec<f32>> {
    let count = rows.len() / dim;
    if count < LEAST_ROWS {
        return None;
    }
    let pilots: Vec<usize> = spread(count).collect();
    let share = match count < FEW_ROWS {
        true => SHARE_OF_FEW,
        false => SHARE,
    };
    let wide = wide(&among(rows, &pilots, dim, threads), share)?;
    let weight = |apart: f32| match apart > 0.0 && apart.is_finite() {
        true => (wide / apart).clamp(1.0 / HEAVIEST, HEAVIEST),
        // Codes need not distinguish equal rows.
        false => 1.0,
    };
    let apart = apart(rows, dim, threads);
    Some(apart.into_iter().map(weight).collect())
}

/// The upper quartile of `apart`. `None` if less than the share `share` of the rows is uneven.
fn wide(apart: &[f32], share: f64) -> Option<f32> {
    let mut sorted: Vec<f32> = apart.to_vec();
    sorted.sort_unstable_by(f32::total_cmp);
    sorted.retain(|&apart| apart > 0.0 && apart.is_finite());
    let (narrow, wide) = (
        *sorted.get(sorted.len() / 4)?,
        *sorted.get(3 * sorted.len() / 4)?,
    );
    let least = (share * apart.len() as f64).ceil() as usize;
    let crowded = sorted.partition_point(|&apart| apart < wide / UNEVEN);
    let lonely = sorted.len() - sorted.partition_point(|&apart| apart <= narrow * UNEVEN);
    (crowded.max(lonely) >= least.max(1)).then_some(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize, spread: f32, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            spread * (state >> 40) as f32 / (1u64 << 24) as f32
        };
        std::iter::repeat_with(next).take(8 * count).collect()
    }

    #[test]
    fn what_is_apart_is_measured_to_the_third_nearest() {
        let line: Vec<f32> = [0.0, 1.0, 2.0, 4.0, 8.0]
            .into_iter()
            .flat_map(|x| [x, 0.0])
            .collect();
        for threads in [1, 3] {
            assert_eq!(apart(&line, 2, threads), [16.0, 9.0, 4.0, 16.0, 49.0]);
        }
        assert_eq!(apart(&[3.0, 4.0, 3.0, 7.0], 2, 1), [9.0, 9.0]);
        assert_eq!(apart(&[3.0, 4.0], 2, 1), [0.0]);
        assert!(apart(&[], 2, 1).is_empty());
    }

    #[test]
    fn even_rows_have_no_weights() {
        assert_eq!(weights(&rows(2000, 1.0, 1), 8, 1), None);
        // If a few rows are near each other, if rows are equal, or if there are too few, rows have
        // no weights either.
        let mut few = rows(2000, 1.0, 2);
        for x in &mut few[..8 * 60] {
            *x *= 0.001;
        }
        assert_eq!(weights(&few, 8, 1), None);
        assert_eq!(weights(&[0.25; 8 * 500], 8, 1), None);
        assert_eq!(weights(&rows(63, 1.0, 3), 8, 1), None);
        assert_eq!(weights(&[], 8, 1), None);
    }

    #[test]
    fn rows_of_a_crowd_weigh_as_much_more_as_they_stand_nearer() {
        for (crowd, of) in [(150, 5000), (200, 2000), (1000, 2000), (1850, 2000)] {
            let mut uneven = rows(of, 1.0, 4);
            for x in &mut uneven[..8 * crowd] {
                *x *= 0.01;
            }
            let weights = weights(&uneven, 8, 2).unwrap();
            assert!(
                weights
                    .iter()
                    .all(|weight| weight.is_finite() && *weight > 0.0)
            );
            let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len() as f32;
            let (narrow, other) = weights.split_at(crowd);
            let times = mean(narrow) / mean(other);
            assert!((300.0..1e6).contains(&times), "{crowd}: {times}");
        }
        let mut equal = rows(2000, 1.0, 5);
        equal[..8 * 400].fill(0.5);
        for x in &mut equal[8 * 1000..] {
            *x *= 0.01;
        }
        let weights = weights(&equal, 8, 2).unwrap();
        assert!(weights[..400].iter().all(|weight| *weight == 1.0));
    }
}
