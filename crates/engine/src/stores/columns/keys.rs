//! The keys by which an index part finds values.

use stratann_layout::attributes::{ColumnType, Value};
use stratann_layout::columns::part::{float_key, integer_key};

/// Whether an index part stores the keys of a column as sorted numbers. Otherwise the index part
/// has a dictionary for the column.
pub(crate) fn is_sorted(kind: ColumnType) -> bool {
    match kind {
        ColumnType::Integer | ColumnType::Float | ColumnType::Timestamp => true,
        ColumnType::Boolean | ColumnType::String | ColumnType::Strings | ColumnType::Integers => {
            false
        }
    }
}

/// Calls `each` with the keys of a value. The key of a number has 8 bytes, the most significant
/// first.
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
