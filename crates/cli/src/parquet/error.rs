//! Errors about Parquet files, with the file, the row or the column, and the remedy.

use std::borrow::Cow;
use std::fmt;

use stratann::meant;
use stratann_terminal::failure::Failure;

use super::budget::Beyond;
use super::types;

/// A Parquet file cannot be read, or an index cannot store its contents.
#[derive(Debug, PartialEq, Eq)]
pub enum ParquetError {
    Unreadable {
        found: String,
    },
    /// Some columns have types that an attribute cannot have.
    Types {
        columns: Vec<(String, String)>,
        has_payload: bool,
    },
    /// The type of a column does not fit the option that names it.
    Type {
        column: String,
        found: String,
        expected: String,
    },
    Missing {
        option: &'static str,
        column: String,
        there: Vec<String>,
    },
    Both {
        options: [&'static str; 2],
        column: String,
    },
    Rows {
        found: u64,
        expected: u64,
        /// The noun for the counted things, such as `vectors`.
        of: &'static str,
    },
    /// Without rows, the dimension is unknown.
    NoVectors,
    Interrupted,
    Twice {
        column: String,
    },
    NoColumns,
    Value {
        row: u64,
        column: String,
        found: String,
        expected: Cow<'static, str>,
    },
    Long {
        row: u64,
        column: String,
        found: String,
        reason: String,
    },
    Compression {
        column: String,
        found: String,
    },
    Memory {
        /// A lower bound of the needed bytes.
        needed: u64,
        cap: u64,
        has_option: bool,
    },
    Spool {
        folder: String,
        found: String,
    },
}

impl ParquetError {
    pub fn ended(column: &str, row: u64) -> Self {
        Self::Unreadable {
            found: format!("column {column:?} ends at row {row}, before the end of its row group"),
        }
    }

    pub fn of(self, file: &str) -> Failure {
        let text = format!("{file}: {self}");
        match self {
            Self::Interrupted => stratann::Error::Interrupted.into(),
            Self::Missing { .. } | Self::Both { .. } | Self::Rows { .. } => Failure::Wrong(text),
            _ => Failure::Failed(text),
        }
    }
}

impl fmt::Display for ParquetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { found } => write!(
                f,
                "this is not a whole Parquet file; {found}. Fetch the file again, or write it again with \
                 pyarrow.parquet.write_table"
            ),
            Self::Types {
                columns,
                has_payload,
            } => unfit(f, columns, *has_payload),
            Self::Both {
                options: [one, other],
                column,
            } => write!(
                f,
                "{one} and {other} both name column {column:?}. Name the column in one option only"
            ),
            Self::Rows {
                found,
                expected,
                of,
            } => write!(
                f,
                "the file has {found} rows; it must have {expected}, as many as there are {of}. Give another file"
            ),
            Self::NoVectors => write!(
                f,
                "the file has no rows, so the dimension of the vectors is unknown. For an index without vectors use `stratann create`"
            ),
            Self::Interrupted => write!(f, "interrupted"),
            Self::Type {
                column,
                found,
                expected,
            } => write!(f, "column {column:?} is of type {found}; {expected}"),
            Self::Missing {
                option,
                column,
                there,
            } => {
                write!(f, "{option} names {column:?}, which is no column; ")?;
                match meant(column, there.iter().map(String::as_str)) {
                    Some(meant) => {
                        write!(f, "did you mean {meant:?}? The file has {}", listed(there))
                    }
                    None => write!(f, "the file has {}", listed(there)),
                }
            }
            Self::Twice { column } => write!(
                f,
                "two columns are named {column:?}; names of columns must differ. Rename one column"
            ),
            Self::NoColumns => write!(
                f,
                "the file has no columns for attributes. Give a file with such columns"
            ),
            Self::Value {
                row,
                column,
                found,
                expected,
            } => write!(
                f,
                "row {row}, column {column:?} is {found}; expected {}. Repair or remove the row",
                expected.trim_end_matches(',')
            ),
            Self::Long {
                row,
                column,
                found,
                reason,
            } => write!(f, "row {row}, column {column:?} is {found}; {reason}"),
            Self::Compression { column, found } => write!(
                f,
                "column {column:?} is compressed with {found}; the supported compressions are snappy, gzip, zstd and lz4. Write the file again with one of these (compression= of \
                 pyarrow.parquet.write_table)"
            ),
            Self::Memory {
                needed,
                cap,
                has_option,
            } => write!(
                f,
                "a read of the file needs at least {needed} bytes of memory, and the cap is {cap}. {} smaller row \
                 groups (row_group_size= of pyarrow.parquet.write_table)",
                match has_option {
                    true => "Raise --memory, or write the file with",
                    false => "Write the file with",
                }
            ),
            Self::Spool { folder, found } => write!(
                f,
                "the rows of the file cannot be written to a temporary file in {folder}; {found}. Make the folder writable, or free space there. The temporary file has the vectors, and the attributes as JSON lines"
            ),
        }
    }
}

impl From<::parquet::errors::ParquetError> for ParquetError {
    fn from(error: ::parquet::errors::ParquetError) -> Self {
        let error = match error {
            ::parquet::errors::ParquetError::External(error) => match error.downcast::<Beyond>() {
                Ok(beyond) => return (*beyond).into(),
                Err(error) => error.to_string(),
            },
            error => error.to_string(),
        };
        Self::Unreadable { found: error }
    }
}

fn unfit(
    f: &mut fmt::Formatter<'_>,
    columns: &[(String, String)],
    has_payload: bool,
) -> fmt::Result {
    for (at, (name, kind)) in columns.iter().enumerate() {
        let before = if at == 0 { "" } else { "; " };
        let reason = types::reason(kind);
        write!(f, "{before}column {name:?} is of type {kind}: {reason}")?;
    }
    let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(",");
    let quote = match names.contains(|c: char| !c.is_alphanumeric() && !"_-.,".contains(c)) {
        true => "'",
        false => "",
    };
    write!(
        f,
        ". Leave them out with --without {quote}{names}{quote}, or convert them before{}",
        match has_payload {
            true => "",
            false => ", or name one with --payload",
        }
    )
}

pub fn listed<S: AsRef<str>>(names: &[S]) -> String {
    const SHOWN: usize = 12;
    let shown: Vec<String> = (names.iter().take(SHOWN))
        .map(|name| format!("{:?}", name.as_ref()))
        .collect();
    let shown = shown.join(", ");
    match names.len() {
        0 => "none".to_owned(),
        all if all > SHOWN => format!("{shown} and {} more", all - SHOWN),
        _ => shown,
    }
}
