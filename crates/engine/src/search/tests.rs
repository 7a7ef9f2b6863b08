//! Search strategies under scripted and random orders of completions, with reads from memory.

mod cached;
mod clusters;
mod deleted;
mod early;
mod filtered;
mod layered;
mod left_out;
mod prefetch;
mod range;
mod rerank;
mod scan;
mod submitted;
mod tuning;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use stratann_tier::testing::{Fault, Faults, Faulty};
use stratann_tier::{DramTier, Thread, Volume};
use stratann_vector::Metric;

use super::scan::Scan;
use super::*;
use crate::data::{GroundTruth, VectorFile, brute_force};
use crate::stores::{NodePages, on_pages};
use crate::{
    BuildOptions, CacheSize, Compression, Layout, Matrix, OpenOptions, Order, Preset, Silent, build,
};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name)
}

struct Small {
    folder: tempfile::TempDir,
    queries: Matrix,
    truth: GroundTruth,
}

pub(super) type Stored = (Layout, Compression, Order);

pub(super) const COUPLED: Stored = (Layout::Coupled, Compression::Raw, Order::Locality);
const BEST: Stored = (Layout::Decoupled, Compression::Best, Order::Locality);
const INLINE: Stored = (Layout::Inline, Compression::Raw, Order::Locality);
const LAYERED: Stored = (Layout::Layered, Compression::Best, Order::Locality);
const STORED: [Stored; 9] = [
    COUPLED,
    (Layout::Coupled, Compression::Raw, Order::Input),
    INLINE,
    (Layout::Inline, Compression::Raw, Order::Input),
    (Layout::Packed, Compression::Best, Order::Input),
    (Layout::Decoupled, Compression::Raw, Order::Locality),
    (Layout::Decoupled, Compression::Paper, Order::Locality),
    BEST,
    LAYERED,
];

/// The number of descriptors in each index of [`small`].
pub(super) const DESCRIPTORS: usize = 3_000;

/// Indexes of real descriptors, one in every layout, all with the same graph.
fn small() -> &'static Small {
    static SMALL: OnceLock<Small> = OnceLock::new();
    SMALL.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let base = head(&fixture("photo-sift-20k.base.u8bin"), DESCRIPTORS);
        let queries = head(&fixture("photo-sift-20k.query.u8bin"), 100);
        let build_one = |(layout, compression, order): Stored| {
            let mut preset = Preset::STRATANN;
            if order == Order::Input {
                // As in DiskANN and AiSAQ, searches start only from the medoid.
                preset.entry_points = 1;
            }
            let options = BuildOptions {
                preset,
                degree: Some(32),
                build_list: 50,
                order: Some(order),
                layout: Some(layout),
                compression: Some(compression),
                // With these small sizes, an index has several chunks and segments.
                chunk_bytes: 64 << 10,
                segment_bytes: 192 << 10,
                threads: 1,
                ..BuildOptions::default()
            };
            let path = folder
                .path()
                .join(format!("{layout}-{compression}-{order}"));
            build(&base, &path, &options, &Silent).unwrap();
        };
        std::thread::scope(|scope| {
            for stored in STORED {
                scope.spawn(move || build_one(stored));
            }
        });
        let truth = brute_force(&base, &queries, 10, Metric::L2, 2, &Silent).unwrap();
        Small {
            queries,
            truth,
            folder,
        }
    })
}

pub(super) fn path((layout, compression, order): Stored) -> PathBuf {
    let folder = small().folder.path();
    folder.join(format!("{layout}-{compression}-{order}"))
}

fn head(path: &std::path::Path, rows: usize) -> Matrix {
    let file = VectorFile::open(path).unwrap();
    let mut bytes = vec![0; rows * file.dim() * file.element().size()];
    file.read(0, &mut bytes).unwrap();
    Matrix::new(bytes, rows, file.dim(), file.element()).unwrap()
}

fn under(faults: Faults) -> Index {
    stored_under(COUPLED, faults)
}

fn stored_under(stored: Stored, faults: Faults) -> Index {
    hitting(|_| true, stored, faults)
}

/// Faults hit only the files that `hit` selects.
fn hitting(hit: fn(&str) -> bool, stored: Stored, faults: Faults) -> Index {
    let mut index = Index::open(path(stored), &OpenOptions::default()).unwrap();
    let volume = stratann_tier::Directory::open(path(stored)).unwrap();
    index.replace_tiers(&|name| {
        let bytes = volume.read(name).unwrap();
        let faults = if hit(name) {
            faults.clone()
        } else {
            Faults::none()
        };
        Arc::new(Faulty::new(Arc::new(DramTier::new(bytes)), faults))
    });
    index
}

fn orders() -> Vec<(String, Faults)> {
    let scripts: [&[usize]; 2] = [&[usize::MAX], &[3, 0, 7, 1]];
    let scripted = scripts.map(|script| {
        let faults = Faults::none().scripted_order(script);
        (format!("script {script:?}"), faults)
    });
    let random = (0..5).map(|seed| {
        let faults = Faults::none().random_order(seed);
        (format!("seed {seed}"), faults)
    });
    scripted.into_iter().chain(random).collect()
}

fn options(preset: Preset) -> SearchOptions {
    SearchOptions {
        list: 30,
        beam: Some(preset.beam),
        strategy: Some(preset.strategy),
        navigation: Some(preset.navigation),
        whole_page: Some(preset.whole_page),
        rerank: Some(preset.rerank),
        ..SearchOptions::default()
    }
}

fn recall(results: &SearchResults) -> f64 {
    // If distances are approximate, a wrong id could count as found because of its distance.
    let unknown = vec![f32::INFINITY; results.ids.len()];
    let distances = if results.exact {
        &results.distances
    } else {
        &unknown
    };
    small().truth.recall(&results.ids, distances, 10).unwrap()
}

#[test]
fn best_first_answers_the_same_under_any_completion_order() {
    for (stored, whole_page) in STORED.into_iter().flat_map(|s| [(s, false), (s, true)]) {
        let options = SearchOptions {
            whole_page: Some(whole_page),
            ..options(Preset::DISKANN)
        };
        let queries = &small().queries;
        let calm = stored_under(stored, Faults::none())
            .search(queries, &options)
            .unwrap();
        assert!(recall(&calm) > 0.95, "{stored:?}: recall {}", recall(&calm));
        for (order, faults) in orders() {
            let mixed = stored_under(stored, faults)
                .search(queries, &options)
                .unwrap();
            assert_eq!(mixed.ids, calm.ids, "{stored:?}, {order}");
            assert_eq!(mixed.distances, calm.distances, "{stored:?}, {order}");
            assert_eq!(mixed.counters, calm.counters, "{stored:?}, {order}");
        }
    }
}

#[test]
fn compression_changes_no_bit_of_an_answer() {
    // Layouts differ in the records on a page, so the searches here must not depend on the nodes
    // that share a page.
    let presets = [Preset::DISKANN, Preset::DECOUPLEVS];
    for (preset, beam) in presets
        .into_iter()
        .flat_map(|preset| [4, 16].map(|beam| (preset, beam)))
    {
        let options = SearchOptions {
            strategy: Some(Strategy::BestFirst),
            beam: Some(beam),
            ..options(preset)
        };
        let answers = |stored| {
            let found = Index::open(path(stored), &OpenOptions::default())
                .unwrap()
                .search(&small().queries, &options)
                .unwrap();
            (found.ids, found.distances)
        };
        let like = |layout, order| {
            let like = STORED.into_iter().filter(move |s| s.2 == order);
            like.filter(move |s| layout == Layout::Packed || s.0 == layout)
        };
        for (layout, order) in [
            // The coupled, inline and packed indexes have the same order of nodes.
            (Layout::Packed, Order::Input),
            (Layout::Decoupled, Order::Locality),
        ] {
            let mut stored = like(layout, order);
            let raw = answers(stored.next().unwrap());
            for stored in stored {
                assert!(answers(stored) == raw, "{preset}, beam {beam}, {stored:?}");
            }
        }
    }
}

#[test]
fn distances_by_leading_parts_are_near_and_exact_ones_to_the_bit() {
    let base = head(&fixture("photo-sift-20k.base.u8bin"), DESCRIPTORS);
    let row = |rows: &Matrix, row: usize| rows.bytes()[row * 128..(row + 1) * 128].to_vec();
    let kernel = stratann_vector::Kernel::new(Metric::L2, base.element(), 128);
    let index = stored_under(LAYERED, Faults::none());
    let queries = &small().queries;
    for exact in [false, true] {
        let options = SearchOptions {
            exact,
            ..options(Preset::STRATANN)
        };
        let found = index.search(queries, &options).unwrap();
        assert!(recall(&found) > 0.97, "{exact}: {}", recall(&found));
        let (mut off, mut equal, mut beyond) = (0f64, 0, 0);
        for (n, (&id, &distance)) in found.ids.iter().zip(&found.distances).enumerate() {
            let (query, vector) = (row(queries, n / 10), row(&base, id as usize));
            let right = kernel.distance(&query, &vector);
            equal += usize::from(right == distance);
            beyond += usize::from((right - distance).abs() > found.distance_error);
            off = off.max(f64::from((right - distance).abs() / right));
        }
        match exact {
            true => assert_eq!((equal, found.distance_error), (found.ids.len(), 0.0)),
            false => {
                assert!(
                    off < 0.5 && equal > 0 && equal < found.ids.len(),
                    "{off}, {equal}"
                );
                // The bound is smaller than the distances, so it is useful.
                assert_eq!(beyond, 0);
                let farthest = found.distances.iter().copied().fold(0.0, f32::max);
                let error = found.distance_error;
                assert!(error > 0.0 && error < 0.5 * farthest, "{error}, {farthest}");
            }
        }
        let reads = found.counters.vector_reads as f64 / queries.rows() as f64;
        assert!(reads > 0.5 && reads < 12.0, "{exact}: {reads}");
        assert!(found.counters.reranked >= equal as u64);
    }
}

#[test]
fn re_ranking_ends_early_only_if_it_may() {
    let index = stored_under(BEST, Faults::none());
    let with = |rerank| SearchOptions {
        rerank: Some(rerank),
        list: 60,
        ..options(Preset::DECOUPLEVS)
    };
    let search = |rerank| index.search(&small().queries, &with(rerank)).unwrap();
    let all = search(Rerank {
        benefit: 0.0,
        ..Rerank::PAPER
    });
    let paper = search(Rerank::PAPER);
    let estimated = search(Rerank {
        batch: 5,
        estimate: true,
        ..Rerank::PAPER
    });
    for early in [&paper, &estimated] {
        assert!(early.counters.vector_reads < all.counters.vector_reads);
        assert!(recall(early) > recall(&all) - 0.01);
    }
}

#[test]
fn the_cache_and_pages_in_memory_save_reads_and_no_recall() {
    for stored in STORED {
        for preset in [Preset::DISKANN, Preset::STRATANN] {
            let search = |open: OpenOptions| {
                let mut index = Index::open(path(stored), &open).unwrap();
                // The order of reads and queries is fixed, so the cache has the same contents in
                // each run of the test.
                let volume = stratann_tier::Directory::open(path(stored)).unwrap();
                index.replace_tiers(&|name| Arc::new(DramTier::new(volume.read(name).unwrap())));
                let options = SearchOptions {
                    in_flight: Some(1),
                    ..options(preset)
                };
                let run = || index.search(&small().queries, &options).unwrap();
                run();
                run()
            };
            let plain = search(OpenOptions::default());
            let cached = search(OpenOptions {
                cache: CacheSize::Entries(300),
                ..OpenOptions::default()
            });
            let resident = search(OpenOptions {
                memory: Some(64 << 20),
                ..OpenOptions::default()
            });
            let reads = |r: &SearchResults| r.counters.graph_reads + r.counters.vector_reads;
            assert!(reads(&cached) < reads(&plain), "{stored:?}, {preset}");
            assert!(cached.counters.cache_hits > 0, "{stored:?}, {preset}");
            assert_eq!(reads(&resident), 0, "{stored:?}, {preset}");
            for saved in [&cached, &resident] {
                let (saved, plain) = (recall(saved), recall(&plain));
                assert!(
                    saved > plain - 0.01,
                    "{stored:?}, {preset}: {saved}, {plain}"
                );
            }
        }
    }
}

#[test]
fn a_budget_has_room_for_the_navigation_graph_only_if_searches_use_it() {
    let open = |memory, navigation| {
        let options = OpenOptions {
            memory,
            navigation,
            ..OpenOptions::default()
        };
        Index::open(path(COUPLED), &options).unwrap()
    };
    let navigate = SearchOptions {
        navigation: Some(true),
        ..options(Preset::DISKANN)
    };
    assert!(open(Some(64 << 20), None).has_navigation());
    let without = open(Some(64 << 20), Some(false));
    assert_eq!(without.memory().navigation, 0);
    let error = without.search(&small().queries, &navigate).unwrap_err();
    assert!(
        error.is_call_wrong() && error.to_string().contains("budget"),
        "{error}"
    );
    assert!(
        open(None, Some(false))
            .search(&small().queries, &navigate)
            .is_ok()
    );
}

#[test]
fn parts_are_measured_only_if_asked_for() {
    let index = stored_under(BEST, Faults::none());
    let queries = &small().queries;
    let asked = SearchOptions {
        parts: true,
        ..options(Preset::STRATANN)
    };
    let parts = index.search(queries, &asked).unwrap().parts.unwrap();
    assert!(parts.codes > 0.0 && parts.list_decoding > 0.0 && parts.vector_decoding > 0.0);
    let silent = index.search(queries, &options(Preset::STRATANN)).unwrap();
    assert_eq!(silent.parts, None);
}

#[test]
fn pipelined_keeps_its_recall_under_any_completion_order() {
    let presets = [Preset::PIPEANN, Preset::STRATANN];
    for (stored, preset) in [COUPLED, INLINE]
        .into_iter()
        .flat_map(|stored| presets.map(|preset| (stored, preset)))
    {
        let queries = &small().queries;
        let calm = recall(
            &stored_under(stored, Faults::none())
                .search(queries, &options(preset))
                .unwrap(),
        );
        assert!(calm > 0.95, "{stored:?}, {preset}: recall {calm}");
        for (order, faults) in orders() {
            let mixed = recall(
                &stored_under(stored, faults)
                    .search(queries, &options(preset))
                    .unwrap(),
            );
            assert!(
                mixed > calm - 0.01,
                "{stored:?}, {preset}, {order}: {mixed} after {calm}"
            );
        }
    }
}

#[test]
fn a_batch_chooses_its_queries_in_flight_by_its_size() {
    let of = |threads, rows| {
        let options = SearchOptions {
            threads,
            ..SearchOptions::default()
        };
        options.in_flight(rows)
    };
    assert_eq!((of(1, 0), of(1, 1), of(2, 2)), (1, 1, 1), "alone");
    assert_eq!((of(1, 3), of(2, 3), of(2, 16)), (3, 2, 8));
    assert_eq!((of(1, 255), of(16, 1_000)), (8, 8));
    // A longer batch has more queries in flight while it tries numbers.
    assert_eq!((of(1, 256), of(16, 1_000_000)), (40, 40));
    let long = SearchOptions {
        list: 2_000,
        ..SearchOptions::default()
    };
    assert_eq!(long.in_flight(1_000), 2, "long lists take memory");
    let said = SearchOptions {
        in_flight: Some(40),
        ..SearchOptions::default()
    };
    assert_eq!(said.in_flight(1), 40);
}

#[test]
fn queries_in_flight_and_threads_do_not_change_best_first() {
    let queries = &small().queries;
    for stored in [COUPLED, INLINE] {
        let index = stored_under(stored, Faults::none());
        let one = index.search(queries, &options(Preset::DISKANN)).unwrap();
        let many = SearchOptions {
            threads: 2,
            in_flight: Some(8),
            ..options(Preset::DISKANN)
        };
        let many = index.search(queries, &many).unwrap();
        assert_eq!(one.ids, many.ids, "{stored:?}");
        assert_eq!(one.counters, many.counters, "{stored:?}");
    }
}

#[test]
fn a_failed_or_damaged_read_is_an_error_that_names_the_place() {
    let queries = &small().queries;
    // Each file counts its own reads. So faults hit one file only, and the batch after the failure
    // meets no fault.
    let graph: fn(&str) -> bool = |name| !name.starts_with("vectors");
    let segment: fn(&str) -> bool = |name| name.ends_with("-0000");
    let stored = STORED.map(|stored| (graph, stored));
    let cases = stored.into_iter().chain([(segment, BEST)]);
    let presets = Preset::ALL
        .into_iter()
        .filter(|preset| preset.low_codes.is_none());
    for (preset, (hit, stored)) in
        presets.flat_map(|preset| cases.clone().map(move |case| (preset, case)))
    {
        let under = |faults| hitting(hit, stored, faults);
        let index = under(Faults::none().at_read(40, Fault::Error(5)));
        let error = index
            .search(queries, &options(preset))
            .unwrap_err()
            .to_string();
        assert!(error.contains("byte"), "{error}");
        // Reads that the failed batch left in flight do not affect the next batch.
        assert!(index.search(queries, &options(preset)).is_ok());

        let error = under(Faults::none().at_read(40, Fault::Flip(12_345)))
            .search(queries, &options(preset))
            .unwrap_err()
            .to_string();
        assert!(error.contains("checksum"), "{error}");
        let error = under(Faults::none().at_read(40, Fault::Short(512)))
            .search(queries, &options(preset))
            .unwrap_err()
            .to_string();
        assert!(error.contains("byte"), "{error}");
    }
}

#[test]
fn whole_page_search_reads_less_for_the_same_recall() {
    let queries = &small().queries;
    let index = under(Faults::none());
    let alone = index.search(queries, &options(Preset::DISKANN)).unwrap();
    let shared = SearchOptions {
        whole_page: Some(true),
        ..options(Preset::DISKANN)
    };
    let shared = index.search(queries, &shared).unwrap();
    assert!(recall(&shared) >= recall(&alone) - 0.005);
    assert!(
        (shared.counters.graph_reads as f64) < 0.8 * alone.counters.graph_reads as f64,
        "{} reads with whole pages, {} reads without them",
        shared.counters.graph_reads,
        alone.counters.graph_reads
    );
}

/// For some nodes, the error of short codes is much larger than for others.
#[test]
fn a_list_with_room_for_all_finds_all_in_whole_page_search() {
    let folder = tempfile::tempdir().unwrap();
    let base = head(&fixture("photo-sift-20k.base.u8bin"), 1_000);
    let queries = &head(&fixture("photo-sift-20k.query.u8bin"), 500);
    for layout in [Layout::Coupled, Layout::Inline] {
        let built = BuildOptions {
            degree: Some(24),
            build_list: 40,
            layout: Some(layout),
            code_bytes: Some(4),
            threads: 1,
            ..BuildOptions::default()
        };
        let path = folder.path().join(layout.to_string());
        build(&base, &path, &built, &Silent).unwrap();
        let index = Index::open(&path, &OpenOptions::default()).unwrap();
        let truth = brute_force(&base, queries, 10, Metric::L2, 2, &Silent).unwrap();
        let options = SearchOptions {
            list: 1_000,
            whole_page: Some(true),
            ..SearchOptions::default()
        };
        let found = index.search(queries, &options).unwrap();
        let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
        assert_eq!(recall, 1.0, "{layout}");
    }
}

/// Interrupts after a number of queries (the second field).
struct After(std::sync::atomic::AtomicU64, u64);

impl Progress for After {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, steps: u64) {
        self.0.fetch_add(steps, Ordering::Relaxed);
    }
    fn end(&self) {}
    fn warn(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= self.1
    }
}

#[test]
fn an_interrupted_batch_ends_soon_and_harms_nothing() {
    let queries = &small().queries;
    let index = under(Faults::none());
    let progress = After(Default::default(), 10);
    let error = index
        .search_observed(queries, &options(Preset::STRATANN), &progress)
        .unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert!(progress.0.load(Ordering::Relaxed) < 20);
    assert!(index.search(queries, &options(Preset::STRATANN)).is_ok());
}

#[test]
fn one_query_needs_no_more_threads_than_there_are() {
    let small = small();
    let index = Index::open(path(COUPLED), &OpenOptions::default()).unwrap();
    let mut row = vec![0; 128];
    small.queries.read(0, &mut row).unwrap();
    let one = Matrix::new(row, 1, 128, small.queries.element()).unwrap();
    let options = SearchOptions {
        threads: 64,
        ..SearchOptions::default()
    };
    let found = index.search(&one, &options).unwrap();
    assert_eq!(found.ids.len(), 10);
    let workers = index.worker_pool(1).unwrap().threads();
    assert!(
        workers <= crate::threads::processors(),
        "{workers} threads were started for one query"
    );
}
