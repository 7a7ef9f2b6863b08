//! Many vectors in one call: a merge inserts them if that is cheaper than single inserts.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use stratann::{
    BuildOptions, DirectOptions, Due, LiveIndex, MergeWhen, Metric, OpenOptions, Preset, Progress,
    SearchOptions, Silent, WriteOptions, brute_force, build, verify,
};

use super::fixtures::{SIFT_BASE, SIFT_QUERIES, head, rows};

const BUILT: usize = 300;

fn built(path: &Path) {
    let options = BuildOptions {
        preset: Preset::STRATANN,
        degree: Some(24),
        build_list: 40,
        ..BuildOptions::default()
    };
    build(&head(SIFT_BASE, BUILT), path, &options, &Silent).unwrap();
}

fn live(path: &Path) -> LiveIndex {
    let options = WriteOptions {
        direct: DirectOptions {
            merge_many: true,
            ..DirectOptions::default()
        },
        ..WriteOptions::default()
    };
    LiveIndex::open(path, &OpenOptions::default(), &options).unwrap()
}

fn recall(index: &LiveIndex, count: usize) -> f64 {
    let queries = head(SIFT_QUERIES, 100);
    let truth = brute_force(
        &head(SIFT_BASE, count),
        &queries,
        10,
        Metric::L2,
        2,
        &Silent,
    )
    .unwrap();
    let found = index.search(&queries, &SearchOptions::default()).unwrap();
    truth.recall(&found.ids, &found.distances, 10).unwrap()
}

fn inserted(index: &LiveIndex) -> u64 {
    index.stats().direct.unwrap().inserts
}

#[test]
fn many_rows_are_merged_and_few_are_inserted() {
    let folder = tempfile::tempdir().unwrap();
    built(folder.path());
    let index = live(folder.path());
    let all = 2_400;
    index
        .insert(&rows(SIFT_BASE, BUILT, all - BUILT), None, &Silent)
        .unwrap();
    assert_eq!((index.merges(), inserted(&index), index.len()), (1, 0, all));
    assert!(recall(&index, all) > 0.97);
    let ids: Vec<u64> = (0..100).collect();
    index
        .upsert(&rows(SIFT_BASE, 0, 100), &ids, &Silent)
        .unwrap();
    index
        .insert(&rows(SIFT_BASE, all, 100), None, &Silent)
        .unwrap();
    assert_eq!(
        (index.merges(), inserted(&index), index.len()),
        (1, 200, all + 100)
    );
    assert!(recall(&index, all + 100) > 0.97);
    drop(index);
    assert!(verify(folder.path(), &Silent).unwrap().clean());
    let index = live(folder.path());
    let ids: Vec<u64> = (0..1_200).collect();
    index
        .upsert(&rows(SIFT_BASE, 0, 1_200), &ids, &Silent)
        .unwrap();
    assert_eq!(
        (index.merges(), index.len(), index.stats().deleted),
        (1, all + 100, 0)
    );
    assert!(recall(&index, all + 100) > 0.97);
}

/// Interrupts the work after the vectors are in the log.
#[derive(Default)]
struct InMerge(AtomicU64);

impl Progress for InMerge {
    fn begin(&self, stage: &str, _: u64) {
        if stage != "inserting" {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

#[test]
fn rows_whose_merge_is_interrupted_wait_are_found_and_stay() {
    let folder = tempfile::tempdir().unwrap();
    built(folder.path());
    let index = live(folder.path());
    let all = BUILT + 1_400;
    index
        .insert(&rows(SIFT_BASE, BUILT, 1_400), None, &InMerge::default())
        .unwrap();
    assert_eq!((index.len(), index.merges(), inserted(&index)), (all, 0, 0));
    assert!(recall(&index, all) > 0.97);
    assert_eq!(index.stats().trouble, None);
    assert!(matches!(
        index.due(&MergeWhen::default()),
        Some(Due::Logged(_))
    ));
    // The forgotten handle stands for a crash. After the crash, the log's records wait again.
    std::mem::forget(index);
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap();
        if file.file_name() != "LOCK" {
            std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
    }
    let index = live(copy.path());
    assert_eq!((index.len(), inserted(&index)), (all, 0));
    index.compact(&Silent).unwrap();
    assert_eq!((index.len(), inserted(&index)), (all, 0));
    assert!(recall(&index, all) > 0.97);
}
