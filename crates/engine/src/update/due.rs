//! Decides when a merge is due: by OdinANN §3.4.2, and by FreshDiskANN's share for vectors that
//! wait in memory.
//!
//! - *Deleted*: vectors on storage that no search returns; 10 % of them, of a few 20 %.
//! - *Reads*: the reads of a search, by its list size; 1.1 times the reads with nothing deleted, or
//!   the least known.
//! - *Logged*: vectors that wait in memory, and rows in memory and in the log, counted as vectors
//!   of equal size; 6 % of the vectors on storage (OdinANN §4.1, of DiskANN).
//! - *Grown*: vectors, if the last build or merge had few; 4 times as many as it had.
//! - *Drifted*: vectors unlike those the codes were trained on (drift.rs); 1 % of all.
//! - *Garbage*: bytes of clusters that were rewritten since, or pages of a graph that a build would
//!   not take. The limit is 40 % of the files of clusters or of the pages, and 55 % of the pages of
//!   a graph that is not small.
//! - *Scattered*: reads of a single cluster of a grouped index; 1.3 times the reads after the
//!   build.
//!
//! Garbage in clusters concerns replicated ones. If each vector is stored once, every copy is live,
//! and the data rewritten beside it is small. Grouped clusters lose their groups one by one
//! instead, until each member is read separately.
//!
//! A graph of fewer than 10,000 vectors gets all of its pages rewritten between two checkpoints, by
//! a few hundred inserts. It then takes two to four times the pages of a build, and many of them
//! hold no node or a few. It is merged after a share of its vectors was inserted: 32 of 1,000, 90
//! of 3,000, a tenth of 10,000. A process that closes an index merges it if it takes 2.2 times the
//! pages, however few were inserted. Larger graphs have checkpoints more often
//! ([`checkpoint`](super::direct)), and their free pages are used again. They are merged if they
//! take that many pages all the same, after a tenth was inserted.
//!
//! Waiting vectors are no reason for a merge if clusters take them in place by themselves.
//!
//! An index may be built of a handful of vectors and take others straight into its graph. Then no
//! vector waits, but its codes do not tell vectors apart, so a merge trains them again. Each such
//! merge costs as much as a build of the present vectors, and all together a third more than the
//! last one. They end when as many rows were merged as a codebook is trained on.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::growth::growth;
use super::health::Concern;
use super::live::LiveIndex;
use crate::progress::Progress;
use crate::search::SearchResults;
use crate::{Error, SearchOptions};

/// Limits beyond which a merge is due. An infinite limit is never reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergeWhen {
    /// Share of the vectors on storage that were deleted or replaced.
    pub deleted: f64,
    /// Reads of a query, as a multiple of the reads with nothing deleted.
    pub reads: f64,
    /// Vectors that wait in memory, as a share of the vectors on storage. Rows that were set
    /// without a vector count as vectors of the same size.
    pub logged: f64,
    /// Bytes of clusters that were rewritten elsewhere, as a share of the files of clusters. In a
    /// graph of fewer vectors than ten times `least`: pages beyond the number that a build takes.
    /// In a larger graph, the limit for pages is 0.55, or this value if it is higher.
    pub garbage: f64,
    /// Reads of a single cluster in a grouped index, as a multiple of the reads after the build. A
    /// cluster that took vectors can no longer be read at once. A search reads several clusters
    /// with vectors in common, so a factor of 1.3 for one cluster is less for a search.
    pub scattered: f64,
    /// Vectors, as a multiple of the vectors of the last build or merge. It applies if there were
    /// fewer than a codebook is trained on, and there are enough now.
    pub grown: f64,
    /// Vectors inserted since the last build or merge that are unlike those the codes were trained
    /// on, as a share of all. Searches find such vectors badly.
    pub drifted: f64,
    /// The fewest vectors that are worth a merge. Lower limits apply in three cases, unless this
    /// value is lower still. They are 256 drifted vectors, and 64 deleted vectors if these are
    /// twice the share that is due. For an index that has grown by the given factor, the limit is
    /// 32 vectors, since a search examines so few in any case.
    pub least: u64,
}

impl Default for MergeWhen {
    fn default() -> Self {
        Self {
            deleted: 0.1,
            reads: 1.1,
            logged: 0.06,
            garbage: 0.4,
            scattered: 1.3,
            grown: 4.0,
            drifted: 0.01,
            least: 1_000,
        }
    }
}

/// Why a merge is due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Due {
    /// This share of the vectors on storage was deleted or replaced.
    Deleted(f64),
    /// Searches read this many times as much as with nothing deleted.
    Reads(f64),
    /// This many vectors wait in memory, as a share of those on storage; rows are counted as
    /// vectors of the same size.
    Logged(f64),
    /// This share of the files of clusters belongs to clusters rewritten since. In a graph: this
    /// share of the pages exceeds the number that a build takes.
    Garbage(f64),
    /// A cluster takes this many times the reads after the build, since vectors of groups are
    /// stored apart now.
    Scattered(f64),
    /// The index has this many times the vectors for which its codes and its measurements were
    /// made.
    Grown(f64),
    /// This share of all vectors was inserted since the last build or merge and is unlike those the
    /// codes were trained on.
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
                "searches read {times:.2} times as much as with nothing deleted"
            ),
            Due::Logged(share) => write!(
                f,
                "changes that wait in memory and in the log are as much as {:.0} % of the vectors on storage",
                100.0 * share
            ),
            Due::Garbage(share) => write!(
                f,
                "a build would do without {:.0} % of the pages, since they hold no vectors any more, or fewer than they could",
                100.0 * share
            ),
            Due::Scattered(times) => write!(
                f,
                "a cluster takes {times:.2} times the reads that it took after the build, since its vectors are stored apart now"
            ),
            Due::Grown(times) => write!(
                f,
                "the index has {times:.0} times the vectors that it was made for"
            ),
            Due::Drifted(share) => write!(
                f,
                "{:.0} % of the vectors are unlike the vectors that the codes were trained on, and are found badly",
                (100.0 * share).max(1.0)
            ),
        }
    }
}

/// Queries over which a mean is taken.
const QUERIES: u64 = 256;
/// The weight of a new value in the running mean.
const FOLLOW: f64 = 0.3;
/// Deleted vectors that are worth a merge of a small index.
const FEW: u64 = 64;
/// A graph is small below this many times the vectors that are worth a merge.
const SMALL: u64 = 10;
/// One in so many vectors of a graph must have been inserted before its pages are worth a merge.
const CAME: u64 = 10;
/// The fewest inserted vectors, however small the graph is.
const LEAST_CAME: u64 = 32;
/// The share of pages that a build would not take with which a merge is due, for a graph that is
/// not small: it takes 2.2 times the pages of a build.
const LARGE_GARBAGE: f64 = 0.55;
/// Share of deleted vectors up to which the index counts as having none deleted.
const NOTHING: f64 = 0.01;

/// The reads of searches with one list size.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    queries: u64,
    reads: u64,
    /// Reads of a query with nothing deleted, or with the smallest share seen, and now; 0 if
    /// unknown.
    first: f64,
    now: f64,
    /// The share of deleted vectors when `first` was measured.
    least: f64,
}

/// The reads of searches since the last merge.
#[derive(Debug, Default)]
pub(super) struct Reads(Mutex<HashMap<usize, Mean>>);

/// List sizes that are followed.
const SIZES: usize = 8;

impl Reads {
    /// Adds the reads of a batch of queries, with the share of vectors deleted at that time.
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
        // An index opened with more deleted vectors never has as few again before a merge.
        if mean.first == 0.0 || deleted <= mean.least.max(NOTHING) {
            (mean.first, mean.least) = (now, deleted);
        }
        mean.now = match mean.now {
            0.0 => now,
            before => before + FOLLOW * (now - before),
        };
    }

    /// The present reads as a multiple of the reads with nothing deleted, the maximum over the list
    /// sizes.
    fn growth(&self) -> f64 {
        let means = self.0.lock();
        let known = means.values().filter(|mean| mean.first > 0.0);
        known.map(|mean| mean.now / mean.first).fold(0.0, f64::max)
    }

    /// Forgets all reads, since the index was merged.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl LiveIndex {
    /// Why a merge is due, if one is.
    pub fn due(&self, when: &MergeWhen) -> Option<Due> {
        let (stored, deleted, logged) = self.extents();
        let share = |part: u64| part as f64 / stored.max(1) as f64;
        // A small index is merged quickly. Otherwise searches would read several times its size.
        let most = match deleted >= when.least {
            true => when.deleted,
            false => 2.0 * when.deleted,
        };
        if deleted >= when.least.min(FEW) && share(deleted) >= most {
            return Some(Due::Deleted(share(deleted)));
        }
        let by_itself = self.takes_in_place() || self.is_filling();
        if logged >= when.least && share(logged) >= when.logged && !by_itself {
            return Some(Due::Logged(share(logged)));
        }
        if let Some(times) = growth(&self.index(), self.len() as u64, when.least)
            .filter(|&times| times >= when.grown)
        {
            return Some(Due::Grown(times));
        }
        let drifted = self
            .drift(when.least)
            .filter(|&share| share >= when.drifted);
        if let Some(share) = drifted {
            return Some(Due::Drifted(share));
        }
        let (came, garbage) = self.garbage();
        let small = SMALL * when.least.max(1);
        let (least, most) = match self.index().has_clusters() {
            true => (when.least, when.garbage),
            // A tenth of the largest small graph, and a smaller share of smaller ones: merging them
            // costs little.
            false if stored < small => (
                (stored * stored / (CAME * small)).max(when.least.min(LEAST_CAME)),
                when.garbage,
            ),
            // The next inserts use those pages.
            false => (stored / CAME, when.garbage.max(LARGE_GARBAGE)),
        };
        if came >= least && garbage >= most {
            return Some(Due::Garbage(garbage));
        }
        let scattered = || self.scatter().filter(|&times| times >= when.scattered);
        if came >= when.least
            && let Some(times) = scattered()
        {
            return Some(Due::Scattered(times));
        }
        let growth = self.reads().growth();
        (deleted >= when.least && growth >= when.reads).then_some(Due::Reads(growth))
    }

    /// Why a merge is due in an index that is about to be closed, if one is. A small graph with 2.2
    /// times the pages of a build would otherwise stay so until more vectors are inserted.
    fn due_at_rest(&self, when: &MergeWhen) -> Option<Due> {
        let (stored, ..) = self.extents();
        let small = !self.index().has_clusters() && stored < SMALL * when.least.max(1);
        self.due(when).or_else(|| {
            let (came, garbage) = self.garbage();
            let worth = small && came > 0 && garbage >= when.garbage.max(LARGE_GARBAGE);
            worth.then_some(Due::Garbage(garbage))
        })
    }

    /// Merges in the background whenever that is due, until the returned value or the index is
    /// dropped. A merge in progress is then interrupted, and changes nothing.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn merge_when_due(self: &Arc<Self>, when: MergeWhen) -> Result<Merger, Error> {
        self.merge_when_due_and(when, |_| true)
    }

    /// Merges in the background while `may` allows it: `may` is called before each merge.
    ///
    /// # Errors
    /// As for [`merge_when_due`](Self::merge_when_due).
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

/// How often the thread checks whether a merge is due.
const LOOK: Duration = Duration::from_millis(500);
/// How often a caller that waits for the last merge checks whether it is done.
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
            // Usually a full disk. Nothing is lost, and there may be space later.
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

/// Merges in the background until it is dropped, in the process that began it. A forked process has
/// no such thread.
#[derive(Debug)]
pub struct Merger {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    home: stratann_tier::Home,
}

impl Merger {
    /// Ends the background merges once a merge in progress is done and a due one is made;
    /// `progress` can interrupt that. Otherwise a process that opens an index, changes it and
    /// closes it would interrupt each merge that becomes due.
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
            return; // That thread lives in another process.
        }
        *self.stop.told.lock() = Told::Stop;
        self.stop.changed.notify_all();
        // The thread itself may hold the last reference to the index.
        let other = |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(other)
            && thread.join().is_err()
        {
            tracing::error!("the thread that merges in the background panicked");
        }
    }
}

/// The order to the merging thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Told {
    #[default]
    GoOn,
    /// End after a merge that is due.
    Finish,
    /// End immediately.
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
        // The mean follows new values by three tenths at a time.
        assert!((growth(&[(10, 0.05), (20, 0.08)]) - 1.3).abs() < 1e-9);
        // With fewer deleted vectors than before, the reads are known more exactly.
        assert_eq!(growth(&[(20, 0.05), (10, 0.04)]), 1.7);
        // Shares close to 0 count as nothing deleted each time.
        assert!((growth(&[(10, 0.002), (20, 0.009)]) - 0.65).abs() < 1e-9);
    }
}
