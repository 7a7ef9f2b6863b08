//! The error of a build of a graph.

use std::path::PathBuf;

use super::DataError;

/// The error of a build of a graph.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The vectors cannot be read, or cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The memory cap is too low for a build in any number of parts.
    #[error(
        "a build of these vectors needs at least {least} bytes of memory; {given} were allowed. Raise the cap (--memory)"
    )]
    Memory {
        /// The memory cap in bytes.
        given: u64,
        /// The lowest cap that suffices, in bytes.
        least: u64,
    },
    /// The source has more rows than a graph can have nodes.
    #[error(
        "{rows} vectors are too many; one index can have up to {most}. Divide the vectors among several indexes"
    )]
    Rows {
        /// The number of rows in the source.
        rows: usize,
        /// The largest number of rows that a build accepts.
        most: usize,
    },
    /// An operation on a scratch file of a build in parts failed.
    #[error("{}: cannot {action} a scratch file of the build: {source}", path.display())]
    Scratch {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        action: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The graph that the build extends cannot be read.
    #[error(transparent)]
    Known(Box<super::Error>),
    /// The caller stopped the build.
    #[error("interrupted")]
    Interrupted,
}
