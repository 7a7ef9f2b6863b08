//! Errors of a Parquet file. Each names the file, the place in it, and the remedy.

use std::borrow::Cow;
use std::fmt;

use stratann::meant;
use stratann_terminal::failure::Failure;

use super::budget::Beyond;
use super::types;

/// A Parquet file that cannot be read, or that holds something that an index has no place for.
#[derive(Debug, PartialEq, Eq)]
pub enum ParquetError {
    /// It is no Parquet file, or a damaged one.
    Unreadable {
        /// The reader's finding.
        found: String,
    },
    /// Columns of types that an attribute cannot have.
    Types {
        /// Their names and types.
        columns: Vec<(String, String)>,
        /// Whether `--payload` names another column.
        has_payload: bool,
    },
    /// A column of a type that its option is not for.
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
    /// Two options name one column.
    Both {
        /// The options.
        options: [&'static str; 2],
        /// The column.
        column: String,
    },
    /// A file with more or fewer rows than it must have.
    Rows {
        /// Its rows.
        found: u64,
        /// Rows that it must have.
        expected: u64,
        /// Things that are as many.
        of: &'static str,
    },
    /// No row says how many elements a vector has.
    NoVectors,
    /// The user wanted the work to stop.
    Interrupted,
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
        expected: Cow<'static, str>,
    },
    /// A longer value than there may be.
    Long {
        /// Its row, from 0.
        row: u64,
        /// Its column.
        column: String,
        /// Its length.
        found: String,
        /// The longest one, and the remedy.
        reason: String,
    },
    /// A column in a compression that is not read.
    Compression {
        /// The column.
        column: String,
        /// The compression.
        found: String,
    },
    /// Reading it takes more memory than the process may take.
    Memory {
        /// The bytes, about.
        needed: u64,
        /// The cap.
        cap: u64,
        /// Whether `--memory` raises it.
        has_option: bool,
    },
    /// The temporary file cannot be written.
    Spool {
        /// The folder of the temporary file.
        folder: String,
        /// The answer of the operating system.
        found: String,
    },
}

impl ParquetError {
    /// The error of a column that ends before its row group.
    pub fn ended(column: &str, row: u64) -> Self {
        Self::Unreadable {
            found: format!("column {column:?} ends with row {row}, and its row group does not"),
        }
    }

    /// The failure of a command, which names the file.
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
                "this is no whole Parquet file; {found}. Fetch it again, or write it again with \
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
                "{one} and {other} both name column {column:?}. Take it from one of them"
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
                "the file has no rows, which would say how many elements a vector has. For an index \
                 without vectors use `stratann create`"
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
                write!(
                    f,
                    "{option} names {column:?}, which is no column of the file; "
                )?;
                match meant(column, there.iter().map(String::as_str)) {
                    Some(meant) => write!(f, "did you mean {meant:?}? It has {}", listed(there)),
                    None => write!(f, "it has {}", listed(there)),
                }
            }
            Self::Twice { column } => write!(
                f,
                "two columns are named {column:?}; each needs a name of its own. Rename one"
            ),
            Self::NoColumns => write!(
                f,
                "the file has no columns for attributes. Give one that has some"
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
                "column {column:?} is compressed with {found}; the compressions that are read are \
                 snappy, gzip, zstd and lz4. Write the file again with one of them (compression= of \
                 pyarrow.parquet.write_table)"
            ),
            Self::Memory {
                needed,
                cap,
                has_option,
            } => write!(
                f,
                "reading it takes {needed} bytes or more, and the cap is {cap}. {} smaller row \
                 groups (row_group_size= of pyarrow.parquet.write_table)",
                match has_option {
                    true => "Raise --memory, or write the file with",
                    false => "Write the file with",
                }
            ),
            Self::Spool { folder, found } => write!(
                f,
                "its rows cannot be written to a temporary file in {folder}; {found}. Make the \
                 folder writable, with room for the vectors, and for the attributes as JSON lines"
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

/// Columns that are no attributes, each with its reason, and how to leave them out.
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

/// Some of these names, and how many more there are.
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
