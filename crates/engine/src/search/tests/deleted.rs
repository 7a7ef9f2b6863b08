//! Searches whose candidates are mostly deleted continue until they have found k vectors, or none
//! is left.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use stratann_tier::IoMode;

use crate::{DirectOptions, Durability, Element, LiveIndex, Update, WriteOptions};

use super::*;

const DIM: usize = 128;
pub(super) const ROWS: usize = 1_000;

pub(super) fn normal(rows: usize, seed: u64) -> Matrix {
    let mut state = seed;
    let mut uniform = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 + 0.5) / (1u64 << 24) as f32
    };
    let floats = (0..rows * DIM).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0);
    let bytes = floats.flat_map(f32::to_le_bytes).collect();
    Matrix::new(bytes, rows, DIM, Element::F32).unwrap()
}

pub(super) fn presets() -> [Preset; 4] {
    [
        Preset::DISKANN,
        Preset::STRATANN,
        Preset::DECOUPLEVS,
        Preset::AISAQ,
    ]
}

/// A process builds each index once, and copies it for each test.
pub(super) fn built(folder: &std::path::Path, preset: Preset, layout: Option<Layout>) -> PathBuf {
    static BUILT: Mutex<Vec<(&str, Option<Layout>, tempfile::TempDir)>> = Mutex::new(Vec::new());
    let path = folder.join(preset.to_string());
    // A build replaces the folder's contents.
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir(&path).unwrap();
    let mut built = BUILT.lock();
    let is_it = |(name, of, _): &&(&str, Option<Layout>, _)| (*name, *of) == (preset.name, layout);
    if !built.iter().any(|one| is_it(&one)) {
        let options = BuildOptions {
            preset,
            layout,
            degree: Some(16),
            build_list: 30,
            threads: 1,
            ..BuildOptions::default()
        };
        let first = tempfile::tempdir().unwrap();
        build(&normal(ROWS, 7), first.path(), &options, &Silent).unwrap();
        built.push((preset.name, layout, first));
    }
    let (.., first) = built.iter().find(is_it).unwrap();
    for file in std::fs::read_dir(first.path()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), path.join(file.file_name())).unwrap();
    }
    path
}

fn live(path: &std::path::Path) -> LiveIndex {
    live_with(path, None)
}

pub(super) fn live_with(path: &std::path::Path, update: Option<Update>) -> LiveIndex {
    let write = WriteOptions {
        durability: Durability::OnFlush,
        threads: 1,
        update,
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
            // The second search knows the deleted nodes that the first found.
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
fn more_than_there_ever_were_is_answered_with_padding() {
    let folder = tempfile::tempdir().unwrap();
    let queries = normal(3, 99);
    let few: Vec<u64> = (0..40).collect();
    for preset in Preset::ALL {
        let options = BuildOptions {
            preset,
            threads: 1,
            ..BuildOptions::default()
        };
        let path = folder.path().join(preset.name);
        build(&normal(few.len(), 7), &path, &options, &Silent).unwrap();
        let index = Index::open(&path, &OpenOptions::default()).unwrap();
        let options = SearchOptions {
            k: 60,
            list: 60,
            ..SearchOptions::default()
        };
        let found = index.search(&queries, &options).unwrap();
        for (ids, distances) in found.ids.chunks(60).zip(found.distances.chunks(60)) {
            let mut all = ids[..40].to_vec();
            all.sort_unstable();
            assert_eq!(all, few, "{preset}");
            assert!(
                distances[..40].is_sorted() && distances[39].is_finite(),
                "{preset}"
            );
            assert_eq!(ids[40..], [u64::MAX; 20], "{preset}");
            assert_eq!(distances[40..], [f32::INFINITY; 20], "{preset}");
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
    let rest: Vec<u64> = (0..ROWS as u64).filter(|id| !gone.contains(id)).collect();
    index.delete(&rest).unwrap();
    let found = index.search(&queries, &tight()).unwrap();
    assert_eq!(found.ids, vec![u64::MAX; 50]);
    // The error for a `k` beyond the limit must not say that the index has this many vectors.
    let huge = SearchOptions {
        k: 1 << 20,
        list: 1 << 20,
        ..tight()
    };
    let error = index.search(&queries, &huge).unwrap_err();
    assert!(error.is_call_wrong());
    let message = error.to_string();
    assert!(
        message.contains("at most 65536, even if the index has fewer vectors"),
        "{message}"
    );
    assert_eq!(index.check_search(&huge).unwrap_err().to_string(), message);
    index.check_search(&tight()).unwrap();
}

#[test]
fn the_list_is_of_those_that_are_not_deleted() {
    // Some deletes are known only from vectors or cached records. They must not reduce the number
    // of live candidates.
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
            strategy: Some(Strategy::BestFirst),
            ..SearchOptions::default()
        };
        let hops = || index.search(&queries, &wide).unwrap().counters.hops as f64;
        let before = hops();
        let gone: Vec<u64> = (0..ROWS as u64).filter(|id| id % 4 != 0).collect();
        index.delete(&gone).unwrap();
        // With three of four vectors deleted, a search takes about four times as many hops.
        for known in [false, true] {
            let after = hops();
            assert!(
                after > 2.5 * before,
                "{preset}, {cache:?}, known: {known}: {before} hops, then {after}"
            );
        }
    }
}

#[test]
fn several_host_threads_search_at_once() {
    // Holds each search in `advance` until the other search has begun. So both searches run at
    // once.
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
    if crate::threads::processors() == 1 {
        // With one processor, the busy search would block the other, so the pool gets two threads.
        index.worker_pool(2).unwrap();
    }
    let queries = &small().queries;
    let wide = SearchOptions {
        threads: 2,
        ..options(Preset::STRATANN)
    };
    let both = Both(Barrier::new(2), AtomicUsize::new(0));
    let row = queries.dim() * queries.element().size();
    std::thread::scope(|scope| {
        for query in 0..2 {
            let (index, both, wide) = (&index, &both, &wide);
            scope.spawn(move || {
                let mut bytes = vec![0; row];
                queries.read(query, &mut bytes).unwrap();
                let query = Matrix::new(bytes, 1, queries.dim(), queries.element()).unwrap();
                index.search_observed(&query, wide, both).unwrap();
            });
        }
    });
    assert_eq!(both.1.into_inner(), 2);
}

#[test]
fn all_vectors_are_looked_at_beside_direct_inserts() {
    let folder = tempfile::tempdir().unwrap();
    let queries = normal(4, 99);
    let rows = normal(60, 55);
    let row = DIM * Element::F32.size();
    for (preset, update) in [
        (Preset::DISKANN, Update::Relocate),
        (Preset::STRATANN, Update::Accumulate),
        (Preset::DECOUPLEVS, Update::Accumulate),
        (Preset::AISAQ, Update::InPlace),
    ] {
        let path = built(folder.path(), preset, None);
        let write = WriteOptions {
            durability: Durability::OnFlush,
            threads: 1,
            update: Some(update),
            // Few changes may wait, so pages are written all the time.
            direct: DirectOptions {
                pending: 600,
                checkpoint: Some(16),
                ..DirectOptions::default()
            },
        };
        let index = LiveIndex::open(&path, &OpenOptions::default(), &write).unwrap();
        let gone = all_but(4);
        index.delete(&gone).unwrap();
        let kept: Vec<u64> = (0..ROWS as u64).filter(|id| !gone.contains(id)).collect();
        let changing = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut bytes = vec![0; row];
                for at in 0..rows.rows() {
                    rows.read(at, &mut bytes).unwrap();
                    let one = Matrix::new(bytes.clone(), 1, DIM, Element::F32).unwrap();
                    let id = 5_000 + at as u64;
                    index.insert(&one, Some(&[id]), &Silent).unwrap();
                    index.delete(&[id]).unwrap();
                }
                changing.store(false, Ordering::SeqCst);
            });
            let mut searches = 0;
            while changing.load(Ordering::SeqCst) || searches == 0 {
                let nodes = all_nodes(&index.on_storage());
                // The newest node gets its number before its page, so a scan may miss it.
                let acknowledged = &nodes[..nodes.len() - 1];
                assert!(acknowledged.iter().all(|&seen| seen), "{preset}: {nodes:?}");
                let found = index.search(&queries, &tight());
                let found = found.unwrap_or_else(|error| panic!("{preset}: {error}"));
                assert!(found.ids.iter().all(|id| !gone.contains(id)), "{preset}");
                searches += 1;
            }
        });
        let found = index.search(&queries, &tight()).unwrap();
        for ids in found.ids.chunks(10) {
            assert!(kept.iter().all(|id| ids.contains(id)), "{preset}: {ids:?}");
        }
    }
}

/// For each node, whether a scan that runs during inserts finds it.
fn all_nodes(index: &Index) -> Vec<bool> {
    async fn of<N: NodePages>(index: &Index, pages: &N, thread: &Thread) -> Vec<bool> {
        let placement = index.graph().placement.get().unwrap();
        let _pin = placement.pins.pin();
        let mut seen = vec![false; index.len()];
        let mut counters = Counters::default();
        let mut each = |node: u32, id: u64, _: &[u8], _: &[u8]| {
            assert!(id < 10_000, "node {node} has id {id}");
            if let Some(seen) = seen.get_mut(node as usize) {
                *seen = true;
            }
        };
        let scan = Scan {
            index,
            thread,
            progress: &Silent,
            admission: Admission::default(),
            among: None,
        };
        scan.each_vector(pages, &mut counters, &mut each)
            .await
            .unwrap();
        assert!(counters.graph_reads + counters.vector_reads > 0);
        assert!(counters.bytes_read > 0);
        seen
    }
    let thread = Thread::local(IoMode::Auto).unwrap();
    thread.block_on(async {
        on_pages!(&index.graph().pages, pages => of(index, pages, &thread).await)
    })
}

#[test]
fn a_few_deletions_near_a_query_are_walked_past() {
    let base = normal(ROWS, 7);
    for preset in [Preset::DECOUPLEVS, Preset::STRATANN, Preset::DISKANN] {
        for gone in [1, 30] {
            let folder = tempfile::tempdir().unwrap();
            let path = built(folder.path(), preset, None);
            let query =
                Matrix::new(base.bytes()[..DIM * 4].to_vec(), 1, DIM, Element::F32).unwrap();
            let nearest = brute_force(&base, &query, gone + 10, Metric::L2, 1, &Silent).unwrap();
            let (dead, left) = nearest.ids.split_at(gone);
            let dead: Vec<u64> = dead.to_vec();
            live(&path).delete(&dead).unwrap();
            // The first search does not know the deletes in advance.
            let live = live(&path);
            let best_first = SearchOptions {
                strategy: Some(Strategy::BestFirst),
                ..tight()
            };
            let found = live.search(&query, &best_first).unwrap();
            assert!(
                found
                    .ids
                    .iter()
                    .all(|id| *id < ROWS as u64 && !dead.contains(id))
            );
            let right = left.iter().filter(|&id| found.ids.contains(id));
            let reads = found.counters.vector_reads;
            let what = format!(
                "{preset}, {gone} deleted: {} right in {reads} reads of vectors",
                right.clone().count()
            );
            // Even without deletes, a list of ten finds only two to five of these vectors.
            assert!(right.count() >= 2, "{what}");
            // If vectors are apart from lists, the search does not read all vectors.
            assert!(reads < 80, "{what}");
        }
    }
}
