//! `stratann.repair`.

use std::path::PathBuf;

use pyo3::prelude::*;
use stratann::RepairOptions;

use crate::arguments::{existing, memory as bytes, threads as thread_count};
use crate::index::to_dict;
use crate::progress::{Listener, run};

/// Builds the damaged index in the folder `path` anew from the vectors in it that can be read, with the choices that it was
/// built with. An index that is whole is left alone.
///
/// Until the new index is whole nothing of the old one is changed; then what could not be read is gone, so copy the folder
/// first if another attempt may read more. An `Index` that is open goes on with what it has open: open it anew.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     The folder of the index. Its MANIFEST must be readable.
/// threads : int, optional
///     Threads of the build; None is one a core.
/// memory : int or str, optional
///     A cap on the build's memory: bytes, or "2GiB".
/// force : bool
///     Builds an index anew that is whole.
/// progress : callable or bool, optional
///     As in `build`.
///
/// Returns
/// -------
/// dict
///     `repaired`, whether it was built anew; `vectors`, how many it has now, of which `from_log` were in the log;
///     `vectors_lost`; `lost`, a list of dicts that name a `file`, `what` was wrong with it and at most how many `vectors`
///     are lost with it (0: what is in it was made anew); `bytes_before`, `bytes_after`, `seconds`.
#[pyfunction]
#[pyo3(signature = (path, threads=None, memory=None, force=false, *, progress=None))]
pub fn repair<'py>(
    py: Python<'py>,
    path: PathBuf,
    #[pyo3(from_py_with = crate::arguments::count_or_none::threads)] threads: Option<usize>,
    memory: Option<&Bound<'py, PyAny>>,
    force: bool,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let path = existing(path, "index")?;
    let options = RepairOptions {
        threads: thread_count(threads)?,
        memory: bytes(memory)?,
        force,
    };
    let listener = Listener::new(progress)?;
    let report = run(py, &listener, |progress| {
        stratann::repair(&path, &options, progress)
    })?;
    to_dict(py, &report)
}
