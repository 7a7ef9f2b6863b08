//! Searches for all vectors within a distance, and for vectors near to vectors of the index.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use stratann::{Progress, Range, RangePlace, SearchOptions, Silent};

use crate::arguments::{threads as thread_count, typed};
use crate::arrays::{self, ANSWERS, table};
use crate::attributes::{self, Beside};
use crate::errors::to_python;
use crate::index::{Index, longest_list};
use crate::lookups;
use crate::progress::{Listener, run};
use crate::searching::{WATCHED, answers_with};

pub struct Told<'a, 'py> {
    pub list_size: Option<usize>,
    pub probes: Option<usize>,
    pub filter: Option<&'a Bound<'py, PyAny>>,
    pub threads: Option<usize>,
}

impl Told<'_, '_> {
    fn options(&self, index: &Index, k: usize) -> PyResult<SearchOptions> {
        let defaults = SearchOptions::default();
        let clusters = index.inner()?.has_clusters();
        Ok(SearchOptions {
            k,
            list: self.list_size.unwrap_or(defaults.list.max(k)),
            probes: self.probes.or(self.list_size.filter(|_| clusters)),
            exact: true,
            threads: thread_count(self.threads)?,
            ..defaults
        })
    }
}

pub fn range<'py>(
    py: Python<'py>,
    index: &Index,
    query: &Bound<'py, PyAny>,
    range: Range,
    beside: Option<Beside>,
    told: &Told<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let rows = index.rows(query, "query")?;
    let source = rows.source()?;
    let options = told.options(index, 1)?;
    let filter = told.filter.map(attributes::filter).transpose()?;
    let (listener, filter) = (Listener::new(None)?, filter.as_ref());
    let page = index.reading(py, |stored, live| {
        run(py, &listener, |progress| match live {
            Some(live) => live.search_range(&source, &range, &options, filter, progress),
            None => stored.search_range(&source, &range, &options, filter, progress),
        })
    })?;
    let arguments = PyDict::new(py);
    if let Some(beside) = beside {
        let parts = beside.parts(py, index.beside(py, &page.ids)?, 1, true)?;
        for (name, part) in beside.names().zip(parts) {
            arguments.set_item(name, part)?;
        }
    }
    arguments.set_item("ids", table(py, page.ids, 1, true)?)?;
    arguments.set_item("distances", table(py, page.distances, 1, true)?)?;
    let next = page.next.map(|next| (next.distance, next.id, next.rank));
    arguments.set_item("next", next)?;
    arguments.set_item("complete", page.complete)?;
    let class = py.import("stratann.rows")?.getattr("Page")?;
    class.call((), Some(&arguments))
}

/// The beginning of a page of results, from `next` of the previous page.
pub fn place(after: Option<&Bound<'_, PyAny>>) -> PyResult<Option<RangePlace>> {
    let told = "`next` of the previous page, (distance, id, rank), or None for the first page";
    let after: Option<(f32, u64, usize)> =
        after.map(|after| typed(after, "after", told)).transpose()?;
    match after {
        Some((distance, ..)) if distance.is_nan() => Err(PyValueError::new_err(
            "the distance in `after` is nan. Pass `next` of the previous page",
        )),
        after => Ok(after.map(|(distance, id, rank)| RangePlace { distance, id, rank })),
    }
}

pub fn like<'py>(
    py: Python<'py>,
    index: &Index,
    ids: &Bound<'py, PyAny>,
    (k, recall, return_stats): (usize, Option<f64>, bool),
    beside: Option<Beside>,
    told: &Told<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    crate::arguments::refuse_both(recall, told.list_size)?;
    let only = lookups::id(ids).ok().flatten();
    let ids = match only {
        Some(id) => vec![id],
        None => arrays::ids_asked(ids, ANSWERS)?,
    };
    let options = SearchOptions {
        recall,
        ..told.options(index, k)?
    };
    let filter = told.filter.map(attributes::filter).transpose()?;
    let filter = filter.as_ref();
    let (found, options) = index.reading(py, |stored, live| {
        // In a cluster index, `list` is the number of probes.
        let list = longest_list(py, stored, &options)?;
        let search = |progress: &dyn Progress| match live {
            Some(live) => live.search_like(&ids, &options, filter, progress),
            None => stored.search_like(&ids, &options, filter, progress),
        };
        let found = match ids.len() < WATCHED {
            true => py.detach(|| search(&Silent)).map_err(to_python)?,
            false => run(py, &Listener::new(None)?, search)?,
        };
        Ok((found, SearchOptions { list, ..options }))
    })?;
    let parts = match beside {
        Some(beside) => {
            let rows = index.beside(py, &found.ids)?;
            beside.parts(py, rows, found.k, only.is_some())?
        }
        None => Vec::new(),
    };
    answers_with(py, found, &options, only.is_some(), return_stats, parts)
}
