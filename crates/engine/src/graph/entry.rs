//! Finds the entry point: the row nearest to the mean, which approximates the medoid.

use super::points::Points;
use super::random::Random;
use crate::threads;

/// The most rows from which the mean is computed.
const SAMPLE: usize = 100_000;

/// The row nearest to the mean of all rows, or of a sample, ties by lower number. Searches start at
/// this row.
///
/// # Panics
/// Panics if there are no rows.
pub fn medoid(points: &Points<'_>, threads: usize, seed: u64) -> u32 {
    assert!(points.rows() > 0, "no rows, no medoid");
    let mut mean = vec![0.0f64; points.dim()];
    let mut row = vec![0.0f32; points.dim()];
    let sample = Random::derived(seed, 0x6D65_646F_6964).sample(points.rows(), SAMPLE);
    for &id in &sample {
        points.floats(id as u32, &mut row);
        for (sum, &value) in mean.iter_mut().zip(&row) {
            *sum += f64::from(value);
        }
    }
    let mean: Vec<f32> = mean
        .iter()
        .map(|sum| (sum / sample.len() as f64) as f32)
        .collect();
    let threads = threads.clamp(1, points.rows());
    let share = points.rows().div_ceil(threads);
    let nearest = threads::shared(0..threads, |thread| {
        let mut row = vec![0.0f32; points.dim()];
        let mut best = (f32::INFINITY, u32::MAX);
        for id in thread * share..points.rows().min((thread + 1) * share) {
            points.floats(id as u32, &mut row);
            let distance: f32 = row.iter().zip(&mean).map(|(a, b)| (a - b) * (a - b)).sum();
            if distance < best.0 || best.1 == u32::MAX {
                best = (distance, id as u32);
            }
        }
        best
    });
    let nearest = nearest
        .into_iter()
        .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    nearest.map_or(0, |(_, id)| id)
}
