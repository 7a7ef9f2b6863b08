//! The files of ids and of attributes of an export.
//!
//! ```text
//!   X.ids.npy   an array of uint64      17     X.jsonl   {"colour":"red","payload":{"any":"JSON"}}
//!   X.ids       decimal, one a line     4711             {}
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;

use crate::data::{NpyHeader, Output, extension, json_of};
use crate::{ColumnType, DataError, Error, Row, Schema};

pub(super) fn ids_of(rows: &Path) -> PathBuf {
    rows.with_extension(match extension(rows).as_str() {
        "npy" => "ids.npy",
        _ => "ids",
    })
}

pub(super) struct IdsFile {
    output: Output,
    /// `None` if the file is no array.
    header: Option<NpyHeader>,
}

impl IdsFile {
    pub(super) fn create(path: &Path) -> Result<Self, DataError> {
        let header = (extension(path) == "npy").then_some(NpyHeader {
            descr: "<u8",
            columns: None,
        });
        let mut output = Output::create(path)?;
        if let Some(header) = &header {
            output.write(&header.bytes(0))?;
        }
        Ok(Self { output, header })
    }

    pub(super) fn push(&mut self, id: u64) -> Result<(), DataError> {
        match self.header {
            Some(_) => self.output.write(&id.to_le_bytes()),
            None => self.output.write(format!("{id}\n").as_bytes()),
        }
    }

    /// Syncs the file, which has `ids` ids and still its temporary name.
    pub(super) fn complete(&mut self, ids: u64) -> Result<(), DataError> {
        if let Some(header) = &self.header {
            self.output.write_in_front(&header.bytes(ids))?;
        }
        self.output.complete()
    }

    pub(super) fn commit(self) -> Result<(), DataError> {
        self.output.commit()
    }
}

pub(super) struct AttributesFile {
    output: Output,
    times: Vec<String>,
    /// The key of the payload, which no column has.
    payload: String,
    has_payload: bool,
}

impl AttributesFile {
    pub(super) fn create(path: &Path, schema: &Schema) -> Result<Self, DataError> {
        let times = schema
            .iter()
            .filter(|&(_, kind)| kind == ColumnType::Timestamp);
        let mut payload = "payload".to_owned();
        while schema.get(&payload).is_some() {
            payload.push('_');
        }
        Ok(Self {
            output: Output::create(path)?,
            times: times.map(|(name, _)| name.to_owned()).collect(),
            payload,
            has_payload: false,
        })
    }

    /// Appends a line for a row. Without a row, the line is an empty object.
    pub(super) fn push(&mut self, row: Option<&Row>) -> Result<(), Error> {
        let empty = Row::default();
        let row = row.unwrap_or(&empty);
        let damaged = |error: serde_json::Error| {
            let (what, found) = ("a row of attributes", "no JSON");
            DataError::argument(what, found, error.to_string(), "Give it values of JSON")
        };
        let mut object: BTreeMap<&str, Box<RawValue>> = BTreeMap::new();
        for (name, value) in &row.attributes {
            object.insert(name, json_of(value).map_err(damaged)?);
        }
        if let Some(payload) = &row.payload {
            // The payload is written byte for byte as it was inserted.
            let raw = RawValue::from_string(payload.clone()).map_err(damaged)?;
            object.insert(&self.payload, raw);
            self.has_payload = true;
        }
        let mut line = serde_json::to_vec(&object).map_err(damaged)?;
        line.push(b'\n');
        Ok(self.output.write(&line)?)
    }

    pub(super) fn complete(&mut self) -> Result<(), DataError> {
        self.output.complete()
    }

    /// Returns the columns of times, and the key of the payload.
    pub(super) fn commit(self) -> Result<(Vec<String>, Option<String>), DataError> {
        self.output.commit()?;
        Ok((self.times, self.has_payload.then_some(self.payload)))
    }
}
