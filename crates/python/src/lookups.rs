//! Vectors by their ids.

use numpy::PyArray1;
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use stratann::Rows;

use crate::arrays::dtype_name;

/// The id in `index[id]`, or `None` for an integer that cannot be an id.
pub fn id(value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    let wrong = || {
        PyTypeError::new_err(format!(
            "the id in index[id] is {}; it must be one integer. For several ids call index.get(ids)",
            value
                .get_type()
                .name()
                .map_or_else(|_| "something else".into(), |name| name.to_string())
        ))
    };
    if value.is_instance_of::<PyBool>() {
        return Err(wrong());
    }
    // Accepts any value that can be the index of a list, such as numpy's integers.
    let index = value
        .py()
        .import("operator")?
        .call_method1("index", (value,));
    let index = index.map_err(|_| wrong())?;
    Ok(index.extract::<u64>().ok())
}

pub fn rows(py: Python<'_>, rows: Rows) -> PyResult<Bound<'_, PyAny>> {
    let arguments = PyDict::new(py);
    let Rows {
        ids,
        vectors,
        dim,
        element,
        missing,
        ..
    } = rows;
    let shape = (ids.len(), dim);
    let vectors = PyArray1::from_vec(py, vectors).call_method1("view", (dtype_name(element),))?;
    arguments.set_item("vectors", vectors.call_method1("reshape", (shape,))?)?;
    arguments.set_item("ids", PyArray1::from_vec(py, ids))?;
    arguments.set_item("missing", PyArray1::from_vec(py, missing))?;
    let class = py.import("stratann.rows")?.getattr("Rows")?;
    class.call((), Some(&arguments))
}

pub fn only<'py>(
    py: Python<'py>,
    found: Rows,
    asked: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    if found.ids.is_empty() {
        return Err(PyKeyError::new_err(asked.clone().unbind()));
    }
    let vector = PyArray1::from_vec(py, found.vectors);
    vector
        .as_any()
        .call_method1("view", (dtype_name(found.element),))
}
