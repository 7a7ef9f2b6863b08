//! The file that maps each value of a segment's columns to the nodes with this value. It is derived
//! from the rows of the segment.
//!
//! The payload of a [stream] of kind `Columns` is little-endian. The header's fields are two
//! positions in the payload: of the set of nodes with a row, and of the directory. A position is an
//! offset u64 and a length u32. Sets of nodes are Roaring bitmaps in their portable format.
//!
//! ```text
//! postings, groups, sets   in any order; the directory has their positions
//! directory                u32 columns, by ascending name; each:
//!   u16 bytes of the name, the name (UTF-8)   u8 type (`attributes`)
//!   u64 nodes with a value    u64 different keys
//!   u64, u32  position of the set of nodes with a value
//!   u32 groups, by ascending key; each:
//!     u8 bytes K of the key, K bytes     its first key, or the first 32 bytes of it
//!     u64, u32  position of the group    u32 its keys    u64 its nodes, counted once a key
//!
//! a group of a column of strings, booleans or lists: keys, ascending, with their nodes
//!   u32 bytes of the key, the key
//!   u32 nodes N;  up to 8 of them: N * u32, ascending;  more: u64, u32 position of their set
//! a group of a column of numbers or times: values, ascending, each with a node
//!   u64 key, u32 node
//! ```
//!
//! **Keys.** The key of a string is its bytes, and the key of a boolean one byte, 0 or 1. The key
//! of an integer (also in a list) or a time is its 64 bits with the sign bit inverted, so that keys
//! ascend as the numbers do. The key of a float is its bits, all inverted if the sign is set,
//! otherwise with the sign bit inverted. Minus zero counts as zero. If a key is stored as bytes,
//! the highest byte comes first.

use crate::attributes::{MOST_COLUMNS, MOST_NAME};
use crate::block::{u32_at, u64_at};
use crate::error::LayoutError;
use crate::header::{FieldsWriter, FileHeader, FileKind};
use crate::payload::PayloadReader;
use crate::stream::{self, StreamReader};

/// Format version of these files. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

/// The most bytes of a key in the directory.
pub const KEY_PREFIX: usize = 32;
/// The most nodes that are stored with their key. More nodes are stored as a set.
pub const BESIDE: usize = 8;
/// Bytes of a number with its node.
pub const NUMBER: usize = 12;
/// The most bytes of a directory, which is read into memory as a whole.
const MOST_DIRECTORY: u64 = 64 << 20;

/// A byte range of the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The offset of the first byte of the range.
    pub offset: u64,
    /// The length of the range in bytes.
    pub length: u32,
}

impl Span {
    /// The byte range in the payload.
    pub fn bytes(&self) -> std::ops::Range<u64> {
        self.offset..self.offset + u64::from(self.length)
    }

    fn read(
        reader: &mut PayloadReader<'_>,
        within: u64,
        what: &'static str,
    ) -> Result<Span, LayoutError> {
        let at = reader.at();
        let span = Span {
            offset: reader.u64(what)?,
            length: reader.u32(what)?,
        };
        match span.offset.checked_add(span.length.into()) {
            Some(end) if end <= within => Ok(span),
            end => {
                let found = end.map_or_else(|| "2^64 or more".to_owned(), |end| end.to_string());
                Err(reader.wrong(at, what, found, format!("an end of {within} or less")))
            }
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.length.to_le_bytes());
    }
}

/// The positions of the two ranges that a reader needs first: the set of nodes, and the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartFile {
    /// The position of the set of nodes with a row in the segment.
    pub nodes: Span,
    /// The position of the directory.
    pub directory: Span,
    /// Bytes of the payload.
    pub payload: u64,
}

impl PartFile {
    /// The kind-specific fields of the header.
    pub fn fields(&self) -> Vec<u8> {
        let of = |fields: FieldsWriter, span: Span| fields.u64(span.offset).u32(span.length);
        of(of(FieldsWriter::new(), self.nodes), self.directory).finish()
    }

    /// Decodes the first bytes of a file, one block or more. `file` is the name in errors.
    ///
    /// # Errors
    /// Fails if the header is wrong, or a position is not within the payload.
    pub fn open(first: &[u8], file: &str) -> Result<(PartFile, FileHeader), LayoutError> {
        let reader = StreamReader::open(FileKind::Columns, first, file)?;
        let payload = reader.payload_length();
        let mut fields = reader.fields();
        let mut span = |what| {
            let at = fields.offset();
            let span = Span {
                offset: fields.u64(what)?,
                length: fields.u32(what)?,
            };
            let end = span.offset.checked_add(span.length.into());
            match end.is_some_and(|end| end <= payload)
                && u64::from(span.length) <= MOST_DIRECTORY.max(payload)
            {
                true => Ok(span),
                false => Err(LayoutError::Field {
                    file: file.to_owned(),
                    offset: at,
                    what,
                    found: format!("{} bytes at byte {}", span.length, span.offset),
                    expected: format!("a range within the {payload} bytes of the payload"),
                }),
            }
        };
        let (nodes, directory) = (span("set of nodes")?, span("directory")?);
        fields.end()?;
        if u64::from(directory.length) > MOST_DIRECTORY {
            return Err(LayoutError::Field {
                file: file.to_owned(),
                offset: stream::file_offset(directory.offset),
                what: "bytes of the directory",
                found: directory.length.to_string(),
                expected: format!("at most {MOST_DIRECTORY}"),
            });
        }
        let found = PartFile {
            nodes,
            directory,
            payload,
        };
        Ok((found, reader.header().clone()))
    }
}

/// A group of keys in a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The first [`KEY_PREFIX`] bytes of the group's first key.
    pub first: Vec<u8>,
    /// The position of the group.
    pub span: Span,
    /// The number of keys of the group.
    pub keys: u32,
    /// The number of pairs of a node and a key. A node with two of the keys counts twice.
    pub nodes: u64,
}

/// The directory's facts about a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartColumn {
    /// The name of the column.
    pub name: String,
    /// The code of the column's type.
    pub kind: u8,
    /// The number of nodes with a value.
    pub values: u64,
    /// The number of different keys; in a column of numbers or times, the number of values.
    pub keys: u64,
    /// The position of the set of nodes with a value.
    pub exists: Span,
    /// The groups of the column's keys.
    pub groups: Vec<Group>,
}

/// Encodes a directory.
pub fn encode_directory(columns: &[PartColumn]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&(columns.len() as u32).to_le_bytes());
    for column in columns {
        out.extend_from_slice(&(column.name.len() as u16).to_le_bytes());
        out.extend_from_slice(column.name.as_bytes());
        out.push(column.kind);
        out.extend_from_slice(&column.values.to_le_bytes());
        out.extend_from_slice(&column.keys.to_le_bytes());
        column.exists.write(&mut out);
        out.extend_from_slice(&(column.groups.len() as u32).to_le_bytes());
        for group in &column.groups {
            let first = &group.first[..group.first.len().min(KEY_PREFIX)];
            out.push(first.len() as u8);
            out.extend_from_slice(first);
            group.span.write(&mut out);
            out.extend_from_slice(&group.keys.to_le_bytes());
            out.extend_from_slice(&group.nodes.to_le_bytes());
        }
    }
    out
}

/// Decodes a directory at the position `at.directory` of a file's payload.
///
/// # Errors
/// Fails if an order or a name is wrong, or a position is not within the payload.
pub fn decode_directory(
    bytes: &[u8],
    at: &PartFile,
    file: &str,
) -> Result<Vec<PartColumn>, LayoutError> {
    let mut reader = PayloadReader::part(bytes, at.directory.offset, file);
    let columns = reader.u32("columns")?;
    if columns as usize > MOST_COLUMNS {
        return Err(reader.wrong(0, "columns", columns, format!("at most {MOST_COLUMNS}")));
    }
    let mut found: Vec<PartColumn> = Vec::with_capacity(columns as usize);
    for _ in 0..columns {
        let begin = reader.at();
        let length = u64::from(u16::from_le_bytes(two(reader.bytes(2, "bytes of a name")?)));
        let name = reader.bytes(length, "name of a column")?;
        let name = match std::str::from_utf8(name) {
            Ok(name) if (1..=MOST_NAME).contains(&name.len()) => name.to_owned(),
            _ => {
                let expected = format!("1 to {MOST_NAME} bytes of UTF-8");
                return Err(reader.wrong(begin, "name of a column", name.escape_ascii(), expected));
            }
        };
        if let Some(last) = found.last().filter(|last| last.name >= name) {
            let expected = format!("a name after {:?}", last.name);
            return Err(reader.wrong(begin, "name of a column", format!("{name:?}"), expected));
        }
        let kind = reader.bytes(1, "type of a column")?[0];
        let values = reader.u64("nodes with a value")?;
        let keys = reader.u64("keys of a column")?;
        let exists = Span::read(&mut reader, at.payload, "set of nodes with a value")?;
        let count = reader.u32("groups of a column")?;
        let mut groups: Vec<Group> = Vec::new();
        for _ in 0..count {
            let begin = reader.at();
            let length = reader.bytes(1, "bytes of a key")?[0];
            let first = reader
                .bytes(length.into(), "first key of a group")?
                .to_vec();
            let in_order = groups.last().is_none_or(|last| last.first <= first);
            if first.len() > KEY_PREFIX || !in_order {
                let expected = format!("at most {KEY_PREFIX} bytes, by ascending key");
                let found = first.escape_ascii().to_string();
                return Err(reader.wrong(begin, "first key of a group", found, expected));
            }
            groups.push(Group {
                first,
                span: Span::read(&mut reader, at.payload, "group of keys")?,
                keys: reader.u32("keys of a group")?,
                nodes: reader.u64("nodes of a group")?,
            });
        }
        found.push(PartColumn {
            name,
            kind,
            values,
            keys,
            exists,
            groups,
        });
    }
    reader.end()?;
    Ok(found)
}

fn two(bytes: &[u8]) -> [u8; 2] {
    [bytes[0], bytes[1]]
}

/// The nodes that have a key, or their position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posting<'a> {
    /// The nodes, stored after the key: a `u32` for each node, ascending.
    Beside(&'a [u8]),
    /// The position of the set of nodes.
    Apart(Span),
}

impl<'a> Posting<'a> {
    /// The nodes stored after the key; none if the key refers to a set.
    pub fn beside(self) -> impl Iterator<Item = u32> + 'a {
        let bytes = match self {
            Posting::Beside(bytes) => bytes,
            Posting::Apart(_) => &[],
        };
        bytes.chunks_exact(4).map(|four| u32_at(four, 0))
    }
}

/// A key of a column of strings, booleans or lists, with its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The number of nodes with the key.
    pub nodes: u32,
    /// The nodes with the key.
    pub posting: Posting<'a>,
}

/// Appends a key and its nodes.
pub fn encode_term(key: &[u8], nodes: TermNodes<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(key);
    match nodes {
        TermNodes::Beside(nodes) => {
            out.extend_from_slice(&(nodes.len() as u32).to_le_bytes());
            let bytes = nodes.iter().flat_map(|node| node.to_le_bytes());
            out.extend(bytes);
        }
        TermNodes::Apart(count, span) => {
            out.extend_from_slice(&count.to_le_bytes());
            span.write(out);
        }
    }
}

/// The nodes of a key, as input for encoding.
#[derive(Clone, Copy, Debug)]
pub enum TermNodes<'a> {
    /// At most [`BESIDE`] nodes, ascending.
    Beside(&'a [u32]),
    /// More nodes: their number, and the position of their set.
    Apart(u32, Span),
}

/// Iterates over the keys of a group (strings, booleans or lists), up to the first error.
#[derive(Debug)]
pub struct Terms<'a> {
    reader: PayloadReader<'a>,
    payload: u64,
    last: Option<&'a [u8]>,
    failed: bool,
}

impl<'a> Terms<'a> {
    /// Iterates over the group whose bytes are `bytes`, at `span` of a payload of `payload` bytes.
    pub fn new(bytes: &'a [u8], span: Span, payload: u64, file: &'a str) -> Terms<'a> {
        Terms {
            reader: PayloadReader::part(bytes, span.offset, file),
            payload,
            last: None,
            failed: false,
        }
    }

    fn term(&mut self) -> Result<Term<'a>, LayoutError> {
        let reader = &mut self.reader;
        let begin = reader.at();
        let length = reader.u32("bytes of a key")?;
        let key = reader.bytes(length.into(), "key")?;
        if self.last.is_some_and(|last| last >= key) {
            let found = key[..key.len().min(KEY_PREFIX)].escape_ascii().to_string();
            return Err(reader.wrong(begin, "key", found, "a key above the key before it"));
        }
        self.last = Some(key);
        let begin = reader.at();
        let nodes = reader.u32("nodes of a key")?;
        if nodes == 0 {
            return Err(reader.wrong(begin, "nodes of a key", 0, "1 or more"));
        }
        let posting = match nodes as usize <= BESIDE {
            true => {
                let begin = reader.at();
                let bytes = reader.bytes(4 * u64::from(nodes), "nodes of a key")?;
                let ascends = bytes
                    .windows(8)
                    .step_by(4)
                    .all(|two| u32_at(two, 0) < u32_at(two, 4));
                if !ascends {
                    return Err(reader.wrong(
                        begin,
                        "nodes of a key",
                        "not ascending",
                        "ascending nodes",
                    ));
                }
                Posting::Beside(bytes)
            }
            false => Posting::Apart(Span::read(reader, self.payload, "set of nodes of a key")?),
        };
        Ok(Term {
            key,
            nodes,
            posting,
        })
    }
}

impl<'a> Iterator for Terms<'a> {
    type Item = Result<Term<'a>, LayoutError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.is_at_end() {
            return None;
        }
        let term = self.term();
        self.failed = term.is_err();
        Some(term)
    }
}

/// Encodes a number and its node.
pub fn encode_number(key: u64, node: u32) -> [u8; NUMBER] {
    let mut bytes = [0; NUMBER];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    bytes[8..].copy_from_slice(&node.to_le_bytes());
    bytes
}

/// Decodes the numbers of a group, each with its node.
///
/// # Errors
/// Fails if the length is no multiple of a number's length, or the numbers do not ascend.
pub fn numbers<'a>(
    bytes: &'a [u8],
    span: Span,
    file: &str,
) -> Result<impl ExactSizeIterator<Item = (u64, u32)> + DoubleEndedIterator + 'a, LayoutError> {
    let wrong = |at: usize, found: String, expected: &str| LayoutError::Field {
        file: file.to_owned(),
        offset: stream::file_offset(span.offset.saturating_add(at as u64)),
        what: "number of a column",
        found,
        expected: expected.to_owned(),
    };
    if !bytes.len().is_multiple_of(NUMBER) {
        let found = format!("{} bytes", bytes.len());
        return Err(wrong(0, found, "a multiple of 12 bytes"));
    }
    let number = |bytes: &[u8]| (u64_at(bytes, 0), u32_at(bytes, 8));
    let mut last = None;
    for (at, bytes) in bytes.chunks_exact(NUMBER).enumerate() {
        let found = number(bytes);
        if last.is_some_and(|last| last >= found) {
            return Err(wrong(
                at * NUMBER,
                found.0.to_string(),
                "a number above the number before it",
            ));
        }
        last = Some(found);
    }
    Ok(bytes.chunks_exact(NUMBER).map(number))
}

/// The key of an integer or a time.
pub fn integer_key(value: i64) -> u64 {
    value as u64 ^ (1 << 63)
}

/// The key of a float that is not NaN.
pub fn float_key(value: f64) -> u64 {
    // Minus zero and zero are equal.
    let bits = (value + 0.0).to_bits();
    match bits >> 63 {
        0 => bits ^ (1 << 63),
        _ => !bits,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(directory: &[u8]) -> PartFile {
        PartFile {
            nodes: Span::default(),
            directory: Span {
                offset: 100,
                length: directory.len() as u32,
            },
            payload: 10_000,
        }
    }

    fn columns() -> Vec<PartColumn> {
        let group = |first: &[u8], offset| Group {
            first: first.to_vec(),
            span: Span { offset, length: 40 },
            keys: 3,
            nodes: 12,
        };
        let column = |name: &str, groups| PartColumn {
            name: name.into(),
            kind: 3,
            values: 7,
            keys: 6,
            exists: Span {
                offset: 9_990,
                length: 10,
            },
            groups,
        };
        vec![
            column(
                "a",
                vec![group(b"", 0), group(b"cat", 40), group(b"cat", 80)],
            ),
            column("b\u{e9}", Vec::new()),
        ]
    }

    #[test]
    fn directories_round_trip_and_contradictions_are_refused() {
        let bytes = encode_directory(&columns());
        assert_eq!(
            decode_directory(&bytes, &at(&bytes), "columns").unwrap(),
            columns()
        );
        let refused = |change: &dyn Fn(&mut Vec<PartColumn>)| {
            let mut columns = columns();
            change(&mut columns);
            let bytes = encode_directory(&columns);
            let error = decode_directory(&bytes, &at(&bytes), "columns").unwrap_err();
            error.to_string()
        };
        for (error, expected) in [
            (refused(&|c| c.reverse()), "name of a column"),
            (refused(&|c| c[1].name = "a".into()), "name of a column"),
            (refused(&|c| c[0].name = String::new()), "1 to 128 bytes"),
            (refused(&|c| c[0].name = "x".repeat(129)), "1 to 128 bytes"),
            (refused(&|c| c[0].exists.length = 11), "an end of 10000"),
            (
                refused(&|c| c[0].groups[1].span.offset = u64::MAX),
                "2^64 or more",
            ),
            (refused(&|c| c[0].groups.swap(0, 1)), "by ascending key"),
        ] {
            assert!(error.contains(expected), "{error}");
        }
        for length in 0..bytes.len() {
            decode_directory(&bytes[..length], &at(&bytes), "columns").unwrap_err();
        }
        let longer = [&bytes[..], &[0]].concat();
        decode_directory(&longer, &at(&longer), "columns").unwrap_err();
    }

    #[test]
    fn headers_that_point_elsewhere_are_refused() {
        let open = |file: PartFile, payload: usize| {
            let bytes = stream::encode(FileKind::Columns, &vec![0; payload], &file.fields());
            PartFile::open(&bytes, "columns")
        };
        let file = PartFile {
            nodes: Span {
                offset: 3,
                length: 7,
            },
            directory: Span {
                offset: 0,
                length: 10,
            },
            payload: 10,
        };
        assert_eq!(open(file, 10).unwrap().0, file);
        open(file, 9).unwrap_err();
        let nodes = Span {
            offset: u64::MAX,
            length: 1,
        };
        open(PartFile { nodes, ..file }, 10).unwrap_err();
    }

    #[test]
    fn terms_and_numbers_round_trip() {
        let apart = Span {
            offset: 500,
            length: 30,
        };
        let mut bytes = Vec::new();
        encode_term(b"", TermNodes::Beside(&[4]), &mut bytes);
        encode_term(b"a", TermNodes::Beside(&[1, 2, 7]), &mut bytes);
        encode_term(b"ab", TermNodes::Apart(9, apart), &mut bytes);
        let span = Span {
            offset: 0,
            length: bytes.len() as u32,
        };
        let terms: Vec<_> = Terms::new(&bytes, span, 530, "f")
            .map(Result::unwrap)
            .collect();
        assert_eq!(terms.len(), 3);
        assert_eq!((terms[0].key, terms[0].nodes), (&b""[..], 1));
        let beside: Vec<u32> = terms[1].posting.beside().collect();
        assert_eq!(beside, [1, 2, 7]);
        assert_eq!(
            (terms[2].nodes, terms[2].posting),
            (9, Posting::Apart(apart))
        );
        // Wrong sets, a wrong order, a key without nodes, and a truncated payload.
        let last = |bytes: &[u8], payload| match Terms::new(bytes, span, payload, "f").last() {
            Some(term) => term.map(drop),
            None => Ok(()),
        };
        last(&bytes, 529).unwrap_err();
        for length in (0..bytes.len()).filter(|length| ![0, 12, 33].contains(length)) {
            last(&bytes[..length], 530).unwrap_err();
        }
        for (key, nodes) in [(&b"a"[..], &[1][..]), (b"b", &[2, 2]), (b"b", &[])] {
            let mut bytes = Vec::new();
            encode_term(b"a", TermNodes::Beside(&[1]), &mut bytes);
            encode_term(key, TermNodes::Beside(nodes), &mut bytes);
            last(&bytes, 530).unwrap_err();
        }
        let bytes = [
            encode_number(4, 9),
            encode_number(4, 10),
            encode_number(5, 1),
        ]
        .concat();
        let found: Vec<_> = numbers(&bytes, span, "f").unwrap().collect();
        assert_eq!(found, [(4, 9), (4, 10), (5, 1)]);
        assert!(numbers(&bytes[..25], span, "f").is_err());
        assert!(numbers(&[&bytes[12..], &bytes[..12]].concat(), span, "f").is_err());
    }

    proptest! {
        #[test]
        fn keys_ascend_as_numbers_do(a: i64, b: i64, x in -1e300f64..1e300, y in -1e-3f64..1e-3) {
            prop_assert_eq!(a.cmp(&b), integer_key(a).cmp(&integer_key(b)));
            for (x, y) in [(x, y), (y, x), (x, -x), (0.0, y), (f64::INFINITY, x), (f64::NEG_INFINITY, x)] {
                prop_assert_eq!(x.partial_cmp(&y), Some(float_key(x).cmp(&float_key(y))));
            }
            prop_assert_eq!(float_key(-0.0), float_key(0.0));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), offset: u64, small: bool) {
            let mut bytes = bytes;
            if small && bytes.len() > 6 {
                bytes[1..4].fill(0);
                bytes[5] = 0;
            }
            let span = Span { offset, length: 4 };
            let file = PartFile { nodes: span, directory: span, payload: 300 };
            let _ = decode_directory(&bytes, &file, "f");
            for term in Terms::new(&bytes, span, 300, "f") {
                let _ = term.map(|term| term.posting.beside().count());
            }
            let _ = numbers(&bytes, span, "f").map(Iterator::count);
            let header = FileHeader::new(FileKind::Columns, stream::file_length(9), [&9u64.to_le_bytes()[..], &bytes].concat());
            let _ = PartFile::open(&header.encode(), "f");
        }
    }
}
