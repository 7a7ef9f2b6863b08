//! Parses names of types of columns. Names of other programs, such as pandas and SQL, give
//! suggestions.

use std::fmt;

use stratann_layout::attributes::ColumnType;
use thiserror::Error;

use crate::alike::meant;

/// Names of types in other programs, in lower case and without parameters.
const ELSEWHERE: &[(ColumnType, &[&str])] = &[
    (ColumnType::Boolean, &["bool", "bit", "logical"]),
    (
        ColumnType::Integer,
        &[
            "int", "int2", "int4", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
            "uint64", "tinyint", "smallint", "bigint", "long",
        ],
    ),
    (
        ColumnType::Float,
        &[
            "float4",
            "float8",
            "float16",
            "float32",
            "float64",
            "double",
            "double precision",
            "real",
            "number",
            "numeric",
            "decimal",
        ],
    ),
    (
        ColumnType::String,
        &[
            "str",
            "text",
            "char",
            "varchar",
            "nvarchar",
            "utf8",
            "large_utf8",
            "large_string",
            "keyword",
            "category",
            "object",
            "uuid",
        ],
    ),
    (
        ColumnType::Timestamp,
        &[
            "datetime",
            "datetime2",
            "datetime64",
            "date",
            "date32",
            "date64",
            "time",
            "timestamptz",
            "timestamp with time zone",
        ],
    ),
    (
        ColumnType::Strings,
        &[
            "list[str]",
            "list[string]",
            "list<str>",
            "list<string>",
            "list<item: string>",
            "list<element: string>",
            "array<string>",
            "array(string)",
            "text[]",
            "varchar[]",
            "string[]",
            "strings",
        ],
    ),
    (
        ColumnType::Integers,
        &[
            "list[int]",
            "list[int64]",
            "list<int>",
            "list<int64>",
            "list<item: int64>",
            "list<element: int64>",
            "array<int>",
            "array<bigint>",
            "array(int64)",
            "int[]",
            "bigint[]",
            "integer[]",
            "integers",
        ],
    ),
];

/// A name that is no type of a column.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("there is no such type{}. Use one of: {}", Suggested(*.meant), names().join(", "))]
pub struct NoColumnType {
    /// The type that the user probably meant.
    pub meant: Option<ColumnType>,
}

struct Suggested(Option<ColumnType>);

impl fmt::Display for Suggested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(kind) => write!(f, " (did you mean \"{kind}\"?)"),
            None => Ok(()),
        }
    }
}

fn names() -> [String; 7] {
    ColumnType::ALL.map(|kind| kind.to_string())
}

/// The type of a column with this name.
///
/// # Errors
/// There is no such type. The error suggests the type that has this name in another program, or
/// else the type with the most similar name.
pub fn column_type(name: &str) -> Result<ColumnType, NoColumnType> {
    named(name).ok_or_else(|| NoColumnType {
        meant: elsewhere(name).or_else(|| alike(name)),
    })
}

fn named(name: &str) -> Option<ColumnType> {
    let mut all = ColumnType::ALL.into_iter();
    all.find(|kind| kind.to_string() == name)
}

/// A name may have parameters: "varchar(20)", "datetime64[ns, UTC]".
fn elsewhere(name: &str) -> Option<ColumnType> {
    let name = name.trim().to_lowercase();
    let called = |name: &str| {
        let row = ELSEWHERE.iter().find(|(_, names)| names.contains(&name));
        row.map(|(kind, _)| *kind)
    };
    let plain = name.split(['(', '[', '<']).next().unwrap_or(&name).trim();
    // The elements of a list decide its type.
    let list = ["list", "array"].contains(&plain) || name.ends_with("[]");
    called(&name).or_else(|| match list {
        true => None,
        false => called(plain).or_else(|| named(plain)),
    })
}

fn alike(name: &str) -> Option<ColumnType> {
    // No column type is similar to a list of another type.
    if name.trim().ends_with("[]") {
        return None;
    }
    let names = names();
    named(meant(name, names.iter().map(String::as_str))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_has_one_name() {
        for kind in ColumnType::ALL {
            assert_eq!(column_type(&kind.to_string()), Ok(kind));
        }
        let message = column_type("Int").unwrap_err().to_string();
        let (said, list) = message
            .split_once(" (did you mean \"integer\"?). ")
            .unwrap();
        assert_eq!(said, "there is no such type");
        assert!(
            list.starts_with("Use one of: boolean, integer, float, string, timestamp, list of")
        );
    }

    #[test]
    fn names_of_other_programs_lead_to_a_type_in_any_case() {
        for (kind, names) in ELSEWHERE {
            for name in *names {
                for written in [(*name).to_owned(), name.to_uppercase(), format!(" {name} ")] {
                    let meant = column_type(&written).unwrap_err().meant;
                    assert_eq!(meant, Some(*kind), "{written}");
                }
                assert_eq!(name.to_lowercase(), *name);
            }
        }
        for (name, kind) in [
            ("INTEGER", ColumnType::Integer),
            ("Varchar(20)", ColumnType::String),
            ("DECIMAL(10, 2)", ColumnType::Float),
            ("datetime64[ns, UTC]", ColumnType::Timestamp),
            ("timestamp[us, tz=UTC]", ColumnType::Timestamp),
            ("strnig", ColumnType::String),
            ("list of string", ColumnType::Strings),
        ] {
            assert_eq!(column_type(name).unwrap_err().meant, Some(kind), "{name}");
        }
        // These names get no suggestion. A list of another type is no single value of that type.
        for name in [
            "",
            "3",
            "blob",
            "double[]",
            "float[]",
            "boolean[]",
            "array<double>",
        ] {
            assert_eq!(column_type(name).unwrap_err().meant, None, "{name}");
        }
    }
}
