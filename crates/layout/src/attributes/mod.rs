//! Attributes and payloads of vectors: typed values by name, and a text in JSON.

pub mod row;
pub mod value;

pub use row::Row;
pub use value::{ColumnType, Value, ValueFault, float_of};

/// The most columns of an index.
pub const MOST_COLUMNS: usize = 1024;
/// The most bytes of a column's name, which is not empty.
pub const MOST_NAME: usize = 128;
/// The most bytes of a string.
pub const MOST_STRING: usize = 32 << 10;
/// The most items of a list.
pub const MOST_ITEMS: usize = 4096;
/// The most bytes of a payload.
pub const MOST_PAYLOAD: usize = 64 << 10;
/// The most bytes of an encoded row.
pub const MOST_ROW: usize = 256 << 10;

/// The rule that `name` breaks as a name of a column, if any.
pub fn name_fault(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > MOST_NAME {
        return Some("1 to 128 bytes of UTF-8");
    }
    let control = name.chars().any(char::is_control);
    control.then_some("text without control characters")
}
