//! Why bytes were refused. Each error names the file, the offset in it, what was found, what was
//! expected, and what to do about it.

/// Bytes that this crate does not accept. `file` is the name that the caller gave, offsets are in
/// bytes from the start of that file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The file (or the piece of it that was handed over) ends too early.
    #[error(
        "{file}: truncated at offset {offset}: {expected} bytes expected, {found} found; \
         restore the file from a copy or build the index again"
    )]
    Truncated {
        /// The file.
        file: String,
        /// Where the missing bytes' structure starts.
        offset: u64,
        /// Bytes that the structure needs.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// The file has more or fewer bytes than its header or manifest says.
    #[error(
        "{file}: the file has {found} bytes, {expected} expected ({by}); \
         restore the file from a copy or build the index again"
    )]
    Length {
        /// The file.
        file: String,
        /// The length that was expected, in bytes.
        expected: u64,
        /// The length that the file has, in bytes.
        found: u64,
        /// Who says what length is expected.
        by: &'static str,
    },
    /// The file is not one of ours.
    #[error(
        "{file}: wrong magic at offset {offset}: found {found:?}, expected {expected:?}; \
         this is not a StratANN file"
    )]
    Magic {
        /// The file.
        file: String,
        /// Where the magic stands.
        offset: u64,
        /// The bytes that stand there, escaped.
        found: String,
        /// What should stand there.
        expected: &'static str,
    },
    /// The stored checksum is not that of the bytes.
    #[error(
        "{file}: checksum mismatch in the block at offset {offset}: {stored:#010x} stored, \
         {computed:#010x} computed; the bytes are damaged or misplaced: restore the file from a copy or \
         build the index again"
    )]
    Checksum {
        /// The file.
        file: String,
        /// Where the block starts.
        offset: u64,
        /// The checksum that the file holds.
        stored: u32,
        /// The checksum of the bytes that were read.
        computed: u32,
    },
    /// A kind of file that this version does not know.
    #[error(
        "{file}: unknown file kind {found} at offset {offset}; it was written by a newer StratANN: \
         use that version to read it"
    )]
    UnknownKind {
        /// The file.
        file: String,
        /// Where the kind stands.
        offset: u64,
        /// The kind's code.
        found: u16,
    },
    /// A kind of index that this version does not know.
    #[error(
        "{file}: an index of kind {found:?} at offset {offset}, which this version does not know; it was written by a newer \
         StratANN: use that version to read it"
    )]
    UnknownIndexKind {
        /// The manifest.
        file: String,
        /// Where the manifest's body starts.
        offset: u64,
        /// The kind.
        found: String,
    },
    /// A file of one kind where another is needed.
    #[error(
        "{file}: file kind at offset {offset} is {found}, {expected} expected; the files of the index were mixed up"
    )]
    WrongKind {
        /// The file.
        file: String,
        /// Where the kind stands.
        offset: u64,
        /// The kind of the file.
        found: &'static str,
        /// The kind that was needed.
        expected: &'static str,
    },
    /// A format version that this build does not read.
    #[error(
        "{file}: unknown format version {found} at offset {offset} ({expected} is the newest that this \
         build reads); use the StratANN that wrote it, or build the index again"
    )]
    UnknownVersion {
        /// The file.
        file: String,
        /// Where the version stands.
        offset: u64,
        /// The version of the file.
        found: u32,
        /// The newest version that this build reads.
        expected: u32,
    },
    /// A feature bit that this build does not know.
    #[error(
        "{file}: unknown {whom} feature bit {bit} at offset {offset}; the file needs a newer StratANN \
         to {whom_does} it"
    , whom_does = if *whom == "reader" { "read" } else { "write to" })]
    UnknownFeature {
        /// The file.
        file: String,
        /// Where the feature bits stand.
        offset: u64,
        /// `"reader"`: must not be read; `"writer"`: must not be changed.
        whom: &'static str,
        /// The lowest unknown bit, 0 to 63.
        bit: u32,
    },
    /// Bytes that must be zero are not.
    #[error(
        "{file}: reserved byte at offset {offset} is {found:#04x}, zero expected; the file is damaged or was \
         written by a program that does not follow the format"
    )]
    Reserved {
        /// The file.
        file: String,
        /// The first byte that is not zero.
        offset: u64,
        /// Its value.
        found: u8,
    },
    /// A field with a value that cannot be.
    #[error(
        "{file}: {what} at offset {offset} is {found}, expected {expected}; restore the file from a copy or build the index again"
    )]
    Field {
        /// The file.
        file: String,
        /// Where the field stands.
        offset: u64,
        /// The field's name.
        what: &'static str,
        /// Its value.
        found: String,
        /// What would have been right.
        expected: String,
    },
    /// An attribute or a payload that the format cannot hold. No file is involved yet.
    #[error("{what} is {found}: expected {expected}")]
    Attribute {
        /// What cannot be held, and of which column.
        what: String,
        /// What it is.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// A shape (dimension, degree) that the format cannot hold. No file is involved yet.
    #[error("{what} is {found}, the format holds {expected}")]
    Shape {
        /// The parameter's name.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The range that would be right.
        expected: &'static str,
    },
}

impl LayoutError {
    /// Where in the file the error is, in bytes; `None` where no place in a file is at fault.
    pub fn offset(&self) -> Option<u64> {
        match self {
            LayoutError::Truncated { offset, .. }
            | LayoutError::Magic { offset, .. }
            | LayoutError::Checksum { offset, .. }
            | LayoutError::UnknownKind { offset, .. }
            | LayoutError::UnknownIndexKind { offset, .. }
            | LayoutError::WrongKind { offset, .. }
            | LayoutError::UnknownVersion { offset, .. }
            | LayoutError::UnknownFeature { offset, .. }
            | LayoutError::Reserved { offset, .. }
            | LayoutError::Field { offset, .. } => Some(*offset),
            LayoutError::Length { .. }
            | LayoutError::Attribute { .. }
            | LayoutError::Shape { .. } => None,
        }
    }
}

/// Refuses the first byte of `bytes` that is not zero; `offset` is where `bytes` start in `file`.
pub(crate) fn check_zero(bytes: &[u8], offset: u64, file: &str) -> Result<(), LayoutError> {
    match bytes.iter().position(|&byte| byte != 0) {
        None => Ok(()),
        Some(at) => Err(LayoutError::Reserved {
            file: file.to_owned(),
            offset: offset.saturating_add(at as u64),
            found: bytes[at],
        }),
    }
}
