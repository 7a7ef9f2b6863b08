//! The errors of this crate: a decoder refuses bytes, or an encoder refuses input.

/// Bytes are not a valid code, or were coded with another model; or an encoder refuses its input.
/// The caller that read the bytes adds the file and the offset to the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The bytes end before the end of the code.
    #[error(
        "{what}: the code continues after its {found} bytes; the bytes are truncated or damaged. Restore them from a copy"
    )]
    Truncated {
        /// The item that was being decoded.
        what: &'static str,
        /// The number of bytes that were given.
        found: usize,
    },
    /// A field has a value that no encoder writes.
    #[error(
        "{what}: {found} found, {expected} expected; the bytes are damaged, or were coded with another model. Restore them from a copy"
    )]
    Malformed {
        /// The field.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The valid values.
        expected: &'static str,
    },
    /// A slice does not have the length that the model requires.
    #[error(
        "{what}: {found} bytes found, {expected} expected; the model belongs to another collection. Use the model of this collection"
    )]
    Length {
        /// The contents of the slice.
        what: &'static str,
        /// The length of the slice in bytes.
        found: usize,
        /// The required length in bytes.
        expected: usize,
    },
    /// The model has a version that this build does not support.
    #[error("{what}: version {found} found; this build reads {expected}. Use a newer StratANN")]
    Version {
        /// The kind of model.
        what: &'static str,
        /// The version that was found.
        found: u8,
        /// The version that this build supports.
        expected: u8,
    },
    /// The node numbers to be coded are not strictly ascending.
    #[error(
        "adjacency list: the node number at position {position} is not above the number before it; a list ascends. Sort the node numbers, and drop duplicates"
    )]
    NotAscending {
        /// The position of the first node number that is not above the number before it.
        position: usize,
    },
    /// A base vector was given to a codec without one, or is missing for a codec that needs it.
    #[error("vector: {0}. Use the same model and the same base vector to encode and to decode")]
    Base(&'static str),
}
