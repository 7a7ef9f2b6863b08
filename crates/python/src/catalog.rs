//! `stratann.Catalog`: many indexes within one memory budget, as a mapping from names to indexes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList, PyString, PyTuple};
use stratann::{CacheSize, CatalogOptions, Element, OpenOptions, Progress, Row, bounds};

use crate::arguments::{existing, memory as bytes, named, places, shown, size};
use crate::arrays::Rows;
use crate::attributes::{self, Beside};
use crate::errors::to_python;
use crate::index::Index;
use crate::process::Opened;
use crate::progress::{Listener, run, waited};
use crate::searching::{Asked, WATCHED, answers_with, nothing};
use crate::writer::closes;

/// A folder of indexes that share one memory budget and threads. Indexes with equal codebooks have
/// one copy of the codebook in memory.
///
///     catalog = stratann.Catalog("shelf", memory="256MiB")
///     ids, distances = catalog["photos"].search(queries)
///
/// Each index in the folder belongs to the catalog, under the name of its own folder, even if it is
/// built later. The catalog opens an index when a caller asks for it. When the catalog needs
/// memory, or the process nears its limit of open files, the catalog closes the least recently used
/// indexes. The catalog cannot close an `Index` to which Python has a reference, so drop each
/// reference after use.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     The folder of the indexes.
/// memory : int or str, optional
///     The maximum RAM that all indexes and the program itself use together: bytes, or "256MiB". An
///     index that is changed reserves a part of this memory until its changes end (`Index.close`,
///     or the end of a `with` block). A small index reserves 4 to 10 MiB. A larger index reserves
///     about its size on storage, and more while vectors wait in memory. If too little memory is
///     left, a change waits up to 10 seconds for changes of other indexes to end. Then the change
///     raises `InUseError`, which names a budget that suffices for all of these indexes. If
///     `memory` can never suffice for a change, the change raises `ValueError`. A merge may take 64
///     MiB beyond `memory`.
/// io : str
///     The interface for reads of the SSD: "auto", "uring" or "pread".
/// cache : int or str, optional
///     The size of each open index's cache of recently read data: bytes, or "1MiB". The caches are
///     part of `memory`.
/// navigation : bool, optional
///     Whether `memory` must include the navigation graphs, so that searches can start from them.
///     None takes the value of each index's preset.
/// place : dict or str, optional
///     The tier from which searches read each role of every index, as in `open`.
#[pyclass(frozen, mapping, module = "stratann")]
pub struct Catalog {
    inner: Opened<stratann::Catalog>,
    path: PathBuf,
    /// The value of [`closes`] before the catalog opened any index.
    before: u64,
}

#[pymethods]
impl Catalog {
    #[new]
    #[pyo3(signature = (path, *, memory=None, io="auto", cache=None, navigation=None, place=None))]
    fn new(
        path: PathBuf,
        memory: Option<&Bound<'_, PyAny>>,
        io: &str,
        cache: Option<&Bound<'_, PyAny>>,
        navigation: Option<bool>,
        place: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let path = existing(path, "catalog")?;
        let cache = size(cache, "cache", "no cache")?;
        let options = CatalogOptions {
            memory: bytes(memory)?,
            open: OpenOptions {
                io: named(io, "io")?,
                cache: cache.map_or(CacheSize::None, CacheSize::Bytes),
                navigation,
                places: places(place)?,
                ..OpenOptions::default()
            },
            ..CatalogOptions::default()
        };
        let before = closes();
        let inner = stratann::Catalog::open(&path, &options).map_err(to_python)?;
        Ok(Self {
            inner: Opened::new(Arc::new(inner)),
            path,
            before,
        })
    }

    /// The names of the indexes that exist now, sorted.
    fn names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        py.detach(|| self.inner.names()).map_err(to_python)
    }

    /// Closes an index, and returns whether it was open. The memory of the index is freed once
    /// Python has no reference to it.
    fn close(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let catalog = self.at_home()?;
        Ok(py.detach(|| catalog.close(name)))
    }

    /// Finds the `k` nearest vectors of each query in several indexes, as if they were one index.
    ///
    /// Parameters
    /// ----------
    /// queries : array-like
    ///     (nq, d), or (d,) for one query, as in `Index.search`.
    /// k : int
    ///     The number of nearest vectors to return for each query.
    /// names : iterable of str, optional
    ///     The indexes to search; None searches all indexes. These indexes must have the same
    ///     dimension, dtype and metric, and no ids in common.
    /// list_size, probes, beam, strategy, navigation, whole_page, exact, stop_early, recall,
    /// threads, in_flight, return_stats
    ///     As in `Index.search`, for each index. `list_size` does not affect cluster indexes. The
    ///     stats are sums over the indexes.
    /// filter : str or stratann.Filter, optional
    ///     As in `Index.search`. If the indexes together have at least `k` matching vectors, the
    ///     search returns `k` results. If an index lacks a column, its vectors have no value in
    ///     this column. A column that all indexes lack is an error. In the stats, `indexes` under
    ///     `filter` counts the indexes that were searched with each filter strategy.
    /// attributes, payload : optional
    ///     As in `Index.search`. Each column must be in at least one of the indexes.
    ///
    /// Returns
    /// -------
    /// ids, distances, attributes, payload, stats
    ///     As in `Index.search`, also for missing results. At equal distances, the smaller id comes
    ///     first.
    #[pyo3(signature = (queries, k=10, **options),
        text_signature = "($self, queries, k=10, *, names=None, list_size=None, probes=None, beam=None, strategy=None, navigation=None, whole_page=None, exact=True, stop_early=False, recall=None, filter=None, attributes=None, payload=False, threads=None, in_flight=None, return_stats=False)")]
    fn search<'py>(
        &self,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = crate::arguments::count::k)] k: usize,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let more: &[&str] = &["names", "filter", "attributes", "payload"];
        let asked = Asked::read("Catalog.search", &[more], options)?;
        let filter = asked.filter.as_ref().map(attributes::filter).transpose()?;
        let names = match &asked.names {
            None => self.names(py)?,
            Some(names) => chosen(names)?,
        };
        let catalog = self.at_home()?;
        // If the indexes differ in dimension or dtype, the search reports the difference.
        let element = match names.first() {
            Some(name) => waited(py, |progress| catalog.index_observed(name, progress))?
                .map_err(to_python)?
                .element(),
            None => Element::F32,
        };
        let rows = Rows::matrix_or_row_of_any(queries, "queries", element)?;
        let options = asked.options(k, None)?;
        let beside = Beside::of(asked.attributes.as_ref(), asked.payload, || {
            let mut columns = BTreeSet::new();
            for name in &names {
                columns.extend(attributes::names(&self.__getitem__(py, name)?.schema(py)?));
            }
            Ok(columns)
        })?;
        let results = if rows.rows() == 0 {
            bounds::search(
                &options,
                bounds::MOST_LIST,
                "the most vectors that an index can have",
            )
            .map_err(to_python)?;
            nothing(k)
        } else {
            let source = rows.source()?;
            let search = |progress: &dyn Progress| match &filter {
                None => catalog.search_observed(&names, &source, &options, progress),
                Some(filter) => {
                    catalog.search_filtered_observed(&names, &source, &options, filter, progress)
                }
            };
            if rows.rows() * names.len() < WATCHED {
                waited(py, search)?.map_err(to_python)?
            } else {
                run(py, &Listener::new(None)?, search)?
            }
        };
        let single = rows.is_single();
        let parts = match beside {
            Some(beside) => beside.parts(py, self.beside(py, &names, &results.ids)?, k, single)?,
            None => Vec::new(),
        };
        answers_with(py, results, &options, single, asked.return_stats, parts)
    }

    /// The bytes that the catalog has reserved now: for the program, for codebooks, and for each
    /// open index the maximum that the index may take. With a cap on memory, the number includes
    /// reservations for changes.
    #[getter]
    fn memory_bytes(&self) -> PyResult<u64> {
        Ok(self.at_home()?.memory_bytes())
    }

    /// The cap on memory in bytes, or None.
    #[getter]
    fn memory(&self) -> Option<u64> {
        self.inner.memory()
    }

    /// The number of open indexes, including indexes to which Python has a reference, and indexes
    /// that are being changed.
    #[getter]
    fn open_count(&self) -> PyResult<usize> {
        Ok(self.at_home()?.open_count())
    }

    /// The folder of the catalog.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("pathlib")?
            .getattr("Path")?
            .call1((self.path.as_os_str(),))
    }

    fn __getitem__(&self, py: Python<'_>, name: &str) -> PyResult<Index> {
        let catalog = self.at_home()?;
        let index = waited(py, |progress| catalog.index_observed(name, progress))?;
        let index = index.map_err(to_python)?;
        let path = index.path().to_owned();
        Ok(Index::of(py, index, path, self.before))
    }

    fn __contains__(&self, py: Python<'_>, name: &Bound<'_, PyAny>) -> bool {
        let name: PyResult<String> = name.extract();
        py.detach(|| name.is_ok_and(|name| self.inner.contains(&name)))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        py.detach(|| self.inner.len()).map_err(to_python)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyList::new(py, self.names(py)?)?.try_iter()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let path = PyString::new(py, &shown(&self.path)).repr()?;
        let memory = self.memory().map_or("None".into(), |m| m.to_string());
        let open = match self.at_home() {
            Ok(catalog) => format!("{} open", catalog.open_count()),
            Err(_) => "opened in another process".into(),
        };
        Ok(format!(
            "stratann.Catalog({path}, {} indexes, {open}, memory={memory})",
            self.__len__(py)?,
        ))
    }
}

impl Catalog {
    fn at_home(&self) -> PyResult<&stratann::Catalog> {
        self.inner.at_home(&self.path, "stratann.Catalog")
    }

    /// An id that two of the indexes have is an error, because a result does not name its index.
    fn beside(&self, py: Python<'_>, names: &[String], ids: &[u64]) -> PyResult<Vec<Option<Row>>> {
        let mut found = vec![None; ids.len()];
        for name in names {
            let rows = self.__getitem__(py, name)?.beside(py, ids)?;
            for (at, row) in rows.into_iter().enumerate() {
                if found[at].is_some() && row.is_some() {
                    return Err(PyValueError::new_err(format!(
                        "attributes and payload are given for several indexes, and {} is an id in two of them; a result does not say which index it is from. Search one index, or leave them out",
                        ids[at]
                    )));
                }
                found[at] = found[at].take().or(row);
            }
        }
        Ok(found)
    }
}

/// A single text stands for one name.
fn chosen(names: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    if let Ok(name) = names.cast::<PyString>() {
        return Ok(vec![name.to_string()]);
    }
    names.try_iter()?.map(|name| name?.extract()).collect()
}
