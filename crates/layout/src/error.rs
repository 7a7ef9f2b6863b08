//! The errors of this crate. Each error names the file, the offset, the found and the expected
//! value, and the remedy.

/// Bytes or arguments that this crate refuses. `file` is the name that the caller passed. Offsets
/// are in bytes from the start of the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The file, or the given piece of the file, ends too early.
    #[error(
        "{file}: truncated at offset {offset}; {expected} bytes expected, {found} found. \
         Run `stratann verify`, then `stratann repair`, or restore a copy"
    )]
    Truncated {
        /// The file.
        file: String,
        /// The offset of the structure with the missing bytes.
        offset: u64,
        /// Bytes that the structure needs.
        expected: u64,
        /// Bytes that were found.
        found: u64,
    },
    /// The file is longer or shorter than its header or manifest says.
    #[error(
        "{file}: the file has {found} bytes; {expected} expected ({by}). \
         Run `stratann verify`, then `stratann repair`, or restore a copy"
    )]
    Length {
        /// The file.
        file: String,
        /// The length that was expected, in bytes.
        expected: u64,
        /// The length that the file has, in bytes.
        found: u64,
        /// The source of the expected length.
        by: &'static str,
    },
    /// The file is not a file of StratANN.
    #[error(
        "{file}: wrong magic {found:?} at offset {offset}; expected {expected:?}, so this is not \
         a StratANN file. Give a file of StratANN. If an index has this file, run `stratann verify`, \
         then `stratann repair`, or restore a copy"
    )]
    Magic {
        /// The file.
        file: String,
        /// The offset of the magic.
        offset: u64,
        /// The bytes at that offset, escaped.
        found: String,
        /// The expected bytes.
        expected: &'static str,
    },
    /// The stored checksum does not match the bytes.
    #[error(
        "{file}: checksum mismatch in the block at offset {offset}: {stored:#010x} stored, \
         {computed:#010x} computed; the bytes are damaged or misplaced. \
         Run `stratann verify`, then `stratann repair`, or restore a copy"
    )]
    Checksum {
        /// The file.
        file: String,
        /// The offset of the block.
        offset: u64,
        /// The stored checksum.
        stored: u32,
        /// The computed checksum of the bytes.
        computed: u32,
    },
    /// A kind of file that this version does not support.
    #[error(
        "{file}: unknown file kind {found} at offset {offset}; a newer StratANN wrote the file. \
         Read it with that version"
    )]
    UnknownKind {
        /// The file.
        file: String,
        /// The offset of the kind.
        offset: u64,
        /// The kind's code.
        found: u16,
    },
    /// A kind of index that this version does not support.
    #[error(
        "{file}: unknown kind of index {found:?} at offset {offset}; a newer StratANN wrote the index. \
         Read it with that version"
    )]
    UnknownIndexKind {
        /// The manifest.
        file: String,
        /// The offset of the manifest's body.
        offset: u64,
        /// The kind.
        found: String,
    },
    /// The file is of another kind than the caller needs.
    #[error(
        "{file}: file kind at offset {offset} is {found}; {expected} expected, so files of the index were swapped. Restore the right file"
    )]
    WrongKind {
        /// The file.
        file: String,
        /// The offset of the kind.
        offset: u64,
        /// The kind of the file.
        found: &'static str,
        /// The kind that was expected.
        expected: &'static str,
    },
    /// A format version that this build does not read.
    #[error(
        "{file}: unknown format version {found} at offset {offset}; {expected} is the newest that this \
         build reads. Use the StratANN that wrote the file, or build the index again"
    )]
    UnknownVersion {
        /// The file.
        file: String,
        /// The offset of the version.
        offset: u64,
        /// The version of the file.
        found: u32,
        /// The newest version that this build reads.
        expected: u32,
    },
    /// An unknown feature bit.
    #[error(
        "{file}: unknown {whom} feature bit {bit} at offset {offset}; this build cannot {whom_does} \
         the file. Use a newer StratANN"
    , whom_does = if *whom == "reader" { "read" } else { "write to" })]
    UnknownFeature {
        /// The file.
        file: String,
        /// The offset of the feature bits.
        offset: u64,
        /// `"reader"`: this build must not read the file; `"writer"`: it must not change the file.
        whom: &'static str,
        /// The lowest unknown bit, 0 to 63.
        bit: u32,
    },
    /// Bytes that must be zero are not zero.
    #[error(
        "{file}: reserved byte at offset {offset} is {found:#04x}; zero expected, so the file is damaged, or another \
         program wrote it. Run `stratann verify`, then `stratann repair`, or restore a copy"
    )]
    Reserved {
        /// The file.
        file: String,
        /// The offset of the first byte that is not zero.
        offset: u64,
        /// The value of this byte.
        found: u8,
    },
    /// A field with an impossible value.
    #[error(
        "{file}: {what} at offset {offset} is {found}; expected {expected}. Run `stratann verify`, then `stratann repair`, or restore a copy"
    )]
    Field {
        /// The file.
        file: String,
        /// The offset of the field.
        offset: u64,
        /// The field's name.
        what: &'static str,
        /// The value of the field.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// An attribute or a payload that the format does not support. No file is involved yet.
    #[error("{what} is {found}; {reason}. {remedy}")]
    Attribute {
        /// The unsupported property, and its column.
        what: String,
        /// The value of the property.
        found: String,
        /// The reason why the value is not possible.
        reason: String,
        /// How the caller can repair the row.
        remedy: String,
    },
    /// A shape (dimension, degree) that the format does not support. No file is involved yet.
    #[error("{what} is {found}; the format allows {expected}. {remedy}")]
    Shape {
        /// The parameter's name.
        what: &'static str,
        /// The value of the parameter.
        found: u64,
        /// The supported range.
        expected: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
}

pub(crate) const CHOOSE: &str = "Choose another value, or another layout";

impl LayoutError {
    /// The byte offset of the error in the file, if it has one.
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
