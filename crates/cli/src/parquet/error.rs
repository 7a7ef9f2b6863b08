//! What can be wrong with a Parquet file. Each error names the file, the place in it, and the remedy.

use std::fmt;

use stratann_terminal::failure::Failure;

/// A Parquet file that cannot be read, or that holds something that an index has no place for.
#[derive(Debug, PartialEq, Eq)]
pub enum ParquetError {
    /// It is no Parquet file, or a damaged one.
    Unreadable {
        /// What the reader found.
        found: String,
    },
    /// A column of a type that an attribute cannot have.
    Type {
        /// The column.
        column: String,
        /// Its type.
        found: String,
        /// Types that would do, and how to get there.
        expected: String,
    },
    /// An option names a column that is not there.
    Missing {
        /// The option.
        option: &'static str,
        /// The name that it gives.
        column: String,
        /// The names that there are.
        there: Vec<String>,
    },
    /// Two columns of one name.
    Twice {
        /// The name.
        column: String,
    },
    /// The file has no column for attributes.
    NoColumns,
    /// A value that its column cannot have here.
    Value {
        /// Its row, from 0.
        row: u64,
        /// Its column.
        column: String,
        /// The value.
        found: String,
        /// Values that would do.
        expected: &'static str,
    },
    /// Reading it takes more memory than the process may take.
    Memory {
        /// The bytes, about.
        needed: u64,
        /// The cap.
        cap: u64,
    },
    /// The lines that the file becomes cannot be written.
    Spool {
        /// The folder of the temporary file.
        folder: String,
        /// What the operating system said.
        found: String,
    },
}

impl ParquetError {
    /// The failure of a command, which names the file.
    pub fn of(self, file: &str) -> Failure {
        let text = format!("{file}: {self}");
        match self {
            Self::Missing { .. } => Failure::Wrong(text),
            _ => Failure::Failed(text),
        }
    }
}

impl fmt::Display for ParquetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { found } => write!(
                f,
                "this is no whole Parquet file: {found}; fetch it again, or write it again with \
                 pyarrow.parquet.write_table"
            ),
            Self::Type {
                column,
                found,
                expected,
            } => write!(f, "column {column:?} is of type {found}; {expected}"),
            Self::Missing {
                option,
                column,
                there,
            } => write!(
                f,
                "{option} names {column:?}, which is no column of the file; it has {}",
                listed(there)
            ),
            Self::Twice { column } => write!(
                f,
                "two columns are named {column:?}; each needs a name of its own: rename one"
            ),
            Self::NoColumns => write!(
                f,
                "the file has no columns; give one that has a column for each attribute"
            ),
            Self::Value {
                row,
                column,
                found,
                expected,
            } => write!(
                f,
                "row {row}, column {column:?} is {found}; {expected} expected"
            ),
            Self::Memory { needed, cap } => write!(
                f,
                "reading it takes about {needed} bytes, and the cap is {cap}; raise --memory, or \
                 write the file with smaller row groups (row_group_size= of \
                 pyarrow.parquet.write_table)"
            ),
            Self::Spool { folder, found } => write!(
                f,
                "its rows cannot be written to a temporary file in {folder}: {found}; the folder \
                 must be writable, and have room for the rows as JSON lines"
            ),
        }
    }
}

impl From<::parquet::errors::ParquetError> for ParquetError {
    fn from(error: ::parquet::errors::ParquetError) -> Self {
        Self::Unreadable {
            found: error.to_string(),
        }
    }
}

/// Some of these names, and how many more there are.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let shown: Vec<String> = (names.iter().take(SHOWN))
        .map(|name| format!("{name:?}"))
        .collect();
    let shown = shown.join(", ");
    match names.len() {
        0 => "none".to_owned(),
        all if all > SHOWN => format!("{shown} and {} more", all - SHOWN),
        _ => shown,
    }
}
