//! Training of one chunk's centroids, by k-means++ and Lloyd's iterations. Random choices follow
//! from the seed and the chunk, and sums have a fixed order. So the result does not depend on
//! threads or the processor.

use std::sync::Arc;

use crate::aligned::AlignedFloats;
use crate::kernel::Routines;
use crate::kernel::body::LANES;
use crate::kernel::codes::{BLOCK, Codebook, Points};
use crate::quantiser::{CENTROIDS, transpose};

/// The parameters of a training.
#[derive(Clone, Debug)]
pub struct Training {
    /// The most iterations of Lloyd's algorithm. Training ends earlier if an iteration changes no
    /// code.
    pub iterations: usize,
    /// Training also ends if an iteration reduces the squared error by less than this share.
    pub least_gain: f64,
    /// The seed of the choice of the first centroids.
    pub seed: u64,
    /// Threads that share the chunks; 0 counts as 1.
    pub threads: usize,
    /// The weight of each sample vector's squared error, positive and finite.
    pub weights: Option<Arc<[f32]>>,
}

impl Default for Training {
    fn default() -> Training {
        Training {
            iterations: 12,
            least_gain: 0.0,
            seed: 0,
            threads: 1,
            weights: None,
        }
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

struct Chunk<'a> {
    points: Vec<f32>,
    count: usize,
    width: usize,
    weights: Option<&'a [f32]>,
}

impl Chunk<'_> {
    fn point(&self, i: usize) -> &[f32] {
        &self.points[i * self.width..][..self.width]
    }
}

/// Trains centroids, `[256][width]`, of dimensions `first .. first + width`.
pub(crate) fn train_chunk(
    routines: &Routines,
    sample: &[f32],
    dim: usize,
    first: usize,
    width: usize,
    training: &Training,
) -> Vec<f32> {
    let points: Vec<f32> = sample
        .chunks_exact(dim)
        .flat_map(|v| &v[first..first + width])
        .copied()
        .collect();
    let chunk = Chunk {
        count: points.len() / width,
        points,
        width,
        weights: training.weights.as_deref(),
    };
    let mut random = Random(training.seed);
    random.0 = random.next() ^ first as u64;

    let mut centroids = choose(routines, &chunk, &mut random);
    if centroids.len() < CENTROIDS * width {
        // Every point is a centroid, so no iteration would move a centroid. Copies of the first
        // centroid get no points, because ties go to the lowest number.
        let first = centroids[..width].to_vec();
        while centroids.len() < CENTROIDS * width {
            centroids.extend_from_slice(&first);
        }
        return centroids;
    }
    let mut transposed = AlignedFloats::zeros(centroids.len());
    let mut codes = vec![0u8; chunk.count];
    let mut previous = Vec::new();
    let mut last_error = f64::INFINITY;
    let mut distances = vec![0f32; chunk.count];
    for _ in 0..training.iterations {
        transpose(&centroids, width, &mut transposed);
        let book = Codebook {
            transposed: transposed.as_ptr(),
            width,
        };
        let points = Points {
            start: chunk.points.as_ptr(),
            stride: width,
            count: chunk.count,
        };
        // SAFETY: the book has `width * 256` floats. There are `count` points of `width` floats,
        // with a code and a distance for each point. `Routines::of` confirmed that the processor
        // has the instruction set.
        unsafe { (routines.assign)(book, points, codes.as_mut_ptr(), 1, distances.as_mut_ptr()) }
        if codes == previous {
            break;
        }
        previous.clone_from(&codes);
        if let Some(weights) = chunk.weights {
            scale(&mut distances, weights);
        }
        let error: f64 = distances.iter().map(|&x| f64::from(x)).sum();
        move_to_means(&chunk, &codes, &mut distances, &mut centroids);
        if error > last_error * (1.0 - training.least_gain) {
            break;
        }
        last_error = error;
    }
    centroids
}

fn scale(distances: &mut [f32], weights: &[f32]) {
    for (distance, weight) in distances.iter_mut().zip(weights) {
        *distance *= weight;
    }
}

/// K-means++: the probability of a point is its weight times its squared distance to the nearest
/// centroid. If the points have fewer than 256 distinct values, the result has each value once.
fn choose(routines: &Routines, chunk: &Chunk, random: &mut Random) -> Vec<f32> {
    let Chunk {
        count,
        width,
        weights,
        ..
    } = *chunk;
    let padded = count.next_multiple_of(LANES);
    let mut transposed = AlignedFloats::zeros(padded * width);
    transpose(&chunk.points, width, &mut transposed);
    // The distances of the padding are 0 from the beginning, so padding is never chosen.
    let mut least = vec![f32::INFINITY; count];
    least.resize(padded, 0.0);
    let mut sums = vec![0.0; padded.div_ceil(BLOCK)];
    let mut weighted = Vec::new();

    let mut chosen = random.below(count);
    let mut centroids = chunk.point(chosen).to_vec();
    while centroids.len() < CENTROIDS * width {
        let centre = chunk.point(chosen);
        // SAFETY: `padded` is a multiple of 16; `transposed` has `padded` points of `width`
        // components, component after component; `least` has one float for each point, and `sums`
        // one for each block; the processor has the instruction set.
        unsafe {
            (routines.approach)(
                transposed.as_ptr(),
                padded,
                width,
                centre.as_ptr(),
                least.as_mut_ptr(),
                sums.as_mut_ptr(),
            );
        }
        let next = match weights {
            None => draw(&least[..count], &sums, random),
            Some(weights) => {
                weighted.clear();
                weighted.extend_from_slice(&least[..count]);
                scale(&mut weighted, weights);
                for (sum, block) in sums.iter_mut().zip(weighted.chunks(BLOCK)) {
                    *sum = block.iter().sum();
                }
                draw(&weighted, &sums, random)
            }
        };
        match next {
            Some(next) => {
                chosen = next;
                centroids.extend_from_slice(chunk.point(next));
            }
            None => break,
        }
    }
    centroids
}

/// Draws an index, whose probability is its share of the weights; `None` if all weights are zero.
/// `sums` has the sum of each block.
fn draw(weights: &[f32], sums: &[f32], random: &mut Random) -> Option<usize> {
    let total: f64 = sums.iter().map(|sum| f64::from(*sum)).sum();
    if total.is_infinite() {
        return draw_far(weights, random);
    }
    let mut left = random.fraction() * total;
    let mut fallback = None;
    for (block, (weights, sum)) in weights.chunks(BLOCK).zip(sums).enumerate() {
        if left >= f64::from(*sum) && block + 1 < sums.len() {
            left -= f64::from(*sum);
            if *sum > 0.0 {
                fallback = weights
                    .iter()
                    .rposition(|weight| *weight > 0.0)
                    .map(|i| block * BLOCK + i);
            }
            continue;
        }
        for (i, weight) in weights.iter().enumerate() {
            if *weight > 0.0 {
                if left < f64::from(*weight) {
                    return Some(block * BLOCK + i);
                }
                left -= f64::from(*weight);
                // If rounding carries the search past the end, the last point of positive weight is
                // drawn.
                fallback = Some(block * BLOCK + i);
            }
        }
    }
    fallback
}

/// Like `draw`, for weights that overflow in f32, by themselves or in their sums.
fn draw_far(weights: &[f32], random: &mut Random) -> Option<usize> {
    let far = weights.iter().filter(|weight| weight.is_infinite()).count();
    if far > 0 {
        // The proportions are lost, so one of the infinitely far points is drawn at random.
        let nth = random.below(far);
        let far = weights
            .iter()
            .enumerate()
            .filter(|(_, weight)| weight.is_infinite());
        return far.map(|(i, _)| i).nth(nth);
    }
    let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    let mut left = random.fraction() * total;
    let mut last = None;
    for (i, weight) in weights
        .iter()
        .enumerate()
        .filter(|(_, weight)| **weight > 0.0)
    {
        if left < f64::from(*weight) {
            return Some(i);
        }
        left -= f64::from(*weight);
        last = Some(i);
    }
    last
}

/// Moves each centroid to the mean of its points. A centroid without points moves to the point with
/// the largest weighted distance to its centroid.
fn move_to_means(chunk: &Chunk, codes: &[u8], distances: &mut [f32], centroids: &mut [f32]) {
    let width = chunk.width;
    let mut sums = vec![0f64; CENTROIDS * width];
    let mut counts = [0f64; CENTROIDS];
    for (i, (point, code)) in chunk.points.chunks_exact(width).zip(codes).enumerate() {
        let code = usize::from(*code);
        let weight = chunk.weights.map_or(1.0, |weights| f64::from(weights[i]));
        counts[code] += weight;
        for (sum, x) in sums[code * width..][..width].iter_mut().zip(point) {
            *sum += weight * f64::from(*x);
        }
    }
    for (c, centroid) in centroids.chunks_exact_mut(width).enumerate() {
        if counts[c] > 0.0 {
            for (x, sum) in centroid.iter_mut().zip(&sums[c * width..]) {
                *x = (*sum / counts[c]) as f32;
            }
            continue;
        }
        let mut farthest = 0;
        for (i, distance) in distances.iter().enumerate() {
            if *distance > distances[farthest] {
                farthest = i;
            }
        }
        if distances[farthest] > 0.0 {
            distances[farthest] = 0.0;
            centroid.copy_from_slice(chunk.point(farthest));
        }
    }
}
