//! Evaluates filters that were checked against the columns of an index.

use std::cmp::Ordering;
use std::ops::Bound;

use stratann_layout::attributes::{ColumnType, Row, Value, float_of};

use super::NodeSet;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Checked(pub(super) Expression);

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expression {
    Constant(bool),
    Atom(Atom),
    Not(Box<Expression>),
    And(Vec<Expression>),
    Or(Vec<Expression>),
}

/// A condition on one column. Rows without a value fail it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Atom {
    pub(crate) column: String,
    pub(crate) kind: ColumnType,
    pub(crate) wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wanted {
    /// The value, or an item of the row's list, is one of these ascending, distinct values.
    AnyOf(Vec<Value>),
    /// The value is between these bounds.
    Between(Bound<Value>, Bound<Value>),
    /// The row has any value.
    Exists,
}

/// Compares two values of one type. Floats are never NaN.
pub(super) fn order(one: &Value, other: &Value) -> Ordering {
    match (one, other) {
        (Value::Boolean(one), Value::Boolean(other)) => one.cmp(other),
        (Value::Integer(one), Value::Integer(other))
        | (Value::Timestamp(one), Value::Timestamp(other)) => one.cmp(other),
        (Value::Float(one), Value::Float(other)) => {
            one.partial_cmp(other).unwrap_or(Ordering::Equal)
        }
        (Value::String(one), Value::String(other)) => one.cmp(other),
        (Value::Strings(one), Value::Strings(other)) => one.cmp(other),
        (Value::Integers(one), Value::Integers(other)) => one.cmp(other),
        (one, other) => one.column_type().cmp(&other.column_type()),
    }
}

impl Atom {
    fn matches(&self, value: &Value) -> bool {
        if let (ColumnType::Float, Value::Integer(integer)) = (self.kind, value) {
            return float_of(*integer).is_some_and(|float| self.matches(&Value::Float(float)));
        }
        if value.column_type() != self.kind {
            return false;
        }
        match &self.wanted {
            Wanted::Exists => true,
            Wanted::AnyOf(values) => match value {
                Value::Strings(items) => items.iter().any(|item| {
                    values
                        .binary_search_by(|wanted| order_of_text(wanted, item))
                        .is_ok()
                }),
                Value::Integers(items) => items.iter().any(|item| {
                    values
                        .binary_search_by(|wanted| order(wanted, &Value::Integer(*item)))
                        .is_ok()
                }),
                value => values
                    .binary_search_by(|wanted| order(wanted, value))
                    .is_ok(),
            },
            Wanted::Between(low, high) => {
                let above = match low {
                    Bound::Unbounded => true,
                    Bound::Included(low) => order(value, low).is_ge(),
                    Bound::Excluded(low) => order(value, low).is_gt(),
                };
                above
                    && match high {
                        Bound::Unbounded => true,
                        Bound::Included(high) => order(value, high).is_le(),
                        Bound::Excluded(high) => order(value, high).is_lt(),
                    }
            }
        }
    }
}

fn order_of_text(wanted: &Value, item: &str) -> Ordering {
    match wanted {
        Value::String(text) => text.as_str().cmp(item),
        other => other.column_type().cmp(&ColumnType::String),
    }
}

impl Expression {
    pub(super) fn not(expression: Self) -> Self {
        Self::Not(Box::new(expression))
    }

    fn matches(&self, row: &Row) -> bool {
        match self {
            Self::Constant(matches) => *matches,
            Self::Atom(atom) => row
                .attributes
                .get(&atom.column)
                .is_some_and(|value| atom.matches(value)),
            Self::Not(expression) => !expression.matches(row),
            Self::And(all) => all.iter().all(|expression| expression.matches(row)),
            Self::Or(any) => any.iter().any(|expression| expression.matches(row)),
        }
    }

    fn nodes<E>(
        &self,
        all: &NodeSet,
        atom: &mut impl FnMut(&Atom) -> Result<NodeSet, E>,
    ) -> Result<NodeSet, E> {
        Ok(match self {
            Self::Constant(true) => all.clone(),
            Self::Constant(false) => NodeSet::default(),
            Self::Atom(asked) => NodeSet(atom(asked)?.0 & &all.0),
            Self::Not(expression) => NodeSet(&all.0 - expression.nodes(all, atom)?.0),
            Self::And(parts) => {
                // `left` has the nodes that later parts must test.
                let mut left = all.clone();
                let (contrary, parts): (Vec<_>, Vec<_>) =
                    parts.iter().partition(|part| matches!(part, Self::Not(_)));
                for part in parts.into_iter().chain(contrary) {
                    if left.is_empty() {
                        break;
                    }
                    left = part.nodes(&left, atom)?;
                }
                left
            }
            Self::Or(parts) => {
                let mut any = NodeSet::default();
                for part in parts {
                    any.0 |= part.nodes(all, atom)?.0;
                }
                any
            }
        })
    }
}

impl Checked {
    pub(crate) fn matches(&self, row: &Row) -> bool {
        self.0.matches(row)
    }

    /// `atom` may return nodes outside `all`.
    pub(crate) fn nodes<E>(
        &self,
        all: &NodeSet,
        mut atom: impl FnMut(&Atom) -> Result<NodeSet, E>,
    ) -> Result<NodeSet, E> {
        self.0.nodes(all, &mut atom)
    }
}
