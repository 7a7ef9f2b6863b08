//! The columns of an index.

use std::collections::BTreeMap;

use stratann_layout::attributes::{ColumnType, MOST_COLUMNS, Row, Value, float_of};

use crate::Error;

/// The columns of an index by name, with their types. A column is created with its first value, and
/// keeps the type of that. A column of floats takes integers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    columns: BTreeMap<String, ColumnType>,
}

impl Schema {
    /// The type of a column, or `None` if there is no such column.
    pub fn get(&self, name: &str) -> Option<ColumnType> {
        self.columns.get(name).copied()
    }

    /// All columns, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, ColumnType)> {
        self.columns
            .iter()
            .map(|(name, kind)| (name.as_str(), *kind))
    }

    /// The number of columns.
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Whether there are no columns.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Adds a column, if it does not exist.
    ///
    /// # Errors
    /// The column exists with another type, or there are too many columns.
    pub(crate) fn declare(&mut self, name: &str, kind: ColumnType) -> Result<(), Error> {
        if let Some(&known) = self.columns.get(name) {
            return match known == kind {
                true => Ok(()),
                false => Err(Error::call(
                    format!("the value of column {name:?}"),
                    format!("of type {kind}"),
                    format!("of type {known}, as its other values are"),
                )),
            };
        }
        if self.columns.len() == MOST_COLUMNS {
            let expected = format!("at most {MOST_COLUMNS} in an index, and {name:?} is one more");
            return Err(Error::call("columns", MOST_COLUMNS + 1, expected));
        }
        self.columns.insert(name.to_owned(), kind);
        Ok(())
    }

    /// Adds the missing columns of another index, without a limit on their number. The result
    /// serves to check filters, not to take rows.
    pub(crate) fn join(&mut self, other: &Schema) {
        for (name, &kind) in &other.columns {
            self.columns.entry(name.clone()).or_insert(kind);
        }
    }

    /// Removes a column in which no row has a value.
    pub(crate) fn forget(&mut self, name: &str) {
        self.columns.remove(name);
    }

    /// Whether every column of a row is in this schema. Integers of the row become floats where
    /// their column is of floats.
    pub(crate) fn knows(&self, row: &mut Row) -> bool {
        self.fit(row);
        let mut values = row.attributes.iter();
        values.all(|(name, value)| self.get(name) == Some(value.column_type()))
    }

    /// Adds the columns of a row.
    ///
    /// # Errors
    /// As [`declare`](Schema::declare); an integer that no float equals, in a column of floats.
    pub(crate) fn take(&mut self, row: &mut Row) -> Result<(), Error> {
        self.fit(row);
        for (name, value) in &row.attributes {
            if let Value::Integer(integer) = value
                && self.get(name) == Some(ColumnType::Float)
            {
                return Err(Error::call(
                    format!("the value of column {name:?}"),
                    integer,
                    "an integer that a float can represent exactly, since the column has floats",
                ));
            }
            self.declare(name, value.column_type())?;
        }
        Ok(())
    }

    fn fit(&self, row: &mut Row) {
        for (name, value) in &mut row.attributes {
            if let Value::Integer(integer) = *value
                && self.get(name) == Some(ColumnType::Float)
                && let Some(float) = float_of(integer)
            {
                *value = Value::Float(float);
            }
        }
    }
}
