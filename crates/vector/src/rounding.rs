//! Quantises queries to one byte a dimension, enough to rank vectors by their codes. The step of a
//! dimension is proportional to the spread of the centroids in this dimension:
//!
//! ```text
//!   0: factor f32   4: one i8 a dimension, q     stands for  mean + q * (factor * spread)
//! ```
//!
//! Mean and spread (standard deviation) are over the centroids of the dimension. The factor is the
//! smallest one that keeps every q within 127, so the scale of a dimension does not matter. If all
//! centroids of a dimension are equal, it is decoded as their value.

use crate::quantiser::chunk_of;
use crate::{CENTROIDS, ProductQuantizer};

const FACTOR: usize = 4;
const MOST: f32 = 127.0;

/// Quantises queries relative to the centroids of a quantiser. Two quantisers with equal centroids
/// give equal bytes.
#[derive(Clone, Debug)]
pub struct Rounding {
    mean: Vec<f32>,
    spread: Vec<f32>,
}

impl Rounding {
    /// Computes mean and spread from the centroids of a quantiser.
    pub fn of(quantizer: &ProductQuantizer) -> Rounding {
        let dim = quantizer.dim();
        let (mut mean, mut spread) = (Vec::with_capacity(dim), Vec::with_capacity(dim));
        let all_centroids = quantizer.centroids();
        for chunk in 0..quantizer.code_bytes() {
            let (first, width) = chunk_of(dim, quantizer.code_bytes(), chunk);
            let centroids = &all_centroids[first * CENTROIDS..][..width * CENTROIDS];
            for component in 0..width {
                let all = || {
                    let those = centroids.iter().skip(component).step_by(width);
                    those.map(|&x| f64::from(x))
                };
                let middle = all().sum::<f64>() / CENTROIDS as f64;
                let square = all().map(|x| (x - middle) * (x - middle)).sum::<f64>();
                mean.push(middle as f32);
                spread.push((square / CENTROIDS as f64).sqrt() as f32);
            }
        }
        Rounding { mean, spread }
    }

    pub(crate) fn mean(&self) -> &[f32] {
        &self.mean
    }

    /// Bytes of a rounded vector of `dim` dimensions.
    pub fn bytes_of(dim: usize) -> usize {
        FACTOR + dim
    }

    /// Rounds a vector and appends its bytes to `out`.
    ///
    /// # Panics
    /// Panics if `vector` does not have the dimension of the quantiser.
    pub fn append(&self, vector: &[f32], out: &mut Vec<u8>) {
        assert_eq!(
            vector.len(),
            self.mean.len(),
            "the vector has the wrong length"
        );
        let known = || self.mean.iter().zip(&self.spread);
        let steps = vector
            .iter()
            .zip(known())
            .filter(|(_, (_, spread))| **spread > 0.0);
        let largest = steps
            .map(|(x, (mean, spread))| ((x - mean) / spread).abs())
            .fold(0.0, f32::max);
        let factor = largest / MOST;
        out.extend(factor.to_le_bytes());
        out.extend(vector.iter().zip(known()).map(|(x, (mean, spread))| {
            let step = factor * spread;
            match step > 0.0 {
                true => ((x - mean) / step).round().clamp(-MOST, MOST) as i8 as u8,
                false => 0,
            }
        }));
    }

    /// Decodes [appended](Rounding::append) bytes into `vector`; false if they are invalid.
    ///
    /// # Panics
    /// Panics if `vector` does not have the dimension of the quantiser.
    #[must_use]
    pub fn read(&self, bytes: &[u8], vector: &mut [f32]) -> bool {
        assert_eq!(
            vector.len(),
            self.mean.len(),
            "the vector has the wrong length"
        );
        let Some((factor, steps)) = bytes.split_first_chunk() else {
            return false;
        };
        let factor = f32::from_le_bytes(*factor);
        if steps.len() != vector.len() || !factor.is_finite() {
            return false;
        }
        let known = self.mean.iter().zip(&self.spread);
        for ((x, &q), (mean, spread)) in vector.iter_mut().zip(steps).zip(known) {
            *x = mean + f32::from(q as i8) * (factor * spread);
        }
        vector.iter().all(|x| x.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Training;

    fn rows(count: usize, dim: usize) -> Vec<f32> {
        let mut state = 11u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        let row = |_| {
            let of = |at: usize| 10f32.powi(at as i32 % 5 - 2);
            (0..dim)
                .map(|at| {
                    if at + 1 == dim {
                        3.0
                    } else {
                        100.0 * of(at) + next() * of(at)
                    }
                })
                .collect::<Vec<f32>>()
        };
        (0..count).flat_map(row).collect()
    }

    fn rounding(dim: usize) -> Rounding {
        let training = Training::default();
        Rounding::of(&ProductQuantizer::train(&rows(400, dim), dim, 4, &training).unwrap())
    }

    #[test]
    fn each_dimension_is_off_by_little_of_its_own_scale() {
        let (dim, rounding) = (13, rounding(13));
        let all = rows(500, dim);
        let mut vector = vec![0.0; dim];
        for row in all.chunks_exact(dim).skip(400) {
            let mut bytes = vec![7];
            rounding.append(row, &mut bytes);
            assert_eq!(bytes.len(), 1 + Rounding::bytes_of(dim));
            assert!(rounding.read(&bytes[1..], &mut vector));
            for (at, (x, y)) in row.iter().zip(&vector).enumerate() {
                // Rows are within 2 spreads of the mean, and a step is a 127th of 2 spreads.
                let scale = if at + 1 == dim {
                    0.0
                } else {
                    10f32.powi(at as i32 % 5 - 2)
                };
                assert!((x - y).abs() <= 0.006 * scale, "{at}: {x} {y}");
            }
            let mut again = Vec::new();
            rounding.append(&vector, &mut again);
            let same = again.iter().zip(&bytes[1..]).skip(4);
            assert!(
                same.clone()
                    .all(|(a, b)| (*a as i8).abs_diff(*b as i8) <= 1)
            );
        }
    }

    #[test]
    fn bytes_that_are_none_are_refused() {
        let rounding = rounding(6);
        let mut vector = vec![0.0; 6];
        let mut bytes = Vec::new();
        rounding.append(&[0.0; 6], &mut bytes);
        assert!(rounding.read(&bytes, &mut vector));
        assert!(!rounding.read(&bytes[1..], &mut vector));
        assert!(!rounding.read(&[], &mut vector));
        for factor in [f32::NAN, f32::INFINITY, f32::MAX] {
            bytes[..4].copy_from_slice(&factor.to_le_bytes());
            bytes[4..].fill(127);
            assert!(!rounding.read(&bytes, &mut vector), "{factor}");
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..20), row in prop::collection::vec(-1e30f32..1e30, 6)) {
            let rounding = rounding(6);
            let mut vector = vec![0.0; 6];
            if rounding.read(&bytes, &mut vector) {
                prop_assert!(vector.iter().all(|x| x.is_finite()));
            }
            let mut out = Vec::new();
            rounding.append(&row, &mut out);
            prop_assert!(rounding.read(&out, &mut vector));
        }
    }
}
