//! `stratann.repair`.

use std::path::PathBuf;

use pyo3::prelude::*;
use stratann::RepairOptions;

use crate::arguments::{existing, memory as bytes, threads as thread_count};
use crate::index::to_dict;
use crate::progress::{Listener, run};

/// Rebuilds the damaged index in the folder `path` from its readable vectors, with the options of
/// its first build. An index without damage stays unchanged.
///
/// The old index stays unchanged until the new one is complete. After that, the unreadable data is
/// lost. If another attempt may read more of the data, copy the folder before the repair. An
/// `Index` that was open before the repair continues to read the old files: open it again.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     The folder of the index. Its MANIFEST must be readable.
/// threads : int, optional
///     The number of threads. None is one for each core.
/// memory : int or str, optional
///     The maximum memory of the rebuild: bytes, or "2GiB".
/// force : bool
///     Whether to rebuild even an index without damage.
/// progress : callable or bool, optional
///     As in `build`.
///
/// Returns
/// -------
/// dict
///     `repaired` is True if the index was rebuilt. `vectors` is the number of vectors after the
///     repair, and `from_log` the number that the repair took from the log. `vectors_lost` is the
///     number of lost vectors. `lost` is a list of dicts, one for each damaged file: the `file`,
///     its fault (`what`), and `vectors`, the maximum number of vectors lost by this fault (0 if
///     the repair made the file again). The other keys are `bytes_before`, `bytes_after` and
///     `seconds`.
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
