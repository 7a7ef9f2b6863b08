//! What columns an index has.

use std::collections::BTreeMap;

use stratann_layout::attributes::{ColumnType, MOST_COLUMNS, Row, Value, float_of};

use crate::Error;

/// The columns of an index, by name, with their types. A column comes with the first value of it, and keeps its type; an integer is taken in a
/// column of floats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    columns: BTreeMap<String, ColumnType>,
}

impl Schema {
    /// The type of a column.
    pub fn get(&self, name: &str) -> Option<ColumnType> {
        self.columns.get(name).copied()
    }

    /// All columns, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, ColumnType)> {
        self.columns
            .iter()
            .map(|(name, kind)| (name.as_str(), *kind))
    }

    /// How many columns there are.
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Adds a column, unless it is there.
    ///
    /// # Errors
    /// It is there with another type, or there are as many as may be.
    pub(crate) fn declare(&mut self, name: &str, kind: ColumnType) -> Result<(), Error> {
        if let Some(&known) = self.columns.get(name) {
            return match known == kind {
                true => Ok(()),
                false => Err(Error::call(
                    format!("the value of column {name:?}"),
                    format!("of type {kind}"),
                    format!("of type {known}, as all its values are"),
                )),
            };
        }
        if self.columns.len() == MOST_COLUMNS {
            let expected = format!("at most {MOST_COLUMNS} in an index: {name:?} is one more");
            return Err(Error::call("columns", MOST_COLUMNS + 1, expected));
        }
        self.columns.insert(name.to_owned(), kind);
        Ok(())
    }

    /// Takes on those columns of another index that are not there, however many these are: to know what a filter asks, not to take rows.
    pub(crate) fn join(&mut self, other: &Schema) {
        for (name, &kind) in &other.columns {
            self.columns.entry(name.clone()).or_insert(kind);
        }
    }

    /// Takes a column away of which no row has a value.
    pub(crate) fn forget(&mut self, name: &str) {
        self.columns.remove(name);
    }

    /// Whether a row has columns of this schema alone; its integers become floats where their column is of floats.
    pub(crate) fn knows(&self, row: &mut Row) -> bool {
        self.fit(row);
        let mut values = row.attributes.iter();
        values.all(|(name, value)| self.get(name) == Some(value.column_type()))
    }

    /// Takes on the columns of a row.
    ///
    /// # Errors
    /// As [`declare`](Schema::declare); an integer in a column of floats of which none is the same number.
    pub(crate) fn take(&mut self, row: &mut Row) -> Result<(), Error> {
        self.fit(row);
        for (name, value) in &row.attributes {
            if let Value::Integer(integer) = value
                && self.get(name) == Some(ColumnType::Float)
            {
                return Err(Error::call(
                    format!("the value of column {name:?}"),
                    integer,
                    "a number that a float can be exactly, since the column is of floats",
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
