//! A sample of served queries, for live recall, and the recall that was measured with it.
//!
//! ```text
//!   searches ── one in so many ──> sample ── full, or asked ──> a pass of `live_recall`
//!              (an atomic add)                                     └──> `Stats::live_recall`
//! ```
//!
//! - [`sample`]: chooses the queries of the sample
//! - [`background`]: the thread that measures whenever a sample is full

mod background;
mod sample;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use serde::Serialize;
use stratann_vector::{Element, Metric};

pub(crate) use self::background::Measurer;
use self::sample::Sample;
pub(crate) use self::sample::Served;
use crate::progress::Progress;
use crate::{Error, THREAD_BYTES, bounds};

/// The bytes of memory of a result during the comparison: in the heap, among the found ids, and
/// among the requested ids.
const ANSWER_BYTES: usize = 64;
/// The approximate bytes of memory of a filter with the longest text that a sample keeps.
const FILTER_BYTES: usize = 20 * bounds::MOST_WATCHED_FILTER;
/// While a call waits for a running pass, it checks `progress` for an interruption after each such
/// interval.
const INTERRUPTIBLE: Duration = Duration::from_millis(50);
/// The bytes of vectors that a pass holds at a time, under a memory budget. Sets of filter matches
/// may take the same number of bytes.
pub(crate) const SMALL_PIECE: usize = 1 << 19;

/// A sample of the queries that an index serves, and the recall that was measured with it:
/// [`OpenOptions::watch_recall`](crate::OpenOptions::watch_recall). Clones share the sample. So the
/// sample continues when the index is opened for changes, merged or opened again. A watch belongs
/// to one index. Two watches are equal if they are clones of each other.
#[derive(Clone)]
pub struct RecallWatch(Arc<Watch>);

impl PartialEq for RecallWatch {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for RecallWatch {}

struct Watch {
    most: usize,
    /// Whether only the owner of the watch offers queries to it.
    told: bool,
    /// The number of served queries. The next field is the number of the next served query that the
    /// sample keeps.
    served: AtomicU64,
    next: AtomicU64,
    sample: Mutex<Sample>,
    /// Signals that the sample is full, or that a thread must end.
    changed: Condvar,
    /// The number of the thread that measures in the background. It is the thread that was started
    /// last.
    turn: AtomicU64,
    /// The lock of a pass. Only one pass runs at a time.
    measuring: Mutex<()>,
    known: Mutex<Known>,
    of: Mutex<Option<Of>>,
}

/// The measured recall.
#[derive(Default)]
struct Known {
    last: Option<Last>,
    all: Means,
    measured: u64,
    thrown_away: u64,
    error: Option<String>,
}

#[derive(Clone, Copy)]
struct Last {
    means: Means,
    at: u64,
    seconds: f64,
}

/// The index from which a sample comes.
#[derive(Clone, PartialEq, Eq)]
struct Of {
    path: PathBuf,
    folder: Option<(u64, u64)>,
    vectors: (usize, Element, Metric),
}

/// The recall of served queries, measured on samples of them:
/// [`Stats::live_recall`](crate::Stats::live_recall).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveRecall {
    /// The recall of the last sample, or `None` if no sample was measured.
    pub last: Option<RecallFound>,
    /// The recall of all samples since the index was opened.
    pub all: Option<RecallFound>,
    /// The time of the last measurement, in seconds since 1970.
    pub at: Option<u64>,
    /// The wall-clock time of the last measurement, in seconds.
    pub seconds: Option<f64>,
    /// The number of measured samples.
    pub samples_measured: u64,
    /// The number of samples that could not be measured, because the index changed too fast, or
    /// because another process changed it.
    pub thrown_away: u64,
    /// The number of queries in the current sample, which is not measured yet.
    pub waiting: u64,
    /// The size of a full sample, in queries.
    pub sample: u64,
    /// The error of the last measurement, if it failed.
    pub error: Option<String>,
}

/// The recall of some queries.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RecallFound {
    /// The number of queries.
    pub queries: u64,
    /// The number of requested results of each query, or `None` if it differs between queries.
    pub k: Option<u64>,
    /// The mean recall. The recall of a query is the share of its k true nearest vectors that is in
    /// its results.
    pub found: f64,
    /// The lowest recall of a query.
    pub lowest: f64,
    /// The mean of the recall targets ([`recall`](crate::SearchOptions::recall)) of the queries
    /// that had one, or `None` if no query had one.
    pub asked: Option<f64>,
    /// The mean recall of the queries with a recall target.
    pub found_of_asked: Option<f64>,
}

/// The recall of a query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    /// The number of results that the query requested.
    pub(crate) k: usize,
    /// The target recall of the query.
    pub(crate) asked: Option<f64>,
    pub(crate) found: f64,
}

#[derive(Clone, Copy, Default)]
struct Means {
    queries: u64,
    k: Option<u64>,
    found: f64,
    lowest: f64,
    /// The number of the queries with a recall target.
    asking: u64,
    asked: f64,
    found_of_asked: f64,
}

impl Means {
    fn add(&mut self, one: &Answered) {
        let k = one.k as u64;
        (self.k, self.lowest) = match self.queries {
            0 => (Some(k), one.found),
            _ => (self.k.filter(|&same| same == k), self.lowest.min(one.found)),
        };
        // With this formula, the mean of equal numbers is exactly this number.
        let mean = |before: f64, value: f64, count: u64| before + (value - before) / count as f64;
        self.queries += 1;
        self.found = mean(self.found, one.found, self.queries);
        if let Some(asked) = one.asked {
            self.asking += 1;
            self.asked = mean(self.asked, asked, self.asking);
            self.found_of_asked = mean(self.found_of_asked, one.found, self.asking);
        }
    }

    fn found(&self) -> Option<RecallFound> {
        let of_asking = |mean| (self.asking > 0).then_some(mean);
        (self.queries > 0).then(|| RecallFound {
            queries: self.queries,
            k: self.k,
            found: self.found,
            lowest: self.lowest,
            asked: of_asking(self.asked),
            found_of_asked: of_asking(self.found_of_asked),
        })
    }
}

impl fmt::Debug for RecallWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecallWatch({} queries)", self.0.most)
    }
}

impl RecallWatch {
    /// Creates a watch whose full sample has `queries` queries.
    ///
    /// # Errors
    /// `queries` is 0, or more than [`MOST_WATCHED`](bounds::MOST_WATCHED).
    pub fn new(queries: usize) -> Result<Self, Error> {
        Self::begin(queries, false)
    }

    /// Creates a watch for one of several owners of an index. The index does not offer its queries
    /// to this watch. The owner calls [`has_served`](RecallWatch::has_served) instead, so that the
    /// sample has only the owner's queries.
    ///
    /// # Errors
    /// Fails as [`new`](RecallWatch::new) does.
    pub fn told(queries: usize) -> Result<Self, Error> {
        Self::begin(queries, true)
    }

    fn begin(queries: usize, told: bool) -> Result<Self, Error> {
        bounds::watched(queries)?;
        Ok(Self(Arc::new(Watch {
            most: queries,
            told,
            served: AtomicU64::new(0),
            next: AtomicU64::new(0),
            sample: Mutex::new(Sample::begin(queries)),
            changed: Condvar::new(),
            turn: AtomicU64::new(0),
            measuring: Mutex::default(),
            known: Mutex::default(),
            of: Mutex::default(),
        })))
    }

    /// The size of a full sample, in queries.
    pub fn queries(&self) -> usize {
        self.0.most
    }

    /// The recall that was measured so far.
    pub fn found(&self) -> LiveRecall {
        let waiting = self.0.sample.lock().queries.len() as u64;
        let known = self.0.known.lock();
        let last = known.last;
        LiveRecall {
            last: last.and_then(|last| last.means.found()),
            all: known.all.found(),
            at: last.map(|last| last.at),
            seconds: last.map(|last| last.seconds),
            samples_measured: known.measured,
            thrown_away: known.thrown_away,
            waiting,
            sample: self.0.most as u64,
            error: known.error.clone(),
        }
    }

    /// Binds the watch to an index. If the dimension, element type or metric of the index has
    /// changed since the last call, the sample and the results are discarded.
    ///
    /// # Errors
    /// The watch belongs to another index.
    pub(crate) fn watch(
        &self,
        path: &Path,
        folder: Option<(u64, u64)>,
        vectors: (usize, Element, Metric),
    ) -> Result<(), Error> {
        let now = Of {
            path: path.to_owned(),
            folder,
            vectors,
        };
        let mut of = self.0.of.lock();
        if let Some(before) = &*of {
            let moved = before.folder.is_some() && before.folder == folder;
            if before.path != now.path && !moved {
                return Err(Error::call(
                    "watch_recall",
                    format!("the watch of {}", before.path.display()),
                    "a `RecallWatch` measures one index",
                    "Make one for each index (`RecallWatch::new`)",
                ));
            }
            if before.vectors != vectors {
                self.take();
                *self.0.known.lock() = Known::default();
            }
        }
        *of = Some(now);
        Ok(())
    }

    /// The most bytes of memory of a watch, if a vector has `row_bytes` bytes. They include the
    /// current sample, a sample that is being measured, and the thread that measures.
    pub(crate) fn memory_bytes(&self, row_bytes: usize) -> u64 {
        let queries = 2 * self.0.most * (row_bytes + size_of::<Served>() + FILTER_BYTES);
        let answers = self.0.most * bounds::MOST_WATCHED_K * ANSWER_BYTES;
        (queries + answers + SMALL_PIECE) as u64 + THREAD_BYTES
    }

    /// Whether only the owner of the watch offers queries to it ([`told`](RecallWatch::told)).
    pub(crate) fn is_told(&self) -> bool {
        self.0.told
    }

    /// Measures the current sample with `pass`, and discards the sample.
    pub(crate) fn measure(
        &self,
        progress: &dyn Progress,
        pass: impl FnOnce(&[Served]) -> Result<Vec<Answered>, Error>,
    ) -> Result<(), Error> {
        let _one = loop {
            if let Some(one) = self.0.measuring.try_lock_for(INTERRUPTIBLE) {
                break one;
            }
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
        };
        let sample = self.take();
        if sample.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let measured = pass(&sample);
        let mut known = self.0.known.lock();
        match measured {
            Ok(answered) => {
                let mut means = Means::default();
                for one in &answered {
                    means.add(one);
                    known.all.add(one);
                }
                let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                known.last = Some(Last {
                    means,
                    at: since.map_or(0, |since| since.as_secs()),
                    seconds: began.elapsed().as_secs_f64(),
                });
                known.measured += 1;
                known.error = None;
                Ok(())
            }
            Err(error @ (Error::Interrupted | Error::Stopped)) => Err(error),
            Err(error) => {
                let disturbed = matches!(error, Error::Restless { .. } | Error::Outdated { .. });
                known.thrown_away += u64::from(disturbed);
                known.error = Some(error.to_string());
                Err(error)
            }
        }
    }

    /// The error of a measurement on an index that has no watch.
    pub fn missing() -> Error {
        Error::call(
            "watch_recall",
            "not given",
            "there is no sample of queries to measure",
            "Open the index with such a sample (`OpenOptions::watch_recall`, in Python `open(.., watch_recall=64)`)",
        )
    }

    fn failed(&self, error: &Error) {
        self.0.known.lock().error = Some(error.to_string());
    }
}
