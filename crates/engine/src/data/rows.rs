//! Rows of attributes beside vectors: from memory, or of a file of JSON lines.
//!
//! ```text
//!   {"colour": "red", "price": 3.5, "tags": ["new", "small"], "sold": true, "stock": 7}
//! ```
//!
//! A line is an object: a key is a column, a value a boolean, a number, a string, or a list of strings or of integers. `null`, an empty list and a key
//! that is missing are no value; an update takes away what is `null` or an empty list, and leaves alone what is missing. Whole numbers are integers, unless the column has others somewhere in the file: then all are floats. What
//! columns are times, and which key holds the payload, a file does not say: [`JsonColumns`] does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value as Json;
use serde_json::value::{RawValue, to_raw_value};
use stratann_layout::attributes::{Row, Value, float_of};

use super::DataError;
use crate::filter::timestamp;
use crate::progress::{Progress, Silent, Stage};

/// What vectors have beside them: a row for each, in the order of the vectors. Read by any number of threads.
pub trait RowSource: Send + Sync {
    /// How many there are.
    fn rows(&self) -> usize;

    /// What it is called in messages.
    fn name(&self) -> &str;

    /// A row.
    ///
    /// # Errors
    /// It cannot be read, is not there, or is none.
    fn row(&self, at: usize) -> Result<Row, DataError>;

    /// What a row says that its vector has not: an update of attributes takes that away, and leaves alone what a row does not name. Nothing, where a source cannot
    /// say so.
    ///
    /// # Errors
    /// As those of [`row`](RowSource::row).
    fn cleared(&self, _at: usize) -> Result<Cleared, DataError> {
        Ok(Cleared::default())
    }
}

/// What a row names without a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Names of attributes.
    pub attributes: Vec<String>,
    /// Whether the payload is.
    pub payload: bool,
}

/// Rows that are in memory.
#[derive(Clone, Debug, Default)]
pub struct RowTable {
    rows: Vec<Row>,
}

impl RowTable {
    /// These rows.
    pub fn new(rows: Vec<Row>) -> Self {
        Self { rows }
    }
}

impl RowSource for RowTable {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn name(&self) -> &str {
        "rows in memory"
    }

    fn row(&self, at: usize) -> Result<Row, DataError> {
        self.rows.get(at).cloned().ok_or(DataError::Range {
            name: self.name().to_owned(),
            first: at as u64,
            end: at as u64 + 1,
            rows: self.rows.len() as u64,
        })
    }
}

/// What a file of JSON lines does not say of its columns.
#[derive(Clone, Debug, Default)]
pub struct JsonColumns {
    /// Columns whose values are times: ISO 8601 in strings, or microseconds since 1970 in integers.
    pub times: BTreeSet<String>,
    /// The key whose value, any JSON, is the payload and no attribute.
    pub payload: Option<String>,
    /// The key whose value is the id of the vector that the row is of, and no attribute: then every line has it.
    pub id: Option<String>,
    /// Keys that are left out.
    pub without: BTreeSet<String>,
}

/// Rows of a file of JSON lines. The places of its lines are in memory, 8 bytes each; lines are read when they are asked for.
#[derive(Debug)]
pub struct JsonRows {
    name: String,
    file: File,
    /// Where each line begins, and where the last one ends.
    lines: Vec<u64>,
    columns: JsonColumns,
    /// The id of each line, if there is a key of ids.
    ids: Vec<u64>,
    /// Columns of whole numbers and others.
    floats: BTreeSet<String>,
}

impl JsonRows {
    /// Opens a file, all of whose lines are read once.
    ///
    /// # Errors
    /// A file that cannot be read, or a line that is no row: the error names it.
    pub fn open(path: impl AsRef<Path>, columns: &JsonColumns) -> Result<Self, DataError> {
        let name = path.as_ref().display().to_string();
        let file = File::open(path);
        let file = file.map_err(|error| DataError::io(&name, "open", error))?;
        Self::of_file(file, name, columns, &Silent)
    }

    /// As [`open`](Self::open), of a file that is open, from its beginning on: one that has no path, say. `name` stands for it in
    /// messages. `progress` counts bytes.
    ///
    /// # Errors
    /// As those of [`open`](Self::open), and [`DataError::Interrupted`].
    pub fn of_file(
        file: File,
        name: String,
        columns: &JsonColumns,
        progress: &dyn Progress,
    ) -> Result<Self, DataError> {
        let failed = |action: &str, source| DataError::io(&name, action, source);
        let mut rows = Self {
            file,
            lines: vec![0],
            columns: columns.clone(),
            ids: Vec::new(),
            floats: BTreeSet::new(),
            name: name.clone(),
        };
        let again = rows.file.try_clone();
        let mut again = again.map_err(|error| failed("open", error))?;
        again.rewind().map_err(|error| failed("read", error))?;
        let mut reader = BufReader::new(again);
        let (mut line, mut at) = (Vec::new(), 0u64);
        let mut whole: BTreeMap<String, bool> = BTreeMap::new();
        let length = rows.file.metadata();
        let length = length.map_err(|error| failed("read", error))?.len();
        let _stage = Stage::begin(progress, &format!("reading rows of {name}"), length);
        loop {
            if progress.interrupted() {
                return Err(DataError::Interrupted);
            }
            line.clear();
            let read = reader.read_until(b'\n', &mut line);
            let read = read.map_err(|error| failed("read", error))?;
            if read == 0 {
                break;
            }
            let number = rows.lines.len() - 1;
            let line = rows.parse(number, &line)?;
            rows.ids.extend(line.id);
            for (name, value) in line.row.attributes {
                let is_whole = match value {
                    Value::Integer(_) => true,
                    Value::Float(_) => false,
                    _ => continue,
                };
                if *whole.entry(name.clone()).or_insert(is_whole) != is_whole {
                    rows.floats.insert(name);
                }
            }
            at += read as u64;
            rows.lines.push(at);
            progress.advance(read as u64);
        }
        Ok(rows)
    }

    /// The id of each row, if a key of ids was named; else none.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    fn parse(&self, at: usize, line: &[u8]) -> Result<Line, DataError> {
        let wrong = |what: &'static str, found: String, expected: &str| DataError::Field {
            file: format!("{}, line {}", self.name, at + 1),
            offset: self.lines.get(at).copied().unwrap_or_default(),
            what,
            found,
            expected: expected.to_owned(),
        };
        let none = |error: serde_json::Error| wrong("a row", error.to_string(), "a JSON object");
        let mut parsed: BTreeMap<String, Box<RawValue>> =
            serde_json::from_slice(line).map_err(none)?;
        let id = match &self.columns.id {
            None => None,
            Some(key) => {
                let found = parsed.remove(key);
                let found = found.as_deref().map_or("no such key", RawValue::get);
                let id = found.parse().ok().filter(|&id| id != u64::MAX);
                let found = format!("{found:.80} in {key:?}");
                Some(id.ok_or_else(|| wrong("an id", found, ID))?)
            }
        };
        let (mut row, mut cleared) = (Row::default(), Cleared::default());
        for (key, value) in parsed {
            if self.columns.without.contains(&key) {
                continue;
            }
            let shown = value.get();
            if self.columns.payload.as_ref() == Some(&key) {
                // To the letter: it is nobody's to read here.
                row.payload = (shown != "null").then(|| shown.to_owned());
                cleared.payload = row.payload.is_none();
                continue;
            }
            let is_time = self.columns.times.contains(&key);
            let is_float = self.floats.contains(&key);
            let value = match INFINITE.iter().find(|(written, _)| *written == shown) {
                Some(&(_, infinite)) if !is_time => Ok(Some(Value::Float(infinite))),
                _ => {
                    let value = serde_json::from_str(shown).map_err(none)?;
                    match is_inexact(&value, shown, is_float) {
                        true => Err(WHOLE),
                        false => value_of(value, is_time, is_float),
                    }
                }
            };
            match value {
                Ok(Some(value)) => _ = row.attributes.insert(key, value),
                Ok(None) => cleared.attributes.push(key),
                Err(expected) => {
                    let mut found = format!("{shown:.80}");
                    found.push_str(&format!(" in {key:?}"));
                    return Err(wrong("a value", found, expected));
                }
            }
        }
        Ok(Line { row, cleared, id })
    }

    /// A line, by its number from 0 on.
    fn line(&self, at: usize) -> Result<Line, DataError> {
        let (Some(&from), Some(&to)) = (self.lines.get(at), self.lines.get(at + 1)) else {
            return Err(DataError::Range {
                name: self.name.clone(),
                first: at as u64,
                end: at as u64 + 1,
                rows: self.rows() as u64,
            });
        };
        let mut line = vec![0; (to - from) as usize];
        let read = self.file.read_exact_at(&mut line, from);
        read.map_err(|source| DataError::Io {
            file: self.name.clone(),
            action: format!("read at offset {from}"),
            source,
        })?;
        self.parse(at, &line)
    }
}

/// What a line says.
struct Line {
    row: Row,
    cleared: Cleared,
    /// The id, if there is a key of ids.
    id: Option<u64>,
}

const ID: &str = "a whole number from 0 to 18446744073709551614";

const WHOLE: &str = "a whole number of 64 bits, from -2^63 to 2^63 - 1; in a column that has others, one that a float can be exactly";

/// How infinite numbers are written, for which JSON has none: most programs that read JSON take these for infinite.
const INFINITE: [(&str, f64); 2] = [("1e999", f64::INFINITY), ("-1e999", f64::NEG_INFINITY)];

/// Whether a number is written as a whole one, and would become another.
fn is_inexact(value: &Json, written: &str, is_float: bool) -> bool {
    if !value.is_number() || written.contains(['.', 'e', 'E']) {
        return false;
    }
    match value.as_i64() {
        // -0 is read as a float, and is none that would be missed.
        None => value.as_f64() != Some(0.0),
        Some(integer) => is_float && float_of(integer).is_none(),
    }
}

/// A value of JSON, if it is one.
fn value_of(json: Json, is_time: bool, is_float: bool) -> Result<Option<Value>, &'static str> {
    const ANY: &str =
        "a boolean, a number of 64 bits, a string, or a list of strings or of integers";
    const TIME: &str = "a time: ISO 8601, or microseconds since 1970";
    Ok(Some(match json {
        Json::Null => return Ok(None),
        Json::Number(number) if is_time => Value::Timestamp(number.as_i64().ok_or(TIME)?),
        Json::String(text) if is_time => Value::Timestamp(timestamp(&text).ok_or(TIME)?),
        _ if is_time => return Err(TIME),
        Json::Bool(value) => Value::Boolean(value),
        Json::Number(number) => match (number.as_i64().filter(|_| !is_float), number.as_f64()) {
            (Some(integer), _) => Value::Integer(integer),
            (None, Some(float)) => Value::Float(float),
            (None, None) => return Err(ANY),
        },
        Json::String(text) => Value::String(text),
        Json::Array(items) if items.is_empty() => return Ok(None),
        Json::Array(items) if items.iter().all(Json::is_string) => {
            let text = |item| match item {
                Json::String(text) => text,
                _ => String::new(),
            };
            Value::Strings(items.into_iter().map(text).collect())
        }
        Json::Array(items) => {
            let integers = items.iter().map(Json::as_i64).collect::<Option<Vec<i64>>>();
            Value::Integers(integers.ok_or(ANY)?)
        }
        Json::Object(_) => return Err(ANY),
    }))
}

/// A value as JSON has it: a time as microseconds since 1970, and an infinite number as one that is too large, `1e999`.
///
/// # Errors
/// None that is known: a value that JSON has no words for.
pub fn json_of(value: &Value) -> serde_json::Result<Box<RawValue>> {
    let infinite = |value: f64| {
        INFINITE
            .iter()
            .find(move |&&(_, infinite)| infinite == value)
    };
    match value {
        Value::Boolean(value) => to_raw_value(value),
        Value::Integer(value) | Value::Timestamp(value) => to_raw_value(value),
        Value::Float(value) => match infinite(*value) {
            Some(&(written, _)) => RawValue::from_string(written.to_owned()),
            None => to_raw_value(value),
        },
        Value::String(value) => to_raw_value(value),
        Value::Strings(values) => to_raw_value(values),
        Value::Integers(values) => to_raw_value(values),
    }
}

impl RowSource for JsonRows {
    fn rows(&self) -> usize {
        self.lines.len() - 1
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn row(&self, at: usize) -> Result<Row, DataError> {
        Ok(self.line(at)?.row)
    }

    fn cleared(&self, at: usize) -> Result<Cleared, DataError> {
        Ok(self.line(at)?.cleared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str, columns: &JsonColumns) -> Result<Vec<Row>, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        std::fs::write(&path, text).unwrap();
        let rows = JsonRows::open(&path, columns)?;
        assert!(rows.row(rows.rows()).is_err());
        (0..rows.rows()).map(|at| rows.row(at)).collect()
    }

    #[test]
    fn lines_are_rows_and_numbers_of_a_column_are_of_one_type() {
        let columns = JsonColumns {
            times: ["at".to_owned()].into(),
            payload: Some("beside".into()),
            ..JsonColumns::default()
        };
        let text = concat!(
            "{\"a\": 1, \"b\": 1, \"c\": true, \"d\": \"x\", \"at\": -5, \"beside\": {\"any\": [1, null], \"n\": 12345678901234567890123, \"any\": 2}}\n",
            "{\"a\": 2, \"b\": 0.5, \"e\": [\"p\", \"q\"], \"f\": [1, -2], \"g\": [], \"h\": null}\n",
            "{}"
        );
        let found = rows(text, &columns).unwrap();
        let row = |values: &[(&str, Value)]| -> BTreeMap<String, Value> {
            let values = values.iter().cloned();
            values
                .map(|(name, value)| (name.to_owned(), value))
                .collect()
        };
        assert_eq!(
            found[0].attributes,
            row(&[
                ("a", Value::Integer(1)),
                ("b", Value::Float(1.0)),
                ("c", Value::Boolean(true)),
                ("d", Value::String("x".into())),
                ("at", Value::Timestamp(-5)),
            ])
        );
        let payload = found[0].payload.as_deref();
        assert_eq!(
            payload,
            Some("{\"any\": [1, null], \"n\": 12345678901234567890123, \"any\": 2}")
        );
        assert_eq!(
            found[1].attributes,
            row(&[
                ("a", Value::Integer(2)),
                ("b", Value::Float(0.5)),
                ("e", Value::Strings(vec!["p".into(), "q".into()])),
                ("f", Value::Integers(vec![1, -2])),
            ])
        );
        assert_eq!(found[2], Row::default());
    }

    #[test]
    fn whole_numbers_are_what_is_written_or_an_error() {
        let columns = JsonColumns::default();
        for (written, value) in [
            ("9007199254740993", Value::Integer(9_007_199_254_740_993)),
            ("-9223372036854775808", Value::Integer(i64::MIN)),
            ("-0", Value::Float(-0.0)),
        ] {
            let found = rows(&format!("{{\"a\": {written}}}\n"), &columns).unwrap();
            assert_eq!(found[0].attributes["a"], value);
        }
        for wrong in [
            "{\"a\": 9223372036854775808}",
            "{\"a\": -9223372036854775809}",
            "{\"a\": 12345678901234567890123}",
            "{\"a\": 9007199254740993}\n{\"a\": 0.5}",
            "{\"a\": 0.5}\n{\"a\": 9007199254740993}",
        ] {
            let error = rows(&format!("{wrong}\n"), &columns)
                .unwrap_err()
                .to_string();
            assert!(error.contains("a whole number of 64 bits"), "{error}");
        }
        // Written as floats they are meant as such.
        let found = rows("{\"a\": 1e22}\n{\"a\": 0.5}\n", &columns).unwrap();
        assert_eq!(found[0].attributes["a"], Value::Float(1e22));
    }

    #[test]
    fn ids_stand_under_a_key_that_is_no_column() {
        let columns = JsonColumns {
            id: Some("id".into()),
            ..JsonColumns::default()
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        let lines = "{\"id\": 18446744073709551614, \"a\": 1}\n{\"id\": 0}\n";
        std::fs::write(&path, lines).unwrap();
        let rows = JsonRows::open(&path, &columns).unwrap();
        assert_eq!(rows.ids(), [u64::MAX - 1, 0]);
        let names = rows.row(0).unwrap().attributes.into_keys();
        assert_eq!(names.collect::<Vec<_>>(), ["a"]);
        for wrong in ["18446744073709551615", "-1", "1.0", "\"1\"", "null"] {
            let lines = format!("{{\"id\": 1}}\n{{\"id\": {wrong}}}\n");
            std::fs::write(&path, lines).unwrap();
            let error = JsonRows::open(&path, &columns).unwrap_err().to_string();
            let said = error.contains("line 2") && error.contains(wrong);
            assert!(said && error.contains("18446744073709551614"), "{error}");
        }
        std::fs::write(&path, "{\"ident\": 1}\n").unwrap();
        let error = JsonRows::open(&path, &columns).unwrap_err().to_string();
        assert!(error.contains("no such key in \"id\""), "{error}");
    }

    #[test]
    fn a_line_that_is_no_row_is_named() {
        let columns = JsonColumns {
            times: ["at".to_owned()].into(),
            ..JsonColumns::default()
        };
        for (line, expected) in [
            ("[1]", "a JSON object"),
            ("{\"a\": {}}", "\"a\"; a boolean"),
            ("{\"a\": [1, \"x\"]}", "a list of strings"),
            ("{\"a\": [1.5]}", "of integers"),
            ("{\"at\": true}", "ISO 8601"),
            ("{\"a\": 1", "a JSON object"),
            ("", "a JSON object"),
        ] {
            let error = rows(&format!("{{}}\n{line}\n{{}}\n"), &columns).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("line 2") && error.contains(expected),
                "{error}"
            );
        }
    }
}
