//! Copies of an index that are taken while the index changes, or while the disk of the copy fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::*;
use crate::progress::Progress;
use crate::snapshot::take;

/// Runs a function at one step of the work, or at each later step, too.
pub(super) struct Meddling<'a> {
    steps: AtomicU64,
    at: u64,
    always: bool,
    deed: &'a (dyn Fn() + Sync),
    warnings: Mutex<Vec<String>>,
    pub(super) stop: bool,
    pub(super) at_begin: bool,
}

impl<'a> Meddling<'a> {
    pub(super) fn at(at: u64, deed: &'a (dyn Fn() + Sync)) -> Self {
        Self {
            steps: AtomicU64::new(0),
            at,
            always: false,
            deed,
            warnings: Mutex::default(),
            stop: false,
            at_begin: false,
        }
    }

    fn happened(&self) -> bool {
        self.steps.load(Ordering::Relaxed) > self.at
    }
}

impl Progress for Meddling<'_> {
    fn begin(&self, _: &str, _: u64) {
        if self.at_begin {
            (self.deed)();
        }
    }
    fn advance(&self, _: u64) {
        let step = self.steps.fetch_add(1, Ordering::Relaxed);
        if step == self.at || self.always && step > self.at {
            (self.deed)();
        }
    }
    fn end(&self) {}
    fn interrupted(&self) -> bool {
        self.stop && self.happened()
    }
    fn warn(&self, message: &str) {
        self.warnings.lock().push(message.to_owned());
    }
}

fn read(case: Case, copy: &SimVolume, folder: &Path, what: &str) -> Model {
    let told = Meddling::at(u64::MAX, &|| {});
    let report = verify_in(copy, &told).unwrap();
    assert!(report.clean(), "{what}: {:?}", report.problems);
    let warnings = told.warnings.into_inner();
    assert!(warnings.is_empty(), "{what}: {warnings:?}");
    let live = open(case, &copy.fork(), folder, Durability::OnFlush).unwrap();
    contents(&live)
}

#[test]
fn a_snapshot_has_all_that_was_acknowledged() {
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        let volume = base(case, folder.path());
        let live = open(case, &volume, folder.path(), Durability::OnFlush).unwrap();
        let mut model = first();
        for (at, call) in script().into_iter().enumerate() {
            call.make(&live).unwrap();
            call.apply(&mut model);
            let of_another = at % 2 == 0;
            let what = format!("{case:?} after {at} {call:?}, by another process: {of_another}");
            let copy = SimVolume::new();
            let writer = (!of_another).then_some(&live);
            let report = take(&volume, &copy, writer, &Silent).unwrap();
            assert_eq!(report.tries, 1, "{what}");
            let names = copy.list().unwrap();
            assert_eq!(names.len() as u64, report.files, "{what}: {names:?}");
            let lengths = names.iter().map(|name| copy.len(name).unwrap());
            assert_eq!(lengths.sum::<u64>(), report.bytes, "{what}");
            assert!(read(case, &copy, folder.path(), &what) == model, "{what}");
        }
    }
}

/// During the copy of each piece, inserts cause a checkpoint, and a merge removes the files.
#[test]
fn a_snapshot_is_of_one_moment_whatever_is_committed_meanwhile() {
    for (number, case) in CASES.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let calls = [
            Call::Upsert(vec![1, 60, 61], 3),
            Call::Insert(vec![70, 71, 72, 73, 74, 75, 76, 77], 4),
            Call::Delete(vec![2]),
            Call::Compact,
            Call::Insert(vec![80, 81, 82, 83, 84], 5),
        ];
        for of_another in [false, true] {
            let from = (number + 5 * usize::from(of_another)) % step(10);
            for at in (from as u64..).step_by(step(10)) {
                let what = format!("{case:?} at {at}, by another process: {of_another}");
                let volume = base(case, folder.path());
                let live = open(case, &volume, folder.path(), Durability::OnFlush).unwrap();
                let mut model = first();
                for call in &script()[..6] {
                    call.make(&live).unwrap();
                    call.apply(&mut model);
                }
                let mut states = vec![model.clone()];
                for call in &calls {
                    call.apply(&mut model);
                    states.push(model.clone());
                }
                let deed = || calls.iter().for_each(|call| call.make(&live).unwrap());
                let meddling = Meddling::at(at, &deed);
                let copy = SimVolume::new();
                let writer = (!of_another).then_some(&live);
                let report = take(&volume, &copy, writer, &meddling).unwrap();
                let found = read(case, &copy, folder.path(), &what);
                assert!(states.contains(&found), "{what}: {report:?}");
                assert!(contents(&live) == *states.last().unwrap() || !meddling.happened());
                if !meddling.happened() {
                    assert!(at > 3, "{what}");
                    break;
                }
            }
        }
    }
}

#[test]
fn a_writer_is_asked_to_make_no_checkpoint_where_these_come_too_fast() {
    for case in [PACKED, INLINE, DECOUPLED] {
        let folder = tempfile::tempdir().unwrap();
        let volume = base(case, folder.path());
        let live = open(case, &volume, folder.path(), Durability::OnFlush).unwrap();
        let next = AtomicU64::new(1_000);
        let insert = || {
            let first = next.fetch_add(8, Ordering::Relaxed);
            let ids: Vec<u64> = (first..first + 8).collect();
            Call::Insert(ids, 1).make(&live).unwrap();
        };
        let mut meddling = Meddling::at(0, &insert);
        meddling.always = true;
        let copy = SimVolume::new();
        let error = take(&volume, &copy, None, &meddling).unwrap_err();
        assert!(matches!(error, Error::Restless { .. }), "{case:?}: {error}");
        assert_eq!(error.kind(), ErrorKind::InUse);
        assert!(
            error.to_string().contains("index.snapshot(dest)"),
            "{error}"
        );
        assert!(copy.list().unwrap().is_empty(), "{case:?}");
        let before = contents(&live);
        let report = take(&volume, &copy, Some(&live), &meddling).unwrap();
        assert!(report.tries > 1, "{case:?}: {report:?}");
        let found = read(case, &copy, folder.path(), &format!("{case:?}"));
        assert!(
            before
                .iter()
                .all(|(id, vector)| found.get(id) == Some(vector))
        );
        assert!(
            live.compact(&Silent).is_ok(),
            "no checkpoint is possible after the snapshot"
        );
    }
}

#[test]
fn snapshots_beside_threads_that_insert_and_merge_have_a_prefix_of_what_came() {
    for case in [
        PACKED,
        INLINE,
        DECOUPLED,
        Case(Layout::Grouped, Update::Rebalance),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let volume = base(case, folder.path());
        let live = open(case, &volume, folder.path(), Durability::OnFlush).unwrap();
        let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                for id in 0.. {
                    Call::Insert(vec![1_000 + 2 * id, 1_001 + 2 * id], 1)
                        .make(&live)
                        .unwrap();
                    acknowledged.store(id + 1, Ordering::SeqCst);
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                }
            });
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    live.compact(&Silent).unwrap();
                }
            });
            let mut copies = Vec::new();
            for _ in 0..4 {
                let least = acknowledged.load(Ordering::SeqCst);
                let copy = SimVolume::new();
                let taken = take(&volume, &copy, Some(&live), &Silent);
                copies.push((least, copy, taken));
            }
            stop.store(true, Ordering::SeqCst);
            for (least, copy, taken) in copies {
                let what = format!("{case:?} {taken:?}");
                assert!(taken.is_ok(), "{what}");
                let found = read(case, &copy, folder.path(), &what);
                let new: Vec<u64> = found.range(1_000..).map(|(&id, _)| id).collect();
                let pairs = new.len() as u64 / 2;
                assert!(pairs >= least, "{what}: {pairs} of {least}");
                assert!(new.iter().copied().eq(1_000..1_000 + 2 * pairs), "{what}");
                assert_eq!(found.len(), BASE as usize + new.len(), "{what}");
            }
        });
    }
}

#[test]
fn what_is_behind_the_last_whole_record_of_the_log_is_not_copied() {
    let folder = tempfile::tempdir().unwrap();
    let volume = base(PACKED, folder.path());
    let live = open(PACKED, &volume, folder.path(), Durability::Always).unwrap();
    Call::Insert(vec![100, 101], 1).make(&live).unwrap();
    let model = contents(&live);
    let log = volume.list().unwrap();
    let log = log.iter().rfind(|name| name.starts_with("log-")).unwrap();
    let length = volume.len(log).unwrap();
    for torn in [&b"half"[..], &[0; 40]] {
        let volume = volume.fork();
        volume.open(log).unwrap().append(torn).unwrap();
        let copy = SimVolume::new();
        let report = take(&volume, &copy, None, &Silent).unwrap();
        assert_eq!(report.log_records, 2);
        assert_eq!(copy.len(log).unwrap(), length);
        assert!(read(PACKED, &copy, folder.path(), "a torn log") == model);
    }
    let volume = volume.fork();
    let next = format!("log-{:06}", log[4..].parse::<u64>().unwrap() + 1);
    volume.create(&next).unwrap().append(&[0; 100]).unwrap();
    let copy = SimVolume::new();
    take(&volume, &copy, None, &Silent).unwrap();
    assert!(!copy.exists(&next).unwrap());
    assert!(read(PACKED, &copy, folder.path(), "a log without a header") == model);
}

#[test]
fn a_snapshot_is_whole_or_not_there_wherever_its_disk_fails() {
    let folder = tempfile::tempdir().unwrap();
    for case in [PACKED, INLINE, Case(Layout::Grouped, Update::Rebalance)] {
        let volume = base(case, folder.path());
        let live = open(case, &volume, folder.path(), Durability::OnFlush).unwrap();
        for call in &script()[..4] {
            call.make(&live).unwrap();
        }
        let model = contents(&live);
        let whole = |copy: &SimVolume, what: &str| {
            assert!(read(case, copy, folder.path(), what) == model, "{what}");
        };
        for failure in [Failure::Crash, Failure::Io, Failure::NoSpace] {
            for operation in 0.. {
                let what = format!("{case:?} {failure:?} at {operation}");
                let copy = SimVolume::new();
                copy.fail_after(operation, failure);
                let taken = take(&volume, &copy, Some(&live), &Silent);
                if taken.is_ok() {
                    assert!(operation > 10, "{what}");
                    copy.heal();
                    whole(&copy, &what);
                    break;
                }
                let images = match failure {
                    Failure::Crash => crashes(operation)
                        .into_iter()
                        .flat_map(|mode| (0..3).map(move |seed| (mode, seed)))
                        .map(|(mode, seed)| copy.crash_image(seed, mode))
                        .collect(),
                    _ => {
                        copy.heal();
                        vec![copy]
                    }
                };
                for copy in images {
                    if copy.exists("MANIFEST").unwrap() {
                        whole(&copy, &what);
                        continue;
                    }
                    take(&volume, &copy, Some(&live), &Silent).unwrap();
                    whole(&copy, &what);
                }
            }
        }
    }
}

#[test]
fn a_snapshot_that_is_interrupted_or_refused_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let volume = base(PACKED, folder.path());
    let mut stopped = Meddling::at(2, &|| {});
    stopped.stop = true;
    let copy = SimVolume::new();
    let error = take(&volume, &copy, None, &stopped).unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert!(copy.list().unwrap().is_empty());
    for name in ["MANIFEST", "notes.txt", "graph-000001"] {
        let copy = SimVolume::new();
        copy.create(name).unwrap();
        let error = take(&volume, &copy, None, &Silent).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(copy.list().unwrap(), [name]);
    }
    let copy = SimVolume::new();
    for name in ["SNAPSHOT.new", "graph-000001", "notes.txt"] {
        copy.create(name).unwrap();
    }
    let error = take(&volume, &copy, None, &Silent).unwrap_err();
    assert!(error.to_string().contains("notes.txt"), "{error}");
    assert_eq!(copy.list().unwrap().len(), 3);
    copy.remove("notes.txt").unwrap();
    take(&volume, &copy, None, &Silent).unwrap();
    assert!(!copy.exists("graph-000001").unwrap() || verify_in(&copy, &Silent).unwrap().clean());
}
