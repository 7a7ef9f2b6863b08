//! Live recall: the recall of served queries. It is measured on a sample of these queries. For each
//! query of the sample, the true nearest vectors are computed.
//!
//! ```text
//!   a full sample (`watch`) ──> one moment of the index
//!                                 ├─> each query searched again, as before
//!                                 └─> all vectors, once, for the true nearest
//!                                        └──> recall ──> `Stats::live_recall`
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
//! - [`pass`]: computes the true nearest vectors of these queries, and their recall

mod pass;

use std::path::PathBuf;
use std::sync::Arc;

use crate::index::Index;
use crate::progress::Progress;
use crate::update::Held;
use crate::watch::{Measurer, RecallWatch};
use crate::{Error, LiveIndex, LiveRecall};

/// If a merge replaces the checkpoint each time, a sample is measured at most this many times.
const TRIES: usize = 3;

/// Measures the sample in an index that changes. `hold` returns the index at its last checkpoint,
/// and keeps the files of this checkpoint. It returns `None` if the index was closed.
fn measure_held(
    watch: &RecallWatch,
    hold: impl Fn() -> Option<Held>,
    progress: &dyn Progress,
) -> Result<(), Error> {
    watch.measure(progress, |sample| {
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

    /// Measures the recall of searches on the queries that were sampled so far
    /// ([`OpenOptions::watch_recall`](crate::OpenOptions::watch_recall)), and discards the sample.
    /// Searches with up to [`MOST_WATCHED_K`](crate::bounds::MOST_WATCHED_K) results are sampled.
    /// Range searches and searches by id are not sampled. A measurement searches each sampled query
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
        measure_held(watch, || Some(self.held()), progress)?;
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
            Some(measure_held(&of_thread, hold, &stop.or(&gone)))
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
