//! `stratann.Index`: an open index, and its searches.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use numpy::PyArray1;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use stratann::data::RowSource;
use stratann::{
    CutOff, Filter, LiveIndex, Matrix, MergeWhen, OpenOptions, Progress, Schema, SearchOptions,
    Silent,
};

use crate::arguments::{existing, no_attribute, places, shown};
use crate::arrays::{self, ANSWERS, Rows, dtype_name};
use crate::asynchronous;
use crate::attributes::{self, Beside, Table};
use crate::errors::{InUseError, OutdatedError, changing, to_python};
use crate::handle::{Handle, Now};
use crate::lookups;
use crate::near;
use crate::opening::Opening;
use crate::process::Opened;
use crate::progress::{Listener, note, run, run_rows, warn, warn_first};
use crate::searching::{Asked, OF_INDEX, WATCHED, answers_with, nothing};
use crate::shape;
use crate::writer::Changes;

/// An index on disk, open for search. Python threads may search and change the index at the same
/// time, through one object or through several objects of the same folder. A forked process must
/// open the index again.
#[pyclass(frozen, module = "stratann")]
pub struct Index {
    handle: Handle,
    pub path: PathBuf,
    report: Option<Py<PyAny>>,
    /// The Python arguments with which the index was opened, to open it again. `None` if the index
    /// shares a catalog's memory.
    arguments: Option<Py<PyDict>>,
}

const VECTORS: &str = "vectors";

/// If an insert without ids has at least this many rows, the index records the insert, so that the
/// user can resume it after a kill. Among fewer rows, a user soon finds the missing rows.
const NOTED: usize = 1_000;

const SHOWN: usize = 5;

/// The largest list size of a query, or number of probes in a cluster index. Shows a warning if the
/// target recall exceeds the recall that the index's measurement reached.
pub fn longest_list(
    py: Python<'_>,
    index: &stratann::Index,
    options: &SearchOptions,
) -> PyResult<usize> {
    let longest = index.longest_list(options).map_err(to_python)?;
    if let Some(warning) = index.beyond_measured(options, longest) {
        warn(py, &warning)?;
    }
    Ok(longest)
}

/// Ids, the attributes and payloads to set for them, and the warnings that the user got.
type RowsToSet = (Vec<u64>, Table, Vec<String>);

/// The attributes and payloads of rows, and `stratann.Rows` with their vectors, if requested.
type Records<'py> = (
    Bound<'py, PyList>,
    Bound<'py, PyList>,
    Option<Bound<'py, PyAny>>,
);

impl Index {
    pub fn new(
        py: Python<'_>,
        path: PathBuf,
        options: OpenOptions,
        changes: Changes,
        report: Option<Py<PyAny>>,
        arguments: Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let path = existing(path, "index")?;
        Ok(Self {
            handle: Handle::open(py, path.clone(), &options, changes)?,
            path,
            report,
            arguments: Some(arguments.unbind()),
        })
    }

    /// The object for an index that a catalog has opened. `before`: the value of
    /// [`closes`](crate::writer::closes) before the catalog was opened.
    pub fn of(py: Python<'_>, index: Arc<stratann::Index>, path: PathBuf, before: u64) -> Self {
        Self {
            handle: Handle::of(py, index, path.clone(), Changes::default(), before),
            path,
            report: None,
            arguments: None,
        }
    }

    /// The index that was opened last, for properties that never change.
    pub fn inner(&self) -> PyResult<Arc<Opened<stratann::Index>>> {
        self.handle.index()
    }

    #[cfg(feature = "testing")]
    pub fn while_locked<T>(&self, work: impl FnOnce() -> T) -> T {
        self.handle.while_locked(work)
    }

    /// The index that a search reads now, and its changes since the last checkpoint.
    pub fn now(&self, py: Python<'_>) -> PyResult<Now> {
        self.handle.now(py)
    }

    pub fn wanted(
        &self,
        py: Python<'_>,
        attributes: Option<&Bound<'_, PyAny>>,
        payload: bool,
    ) -> PyResult<Option<Beside>> {
        Beside::of(attributes, payload, || {
            Ok(attributes::names(&self.schema(py)?).collect())
        })
    }

    pub fn schema(&self, py: Python<'_>) -> PyResult<Schema> {
        let (inner, live) = self.now(py)?;
        Ok(match &*live {
            Some(live) => live.schema(),
            None => inner.schema(),
        })
    }

    /// Converts attributes and payloads, by the types of this index's columns. Warns of new columns
    /// that may be misspelt, and returns the warnings. If the user has turned warnings into
    /// exceptions, the call fails before it writes anything.
    fn table(
        &self,
        py: Python<'_>,
        attributes: Option<&Bound<'_, PyAny>>,
        payload: Option<&Bound<'_, PyAny>>,
        rows: usize,
        single: bool,
    ) -> PyResult<(Option<Table>, Vec<String>)> {
        let schema = attributes.map(|_| self.schema(py)).transpose()?;
        let columns = schema
            .as_ref()
            .map(|schema| attributes::columns(py, schema));
        let table = Table::of(py, attributes, payload, rows, single, columns.transpose()?)?;
        let told = match (&table, schema) {
            (Some(table), Some(schema)) => schema.misspelt(table.columns()),
            _ => Vec::new(),
        };
        told.iter()
            .try_for_each(|warning| warn_first(py, warning))?;
        Ok((table, told))
    }

    /// The attributes and payloads that a call sets. `None` if the call has neither.
    fn rows_to_set(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        attributes: Option<&Bound<'_, PyAny>>,
        payload: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<RowsToSet>> {
        let single = lookups::id(ids).is_ok();
        let ids = arrays::ids_asked(ids, "the attributes")?;
        let (rows, told) = self.table(py, attributes, payload, ids.len(), single)?;
        Ok(rows.map(|rows| (ids, rows, told)))
    }

    fn vectors(&self, py: Python<'_>) -> PyResult<usize> {
        let (inner, live) = self.now(py)?;
        Ok(match &*live {
            Some(live) => live.len(),
            None => inner.live(),
        })
    }
}

#[pymethods]
impl Index {
    /// Finds the `k` nearest vectors of each query.
    ///
    /// Parameters
    /// ----------
    /// queries : array-like
    ///     (nq, d), or (d,) for one query. A C-contiguous array of the index's dtype is read in
    ///     place: do not write to it until this call returns. Lists, other arrays, and columns of
    ///     pandas, polars and pyarrow are converted. Floats are converted to integers only if all
    ///     of them are whole numbers.
    /// k : int
    ///     The number of nearest vectors to return for each query.
    /// list_size : int, optional
    ///     L, the number of candidates that a search keeps. A longer list raises recall, and causes
    ///     more reads. None is 100, or `k` if `k` is larger. If a cluster index gets `list_size`
    ///     but no `probes`, `list_size` is the number of clusters to probe.
    /// probes : int, optional
    ///     The number of clusters that a search probes in a cluster index (presets "spann" and
    ///     "tiered-cluster"). The number may be less than `k`. None is 32, or `k` if `k` is larger.
    ///     A cluster index refuses the arguments of searches in a graph: `strategy`, `navigation`,
    ///     `whole_page`, `rerank_batch`, `benefit`, `rerank`, `stop_early`, and `cache` in `open`.
    /// beam : int, optional
    ///     W, the number of nodes that a query reads at the same time.
    /// strategy : str, optional
    ///     "best-first", "pipelined" or "press". None takes the preset's value.
    /// navigation : bool, optional
    ///     Whether a search starts at nodes that the navigation graph finds. None takes the
    ///     preset's value.
    /// whole_page : bool, optional
    ///     Whether a search uses all nodes of a page that it has read. None takes the preset's
    ///     value.
    /// rerank_batch : int, optional
    ///     B, the number of candidates in a batch of re-ranking by exact distance, if whole vectors
    ///     are stored apart from adjacency lists (layout "decoupled"). None takes the preset's
    ///     value.
    /// benefit : float, optional
    ///     Re-ranking ends after a batch if less than this share of the batch entered the results.
    ///     With 0, all candidates are ranked. None takes the preset's value.
    /// rerank : str, optional
    ///     The rule that ends re-ranking. "batches" ends it by `benefit`. "estimate" ranks the
    ///     first k + B candidates, and then only candidates that may still be nearer, by the error
    ///     of the codes. None takes the preset's value.
    /// rerank_ratio : float, optional
    ///     When the candidate list is complete, a search re-ranks this share of it in one batch,
    ///     and at least `k` candidates. With 0, `rerank` decides instead. None takes the preset's
    ///     value.
    /// low_list : float, optional
    ///     With the strategy "press": the maximum number of candidates that codes of low precision
    ///     rank, as a multiple of `list_size`. None is 3; DistVS uses 2.
    /// refine : float, optional
    ///     With the strategy "press": of the candidates ranked by codes of low precision, the share
    ///     that each round ranks again by codes of high precision. None is 0.2; DistVS uses 0.3.
    /// seeds : int, optional
    ///     Without a navigation graph: the number of nodes whose codes a search compares with the
    ///     query first. If there are codes of two precisions, it compares the codes of low
    ///     precision. Then the search starts near the nearest of these nodes. With 0, it starts at
    ///     the graph's entry node, as DistVS does. None is 64 with the strategy "press", else 0.
    /// exact : bool
    ///     Whether distances are exact in the layered layout as well. There, exact distances need
    ///     the trailing parts of all results: the low bits of their elements. With False, a search
    ///     reads fewer trailing parts. A result that was certain without its trailing part then has
    ///     an estimated distance, so results of almost equal distance may be out of order. Under
    ///     "l2" and "cosine" no estimate is below 0. `stats["distance_error"]` is the likely error
    ///     of the estimates. In all other layouts, distances are always exact.
    /// stop_early : bool
    ///     Whether a search ends as soon as no remaining candidate is likely to become a result or
    ///     to lead to one. The search estimates the likelihood from the error of the codes that it
    ///     has read. At the same `list_size`, True saves reads and lowers recall slightly.
    /// recall : float, optional
    ///     The recall to reach, above 0 and up to 1, instead of a `list_size`. Recall is the share
    ///     of the true `k` nearest vectors that searches find. Each query then gets the list size,
    ///     or the number of probes, that reaches this recall. The build measured these numbers, or
    ///     `stratann.calibrate` did with your own queries. `recall` cannot be combined with
    ///     `probes` or `stop_early`. A `strategy` beside `recall` must find the same vectors as the
    ///     preset's strategy. "best-first" and "pipelined" find the same vectors, and "press" finds
    ///     different ones. If vectors are stored apart from adjacency lists, as with "distvs" and
    ///     "decouplevs", `recall` cannot be combined with options of re-ranking. If the target
    ///     exceeds the recall that the measurement reached, the search uses the longest measured
    ///     list, or the largest number of probes, and shows a RuntimeWarning.
    /// filter : str, dict or stratann.Filter, optional
    ///     A condition that the attributes of results must match: "year >= 2020 and tags contains
    ///     'sea' and not sold == true", or {"year": {"$gte": 2020}}. If at least `k` vectors match,
    ///     a search returns `k` results. The search adapts its list size to the number of matching
    ///     vectors. docs/attributes.md has the grammar, and `Index.columns` has the names of the
    ///     columns.
    /// attributes : bool, str or list of str, optional
    ///     Whether to return the attributes of each result: True for all columns, or the names of
    ///     columns.
    /// payload : bool
    ///     Whether to return the payload of each result.
    /// threads : int, optional
    ///     The number of threads that search. At most one thread for each query is used. None is
    ///     one thread for each core.
    /// in_flight : int, optional
    ///     The number of queries that a thread works on at the same time. A larger number raises
    ///     throughput and latency; 1 gives the lowest latency. None is up to 8, and at most the
    ///     number of queries per thread. With 256 or more queries per thread, None measures with
    ///     the first queries which number gives the highest throughput. Under a memory budget, None
    ///     leaves half of the free memory to other searches.
    /// return_stats : bool
    ///     Whether to return a dict of counters and latencies as well. Unless `in_flight` is 1, a
    ///     latency includes the time in which the thread works on other queries.
    ///
    /// Returns
    /// -------
    /// ids : numpy.ndarray
    ///     uint64, (nq, k), or (k,) for one query; nearest first. If a query has fewer than k
    ///     results, its row is filled with 2^64 - 1, an id that no vector has.
    /// distances : numpy.ndarray
    ///     float32, of the same shape. Squared Euclidean, minus the inner product, or 1 - cos:
    ///     smaller is nearer. Infinite where a result is missing.
    /// attributes : list
    ///     Only with `attributes`: for each query a list of `k` dicts in the order of the ids. If
    ///     `queries` is one query, (d,), its list is returned alone. A dict is None if its result
    ///     is missing, or was deleted during the call.
    /// payload : list
    ///     Only with `payload`: lists of payloads, in the form of `attributes`. None stands for a
    ///     result without a payload.
    /// stats : dict
    ///     Only with `return_stats`: the keys of `stratann search --json`. `per_query` has means,
    ///     `in_flight` is the number that the search used, and `cpu_us` is the CPU time of the
    ///     process per query. `distance_error` is a likely bound of the error of distances. It is 0
    ///     if all distances are exact. In the layered layout, it may be four standard deviations of
    ///     the least certain distance. `queries`, `seconds` and `cpu_seconds` describe the call,
    ///     and `latencies_us` has one number for each query. With a `filter`, `stats["filter"]` is
    ///     a dict. `matching` is the number of matching vectors, and `way` is the filter strategy
    ///     that the search chose. `list` is the list size, counted in matching vectors, or in a
    ///     cluster index the number of clusters to probe. With `recall`, `list` is the largest
    ///     value of a query. `estimates` has the expected reads of a query by each filter strategy.
    ///     `dry` counts the queries that began with the strategy "within" and continued with
    ///     "before". These queries met too few matching vectors, or, in a cluster index, the
    ///     matching vectors were too far away. `wider` counts the queries of a cluster index that
    ///     probed more clusters than `list`, because matching vectors were not spread evenly.
    #[pyo3(signature = (queries, k=10, **options),
        text_signature = "($self, queries, k=10, *, list_size=None, probes=None, beam=None, strategy=None, navigation=None, whole_page=None, rerank_batch=None, benefit=None, rerank=None, rerank_ratio=None, low_list=None, refine=None, seeds=None, exact=True, stop_early=False, recall=None, filter=None, attributes=None, payload=False, threads=None, in_flight=None, return_stats=False)")]
    fn search<'py>(
        &self,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = crate::arguments::count::k)] k: usize,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let more = [OF_INDEX, &["filter", "attributes", "payload"]];
        let asked = Asked::read("Index.search", &more, options)?;
        let rows = self.rows(queries, "queries")?;
        let filter = asked.filter.as_ref().map(attributes::filter).transpose()?;
        let beside = self.wanted(py, asked.attributes.as_ref(), asked.payload)?;
        let (results, options) = self.reading(py, |index, live| {
            let options = asked.options(k, Some(index))?;
            // In a cluster index, `list` is the number of probes.
            let list = longest_list(py, index, &options)?;
            if rows.rows() == 0 {
                check(index, live, &options, filter.as_ref())?;
                return Ok((nothing(k), SearchOptions { list, ..options }));
            }
            let source = rows.source()?;
            let search = |progress: &dyn Progress| match (live, &filter) {
                (Some(live), None) => live.search_observed(&source, &options, progress),
                (None, None) => index.search_observed(&source, &options, progress),
                (Some(live), Some(filter)) => {
                    live.search_filtered_observed(&source, &options, filter, progress)
                }
                (None, Some(filter)) => {
                    index.search_filtered_observed(&source, &options, filter, progress)
                }
            };
            let found = if rows.rows() < WATCHED {
                py.detach(|| search(&Silent)).map_err(to_python)?
            } else {
                run(py, &Listener::new(None)?, search)?
            };
            (self.handle).has_served(&source, &options, filter.as_ref());
            Ok((found, SearchOptions { list, ..options }))
        })?;
        let parts = match beside {
            Some(beside) => {
                let found = self.beside(py, &results.ids)?;
                beside.parts(py, found, k, rows.is_single())?
            }
            None => Vec::new(),
        };
        let single = rows.is_single();
        answers_with(py, results, &options, single, asked.return_stats, parts)
    }

    /// Begins a search like `search`, and returns an awaitable: `ids, distances = await
    /// index.search_async(queries)`.
    ///
    /// The search runs in the background and occupies no Python thread. The package does not limit
    /// the number of searches at the same time, so the caller must. If the task of a search is
    /// cancelled, the search ends as soon as its reads complete. The call copies the queries. A
    /// background thread evaluates the `filter`, if there is one, before the search begins.
    /// Everything else is as in `search`.
    ///
    /// After the search, a thread of the loop's default executor reads the `attributes` or the
    /// `payload`, if the call asked for them.
    ///
    /// Parameters
    /// ----------
    /// timeout : float, optional
    ///     The number of seconds after which the search ends with a TimeoutError. None is no limit.
    ///
    /// Returns
    /// -------
    /// awaitable
    ///     An awaitable of the running event loop, which returns the same as `search`.
    #[pyo3(signature = (queries, k=10, **options),
        text_signature = "($self, queries, k=10, *, list_size=None, probes=None, beam=None, strategy=None, navigation=None, whole_page=None, rerank_batch=None, benefit=None, rerank=None, rerank_ratio=None, low_list=None, refine=None, seeds=None, exact=True, stop_early=False, recall=None, filter=None, attributes=None, payload=False, threads=None, in_flight=None, return_stats=False, timeout=None)")]
    fn search_async<'py>(
        slf: &Bound<'py, Self>,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = crate::arguments::count::k)] k: usize,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        let more = [OF_INDEX, &["filter", "attributes", "payload", "timeout"]];
        let asked = Asked::read("Index.search_async", &more, options)?;
        let filter = asked.filter.as_ref().map(attributes::filter).transpose()?;
        let rows = this.rows(queries, "queries")?;
        let deadline = asynchronous::deadline(asked.timeout)?;
        let beside = this.wanted(py, asked.attributes.as_ref(), asked.payload)?;
        let (search, options) = this.reading(py, |index, live| {
            let options = asked.options(k, Some(index))?;
            // In a cluster index, `list` is the number of probes.
            let list = longest_list(py, index, &options)?;
            let shown = SearchOptions { list, ..options };
            if rows.rows() == 0 {
                check(index, live, &options, filter.as_ref())?;
                return Ok((asynchronous::Search::ended(nothing(k)), shown));
            }
            let queries = Matrix::read(&rows.source()?).map_err(to_python)?;
            (this.handle).has_served(&queries, &options, filter.as_ref());
            let asked = asynchronous::Submitted {
                index: slf.clone().unbind(),
                queries,
                options,
                filter: filter.clone(),
                deadline,
            };
            Ok((
                asynchronous::Search::begun(asked.begin(py, index, live, 1)?),
                shown,
            ))
        })?;
        search.answered(
            py,
            asynchronous::Shape {
                options,
                single: rows.is_single(),
                return_stats: asked.return_stats,
                beside: beside.map(|beside| (slf.clone().unbind(), beside)),
            },
        )
    }

    /// Finds all vectors within a distance of one query, and returns them in pages, nearest first.
    ///
    /// Parameters
    /// ----------
    /// query : array-like
    ///     (d,), converted like the queries of `search`.
    /// distance : float
    ///     The largest distance of a result, in the units of `search`: squared Euclidean, minus the
    ///     inner product, or 1 - cos.
    /// most : int
    ///     The maximum number of results in a page. The memory of a page grows with the number of
    ///     results in this page and in all pages before it.
    /// after : tuple, optional
    ///     `next` of the previous page. None is the first page.
    /// without : int, optional
    ///     An id to leave out of the results, such as the id of the query itself if it is in the
    ///     index.
    /// list_size, probes, filter, attributes, payload, threads : optional
    ///     As in `search`. If `list_size` is smaller than twice the number of results found so far,
    ///     the search keeps twice that number of candidates.
    ///
    /// Returns
    /// -------
    /// stratann.Page
    ///     `ids` (uint64) and exact `distances` (float32), both (n,). `next` is the value to pass
    ///     as `after` for the next page, or None after the last page. `complete` is True if
    ///     certainly no result is missing. If it is False, results may be missing, as in any
    ///     approximate search. `attributes` and `payload` are lists in the order of the ids, if the
    ///     call asked for them, else None.
    #[pyo3(signature = (query, distance, *, most=1000, after=None, without=None, list_size=None, probes=None, filter=None, attributes=None,
        payload=false, threads=None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python method"
    )]
    fn search_range<'py>(
        &self,
        py: Python<'py>,
        query: &Bound<'py, PyAny>,
        distance: f32,
        #[pyo3(from_py_with = crate::arguments::count::most)] most: usize,
        after: Option<&Bound<'py, PyAny>>,
        without: Option<u64>,
        #[pyo3(from_py_with = crate::arguments::count_or_none::list_size)] list_size: Option<usize>,
        #[pyo3(from_py_with = crate::arguments::count_or_none::probes)] probes: Option<usize>,
        filter: Option<&Bound<'py, PyAny>>,
        attributes: Option<&Bound<'py, PyAny>>,
        payload: bool,
        #[pyo3(from_py_with = crate::arguments::count_or_none::threads)] threads: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let beside = self.wanted(py, attributes, payload)?;
        let told = near::Told {
            list_size,
            probes,
            filter,
            threads,
        };
        let range = stratann::Range {
            distance,
            most,
            after: near::place(after)?,
            without,
        };
        near::range(py, self, query, range, beside, &told)
    }

    /// Finds the vectors nearest to vectors of the index, which are named by their ids ("more like
    /// this"). The results for an id leave out its own vector, but not other vectors with equal
    /// elements.
    ///
    /// Parameters
    /// ----------
    /// ids : int or array-like of int
    ///     One id or many. All of them must be in the index.
    /// k, list_size, probes, recall, filter, attributes, payload, threads, return_stats : optional
    ///     As in `search`.
    ///
    /// Returns
    /// -------
    /// ids, distances : numpy.ndarray
    ///     (n, k), or (k,) for one id. Attributes, payloads and stats follow in the tuple, as in
    ///     `search`.
    #[pyo3(signature = (ids, k=10, *, list_size=None, probes=None, recall=None, filter=None, attributes=None, payload=false, threads=None,
        return_stats=false))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python method"
    )]
    fn search_like<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = crate::arguments::count::k)] k: usize,
        #[pyo3(from_py_with = crate::arguments::count_or_none::list_size)] list_size: Option<usize>,
        #[pyo3(from_py_with = crate::arguments::count_or_none::probes)] probes: Option<usize>,
        recall: Option<f64>,
        filter: Option<&Bound<'py, PyAny>>,
        attributes: Option<&Bound<'py, PyAny>>,
        payload: bool,
        #[pyo3(from_py_with = crate::arguments::count_or_none::threads)] threads: Option<usize>,
        return_stats: bool,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let beside = self.wanted(py, attributes, payload)?;
        let told = near::Told {
            list_size,
            probes,
            filter,
            threads,
        };
        near::like(py, self, ids, (k, recall, return_stats), beside, &told)
    }

    /// Returns the vectors with these ids, and the ids that are not in the index. Each vector is
    /// equal to the bit to the inserted one.
    ///
    /// Parameters
    /// ----------
    /// ids : array-like of int
    ///     As in `delete`. An id that is given twice is returned twice.
    ///
    /// Returns
    /// -------
    /// stratann.Rows
    ///     `ids` (uint64, (n,)): the ids that are in the index, in the order of the argument.
    ///     `vectors`: (n, d), of the index's dtype. `missing` (uint64): the ids that are not in the
    ///     index.
    #[pyo3(signature = (ids, *, progress=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ids = arrays::ids_asked(ids, ANSWERS)?;
        let rows = self.look_up(py, &ids, progress)?;
        lookups::rows(py, rows)
    }

    /// The ids that are in the index, ascending.
    ///
    /// Parameters
    /// ----------
    /// after : int, optional
    ///     Return only ids above this one. None begins with the first id.
    /// count : int, optional
    ///     The maximum number of ids to return. None returns all ids.
    /// filter : str, dict or stratann.Filter, optional
    ///     Return only ids of vectors whose attributes match this filter.
    ///
    /// Returns
    /// -------
    /// ids : numpy.ndarray
    ///     uint64, (n,). To page through all ids, pass the last id of each call as `after` of the
    ///     next call. An id that is in the index during all of these calls is returned exactly
    ///     once.
    #[pyo3(signature = (after=None, count=None, *, filter=None))]
    fn ids<'py>(
        &self,
        py: Python<'py>,
        after: Option<u64>,
        #[pyo3(from_py_with = crate::arguments::count_or_none::count)] count: Option<usize>,
        filter: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let most = count.unwrap_or(usize::MAX);
        let filter = filter.map(attributes::filter).transpose()?;
        let ids = self.reading(py, |index, live| {
            py.detach(|| match (live, &filter) {
                (Some(live), None) => live.ids(after, most),
                (None, None) => index.ids(after, most),
                (Some(live), Some(filter)) => live.ids_matching(filter, after, most),
                (None, Some(filter)) => index.ids_matching(filter, after, most),
            })
            .map_err(to_python)
        })?;
        Ok(PyArray1::from_vec(py, ids))
    }

    /// Returns the number of vectors in the index, or the number that match a filter. The count
    /// reads columns of attributes, and needs no search.
    ///
    /// Parameters
    /// ----------
    /// filter : str, dict or stratann.Filter, optional
    ///     As in `search`. None counts all vectors.
    #[pyo3(signature = (filter=None))]
    fn count(&self, py: Python<'_>, filter: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        let filter = filter.map(attributes::filter).transpose()?;
        self.reading(py, |index, live| {
            py.detach(|| match (live, &filter) {
                (Some(live), None) => Ok(live.len() as u64),
                (None, None) => Ok(index.live() as u64),
                (Some(live), Some(filter)) => live.count(filter),
                (None, Some(filter)) => index.count(filter),
            })
            .map_err(to_python)
        })
    }

    /// Returns the attributes of the vectors with these ids.
    ///
    /// Parameters
    /// ----------
    /// ids : array-like of int
    ///     As in `get`.
    ///
    /// Returns
    /// -------
    /// list of dict
    ///     A dict for each id, with the columns that have a value; None for an id that is not in
    ///     the index. Times are datetimes in UTC, or numpy.datetime64 for years that a datetime
    ///     cannot hold.
    fn attributes<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let rows = self.beside(py, &arrays::ids_asked(ids, ANSWERS)?)?;
        attributes::attributes(py, rows)
    }

    /// Returns a list with the payload of each id. None stands for an id without a payload, and for
    /// an id that is not in the index.
    fn payload<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let rows = self.beside(py, &arrays::ids_asked(ids, ANSWERS)?)?;
        attributes::payloads(py, &rows)
    }

    /// Replaces all attributes and the payload of vectors that are in the index. Attributes and
    /// payloads that the call does not give again are removed. The vectors themselves stay
    /// unchanged. If an id is not in the index, the call fails and changes nothing. An attribute
    /// whose name is new to the index becomes a new column; `columns` lists all columns. Ctrl-C
    /// during the call raises `stratann.Interrupted`, which says how many ids are set. Making the
    /// same call again is safe.
    ///
    /// Parameters
    /// ----------
    /// ids : array-like of int
    ///     One id for each row of attributes, in the same order; or one integer, with one dict.
    /// attributes, payload
    ///     As in `stratann.build`, for each id.
    /// progress : callable, optional
    ///     As in `stratann.build`.
    #[pyo3(signature = (ids, attributes=None, *, payload=None, progress=None))]
    fn set_attributes<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
        attributes: Option<&Bound<'py, PyAny>>,
        payload: Option<&Bound<'py, PyAny>>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let Some((ids, rows, told)) = self.rows_to_set(py, ids, attributes, payload)? else {
            return Err(PyTypeError::new_err(
                "set_attributes takes attributes, a payload, or both. To remove all attributes and payloads, pass [{}] * len(ids)",
            ));
        };
        self.set_rows(py, ids.len(), (progress, told), |live, progress| {
            live.set_attributes(&ids, &rows, progress)
        })
    }

    /// Sets attributes as `set_attributes` does, but leaves attributes that the call does not name
    /// unchanged, and also the payload if the call gives none. The value None, or an empty list,
    /// removes an attribute. With a list of ids, None in the list of payloads removes the payload
    /// of that id. In a list of dicts, each dict changes only the attributes that it names. A table
    /// has all of its columns in each row, so NaN in a table removes an attribute. Calls of several
    /// threads for the same id run one after the other, so no call undoes a change of another call.
    ///
    /// Parameters
    /// ----------
    /// ids, attributes, payload, progress
    ///     As in `set_attributes`.
    #[pyo3(signature = (ids, attributes=None, *, payload=None, progress=None))]
    fn update_attributes<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
        attributes: Option<&Bound<'py, PyAny>>,
        payload: Option<&Bound<'py, PyAny>>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let Some((ids, rows, told)) = self.rows_to_set(py, ids, attributes, payload)? else {
            return Err(PyTypeError::new_err(
                "update_attributes takes attributes, a payload, or both. Pass one of them",
            ));
        };
        self.set_rows(py, ids.len(), (progress, told), |live, progress| {
            live.update_attributes(&ids, &rows, progress)
        })
    }

    /// Iterates over all ids and vectors of the index by ascending id, in `stratann.Rows` of `size`
    /// vectors. A vector that is in the index during the whole iteration is returned exactly once.
    /// Each batch has the values at the time when it was read.
    #[pyo3(signature = (size=1024))]
    fn batches<'py>(
        slf: &Bound<'py, Self>,
        #[pyo3(from_py_with = crate::arguments::count::size)] size: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let rows = slf.py().import("stratann.rows")?;
        rows.call_method1("batches", (slf, size))
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        id: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let wanted = lookups::id(id)?;
        let ids: Vec<u64> = wanted.into_iter().collect();
        let found = self.look_up(py, &ids, None)?;
        lookups::only(py, found, id)
    }

    fn __contains__(&self, py: Python<'_>, id: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(Some(id)) = lookups::id(id) else {
            return Ok(false);
        };
        self.reading(py, |index, live| {
            py.detach(|| match live {
                Some(live) => live.contains(id),
                None => index.contains(id),
            })
            .map_err(to_python)
        })
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let rows = slf.py().import("stratann.rows")?;
        rows.call_method1("every_id", (slf,))
    }

    /// The pickle of an index has its path and the arguments of `open`, except `watch_recall`. A
    /// process that unpickles the index, such as a worker, opens it for reading.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let Some(arguments) = &self.arguments else {
            return Err(PyTypeError::new_err(format!(
                "{}: an index of a catalog shares the catalog's memory, so it cannot be pickled. Open the catalog in the other process",
                shown(&self.path)
            )));
        };
        let reopen = py.import("stratann.rows")?.getattr("reopen")?;
        let path = self.handle.home().to_owned().into_pyobject(py)?;
        let arguments = (path, arguments.bind(py).copy()?);
        PyTuple::new(py, [reopen, arguments.into_pyobject(py)?.into_any()])
    }

    /// Facts about the index: its preset, sizes in bytes, degrees, and the other contents of
    /// `stratann stats`.
    ///
    /// "trouble" is None, or a text about the most serious fault that no call has reported. If the
    /// index is open for changes, faults are: the object accepts no more changes, a checkpoint may
    /// not be durable, vectors wait in memory, or a checkpoint or merge failed. In any index, the
    /// codes may not fit new vectors, so that searches miss many of these vectors until a merge.
    ///
    /// "health" has the share of new vectors that the codes do not fit ("drifted"). The share is
    /// None if few vectors were inserted since the last build or merge, or if it was not measured.
    /// The index does not measure this share before the first change, if `memory` is too small for
    /// a sample of 128 vectors, or if the build was given a codebook, which merges keep.
    /// "live_recall" is the latest result of `measure_recall`, or None if the index was opened
    /// without `watch_recall`.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (inner, live) = self.now(py)?;
        // Background threads of the index compute "health" from searches for a sample of its
        // vectors.
        let index = inner.at_home(&self.path, "stratann.open")?;
        let mut stats = py.detach(|| match &*live {
            Some(live) => {
                // Computes "trouble" and "health" for users without automatic merges. In that case,
                // no other call examines a sample of the inserted vectors.
                live.due(&MergeWhen::default());
                live.stats()
            }
            // `stats` ignores an unreadable page; `verify` reports it.
            None => index.stats_and_health(&Silent).0,
        });
        stats.live_recall = self.handle.live_recall();
        to_dict(py, &stats)
    }

    /// Measures the recall of the queries that were sampled so far (`watch_recall` of `open`), and
    /// then drops these queries. One thread repeats the search of each sampled query, and compares
    /// the query with all vectors to find the true results. Other searches and changes continue
    /// during the measurement.
    ///
    /// Parameters
    /// ----------
    /// progress : bool or callable, optional
    ///     As in `stratann.build`. Progress counts the compared vectors.
    ///
    /// Returns
    /// -------
    /// dict
    ///     "live_recall" of `stats`. "last" is about the last sample, and "all" about every sample
    ///     since the index was opened. Each is None or a dict:
    ///     - `queries`, and `k` (None if queries asked for different numbers of results);
    ///     - `found`: the mean recall; `lowest`: the lowest recall of a query;
    ///     - `asked`: the mean of the recalls that queries asked for; `found_of_asked`: the mean
    ///       recall of these queries. Both are None if no query asked for a recall.
    ///     "at" is the time of the last measurement in seconds since 1970, and "seconds" its
    ///     duration. "samples_measured" and "thrown_away" count samples. "waiting" is the number of
    ///     queries in the current sample, and "sample" is the maximum of this number. If the last
    ///     sample could not be measured, "error" is the reason.
    #[pyo3(signature = (*, progress=None))]
    fn measure_recall<'py>(
        &self,
        py: Python<'py>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // A failed measurement has discarded the sample, so it is not repeated (`reading`).
        let (inner, live) = self.now(py)?;
        let index = inner.at_home(&self.path, "stratann.open")?;
        let listener = Listener::new(progress)?;
        let (handle, live) = (&self.handle, live.as_ref().map(|live| &***live));
        let known = run(py, &listener, |progress| {
            handle.measure_recall(index, live, progress)
        })?;
        to_dict(py, &known)
    }

    /// Inserts vectors. Searches that begin after the call find them.
    ///
    /// An insert is not atomic. If the call is interrupted or the disk fills up, the index has only
    /// the first rows. The exception says how many rows the index has
    /// (`stratann.Interrupted.done`), and with which ids to insert the missing rows. Alternatively,
    /// repeat the call with `resume=True`, which inserts the missing rows even after the process
    /// was killed.
    ///
    /// Parameters
    /// ----------
    /// vectors : array-like
    ///     (n, d), or (d,) for one vector, converted like the queries of `search`.
    /// ids : array-like of int, optional
    ///     An id for each vector, from 0 to 2^64 - 2: an array, a list, a range or a column. No id
    ///     may be in the index already. With None, ids are the numbers after the largest id that
    ///     the index ever had.
    /// attributes, payload
    ///     Attributes and payloads of the vectors, as in `stratann.build`. For one vector, (d,),
    ///     `attributes` may be a dict of its values, and `payload` is the payload itself, not a
    ///     list. Attributes and payloads become durable together with the vectors.
    /// resume : bool
    ///     Whether to continue an insert that was cut off. Pass the same vectors and the same other
    ///     arguments. The call inserts only the missing rows, and all rows are durable when it
    ///     returns. If no row is missing, it inserts nothing. With `ids`, the index finds by the
    ///     ids which rows are missing, so the first call may pass `resume=True` too. Without `ids`,
    ///     the index recognises an insert of at least 1,000 vectors by its vectors. The index
    ///     recognises even a complete insert, until another insert begins. If the index does not
    ///     recognise the insert, the call raises ValueError. With `resume=False`, a call with the
    ///     vectors of an insert that was cut off raises FileExistsError, since the first rows would
    ///     be in the index twice.
    /// progress : callable, optional
    ///     As in `stratann.build`.
    ///
    /// Returns
    /// -------
    /// ids : numpy.ndarray
    ///     uint64, (n,): the ids of all vectors. None are inserted if there are no vectors.
    #[pyo3(signature = (vectors, ids=None, *, attributes=None, payload=None, resume=false, progress=None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python method"
    )]
    fn insert<'py>(
        &self,
        py: Python<'py>,
        vectors: &Bound<'py, PyAny>,
        ids: Option<&Bound<'py, PyAny>>,
        attributes: Option<&Bound<'py, PyAny>>,
        payload: Option<&Bound<'py, PyAny>>,
        resume: bool,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let rows = self.rows(vectors, VECTORS)?;
        let ids = ids
            .map(|ids| arrays::ids(ids, Some(rows.rows())))
            .transpose()?;
        let (beside, told) = self.table(py, attributes, payload, rows.rows(), rows.is_single())?;
        if rows.rows() == 0 {
            self.handle.change(py)?;
            return Ok(PyArray1::from_vec(py, Vec::new()));
        }
        // All checks come before `change`, which takes the lock of the folder and keeps it until a
        // close.
        let (listener, source) = (Listener::new(progress)?.after(told), rows.source()?);
        let live = self.handle.change(py)?;
        let (beside, total) = (
            beside.as_ref().map(|rows| rows as &dyn RowSource),
            rows.rows(),
        );
        let noted = match (resume, &ids) {
            (true, _) => live.note(),
            (false, None) if total >= NOTED => live.note(),
            _ => None,
        };
        if resume && ids.is_none() && noted.is_none() {
            return Err(InUseError::new_err(format!(
                "resume=True; another thread is inserting vectors into {}. Call again when it is done",
                shown(&self.path)
            )));
        }
        let cut_off = match (resume, &noted) {
            (true, _) => Some(CutOff::Resume),
            (false, Some(_)) => Some(CutOff::Refuse),
            (false, None) => None,
        };
        let written = OnceLock::new();
        let insert = |progress: &dyn Progress| {
            if let Some(cut_off) = cut_off {
                let ids = ids.as_deref();
                let put = live.insert_resumable(&source, beside, ids, cut_off, progress)?;
                let counted = |first: u64| (first..first + total as u64).collect();
                let given = || ids.map(<[u64]>::to_vec);
                return Ok(put.first_id.map(counted).or_else(given).unwrap_or_default());
            }
            match beside {
                Some(beside) => live.insert_rows(&source, beside, ids.as_deref(), progress),
                None => live.insert(&source, ids.as_deref(), progress),
            }
        };
        let inserted = run_rows(py, &listener, Some(total), |progress| {
            insert(progress).inspect(|ids| {
                written.get_or_init(|| shown_ids(ids));
            })
        });
        let inserted = inserted.map_err(|error| {
            // Python may raise a warning or a signal as an exception even after the last row is
            // written.
            if let Some(ids) = written.get() {
                note(
                    py,
                    &error,
                    &format!("The rows are written. Their ids: {ids}"),
                );
            }
            changing(py, error)
        })?;
        Ok(PyArray1::from_vec(py, inserted))
    }

    /// Forgets inserts that were cut off, so that `insert` with `resume=True` no longer continues
    /// them. The ids of their missing rows become free, and the same vectors may be inserted again.
    /// Rows that are in the index stay there. While another thread makes an insert that can be
    /// resumed, the call raises `InUseError`.
    ///
    /// Returns
    /// -------
    /// int
    ///     The number of inserts that were forgotten.
    fn forget_cut_off(&self, py: Python<'_>) -> PyResult<usize> {
        let live = self.handle.change(py)?;
        let Some(_noted) = live.note() else {
            return Err(InUseError::new_err(format!(
                "{}: another thread is inserting vectors. Call forget_cut_off again when it is done",
                shown(&self.path)
            )));
        };
        let forgotten = py.detach(|| {
            let mut files: Vec<String> = (live.cut_off_inserts().into_iter())
                .map(|insert| insert.file)
                .collect();
            files.sort_unstable();
            files.dedup();
            let forget = |file: &String| Ok(live.forget_cut_off(file)?.len());
            files
                .iter()
                .map(forget)
                .sum::<Result<usize, stratann::Error>>()
        });
        let forgotten = forgotten.map_err(to_python);
        forgotten.map_err(|error| changing(py, error))
    }

    /// Inserts vectors. If an id is in the index already, the call replaces its vector, attributes
    /// and payload. Arguments and interruptions are as in `insert`. Making the same call again is
    /// safe.
    #[pyo3(signature = (vectors, ids, *, attributes=None, payload=None, progress=None))]
    fn upsert<'py>(
        &self,
        py: Python<'py>,
        vectors: &Bound<'py, PyAny>,
        ids: &Bound<'py, PyAny>,
        attributes: Option<&Bound<'py, PyAny>>,
        payload: Option<&Bound<'py, PyAny>>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let rows = self.rows(vectors, VECTORS)?;
        let ids = arrays::ids(ids, Some(rows.rows()))?;
        let (beside, told) = self.table(py, attributes, payload, rows.rows(), rows.is_single())?;
        if rows.rows() == 0 {
            self.handle.change(py)?;
            return Ok(());
        }
        let (listener, source) = (Listener::new(progress)?.after(told), rows.source()?);
        let live = self.handle.change(py)?;
        run_rows(py, &listener, Some(rows.rows()), |progress| match &beside {
            Some(beside) => live.upsert_rows(&source, beside, &ids, progress),
            None => live.upsert(&source, &ids, progress),
        })
        .map_err(|error| changing(py, error))
    }

    /// Deletes the vectors with these ids: an array, a list or a column of integers, or a single
    /// integer. Searches that begin after the call do not return these vectors. If an id is not in
    /// the index, the call fails and deletes nothing.
    ///
    /// Instead of ids, the call accepts a `filter`, as in `search`. The call then deletes the
    /// matching vectors in batches, and returns the number of deleted vectors. Ctrl-C ends such a
    /// call between two batches. The exception says how many vectors were deleted; these vectors
    /// stay deleted. `progress`, as in `stratann.build`, has an effect only with a `filter`.
    #[pyo3(signature = (ids=None, *, filter=None, progress=None))]
    fn delete(
        &self,
        py: Python<'_>,
        ids: Option<&Bound<'_, PyAny>>,
        filter: Option<&Bound<'_, PyAny>>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<u64>> {
        let deleted = match (ids, filter) {
            (Some(ids), None) => {
                let ids = arrays::ids(ids, None)?;
                let (listener, live) = (Listener::new(None)?, self.handle.change(py)?);
                // With progress, so that Ctrl-C ends the wait for other calls that change one of
                // these ids.
                run(py, &listener, |progress| {
                    live.delete_observed(&ids, progress)
                })
                .map(|()| None)
            }
            (None, Some(filter)) => {
                let filter = attributes::filter(filter)?;
                let (listener, live) = (Listener::new(progress)?, self.handle.change(py)?);
                run(py, &listener, |progress| {
                    live.delete_matching_observed(&filter, progress)
                })
                .map(Some)
            }
            _ => {
                return Err(PyTypeError::new_err(
                    "delete takes ids or a filter. Pass one of them",
                ));
            }
        };
        deleted.map_err(|error| changing(py, error))
    }

    /// Makes every earlier change durable. With `durability="always"` each change is durable when
    /// its call returns, without `flush`.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.inner()?.at_home(&self.path, "stratann.open")?;
        let held = self.handle.changing()?;
        let Some(live) = &*held else {
            return Ok(());
        };
        live.at_home(&self.path, "stratann.open")?;
        let flushed = py.detach(|| live.flush()).map_err(to_python);
        flushed.map_err(|error| changing(py, error))
    }

    /// Merges all changes into a new checkpoint, and frees the space of deleted vectors. Searches
    /// and other changes continue during the merge.
    ///
    /// Returns a dict. `vectors` is the number of vectors in the new checkpoint. `merged` is the
    /// number of vectors that waited in the log; with direct inserts it is 0, since these vectors
    /// are in the graph already. `removed` is the number of vectors that were deleted or replaced.
    /// The other keys count the segments of vectors that the merge left unchanged or rewrote, the
    /// bytes before and after, and the seconds. If there were no changes, all numbers except
    /// `vectors` are 0.
    #[pyo3(signature = (*, progress=None))]
    fn compact<'py>(
        &self,
        py: Python<'py>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (listener, live) = (Listener::new(progress)?, self.handle.change(py)?);
        let report = run(py, &listener, |progress| live.compact(progress))
            .map_err(|error| changing(py, error))?;
        to_dict(py, &report)
    }

    /// Copies the current index to the folder `dest`. The folder must be empty, or is created.
    /// Searches and changes of all processes continue during the copy.
    ///
    /// The copy has every change that was acknowledged before this call began, including changes of
    /// other processes. The copy has a change that is made during the call completely, or not at
    /// all. When this call returns, the copy is durable; before that, it cannot be opened as an
    /// index. If the process is killed during the call, a file SNAPSHOT.new stays in `dest`. The
    /// next snapshot to `dest` then removes the unfinished files and starts from the beginning.
    ///
    /// Parameters
    /// ----------
    /// dest : path
    ///     The folder of the copy. It must not be inside the index.
    /// progress : bool or callable, optional
    ///     As in `stratann.build`. Progress counts the copied bytes.
    ///
    /// Returns
    /// -------
    /// dict
    ///     `checkpoint`, `files`, `bytes`, `shared_bytes` (bytes in blocks that the copy shares
    ///     with the index, if the file system can share blocks), `log_records` (changes since the
    ///     checkpoint), `tries` and `seconds`.
    #[pyo3(signature = (dest, *, progress=None))]
    fn snapshot<'py>(
        &self,
        py: Python<'py>,
        dest: PathBuf,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.inner()?.at_home(&self.path, "stratann.open")?;
        let (_, live) = self.now(py)?;
        let listener = Listener::new(progress)?;
        if let Some(live) = &*live {
            live.at_home(&self.path, "stratann.open")?;
        }
        let report = run(py, &listener, |progress| match &*live {
            Some(live) => live.snapshot(&dest, progress),
            None => stratann::snapshot(self.handle.home(), &dest, progress),
        })?;
        to_dict(py, &report)
    }

    /// Writes all vectors of the index to the file `out`, and their ids and attributes to files
    /// beside it. The n-th entry of each file belongs to the same vector. The entries have the
    /// order of the vectors on storage. All files show the index at one time, and the vectors are
    /// equal to the bit to the inserted ones. Searches and changes continue during the export.
    ///
    /// Parameters
    /// ----------
    /// out : path
    ///     The file of vectors: .npy, or .fbin .hbin .u8bin .i8bin, by the dtype.
    /// ids : path, optional
    ///     The file of ids: .npy (uint64), or with any other extension one decimal number per line.
    ///     None is `x.ids.npy` if `out` is `x.npy`, else `x.ids`.
    /// attributes : path, optional
    ///     The file of attributes and payloads, with one JSON object per line. None is `x.jsonl`,
    ///     if the index has attributes or payloads; otherwise there is no such file.
    /// overwrite : bool
    ///     Whether to replace existing files.
    /// progress : bool or callable, optional
    ///     As in `stratann.build`. Progress counts the written vectors.
    ///
    /// Returns
    /// -------
    /// dict
    ///     `vectors`, `dimension`, `element`, `seconds`, and the files `out`, `ids` and
    ///     `attributes` (None if it was not written). `times` lists the columns of times; the file
    ///     of attributes has them in microseconds since 1970. `payload` is the key of the payload,
    ///     or None.
    #[pyo3(signature = (out, *, ids=None, attributes=None, overwrite=false, progress=None))]
    fn export<'py>(
        &self,
        py: Python<'py>,
        out: PathBuf,
        ids: Option<PathBuf>,
        attributes: Option<PathBuf>,
        overwrite: bool,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let listener = Listener::new(progress)?;
        let options = stratann::ExportOptions {
            ids,
            attributes,
            overwrite,
        };
        let report = self.reading(py, |index, live| {
            run(py, &listener, |progress| match live {
                Some(live) => live.export(&out, &options, progress),
                None => index.export(&out, &options, progress),
            })
        })?;
        to_dict(py, &report)
    }

    /// Ends the changes of this object and makes them durable. A later change opens the index for
    /// changes again. Searches continue during and after `close`, and find all changes.
    ///
    /// If another object of the process has changed the index too, the index stays open for changes
    /// until the last of these objects is closed. The last `close` waits for changes of other
    /// threads, and merges if a merge is due. Ctrl-C interrupts this merge, and the next merge
    /// starts from the beginning. Then `close` waits up to two seconds for searches of other
    /// threads, and releases the folder's lock. If a search takes longer, the lock is released when
    /// the search ends.
    ///
    /// The end of a `with` block closes the index, without a merge if an exception ends the block.
    /// If `close` cannot open the index again for reading, it raises the error, and the index stays
    /// open for changes. A progress callback of a change, or a signal handler that runs during a
    /// change, cannot close the index: there, `close` raises an error.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.end_changes(py, true)
    }

    /// Whether this object has the latest changes of the index. The result is False if another
    /// process has changed the index since this object opened it; `refresh` then opens the newer
    /// index. The result is also False if the folder was moved, removed or replaced.
    fn is_current(&self, py: Python<'_>) -> PyResult<bool> {
        let (inner, live) = self.now(py)?;
        py.detach(|| match &*live {
            Some(live) => live.is_current(),
            None => inner.is_current(),
        })
        .map_err(to_python)
    }

    /// If another process has changed the index since this object opened it, opens it again.
    /// Returns whether the index was opened again. Raises OutdatedError if an object of this
    /// process has the index open for changes, but accepts no more changes.
    fn refresh(&self, py: Python<'_>) -> PyResult<bool> {
        if self.is_current(py)? {
            return Ok(false);
        }
        let outdated = || {
            OutdatedError::new_err(format!(
                "{}: this object changed an index that was removed or replaced, or it takes no more changes. Close it. Open it again with stratann.open",
                shown(&self.path)
            ))
        };
        if self.handle.has_changed()? {
            return Err(outdated());
        }
        self.handle.open_again(py)?;
        // Another object has the same folder open for changes, but accepts no more changes.
        // Searches use that object until it is closed.
        let held = self.handle.changing()?;
        if let Some(live) = &*held
            && !py.detach(|| live.is_current()).map_err(to_python)?
        {
            return Err(outdated());
        }
        Ok(true)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        // After an exception, such as Ctrl-C, the block does not wait for a merge.
        self.handle.end_changes(py, kind.is_none())
    }

    /// Reads the whole index and checks it, as `stratann.verify` does.
    #[pyo3(signature = (*, progress=None))]
    fn verify<'py>(
        &self,
        py: Python<'py>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        verify(py, self.handle.home().to_owned(), None, progress)
    }

    /// The dimension: the number of elements of a vector.
    #[getter]
    fn dim(&self) -> PyResult<usize> {
        Ok(self.inner()?.dim())
    }

    /// The metric that measures distances: "l2", "ip" or "cosine".
    #[getter]
    fn metric(&self) -> PyResult<&'static str> {
        Ok(self.inner()?.metric().name())
    }

    /// The numpy dtype of the vectors. Queries are converted to it.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("numpy")?
            .call_method1("dtype", (dtype_name(self.inner()?.element()),))
    }

    /// The columns of attributes: a dict of names and types ("boolean", "integer", "float",
    /// "string", "timestamp", "list of strings", "list of integers").
    #[getter]
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        attributes::columns(py, &self.schema(py)?)
    }

    /// The arguments of `stratann.build` with which the index was built, as far as the index
    /// records them.
    #[getter]
    fn _built_with<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let options = self.inner()?.build_options().map_err(to_python)?;
        shape::arguments(py, &options)
    }

    /// For `stratann.documents`: the given attributes and the payload of each id, and with
    /// `vectors` also `stratann.Rows`. All parts of a row are of one state.
    fn _records<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
        names: Vec<String>,
        vectors: bool,
    ) -> PyResult<Records<'py>> {
        let ids = arrays::ids_asked(ids, ANSWERS)?;
        let (found, mut rows) = match vectors {
            true => {
                let read = self.reading(py, |index, live| {
                    let read = |progress: &dyn Progress| match live {
                        Some(live) => live.vectors_with_rows(&ids, progress),
                        None => index.vectors_with_rows(&ids, progress),
                    };
                    match ids.len() < WATCHED {
                        true => py.detach(|| read(&Silent)).map_err(to_python),
                        false => run(py, &Listener::new(None)?, read),
                    }
                });
                let (found, rows) = read?;
                (Some(lookups::rows(py, found)?), rows)
            }
            false => (None, self.beside(py, &ids)?),
        };
        for row in rows.iter_mut().flatten() {
            row.attributes.retain(|name, _| names.contains(name));
        }
        let payload = attributes::payloads(py, &rows)?;
        Ok((attributes::attributes(py, rows)?, payload, found))
    }

    /// Whether this object has made changes since it was last closed.
    #[getter]
    fn _has_changed(&self) -> PyResult<bool> {
        self.handle.has_changed()
    }

    /// The name of the preset with which the index was built.
    #[getter]
    fn preset(&self) -> PyResult<String> {
        Ok(self.inner()?.preset().to_string())
    }

    /// The folder of the index.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("pathlib")?
            .getattr("Path")?
            .call1((self.path.as_os_str(),))
    }

    /// The report of the build, if this object was returned by `stratann.build`; else None.
    #[getter]
    fn build_report(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.report.as_ref().map(|report| report.clone_ref(py))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.vectors(py)
    }

    /// Called for a name that the class does not have.
    fn __getattr__(slf: &Bound<'_, Self>, name: &str) -> PyResult<Py<PyAny>> {
        Err(PyErr::from_value(
            no_attribute(slf.as_any(), name)?.into_any(),
        ))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let path = PyString::new(py, &shown(&self.path)).repr()?;
        Ok(format!(
            "stratann.Index({path}, {} vectors, dim={}, dtype={}, metric={:?}, preset={:?})",
            self.vectors(py)?,
            self.dim()?,
            dtype_name(self.inner()?.element()),
            self.metric()?,
            self.preset()?,
        ))
    }
}

impl Index {
    fn set_rows(
        &self,
        py: Python<'_>,
        ids: usize,
        (progress, told): (Option<&Bound<'_, PyAny>>, Vec<String>),
        set: impl FnOnce(&LiveIndex, &dyn Progress) -> Result<(), stratann::Error> + Send,
    ) -> PyResult<()> {
        let (listener, live) = (
            Listener::new(progress)?.after(told),
            self.handle.change(py)?,
        );
        run_rows(py, &listener, Some(ids), |progress| set(&live, progress))
            .map_err(|error| changing(py, error))
    }

    /// The vectors with these ids. With many ids, Ctrl-C ends the look-up.
    fn look_up(
        &self,
        py: Python<'_>,
        ids: &[u64],
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<stratann::Rows> {
        let listener = Listener::new(progress)?;
        self.reading(py, |index, live| {
            let look_up = |progress: &dyn Progress| match live {
                Some(live) => live.vectors(ids, progress),
                None => index.vectors(ids, progress),
            };
            match ids.len() < WATCHED && progress.is_none() {
                true => py.detach(|| look_up(&Silent)).map_err(to_python),
                false => run(py, &listener, look_up),
            }
        })
    }

    pub fn beside(&self, py: Python<'_>, ids: &[u64]) -> PyResult<Vec<Option<stratann::Row>>> {
        self.reading(py, |index, live| {
            py.detach(|| match live {
                Some(live) => live.attributes(ids),
                None => index.attributes(ids),
            })
            .map_err(to_python)
        })
    }

    pub fn rows<'py>(&self, value: &Bound<'py, PyAny>, name: &'static str) -> PyResult<Rows<'py>> {
        let inner = self.inner()?;
        Rows::matrix_or_row(value, name, inner.element(), inner.dim())
    }
}

/// Checks the arguments of a search without queries.
fn check(
    index: &stratann::Index,
    live: Option<&Arc<LiveIndex>>,
    options: &SearchOptions,
    filter: Option<&Filter>,
) -> PyResult<()> {
    let checked = match live {
        Some(live) => live.check_search(options),
        None => index.check_search(options),
    };
    checked.map_err(to_python)?;
    let Some(filter) = filter else {
        return Ok(());
    };
    let checked = match live {
        Some(live) => live.check_filter(filter),
        None => index.check_filter(filter),
    };
    checked.map_err(to_python)
}

/// A text with the first ids, and the number of all ids if there are more.
fn shown_ids(ids: &[u64]) -> String {
    let first: Vec<String> = ids.iter().take(SHOWN).map(u64::to_string).collect();
    match ids.len() > SHOWN {
        true => format!("{}, .. ({} in all)", first.join(", "), ids.len()),
        false => first.join(", "),
    }
}

/// Opens the index in the folder `path`.
///
/// To open and search an index, a process needs no lock and no write permission, even while another
/// process changes the index. The first change takes the folder's lock. `close`, or the end of a
/// `with` block, releases the lock. Several objects of one process may change the same folder
/// together, if they were opened with the same options. Each object finds the changes of all of
/// them.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     The folder that `stratann.build` or the command line made.
/// memory : int or str, optional
///     The maximum RAM that the index uses: bytes, or "64MiB".
/// io : str
///     The interface for reads of the SSD: "auto", "uring" or "pread".
/// cache : int or str, optional
///     The size of a cache of recently read adjacency lists and the vectors stored beside them:
///     bytes, or "16MiB". The cache is part of `memory`. None is no cache.
/// cache_entries : int or str, optional
///     The size of the cache as a number of nodes, or in percent of the vectors: "1%".
/// navigation : bool, optional
///     Whether `memory` must include the navigation graph, so that searches can start from it. None
///     takes the preset's value. Without `memory`, every search can use this graph.
/// place : dict or str, optional
///     The tier from which searches read each role ("topology", "vectors"): {"topology":
///     "mapped:/dev/shm/x", "vectors": "dram"}, or the text
///     "topology=mapped:/dev/shm/x,vectors=dram". Tiers are "ssd" (the index itself),
///     "ssd:/folder", "mapped:/folder", "dram" and, for experiments, "ssd-model", "rdma-model",
///     "cxl-model", "nvm-model". `open` makes missing copies in these tiers, and compares existing
///     copies with the index. The index stays complete without the copies.
/// durability : str or int
///     The time at which changes are durable: "always" (when the call returns), "flush" (when
///     `flush`, `close` or `compact` returns), or a number of milliseconds (at most this long after
///     the call).
/// watch_recall : int, optional
///     The number of queries, up to 1,000, in a sample of this object's searches; 64 is a good
///     start. When the sample is full, a thread repeats its searches, compares their queries with
///     all vectors, and so measures the recall. `stats` then reports the recall ("live_recall").
///     After a measurement, the thread sleeps 19 times as long as the measurement took.
///     `measure_recall` measures immediately. With None, and after unpickling, the object has no
///     sample. While another object changes the folder, searches of this object are still sampled
///     and measured.
/// merges : bool
///     Whether merges start automatically in the background, from the first change on. With False,
///     only `compact` merges. A merge is due in each of these cases (docs/changes.md has the
///     numbers):
///     - a tenth of the vectors was deleted or replaced;
///     - searches read a tenth more than they would without deleted vectors;
///     - many vectors wait in memory;
///     - a small index has four times as many vectors as at its last build or merge;
///     - 1 % of the vectors are of a kind that the codes do not fit;
///     - a graph takes many more pages than a build of its vectors would;
///     - in the layout "grouped", the vectors of many clusters are scattered over the file.
#[pyfunction]
#[pyo3(signature = (path, *, memory=None, io="auto", cache=None, cache_entries=None, navigation=None,
    place=None, durability=None, merges=true, watch_recall=None))]
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
    #[pyo3(from_py_with = crate::arguments::count_or_none::watch_recall)] watch_recall: Option<
        usize,
    >,
) -> PyResult<Index> {
    let path = existing(path, "index")?;
    let opening = Opening {
        memory,
        io,
        cache,
        cache_entries,
        navigation,
        place,
        durability,
        merges,
        watch_recall,
    };
    opening.open(py, path, None)
}

/// Reads the whole index in the folder `path` and checks every header, checksum, list and id.
///
/// Returns a dict that counts the checked parts. Its key `problems` is a list of dicts with file,
/// offset, fault and remedy. The list is empty if the index has no damage. With `place`, as in
/// `open`, the call checks the copies in these places instead of the originals.
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

/// A value of the engine as Python objects, with the same keys as the JSON output of the command.
pub fn to_dict<'py, T: serde::Serialize>(
    py: Python<'py>,
    value: &T,
) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(value)
        .map_err(|error| crate::errors::StratannError::new_err(error.to_string()))?;
    py.import("json")?.call_method1("loads", (text,))
}
