//! The types and values of attributes.

use std::fmt;

use super::{MOST_ITEMS, MOST_STRING};

/// The type of all values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ColumnType {
    /// True or false.
    Boolean,
    /// A whole number of 64 bits.
    Integer,
    /// A number of double precision.
    Float,
    /// Text, compared byte by byte.
    String,
    /// A time, in microseconds since 1970 UTC.
    Timestamp,
    /// A list of strings.
    Strings,
    /// A list of whole numbers of 64 bits.
    Integers,
}

impl ColumnType {
    /// All types.
    pub const ALL: [ColumnType; 7] = [
        Self::Boolean,
        Self::Integer,
        Self::Float,
        Self::String,
        Self::Timestamp,
        Self::Strings,
        Self::Integers,
    ];

    /// The code of the type in files.
    pub fn code(self) -> u8 {
        match self {
            Self::Boolean => 1,
            Self::Integer => 2,
            Self::Float => 3,
            Self::String => 4,
            Self::Timestamp => 5,
            Self::Strings => 6,
            Self::Integers => 7,
        }
    }

    /// The type with this code; `None` for an unknown code.
    pub fn from_code(code: u8) -> Option<ColumnType> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Whether values of the type are lists.
    pub fn is_list(self) -> bool {
        matches!(self, Self::Strings | Self::Integers)
    }

    /// Whether values of the type have an order.
    pub fn is_ordered(self) -> bool {
        matches!(self, Self::Integer | Self::Float | Self::Timestamp)
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Float => "float",
            Self::String => "string",
            Self::Timestamp => "timestamp",
            Self::Strings => "list of strings",
            Self::Integers => "list of integers",
        })
    }
}

/// A value of an attribute. A missing value has no entry in the [`Row`](super::Row).
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// True or false.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
    /// A number. It may be infinite, but not NaN.
    Float(f64),
    /// Text, up to [`MOST_STRING`] bytes.
    String(String),
    /// Microseconds since 1970 UTC.
    Timestamp(i64),
    /// Up to [`MOST_ITEMS`] strings in order; duplicates are allowed.
    Strings(Vec<String>),
    /// Up to [`MOST_ITEMS`] whole numbers in order; duplicates are allowed.
    Integers(Vec<i64>),
}

impl Value {
    /// The type of a column with this value.
    pub fn column_type(&self) -> ColumnType {
        match self {
            Self::Boolean(_) => ColumnType::Boolean,
            Self::Integer(_) => ColumnType::Integer,
            Self::Float(_) => ColumnType::Float,
            Self::String(_) => ColumnType::String,
            Self::Timestamp(_) => ColumnType::Timestamp,
            Self::Strings(_) => ColumnType::Strings,
            Self::Integers(_) => ColumnType::Integers,
        }
    }

    /// Why the value cannot be stored; `None` if it can.
    pub fn fault(&self) -> Option<ValueFault> {
        match self {
            Self::Float(value) if value.is_nan() => Some(ValueFault {
                found: "NaN".into(),
                reason: "NaN equals no value, and has no order".into(),
                remedy: "If there is no value, leave the attribute out",
            }),
            Self::String(text) => string_fault(text),
            Self::Strings(texts) => items_fault(texts.len())
                .or_else(|| texts.iter().find_map(|text| string_fault(text))),
            Self::Integers(items) => items_fault(items.len()),
            Self::Boolean(_) | Self::Integer(_) | Self::Float(_) | Self::Timestamp(_) => None,
        }
    }
}

/// The float that equals an integer, if there is one.
pub fn float_of(integer: i64) -> Option<f64> {
    let float = integer as f64;
    (float as i128 == i128::from(integer)).then_some(float)
}

fn string_fault(text: &str) -> Option<ValueFault> {
    (text.len() > MOST_STRING).then(|| ValueFault {
        found: format!("a string of {} bytes", text.len()),
        reason: format!("a string has at most {MOST_STRING} bytes"),
        remedy: "Put longer strings into the payload",
    })
}

fn items_fault(items: usize) -> Option<ValueFault> {
    (items > MOST_ITEMS).then(|| ValueFault {
        found: format!("a list of {items} items"),
        reason: format!("a list has at most {MOST_ITEMS} items"),
        remedy: "Put longer lists into the payload",
    })
}

/// The reason why a value cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueFault {
    /// The value, or its size.
    pub found: String,
    /// The rule that the value violates.
    pub reason: String,
    /// How the caller can repair the value.
    pub remedy: &'static str,
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<i32> for Value {
    fn from(value: i32) -> Self {
        Self::Integer(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::String(value)
    }
}

impl From<Vec<String>> for Value {
    fn from(value: Vec<String>) -> Self {
        Self::Strings(value)
    }
}

impl From<Vec<i64>> for Value {
    fn from(value: Vec<i64>) -> Self {
        Self::Integers(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_bytes_of_their_own() {
        for kind in ColumnType::ALL {
            assert_eq!(ColumnType::from_code(kind.code()), Some(kind));
        }
        assert_eq!(ColumnType::from_code(0), None);
        assert_eq!(ColumnType::from_code(8), None);
    }

    #[test]
    fn values_beyond_their_bounds_are_told() {
        assert_eq!(Value::Float(f64::INFINITY).fault(), None);
        assert_eq!(Value::Float(f64::NAN).fault().unwrap().found, "NaN");
        assert_eq!(Value::String("a".repeat(MOST_STRING)).fault(), None);
        let fault = Value::Strings(vec!["a".repeat(1 << 20)]).fault().unwrap();
        assert_eq!(fault.found, "a string of 1048576 bytes");
        assert_eq!(fault.reason, "a string has at most 32768 bytes");
        assert_eq!(fault.remedy, "Put longer strings into the payload");
        assert_eq!(Value::Integers(vec![0; MOST_ITEMS]).fault(), None);
        let fault = Value::Integers(vec![0; 5000]).fault().unwrap();
        assert_eq!(fault.found, "a list of 5000 items");
    }
}
