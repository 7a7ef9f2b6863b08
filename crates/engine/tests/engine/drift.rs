//! Indexes whose inserted vectors are of another kind than the vectors of the build.

use std::path::Path;
use std::sync::Mutex;

use stratann::{
    BuildOptions, CodebookFate, Due, Error, Filter, GroundTruth, Index, LiveIndex, MergeWhen,
    Metric, OpenOptions, Preset, Progress, Row, RowTable, SearchOptions, Silent, Strategy,
    WriteOptions, brute_force, build, build_with_rows, verify,
};

use super::fixtures::{self, SIFT_BASE, head};

type Normal = fixtures::Normal<DIM>;

const DIM: usize = 32;
/// The number of vectors of the build, and of inserted vectors.
const ROWS: usize = 1_000;

/// The difference between the inserted vectors and the vectors of the build.
#[derive(Clone, Copy, Debug)]
enum Other {
    Shifted,
    Crowd,
    Short,
}

impl Other {
    fn rows(self, numbers: &mut Normal, count: usize) -> Vec<f32> {
        match self {
            Self::Shifted => numbers.rows(count, |x| x + 30.0),
            Self::Crowd => numbers.rows(count, |x| 0.7 + 0.01 * x),
            Self::Short => numbers.rows(count, |x| 0.05 * x),
        }
    }
}

fn rows(other: Other) -> [Vec<f32>; 3] {
    let mut numbers: Normal = fixtures::Normal(7);
    let built = numbers.rows(ROWS, |x| x);
    let came = other.rows(&mut numbers, ROWS);
    let mut queries = numbers.rows(60, |x| x);
    queries.extend(other.rows(&mut numbers, 60));
    [built, came, queries]
}

fn options(preset: Preset) -> BuildOptions {
    BuildOptions {
        preset,
        threads: 1,
        ..BuildOptions::default()
    }
}

fn truth(all: &[f32], queries: &[f32]) -> GroundTruth {
    brute_force(
        &Normal::matrix(all),
        &Normal::matrix(queries),
        10,
        Metric::L2,
        2,
        &Silent,
    )
    .unwrap()
}

/// The results do not depend on the order of completions.
fn in_order() -> SearchOptions {
    SearchOptions {
        strategy: Some(Strategy::BestFirst),
        ..SearchOptions::default()
    }
}

fn recall(live: &LiveIndex, queries: &[f32], truth: &GroundTruth) -> f64 {
    let found = live.search(&Normal::matrix(queries), &in_order()).unwrap();
    truth.recall(&found.ids, &found.distances, 10).unwrap()
}

/// One thread inserts and merges, so that the graph is the same in each run.
fn live(path: &Path) -> LiveIndex {
    let options = WriteOptions {
        threads: 1,
        ..WriteOptions::default()
    };
    LiveIndex::open(path, &OpenOptions::default(), &options).unwrap()
}

fn drifts(preset: Preset, other: Other) {
    let [built, came, queries] = rows(other);
    let all = [built.clone(), came.clone()].concat();
    let truth = truth(&all, &queries);
    let folder = tempfile::tempdir().unwrap();
    let (fresh, grown) = (folder.path().join("fresh"), folder.path().join("grown"));
    build(&Normal::matrix(&all), &fresh, &options(preset), &Silent).unwrap();
    let at_once = recall(&live(&fresh), &queries, &truth);
    build(&Normal::matrix(&built), &grown, &options(preset), &Silent).unwrap();
    let index = live(&grown);
    let when = MergeWhen::default();
    index.insert(&Normal::matrix(&came), None, &Silent).unwrap();
    let inserted = recall(&index, &queries, &truth);
    let trouble = index
        .stats()
        .trouble
        .expect("the insert has not measured the drift");
    assert!(trouble.contains("often miss"), "{trouble}");
    let said = format!("{}, {other:?}: inserted {inserted}", preset.name);
    let Some(Due::Drifted(share)) = index.due(&when) else {
        panic!("{said}: {:?}", index.due(&when));
    };
    assert!((0.4..=0.5).contains(&share), "{said}: {share}");
    assert_eq!(index.stats().health.drifted, Some(share));
    // After a checkpoint, new handles also report the drift.
    drop(index);
    let health = Index::open(&grown, &OpenOptions::default())
        .unwrap()
        .health(&Silent);
    assert!(health.unwrap().drifted.unwrap() > 0.4, "{said}");
    let index = live(&grown);
    assert!(matches!(index.due(&when), Some(Due::Drifted(_))), "{said}");
    let report = index.compact(&Silent).unwrap();
    let merged = recall(&index, &queries, &truth);
    let said = format!("{said}, merged {merged}, at once {at_once}");
    eprintln!("{said}");
    assert_eq!(report.codebook, CodebookFate::Trained, "{said}");
    assert!(at_once > 0.95 && merged > at_once - 0.01, "{said}");
    assert_eq!((index.due(&when), index.stats().trouble), (None, None));
    // After the merge, further vectors of the second kind do not count as drifted.
    let more = other.rows(&mut fixtures::Normal(8), 300);
    index.insert(&Normal::matrix(&more), None, &Silent).unwrap();
    let due = index.due(&when);
    assert!(!matches!(due, Some(Due::Drifted(_))), "{said}: {due:?}");
}

#[test]
fn what_comes_shifted_is_found_as_by_a_build_of_all() {
    drifts(Preset::STRATANN, Other::Shifted);
}

#[test]
fn what_comes_in_a_crowd_is_found_as_by_a_build_of_all() {
    drifts(Preset::STRATANN, Other::Crowd);
}

#[test]
fn what_comes_shorter_is_found_as_by_a_build_of_all() {
    drifts(Preset::STRATANN, Other::Short);
}

#[test]
fn what_comes_of_another_kind_is_found_by_other_systems_as_well() {
    let slow = std::env::var_os("STRATANN_SLOW").is_some();
    for preset in [Preset::AISAQ, Preset::ODINANN]
        .into_iter()
        .filter(|_| slow)
    {
        for other in [Other::Shifted, Other::Crowd, Other::Short] {
            drifts(preset, other);
        }
    }
}

#[test]
fn what_comes_of_the_kind_that_there_is_has_not_drifted() {
    let folder = tempfile::tempdir().unwrap();
    build(
        &head(SIFT_BASE, 1_500),
        folder.path(),
        &options(Preset::STRATANN),
        &Silent,
    )
    .unwrap();
    let index = live(folder.path());
    index
        .insert(&fixtures::rows(SIFT_BASE, 1_500, 500), None, &Silent)
        .unwrap();
    let due = index.due(&MergeWhen::default());
    assert!(!matches!(due, Some(Due::Drifted(_))), "{due:?}");
    assert_eq!(index.stats().health.drifted, Some(0.0));
}

fn of_kind(kind: i64, count: usize) -> RowTable {
    let mut row = Row::default();
    row.attributes.insert("kind".into(), kind.into());
    RowTable::new(vec![row; count])
}

/// The codes of drifted vectors are inaccurate, so a filter for them takes more reads.
#[test]
fn what_matches_a_filter_is_found_of_rows_that_codes_are_not_made_for() {
    for (preset, other) in [
        (Preset::STRATANN, Other::Shifted),
        (Preset::STRATANN, Other::Crowd),
        (Preset::ODINANN, Other::Shifted),
    ] {
        let [built, came, _] = rows(other);
        let queries = other.rows(&mut fixtures::Normal(9), 50);
        let mut truth = truth(&came, &queries);
        truth.ids.iter_mut().for_each(|id| *id += ROWS as u64);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let kinds = of_kind(0, ROWS);
        build_with_rows(
            &Normal::matrix(&built),
            &kinds,
            &path,
            &options(preset),
            &Silent,
        )
        .unwrap();
        let index = live(&path);
        for came in came.chunks(DIM * ROWS / 10) {
            let kinds = of_kind(1, came.len() / DIM);
            index
                .insert_rows(&Normal::matrix(came), &kinds, None, &Silent)
                .unwrap();
        }
        let filter = Filter::parse("kind == 1").unwrap();
        let found = index.search_filtered(&Normal::matrix(&queries), &in_order(), &filter);
        let found = found.unwrap();
        let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
        eprintln!("{}, {other:?}: recall {recall}", preset.name);
        assert!(recall > 0.95, "{}, {other:?}: recall {recall}", preset.name);
    }
}

fn drifted(path: &Path, options: &BuildOptions) {
    let [built, came, _] = rows(Other::Shifted);
    build(&Normal::matrix(&built), path, options, &Silent).unwrap();
    live(path)
        .insert(&Normal::matrix(&came), None, &Silent)
        .unwrap();
}

fn within(path: &Path, memory: u64) -> Result<Index, Error> {
    let memory = Some(memory);
    let options = OpenOptions {
        memory,
        ..OpenOptions::default()
    };
    Index::open(path, &options)
}

fn least(path: &Path) -> u64 {
    match within(path, 1) {
        Err(Error::Memory { needs, .. }) => needs,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_searches_with_little_memory_looks_as_well_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    drifted(folder.path(), &options(Preset::STRATANN));
    for memory in [least(folder.path()), 20_000_000] {
        let index = within(folder.path(), memory).unwrap();
        let (stats, looked) = index.stats_and_health(&Silent);
        let share = looked.unwrap().drifted.unwrap();
        assert!((0.4..=0.5).contains(&share), "{memory}: {share}");
        assert_eq!(stats.health.drifted, Some(share));
        assert!(stats.trouble.unwrap().contains("often miss"), "{memory}");
        let found = index.search(&Normal::matrix(&[0.0; DIM]), &SearchOptions::default());
        assert_eq!(found.unwrap().ids.len(), 10);
        assert!(index.health(&Silent).unwrap().drifted.is_some());
    }
}

#[test]
fn that_nobody_looked_is_no_good_health() {
    let folder = tempfile::tempdir().unwrap();
    let (long, given) = (folder.path().join("long"), folder.path().join("given"));
    let texts = |first| fixtures::rows("package-text-2k.base.fbin", first, 300);
    // The build does as little work per vector as possible.
    let options = BuildOptions {
        degree: Some(24),
        build_list: 40,
        ..options(Preset::STRATANN)
    };
    build(&texts(0), &long, &options, &Silent).unwrap();
    live(&long).insert(&texts(300), None, &Silent).unwrap();
    let health = within(&long, least(&long))
        .unwrap()
        .health(&Silent)
        .unwrap();
    let why = health.not_looked_at.unwrap();
    assert!(health.drifted.is_none() && why.contains("memory"), "{why}");
    let health = within(&long, 20_000_000).unwrap().health(&Silent).unwrap();
    assert!(health.drifted.is_some() && health.not_looked_at.is_none());

    let index = Index::open(&long, &OpenOptions::default()).unwrap();
    let options = BuildOptions {
        codebook: index.codebook().cloned(),
        ..options
    };
    build(&texts(0), &given, &options, &Silent).unwrap();
    live(&given).insert(&texts(300), None, &Silent).unwrap();
    let index = Index::open(&given, &OpenOptions::default()).unwrap();
    let health = index.health(&Silent).unwrap();
    let why = health.not_looked_at.unwrap();
    assert!(
        health.drifted.is_none() && why.contains("codebook"),
        "{why}"
    );
}

#[derive(Default)]
struct Warnings(Mutex<Vec<String>>);

impl Progress for Warnings {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, warning: &str) {
        self.0.lock().unwrap().push(warning.to_owned());
    }
    fn interrupted(&self) -> bool {
        false
    }
}

#[test]
fn verify_warns_of_what_is_found_badly() {
    let folder = tempfile::tempdir().unwrap();
    drifted(folder.path(), &options(Preset::STRATANN));
    let warnings = Warnings::default();
    assert!(verify(folder.path(), &warnings).unwrap().clean());
    let warnings = warnings.0.into_inner().unwrap();
    let [warning] = &warnings[..] else {
        panic!("{warnings:?}");
    };
    assert!(warning.contains("often miss"), "{warning}");
    live(folder.path()).compact(&Silent).unwrap();
    let warnings = Warnings::default();
    assert!(verify(folder.path(), &warnings).unwrap().clean());
    assert_eq!(warnings.0.into_inner().unwrap(), Vec::<String>::new());
}
