//! Functions for the package's tests, in no release: locks that are held during a fork, and an
//! error that otherwise needs a race.

use pyo3::prelude::*;

use crate::errors::to_python;
use crate::index::Index;

/// Adds the functions to the module under undocumented names.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.setattr("_while_locked", wrap_pyfunction!(while_locked, module)?)?;
    module.setattr("_restless", wrap_pyfunction!(restless, module)?)
}

/// Calls `work` while all locks of an index are held, as by a thread in the midst of a change.
#[pyfunction]
fn while_locked<'py>(index: &Index, work: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    index.while_locked(|| work.call0())
}

/// Raises the error of a snapshot that met a new checkpoint at each try.
#[pyfunction]
fn restless(path: std::path::PathBuf) -> PyResult<()> {
    Err(to_python(stratann::Error::Restless {
        path,
        what: "it changed".into(),
        remedy: "Call again".into(),
    }))
}
