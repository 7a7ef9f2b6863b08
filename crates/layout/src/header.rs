//! The header block that every binary file of an index starts with.
//!
//! ```text
//! offset  size  what
//!      0     8  magic "STRATANN"
//!      8     2  file kind (u16)
//!     10     2  zero
//!     12     4  format version of this kind (u32)
//!     16     8  reader feature bits: who does not know one of them must not read the file
//!     24     8  writer feature bits: who does not know one of them must not change the file
//!     32     8  length of the whole file in bytes, this block included; of a file that grows, its least
//!     40     2  length F of the kind-specific fields
//!     42     6  zero
//!     48     F  fields of the kind (F <= 4044)
//!   48+F     .  zero up to 4092
//!   4092     4  crc32c of (block number 0 as u64, then bytes 0..4092)
//! ```
//!
//! Magic, kind, version, feature bits and checksum stay where they are in all versions to come; what a kind
//! puts into its fields belongs to that kind's version.

use crate::block::{self, BLOCK, u16_at, u32_at, u64_at};
use crate::error::{LayoutError, check_zero};

/// The first eight bytes of every file.
pub const MAGIC: &[u8; 8] = b"STRATANN";

/// The most bytes that the kind-specific fields may have.
pub const MAX_FIELDS: usize = CHECKSUM - FIELDS;

const KIND: usize = 8;
const VERSION: usize = 12;
const READER_FEATURES: usize = 16;
const WRITER_FEATURES: usize = 24;
const LENGTH: usize = 32;
const FIELDS_LENGTH: usize = 40;
const FIELDS: usize = 48;
const CHECKSUM: usize = BLOCK - 4;

/// What a file holds. The numbers are part of the format; numbers that are not listed are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum FileKind {
    /// Coupled pages: vectors and adjacency lists side by side ([`crate::coupled`]).
    Graph = 1,
    /// The compressed vectors, a byte string ([`crate::stream`]).
    Codes = 2,
    /// The quantiser's centroids, a byte string.
    Codebook = 3,
    /// The navigation graph that is kept in memory, a byte string.
    Navigation = 4,
    /// Slotted pages of encoded vectors and adjacency lists side by side ([`crate::slotted`]).
    Packed = 5,
    /// Slotted pages of encoded adjacency lists.
    Adjacency = 6,
    /// Slotted pages of encoded vectors; one file for each segment.
    Vectors = 7,
    /// What a segment of vectors needs in memory, a byte string ([`crate::chunks`]); one file for each
    /// segment.
    Chunks = 8,
    /// Which page holds which node, and how the lists are encoded, a byte string ([`crate::directory`]).
    Directory = 9,
    /// How often the pages were read by a sample of queries, a byte string ([`crate::heat`]).
    Heat = 10,
    /// Coupled pages with the neighbours' codes beside each list ([`crate::inline`]).
    Inline = 11,
    /// The entry points of an inline index and their codes, a byte string ([`crate::entries`]).
    Entries = 12,
    /// Inserts and deletes in their order ([`crate::log`]); one file for each number.
    Log = 13,
    /// Where the nodes stand whose records were written anew, and what came after the build, a byte string
    /// ([`crate::placement`]).
    Placement = 14,
    /// Changes that wait for their pages to be written, a byte string ([`crate::pending`]).
    Pending = 15,
    /// Pages that are about to be written in place, a byte string ([`crate::journal`]).
    Journal = 16,
    /// Which node has which outside id, a byte string ([`crate::ids`]).
    Ids = 17,
}

/// What of an index a file is for: each role may be on a tier of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A node's neighbours, and what stands beside them: where its page is, what waits for it, how often it was read.
    Topology,
    /// Estimates of distances: codes and what they mean.
    Codes,
    /// Vectors that are apart from lists.
    Vectors,
    /// Which node has which outside id.
    Ids,
    /// Changes since the checkpoint. The log stays where the manifest is: both are renamed into place.
    Log,
}

impl FileKind {
    /// All kinds that this build knows.
    pub const ALL: [FileKind; 17] = [
        FileKind::Graph,
        FileKind::Codes,
        FileKind::Codebook,
        FileKind::Navigation,
        FileKind::Packed,
        FileKind::Adjacency,
        FileKind::Vectors,
        FileKind::Chunks,
        FileKind::Directory,
        FileKind::Heat,
        FileKind::Inline,
        FileKind::Entries,
        FileKind::Log,
        FileKind::Placement,
        FileKind::Pending,
        FileKind::Journal,
        FileKind::Ids,
    ];

    /// The number that stands in the file.
    pub fn code(self) -> u16 {
        self as u16
    }

    /// The kind with this number, if this build knows it.
    pub fn from_code(code: u16) -> Option<FileKind> {
        FileKind::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The kind's name in messages and as a role in the manifest.
    pub fn name(self) -> &'static str {
        match self {
            FileKind::Graph => "graph",
            FileKind::Codes => "codes",
            FileKind::Codebook => "codebook",
            FileKind::Navigation => "navigation",
            FileKind::Packed => "packed",
            FileKind::Adjacency => "adjacency",
            FileKind::Vectors => "vectors",
            FileKind::Chunks => "chunks",
            FileKind::Directory => "directory",
            FileKind::Heat => "heat",
            FileKind::Inline => "inline",
            FileKind::Entries => "entries",
            FileKind::Log => "log",
            FileKind::Placement => "placement",
            FileKind::Pending => "pending",
            FileKind::Journal => "journal",
            FileKind::Ids => "ids",
        }
    }

    /// The kind that begins the name of a file, `kind-…`, as those of an index do but for its manifest.
    pub fn of_name(name: &str) -> Option<FileKind> {
        let (first, _) = name.split_once('-')?;
        FileKind::ALL.into_iter().find(|kind| kind.name() == first)
    }

    /// What a file of this kind is for.
    pub fn role(self) -> Role {
        match self {
            FileKind::Graph
            | FileKind::Packed
            | FileKind::Adjacency
            | FileKind::Inline
            | FileKind::Directory
            | FileKind::Navigation
            | FileKind::Heat
            | FileKind::Placement
            | FileKind::Pending
            | FileKind::Journal => Role::Topology,
            FileKind::Codes | FileKind::Codebook | FileKind::Entries => Role::Codes,
            FileKind::Vectors | FileKind::Chunks => Role::Vectors,
            FileKind::Ids => Role::Ids,
            FileKind::Log => Role::Log,
        }
    }

    /// The name of the layout whose lists are in a file of this kind; `None`: it holds no lists.
    pub fn layout(self) -> Option<&'static str> {
        match self {
            FileKind::Graph => Some("coupled"),
            FileKind::Packed => Some("packed"),
            FileKind::Adjacency => Some("decoupled"),
            FileKind::Inline => Some("inline"),
            FileKind::Codes
            | FileKind::Codebook
            | FileKind::Navigation
            | FileKind::Vectors
            | FileKind::Chunks
            | FileKind::Directory
            | FileKind::Heat
            | FileKind::Entries
            | FileKind::Log
            | FileKind::Placement
            | FileKind::Pending
            | FileKind::Journal
            | FileKind::Ids => None,
        }
    }

    /// Whether the vectors of the nodes whose lists are in a file of this kind are in segments, files of their own.
    pub fn has_segments(self) -> bool {
        self == FileKind::Adjacency
    }

    /// The format version that this build writes, and the newest that it reads.
    pub fn version(self) -> u32 {
        match self {
            FileKind::Graph => crate::coupled::FORMAT_VERSION,
            FileKind::Codes => crate::stream::CODES_FORMAT_VERSION,
            FileKind::Codebook => crate::stream::CODEBOOK_FORMAT_VERSION,
            FileKind::Navigation => crate::navigation::FORMAT_VERSION,
            FileKind::Packed | FileKind::Adjacency | FileKind::Vectors => {
                crate::slotted::FORMAT_VERSION
            }
            FileKind::Chunks => crate::chunks::FORMAT_VERSION,
            FileKind::Directory => crate::directory::FORMAT_VERSION,
            FileKind::Heat => crate::heat::FORMAT_VERSION,
            FileKind::Inline => crate::inline::FORMAT_VERSION,
            FileKind::Entries => crate::entries::FORMAT_VERSION,
            FileKind::Log => crate::log::FORMAT_VERSION,
            FileKind::Placement => crate::placement::FORMAT_VERSION,
            FileKind::Pending => crate::pending::FORMAT_VERSION,
            FileKind::Journal => crate::journal::FORMAT_VERSION,
            FileKind::Ids => crate::ids::FORMAT_VERSION,
        }
    }

    /// Whether records are appended to a file of this kind after its header was written, which then says only how long it is at least.
    pub fn is_appended_to(self) -> bool {
        self == FileKind::Log
    }

    /// The reader feature bits that this build understands.
    pub fn reader_features(self) -> u64 {
        0
    }

    /// The writer feature bits that this build understands.
    pub fn writer_features(self) -> u64 {
        0
    }
}

impl std::fmt::Display for FileKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A file's header block, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHeader {
    /// What the file holds.
    pub kind: FileKind,
    /// The kind's format version.
    pub version: u32,
    /// Feature bits that a reader must know.
    pub reader_features: u64,
    /// Feature bits that a writer must know.
    pub writer_features: u64,
    /// The length of the whole file in bytes, this block included; the least that it has, where the kind
    /// [is appended to](FileKind::is_appended_to).
    pub length: u64,
    /// The kind's own fields, at most [`MAX_FIELDS`] bytes; see [`FieldsWriter`] and [`FieldsReader`].
    pub fields: Vec<u8>,
}

impl FileHeader {
    /// A header of this build's version of `kind`, without feature bits.
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

    /// The header block.
    ///
    /// # Panics
    /// When the fields are longer than [`MAX_FIELDS`].
    pub fn encode(&self) -> [u8; BLOCK] {
        assert!(
            self.fields.len() <= MAX_FIELDS,
            "the fields of a header have at most {MAX_FIELDS} bytes, these have {}",
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

    /// Reads the header from the first bytes of `file` (more than a block may be given). Refuses what is
    /// truncated, not ours, damaged, or newer than this build.
    pub fn decode(bytes: &[u8], file: &str) -> Result<FileHeader, LayoutError> {
        // The magic first: a file that is not ours should be told so, whatever its length.
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

    /// As [`FileHeader::decode`], and refuses a file of another kind.
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

    /// Refuses a file whose length on disk, in bytes, is not that of its header; a file that
    /// [is appended to](FileKind::is_appended_to) may be longer.
    pub fn check_length(&self, actual: u64, file: &str) -> Result<(), LayoutError> {
        if actual == self.length || actual > self.length && self.kind.is_appended_to() {
            return Ok(());
        }
        Err(LayoutError::Length {
            file: file.to_owned(),
            expected: self.length,
            found: actual,
            by: "its header says so",
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

/// The checksum that stands in an encoded header block; the manifest keeps it, so that a file of another
/// index is not taken for one of this index.
///
/// # Panics
/// When `block` is shorter than [`BLOCK`].
pub fn stored_checksum(block: &[u8]) -> u32 {
    u32_at(block, CHECKSUM)
}

/// Names the lowest bit of `found` that is not in `known`.
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

/// Puts a kind's fields together, one little-endian number after the other.
#[derive(Debug, Clone, Default)]
pub struct FieldsWriter {
    bytes: Vec<u8>,
}

impl FieldsWriter {
    /// No fields yet.
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

    /// Appends bytes as they are.
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

/// Takes a kind's fields apart in the order in which they were written. Its errors name the field and its
/// offset in the file.
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

    /// Where the next field stands in the file, in bytes.
    pub fn offset(&self) -> u64 {
        (FIELDS + self.at) as u64
    }

    /// Refuses fields that nobody read.
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

    /// Puts a right checksum on a block that a test has changed.
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
        assert!(
            error.starts_with("a.idx/graph: wrong magic at offset 0: found"),
            "{error}"
        );
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
            text.starts_with("codes: unknown format version 9 at offset 12 (1 is the newest"),
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
            text.starts_with("codes: unknown reader feature bit 5 at offset 16; the file needs a newer StratANN to read it"),
            "{text}"
        );
        header.reader_features = 0;
        header.writer_features = 1 << 63;
        let back = FileHeader::decode(&header.encode(), "codes").expect("a reader may read it");
        let text = back.check_writable("codes").unwrap_err().to_string();
        assert!(
            text.contains("writer feature bit 63 at offset 24"),
            "{text}"
        );
        assert!(text.contains("to write to it"), "{text}");
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
        assert!(text.contains("is codes, graph expected"), "{text}");
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
        assert!(text.contains("5 bytes, 123456 expected"), "{text}");
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
