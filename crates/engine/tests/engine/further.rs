//! A search walks further only if some of its results are vectors that drifted.

use std::path::Path;

use stratann::{
    BuildOptions, Counters, DirectOptions, Due, Error, Filter, GroundTruth, Index, LiveIndex,
    Matrix, MergeWhen, Metric, OpenOptions, Preset, Row, RowTable, SearchOptions, SearchResults,
    Silent, Strategy, Update, Way, WriteOptions, brute_force, build, build_with_rows,
};

use super::fixtures::{self, slow};

type Normal = fixtures::Normal<DIM>;

const DIM: usize = 24;

/// The number of vectors of the build. `CAME` is the number of inserted vectors.
const BUILT: usize = 1_500;
const CAME: usize = 750;
const QUERIES: usize = 60;
const LIST: usize = 50;

fn shifted(x: f32) -> f32 {
    x + 3.0
}

struct Rows {
    built: Matrix,
    came: Matrix,
    old: (Matrix, GroundTruth),
    new: (Matrix, GroundTruth),
}

fn rows() -> Rows {
    let mut numbers: Normal = fixtures::Normal(7);
    let built = numbers.rows(BUILT, |x| x);
    let came = numbers.rows(CAME, shifted);
    let all = Normal::matrix(&[built.clone(), came.clone()].concat());
    let mut queries = |of: fn(f32) -> f32| {
        let queries = Normal::matrix(&numbers.rows(QUERIES, of));
        let truth = brute_force(&all, &queries, 10, Metric::L2, 2, &Silent).unwrap();
        (queries, truth)
    };
    Rows {
        old: queries(|x| x),
        new: queries(shifted),
        built: Normal::matrix(&built),
        came: Normal::matrix(&came),
    }
}

fn options(preset: Preset) -> BuildOptions {
    BuildOptions {
        preset,
        threads: 1,
        ..BuildOptions::default()
    }
}

/// Opens an index for direct inserts, with `checkpoint` inserts between two checkpoints.
fn live(path: &Path, checkpoint: Option<u64>) -> LiveIndex {
    opened(path, checkpoint, None)
}

fn opened(path: &Path, checkpoint: Option<u64>, memory: Option<u64>) -> LiveIndex {
    let direct = DirectOptions {
        checkpoint,
        ..DirectOptions::default()
    };
    let merges = reader(path).preset().update == Update::Merge;
    let options = WriteOptions {
        threads: 1,
        update: merges.then_some(Update::Accumulate),
        direct,
        ..WriteOptions::default()
    };
    let within = OpenOptions {
        memory,
        ..OpenOptions::default()
    };
    LiveIndex::open(path, &within, &options).unwrap()
}

fn reader(path: &Path) -> Index {
    Index::open(path, &OpenOptions::default()).unwrap()
}

fn searches() -> SearchOptions {
    SearchOptions {
        list: LIST,
        strategy: Some(Strategy::BestFirst),
        ..SearchOptions::default()
    }
}

fn recall(found: &SearchResults, truth: &GroundTruth) -> f64 {
    truth.recall(&found.ids, &found.distances, 10).unwrap()
}

fn hops(found: &SearchResults) -> u64 {
    found.counters.hops / QUERIES as u64
}

/// The counts of expanded nodes, of reads of lists, of reads of vectors, and of bytes read.
fn reads(counters: &Counters) -> [u64; 4] {
    let of = counters;
    [of.hops, of.graph_reads, of.vector_reads, of.bytes_read]
}

fn manifest(path: &Path) -> String {
    std::fs::read_to_string(path.join("MANIFEST")).unwrap()
}

fn looks_further(preset: Preset, least: f64) {
    let rows = rows();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    build(&rows.built, &path, &options(preset), &Silent).unwrap();
    // With so little memory, no insert measures the drift.
    let index = opened(&path, Some(u64::MAX), Some(12 << 20));
    index.insert(&rows.came, None, &Silent).unwrap();
    drop(index);
    let index = reader(&path);
    assert_eq!(
        index.stats().health.drifted,
        None,
        "a drift is reported although no insert measured it"
    );
    let of = |queries| index.search(queries, &searches()).unwrap();
    let (old_before, new_before) = (of(&rows.old.0), of(&rows.new.0));
    let searched = |index: &LiveIndex| {
        let of = |queries| index.search(queries, &searches()).unwrap();
        (of(&rows.old.0), of(&rows.new.0))
    };
    let index = live(&path, Some(u64::MAX));
    let due = index.due(&MergeWhen::default());
    assert!(matches!(due, Some(Due::Drifted(_))), "{due:?}");
    let (old, new) = searched(&index);
    let told = |found: &SearchResults, truth| {
        format!("{:.3} of {} nodes", recall(found, truth), hops(found))
    };
    let said = format!(
        "{}: of what was built {}, then {}; of what came {}, then {}",
        preset.name,
        told(&old_before, &rows.old.1),
        told(&old, &rows.old.1),
        told(&new_before, &rows.new.1),
        told(&new, &rows.new.1),
    );
    eprintln!("{said}");
    assert_eq!(reads(&old.counters), reads(&old_before.counters), "{said}");
    assert_eq!(old.ids, old_before.ids, "{said}");
    assert!(recall(&new, &rows.new.1) > least, "{said}");
    assert!(hops(&new) > 4 * LIST as u64, "{said}");
    // This insert makes another checkpoint. The vector is far away, so it is no result.
    index
        .insert(&Normal::matrix(&[500.0; DIM]), None, &Silent)
        .unwrap();
    drop(index);

    assert!(manifest(&path).contains("\"drift\""), "{said}");
    let index = reader(&path);
    let of = |queries| index.search(queries, &searches()).unwrap();
    let (old, new) = (of(&rows.old.0), of(&rows.new.0));
    let said = format!(
        "{said}; a reader: of what was built {}, of what came {}",
        told(&old, &rows.old.1),
        told(&new, &rows.new.1),
    );
    eprintln!("{said}");
    assert!(hops(&old) < 2 * LIST as u64, "{said}");
    assert!(recall(&new, &rows.new.1) > least, "{said}");
    drop(index);

    let index = live(&path, None);
    index.compact(&Silent).unwrap();
    let (_, new) = searched(&index);
    let said = format!("{said}; after a merge {}", told(&new, &rows.new.1));
    assert!(hops(&new) < 2 * LIST as u64, "{said}");
    assert!(recall(&new, &rows.new.1) > 0.9, "{said}");
    drop(index);
    assert!(!manifest(&path).contains("\"drift\""), "{said}");
}

#[test]
fn searches_of_what_drifted_look_further() {
    looks_further(Preset::STRATANN, 0.97);
}

#[test]
fn searches_of_what_drifted_look_further_in_odinann() {
    looks_further(Preset::ODINANN, 0.97);
}

#[test]
fn searches_of_what_drifted_look_further_in_aisaq() {
    looks_further(Preset::AISAQ, 0.97);
}

#[test]
fn searches_of_what_drifted_look_further_in_decouplevs() {
    looks_further(Preset::DECOUPLEVS, 0.9);
}

/// Inserts and the close measure the drift, even if no caller asks whether a merge is due.
#[test]
fn an_insert_sees_what_has_drifted() {
    let rows = rows();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    build(&rows.built, &path, &options(Preset::STRATANN), &Silent).unwrap();
    let index = live(&path, Some(u64::MAX));
    index.insert(&rows.came, None, &Silent).unwrap();
    let looks = |found: &SearchResults, how: &SearchOptions| {
        let recall = recall(found, &rows.new.1);
        assert!(recall > 0.985, "{how:?}: {recall:.3}");
        assert!(hops(found) > 4 * LIST as u64, "{how:?}: {}", hops(found));
    };
    looks(
        &index.search(&rows.new.0, &searches()).unwrap(),
        &searches(),
    );
    drop(index);
    // The drift is known without another measurement.
    let trouble = live(&path, None).stats().trouble;
    assert!(trouble.is_some_and(|trouble| trouble.contains("often miss")));
    let index = reader(&path);
    for how in [
        searches(),
        SearchOptions {
            stop_early: true,
            ..searches()
        },
        SearchOptions {
            strategy: Some(Strategy::Pipelined),
            ..searches()
        },
        SearchOptions {
            recall: Some(0.95),
            ..SearchOptions::default()
        },
    ] {
        looks(&index.search(&rows.new.0, &how).unwrap(), &how);
    }
}

/// Under a memory budget, and with whole pages, the further list may be less than 8 times as long.
#[test]
fn a_longer_list_finds_no_less() {
    let rows = rows();
    for preset in [Preset::ODINANN, Preset::AISAQ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        build(&rows.built, &path, &options(preset), &Silent).unwrap();
        live(&path, None).insert(&rows.came, None, &Silent).unwrap();
        let least = match Index::open(&path, &within(1)) {
            Err(Error::Memory { needs, .. }) => needs,
            other => panic!("{other:?}"),
        };
        let short = &[20, 50, 100, 200][..];
        let around_a_quarter = &[50, 200, 561, 562, 2_250][..];
        let all = [
            (least + 200_000, short),
            (100 << 20, around_a_quarter),
            (least, short),
        ];
        for (memory, lists) in all.into_iter().take(if slow() { 3 } else { 2 }) {
            let index = Index::open(&path, &within(memory)).unwrap();
            let (mut before, mut longest) = (0.0, 0);
            for &list in lists {
                let how = SearchOptions { list, ..searches() };
                let found = match index.search(&rows.new.0, &how) {
                    Ok(found) => found,
                    Err(Error::Memory { .. }) => break,
                    Err(error) => panic!("{error}"),
                };
                let recall = recall(&found, &rows.new.1);
                let said = format!(
                    "{}, memory {memory}, list {list}: recall {recall:.3}, with a shorter list {before:.3}",
                    preset.name
                );
                assert!(recall > before - 0.03, "{said}");
                (before, longest) = (recall, list);
            }
            let enough = if longest > 500 { 0.97 } else { 0.7 };
            assert!(
                longest >= 50 && before > enough,
                "{}, memory {memory}: recall {before:.3} with the longest list, {longest}",
                preset.name
            );
        }
        // A search with a recall target chooses its list size.
        let how = SearchOptions {
            recall: Some(0.9),
            ..SearchOptions::default()
        };
        let found = reader(&path).search(&rows.new.0, &how).unwrap();
        let recall = recall(&found, &rows.new.1);
        assert!(recall > 0.97, "{}: {recall:.3}", preset.name);
    }
}

fn within(memory: u64) -> OpenOptions {
    OpenOptions {
        memory: Some(memory),
        ..OpenOptions::default()
    }
}

fn of_kind(kind: i64, count: usize) -> RowTable {
    let mut row = Row::default();
    row.attributes.insert("kind".into(), kind.into());
    RowTable::new(vec![row; count])
}

fn estimates_are_true(preset: Preset, built: usize, came: usize, of: fn(f32) -> f32) {
    let mut numbers: Normal = fixtures::Normal(7);
    let rows =
        [numbers.rows(built, |x| x), numbers.rows(came, of)].map(|rows| Normal::matrix(&rows));
    let queries = Normal::matrix(&numbers.rows(QUERIES, of));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    build_with_rows(
        &rows[0],
        &of_kind(0, built),
        &path,
        &options(preset),
        &Silent,
    )
    .unwrap();
    let index = live(&path, None);
    index
        .insert_rows(&rows[1], &of_kind(1, came), None, &Silent)
        .unwrap();
    drop(index);
    let index = reader(&path);
    for filter in ["kind == 1", "kind < 2"] {
        let filter = Filter::parse(filter).unwrap();
        for way in [Way::Within, Way::Before] {
            let how = SearchOptions {
                way: Some(way),
                ..searches()
            };
            let found = index.search_filtered(&queries, &how, &filter).unwrap();
            let explained = found.explained.unwrap();
            let reads =
                (found.counters.graph_reads + found.counters.vector_reads) as f64 / QUERIES as f64;
            let expected = match explained.way {
                Way::Within => explained.estimates.within,
                Way::Before => explained.estimates.before,
            };
            let said = format!(
                "{}, {built} and {came}, {filter}, {way:?}: {expected:.1} expected, {reads:.1} read",
                preset.name
            );
            eprintln!("{said}");
            // A query continues with the other strategy only if it finds too few results.
            assert_eq!(explained.dry, 0, "{said}");
            let most = if explained.way == Way::Before {
                3.0
            } else {
                6.0
            };
            assert!(reads < 5.0 * expected && expected < most * reads, "{said}");
        }
    }
}

#[test]
fn estimates_are_true_of_what_codes_say_little() {
    estimates_are_true(Preset::STRATANN, 1_000, 800, shifted);
    estimates_are_true(Preset::ODINANN, 1_000, 800, shifted);
    // In an index that outgrew its codes, a search scans, or ranks whole pages.
    estimates_are_true(Preset::STRATANN, 100, 700, |x| x);
    estimates_are_true(Preset::ODINANN, 200, 1_300, |x| x);
}
