//! Decides when a merge is due, by the rules of OdinANN §3.4.2 and further rules. A merge is due if
//! one of these quantities reaches its limit:
//!
//! - *Deleted*: the share of the vectors on storage that were deleted or replaced. Limit: 10 %, or
//!   20 % if fewer than [`MergeWhen::least`] vectors were deleted.
//! - *Reads*: the mean reads of a query, for each list size. The limit is 1.1 times the reads with
//!   nothing deleted. If these reads are unknown, the reads at the smallest measured share of
//!   deleted vectors count.
//! - *Logged*: the number of vectors that wait in memory. Waiting attributes count as vectors of
//!   the same size. The limit is 6 % of the vectors on storage (FreshDiskANN's share, according to
//!   OdinANN §4.1). The rule does not apply if rebalances move waiting vectors.
//! - *Grown*: the number of vectors, if the last build or merge had few vectors. The limit is 4
//!   times the number of vectors of that build or merge.
//! - *Drifted*: the number of vectors unlike the vectors on which the codes were trained. The limit
//!   is 1 % of all vectors.
//! - *Garbage*: the dead bytes in the files of clusters, or the pages of a graph beyond the
//!   number after a build. The limit is 40 % of the files or pages, and 55 % for a large graph.
//! - *Scattered*: the reads of a probe of one cluster in a grouped index. The limit is 1.3 times
//!   the reads after the build.
//!
//! Clusters with replicated vectors need *Garbage*. Grouped clusters need *Scattered*: updates move
//! members out of their groups, until each member needs its own read.
//!
//! In a small graph, a few hundred inserts rewrite all pages, and leave two to four times the pages
//! of a graph that was just built (*a build*). So a small graph of 1,000 vectors is merged after 32
//! inserts, of 3,000 vectors after 90, and of 10,000 vectors after 1,000. A close merges a small
//! graph with 2.2 times the pages of a build even after a single insert. Larger graphs have
//! checkpoints more often ([`checkpoint`](super::direct)), and reuse their free pages. A larger
//! graph is merged at 2.2 times the pages of a build, after a tenth of its vectors was inserted.
//!
//! *Grown* is for an index that is built of a handful of vectors and gets many more by direct
//! inserts, until its codes do not distinguish vectors. All such merges together cost a third more
//! than the last merge alone. After a merge with enough rows to train a codebook, the rule no
//! longer applies.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::health::Concern;
use super::live::LiveIndex;
use crate::index::Index;
use crate::index::growth::{LEAST_TRAINED, SCANNED, growth};
use crate::overlay::Overlay;
use crate::progress::Progress;
use crate::search::SearchResults;
use crate::{Error, MergeWhen, SearchOptions, Update};

/// Why a merge is due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Due {
    /// The share of the vectors on storage that were deleted or replaced.
    Deleted(f64),
    /// The reads of a search, as a multiple of the reads with nothing deleted.
    Reads(f64),
    /// The number of vectors that wait in memory, as a share of the number on storage. Waiting
    /// attributes count as vectors of the same size.
    Logged(f64),
    /// The dead bytes of clusters as a share of the bytes of their files. In a graph: the pages
    /// beyond the number that a build would need, as a share of all pages.
    Garbage(f64),
    /// The reads of a probe of a cluster, as a multiple of the reads after the build.
    Scattered(f64),
    /// The number of vectors, as a multiple of the number at the last build or merge.
    Grown(f64),
    /// The share of vectors that were inserted since the last build or merge, and are unlike the
    /// vectors on which the codes were trained.
    Drifted(f64),
}

impl fmt::Display for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Due::Deleted(share) => {
                write!(
                    f,
                    "{:.0} % of the vectors on storage are deleted",
                    100.0 * share
                )
            }
            Due::Reads(times) => write!(
                f,
                "searches make {times:.2} times the reads that they made with nothing deleted"
            ),
            Due::Logged(share) => write!(
                f,
                "the changes that wait in memory and in the log amount to {:.0} % of the vectors on storage",
                100.0 * share
            ),
            Due::Garbage(share) => write!(
                f,
                "{:.0} % of the pages are surplus, since a build of the same vectors would need fewer pages",
                100.0 * share
            ),
            Due::Scattered(times) => write!(
                f,
                "a probe of a cluster makes {times:.2} times the reads that it made after the build, since some vectors of the cluster are stored apart"
            ),
            Due::Grown(times) => write!(
                f,
                "the index has {times:.0} times the vectors of its last build or merge"
            ),
            Due::Drifted(share) => write!(
                f,
                "{:.0} % of the vectors are unlike the vectors that the codes were trained on, and searches often miss them",
                (100.0 * share).max(1.0)
            ),
        }
    }
}

/// The number of queries of one measurement of the mean reads.
const QUERIES: u64 = 256;
/// The weight of the last measurement in the running mean.
const FOLLOW: f64 = 0.3;
/// The minimum number of deleted vectors for a merge of a small index.
const FEW: u64 = 64;
/// A graph is small if it has fewer vectors than `SMALL` times [`MergeWhen::least`].
const SMALL: u64 = 10;
/// *Garbage* applies to a large graph if one in `CAME` vectors was inserted since the last merge.
const CAME: u64 = 10;
/// The minimum number of inserted vectors for *Garbage* in the smallest graph.
const LEAST_CAME: u64 = 32;
/// The limit of *Garbage* for a large graph: 2.2 times the pages of a graph that was just built.
const LARGE_GARBAGE: f64 = 0.55;
/// An index with at most this share of deleted vectors counts as an index with nothing deleted.
const NOTHING: f64 = 0.01;

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    queries: u64,
    reads: u64,
    /// Mean reads of a query: `first` at the smallest share of deleted vectors, `now` as a running
    /// mean. 0 if unknown.
    first: f64,
    now: f64,
    least: f64,
}

#[derive(Debug, Default)]
pub(super) struct Reads(Mutex<HashMap<usize, Mean>>);

/// The number of list sizes for which reads are recorded.
const SIZES: usize = 8;

impl Reads {
    /// `deleted` is the share of deleted vectors at the time of the batch.
    pub(super) fn add(&self, options: &SearchOptions, results: &SearchResults, deleted: f64) {
        let mut means = self.0.lock();
        let list = options.probes.unwrap_or(options.list);
        if means.len() >= SIZES && !means.contains_key(&list) {
            return;
        }
        let mean = means.entry(list).or_default();
        mean.queries += results.latencies_us.len() as u64;
        mean.reads += results.counters.graph_reads + results.counters.vector_reads;
        if mean.queries < QUERIES {
            return;
        }
        let now = mean.reads as f64 / mean.queries as f64;
        (mean.queries, mean.reads) = (0, 0);
        // The first measurement counts even if vectors are deleted, since their share falls only
        // with a merge.
        if mean.first == 0.0 || deleted <= mean.least.max(NOTHING) {
            (mean.first, mean.least) = (now, deleted);
        }
        mean.now = match mean.now {
            0.0 => now,
            before => before + FOLLOW * (now - before),
        };
    }

    /// The present reads divided by the reads with nothing deleted: the maximum over the list
    /// sizes.
    fn growth(&self) -> f64 {
        let means = self.0.lock();
        let known = means.values().filter(|mean| mean.first > 0.0);
        known.map(|mean| mean.now / mean.first).fold(0.0, f64::max)
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Extents {
    pub(super) stored: u64,
    pub(super) deleted: u64,
    /// The number of vectors that wait in memory. Other waiting changes count as vectors of the
    /// same size.
    pub(super) logged: u64,
    pub(super) by_itself: bool,
    pub(super) live: u64,
    /// `came` is the number of vectors inserted since the last build or merge, and `garbage` the
    /// share of garbage.
    pub(super) came: u64,
    pub(super) garbage: f64,
}

impl Extents {
    /// The functions `drifted` and `scattered` may read the index, so they are called last.
    fn due(
        &self,
        index: &Index,
        when: &MergeWhen,
        drifted: impl FnOnce() -> Option<f64>,
        scattered: impl FnOnce() -> Option<f64>,
    ) -> Option<Due> {
        let share = |part: u64| part as f64 / self.stored.max(1) as f64;
        // A merge of a small index is quick, so a large share of few deleted vectors suffices.
        let most = match self.deleted >= when.least {
            true => when.deleted,
            false => 2.0 * when.deleted,
        };
        if self.deleted >= when.least.min(FEW) && share(self.deleted) >= most {
            return Some(Due::Deleted(share(self.deleted)));
        }
        if self.logged >= when.least && share(self.logged) >= when.logged && !self.by_itself {
            return Some(Due::Logged(share(self.logged)));
        }
        let grown = growth(index, self.live, when.least);
        if let Some(times) = grown.filter(|&times| times >= when.grown) {
            return Some(Due::Grown(times));
        }
        if let Some(share) = drifted().filter(|&share| share >= when.drifted) {
            return Some(Due::Drifted(share));
        }
        let small = SMALL * when.least.max(1);
        let (least, most) = match index.has_clusters() {
            true => (when.least, when.garbage),
            // The smaller a graph is, the smaller a share of inserted vectors suffices, since the
            // merge costs little. The largest small graph needs `least` inserted vectors, a tenth
            // of its vectors.
            false if self.stored < small => (
                (self.stored * self.stored / (CAME * small)).max(when.least.min(LEAST_CAME)),
                when.garbage,
            ),
            // A large graph has a higher limit, since later inserts use its free pages.
            false => (self.stored / CAME, when.garbage.max(LARGE_GARBAGE)),
        };
        if self.came >= least && self.garbage >= most {
            return Some(Due::Garbage(self.garbage));
        }
        (self.came >= when.least)
            .then(scattered)
            .flatten()
            .filter(|&times| times >= when.scattered)
            .map(Due::Scattered)
    }
}

/// The pages beyond the number that a build would need for `live` vectors, as a share of all pages.
pub(super) fn garbage_of_graph(index: &Index, live: u64, pages: u64) -> f64 {
    let built = index.graph().files().0.pages as f64;
    let each = built / index.manifest().vectors.max(1) as f64;
    (1.0 - each * live as f64 / pages.max(1) as f64).max(0.0)
}

impl Index {
    /// Why a merge is due in an index that is not open for changes. *Reads* does not apply, and
    /// waiting attributes do not count.
    pub(crate) fn due(
        &self,
        drifted: impl FnOnce() -> Option<f64>,
        scattered: impl FnOnce() -> Option<f64>,
    ) -> Option<Due> {
        let manifest = self.manifest();
        let live = self.live() as u64;
        let (came, garbage) = match (self.clusters(), manifest.placement) {
            (Some(clusters), _) => (clusters.nodes(), clusters.garbage()),
            (None, Some(placement)) => (
                self.nodes() as u64,
                garbage_of_graph(self, live, placement.pages),
            ),
            (None, None) => (0, 0.0),
        };
        let extents = Extents {
            stored: self.len() as u64,
            deleted: self.overlay().map_or(0, |overlay| self.deleted_in(overlay)),
            logged: self.overlay().map_or(0, Overlay::logged),
            by_itself: self.has_clusters() && self.preset().update == Update::Rebalance,
            live,
            came: came.saturating_sub(manifest.vectors),
            garbage,
        };
        extents.due(self, &MergeWhen::default(), drifted, scattered)
    }
}

impl LiveIndex {
    /// Returns the reason why a merge is due, or `None`.
    pub fn due(&self, when: &MergeWhen) -> Option<Due> {
        self.due_by(when, || self.drift(when.least), || self.scatter())
    }

    /// Why a merge is due, decided without a read of the index.
    pub(super) fn due_as_known(&self, drifted: Option<f64>) -> Option<Due> {
        self.due_by(&MergeWhen::default(), || drifted, || self.known_scatter())
    }

    fn due_by(
        &self,
        when: &MergeWhen,
        drifted: impl FnOnce() -> Option<f64>,
        scattered: impl FnOnce() -> Option<f64>,
    ) -> Option<Due> {
        let extents = self.extents();
        extents
            .due(&self.index(), when, drifted, scattered)
            .or_else(|| {
                let growth = self.reads().growth();
                let due = extents.deleted >= when.least && growth >= when.reads;
                due.then_some(Due::Reads(growth))
            })
    }

    /// Why a merge is due before the index is closed. A small graph with 2.2 times the pages of a
    /// build is also merged: otherwise the pages would stay until the next inserts.
    fn due_at_rest(&self, when: &MergeWhen) -> Option<Due> {
        let Extents {
            stored,
            came,
            garbage,
            ..
        } = self.extents();
        let small = !self.index().has_clusters() && stored < SMALL * when.least.max(1);
        self.due(when).or_else(|| {
            let worth = small && came > 0 && garbage >= when.garbage.max(LARGE_GARBAGE);
            worth.then_some(Due::Garbage(garbage))
        })
    }

    /// Merges in the background whenever a merge is due, until the returned value or the index is
    /// dropped. A drop interrupts a running merge, and leaves the index unchanged.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn merge_when_due(self: &Arc<Self>, when: MergeWhen) -> Result<Merger, Error> {
        self.merge_when_due_and(when, |_| true)
    }

    /// Merges like [`merge_when_due`](Self::merge_when_due), if `may` returns true before the
    /// merge.
    ///
    /// # Errors
    /// Fails as [`merge_when_due`](Self::merge_when_due) does.
    pub fn merge_when_due_and(
        self: &Arc<Self>,
        when: MergeWhen,
        may: impl Fn(&LiveIndex) -> bool + Send + 'static,
    ) -> Result<Merger, Error> {
        let stop = Arc::new(Stop::default());
        let (index, told) = (Arc::downgrade(self), stop.clone());
        let named = std::thread::Builder::new().name("stratann-merge".into());
        let thread = stratann_tier::start(named, move || watch(&index, &when, &may, &told))
            .map_err(|source| {
                let what = "merges".into();
                stratann_tier::TierError::NoThread { what, source }
            })?;
        Ok(Merger {
            stop,
            thread: Some(thread),
            home: stratann_tier::Home::here(),
        })
    }
}

const LOOK: Duration = Duration::from_millis(500);
const WAIT: Duration = Duration::from_millis(5);

fn watch(index: &Weak<LiveIndex>, when: &MergeWhen, may: &dyn Fn(&LiveIndex) -> bool, stop: &Stop) {
    loop {
        let last;
        {
            let mut told = stop.told.lock();
            if *told == Told::GoOn {
                stop.changed.wait_for(&mut told, LOOK);
            }
            if *told == Told::Stop {
                return;
            }
            last = *told == Told::Finish;
        }
        let Some(index) = index.upgrade() else {
            return;
        };
        if index.health().is_halted() {
            return;
        }
        let due = match last {
            true => index.due_at_rest(when),
            false => index.due(when),
        };
        if due.is_some()
            && may(&index)
            && let Err(error) = index.compact(stop)
        {
            // The usual cause is a full disk. No data is lost, and a later merge may succeed.
            if !matches!(error, Error::Interrupted) {
                index.health().trouble(Concern::Merge, &error);
            }
            let mut told = stop.told.lock();
            if *told == Told::GoOn {
                stop.changed.wait_for(&mut told, 60 * LOOK);
            }
        }
        if last {
            return;
        }
    }
}

/// The background thread that merges until this value is dropped. A forked process has no such
/// thread.
#[derive(Debug)]
pub struct Merger {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    home: stratann_tier::Home,
}

impl Merger {
    /// Waits for a running merge, makes a last merge if one is due, and ends the background thread.
    /// `progress` can interrupt the wait. Call this function before you close the index, since a
    /// drop interrupts a running merge.
    pub fn finish(self, progress: &dyn Progress) {
        if !self.home.is_here() {
            return;
        }
        *self.stop.told.lock() = Told::Finish;
        self.stop.changed.notify_all();
        let goes_on = |thread: &JoinHandle<()>| !thread.is_finished();
        while self.thread.as_ref().is_some_and(goes_on) && !progress.interrupted() {
            std::thread::sleep(WAIT);
        }
    }
}

impl Drop for Merger {
    fn drop(&mut self) {
        if !self.home.is_here() {
            std::mem::forget(self.thread.take());
            return; // The thread exists only in the other process.
        }
        *self.stop.told.lock() = Told::Stop;
        self.stop.changed.notify_all();
        // If the background thread itself drops this value, the drop cannot wait for the end of
        // that thread.
        let other = |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(other)
            && thread.join().is_err()
        {
            tracing::error!("the thread that merges in the background panicked");
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Told {
    #[default]
    GoOn,
    Finish,
    Stop,
}

#[derive(Debug, Default)]
struct Stop {
    told: Mutex<Told>,
    changed: parking_lot::Condvar,
}

impl Progress for Stop {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}

    fn interrupted(&self) -> bool {
        *self.told.lock() == Told::Stop
    }
}

/// Why searches miss vectors, if the index has far outgrown its codes.
pub(crate) fn far_grown(index: &Index, live: u64) -> Option<Due> {
    let times = growth(index, live, 1)?;
    // Vectors that wait in memory do not count, since searches of their graph use no codes.
    let linked = live.min(index.nodes() as u64) >= SCANNED && !index.has_clusters();
    (linked && index.manifest().built_vectors() < LEAST_TRAINED).then_some(Due::Grown(times))
}

pub(crate) fn found_badly(due: Due) -> String {
    match due {
        Due::Drifted(_) => format!("{due}, until a merge (compact the index)"),
        due => format!(
            "searches often miss some vectors until a merge, since {due} (compact the index)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::Counters;

    #[test]
    fn searches_of_an_index_that_was_opened_with_deleted_vectors_have_something_to_go_by() {
        let batch = |reads: u64| SearchResults {
            k: 1,
            ids: Vec::new(),
            distances: Vec::new(),
            exact: true,
            distance_error: 0.0,
            seconds: 0.0,
            cpu_seconds: 0.0,
            process_cpu_seconds: 0.0,
            in_flight: 1,
            tried: Vec::new(),
            latencies_us: vec![1.0; QUERIES as usize],
            counters: Counters {
                graph_reads: reads * QUERIES,
                ..Counters::default()
            },
            explained: None,
            parts: None,
        };
        let options = SearchOptions::default();
        let growth = |given: &[(u64, f64)]| {
            let reads = Reads::default();
            for &(each, deleted) in given {
                reads.add(&options, &batch(each), deleted);
            }
            reads.growth()
        };
        assert_eq!(growth(&[(10, 0.0)]), 1.0);
        assert_eq!(growth(&[(10, 0.05)]), 1.0);
        // The mean moves by three tenths of the difference.
        assert!((growth(&[(10, 0.05), (20, 0.08)]) - 1.3).abs() < 1e-9);
        assert_eq!(growth(&[(20, 0.05), (10, 0.04)]), 1.7);
        assert!((growth(&[(10, 0.002), (20, 0.009)]) - 0.65).abs() < 1e-9);
    }
}
