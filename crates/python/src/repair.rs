//! `stratann.repair`.

use std::path::PathBuf;

use pyo3::prelude::*;
use stratann::RepairOptions;

use crate::arguments::{existing, memory as bytes, threads as thread_count};
use crate::index::to_dict;
use crate::progress::{Listener, run};

/// Rebuilds the damaged index in the folder `path` from its readable vectors, with the choices of
/// its first build. An index without damage stays unchanged.
///
/// The old index stays unchanged until the new one is complete. After that, the unreadable data is
/// lost. So copy the folder first if another attempt may read more. An open `Index` continues with
/// the files that it has open: open it again.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     The folder of the index. Its MANIFEST must be readable.
/// threads : int, optional
///     The number of threads. None is one for each core.
/// memory : int or str, optional
///     The most memory of the build: bytes, or "2GiB".
/// force : bool
///     Whether an index without damage is rebuilt as well.
/// progress : callable or bool, optional
///     As in `build`.
///
/// Returns
/// -------
/// dict
///     `repaired` is whether the index was rebuilt. `vectors` is its number of vectors now, and
///     `from_log` is how many of them were in the log. `vectors_lost` counts the lost ones. `lost`
///     is a list of dicts with the `file`, its fault (`what`), and the most `vectors` that are lost
///     with it (0: its contents were made again). The other keys are `bytes_before`, `bytes_after`
///     and `seconds`.
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
