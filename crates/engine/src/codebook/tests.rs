//! Tests that codebook files are read as they were written, and refused if they are damaged or
//! contradictory.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Mutex;

use proptest::prelude::*;
use stratann_layout::header::FieldsWriter;
use stratann_vector::Element;

use super::*;
use crate::data::{DataError, Matrix, VectorFile};
use crate::progress::Silent;
use crate::slow::slow;
use crate::{BuildOptions, Index, Layout, OpenOptions, Preset, build, verify};

const DIM: usize = 6;
const CODE: usize = 4;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name)
}

fn descriptors(first: usize, rows: usize) -> Matrix {
    let file = VectorFile::open(fixture("photo-sift-20k.base.u8bin")).unwrap();
    let mut bytes = vec![0; rows * file.row_bytes()];
    file.read(first, &mut bytes).unwrap();
    Matrix::new(bytes, rows, file.dim(), file.element()).unwrap()
}

fn floats(rows: usize, dim: usize, scale: f32) -> Matrix {
    let value = |i: u32| scale * (i.wrapping_mul(2_654_435_761) as f32 / 1e9 - 2.0);
    let bytes = (0..(rows * dim) as u32).flat_map(|i| value(i).to_le_bytes());
    Matrix::new(bytes.collect(), rows, dim, Element::F32).unwrap()
}

fn options(code_bytes: usize) -> TrainOptions {
    TrainOptions {
        code_bytes: Some(code_bytes),
        threads: 1,
        ..TrainOptions::default()
    }
}

fn train(source: &dyn VectorSource, options: &TrainOptions) -> Codebook {
    Codebook::train(source, options, &Silent).unwrap()
}

fn small() -> Codebook {
    train(&floats(700, DIM, 1.0), &options(CODE))
}

fn assert_same(a: &Codebook, b: &Codebook) {
    assert_eq!((a.dim(), a.code_bytes()), (b.dim(), b.code_bytes()));
    assert_eq!(a.quantizer().centroids(), b.quantizer().centroids());
    assert_eq!(a.hash(), b.hash());
}

fn file(folder: &Path, payload: &[u8], fields: &[u8]) -> PathBuf {
    let path = folder.join("codebook");
    fs::write(&path, stream::encode(FileKind::Codebook, payload, fields)).unwrap();
    path
}

fn shape(dim: u32, code_bytes: u32) -> Vec<u8> {
    FieldsWriter::new().u32(dim).u32(code_bytes).finish()
}

fn refusal(path: &Path) -> String {
    let error = match Codebook::read(path) {
        Ok(codebook) => panic!("{codebook:?} was read"),
        Err(error) => error,
    };
    assert!(!error.is_call_wrong(), "{error}");
    let text = error.to_string();
    assert!(text.contains(&path.display().to_string()), "{text}");
    text
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries.map(|e| name(e).into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("space.codebook");
    // Some codebooks have chunks of equal widths, and others of different widths. Codes have from
    // one byte to one byte for each dimension.
    for (dim, code_bytes) in [(8, 4), (DIM, CODE), (5, 1), (5, 5), (1, 1)] {
        let codebook = train(&floats(300, dim, 1.0), &options(code_bytes));
        assert_eq!((codebook.dim(), codebook.code_bytes()), (dim, code_bytes));
        codebook.write(&path).unwrap();
        assert_same(&Codebook::read(&path).unwrap(), &codebook);
        assert_eq!(names(folder.path()), ["space.codebook"]);
    }
    // If a codebook is read from a file and written again, the bytes are the same.
    let bytes = fs::read(&path).unwrap();
    Codebook::read(&path).unwrap().write(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn a_file_that_cannot_be_written_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let codebook = small();
    let path = folder.path().join("absent").join("codebook");
    assert!(codebook.write(&path).is_err());
    let path = folder.path().join("directory");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("file"), "x").unwrap();
    assert!(codebook.write(&path).is_err());
    assert_eq!(names(folder.path()), ["directory"]);
    assert_eq!(names(&path), ["file"]);
    for path in [Path::new("/"), Path::new(""), &folder.path().join("..")] {
        let error = codebook.write(path).unwrap_err();
        assert!(error.is_call_wrong(), "{}: {error}", path.display());
    }
    let strange = folder.path().join(OsStr::from_bytes(b"a\xff"));
    let error = codebook.write(&strange).unwrap_err();
    assert!(error.is_call_wrong(), "{error}");
    assert_eq!(names(folder.path()), ["directory"]);
}

#[test]
fn the_hash_is_that_of_the_content() {
    let folder = tempfile::tempdir().unwrap();
    let codebook = small();
    let mut hasher = blake3::Hasher::new();
    for centroid in codebook.quantizer().centroids() {
        hasher.update(&centroid.to_le_bytes());
    }
    assert_eq!(codebook.hash(), hasher.finalize().to_string());
    assert_eq!(codebook.hash().len(), 64);
    for name in ["a", "b"] {
        let path = folder.path().join(name);
        codebook.write(&path).unwrap();
        assert_eq!(Codebook::read(&path).unwrap().hash(), codebook.hash());
    }
    let (fields, mut payload) = codebook.file();
    let last = payload.len() - 4;
    payload[last] ^= 1;
    let other = Codebook::read(file(folder.path(), &payload, &fields)).unwrap();
    assert_ne!(other.hash(), codebook.hash());
    assert!(!format!("{other:?}").contains(codebook.hash()));
    let seed = TrainOptions {
        seed: 7,
        ..options(CODE)
    };
    let other = train(&floats(700, DIM, 1.0), &seed);
    assert_ne!(other.hash(), codebook.hash());
}

#[test]
fn any_flipped_bit_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("codebook");
    small().write(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    assert_eq!(whole.len(), 4096 * 3);
    for at in (0..whole.len()).step_by(if slow() { 1 } else { 7 }) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&path, bytes).unwrap();
        refusal(&path);
    }
    let mut swapped = whole.clone();
    swapped[4096..].rotate_left(4096);
    fs::write(&path, swapped).unwrap();
    assert!(refusal(&path).contains("checksum"));
}

#[test]
fn a_file_that_is_cut_or_longer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("codebook");
    assert!(refusal(&path).contains("read"), "the file does not exist");
    assert!(Codebook::read(folder.path()).is_err(), "a directory");
    small().write(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    for end in (0..whole.len()).step_by(509).chain([4096, 8192, 12287]) {
        fs::write(&path, &whole[..end]).unwrap();
        refusal(&path);
    }
    for more in [1, 4096] {
        fs::write(&path, [&whole[..], &vec![0; more]].concat()).unwrap();
        refusal(&path);
    }
    fs::write(&path, &whole).unwrap();
    Codebook::read(&path).unwrap();
}

#[test]
fn a_shape_that_does_not_fit_the_centroids_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (fields, payload) = small().file();
    let (dim, code_bytes) = (DIM as u32, CODE as u32);
    Codebook::read(file(folder.path(), &payload, &fields)).unwrap();
    // 256 centroids of 2^30 dimensions take 2^40 bytes. With 2^32 - 1 dimensions, they take about
    // 2^42 bytes.
    for (dim, code_bytes) in [
        (dim + 1, code_bytes),
        (dim - 1, code_bytes),
        (0, code_bytes),
        (1 << 30, code_bytes),
        (u32::MAX, code_bytes),
        (dim, 0),
        (dim, dim + 1),
        (dim, u32::MAX),
        (0, 0),
    ] {
        refusal(&file(folder.path(), &payload, &shape(dim, code_bytes)));
    }
    for end in [0, 4, payload.len() - 4] {
        refusal(&file(folder.path(), &payload[..end], &fields));
    }
    refusal(&file(folder.path(), &[], &shape(0, 0)));
    refusal(&file(
        folder.path(),
        &[&payload[..], &[0; 4]].concat(),
        &fields,
    ));
    for fields in [&fields[..0], &fields[..4], &[&fields[..], &[0]].concat()] {
        refusal(&file(folder.path(), &payload, fields));
    }
    for value in [f32::NAN, f32::INFINITY] {
        let mut payload = payload.clone();
        payload[40..44].copy_from_slice(&value.to_le_bytes());
        let text = refusal(&file(folder.path(), &payload, &fields));
        assert!(text.contains("NaN or infinite"), "{text}");
    }
    let path = folder.path().join("codes");
    fs::write(&path, stream::encode(FileKind::Codes, &payload, &fields)).unwrap();
    assert!(refusal(&path).contains("codes"));
}

proptest! {
    #[test]
    fn any_content_under_right_checksums_is_refused_or_read(
        payload in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..5000),
            (1usize..4).prop_flat_map(|dim| prop::collection::vec(any::<u8>(), 1024 * dim)),
        ],
        fields in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..12),
            (0u32..5, 0u32..5).prop_map(|(dim, code_bytes)| shape(dim, code_bytes)),
        ],
    ) {
        let folder = tempfile::tempdir().unwrap();
        if let Ok(codebook) = Codebook::read(file(folder.path(), &payload, &fields)) {
            prop_assert_eq!(payload.len(), 1024 * codebook.dim());
            prop_assert_eq!(shape(codebook.dim() as u32, codebook.code_bytes() as u32), fields);
        }
    }
}

#[test]
fn that_of_an_index_is_read_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let (base, other) = (descriptors(0, 400), descriptors(1_000, 300));
    let build = |base: &Matrix, name: &str, layout, codebook: Option<&Codebook>| {
        let path = folder.path().join(name);
        let options = BuildOptions {
            preset: Preset::DISKANN,
            degree: Some(16),
            build_list: 20,
            layout: Some(layout),
            codebook: codebook.cloned(),
            threads: 1,
            ..BuildOptions::default()
        };
        build(base, &path, &options, &Silent).unwrap();
        path
    };
    let of_index = |path: &Path| {
        let index = Index::open(path, &OpenOptions::default()).unwrap();
        let file = path.join("codebook-000001");
        assert_same(&Codebook::read(&file).unwrap(), index.codebook().unwrap());
        (index.codebook().unwrap().clone(), fs::read(file).unwrap())
    };
    for layout in [Layout::Coupled, Layout::Inline] {
        let (codebook, bytes) = of_index(&build(&base, &format!("{layout}"), layout, None));
        // Indexes that share a codebook have the same bytes in their codebook files.
        let name = format!("{layout}-other");
        let (shared, copy) = of_index(&build(&other, &name, layout, Some(&codebook)));
        assert_same(&shared, &codebook);
        assert!(copy == bytes);
        let aside = folder.path().join("aside");
        shared.write(&aside).unwrap();
        assert!(fs::read(&aside).unwrap() == bytes);
    }
}

#[test]
fn that_of_an_index_of_an_earlier_format_is_used_but_says_no_shape() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["index-v1", "index-v2-packed"] {
        refusal(&fixture(name).join("codebook-000001"));
        let old = Index::open(fixture(name), &OpenOptions::default()).unwrap();
        let codebook = old.codebook().unwrap();
        let content = blake3::hash(&codebook.file().1);
        let path = folder.path().join(name);
        let options = BuildOptions {
            codebook: Some(codebook.clone()),
            degree: Some(16),
            build_list: 20,
            threads: 1,
            ..BuildOptions::default()
        };
        build(&descriptors(0, 300), &path, &options, &Silent).unwrap();
        assert!(verify(&path, &Silent).unwrap().clean());
        let manifest = stored::manifest(&stored::existing(&path).unwrap()).unwrap();
        assert_eq!(manifest.codebook, content.to_string(), "{name}");
        let read = Codebook::read(path.join("codebook-000001")).unwrap();
        assert_eq!(read.hash(), manifest.codebook, "{name}");
    }
}

#[test]
fn training_does_not_depend_on_threads() {
    for (source, code_bytes) in [(descriptors(0, 2_000), 32), (floats(900, 7, 1.0), 3)] {
        for metric in [Metric::L2, Metric::Cosine] {
            let train = |threads| {
                let options = TrainOptions {
                    metric,
                    threads,
                    ..options(code_bytes)
                };
                self::train(&source, &options)
            };
            let one = train(1);
            for threads in [2, 3, 5, 100] {
                assert_same(&train(threads), &one);
            }
        }
    }
}

#[test]
fn under_cosine_rows_count_by_their_direction() {
    let train = |scale, metric| {
        let options = TrainOptions {
            metric,
            ..options(CODE)
        };
        self::train(&floats(700, DIM, scale), &options)
    };
    // If vectors are scaled by a power of two, their directions stay exactly the same.
    assert_same(&train(4.0, Metric::Cosine), &train(1.0, Metric::Cosine));
    let longer = train(4.0, Metric::L2);
    assert_ne!(longer.hash(), train(1.0, Metric::L2).hash());
    assert_ne!(longer.hash(), train(4.0, Metric::Cosine).hash());
}

#[test]
fn codes_take_a_quarter_of_the_dimensions_unless_told() {
    for (dim, code_bytes) in [(1, 1), (4, 1), (5, 2), (128, 32)] {
        let codebook = train(&floats(40, dim, 1.0), &TrainOptions::default());
        assert_eq!(codebook.code_bytes(), code_bytes, "{dim} dimensions");
    }
}

struct Asked {
    rows: usize,
    asked: Mutex<Vec<usize>>,
}

impl VectorSource for Asked {
    fn rows(&self) -> usize {
        self.rows
    }

    fn dim(&self) -> usize {
        1
    }

    fn element(&self) -> Element {
        Element::U8
    }

    fn name(&self) -> &str {
        "asked"
    }

    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        let mut asked = self.asked.lock().unwrap();
        for (row, byte) in (first..).zip(out) {
            asked.push(row);
            *byte = (row * 31) as u8;
        }
        Ok(())
    }
}

#[test]
fn training_takes_an_even_sample() {
    const MOST: usize = 100_000;
    let asked = |rows: usize| {
        let source = Asked {
            rows,
            asked: Mutex::default(),
        };
        train(&source, &options(1));
        source.asked.into_inner().unwrap()
    };
    let all: Vec<usize> = (0..1_000).collect();
    assert_eq!(asked(1_000), all);
    let every_third: Vec<usize> = (0..3 * MOST).step_by(3).collect();
    assert!(asked(3 * MOST) == every_third);
    // Of 100,001 rows, the sample leaves out one.
    let most = asked(MOST + 1);
    assert_eq!(most.len(), MOST);
    assert!(most.is_sorted() && most[0] == 0 && most[MOST - 1] < MOST + 1);
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let refused = |source: &dyn VectorSource, options: &TrainOptions| {
        let error = Codebook::train(source, options, &Silent).unwrap_err();
        assert!(error.is_call_wrong(), "{error}");
        error.to_string()
    };
    let rows = floats(40, DIM, 1.0);
    for code_bytes in [0, DIM + 1, usize::MAX] {
        let error = refused(&rows, &options(code_bytes));
        let words = ["code bytes", &code_bytes.to_string(), "1 to 6"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let empty = Asked {
        rows: 0,
        asked: Mutex::default(),
    };
    let error = refused(&empty, &options(1));
    assert!(
        error.contains("asked") && error.contains("empty"),
        "{error}"
    );
    let with = |values: [f32; DIM]| {
        let mut bytes = vec![0; 40 * DIM * 4];
        floats(40, DIM, 1.0).read(0, &mut bytes).unwrap();
        for (at, value) in values.iter().enumerate() {
            let at = 4 * (17 * DIM + at);
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        Matrix::new(bytes, 40, DIM, Element::F32).unwrap()
    };
    let bad = with([1.0, 2.0, f32::NAN, 1.0, 1.0, 1.0]);
    let error = Codebook::train(&bad, &options(CODE), &Silent).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("17") && error.contains('2'), "{error}");
    let zero = with([0.0; DIM]);
    train(&zero, &options(CODE));
    let cosine = TrainOptions {
        metric: Metric::Cosine,
        ..options(CODE)
    };
    let error = Codebook::train(&zero, &cosine, &Silent).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("17") && error.contains("length 0"),
        "{error}"
    );
}

#[test]
fn training_can_be_interrupted() {
    struct Impatient;
    impl Progress for Impatient {
        fn begin(&self, _: &str, _: u64) {}
        fn advance(&self, _: u64) {}
        fn end(&self) {}
        fn warn(&self, _: &str) {}
        fn interrupted(&self) -> bool {
            true
        }
    }
    let error = Codebook::train(&floats(40, DIM, 1.0), &options(CODE), &Impatient);
    assert!(matches!(error, Err(Error::Interrupted)));
}
