//! The rows of a segment of columns: the attributes and payloads of nodes.
//!
//! The payload of a [stream] of kind `Rows` is little-endian. The header's fields are the number of
//! rows N (u64) and the bytes B of all rows (u64). Each of the three parts begins at the start of a
//! block:
//!
//! | part | bytes | contents |
//! |---|---|---|
//! | rows | B | the encoded rows ([`attributes`](crate::attributes)), by ascending node |
//! | entries | 22 N | for each row, in order: external id u64, node u32, offset u48, bytes u32 |
//! | ids | 12 N | by ascending external id: the id u64, the number of its entry u32 |
//!
//! 186 entries, or 341 ids, fill the payload of a block exactly, so a reader verifies and searches
//! each block by itself. A segment has each node and each id at most once.

use crate::block::{PAYLOAD, u32_at, u64_at};
use crate::error::LayoutError;
use crate::header::{FieldsWriter, FileHeader, FileKind};
use crate::ids;
use crate::stream::{self, StreamReader, aligned};

/// Format version of these files. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

/// Bytes of an entry.
pub const ENTRY: usize = 22;
/// Bytes of an id with the number of its entry.
pub const ID_ENTRY: usize = ids::ENTRY;

const _: () = assert!(PAYLOAD.is_multiple_of(ENTRY) && PAYLOAD.is_multiple_of(ID_ENTRY));

const MOST_BYTES: u64 = 1 << 48;

/// The entry of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowEntry {
    /// The external id.
    pub id: u64,
    /// The node.
    pub node: u32,
    /// The byte offset of the row within the first part.
    pub offset: u64,
    /// The length of the row in bytes.
    pub length: u32,
}

impl RowEntry {
    /// Encodes the entry.
    pub fn encode(&self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.node.to_le_bytes());
        bytes[12..18].copy_from_slice(&self.offset.to_le_bytes()[..6]);
        bytes[18..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// The byte range of the row within the first part.
    pub fn bytes(&self) -> std::ops::Range<u64> {
        self.offset..self.offset + u64::from(self.length)
    }
}

/// The numbers of rows and of their bytes, from which all positions follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsFile {
    rows: u64,
    bytes: u64,
}

impl RowsFile {
    /// The file with this number of rows and of bytes.
    ///
    /// # Errors
    /// Fails if there are more rows than possible nodes, or 2^48 bytes or more.
    pub fn new(rows: u64, bytes: u64) -> Result<RowsFile, LayoutError> {
        let refuse = |what, found, expected| LayoutError::Shape {
            what,
            found,
            expected,
            remedy: "Split the rows among several indexes",
        };
        if rows > u64::from(u32::MAX) {
            return Err(refuse("rows of a segment", rows, "fewer than 2^32"));
        }
        if bytes >= MOST_BYTES {
            let what = "bytes of the rows of a segment";
            return Err(refuse(what, bytes, "fewer than 2^48"));
        }
        Ok(RowsFile { rows, bytes })
    }

    /// The kind-specific fields of the header.
    pub fn fields(&self) -> Vec<u8> {
        FieldsWriter::new().u64(self.rows).u64(self.bytes).finish()
    }

    /// Decodes the first bytes of a file, one block or more. `file` is the name in errors.
    ///
    /// # Errors
    /// Fails if the header is wrong, or the length does not match the rows.
    pub fn open(first: &[u8], file: &str) -> Result<(RowsFile, FileHeader), LayoutError> {
        let reader = StreamReader::open(FileKind::Rows, first, file)?;
        let mut fields = reader.fields();
        let at = fields.offset();
        let (rows, bytes) = (fields.u64("rows")?, fields.u64("bytes of all rows")?);
        fields.end()?;
        let wrong = |what, found: u64, expected: String| LayoutError::Field {
            file: file.to_owned(),
            offset: at,
            what,
            found: found.to_string(),
            expected,
        };
        let found = RowsFile::new(rows, bytes).map_err(|error| match error {
            LayoutError::Shape {
                what,
                found,
                expected,
                remedy: _,
            } => wrong(what, found, expected.to_owned()),
            error => error,
        })?;
        let payload = reader.payload_length();
        if payload != found.payload_bytes() {
            let expected = found.payload_bytes().to_string();
            return Err(wrong("payload length", payload, expected));
        }
        Ok((found, reader.header().clone()))
    }

    /// The number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the payload.
    pub fn payload_bytes(&self) -> u64 {
        self.id_at(self.rows)
    }

    /// The offset of entry `entry` in the payload.
    pub fn entry_at(&self, entry: u64) -> u64 {
        aligned(self.bytes) + entry * ENTRY as u64
    }

    /// The offset of the `n`-th id in the payload.
    pub fn id_at(&self, n: u64) -> u64 {
        aligned(self.entry_at(self.rows)) + n * ID_ENTRY as u64
    }

    /// Decodes entry number `entry` from its bytes.
    ///
    /// # Errors
    /// Fails if the row is not within the first part.
    pub fn entry(&self, bytes: &[u8], entry: u64, file: &str) -> Result<RowEntry, LayoutError> {
        let mut offset = [0; 8];
        offset[..6].copy_from_slice(&bytes[12..18]);
        let found = RowEntry {
            id: u64_at(bytes, 0),
            node: u32_at(bytes, 8),
            offset: u64::from_le_bytes(offset),
            length: u32_at(bytes, 18),
        };
        match found.bytes().end <= self.bytes {
            true => Ok(found),
            false => Err(LayoutError::Field {
                file: file.to_owned(),
                offset: stream::file_offset(self.entry_at(entry)) + 12,
                what: "end of a row",
                found: found.bytes().end.to_string(),
                expected: format!("at most {}", self.bytes),
            }),
        }
    }

    /// Decodes the `n`-th id from its bytes: the id, and the number of its entry.
    ///
    /// # Errors
    /// Fails if there is no such entry.
    pub fn id(&self, bytes: &[u8], n: u64, file: &str) -> Result<(u64, u32), LayoutError> {
        let (id, entry) = (u64_at(bytes, 0), u32_at(bytes, 8));
        match u64::from(entry) < self.rows {
            true => Ok((id, entry)),
            false => Err(LayoutError::Field {
                file: file.to_owned(),
                offset: stream::file_offset(self.id_at(n)) + 8,
                what: "entry of an external id",
                found: entry.to_string(),
                expected: format!("below {}", self.rows),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_begin_blocks_and_bytes_stand_where_the_table_says() {
        let file = RowsFile::new(187, 5_000).unwrap();
        assert_eq!(file.entry_at(0), 2 * PAYLOAD as u64);
        assert_eq!(file.entry_at(186), 3 * PAYLOAD as u64);
        assert_eq!(file.id_at(0), 4 * PAYLOAD as u64);
        assert_eq!(file.payload_bytes(), 4 * PAYLOAD as u64 + 187 * 12);
        let entry = RowEntry {
            id: 0x0807_0605_0403_0201,
            node: 9,
            offset: 0x0102,
            length: 7,
        };
        let bytes = entry.encode();
        assert_eq!(
            bytes,
            [
                1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 2, 1, 0, 0, 0, 0, 7, 0, 0, 0
            ]
        );
        assert_eq!(file.entry(&bytes, 0, "rows").unwrap(), entry);
        let none = RowsFile::new(0, 0).unwrap();
        assert_eq!((none.payload_bytes(), none.id_at(0)), (0, 0));
    }

    #[test]
    fn what_is_not_there_is_refused_with_its_place() {
        let file = RowsFile::new(3, 100).unwrap();
        let mut entry = RowEntry {
            id: 1,
            node: 1,
            offset: 95,
            length: 5,
        };
        assert!(file.entry(&entry.encode(), 2, "rows").is_ok());
        entry.length = 6;
        let error = file.entry(&entry.encode(), 2, "rows").unwrap_err();
        assert_eq!(error.offset(), Some(8192 + 4 + 44 + 12), "{error}");
        assert!(error.to_string().contains("end of a row"), "{error}");
        let error = file.id(&ids::entry(7, 3), 1, "rows").unwrap_err();
        assert_eq!(error.offset(), Some(3 * 4096 + 4 + 12 + 8), "{error}");
        RowsFile::new(1 << 32, 0).unwrap_err();
        RowsFile::new(1, 1 << 48).unwrap_err();
        let open = |rows: u64, bytes: u64, payload: usize| {
            let fields = FieldsWriter::new().u64(rows).u64(bytes).finish();
            RowsFile::open(
                &stream::encode(FileKind::Rows, &vec![0; payload], &fields),
                "rows",
            )
        };
        let payload = file.payload_bytes() as usize;
        assert_eq!(open(3, 100, payload).unwrap().0, file);
        open(3, 100, payload + 1).unwrap_err();
        open(1 << 32, 100, payload).unwrap_err();
        open(u64::MAX, u64::MAX, payload).unwrap_err();
    }

    proptest! {
        #[test]
        fn entries_round_trip(id: u64, node: u32, offset in 0..MOST_BYTES / 2, length: u32) {
            let entry = RowEntry { id, node, offset, length };
            let file = RowsFile::new(1, MOST_BYTES - 1).unwrap();
            prop_assert_eq!(file.entry(&entry.encode(), 0, "rows").unwrap(), entry);
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), ENTRY..ENTRY + 1),
            rows: u64,
            all: u64,
            n: u64,
        ) {
            let fields = FieldsWriter::new().u64(rows).u64(all).finish();
            let header = FileHeader::new(FileKind::Rows, stream::file_length(0), [&[0; 8][..], &fields].concat());
            let _ = RowsFile::open(&header.encode(), "f");
            let _ = RowsFile::open(&bytes, "f");
            if let Ok(file) = RowsFile::new(rows % (1 << 33), all % (1 << 49)) {
                let n = n % (file.rows() + 1);
                let _ = (file.entry(&bytes, n, "f"), file.id(&bytes, n, "f"));
            }
        }
    }
}
