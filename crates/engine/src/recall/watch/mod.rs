//! Live recall: the recall of served queries. It is measured on a sample of these queries. For each
//! query of the sample, the true nearest vectors are computed.
//!
//! ```text
//!   searches ── one in so many ──> sample ── full, or asked ──> one moment of the index
//!              (an atomic add)                         ├─> each query searched again, as before
//!                                                      └─> all vectors, once, for the true nearest
//!                                                             └──> recall ──> `Stats::live_recall`
//! ```
//!
//! A measurement searches each query again, at the same read timestamp (*moment*) at which it
//! computes the true nearest vectors. So inserts, deletes and merges cannot make a result wrong or
//! right. A result counts as found if it is at most as far as the k-th true nearest vector.
//!
//! A vector that was inserted after the read timestamp may still be a result. A vector whose id was
//! replaced, or that moved to storage, may be compared twice. The measurement excludes such ids,
//! and compares the other results of a query with a smaller number of true nearest vectors.
//!
//! In an index that does not change, the scan reads the vector of every result. If a result has no
//! vector, the index is damaged, and the result counts as missed.
//!
//! A measurement keeps the files and the memory of its checkpoint. If a merge replaces this
//! checkpoint, the measurement starts again with the new checkpoint, so that the old one can be
//! released. After [`TRIES`] such merges, the sample is discarded.
//!
//! - [`sample`]: chooses the queries of the sample
//! - [`pass`]: computes the true nearest vectors of these queries, and their recall
//! - [`background`]: the thread that measures whenever a sample is full

mod background;
mod pass;
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
use self::pass::Answered;
use self::sample::{Sample, Served};
use crate::data::VectorSource;
use crate::index::Index;
use crate::progress::Progress;
use crate::update::Held;
use crate::{Error, Filter, LiveIndex, SearchOptions, THREAD_BYTES, bounds};

/// The bytes of memory of a result during the comparison: in the heap, among the found ids, and
/// among the requested ids.
const ANSWER_BYTES: usize = 64;
/// The approximate bytes of memory of a filter with the longest text that a sample keeps.
const FILTER_BYTES: usize = 20 * bounds::MOST_WATCHED_FILTER;
/// While a call waits for a running pass, it checks `progress` for an interruption after each such
/// interval.
const INTERRUPTIBLE: Duration = Duration::from_millis(50);
/// If a merge replaces the checkpoint each time, a sample is measured at most this many times.
const TRIES: usize = 3;

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
    /// The mean of the recall targets ([`SearchOptions::recall`]) of the queries that had one, or
    /// `None` if no query had one.
    pub asked: Option<f64>,
    /// The mean recall of the queries with a recall target.
    pub found_of_asked: Option<f64>,
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
        (queries + answers + pass::SMALL_PIECE) as u64 + THREAD_BYTES
    }

    /// Measures the current sample with `pass`, and discards the sample.
    fn measure(
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
    /// Measures the sample in an index that changes. `hold` returns the index at its last
    /// checkpoint, and keeps the files of this checkpoint. It returns `None` if the index was
    /// closed.
    fn measure_held(
        &self,
        hold: impl Fn() -> Option<Held>,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        self.measure(progress, |sample| {
            let mut path = PathBuf::new();
            for _ in 0..TRIES {
                let held = hold().ok_or(Error::Interrupted)?;
                let until = UntilReplaced {
                    held: &held,
                    progress,
                };
                match pass::measure(&held.standing(), sample, &until) {
                    Err(Error::Interrupted) if held.is_replaced() && !progress.interrupted() => {
                        path = held.standing().index.path().to_owned();
                    }
                    measured => return measured,
                }
            }
            Err(Error::Restless {
                path,
                what: format!(
                    "each of {TRIES} measurements of the recall was disturbed by the end of a merge"
                ),
                remedy: "Measure a smaller sample, or measure while fewer vectors change".into(),
            })
        })
    }
    fn failed(&self, error: &Error) {
        self.0.known.lock().error = Some(error.to_string());
    }
}

/// Interrupts a measurement as `progress` does, and also when a merge replaces the checkpoint of
/// the measurement.
struct UntilReplaced<'a> {
    held: &'a Held,
    progress: &'a dyn Progress,
}

impl Progress for UntilReplaced<'_> {
    fn begin(&self, stage: &str, total: u64) {
        self.progress.begin(stage, total);
    }

    fn advance(&self, steps: u64) {
        self.progress.advance(steps);
    }

    fn end(&self) {
        self.progress.end();
    }

    fn interrupted(&self) -> bool {
        self.progress.interrupted() || self.held.is_replaced()
    }

    fn warn(&self, message: &str) {
        self.progress.warn(message);
    }
}

impl Index {
    /// The watch of this index.
    ///
    /// # Errors
    /// The index was opened without a watch.
    fn watch(&self) -> Result<&RecallWatch, Error> {
        let watch = self.options().watch_recall.as_ref();
        watch.ok_or_else(RecallWatch::missing)
    }

    /// The watch to which this index offers its queries.
    pub(crate) fn offers_to(&self) -> Option<&RecallWatch> {
        let watch = self.options().watch_recall.as_ref();
        watch.filter(|watch| !watch.0.told)
    }

    /// Offers served queries to the sample.
    pub(crate) fn has_served(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: Option<&Filter>,
    ) {
        if let Some(watch) = self.offers_to() {
            watch.has_served(queries, options, filter);
        }
    }

    /// Measures the recall of searches on the queries that were sampled so far
    /// ([`OpenOptions::watch_recall`](crate::OpenOptions::watch_recall)), and discards the sample.
    /// Searches with up to [`MOST_WATCHED_K`](bounds::MOST_WATCHED_K) results are sampled. Range
    /// searches and searches by id are not sampled. A measurement searches each sampled query
    /// again, and compares it with all vectors, on one thread. Other searches continue during the
    /// measurement. If no query was sampled, the call measures nothing. It returns the recall that
    /// was measured so far, including this measurement.
    ///
    /// # Errors
    /// The index was opened without a watch, a read fails, or `progress` interrupts. If another
    /// process has changed the index, the error is [`Error::Outdated`]. After an error, the sample
    /// is discarded too.
    ///
    /// ```no_run
    /// use stratann::{Index, OpenOptions, RecallWatch, SearchOptions, Silent, VectorFile};
    ///
    /// # fn main() -> Result<(), stratann::Error> {
    /// let watch_recall = Some(RecallWatch::new(64)?);
    /// let options = OpenOptions { watch_recall, ..Default::default() };
    /// let index = Index::open("photos.idx", &options)?;
    /// index.search(&VectorFile::open("queries.u8bin")?, &SearchOptions::default())?;
    /// let measured = index.measure_recall(&Silent)?;
    /// println!("recall of 64 of these queries: {:?}", measured.last.map(|last| last.found));
    /// # Ok(())
    /// # }
    /// ```
    pub fn measure_recall(&self, progress: &dyn Progress) -> Result<LiveRecall, Error> {
        let watch = self.watch()?;
        watch.measure(progress, |sample| {
            let measured = self.with_standing(|standing| pass::measure(standing, sample, progress));
            measured.map_err(|error| self.outdated(error))
        })?;
        Ok(watch.found())
    }

    /// Starts a thread that measures whenever a sample is full
    /// ([`measure_recall`](Index::measure_recall)), until the index is dropped. After a
    /// measurement, the thread pauses 19 times as long as the measurement took. If a measurement
    /// fails, the error is in [`Stats::live_recall`](crate::Stats::live_recall). If several handles
    /// share a watch, only the thread that was started last measures.
    ///
    /// # Errors
    /// The index was opened without a watch, or no thread can be started.
    pub fn measure_recall_in_background(self: &Arc<Self>) -> Result<(), Error> {
        let (watch, index) = (self.watch()?.clone(), Arc::downgrade(self));
        // The lock is held during the start. So the remaining thread is the one that
        // was started last.
        let mut place = self.measurer().lock();
        let measurer = Measurer::start(watch, move |stop| {
            let index = index.upgrade()?;
            // If only this thread still has a reference to the index, no caller needs the result.
            let alone = || Arc::strong_count(&index) == 1;
            Some(index.measure_recall(&stop.or(&alone)).map(drop))
        })?;
        let before = place.replace(measurer);
        drop(place);
        // The drop waits for the replaced thread, so it runs without the lock.
        drop(before);
        Ok(())
    }

    /// Whether a thread of this handle measures. If another handle with the same watch has started
    /// a thread later, the thread of this handle has ended.
    pub fn is_measured(&self) -> bool {
        let place = self.measurer().lock();
        place.as_ref().is_some_and(Measurer::measures)
    }

    /// Ends the measurements in the background, and waits for their thread.
    pub fn end_measurements(&self) {
        let ended = self.measurer().lock().take();
        // The drop runs without the lock, because searches may need it.
        drop(ended);
    }
}

impl LiveIndex {
    /// Offers served queries to the sample.
    pub(crate) fn has_served(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: Option<&Filter>,
    ) {
        if let Some(watch) = self.watch_recall().filter(|watch| !watch.0.told) {
            watch.has_served(queries, options, filter);
        }
    }

    /// Does the same as [`Index::measure_recall`], for the vectors at one read timestamp during the
    /// call. Searches, changes and merges continue during the measurement. If a merge ends during
    /// the measurement, the measurement starts again.
    ///
    /// # Errors
    /// Fails as [`Index::measure_recall`] does. The error is [`Error::Restless`] in two cases:
    /// several merges ended during the call, or ids were replaced so often that the vectors at the
    /// read timestamp are forgotten.
    pub fn measure_recall(&self, progress: &dyn Progress) -> Result<LiveRecall, Error> {
        // The call keeps no reference to the current [`Index`], because a merge may replace it.
        let watch = self.index().watch()?.clone();
        self.measure_recall_by(&watch, progress)
    }

    /// Does the same as [`measure_recall`](LiveIndex::measure_recall), with a given watch. The
    /// index may have been opened without this watch. The caller then reports served queries with
    /// [`RecallWatch::has_served`].
    ///
    /// # Errors
    /// Fails as [`measure_recall`](LiveIndex::measure_recall) does, and if the watch belongs to
    /// another index.
    pub fn measure_recall_by(
        &self,
        watch: &RecallWatch,
        progress: &dyn Progress,
    ) -> Result<LiveRecall, Error> {
        self.is_watched_by(watch)?;
        watch.measure_held(|| Some(self.held()), progress)?;
        Ok(watch.found())
    }

    /// Does the same as [`Index::measure_recall_in_background`].
    ///
    /// # Errors
    /// Fails as [`Index::measure_recall_in_background`] does.
    pub fn measure_recall_in_background(self: &Arc<Self>) -> Result<(), Error> {
        let watch = self.index().watch()?.clone();
        self.measure_recall_in_background_by(&watch)
    }

    /// Does the same as [`measure_recall_in_background`](LiveIndex::measure_recall_in_background),
    /// with a given watch. The index may have been opened without this watch.
    ///
    /// # Errors
    /// The watch belongs to another index, or no thread can be started.
    pub fn measure_recall_in_background_by(
        self: &Arc<Self>,
        watch: &RecallWatch,
    ) -> Result<(), Error> {
        self.is_watched_by(watch)?;
        let (of_thread, live) = (watch.clone(), Arc::downgrade(self));
        // The lock is held during the start. So the remaining thread is the one that
        // was started last.
        let mut measurers = self.measurers().lock();
        let measurer = Measurer::start(watch.clone(), move |stop| {
            let gone = || live.strong_count() == 0;
            // This thread has a strong reference to the index only while `held` runs. So a close of
            // the index does not wait for this thread.
            let hold = || live.upgrade().map(|live| live.held());
            Some(of_thread.measure_held(hold, &stop.or(&gone)))
        })?;
        let before = taken(&mut measurers, watch);
        measurers.push(measurer);
        drop(measurers);
        // The drop waits for the replaced thread, so it runs without the lock.
        drop(before);
        Ok(())
    }

    /// Whether a thread of this index measures for the watch. If another handle of the index has
    /// started a thread with this watch later, the thread of this handle has ended.
    pub fn is_measured_by(&self, watch: &RecallWatch) -> bool {
        let measurers = self.measurers().lock();
        measurers
            .iter()
            .any(|one| one.is_of(watch) && one.measures())
    }

    /// Ends measurements in the background for this watch, and waits for their threads.
    pub fn end_measurements_by(&self, watch: &RecallWatch) {
        let ended = taken(&mut self.measurers().lock(), watch);
        // The drop runs without the lock, because searches may need it.
        drop(ended);
    }

    /// Binds a watch to this index.
    fn is_watched_by(&self, watch: &RecallWatch) -> Result<(), Error> {
        let index = self.index();
        let vectors = (index.dim(), index.element(), index.metric());
        watch.watch(self.path(), index.folder(), vectors)
    }
}

/// Removes from the list the threads that measure for `watch`, and returns these threads.
fn taken(measurers: &mut Vec<Measurer>, watch: &RecallWatch) -> Vec<Measurer> {
    measurers.extract_if(.., |one| one.is_of(watch)).collect()
}
