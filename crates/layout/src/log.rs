//! The vector log: all inserts and deletes since the last checkpoint, in order.
//!
//! The record with a new vector *is* the durable insert. A log consists of files with consecutive
//! numbers. A file has a header block, two marks, and then adjacent records:
//!
//! ```text
//! offset  size  contents
//!      0  4096  header block (`header`); its fields:
//!                 element code u32
//!                 dimension u32
//!                 number of the log u64
//!                 sequence number of the first record u64
//!   4096    32  a mark: the offset up to which the file was durable ([`marks`])
//!   8192    32  another mark, older or newer
//!  12288     .  record, record, ..
//!
//! a record, at a multiple of 8
//!      0     4  crc32c of (number of the log u64, offset of the record u64, then bytes 4..end)
//!      4     1  kind: 1 insert, 2 delete, 3 replace; with a row after the vector: 4 insert,
//!               5 replace; 6 only a row
//!      5     3  zero
//!      8     4  bytes P of the payload (u32): vector, plus the row if there is one; 0 for a delete
//!     12     8  sequence number (u64): 1 above the previous one, counted over all logs
//!     20     8  external id (u64)
//!     28     P  the vector's elements, and the row (`attributes`)
//!   28+P     .  zero up to a multiple of 8
//! ```
//!
//! In format version 1 a log has no marks, and its records begin at 4096. Version 3 adds the kinds
//! 4 to 6. A log without these kinds has version 2, so that older readers can read an index without
//! rows.
//!
//! **Rows.** A vector and its row (attributes and payload) share a record, so that a crash keeps
//! both or neither.
//!
//! **Length.** The header is written once, before the first record. Its length field is the
//! position of the first record ([`FileKind::is_appended_to`](crate::FileKind::is_appended_to)).
//!
//! **Checksum.** The log's number and the record's offset seed the checksum. So a record is not
//! valid if it was moved, or if it belongs to an older file.
//!
//! **End.** A log ends at the first position without a whole record of correct checksum and
//! sequence number ([`EndReason`]). After a crash, this position may have a torn record or zeros,
//! perhaps with whole records behind, because a disk writes unsynced bytes in any order. No record
//! from this position on was durable. All records before the offset of a mark were durable, so an
//! invalid record before it is damage, not a torn end. [`Gap`] finds the next whole record after
//! damage.
//!
//! **First sequence number.** If the previous log has no records, the field of the header continues
//! the numbering. The field also retracts the records of the previous log that have this number or
//! a larger one. Such records were not acknowledged, or were written again in this log.

mod gap;
pub mod marks;
#[cfg(test)]
mod tests;

use std::fmt;

use stratann_vector::Element;

use crate::block::{BLOCK, u32_at, u64_at};
use crate::error::{CHOOSE, LayoutError};
use crate::geometry::{MAX_DIMENSION, read_element};
use crate::header::{FieldsWriter, FileHeader, FileKind};

pub use self::gap::Gap;
use self::marks::{MARKS, encode_mark};

/// The newest format version of [`FileKind::Log`]. 3: marks and rows; 2: only marks; 1: neither.
pub const FORMAT_VERSION: u32 = 3;

/// The most bytes that a row takes in a record.
pub const MAX_ROW_BYTES: usize = crate::attributes::MOST_ROW;

const MARKED: u32 = 2;
const WITH_ROWS: u32 = 3;

/// The offset in bytes of the first record, in a log of this build's version.
pub const FIRST_RECORD: u64 = 3 * BLOCK as u64;

/// The offset of the first record in a log without marks.
pub const FIRST_RECORD_WITHOUT_MARKS: u64 = BLOCK as u64;

const KIND: usize = 4;
const RESERVED: usize = 5;
const LENGTH: usize = 8;
const SEQUENCE: usize = 12;
const ID: usize = 20;
const PAYLOAD: usize = 28;
const ALIGNMENT: usize = 8;

const INSERT: u8 = 1;
const DELETE: u8 = 2;
const REPLACE: u8 = 3;
const INSERT_ROW: u8 = 4;
const REPLACE_ROW: u8 = 5;
const ROW: u8 = 6;

/// Element type and dimension of the vectors of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogShape {
    element: Element,
    dim: usize,
}

impl LogShape {
    /// The shape for vectors of `dim` elements.
    ///
    /// # Errors
    /// Fails if the dimension is zero or above [`MAX_DIMENSION`].
    pub fn new(element: Element, dim: usize) -> Result<LogShape, LayoutError> {
        if dim == 0 || dim > MAX_DIMENSION {
            return Err(LayoutError::Shape {
                what: "the dimension",
                found: dim as u64,
                expected: "1 to 65536",
                remedy: CHOOSE,
            });
        }
        Ok(LogShape { element, dim })
    }

    /// Type of the vectors' elements.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Elements of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes of a vector.
    pub fn vector_bytes(&self) -> usize {
        self.dim * self.element.size()
    }

    /// Bytes of the longest possible record.
    pub fn longest_record(&self) -> usize {
        record_bytes(self.vector_bytes() + MAX_ROW_BYTES)
    }

    /// Bytes of the record of a vector without a row.
    pub fn vector_record(&self) -> usize {
        record_bytes(self.vector_bytes())
    }

    /// The bytes of the vector and of the row in a payload of `length` bytes.
    fn payload_of(&self, kind: u8, length: usize) -> Result<(usize, usize), EndReason> {
        let (vector, rows) = match kind {
            INSERT | REPLACE => (self.vector_bytes(), 0),
            DELETE => (0, 0),
            INSERT_ROW | REPLACE_ROW => (self.vector_bytes(), MAX_ROW_BYTES),
            ROW => (0, MAX_ROW_BYTES),
            kind => return Err(EndReason::Kind(kind)),
        };
        match length.checked_sub(vector) {
            Some(row) if row <= rows => Ok((vector, row)),
            _ => Err(EndReason::Length {
                found: length as u32,
                expected: vector as u32,
            }),
        }
    }
}

/// The decoded header block of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogHeader {
    /// The shape of the vectors.
    pub shape: LogShape,
    /// The log's number.
    pub number: u64,
    /// The sequence number of the first record, which need not exist yet.
    pub first_sequence: u64,
    /// Whether the log has marks. Logs of version 1 have none.
    pub marked: bool,
    /// Whether records may have rows. Logs without marks have none.
    pub rows: bool,
}

impl LogHeader {
    /// The position of the first record.
    pub fn start(&self) -> RecordPlace {
        RecordPlace {
            log: self.number,
            offset: match self.marked {
                true => FIRST_RECORD,
                false => FIRST_RECORD_WITHOUT_MARKS,
            },
            sequence: self.first_sequence,
        }
    }

    /// All bytes before the first record: the header block, and marks for a log without records.
    pub fn encode_front(&self) -> Vec<u8> {
        let start = self.start();
        let mut front = self.encode().to_vec();
        if self.marked {
            front.resize(FIRST_RECORD as usize, 0);
            for (slot, at) in MARKS.into_iter().enumerate() {
                let mark = encode_mark(start, slot);
                front[at as usize..at as usize + mark.len()].copy_from_slice(&mark);
            }
        }
        front
    }

    /// Encodes the header block.
    pub fn encode(&self) -> [u8; BLOCK] {
        let fields = FieldsWriter::new()
            .u32(self.shape.element.code().into())
            .u32(self.shape.dim as u32)
            .u64(self.number)
            .u64(self.first_sequence)
            .finish();
        FileHeader {
            version: match (self.marked, self.rows) {
                (true, true) => WITH_ROWS,
                (true, false) => MARKED,
                (false, _) => 1,
            },
            ..FileHeader::new(FileKind::Log, self.start().offset, fields)
        }
        .encode()
    }

    /// Decodes the header of log `number` from the first bytes of `file`.
    ///
    /// # Errors
    /// Fails as [`FileHeader::decode_as`] does, or if the shape or the number is wrong.
    pub fn decode(bytes: &[u8], number: u64, file: &str) -> Result<LogHeader, LayoutError> {
        let header = FileHeader::decode_as(FileKind::Log, bytes, file)?;
        let marked = header.version >= MARKED;
        let expected = match marked {
            true => FIRST_RECORD,
            false => FIRST_RECORD_WITHOUT_MARKS,
        };
        if header.length != expected {
            return Err(LayoutError::Length {
                file: file.to_owned(),
                expected,
                found: header.length,
                by: "the header of a log counts only the bytes before the records",
            });
        }
        let wrong = |offset, what, found: u64, expected: String| LayoutError::Field {
            file: file.to_owned(),
            offset,
            what,
            found: found.to_string(),
            expected,
        };
        let mut fields = header.fields(file);
        let element = read_element(&mut fields, file)?;
        let at = fields.offset();
        let dim = fields.u32("dimension")?;
        let shape = LogShape::new(element, dim as usize)
            .map_err(|_| wrong(at, "dimension", dim.into(), format!("1 to {MAX_DIMENSION}")))?;
        let at = fields.offset();
        let found = fields.u64("number of the log")?;
        if found != number {
            return Err(wrong(at, "number of the log", found, number.to_string()));
        }
        let first_sequence = fields.u64("first sequence number")?;
        fields.end()?;
        Ok(LogHeader {
            shape,
            number,
            first_sequence,
            marked,
            rows: header.version >= WITH_ROWS,
        })
    }
}

/// A decoded record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogRecord<'a> {
    /// A vector was inserted.
    Insert {
        /// The external id of the vector.
        id: u64,
        /// The elements of the vector, little-endian; the length is [`LogShape::vector_bytes`].
        vector: &'a [u8],
        /// The encoded row of the vector, at most [`MAX_ROW_BYTES`] bytes.
        row: Option<&'a [u8]>,
    },
    /// A vector replaced the vector of its id. The update is one record, so after a crash the id
    /// has the old vector or the new one.
    Replace {
        /// The external id of the old and of the new vector.
        id: u64,
        /// The elements of the new vector.
        vector: &'a [u8],
        /// The row of the new vector; `None` removes the old row.
        row: Option<&'a [u8]>,
    },
    /// The row of a vector was replaced; the vector stays.
    Row {
        /// The external id of the vector.
        id: u64,
        /// The new row, encoded.
        row: &'a [u8],
    },
    /// A vector was deleted.
    Delete {
        /// The external id of the vector.
        id: u64,
    },
}

impl<'a> LogRecord<'a> {
    /// The external id.
    pub fn id(&self) -> u64 {
        match *self {
            LogRecord::Insert { id, .. }
            | LogRecord::Replace { id, .. }
            | LogRecord::Row { id, .. }
            | LogRecord::Delete { id } => id,
        }
    }

    /// The inserted vector, if there is one.
    pub fn vector(&self) -> Option<&'a [u8]> {
        match *self {
            LogRecord::Insert { vector, .. } | LogRecord::Replace { vector, .. } => Some(vector),
            LogRecord::Delete { .. } | LogRecord::Row { .. } => None,
        }
    }

    /// Whether this record has a row.
    pub fn has_row(&self) -> bool {
        self.row().is_some()
    }

    /// The new row of the id.
    pub fn row(&self) -> Option<&'a [u8]> {
        match *self {
            LogRecord::Insert { row, .. } | LogRecord::Replace { row, .. } => row,
            LogRecord::Row { row, .. } => Some(row),
            LogRecord::Delete { .. } => None,
        }
    }

    fn kind(&self) -> u8 {
        match self {
            LogRecord::Insert { row: None, .. } => INSERT,
            LogRecord::Insert { row: Some(_), .. } => INSERT_ROW,
            LogRecord::Replace { row: None, .. } => REPLACE,
            LogRecord::Replace { row: Some(_), .. } => REPLACE_ROW,
            LogRecord::Row { .. } => ROW,
            LogRecord::Delete { .. } => DELETE,
        }
    }

    fn payload(&self) -> [&'a [u8]; 2] {
        [
            self.vector().unwrap_or_default(),
            self.row().unwrap_or_default(),
        ]
    }

    /// Bytes of the record in a log.
    pub fn encoded_bytes(&self) -> usize {
        record_bytes(self.payload().map(<[u8]>::len).iter().sum())
    }
}

fn record_bytes(payload: usize) -> usize {
    (PAYLOAD + payload).next_multiple_of(ALIGNMENT)
}

/// The position of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPlace {
    /// The log's number.
    pub log: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The record's sequence number.
    pub sequence: u64,
}

impl RecordPlace {
    /// The position of the next record, after one of `bytes` bytes.
    #[must_use]
    pub fn after(self, bytes: usize) -> RecordPlace {
        RecordPlace {
            log: self.log,
            offset: self.offset.saturating_add(bytes as u64),
            sequence: self.sequence.saturating_add(1),
        }
    }
}

/// Appends the record for `place`, and returns the next position. The caller checks the lengths,
/// because a reader takes a wrong length for the end of the log.
pub fn encode_record(record: LogRecord<'_>, place: RecordPlace, out: &mut Vec<u8>) -> RecordPlace {
    let [vector, row] = record.payload();
    let start = out.len();
    out.extend_from_slice(&[0; KIND]);
    out.extend_from_slice(&[record.kind(), 0, 0, 0]);
    out.extend_from_slice(&((vector.len() + row.len()) as u32).to_le_bytes());
    out.extend_from_slice(&place.sequence.to_le_bytes());
    out.extend_from_slice(&record.id().to_le_bytes());
    out.extend_from_slice(vector);
    out.extend_from_slice(row);
    let bytes = record.encoded_bytes();
    out.resize(start + bytes, 0);
    let sum = checksum(place, &out[start + KIND..]);
    out[start..start + KIND].copy_from_slice(&sum.to_le_bytes());
    place.after(bytes)
}

#[inline(never)]
fn checksum(place: RecordPlace, bytes: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&place.log.to_le_bytes());
    digest.update(&place.offset.to_le_bytes());
    digest.update(bytes);
    digest.finalize() as u32
}

/// The end of a log's records, and its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// The offset in bytes at which the next record would be.
    pub offset: u64,
    /// The reason why there is no record.
    pub reason: EndReason,
}

/// The reasons why there is no record at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// The bytes end at this position, after a whole record.
    Clean,
    /// The bytes end within the record.
    Short {
        /// The bytes that the record needs, as far as its first bytes show.
        needs: usize,
        /// Bytes that exist.
        found: usize,
    },
    /// An unknown kind of record. Zero is typical of a file that was extended, but not written.
    Kind(u8),
    /// The payload does not have the length of its kind, or its row is too long.
    Length {
        /// The stored length in bytes.
        found: u32,
        /// The expected length in bytes.
        expected: u32,
    },
    /// Bytes that must be zero are not zero.
    Reserved,
    /// The stored checksum does not match the bytes.
    Checksum {
        /// The stored checksum.
        stored: u32,
        /// The checksum of the bytes at this position.
        computed: u32,
    },
    /// A whole record, but not the next one in order.
    Sequence {
        /// The stored number.
        found: u64,
        /// The expected number.
        expected: u64,
    },
}

impl EndReason {
    /// Whether the log ends after a whole record.
    pub fn is_clean(self) -> bool {
        self == EndReason::Clean
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndReason::Clean => write!(f, "the log ends there"),
            EndReason::Short { needs, found } => {
                write!(f, "the record needs {needs} bytes, and {found} are left")
            }
            EndReason::Kind(kind) => write!(f, "unknown kind {kind} of record"),
            EndReason::Length { found, expected } => {
                write!(
                    f,
                    "the length of the payload is {found}; {expected} expected"
                )
            }
            EndReason::Reserved => write!(f, "reserved bytes are not zero"),
            EndReason::Checksum { stored, computed } => {
                write!(
                    f,
                    "checksum {stored:#010x} stored, {computed:#010x} computed"
                )
            }
            EndReason::Sequence { found, expected } => {
                write!(f, "sequence number {found}; {expected} expected")
            }
        }
    }
}

/// Reads records one after the other.
#[derive(Debug, Clone)]
pub struct LogRecords<'a> {
    shape: LogShape,
    place: RecordPlace,
    bytes: &'a [u8],
}

impl<'a> LogRecords<'a> {
    /// Reads the records in `bytes`, whose first record is at `place`.
    pub fn new(shape: LogShape, place: RecordPlace, bytes: &'a [u8]) -> LogRecords<'a> {
        LogRecords {
            shape,
            place,
            bytes,
        }
    }

    /// The position of the next record.
    pub fn place(&self) -> RecordPlace {
        self.place
    }

    /// The bytes that have not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// The next record and its sequence number, or the end. If the caller has read only a part of
    /// the file, it continues with more bytes after [`EndReason::Short`] or [`EndReason::Clean`].
    pub fn next_record(&mut self) -> Result<(u64, LogRecord<'a>), End> {
        let (record, bytes) = self.decode().map_err(|reason| End {
            offset: self.place.offset,
            reason,
        })?;
        let sequence = self.place.sequence;
        self.place = self.place.after(bytes);
        self.bytes = &self.bytes[bytes..];
        Ok((sequence, record))
    }

    fn decode(&self) -> Result<(LogRecord<'a>, usize), EndReason> {
        let (found, record, bytes) = whole_record(self.shape, self.place, self.bytes)?;
        if found != self.place.sequence {
            return Err(EndReason::Sequence {
                found,
                expected: self.place.sequence,
            });
        }
        Ok((record, bytes))
    }
}

/// Returns the record, its length in bytes, and its sequence number, which the caller compares.
fn whole_record(
    shape: LogShape,
    place: RecordPlace,
    bytes: &[u8],
) -> Result<(u64, LogRecord<'_>, usize), EndReason> {
    let found = bytes.len();
    if found == 0 {
        return Err(EndReason::Clean);
    }
    let short = |needs| EndReason::Short { needs, found };
    let head = bytes.get(..PAYLOAD).ok_or(short(PAYLOAD))?;
    // The checksum is compared last, because kind and length determine the bytes that it covers.
    let (vector, row) = shape.payload_of(head[KIND], u32_at(head, LENGTH) as usize)?;
    let payload = vector + row;
    let needs = record_bytes(payload);
    let bytes = bytes.get(..needs).ok_or(short(needs))?;
    let stored = u32_at(bytes, 0);
    let computed = checksum(place, &bytes[KIND..]);
    if stored != computed {
        return Err(EndReason::Checksum { stored, computed });
    }
    let (front, back) = (&bytes[RESERVED..LENGTH], &bytes[PAYLOAD + payload..]);
    if front.iter().chain(back).any(|&byte| byte != 0) {
        return Err(EndReason::Reserved);
    }
    let id = u64_at(bytes, ID);
    let (vector, row) = bytes[PAYLOAD..PAYLOAD + payload].split_at(vector);
    let has_row = matches!(bytes[KIND], INSERT_ROW | REPLACE_ROW).then_some(row);
    let record = match bytes[KIND] {
        INSERT | INSERT_ROW => LogRecord::Insert {
            id,
            vector,
            row: has_row,
        },
        REPLACE | REPLACE_ROW => LogRecord::Replace {
            id,
            vector,
            row: has_row,
        },
        ROW => LogRecord::Row { id, row },
        _ => LogRecord::Delete { id },
    };
    Ok((u64_at(bytes, SEQUENCE), record, needs))
}
