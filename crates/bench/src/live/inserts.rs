//! Measures inserts at full speed in a child process, and the resulting index (OdinANN, Figure 9).

use std::path::Path;
use std::time::{Duration, Instant};

use stratann::{
    DirectCounts, LiveIndex, Matrix, OpenOptions, SearchOptions, VectorFile, VectorSource,
};
use stratann_terminal::failure::Failure;

use crate::live::keys::{Breakdown, K};
use crate::live::result::{Calls, Found, Inserted, Merge};
use crate::live::step::{Task, bytes_in};
use crate::live::timeline::{Interruptible, insert, options, stop_if_interrupted};
use crate::live::truth::Truth;
use crate::live::way;
use crate::measured::{Latency, PerQuery, mean, percentile};
use crate::report::Point;

/// The number of rows in each call.
const ROWS: usize = 256;
/// If the counts of written pages stay the same for this time, the background writes have ended.
const STILL: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(30);

/// Inserts many rows, merges if the strategy has merges, and searches.
pub fn many(task: &Task<'_>, breakdown: &Breakdown) -> Result<Found, Failure> {
    let base = VectorFile::open(&task.plan.base)?;
    let queries = Matrix::read(&VectorFile::open(&task.plan.queries)?)?;
    let truth = Truth::read(&task.step.truth, queries.rows())?;
    let options = options(task, breakdown.threads);
    let live = LiveIndex::open(task.step.index(), &OpenOptions::default(), &options)?;
    let stats = live.stats();
    let way = way(task.live, task.run, &stats)?;
    let (built, end) = (breakdown.built, breakdown.built + breakdown.rows);
    let start = Instant::now();
    let mut bytes = Vec::new();
    for row in (built..end).step_by(ROWS) {
        stop_if_interrupted()?;
        insert(&live, &base, row, ROWS.min(end - row), &mut bytes)?;
    }
    live.flush()?;
    let merge = match stats.direct {
        Some(_) => None,
        None => {
            let began = start.elapsed().as_secs_f64();
            Some(Merge::of(began, &live.compact(&Interruptible)?))
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    let peak_rss_bytes = stratann::peak_rss_bytes();
    // A strategy with merges has no counts of pages.
    let counts = match stats.direct {
        Some(_) => still(&live),
        None => None,
    };
    let storage_bytes = bytes_in(&task.step.index());
    let searches = searches(&live, breakdown, &queries, &truth)?;
    let closing = Instant::now();
    drop(live);
    let mut inserted = Inserted {
        way,
        rows: breakdown.rows as u64,
        seconds,
        merge,
        inserts_a_second: breakdown.rows as f64 / seconds.max(1e-9),
        pages_read: None,
        pages_written: None,
        lists_changed: None,
        fallbacks: None,
        peak_rss_bytes,
        storage_bytes,
        close_seconds: closing.elapsed().as_secs_f64(),
        closed_bytes: bytes_in(&task.step.index()),
        searches,
    };
    if let Some(counts) = &counts {
        inserted.count(counts);
    }
    Ok(Found::Inserted(Box::new(inserted)))
}

fn still(live: &LiveIndex) -> Option<DirectCounts> {
    let start = Instant::now();
    let mut last = live.stats().direct;
    loop {
        std::thread::sleep(STILL);
        let now = live.stats().direct;
        if now == last || start.elapsed() > PATIENCE {
            return now;
        }
        last = now;
    }
}

fn searches(
    live: &LiveIndex,
    breakdown: &Breakdown,
    queries: &Matrix,
    truth: &Truth,
) -> Result<Point, Failure> {
    let options = SearchOptions {
        k: K,
        list: breakdown.list,
        in_flight: Some(1),
        exact: true,
        ..SearchOptions::default()
    };
    let found = live.search(queries, &options)?;
    let rows = 0..breakdown.built + breakdown.rows;
    let judged = (0..queries.rows()).filter_map(|query| {
        let answers = query * found.k..(query + 1) * found.k;
        let (ids, distances) = (&found.ids[answers.clone()], &found.distances[answers]);
        truth.judge(query, ids, distances, &rows, &rows)
    });
    let hits: Vec<usize> = judged.map(|judged| judged.hits).collect();
    let count = queries.rows();
    let qps = count as f64 / found.seconds.max(1e-9);
    let per_query = PerQuery::of(&found.counters, count);
    Ok(Point {
        list: breakdown.list,
        k: K,
        recall: hits.iter().sum::<usize>() as f64 / (hits.len() * K).max(1) as f64,
        qps,
        qps_min: qps,
        qps_max: qps,
        reads: per_query.graph_reads + per_query.vector_reads,
        latency_us: Latency::of(&found.latencies_us),
        per_query,
        cpu_us: found.cpu_seconds * 1e6 / count as f64,
        threads: 1,
        peak_rss_bytes: stratann::peak_rss_bytes(),
        parts: None,
    })
}

/// Measures calls with one row each, on one thread.
pub fn calls(task: &Task<'_>, breakdown: &Breakdown) -> Result<Found, Failure> {
    let base = VectorFile::open(&task.plan.base)?;
    let index: &Path = &task.step.index();
    let live = LiveIndex::open(index, &OpenOptions::default(), &options(task, 1))?;
    let mut latencies = Vec::with_capacity(breakdown.calls);
    let mut bytes = Vec::new();
    for row in breakdown.built..breakdown.built + breakdown.calls {
        stop_if_interrupted()?;
        let start = Instant::now();
        insert(&live, &base, row, 1, &mut bytes)?;
        latencies.push(start.elapsed().as_secs_f32() * 1e6);
    }
    latencies.sort_unstable_by(f32::total_cmp);
    Ok(Found::Calls(Calls {
        calls: breakdown.calls,
        mean_us: mean(&latencies),
        p50_us: percentile(&latencies, 0.5),
        p99_us: percentile(&latencies, 0.99),
    }))
}
