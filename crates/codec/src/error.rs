//! Why bytes, or what was to be coded, were refused.

/// Bytes that are no code of ours, or a model that is not the one they were coded with. Whoever
/// read the bytes adds the file and the offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The bytes end before the code does.
    #[error("{what}: the code goes on after its {found} bytes; the bytes are cut or damaged")]
    Truncated {
        /// What was being decoded.
        what: &'static str,
        /// Bytes that were there.
        found: usize,
    },
    /// A field has a value that no encoder writes.
    #[error(
        "{what}: {found} found, {expected} expected; the bytes are damaged or of another model"
    )]
    Malformed {
        /// The field.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What it may be.
        expected: &'static str,
    },
    /// A slice does not have the length that the model says.
    #[error(
        "{what}: {found} bytes found, {expected} expected; this is the model of another collection"
    )]
    Length {
        /// What the slice holds.
        what: &'static str,
        /// Its bytes.
        found: usize,
        /// The bytes that it should have.
        expected: usize,
    },
    /// The model was written by a version that this build does not know.
    #[error("{what}: version {found} found, this build reads {expected}; use a newer StratANN")]
    Version {
        /// Which model.
        what: &'static str,
        /// The version that was found.
        found: u8,
        /// The version that this build knows.
        expected: u8,
    },
    /// The ids to be coded are no ascending set.
    #[error(
        "adjacency list: the id at position {position} is not above the one before; sort the ids and drop duplicates"
    )]
    NotAscending {
        /// The position of the offending id.
        position: usize,
    },
    /// A base vector was given to a codec that has none, or the other way round.
    #[error("vector: {0}; encode and decode with the same model and base")]
    Base(&'static str),
}
