//! `stratann.Index`: an open index, and its searches.

use std::path::PathBuf;
use std::sync::Arc;

use numpy::PyArray1;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use stratann::data::RowSource;
use stratann::{
    CutOff, LiveIndex, Matrix, MergeWhen, OpenOptions, Progress, SearchOptions, Silent,
    VectorSource,
};

use crate::arguments::{existing, places, shown};
use crate::arrays::{self, ANSWERS, Rows, dtype_name};
use crate::asynchronous;
use crate::attributes::{self, Table};
use crate::errors::{InUseError, changing, to_python};
use crate::handle::{Handle, Now};
use crate::lookups;
use crate::near;
use crate::opening::Opening;
use crate::process::Opened;
use crate::progress::{Listener, run, run_rows};
use crate::searching::{Asked, OF_INDEX, WATCHED, answers, nothing};
use crate::writer::Changes;

/// An index on disk, open for search. Any number of Python threads may search and change it at once, through one object or through several of the same
/// folder; a forked process opens it anew.
#[pyclass(frozen, module = "stratann")]
pub struct Index {
    handle: Handle,
    pub path: PathBuf,
    report: Option<Py<PyAny>>,
    /// The Python arguments with which it was opened, to open it again. `None` if it shares a
    /// catalog's memory.
    arguments: Option<Py<PyDict>>,
}

/// The name of the argument with the vectors to insert.
const VECTORS: &str = "vectors";

/// The least number of rows of an insert without ids that is recorded, so that it can be resumed
/// after a kill. With fewer rows, a user soon finds which are missing.
const NOTED: usize = 1_000;

impl Index {
    /// Opens the index in the folder `path`.
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

    /// For an index that a catalog has opened. `before`: the value of
    /// [`closes`](crate::writer::closes) before that.
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

    /// Holds all locks during `work`.
    #[cfg(feature = "testing")]
    pub fn while_locked<T>(&self, work: impl FnOnce() -> T) -> T {
        self.handle.while_locked(work)
    }

    /// The index and changes for a search now.
    pub fn now(&self, py: Python<'_>) -> PyResult<Now> {
        self.handle.now(py)
    }

    /// Attributes and payloads for vectors, by the columns of this index.
    fn table(
        &self,
        py: Python<'_>,
        attributes: Option<&Bound<'_, PyAny>>,
        payload: Option<&Bound<'_, PyAny>>,
        rows: usize,
        single: bool,
    ) -> PyResult<Option<Table>> {
        let columns = attributes.map(|_| self.columns(py)).transpose()?;
        Table::of(py, attributes, payload, rows, single, columns)
    }

    /// Ids, and the attributes and payloads to set for them; `None` if none were given.
    fn rows_to_set(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        attributes: Option<&Bound<'_, PyAny>>,
        payload: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<(Vec<u64>, Table)>> {
        let single = lookups::id(ids).is_ok();
        let ids = arrays::ids_asked(ids, "the attributes")?;
        let rows = self.table(py, attributes, payload, ids.len(), single)?;
        Ok(rows.map(|rows| (ids, rows)))
    }

    /// Number of vectors that a search can find.
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
    ///     (nq, d), or (d,) for one query. A C-contiguous array of the index's dtype is read in place: do not write to it until this
    ///     returns. Lists, other arrays and columns of pandas, polars and pyarrow are converted; floats only become integers where they
    ///     are some.
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
    ///     "best-first", "pipelined" or "press"; None takes the preset's.
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
    /// rerank_ratio : float, optional
    ///     The share of the candidate list that is ranked, at least `k`, all at once and only when the list is done; 0 goes by
    ///     `rerank`. None takes the preset's.
    /// low_list : float, optional
    ///     With the strategy "press": the longest list of candidates by codes of low precision, as a multiple of `list_size`. None is 3; 2 in DistVS.
    /// refine : float, optional
    ///     With the strategy "press": the share of that list that is looked at by codes of high precision in each round. None is 0.2; 0.3 in DistVS.
    /// seeds : int, optional
    ///     Without a navigation graph: nodes that are looked at first by their codes (of low precision, where there are two), near the nearest of which a search begins; 0 is the
    ///     graph's entry node, as in DistVS. None is 64 with the strategy "press", else 0.
    /// exact : bool
    ///     Whether distances are exact in the layered layout, too: the trailing parts of all answers are read for that. With False a search reads
    ///     less. Answers that were in no doubt then have the distance that the leading part of their vector gives reason to expect, so that
    ///     distances and the order of near ones are estimates. Under "l2" and "cosine" none is below 0. `stats["distance_error"]` says how far off
    ///     they may be. In all other layouts distances are exact with either.
    /// stop_early : bool
    ///     Whether a search ends when no candidate that is left can be expected to be an answer or to lead to one, as far as the error of the
    ///     codes that it has met tells. With the same list_size that reads less and finds a little less.
    /// recall : float, optional
    ///     The share of the true `k` nearest that is to be found, above 0 and up to 1, in place of `list_size`: each query looks at as many candidates as
    ///     that takes, or probes as many clusters, by what was measured when the index was built, or by `stratann.calibrate` with queries of your own.
    ///     It goes neither with `probes` nor with `stop_early`, and with no `strategy` that finds otherwise than the preset's: "press" and the others do,
    ///     "best-first" and "pipelined" find the same. Where vectors stand apart from lists, as with "distvs" and "decouplevs", it goes with no other
    ///     re-ranking than the preset's.
    /// filter : str or stratann.Filter, optional
    ///     What attributes answers have: "year >= 2020 and tags contains 'sea' and not sold == true". Where `k` vectors or more match there are `k` answers, and a
    ///     list that adapts to how many do. See `stratann.Filter`, and `Index.columns` for what there is to ask.
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
    ///     (0 where all are exact; else, in the layered layout, four standard deviations of the least certain); with a `filter` under that key how many
    ///     vectors match (`matching`), the `way` in which they were found, the `list` that it came to, how much each way was expected to read
    ///     for a query (`estimates`), and how many queries went on by "before" since they met too little (`dry`); and `queries`, `seconds`, `cpu_seconds` and `latencies_us`, one for each query.
    #[pyo3(signature = (queries, k=10, **options),
        text_signature = "($self, queries, k=10, *, list_size=None, probes=None, beam=None, strategy=None, navigation=None, whole_page=None, rerank_batch=None, benefit=None, rerank=None, rerank_ratio=None, low_list=None, refine=None, seeds=None, exact=True, stop_early=False, recall=None, filter=None, threads=None, in_flight=None, return_stats=False)")]
    fn search<'py>(
        &self,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = crate::arguments::count::k)] k: usize,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let asked = Asked::read("Index.search", &[OF_INDEX, &["filter"]], options)?;
        let rows = self.rows(queries, "queries")?;
        let (inner, live) = self.now(py)?;
        let index = inner.at_home(&self.path, "stratann.open")?;
        let options = asked.options(k, Some(index))?;
        let filter = asked.filter.as_ref().map(attributes::filter).transpose()?;
        let search = |source: &dyn VectorSource, progress: &dyn Progress| match (&*live, &filter) {
            (Some(live), None) => live.search_observed(source, &options, progress),
            (None, None) => index.search_observed(source, &options, progress),
            (Some(live), Some(filter)) => {
                live.search_filtered_observed(source, &options, filter, progress)
            }
            (None, Some(filter)) => {
                index.search_filtered_observed(source, &options, filter, progress)
            }
        };
        let results = if rows.rows() == 0 {
            match &*live {
                Some(live) => live.check_search(&options),
                None => index.check_search(&options),
            }
            .map_err(to_python)?;
            if let Some(filter) = &filter {
                match &*live {
                    Some(live) => live.check_filter(filter),
                    None => index.check_filter(filter),
                }
                .map_err(to_python)?;
            }
            nothing(k)
        } else {
            let source = rows.source()?;
            let found = if rows.rows() < WATCHED {
                py.detach(|| search(&source, &Silent)).map_err(to_python)?
            } else {
                run(py, &Listener::new(None)?, |progress| {
                    search(&source, progress)
                })?
            };
            let handle = &self.handle;
            handle.has_served(index, &source, &options, filter.as_ref());
            found
        };
        // For clusters this is the number of probes, which trades recall for speed.
        let options = SearchOptions {
            list: index.longest_list(&options).map_err(to_python)?,
            ..options
        };
        answers(py, results, &options, rows.is_single(), asked.return_stats)
    }

    /// Begins to search as `search` does, and gives what an async function awaits: `ids, distances = await index.search_async(queries)`.
    ///
    /// The search goes on by itself, without a thread of Python's: any number of them may be begun at once, and their number is the caller's to bound.
    /// One whose task is cancelled ends as soon as its reads come in. The queries are copied. All else is as in `search`; what matches a `filter` is found
    /// by one of the threads that search, before the search begins.
    ///
    /// Parameters
    /// ----------
    /// timeout : float, optional
    ///     Seconds after which the search ends with a TimeoutError; None is never.
    ///
    /// Returns
    /// -------
    /// awaitable
    ///     Of what `search` returns. It belongs to the event loop that runs.
    #[pyo3(signature = (queries, k=10, **options),
        text_signature = "($self, queries, k=10, *, list_size=None, probes=None, beam=None, strategy=None, navigation=None, whole_page=None, rerank_batch=None, benefit=None, rerank=None, rerank_ratio=None, low_list=None, refine=None, seeds=None, exact=True, stop_early=False, recall=None, filter=None, threads=None, in_flight=None, return_stats=False, timeout=None)")]
    fn search_async<'py>(
        &self,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = crate::arguments::count::k)] k: usize,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let more = [OF_INDEX, &["filter", "timeout"]];
        let asked = Asked::read("Index.search_async", &more, options)?;
        let filter = asked.filter.as_ref().map(attributes::filter).transpose()?;
        let rows = self.rows(queries, "queries")?;
        let deadline = asynchronous::deadline(asked.timeout)?;
        let (inner, live) = self.now(py)?;
        let index = inner.at_home(&self.path, "stratann.open")?;
        let options = asked.options(k, Some(index))?;
        let search = if rows.rows() == 0 {
            match &*live {
                Some(live) => live.check_search(&options),
                None => inner.check_search(&options),
            }
            .map_err(to_python)?;
            if let Some(filter) = &filter {
                match &*live {
                    Some(live) => live.check_filter(filter),
                    None => index.check_filter(filter),
                }
                .map_err(to_python)?;
            }
            asynchronous::Search::ended(nothing(k))
        } else {
            let queries = Matrix::read(&rows.source()?).map_err(to_python)?;
            let handle = &self.handle;
            handle.has_served(index, &queries, &options, filter.as_ref());
            let submitted = py.detach(|| match (&*live, &filter) {
                (Some(live), None) => live.submit(queries, &options, deadline),
                (None, None) => inner.value().submit(queries, &options, deadline),
                (Some(live), Some(filter)) => {
                    live.submit_filtered(queries, &options, filter, deadline)
                }
                (None, Some(filter)) => {
                    let index = inner.value();
                    index.submit_filtered(queries, &options, filter, deadline)
                }
            });
            asynchronous::Search::begun(submitted.map_err(to_python)?)
        };
        search.answered(py, options, rows.is_single(), asked.return_stats)
    }

    /// All vectors within a distance of one query, nearest first, some at a time.
    ///
    /// Parameters
    /// ----------
    /// query : array-like
    ///     (d,), converted as those of `search`.
    /// distance : float
    ///     How far an answer may be, as distances of answers are: squared Euclidean, minus the inner product, or 1 - cos.
    /// most : int
    ///     Answers of a page, at most. What a page takes of memory is bounded by how many answers it ends behind.
    /// after : tuple, optional
    ///     `next` of the page before; None is the first page.
    /// without : int, optional
    ///     An id that is no answer: that of the query, if it is in the index.
    /// list_size, probes, filter, threads : optional
    ///     As in `search`; of `list_size` at least twice as many candidates are kept as there are answers.
    ///
    /// Returns
    /// -------
    /// stratann.Page
    ///     `ids` (uint64) and exact `distances` (float32), (n,); `next`, where the next page begins, or None; `complete`: whether it is certain that
    ///     none was missed. It is where all that may be answers were met; otherwise some may have been, as in any search by a graph.
    #[pyo3(signature = (query, distance, *, most=1000, after=None, without=None, list_size=None, probes=None, filter=None, threads=None))]
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
        #[pyo3(from_py_with = crate::arguments::count_or_none::threads)] threads: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
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
        near::range(py, self, query, range, &told)
    }

    /// The nearest to vectors of the index, by their ids: what is like them. A vector is no answer to itself; others that are the same are.
    ///
    /// Parameters
    /// ----------
    /// ids : int or array-like of int
    ///     One or many, all of which are in the index.
    /// k, list_size, probes, recall, filter, threads, return_stats : optional
    ///     As in `search`.
    ///
    /// Returns
    /// -------
    /// ids, distances : numpy.ndarray
    ///     As those of `search`, (n, k), or (k,) for one id.
    #[pyo3(signature = (ids, k=10, *, list_size=None, probes=None, recall=None, filter=None, threads=None, return_stats=false))]
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
        #[pyo3(from_py_with = crate::arguments::count_or_none::threads)] threads: Option<usize>,
        return_stats: bool,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let told = near::Told {
            list_size,
            probes,
            filter,
            threads,
        };
        near::like(py, self, ids, (k, recall, return_stats), &told)
    }

    /// The vectors of ids, to the bit, and which ids are not in the index.
    ///
    /// Parameters
    /// ----------
    /// ids : array-like of int
    ///     As those of `delete`; one that is there twice comes twice.
    ///
    /// Returns
    /// -------
    /// stratann.Rows
    ///     `ids` (uint64, (n,)), those that are in the index in the order in which they were asked for; `vectors`, (n, d) of the index's dtype;
    ///     `missing` (uint64), the others.
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
    ///     Those behind this one; None is from the first on.
    /// count : int, optional
    ///     At most so many; None is all that are left.
    /// filter : str or stratann.Filter, optional
    ///     Only those of vectors whose attributes match it.
    ///
    /// Returns
    /// -------
    /// ids : numpy.ndarray
    ///     uint64, (n,). Whoever asks again with the last one meets every id once that is in the index throughout.
    #[pyo3(signature = (after=None, count=None, *, filter=None))]
    fn ids<'py>(
        &self,
        py: Python<'py>,
        after: Option<u64>,
        #[pyo3(from_py_with = crate::arguments::count_or_none::count)] count: Option<usize>,
        filter: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let (inner, live) = self.now(py)?;
        let index = inner.at_home(&self.path, "stratann.open")?;
        let most = count.unwrap_or(usize::MAX);
        let filter = filter.map(attributes::filter).transpose()?;
        let ids = py.detach(|| match (&*live, &filter) {
            (Some(live), None) => live.ids(after, most),
            (None, None) => index.ids(after, most),
            (Some(live), Some(filter)) => live.ids_matching(filter, after, most),
            (None, Some(filter)) => index.ids_matching(filter, after, most),
        });
        Ok(PyArray1::from_vec(py, ids.map_err(to_python)?))
    }

    /// How many vectors there are, or how many match a filter: by the columns alone, without a search.
    ///
    /// Parameters
    /// ----------
    /// filter : str or stratann.Filter, optional
    ///     As that of `search`; None counts all.
    #[pyo3(signature = (filter=None))]
    fn count(&self, py: Python<'_>, filter: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        let (inner, live) = self.now(py)?;
        let index = inner.at_home(&self.path, "stratann.open")?;
        let Some(filter) = filter.map(attributes::filter).transpose()? else {
            return Ok(self.vectors(py)? as u64);
        };
        py.detach(|| match &*live {
            Some(live) => live.count(&filter),
            None => index.count(&filter),
        })
        .map_err(to_python)
    }

    /// The attributes of ids.
    ///
    /// Parameters
    /// ----------
    /// ids : array-like of int
    ///     As those of `get`.
    ///
    /// Returns
    /// -------
    /// list of dict
    ///     A dict for each id, of its columns that have a value; None for an id that is not in the index. Times are datetimes in UTC (numpy.datetime64 beyond the
    ///     years that these know).
    fn attributes<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let rows = self.beside(py, ids)?;
        attributes::attributes(py, rows)
    }

    /// The payloads of ids: a list with what was given for each, None where that was nothing or the id is not in the index.
    fn payload<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let rows = self.beside(py, ids)?;
        attributes::payloads(py, rows)
    }

    /// Gives vectors that are in the index other attributes and another payload, in place of all that they had: a vector keeps nothing that is not given
    /// again. The vectors stay. An id that is not in the index is an error, and then none is changed. A name that no vector has yet is a new column: `columns`
    /// says which there are. Interrupted by Ctrl-C in the middle it raises `stratann.Interrupted`, which says how many are set; the same call again does no harm.
    ///
    /// Parameters
    /// ----------
    /// ids : array-like of int
    ///     One for each row of attributes, in their order; or one integer, with one dict.
    /// attributes, payload
    ///     As those of `stratann.build`, for each id.
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
        let Some((ids, rows)) = self.rows_to_set(py, ids, attributes, payload)? else {
            return Err(PyTypeError::new_err(
                "set_attributes takes attributes, a payload, or both: pass [{}] * len(ids) for none at all",
            ));
        };
        self.set_rows(py, ids.len(), progress, |live, progress| {
            live.set_attributes(&ids, &rows, progress)
        })
    }

    /// As `set_attributes`, but what is not given stays: attributes of other names, and the payload. None takes an attribute away, as does an empty list; with
    /// a list of ids a payload of None in the list takes the payload. In a list of dicts each leaves alone what it does not name; a table names all of its columns for each row, so that NaN takes away. Calls of
    /// several threads for the same id are put in order, so that none loses what another one set.
    ///
    /// Parameters
    /// ----------
    /// ids, attributes, payload, progress
    ///     As those of `set_attributes`.
    #[pyo3(signature = (ids, attributes=None, *, payload=None, progress=None))]
    fn update_attributes<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
        attributes: Option<&Bound<'py, PyAny>>,
        payload: Option<&Bound<'py, PyAny>>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let Some((ids, rows)) = self.rows_to_set(py, ids, attributes, payload)? else {
            return Err(PyTypeError::new_err(
                "update_attributes takes attributes, a payload, or both",
            ));
        };
        self.set_rows(py, ids.len(), progress, |live, progress| {
            live.update_attributes(&ids, &rows, progress)
        })
    }

    /// Ids and vectors of all that is in the index, in the order of ids, some at a time: an iterator over `stratann.Rows`. What is in the index
    /// throughout comes once; a vector is what it was when its rows were read.
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
        // A value that cannot be an id is no vector's id.
        let Ok(Some(id)) = lookups::id(id) else {
            return Ok(false);
        };
        let (inner, live) = self.now(py)?;
        let index = inner.at_home(&self.path, "stratann.open")?;
        py.detach(|| match &*live {
            Some(live) => live.contains(id),
            None => index.contains(id),
        })
        .map_err(to_python)
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let rows = slf.py().import("stratann.rows")?;
        rows.call_method1("every_id", (slf,))
    }

    /// Pickled, it is the path and what it was opened with: whoever unpickles it, as a worker process does, opens the index for reading.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let Some(arguments) = &self.arguments else {
            return Err(PyTypeError::new_err(format!(
                "{}: an index of a catalog shares its memory, and is not pickled: open the catalog in the other process",
                shown(&self.path)
            )));
        };
        let reopen = py.import("stratann.rows")?.getattr("reopen")?;
        let path = self.handle.home().to_owned().into_pyobject(py)?;
        let arguments = (path, arguments.bind(py).copy()?);
        PyTuple::new(py, [reopen, arguments.into_pyobject(py)?.into_any()])
    }

    /// Facts about the index: its preset, sizes in bytes, degrees, and what `stratann stats` shows.
    ///
    /// "trouble" is None, or the gravest of what went wrong without a call that failed for it, where the index is open for changes:
    /// no more changes through this object, a checkpoint that may not be durable, vectors that wait in memory, a checkpoint or
    /// a merge that could not be made. Of vectors of a kind that the codes are not made for, which are found badly until a merge, it also tells where the
    /// index is open for reading. "health" has their share of all ("drifted"; None where few came since the last build or merge, or nobody has looked: since
    /// no change has yet, the `memory` has no room for a sample of 128 vectors, or the build was given a codebook, which stays). "live_recall" is None, or what
    /// `measure_recall` returns, of an object that was opened with `watch_recall`.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (inner, live) = self.now(py)?;
        // Threads search for the sample from which its health is computed.
        let index = inner.at_home(&self.path, "stratann.open")?;
        let mut stats = py.detach(|| match &*live {
            Some(live) => {
                // Computes the reason for a merge, for users without automatic merges. Nothing else
                // examines a sample of the inserted vectors then.
                live.due(&MergeWhen::default());
                live.stats()
            }
            // An unreadable page is left to `verify`.
            None => index.stats_and_health(&Silent).0,
        });
        stats.live_recall = self.handle.live_recall();
        to_dict(py, &stats)
    }

    /// Measures how much of the true nearest searches find, by the queries that were sampled so far (`watch_recall` of `open`), and forgets these. Each of
    /// them is searched again, and all vectors are looked at, on one thread. Searches and changes go on meanwhile.
    ///
    /// Parameters
    /// ----------
    /// progress : bool or callable, optional
    ///     As that of `build`: vectors that are looked at.
    ///
    /// Returns
    /// -------
    /// dict
    ///     "live_recall" of `stats`: "last" and "all", what was found of the last sample and of all since the index was opened: None, or a dict of `queries`,
    ///     `k` (None if some asked for more answers than others), `found` (the mean recall), `lowest` (that of the query of which least was found), `asked` and
    ///     `found_of_asked` (of those that asked for a recall, else None). "at" is the time of the last sample, in seconds since 1970, and "seconds" how
    ///     long it took; "samples_measured" and "thrown_away" count samples, "waiting" queries that were sampled, of "sample" at most; "error" says why the last sample
    ///     was not measured, if it was not.
    #[pyo3(signature = (*, progress=None))]
    fn measure_recall<'py>(
        &self,
        py: Python<'py>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (inner, live) = self.now(py)?;
        let index = inner.at_home(&self.path, "stratann.open")?;
        let listener = Listener::new(progress)?;
        let (handle, live) = (&self.handle, live.as_ref().map(|live| &***live));
        let known = run(py, &listener, |progress| {
            handle.measure_recall(index, live, progress)
        })?;
        to_dict(py, &known)
    }

    /// Inserts vectors; searches that begin after it find them.
    ///
    /// An insert is not all or nothing: when it is interrupted, or the disk fills up, the first rows are in, and the exception
    /// says how many (`stratann.Interrupted.done`), and with which ids the others are to be inserted. The same call with `resume=True` inserts them as well, also
    /// after the process was killed.
    ///
    /// Parameters
    /// ----------
    /// vectors : array-like
    ///     (n, d), or (d,) for one, as the queries of `search`.
    /// ids : array-like of int, optional
    ///     An id for each, from 0 to 2^64 - 2, none of which is in the index: an array, a list, a range, a column. None counts on from the
    ///     largest that it ever had.
    /// attributes, payload
    ///     What the vectors have beside them, as in `stratann.build`; of one vector, (d,), attributes may be a dict of its values, and the payload is its own. As
    ///     durable as the vectors.
    /// resume : bool
    ///     Go on with an insert of the same vectors, and the same of all other arguments, that was cut off: only the rows are inserted that are not in, and all are
    ///     durable at the end. With `ids` these tell which are in, so that it may be True from the beginning. Without them an insert of 1,000 vectors and more is known
    ///     again by its vectors: until all rows are in, and then until the next one begins; a ValueError says that it is not. If all were in, nothing is inserted. Without `resume`, vectors of
    ///     an insert that was cut off are refused (FileExistsError): they would be in twice.
    /// progress : callable, optional
    ///     As in `stratann.build`.
    ///
    /// Returns
    /// -------
    /// ids : numpy.ndarray
    ///     uint64, (n,), of all vectors.
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
        let beside = self.table(py, attributes, payload, rows.rows(), rows.is_single())?;
        // All checks come first, since a change takes the lock of the folder and keeps it until a
        // close.
        let (listener, source) = (Listener::new(progress)?, rows.source()?);
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
                "resume=True: another thread inserts vectors into {}: go on when it is done",
                shown(&self.path)
            )));
        }
        let cut_off = match (resume, &noted) {
            (true, _) => Some(CutOff::Resume),
            (false, Some(_)) => Some(CutOff::Refuse),
            (false, None) => None,
        };
        let inserted = run_rows(py, &listener, Some(total), |progress| {
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
        });
        let inserted = inserted.map_err(|error| changing(py, error))?;
        Ok(PyArray1::from_vec(py, inserted))
    }

    /// Forgets the inserts that were cut off, which `insert` with `resume=True` would go on with: ids of their rows that are not in are free again, and the same
    /// vectors may be inserted anew. Rows that are in stay. No such insert may be going on.
    ///
    /// Returns
    /// -------
    /// int
    ///     How many it forgot.
    fn forget_cut_off(&self, py: Python<'_>) -> PyResult<usize> {
        let live = self.handle.change(py)?;
        let Some(_noted) = live.note() else {
            return Err(InUseError::new_err(format!(
                "{}: another thread inserts vectors: forget inserts that were cut off when it is done",
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

    /// Inserts vectors; one whose id is in the index replaces the one that has it, with what that had beside it. Arguments and interruptions
    /// as of `insert`; the same call again does no harm.
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
        let beside = self.table(py, attributes, payload, rows.rows(), rows.is_single())?;
        let (listener, source) = (Listener::new(progress)?, rows.source()?);
        let live = self.handle.change(py)?;
        run_rows(py, &listener, Some(rows.rows()), |progress| match &beside {
            Some(beside) => live.upsert_rows(&source, beside, &ids, progress),
            None => live.upsert(&source, &ids, progress),
        })
        .map_err(|error| changing(py, error))
    }

    /// Deletes ids, integers in an array, a list, a column or alone: searches that begin after it do not answer them. An id that is not in the
    /// index is an error, and then none is deleted. In place of ids there may be a filter, as that of `search`: what matches it is deleted, some at a
    /// time, and it returns how many are gone. Ctrl-C ends that between two of these; the exception says how many are gone by then, and they stay so. `progress`
    /// is as in `stratann.build`, of a deletion by filter.
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
                // With progress, since it waits for calls that change one of these ids.
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
                    "delete takes ids or a filter: pass one of them",
                ));
            }
        };
        deleted.map_err(|error| changing(py, error))
    }

    /// Makes every change durable that was made before. With `durability="always"` they are already.
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
        let (listener, live) = (Listener::new(progress)?, self.handle.change(py)?);
        let report = run(py, &listener, |progress| live.compact(progress))
            .map_err(|error| changing(py, error))?;
        to_dict(py, &report)
    }

    /// Copies the index as it is now to the folder `dest`, which is made, or is empty. Searches and changes go on meanwhile, of this process and others.
    ///
    /// The copy has every change whose call has returned, and of each that goes on meanwhile all or nothing; of an index that another process changes, it has
    /// what was acknowledged before. It is durable when this returns, and no index opens there before. A process that is killed leaves a file
    /// SNAPSHOT.new in `dest`: the next snapshot to it clears what is left, and begins anew.
    ///
    /// Parameters
    /// ----------
    /// dest : path
    ///     The folder of the copy. One that holds something, or that is within the index, is refused.
    /// progress : bool or callable, optional
    ///     As that of `build`: bytes that are copied.
    ///
    /// Returns
    /// -------
    /// dict
    ///     `checkpoint`, `files`, `bytes`, `shared_bytes` (on the same blocks as those of the original, where the file system can do that),
    ///     `log_records` (changes since the checkpoint), `tries` and `seconds`.
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

    /// Writes all vectors that live in the index to the file `out`, their ids and attributes to files beside it. The n-th of each are of one vector, in the
    /// order in which vectors stand on storage. Vectors are those of one moment, to the bit as they were inserted; searches and changes go on meanwhile.
    ///
    /// Parameters
    /// ----------
    /// out : path
    ///     The file of vectors: .npy, or .fbin .hbin .u8bin .i8bin, by the dtype.
    /// ids : path, optional
    ///     The file of their ids: .npy (uint64), or any other name: decimal, one a line. None: `x.ids.npy` of `x.npy`, `x.ids` of others.
    /// attributes : path, optional
    ///     The file of their attributes and payloads, a JSON object a line. None: `x.jsonl`, if there are any.
    /// overwrite : bool
    ///     Whether files that are there are replaced.
    /// progress : bool or callable, optional
    ///     As that of `build`: vectors that are written.
    ///
    /// Returns
    /// -------
    /// dict
    ///     `vectors`, `dimension`, `element`, the files `out`, `ids` and `attributes` (None if there is none), `times` (columns that are times, which are
    ///     microseconds since 1970 there), `payload` (the key that is the payload, or None) and `seconds`.
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
        let (inner, live) = self.now(py)?;
        let index = inner.at_home(&self.path, "stratann.open")?;
        let listener = Listener::new(progress)?;
        let options = stratann::ExportOptions {
            ids,
            attributes,
            overwrite,
        };
        let report = run(py, &listener, |progress| match &*live {
            Some(live) => live.export(&out, &options, progress),
            None => index.export(&out, &options, progress),
        })?;
        to_dict(py, &report)
    }

    /// Ends the changes of this object and makes them durable. The last object of the process that has changed something in the folder ends them for all, once
    /// those of other threads that are under way are done: it makes a merge that is due (Ctrl-C breaks that off, and the next one begins anew), and gives the
    /// folder's lock back. Searching goes on meanwhile and afterwards, with all that was changed. The next change opens the index for changes again.
    /// A `with` block ends with it, without a merge where an exception ends the block. The lock is back when searches of other threads are done, for which
    /// this waits two seconds at most. Where the index cannot be opened for reading, that is raised and it stays open for changes. A callback of a change, or
    /// a signal's handler that comes in the midst of one, cannot close the index: that is an error.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.end_changes(py, true)
    }

    /// Whether what is open here is all that the index has by now: False when somebody else has changed it since, so that
    /// `refresh` would show more, and when its folder was moved or removed, or another has taken its place.
    fn is_current(&self, py: Python<'_>) -> PyResult<bool> {
        let (inner, live) = self.now(py)?;
        py.detach(|| match &*live {
            Some(live) => live.is_current(),
            None => inner.is_current(),
        })
        .map_err(to_python)
    }

    /// Opens the index anew if somebody else has changed it since it was opened here: what stands at its path now. Returns whether
    /// it was. Raises OutdatedError where this object, or another one of the process, has it open for changes and it takes none any more.
    fn refresh(&self, py: Python<'_>) -> PyResult<bool> {
        if self.is_current(py)? {
            return Ok(false);
        }
        let outdated = || {
            to_python(stratann::Error::Outdated {
                path: self.path.clone(),
            })
        };
        if self.handle.has_changed()? {
            return Err(outdated());
        }
        self.handle.open_again(py)?;
        // Another object has the same folder open for changes and takes none any more. Searches use
        // it until it is closed.
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
        // After an exception, such as Ctrl-C, there is no wait for a merge.
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

    /// Elements of a vector.
    #[getter]
    fn dim(&self) -> PyResult<usize> {
        Ok(self.inner()?.dim())
    }

    /// How distances are measured: "l2", "ip" or "cosine".
    #[getter]
    fn metric(&self) -> PyResult<&'static str> {
        Ok(self.inner()?.metric().name())
    }

    /// The numpy dtype of the vectors, which queries must have.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("numpy")?
            .call_method1("dtype", (dtype_name(self.inner()?.element()),))
    }

    /// The columns of its attributes: a dict of names and types ("boolean", "integer", "float", "string", "timestamp", "list of strings", "list of integers").
    #[getter]
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (inner, live) = self.now(py)?;
        let schema = match &*live {
            Some(live) => live.schema(),
            None => inner.schema(),
        };
        attributes::columns(py, &schema)
    }

    /// The row of choices that the index was built with.
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

    /// What the build took, if `stratann.build` made this object, else None.
    #[getter]
    fn build_report(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.report.as_ref().map(|report| report.clone_ref(py))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.vectors(py)
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
    /// Sets attributes of `ids` vectors by calling `set`.
    fn set_rows(
        &self,
        py: Python<'_>,
        ids: usize,
        progress: Option<&Bound<'_, PyAny>>,
        set: impl FnOnce(&LiveIndex, &dyn Progress) -> Result<(), stratann::Error> + Send,
    ) -> PyResult<()> {
        let (listener, live) = (Listener::new(progress)?, self.handle.change(py)?);
        run_rows(py, &listener, Some(ids), |progress| set(&live, progress))
            .map_err(|error| changing(py, error))
    }

    /// The vectors of ids. With many ids, Ctrl-C ends the look-up.
    fn look_up(
        &self,
        py: Python<'_>,
        ids: &[u64],
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<stratann::Rows> {
        let (inner, live) = self.now(py)?;
        let index = inner.at_home(&self.path, "stratann.open")?;
        let look_up = |progress: &dyn Progress| match &*live {
            Some(live) => live.vectors(ids, progress),
            None => index.vectors(ids, progress),
        };
        if ids.len() < WATCHED && progress.is_none() {
            return py.detach(|| look_up(&Silent)).map_err(to_python);
        }
        run(py, &Listener::new(progress)?, look_up)
    }

    /// Attributes and payloads of ids.
    fn beside(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<Option<stratann::Row>>> {
        let ids = arrays::ids_asked(ids, ANSWERS)?;
        let (inner, live) = self.now(py)?;
        let index = inner.at_home(&self.path, "stratann.open")?;
        py.detach(|| match &*live {
            Some(live) => live.attributes(&ids),
            None => index.attributes(&ids),
        })
        .map_err(to_python)
    }

    /// Vectors of the type and dimension of this index, to search for or to insert.
    pub fn rows<'py>(&self, value: &Bound<'py, PyAny>, name: &'static str) -> PyResult<Rows<'py>> {
        let inner = self.inner()?;
        let rows = Rows::matrix_or_row(value, name, inner.element())?;
        rows.fit(inner.dim())?;
        Ok(rows)
    }
}

/// Opens the index in the folder `path`.
///
/// Opening and searching need neither a lock nor a right to write, whoever else changes the index meanwhile. The first change
/// takes the folder's lock, which `close`, or the end of a `with` block, gives back. Objects of one process that have the same folder open change it
/// together, if they were opened with the same options, and each sees what all of them changed.
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
/// watch_recall : int, optional
///     How many of the queries that are served are kept as a sample, up to 1,000; 64 are a good beginning. When so many are there, a thread searches them again,
///     compares their answers with all vectors, and `stats` tells how much of the true nearest was found ("live_recall"). It rests 19 times as long as
///     that took. `measure_recall` does it at once. None keeps nothing. An object that is unpickled has none. The sample is this object's own: while another
///     object changes the folder, its searches are sampled and measured all the same.
/// merges : bool
///     Whether merges begin by themselves, in the background, from the first change on. If not, `compact` is the only one. One is due when a tenth of the
///     vectors was deleted; when searches read a tenth more than before; when many vectors wait in memory; when a small index has four times the vectors of its
///     last build or merge; when 1 % of the vectors are of a kind that the codes are not made for; when a graph takes many more pages than a build of its
///     vectors would; when groups of clusters are scattered. docs/changes.md has the numbers.
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

/// A value of the engine as Python objects, with the keys of the command's JSON output.
pub fn to_dict<'py, T: serde::Serialize>(
    py: Python<'py>,
    value: &T,
) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(value)
        .map_err(|error| crate::errors::StratannError::new_err(error.to_string()))?;
    py.import("json")?.call_method1("loads", (text,))
}
