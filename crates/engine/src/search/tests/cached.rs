//! The cache of hot records in an index that takes direct inserts must return only current records.

use std::sync::atomic::AtomicBool;

use crate::{DirectOptions, Durability, LiveIndex, Update, WriteOptions};

use super::*;

const BUILT: usize = 1_500;
const PART: usize = 50;
const PARTS: usize = 8;

fn part(first: usize, rows: usize) -> Matrix {
    let file = VectorFile::open(fixture("photo-sift-20k.base.u8bin")).unwrap();
    let mut bytes = vec![0; rows * file.dim() * file.element().size()];
    file.read(first, &mut bytes).unwrap();
    Matrix::new(bytes, rows, file.dim(), file.element()).unwrap()
}

fn open(path: &std::path::Path, cache: CacheSize, update: Update) -> LiveIndex {
    let options = OpenOptions {
        cache,
        ..OpenOptions::default()
    };
    let write = WriteOptions {
        durability: Durability::OnFlush,
        threads: 1,
        update: Some(update),
        // Pages are written and reused all the time.
        direct: DirectOptions {
            pending: 600,
            checkpoint: Some(16),
            ..DirectOptions::default()
        },
    };
    LiveIndex::open(path, &options, &write).unwrap()
}

#[test]
fn the_cache_serves_beside_direct_inserts_what_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let queries = head(&fixture("photo-sift-20k.query.u8bin"), 100);
    for (name, preset, layout, update) in [
        (
            "packed",
            Preset::STRATANN,
            Layout::Packed,
            Update::Accumulate,
        ),
        (
            "apart",
            Preset::STRATANN,
            Layout::Decoupled,
            Update::Accumulate,
        ),
        ("moved", Preset::ODINANN, Layout::Coupled, Update::Relocate),
        (
            "in place",
            Preset::AISAQ,
            Layout::Inline,
            Update::Accumulate,
        ),
    ] {
        let path = folder.path().join(name);
        let options = BuildOptions {
            preset,
            layout: Some(layout),
            degree: Some(16),
            build_list: 30,
            threads: 1,
            ..BuildOptions::default()
        };
        build(&part(0, BUILT), &path, &options, &Silent).unwrap();
        // With these options, searches give the same results with the same number of hops, whatever
        // is in memory.
        let search = SearchOptions {
            list: 40,
            // In a wider beam, a record in memory would be expanded before the other records.
            beam: Some(1),
            strategy: Some(Strategy::BestFirst),
            whole_page: Some(false),
            ..SearchOptions::default()
        };
        let index = open(&path, CacheSize::Entries(BUILT), update);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // A thread caches records while they move between pages.
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    index.search(&queries, &search).unwrap();
                }
            });
            for round in 0..PARTS {
                let rows = part(BUILT + round * PART, PART);
                index.insert(&rows, None, &Silent).unwrap();
                index.search(&queries, &search).unwrap();
                // After this checkpoint, pages that only the previous checkpoint named can be
                // reused.
                index.flush().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        index.search(&queries, &search).unwrap();
        let warm = index.search(&queries, &search).unwrap();
        assert!(
            warm.counters.cache_hits > 1_000,
            "{name}: {:?}",
            warm.counters
        );
        drop(index);
        let index = open(&path, CacheSize::None, update);
        let cold = index.search(&queries, &search).unwrap();
        assert_eq!(warm.ids, cold.ids, "{name}");
        assert_eq!(warm.distances, cold.distances, "{name}");
        assert_eq!(warm.counters.hops, cold.counters.hops, "{name}");
    }
}
