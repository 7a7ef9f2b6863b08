//! A forked process has a copy of all open handles, but none of the threads. There, the drop of a
//! handle must return, and must change nothing on storage.
//!
//! A fork also copies the state of other tests, such as held locks, so each test runs alone in a
//! new process.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use stratann::{
    BuildOptions, Durability, Index, LiveIndex, Matrix, MergeWhen, OpenOptions, Preset,
    SearchOptions, Silent, Strategy, Update, VectorFile, VectorSource, WriteOptions, build, verify,
};
use stratann_tier::IoMode;
use stratann_tier::testing::forked;

const ROWS: usize = 600;

/// The environment variable that is set in a process which runs one test alone.
const ALONE: &str = "STRATANN_FORKED";

fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let complained = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success() && said.contains("1 passed"),
        "{}\n{said}\n{complained}",
        done.status
    );
}

fn rows(first: usize) -> Matrix {
    some(first, ROWS)
}

fn some(first: usize, count: usize) -> Matrix {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/photo-sift-20k.base.u8bin");
    let file = VectorFile::open(path).unwrap();
    let mut bytes = vec![0; count * file.dim() * file.element().size()];
    file.read(first, &mut bytes).unwrap();
    Matrix::new(bytes, count, file.dim(), file.element()).unwrap()
}

fn files(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(path).unwrap();
    entries
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

#[test]
fn a_forked_process_drops_an_index_and_harms_nothing() {
    alone(
        "a_forked_process_drops_an_index_and_harms_nothing",
        drops_an_index,
    );
}

fn drops_an_index() {
    let folder = tempfile::tempdir().unwrap();
    for (name, preset, update, io) in [
        (
            "stratann",
            Preset::STRATANN,
            Update::Accumulate,
            IoMode::Auto,
        ),
        ("pread", Preset::STRATANN, Update::Accumulate, IoMode::Pread),
        ("merge", Preset::DECOUPLEVS, Update::Merge, IoMode::Auto),
        ("inline", Preset::AISAQ, Update::InPlace, IoMode::Auto),
    ] {
        let path = folder.path().join(name);
        let options = BuildOptions {
            preset,
            degree: Some(16),
            build_list: 24,
            threads: 1,
            ..BuildOptions::default()
        };
        build(&rows(0), &path, &options, &Silent).unwrap();
        let write = WriteOptions {
            // The index has a thread that syncs, and changes that its drop would have to sync.
            durability: Durability::Every(Duration::from_secs(3_600)),
            threads: 2,
            update: Some(update),
            ..WriteOptions::default()
        };
        let open = OpenOptions {
            io,
            ..OpenOptions::default()
        };
        let live = LiveIndex::open(&path, &open, &write).unwrap();
        let live = Arc::new(live);
        // No merge is running when the process is forked.
        let when = MergeWhen {
            garbage: f64::INFINITY,
            ..MergeWhen::default()
        };
        let merger = live.merge_when_due(when).unwrap();
        live.insert(&rows(ROWS), None, &Silent).unwrap();
        // After this flush, no thread writes pages. The deletes wait in the log.
        live.flush().unwrap();
        live.delete(&[3, 4, 5]).unwrap();
        live.search(&rows(0), &SearchOptions::default()).unwrap();

        let before = files(&path);
        let (mut theirs, mut merging) = (Some(live), Some(merger));
        assert!(
            forked(300, || {
                drop(merging.take());
                drop(theirs.take());
                true
            }),
            "{name}: the child process failed, or did not end"
        );
        assert!(files(&path) == before, "{name}: files were changed");
        drop(merging.take());
        let live = theirs.take().unwrap();
        live.insert(&rows(2 * ROWS), None, &Silent).unwrap();
        drop(live);
        assert_eq!(verify(&path, &Silent).unwrap().problems.len(), 0, "{name}");
        let again = LiveIndex::open(&path, &OpenOptions::default(), &write).unwrap();
        assert_eq!(again.len(), 3 * ROWS - 3, "{name}");
    }
}

#[test]
fn in_a_forked_process_nobody_waits_for_ever() {
    alone("in_a_forked_process_nobody_waits_for_ever", nobody_waits);
}

fn nobody_waits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let options = BuildOptions {
        degree: Some(16),
        build_list: 24,
        threads: 1,
        ..BuildOptions::default()
    };
    build(&rows(0), &path, &options, &Silent).unwrap();
    let index = Arc::new(Index::open(path, &OpenOptions::default()).unwrap());
    // These searches usually still run when the process is forked, which takes a millisecond.
    let wide = SearchOptions {
        list: 600,
        strategy: Some(Strategy::BestFirst),
        ..SearchOptions::default()
    };
    let submit = || index.submit(some(1_000, 100), &wide, None).unwrap();
    let (mut theirs, mut dropped) = (Some(submit()), Some(submit()));
    let mut held = Some(index.clone());
    assert!(forked(300, || {
        drop(dropped.take());
        let search = theirs.take().unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| search.wait()));
        drop(held.take());
        outcome.is_err()
    }));
    let found = theirs.take().unwrap().wait().unwrap();
    let expected = index.search(&some(1_000, 100), &wide).unwrap();
    assert!(found.ids == expected.ids && found.distances == expected.distances);
    assert!(dropped.take().unwrap().wait().is_ok());
}
