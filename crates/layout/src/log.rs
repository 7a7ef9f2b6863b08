//! The vector log: every insert and delete since the last checkpoint, in the order in which they happened.
//!
//! The record that holds a new vector *is* the durable insert; replaying the records rebuilds the rest. A log is many
//! files, numbered without gaps; each is a header block and then records, back to back:
//!
//! ```text
//! offset  size  what
//!      0  4096  header block (`header`); its fields:
//!                 element code u32
//!                 dimension u32
//!                 number of the log u64
//!                 sequence number of the first record u64
//!   4096     .  record, record, ..
//!
//! a record, at a multiple of 8
//!      0     4  crc32c of (number of the log u64, offset of the record in the file u64, then bytes 4..end)
//!      4     1  kind: 1 insert, 2 delete, 3 replace
//!      5     3  zero
//!      8     4  bytes P of the payload (u32): those of a vector for an insert, 0 for a delete
//!     12     8  sequence number (u64): one more than that of the record before it, over all logs
//!     20     8  outside id (u64)
//!     28     P  the vector's elements
//!   28+P     .  zero up to a multiple of 8
//! ```
//!
//! **Length.** The header is written before the first record is, and never again, so it cannot know the file's length.
//! Its length field is that of the block itself: what the file has at least
//! ([`FileKind::grows`](crate::FileKind::grows)).
//!
//! **Checksum.** It is seeded with the log's number and the record's offset: a record that was moved, or that a file
//! system shows of a file that was there before, never reads as valid.
//!
//! **End.** Nothing marks the end of a log. The first place where no whole record with the right checksum and sequence
//! number stands is its end, and [`EndReason`] says whether something stands there. A crash leaves a torn record there,
//! or zeros, and perhaps whole records behind them, none of which had been acknowledged.
//!
//! **First sequence number.** It says how to go on from a log without records. It also takes back: where records of the
//! log before reach it or pass it, those from it on do not count. They had not been acknowledged or were written again
//! here, because nobody could tell whether that file was still writable.

use std::fmt;

use stratann_vector::Element;

use crate::block::{BLOCK, u32_at, u64_at};
use crate::error::LayoutError;
use crate::geometry::{MAX_DIMENSION, read_element};
use crate::header::{FieldsWriter, FileHeader, FileKind};

/// Format version of [`FileKind::Log`]. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

/// Where the first record of a log stands, in bytes.
pub const FIRST_RECORD: u64 = BLOCK as u64;

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

/// What the vectors of a log are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogShape {
    element: Element,
    dim: usize,
}

impl LogShape {
    /// Vectors of `dim` elements.
    ///
    /// # Errors
    /// A dimension of zero or above [`MAX_DIMENSION`].
    pub fn new(element: Element, dim: usize) -> Result<LogShape, LayoutError> {
        if dim == 0 || dim > MAX_DIMENSION {
            return Err(LayoutError::Shape {
                what: "the dimension",
                found: dim as u64,
                expected: "1 to 65536",
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

    /// Bytes of the longest record.
    pub fn longest_record(&self) -> usize {
        record_bytes(self.vector_bytes())
    }
}

/// The header block of a log, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogHeader {
    /// What the vectors are.
    pub shape: LogShape,
    /// The log's number.
    pub number: u64,
    /// Sequence number of the first record, whether there is one or not.
    pub first_sequence: u64,
}

impl LogHeader {
    /// The header block.
    pub fn encode(&self) -> [u8; BLOCK] {
        let fields = FieldsWriter::new()
            .u32(self.shape.element.code().into())
            .u32(self.shape.dim as u32)
            .u64(self.number)
            .u64(self.first_sequence)
            .finish();
        FileHeader::new(FileKind::Log, FIRST_RECORD, fields).encode()
    }

    /// Reads the header of log `number` from the first bytes of `file`.
    ///
    /// # Errors
    /// As [`FileHeader::decode_as`]; a shape that there is not; the header of another log.
    pub fn decode(bytes: &[u8], number: u64, file: &str) -> Result<LogHeader, LayoutError> {
        let header = FileHeader::decode_as(FileKind::Log, bytes, file)?;
        if header.length != FIRST_RECORD {
            return Err(LayoutError::Length {
                file: file.to_owned(),
                expected: FIRST_RECORD,
                found: header.length,
                by: "a log's header counts only itself",
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
        })
    }
}

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogRecord<'a> {
    /// A vector came in.
    Insert {
        /// Its outside id.
        id: u64,
        /// Its elements, little-endian, as many bytes as [`LogShape::vector_bytes`] says.
        vector: &'a [u8],
    },
    /// A vector took the place of the one with the same id: in one record, so that a crash leaves the one or the other.
    Replace {
        /// Their outside id.
        id: u64,
        /// The new one's elements.
        vector: &'a [u8],
    },
    /// A vector went out.
    Delete {
        /// Its outside id.
        id: u64,
    },
}

impl<'a> LogRecord<'a> {
    /// The outside id.
    pub fn id(&self) -> u64 {
        match *self {
            LogRecord::Insert { id, .. }
            | LogRecord::Replace { id, .. }
            | LogRecord::Delete { id } => id,
        }
    }

    /// The vector that came in, if one did.
    pub fn vector(&self) -> Option<&'a [u8]> {
        match *self {
            LogRecord::Insert { vector, .. } | LogRecord::Replace { vector, .. } => Some(vector),
            LogRecord::Delete { .. } => None,
        }
    }

    fn payload(&self) -> &'a [u8] {
        self.vector().unwrap_or_default()
    }

    /// Bytes of the record in a log.
    pub fn encoded_bytes(&self) -> usize {
        record_bytes(self.payload().len())
    }
}

/// Bytes of a record with so many bytes of payload.
fn record_bytes(payload: usize) -> usize {
    (PAYLOAD + payload).next_multiple_of(ALIGNMENT)
}

/// Where a record stands: part of what its checksum covers.
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
    /// Where the record stands that follows one of `bytes` bytes.
    #[must_use]
    pub fn after(self, bytes: usize) -> RecordPlace {
        RecordPlace {
            log: self.log,
            offset: self.offset.saturating_add(bytes as u64),
            sequence: self.sequence.saturating_add(1),
        }
    }
}

/// Appends the bytes of a record that is to stand at `place`; returns where the next one stands.
///
/// The vector's length is the caller's to check: a reader takes a record with a vector of a wrong length for the end of
/// the log.
pub fn encode_record(record: LogRecord<'_>, place: RecordPlace, out: &mut Vec<u8>) -> RecordPlace {
    let (kind, payload) = match record {
        LogRecord::Insert { vector, .. } => (INSERT, vector),
        LogRecord::Replace { vector, .. } => (REPLACE, vector),
        LogRecord::Delete { .. } => (DELETE, &[][..]),
    };
    let start = out.len();
    out.extend_from_slice(&[0; KIND]);
    out.extend_from_slice(&[kind, 0, 0, 0]);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&place.sequence.to_le_bytes());
    out.extend_from_slice(&record.id().to_le_bytes());
    out.extend_from_slice(payload);
    let bytes = record.encoded_bytes();
    out.resize(start + bytes, 0);
    let sum = checksum(place, &out[start + KIND..]);
    out[start..start + KIND].copy_from_slice(&sum.to_le_bytes());
    place.after(bytes)
}

fn checksum(place: RecordPlace, bytes: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&place.log.to_le_bytes());
    digest.update(&place.offset.to_le_bytes());
    digest.update(bytes);
    digest.finalize() as u32
}

/// Where the records of a log end, and why there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Where the record would stand that is not there, in bytes from the start of the file.
    pub offset: u64,
    /// Why it is not there.
    pub reason: EndReason,
}

/// Why no record stands at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// The bytes end there: nothing is missing.
    Clean,
    /// The bytes end within the record.
    Short {
        /// Bytes that the record needs, as far as they say.
        needs: usize,
        /// Bytes that are there.
        found: usize,
    },
    /// No kind of record; zero where a file was made longer and its bytes were not written.
    Kind(u8),
    /// A payload that is not as long as the kind's.
    Length {
        /// What stands there, in bytes.
        found: u32,
        /// What should stand there.
        expected: u32,
    },
    /// Bytes that should be zero are not.
    Reserved,
    /// The checksum is not that of the bytes.
    Checksum {
        /// What stands there.
        stored: u32,
        /// The checksum of the bytes at this place.
        computed: u32,
    },
    /// A whole record, but not the next one.
    Sequence {
        /// What stands there.
        found: u64,
        /// What should stand there.
        expected: u64,
    },
}

impl EndReason {
    /// Whether the log ends behind its last record, and not in a torn or damaged one.
    pub fn is_clean(self) -> bool {
        self == EndReason::Clean
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndReason::Clean => write!(f, "the log ends there"),
            EndReason::Short { needs, found } => {
                write!(f, "the record needs {needs} bytes, {found} are left")
            }
            EndReason::Kind(kind) => write!(f, "there is no kind {kind} of records"),
            EndReason::Length { found, expected } => {
                write!(f, "the payload's length is {found}, {expected} expected")
            }
            EndReason::Reserved => write!(f, "bytes that should be zero are not"),
            EndReason::Checksum { stored, computed } => {
                write!(
                    f,
                    "checksum {stored:#010x} stored, {computed:#010x} computed"
                )
            }
            EndReason::Sequence { found, expected } => {
                write!(f, "sequence number {found}, {expected} expected")
            }
        }
    }
}

/// Takes records from bytes, one after the other.
#[derive(Debug, Clone)]
pub struct LogRecords<'a> {
    shape: LogShape,
    place: RecordPlace,
    bytes: &'a [u8],
}

impl<'a> LogRecords<'a> {
    /// The records in `bytes`, of which the first should stand at `place`.
    pub fn new(shape: LogShape, place: RecordPlace, bytes: &'a [u8]) -> LogRecords<'a> {
        LogRecords {
            shape,
            place,
            bytes,
        }
    }

    /// Where the next record should stand.
    pub fn place(&self) -> RecordPlace {
        self.place
    }

    /// The bytes that have not been read.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// The next record and its sequence number, or why there is none. Bytes are taken for what they are at this place
    /// or not at all; once it has said that there is none, it says so again.
    ///
    /// Who holds only a piece of the file goes on with more bytes after [`EndReason::Short`] and [`EndReason::Clean`].
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
        let found = self.bytes.len();
        if found == 0 {
            return Err(EndReason::Clean);
        }
        let short = |needs| EndReason::Short { needs, found };
        let head = self.bytes.get(..PAYLOAD).ok_or(short(PAYLOAD))?;
        // The kind and the length before the checksum: they say how many bytes it covers.
        let payload = match head[KIND] {
            INSERT | REPLACE => self.shape.vector_bytes(),
            DELETE => 0,
            kind => return Err(EndReason::Kind(kind)),
        };
        let length = u32_at(head, LENGTH);
        if length as usize != payload {
            return Err(EndReason::Length {
                found: length,
                expected: payload as u32,
            });
        }
        let needs = record_bytes(payload);
        let bytes = self.bytes.get(..needs).ok_or(short(needs))?;
        let stored = u32_at(bytes, 0);
        let computed = checksum(self.place, &bytes[KIND..]);
        if stored != computed {
            return Err(EndReason::Checksum { stored, computed });
        }
        let (front, back) = (&bytes[RESERVED..LENGTH], &bytes[PAYLOAD + payload..]);
        if front.iter().chain(back).any(|&byte| byte != 0) {
            return Err(EndReason::Reserved);
        }
        let sequence = u64_at(bytes, SEQUENCE);
        if sequence != self.place.sequence {
            return Err(EndReason::Sequence {
                found: sequence,
                expected: self.place.sequence,
            });
        }
        let id = u64_at(bytes, ID);
        let vector = &bytes[PAYLOAD..PAYLOAD + payload];
        let record = match bytes[KIND] {
            INSERT => LogRecord::Insert { id, vector },
            REPLACE => LogRecord::Replace { id, vector },
            _ => LogRecord::Delete { id },
        };
        Ok((record, needs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shape() -> LogShape {
        LogShape::new(Element::U8, 13).unwrap()
    }

    const START: RecordPlace = RecordPlace {
        log: 3,
        offset: FIRST_RECORD,
        sequence: 70,
    };

    /// What a test remembers of a record: its id, and its vector unless it is a delete.
    type Owned = (u64, Option<Vec<u8>>);

    fn borrowed((id, vector): &Owned) -> LogRecord<'_> {
        match vector {
            // Every third id stands for one that was there before.
            Some(vector) if id % 3 == 2 => LogRecord::Replace { id: *id, vector },
            Some(vector) => LogRecord::Insert { id: *id, vector },
            None => LogRecord::Delete { id: *id },
        }
    }

    fn owned(record: LogRecord<'_>) -> Owned {
        let replaces = matches!(record, LogRecord::Replace { .. });
        let vector = record.vector().map(<[u8]>::to_vec);
        assert_eq!(replaces, record.id() % 3 == 2 && vector.is_some());
        (record.id(), vector)
    }

    fn encode(records: &[Owned]) -> Vec<u8> {
        let (mut out, mut place) = (Vec::new(), START);
        for record in records {
            place = encode_record(borrowed(record), place, &mut out);
        }
        assert_eq!(place.offset - START.offset, out.len() as u64);
        out
    }

    /// All records there are, checking their sequence numbers, and why there are no more.
    fn decode(shape: LogShape, place: RecordPlace, bytes: &[u8]) -> (Vec<Owned>, End) {
        let mut records = LogRecords::new(shape, place, bytes);
        let mut out = Vec::new();
        loop {
            match records.next_record() {
                Ok((sequence, record)) => {
                    assert_eq!(sequence, place.sequence + out.len() as u64);
                    out.push(owned(record));
                }
                Err(end) => {
                    assert_eq!(records.next_record(), Err(end), "it does not go on");
                    return (out, end);
                }
            }
        }
    }

    fn sample() -> Vec<Owned> {
        vec![
            (7, Some((0..13).collect())),
            (u64::MAX, None),
            (7, Some(vec![255; 13])),
        ]
    }

    #[test]
    fn bytes_stand_where_the_table_says() {
        let bytes = encode(&sample());
        // 28 + 13 = 41 and 28, padded; all at multiples of 8.
        assert_eq!(bytes.len(), 48 + 32 + 48);
        assert_eq!(bytes[4..8], [1, 0, 0, 0]);
        assert_eq!(bytes[8..12], 13u32.to_le_bytes());
        assert_eq!(bytes[12..20], 70u64.to_le_bytes());
        assert_eq!(bytes[20..28], 7u64.to_le_bytes());
        assert_eq!(bytes[28..41], (0..13).collect::<Vec<u8>>()[..]);
        assert!(bytes[41..48].iter().all(|&byte| byte == 0));
        assert_eq!(bytes[52..56], [2, 0, 0, 0]);
        assert_eq!(bytes[60..68], 71u64.to_le_bytes());
        // Another implementation of the checksum.
        let mut covered = 3u64.to_le_bytes().to_vec();
        covered.extend_from_slice(&(4096u64 + 48).to_le_bytes());
        covered.extend_from_slice(&bytes[52..80]);
        assert_eq!(bytes[48..52], crc32c::crc32c(&covered).to_le_bytes());
    }

    #[test]
    fn every_bit_flip_ends_the_log_before_the_record() {
        let records = sample();
        let mut bytes = encode(&records);
        let starts = [0, 48, 80];
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let before = starts.iter().filter(|&&start| start <= bit / 8).count() - 1;
            let (found, end) = decode(shape(), START, &bytes);
            assert_eq!(found, records[..before], "bit {bit}");
            assert_eq!(end.offset, START.offset + starts[before] as u64);
            assert!(!end.reason.is_clean(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn every_truncation_is_noticed() {
        let records = sample();
        let bytes = encode(&records);
        let starts = [0, 48, 80, 128];
        for length in 0..=bytes.len() {
            let whole = starts.iter().filter(|&&start| start <= length).count() - 1;
            let (found, end) = decode(shape(), START, &bytes[..length]);
            assert_eq!(found, records[..whole], "{length} bytes");
            assert_eq!(end.offset, START.offset + starts[whole] as u64);
            assert_eq!(end.reason.is_clean(), length == starts[whole]);
            // A file whose length was recorded and whose bytes were not.
            let mut holed = bytes[..length].to_vec();
            holed.resize(bytes.len() + 4096, 0);
            let (found, end) = decode(shape(), START, &holed);
            assert!(!end.reason.is_clean(), "{length} bytes, then zeros");
            assert!(found.len() <= records.len());
            assert_eq!(found, records[..found.len()]);
        }
    }

    #[test]
    fn a_record_is_valid_in_its_place_only() {
        let bytes = encode(&sample());
        for place in [
            RecordPlace { log: 4, ..START },
            RecordPlace {
                offset: START.offset + 8,
                ..START
            },
        ] {
            let (found, end) = decode(shape(), place, &bytes);
            assert!(found.is_empty());
            assert!(matches!(end.reason, EndReason::Checksum { .. }));
        }
        let later = RecordPlace {
            sequence: 71,
            ..START
        };
        let (found, end) = decode(shape(), later, &bytes);
        assert!(found.is_empty());
        assert_eq!(
            end.reason,
            EndReason::Sequence {
                found: 70,
                expected: 71
            }
        );
        let other = LogShape::new(Element::U8, 12).unwrap();
        let (found, end) = decode(other, START, &bytes);
        assert!(found.is_empty());
        assert_eq!(
            end.reason.to_string(),
            "the payload's length is 13, 12 expected"
        );
    }

    #[test]
    fn what_should_be_zero_is_refused_under_a_right_checksum_too() {
        for (at, reason) in [
            (5, EndReason::Reserved),
            (47, EndReason::Reserved),
            (4, EndReason::Kind(9)),
        ] {
            let mut bytes = encode(&sample()[..1]);
            bytes[at] = 9;
            let sum = checksum(START, &bytes[4..]);
            bytes[..4].copy_from_slice(&sum.to_le_bytes());
            assert_eq!(decode(shape(), START, &bytes).1.reason, reason);
        }
    }

    fn header() -> LogHeader {
        LogHeader {
            shape: LogShape::new(Element::F16, 300).unwrap(),
            number: 12,
            first_sequence: 1 << 40,
        }
    }

    #[test]
    fn header_round_trip() {
        let block = header().encode();
        assert_eq!(LogHeader::decode(&block, 12, "log").unwrap(), header());
        assert_eq!(block[8..10], [13, 0]);
        assert_eq!(block[48..52], 1u32.to_le_bytes());
        assert_eq!(block[52..56], 300u32.to_le_bytes());
        assert_eq!(block[56..64], 12u64.to_le_bytes());
        assert_eq!(block[64..72], (1u64 << 40).to_le_bytes());

        let text = LogHeader::decode(&block, 11, "log-000011").unwrap_err();
        assert!(
            text.to_string()
                .starts_with("log-000011: number of the log at offset 56 is 12, expected 11"),
            "{text}"
        );
        let fields = |element: u32, dim: u32| {
            let fields = FieldsWriter::new().u32(element).u32(dim).u64(12).u64(0);
            let block = FileHeader::new(FileKind::Log, FIRST_RECORD, fields.finish()).encode();
            LogHeader::decode(&block, 12, "log")
        };
        fields(0, 65_536).unwrap();
        for (element, dim, offset) in [(4, 1, 48), (256, 1, 48), (0, 0, 52), (0, 65_537, 52)] {
            assert_eq!(fields(element, dim).unwrap_err().offset(), Some(offset));
        }
        let long = FileHeader::new(FileKind::Log, 5000, header_fields()).encode();
        LogHeader::decode(&long, 12, "log").unwrap_err();
        let other = FileHeader::new(FileKind::Codes, FIRST_RECORD, header_fields()).encode();
        LogHeader::decode(&other, 12, "log").unwrap_err();
        LogShape::new(Element::F32, 0).unwrap_err();
        LogShape::new(Element::F32, 65_537).unwrap_err();
    }

    fn header_fields() -> Vec<u8> {
        FileHeader::decode(&header().encode(), "log")
            .unwrap()
            .fields
    }

    #[test]
    fn a_file_that_grows_may_be_longer_than_its_header_says() {
        let header = FileHeader::decode(&header().encode(), "log").unwrap();
        header.check_length(4096, "log").unwrap();
        header.check_length(9999, "log").unwrap();
        header.check_length(4095, "log").unwrap_err();
    }

    fn any_record() -> impl Strategy<Value = Owned> {
        (
            any::<u64>(),
            prop::option::of(prop::collection::vec(any::<u8>(), 13)),
        )
    }

    proptest! {
        #[test]
        fn any_records_round_trip_in_any_pieces(
            records in prop::collection::vec(any_record(), 0..20),
            piece in 1usize..200,
        ) {
            let bytes = encode(&records);
            let (found, end) = decode(shape(), START, &bytes);
            prop_assert_eq!(&found, &records);
            prop_assert!(end.reason.is_clean());
            // As somebody reads a file that is longer than memory.
            let (mut held, mut place, mut found) = (Vec::new(), START, Vec::new());
            for more in bytes.chunks(piece) {
                held.extend_from_slice(more);
                let mut reader = LogRecords::new(shape(), place, &held);
                let end = loop {
                    match reader.next_record() {
                        Ok((_, record)) => found.push(owned(record)),
                        Err(end) => break end,
                    }
                };
                let cut = matches!(end.reason, EndReason::Clean | EndReason::Short { .. });
                prop_assert!(cut, "{}", end.reason);
                place = reader.place();
                held = reader.rest().to_vec();
            }
            prop_assert!(held.is_empty());
            prop_assert_eq!(found, records);
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..300),
            kind in 0u8..4,
            length in prop::sample::select(vec![0u32, 13, 14, u32::MAX]),
            sealed: bool,
            offset: u64,
            sequence: u64,
        ) {
            let place = RecordPlace { log: 1, offset, sequence };
            if bytes.len() >= 48 {
                bytes[4] = kind;
                bytes[8..12].copy_from_slice(&length.to_le_bytes());
                if sealed {
                    bytes[5..8].fill(0);
                    bytes[12..20].copy_from_slice(&sequence.to_le_bytes());
                    bytes[41..48].fill(0);
                    let end = if kind == DELETE { 32 } else { 48 };
                    let sum = checksum(place, &bytes[4..end]);
                    bytes[..4].copy_from_slice(&sum.to_le_bytes());
                }
            }
            let mut reader = LogRecords::new(shape(), place, &bytes);
            let mut records = 0;
            let end = loop {
                match reader.next_record() {
                    Ok(_) => records += 1,
                    Err(end) => break end,
                }
            };
            prop_assert!(end.offset >= offset);
            prop_assert!(!end.reason.to_string().is_empty());
            if sealed && bytes.len() >= 48 && kind == INSERT && length == 13 {
                prop_assert!(records > 0);
            }
        }

        #[test]
        fn arbitrary_header_fields_never_panic(fields in prop::collection::vec(any::<u8>(), 0..40)) {
            let block = FileHeader::new(FileKind::Log, FIRST_RECORD, fields).encode();
            let _ = LogHeader::decode(&block, 0, "log");
        }
    }
}
