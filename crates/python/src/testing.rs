//! Functions for the package's tests, which releases lack.

use pyo3::prelude::*;

use crate::errors::to_python;
use crate::index::Index;

/// Adds the functions to the module under undocumented names.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.setattr("_while_locked", wrap_pyfunction!(while_locked, module)?)?;
    module.setattr("_restless", wrap_pyfunction!(restless, module)?)
}

/// Calls `work` while this thread holds all locks of an index, like a thread that makes a change.
#[pyfunction]
fn while_locked<'py>(index: &Index, work: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    index.while_locked(|| work.call0())
}

/// Raises the error of a snapshot of an index that changes too fast.
#[pyfunction]
fn restless(path: std::path::PathBuf) -> PyResult<()> {
    Err(to_python(stratann::Error::Restless {
        path,
        what: "it changed".into(),
        remedy: "Call again".into(),
    }))
}
