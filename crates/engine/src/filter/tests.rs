//! Tests how filters are parsed, printed, refused and matched.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stratann_layout::attributes::{ColumnType, Row, Value};

use super::*;

fn schema() -> Schema {
    let mut schema = Schema::default();
    for (name, kind) in [
        ("ok", ColumnType::Boolean),
        ("age", ColumnType::Integer),
        ("price", ColumnType::Float),
        ("colour", ColumnType::String),
        ("at", ColumnType::Timestamp),
        ("tags", ColumnType::Strings),
        ("codes", ColumnType::Integers),
        ("not a word", ColumnType::Integer),
    ] {
        schema.declare(name, kind).unwrap();
    }
    schema
}

fn row(values: &[(&str, Value)]) -> Row {
    Row {
        attributes: values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
        payload: None,
    }
}

fn matches(text: &str, row: &Row) -> bool {
    let filter = Filter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    filter
        .check(&schema())
        .unwrap_or_else(|error| panic!("{text}: {error}"))
        .matches(row)
}

fn refused(text: &str) -> String {
    let found = Filter::parse(text).and_then(|filter| filter.check(&schema()));
    let error = found.expect_err(text);
    assert!(error.is_call_wrong(), "{error}");
    error.to_string()
}

#[test]
fn rows_match_as_the_table_says() {
    let red = row(&[
        ("ok", true.into()),
        ("age", 7.into()),
        ("price", 3.5.into()),
        ("colour", "red".into()),
        ("at", Value::Timestamp(86_400_000_000)),
        ("tags", vec!["new".to_owned(), "small".to_owned()].into()),
        ("codes", vec![3i64, -4].into()),
        ("not a word", 1.into()),
    ]);
    for text in [
        "age == 7",
        "age != 8",
        "age < 8 and age <= 7 and age > 6 and age >= 7",
        "age between 7 and 7",
        "not age between 8 and 7",
        "age in [1, 7]",
        "age not in [1, 2]",
        "not age in []",
        "price == 3.5 and price < 4 and price > -inf and price < inf",
        "price > -1e999 and price < 1e999 and not price in [1e999, -1e400]",
        "colour == 'red' or false",
        "colour != \"blue\"",
        "at == '1970-01-02' and at > '1970-01-01T23:59:59.999999Z' and at < 86400000001",
        "at == timestamp(86400000000)",
        "tags contains 'new' and tags contains any ['x', 'small'] and tags contains all ['small', 'new']",
        "codes contains -4 and not codes contains all [3, 4] and codes contains all []",
        "exists age and exists(tags) and age != null and not age == null",
        "`not a word` == 1",
        "ok == true and true and not (ok != true)",
        "ok == false or age == 7 and colour == 'red'",
    ] {
        assert!(matches(text, &red), "{text}");
        assert!(!matches(&format!("not ({text})"), &red), "{text}");
    }
    let none = Row::default();
    for text in [
        "age == 7",
        "age < 8",
        "age >= 8",
        "age between -9 and 9",
        "age in [1]",
        "tags contains 'x'",
        "tags contains all []",
        "tags contains any []",
        "exists age",
        "age != null",
    ] {
        assert!(!matches(text, &none), "{text}");
    }
    for text in [
        "age != 7",
        "age not in [7]",
        "age == null",
        "not exists age",
        "not age < 8",
    ] {
        assert!(matches(text, &none), "{text}");
    }
    // The row has an integer in a column of floats.
    assert!(matches(
        "price == 4 and price in [4.0]",
        &row(&[("price", 4.into())])
    ));
}

/// No float is between 2^53 and 2^53 + 2, and the integer between them must not be rounded.
#[test]
fn integers_that_are_no_floats_are_compared_as_they_are() {
    let two_53 = 1_i64 << 53;
    let at = |value: i64| row(&[("price", Value::Float(value as f64))]);
    let rows = [two_53 - 1, two_53, two_53 + 2, two_53 + 4].map(at);
    let found = |text: String| -> Vec<usize> {
        (0..rows.len())
            .filter(|at| matches(&text, &rows[*at]))
            .collect()
    };
    // Rounding would lower one of these two values and raise the other.
    for (asked, below) in [(two_53 + 1, 2), (two_53 + 3, 3)] {
        let (less, more): (Vec<usize>, Vec<usize>) = ((0..below).collect(), (below..4).collect());
        for comparison in ["<", "<="] {
            assert_eq!(found(format!("price {comparison} {asked}")), less);
        }
        for comparison in [">", ">="] {
            assert_eq!(found(format!("price {comparison} {asked}")), more);
        }
        assert!(found(format!("price == {asked}")).is_empty());
        assert_eq!(found(format!("price != {asked}")).len(), 4);
        let (one, next) = (asked - 1, asked + 1);
        assert_eq!(found(format!("price in [{asked}, {one}]")), [below - 1]);
        assert_eq!(
            found(format!("price between {one} and {asked}")),
            [below - 1]
        );
        assert_eq!(found(format!("price between {asked} and {next}")), [below]);
        assert!(found(format!("price between {asked} and {asked}")).is_empty());
        assert!(found(format!("price between {asked} and {one}")).is_empty());
        assert!(found(format!("price between {next} and {asked}")).is_empty());
    }
    // These values are greater than all values of the column.
    assert_eq!(found(format!("price < {}", i64::MAX)).len(), 4);
    assert!(found(format!("price == {}", i64::MAX)).is_empty());
    let most = row(&[("price", Value::Float(2_f64.powi(63)))]);
    assert!(!matches(&format!("price <= {}", i64::MAX), &most));
    assert!(matches(&format!("price > {}", i64::MAX), &most));
}

#[test]
fn an_integer_goes_into_a_column_of_floats_if_one_is_the_same_number() {
    let mut schema = schema();
    let mut exact = row(&[("price", Value::Integer(1 << 53))]);
    schema.take(&mut exact).unwrap();
    assert_eq!(exact, row(&[("price", Value::Float(2_f64.powi(53)))]));
    for wrong in [(1 << 53) + 1, i64::MAX] {
        let mut wrong = row(&[("price", Value::Integer(wrong))]);
        assert!(!schema.knows(&mut wrong));
        let error = schema.take(&mut wrong).unwrap_err().to_string();
        assert!(error.contains("no float equals this integer"), "{error}");
    }
}

#[test]
fn sql_and_control_characters_are_plain_strings() {
    let odd = "'; DROP TABLE vectors; --\u{0}\n\u{7f}\"\\\u{1f600}";
    let filter = Filter::column("colour").equals(odd);
    assert_eq!(Filter::parse(&filter.to_string()).unwrap(), filter);
    assert!(
        filter
            .check(&schema())
            .unwrap()
            .matches(&row(&[("colour", odd.into())]))
    );
    assert!(!filter.to_string().contains(char::is_control));
    let quoted = r#"colour == "a\"b\\\/\n\t\r\b\f\u0041\ud83d\ude00""#;
    assert!(matches(
        quoted,
        &row(&[("colour", "a\"b\\/\n\t\r\u{8}\u{c}A\u{1f600}".into())])
    ));
    assert!(
        refused("colour == 'x'; DROP TABLE vectors")
            .contains("at character 14: no token begins with ';'")
    );
    assert!(refused("age == 1 -- all").contains("found \"-- all\""));
}

#[test]
fn errors_name_what_is_wrong_and_where() {
    for (text, expected) in [
        ("", "at character 1: found the end, expected a comparison"),
        (
            "agé == 1",
            "at character 1: no column \"agé\"; did you mean \"age\" (integer)?",
        ),
        (
            "ok == true and colr == 'x'",
            "at character 16: no column \"colr\"; did you mean \"colour\" (string)?",
        ),
        (
            "xyzzy9 == 1",
            "no column \"xyzzy9\"; there are \"age\" (integer), \"at\" (timestamp)",
        ),
        (
            "age = 1",
            "at character 5: found \"= 1\", expected ==, !=, <, <=, >, >=, in, not in, between or contains; equality is ==",
        ),
        ("age <> 1", "`!=` before a value"),
        ("age == 1 && ok == true", "write and"),
        (
            "age == 1 AND ok == true",
            "at character 10: found \"AND ok == true\", expected and, or, or the end; keywords are in lower case",
        ),
        (
            "age == red",
            "at character 8: found \"red\", expected a value; write texts in quotes",
        ),
        (
            "age == 'x'",
            "at character 1: column \"age\" is of type integer: \"x\" is of type string",
        ),
        ("age == 1.5", "1.5 is a float; compare with an integer"),
        (
            "colour < 'x'",
            "column \"colour\" is of type string: < is for integers, floats and timestamps",
        ),
        ("ok >= true", ">= is for integers"),
        (
            "tags == 'x'",
            "column \"tags\" is of type list of strings: == is for single values; lists have contains",
        ),
        (
            "colour contains 'x'",
            "contains is for lists; single values have == and in",
        ),
        (
            "tags contains 3",
            "column \"tags\" is of type list of strings: 3 is of type integer",
        ),
        ("age == [1]", "expected one value; only `in`, `not in`"),
        ("age in 1", "expected a list: [1, 2]"),
        (
            "age in [1 2]",
            "at character 11: found \"2]\", expected a comma or a closing bracket",
        ),
        ("age < null", "< null: only == and != take null"),
        ("age in [null]", "only == and != take null"),
        ("at < 'soon'", "\"soon\" is not a time in ISO 8601"),
        ("at >= 2026", "For a year, write \"2026-01-01\""),
        ("(age == 1", "expected and, or, or a closing parenthesis"),
        (
            "age == 99999999999999999999",
            "at character 8: 99999999999999999999 does not fit 64 bits",
        ),
        ("price == 1.2.3", "expected a number"),
        ("age == 12ab", "found \"12ab\", expected a number"),
        (
            "colour == 'x",
            "at character 11: a text in quotes has no closing quote",
        ),
        ("colour == 'a\\x'", "at character 13: no escape"),
        ("colour == '\\ud800'", "no escape"),
        ("`age == 1", "no closing backtick"),
        (
            "and == 1",
            "expected a comparison, which begins with a column's name",
        ),
        ("age not 1", "expected in, behind not"),
        ("5 < age", "begins with a column's name"),
        (
            "at == timestamp(1.5)",
            "microseconds since 1970 UTC, an integer",
        ),
        ("age == 1 \u{1}", "no token begins with '\\u{1}'"),
    ] {
        let error = refused(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
    let error = Filter::parse("a == 1")
        .unwrap()
        .check(&Schema::default())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "filter, at character 1: no column \"a\"; no vector of the index has attributes. Insert \
         vectors with attributes, or set attributes of its vectors (`stratann set-attributes`, in \
         Python `set_attributes`)"
    );
    let object = Filter::column("age")
        .equals(f64::NAN)
        .check(&schema())
        .unwrap_err();
    assert_eq!(
        object.to_string(),
        "filter: column \"age\" is of type integer: a value is NaN; NaN equals no value, and has no order. Compare with another value"
    );
    let list = Filter::column("age")
        .equals(vec![1i64])
        .check(&schema())
        .unwrap_err();
    assert!(
        list.to_string().contains("[1] is of type list of integers"),
        "{list}"
    );
}

#[test]
fn what_is_too_large_is_a_plain_error() {
    let long = "x".repeat(1 << 20);
    assert!(
        refused(&format!("colour == '{long}'"))
            .contains("its text has 1048588 bytes; at most 1048576")
    );
    let error = Filter::column("colour")
        .equals(long.clone())
        .check(&schema())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("a string of 1048576 bytes; a string has at most 32768 bytes"),
        "{error}"
    );
    assert!(error.len() < 300, "{}", error.len());
    let error = Filter::column(long)
        .equals(1)
        .check(&schema())
        .unwrap_err()
        .to_string();
    assert!(error.len() < 400, "{error}");
    let terms = vec!["age == 1"; 10_000].join(" or ");
    assert!(refused(&terms).contains("more than 4096 comparisons; `in` takes many values at once"));
    let objects = Filter::any_of((0..10_000).map(|i| Filter::column("age").equals(i)));
    assert!(
        objects
            .check(&schema())
            .unwrap_err()
            .to_string()
            .contains("more than 4096")
    );
    let many = Filter::column("age").is_in(0..10_000);
    assert!(
        many.check(&schema())
            .unwrap()
            .matches(&row(&[("age", 9_999.into())]))
    );
    assert_eq!(Filter::parse(&many.to_string()).unwrap(), many);
    assert!(
        Filter::column("age")
            .is_in(0..70_000)
            .check(&schema())
            .unwrap_err()
            .to_string()
            .contains("65536 values")
    );
    for (open, close) in [("(", ")"), ("not ", ""), ("not (", ")")] {
        let deep = format!("{}age == 1{}", open.repeat(100_000), close.repeat(100_000));
        assert!(refused(&deep).contains("are nested deeper than 64"));
    }
    // A long chain is not deep. A filter that is too deep must not overflow the stack.
    let mut chain = Filter::column("age").equals(1);
    let mut deep = chain.clone();
    for i in 0..1000 {
        chain = chain.and(Filter::column("age").differs(i + 2));
        deep = !deep;
    }
    assert!(
        chain
            .check(&schema())
            .unwrap()
            .matches(&row(&[("age", 1.into())]))
    );
    for _ in 0..100_000 {
        deep = !deep;
    }
    let error = deep.check(&schema()).unwrap_err().to_string();
    assert!(error.contains("are nested deeper than 64"), "{error}");
}

#[test]
fn a_filter_tells_its_columns_and_whether_it_has_a_negation() {
    for (text, columns, negates) in [
        ("true", vec![], false),
        (
            r#"a == "b != null" and (c > 1 or a < 3)"#,
            vec!["a", "c"],
            false,
        ),
        ("`not` in [1] and exists b", vec!["not", "b"], false),
        ("a != 1", vec!["a"], true),
        ("b == 1 or a not in [1]", vec!["b", "a"], true),
        ("b == null", vec!["b"], true),
        ("b != null", vec!["b"], false),
        ("c < 1 and not (a < 3 or b < 2)", vec!["c", "a", "b"], true),
    ] {
        let filter = Filter::parse(text).unwrap();
        assert_eq!(filter.columns(), columns, "{text}");
        assert_eq!(filter.negates(), negates, "{text}");
    }
}

#[test]
fn objects_and_text_are_the_same() {
    let column = Filter::column;
    for (object, text) in [
        (
            column("a")
                .less(1)
                .or(column("b").exists())
                .and(column("c").missing()),
            "(a < 1 or exists b) and c == null",
        ),
        (
            !(column("a").at_least(1.0).and(column("b").contains("x"))),
            "not (a >= 1.0 and b contains \"x\")",
        ),
        (column("a b`c").between(-1, 2), "`a b``c` between -1 and 2"),
        (column("null").not_in(["x"; 0]), "`null` not in []"),
        (
            column("x.y_1").equals(Value::Timestamp(-5)),
            "x.y_1 == timestamp(-5)",
        ),
        (Filter::all_of([]), "true"),
        (Filter::any_of([]), "false"),
        (column("a").more(f64::NEG_INFINITY), "a > -inf"),
        (
            column("a")
                .contains_any([1, 2])
                .and(column("a").contains_all([3])),
            "a contains any [1, 2] and a contains all [3]",
        ),
    ] {
        assert_eq!(object.to_string(), text);
        assert_eq!(Filter::parse(text).unwrap(), object, "{text}");
    }
}

const COLUMNS: [&str; 4] = ["ok", "age", "colour", "tags"];

fn any_value(column: &'static str) -> BoxedStrategy<Value> {
    match column {
        "ok" => any::<bool>().prop_map(Value::from).boxed(),
        "age" => (-3i64..3).prop_map(Value::from).boxed(),
        _ => prop::sample::select(vec!["a", "b", "c'\"\\\n", ""])
            .prop_map(Value::from)
            .boxed(),
    }
}

fn any_test() -> impl Strategy<Value = Filter> {
    let column = prop::sample::select(COLUMNS.to_vec());
    column.prop_flat_map(|name| {
        let (values, value) = (
            prop::collection::vec(any_value(name), 0..4),
            any_value(name),
        );
        (values, value, any_value(name), 0..6u8).prop_map(move |(values, value, other, which)| {
            let column = Filter::column(name);
            match (which, name) {
                (0, _) => column.exists(),
                (1, _) => column.missing(),
                (2, "tags") => column.contains(value),
                (3, "tags") => column.contains_any(values),
                (_, "tags") => column.contains_all(values),
                (2, _) => column.equals(value),
                (3, _) => column.differs(value),
                (4, "age") => column.between(value, other),
                (4, _) => column.not_in(values),
                (_, "age") => column.less(value).or(Filter::column(name).more(other)),
                _ => column.is_in(values),
            }
        })
    })
}

fn any_filter() -> impl Strategy<Value = Filter> {
    let leaf = prop_oneof![8 => any_test(), 1 => any::<bool>().prop_map(Filter::constant)];
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Filter::all_of),
            prop::collection::vec(inner.clone(), 0..3).prop_map(Filter::any_of),
            (inner.clone(), inner.clone()).prop_map(|(one, other)| one.and(other)),
            inner.prop_map(|filter| !filter),
        ]
    })
}

fn any_row() -> impl Strategy<Value = Row> {
    let tags = prop::collection::vec(prop::sample::select(vec!["a", "b", ""]), 0..3);
    let tags = tags.prop_map(|tags| Value::Strings(tags.into_iter().map(str::to_owned).collect()));
    let values = (
        prop::option::of(any_value("ok")),
        prop::option::of(any_value("age")),
        prop::option::of(any_value("colour")),
        prop::option::of(tags),
    );
    values.prop_map(|(ok, age, colour, tags)| {
        let named = COLUMNS.into_iter().zip([ok, age, colour, tags]);
        let attributes: BTreeMap<_, _> = named
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect();
        Row {
            attributes,
            payload: None,
        }
    })
}

fn plainly(node: &Node, row: &Row) -> bool {
    let test = match node {
        Node::Constant(matches) => return *matches,
        Node::Not(node) => return !plainly(node, row),
        Node::And(nodes) => return nodes.iter().all(|node| plainly(node, row)),
        Node::Or(nodes) => return nodes.iter().any(|node| plainly(node, row)),
        Node::TooDeep => panic!("too deep"),
        Node::Test(test) => test,
    };
    let value = row.attributes.get(&test.column);
    let integer = |value: &Value| match value {
        Value::Integer(value) => *value,
        other => panic!("{other:?}"),
    };
    let has = |wanted: &Value| match (value, wanted) {
        (Some(Value::Strings(items)), Value::String(wanted)) => items.contains(wanted),
        _ => false,
    };
    match &test.asks {
        Asks::Exists => value.is_some(),
        Asks::Missing => value.is_none(),
        Asks::Compare(Comparison::Equal, wanted) => value == Some(wanted),
        Asks::Compare(Comparison::NotEqual, wanted) => value != Some(wanted),
        Asks::Compare(Comparison::Less, wanted) => {
            value.is_some_and(|value| integer(value) < integer(wanted))
        }
        Asks::Compare(Comparison::More, wanted) => {
            value.is_some_and(|value| integer(value) > integer(wanted))
        }
        Asks::Compare(..) => panic!("not drawn"),
        Asks::Between(low, high) => {
            value.is_some_and(|value| (integer(low)..=integer(high)).contains(&integer(value)))
        }
        Asks::In(values) => value.is_some_and(|value| values.contains(value)),
        Asks::NotIn(values) => !value.is_some_and(|value| values.contains(value)),
        Asks::Contains(wanted) => has(wanted),
        Asks::ContainsAny(values) => values.iter().any(has),
        Asks::ContainsAll(values) => value.is_some() && values.iter().all(has),
    }
}

proptest! {
    #[test]
    fn any_filter_is_printed_as_what_is_read_as_it(filter in any_filter()) {
        let text = filter.to_string();
        prop_assert_eq!(Filter::parse(&text).unwrap(), filter, "{}", text);
    }

    #[test]
    fn rows_and_nodes_agree(filter in any_filter(), rows in prop::collection::vec(any_row(), 0..40)) {
        let checked = filter.check(&schema()).unwrap();
        let expected: NodeSet = (0..).zip(&rows).filter(|(_, row)| plainly(&filter.node, row)).map(|(node, _)| node).collect();
        let by_rows: NodeSet = (0..).zip(&rows).filter(|(_, row)| checked.matches(row)).map(|(node, _)| node).collect();
        prop_assert_eq!(&by_rows, &expected);
        let of = |atom: &Atom| -> NodeSet {
            let has = |row: &Row| row.attributes.contains_key(&atom.column);
            let asked = Checked(checked::Expression::Atom(atom.clone()));
            (0..).zip(&rows).filter(|(_, row)| has(row) && asked.matches(row)).map(|(node, _)| node).collect()
        };
        let all = NodeSet::below(rows.len() as u32);
        let nodes = checked.nodes(&all, |atom| Ok::<_, ()>(of(atom))).unwrap();
        prop_assert_eq!(&nodes, &expected);
    }

    #[test]
    fn arbitrary_text_never_panics(
        text in ".{0,40}",
        words in prop::collection::vec(
            prop::sample::select(vec!["age", "tags", "==", "<", "(", ")", "[", "]", ",", "not", "in", "and", "or", "contains",
                "any", "exists", "null", "1", "-", "'x'", "\\", "`", "\"", "timestamp", "between", "1e9"]), 0..12),
    ) {
        for text in [text, words.join(" "), words.concat()] {
            if let Ok(filter) = Filter::parse(&text) {
                prop_assert_eq!(&Filter::parse(&filter.to_string()).unwrap(), &filter);
                let _ = filter.check(&schema());
            }
        }
    }
}
