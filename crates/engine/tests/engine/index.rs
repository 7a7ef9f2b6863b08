//! An index as an application uses it, built from real data.

use std::fs;
use std::path::{Path, PathBuf};

use stratann::{
    BuildOptions, CacheSize, Compression, Counters, Element, Error, GroundTruth, Index, Layout,
    Matrix, Metric, OpenOptions, Order, Preset, SearchOptions, SearchResults, Silent, Strategy,
    VectorSource, brute_force, build, verify,
};
use stratann_layout::Manifest;

use super::fixtures::{SIFT_BASE, SIFT_QUERIES, fixture, head, slow};

fn quick(preset: Preset) -> BuildOptions {
    let has_graph = preset.layout.is_none_or(|layout| !layout.has_clusters());
    BuildOptions {
        preset,
        degree: has_graph.then_some(32),
        build_list: if has_graph { 50 } else { 100 },
        threads: 1,
        ..BuildOptions::default()
    }
}

fn search(
    path: &Path,
    queries: &dyn VectorSource,
    options: &SearchOptions,
) -> Result<SearchResults, Error> {
    Index::open(path, &OpenOptions::default())?.search(queries, options)
}

#[test]
fn every_preset_finds_the_neighbours_of_real_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, 2_000);
    let queries = head(SIFT_QUERIES, 100);
    let truth = brute_force(&base, &queries, 10, Metric::L2, 2, &Silent).unwrap();
    for preset in Preset::ALL {
        let path = folder.path().join(preset.name);
        let report = build(&base, &path, &quick(preset), &Silent).unwrap();
        assert_eq!(report.vectors, 2_000);
        let options = SearchOptions {
            list: 40,
            threads: 2,
            in_flight: Some(4),
            ..SearchOptions::default()
        };
        let found = search(&path, &queries, &options).unwrap();
        let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
        assert!(recall > 0.97, "{preset}: recall {recall}");
        assert!(
            found.counters.graph_reads > 0
                && found.counters.bytes_read >= 4096 * found.counters.graph_reads
        );
        assert!(verify(&path, &Silent).unwrap().clean());
    }
}

#[test]
fn embeddings_under_cosine_and_inner_product() {
    let folder = tempfile::tempdir().unwrap();
    let base = head("package-text-2k.base.fbin", 2_000);
    let queries = head("package-text-2k.query.fbin", 100);
    for metric in [Metric::Cosine, Metric::InnerProduct, Metric::L2] {
        let truth = brute_force(&base, &queries, 10, metric, 2, &Silent).unwrap();
        let path = folder.path().join(metric.name());
        let options = BuildOptions {
            metric,
            ..quick(Preset::STRATANN)
        };
        build(&base, &path, &options, &Silent).unwrap();
        // A pipelined search depends on the order of completions, so its bound is lower.
        for (strategy, least) in [(Strategy::BestFirst, 0.95), (Strategy::Pipelined, 0.9)] {
            let options = SearchOptions {
                list: 60,
                strategy: Some(strategy),
                threads: 1,
                ..SearchOptions::default()
            };
            let found = search(&path, &queries, &options).unwrap();
            let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
            assert!(recall > least, "{metric}, {strategy}: recall {recall}");
            for row in found.distances.chunks_exact(10) {
                assert!(
                    row.is_sorted(),
                    "{metric}, {strategy}: distances are out of order"
                );
            }
        }
    }
}

fn built_alike(
    folder: &Path,
    base: &Matrix,
    presets: [Preset; 2],
    options: &BuildOptions,
) -> [PathBuf; 2] {
    presets.map(|preset| {
        let path = folder.join(format!("{}-{}", preset.name, options.metric));
        let options = BuildOptions {
            preset,
            threads: 1,
            ..options.clone()
        };
        build(base, &path, &options, &Silent).unwrap();
        path
    })
}

fn open(path: &Path) -> Index {
    Index::open(path, &OpenOptions::default()).unwrap()
}

#[test]
fn aisaq_answers_as_diskann_does() {
    let folder = tempfile::tempdir().unwrap();
    let photos = (
        head(SIFT_BASE, 2_000),
        head(SIFT_QUERIES, 100),
        BuildOptions {
            degree: Some(24),
            build_list: 40,
            code_bytes: Some(8),
            ..BuildOptions::default()
        },
        // A page has nine records here, and fifteen in the other index, so a beam requests some
        // pages twice.
        4096,
    );
    let texts = (
        head("package-text-2k.base.fbin", 400),
        head("package-text-2k.query.fbin", 30),
        BuildOptions {
            degree: Some(24),
            build_list: 40,
            code_bytes: Some(96),
            metric: Metric::Cosine,
            ..BuildOptions::default()
        },
        // A record of 3,948 bytes fills a page. With 64 neighbours, a record takes two blocks.
        4096,
    );
    let long = (
        texts.0.clone(),
        texts.1.clone(),
        BuildOptions {
            degree: Some(64),
            metric: Metric::InnerProduct,
            ..texts.2.clone()
        },
        2 * 4096,
    );
    for (base, queries, options, page_bytes) in [photos, texts, long] {
        let presets = [Preset::DISKANN, Preset::AISAQ];
        let [diskann, aisaq] = built_alike(folder.path(), &base, presets, &options).map(|path| {
            assert!(verify(&path, &Silent).unwrap().clean());
            open(&path)
        });
        assert_eq!(aisaq.stats().layout, "inline");
        assert_eq!(
            aisaq.codebook().unwrap().hash(),
            diskann.codebook().unwrap().hash()
        );
        for (list, beam) in [10, 20, 60]
            .into_iter()
            .flat_map(|list| [1, 2, 4, 16].map(|beam| (list, beam)))
        {
            let name = format!("{}, list {list}, beam {beam}", options.metric);
            let options = SearchOptions {
                list,
                beam: Some(beam),
                ..SearchOptions::default()
            };
            let [expected, found] =
                [&diskann, &aisaq].map(|index| index.search(&queries, &options).unwrap());
            assert_eq!(found.ids, expected.ids, "{name}");
            assert_eq!(found.distances, expected.distances, "{name}");
            let (found, expected) = (found.counters, expected.counters);
            // A candidate that leaves the list while its page is read is not expanded, so reads may
            // exceed hops.
            assert!(found.hops > 0 && found.graph_reads >= found.hops, "{name}");
            assert_eq!(found.bytes_read, found.graph_reads * page_bytes, "{name}");
            // Both indexes compute the same distances, but read pages of different lengths.
            let bytes_read = found.bytes_read;
            assert_eq!(
                found,
                Counters {
                    bytes_read,
                    ..expected
                },
                "{name}"
            );
        }
    }
}

#[test]
fn the_slot_cache_changes_no_answer_of_aisaq() {
    let folder = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, 2_000);
    let queries = head(SIFT_QUERIES, 100);
    let presets = [Preset::DISKANN, Preset::AISAQ];
    let paths = built_alike(folder.path(), &base, presets, &quick(Preset::AISAQ));
    for (list, beam) in [(20, 1), (40, 1), (20, 4), (40, 4)] {
        let options = SearchOptions {
            list,
            beam: Some(beam),
            // The content of the cache depends on the order of queries.
            in_flight: Some(1),
            ..SearchOptions::default()
        };
        let plain = open(&paths[1]).search(&queries, &options).unwrap();
        for entries in [100, 2_000] {
            let name = format!("list {list}, beam {beam}, {entries} entries");
            let cached = OpenOptions {
                cache: CacheSize::Entries(entries),
                ..OpenOptions::default()
            };
            // In the second search, the cache has the pages of the first search.
            let [diskann, aisaq] = [&paths[0], &paths[1]].map(|path| {
                let index = Index::open(path, &cached).unwrap();
                [(), ()].map(|()| index.search(&queries, &options).unwrap())
            });
            for (found, expected) in aisaq.iter().zip(&diskann) {
                assert!(found.ids == expected.ids, "{name}");
                assert!(found.distances == expected.distances, "{name}");
                let (bytes_read, hits) = (found.counters.bytes_read, found.counters.cache_hits);
                assert!(hits > 0, "{name}");
                // The content of the cache does not depend on the length of the pages.
                let expected = Counters {
                    bytes_read,
                    ..expected.counters
                };
                assert_eq!(found.counters, expected, "{name}");
                // In a wider beam, another candidate is read in place of a cached candidate, so
                // results may differ.
                if beam == 1 {
                    assert!(found.ids == plain.ids, "{name}");
                    assert!(found.distances == plain.distances, "{name}");
                    assert_eq!(found.counters.hops, plain.counters.hops, "{name}");
                    let reads = plain.counters.graph_reads;
                    assert_eq!(found.counters.graph_reads + hits, reads, "{name}");
                }
            }
            // Even a cache of 2,000 entries lacks some nodes, because their sets are full.
            let (warm, cold) = (aisaq[1].counters.graph_reads, plain.counters.graph_reads);
            assert!(
                entries < 2_000 || warm < cold / 5,
                "{name}: {warm} reads with the cache, {cold} without"
            );
        }
    }
}

#[test]
fn aisaq_searches_in_every_way() {
    let folder = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, 3_000);
    let queries = head(SIFT_QUERIES, 100);
    let truth = brute_force(&base, &queries, 10, Metric::L2, 2, &Silent).unwrap();
    let recall = |found: &SearchResults| truth.recall(&found.ids, &found.distances, 10).unwrap();
    let presets = [Preset::DISKANN, Preset::AISAQ];
    let options = BuildOptions {
        navigation: 0.05,
        ..quick(Preset::AISAQ)
    };
    let [diskann, aisaq] =
        built_alike(folder.path(), &base, presets, &options).map(|path| open(&path));
    for list in [15, 30, 60] {
        let search = |index: &Index, strategy, navigation| {
            let options = SearchOptions {
                list,
                strategy: Some(strategy),
                navigation: Some(navigation),
                ..SearchOptions::default()
            };
            let found = index.search(&queries, &options).unwrap();
            (recall(&found), found.counters)
        };
        let (plain, from_medoid) = search(&aisaq, Strategy::BestFirst, false);
        assert!(plain > 0.9, "list {list}: recall {plain}");
        // The start nodes have exact distances in place of distances by codes.
        let (navigated, reads) = search(&aisaq, Strategy::BestFirst, true);
        let (coupled, coupled_reads) = search(&diskann, Strategy::BestFirst, true);
        let name = format!("list {list}: {navigated}, {coupled}, {plain}");
        assert!(
            navigated > plain - 0.01 && navigated > coupled - 0.01,
            "{name}"
        );
        assert!(
            reads.graph_reads < from_medoid.graph_reads,
            "{name}: {reads:?}"
        );
        let ratio = reads.graph_reads as f64 / coupled_reads.graph_reads as f64;
        assert!((0.9..1.1).contains(&ratio), "{name}: {ratio}");
        for navigation in [false, true] {
            let (pipelined, _) = search(&aisaq, Strategy::Pipelined, navigation);
            eprintln!("list {list}: recall {pipelined} pipelined, {plain} best-first");
            assert!(
                pipelined > plain - 0.02,
                "list {list}, navigation {navigation}: recall {pipelined} pipelined, {plain} best-first"
            );
        }
    }
}

#[test]
fn whole_pages_of_an_inline_index_find_no_less() {
    let folder = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, 3_000);
    let queries = head(SIFT_QUERIES, 200);
    let truth = brute_force(&base, &queries, 10, Metric::L2, 2, &Silent).unwrap();
    let path = folder.path().join("index");
    let options = BuildOptions {
        degree: Some(8),
        code_bytes: Some(8),
        order: Some(Order::Locality),
        ..quick(Preset::AISAQ)
    };
    build(&base, &path, &options, &Silent).unwrap();
    // A record has 236 bytes, so 17 records share a page.
    let pages = 3_000u64.div_ceil(17);
    let file = path.join("inline-000001");
    assert_eq!(fs::metadata(file).unwrap().len(), 4096 * (1 + pages));
    let index = open(&path);
    for (list, strategy) in [10, 20, 60]
        .into_iter()
        .flat_map(|list| [Strategy::BestFirst, Strategy::Pipelined].map(|s| (list, s)))
    {
        let [alone, shared] = [false, true].map(|whole_page| {
            let options = SearchOptions {
                list,
                strategy: Some(strategy),
                whole_page: Some(whole_page),
                ..SearchOptions::default()
            };
            let found = index.search(&queries, &options).unwrap();
            for ids in found.ids.chunks_exact(10) {
                let mut different = ids.to_vec();
                different.sort_unstable();
                different.dedup();
                assert_eq!(different.len(), 10, "list {list}, {strategy}: {ids:?}");
            }
            let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
            (recall, found.counters)
        });
        let name = format!("list {list}, {strategy}: {alone:?}, {shared:?}");
        eprintln!("{name}");
        // Because the other nodes of a page are candidates too, three of ten reads remain.
        match strategy {
            Strategy::BestFirst => {
                assert!(shared.0 >= alone.0, "{name}");
                assert!(2 * shared.1.graph_reads < alone.1.graph_reads, "{name}");
            }
            _ => {
                assert!(shared.0 >= alone.0 - 0.02, "{name}");
                assert!(
                    10 * shared.1.graph_reads < 6 * alone.1.graph_reads,
                    "{name}"
                );
            }
        }
        assert!(shared.1.graph_reads <= 200 * pages, "{name}");
    }
}

#[test]
fn one_thread_and_a_seed_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, 1_500);
    let files = ["a", "b"].map(|folder_name| {
        let path = folder.path().join(folder_name);
        build(&base, &path, &quick(Preset::STRATANN), &Silent).unwrap();
        let mut files: Vec<_> = fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        let bytes = |file: &PathBuf| match name(file) == "MANIFEST" {
            true => without_state(&fs::read(file).unwrap()),
            false => fs::read(file).unwrap(),
        };
        files.iter().map(bytes).collect::<Vec<_>>()
    });
    assert!(files[0] == files[1]);
}

fn without_state(text: &[u8]) -> Vec<u8> {
    let mut manifest = Manifest::decode(text, "MANIFEST").unwrap();
    assert!(manifest.state.take().is_some());
    manifest.encode()
}

#[test]
fn outside_ids_are_what_the_user_gave() {
    let folder = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, 600);
    let ids: Vec<u64> = (0..600).map(|row| u64::MAX / 2 + 7 * row).collect();
    for order in [Order::Input, Order::Locality] {
        let path = folder.path().join(order.to_string());
        let options = BuildOptions {
            ids: Some(ids.clone()),
            order: Some(order),
            ..quick(Preset::DISKANN)
        };
        build(&base, &path, &options, &Silent).unwrap();
        let options = SearchOptions {
            k: 1,
            list: 20,
            ..SearchOptions::default()
        };
        let found = search(&path, &base, &options).unwrap();
        let right = found
            .ids
            .iter()
            .zip(&ids)
            .filter(|(found, id)| found == id)
            .count();
        assert!(right > 590, "{order}: {right} of 600 rows found themselves");
    }
    let twice = BuildOptions {
        ids: Some(vec![5; 600]),
        ..quick(Preset::DISKANN)
    };
    let error = build(&base, folder.path().join("twice"), &twice, &Silent).unwrap_err();
    assert!(
        error.to_string().contains("the id 5 is given twice") && error.is_call_wrong(),
        "{error}"
    );
    assert!(!folder.path().join("twice").exists());
}

#[test]
fn collections_of_any_size_and_shape() {
    let folder = tempfile::tempdir().unwrap();
    let make = |rows: usize, dim: usize, element: Element, path: &Path| {
        let bytes: Vec<u8> = match element {
            Element::F32 => (0..rows * dim)
                .flat_map(|i| ((i * 37 % 101) as f32 + 0.5).to_le_bytes())
                .collect(),
            Element::F16 => (0..rows * dim)
                .flat_map(|i| [(i % 7) as u8, 0x3C])
                .collect(),
            _ => (0..rows * dim).map(|i| (i * 31 % 97) as u8).collect(),
        };
        let base = Matrix::new(bytes, rows, dim, element).unwrap();
        build(&base, path, &quick(Preset::STRATANN), &Silent).unwrap();
        let k = rows.min(3);
        let options = SearchOptions {
            k,
            list: 10.max(k),
            ..SearchOptions::default()
        };
        let found = search(path, &base, &options).unwrap();
        assert_eq!(found.distances[0], 0.0, "{rows} x {dim} {element}");
        assert!(
            verify(path, &Silent).unwrap().clean(),
            "{rows} x {dim} {element}"
        );
    };
    for (i, (rows, dim, element)) in [
        (1, 1, Element::U8),
        (2, 3, Element::I8),
        (40, 5, Element::F16),
        // Here a node is larger than one block, and in the next case larger than two blocks.
        (50, 1_100, Element::F32),
        (30, 3_000, Element::F32),
    ]
    .into_iter()
    .enumerate()
    {
        make(rows, dim, element, &folder.path().join(i.to_string()));
    }
    let same = Matrix::new(vec![7; 1_000 * 16], 1_000, 16, Element::U8).unwrap();
    let path = folder.path().join("same");
    build(&same, &path, &quick(Preset::STRATANN), &Silent).unwrap();
    let found = search(&path, &same, &SearchOptions::default()).unwrap();
    assert!(found.distances.iter().all(|&distance| distance == 0.0));
}

#[test]
fn calls_that_are_wrong_say_what_would_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, 500);
    let path = folder.path().join("index");
    build(&base, &path, &quick(Preset::DISKANN), &Silent).unwrap();
    let queries = head(SIFT_QUERIES, 5);
    let wrong = |options: SearchOptions, parts: &[&str]| {
        let error = search(&path, &queries, &options).unwrap_err();
        assert!(error.is_call_wrong(), "{error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{error}: {part}");
        }
    };
    wrong(
        SearchOptions {
            k: 0,
            ..Default::default()
        },
        &["k", "at least 1"],
    );
    wrong(
        SearchOptions {
            k: 65_537,
            list: 70_000,
            ..Default::default()
        },
        &["65537", "65536"],
    );
    wrong(
        SearchOptions {
            k: 10,
            list: 9,
            ..Default::default()
        },
        &["list", "9", "10"],
    );
    wrong(
        SearchOptions {
            threads: 0,
            ..Default::default()
        },
        &["threads"],
    );
    wrong(
        SearchOptions {
            beam: Some(0),
            ..Default::default()
        },
        &["beam"],
    );

    let short = Matrix::new(vec![1; 64], 1, 64, Element::U8).unwrap();
    let error = search(&path, &short, &SearchOptions::default()).unwrap_err();
    assert!(
        error.to_string().contains("64") && error.to_string().contains("128"),
        "{error}"
    );
    let floats = Matrix::new(vec![0; 512], 1, 128, Element::F32).unwrap();
    let error = search(&path, &floats, &SearchOptions::default()).unwrap_err();
    assert!(
        error.to_string().contains("f32") && error.to_string().contains("u8"),
        "{error}"
    );

    let tiny = OpenOptions {
        memory: Some(1 << 20),
        ..OpenOptions::default()
    };
    let error = Index::open(&path, &tiny).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
}

#[test]
fn bad_rows_are_named_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let mut rows = vec![1.0f32; 300 * 8];
    rows[123 * 8 + 5] = f32::NAN;
    let bytes = rows.iter().flat_map(|v| v.to_le_bytes()).collect();
    let base = Matrix::new(bytes, 300, 8, Element::F32).unwrap();
    let error = build(&base, &path, &quick(Preset::DISKANN), &Silent)
        .unwrap_err()
        .to_string();
    assert!(error.contains("123") && error.contains('5'), "{error}");
    assert!(!path.exists());

    rows[123 * 8 + 5] = 1.0;
    rows[200 * 8..201 * 8].fill(0.0);
    let bytes = rows.iter().flat_map(|v| v.to_le_bytes()).collect();
    let base = Matrix::new(bytes, 300, 8, Element::F32).unwrap();
    let cosine = BuildOptions {
        metric: Metric::Cosine,
        ..quick(Preset::DISKANN)
    };
    let error = build(&base, &path, &cosine, &Silent)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("200") && error.contains("length 0"),
        "{error}"
    );
    assert!(!path.exists());
}

#[test]
fn an_index_is_replaced_only_when_asked_and_a_stranger_s_files_never() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let base = head(SIFT_BASE, 400);
    build(&base, &path, &quick(Preset::DISKANN), &Silent).unwrap();
    let error = build(&base, &path, &quick(Preset::DISKANN), &Silent).unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");

    let open = Index::open(&path, &OpenOptions::default()).unwrap();
    let smaller = head(SIFT_BASE, 200);
    let replace = BuildOptions {
        overwrite: true,
        ..quick(Preset::PIPEANN)
    };
    build(&smaller, &path, &replace, &Silent).unwrap();
    assert_eq!(
        Index::open(&path, &OpenOptions::default()).unwrap().len(),
        200
    );
    assert!(verify(&path, &Silent).unwrap().clean());
    let found = open
        .search(
            &base,
            &SearchOptions {
                k: 1,
                ..Default::default()
            },
        )
        .unwrap();
    assert!(found.ids.contains(&399));
    assert_eq!(files(&path).len(), 4);

    let strange = folder.path().join("strange");
    fs::create_dir(&strange).unwrap();
    fs::write(strange.join("thesis.tex"), "years of work").unwrap();
    let error = build(&base, &strange, &replace, &Silent).unwrap_err();
    assert!(error.to_string().contains("thesis.tex"), "{error}");
    assert_eq!(fs::read_dir(&strange).unwrap().count(), 1);
}

#[test]
fn what_is_no_index_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path| {
        Index::open(path, &OpenOptions::default())
            .unwrap_err()
            .to_string()
    };
    assert!(open(&folder.path().join("absent")).contains("no such directory"));
    assert!(open(folder.path()).contains("it is empty"));
    fs::write(folder.path().join("letter.txt"), "x").unwrap();
    assert!(open(folder.path()).contains("MANIFEST"));
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(open(&file).contains("directory"));
}

const FORMATS: [(Layout, Compression); 9] = [
    (Layout::Coupled, Compression::Raw),
    (Layout::Inline, Compression::Raw),
    (Layout::Packed, Compression::Raw),
    (Layout::Packed, Compression::Paper),
    (Layout::Packed, Compression::Best),
    (Layout::Decoupled, Compression::Raw),
    (Layout::Decoupled, Compression::Paper),
    (Layout::Decoupled, Compression::Best),
    (Layout::Layered, Compression::Best),
];

/// 600 descriptors are three segments of four chunks, if the layout has segments.
fn format(layout: Layout, compression: Compression) -> BuildOptions {
    BuildOptions {
        layout: Some(layout),
        compression: Some(compression),
        chunk_bytes: 8 << 10,
        segment_bytes: 32 << 10,
        navigation: 0.05,
        ..quick(Preset::STRATANN)
    }
}

fn files(index: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(index)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|file| file.file_name().unwrap() != "LOCK")
        .filter(|file| file.extension().is_none_or(|end| end != "room"))
        .collect();
    files.sort();
    files
}

#[test]
fn verify_finds_any_flipped_bit_of_any_file() {
    let folder = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, 600);
    let flips = match std::env::var_os("STRATANN_SLOW") {
        None => 10,
        Some(_) => 1000,
    };
    // In an uncompressed index, any bytes decode, and only checksums find damage.
    let compressed = |&(layout, compression): &_| {
        matches!(layout, Layout::Coupled | Layout::Inline) || compression != Compression::Raw
    };
    for (layout, compression) in FORMATS.into_iter().filter(compressed) {
        let path = folder.path().join(format!("{layout}-{compression}"));
        build(&base, &path, &format(layout, compression), &Silent).unwrap();
        let report = verify(&path, &Silent).unwrap();
        assert!(report.clean(), "{layout} {compression}: {report:#?}");
        assert_eq!(report.nodes, 600);
        let files = files(&path);
        assert_eq!(report.files, files.len() as u64);
        for file in &files {
            let whole = fs::read(file).unwrap();
            let finds = |what: &str, bytes: &[u8]| {
                fs::write(file, bytes).unwrap();
                let found = verify(&path, &Silent).unwrap();
                let (name, problem) = (file.display().to_string(), found.problems.first());
                let problem = problem.unwrap_or_else(|| panic!("{name}: {what}"));
                let named = found.problems.iter().any(|problem| problem.file == name);
                assert!(named, "{name}: {what}: {problem:?}");
            };
            // With an odd stride, the offsets within a block vary.
            let step = (whole.len() / flips).max(1) | 1;
            for at in (0..whole.len()).step_by(step).chain([whole.len() - 1]) {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << (at % 8);
                finds(&format!("bit {} of byte {at}", at % 8), &damaged);
            }
            for end in [0, 1, whole.len() / 2, whole.len() - 1] {
                finds(&format!("cut at {end}"), &whole[..end]);
            }
            finds("a block less", &whole[..whole.len().saturating_sub(4096)]);
            let longer = [&whole[..], &[0; 4096]].concat();
            let vectors = |file: &&PathBuf| name(file).starts_with("vectors-");
            let grows = ["graph-", "packed-", "adjacency-", "layered-"];
            if grows.iter().any(|kind| name(file).starts_with(kind))
                || files.iter().filter(vectors).max() == Some(file)
            {
                // Pages that direct inserts added before a crash stay in the file.
                fs::write(file, longer).unwrap();
                assert!(verify(&path, &Silent).unwrap().clean(), "{file:?}");
            } else {
                finds("a block more", &longer);
            }
            // The blocks are intact, but at wrong offsets.
            for (a, b) in [(1, 2), (1, (whole.len() / 4096).saturating_sub(1))] {
                let (a, b) = (4096 * a, 4096 * b);
                if a < b && b + 4096 <= whole.len() {
                    let mut swapped = whole.clone();
                    let (front, back) = swapped.split_at_mut(b);
                    front[a..a + 4096].swap_with_slice(&mut back[..4096]);
                    finds(&format!("blocks at {a} and {b} swapped"), &swapped);
                }
            }
            fs::write(file, &whole).unwrap();
        }
        assert!(verify(&path, &Silent).unwrap().clean());
    }
}

#[test]
fn verify_finds_files_that_were_mixed_up() {
    let folder = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, 600);
    for compression in [Compression::Raw, Compression::Paper, Compression::Best] {
        let path = folder.path().join(compression.to_string());
        build(
            &base,
            &path,
            &format(Layout::Decoupled, compression),
            &Silent,
        )
        .unwrap();
        let files = files(&path);
        for kind in ["vectors", "chunks"] {
            let all: Vec<_> = files.iter().filter(|f| name(f).starts_with(kind)).collect();
            assert_eq!(all.len(), 3, "{files:?}");
            for (a, b) in [(0, 1), (1, 2), (0, 2)] {
                let swap = || {
                    fs::rename(all[a], path.join("aside")).unwrap();
                    fs::rename(all[b], all[a]).unwrap();
                    fs::rename(path.join("aside"), all[b]).unwrap();
                };
                swap();
                let found = verify(&path, &Silent).unwrap();
                for file in [all[a], all[b]] {
                    let file = file.display().to_string();
                    let named = found.problems.iter().any(|problem| problem.file == file);
                    assert!(named, "{compression}: {file}: {found:#?}");
                }
                swap();
            }
        }
        // The other index has another seed, but the same vectors and options.
        let other = folder.path().join(format!("{compression}-other"));
        let options = BuildOptions {
            seed: 7,
            ..format(Layout::Decoupled, compression)
        };
        let shifted = head(SIFT_QUERIES, 500);
        build(&shifted, &other, &options, &Silent).unwrap();
        for file in files.iter().filter(|file| name(file) != "MANIFEST") {
            let whole = fs::read(file).unwrap();
            let strange = fs::read(other.join(name(file))).unwrap_or_default();
            fs::write(file, &strange).unwrap();
            let found = verify(&path, &Silent).unwrap();
            // Chunks of uncompressed vectors may be equal in both indexes.
            assert_eq!(found.clean(), strange == whole, "{file:?}: {found:#?}");
            fs::write(file, whole).unwrap();
        }
        assert!(verify(&path, &Silent).unwrap().clean());
    }
}

fn name(file: &Path) -> &str {
    file.file_name().unwrap().to_str().unwrap()
}

#[test]
fn stats_say_what_a_layout_takes_and_saves() {
    let folder = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, 600);
    let coupled = folder.path().join("coupled-raw");
    for (layout, compression) in FORMATS {
        let path = folder.path().join(format!("{layout}-{compression}"));
        // All indexes have the same graph, so that only the layouts differ.
        let options = BuildOptions {
            order: Some(Order::Input),
            ..format(layout, compression)
        };
        build(&base, &path, &options, &Silent).unwrap();
        let stats = Index::open(&path, &OpenOptions::default()).unwrap().stats();
        let name = format!("{layout} {compression}: {stats:#?}");
        assert_eq!(stats.layout, layout.to_string());
        let (bytes, nodes) = (stats.bytes, stats.graph_and_vectors);
        let length = |kinds: &[&str]| -> u64 {
            let of = |file: &&PathBuf| kinds.iter().any(|kind| self::name(file).starts_with(kind));
            let files = files(&path);
            files
                .iter()
                .filter(of)
                .map(|file| fs::metadata(file).unwrap().len())
                .sum()
        };
        let parts = bytes.graph + bytes.vectors + bytes.codes + bytes.ids + bytes.other;
        let manifest = length(&["MANIFEST"]);
        assert_eq!(
            (parts, bytes.total),
            (bytes.total, length(&[""]) - manifest),
            "{name}"
        );
        let in_nodes = match layout {
            Layout::Inline => 600 * 32 * 32,
            _ => 0,
        };
        let beside = length(&["codes", "codebook", "entries"]);
        assert_eq!(bytes.codes, beside + in_nodes, "{name}");
        let kinds = [
            "graph",
            "inline",
            "packed",
            "adjacency",
            "layered",
            "vectors",
            "chunks",
            "directory",
        ];
        assert_eq!(nodes.bytes, length(&kinds), "{name}");
        let really: u64 = files(&coupled)
            .iter()
            .filter(|file| self::name(file) != "MANIFEST")
            .map(|file| fs::metadata(file).unwrap().len())
            .sum();
        assert_eq!(stats.coupled_bytes, really, "{name}");
        assert_eq!(
            stats.saved,
            1.0 - bytes.total as f64 / really as f64,
            "{name}"
        );
        let links = stats.degree_mean * 600.0;
        let lists = bytes.graph - length(&["navigation"]);
        assert!(
            (stats.bits_per_edge - 8.0 * lists as f64 / links).abs() < 1e-6,
            "{name}"
        );
        let vectors = bytes.vectors - length(&["chunks"]);
        let ratio = 600.0 * 128.0 / vectors as f64;
        assert!((stats.vector_ratio - ratio).abs() < 1e-9, "{name}");
        match layout {
            Layout::Coupled | Layout::Inline => {
                assert_eq!(bytes.ids, 4800, "{name}");
                assert_eq!(
                    stats.bits_per_edge,
                    8.0 * 600.0 * 4.0 * 33.0 / links,
                    "{name}"
                );
                // In the layout AiSAQ, a code is stored once for each list that has its node.
                match layout {
                    Layout::Coupled => assert_eq!((stats.saved, nodes.saved), (0.0, 0.0)),
                    _ => assert!(stats.saved < 0.0 && nodes.saved < stats.saved, "{name}"),
                }
            }
            _ => {
                assert!(stats.bits_per_edge < 12.0 && bytes.ids == 0, "{name}");
                assert!(!stats.compression.list_codec.is_empty(), "{name}");
                assert!(!stats.compression.vector_codec.is_empty(), "{name}");
            }
        }
        match compression {
            Compression::Raw => assert_eq!(stats.vector_ratio, 1.0, "{name}"),
            _ => assert!(stats.vector_ratio > 1.05, "{name}"),
        }
        if layout == Layout::Packed {
            // In so small an index, the codebook takes half of the bytes.
            assert!(nodes.saved > 0.3 && stats.saved > 0.1, "{name}");
        }
    }
}

#[test]
fn a_written_truth_is_read_back() {
    let truth = GroundTruth::read(fixture("photo-sift-20k.truth100.bin")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    truth.write(folder.path().join("truth.bin")).unwrap();
    assert_eq!(
        GroundTruth::read(folder.path().join("truth.bin")).unwrap(),
        truth
    );
}

#[test]
fn a_budget_of_space_decides_the_degree_and_is_kept() {
    let photos = head(SIFT_BASE, 1_500);
    let texts = head("package-text-2k.base.fbin", 1_500);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let best = Compression::Best;
    for (rows, layout, compression) in [
        (&photos, Layout::Packed, best),
        (&photos, Layout::Coupled, Compression::Raw),
        (&photos, Layout::Inline, Compression::Raw),
        (&texts, Layout::Layered, best),
        (&texts, Layout::Decoupled, best),
        (&texts, Layout::Decoupled, Compression::Paper),
    ]
    .into_iter()
    .filter(|&(_, layout, compression)| {
        slow() || layout != Layout::Inline && (layout, compression) != (Layout::Decoupled, best)
    }) {
        let mut options = BuildOptions {
            degree: Some(48),
            build_list: 30,
            layout: Some(layout),
            compression: Some(compression),
            navigation: 0.05,
            ids: Some((0..1_500).map(|row| 7 * row + 3).collect()),
            overwrite: true,
            ..BuildOptions::default()
        };
        let usual = build(rows, &path, &options, &Silent).unwrap().bytes;
        options.degree = None;
        let mut degrees = Vec::new();
        let most = slow() || layout == Layout::Packed;
        let spaces = [usual + usual / 20, usual + usual / 4, 10 * usual];
        for space in spaces.into_iter().take(if most { 3 } else { 2 }) {
            options.space = Some(space);
            let report = build(rows, &path, &options, &Silent).unwrap();
            let stats = Index::open(&path, &OpenOptions::default()).unwrap().stats();
            eprintln!(
                "{layout}: budget {space} bytes, R = {}: {} bytes used",
                stats.degree, report.bytes
            );
            assert!(
                report.bytes <= space,
                "{layout}, budget {space}: {} bytes used",
                report.bytes
            );
            let why = report.space.unwrap();
            assert_eq!((why.budget, why.degree), (space, report.degree), "{why:?}");
            // `off` is the size as a multiple of the estimate.
            let off = report.bytes as f64 / why.expected as f64;
            assert!(off <= 1.03 && why.expected <= space, "{off}: {why:?}");
            assert!(why.next.is_none_or(|(_, bytes)| bytes > space), "{why:?}");
            assert_eq!(why.next.is_none(), why.degree == 96);
            assert_eq!(
                stats.build_list,
                if stats.degree > 64 {
                    2 * stats.degree
                } else {
                    30
                }
            );
            degrees.push(stats.degree);
        }
        assert!(
            degrees.is_sorted() && degrees[1] >= 32 && (!most || degrees[2] == 96),
            "{layout}: {degrees:?}"
        );
        options.space = Some(usual / 10);
        let error = build(rows, &path, &options, &Silent).unwrap_err();
        assert!(error.is_call_wrong());
        let said = error.to_string();
        assert!(
            said.contains("space") && said.contains("bytes or more"),
            "{said}"
        );
        Index::open(&path, &OpenOptions::default()).unwrap();
    }
    let both = BuildOptions {
        degree: Some(32),
        space: Some(1 << 30),
        ..BuildOptions::default()
    };
    let error = build(&photos, folder.path().join("other"), &both, &Silent).unwrap_err();
    assert!(error.to_string().contains("one of the two"), "{error}");
}
