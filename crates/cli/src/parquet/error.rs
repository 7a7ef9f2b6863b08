//! Errors of a Parquet file. Each names the file, the place in it, and the remedy.

use std::fmt;

use stratann_terminal::failure::Failure;

/// A Parquet file that cannot be read, or that has values that an index cannot store.
#[derive(Debug, PartialEq, Eq)]
pub enum ParquetError {
    /// The file is no Parquet file, or is damaged.
    Unreadable {
        /// The message of the reader.
        found: String,
    },
    /// A column of a type that an attribute cannot have.
    Type {
        /// The column.
        column: String,
        /// Its type.
        found: String,
        /// The types that an attribute can have, and the remedy.
        expected: String,
    },
    /// An option names a column that does not exist.
    Missing {
        /// The option.
        option: &'static str,
        /// The name in the option.
        column: String,
        /// The names of the file's columns.
        there: Vec<String>,
    },
    /// Two columns of one name.
    Twice {
        /// The name.
        column: String,
    },
    /// The file has no column for attributes.
    NoColumns,
    /// A value that an attribute, a payload or an id cannot have.
    Value {
        /// Its row, from 0.
        row: u64,
        /// Its column.
        column: String,
        /// The value.
        found: String,
        /// The values that are accepted.
        expected: &'static str,
    },
    /// Reading the file takes more memory than the process may use.
    Memory {
        /// The needed bytes, about.
        needed: u64,
        /// The cap.
        cap: u64,
    },
    /// The JSON lines of the file cannot be written.
    Spool {
        /// The folder of the temporary file.
        folder: String,
        /// The message of the operating system.
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
                "this is no whole Parquet file; {found}. Fetch it again, or write it again with \
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
                "{option} names {column:?}, which is no column of the file. Name one of its columns: {}",
                listed(there)
            ),
            Self::Twice { column } => write!(
                f,
                "two columns are named {column:?}; names must differ. Rename one"
            ),
            Self::NoColumns => write!(
                f,
                "the file has no columns. Give a file with a column for each attribute"
            ),
            Self::Value {
                row,
                column,
                found,
                expected,
            } => write!(
                f,
                "row {row}, column {column:?} is {found}; expected {expected}"
            ),
            Self::Memory { needed, cap } => write!(
                f,
                "reading it takes about {needed} bytes, and the cap is {cap}. Raise --memory, or \
                 write the file with smaller row groups (row_group_size= of \
                 pyarrow.parquet.write_table)"
            ),
            Self::Spool { folder, found } => write!(
                f,
                "its rows cannot be written to a temporary file in {folder}; {found}. Make the \
                 folder writable, with room for the rows as JSON lines"
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

/// The first of these names, and the number of the others.
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
