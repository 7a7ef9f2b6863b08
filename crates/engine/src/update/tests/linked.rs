//! Indexes whose files have other names (hard links): a backup, whose bytes no change or crash may
//! change.

use std::collections::BTreeMap;

use std::sync::atomic::{AtomicU64, Ordering};

use super::overtaken::{Ambush, watched_on};
use super::*;
use crate::progress::Progress;
use crate::{ErrorKind, Index};

const KEPT: &str = "kept-";

fn linked(case: Case, folder: &Path) -> SimVolume {
    link_all(base(case, folder))
}

fn link_all(volume: SimVolume) -> SimVolume {
    for name in volume.list().unwrap() {
        volume.link(&name, &format!("{KEPT}{name}"));
    }
    volume
}

/// The cases cover each strategy of direct inserts, and each kind of file to which direct inserts
/// write.
const DIRECT: [Case; 5] = [
    PACKED,
    Case(Layout::Coupled, Update::Relocate),
    Case(Layout::Coupled, Update::InPlace),
    DECOUPLED,
    INLINE,
];

fn written(live: &LiveIndex) -> Vec<String> {
    let index = live.index();
    let graph = index.graph();
    let last = graph.segments.as_ref().map(|segments| segments.last());
    let mut names = vec![graph.name.clone()];
    names.extend(last.map(|segment| segment.name.clone()));
    names
}

fn are_linked(volume: &SimVolume, names: &[String]) -> bool {
    names
        .iter()
        .all(|name| volume.has_other_names(name).unwrap())
}

fn found(live: &LiveIndex, ids: &[u64], version: u64) -> Vec<u64> {
    let options = SearchOptions {
        k: 1,
        threads: 1,
        exact: true,
        ..SearchOptions::default()
    };
    let queries = wide_rows(live.index().dim(), ids, version);
    live.search(&queries, &options).unwrap().ids
}

#[derive(Default)]
struct Impatient {
    patience: AtomicU64,
    stages: Mutex<Vec<String>>,
    copied: AtomicU64,
}

impl Progress for Impatient {
    fn begin(&self, stage: &str, total: u64) {
        self.stages.lock().push(format!("{stage}: {total}"));
    }
    fn advance(&self, steps: u64) {
        self.copied.fetch_add(steps, Ordering::Relaxed);
    }
    fn end(&self) {}
    fn interrupted(&self) -> bool {
        let left = self.patience.load(Ordering::Relaxed);
        self.patience
            .store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }
    fn warn(&self, _: &str) {}
}

#[test]
fn what_writes_to_no_file_copies_none() {
    for case in DIRECT {
        let folder = tempfile::tempdir().unwrap();
        let volume = linked(case, folder.path());
        let backup = kept(&volume);
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        let names = written(&live);
        live.delete(&[3]).unwrap();
        let row = RowTable::new(vec![row(5, 1)]);
        live.set_attributes(&[5], &row, &Silent).unwrap();
        live.flush().unwrap();
        assert!(are_linked(&volume, &names), "{case:?}, a delete");
        drop(live);
        assert!(are_linked(&volume, &names), "{case:?}, closed");
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        assert!(are_linked(&volume, &names), "{case:?}, opened again");
        assert!(live.contains(5).unwrap() && !live.contains(3).unwrap());
        live.compact(&Silent).unwrap();
        let removed = names.iter().all(|name| !volume.exists(name).unwrap());
        assert!(removed, "{case:?}, a merge");
        live.insert(&rows_of(&live, &[700]), Some(&[700]), &Silent)
            .unwrap();
        assert!(live.stats().direct.unwrap().inserts > 0, "{case:?}");
        assert_eq!(kept(&volume), backup, "{case:?}");
    }
}

fn rows_of(live: &LiveIndex, ids: &[u64]) -> Matrix {
    wide_rows(live.index().dim(), ids, 1)
}

#[test]
fn where_a_copy_has_no_room_deletes_go_on_and_inserts_are_told_why() {
    for case in DIRECT {
        let folder = tempfile::tempdir().unwrap();
        let volume = linked(case, folder.path());
        let backup = kept(&volume);
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        let (names, before) = (written(&live), volume.list().unwrap());
        let rows = rows_of(&live, &[600, 601]);
        volume.fail_after(0, Failure::NoSpace);
        let error = live.insert(&rows, Some(&[600, 601]), &Silent).unwrap_err();
        volume.heal();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{case:?}: {error}");
        let text = error.to_string();
        assert!(
            text.contains("hard links") && text.contains(&names[0]),
            "{text}"
        );
        assert!(are_linked(&volume, &names), "{case:?}");
        assert_eq!(
            volume.list().unwrap(),
            before,
            "{case:?}: the refused insert left a file"
        );
        live.delete(&[4]).unwrap();
        assert!(!live.contains(600).unwrap() && !live.contains(4).unwrap());
        live.insert(&rows, Some(&[600, 601]), &Silent).unwrap();
        assert!(!are_linked(&volume, &names), "{case:?}");
        assert_eq!(found(&live, &[600, 601], 1), [600, 601], "{case:?}");
        assert_eq!(kept(&volume), backup, "{case:?}");
    }
}

#[test]
fn a_copy_tells_its_progress_and_can_be_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let volume = linked(DECOUPLED, folder.path());
    let live = open(DECOUPLED, &volume, folder.path(), Durability::Always).unwrap();
    let names = written(&live);
    let bytes: u64 = names.iter().map(|name| volume.len(name).unwrap()).sum();
    let stage = format!("copying files with other names (bytes): {bytes}");
    let rows = rows_of(&live, &[600]);
    let (mut patience, mut interrupted) = (0, 0);
    loop {
        let progress = Impatient {
            patience: AtomicU64::new(patience),
            ..Impatient::default()
        };
        let inserted = live.insert(&rows, Some(&[600]), &progress);
        let stages = progress.stages.lock().clone();
        match inserted {
            Err(Error::Interrupted) => {
                interrupted += u64::from(stages.first() == Some(&stage));
                assert!(!live.contains(600).unwrap());
            }
            inserted => {
                inserted.unwrap();
                break;
            }
        }
        patience += 1;
        assert!(patience < 20);
    }
    assert!(interrupted > 0);
    assert!(!are_linked(&volume, &names));
    assert_eq!(found(&live, &[600], 1), [600]);
}

#[test]
fn vectors_of_the_log_wait_until_an_insert_copies_the_files() {
    for case in DIRECT {
        let folder = tempfile::tempdir().unwrap();
        let volume = base(case, folder.path());
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        live.insert(&rows_of(&live, &[600, 601]), Some(&[600, 601]), &Silent)
            .unwrap();
        let names = written(&live);
        let volume = link_all(volume.crash_image(0, Crash::Dropped));
        let backup = kept(&volume);
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        assert!(are_linked(&volume, &names), "{case:?}");
        assert_eq!(found(&live, &[600, 601], 1), [600, 601], "{case:?}");
        live.delete(&[600]).unwrap();
        live.insert(&rows_of(&live, &[602]), Some(&[602]), &Silent)
            .unwrap();
        assert!(!are_linked(&volume, &names), "{case:?}");
        assert_eq!(
            live.stats().logged,
            0,
            "{case:?}: the inserted vectors are not on storage"
        );
        assert_eq!(found(&live, &[601, 602], 1), [601, 602], "{case:?}");
        drop(live);
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        assert_eq!(found(&live, &[601, 602], 1), [601, 602], "{case:?}");
        assert!(!live.contains(600).unwrap());
        assert_eq!(kept(&volume), backup, "{case:?}");
    }
}

#[test]
fn a_search_that_a_copy_overtakes_reads_what_was_inserted() {
    for case in DIRECT {
        // A search makes at most six reads.
        for reads in 0..6 {
            let folder = tempfile::tempdir().unwrap();
            let volume = link_all(base_of(case, 500, folder.path()));
            let ambush = Ambush::default();
            let live = watched_on(case, volume.clone(), &ambush, folder.path());
            let names = written(&live);
            let deed = live.clone();
            let ids: Vec<u64> = (1_000..1_060).collect();
            let inserted = ids.clone();
            ambush.set(
                reads,
                Box::new(move || {
                    let rows = wide_rows(deed.index().dim(), &inserted, 1);
                    deed.insert(&rows, Some(&inserted), &Silent).unwrap();
                }),
            );
            let options = SearchOptions {
                k: 10,
                list: 200,
                threads: 1,
                ..SearchOptions::default()
            };
            let query = wide_rows(live.index().dim(), &[44], 0);
            let answers = live.search(&query, &options).unwrap().ids;
            if !ambush.is_over() {
                assert!(reads > 0, "{case:?}: no search was overtaken");
                break;
            }
            assert_eq!(answers[0], 44, "{case:?}, read {reads}");
            assert!(!are_linked(&volume, &names), "{case:?}");
            assert_eq!(found(&live, &ids, 1), ids, "{case:?}, read {reads}");
        }
    }
}

fn kept(volume: &SimVolume) -> BTreeMap<String, Vec<u8>> {
    let names = volume.list().unwrap();
    let names = names.into_iter().filter(|name| name.starts_with(KEPT));
    names
        .map(|name| (name.clone(), volume.read(&name).unwrap()))
        .collect()
}

fn calls() -> Vec<Call> {
    vec![
        Call::Insert(vec![100, 101, 102], 1),
        Call::Delete(vec![3, 101]),
        Call::Upsert(vec![7, 102, 200], 2),
        Call::Flush,
        Call::Insert((300..312).collect(), 1),
        Call::Compact,
        Call::Insert(vec![400], 3),
    ]
}

#[test]
fn a_backup_by_hard_links_keeps_its_bytes_wherever_a_change_crashes() {
    for case in [
        PACKED,
        Case(Layout::Coupled, Update::Relocate),
        Case(Layout::Coupled, Update::InPlace),
        DECOUPLED,
        INLINE,
        Case(Layout::Layered, Update::Relocate),
        Case(Layout::Grouped, Update::Rebalance),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let before = linked(case, folder.path());
        let (backup, calls) = (kept(&before), calls());
        let whole = before.fork();
        let start = whole.operations();
        assert_eq!(
            run_calls(&calls, case, &whole, folder.path()),
            calls.len(),
            "{case:?}"
        );
        assert_eq!(kept(&whole), backup, "{case:?}");
        let operations = whole.operations() - start;
        for at in (0..operations).step_by(step(5)) {
            let volume = before.fork();
            volume.fail_after(at, Failure::Crash);
            let done = run_calls(&calls, case, &volume, folder.path());
            let mut model = first();
            calls[..done].iter().for_each(|call| call.apply(&mut model));
            for mode in crashes(at) {
                let place = format!("{case:?}, operation {at}, {mode:?}, after {done} calls");
                let image = volume.crash_image(0, mode);
                assert_eq!(kept(&image), backup, "{place}");
                let live = open(case, &image, folder.path(), Durability::Always)
                    .unwrap_or_else(|error| panic!("{place}: {error}"));
                let found = contents(&live);
                check(&found, &model, calls.get(done), &place);
                let row = wide_rows(live.index().dim(), &[1_000], 9);
                live.insert(&row, Some(&[1_000]), &Silent).unwrap();
                live.compact(&Silent).unwrap();
                drop(live);
                assert_eq!(kept(&image), backup, "{place}");
                let report = verify_in(&image, &Silent).unwrap();
                assert!(report.clean(), "{place}: {:?}", report.problems);
                let names = image.list().unwrap();
                assert!(
                    !names.iter().any(|name| name.ends_with(".own")),
                    "{place}: {names:?}"
                );
            }
        }
    }
}

#[test]
fn an_index_that_is_open_for_reading_reads_the_copies_where_files_are_copied() {
    for case in [INLINE, Case(Layout::Coupled, Update::Relocate)] {
        let folder = tempfile::tempdir().unwrap();
        let volume = linked(case, folder.path());
        let backup = kept(&volume);
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let index = Index::open_in(shared, folder.path(), &OpenOptions::default()).unwrap();
        let options = WriteOptions {
            threads: 1,
            update: Some(case.1),
            direct: DirectOptions {
                pending: 600,
                checkpoint: Some(4),
                ..DirectOptions::default()
            },
            ..WriteOptions::default()
        };
        let live = LiveIndex::over(&Arc::new(index), &options).unwrap();
        let ids: Vec<u64> = (500..540).collect();
        live.insert(&rows(&ids, 1), Some(&ids), &Silent).unwrap();
        let found = live.search(
            &rows(&ids, 1),
            &SearchOptions {
                k: 1,
                threads: 1,
                exact: true,
                ..SearchOptions::default()
            },
        );
        assert_eq!(found.unwrap().ids, ids, "{case:?}");
        drop(live);
        assert_eq!(kept(&volume), backup, "{case:?}");
    }
}

/// If a process is killed after it has copied files, no checkpoint records the copy.
#[test]
fn an_index_that_is_open_for_reading_follows_the_copies_of_another_process() {
    for case in DIRECT {
        let folder = tempfile::tempdir().unwrap();
        let volume = linked(case, folder.path());
        let backup = kept(&volume);
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let index = Index::open_in(shared, folder.path(), &OpenOptions::default()).unwrap();
        let index = Arc::new(index);
        let mut options = WriteOptions {
            threads: 1,
            update: Some(case.1),
            ..WriteOptions::default()
        };
        let other = open(case, &volume, folder.path(), Durability::Always).unwrap();
        let theirs = [700, 701];
        other
            .insert(&rows_of(&other, &theirs), Some(&theirs), &Silent)
            .unwrap();
        assert_eq!(other.stats().direct.unwrap().checkpoints, 0, "{case:?}");
        drop(other);
        options.direct = DirectOptions {
            pending: 600,
            checkpoint: Some(4),
            ..DirectOptions::default()
        };
        let live = LiveIndex::over(&index, &options).unwrap();
        let ids: Vec<u64> = (500..540).collect();
        live.insert(&rows_of(&live, &ids), Some(&ids), &Silent)
            .unwrap();
        assert_eq!(found(&live, &ids, 1), ids, "{case:?}");
        assert_eq!(found(&live, &theirs, 1), theirs, "{case:?}");
        assert_eq!(kept(&volume), backup, "{case:?}");
    }
}
