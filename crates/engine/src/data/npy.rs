//! A numpy array in a file.
//!
//! ```text
//! offset  size  what
//!      0     6  0x93 "NUMPY"
//!      6     2  version: 1.0, 2.0 or 3.0
//!      8     2  length H of the header (u16; version 1), or
//!      8     4  length H of the header (u32; versions 2 and 3)
//!      .     H  a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (100, 128), }
//!      .     .  the elements
//! ```
//!
//! Read are arrays of two dimensions in C order, of `float32`, `float16`, `uint8` or `int8`, little-endian.
//! What is refused is refused with the call that makes it acceptable.

use super::error::DataError;
use super::source::{Shape, check_not_empty, read_at};
use std::fs::File;
use stratann_vector::Element;

const MAGIC: &[u8] = b"\x93NUMPY";

/// More than any array of numbers needs; a longer header is damage.
const MAX_HEADER: u64 = 1 << 16;

/// Reads the header, and refuses an array that is not a matrix of vectors, or a file of another length.
pub(super) fn read_shape(
    file: &File,
    length: u64,
    name: &str,
    even_empty: bool,
) -> Result<Shape, DataError> {
    let mut start = [0; 12];
    let have = length.min(12) as usize;
    read_at(file, 0, &mut start[..have], name)?;
    let field = |offset: u64, what, found: String, expected: &str| DataError::Field {
        file: name.to_owned(),
        offset,
        what,
        found,
        expected: expected.to_owned(),
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
            "a numpy array with \"\\x93NUMPY\"",
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
                "1.0, 2.0 or 3.0",
            ));
        }
    };
    if header_length > MAX_HEADER {
        return Err(field(
            8,
            "the length of the header",
            header_length.to_string(),
            "at most 65536",
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
    let header = Header::parse(&header).ok_or_else(|| {
        let found: String = header.trim_end().chars().take(200).collect();
        let expected = "a dictionary with 'descr', 'fortran_order' and 'shape'";
        field(at, "the header", format!("{found:?}"), expected)
    })?;

    let element = element(&header.descr).map_err(|remedy| {
        let text = format!("float32, float16, uint8 or int8 ({remedy})");
        field(at, "the dtype", header.descr.clone(), &text)
    })?;
    if header.fortran_order {
        return Err(field(
            at,
            "fortran_order",
            "True".to_owned(),
            "False (save numpy.ascontiguousarray(array))",
        ));
    }
    let &[rows, dim] = &header.shape[..] else {
        let found = format!("{:?}", header.shape);
        return Err(field(
            at,
            "the shape",
            found,
            "two dimensions, (rows, elements of a row),",
        ));
    };
    check_not_empty(name, rows.max(even_empty.into()), dim)?;
    let data = at + header_length;
    let expected = (u128::from(rows) * u128::from(dim))
        .saturating_mul(element.size() as u128)
        .saturating_add(u128::from(data));
    DataError::check_length(name, length, expected, || {
        format!("its header says {rows} rows of {dim} x {element}")
    })?;
    // Both are at most the file's length.
    Ok(Shape {
        rows: rows as usize,
        dim: dim as usize,
        element,
        start: data,
        prefixed: false,
    })
}

/// The element type of a dtype, or what to do about it.
fn element(descr: &str) -> Result<Element, &'static str> {
    let (order, kind) = descr.split_at_checked(1).unwrap_or((descr, ""));
    match (order, kind) {
        ("<", "f4") => Ok(Element::F32),
        ("<", "f2") => Ok(Element::F16),
        ("<" | ">" | "|", "u1") => Ok(Element::U8),
        ("<" | ">" | "|", "i1") => Ok(Element::I8),
        (">", "f4") => Err("big-endian; save array.astype('<f4')"),
        (">", "f2") => Err("big-endian; save array.astype('<f2')"),
        (_, "f8") => Err("save array.astype(numpy.float32)"),
        _ => Err("convert with array.astype()"),
    }
}

/// What the dictionary says.
#[derive(Debug, PartialEq)]
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

impl Header {
    /// Reads the dictionary: `None` if it is not one, or lacks a key, or has another one.
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
        })
    }
}

/// The rest of a Python literal. Each method takes what it is named after, or nothing.
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

    /// The dtype of a structured array, which is only there to be refused by name.
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
            // Python 2 wrote its long integers with an L.
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
        // numpy.save of numpy.arange(6, dtype='uint8').reshape(2, 3), numpy 1.26: the header is padded with
        // spaces to a multiple of 64 and ends with a newline.
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
                "<f8",
                "False",
                "(2, 3)",
                "the dtype at offset 10 is <f8; float32, float16, uint8 or int8 (save array.astype(numpy.float32)) expected",
            ),
            (
                ">f4",
                "False",
                "(2, 3)",
                "is >f4; float32, float16, uint8 or int8 (big-endian; save array.astype('<f4'))",
            ),
            ("<i4", "False", "(2, 3)", "the dtype at offset 10 is <i4"),
            ("|O", "False", "(2, 3)", "the dtype at offset 10 is |O"),
            ("", "False", "(2, 3)", "the dtype at offset 10 is ;"),
            (
                "<f4",
                "True",
                "(2, 3)",
                "fortran_order at offset 10 is True; False (save numpy.ascontiguousarray(array))",
            ),
            (
                "<f4",
                "False",
                "(6,)",
                "the shape at offset 10 is [6]; two dimensions",
            ),
            ("<f4", "False", "()", "the shape at offset 10 is []"),
            (
                "<f4",
                "False",
                "(1, 2, 3)",
                "the shape at offset 10 is [1, 2, 3]",
            ),
            ("<f4", "False", "(0, 3)", "number of rows is zero"),
            ("<f4", "False", "(3, 0)", "dimension is zero"),
            (
                "<f4",
                "False",
                "(2, 4)",
                "truncated: 99 bytes found, 107 expected (its header says 2 rows of 4 x f32)",
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
