//! The arguments and results of `Index.search`, `Index.search_async` and `Catalog.search`.

use numpy::PyArray1;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use stratann::{Counters, Index, Press, SearchOptions, SearchResults};

use crate::arguments::{
    count_if_any, if_any, meant_of, named, refuse_both, rerank as reranking,
    threads as thread_count, typed,
};
use crate::arrays::table;
use crate::index::to_dict;

/// If a search has at least this many queries, Ctrl-C ends it. A smaller search ends by itself, and
/// the check would slow it down.
pub const WATCHED: usize = 1_000;

pub const OF_ANY: &[&str] = &[
    "list_size",
    "probes",
    "beam",
    "strategy",
    "navigation",
    "whole_page",
    "exact",
    "stop_early",
    "recall",
    "threads",
    "in_flight",
    "return_stats",
];

pub const OF_INDEX: &[&str] = &[
    "rerank_batch",
    "benefit",
    "rerank",
    "rerank_ratio",
    "low_list",
    "refine",
    "seeds",
];

/// A value of `None` is the engine's default.
#[derive(Default)]
pub struct Asked<'py> {
    list_size: Option<usize>,
    probes: Option<usize>,
    beam: Option<usize>,
    strategy: Option<String>,
    navigation: Option<bool>,
    whole_page: Option<bool>,
    rerank_batch: Option<usize>,
    benefit: Option<f64>,
    rerank: Option<String>,
    rerank_ratio: Option<f64>,
    low_list: Option<f64>,
    refine: Option<f64>,
    seeds: Option<usize>,
    /// `None` is true, because a user may show the distances.
    exact: Option<bool>,
    stop_early: bool,
    recall: Option<f64>,
    threads: Option<usize>,
    in_flight: Option<usize>,
    pub return_stats: bool,
    /// The maximum time of an awaited search, in seconds.
    pub timeout: Option<f64>,
    pub filter: Option<Bound<'py, PyAny>>,
    /// Whether to return attributes, or the columns to return.
    pub attributes: Option<Bound<'py, PyAny>>,
    pub payload: bool,
    pub names: Option<Bound<'py, PyAny>>,
}

impl<'py> Asked<'py> {
    /// Reads the keyword arguments [`OF_ANY`] and `more` of `call`, which would otherwise be
    /// parameters of each search method.
    pub fn read(
        call: &str,
        more: &[&[&str]],
        given: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Self> {
        let mut asked = Self::default();
        for (name, value) in given.into_iter().flatten() {
            let name: String = name.extract()?;
            let taken = || OF_ANY.iter().chain(more.iter().copied().flatten()).copied();
            if !taken().any(|taken| taken == name) {
                let meant = meant_of(&name, taken().chain(["k"]));
                let meant =
                    meant.map_or(String::new(), |meant| format!(" (did you mean {meant:?}?)"));
                return Err(PyTypeError::new_err(format!(
                    "{call}() has no argument {name:?}{meant}"
                )));
            }
            asked.put(&name, &value)?;
        }
        refuse_both(asked.recall, asked.list_size)?;
        Ok(asked)
    }

    fn put(&mut self, name: &str, value: &Bound<'py, PyAny>) -> PyResult<()> {
        let given = || Some(value.clone()).filter(|value| !value.is_none());
        match name {
            "list_size" => self.list_size = count_if_any(value, name)?,
            "probes" => self.probes = count_if_any(value, name)?,
            "beam" => self.beam = count_if_any(value, name)?,
            "strategy" => self.strategy = if_any(value, name, "a str")?,
            "navigation" => self.navigation = if_any(value, name, "a bool")?,
            "whole_page" => self.whole_page = if_any(value, name, "a bool")?,
            "rerank_batch" => self.rerank_batch = count_if_any(value, name)?,
            "benefit" => self.benefit = if_any(value, name, "a number")?,
            "rerank" => self.rerank = if_any(value, name, "a str")?,
            "rerank_ratio" => self.rerank_ratio = if_any(value, name, "a number")?,
            "low_list" => self.low_list = if_any(value, name, "a number")?,
            "refine" => self.refine = if_any(value, name, "a number")?,
            "seeds" => self.seeds = count_if_any(value, name)?,
            "exact" => self.exact = Some(typed(value, name, "a bool")?),
            "stop_early" => self.stop_early = typed(value, name, "a bool")?,
            "recall" => self.recall = if_any(value, name, "a number")?,
            "threads" => self.threads = count_if_any(value, name)?,
            "in_flight" => self.in_flight = count_if_any(value, name)?,
            "return_stats" => self.return_stats = typed(value, name, "a bool")?,
            "timeout" => self.timeout = if_any(value, name, "a number of seconds")?,
            "filter" => self.filter = given(),
            "attributes" => self.attributes = given(),
            "payload" => self.payload = typed(value, name, "a bool")?,
            "names" => self.names = given(),
            _ => return Err(PyTypeError::new_err(format!("no argument {name:?}"))),
        }
        Ok(())
    }

    /// The options of a search in `index`, or with `None` in the indexes of a catalog.
    pub fn options(&self, k: usize, index: Option<&Index>) -> PyResult<SearchOptions> {
        let defaults = SearchOptions::default();
        let strategy = self.strategy.as_deref().map(|name| named(name, "strategy"));
        let clusters = index.is_some_and(Index::has_clusters);
        let rerank = match index {
            Some(index) => reranking(
                self.rerank_batch,
                self.benefit,
                self.rerank.as_deref(),
                self.rerank_ratio,
                index,
            )?,
            None => None,
        };
        Ok(SearchOptions {
            k,
            list: self.list_size.unwrap_or(defaults.list.max(k)),
            probes: self.probes.or(self.list_size.filter(|_| clusters)),
            beam: self.beam,
            strategy: strategy.transpose()?,
            navigation: self.navigation,
            whole_page: self.whole_page,
            rerank,
            press: Press {
                low: self.low_list.unwrap_or(defaults.press.low),
                ratio: self.refine.unwrap_or(defaults.press.ratio),
                seeds: self.seeds.unwrap_or(defaults.press.seeds),
            },
            seeds: self.seeds.unwrap_or(0),
            exact: self.exact.unwrap_or(true),
            stop_early: self.stop_early,
            recall: self.recall,
            threads: thread_count(self.threads)?,
            in_flight: self.in_flight,
            ..defaults
        })
    }
}

/// Results for Python: ids, distances, `parts` (attributes and payloads), and stats.
pub fn answers_with<'py>(
    py: Python<'py>,
    results: SearchResults,
    options: &SearchOptions,
    single: bool,
    return_stats: bool,
    mut parts: Vec<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyTuple>> {
    if return_stats {
        parts.push(search_stats(py, &results, options)?.into_any());
    }
    let k = results.k;
    self::results(py, (results.ids, results.distances), k, single, parts)
}

/// The arrays have `k` ids and distances for each query. The `others` follow.
pub fn results<'py>(
    py: Python<'py>,
    (ids, distances): (Vec<u64>, Vec<f32>),
    k: usize,
    single: bool,
    others: Vec<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let ids = table(py, ids, k, single)?;
    let distances = table(py, distances, k, single)?;
    let all: Vec<_> = [ids, distances].into_iter().chain(others).collect();
    PyTuple::new(py, all)
}

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
        explained: None,
        parts: None,
    }
}

/// The stats have the keys of `stratann search --json`, and the costs of the batch.
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
    if let Some(explained) = &results.explained {
        stats.set_item("filter", to_dict(py, explained)?)?;
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

/// p90 is the smallest latency that at least 90 % of the queries did not exceed.
pub fn latency<'py>(py: Python<'py>, latencies_us: &[f32]) -> PyResult<Bound<'py, PyDict>> {
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
