//! Exact search: compares every query with every row.
//!
//! ```text
//! base ──4 MiB at a time──> block i+1 being read
//!                           block i  ──tile by tile (L2 cache)──> thread 0: queries 0..q
//!                                                             └─> thread 1: queries q..2q  ...
//! ```
//!
//! Each thread keeps the k nearest rows of its own queries, so threads share only the block.

use super::DataError;
use super::source::{Matrix, VectorSource, check_rows};
use super::truth::GroundTruth;
use crate::bounds;
use crate::progress::{Progress, Stage};
use crate::threads;
use std::collections::BinaryHeap;
use stratann_tier::ask_for_memory;
use stratann_vector::{Kernel, Metric};

/// The bytes of a block of the base. While one block is searched, the next block is read.
const BLOCK: usize = 4 << 20;

/// A part of a block. It stays in the L2 cache while a thread compares it with all of its queries.
const TILE: usize = 128 << 10;

/// Finds the `k` nearest rows of `base` for each query, in order of distance and then of row
/// number. If the base has fewer than `k` rows, a missing neighbour has the id 2^64 - 1 and an
/// infinite distance.
///
/// The call fails if `k` is zero, or larger than both the number of rows and
/// [`MOST_PADDED`](bounds::MOST_PADDED), or if another number is beyond its [`bounds`]. It fails if
/// queries and base have different dimensions or element types, or if an element is NaN or
/// infinite. Under cosine, it also fails for vectors without a direction.
pub fn brute_force(
    base: &dyn VectorSource,
    queries: &dyn VectorSource,
    k: usize,
    metric: Metric,
    threads: usize,
    progress: &dyn Progress,
) -> Result<GroundTruth, DataError> {
    check_brute_force(base, queries, k, threads)?;
    let (count, row_bytes) = (queries.rows(), queries.row_bytes());
    ask(base, queries, k, threads)?;
    let queries = Matrix::read(queries)?;
    check_rows(&queries, metric, 0, queries.bytes())?;

    let kernel = Kernel::new(metric, base.element(), base.dim());
    let share = count.div_ceil(threads.clamp(1, count));
    let mut workers: Vec<Worker> = queries
        .bytes()
        .chunks(share * row_bytes)
        .map(|queries| Worker::new(kernel, queries, row_bytes, k.min(base.rows())))
        .collect();

    let work = (base.rows() as u64).saturating_mul(count as u64);
    let _stage = Stage::begin(progress, "exact search", work);
    let step = (BLOCK / row_bytes).max(1).min(base.rows());
    let mut block = vec![0; step * row_bytes];
    let mut ahead = vec![0; step * row_bytes];
    read_block(base, metric, 0, &mut block)?;
    for first in (0..base.rows()).step_by(step) {
        let next = first + step;
        let length = step.min(base.rows() - first) * row_bytes;
        let length_ahead = step.min(base.rows().saturating_sub(next)) * row_bytes;
        let (block_now, helpers) = (&block[..length], workers.len());
        let scan = |worker: &mut Worker<'_>| worker.scan(first as u32, block_now, progress);
        let read = || read_block(base, metric, next, &mut ahead[..length_ahead]);
        let (_, read) = threads::shared_beside(workers.iter_mut(), helpers, scan, read);
        read?;
        if progress.interrupted() {
            return Err(DataError::Interrupted);
        }
        std::mem::swap(&mut block, &mut ahead);
    }

    let mut ids = Vec::with_capacity(count * k);
    let mut distances = Vec::with_capacity(count * k);
    for best in workers.into_iter().flat_map(|worker| worker.best) {
        for key in best.into_sorted_vec() {
            ids.push(u64::from(key as u32));
            distances.push(distance_of(key));
        }
        ids.resize(ids.len().next_multiple_of(k), u64::MAX);
        distances.resize(ids.len(), f32::INFINITY);
    }
    Ok(GroundTruth {
        queries: count,
        k,
        ids,
        distances: Some(distances),
    })
}

/// Makes the checks of [`brute_force`] that read no vectors. [Outlines](super::Outline), which have
/// a shape but no rows, suffice as sources.
///
/// # Errors
/// The call fails as [`brute_force`] does for arguments and shapes.
pub fn check_brute_force(
    base: &dyn VectorSource,
    queries: &dyn VectorSource,
    k: usize,
    threads: usize,
) -> Result<(), DataError> {
    let rows = format!("the number of rows of {}", base.name());
    let (most, what) = bounds::most_answers(base.rows(), &rows);
    if k == 0 || k > most {
        let reason = format!("it can be 1 to {most}, {what}");
        let remedy = format!("Pass 1 to {most}");
        return Err(DataError::argument("k", k, reason, remedy));
    }
    if u32::try_from(base.rows()).is_err() {
        let reason = "ground truth has 32 bits for an id, so at most 4294967295 are possible";
        let (what, remedy) = ("the number of rows", "Search the rows in several parts");
        return Err(DataError::argument(what, base.rows(), reason, remedy));
    }
    let answers = k.checked_mul(queries.rows());
    if answers.is_none_or(|answers| answers > bounds::MOST_ANSWERS) {
        return Err(DataError::argument(
            "k times queries",
            format!("{k} times {}", queries.rows()),
            format!("one call returns at most {} answers", bounds::MOST_ANSWERS),
            "Search in smaller batches",
        ));
    }
    if !(1..=bounds::MOST_THREADS).contains(&threads) {
        let reason = format!("a call uses 1 to {} threads", bounds::MOST_THREADS);
        let (what, remedy) = ("the number of threads", "Pass a number in this range");
        return Err(DataError::argument(what, threads, reason, remedy));
    }
    let mismatch = |what, found: String, expected: String| DataError::Mismatch {
        name: queries.name().to_owned(),
        other: base.name().to_owned(),
        what,
        found,
        expected,
    };
    if base.dim() != queries.dim() {
        return Err(mismatch(
            "the dimension",
            queries.dim().to_string(),
            base.dim().to_string(),
        ));
    }
    if base.element() != queries.element() {
        let (found, expected) = (queries.element(), base.element());
        return Err(mismatch(
            "the element type",
            found.to_string(),
            expected.to_string(),
        ));
    }
    Ok(())
}

/// Asks for the memory of an exact search. For each query, the table of nearest rows grows by
/// doubling.
fn ask(
    base: &dyn VectorSource,
    queries: &dyn VectorSource,
    k: usize,
    threads: usize,
) -> Result<(), DataError> {
    let (count, row_bytes) = (queries.rows() as u64, queries.row_bytes() as u64);
    let threads = threads.clamp(1, queries.rows().max(1));
    let block = (BLOCK as u64)
        .max(row_bytes)
        .min((base.rows() as u64).saturating_mul(row_bytes));
    let best = 2 * 8 * (k.min(base.rows()) as u64 + 1);
    let answers = k as u64 * (8 + 4);
    let bytes = count.saturating_mul(row_bytes.saturating_add(best + answers));
    let beside = threads as u64 * TILE as u64 + threads::stacks(threads);
    ask_for_memory(
        format!("an exact search for {k} neighbours of {count} queries"),
        bytes
            .saturating_add(beside)
            .saturating_add(block.saturating_mul(2)),
        "search with fewer queries or threads at a time",
    )
    .map_err(DataError::Memory)
}

fn read_block(
    base: &dyn VectorSource,
    metric: Metric,
    first: usize,
    out: &mut [u8],
) -> Result<(), DataError> {
    if out.is_empty() {
        return Ok(());
    }
    base.read(first, out)?;
    check_rows(base, metric, first, out)
}

struct Worker<'a> {
    kernel: Kernel,
    queries: &'a [u8],
    row_bytes: usize,
    k: usize,
    /// For each query, a heap of the k smallest keys. The largest key is on top.
    best: Vec<BinaryHeap<u64>>,
    distances: Vec<f32>,
}

impl<'a> Worker<'a> {
    fn new(kernel: Kernel, queries: &'a [u8], row_bytes: usize, k: usize) -> Worker<'a> {
        let tile_rows = (TILE / row_bytes).max(1);
        Worker {
            kernel,
            queries,
            row_bytes,
            k,
            best: vec![BinaryHeap::with_capacity(k + 1); queries.len() / row_bytes],
            distances: vec![0.0; tile_rows],
        }
    }

    fn scan(&mut self, mut first: u32, block: &[u8], progress: &dyn Progress) {
        for tile in block.chunks(self.distances.len() * self.row_bytes) {
            if progress.interrupted() {
                return;
            }
            let rows = tile.len() / self.row_bytes;
            let distances = &mut self.distances[..rows];
            for (query, best) in self
                .queries
                .chunks_exact(self.row_bytes)
                .zip(&mut self.best)
            {
                self.kernel.distances_dense(query, tile, distances);
                keep_best(best, self.k, first, distances);
            }
            progress.advance(rows as u64 * self.best.len() as u64);
            first += rows as u32;
        }
    }
}

fn keep_best(best: &mut BinaryHeap<u64>, k: usize, first: u32, distances: &[f32]) {
    let mut limit = match best.peek() {
        Some(&worst) if best.len() == k => worst,
        _ => u64::MAX,
    };
    let mut limit_distance = if limit == u64::MAX {
        f32::INFINITY
    } else {
        distance_of(limit)
    };
    for (at, &distance) in distances.iter().enumerate() {
        // If distances are equal, the earlier row comes first. Almost all rows are rejected before
        // a key is made.
        if distance >= limit_distance && limit != u64::MAX {
            continue;
        }
        let key = key_of(distance, first + at as u32);
        if key >= limit {
            continue;
        }
        best.push(key);
        if best.len() > k {
            best.pop();
        }
        if best.len() == k
            && let Some(&worst) = best.peek()
        {
            limit = worst;
            limit_distance = distance_of(worst);
        }
    }
}

/// Sorts by distance and then by row. NaN sorts last.
fn key_of(distance: f32, row: u32) -> u64 {
    // The addition of zero turns -0 into 0.
    let distance = if distance.is_nan() {
        f32::INFINITY
    } else {
        distance + 0.0
    };
    let bits = distance.to_bits();
    let ordered = if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    };
    u64::from(ordered) << 32 | u64::from(row)
}

fn distance_of(key: u64) -> f32 {
    let ordered = (key >> 32) as u32;
    f32::from_bits(if ordered >> 31 == 1 {
        ordered & !(1 << 31)
    } else {
        !ordered
    })
}

#[cfg(test)]
mod tests {
    use super::super::MatrixRef;
    use super::*;
    use crate::progress::Silent;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use stratann_vector::Element;

    fn matrix(rows: usize, dim: usize, element: Element, seed: u64) -> Matrix {
        let mut state = seed;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        let bytes = (0..rows * dim).flat_map(|_| {
            let value = next() % 7 + 1;
            match element {
                Element::F32 => (value as f32 - 3.5).to_le_bytes().to_vec(),
                // The value 0x3c00 is 1.0. An addition of 0x400 doubles it.
                Element::F16 => (0x3c00 + 0x400 * (value % 3) as u16).to_le_bytes().to_vec(),
                Element::U8 | Element::I8 => vec![value as u8],
            }
        });
        Matrix::new(bytes.collect(), rows, dim, element).unwrap()
    }

    fn by_sorting(base: &Matrix, queries: &Matrix, k: usize, metric: Metric) -> GroundTruth {
        let kernel = Kernel::new(metric, base.element(), base.dim());
        let (mut ids, mut distances) = (Vec::new(), Vec::new());
        for query in 0..queries.rows() {
            let mut all: Vec<(f32, u32)> = (0..base.rows())
                .map(|row| {
                    (
                        kernel.distance(queries.row(query), base.row(row)) + 0.0,
                        row as u32,
                    )
                })
                .collect();
            all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            ids.extend(all[..k].iter().map(|best| u64::from(best.1)));
            distances.extend(all[..k].iter().map(|best| best.0));
        }
        GroundTruth {
            queries: queries.rows(),
            k,
            ids,
            distances: Some(distances),
        }
    }

    #[test]
    fn keys_sort_like_distance_then_row() {
        let distances = [
            f32::NEG_INFINITY,
            -1e30,
            -1.0,
            -1e-40,
            0.0,
            1e-40,
            0.5,
            3e38,
            f32::INFINITY,
        ];
        for pair in distances.windows(2) {
            assert!(key_of(pair[0], u32::MAX) < key_of(pair[1], 0), "{pair:?}");
        }
        for distance in distances {
            assert_eq!(distance_of(key_of(distance, 7)), distance);
            assert!(key_of(distance, 7) < key_of(distance, 8));
        }
        assert_eq!(key_of(-0.0, 3), key_of(0.0, 3));
        assert_eq!(key_of(f32::NAN, 3), key_of(f32::INFINITY, 3));
        assert_eq!(key_of(-f32::NAN, 3), key_of(f32::INFINITY, 3));
    }

    #[test]
    fn several_blocks_are_one_collection() {
        let base = matrix(100_001, 128, Element::U8, 1);
        let queries = matrix(5, 128, Element::U8, 2);
        for threads in [1, 2, 3, 5, 64] {
            let truth = brute_force(&base, &queries, 20, Metric::L2, threads, &Silent).unwrap();
            assert_eq!(
                truth,
                by_sorting(&base, &queries, 20, Metric::L2),
                "{threads} threads"
            );
        }
    }

    struct Impatient {
        limit: u64,
        done: AtomicU64,
        stages: AtomicU64,
    }

    impl Progress for Impatient {
        fn begin(&self, _stage: &str, total: u64) {
            assert_eq!(total, 100_000 * 4);
            self.stages.fetch_add(1, Ordering::Relaxed);
        }
        fn advance(&self, steps: u64) {
            self.done.fetch_add(steps, Ordering::Relaxed);
        }
        fn end(&self) {
            self.stages.fetch_add(100, Ordering::Relaxed);
        }
        fn interrupted(&self) -> bool {
            self.done.load(Ordering::Relaxed) >= self.limit
        }
        fn warn(&self, message: &str) {
            panic!("{message}");
        }
    }

    #[test]
    fn progress_adds_up_and_an_interruption_stops_it() {
        let base = matrix(100_000, 128, Element::U8, 1);
        let queries = matrix(4, 128, Element::U8, 2);
        let run = |limit| {
            let progress = Impatient {
                limit,
                done: AtomicU64::new(0),
                stages: AtomicU64::new(0),
            };
            let result = brute_force(&base, &queries, 5, Metric::L2, 2, &progress);
            assert_eq!(progress.stages.into_inner(), 101);
            (result, progress.done.into_inner())
        };
        let (result, done) = run(u64::MAX);
        result.unwrap();
        assert_eq!(done, 400_000);
        let (result, done) = run(1000);
        assert!(matches!(result, Err(DataError::Interrupted)));
        assert!((1000..100_000).contains(&done), "{done}");
    }

    #[test]
    fn wrong_calls_are_refused() {
        let base = matrix(10, 4, Element::U8, 1);
        let fail = |queries: &Matrix, k, metric| {
            brute_force(&base, queries, k, metric, 1, &Silent)
                .unwrap_err()
                .to_string()
        };
        let good = matrix(2, 4, Element::U8, 1);
        for k in [0, 65_537] {
            let text = fail(&good, k, Metric::L2);
            assert!(
                text.starts_with(&format!(
                    "k is {k}; it can be 1 to 65536, even if the index has fewer vectors. Pass 1 to 65536"
                )),
                "{text}"
            );
        }
        let text = fail(&matrix(2, 5, Element::U8, 1), 1, Metric::L2);
        assert!(
            text.starts_with("array: the dimension is 5; in array it is 4"),
            "{text}"
        );
        let text = fail(&matrix(2, 4, Element::F32, 1), 1, Metric::L2);
        assert!(
            text.starts_with("array: the element type is f32; in array it is u8"),
            "{text}"
        );
        let text = fail(
            &Matrix::new(vec![0; 8], 2, 4, Element::U8).unwrap(),
            1,
            Metric::Cosine,
        );
        assert!(text.starts_with("array: row 0 has length 0"), "{text}");
    }

    #[test]
    fn of_fewer_rows_than_are_wanted_there_are_all() {
        let base = matrix(10, 4, Element::U8, 1);
        let queries = matrix(3, 4, Element::U8, 2);
        let all = brute_force(&base, &queries, 10, Metric::L2, 2, &Silent).unwrap();
        let more = brute_force(&base, &queries, 12, Metric::L2, 2, &Silent).unwrap();
        assert_eq!((more.queries, more.k), (3, 12));
        let distances = |truth: &GroundTruth| truth.distances.clone().unwrap();
        for query in 0..3 {
            let (ids, far) = (more.ids_of(query), &distances(&more)[query * 12..][..12]);
            assert_eq!(ids[..10], *all.ids_of(query));
            assert_eq!(far[..10], distances(&all)[query * 10..][..10]);
            assert_eq!((ids[10], ids[11]), (u64::MAX, u64::MAX));
            assert!(far[10].is_infinite() && far[11].is_infinite());
        }
        let found = more.ids.clone();
        assert_eq!(more.recall(&found, &distances(&more), 12).unwrap(), 1.0);
        let ids_alone = GroundTruth {
            distances: None,
            ..more.clone()
        };
        assert_eq!(
            ids_alone.recall(&found, &distances(&more), 12).unwrap(),
            1.0
        );
    }

    #[test]
    fn a_bad_row_far_behind_is_named() {
        let mut bytes = matrix(60_000, 32, Element::F32, 1).bytes().to_vec();
        bytes[55_555 * 128 + 12..55_555 * 128 + 16].copy_from_slice(&f32::INFINITY.to_le_bytes());
        let base = MatrixRef::new(&bytes, 60_000, 32, Element::F32)
            .unwrap()
            .named("base.fbin");
        let queries = matrix(2, 32, Element::F32, 1);
        let error = brute_force(&base, &queries, 1, Metric::L2, 1, &Silent)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("base.fbin: row 55555, column 3 is inf"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn is_what_sorting_gives(
            (rows, dim, count) in (1usize..300, 1usize..9, 1usize..6),
            (element, metric) in (0usize..4, 0usize..3),
            (k, threads) in any::<(prop::sample::Index, prop::sample::Index)>(),
            seed: u64,
        ) {
            let (element, metric) = (Element::ALL[element], Metric::ALL[metric]);
            let base = matrix(rows, dim, element, seed);
            let queries = matrix(count, dim, element, seed ^ 1);
            let k = 1 + k.index(rows);
            let truth = brute_force(&base, &queries, k, metric, 1 + threads.index(8), &Silent).unwrap();
            prop_assert_eq!(truth, by_sorting(&base, &queries, k, metric));
        }
    }
}
