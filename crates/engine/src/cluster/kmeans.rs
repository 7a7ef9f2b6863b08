//! Balanced hierarchical k-means, which divides rows until a part is small enough to be a cluster.
//!
//! ```text
//!   100,000 ──> 16 parts ──> 16 parts of each ──> ... ──> clusters of about `size` rows
//!                 means by Lloyd's rounds on a sample of the part; a mean that attracts more
//!                 than its share counts as farther away
//! ```
//!
//! Consecutive clusters are near each other, so the members of near clusters have near node
//! numbers.

use stratann_vector::{Element, Kernel, Metric};

use super::{CHUNK, PointRows, go_on};
use crate::graph::random::Random;
use crate::progress::{Progress, Stage};
use crate::{Error, threads};

const BRANCHES: usize = 16;
const SAMPLE_A_MEAN: usize = 192;
const ROUNDS: usize = 10;
/// All threads together divide a part with more rows than this. One thread divides a smaller part.
const LARGE: usize = 1 << 15;
/// The exponent of the load in the update of a mean's weight. The load is a mean's number of rows,
/// relative to an even share.
const BALANCE: f32 = 0.5;
/// The largest factor by which a weight may differ from 1.
const MOST_WEIGHT: f32 = 4.0;

pub(crate) struct Partition {
    /// The head of each cluster, which is a row. No row is the head of two clusters.
    pub(crate) heads: Vec<u32>,
    pub(crate) largest: usize,
}

pub(crate) fn partition(
    rows: &PointRows<'_>,
    size: usize,
    seed: u64,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Partition, Error> {
    let count = rows.source.rows();
    let _stage = Stage::begin(progress, "clustering", count as u64);
    let divider = Divider {
        rows,
        size,
        seed,
        progress,
    };
    let mut order: Vec<u32> = (0..count as u32).collect();
    let mut small: Vec<&mut [u32]> = Vec::new();
    let mut parts: Vec<(&mut [u32], u64)> = vec![(&mut order, 0)];
    while let Some((part, path)) = parts.pop() {
        if part.len() <= LARGE {
            small.push(part);
            continue;
        }
        let divided = divider.divide(part, path, threads)?;
        // The parts are pushed in reverse, so that the first part is taken from the stack first.
        parts.extend(divided.into_iter().rev());
    }
    let divide = |part: &mut [u32]| {
        let path = part.first().map_or(0, |&row| u64::from(row) + 1);
        let mut found = Vec::new();
        divider.clusters(part, path, &mut found).map(|()| found)
    };
    let helpers = threads.saturating_sub(1);
    let (clusters, ()) = threads::shared_beside(small.into_iter(), helpers, divide, || ());
    let mut partition = Partition {
        heads: Vec::with_capacity(count / size.max(1)),
        largest: 0,
    };
    for found in clusters {
        for (head, rows) in found? {
            partition.heads.push(head);
            partition.largest = partition.largest.max(rows);
        }
    }
    Ok(partition)
}

pub(crate) fn most_of(size: usize) -> usize {
    size + size / 2
}

/// Divides at least two rows into two clusters, and returns their heads. If a cluster would have
/// fewer than `least` rows, the rows are sorted by nearness to the two heads, and cut in the
/// middle. If all rows are equal, so are the heads.
pub(crate) fn halves(
    rows: &PointRows<'_>,
    least: usize,
    seed: u64,
    progress: &dyn Progress,
) -> Result<[u32; 2], Error> {
    let count = rows.source.rows();
    let divider = Divider {
        rows,
        size: count.div_ceil(2).max(1),
        seed,
        progress,
    };
    let mut order: Vec<u32> = (0..count as u32).collect();
    let parts = divider.divide(&mut order, 0, 1)?;
    let of = |at: usize| parts.get(at).map_or(&parts[0].0[..], |part| &part.0[..]);
    let heads = [divider.head(of(0))?, divider.head(of(1))?];
    if parts.len() > 1 && of(0).len().min(of(1).len()) >= least {
        return Ok(heads);
    }
    drop(parts);
    let kernel = Kernel::new(Metric::L2, Element::F32, rows.space.build_dim());
    let (floats, points) = (rows.floats(&heads)?, rows.floats(&order)?);
    let (first, second) = floats.split_at(kernel.row_bytes());
    let nearer_to_the_first =
        |point: &[u8]| kernel.distance(first, point) - kernel.distance(second, point);
    let points = points.chunks_exact(kernel.row_bytes());
    let mut ranked: Vec<(f32, u32)> = points.map(nearer_to_the_first).zip(order).collect();
    ranked.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let sorted: Vec<u32> = ranked.into_iter().map(|(_, row)| row).collect();
    let (first, second) = sorted.split_at(count / 2);
    Ok([divider.head(first)?, divider.head(second)?])
}

struct Divider<'a> {
    rows: &'a PointRows<'a>,
    size: usize,
    seed: u64,
    progress: &'a dyn Progress,
}

/// A part, and the path to it from the root. The path seeds the random choices for the part.
type Part<'p> = (&'p mut [u32], u64);

impl Divider<'_> {
    fn clusters(
        &self,
        part: &mut [u32],
        path: u64,
        out: &mut Vec<(u32, usize)>,
    ) -> Result<(), Error> {
        go_on(self.progress)?;
        if part.len() <= self.most() {
            out.push((self.head(part)?, part.len()));
            self.progress.advance(part.len() as u64);
            return Ok(());
        }
        for (part, path) in self.divide(part, path, 1)? {
            self.clusters(part, path, out)?;
        }
        Ok(())
    }

    fn most(&self) -> usize {
        most_of(self.size)
    }

    fn divide<'p>(
        &self,
        part: &'p mut [u32],
        path: u64,
        threads: usize,
    ) -> Result<Vec<Part<'p>>, Error> {
        go_on(self.progress)?;
        let count = part.len().div_ceil(self.size).clamp(2, BRANCHES);
        let mut random = Random::derived(self.seed, path);
        let means = self.means(part, count, &mut random)?;
        let labels = self.labels(part, &means, threads)?;
        let mut sizes = vec![0; count];
        for &label in &labels {
            sizes[usize::from(label)] += 1;
        }
        let largest = sizes.iter().copied().max().unwrap_or(0);
        if largest == part.len() {
            // All rows are nearest to the same mean, so the part is cut into equal pieces.
            let each = part.len().div_ceil(count);
            let pieces = part.chunks_mut(each).zip(1..);
            return Ok(pieces
                .map(|(piece, n)| (piece, next_path(path, n)))
                .collect());
        }
        // Rows are read in the order of the source, which suits a file's read-ahead.
        let mut sorted: Vec<(u8, u32)> = labels.into_iter().zip(part.iter().copied()).collect();
        sorted.sort_unstable();
        for (place, (_, row)) in part.iter_mut().zip(sorted) {
            *place = row;
        }
        let (mut rest, mut parts) = (part, Vec::with_capacity(count));
        for (n, size) in (1..).zip(sizes) {
            let (now, later) = rest.split_at_mut(size);
            if size > 0 {
                parts.push((now, next_path(path, n)));
            }
            rest = later;
        }
        Ok(parts)
    }

    /// Consecutive means are near each other.
    fn means(&self, part: &[u32], count: usize, random: &mut Random) -> Result<Means, Error> {
        let wanted = (count * SAMPLE_A_MEAN).min(part.len());
        let start = random.below(part.len());
        let sampled = (0..wanted).map(|i| (start + i * part.len() / wanted) % part.len());
        let mut sample: Vec<u32> = sampled.map(|at| part[at]).collect();
        sample.sort_unstable();
        let floats = self.rows.floats(&sample)?;
        let dim = self.rows.space.build_dim();
        let mut means = Means::start(&floats, dim, count, random);
        for _ in 0..ROUNDS {
            means.improve(&floats);
        }
        means.chain();
        Ok(means)
    }

    fn labels(&self, part: &[u32], means: &Means, threads: usize) -> Result<Vec<u8>, Error> {
        let each = part.len().div_ceil(threads.max(1)).next_multiple_of(CHUNK);
        let labelled = threads::shared(part.chunks(each), |share| {
            let (mut labels, mut floats) = (Vec::with_capacity(share.len()), Vec::new());
            let mut distances = vec![0.0; means.count()];
            self.rows.each_chunk(share, |_, rows| {
                floats.clear();
                self.rows.push_floats(rows, &mut floats);
                let points = floats.chunks_exact(means.kernel.row_bytes());
                labels.extend(points.map(|point| means.nearest(point, &mut distances) as u8));
            })?;
            Ok::<_, Error>(labels)
        });
        let mut labels = Vec::with_capacity(part.len());
        for share in labelled {
            labels.extend(share?);
        }
        Ok(labels)
    }

    fn head(&self, cluster: &[u32]) -> Result<u32, Error> {
        let floats = self.rows.floats(cluster)?;
        let kernel = Kernel::new(Metric::L2, Element::F32, self.rows.space.build_dim());
        let mut sum = vec![0.0; kernel.dim()];
        for point in floats.chunks_exact(kernel.row_bytes()) {
            add(&mut sum, point);
        }
        let mean = scaled(&sum, cluster.len());
        let mut distances = vec![0.0; cluster.len()];
        kernel.distances_dense(&mean, &floats, &mut distances);
        let nearest = distances
            .iter()
            .zip(cluster)
            .min_by(|a, b| a.0.total_cmp(b.0));
        // A part has at least one row.
        Ok(nearest.map_or(cluster[0], |(_, &row)| row))
    }
}

fn next_path(path: u64, n: u64) -> u64 {
    path.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(n)
}

struct Means {
    kernel: Kernel,
    points: Vec<u8>,
    /// The factor on the distance to each mean.
    weights: Vec<f32>,
}

impl Means {
    /// Initial means by k-means++.
    fn start(sample: &[u8], dim: usize, count: usize, random: &mut Random) -> Self {
        let kernel = Kernel::new(Metric::L2, Element::F32, dim);
        let rows = sample.len() / kernel.row_bytes();
        let point = |at: usize| &sample[at * kernel.row_bytes()..][..kernel.row_bytes()];
        let mut points = point(random.below(rows)).to_vec();
        let mut least = vec![f32::INFINITY; rows];
        let mut distances = vec![0.0; rows];
        for n in 1..count {
            kernel.distances_dense(
                &points[(n - 1) * kernel.row_bytes()..],
                sample,
                &mut distances,
            );
            for (least, &distance) in least.iter_mut().zip(&distances) {
                *least = least.min(distance);
            }
            let total: f64 = least.iter().map(|&d| f64::from(d)).sum();
            // The upper 53 bits become a number from 0 to 1.
            let mut left = (random.next() >> 11) as f64 / (1u64 << 53) as f64 * total;
            let drawn = least.iter().position(|&d| {
                left -= f64::from(d);
                left < 0.0
            });
            points.extend_from_slice(point(drawn.unwrap_or(n % rows)));
        }
        Self {
            kernel,
            points,
            weights: vec![1.0; count],
        }
    }

    fn count(&self) -> usize {
        self.weights.len()
    }

    fn nearest(&self, point: &[u8], distances: &mut [f32]) -> usize {
        self.kernel.distances_dense(point, &self.points, distances);
        let weighted = distances.iter().zip(&self.weights).map(|(d, w)| d * w);
        let nearest = weighted.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
        nearest.map_or(0, |(at, _)| at)
    }

    /// Does one round of Lloyd's algorithm. The weight of a mean grows with the number of points
    /// that it attracts.
    fn improve(&mut self, sample: &[u8]) {
        let (dim, count) = (self.kernel.dim(), self.count());
        let mut sums = vec![0.0; count * dim];
        let mut sizes = vec![0usize; count];
        let mut distances = vec![0.0; count];
        for point in sample.chunks_exact(self.kernel.row_bytes()) {
            let at = self.nearest(point, &mut distances);
            add(&mut sums[at * dim..(at + 1) * dim], point);
            sizes[at] += 1;
        }
        let share = sizes.iter().sum::<usize>() as f32 / count as f32;
        for (at, &size) in sizes.iter().enumerate() {
            // A mean that attracts no point keeps its position, and its weight falls.
            if size > 0 {
                let mean = scaled(&sums[at * dim..(at + 1) * dim], size);
                self.points[at * mean.len()..(at + 1) * mean.len()].copy_from_slice(&mean);
            }
            let load = (size as f32 / share).max(0.1);
            let weight = self.weights[at] * load.powf(BALANCE);
            self.weights[at] = weight.clamp(1.0 / MOST_WEIGHT, MOST_WEIGHT);
        }
    }

    /// Reorders the means: after each mean comes the nearest of the remaining means.
    fn chain(&mut self) {
        let (bytes, count) = (self.kernel.row_bytes(), self.count());
        let point = |at: usize| &self.points[at * bytes..(at + 1) * bytes];
        let (mut left, mut chain) = ((1..count).collect::<Vec<_>>(), vec![0]);
        while !left.is_empty() {
            let last = point(chain[chain.len() - 1]);
            let distances = left.iter().map(|&at| self.kernel.distance(last, point(at)));
            let nearest = distances.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
            chain.push(left.remove(nearest.map_or(0, |(place, _)| place)));
        }
        self.points = chain.iter().flat_map(|&at| point(at)).copied().collect();
        self.weights = chain.iter().map(|&at| self.weights[at]).collect();
    }
}

fn add(sum: &mut [f64], point: &[u8]) {
    for (sum, value) in sum.iter_mut().zip(point.chunks_exact(4)) {
        *sum += f64::from(f32::from_le_bytes([value[0], value[1], value[2], value[3]]));
    }
}

fn scaled(sum: &[f64], count: usize) -> Vec<u8> {
    let values = sum.iter().map(|sum| (sum / count as f64) as f32);
    values.flat_map(f32::to_le_bytes).collect()
}
