//! When a merge is due: OdinANN §3.4.2, and for vectors that wait in memory FreshDiskANN's share.
//!
//! ```text
//!   deleted   vectors on storage that no search answers        10 % of them; of a few 20 %
//!   reads     what a search reads, by its list size            1.1 times what it read when nothing was deleted, or the least
//!   logged    vectors that wait in memory, or as many as rows  6 % of those on storage (OdinANN §4.1, of DiskANN)
//!             in memory and in the log are worth
//!   grown     vectors, where the last build or merge had few   4 times as many as it had
//!   drifted   vectors that codes are not made for (drift.rs)   1 % of all
//!   garbage   bytes of clusters that were written anew since,  40 % of the files of clusters, or of the pages
//!             pages of a graph that a build would not take   55 % of those of a graph that is not small
//!   scattered reads that a cluster of groups takes by itself   1.3 times those as it was built
//! ```
//!
//! Garbage is of replicated clusters: where vectors stand once they count wherever that is, and what was written anew beside them is small. Grouped clusters
//! lose their groups one by one instead, so that each member is read for itself in the end.
//!
//! A graph of fewer than 10,000 vectors has all of its pages written anew between two checkpoints, by a few hundred inserts. It then takes two to four times the pages that a
//! build does, which hold no node or a few, and is merged when a part of its vectors came: 32 of 1,000, 90 of 3,000, a tenth of 10,000. Who closes an index
//! merges it where it takes 2.2 times, however few came. Of a larger graph checkpoints come sooner
//! ([`checkpoint`](super::direct)), and its pages are taken again: it is merged where it takes so much all the same, and a tenth came.
//!
//! What waits is no reason where clusters take it in place by themselves.
//!
//! An index that is built of a handful of vectors, and takes others straight into its graph, has nothing that waits, and codes that tell no two vectors
//! apart: a merge trains them anew. Each such merge costs as much as a build of what is there, and all of them together a third more than the last one;
//! they end when as many rows were merged as a codebook is trained on.

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

/// When a merge is due. A share that is infinite is never reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergeWhen {
    /// Share of the vectors on storage that were deleted or replaced.
    pub deleted: f64,
    /// Reads a query, as a multiple of what they were when nothing was deleted.
    pub reads: f64,
    /// Vectors that wait in memory, as a share of those on storage; rows that were set alone count as the vectors that would take as much.
    pub logged: f64,
    /// Bytes in files of clusters that do not count any more, as these were written anew elsewhere, as a share of all that these files take; pages that a build
    /// would not take, of a graph of fewer vectors than ten times `least`; of a larger one 0.55, if this is no more.
    pub garbage: f64,
    /// Reads of a cluster by itself, as a multiple of those as it was built, in an index of groups: one that took vectors has none any more that is read at once. A search reads
    /// several, which have vectors in common: what is 1.3 times for one cluster is less for a search.
    pub scattered: f64,
    /// Vectors, as a multiple of those of the last build or merge, where these were fewer than a codebook is trained on if there are enough.
    pub grown: f64,
    /// Vectors that came since the last build or merge and are of a kind that the codes are not made for, as a share of all: those are found badly.
    pub drifted: f64,
    /// Vectors that are worth a merge, at least; of those that drifted, 256 are, and of those that were deleted 64, where they are twice the share that is due, if this is no less. Where an index has grown by so many times, 32 are, if this is no less: as few as a
    /// search looks at all of.
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
    /// Such a share of the vectors on storage was deleted or replaced.
    Deleted(f64),
    /// Searches read so many times what they read when nothing was deleted.
    Reads(f64),
    /// So many vectors wait in memory, or rows that are worth so many, as a share of those on storage.
    Logged(f64),
    /// Such a share of the files of clusters is of clusters that were written anew since, or of the pages of a graph is more than a build would take.
    Garbage(f64),
    /// A cluster reads so many times what it did as it was built, since vectors of groups stand apart now.
    Scattered(f64),
    /// There are so many times the vectors that codes, and what else a build measures, are by.
    Grown(f64),
    /// Such a share of all vectors came since the last build or merge and is of a kind that the codes are not made for.
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
            Due::Reads(times) => write!(f, "searches read {times:.2} times what they did"),
            Due::Logged(share) => write!(
                f,
                "what waits in memory and in the log is as much as {:.0} % of the vectors on storage",
                100.0 * share
            ),
            Due::Garbage(share) => write!(
                f,
                "a build would do without {:.0} % of the pages: these hold no vector any more, or fewer than they have room for",
                100.0 * share
            ),
            Due::Scattered(times) => write!(
                f,
                "a cluster takes {times:.2} times the reads that it took when it was built, since its vectors stand apart now"
            ),
            Due::Grown(times) => write!(
                f,
                "there are {times:.0} times the vectors that the index was made for"
            ),
            Due::Drifted(share) => write!(
                f,
                "{:.0} % of the vectors are of a kind that the codes are not made for, and are found badly",
                (100.0 * share).max(1.0)
            ),
        }
    }
}

/// Queries whose mean is taken.
const QUERIES: u64 = 256;
/// Of a mean that is followed, the weight of what comes in.
const FOLLOW: f64 = 0.3;
/// Deleted vectors that are worth a merge of a small index.
const FEW: u64 = 64;
/// A graph is small of so many times the vectors that are worth a merge.
const SMALL: u64 = 10;
/// One in so many vectors of a graph has to come before its pages are worth a merge.
const CAME: u64 = 10;
/// So many at least, however small it is.
const LEAST_CAME: u64 = 32;
/// Of a graph that is not small, the share of pages that a build would not take with which a merge is due: it takes 2.2 times those of a build.
const LARGE_GARBAGE: f64 = 0.55;
/// Share of deleted vectors up to which nothing counts as deleted.
const NOTHING: f64 = 0.01;

/// What searches of one list size read.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    queries: u64,
    reads: u64,
    /// Reads a query when nothing was deleted, or as little as anybody has seen, and now; 0 if nobody knows.
    first: f64,
    now: f64,
    /// The share that was deleted then.
    least: f64,
}

/// What searches read since the last merge.
#[derive(Debug, Default)]
pub(super) struct Reads(Mutex<HashMap<usize, Mean>>);

/// List sizes that are followed.
const SIZES: usize = 8;

impl Reads {
    /// Takes what a batch of queries read while such a share of the vectors was deleted.
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
        // An index that was opened with more deleted than that never has as little again, until it is merged.
        if mean.first == 0.0 || deleted <= mean.least.max(NOTHING) {
            (mean.first, mean.least) = (now, deleted);
        }
        mean.now = match mean.now {
            0.0 => now,
            before => before + FOLLOW * (now - before),
        };
    }

    /// How many times what they read when nothing was deleted, at most over the list sizes.
    fn growth(&self) -> f64 {
        let means = self.0.lock();
        let known = means.values().filter(|mean| mean.first > 0.0);
        known.map(|mean| mean.now / mean.first).fold(0.0, f64::max)
    }

    /// Forgets everything: the index was merged.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl LiveIndex {
    /// Why a merge is due, if one is.
    pub fn due(&self, when: &MergeWhen) -> Option<Due> {
        let (stored, deleted, logged) = self.extents();
        let share = |part: u64| part as f64 / stored.max(1) as f64;
        // A small index is merged at once, and would else read several times what it has.
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
            // A tenth of the largest that is small, and a smaller share of those that are smaller: to merge them costs little.
            false if stored < small => (
                (stored * stored / (CAME * small)).max(when.least.min(LEAST_CAME)),
                when.garbage,
            ),
            // Those pages are taken by the next inserts.
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

    /// The same of an index that nobody changes any more for a while, as who changed it closes it: a small graph that takes 2.2 times the pages of a
    /// build does not stay so until more vectors come.
    fn due_at_rest(&self, when: &MergeWhen) -> Option<Due> {
        let (stored, ..) = self.extents();
        let small = !self.index().has_clusters() && stored < SMALL * when.least.max(1);
        self.due(when).or_else(|| {
            let (came, garbage) = self.garbage();
            let worth = small && came > 0 && garbage >= when.garbage.max(LARGE_GARBAGE);
            worth.then_some(Due::Garbage(garbage))
        })
    }

    /// Merges in the background whenever that is due, until what is returned is dropped or the index is. A merge that is
    /// going on then is interrupted, and changes nothing.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn merge_when_due(self: &Arc<Self>, when: MergeWhen) -> Result<Merger, Error> {
        self.merge_when_due_and(when, |_| true)
    }

    /// The same, but only while `may` says so: it is asked before each merge.
    ///
    /// # Errors
    /// As those of [`merge_when_due`](Self::merge_when_due).
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

/// How often somebody looks whether a merge is due.
const LOOK: Duration = Duration::from_millis(500);
/// How often who waits for the last merge looks whether it is done.
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
            // A full disk, as a rule. Nothing is lost, and there may be room later.
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

/// Merges in the background until it is dropped, in the process that began it: a forked one has no such thread.
#[derive(Debug)]
pub struct Merger {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    home: stratann_tier::Home,
}

impl Merger {
    /// Ends it once a merge that is going on is done, and one that is due is made; `progress` breaks that off. Who opens an index, changes it and closes it
    /// again would otherwise break off each merge that it makes due.
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
        // It may be that thread which has the last reference to the index.
        let other = |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(other)
            && thread.join().is_err()
        {
            tracing::error!("the thread that merges in the background panicked");
        }
    }
}

/// What the thread that merges is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Told {
    #[default]
    GoOn,
    /// To end with what is due.
    Finish,
    /// To end at once.
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
        // It follows what comes: three tenths of the way at a time.
        assert!((growth(&[(10, 0.05), (20, 0.08)]) - 1.3).abs() < 1e-9);
        // With less deleted than before it is known better.
        assert_eq!(growth(&[(20, 0.05), (10, 0.04)]), 1.7);
        // And what is as good as nothing counts as that again and again.
        assert!((growth(&[(10, 0.002), (20, 0.009)]) - 0.65).abs() < 1e-9);
    }
}
