//! Merges that fail or are interrupted, and other calls that must do everything or nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use stratann_vector::Metric;

use super::*;
use crate::build::build_rows;
use crate::data::{DataError, VectorSource};
use crate::progress::Progress;

struct Stops {
    at: u64,
    asked: AtomicU64,
    panics: bool,
}

impl Stops {
    fn new(at: u64, panics: bool) -> Self {
        Self {
            at,
            asked: AtomicU64::new(0),
            panics,
        }
    }
}

impl Progress for Stops {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}

    fn interrupted(&self) -> bool {
        let now = self.asked.fetch_add(1, Ordering::Relaxed) == self.at;
        assert!(!(now && self.panics), "the test makes the merge panic");
        now
    }
}

fn goes_on(case: Case, live: LiveIndex, volume: &SimVolume, folder: &Path, model: &mut Model) {
    assert_eq!(contents(&live), *model);
    let id = 900;
    let row = wide_rows(case.dim(), &[id], 1);
    live.insert(&row, Some(&[id]), &Silent).unwrap();
    live.delete(&[5]).unwrap();
    model.insert(id, vector(id, 1));
    model.remove(&5);
    assert_eq!(contents(&live), *model);
    live.compact(&Silent).unwrap();
    assert_eq!(contents(&live), *model);
    drop(live);
    let live = open(case, volume, folder, Durability::Always).unwrap();
    assert_eq!(contents(&live), *model);
    let report = verify_in(volume, &Silent).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
}

/// Returns the number of checks for an interruption.
fn stopped_anywhere(case: Case, panics: bool) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let before = base(case, folder.path());
    for at in 0.. {
        let volume = before.fork();
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        let ids: Vec<u64> = (100..110).collect();
        let rows = wide_rows(case.dim(), &ids, 1);
        live.insert(&rows, Some(&ids), &Silent).unwrap();
        live.delete(&[3, 101]).unwrap();
        let mut model = first();
        model.extend(ids.iter().map(|&id| (id, vector(id, 1))));
        model.retain(|id, _| ![3, 101].contains(id));
        let stops = Stops::new(at, panics);
        let merged = catch_unwind(AssertUnwindSafe(|| live.compact(&stops)));
        let over = match merged {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => {
                assert!(matches!(error, Error::Interrupted), "{at}: {error}");
                false
            }
            Err(_) => false,
        };
        assert_eq!(live.parts().1.fresh.len(), 1, "{at}");
        goes_on(case, live, &volume, folder.path(), &mut model);
        if over {
            return at;
        }
    }
    0
}

#[test]
fn a_merge_may_be_interrupted_anywhere_and_is_committed_or_undone() {
    for case in [PACKED, INLINE, Case(Layout::Decoupled, Update::Merge)] {
        assert!(stopped_anywhere(case, false) > 5);
    }
}

struct InsertsAndStops<'a> {
    live: &'a LiveIndex,
    ids: Vec<u64>,
    inserted: AtomicBool,
    at: u64,
    asked: AtomicU64,
}

impl Progress for InsertsAndStops<'_> {
    fn begin(&self, _: &str, _: u64) {
        if !self.inserted.swap(true, Ordering::Relaxed) {
            let rows = wide_rows(DIM, &self.ids, 1);
            self.live.insert(&rows, Some(&self.ids), &Silent).unwrap();
        }
    }
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}

    fn interrupted(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed) >= self.at
    }
}

/// An interrupted merge must not move the rows inserted meanwhile into the graph, which takes
/// seconds.
#[test]
fn what_waits_goes_on_waiting_when_a_merge_is_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let before = base(PACKED, folder.path());
    let (mut waited, mut made) = (0, 0);
    for at in 0.. {
        let volume = before.fork();
        let live = open(PACKED, &volume, folder.path(), Durability::Always).unwrap();
        live.delete(&[3]).unwrap();
        let mut model = first();
        model.remove(&3);
        let stops = InsertsAndStops {
            live: &live,
            ids: (100..110).collect(),
            inserted: AtomicBool::new(false),
            at,
            asked: AtomicU64::new(0),
        };
        let merged = live.compact(&stops);
        let came = stops.inserted.load(Ordering::Relaxed);
        if came {
            model.extend(stops.ids.iter().map(|&id| (id, vector(id, 1))));
        }
        let waits = live.stats().logged;
        assert_eq!(contents(&live), model, "{at}");
        match merged {
            Err(error) => {
                assert!(matches!(error, Error::Interrupted), "{at}: {error}");
                assert_eq!(waits, if came { 10 } else { 0 }, "{at}");
                assert_eq!(live.stats().trouble, None, "{at}");
                waited += waits;
            }
            Ok(_) if waits > 0 => {
                assert_eq!(waits, 10, "{at}");
                assert_eq!(live.stats().trouble, None, "{at}");
                made += 1;
            }
            Ok(_) => break,
        }
        if at % 5 == 0 {
            goes_on(PACKED, live, &volume, folder.path(), &mut model);
        }
    }
    assert!(waited > 0 && made > 0, "{waited} {made}");
}

#[test]
fn a_merge_that_panics_is_undone() {
    for case in [PACKED, Case(Layout::Packed, Update::Merge)] {
        assert!(stopped_anywhere(case, true) > 5);
    }
}

#[test]
fn a_merge_that_the_budget_has_no_room_for_is_refused_and_changes_nothing() {
    // With direct inserts, the budget does not refuse the inserts before the merge.
    for case in [PACKED, DECOUPLED, INLINE] {
        let folder = tempfile::tempdir().unwrap();
        let volume = base(case, folder.path());
        let with = |memory: u64, update| {
            let open = OpenOptions {
                memory: Some(memory),
                ..OpenOptions::default()
            };
            let options = WriteOptions {
                threads: 1,
                update: Some(update),
                direct: DirectOptions {
                    checkpoint: Some(4),
                    ..DirectOptions::default()
                },
                ..WriteOptions::default()
            };
            let volume: Arc<dyn Volume> = Arc::new(volume.clone());
            LiveIndex::open_in(volume, folder.path(), &open, &options)
        };
        let Err(Error::Memory { needs, .. }) = with(1, case.1) else {
            panic!("{case:?} opens in a byte");
        };
        let live = with(needs, case.1).unwrap();
        let ids: Vec<u64> = (1_000..1_000 + 30 * BASE).collect();
        live.insert(&rows(&ids, 1), Some(&ids), &Silent).unwrap();
        live.delete(&[1, 2, 3, 4, 1_000]).unwrap();
        let mut model = first();
        model.extend(ids.iter().map(|&id| (id, vector(id, 1))));
        model.retain(|id, _| ![1, 2, 3, 4, 1_000].contains(id));
        let merged = live.compact(&Silent);
        if case.0 != Layout::Inline {
            let refused = merged.unwrap_err();
            assert!(matches!(refused, Error::Memory { .. }), "{refused}");
        }
        let more: Vec<u64> = (5_000..5_010).collect();
        live.insert(&rows(&more, 2), Some(&more), &Silent).unwrap();
        model.extend(more.iter().map(|&id| (id, vector(id, 2))));
        assert_eq!(contents(&live), model, "{case:?}");
        drop(live);
        let report = verify_in(&volume, &Silent).unwrap();
        assert!(report.clean(), "{case:?}: {:?}", report.problems);
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        assert_eq!(contents(&live), model, "{case:?}");
        live.compact(&Silent).unwrap();
        assert_eq!(contents(&live), model, "{case:?}");
    }
}

#[test]
fn what_stands_in_its_place_is_not_written_over() {
    for case in [
        PACKED,
        DECOUPLED,
        INLINE,
        Case(Layout::Packed, Update::Merge),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (volume, other) = (base(case, folder.path()), base(case, folder.path()));
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        let ids = [100, 101];
        let row = wide_rows(case.dim(), &ids, 1);
        live.insert(&row, Some(&ids), &Silent).unwrap();
        let manifest = other.read("MANIFEST").unwrap();
        let mut manifest = stratann_layout::Manifest::decode(&manifest, "m").unwrap();
        manifest.seed += 1;
        let mut file = volume.create("MANIFEST").unwrap();
        file.write_at(0, &manifest.encode()).unwrap();
        let bytes = |volume: &SimVolume| {
            let names = volume.list().unwrap();
            let read = |name: String| (volume.read(&name).unwrap(), name);
            names.into_iter().map(read).collect::<Vec<_>>()
        };
        let before = bytes(&volume);
        let refused = live.compact(&Silent).unwrap_err();
        assert!(matches!(refused, Error::Halted { .. }), "{refused}");
        let row = wide_rows(case.dim(), &[102], 1);
        let refused = live.insert(&row, Some(&[102]), &Silent).unwrap_err();
        assert!(matches!(refused, Error::Halted { .. }), "{refused}");
        assert!(matches!(live.delete(&[3]), Err(Error::Halted { .. })));
        assert!(live.stats().trouble.unwrap().contains("MANIFEST"));
        drop(live);
        let named = |name: &str| manifest.files.iter().any(|file| file.name == name);
        for (bytes, name) in before.iter().filter(|(_, name)| named(name)) {
            assert_eq!(volume.read(name).unwrap(), *bytes, "{case:?}: {name}");
        }
        assert_eq!(volume.read("MANIFEST").unwrap(), manifest.encode());
    }
}

#[test]
fn ids_near_the_end_are_refused_before_anything_is_written() {
    const LAST: u64 = u64::MAX - 1;
    for case in [PACKED, Case(Layout::Packed, Update::Merge)] {
        let folder = tempfile::tempdir().unwrap();
        let volume = base(case, folder.path());
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        for ids in [[u64::MAX, 7], [8, u64::MAX]] {
            live.insert(&rows(&ids, 1), Some(&ids), &Silent)
                .unwrap_err();
            live.upsert(&rows(&ids, 1), &ids, &Silent).unwrap_err();
        }
        assert_eq!(contents(&live), first());
        live.insert(&rows(&[LAST], 1), Some(&[LAST]), &Silent)
            .unwrap();
        let before = contents(&live);
        for count in [1, 5] {
            let ids: Vec<u64> = (0..count).collect();
            let refused = live.insert(&rows(&ids, 3), None, &Silent).unwrap_err();
            assert!(refused.is_call_wrong(), "{refused}");
            assert!(refused.to_string().contains("Give the ids"), "{refused}");
        }
        assert_eq!(contents(&live), before);
        live.insert(&rows(&[700], 1), Some(&[700]), &Silent)
            .unwrap();
        live.compact(&Silent).unwrap();
        assert_eq!(contents(&live).len(), BASE as usize + 2);
        live.insert(&rows(&[1], 3), None, &Silent).unwrap_err();
        drop(live);
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        live.insert(&rows(&[1], 3), None, &Silent).unwrap_err();
        assert_eq!(contents(&live).len(), BASE as usize + 2);
    }
}

#[test]
fn a_build_refuses_the_id_that_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let options = BuildOptions {
        ids: Some(vec![1, u64::MAX]),
        degree: Some(2),
        threads: 1,
        ..BuildOptions::default()
    };
    let path = folder.path().join("i");
    let refused = crate::build(&rows(&[1, 2], 1), &path, &options, &Silent).unwrap_err();
    assert!(refused.is_call_wrong(), "{refused}");
    assert!(!path.exists());
}

#[test]
fn the_last_ids_are_given_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let volume = base(PACKED, folder.path());
    let live = open(PACKED, &volume, folder.path(), Durability::Always).unwrap();
    let near = u64::MAX - 4;
    live.insert(&rows(&[near], 1), Some(&[near]), &Silent)
        .unwrap();
    live.insert(&rows(&[1, 2, 3, 4], 3), None, &Silent)
        .unwrap_err();
    let given = live.insert(&rows(&[1, 2], 3), None, &Silent).unwrap();
    assert_eq!(given, [u64::MAX - 3, u64::MAX - 2]);
    assert_eq!(
        live.insert(&rows(&[1], 3), None, &Silent).unwrap(),
        [u64::MAX - 1]
    );
    live.insert(&rows(&[1], 3), None, &Silent).unwrap_err();
}

struct Changing(Matrix, AtomicUsize);

impl VectorSource for Changing {
    fn rows(&self) -> usize {
        self.0.rows()
    }
    fn dim(&self) -> usize {
        self.0.dim()
    }
    fn element(&self) -> Element {
        self.0.element()
    }
    fn name(&self) -> &str {
        "changing"
    }
    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        self.0.read(first, out)?;
        if self.1.fetch_add(1, Ordering::Relaxed) > 0 {
            out[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        Ok(())
    }
}

#[test]
fn what_is_logged_is_what_was_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let volume = SimVolume::new();
    let floats = |rows: usize| {
        let floats = (0..rows * DIM).map(|i| ((i * 7919 % 1009) as f32).to_le_bytes());
        Matrix::new(floats.flatten().collect(), rows, DIM, Element::F32).unwrap()
    };
    let options = BuildOptions {
        degree: Some(6),
        build_list: 12,
        code_bytes: Some(4),
        navigation: 0.0,
        threads: 1,
        metric: Metric::L2,
        ..BuildOptions::default()
    };
    build_rows(&volume, &floats(40), &options, folder.path());
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let open = || {
        let (open, options) = (OpenOptions::default(), WriteOptions::default());
        LiveIndex::open_in(shared.clone(), folder.path(), &open, &options)
    };
    let live = open().unwrap();
    let rows = Changing(floats(2), AtomicUsize::new(0));
    let refused = live.insert(&rows, None, &Silent).unwrap_err();
    assert!(refused.to_string().contains("NaN"), "{refused}");
    assert_eq!(live.len(), 40);
    drop(live);
    assert_eq!(open().unwrap().len(), 40);
}

#[test]
fn a_search_beside_an_upsert_finds_the_old_or_the_new() {
    for layout in [Layout::Packed, Layout::Decoupled] {
        let case = Case(layout, Update::Merge);
        let folder = tempfile::tempdir().unwrap();
        let volume = base(case, folder.path());
        let live = open(case, &volume, folder.path(), Durability::OnFlush).unwrap();
        let rows = |ids: &[u64], version| wide_rows(case.dim(), ids, version);
        live.insert(&rows(&[500], 1), Some(&[500]), &Silent)
            .unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let searcher = scope.spawn(|| {
                let mut missed = 0;
                while !done.load(Ordering::Relaxed) {
                    let options = SearchOptions {
                        k: 1,
                        list: 40,
                        threads: 1,
                        ..SearchOptions::default()
                    };
                    let found = live.search(&rows(&[500], 1), &options).unwrap();
                    missed += usize::from(found.ids != [500]);
                }
                missed
            });
            for _ in 0..300 {
                live.upsert(&rows(&[500], 1), &[500], &Silent).unwrap();
            }
            done.store(true, Ordering::Relaxed);
            assert_eq!(searcher.join().unwrap(), 0, "{case:?}");
        });
    }
}

#[test]
fn a_merge_says_what_was_inserted_directly() {
    let folder = tempfile::tempdir().unwrap();
    let volume = base(PACKED, folder.path());
    let live = open(PACKED, &volume, folder.path(), Durability::Always).unwrap();
    let ids: Vec<u64> = (100..110).collect();
    live.insert(&rows(&ids, 1), Some(&ids), &Silent).unwrap();
    live.delete(&[100, 3]).unwrap();
    let report = live.compact(&Silent).unwrap();
    assert_eq!((report.merged, report.direct, report.removed), (0, 9, 2));
}

/// Merges that are committed but not durable, with their contents: a crash may restore the previous
/// checkpoint.
fn left_undurable(case: Case, folder: &Path, before: &SimVolume) -> Vec<(SimVolume, Model)> {
    let mut left = Vec::new();
    for at in 0.. {
        let volume = before.fork();
        volume.discard_failed_syncs(true, true);
        let live = open(case, &volume, folder, Durability::Always).unwrap();
        let ids: Vec<u64> = (100..110).collect();
        let rows = wide_rows(case.dim(), &ids, 1);
        live.insert(&rows, Some(&ids), &Silent).unwrap();
        live.delete(&[3, 101]).unwrap();
        let mut model = first();
        model.extend(ids.iter().map(|&id| (id, vector(id, 1))));
        model.retain(|id, _| ![3, 101].contains(id));
        let from = volume.operations();
        volume.fail_after(at, Failure::Io);
        let merged = live.compact(&Silent).is_ok();
        let whole = merged && volume.operations() < from + at;
        drop(live);
        volume.heal();
        let crashed = volume.crash_image(1, Crash::Dropped);
        if crashed.read("MANIFEST").unwrap() != volume.read("MANIFEST").unwrap() {
            left.push((volume, model));
        }
        if whole {
            break;
        }
    }
    left
}

#[test]
fn whoever_opens_next_makes_sure_of_a_commit_that_was_not_durable() {
    for case in [PACKED, INLINE, Case(Layout::Packed, Update::Relocate)] {
        let folder = tempfile::tempdir().unwrap();
        let before = base(case, folder.path());
        let left = left_undurable(case, folder.path(), &before);
        assert!(!left.is_empty(), "{case:?}");
        for (volume, model) in left {
            let mut met = 0;
            for at in (0..).step_by(3) {
                let volume = volume.fork();
                volume.fail_after(at, Failure::Crash);
                let work = || {
                    let live = open(case, &volume, folder.path(), Durability::Always)?;
                    let row = wide_rows(case.dim(), &[900], 1);
                    live.insert(&row, Some(&[900]), &Silent)?;
                    live.compact(&Silent).map(drop)
                };
                let done = work().is_ok();
                for seed in 0..2 {
                    let image = volume.crash_image(seed, Crash::Dropped);
                    let live = open(case, &image, folder.path(), Durability::Always)
                        .unwrap_or_else(|error| panic!("{case:?}, {at}, {seed}: {error}"));
                    let mut now = contents(&live);
                    assert!(now.remove(&900).is_some() || !done, "{case:?}, {at}");
                    assert_eq!(now, model, "{case:?}, {at}, {seed}");
                    drop(live);
                    let report = verify_in(&image, &Silent).unwrap();
                    assert!(
                        report.clean(),
                        "{case:?}, {at}, {seed}: {:?}",
                        report.problems
                    );
                }
                if done {
                    break;
                }
                met += 1;
            }
            assert!(met > 5, "{case:?}: {met}");
        }
    }
}

#[test]
fn a_folder_without_an_index_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    LiveIndex::open(
        folder.path(),
        &OpenOptions::default(),
        &WriteOptions::default(),
    )
    .unwrap_err();
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn an_index_that_was_opened_for_searching_has_room_for_inserts_when_it_takes_them() {
    for layout in [Layout::Packed, Layout::Inline] {
        let folder = tempfile::tempdir().unwrap();
        let ids: Vec<u64> = (0..200).collect();
        let options = BuildOptions {
            degree: Some(6),
            layout: Some(layout),
            threads: 1,
            ..BuildOptions::default()
        };
        crate::build::build(&rows(&ids, 0), folder.path(), &options, &Silent).unwrap();
        let open = OpenOptions {
            memory: Some(64 << 20),
            ..OpenOptions::default()
        };
        let index = Arc::new(crate::Index::open(folder.path(), &open).unwrap());
        assert_eq!(index.memory().inserting, 0);
        let live = LiveIndex::over(&index, &WriteOptions::default()).unwrap();
        assert!(live.index().memory().inserting > 0, "{layout}");
        let before = live.index();
        drop(live);
        let live = LiveIndex::over(&before, &WriteOptions::default()).unwrap();
        assert!(Arc::ptr_eq(&before, &live.index()), "{layout}");
    }
}

#[test]
fn a_merge_goes_on_without_nodes_that_were_given_up() {
    for layout in [Layout::Coupled, Layout::Decoupled, Layout::Layered] {
        let case = Case(layout, Update::Relocate);
        let folder = tempfile::tempdir().unwrap();
        let volume = base(case, folder.path());
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        let ids: Vec<u64> = (100..110).collect();
        // The last vector is inserted alone, so that its node is known.
        for ids in [&ids[..9], &ids[9..]] {
            let rows = wide_rows(case.dim(), ids, 1);
            live.insert(&rows, Some(ids), &Silent).unwrap();
        }
        let (index, overlay) = live.parts();
        let placement = index.graph().placement.get().unwrap();
        let last = placement.nodes() - 1;
        placement.relocate(last, crate::stores::topology::placement::NOWHERE);
        overlay.deleted.mark_dead(last);
        // A failed insert leaves the vector of its node in the fresh graph.
        overlay.fresh[0].insert(109, wide_rows(case.dim(), &[109], 1).row(0), None);
        drop((index, overlay));
        live.compact(&Silent).unwrap();
        let mut model = first();
        model.extend(ids.iter().map(|&id| (id, vector(id, 1))));
        assert_eq!(contents(&live), model, "{layout}");
        drop(live);
        let volume: Arc<dyn Volume> = Arc::new(volume);
        repaired(case, &volume, folder.path(), &model);
    }
}

#[test]
fn merges_that_fail_leave_no_log_each() {
    for case in [PACKED, Case(Layout::Packed, Update::Merge)] {
        let folder = tempfile::tempdir().unwrap();
        let volume = base(case, folder.path());
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        let logs = || {
            let names = volume.list().unwrap();
            names.iter().filter(|name| name.starts_with("log-")).count()
        };
        live.delete(&[3]).unwrap();
        live.compact(&Stops::new(0, false)).unwrap_err();
        let after_one = logs();
        for _ in 0..5 {
            live.compact(&Stops::new(0, false)).unwrap_err();
        }
        assert_eq!(logs(), after_one, "{case:?}");
        let mut model = first();
        model.remove(&3);
        goes_on(case, live, &volume, folder.path(), &mut model);
    }
}
