//! The header block at the start of every binary file of an index.
//!
//! ```text
//! offset  size  contents
//!      0     8  magic "STRATANN"
//!      8     2  file kind (u16)
//!     10     2  zero
//!     12     4  format version of this kind (u32)
//!     16     8  reader feature bits: a program that lacks one of them must not read the file
//!     24     8  writer feature bits: a program that lacks one of them must not change the file
//!     32     8  length of the whole file in bytes, with this block; the least if the file grows
//!     40     2  length F of the kind-specific fields
//!     42     6  zero
//!     48     F  fields of the kind (F <= 4044)
//!   48+F     .  zero up to 4092
//!   4092     4  crc32c of (block number 0 as u64, then bytes 0..4092)
//! ```
//!
//! Magic, kind, version, feature bits and checksum keep their positions in all future versions.

mod kind;

use crate::block::{self, BLOCK, u16_at, u32_at, u64_at};
use crate::error::{LayoutError, check_zero};

/// The first eight bytes of every file.
pub const MAGIC: &[u8; 8] = b"STRATANN";

/// The most bytes of the kind-specific fields.
pub const MAX_FIELDS: usize = CHECKSUM - FIELDS;

const KIND: usize = 8;
const VERSION: usize = 12;
const READER_FEATURES: usize = 16;
const WRITER_FEATURES: usize = 24;
const LENGTH: usize = 32;
const FIELDS_LENGTH: usize = 40;
const FIELDS: usize = 48;
const CHECKSUM: usize = BLOCK - 4;

pub use kind::{Beside, FileKind, Form, Role};

/// The decoded header block of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHeader {
    /// The kind of the file.
    pub kind: FileKind,
    /// The kind's format version.
    pub version: u32,
    /// Feature bits that a reader must know.
    pub reader_features: u64,
    /// Feature bits that a writer must know.
    pub writer_features: u64,
    /// The length of the file in bytes; a lower bound if it [grows](FileKind::is_appended_to).
    pub length: u64,
    /// The kind's own fields, at most [`MAX_FIELDS`] bytes.
    pub fields: Vec<u8>,
}

impl FileHeader {
    /// Makes a header with this build's version of `kind`, and without feature bits.
    pub fn new(kind: FileKind, length: u64, fields: Vec<u8>) -> FileHeader {
        FileHeader {
            kind,
            version: kind.version(),
            reader_features: 0,
            writer_features: 0,
            length,
            fields,
        }
    }

    /// Encodes the header block.
    ///
    /// # Panics
    /// Panics if the fields are longer than [`MAX_FIELDS`].
    pub fn encode(&self) -> [u8; BLOCK] {
        assert!(
            self.fields.len() <= MAX_FIELDS,
            "the fields of a header have at most {MAX_FIELDS} bytes, and these have {}",
            self.fields.len()
        );
        let mut block = [0; BLOCK];
        block[..8].copy_from_slice(MAGIC);
        block[KIND..KIND + 2].copy_from_slice(&self.kind.code().to_le_bytes());
        block[VERSION..VERSION + 4].copy_from_slice(&self.version.to_le_bytes());
        block[READER_FEATURES..READER_FEATURES + 8]
            .copy_from_slice(&self.reader_features.to_le_bytes());
        block[WRITER_FEATURES..WRITER_FEATURES + 8]
            .copy_from_slice(&self.writer_features.to_le_bytes());
        block[LENGTH..LENGTH + 8].copy_from_slice(&self.length.to_le_bytes());
        block[FIELDS_LENGTH..FIELDS_LENGTH + 2]
            .copy_from_slice(&(self.fields.len() as u16).to_le_bytes());
        block[FIELDS..FIELDS + self.fields.len()].copy_from_slice(&self.fields);
        let sum = block::checksum(0, &block[..CHECKSUM]);
        block[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// Decodes the header from the first bytes of `file`. Refuses damage and newer versions.
    pub fn decode(bytes: &[u8], file: &str) -> Result<FileHeader, LayoutError> {
        // The magic is checked before the length. So the error for a short file of another program
        // says that the file is not from StratANN.
        let head = &bytes[..bytes.len().min(MAGIC.len())];
        if head != &MAGIC[..head.len()] {
            return Err(LayoutError::Magic {
                file: file.to_owned(),
                offset: 0,
                found: head.escape_ascii().to_string(),
                expected: "STRATANN",
            });
        }
        let Some(block) = bytes.get(..BLOCK) else {
            return Err(LayoutError::Truncated {
                file: file.to_owned(),
                offset: 0,
                expected: BLOCK as u64,
                found: bytes.len() as u64,
            });
        };
        let stored = stored_checksum(block);
        let computed = block::checksum(0, &block[..CHECKSUM]);
        if stored != computed {
            return Err(block::mismatch(0, stored, computed, file));
        }

        let code = u16_at(block, KIND);
        let kind = FileKind::from_code(code).ok_or_else(|| LayoutError::UnknownKind {
            file: file.to_owned(),
            offset: KIND as u64,
            found: code,
        })?;
        let version = u32_at(block, VERSION);
        if version == 0 || version > kind.version() {
            return Err(LayoutError::UnknownVersion {
                file: file.to_owned(),
                offset: VERSION as u64,
                found: version,
                expected: kind.version(),
            });
        }
        let reader_features = u64_at(block, READER_FEATURES);
        check_features(
            reader_features,
            kind.reader_features(),
            "reader",
            READER_FEATURES as u64,
            file,
        )?;
        check_zero(&block[KIND + 2..VERSION], KIND as u64 + 2, file)?;
        check_zero(
            &block[FIELDS_LENGTH + 2..FIELDS],
            FIELDS_LENGTH as u64 + 2,
            file,
        )?;
        let fields_length = usize::from(u16_at(block, FIELDS_LENGTH));
        if fields_length > MAX_FIELDS {
            return Err(LayoutError::Field {
                file: file.to_owned(),
                offset: FIELDS_LENGTH as u64,
                what: "length of the header's fields",
                found: fields_length.to_string(),
                expected: format!("at most {MAX_FIELDS}"),
            });
        }
        let end = FIELDS + fields_length;
        check_zero(&block[end..CHECKSUM], end as u64, file)?;
        Ok(FileHeader {
            kind,
            version,
            reader_features,
            writer_features: u64_at(block, WRITER_FEATURES),
            length: u64_at(block, LENGTH),
            fields: block[FIELDS..end].to_vec(),
        })
    }

    /// [`FileHeader::decode`], which also refuses a file of another kind.
    pub fn decode_as(kind: FileKind, bytes: &[u8], file: &str) -> Result<FileHeader, LayoutError> {
        let header = FileHeader::decode(bytes, file)?;
        header.expect_kind(kind, file)?;
        Ok(header)
    }

    /// Refuses a header of another kind.
    pub fn expect_kind(&self, kind: FileKind, file: &str) -> Result<(), LayoutError> {
        if self.kind == kind {
            return Ok(());
        }
        Err(LayoutError::WrongKind {
            file: file.to_owned(),
            offset: KIND as u64,
            found: self.kind.name(),
            expected: kind.name(),
        })
    }

    /// Refuses a file whose length differs from the length in its header. A file that
    /// [grows](FileKind::is_appended_to) may be longer.
    pub fn check_length(&self, actual: u64, file: &str) -> Result<(), LayoutError> {
        if actual == self.length || actual > self.length && self.kind.is_appended_to() {
            return Ok(());
        }
        Err(LayoutError::Length {
            file: file.to_owned(),
            expected: self.length,
            found: actual,
            by: "as its header says",
        })
    }

    /// Refuses a file that this build may read but must not change.
    pub fn check_writable(&self, file: &str) -> Result<(), LayoutError> {
        check_features(
            self.writer_features,
            self.kind.writer_features(),
            "writer",
            WRITER_FEATURES as u64,
            file,
        )
    }

    /// A reader of the kind's own fields.
    pub fn fields<'a>(&'a self, file: &'a str) -> FieldsReader<'a> {
        FieldsReader {
            bytes: &self.fields,
            at: 0,
            file,
        }
    }
}

/// The checksum in a header block. The manifest has the same checksum, so that a reader notices a
/// file of another index.
///
/// # Panics
/// Panics if `block` is shorter than [`BLOCK`].
pub fn stored_checksum(block: &[u8]) -> u32 {
    u32_at(block, CHECKSUM)
}

/// Refuses unknown feature bits. The error names the lowest bit that is not in `known`.
pub(crate) fn check_features(
    found: u64,
    known: u64,
    whom: &'static str,
    offset: u64,
    file: &str,
) -> Result<(), LayoutError> {
    let unknown = found & !known;
    if unknown == 0 {
        return Ok(());
    }
    Err(LayoutError::UnknownFeature {
        file: file.to_owned(),
        offset,
        whom,
        bit: unknown.trailing_zeros(),
    })
}

/// Builds the kind-specific fields, as consecutive little-endian numbers.
#[derive(Debug, Clone, Default)]
pub struct FieldsWriter {
    bytes: Vec<u8>,
}

impl FieldsWriter {
    /// An empty list of fields.
    pub fn new() -> FieldsWriter {
        FieldsWriter::default()
    }

    /// Appends a `u32`.
    #[must_use]
    pub fn u32(mut self, value: u32) -> FieldsWriter {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Appends a `u64`.
    #[must_use]
    pub fn u64(mut self, value: u64) -> FieldsWriter {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Appends bytes unchanged.
    #[must_use]
    pub fn bytes(mut self, value: &[u8]) -> FieldsWriter {
        self.bytes.extend_from_slice(value);
        self
    }

    /// The fields' bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads the kind-specific fields in order. Errors name the field and its offset in the file.
#[derive(Debug, Clone)]
pub struct FieldsReader<'a> {
    bytes: &'a [u8],
    at: usize,
    file: &'a str,
}

impl<'a> FieldsReader<'a> {
    /// The next `u32`.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, LayoutError> {
        Ok(u32_at(self.take(4, what)?, 0))
    }

    /// The next `u64`.
    pub fn u64(&mut self, what: &'static str) -> Result<u64, LayoutError> {
        Ok(u64_at(self.take(8, what)?, 0))
    }

    /// The bytes that have not been read yet.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    /// The byte offset of the next field in the file.
    pub fn offset(&self) -> u64 {
        (FIELDS + self.at) as u64
    }

    /// Whether all fields have been read.
    pub fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Refuses a header with fields that were not read.
    pub fn end(self) -> Result<(), LayoutError> {
        if self.at == self.bytes.len() {
            return Ok(());
        }
        Err(LayoutError::Field {
            file: self.file.to_owned(),
            offset: FIELDS_LENGTH as u64,
            what: "length of the header's fields",
            found: self.bytes.len().to_string(),
            expected: self.at.to_string(),
        })
    }

    fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], LayoutError> {
        let Some(bytes) = self.bytes.get(self.at..self.at + length) else {
            return Err(LayoutError::Field {
                file: self.file.to_owned(),
                offset: self.offset(),
                what,
                found: "missing".to_owned(),
                expected: format!("{length} bytes"),
            });
        };
        self.at += length;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> FileHeader {
        FileHeader::new(
            FileKind::Codes,
            123_456,
            FieldsWriter::new().u64(99).u32(7).bytes(b"xyz").finish(),
        )
    }

    fn reseal(block: &mut [u8]) {
        let sum = block::checksum(0, &block[..CHECKSUM]);
        block[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
    }

    #[test]
    fn round_trip() {
        let header = sample();
        let block = header.encode();
        let back = FileHeader::decode(&block, "codes").unwrap();
        assert_eq!(back, header);
        let mut fields = back.fields("codes");
        assert_eq!(fields.u64("rows").unwrap(), 99);
        assert_eq!(fields.u32("bytes").unwrap(), 7);
        assert_eq!(fields.rest(), b"xyz");
        fields.end().unwrap();
        assert_eq!(back.encode(), block);
    }

    #[test]
    fn bytes_stand_where_the_table_says() {
        let block = sample().encode();
        assert_eq!(&block[..8], b"STRATANN");
        assert_eq!(block[8..16], [2, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(block[32..40], 123_456u64.to_le_bytes());
        assert_eq!(block[40..42], 15u16.to_le_bytes());
        assert_eq!(block[48..56], 99u64.to_le_bytes());
        assert_eq!(&block[60..63], b"xyz");
        assert!(block[63..4092].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn every_bit_flip_is_found() {
        let mut block = sample().encode();
        for bit in 0..BLOCK * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            let error = FileHeader::decode(&block, "f").expect_err("a flipped bit was accepted");
            if bit < 64 {
                assert!(matches!(error, LayoutError::Magic { .. }));
            } else {
                assert!(matches!(error, LayoutError::Checksum { .. }));
            }
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn truncation_is_found() {
        let block = sample().encode();
        for length in 0..BLOCK {
            let error = FileHeader::decode(&block[..length], "f").unwrap_err();
            assert!(
                matches!(error, LayoutError::Truncated { found, .. } if found == length as u64)
            );
        }
    }

    #[test]
    fn a_foreign_file_is_told_so() {
        let error = FileHeader::decode(b"\x7fELF", "a.idx/graph")
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("a.idx/graph: wrong magic"), "{error}");
        assert!(error.contains("expected \"STRATANN\""), "{error}");
    }

    #[test]
    fn newer_version_is_refused() {
        let mut header = sample();
        header.version = 9;
        let error = FileHeader::decode(&header.encode(), "codes").unwrap_err();
        assert_eq!(error.offset(), Some(12));
        let text = error.to_string();
        assert!(
            text.starts_with("codes: unknown format version 9 at offset 12; 1 is the newest"),
            "{text}"
        );
        header.version = 0;
        assert!(matches!(
            FileHeader::decode(&header.encode(), "codes"),
            Err(LayoutError::UnknownVersion { found: 0, .. })
        ));
    }

    #[test]
    fn unknown_features_are_refused() {
        let mut header = sample();
        header.reader_features = 0b1010_0000;
        let text = FileHeader::decode(&header.encode(), "codes")
            .unwrap_err()
            .to_string();
        assert!(
            text.starts_with(
                "codes: unknown reader feature bit 5 at offset 16; this build cannot read the file"
            ),
            "{text}"
        );
        header.reader_features = 0;
        header.writer_features = 1 << 63;
        let back =
            FileHeader::decode(&header.encode(), "codes").expect("a reader cannot read the header");
        let text = back.check_writable("codes").unwrap_err().to_string();
        assert!(
            text.contains("writer feature bit 63 at offset 24"),
            "{text}"
        );
        assert!(text.contains("cannot write to the file"), "{text}");
    }

    #[test]
    fn kinds() {
        for kind in FileKind::ALL {
            assert_eq!(FileKind::from_code(kind.code()), Some(kind));
        }
        let mut block = sample().encode();
        block[8] = 200;
        reseal(&mut block);
        assert!(matches!(
            FileHeader::decode(&block, "f"),
            Err(LayoutError::UnknownKind {
                found: 200,
                offset: 8,
                ..
            })
        ));
        let text = FileHeader::decode_as(FileKind::Graph, &sample().encode(), "f")
            .unwrap_err()
            .to_string();
        assert!(text.contains("is codes; graph expected"), "{text}");
    }

    #[test]
    fn reserved_bytes_are_refused() {
        for at in [10, 11, 42, 47, 63, 4091] {
            let mut block = sample().encode();
            block[at] = 1;
            reseal(&mut block);
            let error = FileHeader::decode(&block, "f").unwrap_err();
            assert_eq!(
                error,
                LayoutError::Reserved {
                    file: "f".into(),
                    offset: at as u64,
                    found: 1
                }
            );
        }
        let mut block = sample().encode();
        block[40..42].copy_from_slice(&5000u16.to_le_bytes());
        reseal(&mut block);
        assert!(matches!(
            FileHeader::decode(&block, "f"),
            Err(LayoutError::Field { offset: 40, .. })
        ));
    }

    #[test]
    fn fields_errors_name_the_field() {
        let header = FileHeader::new(FileKind::Codes, 0, vec![1, 2, 3, 4, 5]);
        let mut fields = header.fields("codes");
        fields.u32("rows").unwrap();
        let text = fields.u32("code bytes").unwrap_err().to_string();
        assert!(
            text.starts_with("codes: code bytes at offset 52 is missing"),
            "{text}"
        );
        fields.clone().end().unwrap_err();
    }

    #[test]
    fn length_is_checked() {
        let header = sample();
        header.check_length(123_456, "f").unwrap();
        let text = header.check_length(5, "f").unwrap_err().to_string();
        assert!(text.contains("5 bytes; 123456 expected"), "{text}");
    }

    proptest! {
        #[test]
        fn any_header_round_trips(
            kind in 0..FileKind::ALL.len(),
            writer_features: u64,
            length: u64,
            fields in prop::collection::vec(any::<u8>(), 0..=MAX_FIELDS),
        ) {
            let mut header = FileHeader::new(FileKind::ALL[kind], length, fields);
            header.writer_features = writer_features;
            prop_assert_eq!(FileHeader::decode(&header.encode(), "f").unwrap(), header);
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..5000), ours: bool) {
            if ours && bytes.len() >= BLOCK {
                bytes[..8].copy_from_slice(MAGIC);
                let block = &mut bytes[..BLOCK];
                reseal(block);
            }
            let _ = FileHeader::decode(&bytes, "f");
        }
    }
}
