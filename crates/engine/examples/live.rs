//! Inserts at a fixed rate while searches go on, and says each second how both do.
//!
//! ```text
//! live BASE.u8bin INDEX QUERIES.u8bin FIRST RATE SECONDS [MERGE_AFTER [UPDATE]]
//! ```
//!
//! INDEX holds the first rows of BASE (built without ids); rows from FIRST on are inserted, RATE a second (0: as fast as two
//! threads can), by one thread; another searches one query after the other, list 40, k 10. With MERGE_AFTER, a merge begins
//! after so many seconds (0: none), and UPDATE says how vectors get in (merge, in-place, relocate, accumulate; the preset's way
//! if it is left out). Each second a line of JSON: inserts, searches, latency percentiles in microseconds, resident and
//! stored bytes. Last, the largest P50 of the windows of five seconds over the smallest.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use stratann::{
    DirectOptions, Durability, LiveIndex, Matrix, MatrixRef, OpenOptions, SearchOptions, Silent,
    Update, VectorFile, VectorSource, WriteOptions,
};

/// Rows of a call.
const BATCH: usize = 16;
/// Seconds of a window.
const WINDOW: usize = 5;

type Failure = Box<dyn std::error::Error + Send + Sync>;

struct Arguments {
    base: VectorFile,
    index: PathBuf,
    queries: Matrix,
    first: usize,
    rate: u64,
    seconds: usize,
    merge_after: Option<usize>,
    update: Option<Update>,
}

fn arguments() -> Result<Arguments, Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [base, index, queries, first, rate, seconds, rest @ ..] = &words[..] else {
        return Err("live BASE INDEX QUERIES FIRST RATE SECONDS [MERGE_AFTER]".into());
    };
    Ok(Arguments {
        base: VectorFile::open(base)?,
        index: index.into(),
        queries: Matrix::read(&VectorFile::open(queries)?)?,
        first: first.parse()?,
        rate: rate.parse()?,
        seconds: seconds.parse()?,
        merge_after: match rest.first().map(|word| word.parse()).transpose()? {
            Some(0) => None,
            after => after,
        },
        update: rest.get(1).map(|word| word.parse()).transpose()?,
    })
}

fn main() -> Result<(), Failure> {
    let arguments = arguments()?;
    let options = WriteOptions {
        durability: Durability::Every(Duration::from_millis(100)),
        threads: 1,
        update: arguments.update,
        direct: DirectOptions::default(),
    };
    let live = LiveIndex::open(&arguments.index, &OpenOptions::default(), &options)?;
    let (stop, inserted) = (AtomicBool::new(false), AtomicU64::new(0));
    let latencies = Mutex::new(Vec::new());
    let mut windows = Vec::new();
    std::thread::scope(|scope| {
        let inserting = scope.spawn(|| insert(&arguments, &live, &stop, &inserted));
        let searching = scope.spawn(|| search(&arguments, &live, &stop, &latencies));
        let mut merging = None;
        let (mut before, mut window) = (0, Vec::new());
        for second in 0..arguments.seconds {
            std::thread::sleep(Duration::from_secs(1));
            if arguments.merge_after == Some(second) {
                merging = Some(scope.spawn(|| live.compact(&Silent)));
            }
            let mut found = std::mem::take(&mut *latencies.lock().map_err(|_| "a thread failed")?);
            let now = inserted.load(Relaxed);
            window.extend_from_slice(&found);
            println!(
                "{{\"second\":{second},\"inserts\":{},\"searches\":{},\"p50\":{:.0},\"p90\":{:.0},\"p99\":{:.0},\"rss\":{},\"stored\":{},\"merging\":{}}}",
                now - before,
                found.len(),
                percentile(&mut found, 0.5),
                percentile(&mut found, 0.9),
                percentile(&mut found, 0.99),
                resident(),
                stored(&arguments.index),
                merging.as_ref().is_some_and(
                    |merge: &std::thread::ScopedJoinHandle<'_, _>| !merge.is_finished()
                ),
            );
            before = now;
            if (second + 1) % WINDOW == 0 {
                windows.push(percentile(&mut window, 0.5));
                window.clear();
            }
        }
        stop.store(true, Relaxed);
        if let Some(merge) = merging {
            println!(
                "merge: {:?}",
                merge.join().map_err(|_| "the merge panicked")??
            );
        }
        inserting.join().map_err(|_| "inserting panicked")??;
        searching.join().map_err(|_| "searching panicked")??;
        Ok::<_, Failure>(())
    })?;
    let largest = windows.iter().copied().fold(0.0, f32::max);
    let smallest = windows.iter().copied().fold(f32::INFINITY, f32::min);
    println!(
        "P50 of windows of {WINDOW} s: {smallest:.0} to {largest:.0} us, {:.3} times; {} vectors",
        largest / smallest,
        live.len()
    );
    Ok(())
}

fn insert(
    arguments: &Arguments,
    live: &LiveIndex,
    stop: &AtomicBool,
    inserted: &AtomicU64,
) -> Result<(), Failure> {
    let base = &arguments.base;
    let mut bytes = vec![0; BATCH * base.row_bytes()];
    let start = Instant::now();
    let mut row = arguments.first;
    while !stop.load(Relaxed) && row + BATCH <= base.rows() {
        base.read(row, &mut bytes)?;
        let rows = MatrixRef::new(&bytes, BATCH, base.dim(), base.element())?;
        live.insert(&rows, None, &Silent)?;
        row += BATCH;
        let done = inserted.fetch_add(BATCH as u64, Relaxed) + BATCH as u64;
        if arguments.rate > 0 {
            let due = Duration::from_secs_f64(done as f64 / arguments.rate as f64);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
    }
    Ok(())
}

fn search(
    arguments: &Arguments,
    live: &LiveIndex,
    stop: &AtomicBool,
    latencies: &Mutex<Vec<f32>>,
) -> Result<(), Failure> {
    let queries = &arguments.queries;
    let options = SearchOptions {
        list: 40,
        ..SearchOptions::default()
    };
    let mut bytes = vec![0; queries.row_bytes()];
    for query in (0..queries.rows()).cycle() {
        if stop.load(Relaxed) {
            break;
        }
        queries.read(query, &mut bytes)?;
        let one = MatrixRef::new(&bytes, 1, queries.dim(), queries.element())?;
        let found = live.search(&one, &options)?;
        let mut latencies = latencies.lock().map_err(|_| "the main thread failed")?;
        latencies.push(found.latencies_us[0]);
    }
    Ok(())
}

fn percentile(values: &mut [f32], share: f32) -> f32 {
    values.sort_unstable_by(f32::total_cmp);
    let at = (share * values.len() as f32).ceil() as usize;
    values.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Bytes of this process in memory now.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| {
        line.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()
    });
    kib.unwrap_or(0) << 10
}

/// Bytes of an index's files.
fn stored(index: &Path) -> u64 {
    let entries = std::fs::read_dir(index).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .map(|facts| facts.len())
        .sum()
}
