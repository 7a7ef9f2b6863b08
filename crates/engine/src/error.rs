//! What can go wrong, as one contextual type over the small errors of the parts.

use std::path::{Path, PathBuf};

use stratann_codec::CodecError;
use stratann_layout::LayoutError;
use stratann_tier::TierError;
use stratann_vector::QuantizerError;

use crate::data::DataError;
use crate::graph::GraphError;

/// Any failure of the engine. Its text names what was wrong, with which value, and what would be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument that cannot be served.
    #[error("{what} is {found}: expected {expected}")]
    Call {
        /// The argument's name.
        what: String,
        /// The value that was given.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// The directory holds no index that opens.
    #[error("{}: not an index: {reason}", path.display())]
    NotAnIndex {
        /// The directory.
        path: PathBuf,
        /// Why, and the remedy.
        reason: String,
    },
    /// A catalog has no index of this name.
    #[error("{}: no index {name:?}: {remedy}", catalog.display())]
    NoSuchIndex {
        /// The catalog's directory.
        catalog: PathBuf,
        /// The name that was asked for.
        name: String,
        /// Which names there are.
        remedy: String,
    },
    /// A build would replace what is there.
    #[error("{}: {reason}", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
        /// What is there, and the remedy.
        reason: String,
    },
    /// The memory budget is below what the work needs.
    #[error(
        "memory budget of {budget} bytes is too small: {needs} bytes are needed for {part}; give at least that much"
    )]
    Memory {
        /// The bytes given.
        budget: u64,
        /// The bytes needed.
        needs: u64,
        /// What needs them.
        part: String,
    },
    /// Something in an index contradicts itself.
    #[error(
        "{file}: damaged: {what}; run `stratann verify`, then `stratann repair`, or restore a copy"
    )]
    Damaged {
        /// The file.
        file: String,
        /// What contradicts what.
        what: String,
    },
    /// A log of which records are gone that had been durable.
    #[error(
        "{file}: damaged: its records end at offset {offset} ({reason}) with sequence number {sequence}, and {evidence}: \
         of {missing} records that were there {whole} are whole; restore a copy, or run `stratann repair`, which keeps \
         what is whole"
    )]
    DamagedLog {
        /// The file.
        file: String,
        /// Where the first of them stood, in bytes.
        offset: u64,
        /// Its sequence number.
        sequence: u64,
        /// What is wrong with what stands there.
        reason: String,
        /// How one knows that there was more.
        evidence: String,
        /// How many records from there on were there.
        missing: u64,
        /// How many of these can still be read.
        whole: u64,
    },
    /// An index that another process has changed since it was opened for reading, so that pages are gone that it needs.
    #[error("{}: another process has changed it since it was opened here; open it again", path.display())]
    Outdated {
        /// The directory.
        path: PathBuf,
    },
    /// What was committed, but might not survive a crash of the machine.
    #[error(
        "{}: what was written counts, but nobody knows whether it is durable: {source}; a crash of the machine may bring back what was there before. See to the disk, then open it for changes and `compact` it, or build it again",
        path.display()
    )]
    Undurable {
        /// The directory.
        path: PathBuf,
        /// The sync that failed.
        source: Box<TierError>,
    },
    /// A damaged index of which too little can be read.
    #[error(
        "{}: cannot be repaired: {reason}; nothing was changed: restore a copy, or build the index again from its source",
        path.display()
    )]
    Unrepairable {
        /// The directory.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// The caller asked to stop.
    #[error("interrupted; nothing was changed")]
    Interrupted,
    /// The caller asked to stop work of which a part was done.
    #[error("interrupted")]
    Stopped,
    /// An insert of several batches that ended in the middle.
    #[error(
        "{source}; the first {done} of {total} rows are in: insert the others, or all of them again with their ids as an upsert"
    )]
    Partly {
        /// Rows that are in.
        done: usize,
        /// Rows of the call.
        total: usize,
        /// What ended it.
        source: Box<Error>,
    },
    /// A vector or ground-truth file.
    #[error(transparent)]
    Data(DataError),
    /// Bytes of an index.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The code of a list or a vector, or what it was to be made of.
    #[error("{place}: {source}")]
    Codec {
        /// The file or the node.
        place: String,
        /// What is wrong, and the remedy.
        source: CodecError,
    },
    /// Reading or writing.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// Quantiser training.
    #[error(transparent)]
    Quantizer(#[from] QuantizerError),
    /// Graph construction.
    #[error(transparent)]
    Graph(GraphError),
}

impl Error {
    pub(crate) fn call(
        what: impl Into<String>,
        found: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        Self::Call {
            what: what.into(),
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    /// What a codec refused, and where.
    pub(crate) fn codec(place: impl Into<String>, source: CodecError) -> Self {
        Self::Codec {
            place: place.into(),
            source,
        }
    }

    pub(crate) fn not_an_index(path: &Path, reason: impl Into<String>) -> Self {
        Self::NotAnIndex {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }

    /// Whether the call itself was wrong (a bad argument), rather than the work having failed.
    pub fn is_call_wrong(&self) -> bool {
        match self {
            Self::Call { .. }
            | Self::Memory { .. }
            | Self::Exists { .. }
            | Self::NoSuchIndex { .. } => true,
            Self::Data(error) => error.is_call_wrong(),
            _ => false,
        }
    }
}

impl From<DataError> for Error {
    fn from(error: DataError) -> Self {
        match error {
            DataError::Interrupted => Self::Interrupted,
            DataError::Index(error) => *error,
            error => Self::Data(error),
        }
    }
}

impl From<GraphError> for Error {
    fn from(error: GraphError) -> Self {
        match error {
            GraphError::Interrupted => Self::Interrupted,
            GraphError::Known(error) => *error,
            GraphError::Data(error) => error.into(),
            GraphError::Memory { given, least } => Self::Memory {
                budget: given,
                needs: least,
                part: "the build".into(),
            },
            error => Self::Graph(error),
        }
    }
}
