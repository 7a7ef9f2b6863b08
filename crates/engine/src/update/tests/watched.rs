//! Measurements of the recall of searches at one read timestamp, while the index changes.

use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};

use super::*;
use crate::data::VectorSource;
use crate::{Index, Progress, RecallWatch, Strategy};

struct AtAsk<'a> {
    thread: ThreadId,
    asks: AtomicUsize,
    at: usize,
    deed: &'a (dyn Fn() + Sync),
}

impl<'a> AtAsk<'a> {
    fn new(ask: usize, deed: &'a (dyn Fn() + Sync)) -> Self {
        Self {
            thread: thread::current().id(),
            asks: AtomicUsize::new(0),
            at: ask,
            deed,
        }
    }
}

impl Progress for AtAsk<'_> {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}

    fn interrupted(&self) -> bool {
        if thread::current().id() == self.thread
            && self.asks.fetch_add(1, Ordering::Relaxed) + 1 == self.at
        {
            (self.deed)();
        }
        false
    }
}

fn open_watched(case: Case, volume: &SimVolume, folder: &Path) -> LiveIndex {
    let options = OpenOptions {
        watch_recall: Some(RecallWatch::new(QUERIES).unwrap()),
        ..OpenOptions::default()
    };
    let writes = WriteOptions {
        durability: Durability::OnFlush,
        threads: 1,
        update: Some(case.1),
        direct: DirectOptions {
            pending: 600,
            write_home: case.0 == Layout::Coupled,
            checkpoint: Some(4),
            ..DirectOptions::default()
        },
    };
    LiveIndex::open_in(Arc::new(volume.clone()), folder, &options, &writes).unwrap()
}

const QUERIES: usize = 12;

/// Searches find all results, except results that leading parts of vectors hide.
fn all(index: &LiveIndex) -> SearchOptions {
    let has_clusters = index.index().has_clusters();
    SearchOptions {
        list: 1_000,
        probes: has_clusters.then_some(1_000),
        // Best-first results do not depend on the order in which reads complete.
        strategy: (!has_clusters).then_some(Strategy::BestFirst),
        ..SearchOptions::default()
    }
}

fn recall(live: &LiveIndex, queries: &Matrix, options: &SearchOptions) -> f64 {
    let model = contents(live);
    let found = live.search(queries, options).unwrap();
    let shares = (0..queries.rows()).map(|row| {
        let query = &queries.row(row)[..DIM];
        let distance = |id: &u64| -> u32 {
            let differences = query.iter().zip(&model[id][..DIM]);
            differences
                .map(|(&a, &b)| u32::from(a.abs_diff(b)).pow(2))
                .sum()
        };
        let mut all: Vec<u32> = model.keys().map(distance).collect();
        all.sort_unstable();
        let ids = &found.ids[row * options.k..(row + 1) * options.k];
        let near = |id: &&u64| distance(id) <= all[options.k - 1];
        ids.iter().filter(near).count() as f64 / options.k as f64
    });
    shares.sum::<f64>() / queries.rows() as f64
}

#[test]
fn changes_that_come_in_between_make_no_answer_wrong() {
    for (number, case) in CASES.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        for ask in [1, QUERIES / 2 + 1, QUERIES + 1]
            .into_iter()
            .step_by(step(2))
        {
            // In this layout, other threads read the vectors. So this thread makes no check for an
            // interruption after the last query.
            if ask > QUERIES && case.0 == Layout::Replicated {
                continue;
            }
            let volume = base(case, folder.path());
            let live = open_watched(case, &volume, folder.path());
            for call in &script()[..6] {
                call.make(&live).unwrap();
            }
            let ids: Vec<u64> = (1_000..).take(QUERIES).collect();
            let queries = wide_rows(live.index().dim(), &ids, 1);
            let options = all(&live);
            let deeds = AtomicUsize::new(0);
            let deed = || {
                deeds.fetch_add(1, Ordering::Relaxed);
                // The inserted vectors equal the queries, so they become the nearest results.
                Call::Insert(ids.clone(), 1).make(&live).unwrap();
                for version in [6, 7] {
                    Call::Upsert((0..8).chain([100]).collect(), version)
                        .make(&live)
                        .unwrap();
                    Call::Delete(vec![20 + version, 30 + version])
                        .make(&live)
                        .unwrap();
                }
                if (number + ask) % 2 == 0 {
                    live.compact(&Silent).unwrap();
                }
            };
            live.search(&queries, &options).unwrap();
            let meddling = AtAsk::new(ask, &deed);
            let measured = live.measure_recall(&meddling).unwrap();
            let what = format!("{case:?}, {ask}: {measured:?}");
            let last = measured.last.unwrap();
            // Leading parts of vectors decide which nodes are near, so a search may miss a result.
            let doubtful = case.0 == Layout::Layered;
            let is_all = |found: f64| found == 1.0 || doubtful && found > 0.9;
            assert_eq!(last.queries, QUERIES as u64, "{what}");
            assert!(is_all(last.found), "{what}");
            assert_eq!(
                (measured.samples_measured, measured.thrown_away),
                (1, 0),
                "{what}"
            );
            assert_eq!(deeds.into_inner(), 1, "{what}");
            assert!(live.contains(ids[0]).unwrap(), "{what}");
            let expected = recall(&live, &queries, &options);
            let measured = live.measure_recall(&Silent).unwrap();
            let found = measured.last.unwrap().found;
            assert!(
                (found - expected).abs() < 1e-9,
                "{what}: {found}, {expected}"
            );
            assert!(is_all(found), "{what}: {found}");
            assert_eq!((measured.samples_measured, measured.waiting), (2, 0));
            let short = SearchOptions {
                list: 10,
                probes: options.probes.map(|_| 1),
                ..options
            };
            let expected = recall(&live, &queries, &short);
            let found = live.measure_recall(&Silent).unwrap().last.unwrap().found;
            assert!(
                (found - expected).abs() < 1e-9,
                "{what}: {found}, {expected}"
            );
        }
    }
}

fn merge_one(live: &LiveIndex, merges: &AtomicUsize) {
    let id = 2_000 + merges.fetch_add(1, Ordering::Relaxed) as u64;
    Call::Insert(vec![id], 1).make(live).unwrap();
    live.compact(&Silent).unwrap();
}

fn serve(live: &LiveIndex) {
    let ids: Vec<u64> = (1_000..).take(QUERIES).collect();
    let queries = wide_rows(live.index().dim(), &ids, 1);
    live.search(&queries, &all(live)).unwrap();
}

struct AtMerges<'a> {
    asks: AtomicUsize,
    merges: usize,
    merge: &'a (dyn Fn() + Sync),
    first: Weak<Index>,
    kept: AtomicUsize,
}

impl Progress for AtMerges<'_> {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}

    fn interrupted(&self) -> bool {
        match self.asks.fetch_add(1, Ordering::Relaxed) < self.merges {
            true => (self.merge)(),
            // The measuring thread makes one more check before it releases the checkpoint.
            false if self.first.strong_count() > 0 => {
                self.kept.fetch_add(1, Ordering::Relaxed);
            }
            false => {}
        }
        false
    }
}

#[test]
fn a_measurement_gives_up_a_checkpoint_that_a_merge_replaced_and_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let case = CASES[0];
    let volume = base(case, folder.path());
    let live = open_watched(case, &volume, folder.path());
    let merges = AtomicUsize::new(0);
    let merge = || merge_one(&live, &merges);
    let at_merges = |merges: usize| AtMerges {
        asks: AtomicUsize::new(0),
        merges,
        merge: &merge,
        first: Arc::downgrade(&live.index()),
        kept: AtomicUsize::new(0),
    };
    serve(&live);
    let one = at_merges(1);
    let measured = live.measure_recall(&one).unwrap();
    assert_eq!(merges.load(Ordering::Relaxed), 1);
    assert_eq!(measured.last.unwrap().queries, QUERIES as u64);
    assert_eq!((measured.samples_measured, measured.thrown_away), (1, 0));
    assert!(one.asks.into_inner() > QUERIES);
    // At this check, the measurement finds out whether the caller interrupts it.
    assert_eq!(one.kept.into_inner(), 1);
    serve(&live);
    let always = at_merges(usize::MAX);
    let error = live.measure_recall(&always).unwrap_err();
    assert!(matches!(error, Error::Restless { .. }), "{error}");
    let known = live.measure_recall(&Silent).unwrap();
    assert_eq!((known.samples_measured, known.thrown_away), (1, 1));
    assert_eq!(known.waiting, 0);
}
