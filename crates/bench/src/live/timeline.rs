//! Measures searches during inserts, deletes and merges. The measurement runs in a child process.
//!
//! ```text
//!   inserting ── high: rows inserted so far ──┐
//!   deleting ─── low: rows deleted so far ────┼─> searching: latencies, and true answers
//!   merging   (from time to time)             └─> each second: the work since the last second
//! ```
//!
//! With the key `alone`, searches first run without changes, to show the noise of this machine.
//!
//! Inserting, deleting, merging and searching have one thread of this program each. Each call keeps
//! the engine's `insert_threads` or `search_threads` busy.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use stratann::{
    CompactReport, Durability, LiveIndex, Matrix, MatrixRef, OpenOptions, Progress, SearchOptions,
    Silent, VectorFile, VectorSource, WriteOptions,
};
use stratann_terminal::failure::Failure;
use stratann_terminal::progress;

use crate::live::keys::{Deletes, K, Timeline};
use crate::live::result::{Found, Merge, OverTime, Span};
use crate::live::step::{Task, bytes_in, resident_bytes};
use crate::live::truth::{Judged, Truth};
use crate::live::way;
use crate::measured::percentile;

const ROWS: usize = 16;
/// The number of queries of a call for each thread. With a single thread, a call has one query.
const QUERIES: usize = 16;
const MOST: Duration = Duration::from_secs(5);
const NAP: Duration = Duration::from_millis(20);

/// The options with which an index is opened for changes.
pub fn options(task: &Task<'_>, threads: usize) -> WriteOptions {
    WriteOptions {
        durability: Durability::Every(Duration::from_millis(100)),
        threads,
        update: Some(task.live.update(&task.run.preset)),
        direct: task.live.direct(),
    }
}

/// At a low rate a call has few rows, so that inserts are spread evenly.
fn batch(threads: usize, rate: Option<f64>) -> usize {
    let most = ROWS * threads;
    rate.map_or(most, |rate| ((rate / 20.0) as usize).clamp(1, most))
}

/// Inserts rows from `first` on, with their row numbers as ids.
pub fn insert(
    live: &LiveIndex,
    base: &VectorFile,
    first: usize,
    count: usize,
    bytes: &mut Vec<u8>,
) -> Result<(), Failure> {
    bytes.resize(count * base.row_bytes(), 0);
    base.read(first, bytes)?;
    let rows = MatrixRef::new(bytes, count, base.dim(), base.element())?;
    let ids: Vec<u64> = (first..first + count).map(|row| row as u64).collect();
    live.insert(&rows, Some(&ids), &Silent)?;
    Ok(())
}

/// Measures the insert rate without searches, in rows a second.
pub fn most(task: &Task<'_>, timeline: &Timeline) -> Result<Found, Failure> {
    let base = VectorFile::open(&task.plan.base)?;
    let options = options(task, timeline.insert_threads);
    let live = LiveIndex::open(task.step.index(), &OpenOptions::default(), &options)?;
    let batch = batch(timeline.insert_threads, None);
    let (mut row, mut bytes) = (timeline.built, Vec::new());
    let start = Instant::now();
    while row < base.rows() && start.elapsed() < MOST {
        stop_if_interrupted()?;
        let count = batch.min(base.rows() - row);
        insert(&live, &base, row, count, &mut bytes)?;
        row += count;
    }
    let rows = (row - timeline.built) as f64;
    Ok(Found::Most(rows / start.elapsed().as_secs_f64().max(1e-9)))
}

/// Fails if Ctrl-C was pressed.
pub fn stop_if_interrupted() -> Result<(), Failure> {
    match progress::interrupted() {
        true => Err(Failure::Failed("interrupted".into())),
        false => Ok(()),
    }
}

/// The progress of a merge that Ctrl-C stops.
#[derive(Debug)]
pub struct Interruptible;

impl Progress for Interruptible {
    fn begin(&self, _stage: &str, _total: u64) {}
    fn advance(&self, _steps: u64) {}
    fn end(&self) {}
    fn interrupted(&self) -> bool {
        progress::interrupted()
    }
    fn warn(&self, _message: &str) {}
}

#[derive(Debug, Default)]
struct Searched {
    latencies_us: Vec<f32>,
    judged: usize,
    hits: usize,
    /// The number of results whose vectors were not live during the search.
    stale: usize,
}

impl Searched {
    fn add(&mut self, other: &Searched) {
        self.latencies_us.extend_from_slice(&other.latencies_us);
        self.judged += other.judged;
        self.hits += other.hits;
    }

    fn recall(&self) -> Option<f64> {
        (self.judged > 0).then(|| self.hits as f64 / (self.judged * K) as f64)
    }
}

struct Shared<'a> {
    timeline: &'a Timeline,
    rate: Option<f64>,
    live: &'a LiveIndex,
    base: &'a VectorFile,
    queries: &'a Matrix,
    truth: &'a Truth,
    start: Instant,
    stop: AtomicBool,
    low: AtomicUsize,
    going: AtomicUsize,
    high: AtomicUsize,
    coming: AtomicUsize,
    searched: Mutex<Searched>,
}

/// Only a thread that ends early, by an error or a panic, drops this value.
struct StopOthers<'a>(&'a AtomicBool);

impl Drop for StopOthers<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl Shared<'_> {
    fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    fn nap(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(NAP));
        }
    }

    fn guarded(&self, work: impl FnOnce(&Self) -> Result<(), Failure>) -> Result<(), Failure> {
        let guard = StopOthers(&self.stop);
        let done = work(self);
        if done.is_ok() {
            std::mem::forget(guard);
        }
        done
    }

    fn changing(&self) -> Duration {
        self.start.elapsed().saturating_sub(self.alone())
    }

    fn alone(&self) -> Duration {
        Duration::from_secs(self.timeline.alone as u64)
    }

    fn insert(&self) -> Result<(), Failure> {
        self.nap(self.alone().saturating_sub(self.start.elapsed()));
        let batch = batch(self.timeline.insert_threads, self.rate);
        let built = self.timeline.built;
        let (mut row, mut bytes) = (built, Vec::new());
        while !self.stopped() && row < self.base.rows() {
            let count = batch.min(self.base.rows() - row);
            self.coming.store(row + count, Release);
            insert(self.live, self.base, row, count, &mut bytes)?;
            row += count;
            self.high.store(row, Release);
            if let Some(rate) = self.rate {
                let due = Duration::from_secs_f64((row - built) as f64 / rate);
                self.nap(due.saturating_sub(self.changing()));
            }
        }
        Ok(())
    }

    fn delete(&self) -> Result<(), Failure> {
        let leave = (self.timeline.built / 20).max(10 * K);
        let mut row = 0;
        while !self.stopped() {
            let high = self.high.load(Acquire);
            let due = match self.timeline.deletes {
                Deletes::None => return Ok(()),
                Deletes::Same => high - self.timeline.built,
                Deletes::Rows(a_second) => (a_second * self.changing().as_secs_f64()) as usize,
            };
            let count = due
                .min(high.saturating_sub(leave))
                .saturating_sub(row)
                .min(ROWS);
            if count == 0 {
                self.nap(Duration::from_millis(2));
                continue;
            }
            let ids: Vec<u64> = (row..row + count).map(|row| row as u64).collect();
            self.going.store(row + count, Release);
            self.live.delete(&ids)?;
            row += count;
            self.low.store(row, Release);
        }
        Ok(())
    }

    fn search(&self) -> Result<(), Failure> {
        let threads = self.timeline.search_threads;
        let options = SearchOptions {
            k: K,
            list: self.timeline.list,
            threads,
            in_flight: Some(1),
            exact: true,
            ..SearchOptions::default()
        };
        let most = match threads {
            1 => 1,
            threads => QUERIES * threads,
        };
        let queries = self.queries;
        let row_bytes = queries.row_bytes();
        let mut first = 0;
        while !self.stopped() {
            let count = most.min(queries.rows() - first);
            let bytes = &queries.bytes()[first * row_bytes..(first + count) * row_bytes];
            let rows = MatrixRef::new(bytes, count, queries.dim(), queries.element())?;
            let (low, high) = (self.low.load(Acquire), self.high.load(Acquire));
            let found = self.live.search(&rows, &options)?;
            // The rows that were live during the whole search, and during a part of it.
            let live = self.going.load(Acquire)..high;
            let perhaps = low..self.coming.load(Acquire);
            let judged = (0..count).filter_map(|query| {
                let answers = query * found.k..(query + 1) * found.k;
                let (ids, distances) = (&found.ids[answers.clone()], &found.distances[answers]);
                self.truth
                    .judge(first + query, ids, distances, &live, &perhaps)
            });
            let judged: Vec<Judged> = judged.collect();
            let mut searched = self.searched.lock().unwrap_or_else(PoisonError::into_inner);
            searched.latencies_us.extend_from_slice(&found.latencies_us);
            searched.judged += judged.len();
            searched.hits += judged.iter().map(|judged| judged.hits).sum::<usize>();
            searched.stale += judged.iter().map(|judged| judged.stale).sum::<usize>();
            drop(searched);
            first = (first + count) % queries.rows();
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    at: f64,
    high: usize,
    low: usize,
    pages: Option<(u64, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct Ends {
    alone: f64,
    rows: usize,
}

#[derive(Debug, Default)]
struct Making {
    from: Mark,
    searched: Searched,
    merging: bool,
}

impl Making {
    fn end(&mut self, to: Mark, storage_bytes: u64, ends: Ends, pages: (u64, u64)) -> Span {
        let mut made = std::mem::take(self);
        self.from = to;
        made.searched.latencies_us.sort_unstable_by(f32::total_cmp);
        let latencies = &made.searched.latencies_us;
        Span {
            from: made.from.at,
            to: to.at,
            inserts: (to.high - made.from.high) as u64,
            deletes: (to.low - made.from.low) as u64,
            searches: latencies.len() as u64,
            p50_us: percentile(latencies, 0.5),
            p90_us: percentile(latencies, 0.9),
            p99_us: percentile(latencies, 0.99),
            recall: made.searched.recall(),
            rss_bytes: resident_bytes(),
            storage_bytes,
            pages_read: to.pages.map(|_| pages.0),
            pages_written: to.pages.map(|_| pages.1),
            merging: made.merging,
            inserting: to.high < ends.rows && to.at.floor() > ends.alone,
            alone: to.at.floor() <= ends.alone,
        }
    }
}

/// Inserts and searches at the same time.
pub fn run(task: &Task<'_>, timeline: &Timeline) -> Result<Found, Failure> {
    let base = VectorFile::open(&task.plan.base)?;
    let queries = Matrix::read(&VectorFile::open(&task.plan.queries)?)?;
    let truth = Truth::read(&task.step.truth, queries.rows())?;
    let options = options(task, timeline.insert_threads);
    let live = LiveIndex::open(task.step.index(), &OpenOptions::default(), &options)?;
    let way = way(task.live, task.run, &live.stats())?;
    let backend = live.index().backend()?.to_string();
    let built = timeline.built;
    let shared = Shared {
        timeline,
        rate: task.step.rate,
        live: &live,
        base: &base,
        queries: &queries,
        truth: &truth,
        start: Instant::now(),
        stop: AtomicBool::new(false),
        low: AtomicUsize::new(0),
        going: AtomicUsize::new(0),
        high: AtomicUsize::new(built),
        coming: AtomicUsize::new(built),
        searched: Mutex::default(),
    };
    let measured = std::thread::scope(|scope| {
        let _stop = StopOthers(&shared.stop);
        let threads = [
            started(scope, || shared.guarded(Shared::insert))?,
            started(scope, || shared.guarded(Shared::delete))?,
            started(scope, || shared.guarded(Shared::search))?,
        ];
        let mut watch = Watch::new(&shared, task);
        let mut merging: Option<Merging<'_>> = None;
        while !watch.is_over() {
            let next = Duration::from_secs(watch.seconds.len() as u64 + 1);
            shared.nap(next.saturating_sub(shared.start.elapsed()));
            if shared.stopped() || progress::interrupted() {
                break;
            }
            watch.look(merging.is_some());
            if merging
                .as_ref()
                .is_some_and(|(_, merge)| merge.is_finished())
                && let Some(merge) = merging.take()
            {
                // The merge may include the vectors of the last record, so the next record decides
                // whether another merge is due.
                watch.merges.push(joined(merge)?);
            } else if merging.is_none() && watch.merge_is_due() && !watch.is_over() {
                let merge = started(scope, || live.compact(&Interruptible))?;
                merging = Some((shared.start.elapsed().as_secs_f64(), merge));
            }
        }
        shared.stop.store(true, Relaxed);
        for thread in threads {
            thread.join().map_err(|_| panicked())??;
        }
        if let Some(merge) = merging {
            watch.merges.push(joined(merge)?);
        }
        Ok::<_, Failure>(watch.result())
    })?;
    stop_if_interrupted()?;
    let windows = &measured.windows;
    let p50_us = extremes(windows.iter().filter(|window| window.inserting));
    // In the first window all caches are cold.
    let alone = windows.iter().filter(|window| window.alone).skip(1);
    let alone_p50_us = extremes(alone);
    Ok(Found::OverTime(Box::new(OverTime {
        settings: timeline.clone(),
        way,
        most_a_second: None,
        rate: task.step.rate,
        backend,
        recall_of: truth.queries(),
        vectors: live.len() as u64,
        p50_us,
        p50_ratio: p50_us.map(|[least, most]| most / least.max(1e-9)),
        alone_p50_us,
        peak_rss_bytes: stratann::peak_rss_bytes(),
        rows_out: measured.rows_out,
        stale: measured.stale as u64,
        merges: measured.merges,
        windows: measured.windows,
        seconds: measured.seconds,
    })))
}

type Merging<'scope> = (
    f64,
    ScopedJoinHandle<'scope, Result<CompactReport, stratann::Error>>,
);

fn joined((began, merge): Merging<'_>) -> Result<Merge, Failure> {
    let report = merge.join().map_err(|_| panicked())??;
    Ok(Merge::of(began, &report))
}

fn started<'scope, T: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Failure> {
    let started = std::thread::Builder::new().spawn_scoped(scope, work);
    started.map_err(|error| {
        Failure::Failed(format!(
            "a thread of the benchmark cannot be started; {error}. Raise the limit (ulimit -u, cgroup pids)"
        ))
    })
}

fn panicked() -> Failure {
    Failure::Failed("a thread of the benchmark panicked; its message is above".into())
}

fn extremes<'a>(windows: impl Iterator<Item = &'a Span> + Clone) -> Option<[f64; 2]> {
    let searched = windows.filter(|window| window.searches > 0);
    let p50s = searched.map(|window| window.p50_us);
    let least = p50s.clone().fold(f64::INFINITY, f64::min);
    least.is_finite().then(|| [least, p50s.fold(0.0, f64::max)])
}

struct Watch<'a> {
    shared: &'a Shared<'a>,
    task: &'a Task<'a>,
    second: Making,
    window: Making,
    window_pages: (u64, u64),
    checkpoint: u64,
    share: f64,
    stale: usize,
    rows_out: Option<f64>,
    merges: Vec<Merge>,
    windows: Vec<Span>,
    seconds: Vec<Span>,
}

struct Watched {
    stale: usize,
    rows_out: Option<f64>,
    merges: Vec<Merge>,
    windows: Vec<Span>,
    seconds: Vec<Span>,
}

impl<'a> Watch<'a> {
    fn new(shared: &'a Shared<'a>, task: &'a Task<'a>) -> Self {
        let from = Mark {
            at: 0.0,
            high: shared.timeline.built,
            low: 0,
            pages: None,
        };
        let making = || Making {
            from,
            ..Making::default()
        };
        Self {
            shared,
            task,
            second: making(),
            window: making(),
            window_pages: (0, 0),
            checkpoint: shared.timeline.built as u64,
            share: 0.0,
            stale: 0,
            rows_out: None,
            merges: Vec::new(),
            windows: Vec::new(),
            seconds: Vec::new(),
        }
    }

    fn look(&mut self, merging: bool) {
        let shared = self.shared;
        // The values are read in this order, so that each deleted row already counts as inserted,
        // and each inserted row as waiting or merged.
        let low = shared.low.load(Acquire);
        let high = shared.high.load(Acquire);
        let stats = shared.live.stats();
        let mark = Mark {
            at: shared.start.elapsed().as_secs_f64(),
            high,
            low,
            pages: stats
                .direct
                .map(|counts| (counts.pages_read, counts.pages_written)),
        };
        if let Some(merge) = self.merges.last() {
            self.checkpoint = merge.vectors;
        }
        let waits = stats.logged.max(stats.deleted);
        self.share = waits as f64 / self.checkpoint.max(1) as f64;
        let searched = std::mem::take(
            &mut *shared
                .searched
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        self.stale += searched.stale;
        for making in [&mut self.second, &mut self.window] {
            making.searched.add(&searched);
            making.merging |= merging;
        }
        // The counts restart from 0 after a merge.
        let since = |before: Option<(u64, u64)>| {
            let (now, before) = (mark.pages.unwrap_or_default(), before.unwrap_or_default());
            let one = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
            (one(now.0, before.0), one(now.1, before.1))
        };
        let pages = since(self.second.from.pages);
        self.window_pages.0 += pages.0;
        self.window_pages.1 += pages.1;
        let ends = Ends {
            alone: shared.timeline.alone as f64,
            rows: shared.base.rows(),
        };
        let storage = bytes_in(&self.task.step.index());
        let second = self.second.end(mark, storage, ends, pages);
        if mark.high == ends.rows && self.rows_out.is_none() {
            self.rows_out = Some(second.to);
        }
        self.seconds.push(second);
        let (done, all) = (self.seconds.len(), self.all());
        // A last window that is too short is dropped, unless it is the only one.
        let whole = done.is_multiple_of(shared.timeline.window);
        if whole || (done == all && self.windows.is_empty()) {
            let pages = std::mem::take(&mut self.window_pages);
            self.windows
                .push(self.window.end(mark, storage, ends, pages));
        }
    }

    /// Whether the last second is over. A merge that begins now would not be recorded.
    fn is_over(&self) -> bool {
        self.seconds.len() >= self.all()
    }

    fn all(&self) -> usize {
        self.shared.timeline.alone + self.shared.timeline.seconds
    }

    fn merge_is_due(&self) -> bool {
        let merge = self.shared.timeline.merge;
        merge.is_due(self.shared.changing(), self.merges.len(), self.share)
    }

    fn result(self) -> Watched {
        Watched {
            stale: self.stale,
            rows_out: self.rows_out,
            merges: self.merges,
            windows: self.windows,
            seconds: self.seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_evenly() {
        assert_eq!(batch(1, None), 16);
        assert_eq!(batch(2, Some(1e6)), 32);
        assert_eq!(batch(2, Some(100.0)), 5);
        assert_eq!(batch(2, Some(3.0)), 1);
    }

    #[test]
    fn windows_without_searches_do_not_count() {
        let window = |p50_us, searches| Span {
            p50_us,
            searches,
            ..Span::default()
        };
        let windows = [window(500.0, 10), window(700.0, 10), window(0.0, 0)];
        assert_eq!(extremes(windows.iter()), Some([500.0, 700.0]));
        assert_eq!(extremes(windows[2..].iter()), None);
    }

    #[test]
    fn a_span_is_what_was_done_since_the_last() {
        let mut making = Making {
            from: Mark {
                at: 1.0,
                high: 100,
                low: 3,
                pages: None,
            },
            searched: Searched {
                latencies_us: vec![3.0, 1.0, 2.0, 4.0],
                judged: 2,
                hits: 19,
                stale: 0,
            },
            merging: true,
        };
        let to = Mark {
            at: 3.0,
            high: 160,
            low: 3,
            pages: Some((0, 0)),
        };
        let ends = |rows, alone| Ends { rows, alone };
        let span = making.end(to, 77, ends(1000, 2.0), (5, 6));
        assert_eq!((span.inserts, span.deletes, span.searches), (60, 0, 4));
        assert_eq!((span.p50_us, span.p99_us), (2.0, 4.0));
        assert_eq!(span.recall, Some(0.95));
        assert_eq!(span.rate(span.inserts), 30.0);
        assert_eq!((span.pages_read, span.pages_written), (Some(5), Some(6)));
        assert!(span.merging && span.inserting && !span.alone);
        let next = making.end(to, 77, ends(160, 2.0), (0, 0));
        assert_eq!((next.inserts, next.searches, next.recall), (0, 0, None));
        assert!(!next.merging && !next.inserting && !next.alone);
        let alone = making.end(to, 77, ends(1000, 3.0), (0, 0));
        assert!(!alone.inserting && alone.alone);
    }
}
