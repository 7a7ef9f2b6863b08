//! Functions for the package's tests; releases lack them. One holds locks during a fork, one raises
//! an error that would otherwise need a race, and one forces the order of a read and of changes.

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::errors::to_python;
use crate::index::Index;

/// Adds the functions to the module under undocumented names.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.setattr("_while_locked", wrap_pyfunction!(while_locked, module)?)?;
    module.setattr("_restless", wrap_pyfunction!(restless, module)?)?;
    module.setattr("_in_next_read", wrap_pyfunction!(in_next_read, module)?)
}

/// Calls `work` while this thread holds all locks of an index, like a thread that makes a change.
#[pyfunction]
fn while_locked<'py>(index: &Index, work: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    index.while_locked(|| work.call0())
}

/// Called by the next read of an index.
static IN_NEXT_READ: Mutex<Option<Py<PyAny>>> = Mutex::new(None);

/// Has `work` called by the next read of an index, after the read has chosen the checkpoint, and
/// before it reads. Changes of other threads may come there, too.
#[pyfunction]
fn in_next_read(work: Py<PyAny>) {
    *IN_NEXT_READ.lock() = Some(work);
}

/// Calls the function that a test has put into this read.
pub fn pause(py: Python<'_>) -> PyResult<()> {
    let work = IN_NEXT_READ.lock().take();
    work.map_or(Ok(()), |work| work.call0(py).map(drop))
}

/// Raises the error of a snapshot for an index that has a new checkpoint at each try.
#[pyfunction]
fn restless(path: std::path::PathBuf) -> PyResult<()> {
    Err(to_python(stratann::Error::Restless {
        path,
        what: "it changed".into(),
        remedy: "Call again".into(),
    }))
}
