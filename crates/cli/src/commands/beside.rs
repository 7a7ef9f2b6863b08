//! Attributes and payloads as JSON, beside ids.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::value::RawValue;
use stratann::Row;
use stratann::data::json_of;
use stratann_terminal::failure::Failure;

use super::target::Target;

#[derive(Serialize)]
pub struct Beside {
    pub attributes: BTreeMap<String, Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Box<RawValue>>,
}

impl Beside {
    pub fn of(id: u64, row: Row) -> Result<Self, Failure> {
        let attributes = row.attributes.into_iter();
        let attributes = attributes.map(|(name, value)| Ok((name, json_of(&value)?)));
        let attributes = attributes.collect::<serde_json::Result<_>>();
        let attributes = attributes.map_err(|error| {
            Failure::Failed(format!(
                "the attributes of id {id} cannot be printed as JSON: {error}"
            ))
        })?;
        // Numbers of the payload may exceed every numeric type.
        let payload = row.payload.map(RawValue::from_string).transpose();
        let payload = payload.map_err(|error| {
            Failure::Failed(format!("the payload of id {id} is no JSON: {error}"))
        })?;
        Ok(Self {
            attributes,
            payload,
        })
    }
}

/// An id that is no longer in the index has neither attributes nor payload.
#[derive(Serialize)]
pub struct AllBeside {
    attributes: Vec<Option<BTreeMap<String, Box<RawValue>>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payloads: Option<Vec<Option<Box<RawValue>>>>,
}

impl AllBeside {
    pub fn cells(&self, at: usize) -> impl Iterator<Item = String> {
        let attributes = self.attributes.get(at).and_then(Option::as_ref);
        let attributes = attributes.map(|all| {
            let all = all.iter().map(|(name, value)| format!("{name}: {value}"));
            all.collect::<Vec<_>>()
        });
        let attributes = attributes.unwrap_or_default().join(", ");
        let payload = self.payloads.as_ref().map(|all| match all.get(at) {
            Some(Some(payload)) => payload.get().replace(['\n', '\r'], " "),
            _ => String::new(),
        });
        std::iter::once(attributes).chain(payload)
    }
}

pub struct Shown<'a> {
    target: &'a Target,
    /// The names of the attributes. `None` means all attributes and the payload.
    names: Option<Vec<String>>,
}

impl<'a> Shown<'a> {
    /// Without a name, the option means all attributes. Fails if a name is no column.
    pub fn of(option: Option<&str>, target: &'a Target) -> Result<Option<Self>, Failure> {
        let Some(names) = option else {
            return Ok(None);
        };
        if names.is_empty() {
            let names = None;
            return Ok(Some(Self { target, names }));
        }
        let names: Vec<String> = names.split(',').map(str::to_owned).collect();
        let there = target.columns()?;
        match names.iter().find(|name| !there.contains(*name)) {
            Some(name) => Err(no_column(name, &there)),
            None => {
                let names = Some(names);
                Ok(Some(Self { target, names }))
            }
        }
    }

    pub fn columns(&self) -> &'static [&'static str] {
        match self.names {
            None => &["<attributes", "<payload"],
            Some(_) => &["<attributes"],
        }
    }

    pub fn read(&self, ids: &[u64]) -> Result<AllBeside, Failure> {
        let mut attributes = Vec::with_capacity(ids.len());
        let mut payloads = Vec::with_capacity(ids.len());
        for (&id, row) in ids.iter().zip(self.target.attributes(ids)?) {
            let beside = row.map(|mut row| {
                if let Some(names) = &self.names {
                    row.attributes.retain(|name, _| names.contains(name));
                }
                Beside::of(id, row)
            });
            let (of_id, payload) = match beside.transpose()? {
                Some(beside) => (Some(beside.attributes), beside.payload),
                None => (None, None),
            };
            attributes.push(of_id);
            payloads.push(payload);
        }
        let payloads = self.names.is_none().then_some(payloads);
        Ok(AllBeside {
            attributes,
            payloads,
        })
    }
}

fn no_column(name: &str, there: &BTreeSet<String>) -> Failure {
    let there: Vec<&str> = there.iter().map(String::as_str).collect();
    let remedy = match (
        stratann::meant(name, there.iter().copied()),
        there.is_empty(),
    ) {
        (_, true) => "the index has no attributes. Leave --attributes out".to_owned(),
        (Some(meant), _) => format!("did you mean {meant:?}?"),
        (None, _) => format!("the index has {}", crate::parquet::listed(&there)),
    };
    Failure::Wrong(format!(
        "--attributes names {name:?}, which is no column of the index; {remedy}"
    ))
}
