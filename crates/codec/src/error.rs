//! The errors of this crate: a decoder refuses bytes, or an encoder refuses input.

/// An encoder or a decoder refuses its input. A caller that read the input from a file adds path
/// and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The bytes end before the end of the code.
    #[error(
        "{what}: the code is longer than the {found} bytes found; the bytes are truncated or damaged. Run `stratann verify`, then `stratann repair`, or restore a copy"
    )]
    Truncated {
        /// The item whose bytes were decoded.
        what: &'static str,
        /// The number of bytes that the decoder got.
        found: usize,
    },
    /// A field has a value that no encoder writes.
    #[error(
        "{what}: {found} found, {expected} expected; the bytes are damaged, or were coded with another model. Run `stratann verify`, then `stratann repair`, or restore a copy"
    )]
    Malformed {
        /// The field.
        what: &'static str,
        /// The value of the field.
        found: u64,
        /// The valid values.
        expected: &'static str,
    },
    /// A slice does not have the length that the model requires.
    #[error(
        "{what}: {found} bytes found, {expected} expected; the bytes are damaged, or belong to another model. Run `stratann verify`, then `stratann repair`, or restore a copy"
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
        "adjacency list: the node number at position {position} is not above the number before it, but a list must ascend. Sort the node numbers, and drop duplicates"
    )]
    NotAscending {
        /// The position of the first node number that is not above the number before it.
        position: usize,
    },
    /// The caller gave a base vector to a codec that uses no base vector.
    #[error("vector: {0}. Use the same model and the same base vector to encode and to decode")]
    Base(&'static str),
}
