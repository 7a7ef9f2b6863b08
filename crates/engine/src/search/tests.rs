//! Strategies under scripted and random completion orders, over memory instead of a disk.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use stratann_tier::{DramTier, Fault, Faults, Faulty, Volume};
use stratann_vector::Metric;

use super::*;
use crate::data::{GroundTruth, VectorFile, brute_force};
use crate::{BuildOptions, Matrix, OpenOptions, Order, Preset, Silent, build};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name)
}

struct Small {
    _folder: tempfile::TempDir,
    path: PathBuf,
    queries: Matrix,
    truth: GroundTruth,
}

/// An index of 3,000 real descriptors with everything that a strategy may use.
fn small() -> &'static Small {
    static SMALL: OnceLock<Small> = OnceLock::new();
    SMALL.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let base = head(&fixture("photo-sift-20k.base.u8bin"), 3_000);
        let queries = head(&fixture("photo-sift-20k.query.u8bin"), 100);
        let options = BuildOptions {
            degree: 32,
            build_list: 50,
            order: Some(Order::Locality),
            threads: 1,
            ..BuildOptions::default()
        };
        build(&base, &path, &options, &Silent).unwrap();
        let truth = brute_force(&base, &queries, 10, Metric::L2, 2, &Silent).unwrap();
        Small {
            path,
            queries,
            truth,
            _folder: folder,
        }
    })
}

fn head(path: &std::path::Path, rows: usize) -> Matrix {
    let file = VectorFile::open(path).unwrap();
    let mut bytes = vec![0; rows * file.dim() * file.element().size()];
    file.read(0, &mut bytes).unwrap();
    Matrix::new(bytes, rows, file.dim(), file.element()).unwrap()
}

/// The index with its pages in memory, read through `faults`.
fn under(faults: Faults) -> Index {
    let mut index = Index::open(&small().path, &OpenOptions::default()).unwrap();
    let name = index.manifest().file("graph").unwrap().name.clone();
    let volume = stratann_tier::Directory::open(&small().path).unwrap();
    let bytes = volume.read(&name).unwrap();
    index.replace_graph_tier(Arc::new(Faulty::new(
        Arc::new(DramTier::new(bytes)),
        faults,
    )));
    index
}

fn options(preset: Preset) -> SearchOptions {
    SearchOptions {
        list: 30,
        beam: Some(preset.beam),
        strategy: Some(preset.strategy),
        navigation: Some(preset.navigation),
        whole_page: Some(preset.whole_page),
        ..SearchOptions::default()
    }
}

fn recall(results: &SearchResults) -> f64 {
    small()
        .truth
        .recall(&results.ids, &results.distances, 10)
        .unwrap()
}

#[test]
fn best_first_answers_the_same_under_any_completion_order() {
    for whole_page in [false, true] {
        let options = SearchOptions {
            whole_page: Some(whole_page),
            ..options(Preset::DISKANN)
        };
        let queries = &small().queries;
        let calm = under(Faults::none()).search(queries, &options).unwrap();
        assert!(recall(&calm) > 0.95, "recall {}", recall(&calm));
        for seed in 0..5 {
            let mixed = under(Faults::none().random_order(seed))
                .search(queries, &options)
                .unwrap();
            assert_eq!(mixed.ids, calm.ids, "seed {seed}");
            assert_eq!(mixed.distances, calm.distances, "seed {seed}");
            assert_eq!(mixed.counters, calm.counters, "seed {seed}");
        }
    }
}

#[test]
fn pipelined_keeps_its_recall_under_any_completion_order() {
    for preset in [Preset::PIPEANN, Preset::STRATANN] {
        let queries = &small().queries;
        let calm = recall(
            &under(Faults::none())
                .search(queries, &options(preset))
                .unwrap(),
        );
        assert!(calm > 0.95, "recall {calm}");
        for seed in 0..5 {
            let mixed = recall(
                &under(Faults::none().random_order(seed))
                    .search(queries, &options(preset))
                    .unwrap(),
            );
            assert!(
                mixed > calm - 0.01,
                "{preset}, seed {seed}: {mixed} after {calm}"
            );
        }
    }
}

#[test]
fn queries_in_flight_and_threads_do_not_change_best_first() {
    let queries = &small().queries;
    let index = under(Faults::none());
    let one = index.search(queries, &options(Preset::DISKANN)).unwrap();
    let many = SearchOptions {
        threads: 2,
        in_flight: 8,
        ..options(Preset::DISKANN)
    };
    let many = index.search(queries, &many).unwrap();
    assert_eq!(one.ids, many.ids);
    assert_eq!(one.counters, many.counters);
}

#[test]
fn a_failed_or_damaged_read_is_an_error_that_names_the_place() {
    let queries = &small().queries;
    for preset in Preset::ALL {
        let index = under(Faults::none().at_read(40, Fault::Error(5)));
        let error = index
            .search(queries, &options(preset))
            .unwrap_err()
            .to_string();
        assert!(error.contains("byte"), "{error}");
        // The next batch is not harmed by what the last one left in flight.
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
        "{} reads shared, {} alone",
        shared.counters.graph_reads,
        alone.counters.graph_reads
    );
}

/// Asks for a stop after so many queries.
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
