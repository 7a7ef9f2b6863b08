//! Searches of which most candidates are deleted: they go on until k vectors are found or none is left.

use std::collections::HashSet;
use std::sync::Barrier;

use crate::{Durability, Element, LiveIndex, WriteOptions};

use super::*;

const DIM: usize = 128;
const ROWS: usize = 1_000;

/// Normal floats, the same ones each time.
fn normal(rows: usize, seed: u64) -> Matrix {
    let mut state = seed;
    let mut uniform = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 + 0.5) / (1u64 << 24) as f32
    };
    // The sum of twelve uniform numbers, less its mean.
    let floats = (0..rows * DIM).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0);
    let bytes = floats.flat_map(f32::to_le_bytes).collect();
    Matrix::new(bytes, rows, DIM, Element::F32).unwrap()
}

fn presets() -> [Preset; 4] {
    [
        Preset::DISKANN,
        Preset::STRATANN,
        Preset::DECOUPLEVS,
        Preset::AISAQ,
    ]
}

fn built(folder: &std::path::Path, preset: Preset, layout: Option<Layout>) -> PathBuf {
    let options = BuildOptions {
        preset,
        layout,
        degree: Some(16),
        build_list: 30,
        threads: 1,
        ..BuildOptions::default()
    };
    let path = folder.join(preset.to_string());
    build(&normal(ROWS, 7), &path, &options, &Silent).unwrap();
    path
}

fn live(path: &std::path::Path) -> LiveIndex {
    let write = WriteOptions {
        durability: Durability::OnFlush,
        threads: 1,
        ..WriteOptions::default()
    };
    LiveIndex::open(path, &OpenOptions::default(), &write).unwrap()
}

fn tight() -> SearchOptions {
    SearchOptions {
        list: 10,
        ..SearchOptions::default()
    }
}

/// All rows but `kept` of them, spread over the collection.
fn all_but(kept: usize) -> Vec<u64> {
    let step = ROWS / kept;
    (0..ROWS as u64)
        .filter(|id| id % step as u64 != 3)
        .collect()
}

#[test]
fn all_that_is_asked_for_is_found_however_many_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let queries = normal(20, 99);
    for preset in presets() {
        let index = live(&built(folder.path(), preset, None));
        let mut gone = HashSet::new();
        for kept in [200, 50, 20, 10] {
            let deleted = all_but(kept);
            let new: Vec<u64> = deleted.into_iter().filter(|&id| gone.insert(id)).collect();
            index.delete(&new).unwrap();
            // Twice: the second search knows what the first one met.
            for _ in 0..2 {
                let found = index.search(&queries, &tight()).unwrap();
                assert!(
                    found
                        .ids
                        .iter()
                        .all(|id| *id < ROWS as u64 && !gone.contains(id)),
                    "{preset}, {kept} left"
                );
                for ids in found.ids.chunks(10) {
                    assert_eq!(
                        ids.iter().collect::<HashSet<_>>().len(),
                        10,
                        "{preset}, {kept} left"
                    );
                }
            }
        }
    }
}

#[test]
fn more_than_are_left_is_answered_with_padding() {
    let folder = tempfile::tempdir().unwrap();
    let index = live(&built(folder.path(), Preset::DISKANN, None));
    let queries = normal(5, 99);
    let gone = all_but(4);
    index.delete(&gone).unwrap();
    let found = index.search(&queries, &tight()).unwrap();
    for (ids, distances) in found.ids.chunks(10).zip(found.distances.chunks(10)) {
        assert!(ids[..4].iter().all(|&id| id < ROWS as u64) && ids[4..] == [u64::MAX; 6]);
        assert!(
            distances[..4].iter().all(|d| d.is_finite()) && distances[4..] == [f32::INFINITY; 6]
        );
    }
    // None at all is left.
    let rest: Vec<u64> = (0..ROWS as u64).filter(|id| !gone.contains(id)).collect();
    index.delete(&rest).unwrap();
    let found = index.search(&queries, &tight()).unwrap();
    assert_eq!(found.ids, vec![u64::MAX; 50]);
    // What does not change has no more than it has.
    let error = index.search(
        &queries,
        &SearchOptions {
            k: 1 << 20,
            list: 1 << 20,
            ..tight()
        },
    );
    assert!(error.unwrap_err().is_call_wrong());
}

#[test]
fn the_list_is_of_those_that_are_not_deleted() {
    // With half of all deleted, as many candidates that are not are expanded as before, also where a search learns of it by
    // vectors that are apart, or from records in the cache.
    let folder = tempfile::tempdir().unwrap();
    let queries = normal(20, 99);
    for (preset, cache) in [
        (Preset::DISKANN, CacheSize::None),
        (Preset::DISKANN, CacheSize::Entries(ROWS)),
        (Preset::DECOUPLEVS, CacheSize::None),
        (Preset::AISAQ, CacheSize::None),
    ] {
        let folder = folder.path().join(format!("{preset} {cache:?}"));
        std::fs::create_dir(&folder).unwrap();
        let path = built(&folder, preset, None);
        let open = OpenOptions {
            cache,
            ..OpenOptions::default()
        };
        let index = LiveIndex::open(&path, &open, &WriteOptions::default()).unwrap();
        let wide = SearchOptions {
            list: 60,
            ..SearchOptions::default()
        };
        let hops = || index.search(&queries, &wide).unwrap().counters.hops as f64;
        let before = hops();
        let gone: Vec<u64> = (0..ROWS as u64).filter(|id| id % 4 != 0).collect();
        index.delete(&gone).unwrap();
        hops();
        let after = hops();
        // Three of four are deleted: about four times as many, where it was at most twice as many or the same.
        assert!(
            after > 2.5 * before,
            "{preset}, {cache:?}: {before} hops, then {after}"
        );
    }
}

#[test]
fn several_host_threads_search_at_once() {
    // A search of one thread holds its worker until another one has begun.
    struct Both(Barrier, AtomicUsize);
    impl Progress for Both {
        fn begin(&self, _: &str, _: u64) {}
        fn advance(&self, _: u64) {
            self.1.fetch_add(1, Ordering::SeqCst);
            self.0.wait();
        }
        fn end(&self) {}
        fn warn(&self, _: &str) {}
        fn interrupted(&self) -> bool {
            false
        }
    }
    let index = under(Faults::none());
    let queries = &small().queries;
    // So that there are two workers.
    let wide = SearchOptions {
        threads: 2,
        ..options(Preset::STRATANN)
    };
    index.search(queries, &wide).unwrap();
    let both = Both(Barrier::new(2), AtomicUsize::new(0));
    let row = queries.dim() * queries.element().size();
    std::thread::scope(|scope| {
        for query in 0..2 {
            let (index, both) = (&index, &both);
            scope.spawn(move || {
                let mut bytes = vec![0; row];
                queries.read(query, &mut bytes).unwrap();
                let query = Matrix::new(bytes, 1, queries.dim(), queries.element()).unwrap();
                index
                    .search_observed(&query, &options(Preset::STRATANN), both)
                    .unwrap();
            });
        }
    });
    assert_eq!(both.1.into_inner(), 2);
}
