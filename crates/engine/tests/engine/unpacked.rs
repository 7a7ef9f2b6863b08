//! Graphs that are unpacked in memory, compared with the same graphs read from storage.

use std::path::Path;

use stratann::{
    BuildOptions, CacheSize, Error, Filter, GroundTruth, Index, Layout, LiveIndex, Matrix,
    MemoryPlan, Metric, OpenOptions, Preset, Row, RowTable, SearchOptions, SearchResults, Silent,
    Strategy, Update, Value, VectorSource, WriteOptions, brute_force, build, calibrate,
};

use super::fixtures::{SIFT_BASE, SIFT_QUERIES, head, rows};

const ROWS: usize = 2_000;
const MORE: usize = 500;

fn built(base: &Matrix, metric: Metric, layout: Layout, path: &Path) {
    let options = BuildOptions {
        metric,
        layout: Some(layout),
        degree: Some(24),
        build_list: 40,
        // Several threads build another graph each time.
        threads: 1,
        ..BuildOptions::default()
    };
    build(base, path, &options, &Silent).unwrap();
}

fn open(path: &Path, memory: Option<u64>) -> Result<Index, Error> {
    let options = OpenOptions {
        memory,
        ..OpenOptions::default()
    };
    Index::open(path, &options)
}

fn all_of(plan: &MemoryPlan) -> u64 {
    let index = plan.codes + plan.codebook + plan.tables + plan.cache + plan.places;
    let pages = plan.graph_pages + plan.vector_pages + plan.unpacked + plan.navigation;
    plan.program + plan.queries + index + pages + plan.changes + plan.inserting + plan.unused
}

fn found(index: &Index, queries: &Matrix, list: usize) -> SearchResults {
    let options = SearchOptions {
        list,
        exact: true,
        // The results of a pipelined search depend on the order of completions.
        strategy: Some(Strategy::BestFirst),
        ..SearchOptions::default()
    };
    index.search(queries, &options).unwrap()
}

fn recall_of(found: &SearchResults, truth: &GroundTruth) -> f64 {
    truth.recall(&found.ids, &found.distances, 10).unwrap()
}

#[test]
fn an_unpacked_graph_finds_as_much_without_a_read() {
    let photos = (head(SIFT_BASE, ROWS), head(SIFT_QUERIES, 100), Metric::L2);
    let texts = ["base", "query"].map(|of| format!("package-text-2k.{of}.fbin"));
    let texts = (head(&texts[0], ROWS), head(&texts[1], 100), Metric::Cosine);
    for (base, queries, metric) in [photos, texts] {
        let truth = brute_force(&base, &queries, 10, metric, 2, &Silent).unwrap();
        for layout in [Layout::Packed, Layout::Layered, Layout::Decoupled] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("index");
            built(&base, metric, layout, &path);
            let stored = open(&path, None).unwrap();
            let unpacked = open(&path, Some(100 << 20)).unwrap();
            let plan = unpacked.memory();
            assert!(plan.unpacked > 0, "{layout}: {plan:?}");
            // The plan is known without unpacking.
            assert_eq!(unpacked.memory_to_search().unwrap(), *plan, "{layout}");
            let packed = unpacked.opener().unpacking(false).open(&path).unwrap();
            assert_eq!(packed.memory().unpacked, 0, "{layout}");
            assert_eq!(packed.memory_to_search().unwrap(), *plan, "{layout}");
            assert!(packed.would_unpack() && !unpacked.would_unpack());
            assert!(!stored.would_unpack(), "{layout}");
            assert_eq!(all_of(plan), 100 << 20, "{layout}: {plan:?}");
            let predicted = plan.predicted_reads.unwrap();
            assert!(
                predicted[0] + predicted[1] < 1e-9,
                "{layout}: {predicted:?}"
            );
            for list in [10, 20, 40] {
                let [read, held] = [&stored, &unpacked].map(|index| found(index, &queries, list));
                let recalls = [recall_of(&read, &truth), recall_of(&held, &truth)];
                // A page of lists has a thirtieth of this small index, which helps the searches
                // that read pages.
                assert!(
                    recalls[1] >= recalls[0] - 0.005,
                    "{metric} {layout} {list}: {recalls:?}"
                );
                assert!(read.counters.bytes_read > 0);
                assert_eq!(held.counters.bytes_read, 0, "{layout}");
                assert!(held.exact);
            }
            let all = found(&unpacked, &queries, ROWS);
            assert_eq!(recall_of(&all, &truth), 1.0, "{metric} {layout}");
        }
    }
}

#[test]
fn an_index_is_calibrated_as_it_is_on_storage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    built(&head(SIFT_BASE, ROWS), Metric::L2, Layout::Packed, &path);
    let measured = |memory| {
        let open = OpenOptions {
            memory,
            ..OpenOptions::default()
        };
        let queries = head(SIFT_QUERIES, 100);
        let calibration = calibrate(&path, &open, Some(&queries), 2, &Silent).unwrap();
        calibration.recalls
    };
    let (on_storage, in_memory) = (measured(None), measured(Some(100 << 20)));
    for (read, held) in on_storage.iter().zip(&in_memory) {
        // Pages in memory change the order of a walk slightly.
        assert!(
            read.0 == held.0 && (read.1 - held.1).abs() < 0.03,
            "{read:?} {held:?}"
        );
    }
}

/// Presets of papers, and an index with a cache, search pages even with much memory.
#[test]
fn only_the_own_preset_is_unpacked_and_only_if_it_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, 1_000);
    for (preset, is_own) in [(Preset::STRATANN, true), (Preset::DECOUPLEVS, false)] {
        let path = folder.path().join(preset.name);
        let options = BuildOptions {
            preset,
            degree: Some(16),
            build_list: 30,
            threads: 2,
            ..BuildOptions::default()
        };
        build(&base, &path, &options, &Silent).unwrap();
        let unpacked = |unpack, cache| {
            let options = OpenOptions {
                memory: Some(100 << 20),
                unpack,
                cache,
                ..OpenOptions::default()
            };
            Index::open(&path, &options).unwrap().memory().unpacked > 0
        };
        assert_eq!(unpacked(true, CacheSize::None), is_own);
        assert!(!unpacked(false, CacheSize::None));
        assert!(!unpacked(true, CacheSize::Entries(100)));
    }
}

/// Some inserts, deletes and attributes are in the checkpoint, and others in the log.
#[test]
fn an_unpacked_graph_has_every_change() {
    for (layout, update) in [
        (Layout::Packed, Update::Accumulate),
        (Layout::Packed, Update::Relocate),
        (Layout::Layered, Update::Relocate),
        (Layout::Decoupled, Update::Accumulate),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        built(&head(SIFT_BASE, ROWS), Metric::L2, layout, &path);
        let options = WriteOptions {
            update: Some(update),
            ..WriteOptions::default()
        };
        let live = LiveIndex::open(&path, &OpenOptions::default(), &options).unwrap();
        let row = |number: u64| Row {
            attributes: [("parity".to_owned(), Value::Integer(number as i64 % 2))].into(),
            payload: None,
        };
        let insert = |first: usize, count: usize| {
            let attributes = RowTable::new((first..first + count).map(|n| row(n as u64)).collect());
            let new = rows(SIFT_BASE, first, count);
            live.insert_rows(&new, &attributes, None, &Silent).unwrap();
        };
        insert(ROWS, MORE);
        live.delete(&(0..200).collect::<Vec<u64>>()).unwrap();
        live.flush().unwrap();
        insert(ROWS + MORE, 50);
        live.delete(&(ROWS as u64..ROWS as u64 + 100).collect::<Vec<u64>>())
            .unwrap();
        drop(live);
        let index = open(&path, Some(100 << 20)).unwrap();
        assert!(index.memory().unpacked > 0, "{layout} {update:?}");
        let queries = rows(SIFT_BASE, 0, ROWS + MORE + 50);
        let near = found(&index, &queries, 60);
        for (row, ids) in near.ids.chunks_exact(10).enumerate() {
            let id = row as u64;
            let gone = id < 200 || (ROWS as u64..ROWS as u64 + 100).contains(&id);
            // Some vectors occur twice, so another id may be as near.
            let itself = near.distances[10 * row] == 0.0 || ids.contains(&id);
            assert!(gone || itself, "{layout} {update:?}: {id} is lost");
            assert!(!(gone && ids.contains(&id)), "{layout}: {id} came back");
        }
        let filter = Filter::parse("parity == 1").unwrap();
        let options = SearchOptions::default();
        let odd = index.search_filtered(&queries, &options, &filter).unwrap();
        let expected = |id: u64| id >= ROWS as u64 + 100 && id % 2 == 1;
        assert!(odd.ids.iter().all(|&id| expected(id)), "{layout}");
        let vectors = index.vectors(&[ROWS as u64 + 150, 300], &Silent).unwrap();
        for (place, row) in [ROWS + 150, 300].into_iter().enumerate() {
            let stored = rows(SIFT_BASE, row, 1);
            let mut bytes = vec![0; stored.row_bytes()];
            stored.read(0, &mut bytes).unwrap();
            assert_eq!(
                vectors.vector(place),
                Some(&bytes[..]),
                "{layout}: row {row}"
            );
        }
    }
}
