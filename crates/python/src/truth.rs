//! `stratann.truth` and `stratann.recall`.

use numpy::{PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use stratann::{GroundTruth, Metric};

use crate::arguments::{named, threads as thread_count};
use crate::arrays::{shape_text, table};
use crate::build::Vectors;
use crate::errors::to_python;
use crate::progress::{Listener, run};

/// The ids and the distances.
type Found<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Finds the exact `k` nearest rows of `base` for each query by brute force.
///
/// `base` and `queries` are vector files or arrays, both of the same dtype. Returns row numbers
/// (uint64) and distances (float32), both (nq, k), nearest first. At equal distances, the lower row
/// number comes first. If `base` has fewer than k rows, the missing results have the row number
/// 2^64 - 1 and infinite distance, as in `Index.search`.
#[pyfunction]
#[pyo3(signature = (base, queries, k=100, metric="l2", *, threads=None, progress=None))]
pub fn truth<'py>(
    py: Python<'py>,
    base: &Bound<'py, PyAny>,
    queries: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = crate::arguments::count::k)] k: usize,
    metric: &str,
    #[pyo3(from_py_with = crate::arguments::count_or_none::threads)] threads: Option<usize>,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Found<'py>> {
    let metric: Metric = named(metric, "metric")?;
    let threads = thread_count(threads)?;
    let listener = Listener::new(progress)?;
    let base = Vectors::new(base, "base", None)?;
    let queries = Vectors::new(queries, "queries", Some(base.element()))?;
    let truth = base.with(|base| {
        queries.with(|queries| {
            run(py, &listener, |progress| {
                stratann::brute_force(base, queries, k, metric, threads, progress)
            })
        })
    })?;
    let ids = truth.ids;
    let distances = truth.distances.unwrap_or_default();
    Ok((table(py, ids, k, false)?, table(py, distances, k, false)?))
}

/// Recall@k, from 0 to 1: the share of the `k` true nearest vectors that a search found.
///
/// `found` is the result of `Index.search`. `truth` is the result of `stratann.truth`, or of
/// reading a truth file (`stratann.read`). Both are tuples of ids and distances; further parts of a
/// result, such as attributes, do not matter. If a found vector is at most as far away as the k-th
/// vector of `truth`, it counts, whichever id it has. So distances must be exact, and not the
/// estimates of `exact=False`. If `truth` has no distances (None), only equal ids count. By default
/// `k` is the number of columns of `found`. A missing result in `found` (the id 2^64 - 1) counts as
/// not found.
#[pyfunction]
#[pyo3(signature = (found, truth, k=None))]
pub fn recall<'py>(
    py: Python<'py>,
    found: &Bound<'py, PyAny>,
    truth: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = crate::arguments::count_or_none::k)] k: Option<usize>,
) -> PyResult<f64> {
    let found = (part(found, 0, "found")?, part(found, 1, "found")?);
    let truth = (part(truth, 0, "truth")?, part(truth, 1, "truth")?);
    let ids = Table::<u64>::new(&found.0, "uint64", "found[0]")?;
    let distances = Table::<f32>::new(&found.1, "float32", "found[1]")?;
    ids.same_shape(&distances)?;
    let exact = Table::<u64>::new(&truth.0, "uint64", "truth[0]")?;
    let exact_distances = match truth.1.is_none() {
        true => None,
        false => {
            let distances = Table::<f32>::new(&truth.1, "float32", "truth[1]")?;
            exact.same_shape(&distances)?;
            Some(distances.values)
        }
    };
    let k = k.unwrap_or(ids.columns);
    if ids.rows != exact.rows {
        return Err(PyValueError::new_err(format!(
            "found has {} queries and truth has {}. Pass results of the same queries",
            ids.rows, exact.rows
        )));
    }
    if k == 0 || k > ids.columns || k > exact.columns {
        return Err(PyValueError::new_err(format!(
            "k={k}: found has {} ids for each query and truth has {}. Pass a k from 1 to the smaller number",
            ids.columns, exact.columns
        )));
    }
    let truth = GroundTruth {
        queries: exact.rows,
        k: exact.columns,
        ids: exact.values,
        distances: exact_distances,
    };
    let (ids, distances) = (ids.first(k), distances.first(k));
    py.detach(|| truth.recall(&ids, &distances, k))
        .map_err(to_python)
}

/// The ids (0) or distances (1) of the results in the argument `name`.
fn part<'py>(results: &Bound<'py, PyAny>, at: usize, name: &str) -> PyResult<Bound<'py, PyAny>> {
    match results.cast::<PyTuple>() {
        Ok(parts) if parts.len() >= 2 => parts.get_item(at),
        _ => Err(PyTypeError::new_err(format!(
            "{name} is of type {}; it is no tuple of ids and distances. Pass the tuple that a search returned",
            results.get_type().name()?
        ))),
    }
}

/// A table of shape `(rows, columns)`. A single row may have the shape `(columns,)`.
struct Table<T> {
    values: Vec<T>,
    rows: usize,
    columns: usize,
    name: &'static str,
}

impl<T: numpy::Element + Copy> Table<T> {
    fn new(value: &Bound<'_, PyAny>, dtype: &str, name: &'static str) -> PyResult<Self> {
        let array = value
            .py()
            .import("numpy")?
            .call_method1("asarray", (value, dtype))?;
        let array = array.cast_into::<PyArrayDyn<T>>()?;
        let (rows, columns) = match *array.shape() {
            [columns] => (1, columns),
            [rows, columns] => (rows, columns),
            ref other => {
                let shape = shape_text(other);
                return Err(PyValueError::new_err(format!(
                    "{name} has the shape {shape}; it must have a row of k results for each query. Pass an array (nq, k)"
                )));
            }
        };
        let values = array.readonly().as_array().iter().copied().collect();
        Ok(Self {
            values,
            rows,
            columns,
            name,
        })
    }

    fn same_shape<U>(&self, other: &Table<U>) -> PyResult<()> {
        if (self.rows, self.columns) == (other.rows, other.columns) {
            return Ok(());
        }
        Err(PyTypeError::new_err(format!(
            "{} has the shape ({}, {}) and {} has ({}, {}). Pass ids and their distances",
            self.name, self.rows, self.columns, other.name, other.rows, other.columns
        )))
    }

    fn first(&self, k: usize) -> Vec<T> {
        self.values
            .chunks(self.columns)
            .flat_map(|row| &row[..k])
            .copied()
            .collect()
    }
}
