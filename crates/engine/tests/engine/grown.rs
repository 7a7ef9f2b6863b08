//! Indexes that begin small and grow until a merge replaces their codebook.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stratann::{
    BuildOptions, Codebook, CodebookFate, CompactReport, DirectOptions, Due, Durability,
    GroundTruth, Index, LiveIndex, Matrix, MergeWhen, Metric, OpenOptions, Preset, Progress,
    SearchOptions, Silent, Strategy, TrainOptions, WriteOptions, brute_force, build, verify,
};

use super::fixtures::{SIFT_BASE, SIFT_QUERIES, head, rows};

/// The number of vectors before a merge. `LATER` is the number of vectors inserted during the
/// merge.
const ROWS: usize = 1_800;
const LATER: usize = 200;

fn options(preset: Preset) -> BuildOptions {
    BuildOptions {
        preset,
        degree: Some(32),
        build_list: 50,
        // One thread builds the same graph each time.
        threads: 1,
        ..BuildOptions::default()
    }
}

/// One thread inserts, because the order of inserts decides which samples a merge takes.
fn within(path: &Path, memory: Option<u64>) -> LiveIndex {
    let options = WriteOptions {
        durability: Durability::OnFlush,
        threads: 1,
        update: None,
        direct: DirectOptions {
            in_flight: 1,
            ..DirectOptions::default()
        },
    };
    let open = OpenOptions {
        memory,
        ..OpenOptions::default()
    };
    LiveIndex::open(path, &open, &options).unwrap()
}

fn live(path: &Path) -> LiveIndex {
    within(path, None)
}

struct Asked(Matrix, GroundTruth);

impl Asked {
    fn of(count: usize) -> Self {
        let queries = head(SIFT_QUERIES, 200);
        let base = head(SIFT_BASE, count);
        let truth = brute_force(&base, &queries, 10, Metric::L2, 2, &Silent);
        Self(queries, truth.unwrap())
    }

    /// Recall@10 with a list of 40, by a strategy that does not depend on the order of completions.
    fn recall(&self, live: &LiveIndex) -> f64 {
        let options = SearchOptions {
            list: 40,
            strategy: Some(Strategy::BestFirst),
            ..SearchOptions::default()
        };
        let found = live.search(&self.0, &options).unwrap();
        self.1.recall(&found.ids, &found.distances, 10).unwrap()
    }
}

fn codebook(path: &Path) -> String {
    let index = Index::open(path, &OpenOptions::default()).unwrap();
    index.codebook().unwrap().hash().to_owned()
}

struct Inserts<'a>(&'a LiveIndex, AtomicBool);

impl Progress for Inserts<'_> {
    fn begin(&self, _: &str, _: u64) {
        if !self.1.swap(true, Ordering::Relaxed) {
            let later = rows(SIFT_BASE, ROWS, LATER);
            self.0.insert(&later, None, &Silent).unwrap();
        }
    }
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        false
    }
}

fn grown(path: &Path, built: usize, options: &BuildOptions) -> (LiveIndex, CompactReport) {
    build(&head(SIFT_BASE, built), path, options, &Silent).unwrap();
    let index = live(path);
    let rest = rows(SIFT_BASE, built, ROWS - built);
    index.insert(&rest, None, &Silent).unwrap();
    let report = index.compact(&Inserts(&index, AtomicBool::new(false)));
    (index, report.unwrap())
}

fn slow() -> bool {
    std::env::var_os("STRATANN_SLOW").is_some()
}

fn a_merge_makes_good(presets: &[Preset], few: usize) {
    let presets = if slow() { presets } else { &presets[..few] };
    let asked = Asked::of(ROWS + LATER);
    for &preset in presets {
        // The codes of 40 vectors distinguish vectors a little, and the codes of one vector not at
        // all.
        let starts: &[usize] = match preset.name {
            "stratann" if slow() => &[1, 40],
            _ => &[1],
        };
        for &built in starts {
            let folder = tempfile::tempdir().unwrap();
            let (index, report) = grown(folder.path(), built, &options(preset));
            // Vectors that were inserted during the merge have new codes, or wait in memory.
            let recall = asked.recall(&index);
            let said = format!("{} of {built}: {recall:.3}, {report:?}", preset.name);
            eprintln!("{said}");
            assert!(recall >= 0.97, "{said}");
            assert_eq!(report.codebook, CodebookFate::Trained, "{said}");
            assert_eq!(index.len(), ROWS + LATER);
            drop(index);
            let report = verify(folder.path(), &Silent).unwrap();
            assert!(report.clean(), "{said}: {:?}", report.problems);
            let index = live(folder.path());
            assert!(asked.recall(&index) >= 0.97, "{said}");
            // The index of 40 vectors had no navigation graph.
            assert!(index.stats().navigation_nodes >= 16, "{said}");
        }
    }
}

#[test]
fn an_index_of_a_few_vectors_is_good_once_it_is_merged() {
    a_merge_makes_good(&[Preset::STRATANN, Preset::AISAQ, Preset::ODINANN], 1);
}

#[test]
fn an_index_of_a_few_vectors_that_others_wait_for_is_good_once_it_is_merged() {
    a_merge_makes_good(&[Preset::DECOUPLEVS, Preset::DISTVS, Preset::DISKANN], 2);
}

#[test]
fn a_codebook_that_serves_the_vectors_stays() {
    let folder = tempfile::tempdir().unwrap();
    build(
        &head(SIFT_BASE, ROWS),
        folder.path(),
        &options(Preset::STRATANN),
        &Silent,
    )
    .unwrap();
    let before = codebook(folder.path());
    let index = live(folder.path());
    // With so few new vectors, a new codebook would be better by less than 5 %.
    let rest = rows(SIFT_BASE, ROWS, LATER / 4);
    index.insert(&rest, None, &Silent).unwrap();
    let report = index.compact(&Silent).unwrap();
    assert_eq!(report.codebook, CodebookFate::Kept);
    drop(index);
    assert_eq!(codebook(folder.path()), before);
}

#[test]
fn a_codebook_that_was_given_stays_and_that_it_is_outgrown_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let train = |count| {
        let rows = head(SIFT_BASE, count);
        Codebook::train(&rows, &TrainOptions::default(), &Silent).unwrap()
    };
    let fates = [(1, CodebookFate::Outgrown), (ROWS, CodebookFate::Kept)];
    for (trained, fate) in fates.into_iter().take(if slow() { 2 } else { 1 }) {
        let path = folder.path().join(trained.to_string());
        let given = train(trained);
        let options = BuildOptions {
            codebook: Some(given.clone()),
            ..options(Preset::ODINANN)
        };
        let (index, report) = grown(&path, 40, &options);
        assert_eq!(report.codebook, fate, "trained on {trained}");
        // A merge that only improves the codes would be useless.
        let due = index.due(&MergeWhen::default());
        let for_codes = matches!(due, Some(Due::Grown(_) | Due::Drifted(_)));
        assert!(!for_codes, "{due:?}");
        index.delete(&[3]).unwrap();
        assert_eq!(index.compact(&Silent).unwrap().codebook, fate);
        drop(index);
        assert_eq!(codebook(&path), given.hash());
    }
}

#[test]
fn an_index_of_one_vector_gets_good_by_itself() {
    let asked = Asked::of(ROWS);
    let folder = tempfile::tempdir().unwrap();
    build(
        &head(SIFT_BASE, 1),
        folder.path(),
        &options(Preset::ODINANN),
        &Silent,
    )
    .unwrap();
    let index = std::sync::Arc::new(live(folder.path()));
    let when = MergeWhen::default();
    index
        .insert(&rows(SIFT_BASE, 1, 20), None, &Silent)
        .unwrap();
    assert_eq!(index.due(&when), None);
    index
        .insert(&rows(SIFT_BASE, 21, ROWS - 21), None, &Silent)
        .unwrap();
    assert!(matches!(index.due(&when), Some(Due::Grown(times)) if times == ROWS as f64));
    // The codes of one vector are useless, so searches look at all vectors.
    assert_eq!(asked.recall(&index), 1.0);
    let merger = index.merge_when_due(when).unwrap();
    let began = Instant::now();
    while index.due(&when).is_some() && began.elapsed() < Duration::from_secs(300) {
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(merger);
    assert_eq!(index.due(&when), None);
    assert!(asked.recall(&index) >= 0.97);
}

#[test]
fn what_a_process_has_beside_an_index_is_no_reason_not_to_merge_it() {
    let folder = tempfile::tempdir().unwrap();
    build(
        &head(SIFT_BASE, 300),
        folder.path(),
        &options(Preset::STRATANN),
        &Silent,
    )
    .unwrap();
    // The process has 200 MiB of other resident memory, like an interpreter with its modules.
    let others = std::hint::black_box(vec![1u8; 200 << 20]);
    let index = within(folder.path(), Some(64 << 20));
    index
        .insert(&rows(SIFT_BASE, 300, 100), None, &Silent)
        .unwrap();
    let report = index.compact(&Silent).unwrap();
    assert_eq!(report.vectors, 400);
    assert_eq!(others.len(), 200 << 20);
}
