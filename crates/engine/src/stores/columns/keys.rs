//! The keys by which values stand in an index part.

use stratann_layout::attributes::{ColumnType, Value};
use stratann_layout::columns::part::{float_key, integer_key};

/// Whether a column's values are kept sorted, each with its node; else a dictionary has them.
pub(crate) fn is_sorted(kind: ColumnType) -> bool {
    match kind {
        ColumnType::Integer | ColumnType::Float | ColumnType::Timestamp => true,
        ColumnType::Boolean | ColumnType::String | ColumnType::Strings | ColumnType::Integers => {
            false
        }
    }
}

/// Calls `each` with the keys of a value: none of an empty list. Those of numbers are 8 bytes, the highest first.
pub(crate) fn each_key(value: &Value, each: &mut dyn FnMut(&[u8])) {
    match value {
        Value::Boolean(value) => each(&[u8::from(*value)]),
        Value::Integer(value) | Value::Timestamp(value) => {
            each(&integer_key(*value).to_be_bytes());
        }
        Value::Float(value) => each(&float_key(*value).to_be_bytes()),
        Value::String(value) => each(value.as_bytes()),
        Value::Strings(values) => values.iter().for_each(|value| each(value.as_bytes())),
        Value::Integers(values) => values
            .iter()
            .for_each(|value| each(&integer_key(*value).to_be_bytes())),
    }
}
