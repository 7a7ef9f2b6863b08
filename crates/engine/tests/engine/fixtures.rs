//! The real data of the repository for tests: whole files, or some vectors.

use std::path::{Path, PathBuf};

use stratann::{Element, Matrix, VectorFile, VectorSource};

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

/// Draws rows of `DIM` normally distributed floats, from a seed.
pub struct Normal<const DIM: usize>(pub u64);

impl<const DIM: usize> Normal<DIM> {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn rows(&mut self, count: usize, of: impl Fn(f32) -> f32) -> Vec<f32> {
        let normal = || {
            let (u, v) = (1.0 - self.uniform(), self.uniform());
            of(((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32)
        };
        std::iter::repeat_with(normal).take(count * DIM).collect()
    }

    pub fn matrix(rows: &[f32]) -> Matrix {
        let bytes = rows.iter().flat_map(|x| x.to_le_bytes()).collect();
        Matrix::new(bytes, rows.len() / DIM, DIM, Element::F32).unwrap()
    }
}
