//! A numpy array in a file.
//!
//! ```text
//! offset  size  what
//!      0     6  0x93 "NUMPY"
//!      6     2  version: 1.0, 2.0 or 3.0
//!      8     2  length H of the header (u16; version 1), or
//!      8     4  length H of the header (u32; versions 2 and 3)
//!      .     H  a Python dictionary, such as
//!               {'descr': '<f4', 'fortran_order': False, 'shape': (100, 128), }
//!      .     .  the elements
//! ```
//!
//! Arrays of two dimensions can be read. Their elements are `float32`, `float16`, `float64`,
//! `uint8` or `int8`, in either byte order, and in the order of C or of Fortran. Reads convert
//! `float64` to the nearest `float32`.
//!
//! In the order of Fortran, a read of a few rows needs one read for each column.

use super::DataError;
use super::source::{Shape, Stored, check_not_empty, read_at};
use std::fs::File;
use stratann_vector::Element;

const PIECE: usize = 1 << 20;

const MAGIC: &[u8] = b"\x93NUMPY";

/// The largest length of a header in bytes. A longer header is damaged.
const MAX_HEADER: u64 = 1 << 16;

pub(crate) struct NpyHeader {
    pub(crate) descr: &'static str,
    pub(crate) columns: Option<u64>,
}

impl NpyHeader {
    /// All headers have this length, so that a header can be overwritten later.
    const LENGTH: usize = 128;

    pub(crate) fn bytes(&self, rows: u64) -> Vec<u8> {
        let descr = self.descr;
        let shape = match self.columns {
            Some(columns) => format!("({rows}, {columns})"),
            None => format!("({rows},)"),
        };
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        // Ten bytes precede the text, and a newline follows it. The data begin at a multiple of 64.
        let length = Self::LENGTH - 10;
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((length as u16).to_le_bytes());
        bytes.extend(format!("{header:<width$}\n", width = length - 1).into_bytes());
        bytes
    }
}

pub(super) fn read_header(
    file: &File,
    length: u64,
    name: &str,
) -> Result<(Header, u64), DataError> {
    let mut start = [0; 12];
    let have = length.min(12) as usize;
    read_at(file, 0, &mut start[..have], name)?;
    let field = |offset: u64, what, found: String, reason: &str| DataError::Field {
        file: name.to_owned(),
        offset,
        what,
        found,
        reason: reason.to_owned(),
        remedy: "Save an array with numpy.save".to_owned(),
    };
    if have < 12 {
        return Err(DataError::Truncated {
            file: name.to_owned(),
            found: length,
            expected: "12 or more".to_owned(),
            why: "the header alone is longer".to_owned(),
        });
    }
    if &start[..6] != MAGIC {
        let found = format!("\"{}\"", start[..6].escape_ascii());
        return Err(field(
            0,
            "the magic",
            found,
            "a numpy array begins with \"\\x93NUMPY\"",
        ));
    }
    let (at, header_length) = match (start[6], start[7]) {
        (1, 0) => (10, u64::from(u16::from_le_bytes([start[8], start[9]]))),
        (2 | 3, 0) => (
            12,
            u64::from(u32::from_le_bytes([
                start[8], start[9], start[10], start[11],
            ])),
        ),
        (major, minor) => {
            let found = format!("{major}.{minor}");
            return Err(field(
                6,
                "the version of the npy format",
                found,
                "versions 1.0, 2.0 and 3.0 are known",
            ));
        }
    };
    if header_length > MAX_HEADER {
        return Err(field(
            8,
            "the length of the header",
            header_length.to_string(),
            "it can be at most 65536",
        ));
    }
    if at + header_length > length {
        return Err(DataError::Truncated {
            file: name.to_owned(),
            found: length,
            expected: format!("{} or more", at + header_length),
            why: format!("its header has {header_length} bytes"),
        });
    }
    let mut header = vec![0; header_length as usize];
    read_at(file, at, &mut header, name)?;
    let header = String::from_utf8_lossy(&header);
    let mut header = Header::parse(&header).ok_or_else(|| {
        let found: String = header.trim_end().chars().take(200).collect();
        let reason = "it is a dictionary with 'descr', 'fortran_order' and 'shape'";
        field(at, "the header", format!("{found:?}"), reason)
    })?;
    header.offset = at;
    Ok((header, at + header_length))
}

pub(super) fn read_shape(
    file: &File,
    length: u64,
    name: &str,
    even_empty: bool,
) -> Result<Shape, DataError> {
    let (header, data) = read_header(file, length, name)?;
    let field = |what, found: String, reason: &str, remedy: &str| DataError::Field {
        file: name.to_owned(),
        offset: header.offset,
        what,
        found,
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    };
    let (element, mut array) = element(&header.descr).ok_or_else(|| {
        let reason = "vectors are float32, float16, float64, uint8 or int8";
        let remedy = "Convert them with array.astype()";
        field("the dtype", header.descr.clone(), reason, remedy)
    })?;
    array.fortran = header.fortran_order;
    let &[rows, dim] = &header.shape[..] else {
        let found = format!("{:?}", header.shape);
        return Err(field(
            "the shape",
            found,
            "vectors have two dimensions, (rows, elements of a row)",
            "Save an array of this shape",
        ));
    };
    check_not_empty(name, rows.max(even_empty.into()), dim)?;
    let expected = (u128::from(rows) * u128::from(dim))
        .saturating_mul(array.width as u128)
        .saturating_add(u128::from(data));
    DataError::check_length(name, length, expected, || match array.width {
        8 => format!("its header says {rows} rows of {dim} x f64"),
        _ => format!("its header says {rows} rows of {dim} x {element}"),
    })?;
    Ok(Shape {
        rows: rows as usize,
        dim: dim as usize,
        element,
        start: data,
        stored: match array.is_plain(element) {
            true => Stored::AsTheyAre,
            false => Stored::Array(array),
        },
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Array {
    width: usize,
    big_endian: bool,
    pub(super) fortran: bool,
}

impl Array {
    fn is_plain(self, element: Element) -> bool {
        self.width == element.size() && !self.big_endian && !self.fortran
    }

    pub(super) fn read_rows(
        self,
        file: &File,
        shape: &Shape,
        first: usize,
        out: &mut [u8],
        name: &str,
    ) -> Result<(), DataError> {
        let row_bytes = shape.dim * shape.element.size();
        let step = (PIECE / (shape.dim * self.width)).max(1);
        let mut piece = Vec::new();
        for (n, out) in out.chunks_mut(step * row_bytes).enumerate() {
            let (first, count) = (first + n * step, out.len() / row_bytes);
            piece.resize(count * shape.dim * self.width, 0);
            match self.fortran {
                true => self.read_columns(file, shape, (first, count), &mut piece, name)?,
                false => {
                    let offset = shape.start + (first * shape.dim * self.width) as u64;
                    read_at(file, offset, &mut piece, name)?;
                }
            }
            self.convert(shape, first, &mut piece, out, name)?;
        }
        Ok(())
    }

    /// Fills `piece` row by row from an array in the order of Fortran.
    fn read_columns(
        self,
        file: &File,
        shape: &Shape,
        (first, count): (usize, usize),
        piece: &mut [u8],
        name: &str,
    ) -> Result<(), DataError> {
        let mut column = vec![0; count * self.width];
        for at in 0..shape.dim {
            let offset = shape.start + ((at * shape.rows + first) * self.width) as u64;
            read_at(file, offset, &mut column, name)?;
            let elements = column.chunks_exact(self.width);
            for (row, element) in piece.chunks_exact_mut(shape.dim * self.width).zip(elements) {
                row[at * self.width..(at + 1) * self.width].copy_from_slice(element);
            }
        }
        Ok(())
    }

    fn convert(
        self,
        shape: &Shape,
        first: usize,
        piece: &mut [u8],
        out: &mut [u8],
        name: &str,
    ) -> Result<(), DataError> {
        if self.big_endian {
            piece.chunks_exact_mut(self.width).for_each(<[u8]>::reverse);
        }
        if self.width == shape.element.size() {
            out.copy_from_slice(piece);
            return Ok(());
        }
        let (wide, _) = piece.as_chunks::<8>();
        for (at, (wide, out)) in wide.iter().zip(out.chunks_exact_mut(4)).enumerate() {
            let value = f64::from_le_bytes(*wide);
            let nearest = value as f32;
            if nearest.is_infinite() && value.is_finite() {
                return Err(DataError::TooWide {
                    name: name.to_owned(),
                    row: (first + at / shape.dim) as u64,
                    column: (at % shape.dim) as u64,
                    value,
                });
            }
            out.copy_from_slice(&nearest.to_le_bytes());
        }
        Ok(())
    }
}

/// The element type of a dtype, and its form in the file. `None` if vectors cannot have this dtype.
fn element(descr: &str) -> Option<(Element, Array)> {
    let (order, kind) = descr.split_at_checked(1).unwrap_or((descr, ""));
    let (element, width) = match (order, kind) {
        ("<" | ">", "f4") => (Element::F32, 4),
        ("<" | ">", "f8") => (Element::F32, 8),
        ("<" | ">", "f2") => (Element::F16, 2),
        ("<" | ">" | "|", "u1") => (Element::U8, 1),
        ("<" | ">" | "|", "i1") => (Element::I8, 1),
        _ => return None,
    };
    let array = Array {
        width,
        big_endian: order == ">" && width > 1,
        fortran: false,
    };
    Some((element, array))
}

#[derive(Debug, PartialEq)]
pub(super) struct Header {
    pub(super) descr: String,
    pub(super) fortran_order: bool,
    pub(super) shape: Vec<u64>,
    offset: u64,
}

impl Header {
    /// Parses the dictionary. `None` if a key is missing, or if a key is unknown.
    fn parse(text: &str) -> Option<Header> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        let mut rest = Literal(text);
        rest.symbol('{')?;
        while rest.symbol('}').is_none() {
            let key = rest.string()?;
            rest.symbol(':')?;
            match key {
                "descr" => descr = Some(rest.string().or_else(|| rest.list())?.to_owned()),
                "fortran_order" => fortran_order = Some(rest.boolean()?),
                "shape" => shape = Some(rest.tuple()?),
                _ => return None,
            }
            if rest.symbol(',').is_none() {
                rest.symbol('}')?;
                break;
            }
        }
        rest.0.trim().is_empty().then_some(())?;
        Some(Header {
            descr: descr?,
            fortran_order: fortran_order?,
            shape: shape?,
            offset: 0,
        })
    }
}

/// The remaining text of a Python literal. Each method removes one kind of literal from its
/// beginning.
struct Literal<'a>(&'a str);

impl<'a> Literal<'a> {
    fn symbol(&mut self, symbol: char) -> Option<()> {
        self.0 = self.0.trim_start().strip_prefix(symbol)?;
        Some(())
    }

    fn string(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let (string, rest) = text[1..].split_once(quote)?;
        self.0 = rest;
        Some(string)
    }

    /// Parses the dtype of a structured array, to quote it in the error.
    fn list(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        text.starts_with('[').then_some(())?;
        let mut depth = 0usize;
        for (at, c) in text.char_indices() {
            match c {
                '[' => depth += 1,
                ']' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                self.0 = &text[at + 1..];
                return Some(&text[..=at]);
            }
        }
        None
    }

    fn boolean(&mut self) -> Option<bool> {
        let text = self.0.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = text.strip_prefix(word) {
                self.0 = rest;
                return Some(value);
            }
        }
        None
    }

    fn tuple(&mut self) -> Option<Vec<u64>> {
        let mut numbers = Vec::new();
        self.symbol('(')?;
        while self.symbol(')').is_none() {
            let text = self.0.trim_start();
            let end = text
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(text.len());
            numbers.push(text[..end].parse().ok()?);
            // Python 2 appends an L to its long integers.
            self.0 = text[end..].strip_prefix('L').unwrap_or(&text[end..]);
            if self.symbol(',').is_none() {
                self.symbol(')')?;
                break;
            }
        }
        Some(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Matrix, VectorFile, VectorSource};
    use super::*;
    use proptest::prelude::*;

    fn file(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&[version, 0]);
        if version == 1 {
            bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
        } else {
            bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
        }
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    fn open(bytes: &[u8]) -> Result<Matrix, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        std::fs::write(&path, bytes).unwrap();
        let file = VectorFile::open(&path).map_err(|error| error.to_string())?;
        Matrix::read(&file).map_err(|error| error.to_string())
    }

    fn header(descr: &str, order: &str, shape: &str) -> String {
        format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}     \n")
    }

    #[test]
    fn all_versions_and_elements() {
        for version in 1..=3 {
            for (descr, element) in [
                ("<f4", Element::F32),
                ("<f2", Element::F16),
                ("|u1", Element::U8),
                ("|i1", Element::I8),
            ] {
                let data: Vec<u8> = (0..6 * element.size() as u8).collect();
                let bytes = file(version, &header(descr, "False", "(2, 3)"), &data);
                let matrix = open(&bytes).unwrap();
                assert_eq!(
                    (matrix.rows(), matrix.dim(), matrix.element()),
                    (2, 3, element)
                );
                assert_eq!(matrix.bytes(), data);
            }
        }
    }

    #[test]
    fn as_numpy_writes_it() {
        // The bytes of numpy.save of numpy.arange(6, dtype='uint8').reshape(2, 3) in numpy 1.26.
        let mut text = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }".to_owned();
        while !(10 + text.len() + 1).is_multiple_of(64) {
            text.push(' ');
        }
        text.push('\n');
        let bytes = file(1, &text, &[0, 1, 2, 3, 4, 5]);
        assert_eq!(bytes.len(), 128 + 6);
        assert_eq!(open(&bytes).unwrap().row(1), [3, 4, 5]);
    }

    #[test]
    fn what_cannot_be_read_is_said_with_a_remedy() {
        for (descr, order, shape, message) in [
            (
                "<i4",
                "False",
                "(2, 3)",
                "the dtype at offset 10 is <i4; vectors are float32, float16, float64, uint8 or int8. Convert them with array.astype()",
            ),
            (
                "<f8",
                "False",
                "(2, 3)",
                "truncated; 99 bytes found, 123 expected (its header says 2 rows of 3 x f64)",
            ),
            ("|O", "False", "(2, 3)", "the dtype at offset 10 is |O"),
            ("", "False", "(2, 3)", "the dtype at offset 10 is ;"),
            (
                "<f4",
                "False",
                "(6,)",
                "the shape at offset 10 is [6]; vectors have two dimensions",
            ),
            ("<f4", "False", "()", "the shape at offset 10 is []"),
            (
                "<f4",
                "False",
                "(1, 2, 3)",
                "the shape at offset 10 is [1, 2, 3]",
            ),
            ("<f4", "False", "(0, 3)", "number of rows is 0; at least 1"),
            ("<f4", "False", "(3, 0)", "dimension is 0; at least 1"),
            (
                "<f4",
                "False",
                "(2, 4)",
                "truncated; 99 bytes found, 107 expected (its header says 2 rows of 4 x f32)",
            ),
            ("<f4", "False", "(1, 3)", "12 trailing bytes"),
            (
                "<f4",
                "False",
                "(18446744073709551615, 18446744073709551615)",
                "truncated",
            ),
            ("<f4", "False", "(-1, 3)", "the header at offset 10"),
            (
                "<f4",
                "False",
                "(99999999999999999999, 3)",
                "the header at offset 10",
            ),
            ("<f4", "0", "(2, 3)", "the header at offset 10"),
        ] {
            let text = open(&file(1, &header(descr, order, shape), &[0; 24])).unwrap_err();
            assert!(text.contains(message), "{text}");
        }
        let structured = "{'descr': [('x', '<f4'), ('y', [('z', '<f4')])], 'fortran_order': False, 'shape': (2, 3)}";
        let text = open(&file(1, structured, &[0; 24])).unwrap_err();
        assert!(
            text.contains("the dtype at offset 10 is [('x', '<f4'), "),
            "{text}"
        );
    }

    #[test]
    fn other_widths_and_orders_are_converted_as_they_are_read() {
        let (rows, dim) = (3_001, 70);
        let value = |row: usize, column: usize| (row * dim + column) as f64 * -0.7 + 1e-3;
        for (descr, fortran) in [
            ("<f4", true),
            (">f4", false),
            (">f4", true),
            ("<f8", false),
            ("<f8", true),
            (">f8", false),
            (">f8", true),
        ] {
            let order = |at: usize| match fortran {
                true => (at % rows, at / rows),
                false => (at / dim, at % dim),
            };
            let data: Vec<u8> = (0..rows * dim)
                .flat_map(|at| {
                    let (row, column) = order(at);
                    let value = value(row, column);
                    match descr {
                        "<f4" => (value as f32).to_le_bytes().to_vec(),
                        ">f4" => (value as f32).to_be_bytes().to_vec(),
                        "<f8" => value.to_le_bytes().to_vec(),
                        _ => value.to_be_bytes().to_vec(),
                    }
                })
                .collect();
            let text = if fortran { "True" } else { "False" };
            let bytes = file(1, &header(descr, text, &format!("({rows}, {dim})")), &data);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("A.NPY");
            std::fs::write(&path, &bytes).unwrap();
            let opened = VectorFile::open(&path).unwrap();
            let shape = (opened.rows(), opened.dim(), opened.element());
            assert_eq!(shape, (rows, dim, Element::F32), "{descr} {fortran}");
            assert_eq!(opened.has_random_access(), !fortran);
            let matrix = Matrix::read(&opened).unwrap();
            for row in [0, 1, 2_999, 3_000] {
                let floats: Vec<u8> = (0..dim)
                    .flat_map(|column| (value(row, column) as f32).to_le_bytes())
                    .collect();
                assert_eq!(matrix.row(row), floats, "{descr} {fortran}");
                let mut alone = vec![0; dim * 4];
                opened.read(row, &mut alone).unwrap();
                assert_eq!(alone, floats, "{descr} {fortran}");
            }
        }
        let data: Vec<u8> = (0..6).collect();
        let matrix = open(&file(1, &header("|u1", "True", "(2, 3)"), &data)).unwrap();
        assert_eq!(matrix.bytes(), [0, 2, 4, 1, 3, 5]);
        let data: Vec<u8> = (0..12).collect();
        let matrix = open(&file(1, &header(">f2", "True", "(2, 3)"), &data)).unwrap();
        assert_eq!(
            (matrix.element(), matrix.row(0)),
            (Element::F16, &[1, 0, 5, 4, 9, 8][..])
        );
    }

    #[test]
    fn doubles_that_are_no_floats_are_named() {
        let of = |values: [f64; 6]| {
            let data: Vec<u8> = values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            open(&file(1, &header("<f8", "False", "(2, 3)"), &data))
        };
        let text = of([1.0, 2.0, 3.0, 4.0, -1e300, 6.0]).unwrap_err();
        assert!(
            text.contains("row 1, column 1 is -1e300, which float32 cannot represent"),
            "{text}"
        );
        // NaN and infinity are read, and found by a later check of the rows. Numbers that are too
        // small become zero.
        let matrix = of([
            f64::NAN,
            f64::INFINITY,
            1e-300,
            f64::from(f32::MAX),
            0.1,
            -0.0,
        ])
        .unwrap();
        let floats: Vec<f32> = matrix
            .bytes()
            .chunks_exact(4)
            .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
            .collect();
        assert!(floats[0].is_nan() && floats[1] == f32::INFINITY && floats[2] == 0.0);
        assert_eq!(floats[3..], [f32::MAX, 0.1, -0.0]);
    }

    #[test]
    fn damaged_files_are_refused() {
        let good = file(2, &header("<f4", "False", "(2, 3)"), &[0; 24]);
        open(&good).unwrap();
        for length in 0..good.len() {
            open(&good[..length]).unwrap_err();
        }
        assert!(
            open(&file(4, &header("<f4", "False", "(2, 3)"), &[0; 24]))
                .unwrap_err()
                .contains("is 4.0")
        );
        assert!(
            open(b"not a numpy array")
                .unwrap_err()
                .contains("the magic at offset 0")
        );
        let mut long = good;
        long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(
            open(&long)
                .unwrap_err()
                .contains("the length of the header at offset 8 is 4294967295")
        );
        for text in [
            "",
            "{",
            "{}",
            "{'descr': '<f4'}",
            "{'descr'}",
            "[",
            "{'shape': (1",
            "{'x': 1}",
            "{'descr': [}",
        ] {
            assert_eq!(Header::parse(text), None, "{text}");
        }
        let twice = header("<f4", "False", "(2, 3)") + "x";
        assert_eq!(Header::parse(&twice), None);
    }

    proptest! {
        #[test]
        fn arbitrary_headers_never_panic(text in "[\\[\\]{}'\"(),: 0-9LTrueFalsedscrpthon_<f4é]{0,80}") {
            let _ = Header::parse(&text);
        }
    }
}
