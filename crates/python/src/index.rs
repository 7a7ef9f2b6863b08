//! `stratann.Index`: an index that is open, and its search.

use std::path::PathBuf;
use std::sync::Arc;

use numpy::PyArray1;
use parking_lot::{Mutex, RwLock};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use stratann::{
    Counters, Durability, LiveIndex, MergeWhen, Merger, OpenOptions, Progress, SearchOptions,
    SearchResults, Silent, VectorSource, WriteOptions,
};

use crate::arguments::{
    cache as cache_size, durability as when_durable, existing, memory as bytes, named, places,
    rerank as reranking, shown, threads as thread_count,
};
use crate::arrays::{self, Rows, dtype_name, shape_text, table};
use crate::errors::{changing, to_python};
use crate::process::Opened;
use crate::progress::{Listener, run, run_rows};

/// From so many queries on, a search is watched, so that Ctrl-C ends it; fewer are done before anyone could press it, and
/// would pay for the watching.
pub const WATCHED: usize = 1_000;

/// An index on disk, open for search. Any number of Python threads may search it at once; a forked process opens it
/// anew.
#[pyclass(frozen, module = "stratann")]
pub struct Index {
    /// The index as it was opened for searching; `None` while it is open for changes, since a merge gives the files back that nobody
    /// has open any more.
    inner: RwLock<Option<Arc<Opened<stratann::Index>>>>,
    /// The same, open for changes, from the first change on.
    live: Mutex<Option<Arc<Opened<LiveIndex>>>>,
    /// What merges it in the background.
    merger: Mutex<Option<Merging>>,
    changes: Changes,
    path: PathBuf,
    report: Option<Py<PyAny>>,
}

/// How the index is opened for changes.
#[derive(Clone, Copy, Debug)]
pub struct Changes {
    /// When a change is durable.
    pub durability: Durability,
    /// Whether merges begin by themselves when they are due.
    pub merges: bool,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            durability: Durability::Always,
            merges: true,
        }
    }
}

/// A thread that merges, which a forked process has not.
struct Merging {
    merger: Option<Merger>,
    process: u32,
}

impl Drop for Merging {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Waiting for it would never end.
            std::mem::forget(self.merger.take());
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        // Before the index that it merges.
        self.merger.lock().take();
    }
}

impl Index {
    /// Opens the index in the folder `path`.
    pub fn new(
        py: Python<'_>,
        path: PathBuf,
        options: OpenOptions,
        changes: Changes,
        report: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let path = existing(path, "index")?;
        let inner = py
            .detach(|| stratann::Index::open(&path, &options))
            .map_err(to_python)?;
        Ok(Self {
            inner: RwLock::new(Some(Arc::new(Opened::new(Arc::new(inner))))),
            live: Mutex::default(),
            merger: Mutex::default(),
            changes,
            path,
            report,
        })
    }

    /// One that a catalog has opened.
    pub fn of(index: Arc<stratann::Index>, path: PathBuf) -> Self {
        Self {
            inner: RwLock::new(Some(Arc::new(Opened::new(index)))),
            live: Mutex::default(),
            merger: Mutex::default(),
            changes: Changes::default(),
            path,
            report: None,
        }
    }

    /// The checkpoint that searches start from.
    fn inner(&self) -> Arc<Opened<stratann::Index>> {
        loop {
            if let Some(live) = self.changing() {
                return Arc::new(live.beside(live.index()));
            }
            // One of the two is always there; while the one takes the place of the other, both are.
            if let Some(inner) = self.inner.read().clone() {
                return inner;
            }
        }
    }

    /// Opens for reading what stands now where the index was opened, wherever the process has gone since.
    fn open_again(&self) -> Result<(), stratann::Error> {
        let inner = self.inner();
        let index = stratann::Index::open(inner.path(), inner.options())?;
        *self.inner.write() = Some(Arc::new(Opened::new(Arc::new(index))));
        Ok(())
    }

    /// The index open for changes, if it is.
    fn changing(&self) -> Option<Arc<Opened<LiveIndex>>> {
        self.live.lock().clone()
    }

    /// The index open for changes, which takes the lock of its folder.
    fn live(&self, py: Python<'_>) -> PyResult<Arc<Opened<LiveIndex>>> {
        let inner = self.inner();
        inner.at_home(&self.path, "stratann.open")?;
        let options = WriteOptions {
            durability: self.changes.durability,
            ..WriteOptions::default()
        };
        py.detach(|| {
            let mut live = self.live.lock();
            if let Some(live) = &*live {
                return Ok::<_, stratann::Error>(live.clone());
            }
            let opened = LiveIndex::over(inner.value(), &options)?;
            let opened = Arc::new(Opened::new(Arc::new(opened)));
            if self.changes.merges {
                let merger = opened.value().merge_when_due(MergeWhen::default())?;
                *self.merger.lock() = Some(Merging {
                    merger: Some(merger),
                    process: std::process::id(),
                });
            }
            *live = Some(opened.clone());
            *self.inner.write() = None;
            Ok(opened)
        })
        // With the lock given back: an error that is made waits for the interpreter.
        .map_err(|error| changing(py, to_python(error)))
    }

    /// The vectors that a search can find.
    fn vectors(&self) -> usize {
        match self.changing() {
            Some(live) => live.len(),
            None => self.inner().live(),
        }
    }
}

#[pymethods]
impl Index {
    /// Finds the `k` nearest vectors of each query.
    ///
    /// Parameters
    /// ----------
    /// queries : numpy.ndarray
    ///     (nq, d), or (d,) for one query; C-contiguous and of the index's dtype. It is read in place: do not write
    ///     to it until this returns.
    /// k : int
    ///     How many vectors are wanted.
    /// list_size : int, optional
    ///     L, how many candidates a search keeps: more find more and read more. None takes the engine's default. Of a cluster index:
    ///     how many clusters are probed, unless `probes` says so.
    /// probes : int, optional
    ///     How many clusters are probed, of a cluster index (presets "spann" and "tiered-cluster"); may be less than `k`. None is 32,
    ///     or `k` if that is more. What only a graph has is refused there: `strategy`, `navigation`, `whole_page`, `rerank_batch`,
    ///     `benefit`, `rerank`, `stop_early`, and `cache` in `open`.
    /// beam : int, optional
    ///     W, how many nodes are read at once.
    /// strategy : str, optional
    ///     "best-first" or "pipelined"; None takes the preset's.
    /// navigation : bool, optional
    ///     Whether to start from the navigation graph; None takes the preset's choice.
    /// whole_page : bool, optional
    ///     Whether to use all nodes of a page that was read; None takes the preset's choice.
    /// rerank_batch : int, optional
    ///     B, how many candidates are ranked by exact distance at once, where whole vectors are apart from lists
    ///     (decoupled); None takes the preset's.
    /// benefit : float, optional
    ///     Re-ranking ends when a smaller share of a batch than this became answers, 0 for never; None takes the
    ///     preset's.
    /// rerank : str, optional
    ///     What ends re-ranking: "batches" (the benefit), or "estimate" (after the first k + B, only those are ranked
    ///     that may be nearer by the error of the codes); None takes the preset's.
    /// exact : bool
    ///     Whether distances are wanted to the last bit in the layered layout, too, which reads the trailing parts of all answers. There
    ///     answers that were in no doubt otherwise have the distance that the leading part of their vector gives them reason to expect:
    ///     ask for exact ones where they are compared with others, as `stratann.recall` does.
    /// stop_early : bool
    ///     Whether a search ends when no candidate that is left can be expected to be an answer or to lead to one, as far as the error of the
    ///     codes that it has met tells. With the same list_size that reads less and finds a little less.
    /// threads : int, optional
    ///     None is one for each core, at most one for each query.
    /// in_flight : int, optional
    ///     Queries that a thread works on at once: more of them a second, each later. None takes up to 8, as many as there are for a
    ///     thread; with 256 queries and more for each it finds out with the first ones how many answer most a second. Under a memory
    ///     budget it leaves half of the free room to others. 1 for the least latency of each.
    /// return_stats : bool
    ///     Whether to return a dict of counters and latencies as well. Latencies are of queries that share a thread, unless
    ///     `in_flight` is 1.
    ///
    /// Returns
    /// -------
    /// ids : numpy.ndarray
    ///     uint64, (nq, k), or (k,) for one query; nearest first. Where fewer than k vectors are left in the index, the rest of a
    ///     row is 2^64 - 1, which is no vector's id.
    /// distances : numpy.ndarray
    ///     float32, of the same shape. Squared Euclidean, minus the inner product, or 1 - cos: smaller is nearer. Infinite where
    ///     there is no answer.
    /// stats : dict
    ///     Only with `return_stats`: the keys of `stratann search --json`, of which `per_query` holds means, `in_flight` is what was
    ///     chosen, `cpu_us` the CPU time of the whole process a query, and `distance_error` how far a distance may be from the exact one
    ///     (0 where all are exact; else, in the layered layout, four standard deviations of the least certain); and
    ///     `queries`, `seconds`, `cpu_seconds` and `latencies_us`, one for each query.
    #[pyo3(signature = (queries, k=10, *, list_size=None, probes=None, beam=None, strategy=None, navigation=None,
        whole_page=None, rerank_batch=None, benefit=None, rerank=None, exact=false, stop_early=false,
        threads=None, in_flight=None, return_stats=false))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python method"
    )]
    fn search<'py>(
        &self,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = crate::arguments::count::k)] k: usize,
        #[pyo3(from_py_with = crate::arguments::count_or_none::list_size)] list_size: Option<usize>,
        #[pyo3(from_py_with = crate::arguments::count_or_none::probes)] probes: Option<usize>,
        #[pyo3(from_py_with = crate::arguments::count_or_none::beam)] beam: Option<usize>,
        strategy: Option<&str>,
        navigation: Option<bool>,
        whole_page: Option<bool>,
        #[pyo3(from_py_with = crate::arguments::count_or_none::rerank_batch)] rerank_batch: Option<
            usize,
        >,
        benefit: Option<f64>,
        rerank: Option<&str>,
        exact: bool,
        stop_early: bool,
        #[pyo3(from_py_with = crate::arguments::count_or_none::threads)] threads: Option<usize>,
        #[pyo3(from_py_with = crate::arguments::count_or_none::in_flight)] in_flight: Option<usize>,
        return_stats: bool,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let rows = Rows::matrix_or_row(queries, "queries")?;
        self.fits(&rows, "queries")?;
        let defaults = SearchOptions::default();
        let options = SearchOptions {
            k,
            list: list_size.unwrap_or(defaults.list.max(k)),
            // Of clusters the list is what is probed.
            probes: probes.or(list_size.filter(|_| self.inner().has_clusters())),
            beam,
            strategy: strategy.map(|name| named(name, "strategy")).transpose()?,
            navigation,
            whole_page,
            rerank: reranking(rerank_batch, benefit, rerank, &self.inner())?,
            exact,
            stop_early,
            threads: thread_count(threads)?,
            in_flight,
            ..defaults
        };
        let (inner, live) = (self.inner(), self.changing());
        let index = inner.at_home(&self.path, "stratann.open")?;
        let search = |source: &dyn VectorSource, progress: &dyn Progress| match &live {
            Some(live) => live.search_observed(source, &options, progress),
            None => index.search_observed(source, &options, progress),
        };
        let results = if rows.rows() == 0 {
            match &live {
                Some(live) => live.check_search(&options),
                None => index.check_search(&options),
            }
            .map_err(to_python)?;
            nothing(k)
        } else {
            let source = rows.source()?;
            if rows.rows() < WATCHED {
                py.detach(|| search(&source, &Silent)).map_err(to_python)?
            } else {
                run(py, &Listener::new(None)?, |progress| {
                    search(&source, progress)
                })?
            }
        };
        let options = match index.has_clusters() {
            // What was between recall and speed is called the list.
            true => SearchOptions {
                list: options.probes_of(),
                ..options
            },
            false => options,
        };
        answers(py, results, &options, rows.is_single(), return_stats)
    }

    /// Facts about the index: its preset, sizes in bytes, degrees, and what `stratann stats` shows.
    ///
    /// "trouble" is None, or the gravest of what went wrong without a call that failed for it, where the index is open for changes:
    /// no more changes through this object, a checkpoint that may not be durable, vectors that wait in memory, a checkpoint or
    /// a merge that could not be made.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = py.detach(|| match self.changing() {
            Some(live) => live.stats(),
            None => self.inner().stats(),
        });
        to_dict(py, &stats)
    }

    /// Inserts vectors; searches that begin after it find them.
    ///
    /// An insert is not all or nothing: when it is interrupted, or the disk fills up, the first rows are in, and the exception
    /// says how many (`stratann.Interrupted.done`).
    ///
    /// Parameters
    /// ----------
    /// vectors : numpy.ndarray
    ///     (n, d), or (d,) for one; C-contiguous and of the index's dtype.
    /// ids : numpy.ndarray, optional
    ///     An id for each, none of which is in the index. None counts on from the largest that it ever had.
    /// progress : callable, optional
    ///     As in `stratann.build`.
    ///
    /// Returns
    /// -------
    /// ids : numpy.ndarray
    ///     uint64, (n,).
    #[pyo3(signature = (vectors, ids=None, *, progress=None))]
    fn insert<'py>(
        &self,
        py: Python<'py>,
        vectors: &Bound<'py, PyAny>,
        ids: Option<&Bound<'py, PyAny>>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let rows = Rows::matrix_or_row(vectors, "vectors")?;
        self.fits(&rows, "vectors")?;
        let ids = ids
            .map(|ids| arrays::ids(ids, Some(rows.rows())))
            .transpose()?;
        let (live, listener, source) = (self.live(py)?, Listener::new(progress)?, rows.source()?);
        let total = Some(rows.rows());
        let inserted = run_rows(py, &listener, total, |progress| {
            live.insert(&source, ids.as_deref(), progress)
        })
        .map_err(|error| changing(py, error))?;
        Ok(PyArray1::from_vec(py, inserted))
    }

    /// Inserts vectors; one whose id is in the index replaces the one that has it. Arguments and interruptions as of `insert`;
    /// the same call again does no harm.
    #[pyo3(signature = (vectors, ids, *, progress=None))]
    fn upsert<'py>(
        &self,
        py: Python<'py>,
        vectors: &Bound<'py, PyAny>,
        ids: &Bound<'py, PyAny>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let rows = Rows::matrix_or_row(vectors, "vectors")?;
        self.fits(&rows, "vectors")?;
        let ids = arrays::ids(ids, Some(rows.rows()))?;
        let (live, listener, source) = (self.live(py)?, Listener::new(progress)?, rows.source()?);
        run_rows(py, &listener, Some(rows.rows()), |progress| {
            live.upsert(&source, &ids, progress)
        })
        .map_err(|error| changing(py, error))
    }

    /// Deletes ids, an array of integers: searches that begin after it do not answer them. An id that is not in the
    /// index is an error, and then none is deleted.
    fn delete(&self, py: Python<'_>, ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let ids = arrays::ids(ids, None)?;
        let live = self.live(py)?;
        let deleted = py.detach(|| live.delete(&ids)).map_err(to_python);
        deleted.map_err(|error| changing(py, error))
    }

    /// Makes every change durable that was made before. With `durability="always"` they are already.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.inner().at_home(&self.path, "stratann.open")?;
        let Some(live) = self.changing() else {
            return Ok(());
        };
        live.at_home(&self.path, "stratann.open")?;
        let flushed = py.detach(|| live.flush()).map_err(to_python);
        flushed.map_err(|error| changing(py, error))
    }

    /// Merges all changes into a new checkpoint and gives their space back. Searches and changes go on meanwhile.
    ///
    /// Returns a dict of what was done: `vectors` in the new checkpoint, of which `merged` waited in the log (none where inserts
    /// are direct, since these are in the graph already), without `removed` ones that were deleted or replaced; segments of
    /// vectors that were kept or written anew; bytes before and after, and seconds. If nothing had changed, all but `vectors` is 0.
    #[pyo3(signature = (*, progress=None))]
    fn compact<'py>(
        &self,
        py: Python<'py>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (live, listener) = (self.live(py)?, Listener::new(progress)?);
        let report = run(py, &listener, |progress| live.compact(progress))
            .map_err(|error| changing(py, error))?;
        to_dict(py, &report)
    }

    /// Ends the changes: makes them durable and gives the folder's lock back. Searching goes on, with what is there. The
    /// next change opens the index for changes again. A `with` block ends with it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(live) = self.changing() else {
            return Ok(());
        };
        py.detach(|| {
            self.merger.lock().take();
            // Searches have it until what the log says is read, and if that fails.
            *self.inner.write() = Some(Arc::new(live.beside(live.index())));
            self.live.lock().take();
            live.flush()?;
            drop(live);
            // A reader sees the log as it is when the index is opened.
            self.open_again()
        })
        .map_err(|error| changing(py, to_python(error)))
    }

    /// Whether what is open here is all that the index has by now: False when somebody else has changed it since, so that
    /// `refresh` would show more, and when its folder was moved or removed, or another has taken its place.
    fn is_current(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| match self.changing() {
            Some(live) => live.is_current(),
            None => self.inner().is_current(),
        })
        .map_err(to_python)
    }

    /// Opens the index anew if somebody else has changed it since it was opened here: what stands at its path now. Returns whether
    /// it was. Raises OutdatedError where it was opened for changes and takes none any more.
    fn refresh(&self, py: Python<'_>) -> PyResult<bool> {
        if self.is_current(py)? {
            return Ok(false);
        }
        if self.changing().is_some() {
            return Err(to_python(stratann::Error::Outdated {
                path: self.path.clone(),
            }));
        }
        py.detach(|| self.open_again()).map_err(to_python)?;
        Ok(true)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }

    /// Reads the whole index and checks it, as `stratann.verify` does.
    #[pyo3(signature = (*, progress=None))]
    fn verify<'py>(
        &self,
        py: Python<'py>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        verify(py, self.path.clone(), None, progress)
    }

    /// Elements of a vector.
    #[getter]
    fn dim(&self) -> usize {
        self.inner().dim()
    }

    /// How distances are measured: "l2", "ip" or "cosine".
    #[getter]
    fn metric(&self) -> &'static str {
        self.inner().metric().name()
    }

    /// The numpy dtype of the vectors, which queries must have.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("numpy")?
            .call_method1("dtype", (dtype_name(self.inner().element()),))
    }

    /// The row of choices that the index was built with.
    #[getter]
    fn preset(&self) -> String {
        self.inner().preset().to_string()
    }

    /// The folder of the index.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("pathlib")?
            .getattr("Path")?
            .call1((self.path.as_os_str(),))
    }

    /// What the build took, if `stratann.build` made this object, else None.
    #[getter]
    fn build_report(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.report.as_ref().map(|report| report.clone_ref(py))
    }

    fn __len__(&self) -> usize {
        self.vectors()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let path = PyString::new(py, &shown(&self.path)).repr()?;
        Ok(format!(
            "stratann.Index({path}, {} vectors, dim={}, dtype={}, metric={:?}, preset={:?})",
            self.vectors(),
            self.inner().dim(),
            dtype_name(self.inner().element()),
            self.inner().metric().name(),
            self.preset(),
        ))
    }
}

impl Index {
    /// Whether rows are like those of this index: those to be asked for or to be inserted.
    fn fits(&self, rows: &Rows<'_>, name: &str) -> PyResult<()> {
        let (mine, theirs) = (self.inner().element(), rows.element());
        if mine != theirs {
            let (mine, theirs) = (dtype_name(mine), dtype_name(theirs));
            return Err(PyTypeError::new_err(format!(
                "{name} are {theirs} and the index holds {mine}: pass {name}.astype(numpy.{mine})"
            )));
        }
        if self.inner().dim() != rows.dim() {
            let shape = if rows.is_single() {
                vec![rows.dim()]
            } else {
                vec![rows.rows(), rows.dim()]
            };
            return Err(PyValueError::new_err(format!(
                "{name} has the shape {} and the index {} dimensions",
                shape_text(&shape),
                self.inner().dim()
            )));
        }
        Ok(())
    }
}

/// Opens the index in the folder `path`.
///
/// Opening and searching need neither a lock nor a right to write, whoever else changes the index meanwhile. The first change
/// takes the folder's lock, which `close`, or the end of a `with` block, gives back.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     The folder that `stratann.build` or the command line made.
/// memory : int or str, optional
///     A cap on what the index keeps in RAM: bytes, or "64MiB".
/// io : str
///     How the SSD is read: "auto", "uring" or "pread".
/// cache : int or str, optional
///     A cache of what searches read last, adjacency lists and the vectors beside them: bytes, or "16MiB". It is part
///     of `memory`. None is no cache.
/// cache_entries : int or str, optional
///     The same as a number of nodes, or in percent of the vectors: "1%".
/// navigation : bool, optional
///     Whether searches will start from the navigation graph, so that `memory` has room for it. None is the preset's
///     choice. Without `memory` it is there whenever a search asks for it.
/// place : dict or str, optional
///     On which tier each role ("topology", "vectors") is read: {"topology": "mapped:/dev/shm/x", "vectors": "dram"}, or the same as
///     "topology=mapped:/dev/shm/x,vectors=dram". Tiers are "ssd" (where the index is), "ssd:/folder", "mapped:/folder", "dram" and, for
///     experiments, "ssd-model", "rdma-model", "cxl-model", "nvm-model". Copies that are not there yet are made and compared; the
///     index stays whole without them.
/// durability : str or int
///     When changes are durable: "always" (when the call returns), "flush" (when `flush`, `close` or `compact` returns),
///     or at the latest after so many milliseconds.
/// merges : bool
///     Whether merges begin by themselves, in the background, from the first change on: when a tenth of the vectors was
///     deleted, when searches read a tenth more than before, or when many vectors wait in memory. If not, `compact` is
///     the only one.
#[pyfunction]
#[pyo3(signature = (path, *, memory=None, io="auto", cache=None, cache_entries=None, navigation=None,
    place=None, durability=None, merges=true))]
#[expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of the Python function"
)]
pub fn open(
    py: Python<'_>,
    path: PathBuf,
    memory: Option<&Bound<'_, PyAny>>,
    io: &str,
    cache: Option<&Bound<'_, PyAny>>,
    cache_entries: Option<&Bound<'_, PyAny>>,
    navigation: Option<bool>,
    place: Option<&Bound<'_, PyAny>>,
    durability: Option<&Bound<'_, PyAny>>,
    merges: bool,
) -> PyResult<Index> {
    let path = existing(path, "index")?;
    let options = OpenOptions {
        memory: bytes(memory)?,
        io: named(io, "io")?,
        cache: cache_size(&path, cache, cache_entries)?,
        navigation,
        places: places(place)?,
        ..OpenOptions::default()
    };
    let changes = Changes {
        durability: when_durable(durability)?,
        merges,
    };
    Index::new(py, path, options, changes, None)
}

/// Reads the whole index in the folder `path` and checks every header, checksum, list and id.
///
/// Returns a dict: what was read, and `problems`, a list of dicts that name file, offset, fault and remedy. An empty
/// list means that the index is whole. With `place`, as that of `open`, the copies in a folder are checked in place of what they are copies of.
#[pyfunction]
#[pyo3(signature = (path, *, place=None, progress=None))]
pub fn verify<'py>(
    py: Python<'py>,
    path: PathBuf,
    place: Option<&Bound<'py, PyAny>>,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let path = existing(path, "index")?;
    let places = places(place)?;
    let listener = Listener::new(progress)?;
    let report = run(py, &listener, |progress| {
        stratann::verify_placed(&path, &places, progress)
    })?;
    to_dict(py, &report)
}

/// Results as Python has them: ids, distances, and what they cost if that is wanted.
pub fn answers<'py>(
    py: Python<'py>,
    results: SearchResults,
    options: &SearchOptions,
    single: bool,
    return_stats: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let stats = return_stats
        .then(|| search_stats(py, &results, options))
        .transpose()?;
    let SearchResults {
        k, ids, distances, ..
    } = results;
    let ids = table(py, ids, k, single)?;
    let distances = table(py, distances, k, single)?;
    match stats {
        Some(stats) => PyTuple::new(py, [ids, distances, stats.into_any()]),
        None => PyTuple::new(py, [ids, distances]),
    }
}

/// The answer to no queries, which the engine need not be asked for.
pub fn nothing(k: usize) -> SearchResults {
    SearchResults {
        k,
        ids: Vec::new(),
        distances: Vec::new(),
        exact: true,
        distance_error: 0.0,
        seconds: 0.0,
        cpu_seconds: 0.0,
        process_cpu_seconds: 0.0,
        in_flight: 0,
        tried: Vec::new(),
        latencies_us: Vec::new(),
        counters: Counters::default(),
        parts: None,
    }
}

/// Python's own objects for a value of the engine, with the keys that the command line prints as JSON.
pub fn to_dict<'py, T: serde::Serialize>(
    py: Python<'py>,
    value: &T,
) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(value)
        .map_err(|error| crate::errors::StratannError::new_err(error.to_string()))?;
    py.import("json")?.call_method1("loads", (text,))
}

/// The keys of `stratann search --json`, and what the batch took as a whole.
fn search_stats<'py>(
    py: Python<'py>,
    results: &SearchResults,
    options: &SearchOptions,
) -> PyResult<Bound<'py, PyDict>> {
    let queries = results.latencies_us.len();
    let stats = PyDict::new(py);
    stats.set_item("list", options.list)?;
    stats.set_item("k", results.k)?;
    let qps = if queries == 0 {
        0.0
    } else {
        queries as f64 / results.seconds
    };
    stats.set_item("qps", qps)?;
    stats.set_item("latency_us", latency(py, &results.latencies_us)?)?;
    let counters = to_dict(py, &results.counters)?.cast_into::<PyDict>()?;
    let per_query = PyDict::new(py);
    for (name, sum) in counters {
        per_query.set_item(name, sum.extract::<f64>()? / queries.max(1) as f64)?;
    }
    stats.set_item("per_query", per_query)?;
    stats.set_item("threads", options.threads)?;
    stats.set_item("in_flight", results.in_flight)?;
    if !results.tried.is_empty() {
        stats.set_item("in_flight_tried", to_dict(py, &results.tried)?)?;
    }
    let cpu_us = results.process_cpu_seconds * 1e6 / queries.max(1) as f64;
    stats.set_item("cpu_us", cpu_us)?;
    let error = Some(results.distance_error).filter(|error| error.is_finite());
    stats.set_item("distance_error", error)?;
    stats.set_item("peak_rss_bytes", stratann::peak_rss_bytes())?;
    stats.set_item("queries", queries)?;
    stats.set_item("seconds", results.seconds)?;
    stats.set_item("cpu_seconds", results.cpu_seconds)?;
    stats.set_item(
        "latencies_us",
        PyArray1::from_slice(py, &results.latencies_us),
    )?;
    Ok(stats)
}

/// Mean and percentiles by nearest rank: the smallest latency that at least this share of the queries kept.
fn latency<'py>(py: Python<'py>, latencies_us: &[f32]) -> PyResult<Bound<'py, PyDict>> {
    let mut sorted = latencies_us.to_vec();
    sorted.sort_by(f32::total_cmp);
    let sum: f64 = sorted.iter().copied().map(f64::from).sum();
    let latency = PyDict::new(py);
    latency.set_item("mean", sum / sorted.len().max(1) as f64)?;
    for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
        let rank = (share * sorted.len() as f64).ceil() as usize;
        latency.set_item(
            name,
            sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0),
        )?;
    }
    Ok(latency)
}
