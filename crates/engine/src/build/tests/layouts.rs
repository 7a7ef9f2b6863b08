//! Tests that each layout with each compression stores exactly the rows, ids and lists of the
//! graph.

use std::collections::HashMap;
use std::path::Path;

use stratann_layout::FileEntry;
use stratann_tier::Volume;
use stratann_tier::testing::SimVolume;
use stratann_vector::{Element, Metric};

use super::decode::{Decoded, decode};
use crate::build::*;
use crate::codebook::Codebook;
use crate::data::{Matrix, VectorFile};
use crate::progress::Silent;
use crate::stored;
use crate::stores::reading;
use crate::stores::writing::PagePlan;
use crate::{Compression, Layout, Preset, TrainOptions};

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

fn options(layout: Layout, compression: Compression) -> BuildOptions {
    BuildOptions {
        degree: Some(24),
        build_list: 30,
        layout: Some(layout),
        compression: Some(compression),
        navigation: 0.0,
        threads: 1,
        ..BuildOptions::default()
    }
}

fn fixtures() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures"))
}

fn fixture(name: &str, rows: usize) -> Matrix {
    let file = VectorFile::open(fixtures().join(name)).unwrap();
    let mut bytes = vec![0; rows * file.row_bytes()];
    file.read(0, &mut bytes).unwrap();
    Matrix::new(bytes, rows, file.dim(), file.element()).unwrap()
}

fn floats(rows: usize, dim: usize) -> Matrix {
    let bytes = (0..(rows * dim) as u32)
        .flat_map(|i| (i.wrapping_mul(2_654_435_761) as f32 / 1e9).to_le_bytes())
        .collect();
    Matrix::new(bytes, rows, dim, Element::F32).unwrap()
}

fn with_build<T>(
    volume: &SimVolume,
    source: &dyn VectorSource,
    options: &BuildOptions,
    work: impl FnOnce(&mut Build<'_>) -> T,
) -> T {
    let folder = tempfile::tempdir().unwrap();
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    let facts = Facts::of(source, options).unwrap();
    work(&mut Build {
        savepoints: None,
        volume: &volume,
        writing: Writing {
            source,
            options,
            degree: facts.degree,
            check: check_of(false),
            kept: &[],
            checkpoint: Checkpoint::begin(&*volume, true).unwrap(),
            scratch: folder.path(),
            progress: &Silent,
        },
        facts,
        attributes: None,
        carried: Carried {
            given_codebook: false,
            placeholder: false,
            log_from: LogFrom::default(),
            next_id: 0,
            known: None,
            kept: &[],
            rows: None,
        },
        replaces: false,
        stages: Vec::new(),
        began: std::time::Instant::now(),
        cpu: std::time::Duration::ZERO,
    })
}

fn build_of(source: &dyn VectorSource, options: &BuildOptions) -> SimVolume {
    let volume = SimVolume::new();
    with_build(&volume, source, options, |build| build.run(None).map(drop)).unwrap();
    volume
}

/// The rows, ids and lists that an index must have. Nodes are numbered as in the graph. The index
/// may number them differently.
fn expected(source: &dyn VectorSource, options: &BuildOptions) -> Decoded {
    let volume = SimVolume::new();
    let mut graph = with_build(&volume, source, options, |build| build.construct()).unwrap();
    let mut nodes = Decoded::default();
    let mut list = Vec::new();
    for node in 0..source.rows() as u32 {
        let row = graph.order[node as usize];
        let mut vector = vec![0; source.row_bytes()];
        source.read(row as usize, &mut vector).unwrap();
        graph.lists.read(node, &mut list).unwrap();
        let ids = options.ids.as_ref();
        nodes
            .ids
            .push(ids.map_or(u64::from(row), |ids| ids[row as usize]));
        nodes.vectors.push(vector);
        nodes.lists.push(list.clone());
    }
    nodes
}

fn check(source: &dyn VectorSource, options: &BuildOptions) -> Manifest {
    check_against(&expected(source, options), source, options)
}

/// Compares an index of `source` with the expected content. In input order, the content is the same
/// for all formats.
fn check_against(
    expected: &Decoded,
    source: &dyn VectorSource,
    options: &BuildOptions,
) -> Manifest {
    let volume = build_of(source, options);
    let found = decode(&volume);
    let name = format!("{:?} {:?}", options.layout, options.compression);
    let is_fixed = matches!(options.layout, Some(Layout::Coupled | Layout::Inline));
    if is_fixed || options.order == Some(Order::Input) {
        assert_eq!(
            found.ids, expected.ids,
            "{name}: the nodes are not in the order of the input"
        );
    }
    assert_eq!(found.ids.len(), source.rows(), "{name}");
    let node_of: HashMap<u64, usize> = found.ids.iter().copied().zip(0..).collect();
    for (at, id) in expected.ids.iter().enumerate() {
        let node = node_of[id];
        assert!(
            found.vectors[node] == expected.vectors[at],
            "{name}: the vector with id {id} differs"
        );
        let neighbour = |&neighbour: &u32| node_of[&expected.ids[neighbour as usize]] as u32;
        let mut list: Vec<u32> = expected.lists[at].iter().map(neighbour).collect();
        if !is_fixed {
            list.sort_unstable();
        }
        assert_eq!(
            found.lists[node], list,
            "{name}: the list of the node with id {id} differs"
        );
    }
    let manifest = stored::manifest(&volume).unwrap();
    let files = volume.list().unwrap();
    assert_eq!(
        files.len(),
        manifest.files.len() + 1,
        "the MANIFEST does not name some of the files {files:?}"
    );
    manifest
}

#[test]
fn descriptors_come_back_from_every_layout() {
    let source = fixture("photo-sift-20k.base.u8bin", 3_000);
    let in_order = |order, layout, compression| BuildOptions {
        order: Some(order),
        ..options(layout, compression)
    };
    let expected = expected(
        &source,
        &in_order(Order::Input, Layout::Coupled, Compression::Raw),
    );
    for (layout, compression) in FORMATS {
        let options = in_order(Order::Input, layout, compression);
        let manifest = check_against(&expected, &source, &options);
        let (raw, bytes) = (3_000 * 128, manifest.vector_bytes);
        let edge = manifest.list_bytes as f64 * 8.0 / manifest.graph().edges as f64;
        let name = format!("{layout} {compression}: {bytes} bytes, {edge} bits an edge");
        match compression {
            Compression::Raw => assert_eq!(bytes, raw, "{name}"),
            Compression::Paper => assert!(bytes < raw * 9 / 10, "{name}"),
            // The codec of parts does not use the position of a byte in its row, so it saves less
            // here.
            Compression::Best if layout == Layout::Layered => {
                assert!(bytes < raw * 19 / 20, "{name}")
            }
            Compression::Best => assert!(bytes < raw * 8 / 10, "{name}"),
        }
        match (layout, compression) {
            (Layout::Coupled | Layout::Inline, _) => assert!(edge >= 32.0, "{name}"),
            // An Elias–Fano code has at most 2 + log2(3000 / 24) = 9 bits for each edge.
            (_, Compression::Raw | Compression::Paper) => {
                assert_eq!(manifest.list_codec, "elias-fano", "{name}");
                assert!(edge < 10.0, "{name}");
            }
            (_, Compression::Best) => assert!(edge < 9.5, "{name}"),
        }
    }
    for (layout, compression) in [
        (Layout::Packed, Compression::Best),
        (Layout::Decoupled, Compression::Paper),
    ] {
        check(&source, &in_order(Order::Locality, layout, compression));
    }
}

#[test]
fn embeddings_come_back_from_every_layout() {
    let source = fixture("package-text-2k.base.fbin", 600);
    let cosine = |layout, compression| BuildOptions {
        metric: Metric::Cosine,
        order: Some(Order::Input),
        ..options(layout, compression)
    };
    let expected = expected(&source, &cosine(Layout::Coupled, Compression::Raw));
    for (layout, compression) in FORMATS {
        let manifest = check_against(&expected, &source, &cosine(layout, compression));
        let (raw, bytes) = (600 * 384 * 4, manifest.vector_bytes);
        assert_eq!(
            bytes < raw * 9 / 10,
            compression == Compression::Best,
            "{layout} {compression}: {bytes} of {raw}"
        );
        if compression == Compression::Best {
            let codec = match layout {
                Layout::Layered => "nested",
                _ => "float-split",
            };
            assert_eq!(manifest.vector_codec, codec);
        }
    }
}

#[test]
fn codes_are_of_directions_under_cosine() {
    // These vectors do not have unit length. The index stores them unchanged, and encodes their
    // directions.
    let source = floats(300, 12);
    for (layout, compression) in FORMATS {
        let options = BuildOptions {
            metric: Metric::Cosine,
            ..options(layout, compression)
        };
        check(&source, &options);
    }
}

#[test]
fn outside_ids_may_be_any() {
    let source = fixture("photo-sift-20k.base.u8bin", 500);
    let ids = (0..500)
        .map(|row: u64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect::<Vec<_>>();
    for (layout, compression) in FORMATS {
        let options = BuildOptions {
            ids: Some(ids.clone()),
            ..options(layout, compression)
        };
        check(&source, &options);
    }
}

#[test]
fn a_vector_may_be_larger_than_a_block() {
    let source = floats(60, 2_000);
    for (layout, compression) in FORMATS {
        check(&source, &options(layout, compression));
    }
}

#[test]
fn a_few_rows_are_an_index() {
    for rows in [1, 2, 17] {
        for source in [fixture("photo-sift-20k.base.u8bin", rows), floats(rows, 5)] {
            for (layout, compression) in FORMATS {
                check(&source, &options(layout, compression));
            }
        }
    }
}

/// In every other chunk of 64 rows, the bytes of a row depend on their position, so a base saves
/// space there.
fn alike_and_not(rows: usize) -> Matrix {
    let byte = |row: usize, position: usize| match row / 64 % 2 {
        0 => (position * 3 + usize::from(row * 31 % 57 == position)) as u8,
        _ => (row * 37) as u8,
    };
    let bytes = (0..rows)
        .flat_map(|row| (0..64).map(move |position| byte(row, position)))
        .collect();
    Matrix::new(bytes, rows, 64, Element::U8).unwrap()
}

#[test]
fn segments_and_chunks_divide_the_rows() {
    let source = alike_and_not(64 * 6 + 10);
    for (layout, compression) in FORMATS {
        let options = BuildOptions {
            order: Some(Order::Input),
            chunk_bytes: 4096,
            // This size is no multiple of the chunk size. A segment has two chunks.
            segment_bytes: 2 * 4096 + 1000,
            ..options(layout, compression)
        };
        let manifest = check(&source, &options);
        let segments: Vec<_> = manifest
            .segments
            .iter()
            .map(|segment| (segment.first, segment.vectors))
            .collect();
        if layout.has_vectors_in_records() {
            assert_eq!(segments, []);
            continue;
        }
        assert_eq!(segments, [(0, 128), (128, 128), (256, 128), (384, 10)]);
        if compression == Compression::Paper {
            let volume = build_of(&source, &options);
            let chunks = reading::chunks(&volume, &manifest, 1).unwrap();
            let bases: Vec<_> = chunks.chunks.iter().map(|c| c.base.is_some()).collect();
            assert_eq!(bases, [true, false]);
            let plain: Vec<u8> = (0..64).map(|position| position * 3).collect();
            assert_eq!(chunks.chunks[0].base.as_deref(), Some(&plain[..]));
            assert_eq!(manifest.segments[1].codec, "xor+huffman");
        }
    }
}

#[test]
fn a_packed_index_has_a_model_for_each_segment() {
    let source = alike_and_not(64 * 6 + 10);
    let options = BuildOptions {
        chunk_bytes: 4096,
        segment_bytes: 100 * 64 + 63,
        ..options(Layout::Packed, Compression::Paper)
    };
    let manifest = check(&source, &options);
    let directory = reading::directory(&build_of(&source, &options), &manifest).unwrap();
    assert_eq!(directory.segment_vectors, 100);
    assert_eq!(directory.vector_models.len(), 4);
    assert_eq!(manifest.vector_codec, "huffman");
}

#[test]
fn one_thread_and_a_seed_give_the_same_bytes() {
    let source = fixture("photo-sift-20k.base.u8bin", 400);
    for (layout, compression) in FORMATS {
        let options = options(layout, compression);
        let [first, second] = [(), ()].map(|()| build_of(&source, &options));
        let files = first.list().unwrap();
        assert_eq!(files, second.list().unwrap());
        for file in files {
            let bytes = |volume: &SimVolume| match file == MANIFEST {
                true => {
                    let mut manifest = stored::manifest(volume).unwrap();
                    assert!(manifest.state.take().is_some());
                    manifest.encode()
                }
                false => volume.read(&file).unwrap(),
            };
            assert!(
                bytes(&first) == bytes(&second),
                "{layout} {compression}: {file}"
            );
        }
    }
}

/// Reads the files that a build writes. The build does not commit, so the files are removed at its
/// end.
fn written_files(
    volume: &SimVolume,
    build: &Build<'_>,
    graph: &mut Constructed,
    codebook: &Codebook,
) -> Vec<Vec<u8>> {
    let written = build
        .facts
        .writer
        .write(&build.writing, graph, codebook, &PagePlan::default())
        .unwrap();
    let read = |file: FileEntry| volume.read(&file.name).unwrap();
    written.files.into_iter().map(read).collect()
}

#[test]
fn threads_do_not_change_what_is_written_of_a_graph() {
    let source = fixture("photo-sift-20k.base.u8bin", 700);
    for (layout, compression) in FORMATS {
        let (volume, one) = (SimVolume::new(), options(layout, compression));
        let mut graph = with_build(&volume, &source, &one, |build| build.construct()).unwrap();
        let codebook = with_build(&volume, &source, &one, |build| build.codebook(&graph)).unwrap();
        let volumes = [1, 3, 1000].map(|threads| {
            let options = BuildOptions {
                threads,
                ..one.clone()
            };
            with_build(&volume, &source, &options, |build| {
                written_files(&volume, build, &mut graph, &codebook)
            })
        });
        assert!(volumes[0] == volumes[1], "{layout} {compression}");
        assert!(volumes[0] == volumes[2], "{layout} {compression}");
    }
}

#[test]
fn codes_that_do_not_fit_the_memory_cap_change_nothing_that_is_written() {
    let source = fixture("photo-sift-20k.base.u8bin", 3_000);
    // The nodes form several batches, the last one incomplete, and have another order than the
    // rows.
    let free = BuildOptions {
        order: Some(Order::Locality),
        ..options(Layout::Inline, Compression::Raw)
    };
    let volume = SimVolume::new();
    let mut graph = with_build(&volume, &source, &free, |build| build.construct()).unwrap();
    let codebook = with_build(&volume, &source, &free, |build| build.codebook(&graph)).unwrap();
    let mut written = |memory| {
        let options = BuildOptions {
            memory,
            ..free.clone()
        };
        with_build(&volume, &source, &options, |build| {
            let files = written_files(&volume, build, &mut graph, &codebook);
            let scratch = std::fs::read_dir(build.writing.scratch).unwrap();
            let scratch = scratch.map(|file| file.unwrap().metadata().unwrap().len());
            (files, scratch.collect::<Vec<_>>())
        })
    };
    let (files, scratch) = written(None);
    assert_eq!((files.len(), scratch), (2, vec![]));
    // The codes may take a quarter of the memory cap.
    let codes = 3_000 * codebook.code_bytes() as u64;
    for (memory, expected) in [
        (4 * codes, vec![]),
        (4 * codes - 1, vec![codes]),
        (1, vec![codes]),
    ] {
        let (found, scratch) = written(Some(memory));
        assert_eq!(scratch, expected, "{memory} bytes");
        assert!(found == files, "{memory} bytes");
    }
}

fn hashes(volume: &SimVolume) -> (String, String) {
    let manifest = stored::manifest(volume).unwrap();
    let kind = FileKind::Codebook;
    let centroids = stored::read_stream_whole(volume, &manifest, kind, None).unwrap();
    let hash = blake3::hash(&centroids).to_hex().to_string();
    (hash, manifest.codebook)
}

#[test]
fn a_codebook_that_is_given_is_used() {
    let source = fixture("photo-sift-20k.base.u8bin", 300);
    let sample = fixture("photo-sift-20k.query.u8bin", 400);
    let train = |code_bytes| {
        let options = TrainOptions {
            code_bytes: Some(code_bytes),
            ..TrainOptions::default()
        };
        Codebook::train(&sample, &options, &Silent).unwrap()
    };
    let given = train(16);
    for (layout, compression) in FORMATS {
        let own = options(layout, compression);
        let volume = build_of(&source, &own);
        let (content, name) = hashes(&volume);
        assert_eq!(content, name, "{layout} {compression}");
        assert_ne!(name, given.hash(), "{layout} {compression}");
        // By default, a code has a quarter of the dimensions as bytes. A given codebook may differ.
        assert_eq!(stored::manifest(&volume).unwrap().code_bytes, 32);
        for code_bytes in [None, Some(16)] {
            let options = BuildOptions {
                codebook: Some(given.clone()),
                code_bytes,
                ..own.clone()
            };
            let volume = build_of(&source, &options);
            let (content, name) = hashes(&volume);
            assert_eq!(content, name, "{layout} {compression}");
            assert_eq!(name, given.hash(), "{layout} {compression}");
            let manifest = stored::manifest(&volume).unwrap();
            assert_eq!(manifest.code_bytes, 16, "{layout} {compression}");
            if code_bytes.is_none() {
                check(&source, &options);
            }
        }
    }
}

#[test]
fn a_codebook_for_other_vectors_or_codes_is_refused() {
    let source = fixture("photo-sift-20k.base.u8bin", 50);
    let train = |source: &Matrix| {
        let options = TrainOptions {
            code_bytes: Some(16),
            ..TrainOptions::default()
        };
        Codebook::train(source, &options, &Silent).unwrap()
    };
    let refused = |codebook, code_bytes| {
        let options = BuildOptions {
            codebook: Some(codebook),
            code_bytes,
            ..options(Layout::Inline, Compression::Raw)
        };
        let error = match Facts::of(&source, &options) {
            Ok(_) => panic!("{options:?} was accepted"),
            Err(error) => error,
        };
        assert!(error.is_call_wrong(), "{error}");
        error.to_string()
    };
    let error = refused(train(&floats(40, 96)), None);
    assert!(
        error.contains("codebook") && error.contains("96") && error.contains("128"),
        "{error}"
    );
    for code_bytes in [15, 32] {
        let error = refused(train(&source), Some(code_bytes));
        let words = ["code bytes", &code_bytes.to_string(), "16"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

/// The index of the fixtures was written once. Later versions must read the same codes and rows.
#[test]
fn the_frozen_inline_index_holds_its_rows_and_codes() {
    let rows = fixture("photo-sift-20k.base.u8bin", 2_000);
    let found = decode(&stored::existing(&fixtures().join("index-v3-inline")).unwrap());
    assert!(found.ids.iter().copied().eq(0..2_000));
    let mut row = vec![0; rows.row_bytes()];
    for (number, vector) in found.vectors.iter().enumerate() {
        rows.read(number, &mut row).unwrap();
        assert_eq!(*vector, row, "row {number}");
    }
    assert!(found.lists.iter().all(|list| list.len() == 16));
}

#[test]
fn entry_points_are_as_many_as_the_preset_says() {
    let source = fixture("photo-sift-20k.base.u8bin", 1_500);
    let entries = |preset: Preset, rows: usize| {
        let source = fixture("photo-sift-20k.base.u8bin", rows);
        let options = BuildOptions {
            preset,
            ..options(Layout::Inline, Compression::Raw)
        };
        check(&source, &options);
        let volume = build_of(&source, &options);
        let manifest = stored::manifest(&volume).unwrap();
        reading::entry_points(&volume, &manifest).unwrap().nodes
    };
    assert_eq!(entries(Preset::AISAQ, source.rows()).len(), 1);
    let many = entries(Preset::STRATANN, source.rows());
    // The medoid is an entry point, and may also be a node of the even sample.
    assert!((1_023..=1_024).contains(&many.len()), "{}", many.len());
    let first_half = many.iter().filter(|&&node| node < 750).count();
    assert!((500..=524).contains(&first_half), "{first_half}");
    assert_eq!(entries(Preset::STRATANN, 17).len(), 17);
    let three = Preset {
        entry_points: 3,
        ..Preset::AISAQ
    };
    assert!((2..=3).contains(&entries(three, 500).len()));
}

#[test]
fn a_preset_leaves_open_what_the_vectors_decide() {
    let (small, large) = (floats(20, 16), floats(20, 800));
    let layout =
        |source: &Matrix, options: &BuildOptions| Facts::of(source, options).unwrap().layout;
    let stratann = BuildOptions::default();
    assert_eq!(layout(&small, &stratann), Layout::Packed);
    assert_eq!(layout(&large, &stratann), Layout::Decoupled);
    let decouplevs = BuildOptions {
        preset: Preset::DECOUPLEVS,
        ..BuildOptions::default()
    };
    assert_eq!(layout(&small, &decouplevs), Layout::Decoupled);
    let aisaq = BuildOptions {
        preset: Preset::AISAQ,
        ..BuildOptions::default()
    };
    assert_eq!(layout(&small, &aisaq), Layout::Inline);
    assert_eq!(layout(&large, &aisaq), Layout::Inline);
    for (asked, name) in [(Layout::Coupled, "coupled"), (Layout::Inline, "inline")] {
        let options = BuildOptions {
            layout: Some(asked),
            ..BuildOptions::default()
        };
        assert_eq!(layout(&small, &options), asked);
        let manifest = stored::manifest(&build_of(&small, &options)).unwrap();
        let codecs = [&manifest.list_codec, &manifest.vector_codec];
        assert_eq!(
            (manifest.layout.as_str(), codecs.map(String::as_str)),
            (name, ["raw", "raw"])
        );
    }
}

#[test]
fn sizes_and_choices_that_cannot_be_are_refused() {
    let source = floats(40, 2_000);
    let refused = |options: BuildOptions| match Facts::of(&source, &options) {
        Ok(_) => panic!("{options:?} was accepted"),
        Err(error) => {
            assert!(error.is_call_wrong(), "{error}");
            error.to_string()
        }
    };
    let paper = || options(Layout::Decoupled, Compression::Paper);
    for layout in [Layout::Coupled, Layout::Inline] {
        let error = refused(options(layout, Compression::Paper));
        let words = ["paper", "raw", &layout.to_string()];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let error = refused(BuildOptions {
        chunk_bytes: 7_999,
        ..paper()
    });
    assert!(error.contains("7999") && error.contains("8000"), "{error}");
    let error = refused(BuildOptions {
        segment_bytes: (4 << 20) - 1,
        ..paper()
    });
    assert!(
        error.contains("4194303") && error.contains("4194304"),
        "{error}"
    );
    let error = refused(BuildOptions {
        memory: Some(1 << 20),
        ..paper()
    });
    assert!(
        error.contains("1048576") && error.contains("1280000"),
        "{error}"
    );
}
