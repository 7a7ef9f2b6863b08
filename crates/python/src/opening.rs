//! The common arguments of `open` and `create`.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use stratann::{IoMode, OpenOptions, RecallWatch};

use crate::arguments::{cache as cache_size, durability, memory, named, places};
use crate::errors::to_python;
use crate::index::Index;
use crate::writer::Changes;

#[derive(Clone, Copy)]
pub struct Opening<'a, 'py> {
    /// The cap in bytes, or a text such as "64MiB". [`cache`](Self::cache) has the same form.
    pub memory: Option<&'a Bound<'py, PyAny>>,
    pub io: &'a str,
    pub cache: Option<&'a Bound<'py, PyAny>>,
    /// Nodes, or a share of the vectors such as "1%".
    pub cache_entries: Option<&'a Bound<'py, PyAny>>,
    pub navigation: Option<bool>,
    pub place: Option<&'a Bound<'py, PyAny>>,
    pub durability: Option<&'a Bound<'py, PyAny>>,
    pub merges: bool,
    pub watch_recall: Option<usize>,
}

impl<'a, 'py> Opening<'a, 'py> {
    /// The default arguments, with these places.
    pub fn at(place: Option<&'a Bound<'py, PyAny>>) -> Self {
        Self {
            memory: None,
            io: "auto",
            cache: None,
            cache_entries: None,
            navigation: None,
            place,
            durability: None,
            merges: true,
            watch_recall: None,
        }
    }

    /// Makes the checks that need no index.
    pub fn check(&self) -> PyResult<()> {
        memory(self.memory)?;
        cache_size(|| Ok(usize::MAX), self.cache, self.cache_entries)?;
        named::<IoMode>(self.io, "io")?;
        places(self.place)?;
        durability(self.durability)?;
        self.watch()?;
        Ok(())
    }

    /// The number of queries whose recall is watched. An unpickled object watches no recall.
    fn watch(&self) -> PyResult<Option<RecallWatch>> {
        let watch = self.watch_recall.map(RecallWatch::told);
        watch.transpose().map_err(to_python)
    }

    /// Opens the index at `path`. `report` is the report of its build, if this call has built it.
    pub fn open(
        self,
        py: Python<'py>,
        path: PathBuf,
        report: Option<Py<PyAny>>,
    ) -> PyResult<Index> {
        let arguments = PyDict::new(py);
        for (name, value) in [
            ("memory", self.memory),
            ("cache", self.cache),
            ("cache_entries", self.cache_entries),
            ("place", self.place),
            ("durability", self.durability),
        ] {
            if let Some(value) = value {
                arguments.set_item(name, value)?;
            }
        }
        arguments.set_item("io", self.io)?;
        arguments.set_item("navigation", self.navigation)?;
        arguments.set_item("merges", self.merges)?;
        let options = OpenOptions {
            memory: memory(self.memory)?,
            io: named(self.io, "io")?,
            cache: cache_size(
                || stratann::vectors_in(&path).map_err(to_python),
                self.cache,
                self.cache_entries,
            )?,
            navigation: self.navigation,
            places: places(self.place)?,
            watch_recall: self.watch()?,
            ..OpenOptions::default()
        };
        let changes = Changes {
            durability: durability(self.durability)?,
            merges: self.merges,
        };
        Index::new(py, path, options, changes, report, arguments)
    }
}
