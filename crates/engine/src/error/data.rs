//! Errors of the user's data. Each error names the file, the position, the value, and the remedy.

use std::io;
use stratann_tier::TierError;
use stratann_vector::{Element, Metric};

/// The error of data that cannot be read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// An operation of the operating system failed.
    #[error("{file}: cannot {action}: {source}{}", remedy(source))]
    Io {
        /// The file.
        file: String,
        /// The operation that failed: `open`, `read at offset ..`, `write` and others.
        action: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The extension of the file names no format that can be read.
    #[error("{file}: {found} names no format that is possible here. Use one of: {expected}")]
    Extension {
        /// The file.
        file: String,
        /// The extension in quotes, or a description of a path without one, such as `a directory`.
        found: String,
        /// The possible extensions.
        expected: String,
    },
    /// The file is shorter than its header states.
    #[error(
        "{file}: truncated; {found} bytes found, {expected} expected ({why}). Fetch or write the file again"
    )]
    Truncated {
        /// The file.
        file: String,
        /// The length of the file in bytes.
        found: u64,
        /// The length that the file should have.
        expected: String,
        /// The reason for this length.
        why: String,
    },
    /// The file is longer than its header states.
    #[error(
        "{file}: {extra} trailing bytes; {found} bytes found, {expected} expected ({why}). \
         Check that the extension is right for the element type"
    )]
    Trailing {
        /// The file.
        file: String,
        /// The number of excess bytes.
        extra: u64,
        /// The length of the file in bytes.
        found: u64,
        /// The length that the file should have.
        expected: String,
        /// The reason for this length.
        why: String,
    },
    /// A file or an array has no rows, or its rows have no elements.
    #[error("{file}: {what} is 0; at least 1 is needed. Give vectors, or another file")]
    Empty {
        /// The file or array.
        file: String,
        /// The number that is zero: the number of rows, or the dimension.
        what: &'static str,
    },
    /// A header or a field has a value that cannot be used.
    #[error("{file}: {what} at offset {offset} is {found}; {reason}. {remedy}")]
    Field {
        /// The file.
        file: String,
        /// The offset of the field, in bytes.
        offset: u64,
        /// The name of the field.
        what: &'static str,
        /// The value of the field.
        found: String,
        /// The reason why the value cannot be used.
        reason: String,
        /// The remedy.
        remedy: String,
    },
    /// The number of bytes in memory does not fit the number of rows.
    #[error(
        "{name}: {found} bytes do not make {rows} rows of {dim} x {element}; these take {expected} bytes. Pass whole rows"
    )]
    Size {
        /// The array.
        name: String,
        /// The number of bytes that the caller gave.
        found: u64,
        /// The number of rows.
        rows: u64,
        /// The number of elements of a row.
        dim: u64,
        /// The element type.
        element: Element,
        /// The correct number of bytes.
        expected: u128,
    },
    /// The rows do not fit into memory.
    #[error(
        "{name}: there is no memory for its {rows} rows of {row_bytes} bytes; the system refused it. Read fewer rows at a time, or raise the limit of this process (`ulimit -v`, or the memory of its cgroup)"
    )]
    Room {
        /// The file or array.
        name: String,
        /// The number of rows.
        rows: u64,
        /// The bytes of a row.
        row_bytes: u64,
    },
    /// The requested rows do not exist.
    #[error(
        "{name}: rows {first} to {end} (exclusive) were requested, but there are only {rows} rows. Request rows that exist"
    )]
    Range {
        /// The file or array.
        name: String,
        /// The first requested row.
        first: u64,
        /// The number of the last requested row, plus 1.
        end: u64,
        /// The number of rows.
        rows: u64,
    },
    /// An element is NaN or infinite.
    #[error(
        "{name}: row {row}, column {column} is {value}; the elements of a vector must be finite. Remove or repair the row"
    )]
    NotFinite {
        /// The file or array.
        name: String,
        /// The row, from 0.
        row: u64,
        /// The column, from 0.
        column: u64,
        /// `NaN`, `inf` or `-inf`.
        value: f32,
    },
    /// A `float64` element is larger than the largest `float32`.
    #[error(
        "{name}: row {row}, column {column} is {value:?}, which float32 cannot represent; float64 is read as float32. Scale the vectors, or remove the row"
    )]
    TooWide {
        /// The file.
        name: String,
        /// The row, from 0.
        row: u64,
        /// The column, from 0.
        column: u64,
        /// The element.
        value: f64,
    },
    /// An element is so large that distances overflow.
    #[error(
        "{name}: row {row}, column {column} is {value:?}, too large for {metric} distances to be finite; in {dim} dimensions \
         a magnitude is at most {largest:?}. Scale the vectors, or remove the row"
    )]
    TooLarge {
        /// The file or array.
        name: String,
        /// The row, from 0.
        row: u64,
        /// The column, from 0.
        column: u64,
        /// The element.
        value: f32,
        /// The largest magnitude that an element may have.
        largest: f32,
        /// The number of dimensions.
        dim: u64,
        /// The metric.
        metric: Metric,
    },
    /// A vector has length zero under the cosine metric, which compares directions.
    #[error(
        "{name}: row {row} has length {norm}; the cosine metric needs a direction. Remove the row, or use l2 \
         or ip"
    )]
    NoDirection {
        /// The file or array.
        name: String,
        /// The row, from 0.
        row: u64,
        /// The length of the row, which is zero.
        norm: f32,
    },
    /// The rows of two collections cannot be compared.
    #[error("{name}: {what} is {found}; in {other} it is {expected}. Give vectors of one kind")]
    Mismatch {
        /// The name of the first collection.
        name: String,
        /// The name of the other collection.
        other: String,
        /// The property that differs: dimension, element type or number of queries.
        what: &'static str,
        /// The value of the first collection.
        found: String,
        /// The value of the other collection.
        expected: String,
    },
    /// An argument is outside its range.
    #[error("{what} is {found}; {reason}. {remedy}")]
    Argument {
        /// The argument.
        what: &'static str,
        /// The value of the argument.
        found: String,
        /// The reason why the value is not possible.
        reason: String,
        /// How the caller can repair the call.
        remedy: String,
    },
    /// Rows of an index cannot be read.
    #[error(transparent)]
    Index(Box<super::Error>),
    /// The system refused memory for work on the rows.
    #[error(transparent)]
    Memory(TierError),
    /// The caller stopped the work.
    #[error("interrupted")]
    Interrupted,
}

fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ". Check the path",
        io::ErrorKind::PermissionDenied => ". Check the permissions there",
        io::ErrorKind::ReadOnlyFilesystem => ". Choose a place that is not mounted read-only",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ". Free some space there",
        _ => "",
    }
}

impl DataError {
    /// Whether an argument was wrong, or data do not fit together. `false` if data are damaged.
    pub fn is_call_wrong(&self) -> bool {
        matches!(
            self,
            DataError::Extension { .. }
                | DataError::Size { .. }
                | DataError::Range { .. }
                | DataError::Mismatch { .. }
                | DataError::Argument { .. }
        )
    }

    pub(crate) fn argument(
        what: &'static str,
        found: impl ToString,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> DataError {
        DataError::Argument {
            what,
            found: found.to_string(),
            reason: reason.into(),
            remedy: remedy.into(),
        }
    }

    pub(crate) fn too_wide(what: &'static str, found: usize) -> DataError {
        let reason = "the format has 32 bits for this number, so at most 4294967295 is possible";
        DataError::argument(what, found, reason, "Use a .npy file, or several files")
    }

    pub(crate) fn io(file: &str, action: impl Into<String>, source: io::Error) -> DataError {
        DataError::Io {
            file: file.to_owned(),
            action: action.into(),
            source,
        }
    }

    pub(crate) fn check_length(
        file: &str,
        found: u64,
        expected: u128,
        why: impl FnOnce() -> String,
    ) -> Result<(), DataError> {
        match u128::from(found).cmp(&expected) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Less => Err(DataError::Truncated {
                file: file.to_owned(),
                found,
                expected: expected.to_string(),
                why: why(),
            }),
            std::cmp::Ordering::Greater => Err(DataError::Trailing {
                file: file.to_owned(),
                extra: (u128::from(found) - expected) as u64,
                found,
                expected: expected.to_string(),
                why: why(),
            }),
        }
    }
}
