//! The big-ann matrix. It is the format of `.fbin .hbin .u8bin .i8bin`, and of `.ibin` with 32-bit
//! integers.
//!
//! ```text
//! offset  size  what
//!      0     4  rows n (u32)
//!      4     4  dimension d (u32)
//!      8 n*d*s  the elements, row after row; s bytes each
//! ```
//!
//! A file whose name ends with `.crop_nb_N` has the first N rows of a larger file. Its header may
//! be the header of the larger file.

use super::DataError;
use super::output::Output;
use super::source::{
    Shape, Stored, VectorSource, check_not_empty, extension, extension_error, read_at,
};
use std::fs::File;
use std::path::Path;
use stratann_vector::Element;

pub(super) const HEADER: u64 = 8;

const PIECE: usize = 1 << 20;

pub(super) fn read_header(file: &File, length: u64, name: &str) -> Result<(u32, u32), DataError> {
    let (rows, dim) = read_any_header(file, length, name)?;
    check_not_empty(name, u64::from(rows), u64::from(dim))?;
    Ok((rows, dim))
}

fn read_any_header(file: &File, length: u64, name: &str) -> Result<(u32, u32), DataError> {
    if length < HEADER {
        return Err(DataError::Truncated {
            file: name.to_owned(),
            found: length,
            expected: HEADER.to_string(),
            why: "the header alone has that many".to_owned(),
        });
    }
    let mut header = [0; HEADER as usize];
    read_at(file, 0, &mut header, name)?;
    let [a, b, c, d, e, f, g, h] = header;
    Ok((
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    ))
}

/// Compares the length of the file with the header. Only with `even_empty`, a file may have no
/// rows. `left` is the number of rows in the name of a cropped file.
pub(super) fn read_shape(
    file: &File,
    length: u64,
    element: Element,
    left: Option<u32>,
    name: &str,
    even_empty: bool,
) -> Result<Shape, DataError> {
    let (all, dim) = read_any_header(file, length, name)?;
    let rows = left.unwrap_or(all);
    let least = u32::from(even_empty);
    check_not_empty(name, rows.max(least).into(), dim.into())?;
    if rows > all {
        return Err(DataError::Field {
            file: name.to_owned(),
            offset: 0,
            what: "the number of rows",
            found: all.to_string(),
            reason: format!("the file name says {rows} rows (.crop_nb_{rows})"),
            remedy: "Fetch the file again, or give it the name of the whole file".into(),
        });
    }
    let expected = u128::from(HEADER) + u128::from(rows) * u128::from(dim) * element.size() as u128;
    DataError::check_length(name, length, expected, || match left {
        None => format!("its header says {rows} rows of {dim} x {element}"),
        Some(_) => format!("its name says {rows} rows, its header {dim} x {element} each"),
    })?;
    Ok(Shape {
        rows: rows as usize,
        dim: dim as usize,
        element,
        start: HEADER,
        stored: Stored::AsTheyAre,
    })
}

pub(crate) fn bin_extension(element: Element) -> &'static str {
    match element {
        Element::F32 => "fbin",
        Element::F16 => "hbin",
        Element::U8 => "u8bin",
        Element::I8 => "i8bin",
    }
}

/// Writes all rows of a source. The extension must fit the element type: `.fbin` for f32, `.hbin`
/// for f16, `.u8bin` for u8, `.i8bin` for i8. The file gets its name when it is complete.
pub fn write_bin(path: impl AsRef<Path>, source: &dyn VectorSource) -> Result<(), DataError> {
    let path = path.as_ref();
    let right = bin_extension(source.element());
    if extension(path) != right {
        return Err(extension_error(path, &format!(".{right}")));
    }
    let number = |what: &'static str, value: usize| {
        u32::try_from(value).map_err(|_| DataError::too_wide(what, value))
    };
    let rows = number("the number of rows", source.rows())?;
    let dim = number("the dimension", source.dim())?;

    let mut output = Output::create(path)?;
    output.write(&rows.to_le_bytes())?;
    output.write(&dim.to_le_bytes())?;
    let step = (PIECE / source.row_bytes()).max(1);
    let mut piece = vec![0; step.min(source.rows()) * source.row_bytes()];
    for first in (0..source.rows()).step_by(step) {
        let count = step.min(source.rows() - first);
        let piece = &mut piece[..count * source.row_bytes()];
        source.read(first, piece)?;
        output.write(piece)?;
    }
    output.commit()
}

#[cfg(test)]
mod tests {
    use super::super::{Matrix, VectorFile};
    use super::*;
    use proptest::prelude::*;

    fn matrix(rows: usize, dim: usize, element: Element) -> Matrix {
        let bytes = (0..rows * dim * element.size())
            .map(|at| (at * 37 % 251) as u8)
            .collect();
        Matrix::new(bytes, rows, dim, element).unwrap()
    }

    fn name(element: Element) -> &'static str {
        match element {
            Element::F32 => "a.fbin",
            Element::F16 => "a.hbin",
            Element::U8 => "a.u8bin",
            Element::I8 => "a.i8bin",
        }
    }

    #[test]
    fn bytes_stand_where_the_table_says() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.u8bin");
        write_bin(
            &path,
            &Matrix::new(vec![1, 2, 3, 4, 5, 6], 2, 3, Element::U8).unwrap(),
        )
        .unwrap();
        assert_eq!(
            std::fs::read(&path).unwrap(),
            [2, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3, 4, 5, 6]
        );
        let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(
            names.len(),
            1,
            "the write left another file beside the written file"
        );
    }

    #[test]
    fn a_large_file_round_trips_in_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.fbin");
        let all = matrix(7000, 100, Element::F32);
        write_bin(&path, &all).unwrap();
        let file = VectorFile::open(&path).unwrap();
        assert_eq!(
            (file.rows(), file.dim(), file.element()),
            (7000, 100, Element::F32)
        );
        assert_eq!(Matrix::read(&file).unwrap().bytes(), all.bytes());
        let mut out = vec![0; 3 * 400];
        file.gather(&[6999, 5, 6], &mut out).unwrap();
        assert_eq!(out, [all.row(6999), all.row(5), all.row(6)].concat());
        file.read(6999, &mut out).unwrap_err();
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.fbin");
        write_bin(&path, &matrix(10, 4, Element::F32)).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let open = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            VectorFile::open(&path)
                .map(|_| ())
                .map_err(|error| error.to_string())
        };
        open(&bytes).unwrap();
        let text = open(&bytes[..160]).unwrap_err();
        assert!(
            text.contains("a.fbin: truncated; 160 bytes found, 168 expected (its header says 10 rows of 4 x f32)"),
            "{text}"
        );
        let text = open(&[&bytes[..], &[0; 5]].concat()).unwrap_err();
        assert!(
            text.contains("5 trailing bytes; 173 bytes found, 168 expected"),
            "{text}"
        );
        for length in 0..8 {
            assert!(open(&bytes[..length]).unwrap_err().contains("8 expected"));
        }
        assert!(
            open(&[0, 0, 0, 0, 4, 0, 0, 0])
                .unwrap_err()
                .contains("the number of rows is 0; at least 1")
        );
        assert!(
            open(&[4, 0, 0, 0, 0, 0, 0, 0])
                .unwrap_err()
                .contains("the dimension is 0; at least 1")
        );
        assert!(
            open(&[255; 16])
                .unwrap_err()
                .contains("73786976260478468108 expected")
        );
    }

    #[test]
    fn a_cropped_file_has_as_many_rows_as_its_name_says() {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join("base.1B.fbin");
        let all = matrix(10, 4, Element::F32);
        write_bin(&whole, &all).unwrap();
        let mut bytes = std::fs::read(&whole).unwrap()[..8 + 6 * 16].to_vec();
        bytes[..4].copy_from_slice(&1_000_000_000u32.to_le_bytes());
        for name in ["base.1B.fbin.crop_nb_6", "base.1B.FBIN.CROP_NB_6"] {
            let path = folder.path().join(name);
            std::fs::write(&path, &bytes).unwrap();
            let file = VectorFile::open(&path).unwrap();
            assert_eq!((file.rows(), file.dim()), (6, 4), "{name}");
            assert_eq!(Matrix::read(&file).unwrap().bytes(), &all.bytes()[..96]);
        }
        // Some tools rewrite the header of a cropped file, and others leave it unchanged.
        let path = folder.path().join("base.1B.fbin.crop_nb_6");
        bytes[..4].copy_from_slice(&6u32.to_le_bytes());
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(VectorFile::open(&path).unwrap().rows(), 6);
        let refused = |bytes: &[u8], name: &str, words: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let text = VectorFile::open(&path).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        };
        refused(
            &bytes,
            "a.fbin.crop_nb_7",
            "is 6; the file name says 7 rows (.crop_nb_7). ",
        );
        refused(&bytes, "a.fbin.crop_nb_5", "16 trailing bytes");
        refused(&bytes[..100], "a.fbin.crop_nb_6", "its name says 6 rows");
        refused(
            &bytes,
            "a.fbin.crop_nb_0",
            "the number of rows is 0; at least 1",
        );
        for name in [
            "a.fbin.crop_nb_",
            "a.fbin.crop_nb_x",
            "a.txt.crop_nb_6",
            "crop_nb_6",
        ] {
            refused(
                &bytes,
                name,
                "names no format that is possible here. Use one of: .fbin",
            );
        }
    }

    #[test]
    fn a_file_that_shrinks_later_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.fbin");
        write_bin(&path, &matrix(10, 4, Element::F32)).unwrap();
        let file = VectorFile::open(&path).unwrap();
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(100)
            .unwrap();
        let text = file.read(9, &mut [0; 16]).unwrap_err().to_string();
        assert!(
            text.contains("cannot read 16 bytes at offset 152"),
            "{text}"
        );
    }

    #[test]
    fn the_extension_must_be_that_of_the_element() {
        let folder = tempfile::tempdir().unwrap();
        let error =
            write_bin(folder.path().join("a.fbin"), &matrix(1, 1, Element::U8)).unwrap_err();
        assert!(
            error.to_string().ends_with(
                "the extension \".fbin\" names no format that is possible here. Use one of: .u8bin"
            ),
            "{error}"
        );
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
        let error = write_bin("/nonexistent/a.u8bin", &matrix(1, 1, Element::U8)).unwrap_err();
        assert!(error.to_string().contains("cannot create"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn any_matrix_round_trips(rows in 1usize..50, dim in 1usize..40, element in 0usize..4, first: usize) {
            let element = Element::ALL[element];
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(name(element));
            let all = matrix(rows, dim, element);
            write_bin(&path, &all).unwrap();
            let file = VectorFile::open(&path).unwrap();
            let back = Matrix::read(&file).unwrap();
            prop_assert_eq!(back.bytes(), all.bytes());
            let first = first % rows;
            let mut tail = vec![0; (rows - first) * file.row_bytes()];
            file.read(first, &mut tail).unwrap();
            prop_assert_eq!(&tail[..], &all.bytes()[first * file.row_bytes()..]);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), dim in 0u32..4, fit: bool) {
            let folder = tempfile::tempdir().unwrap();
            let mut bytes = bytes;
            if fit && bytes.len() >= 8 {
                let rows = (bytes.len() as u32 - 8).checked_div(dim).unwrap_or(0);
                bytes[..4].copy_from_slice(&rows.to_le_bytes());
                bytes[4..8].copy_from_slice(&dim.to_le_bytes());
            }
            for name in ["a.u8bin", "a.fbin", "a.bvecs", "a.fvecs", "a.npy"] {
                let path = folder.path().join(name);
                std::fs::write(&path, &bytes).unwrap();
                if let Ok(file) = VectorFile::open(&path) {
                    let _ = Matrix::read(&file);
                }
            }
        }
    }
}
