//! Opening an index:
//! `cargo bench --manifest-path bench/kernels/Cargo.toml --bench open [-- filter]`.
//!
//! An `aisaq` index has its codes in its nodes, so opening must take the same time for 1,000,
//! 10,000 and 20,000 vectors. `STRATANN_INDEXES=a.idx,b.idx` adds your own indexes. The files are
//! in the page cache.
//!
//! - `open`: [`Index::open`], including the codebook
//! - `switch`: opens and closes another index of a catalog that holds the codebook already
//! - `found`: checks whether an open index of a catalog is still the one on disk

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use stratann::{
    BuildOptions, Catalog, CatalogOptions, Codebook, Index, MatrixRef, OpenOptions, Preset, Silent,
    TrainOptions, VectorFile, VectorSource, build,
};

const FIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../fixtures/photo-sift-20k.base.u8bin"
);
const ROWS: [usize; 3] = [1_000, 10_000, 20_000];

fn indexes(folder: &Path) -> Result<Vec<(String, PathBuf)>, stratann::Error> {
    let file = VectorFile::open(FIXTURE)?;
    let mut bytes = vec![0; file.rows() * file.row_bytes()];
    file.read(0, &mut bytes)?;
    let training = TrainOptions {
        code_bytes: Some(16),
        ..TrainOptions::default()
    };
    let codebook = Codebook::train(&file, &training, &Silent)?;
    let mut indexes = Vec::new();
    for rows in ROWS {
        let path = folder.join(rows.to_string());
        let bytes = &bytes[..rows * file.row_bytes()];
        let matrix = MatrixRef::new(bytes, rows, file.dim(), file.element())?;
        let options = BuildOptions {
            preset: Preset::AISAQ,
            degree: Some(32),
            build_list: 50,
            codebook: Some(codebook.clone()),
            ..BuildOptions::default()
        };
        build(&matrix, &path, &options, &Silent)?;
        indexes.push((format!("{rows} vectors"), path));
    }
    if let Ok(more) = std::env::var("STRATANN_INDEXES") {
        for path in more.split(',').filter(|path| !path.is_empty()) {
            let index = Index::open(path, &OpenOptions::default())?;
            let name = Path::new(path).file_name().unwrap_or_default();
            let name = format!("{} of {} vectors", name.to_string_lossy(), index.len());
            // A catalog must be able to tell it from the others.
            indexes.push((
                name,
                std::path::absolute(path).unwrap_or_else(|_| path.into()),
            ));
        }
    }
    Ok(indexes)
}

fn opening(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder for the indexes");
    let indexes = indexes(folder.path()).expect("the fixture, and indexes that open");

    let mut group = c.benchmark_group("open");
    let options = OpenOptions::default();
    for (name, path) in &indexes {
        group.bench_function(name, |b| {
            b.iter(|| black_box(Index::open(path, &options).expect("an index")));
        });
    }
    group.finish();

    let paths = indexes.iter().map(|(_, path)| path);
    let catalog = Catalog::of_paths(paths, &CatalogOptions::default()).expect("a catalog");
    let mut group = c.benchmark_group("switch");
    for (name, path) in &indexes {
        let path = path.display().to_string();
        catalog.index(&path).expect("an index");
        group.bench_function(name, |b| {
            b.iter_custom(|times| {
                let mut spent = Duration::ZERO;
                for _ in 0..times {
                    let start = Instant::now();
                    catalog.close(&path);
                    black_box(catalog.index(&path).expect("an index"));
                    spent += start.elapsed();
                }
                spent
            });
        });
    }
    group.finish();

    let mut group = c.benchmark_group("found");
    for (name, path) in &indexes {
        let path = path.display().to_string();
        group.bench_function(name, |b| {
            b.iter(|| black_box(catalog.index(&path).expect("an index")));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(50);
    targets = opening
}
criterion_main!(benches);
