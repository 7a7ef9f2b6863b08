//! The attributes and payload of one vector, and their encoding in the log and in files of rows.
//!
//! | bytes | contents |
//! |---|---|
//! | 1 | version of this encoding: 1 |
//! | 2 | `n`: the number of attributes |
//! | `n` times | an attribute, in the ascending order of names |
//! | 1 | 1 if there is a payload, else 0 |
//! | 4 | if there is a payload: its number of bytes |
//! | | if there is a payload: its bytes, JSON in UTF-8 |
//!
//! An attribute:
//!
//! | bytes | contents |
//! |---|---|
//! | 1 | bytes of the name |
//! | | the name, UTF-8 |
//! | 1 | type: 1 boolean, 2 integer, 3 float, 4 string, 5 timestamp, 6 strings, 7 integers |
//! | 1 | boolean: 0 or 1 |
//! | 8 | integer, timestamp: two's complement; float: IEEE 754, neither NaN nor minus zero |
//! | 2, .. | string: its number of bytes, then the bytes, UTF-8 |
//! | 2, .. | list (types 6, 7): its number of items, then each as a string or integer |
//!
//! Each row has exactly one encoding.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

use super::{ColumnType, MOST_COLUMNS, MOST_ITEMS, MOST_PAYLOAD, MOST_ROW, MOST_STRING, Value};
use super::{MOST_NAME, name_fault};
use crate::error::LayoutError;

const VERSION: u8 = 1;

/// The attributes and payload of a vector.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The attributes by name. A missing value has no entry.
    pub attributes: BTreeMap<String, Value>,
    /// A text in JSON of up to [`MOST_PAYLOAD`] bytes, which is not interpreted.
    pub payload: Option<String>,
}

impl Row {
    /// Whether there are neither attributes nor a payload.
    pub fn is_empty(&self) -> bool {
        self.attributes.is_empty() && self.payload.is_none()
    }

    /// Appends the encoded row.
    ///
    /// # Errors
    /// [`LayoutError::Attribute`] if anything exceeds its limits. Then nothing is appended.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), LayoutError> {
        let begin = out.len();
        let outcome = self.append(out);
        let bytes = out.len() - begin;
        let outcome = outcome.and_then(|()| match bytes > MOST_ROW {
            true => Err(wrong(
                "the size of attributes and payload",
                format!("{bytes} bytes in total"),
                format!("a row has at most {MOST_ROW} bytes"),
                "Shorten the values or the payload",
            )),
            false => Ok(()),
        });
        if outcome.is_err() {
            out.truncate(begin);
        }
        outcome
    }

    fn append(&self, out: &mut Vec<u8>) -> Result<(), LayoutError> {
        if self.attributes.len() > MOST_COLUMNS {
            return Err(wrong(
                "the number of attributes",
                self.attributes.len(),
                format!("an index has at most {MOST_COLUMNS} columns"),
                "Put more values into the payload",
            ));
        }
        out.push(VERSION);
        out.extend((self.attributes.len() as u16).to_le_bytes());
        for (name, value) in &self.attributes {
            if let Some(form) = name_fault(name) {
                let shown: String = name.chars().take(MOST_NAME).collect();
                return Err(wrong(
                    "a column's name",
                    format!("{shown:?}"),
                    format!("a name is {form}"),
                    "Give the column another name",
                ));
            }
            if let Some(fault) = value.fault() {
                return Err(wrong(
                    format!("the value of column {name:?}"),
                    fault.found,
                    fault.reason,
                    fault.remedy,
                ));
            }
            out.push(name.len() as u8);
            out.extend(name.as_bytes());
            out.push(value.column_type().code());
            append_value(value, out);
        }
        let Some(payload) = &self.payload else {
            out.push(0);
            return Ok(());
        };
        if payload.len() > MOST_PAYLOAD {
            return Err(wrong(
                "the payload",
                format!("{} bytes", payload.len()),
                format!("a payload has at most {MOST_PAYLOAD} bytes"),
                "Store longer texts elsewhere, and a reference in the payload",
            ));
        }
        if let Err(error) = serde_json::from_str::<IgnoredAny>(payload) {
            return Err(wrong(
                "the payload",
                "not JSON",
                error.to_string(),
                "Give a text in JSON",
            ));
        }
        out.push(1);
        out.extend((payload.len() as u32).to_le_bytes());
        out.extend(payload.as_bytes());
        Ok(())
    }

    /// Decodes a row from all of `bytes`, which are at `offset` of `file`.
    ///
    /// # Errors
    /// Fails if the bytes are not a valid row.
    pub fn decode(bytes: &[u8], file: &str, offset: u64) -> Result<Row, LayoutError> {
        let mut reader = Reader {
            bytes,
            at: 0,
            file,
            offset,
        };
        if bytes.len() > MOST_ROW {
            return Err(reader.wrong(
                0,
                "bytes of a row",
                bytes.len(),
                format!("at most {MOST_ROW}"),
            ));
        }
        let version = reader.byte()?;
        if version != VERSION {
            return Err(LayoutError::UnknownVersion {
                file: file.to_owned(),
                offset,
                found: version.into(),
                expected: VERSION.into(),
            });
        }
        let attributes = reader.u16()?;
        if attributes as usize > MOST_COLUMNS {
            return Err(reader.wrong(
                1,
                "attributes",
                attributes,
                format!("at most {MOST_COLUMNS}"),
            ));
        }
        let mut row = Row::default();
        for _ in 0..attributes {
            let at = reader.at;
            let length = reader.byte()?;
            let name = reader.text(length.into(), "name of a column")?;
            if let Some(expected) = name_fault(name) {
                return Err(reader.wrong(at, "name of a column", format!("{name:?}"), expected));
            }
            if row
                .attributes
                .last_key_value()
                .is_some_and(|(last, _)| last.as_str() >= name)
            {
                return Err(reader.wrong(
                    at,
                    "name of a column",
                    format!("{name:?}"),
                    "names in ascending order",
                ));
            }
            let value = reader.value()?;
            row.attributes.insert(name.to_owned(), value);
        }
        let at = reader.at;
        match reader.byte()? {
            0 => {}
            1 => {
                let length = reader.u32()? as usize;
                if length > MOST_PAYLOAD {
                    return Err(reader.wrong(
                        at + 1,
                        "bytes of a payload",
                        length,
                        format!("at most {MOST_PAYLOAD}"),
                    ));
                }
                let payload = reader.text(length, "payload")?;
                if let Err(error) = serde_json::from_str::<IgnoredAny>(payload) {
                    return Err(reader.wrong(
                        at + 5,
                        "payload",
                        format!("not JSON ({error})"),
                        "JSON",
                    ));
                }
                row.payload = Some(payload.to_owned());
            }
            other => return Err(reader.wrong(at, "flag of a payload", other, "0 or 1")),
        }
        match reader.at == bytes.len() {
            true => Ok(row),
            false => Err(reader.wrong(
                0,
                "bytes of a row",
                bytes.len(),
                format!("{}, the length in the row", reader.at),
            )),
        }
    }
}

fn wrong(
    what: impl Into<String>,
    found: impl ToString,
    reason: impl Into<String>,
    remedy: impl Into<String>,
) -> LayoutError {
    LayoutError::Attribute {
        what: what.into(),
        found: found.to_string(),
        reason: reason.into(),
        remedy: remedy.into(),
    }
}

fn append_text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
}

fn append_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Boolean(value) => out.push((*value).into()),
        Value::Integer(value) | Value::Timestamp(value) => out.extend(value.to_le_bytes()),
        // Minus zero and zero are equal, so they have equal bytes.
        Value::Float(value) => out.extend((value + 0.0).to_le_bytes()),
        Value::String(text) => append_text(text, out),
        Value::Strings(texts) => {
            out.extend((texts.len() as u16).to_le_bytes());
            texts.iter().for_each(|text| append_text(text, out));
        }
        Value::Integers(items) => {
            out.extend((items.len() as u16).to_le_bytes());
            out.extend(items.iter().flat_map(|item| item.to_le_bytes()));
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    file: &'a str,
    offset: u64,
}

impl<'a> Reader<'a> {
    fn wrong(
        &self,
        at: usize,
        what: &'static str,
        found: impl ToString,
        expected: impl Into<String>,
    ) -> LayoutError {
        LayoutError::Field {
            file: self.file.to_owned(),
            offset: self.offset.saturating_add(at as u64),
            what,
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], LayoutError> {
        let rest = &self.bytes[self.at..];
        match rest.get(..count) {
            Some(taken) => {
                self.at += count;
                Ok(taken)
            }
            None => Err(LayoutError::Truncated {
                file: self.file.to_owned(),
                offset: self.offset.saturating_add(self.at as u64),
                expected: count as u64,
                found: rest.len() as u64,
            }),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], LayoutError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn byte(&mut self) -> Result<u8, LayoutError> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, LayoutError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, LayoutError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn i64(&mut self) -> Result<i64, LayoutError> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    fn text(&mut self, length: usize, what: &'static str) -> Result<&'a str, LayoutError> {
        let at = self.at;
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes)
            .map_err(|error| self.wrong(at + error.valid_up_to(), what, "no UTF-8", "UTF-8"))
    }

    fn string(&mut self) -> Result<String, LayoutError> {
        let (at, length) = (self.at, usize::from(self.u16()?));
        match length > MOST_STRING {
            true => Err(self.wrong(
                at,
                "bytes of a string",
                length,
                format!("at most {MOST_STRING}"),
            )),
            false => self.text(length, "string").map(str::to_owned),
        }
    }

    fn items(&mut self) -> Result<usize, LayoutError> {
        let (at, items) = (self.at, usize::from(self.u16()?));
        match items > MOST_ITEMS {
            true => Err(self.wrong(
                at,
                "items of a list",
                items,
                format!("at most {MOST_ITEMS}"),
            )),
            false => Ok(items),
        }
    }

    fn value(&mut self) -> Result<Value, LayoutError> {
        let at = self.at;
        let code = self.byte()?;
        let Some(kind) = ColumnType::from_code(code) else {
            return Err(self.wrong(at, "type of an attribute", code, "1 to 7"));
        };
        let at = self.at;
        Ok(match kind {
            ColumnType::Boolean => match self.byte()? {
                0 => Value::Boolean(false),
                1 => Value::Boolean(true),
                other => return Err(self.wrong(at, "boolean", other, "0 or 1")),
            },
            ColumnType::Integer => Value::Integer(self.i64()?),
            ColumnType::Float => {
                let value = f64::from_le_bytes(self.array()?);
                if value.is_nan() || value.to_bits() == (-0.0f64).to_bits() {
                    return Err(self.wrong(
                        at,
                        "float",
                        format!("{value:?}"),
                        "neither NaN nor minus zero",
                    ));
                }
                Value::Float(value)
            }
            ColumnType::String => Value::String(self.string()?),
            ColumnType::Timestamp => Value::Timestamp(self.i64()?),
            ColumnType::Strings => {
                let items = self.items()?;
                Value::Strings(
                    (0..items)
                        .map(|_| self.string())
                        .collect::<Result<_, _>>()?,
                )
            }
            ColumnType::Integers => {
                let items = self.items()?;
                Value::Integers((0..items).map(|_| self.i64()).collect::<Result<_, _>>()?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(row: &Row) -> Vec<u8> {
        let mut out = Vec::new();
        row.encode(&mut out).unwrap();
        out
    }

    fn row(values: &[(&str, Value)], payload: Option<&str>) -> Row {
        Row {
            attributes: values
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
            payload: payload.map(str::to_owned),
        }
    }

    #[test]
    fn bytes_are_as_the_table_says() {
        let bytes = encoded(&row(
            &[("b", true.into()), ("a", (-2i64).into())],
            Some("{}"),
        ));
        let mut expected = vec![1, 2, 0, 1, b'a', 2, 254, 255, 255, 255, 255, 255, 255, 255];
        expected.extend([1, b'b', 1, 1, 1, 2, 0, 0, 0, b'{', b'}']);
        assert_eq!(bytes, expected);
        assert_eq!(encoded(&Row::default()), [1, 0, 0, 0]);
        let zero = encoded(&row(&[("f", 0.0.into())], None));
        assert_eq!(encoded(&row(&[("f", (-0.0).into())], None)), zero);
    }

    #[test]
    fn what_is_too_large_is_refused_and_leaves_nothing() {
        let text = |n: usize| Value::String("x".repeat(n));
        let big = "\"".to_owned() + &"y".repeat(MOST_PAYLOAD) + "\"";
        let many: Vec<(String, Value)> = (0..9)
            .map(|i| (format!("c{i}"), text(MOST_STRING)))
            .collect();
        let many: Vec<(&str, Value)> = many
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()))
            .collect();
        for (row, expected) in [
            (
                row(&[("a\n", 1.into())], None),
                "a column's name is \"a\\n\"; a name is text without control characters. Give the column another name",
            ),
            (
                row(&[("", 1.into())], None),
                "a column's name is \"\"; a name is 1 to 128 bytes",
            ),
            (row(&[(&"n".repeat(129), 1.into())], None), "1 to 128 bytes"),
            (
                row(&[("a", text(1 << 20))], None),
                "column \"a\" is a string of 1048576 bytes",
            ),
            (row(&[("a", f64::NAN.into())], None), "column \"a\" is NaN"),
            (row(&[], Some("{")), "the payload is not JSON"),
            (
                row(&[], Some(&big)),
                "the payload is 65538 bytes; a payload has at most 65536 bytes. ",
            ),
            (
                row(&many, None),
                "bytes in total; a row has at most 262144 bytes. ",
            ),
        ] {
            let mut out = vec![7];
            let error = row.encode(&mut out).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(error.offset(), None);
            assert_eq!(out, [7]);
        }
        let attributes = (0..10_000)
            .map(|i| (format!("c{i}"), true.into()))
            .collect();
        let error = Row {
            attributes,
            payload: None,
        }
        .encode(&mut Vec::new())
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the number of attributes is 10000; an index has at most 1024 columns. Put more values into the payload"
        );
    }

    #[test]
    fn other_encodings_of_a_row_are_refused() {
        let good = encoded(&row(
            &[("a", true.into()), ("b", (-1.5).into())],
            Some("null"),
        ));
        for length in 0..good.len() {
            Row::decode(&good[..length], "log", 0).unwrap_err();
        }
        let refused = |bytes: &[u8], expected: &str| {
            let error = Row::decode(bytes, "log", 100).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        refused(
            &[good.clone(), vec![0]].concat(),
            "log: bytes of a row at offset 100 is",
        );
        refused(&changed(0, 2), "unknown format version 2 at offset 100");
        refused(&changed(4, b'c'), "ascending order");
        refused(&changed(4, b'b'), "ascending order");
        refused(&changed(4, 0xff), "no UTF-8");
        refused(&changed(4, 1), "control characters");
        refused(&changed(5, 9), "type of an attribute at offset 105 is 9");
        refused(&changed(6, 2), "boolean at offset 106 is 2");
        refused(&changed(good.len() - 1, b'!'), "not JSON");
        let zero = encoded(&row(&[("f", 0.0.into())], None));
        let mut minus = zero.clone();
        minus[13] = 0x80;
        refused(&minus, "minus zero");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            any::<bool>().prop_map(Value::Boolean),
            any::<i64>().prop_map(Value::Integer),
            any::<f64>()
                .prop_filter("a number", |value| !value.is_nan())
                .prop_map(Value::Float),
            any::<String>().prop_map(Value::String),
            any::<i64>().prop_map(Value::Timestamp),
            prop::collection::vec(any::<String>(), 0..5).prop_map(Value::Strings),
            prop::collection::vec(any::<i64>(), 0..5).prop_map(Value::Integers),
        ]
    }

    prop_compose! {
        fn any_row()(
            attributes in prop::collection::btree_map("[^\\pC]{1,9}", any_value(), 0..6),
            payload in prop::option::of(any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap())),
        ) -> Row {
            Row { attributes, payload }
        }
    }

    proptest! {
        #[test]
        fn any_row_round_trips(row in any_row()) {
            let bytes = encoded(&row);
            prop_assert_eq!(&Row::decode(&bytes, "log", 0).unwrap(), &row);
        }

        #[test]
        fn arbitrary_bytes_never_panic_and_have_one_encoding(
            bytes in prop::collection::vec(any::<u8>(), 0..80), row in any_row(), at: prop::sample::Index, flip: u8
        ) {
            let mut close = encoded(&row);
            let at = at.index(close.len());
            close[at] ^= flip;
            for bytes in [bytes, close] {
                if let Ok(row) = Row::decode(&bytes, "log", u64::MAX - 2) {
                    prop_assert_eq!(encoded(&row), bytes);
                }
            }
        }
    }
}
