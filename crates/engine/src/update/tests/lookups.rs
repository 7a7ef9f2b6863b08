//! Look-ups of vectors by id, compared with a model after and during changes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::overtaken::{nearly, watched};
use super::*;
use crate::Index;

/// Looks up the ids of `model` in a mixed order, and some ids twice.
fn check_look_ups(
    live: &LiveIndex,
    reader: Option<&Index>,
    model: &Model,
    dim: usize,
    place: &str,
) {
    let mut asked: Vec<u64> = (0..320).map(|at| at * 37 % 320).collect();
    asked.extend([7, 7, 3, u64::MAX - 1, u64::MAX, 1 << 40]);
    let readers = reader.map(|reader| reader.vectors(&asked, &Silent).unwrap());
    for rows in readers
        .into_iter()
        .chain([live.vectors(&asked, &Silent).unwrap()])
    {
        let there = |id: &&u64| model.contains_key(*id);
        let expected: Vec<u64> = asked.iter().filter(there).copied().collect();
        let missing: Vec<u64> = asked.iter().filter(|id| !there(id)).copied().collect();
        assert_eq!(rows.ids, expected, "{place}");
        assert_eq!(rows.missing, missing, "{place}");
        assert_eq!((rows.dim, rows.element), (dim, Element::U8));
        for (id, vector) in rows.iter() {
            // Bytes after the vector mean that a row was set without a vector.
            let expected = model[&id][..DIM].repeat(dim / DIM);
            assert_eq!(vector, expected, "{place}: {id}");
        }
        assert_eq!(rows.vector(rows.ids.len()), None);
    }
    let all: Vec<u64> = model.keys().copied().collect();
    for most in [1, 7, 1_000] {
        let mut listed = Vec::new();
        while let ids = live.ids(listed.last().copied(), most).unwrap()
            && !ids.is_empty()
        {
            assert!(ids.len() <= most);
            listed.extend(ids);
        }
        assert_eq!(listed, all, "{place}, {most} at a time");
    }
    for id in (0..320).step_by(13) {
        assert_eq!(live.contains(id).unwrap(), model.contains_key(&id), "{id}");
        if let Some(reader) = reader {
            assert_eq!(
                reader.contains(id).unwrap(),
                model.contains_key(&id),
                "{id}"
            );
        }
    }
    if let Some(reader) = reader {
        assert_eq!(reader.ids(None, 1_000).unwrap(), all, "{place}");
        assert_eq!(reader.ids(Some(u64::MAX), 9).unwrap(), Vec::<u64>::new());
    }
}

/// By default, the cases have each layout and each update strategy at least once.
pub(super) fn cases() -> Vec<Case> {
    if slow() {
        return CASES.to_vec();
    }
    let few = [
        PACKED,
        Case(Layout::Coupled, Update::InPlace),
        Case(Layout::Decoupled, Update::Relocate),
        Case(Layout::Inline, Update::Merge),
        Case(Layout::Layered, Update::Accumulate),
        Case(Layout::Replicated, Update::Rebalance),
        Case(Layout::Addressed, Update::Rebalance),
        Case(Layout::Grouped, Update::Merge),
    ];
    for case in CASES {
        assert!(few.iter().any(|few| few.0 == case.0), "{case:?}");
        assert!(few.iter().any(|few| few.1 == case.1), "{case:?}");
    }
    few.to_vec()
}

fn looked_up_under_changes(case: Case, volume: &Arc<dyn Volume>, folder: &Path, tight: bool) {
    let mut model = first();
    let open_options = OpenOptions {
        memory: tight.then_some(512 << 20),
        ..OpenOptions::default()
    };
    let write_options = WriteOptions {
        threads: 1,
        update: Some(case.1),
        direct: DirectOptions {
            pending: 600,
            write_home: case.0 == Layout::Coupled,
            checkpoint: Some(4),
            ..DirectOptions::default()
        },
        ..WriteOptions::default()
    };
    let open = || LiveIndex::open_in(volume.clone(), folder, &open_options, &write_options);
    let reader = || {
        let index = Index::open_in(volume.clone(), folder, &open_options).unwrap();
        index.with_log().unwrap()
    };
    let mut live = open().unwrap();
    let dim = live.index().dim();
    check_look_ups(
        &live,
        Some(&reader()),
        &model,
        dim,
        &format!("{case:?}, before"),
    );
    for (at, call) in script().iter().enumerate() {
        call.make(&live).unwrap();
        call.apply(&mut model);
        let place = format!("{case:?}, budget {tight}, call {at}");
        check_look_ups(&live, None, &model, dim, &place);
        if at % 2 == 1 {
            drop(live);
            let read = reader();
            live = open().unwrap();
            check_look_ups(&live, Some(&read), &model, dim, &place);
        }
    }
}

#[test]
fn ids_are_looked_up_in_every_layout_whatever_changed() {
    for case in cases() {
        for tight in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let volume: Arc<dyn Volume> = Arc::new(base(case, folder.path()));
            looked_up_under_changes(case, &volume, folder.path(), tight);
        }
    }
}

#[test]
fn vectors_of_several_pages_are_looked_up() {
    let all = [
        (Case(Layout::Decoupled, Update::Merge), 4_400),
        (Case(Layout::Layered, Update::Relocate), 6_000),
        (Case(Layout::Decoupled, Update::Merge), 8_160),
        (Case(Layout::Layered, Update::Relocate), 11_200),
        (DECOUPLED, 11_200),
        (Case(Layout::Layered, Update::Accumulate), 11_200),
        (Case(Layout::Layered, Update::Relocate), 22_000),
    ];
    for &(case, dim) in if slow() { &all[..] } else { &all[..2] } {
        let folder = tempfile::tempdir().unwrap();
        let volume: Arc<dyn Volume> = Arc::new(SimVolume::new());
        build_wide(case, dim, BASE, volume.clone(), folder.path());
        looked_up_under_changes(case, &volume, folder.path(), false);
    }
}

#[test]
fn an_index_without_a_file_of_ids_is_looked_up_by_its_records() {
    for case in cases() {
        let folder = tempfile::tempdir().unwrap();
        let (volume, model) = super::ids::merged(case, folder.path());
        super::ids::forget_ids(&volume);
        for memory in [None, Some(512 << 20)] {
            let options = OpenOptions {
                memory,
                ..OpenOptions::default()
            };
            let index = Index::open_in(Arc::new(volume.clone()), folder.path(), &options).unwrap();
            let index = index.with_log().unwrap();
            let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
            let place = format!("{case:?}, {memory:?}");
            check_look_ups(&live, Some(&index), &model, index.dim(), &place);
        }
    }
}

#[test]
fn a_look_up_that_an_upsert_overtakes_finds_the_old_vector_or_the_new_one() {
    for case in cases() {
        let folder = tempfile::tempdir().unwrap();
        let (live, ambush) = watched(case, folder.path());
        let mut came = 0;
        for (reads, id) in (0..4).zip((3..).step_by(41)) {
            for version in 1..5 {
                let before = live.vectors(&[id], &Silent).unwrap();
                let deed = live.clone();
                let deed = move || {
                    deed.upsert(&nearly(case, id, version), &[id], &Silent)
                        .unwrap()
                };
                // A look-up of several vectors makes its reads one after the other.
                ambush.set(reads, Box::new(deed));
                let others: Vec<u64> = (0..MANY_OTHERS)
                    .map(|at| 13 + 29 * at)
                    .chain([id])
                    .collect();
                let found = live.vectors(&others, &Silent).unwrap();
                came += u64::from(ambush.is_over());
                assert_eq!(found.missing, Vec::<u64>::new(), "{case:?}, {version}");
                let after = live.vectors(&[id], &Silent).unwrap();
                let vector = found.vector(found.ids.len() - 1);
                assert!(
                    vector == before.vector(0) || vector == after.vector(0),
                    "{case:?}: another vector, version {version} before read {reads}"
                );
            }
        }
        assert!(came >= 3, "{case:?}: only {came} look-ups were overtaken");
    }
}

const MANY_OTHERS: u64 = 16;

/// The number of ids that always exist, and are replaced all the time.
const STAY: u64 = 60;

struct Beside<'a> {
    live: &'a LiveIndex,
    case: Case,
    /// For each id that always exists, the versions of the last upserts that have begun and ended.
    begun: Vec<AtomicU64>,
    ended: Vec<AtomicU64>,
    stop: AtomicBool,
    looked: AtomicU64,
}

impl Beside<'_> {
    fn look_up(&self, together: bool) {
        let all: Vec<u64> = (0..STAY).collect();
        while !self.stop.load(Ordering::SeqCst) {
            for ids in all.chunks(if together { all.len() } else { 1 }) {
                let ended = |id: &u64| self.ended[*id as usize].load(Ordering::SeqCst);
                let before: Vec<u64> = ids.iter().map(ended).collect();
                let rows = self.live.vectors(ids, &Silent).unwrap();
                assert_eq!(rows.missing, Vec::<u64>::new(), "{:?}", self.case);
                assert_eq!(rows.ids, ids);
                for ((id, found), before) in rows.iter().zip(before) {
                    let begun = self.begun[id as usize].load(Ordering::SeqCst);
                    let mut versions = (before..=begun).map(|version| vector(id, version));
                    let dim = rows.dim;
                    assert!(
                        versions.any(|version| version.repeat(dim / DIM) == found),
                        "{:?}: {id} is of no version from {before} to {begun}",
                        self.case
                    );
                }
                self.looked.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn list(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            let mut listed = Vec::new();
            while let ids = self.live.ids(listed.last().copied(), 16).unwrap()
                && !ids.is_empty()
            {
                listed.extend(ids);
            }
            assert!(listed.is_sorted_by(|a, b| a < b), "{:?}", self.case);
            let stay = listed.partition_point(|&id| id < STAY);
            assert_eq!(stay, STAY as usize, "{:?}: {listed:?}", self.case);
            self.looked.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn change(&self, rest: u64) {
        for round in 1..self.rounds() {
            for id in (rest..STAY).step_by(2) {
                self.begun[id as usize].store(round, Ordering::SeqCst);
                let rows = wide_rows(self.live.index().dim(), &[id], round);
                self.live.upsert(&rows, &[id], &Silent).unwrap();
                self.ended[id as usize].store(round, Ordering::SeqCst);
                if id % 5 == 0 {
                    let other = 1_000 * (rest + 1) + 100 * round + id;
                    let rows = wide_rows(self.live.index().dim(), &[other], 1);
                    self.live.insert(&rows, Some(&[other]), &Silent).unwrap();
                    if id % 10 == 0 {
                        self.live.delete(&[other]).unwrap();
                    }
                }
            }
        }
    }

    fn rounds(&self) -> u64 {
        5
    }
}

#[test]
fn look_ups_beside_changes_and_merges_always_find_a_version() {
    for case in cases() {
        let folder = tempfile::tempdir().unwrap();
        let volume = base_of(case, STAY + 40, folder.path());
        let live = open(case, &volume, folder.path(), Durability::OnFlush).unwrap();
        let beside = Beside {
            live: &live,
            case,
            begun: (0..STAY).map(|_| AtomicU64::new(0)).collect(),
            ended: (0..STAY).map(|_| AtomicU64::new(0)).collect(),
            stop: AtomicBool::new(false),
            looked: AtomicU64::new(0),
        };
        thread::scope(|scope| {
            let looking = [
                scope.spawn(|| beside.look_up(true)),
                scope.spawn(|| beside.look_up(false)),
                scope.spawn(|| beside.list()),
            ];
            let merging = scope.spawn(|| {
                while !beside.stop.load(Ordering::SeqCst) {
                    live.compact(&Silent).unwrap();
                    thread::sleep(std::time::Duration::from_millis(5));
                }
            });
            let changing = [
                scope.spawn(|| beside.change(0)),
                scope.spawn(|| beside.change(1)),
            ];
            let changed = changing.map(|thread| thread.join());
            // The threads of look-ups may start late.
            let begun = std::time::Instant::now();
            while beside.looked.load(Ordering::Relaxed) <= 20 && begun.elapsed().as_secs() < 60 {
                thread::sleep(std::time::Duration::from_millis(1));
            }
            beside.stop.store(true, Ordering::SeqCst);
            looking
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            merging.join().unwrap();
            changed.into_iter().for_each(|changed| changed.unwrap());
        });
        assert!(beside.looked.load(Ordering::Relaxed) > 20, "{case:?}");
    }
}
