//! What can be wrong with the user's data. Each error names the file, the place in it, what was found, and
//! what would be right.

use std::io;
use stratann_tier::TierError;
use stratann_vector::{Element, Metric};

/// Data that could not be read, or that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The operating system refused.
    #[error("{file}: cannot {action}: {source}{}", remedy(source))]
    Io {
        /// The file.
        file: String,
        /// What was tried: `open`, `read at offset ..`, `write`..
        action: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file's extension says no format that can be read here.
    #[error("{file}: {found} is not one of {expected}")]
    Extension {
        /// The file.
        file: String,
        /// `the extension`, with the dot, in quotes; or what there is in its place.
        found: String,
        /// The extensions that would be right.
        expected: String,
    },
    /// The file is shorter than its header says.
    #[error(
        "{file}: truncated: {found} bytes found, {expected} expected ({why}); fetch or write the file again"
    )]
    Truncated {
        /// The file.
        file: String,
        /// Its length in bytes.
        found: u64,
        /// The length that it should have.
        expected: String,
        /// Where that length comes from.
        why: String,
    },
    /// The file is longer than its header says.
    #[error(
        "{file}: {extra} trailing bytes: {found} bytes found, {expected} expected ({why}); \
         is the extension right for the element type?"
    )]
    Trailing {
        /// The file.
        file: String,
        /// Bytes too many.
        extra: u64,
        /// Its length in bytes.
        found: u64,
        /// The length that it should have.
        expected: String,
        /// Where that length comes from.
        why: String,
    },
    /// A file or array without rows, or with rows without elements.
    #[error("{file}: {what} is zero; one or more expected")]
    Empty {
        /// The file or array.
        file: String,
        /// What is zero.
        what: &'static str,
    },
    /// A header or field with a value that cannot be used.
    #[error("{file}: {what} at offset {offset} is {found}; {expected} expected")]
    Field {
        /// The file.
        file: String,
        /// Where the field stands, in bytes.
        offset: u64,
        /// The field.
        what: &'static str,
        /// Its value.
        found: String,
        /// What would be right, and how to get there.
        expected: String,
    },
    /// Bytes in memory that do not make up the rows that they should.
    #[error(
        "{name}: {found} bytes do not make {rows} rows of {dim} x {element}; {expected} bytes expected"
    )]
    Size {
        /// The array.
        name: String,
        /// Bytes given.
        found: u64,
        /// Rows.
        rows: u64,
        /// Elements of a row.
        dim: u64,
        /// Element type.
        element: Element,
        /// Bytes that would be right.
        expected: u128,
    },
    /// More rows than memory has room for.
    #[error(
        "{name}: there is no memory for its {rows} rows of {row_bytes} bytes; the system refused it. Read fewer at a time, or raise the limit of this process (`ulimit -v`, or the memory of its cgroup)"
    )]
    Room {
        /// The file or array.
        name: String,
        /// Rows.
        rows: u64,
        /// Bytes of a row.
        row_bytes: u64,
    },
    /// Rows that are not there.
    #[error("{name}: rows {first} to {end} (exclusive) were asked for; it has {rows} rows")]
    Range {
        /// The file or array.
        name: String,
        /// The first row that was asked for.
        first: u64,
        /// One behind the last.
        end: u64,
        /// Rows that there are.
        rows: u64,
    },
    /// NaN or infinity.
    #[error(
        "{name}: row {row}, column {column} is {value}; a vector has finite elements: remove or repair the row"
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
    /// An element of 64 bits that is beyond the largest of 32 bits.
    #[error(
        "{name}: row {row}, column {column} is {value:?}, for which float32 has no number: float64 is read as float32; scale the vectors, or remove the row"
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
    /// An element so large that distances overflow.
    #[error(
        "{name}: row {row}, column {column} is {value:?}, too large for {metric} distances to be finite: in {dim} dimensions \
         a magnitude is at most {largest:?}; scale the vectors, or remove the row"
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
        /// The largest magnitude that is taken.
        largest: f32,
        /// Dimensions.
        dim: u64,
        /// The metric.
        metric: Metric,
    },
    /// A vector without a direction, where directions are compared.
    #[error(
        "{name}: row {row} has length {norm}: the cosine metric needs a direction; remove the row, or use l2 \
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
    #[error("{name}: {what} is {found}, that of {other} is {expected}; they must be the same")]
    Mismatch {
        /// One of them.
        name: String,
        /// The other.
        other: String,
        /// Dimension, element type or number of queries.
        what: &'static str,
        /// The one's value.
        found: String,
        /// The other's value.
        expected: String,
    },
    /// An argument outside its range.
    #[error("{what} is {found}; {expected} expected")]
    Argument {
        /// The argument.
        what: &'static str,
        /// Its value.
        found: String,
        /// The range that would be right.
        expected: String,
    },
    /// Rows that stand in an index cannot be read.
    #[error(transparent)]
    Index(Box<crate::Error>),
    /// Work on the rows was refused memory.
    #[error(transparent)]
    Memory(TierError),
    /// The user wanted the work to stop.
    #[error("interrupted")]
    Interrupted,
}

/// What to do about what the operating system said; empty where it is not known.
fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "; check the path",
        io::ErrorKind::PermissionDenied => "; check who may read and write there",
        io::ErrorKind::ReadOnlyFilesystem => "; choose a place that is not mounted read-only",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; free some space there",
        _ => "",
    }
}

impl DataError {
    /// Whether the call was wrong (an argument, or data that do not fit together), as opposed to data that
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

    /// An error of the operating system on `file`.
    pub(crate) fn io(file: &str, action: impl Into<String>, source: io::Error) -> DataError {
        DataError::Io {
            file: file.to_owned(),
            action: action.into(),
            source,
        }
    }

    /// The error for a file whose length is not the one that its header says, if it is not.
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
                // Smaller than `found`, a u64.
                extra: (u128::from(found) - expected) as u64,
                found,
                expected: expected.to_string(),
                why: why(),
            }),
        }
    }
}
