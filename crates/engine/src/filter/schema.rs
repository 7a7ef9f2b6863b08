//! The columns of an index.

use std::collections::BTreeMap;
use std::path::Path;

use stratann_layout::attributes::{ColumnType, MOST_COLUMNS, Row, Value, float_of, name_fault};

use crate::Error;
use crate::alike::is_slip;

/// The columns of an index by name, with their types. The first value in a new column decides its
/// type. A column of floats accepts integers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    columns: BTreeMap<String, ColumnType>,
}

impl Schema {
    /// The type of a column, or `None` if the column does not exist.
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

    /// Creates a schema of columns with these names and types.
    ///
    /// # Errors
    /// A column cannot have one of these names, or there are too many columns.
    pub fn of<'a>(columns: impl IntoIterator<Item = (&'a str, ColumnType)>) -> Result<Self, Error> {
        let mut schema = Self::default();
        for (name, kind) in columns {
            if let Some(form) = name_fault(name) {
                return Err(Error::call(
                    "a column's name",
                    format!("{name:?}"),
                    format!("a name is {form}"),
                    "Give the column another name",
                ));
            }
            schema.declare(name, kind)?;
        }
        Ok(schema)
    }

    /// Checks that this schema, of the index at `path`, includes all `wanted` columns.
    ///
    /// # Errors
    /// A column is missing, or has another type ([`Error::Argument`]).
    pub fn check_has(&self, wanted: &Schema, path: &Path) -> Result<(), Error> {
        for (name, kind) in wanted.iter() {
            let index = path.display();
            let (reason, remedy) = match self.get(name) {
                Some(found) if found == kind => continue,
                Some(found) => (
                    format!("in the existing index {index} it is of type {found}"),
                    "Give the type in the index, or another path",
                ),
                None => (
                    format!("the existing index {index} has no such column"),
                    "Leave the column out: its first value will add it, with the type of the value. Or give another path",
                ),
            };
            let what = format!("column {name:?}");
            return Err(Error::call(what, format!("of type {kind}"), reason, remedy));
        }
        Ok(())
    }

    /// Adds a column. Fails if it exists with another type, or if there are too many columns.
    pub(crate) fn declare(&mut self, name: &str, kind: ColumnType) -> Result<(), Error> {
        if let Some(&known) = self.columns.get(name) {
            return match known == kind {
                true => Ok(()),
                false => Err(Error::call(
                    format!("the value of column {name:?}"),
                    format!("of type {kind}"),
                    format!("the other values of the column are of type {known}"),
                    "Give a value of this type, or use another column",
                )),
            };
        }
        if self.columns.len() == MOST_COLUMNS {
            let reason = format!(
                "an index has at most {MOST_COLUMNS} columns, and the new column {name:?} exceeds this number"
            );
            let remedy = "Put more values into the payload";
            return Err(Error::call(
                "number of columns",
                MOST_COLUMNS + 1,
                reason,
                remedy,
            ));
        }
        self.columns.insert(name.to_owned(), kind);
        Ok(())
    }

    /// Returns a warning for each new name that is probably misspelt: it differs from a known name
    /// by one edit, or only in case. Columns of the Python package are left out.
    pub fn misspelt<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let is_new = |name: &&str| self.get(name).is_none() && !name.starts_with(OF_PACKAGE);
        let new = names.into_iter().filter(is_new);
        let warnings = new.filter_map(|name| {
            let meant = self.columns.keys().find(|known| is_slip(name, known))?;
            Some(format!(
                "column {name:?} is new; did you mean {meant:?}, which the index already has? If so, set these values in {meant:?}, and remove them from {name:?}"
            ))
        });
        warnings.collect()
    }

    /// Adds columns without a limit, so the result must not be used for new rows.
    pub(crate) fn join(&mut self, other: &Schema) {
        for (name, &kind) in &other.columns {
            self.columns.entry(name.clone()).or_insert(kind);
        }
    }

    /// Removes a column, in which no row may have a value.
    pub(crate) fn forget(&mut self, name: &str) {
        self.columns.remove(name);
    }

    /// Whether every column of a row is in this schema. Converts integers in columns of floats to
    /// floats.
    pub(crate) fn knows(&self, row: &mut Row) -> bool {
        self.fit(row);
        let mut values = row.attributes.iter();
        values.all(|(name, value)| self.get(name) == Some(value.column_type()))
    }

    /// Declares the columns of a row. Fails if an integer in a column of floats equals no float.
    pub(crate) fn take(&mut self, row: &mut Row) -> Result<(), Error> {
        self.fit(row);
        for (name, value) in &row.attributes {
            if let Value::Integer(integer) = value
                && self.get(name) == Some(ColumnType::Float)
            {
                return Err(Error::call(
                    format!("the value of column {name:?}"),
                    integer,
                    "the column has floats, and no float equals this integer exactly",
                    "Give a float",
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

/// The prefix of columns that `stratann.documents` makes, such as `_stratann_strings:tags`.
const OF_PACKAGE: &str = "_stratann_";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_that_is_a_slip_of_an_older_one_is_found() {
        let schema = |names: &[&str]| {
            let mut schema = Schema::default();
            for name in names {
                schema.declare(name, ColumnType::Integer).unwrap();
            }
            schema
        };
        let before = schema(&["color", "year"]);
        let package = schema(&["_stratann_string:tags"]);
        assert!(package.misspelt(["_stratann_strings:tags"]).is_empty());
        let found = before.misspelt(["color", "colour", "name", "year", "yera"]);
        let [colour, yera] = &found[..] else {
            panic!("{found:?}");
        };
        assert!(colour.starts_with("column \"colour\" is new; did you mean \"color\", "));
        assert!(yera.starts_with("column \"yera\" is new; did you mean \"year\", "));
    }
}
