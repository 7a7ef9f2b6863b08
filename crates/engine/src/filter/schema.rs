//! The columns of an index.

use std::collections::BTreeMap;

use stratann_layout::attributes::{ColumnType, MOST_COLUMNS, Row, Value, float_of};

use crate::Error;

/// The columns of an index by name, with their types. The first value of a column creates the
/// column, and fixes its type. A column of floats accepts integers.
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

    /// Adds a column, unless it exists.
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
                    format!("its other values are of type {known}"),
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

    /// The columns that `before` lacks, each with the column of `before` that was probably meant.
    /// The two names differ by one edit.
    pub(crate) fn misspelt<'a>(
        &'a self,
        before: &'a Schema,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let new = self.iter().filter(|(name, _)| before.get(name).is_none());
        new.filter_map(|(name, _)| {
            let mut known = before.columns.keys();
            let meant = known.find(|known| is_one_edit(name, known))?;
            Some((name, meant.as_str()))
        })
    }

    /// Adds the missing columns of another index, without a limit on their number. The result can
    /// check filters, but must not accept rows.
    pub(crate) fn join(&mut self, other: &Schema) {
        for (name, &kind) in &other.columns {
            self.columns.entry(name.clone()).or_insert(kind);
        }
    }

    /// Removes a column in which no row has a value.
    pub(crate) fn forget(&mut self, name: &str) {
        self.columns.remove(name);
    }

    /// Whether every column of a row is in this schema. In a column of floats, integers of the row
    /// become floats.
    pub(crate) fn knows(&self, row: &mut Row) -> bool {
        self.fit(row);
        let mut values = row.attributes.iter();
        values.all(|(name, value)| self.get(name) == Some(value.column_type()))
    }

    /// Adds the columns that a row has.
    ///
    /// # Errors
    /// As [`declare`](Schema::declare); in a column of floats, an integer that equals no float.
    pub(crate) fn take(&mut self, row: &mut Row) -> Result<(), Error> {
        self.fit(row);
        for (name, value) in &row.attributes {
            if let Value::Integer(integer) = value
                && self.get(name) == Some(ColumnType::Float)
            {
                return Err(Error::call(
                    format!("the value of column {name:?}"),
                    integer,
                    "the column has floats, and none equals this integer exactly",
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

/// The shortest names that are compared. Many shorter names differ by only one edit.
const LEAST_NAME: usize = 3;

/// Whether two names differ by one edit: a character is added, missing or replaced, or two
/// neighbours are swapped. False if only digits differ, since numbered names are no misspellings.
fn is_one_edit(one: &str, other: &str) -> bool {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let shorter = one.len().min(other.len());
    let pairs = || one.iter().zip(&other);
    let front = pairs().take_while(|(a, b)| a == b).count();
    let back = one.iter().rev().zip(other.iter().rev());
    let back = back.take(shorter - front).take_while(|(a, b)| a == b);
    let back = back.count();
    let (one, other) = (
        &one[front..one.len() - back],
        &other[front..other.len() - back],
    );
    let is_number = one.iter().chain(other).all(char::is_ascii_digit);
    let is_edit = match (one, other) {
        ([_], [_]) | ([_], []) | ([], [_]) => true,
        ([a, b], [c, d]) => a == d && b == c,
        _ => false,
    };
    shorter >= LEAST_NAME && is_edit && !is_number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_differs_by_one_edit_is_found() {
        for (one, other, expected) in [
            ("colour", "color", true),
            ("color", "colour", true),
            ("colr", "color", true),
            ("xolor", "color", true),
            ("coolr", "color", true),
            ("colorx", "color", true),
            ("größe", "große", true),
            ("color", "color", false),
            ("colxx", "color", false),
            ("roloc", "color", false),
            ("tag1", "tag2", false),
            ("tag", "tag2", false),
            ("id", "ids", false),
            ("ab", "ba", false),
            ("", "a", false),
            ("aaa", "aaaa", true),
        ] {
            assert_eq!(is_one_edit(one, other), expected, "{one}, {other}");
        }
        let schema = |names: &[&str]| {
            let mut schema = Schema::default();
            for name in names {
                schema.declare(name, ColumnType::Integer).unwrap();
            }
            schema
        };
        let before = schema(&["color", "year"]);
        let now = schema(&["color", "colour", "name", "year", "yera"]);
        let found: Vec<_> = now.misspelt(&before).collect();
        assert_eq!(found, [("colour", "color"), ("yera", "year")]);
    }
}
