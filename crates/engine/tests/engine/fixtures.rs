//! The real data of the repository for tests: whole files, or some vectors.

use std::path::{Path, PathBuf};

use stratann::{Matrix, VectorFile, VectorSource};

pub fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name)
}

pub fn matrix(name: &str) -> Matrix {
    Matrix::read(&VectorFile::open(fixture(name)).unwrap()).unwrap()
}

/// `count` vectors of a file from `first` on.
pub fn rows(name: &str, first: usize, count: usize) -> Matrix {
    let file = VectorFile::open(fixture(name)).unwrap();
    let mut bytes = vec![0; count * file.row_bytes()];
    file.read(first, &mut bytes).unwrap();
    Matrix::new(bytes, count, file.dim(), file.element()).unwrap()
}

pub fn head(name: &str, count: usize) -> Matrix {
    rows(name, 0, count)
}

pub const SIFT_BASE: &str = "photo-sift-20k.base.u8bin";
pub const SIFT_QUERIES: &str = "photo-sift-20k.query.u8bin";

/// Whether tests may take minutes each: `make test-slow`, or `STRATANN_SLOW=1`.
pub fn slow() -> bool {
    std::env::var_os("STRATANN_SLOW").is_some()
}
