//! What a vector has beside it: typed attributes by name, and a payload.
//!
//! [`value`] has the types, [`row`] what a vector has of them, and its bytes in logs and files.

pub mod row;
pub mod value;

pub use row::Row;
pub use value::{ColumnType, Value, float_of};

/// Columns that an index has, at most.
pub const MOST_COLUMNS: usize = 1024;
/// Bytes of a column's name, at most; it has one at least.
pub const MOST_NAME: usize = 128;
/// Bytes of a string, at most.
pub const MOST_STRING: usize = 32 << 10;
/// Items of a list, at most.
pub const MOST_ITEMS: usize = 4096;
/// Bytes of a payload, at most.
pub const MOST_PAYLOAD: usize = 64 << 10;
/// Bytes of an encoded row, at most.
pub const MOST_ROW: usize = 256 << 10;

/// Why a column cannot have this name; `None` if it can.
pub fn name_fault(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > MOST_NAME {
        return Some("1 to 128 bytes of UTF-8");
    }
    let control = name.chars().any(char::is_control);
    control.then_some("a name without control characters")
}
