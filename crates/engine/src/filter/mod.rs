//! Filters: conditions on the attributes of vectors, for a search, a count or a delete.
//!
//! ```text
//!  text ──parse─┐
//!               ├─> Filter ─check (Schema)─> Checked ─┬─ nodes: exact, from index parts on storage
//!  objects ─────┘                                     └─ matches: one row, of a vector in memory
//! ```
//!
//! A row has the attributes of one vector. A row without a value in a column fails every comparison
//! of that column. `!=` and `not in` are the negations of `==` and `in`, so such a row passes them.
//! A condition is never unknown, so a row matches either a filter or its negation.

mod check;
mod checked;
mod nodes;
mod parse;
mod schema;
#[cfg(test)]
mod tests;
mod time;

use std::fmt;
use std::ops::Not;

use stratann_layout::attributes::Value;

pub(crate) use self::checked::{Atom, Checked, Wanted};
pub(crate) use self::nodes::NodeSet;
pub use self::schema::Schema;
pub(crate) use self::time::timestamp;
use crate::Error;

/// The greatest depth of nested parentheses, `not`, `and` and `or`.
pub(crate) const MOST_DEPTH: usize = 64;
pub(crate) const MOST_TERMS: usize = 4096;
pub(crate) const MOST_VALUES: usize = 1 << 16;
pub(crate) const MOST_TEXT: usize = 1 << 20;

/// Reserved words. A column with such a name is written in backticks.
const RESERVED: [&str; 10] = [
    "and", "or", "not", "in", "between", "contains", "exists", "null", "true", "false",
];

/// A condition on the attributes of vectors. [`Filter::parse`] reads a filter from text, and
/// [`Filter::column`] begins to build a filter.
///
/// ```
/// use stratann::Filter;
///
/// let text = Filter::parse(r#"colour in ["red", "blue"] and not price < 3.5"#)?;
/// let red = Filter::column("colour").is_in(["red", "blue"]);
/// let object = red.and(!Filter::column("price").less(3.5));
/// assert_eq!(text, object);
/// assert_eq!(object.to_string(), r#"colour in ["red", "blue"] and not price < 3.5"#);
/// # Ok::<(), stratann::Error>(())
/// ```
///
/// | text | rows that match |
/// |---|---|
/// | `a == 1`, `a != 1` | have that value; the negation |
/// | `a < 1`, `<=`, `>`, `>=`, `a between 1 and 2` | numbers, timestamps; `between` has both ends |
/// | `a in [1, 2]`, `a not in [1, 2]` | have one of the values; the negation |
/// | `a contains 1` | have a list with the value |
/// | `a contains any [1, 2]`, `a contains all [1, 2]` | have a list with one of these; with all |
/// | `exists a`, `a != null`; `a == null` | have any value; have none |
/// | `not f`, `f and g`, `f or g`, `(f)`, `true`, `false` | `not` binds first, then `and`, `or` |
///
/// A value is `true`, a number such as `-1`, `1.5e3` or `inf`, a text with the escapes of JSON, or
/// `timestamp(0)`, in microseconds since 1970 UTC. Timestamps can also be compared with an integer,
/// or with a text in ISO 8601. Integers from 1000 to 9999 are refused there, since they are
/// probably years. A name that is not a plain word is written in backticks.
///
/// The printed text of a filter parses to the same filter. A filter must not contain NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    node: Node,
    depth: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Constant(bool),
    Test(Test),
    Not(Box<Node>),
    And(Vec<Node>),
    Or(Vec<Node>),
    /// Replaces a filter deeper than [`MOST_DEPTH`], so that no recursion can overflow the stack.
    TooDeep,
}

#[derive(Clone, Debug, PartialEq)]
struct Test {
    column: String,
    asks: Asks,
    place: Place,
}

#[derive(Clone, Debug, PartialEq)]
enum Asks {
    Compare(Comparison, Value),
    Between(Value, Value),
    In(Vec<Value>),
    NotIn(Vec<Value>),
    Contains(Value),
    ContainsAny(Vec<Value>),
    ContainsAll(Vec<Value>),
    Exists,
    Missing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    AtMost,
    More,
    AtLeast,
}

impl Comparison {
    const ALL: [Self; 6] = [
        Self::Equal,
        Self::NotEqual,
        Self::Less,
        Self::AtMost,
        Self::More,
        Self::AtLeast,
    ];

    fn symbol(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::More => ">",
            Self::AtLeast => ">=",
        }
    }
}

/// The position of a term in the text, in characters from 1 on. A comparison of two filters ignores
/// this position.
#[derive(Clone, Copy, Debug, Default)]
struct Place(Option<usize>);

impl PartialEq for Place {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Place {
    fn error(self, reason: impl Into<String>) -> Error {
        Error::Filter {
            position: self.0,
            reason: reason.into(),
        }
    }
}

/// A column to which a condition can be added ([`Filter::column`]).
#[derive(Clone, Debug)]
pub struct FilterColumn {
    name: String,
    place: Place,
}

impl FilterColumn {
    fn asks(self, asks: Asks) -> Filter {
        Filter {
            node: Node::Test(Test {
                column: self.name,
                asks,
                place: self.place,
            }),
            depth: 1,
        }
    }

    fn compare(self, comparison: Comparison, value: impl Into<Value>) -> Filter {
        self.asks(Asks::Compare(comparison, value.into()))
    }

    /// `==`
    pub fn equals(self, value: impl Into<Value>) -> Filter {
        self.compare(Comparison::Equal, value)
    }

    /// `!=`. Rows without a value match too.
    pub fn differs(self, value: impl Into<Value>) -> Filter {
        self.compare(Comparison::NotEqual, value)
    }

    /// `<`
    pub fn less(self, value: impl Into<Value>) -> Filter {
        self.compare(Comparison::Less, value)
    }

    /// `<=`
    pub fn at_most(self, value: impl Into<Value>) -> Filter {
        self.compare(Comparison::AtMost, value)
    }

    /// `>`
    pub fn more(self, value: impl Into<Value>) -> Filter {
        self.compare(Comparison::More, value)
    }

    /// `>=`
    pub fn at_least(self, value: impl Into<Value>) -> Filter {
        self.compare(Comparison::AtLeast, value)
    }

    /// `between`: from `low` to `high`, both included.
    pub fn between(self, low: impl Into<Value>, high: impl Into<Value>) -> Filter {
        self.asks(Asks::Between(low.into(), high.into()))
    }

    /// `in`
    pub fn is_in<V: Into<Value>>(self, values: impl IntoIterator<Item = V>) -> Filter {
        self.asks(Asks::In(values.into_iter().map(Into::into).collect()))
    }

    /// `not in`. Rows without a value match too.
    pub fn not_in<V: Into<Value>>(self, values: impl IntoIterator<Item = V>) -> Filter {
        self.asks(Asks::NotIn(values.into_iter().map(Into::into).collect()))
    }

    /// `contains`: rows whose list has the value.
    pub fn contains(self, value: impl Into<Value>) -> Filter {
        self.asks(Asks::Contains(value.into()))
    }

    /// `contains any`: rows whose list has one of the values.
    pub fn contains_any<V: Into<Value>>(self, values: impl IntoIterator<Item = V>) -> Filter {
        self.asks(Asks::ContainsAny(
            values.into_iter().map(Into::into).collect(),
        ))
    }

    /// `contains all`: rows whose list has all of the values.
    pub fn contains_all<V: Into<Value>>(self, values: impl IntoIterator<Item = V>) -> Filter {
        self.asks(Asks::ContainsAll(
            values.into_iter().map(Into::into).collect(),
        ))
    }

    /// `exists`: rows with a value.
    pub fn exists(self) -> Filter {
        self.asks(Asks::Exists)
    }

    /// `== null`: rows without a value.
    pub fn missing(self) -> Filter {
        self.asks(Asks::Missing)
    }
}

impl Filter {
    /// Parses the text of a filter. Columns and types are checked later, on an index.
    ///
    /// # Errors
    /// [`Error::Filter`], with the position of the wrong character, if the text is not a filter, is
    /// longer than a megabyte, or has too many parts.
    pub fn parse(text: &str) -> Result<Filter, Error> {
        parse::parse(text)
    }

    /// A column to which a condition can be added.
    pub fn column(name: impl Into<String>) -> FilterColumn {
        FilterColumn {
            name: name.into(),
            place: Place::default(),
        }
    }

    /// A filter that matches every row if `matches` is set, and no row otherwise.
    pub fn constant(matches: bool) -> Filter {
        Filter {
            node: Node::Constant(matches),
            depth: 1,
        }
    }

    /// A filter that matches the rows which match all filters. Without filters, every row matches.
    pub fn all_of(filters: impl IntoIterator<Item = Filter>) -> Filter {
        Self::joined(filters, Node::And).unwrap_or_else(|| Self::constant(true))
    }

    /// A filter that matches the rows which match at least one of the filters. Without filters, no
    /// row matches.
    pub fn any_of(filters: impl IntoIterator<Item = Filter>) -> Filter {
        Self::joined(filters, Node::Or).unwrap_or_else(|| Self::constant(false))
    }

    fn joined(
        filters: impl IntoIterator<Item = Filter>,
        join: fn(Vec<Node>) -> Node,
    ) -> Option<Filter> {
        let mut filters = filters.into_iter();
        let first = filters.next()?;
        let Some(second) = filters.next() else {
            return Some(first);
        };
        let (mut nodes, mut depth) = (Vec::new(), 0);
        for filter in [first, second].into_iter().chain(filters) {
            depth = depth.max(filter.depth);
            nodes.push(filter.node);
        }
        Some(Self::around(join(nodes), depth))
    }

    fn around(node: Node, depth: usize) -> Filter {
        match depth < MOST_DEPTH {
            true => Filter {
                node,
                depth: depth + 1,
            },
            false => Filter {
                node: Node::TooDeep,
                depth: 1,
            },
        }
    }

    /// A filter that matches the rows which match both filters. A chain of `and` becomes one flat
    /// list.
    pub fn and(mut self, other: Filter) -> Filter {
        if let Node::And(nodes) = &mut self.node
            && other.depth < self.depth
        {
            nodes.push(other.node);
            return self;
        }
        Self::all_of([self, other])
    }

    /// A filter that matches the rows which match at least one of the two filters.
    pub fn or(mut self, other: Filter) -> Filter {
        if let Node::Or(nodes) = &mut self.node
            && other.depth < self.depth
        {
            nodes.push(other.node);
            return self;
        }
        Self::any_of([self, other])
    }

    /// The names of the columns that the filter tests, each once, in the order of the filter.
    pub fn columns(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        self.node.for_each_test(&mut |test| {
            if !names.contains(&test.column.as_str()) {
                names.push(&test.column);
            }
        });
        names
    }

    /// Whether the filter has a negation: `not`, `!=`, `not in` or `== null`. Rows without a value
    /// in the column may then match.
    pub fn negates(&self) -> bool {
        self.node.negates()
    }

    fn is_too_deep(&self) -> bool {
        self.node == Node::TooDeep
    }
}

/// `!filter` matches the rows which do not match `filter`.
impl Not for Filter {
    type Output = Filter;

    fn not(self) -> Filter {
        Self::around(Node::Not(Box::new(self.node)), self.depth)
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.node, f)
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(matches) => matches.fmt(f),
            Self::Test(test) => test.fmt(f),
            Self::Not(node) => {
                f.write_str("not ")?;
                node.fmt_within(f, false)
            }
            Self::And(nodes) => fmt_joined(f, nodes, " and ", false),
            Self::Or(nodes) => fmt_joined(f, nodes, " or ", true),
            Self::TooDeep => write!(f, "(nested deeper than {MOST_DEPTH})"),
        }
    }
}

impl Node {
    fn for_each_test<'a>(&'a self, visit: &mut impl FnMut(&'a Test)) {
        match self {
            Self::Constant(_) | Self::TooDeep => {}
            Self::Test(test) => visit(test),
            Self::Not(node) => node.for_each_test(visit),
            Self::And(nodes) | Self::Or(nodes) => {
                nodes.iter().for_each(|node| node.for_each_test(visit));
            }
        }
    }

    fn negates(&self) -> bool {
        match self {
            Self::Constant(_) | Self::TooDeep => false,
            Self::Test(test) => matches!(
                test.asks,
                Asks::Compare(Comparison::NotEqual, _) | Asks::NotIn(_) | Asks::Missing
            ),
            Self::Not(_) => true,
            Self::And(nodes) | Self::Or(nodes) => nodes.iter().any(Self::negates),
        }
    }

    /// `and_is_free` says whether an `and` needs no parentheses.
    fn fmt_within(&self, f: &mut fmt::Formatter<'_>, and_is_free: bool) -> fmt::Result {
        match self {
            Self::Or(_) => write!(f, "({self})"),
            Self::And(_) if !and_is_free => write!(f, "({self})"),
            _ => write!(f, "{self}"),
        }
    }
}

fn fmt_joined(
    f: &mut fmt::Formatter<'_>,
    nodes: &[Node],
    with: &str,
    and_is_free: bool,
) -> fmt::Result {
    for (at, node) in nodes.iter().enumerate() {
        if at > 0 {
            f.write_str(with)?;
        }
        node.fmt_within(f, and_is_free)?;
    }
    Ok(())
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Name(&self.column);
        match &self.asks {
            Asks::Compare(comparison, value) => {
                write!(f, "{name} {} {}", comparison.symbol(), Literal(value))
            }
            Asks::Between(low, high) => {
                write!(f, "{name} between {} and {}", Literal(low), Literal(high))
            }
            Asks::In(values) => write!(f, "{name} in {}", Literals(values)),
            Asks::NotIn(values) => write!(f, "{name} not in {}", Literals(values)),
            Asks::Contains(value) => write!(f, "{name} contains {}", Literal(value)),
            Asks::ContainsAny(values) => write!(f, "{name} contains any {}", Literals(values)),
            Asks::ContainsAll(values) => write!(f, "{name} contains all {}", Literals(values)),
            Asks::Exists => write!(f, "exists {name}"),
            Asks::Missing => write!(f, "{name} == null"),
        }
    }
}

struct Name<'a>(&'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = self.0.chars();
        let plain = chars.next().is_some_and(parse::begins_word) && chars.all(parse::is_in_word);
        match plain && !RESERVED.contains(&self.0) {
            true => f.write_str(self.0),
            false => write!(f, "`{}`", self.0.replace('`', "``")),
        }
    }
}

struct Literal<'a>(&'a Value);

impl fmt::Display for Literal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Boolean(value) => value.fmt(f),
            Value::Integer(value) => value.fmt(f),
            // `{:?}` always prints a point or an exponent, so the text parses to a float again.
            Value::Float(value) => write!(f, "{value:?}"),
            Value::String(text) => fmt_text(f, text),
            Value::Timestamp(micros) => write!(f, "timestamp({micros})"),
            Value::Strings(texts) => {
                let texts: Vec<Value> = texts.iter().map(|text| text.clone().into()).collect();
                Literals(&texts).fmt(f)
            }
            Value::Integers(items) => write!(f, "{items:?}"),
        }
    }
}

fn fmt_text(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for char in text.chars() {
        match char {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            char if char.is_control() => write!(f, "\\u{:04x}", u32::from(char))?,
            char => write!(f, "{char}")?,
        }
    }
    f.write_str("\"")
}

struct Literals<'a>(&'a [Value]);

impl fmt::Display for Literals<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (at, value) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            Literal(value).fmt(f)?;
        }
        f.write_str("]")
    }
}
