//! Indexes that began without vectors and grew without a merge. Searches find each vector, or the
//! index reports its trouble.

use std::path::Path;
use std::sync::Arc;

use stratann::{
    BuildOptions, Catalog, CatalogOptions, DirectOptions, Durability, Filter, Index, LiveIndex,
    Matrix, Metric, OpenOptions, Preset, Range, Row, RowTable, SearchOptions, Silent, Strategy,
    Value, VectorSource, Way, WriteOptions, brute_force, build, create,
};

use super::fixtures::{SIFT_BASE, head, rows, slow};

/// Sentences, each as a vector of 384 floats. An index of these vectors stores them apart from
/// lists.
const TEXTS: &str = "package-text-2k.base.fbin";

fn begin(path: &Path, preset: Preset, file: &str, built: usize) {
    let graph = ![Preset::SPANN.name, Preset::TIERED_CLUSTER.name].contains(&preset.name);
    let usual = BuildOptions::default();
    let options = BuildOptions {
        preset,
        degree: graph.then_some(32),
        build_list: if graph { 50 } else { usual.build_list },
        threads: 1,
        ..usual
    };
    let first = head(file, built.max(1));
    match built {
        0 => create(path, first.element(), first.dim(), &options, &Silent),
        _ => build(&first, path, &options, &Silent),
    }
    .unwrap();
}

/// Inserts run one after another, so that only the vectors determine the graph.
fn live(path: &Path) -> LiveIndex {
    let options = WriteOptions {
        durability: Durability::OnFlush,
        threads: 1,
        update: None,
        direct: DirectOptions {
            in_flight: 1,
            ..DirectOptions::default()
        },
    };
    LiveIndex::open(path, &OpenOptions::default(), &options).unwrap()
}

/// The exact distance shows whether the result is the vector itself.
fn nearest(list: usize) -> SearchOptions {
    SearchOptions {
        k: 1,
        list,
        exact: true,
        ..SearchOptions::default()
    }
}

fn some(file: &str, count: usize) -> Matrix {
    let first = head(file, count);
    let step = (count / 50).max(1);
    let mut bytes = Vec::new();
    for row in (0..count).rev().step_by(step) {
        let mut one = vec![0; first.row_bytes()];
        first.read(row, &mut one).unwrap();
        bytes.extend(one);
    }
    let rows = bytes.len() / first.row_bytes();
    Matrix::new(bytes, rows, first.dim(), first.element()).unwrap()
}

fn rows_are_found(presets: &[Preset], file: &str) {
    for &preset in presets {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        begin(path, preset, file, 0);
        let index = live(path);
        for count in [20, 100, 500, 999, 1_000, 1_500] {
            let new = rows(file, index.len(), count - index.len());
            index.insert(&new, None, &Silent).unwrap();
            let asked = some(file, count);
            // If 1,000 vectors or more wait in memory, a list size of 1 does not suffice for their
            // graph.
            let lists: &[usize] = if count < 1_000 { &[1, 100] } else { &[100] };
            for &list in lists {
                let found = index.search(&asked, &nearest(list)).unwrap();
                let missed = found.distances.iter().filter(|&&far| far > 0.0).count();
                let said = format!("{}, {count} rows, list {list}", preset.name);
                assert_eq!(missed, 0, "{said}");
                assert_eq!(index.stats().trouble, None, "{said}");
            }
        }
        drop(index);
        let index = Index::open(path, &OpenOptions::default()).unwrap();
        assert_eq!(index.stats().trouble, None, "{}", preset.name);
        let found = index.search(&some(file, 1_500), &nearest(100)).unwrap();
        assert!(
            found.distances.iter().all(|&far| far <= 0.0),
            "{}",
            preset.name
        );
    }
}

#[test]
fn every_row_of_a_few_is_found_where_a_graph_takes_them() {
    rows_are_found(&[Preset::STRATANN, Preset::AISAQ], SIFT_BASE);
    rows_are_found(&[Preset::STRATANN], TEXTS);
}

#[test]
fn every_row_of_a_few_is_found_where_a_graph_moves_records_for_them() {
    rows_are_found(&[Preset::ODINANN], SIFT_BASE);
}

#[test]
fn every_row_of_a_few_is_found_where_they_wait_or_join_clusters() {
    let presets = [
        Preset::TIERED_GRAPH,
        Preset::DECOUPLEVS,
        Preset::DISKANN,
        Preset::PIPEANN,
        Preset::DISTVS,
        Preset::SPANN,
        Preset::TIERED_CLUSTER,
    ];
    rows_are_found(&presets, SIFT_BASE);
}

#[test]
fn codes_of_128_vectors_serve_the_first_thousands() {
    let all = [
        (Preset::STRATANN, SIFT_BASE),
        (Preset::ODINANN, SIFT_BASE),
        (Preset::STRATANN, TEXTS),
        (Preset::AISAQ, SIFT_BASE),
    ];
    for (preset, file) in all.into_iter().take(if slow() { 4 } else { 3 }) {
        let folder = tempfile::tempdir().unwrap();
        begin(folder.path(), preset, file, 128);
        let index = live(folder.path());
        let counts = match slow() || (preset.name, file) == (Preset::STRATANN.name, SIFT_BASE) {
            true => &[1_000, 2_000][..],
            false => &[1_000],
        };
        for &count in counts {
            let new = rows(file, index.len(), count - index.len());
            index.insert(&new, None, &Silent).unwrap();
            let asked = some(file, count);
            let options = SearchOptions {
                list: 100,
                ..SearchOptions::default()
            };
            let found = index.search(&asked, &options).unwrap();
            let truth =
                brute_force(&head(file, count), &asked, 10, Metric::L2, 1, &Silent).unwrap();
            let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
            let said = format!("{}, {file}, {count} rows: {recall}", preset.name);
            eprintln!("{said}");
            assert!(recall >= 0.95, "{said}");
        }
    }
}

/// Useless codes must not rule out the nearest vector after the first near result.
#[test]
fn one_answer_is_the_first_of_ten_though_codes_say_nothing() {
    for preset in [Preset::STRATANN, Preset::ODINANN] {
        let folder = tempfile::tempdir().unwrap();
        begin(folder.path(), preset, SIFT_BASE, 128);
        let index = live(folder.path());
        index
            .insert(&rows(SIFT_BASE, 128, 1_072), None, &Silent)
            .unwrap();
        let asked = some(SIFT_BASE, 1_200);
        let of = |k| {
            let options = SearchOptions {
                k,
                strategy: Some(Strategy::BestFirst),
                ..nearest(100)
            };
            index.search(&asked, &options).unwrap().distances
        };
        let (one, ten) = (of(1), of(10));
        let first: Vec<f32> = ten.iter().copied().step_by(10).collect();
        assert_eq!(one, first, "{}", preset.name);
    }
}

#[test]
fn every_way_to_search_finds_every_row_of_a_few() {
    const ROWS: usize = 600;
    for preset in [Preset::STRATANN, Preset::ODINANN] {
        let name = preset.name;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("few");
        begin(&path, preset, SIFT_BASE, 0);
        let row = |number: usize| Row {
            attributes: [("odd".to_owned(), Value::Boolean(number % 2 == 1))].into(),
            payload: None,
        };
        let table = RowTable::new((0..ROWS).map(row).collect());
        let index = live(&path);
        let all = head(SIFT_BASE, ROWS);
        index.insert_rows(&all, &table, None, &Silent).unwrap();
        let asked = some(SIFT_BASE, ROWS);
        let first = |distances: &[f32], how: &str| {
            let missed = distances.iter().filter(|&&far| far > 0.0).count();
            assert_eq!(missed, 0, "{name} {how}");
        };
        let index = Arc::new(index);
        let submitted = index.submit(asked, &nearest(10), None).unwrap();
        first(&submitted.wait().unwrap().distances, "submitted");
        let odd = Filter::parse("odd == true").unwrap();
        let last = rows(SIFT_BASE, ROWS - 1, 1);
        for way in [None, Some(Way::Within), Some(Way::Before)] {
            let options = SearchOptions { way, ..nearest(10) };
            let found = index.search_filtered(&last, &options, &odd).unwrap();
            first(&found.distances, "with a filter");
            assert_eq!(
                found.explained.map(|how| how.way),
                Some(Way::Before),
                "{name}"
            );
        }
        let range = Range::of(0.0);
        let found = index.search_range(&last, &range, &nearest(10), None, &Silent);
        assert!(found.unwrap().ids.contains(&(ROWS as u64 - 1)), "{name}");
        drop(index);
        let catalog = Catalog::open(folder.path(), &CatalogOptions::default()).unwrap();
        let found = catalog.search(&["few"], &last, &nearest(10)).unwrap();
        first(&found.distances, "in a catalog");
    }
}
