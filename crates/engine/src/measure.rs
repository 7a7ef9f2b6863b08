//! Measures how useful memory is for a collection. A build makes these measurements, with a sample
//! of the rows as queries.
//!
//! ```text
//!   sample, first half   from the medoid            -> reads without the navigation graph
//!           first half   from the navigation graph  -> reads with it
//!           first half   as the preset says         -> how often each page was wanted (heat)
//!           second half  as the preset says         -> reads that the hottest pages would save
//! ```
//!
//! The planner ([`crate::plan`]) divides a budget by the proportions of these numbers. Real queries
//! read more, since a query that is a row finds this row at once.

use std::sync::atomic::{AtomicU32, Ordering};

use stratann_layout::HeatFile;
use stratann_layout::manifest::{HotShare, Measured};

use crate::data::{MatrixRef, VectorSource};
use crate::index::Index;
use crate::progress::Silent;
use crate::stores::heat::{Heat, LIST};
use crate::{Error, SearchOptions, Strategy};

/// A collection with fewer rows is not measured, since it fits into memory.
pub(crate) const LEAST_ROWS: usize = 1_000;
/// The number of rows for each query, and the largest number of queries.
const ROWS_A_QUERY: usize = 250;
const MOST_QUERIES: usize = 20_000;
const BEAM: usize = 4;
/// For each of these shares of the hottest pages, the build records the share of reads that these
/// pages serve.
const SHARES: [f64; 9] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0];

pub(crate) fn sample_size(rows: usize) -> usize {
    (rows / ROWS_A_QUERY).clamp(200, MOST_QUERIES).min(rows)
}

pub(crate) fn measure(
    index: &Index,
    sample: &[u8],
    threads: usize,
) -> Result<(Measured, HeatFile), Error> {
    let row_bytes = index.dim() * index.element().size();
    let half = (sample.len() / row_bytes / 2).max(1) * row_bytes;
    let (first, second) = sample.split_at(half.min(sample.len()));
    let run = |rows: &[u8], navigation: Option<bool>, heat: Option<&Heat>| {
        let count = rows.len() / row_bytes;
        let queries = MatrixRef::new(rows, count, index.dim(), index.element())?;
        let options = SearchOptions {
            k: 10.min(index.nodes()),
            list: LIST,
            navigation,
            // Best-first search gives the same numbers under any order of completions.
            strategy: Some(Strategy::BestFirst),
            beam: Some(BEAM),
            threads,
            in_flight: Some(8),
            ..SearchOptions::default()
        };
        let results = index.search_with(&queries, &options, &Silent, heat, None)?;
        let mean = |reads: u64| reads as f64 / queries.rows().max(1) as f64;
        let counters = results.counters;
        Ok::<_, Error>((mean(counters.graph_reads), mean(counters.vector_reads)))
    };
    let heat = [Heat::new(index.graph()), Heat::new(index.graph())];
    let (reads_medoid, _) = run(first, Some(false), None)?;
    let (reads_navigation, vector_reads) = run(first, Some(index.has_navigation()), None)?;
    run(first, None, Some(&heat[0]))?;
    run(second, None, Some(&heat[1]))?;
    let measured = Measured {
        queries: (sample.len() / row_bytes) as u32,
        list: LIST as u32,
        reads_medoid,
        reads_navigation,
        vector_reads,
        hot_graph: curve(&heat[0].graph, &heat[1].graph),
        hot_vectors: curve(&heat[0].vectors, &heat[1].vectors),
    };
    let sum = |first: &[AtomicU32], second: &[AtomicU32]| {
        let pairs = first.iter().zip(second);
        pairs
            .map(|(a, b)| (load(a).saturating_add(load(b))).min(u16::MAX.into()) as u16)
            .collect()
    };
    let heat = HeatFile {
        graph: sum(&heat[0].graph, &heat[1].graph),
        vectors: sum(&heat[0].vectors, &heat[1].vectors),
    };
    Ok((measured, heat))
}

fn load(count: &AtomicU32) -> u32 {
    count.load(Ordering::Relaxed)
}

/// The shares of `reads` that memory would have served, with the hottest pages by `ranking`.
fn curve(ranking: &[AtomicU32], reads: &[AtomicU32]) -> Vec<HotShare> {
    let total: u64 = reads.iter().map(|count| u64::from(load(count))).sum();
    if total == 0 {
        return Vec::new();
    }
    let mut order: Vec<u32> = (0..ranking.len() as u32).collect();
    order.sort_by_key(|&page| std::cmp::Reverse(load(&ranking[page as usize])));
    let (mut served, mut taken) = (0u64, 0);
    SHARES
        .iter()
        .map(|&share| {
            let until = (share * order.len() as f64).ceil() as usize;
            for &page in &order[taken..until] {
                served += u64::from(load(&reads[page as usize]));
            }
            taken = until;
            HotShare {
                share,
                hits: served as f64 / total as f64,
            }
        })
        .collect()
}
