//! The real data that the repository holds, as the tests want it: whole, or some rows of it.

use std::path::{Path, PathBuf};

use stratann::{Matrix, VectorFile, VectorSource};

/// Where a file or an index of the folder `fixtures` stands.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name)
}

/// All rows of a file.
pub fn matrix(name: &str) -> Matrix {
    Matrix::read(&VectorFile::open(fixture(name)).unwrap()).unwrap()
}

/// `count` rows of a file from `first` on.
pub fn rows(name: &str, first: usize, count: usize) -> Matrix {
    let file = VectorFile::open(fixture(name)).unwrap();
    let mut bytes = vec![0; count * file.row_bytes()];
    file.read(first, &mut bytes).unwrap();
    Matrix::new(bytes, count, file.dim(), file.element()).unwrap()
}

/// The first rows of a file.
pub fn head(name: &str, count: usize) -> Matrix {
    rows(name, 0, count)
}

/// Descriptors that an index is built of.
pub const SIFT_BASE: &str = "photo-sift-20k.base.u8bin";
/// Those that are looked for in it.
pub const SIFT_QUERIES: &str = "photo-sift-20k.query.u8bin";

/// Whether tests may take minutes each: `make test-slow`, or `STRATANN_SLOW=1`.
pub fn slow() -> bool {
    std::env::var_os("STRATANN_SLOW").is_some()
}
