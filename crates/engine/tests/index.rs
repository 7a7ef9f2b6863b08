//! An index as a user has it: built from real data, opened, searched, refused, damaged, replaced.

use std::fs;
use std::path::{Path, PathBuf};

use stratann::{
    BuildOptions, Element, Error, GroundTruth, Index, Matrix, Metric, OpenOptions, Order, Preset,
    SearchOptions, SearchResults, Silent, Strategy, VectorFile, VectorSource, brute_force, build,
    verify,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name)
}

fn head(name: &str, rows: usize) -> Matrix {
    let file = VectorFile::open(fixture(name)).unwrap();
    let mut bytes = vec![0; rows * file.dim() * file.element().size()];
    file.read(0, &mut bytes).unwrap();
    Matrix::new(bytes, rows, file.dim(), file.element()).unwrap()
}

/// Options that build a few thousand rows in a moment.
fn quick(preset: Preset) -> BuildOptions {
    BuildOptions {
        preset,
        degree: 32,
        build_list: 50,
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
    let base = head("photo-sift-20k.base.u8bin", 5_000);
    let queries = head("photo-sift-20k.query.u8bin", 100);
    let truth = brute_force(&base, &queries, 10, Metric::L2, 2, &Silent).unwrap();
    for preset in Preset::ALL {
        let path = folder.path().join(preset.name);
        let report = build(&base, &path, &quick(preset), &Silent).unwrap();
        assert_eq!(report.vectors, 5_000);
        let options = SearchOptions {
            list: 40,
            threads: 2,
            in_flight: 4,
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
        let options = SearchOptions {
            list: 60,
            ..SearchOptions::default()
        };
        let found = search(&path, &queries, &options).unwrap();
        let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
        assert!(recall > 0.95, "{metric}: recall {recall}");
        for row in found.distances.chunks_exact(10) {
            assert!(row.is_sorted(), "{metric}: answers are not in order");
        }
    }
}

#[test]
fn one_thread_and_a_seed_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let base = head("photo-sift-20k.base.u8bin", 1_500);
    let files = ["a", "b"].map(|name| {
        let path = folder.path().join(name);
        build(&base, &path, &quick(Preset::STRATANN), &Silent).unwrap();
        let mut files: Vec<_> = fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        files
            .iter()
            .map(|file| fs::read(file).unwrap())
            .collect::<Vec<_>>()
    });
    assert!(files[0] == files[1]);
}

#[test]
fn outside_ids_are_what_the_user_gave() {
    let folder = tempfile::tempdir().unwrap();
    let base = head("photo-sift-20k.base.u8bin", 600);
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
        error.to_string().contains("duplicate id 5") && error.is_call_wrong(),
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
        // A node that fills more than one block, and one that does not fit two.
        (50, 1_100, Element::F32),
        (30, 3_000, Element::F32),
    ]
    .into_iter()
    .enumerate()
    {
        make(rows, dim, element, &folder.path().join(i.to_string()));
    }
    // A thousand times the same vector: distances cannot tell nodes apart.
    let same = Matrix::new(vec![7; 1_000 * 16], 1_000, 16, Element::U8).unwrap();
    let path = folder.path().join("same");
    build(&same, &path, &quick(Preset::STRATANN), &Silent).unwrap();
    let found = search(&path, &same, &SearchOptions::default()).unwrap();
    assert!(found.distances.iter().all(|&distance| distance == 0.0));
}

#[test]
fn calls_that_are_wrong_say_what_would_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let base = head("photo-sift-20k.base.u8bin", 500);
    let path = folder.path().join("index");
    build(&base, &path, &quick(Preset::DISKANN), &Silent).unwrap();
    let queries = head("photo-sift-20k.query.u8bin", 5);
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
            k: 501,
            list: 600,
            ..Default::default()
        },
        &["501", "500"],
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
    let base = head("photo-sift-20k.base.u8bin", 400);
    build(&base, &path, &quick(Preset::DISKANN), &Silent).unwrap();
    let error = build(&base, &path, &quick(Preset::DISKANN), &Silent).unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");

    let open = Index::open(&path, &OpenOptions::default()).unwrap();
    let smaller = head("photo-sift-20k.base.u8bin", 200);
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
    // Who had it open still has the index that was opened.
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
    assert_eq!(
        fs::read_dir(&path)
            .unwrap()
            .filter(|e| e.as_ref().unwrap().file_name() != "LOCK")
            .count(),
        4
    );

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
    assert!(open(folder.path()).contains("MANIFEST"));
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(open(&file).contains("directory"));
}

#[test]
fn verify_finds_any_flipped_bit_of_any_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let base = head("photo-sift-20k.base.u8bin", 1_700);
    build(&base, &path, &quick(Preset::STRATANN), &Silent).unwrap();
    assert!(verify(&path, &Silent).unwrap().clean());
    let mut files = 0;
    for entry in fs::read_dir(&path).unwrap() {
        let file = entry.unwrap().path();
        let whole = fs::read(&file).unwrap();
        if whole.is_empty() {
            continue;
        }
        files += 1;
        // Every region of the file: a prime stride visits each offset within a block sooner or later, and both ends.
        let step = (whole.len() / 40).max(1) | 1;
        for at in (0..whole.len()).step_by(step).chain([whole.len() - 1]) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(&file, &damaged).unwrap();
            let found = verify(&path, &Silent).unwrap();
            assert!(
                !found.clean(),
                "{}: byte {at} of {}",
                file.display(),
                whole.len()
            );
        }
        fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        assert!(
            !verify(&path, &Silent).unwrap().clean(),
            "{}: truncated",
            file.display()
        );
        fs::write(&file, &whole).unwrap();
    }
    assert_eq!(files, 5);
    assert!(verify(&path, &Silent).unwrap().clean());
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
fn an_index_of_format_1_opens_and_answers() {
    // Written once, by the first version; `fixtures/README.md` says how. A reader must go on reading it.
    let path = fixture("index-v1");
    assert!(verify(&path, &Silent).unwrap().clean());
    let index = Index::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(
        (index.len(), index.dim(), index.stats().format_version),
        (2_000, 128, 1)
    );
    let base = head("photo-sift-20k.base.u8bin", 2_000);
    let queries = head("photo-sift-20k.query.u8bin", 100);
    let truth = brute_force(&base, &queries, 10, Metric::L2, 1, &Silent).unwrap();
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
