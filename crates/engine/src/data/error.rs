//! Errors of the user's data. Each names the file, the place in it, the value, the reason that it
//! is refused, and the remedy.

use std::io;
use stratann_tier::TierError;
use stratann_vector::{Element, Metric};

/// Data that could not be read, or that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// An operation of the operating system failed.
    #[error("{file}: cannot {action}: {source}{}", remedy(source))]
    Io {
        /// The file.
        file: String,
        /// The operation that failed: `open`, `read at offset ..`, `write`..
        action: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The extension of the file names no format that can be read here.
    #[error("{file}: {found} names no format that is possible here. Use one of: {expected}")]
    Extension {
        /// The file.
        file: String,
        /// `the extension`, with the dot, in quotes. For a path without one, a description, for
        /// example `a directory`.
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
        /// Its length in bytes.
        found: u64,
        /// The length that it should have.
        expected: String,
        /// The origin of that length.
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
        /// Its length in bytes.
        found: u64,
        /// The length that it should have.
        expected: String,
        /// The origin of that length.
        why: String,
    },
    /// A file or array without rows, or with rows without elements.
    #[error("{file}: {what} is 0; at least 1 is needed. Give vectors, or another file")]
    Empty {
        /// The file or array.
        file: String,
        /// The number that is zero: rows or elements.
        what: &'static str,
    },
    /// A header or field with a value that cannot be used.
    #[error("{file}: {what} at offset {offset} is {found}; {reason}. {remedy}")]
    Field {
        /// The file.
        file: String,
        /// The offset of the field, in bytes.
        offset: u64,
        /// The field.
        what: &'static str,
        /// Its value.
        found: String,
        /// Why it cannot be used.
        reason: String,
        /// The remedy.
        remedy: String,
    },
    /// The number of bytes in memory does not fit the rows.
    #[error(
        "{name}: {found} bytes do not make {rows} rows of {dim} x {element}; these take {expected} bytes. Pass whole rows"
    )]
    Size {
        /// The array.
        name: String,
        /// The number of given bytes.
        found: u64,
        /// The number of rows.
        rows: u64,
        /// The number of elements of a row.
        dim: u64,
        /// The element type.
        element: Element,
        /// The right number of bytes.
        expected: u128,
    },
    /// The rows do not fit into memory.
    #[error(
        "{name}: there is no memory for its {rows} rows of {row_bytes} bytes; the system refused it. Read fewer at a time, or raise the limit of this process (`ulimit -v`, or the memory of its cgroup)"
    )]
    Room {
        /// The file or array.
        name: String,
        /// The number of rows.
        rows: u64,
        /// The bytes of a row.
        row_bytes: u64,
    },
    /// Rows that do not exist.
    #[error(
        "{name}: rows {first} to {end} (exclusive) were asked for; it has {rows} rows. Ask for rows that it has"
    )]
    Range {
        /// The file or array.
        name: String,
        /// The first requested row.
        first: u64,
        /// One more than the last requested row.
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
    /// A `float64` element is beyond the largest `float32`.
    #[error(
        "{name}: row {row}, column {column} is {value:?}, for which float32 has no number; float64 is read as float32. Scale the vectors, or remove the row"
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
        /// The largest possible magnitude.
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
        /// Its length: zero.
        norm: f32,
    },
    /// Two collections whose rows cannot be compared.
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
    /// An argument outside its range.
    #[error("{what} is {found}; {reason}. {remedy}")]
    Argument {
        /// The argument.
        what: &'static str,
        /// Its value.
        found: String,
        /// Why the value is not possible.
        reason: String,
        /// How the caller can repair the call.
        remedy: String,
    },
    /// Rows of an index cannot be read.
    #[error(transparent)]
    Index(Box<crate::Error>),
    /// The system refused memory for work on the rows.
    #[error(transparent)]
    Memory(TierError),
    /// The user stopped the work.
    #[error("interrupted")]
    Interrupted,
}

/// The remedy for an error of the operating system; empty if none is known.
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
    /// Whether the call was wrong: an argument, or data that do not fit together. `false` if data
    /// are damaged or cannot be reached.
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

    /// The error of an argument.
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

    /// The error of a number for which a format has 32 bits.
    pub(crate) fn too_wide(what: &'static str, found: usize) -> DataError {
        let reason = "the format has 32 bits for it, which hold at most 4294967295";
        DataError::argument(what, found, reason, "Use a .npy file, or several files")
    }

    /// An error of the operating system on `file`.
    pub(crate) fn io(file: &str, action: impl Into<String>, source: io::Error) -> DataError {
        DataError::Io {
            file: file.to_owned(),
            action: action.into(),
            source,
        }
    }

    /// Returns an error if the length of a file is not the one that follows from its header. `why`
    /// explains that length.
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
                // The difference is smaller than `found`, a u64.
                extra: (u128::from(found) - expected) as u64,
                found,
                expected: expected.to_string(),
                why: why(),
            }),
        }
    }
}
