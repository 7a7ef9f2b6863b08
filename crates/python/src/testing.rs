//! What the tests of the package have and no release: locks that are held while a process is forked.

use pyo3::prelude::*;

use crate::index::Index;

/// Puts it into the module, under names of which nobody is told.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.setattr("_while_locked", wrap_pyfunction!(while_locked, module)?)
}

/// Calls `work` while all locks of an index are held, as by a thread in the midst of a change.
#[pyfunction]
fn while_locked<'py>(index: &Index, work: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    index.while_locked(|| work.call0())
}
