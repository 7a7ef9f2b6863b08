//! Checks whether a filter fits the columns of an index.

use std::cmp::Ordering;
use std::ops::Bound;

use stratann_layout::attributes::{ColumnType, Value, ValueFault};

use super::checked::{Atom, Checked, Expression, Wanted, order};
use super::{
    Asks, Comparison, Filter, Literal, MOST_DEPTH, MOST_TERMS, MOST_VALUES, Node, Place, Schema,
    Test, timestamp,
};
use crate::Error;
use crate::alike::meant;

const NAMED: usize = 12;
const SHOWN: usize = 60;

impl Filter {
    /// Fails with [`Error::Filter`], also if the filter has too many parts.
    pub(crate) fn check(&self, schema: &Schema) -> Result<Checked, Error> {
        let mut checker = Checker {
            schema,
            terms: 0,
            values: 0,
        };
        Ok(Checked(checker.node(&self.node)?))
    }
}

struct Checker<'a> {
    schema: &'a Schema,
    terms: usize,
    values: usize,
}

impl Checker<'_> {
    fn node(&mut self, node: &Node) -> Result<Expression, Error> {
        Ok(match node {
            Node::Constant(matches) => Expression::Constant(*matches),
            Node::Test(test) => self.test(test)?,
            Node::Not(node) => Expression::not(self.node(node)?),
            Node::And(nodes) => Expression::And(self.nodes(nodes)?),
            Node::Or(nodes) => Expression::Or(self.nodes(nodes)?),
            Node::TooDeep => {
                let reason = format!("`not`, `and`, `or` are nested deeper than {MOST_DEPTH}");
                return Err(Place::default().error(reason));
            }
        })
    }

    fn nodes(&mut self, nodes: &[Node]) -> Result<Vec<Expression>, Error> {
        nodes.iter().map(|node| self.node(node)).collect()
    }

    fn test(&mut self, test: &Test) -> Result<Expression, Error> {
        self.terms += 1;
        if self.terms > MOST_TERMS {
            let reason =
                format!("more than {MOST_TERMS} comparisons; `in` takes many values at once");
            return Err(test.place.error(reason));
        }
        let Some(kind) = self.schema.get(&test.column) else {
            return Err(test.place.error(unknown(&test.column, self.schema)));
        };
        let mut column = Column {
            test,
            kind,
            values: &mut self.values,
        };
        Ok(match &test.asks {
            Asks::Exists => column.atom(Wanted::Exists),
            Asks::Missing => Expression::not(column.atom(Wanted::Exists)),
            Asks::Compare(Comparison::Equal, value) => {
                column.any_of(std::slice::from_ref(value), "==")?
            }
            Asks::Compare(Comparison::NotEqual, value) => {
                Expression::not(column.any_of(std::slice::from_ref(value), "!=")?)
            }
            Asks::In(values) => column.any_of(values, "in")?,
            Asks::NotIn(values) => Expression::not(column.any_of(values, "not in")?),
            Asks::Compare(comparison, value) => {
                let near = column.ordered(value, comparison.symbol())?;
                let (low, high) = match comparison {
                    Comparison::Less => (Bound::Unbounded, near.below(false)),
                    Comparison::AtMost => (Bound::Unbounded, near.below(true)),
                    Comparison::More => (near.above(false), Bound::Unbounded),
                    Comparison::AtLeast | Comparison::Equal | Comparison::NotEqual => {
                        (near.above(true), Bound::Unbounded)
                    }
                };
                column.atom(Wanted::Between(low, high))
            }
            Asks::Between(low, high) => {
                let low = column.ordered(low, "between")?;
                let high = column.ordered(high, "between")?;
                let empty = match order(&low.value, &high.value) {
                    Ordering::Less => false,
                    // If both bounds have the same nearest float, no other float is between them.
                    Ordering::Equal => low.asked.is_gt() || high.asked.is_lt(),
                    Ordering::Greater => true,
                };
                match empty {
                    true => Expression::Constant(false),
                    false => column.atom(Wanted::Between(low.above(true), high.below(true))),
                }
            }
            Asks::Contains(value) => column.contains(std::slice::from_ref(value), "contains")?,
            Asks::ContainsAny(values) => column.contains(values, "contains any")?,
            Asks::ContainsAll(values) => {
                let each = values
                    .iter()
                    .map(|value| column.contains(std::slice::from_ref(value), "contains all"));
                let mut all = each.collect::<Result<Vec<_>, _>>()?;
                if all.is_empty() {
                    column.is_list("contains all")?;
                    all.push(column.atom(Wanted::Exists));
                }
                Expression::And(all)
            }
        })
    }
}

/// A value of a filter in the type of a column. An integer beyond 2^53 may become the nearest
/// float.
struct Near {
    value: Value,
    /// The comparison of the filter's value with `value`.
    asked: Ordering,
}

impl Near {
    fn at(value: Value) -> Near {
        let asked = Ordering::Equal;
        Near { value, asked }
    }

    /// The upper bound of values below the filter's value, included if `itself` is set.
    fn below(self, itself: bool) -> Bound<Value> {
        match self.asked {
            Ordering::Equal if itself => Bound::Included(self.value),
            Ordering::Equal | Ordering::Less => Bound::Excluded(self.value),
            Ordering::Greater => Bound::Included(self.value),
        }
    }

    /// The lower bound of values above the filter's value, included if `itself` is set.
    fn above(self, itself: bool) -> Bound<Value> {
        match self.asked {
            Ordering::Equal if itself => Bound::Included(self.value),
            Ordering::Equal | Ordering::Greater => Bound::Excluded(self.value),
            Ordering::Less => Bound::Included(self.value),
        }
    }
}

struct Column<'a> {
    test: &'a Test,
    kind: ColumnType,
    values: &'a mut usize,
}

impl Column<'_> {
    fn error(&self, reason: &str) -> Error {
        let Column { test, kind, .. } = self;
        test.place.error(format!(
            "column {:?} is of type {kind}: {reason}",
            test.column
        ))
    }

    fn atom(&self, wanted: Wanted) -> Expression {
        Expression::Atom(Atom {
            column: self.test.column.clone(),
            kind: self.kind,
            wanted,
        })
    }

    fn having(&mut self, values: &[Value], kind: ColumnType) -> Result<Expression, Error> {
        let values = values.iter().map(|value| self.fit(value, kind));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        // An integer that equals no float equals no value of a column of floats, so it is left out.
        let exact = values.into_iter().filter(|near| near.asked.is_eq());
        let mut values: Vec<Value> = exact.map(|near| near.value).collect();
        if values.is_empty() {
            return Ok(Expression::Constant(false));
        }
        values.sort_unstable_by(order);
        values.dedup();
        Ok(self.atom(Wanted::AnyOf(values)))
    }

    fn any_of(&mut self, values: &[Value], asked: &str) -> Result<Expression, Error> {
        match self.kind.is_list() {
            true => Err(self.error(&format!(
                "{asked} is for single values; lists have contains, contains any and contains all"
            ))),
            false => self.having(values, self.kind),
        }
    }

    fn is_list(&self, asked: &str) -> Result<ColumnType, Error> {
        match self.kind {
            ColumnType::Strings => Ok(ColumnType::String),
            ColumnType::Integers => Ok(ColumnType::Integer),
            _ => Err(self.error(&format!(
                "{asked} is for lists; single values have == and in"
            ))),
        }
    }

    fn contains(&mut self, values: &[Value], asked: &str) -> Result<Expression, Error> {
        let item = self.is_list(asked)?;
        self.having(values, item)
    }

    fn ordered(&mut self, value: &Value, asked: &str) -> Result<Near, Error> {
        match self.kind.is_ordered() {
            true => self.fit(value, self.kind),
            false => Err(self.error(&format!("{asked} is for integers, floats and timestamps"))),
        }
    }

    fn fit(&mut self, value: &Value, kind: ColumnType) -> Result<Near, Error> {
        *self.values += 1;
        if *self.values > MOST_VALUES {
            return Err(self
                .test
                .place
                .error(format!("more than {MOST_VALUES} values")));
        }
        if let Some(ValueFault { found, reason, .. }) = value.fault() {
            let remedy = "Compare with another value";
            return Err(self.error(&format!("a value is {found}; {reason}. {remedy}")));
        }
        match (kind, value) {
            (ColumnType::Float, Value::Integer(integer)) => {
                let float = *integer as f64;
                Ok(Near {
                    value: Value::Float(float),
                    asked: i128::from(*integer).cmp(&(float as i128)),
                })
            }
            // Someone who writes a year does not mean microseconds.
            (ColumnType::Timestamp, Value::Integer(year @ 1_000..=9_999)) => Err(self.error(
                &format!(
                    "{year} would be microseconds since 1970. For a year, write \"{year}-01-01\"; for microseconds, write timestamp({year})"
                ),
            )),
            (ColumnType::Timestamp, Value::Integer(micros)) => {
                Ok(Near::at(Value::Timestamp(*micros)))
            }
            (ColumnType::Timestamp, Value::String(text)) => match timestamp(text) {
                Some(micros) => Ok(Near::at(Value::Timestamp(micros))),
                None => {
                    let reason = format!(
                        "{} is not a time in ISO 8601, such as \"2026-01-31T12:00:00Z\"",
                        shown(value)
                    );
                    Err(self.error(&reason))
                }
            },
            (_, value) if value.column_type() == kind => Ok(Near::at(value.clone())),
            (ColumnType::Integer, Value::Float(_)) => Err(self.error(&format!(
                "{} is a float; compare with an integer",
                shown(value)
            ))),
            (_, value) => Err(self.error(&format!(
                "{} is of type {}",
                shown(value),
                value.column_type()
            ))),
        }
    }
}

fn shown(value: &Value) -> String {
    let text = Literal(value).to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}

fn unknown(name: &str, schema: &Schema) -> String {
    let shown: String = name.chars().take(SHOWN).collect();
    if schema.is_empty() {
        return format!(
            "no column {shown:?}; no vector of the index has attributes. Insert vectors with \
             attributes, or set attributes of its vectors (`stratann set-attributes`, in Python \
             `set_attributes`)"
        );
    }
    let near = meant(&shown, schema.iter().map(|(known, _)| known));
    if let Some((known, kind)) = near.and_then(|known| Some((known, schema.get(known)?))) {
        return format!("no column {shown:?}; did you mean {known:?} ({kind})?");
    }
    let mut names: Vec<String> = schema
        .iter()
        .take(NAMED)
        .map(|(known, kind)| format!("{known:?} ({kind})"))
        .collect();
    if schema.len() > NAMED {
        names.push(format!("{} others", schema.len() - NAMED));
    }
    format!("no column {shown:?}; there are {}", names.join(", "))
}
