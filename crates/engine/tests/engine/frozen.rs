//! Indexes of earlier versions (`fixtures/README.md`), which must stay readable and take changes.

use std::fs;
use std::path::Path;

use stratann::{
    Codebook, DirectOptions, GroundTruth, Index, LiveIndex, Matrix, Metric, OpenOptions,
    SearchOptions, Silent, Strategy, VectorFile, VectorSource, WriteOptions, brute_force, verify,
};
use stratann_layout::Manifest;

use super::fixtures::{SIFT_BASE, SIFT_QUERIES, fixture};

fn open(path: &Path) -> Index {
    Index::open(path, &OpenOptions::default()).unwrap()
}

/// Inserts run one after another, so that each run builds the same graph.
fn alone() -> WriteOptions {
    WriteOptions {
        threads: 1,
        direct: DirectOptions {
            in_flight: 1,
            ..DirectOptions::default()
        },
        ..WriteOptions::default()
    }
}

fn rows(name: &str, first: usize, count: usize, dim: usize) -> Matrix {
    let file = VectorFile::open(fixture(name)).unwrap();
    let mut bytes = vec![0; count * file.row_bytes()];
    file.read(first, &mut bytes).unwrap();
    let kept: Vec<u8> = bytes
        .chunks_exact(file.row_bytes())
        .flat_map(|row| &row[..dim * file.element().size()])
        .copied()
        .collect();
    Matrix::new(kept, count, dim, file.element()).unwrap()
}

fn head(name: &str, count: usize) -> Matrix {
    rows(name, 0, count, 128)
}

fn frozen_truth() -> (Matrix, GroundTruth) {
    let base = head(SIFT_BASE, 2_000);
    let queries = head(SIFT_QUERIES, 100);
    let truth = brute_force(&base, &queries, 10, Metric::L2, 1, &Silent).unwrap();
    (queries, truth)
}

#[test]
fn an_inline_index_of_format_3_opens_and_answers() {
    let path = fixture("index-v3-inline");
    let report = verify(&path, &Silent).unwrap();
    assert!(report.clean(), "{report:#?}");
    assert_eq!(
        (report.nodes, report.edges, report.pages),
        (2_000, 32_000, 250)
    );
    let index = open(&path);
    let stats = index.stats();
    assert_eq!(
        (
            stats.layout.as_str(),
            stats.format_version,
            stats.code_bytes
        ),
        ("inline", 3, 16)
    );
    assert_eq!((stats.preset.as_str(), stats.bytes.ids), ("aisaq", 16_000));
    let codebook = Codebook::read(path.join("codebook-000001")).unwrap();
    assert_eq!(codebook.hash(), index.codebook().unwrap().hash());
    let hash = "778e95b64173907023c6920d2e8429b71277e186b4f5375876e9d875f91b2357";
    assert_eq!(codebook.hash(), hash);
    let (queries, truth) = frozen_truth();
    for ((strategy, navigation), whole_page) in [
        (Strategy::BestFirst, false),
        (Strategy::BestFirst, true),
        (Strategy::Pipelined, false),
        (Strategy::Pipelined, true),
    ]
    .into_iter()
    .flat_map(|choice| [false, true].map(|whole_page| (choice, whole_page)))
    {
        let options = SearchOptions {
            list: 60,
            strategy: Some(strategy),
            navigation: Some(navigation),
            whole_page: Some(whole_page),
            ..SearchOptions::default()
        };
        let found = index.search(&queries, &options).unwrap();
        let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
        assert!(recall > 0.97, "{options:?}: recall {recall}");
    }
}

#[test]
fn grown_indexes_of_format_4_open_and_answer() {
    for name in [
        "index-v4-direct",
        "index-v4-direct-decoupled",
        "index-v4-direct-inline",
    ] {
        grown_index_opens_and_answers(&fixture(name));
    }
}

#[test]
fn an_index_of_format_4_with_segments_that_merges_kept_opens_and_answers() {
    let path = fixture("index-v4-kept");
    let report = verify(&path, &Silent).unwrap();
    assert!(report.clean(), "{report:#?}");
    let index = open(&path);
    let stats = index.stats();
    let counts = (stats.vectors, stats.deleted, stats.garbage);
    assert_eq!((stats.format_version, counts), (4, (2_000, 0, 41)));
    assert_eq!(stats.compression.vector_codec, "huffman");
    let (queries, truth) = frozen_truth();
    for strategy in [Strategy::BestFirst, Strategy::Pipelined] {
        let options = SearchOptions {
            list: 60,
            strategy: Some(strategy),
            ..SearchOptions::default()
        };
        let found = index.search(&queries, &options).unwrap();
        assert!(found.ids.iter().all(|&id| id < 2_000));
        let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
        assert!(recall > 0.97, "{strategy}: recall {recall}");
    }
    // A record of garbage must not be a result, although its vector equals a vector of the index.
    let rows = head(SIFT_BASE, 1_000);
    let found = index.search(&rows, &SearchOptions::default()).unwrap();
    for ids in found.ids.chunks(10) {
        let unique: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(unique.len(), ids.len(), "{ids:?}");
    }
}

#[test]
fn cluster_indexes_of_format_4_open_answer_and_take_changes() {
    // After the build, 20 vectors were inserted, and one of the first vectors was upserted. Then 19
    // of the last vectors were deleted, and the index was merged.
    for (layout, vectors, logged) in [
        ("replicated", 380, 21),
        ("addressed", 380, 21),
        ("grouped", 381, 0),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for file in fs::read_dir(fixture(&format!("index-v4-cluster-{layout}"))).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        let path = folder.path();
        let report = verify(path, &Silent).unwrap();
        assert!(report.clean(), "{layout}: {report:#?}");
        let index = open(path);
        let stats = index.stats();
        assert_eq!((stats.format_version, stats.layout.as_str()), (4, layout));
        assert_eq!((stats.vectors, stats.logged), (vectors, logged), "{layout}");
        let clusters = stats.clusters.unwrap();
        assert_eq!((clusters.size, clusters.replicas), (8, 8));
        let rows = head(SIFT_BASE, 400);
        let options = SearchOptions {
            k: 1,
            probes: Some(6),
            ..SearchOptions::default()
        };
        let gone = |id: &u64| layout == "grouped" && *id > 0 && id.is_multiple_of(20);
        let right = |found: &[u64]| {
            let asked = (0..400).filter(|id| !gone(id));
            asked.filter(|&id| found[id as usize] == id).count()
        };
        let found = index.search(&rows, &options).unwrap().ids;
        let all = (0..400).filter(|id| !gone(id)).count();
        assert!(
            right(&found) >= all - 4,
            "{layout}: {} of {all} rows found themselves",
            right(&found)
        );
        assert!(found.iter().all(|id| *id < 400 && !gone(id)), "{layout}");
        drop(index);
        let live = LiveIndex::open(path, &OpenOptions::default(), &alone()).unwrap();
        live.delete(&[3]).unwrap();
        live.compact(&Silent).unwrap();
        assert_eq!(live.len(), all - 1);
        drop(live);
        assert!(verify(path, &Silent).unwrap().clean());
    }
}

#[test]
fn clusters_that_were_split_open_answer_and_take_changes() {
    // The build had 120 vectors. Then 1,024 vectors were inserted into clusters. Another 106
    // vectors and two upserts wait in the log.
    for (layout, clusters) in [("replicated", 49), ("addressed", 60), ("grouped", 58)] {
        let folder = tempfile::tempdir().unwrap();
        for file in fs::read_dir(fixture(&format!("index-v4-amended-{layout}"))).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        let path = folder.path();
        let report = verify(path, &Silent).unwrap();
        assert!(report.clean(), "{layout}: {report:#?}");
        let rows = rows(SIFT_BASE, 0, 1_250, 16);
        // The nearest vector is the vector itself, or another vector that equals it.
        let lost = |index: &Index| {
            let options = SearchOptions {
                k: 1,
                probes: Some(6),
                ..SearchOptions::default()
            };
            let found = index.search(&rows, &options).unwrap();
            assert!(found.ids.iter().all(|&id| id < 1_250), "{layout}");
            found
                .distances
                .iter()
                .filter(|&&distance| distance != 0.0)
                .count()
        };
        let index = open(path);
        let stats = index.stats();
        assert_eq!((stats.vectors, stats.logged), (1_144, 108), "{layout}");
        assert_eq!(stats.clusters.unwrap().clusters, clusters, "{layout}");
        assert!(lost(&index) <= 6, "{layout}: {}", lost(&index));
        drop(index);
        let open_live = || LiveIndex::open(path, &OpenOptions::default(), &alone()).unwrap();
        let live = open_live();
        assert!(
            live.rebalance(&Silent).unwrap().clusters_written > 0,
            "{layout}"
        );
        drop(live);
        assert!(verify(path, &Silent).unwrap().clean(), "{layout}");
        assert!(lost(&open(path)) <= 6, "{layout}: {}", lost(&open(path)));
        let live = open_live();
        live.compact(&Silent).unwrap();
        assert_eq!(live.len(), 1_250);
        drop(live);
        assert!(verify(path, &Silent).unwrap().clean(), "{layout}");
        assert!(lost(&open(path)) <= 6, "{layout}: {}", lost(&open(path)));
    }
}

#[test]
fn a_state_is_known_since_it_is_drawn() {
    let state = |name: &str| {
        let text = fs::read(fixture(name).join("MANIFEST")).unwrap();
        let manifest = Manifest::decode(&text, name).unwrap();
        (manifest.state, manifest.writer_features)
    };
    assert_eq!(state("index-v4-marks"), (None, 0));
    let (drawn, features) = state("index-v4-state");
    assert_eq!((drawn.unwrap().len(), features), (32, 2));
}

fn copied(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(fixture(name)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    folder
}

#[test]
fn an_index_with_nodes_of_row_numbers_looks_up_and_takes_changes() {
    let folder = copied("index-v4-nodes-alone");
    let path = folder.path();
    let report = verify(path, &Silent).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    // The file of ids has a header and one block. Pairs of id and node would need two blocks.
    assert_eq!(open(path).stats().bytes.ids, 2 * 4096);
    let row = |id: u64| rows("package-text-2k.base.fbin", id as usize, 1, 64);
    let ids: Vec<u64> = (0..400).rev().collect();
    let bytes_of = |id: u64| {
        let mut bytes = vec![0; 4 * 64];
        row(id).read(0, &mut bytes).unwrap();
        bytes
    };
    let all = |vectors: stratann::Rows| {
        assert_eq!((&vectors.ids, vectors.missing.len()), (&ids, 0));
        for (&id, vector) in ids.iter().zip(vectors.vectors.chunks(4 * 64)) {
            assert_eq!(vector, bytes_of(id), "{id}");
        }
    };
    all(open(path).vectors(&ids, &Silent).unwrap());
    let live = LiveIndex::open(path, &OpenOptions::default(), &WriteOptions::default()).unwrap();
    live.insert(&row(3), Some(&[3]), &Silent).unwrap_err();
    live.delete(&[5]).unwrap();
    live.insert(&row(5), Some(&[5]), &Silent).unwrap();
    all(live.vectors(&ids, &Silent).unwrap());
    live.compact(&Silent).unwrap();
    all(live.vectors(&ids, &Silent).unwrap());
    drop(live);
    let report = verify(path, &Silent).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
}

#[test]
fn an_index_of_no_rows_opens_and_takes_vectors() {
    let folder = copied("index-v4-no-rows");
    let path = folder.path();
    let report = verify(path, &Silent).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    let text = fs::read(path.join("MANIFEST")).unwrap();
    let manifest = Manifest::decode(&text, "MANIFEST").unwrap();
    assert_eq!((manifest.reader_features, manifest.vectors), (8, 1));
    let some = rows(SIFT_BASE, 0, 40, 16);
    let options = SearchOptions {
        k: 2,
        ..SearchOptions::default()
    };
    let index = open(path);
    assert_eq!((index.len(), index.live()), (0, 0));
    let found = index.search(&some, &options).unwrap();
    assert!(found.ids.iter().all(|&id| id == u64::MAX));
    drop(index);
    let live = LiveIndex::open(path, &OpenOptions::default(), &alone()).unwrap();
    let ids = live.insert(&some, None, &Silent).unwrap();
    assert_eq!(ids, (0..40).collect::<Vec<u64>>());
    live.compact(&Silent).unwrap();
    let found = live.search(&some, &options).unwrap();
    let nearest: Vec<u64> = found.ids.iter().step_by(2).copied().collect();
    assert_eq!(nearest, ids);
    drop(live);
    assert_eq!(open(path).len(), 40);
    let report = verify(path, &Silent).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
}

#[test]
fn an_index_that_was_given_its_codebook_keeps_it() {
    let folder = copied("index-v4-given-codebook");
    let path = folder.path();
    let report = verify(path, &Silent).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    let given = || {
        let text = fs::read(path.join("MANIFEST")).unwrap();
        let manifest = Manifest::decode(&text, "MANIFEST").unwrap();
        (manifest.codebook, manifest.writer_features & 16)
    };
    let before = given();
    assert_eq!(before.1, 16);
    let live = LiveIndex::open(path, &OpenOptions::default(), &WriteOptions::default()).unwrap();
    let row = rows("package-text-2k.base.fbin", 400, 1, 64);
    live.insert(&row, Some(&[400]), &Silent).unwrap();
    live.compact(&Silent).unwrap();
    let found = live.search(&row, &SearchOptions::default()).unwrap();
    assert_eq!(found.ids[0], 400);
    drop(live);
    assert_eq!(given(), before);
    let report = verify(path, &Silent).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
}

#[test]
fn an_index_with_a_file_of_ids_opens_answers_and_takes_changes() {
    let folder = copied("index-v4-ids");
    let path = folder.path();
    let report = verify(path, &Silent).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    let gone = |id: u64| id.is_multiple_of(20) && id > 0;
    let ids: Vec<u64> = (0..400).filter(|&id| !gone(id)).collect();
    let stats = open(path).stats();
    assert_eq!((stats.format_version, stats.bytes.ids), (4, 3 * 4096));
    assert_eq!((stats.vectors, stats.logged), (381, 0));
    let writing = alone();
    let live = LiveIndex::open(path, &OpenOptions::default(), &writing).unwrap();
    for id in 0..6_000 {
        assert_eq!(
            live.contains(id).unwrap(),
            ids.binary_search(&id).is_ok(),
            "{id}"
        );
    }
    let row = |id: u64| rows("package-text-2k.base.fbin", id as usize, 1, 64);
    live.insert(&row(399), Some(&[399]), &Silent).unwrap_err();
    live.delete(&[40]).unwrap_err();
    live.insert(&row(40), Some(&[40]), &Silent).unwrap();
    live.upsert(&row(3), &[3], &Silent).unwrap();
    live.delete(&[5]).unwrap();
    assert_eq!(live.insert(&row(500), None, &Silent).unwrap(), [5_002]);
    let expected = |id: u64| id == 5_002 || id < 400 && id != 5 && (!gone(id) || id == 40);
    let answers = |live: &LiveIndex| {
        for id in (0..400).chain([5_002]) {
            let row = row(if id < 400 { id } else { 500 });
            let options = SearchOptions {
                strategy: Some(Strategy::BestFirst),
                ..SearchOptions::default()
            };
            let found = live.search(&row, &options).unwrap();
            assert!(found.ids.iter().all(|&id| expected(id)), "{:?}", found.ids);
            assert_eq!(found.ids[0] == id, expected(id), "{id}: {:?}", found.ids);
            assert_eq!(live.contains(id).unwrap(), expected(id), "{id}");
        }
    };
    answers(&live);
    for _ in 0..2 {
        live.compact(&Silent).unwrap();
        answers(&live);
    }
    drop(live);
    let live = LiveIndex::open(path, &OpenOptions::default(), &writing).unwrap();
    answers(&live);
    drop(live);
    let report = verify(path, &Silent).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
}

fn grown_index_opens_and_answers(path: &Path) {
    let report = verify(path, &Silent).unwrap();
    assert!(report.clean(), "{report:#?}");
    let index = open(path);
    let stats = index.stats();
    // Two ids were replaced, and two more were deleted.
    assert_eq!(
        (
            stats.format_version,
            stats.vectors,
            stats.deleted,
            index.live()
        ),
        (4, 2_004, 4, 2_000)
    );
    let (queries, truth) = frozen_truth();
    for (strategy, whole_page) in [(Strategy::BestFirst, false), (Strategy::Pipelined, true)] {
        let options = SearchOptions {
            list: 60,
            strategy: Some(strategy),
            whole_page: Some(whole_page),
            ..SearchOptions::default()
        };
        let found = index.search(&queries, &options).unwrap();
        assert!(found.ids.iter().all(|&id| id < 2_000));
        let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
        assert!(recall > 0.97, "{options:?}: recall {recall}");
    }
}

#[test]
fn an_index_of_format_1_opens_and_answers() {
    let path = fixture("index-v1");
    assert!(verify(&path, &Silent).unwrap().clean());
    let index = Index::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(
        (index.len(), index.dim(), index.stats().format_version),
        (2_000, 128, 1)
    );
    let stats = index.stats();
    assert_eq!(
        (stats.layout.as_str(), stats.vector_ratio),
        ("coupled", 1.0)
    );
    let lists = 2_000.0 * 4.0 * 17.0;
    let bits = 8.0 * lists / (2_000.0 * stats.degree_mean);
    assert!((stats.bits_per_edge - bits).abs() < 1e-9, "{stats:#?}");
    assert_eq!((stats.coupled_bytes, stats.saved), (stats.bytes.total, 0.0));
    assert_eq!(stats.bytes.ids, 8 * 2_000);
    let (queries, truth) = frozen_truth();
    for strategy in [Strategy::BestFirst, Strategy::Pipelined] {
        let options = SearchOptions {
            list: 60,
            strategy: Some(strategy),
            ..SearchOptions::default()
        };
        let found = index.search(&queries, &options).unwrap();
        let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
        assert!(recall > 0.97, "{strategy}: recall {recall}");
    }
}

struct Small {
    name: &'static str,
    layout: &'static str,
    metric: Metric,
    vector_codec: &'static str,
    /// The index was built of the first `built` vectors, and has `rows` vectors in all.
    source: &'static str,
    dim: usize,
    built: usize,
    rows: usize,
    /// Whether vectors were inserted into the graph, and not only into the log.
    direct: bool,
}

const PHOTOS: &str = "photo-sift-20k";
const TEXTS: &str = "package-text-2k";
const SMALL: [Small; 11] = [
    Small {
        name: "index-v4-odinann",
        layout: "coupled",
        metric: Metric::L2,
        vector_codec: "raw",
        source: PHOTOS,
        dim: 128,
        built: 200,
        rows: 300,
        direct: true,
    },
    texts("index-v4-float", "packed", Metric::L2, "float-split", true),
    texts(
        "index-v4-cosine",
        "decoupled",
        Metric::Cosine,
        "float-split",
        true,
    ),
    texts(
        "index-v4-inner-product",
        "coupled",
        Metric::InnerProduct,
        "raw",
        false,
    ),
    texts(
        "index-v4-xor-delta",
        "decoupled",
        Metric::L2,
        "xor+huffman",
        false,
    ),
    texts("index-v4-marks", "coupled", Metric::L2, "raw", false),
    texts("index-v4-csr", "csr", Metric::L2, "raw", false),
    texts("index-v4-state", "coupled", Metric::Cosine, "raw", false),
    Small {
        dim: 260,
        built: 150,
        rows: 200,
        ..texts(
            "index-v4-run-on",
            "decoupled",
            Metric::L2,
            "float-split",
            true,
        )
    },
    // Leading parts are beside lists, and trailing parts continue on the next page.
    Small {
        dim: 120,
        built: 140,
        rows: 160,
        ..texts(
            "index-v4-layered",
            "layered",
            Metric::Cosine,
            "nested",
            false,
        )
    },
    Small {
        dim: 120,
        built: 140,
        rows: 160,
        ..texts(
            "index-v4-direct-layered",
            "layered",
            Metric::Cosine,
            "nested",
            true,
        )
    },
];

const fn texts(
    name: &'static str,
    layout: &'static str,
    metric: Metric,
    vector_codec: &'static str,
    direct: bool,
) -> Small {
    Small {
        name,
        layout,
        metric,
        vector_codec,
        source: TEXTS,
        dim: 64,
        built: 300,
        rows: 400,
        direct,
    }
}

impl Small {
    fn base(&self, first: usize, count: usize) -> Matrix {
        let suffix = if self.source == TEXTS {
            "fbin"
        } else {
            "u8bin"
        };
        rows(
            &format!("{}.base.{suffix}", self.source),
            first,
            count,
            self.dim,
        )
    }

    fn queries(&self) -> Matrix {
        let suffix = if self.source == TEXTS {
            "fbin"
        } else {
            "u8bin"
        };
        rows(&format!("{}.query.{suffix}", self.source), 0, 100, self.dim)
    }

    /// The candidate lists have space for a fifth of the vectors or more, so hardly any result may
    /// be missing.
    fn agrees(
        &self,
        rows: usize,
        search: impl Fn(&Matrix, &SearchOptions) -> stratann::SearchResults,
    ) {
        let queries = self.queries();
        let truth =
            brute_force(&self.base(0, rows), &queries, 10, self.metric, 1, &Silent).unwrap();
        for (strategy, whole_page) in [(Strategy::BestFirst, false), (Strategy::Pipelined, true)] {
            let options = SearchOptions {
                list: 80,
                strategy: Some(strategy),
                whole_page: Some(whole_page),
                exact: true,
                ..SearchOptions::default()
            };
            let found = search(&queries, &options);
            assert!(
                found.ids.iter().all(|&id| id < rows as u64),
                "{}",
                self.name
            );
            let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
            // The largest inner products are harder to find than the nearest vectors.
            let least = match self.metric {
                Metric::InnerProduct => 0.97,
                _ => 0.98,
            };
            let least = match strategy {
                Strategy::BestFirst => least,
                _ => least - 0.02,
            };
            eprintln!("{}, {strategy}: recall {recall}", self.name);
            assert!(
                recall >= least,
                "{}, {strategy}: recall {recall}",
                self.name
            );
        }
    }
}

#[test]
fn floats_other_metrics_codecs_and_relocated_records_open_and_answer() {
    for small in &SMALL {
        let path = fixture(small.name);
        let report = verify(&path, &Silent).unwrap();
        assert!(report.clean(), "{}: {:?}", small.name, report.problems);
        let index = open(&path);
        let stats = index.stats();
        assert_eq!(
            (
                stats.format_version,
                stats.layout.as_str(),
                stats.metric.as_str(),
                stats.compression.vector_codec.as_str(),
                index.live(),
            ),
            (
                4,
                small.layout,
                small.metric.name(),
                small.vector_codec,
                small.rows
            ),
            "{}",
            small.name
        );
        // Vectors that were inserted into the graph leave no record to replay.
        let (nodes, logged) = match small.direct {
            true => (small.rows + 4, 0),
            false => (small.built, small.rows - small.built + 1),
        };
        assert_eq!(
            (index.len(), stats.logged),
            (nodes, logged as u64),
            "{}",
            small.name
        );
        small.agrees(small.rows, |queries, options| {
            index.search(queries, options).unwrap()
        });
    }
}

#[test]
fn floats_other_metrics_codecs_and_relocated_records_take_changes() {
    const MORE: usize = 50;
    for small in &SMALL {
        let folder = tempfile::tempdir().unwrap();
        for file in fs::read_dir(fixture(small.name)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        let path = folder.path();
        let writing = alone();
        let live = LiveIndex::open(path, &OpenOptions::default(), &writing).unwrap();
        let ids: Vec<u64> = (small.rows..small.rows + MORE)
            .map(|id| id as u64)
            .collect();
        let more = small.base(small.rows, MORE);
        live.insert(&more, Some(&ids), &Silent).unwrap();
        live.upsert(&small.base(3, 1), &[3], &Silent).unwrap();
        assert_eq!(live.len(), small.rows + MORE, "{}", small.name);
        let all = small.rows + MORE;
        small.agrees(all, |queries, options| {
            live.search(queries, options).unwrap()
        });
        drop(live);
        let report = verify(path, &Silent).unwrap();
        assert!(report.clean(), "{}: {:?}", small.name, report.problems);
        let index = open(path);
        assert_eq!(index.live(), all, "{}", small.name);
        small.agrees(all, |queries, options| {
            index.search(queries, options).unwrap()
        });
        drop(index);

        let live = LiveIndex::open(path, &OpenOptions::default(), &writing).unwrap();
        let report = live.compact(&Silent).unwrap();
        assert_eq!(report.vectors, all as u64, "{}", small.name);
        small.agrees(all, |queries, options| {
            live.search(queries, options).unwrap()
        });
        drop(live);
        let report = verify(path, &Silent).unwrap();
        assert!(report.clean(), "{}: {:?}", small.name, report.problems);
    }
}
