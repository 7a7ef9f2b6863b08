//! The TexMex formats. In a file, the dimension precedes each row.
//!
//! ```text
//! .fvecs  per row: d (u32), d x f32
//! .bvecs  per row: d (u32), d x u8
//! .ivecs  per row: d (u32), d x i32
//! ```
//!
//! The length of the file determines the number of rows. Reads check that all rows have the
//! dimension of the first row.

use super::DataError;
use super::source::{Shape, Stored, check_not_empty, read_at};
use std::fs::File;
use stratann_vector::Element;

const PIECE: usize = 1 << 20;

/// Elements have `size` bytes.
pub(super) fn read_counts(
    file: &File,
    length: u64,
    size: usize,
    name: &str,
) -> Result<(usize, u32), DataError> {
    check_not_empty(name, length, 1)?;
    let truncated = |expected: String, why: String| DataError::Truncated {
        file: name.to_owned(),
        found: length,
        expected,
        why,
    };
    if length < 4 {
        return Err(truncated(
            "4 or more".to_owned(),
            "a row starts with its dimension".to_owned(),
        ));
    }
    let mut four = [0; 4];
    read_at(file, 0, &mut four, name)?;
    let dim = u32::from_le_bytes(four);
    check_not_empty(name, 1, u64::from(dim))?;
    // The stride is at most 4 + 2^32 * 4.
    let stride = 4 + u64::from(dim) * size as u64;
    let over = length % stride;
    if over != 0 {
        let rows = length / stride + 1;
        let expected = format!(
            "a multiple of {stride}, such as {}",
            u128::from(rows) * u128::from(stride)
        );
        return Err(truncated(
            expected,
            format!("its first row has dimension {dim}"),
        ));
    }
    Ok(((length / stride) as usize, dim))
}

pub(super) fn read_shape(
    file: &File,
    length: u64,
    element: Element,
    name: &str,
) -> Result<Shape, DataError> {
    let (rows, dim) = read_counts(file, length, element.size(), name)?;
    Ok(Shape {
        rows,
        dim: dim as usize,
        element,
        start: 0,
        stored: Stored::Prefixed,
    })
}

pub(super) fn read_rows(
    file: &File,
    shape: &Shape,
    first: usize,
    out: &mut [u8],
    name: &str,
) -> Result<(), DataError> {
    let row_bytes = shape.dim * shape.element.size();
    read_prefixed(file, shape.dim, row_bytes, first, out, name)
}

pub(super) fn read_prefixed(
    file: &File,
    dim: usize,
    row_bytes: usize,
    first: usize,
    out: &mut [u8],
    name: &str,
) -> Result<(), DataError> {
    let stride = 4 + row_bytes;
    let step = (PIECE / stride).max(1);
    let mut piece = vec![0; stride * step.min(out.len() / row_bytes)];
    let mut row = first;
    for out in out.chunks_mut(step * row_bytes) {
        let piece = &mut piece[..out.len() / row_bytes * stride];
        read_at(file, row as u64 * stride as u64, piece, name)?;
        for (to, from) in out
            .chunks_exact_mut(row_bytes)
            .zip(piece.chunks_exact(stride))
        {
            let found = u32::from_le_bytes([from[0], from[1], from[2], from[3]]);
            if found as usize != dim {
                return Err(DataError::Field {
                    file: name.to_owned(),
                    offset: row as u64 * stride as u64,
                    what: "the dimension of a row",
                    found: format!("{found} (row {row})"),
                    reason: format!("the first row has {dim}"),
                    remedy: "Fetch or write the file again".into(),
                });
            }
            to.copy_from_slice(&from[4..]);
            row += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Matrix, VectorFile, VectorSource};
    use super::*;

    fn open(name: &str, bytes: &[u8]) -> Result<Matrix, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        Matrix::read(&VectorFile::open(&path)?)
    }

    fn rows(rows: usize, row_bytes: usize, dim: u32) -> (Vec<u8>, Vec<u8>) {
        let (mut file, mut plain) = (Vec::new(), Vec::new());
        for row in 0..rows {
            file.extend_from_slice(&dim.to_le_bytes());
            for at in 0..row_bytes {
                file.push((row * 7 + at) as u8);
                plain.push((row * 7 + at) as u8);
            }
        }
        (file, plain)
    }

    #[test]
    fn rows_come_without_their_dimensions() {
        let (file, plain) = rows(3, 5, 5);
        let matrix = open("a.bvecs", &file).unwrap();
        assert_eq!(
            (matrix.rows(), matrix.dim(), matrix.element()),
            (3, 5, Element::U8)
        );
        assert_eq!(matrix.bytes(), plain);
        let (file, plain) = rows(4, 12, 3);
        let matrix = open("a.fvecs", &file).unwrap();
        assert_eq!(
            (matrix.rows(), matrix.dim(), matrix.element()),
            (4, 3, Element::F32)
        );
        assert_eq!(matrix.bytes(), plain);
    }

    #[test]
    fn more_than_a_piece_and_from_the_middle() {
        let (bytes, plain) = rows(5000, 512, 128);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.fvecs");
        std::fs::write(&path, &bytes).unwrap();
        let file = VectorFile::open(&path).unwrap();
        assert_eq!(Matrix::read(&file).unwrap().bytes(), plain);
        let mut out = vec![0; 512 * 2100];
        file.read(2900, &mut out).unwrap();
        assert_eq!(out, plain[512 * 2900..]);
        file.gather(&[4, 5, 6, 1], &mut out[..2048]).unwrap();
        assert_eq!(out[..1536], plain[512 * 4..512 * 7]);
        assert_eq!(out[1536..2048], plain[512..1024]);
    }

    #[test]
    fn damage_is_named() {
        let (mut file, _) = rows(3, 5, 5);
        let text = open("a.bvecs", &file[..26]).unwrap_err().to_string();
        assert!(
            text.contains("26 bytes found, a multiple of 9, such as 27 expected"),
            "{text}"
        );
        file[9] = 6;
        let text = open("a.bvecs", &file).unwrap_err().to_string();
        assert!(
            text.contains(
                "the dimension of a row at offset 9 is 6 (row 1); the first row has 5. Fetch or write the file again"
            ),
            "{text}"
        );
        assert!(
            open("a.bvecs", &[])
                .unwrap_err()
                .to_string()
                .contains("number of rows is 0; at least 1")
        );
        assert!(
            open("a.bvecs", &[0; 4])
                .unwrap_err()
                .to_string()
                .contains("dimension is 0; at least 1")
        );
        open("a.bvecs", &[1, 0, 0]).unwrap_err();
        open("a.fvecs", &[255; 20]).unwrap_err();
    }
}
