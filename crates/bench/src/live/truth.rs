//! Computes recall while rows are inserted and deleted. The live rows are always a range of the
//! base, so one brute-force search before the measurement, for a multiple of k neighbours per
//! query, gives the exact neighbours at any time.

use std::ops::Range;
use std::path::Path;

use stratann::data::{DataError, VectorSource};
use stratann::{Element, GroundTruth, Matrix, Metric, Progress, VectorFile};
use stratann_terminal::failure::Failure;

use crate::live::keys::K;

const SAMPLE: usize = 1_000;
/// In another order of summation, a result's distance may exceed the true one by this share.
const TOLERANCE: f32 = 1e-6;

/// The first rows of a file.
#[derive(Debug)]
pub struct FirstRows<'a> {
    /// The file.
    pub file: &'a VectorFile,
    /// The number of rows.
    pub rows: usize,
}

impl VectorSource for FirstRows<'_> {
    fn rows(&self) -> usize {
        self.rows
    }

    fn dim(&self) -> usize {
        self.file.dim()
    }

    fn element(&self) -> Element {
        self.file.element()
    }

    fn name(&self) -> &str {
        self.file.name()
    }

    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        self.file.read(first, out)
    }
}

fn stride(queries: usize) -> usize {
    queries.div_ceil(SAMPLE).max(1)
}

/// The exact neighbours of a sample of queries, more than k for each.
#[derive(Debug)]
pub struct Truth {
    stride: usize,
    nearest: GroundTruth,
}

/// The judgement of the results of a query.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Judged {
    /// The number of results that are among the k nearest vectors.
    pub hits: usize,
    /// The number of wrong results: rows that were deleted before the search, or never inserted.
    pub stale: usize,
}

impl Truth {
    /// Writes the ground truth to a file. At any time, at least `least` rows are live.
    pub fn write(
        path: &Path,
        base: &FirstRows<'_>,
        least: usize,
        queries: &Matrix,
        metric: Metric,
        progress: &dyn Progress,
    ) -> Result<(), Failure> {
        let mut sample = Vec::new();
        for query in (0..queries.rows()).step_by(stride(queries.rows())) {
            sample.extend_from_slice(queries.row(query));
        }
        let rows = sample.len() / queries.row_bytes();
        let sample = Matrix::new(sample, rows, queries.dim(), queries.element())?;
        // If the rows are in random order, k * rows / least neighbours suffice on average. The rest
        // is a margin.
        let all = base.rows == least;
        let enough = match all {
            true => K,
            false => 50 + 4 * K * base.rows.div_ceil(least.max(1)),
        };
        let threads = stratann::processors();
        let k = enough.min(base.rows);
        let truth = stratann::brute_force(base, &sample, k, metric, threads, progress)?;
        Ok(truth.write(path)?)
    }

    /// Reads the file of [`write`](Truth::write), for `queries` queries.
    pub fn read(path: &Path, queries: usize) -> Result<Truth, Failure> {
        Ok(Truth {
            stride: stride(queries),
            nearest: GroundTruth::read(path)?,
        })
    }

    /// The number of judged queries.
    pub fn queries(&self) -> usize {
        self.nearest.queries
    }

    /// Judges the results of a query. The rows `live` were live during the whole search, and the
    /// rows `perhaps` during a part of it. `None` if the query is not in the sample, or if too few
    /// of its nearest rows are live.
    pub fn judge(
        &self,
        query: usize,
        ids: &[u64],
        distances: &[f32],
        live: &Range<usize>,
        perhaps: &Range<usize>,
    ) -> Option<Judged> {
        if !query.is_multiple_of(self.stride) {
            return None;
        }
        let sampled = query / self.stride;
        let truth = &self.nearest;
        let known = truth.distances.as_ref()?;
        let known = &known[sampled * truth.k..(sampled + 1) * truth.k];
        let mut there = truth
            .ids_of(sampled)
            .iter()
            .zip(known)
            .filter(|(id, _)| live.contains(&(**id as usize)));
        let (_, last) = there.nth(K - 1)?;
        let limit = last + last.abs() * TOLERANCE;
        let mut judged = Judged::default();
        for (at, (&id, &distance)) in ids.iter().zip(distances).enumerate() {
            if id == u64::MAX {
                continue;
            }
            if !perhaps.contains(&(id as usize)) {
                judged.stale += 1;
            } else if distance <= limit && !ids[..at].contains(&id) {
                judged.hits += 1;
            }
        }
        Some(judged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_live_decides() {
        let truth = Truth {
            stride: 2,
            nearest: GroundTruth {
                queries: 1,
                k: 30,
                ids: (0..30).collect(),
                distances: Some((0..30).map(|d| d as f32).collect()),
            },
        };
        let judge = |ids: Range<u64>, live: Range<usize>, perhaps: Range<usize>| {
            let ids: Vec<u64> = ids.collect();
            let distances: Vec<f32> = ids.iter().map(|id| *id as f32).collect();
            truth.judge(0, &ids, &distances, &live, &perhaps)
        };
        let judged = |hits, stale| Some(Judged { hits, stale });
        assert_eq!(judge(0..10, 0..30, 0..30), judged(10, 0));
        assert_eq!(judge(5..15, 0..30, 0..30), judged(5, 0));
        assert_eq!(judge(5..15, 5..30, 5..30), judged(10, 0));
        assert_eq!(judge(0..10, 5..30, 5..30), judged(5, 5));
        assert_eq!(judge(3..13, 5..30, 3..30), judged(10, 0));
        // Here, too few known neighbours are live. In the next line, the query is outside the
        // sample.
        assert_eq!(judge(0..10, 25..30, 25..30), None);
        assert_eq!(truth.judge(1, &[], &[], &(0..30), &(0..30)), None);
        let twice = truth.judge(0, &[1, 1, u64::MAX], &[1.0, 1.0, 1.0], &(0..30), &(0..30));
        assert_eq!(twice, judged(1, 0));
    }
}
