//! Rows of attributes for vectors. They are in memory, or in a file of JSON lines.
//!
//! ```text
//!   {"colour": "red", "price": 3.5, "tags": ["new", "small"], "sold": true, "stock": 7}
//! ```
//!
//! A line is an object whose keys are columns. A value is a boolean, a number, a string, or a list
//! of strings or of integers. `null`, an empty list and a missing key mean that the row has no
//! value. In an update, only `null` and an empty list remove the value.
//!
//! If a column of the file has numbers that are not whole, all its numbers are floats.
//! [`JsonColumns`] says which columns are times, and which key is the payload.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value as Json;
use serde_json::value::{RawValue, to_raw_value};
use stratann_layout::attributes::{Row, Value, float_of};

use super::DataError;
use crate::alike::meant;
use crate::filter::timestamp;
use crate::progress::{Progress, Silent, Stage};

/// A source of attributes and payloads, with one row for each vector, which any threads may read.
pub trait RowSource: Send + Sync {
    /// The number of rows.
    fn rows(&self) -> usize;

    /// The name of the source in messages.
    fn name(&self) -> &str;

    /// Reads a row.
    ///
    /// # Errors
    /// The call fails if the row cannot be read, does not exist, or has a wrong form.
    fn row(&self, at: usize) -> Result<Row, DataError>;

    /// The columns that a row names without a value. An update of attributes removes their values.
    /// Empty if the source cannot distinguish such columns from others.
    ///
    /// # Errors
    /// The call fails for the reasons of [`row`](RowSource::row).
    fn cleared(&self, _at: usize) -> Result<Cleared, DataError> {
        Ok(Cleared::default())
    }
}

/// The columns that a row names without a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// The names of the attributes.
    pub attributes: Vec<String>,
    /// Whether the row names the payload without a value.
    pub payload: bool,
}

/// Rows in memory.
#[derive(Clone, Debug, Default)]
pub struct RowTable {
    rows: Vec<Row>,
}

impl RowTable {
    /// Creates a table that has these rows.
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

/// Facts about the columns of a file of JSON lines that are not in the file.
#[derive(Clone, Debug, Default)]
pub struct JsonColumns {
    /// The columns of times: ISO 8601 strings, or integers of microseconds since 1970.
    pub times: BTreeSet<String>,
    /// The key of the payload. Its value may have any JSON type, and is not an attribute.
    pub payload: Option<String>,
    /// The key of the vector's id, which is no attribute. If it is set, every line must have it.
    pub id: Option<String>,
    /// The keys that are ignored.
    pub without: BTreeSet<String>,
}

/// The rows of a file of JSON lines, with the offset of each line in memory. A line is read when
/// its row is requested.
#[derive(Debug)]
pub struct JsonRows {
    name: String,
    file: File,
    /// The offset at which each line begins, followed by the end of the last line.
    lines: Vec<u64>,
    columns: JsonColumns,
    /// The id of each line; empty without a key of ids.
    ids: Vec<u64>,
    /// The columns that have both whole numbers and other numbers.
    floats: BTreeSet<String>,
    keys: BTreeSet<String>,
}

const MOST_KEYS: usize = 4_096;

impl JsonRows {
    /// Opens a file, and reads each line once.
    ///
    /// # Errors
    /// The call fails if the file cannot be read, or if a line is not a row. The error names the
    /// line.
    pub fn open(path: impl AsRef<Path>, columns: &JsonColumns) -> Result<Self, DataError> {
        let name = path.as_ref().display().to_string();
        let file = File::open(path);
        let file = file.map_err(|error| DataError::io(&name, "open", error))?;
        Self::of_file(file, name, columns, &Silent)
    }

    /// Reads an open file, which need not have a path, from its beginning. Messages call the file
    /// `name`, and `progress` counts bytes.
    ///
    /// # Errors
    /// The call fails for the reasons of [`open`](Self::open), and with [`DataError::Interrupted`].
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
            keys: BTreeSet::new(),
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
            // Some editors begin a file with a byte order mark.
            let mark = match at {
                0 if line.starts_with(MARK) => MARK.len(),
                _ => 0,
            };
            if read == mark {
                break;
            }
            rows.lines[number] += mark as u64;
            let line = rows.parse(number, &line[mark..])?;
            rows.note_keys(&line);
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

    /// The id of each row; empty without a key of ids.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// The keys of the file, without the key of the id. If a file has thousands of keys, some keys
    /// are missing, but no key that the [`JsonColumns`] name.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }

    fn note_keys(&mut self, line: &Line) {
        let columns = &self.columns;
        let attributes = line.row.attributes.keys().chain(&line.cleared.attributes);
        let has_payload = line.row.payload.is_some() || line.cleared.payload;
        let payload = columns.payload.iter().filter(|_| has_payload);
        for key in attributes.chain(payload).chain(&line.ignored) {
            let is_named = columns.times.contains(key)
                || columns.without.contains(key)
                || columns.payload.as_ref() == Some(key);
            if !self.keys.contains(key) && (is_named || self.keys.len() < MOST_KEYS) {
                self.keys.insert(key.clone());
            }
        }
    }

    fn parse(&self, at: usize, line: &[u8]) -> Result<Line, DataError> {
        let wrong =
            |what: &'static str, found: String, reason: String, remedy: &str| DataError::Field {
                file: format!("{}, line {}", self.name, at + 1),
                offset: self.lines.get(at).copied().unwrap_or_default(),
                what,
                found,
                reason,
                remedy: remedy.to_owned(),
            };
        let none = |error: serde_json::Error| {
            let remedy = "Write each row as a JSON object";
            let reason = match line.trim_ascii().is_empty() {
                true => "the line is empty".to_owned(),
                // The line is the only one that was parsed.
                false => error
                    .to_string()
                    .replace(" at line 1 column ", " at column "),
            };
            wrong("a row", "no JSON object".to_owned(), reason, remedy)
        };
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let mut parsed: BTreeMap<String, Box<RawValue>> =
            serde_json::from_slice(line).map_err(none)?;
        let id = match &self.columns.id {
            None => None,
            Some(key) => {
                let found = parsed.remove(key);
                let found = found.as_deref().map_or("missing", RawValue::get);
                let id = found.parse().ok().filter(|&id| id != u64::MAX);
                let found = format!("{found:.80} in {key:?}");
                Some(id.ok_or_else(|| {
                    wrong("an id", found, ID.to_owned(), "Give an id in this range")
                })?)
            }
        };
        let (mut row, mut cleared) = (Row::default(), Cleared::default());
        let mut ignored = Vec::new();
        for (key, value) in parsed {
            if self.columns.without.contains(&key) {
                ignored.push(key);
                continue;
            }
            let shown = value.get();
            if self.columns.payload.as_ref() == Some(&key) {
                // The text is stored unchanged, because the payload is not interpreted.
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
                Err(form) => {
                    let found = format!("{shown:.80} in {key:?}");
                    let reason = format!("a value is {form}");
                    let payload = self.columns.payload.as_deref();
                    let misspelt = payload.filter(|name| meant(name, [key.as_str()]).is_some());
                    let remedy = match misspelt {
                        Some(name) => format!(
                            "Give a value of this type, or null. If this is the payload, give its key \
                             {key:?}, and not {name:?}"
                        ),
                        None if payload.is_none() && key == "payload" => {
                            "Give a value of this type, or null. If this is the payload, give its key".to_owned()
                        }
                        None => "Give a value of this type, or null".to_owned(),
                    };
                    return Err(wrong("a value", found, reason, &remedy));
                }
            }
        }
        Ok(Line {
            row,
            cleared,
            ignored,
            id,
        })
    }

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

struct Line {
    row: Row,
    cleared: Cleared,
    ignored: Vec<String>,
    id: Option<u64>,
}

/// The byte order mark of UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

const ID: &str = "an id is a whole number from 0 to 18446744073709551614";

const WHOLE: &str = "a whole number of 64 bits, from -2^63 to 2^63 - 1; in a column with other numbers, a whole number that a float can represent exactly";

/// JSON has no infinite numbers, but most programs read these texts as infinite.
const INFINITE: [(&str, f64); 2] = [("1e999", f64::INFINITY), ("-1e999", f64::NEG_INFINITY)];

/// Whether a whole number would change when it is stored.
fn is_inexact(value: &Json, written: &str, is_float: bool) -> bool {
    if !value.is_number() || written.contains(['.', 'e', 'E']) {
        return false;
    }
    match value.as_i64() {
        // The number -0 is read as a float, and loses no information.
        None => value.as_f64() != Some(0.0),
        Some(integer) => is_float && float_of(integer).is_none(),
    }
}

/// Converts a JSON value to an attribute; `None` for `null` and for an empty list.
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

/// Converts a value to JSON. A time becomes microseconds since 1970, and infinity becomes `1e999`.
///
/// # Errors
/// The call fails for values that JSON cannot represent. No such value is known.
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
        // Numbers that are written as floats become floats.
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
        assert!(error.contains("missing in \"id\""), "{error}");
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_row() {
        assert_eq!(rows("\u{feff}", &JsonColumns::default()).unwrap(), []);
        let rows = rows("\u{feff}{\"a\": 1}\n{\"a\": 2}\n", &JsonColumns::default()).unwrap();
        let values: Vec<Value> = rows.iter().map(|row| row.attributes["a"].clone()).collect();
        assert_eq!(values, [Value::Integer(1), Value::Integer(2)]);
    }

    #[test]
    fn a_line_that_is_no_row_is_named() {
        let columns = JsonColumns {
            times: ["at".to_owned()].into(),
            ..JsonColumns::default()
        };
        for (line, expected) in [
            ("[1]", "a JSON object"),
            ("{\"a\": {}}", "\"a\"; a value is a boolean"),
            ("{\"a\": [1, \"x\"]}", "a list of strings"),
            ("{\"a\": [1.5]}", "of integers"),
            ("{\"at\": true}", "ISO 8601"),
            ("{\"a\": 1", "a JSON object"),
            (
                "{\"a\": 1",
                "EOF while parsing an object at column 7. Write",
            ),
            ("", "no JSON object; the line is empty. Write"),
            (" \r", "the line is empty"),
            ("{\"payload\": {}}", "If this is the payload, give its key"),
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
