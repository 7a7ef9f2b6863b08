//! `stratann._stratann`: the native part of the Python package `stratann`.
//!
//! This crate makes no decisions. Each function checks its arguments as Python users expect
//! (`TypeError` names the dtype, `ValueError` the shape), calls the engine without the
//! interpreter's lock, and passes memory without a copy:
//!
//! ```text
//!  numpy array ── view as bytes ──> arrays::Rows ──┐
//!  path ── VectorFile::open ───────────────────────┴─> &dyn VectorSource ─> engine
//!  numpy array <── the vector moves, its bytes stay ── SearchResults <───────┘
//! ```
//!
//! Most modules have the name of a Python class or function. The others are:
//!
//! - `arguments` parses values such as "2GiB"; `shape` has the arguments of `build` and `create`.
//! - `progress` runs long work beside the calling thread, for Ctrl-C and callbacks.
//! - `gate` makes `close` wait for changes of other threads.
//! - `process` refuses searches in a forked process, which lacks the threads of its parent.
//! - `reading` repeats a read if changes of this process replaced its files meanwhile.
//! - `lookups` returns vectors by their ids.
//! - `attributes` converts attributes, payloads and filters.
//! - `asynchronous` wakes an event loop when a search has ended.
//! - `client` sends queries to compute servers; `servers` runs servers of DistVS.
//! - `logs` passes the engine's log messages to `logging`.
//! - `errors` maps the engine's errors to exceptions.

#![forbid(unsafe_code)]

mod arguments;
mod arrays;
mod asynchronous;
mod attributes;
mod build;
mod catalog;
mod client;
mod create;
mod errors;
mod gate;
mod handle;
mod index;
mod logs;
mod lookups;
mod near;
mod opening;
mod process;
mod progress;
mod reading;
mod repair;
mod searching;
mod servers;
mod shape;
#[cfg(feature = "testing")]
mod testing;
mod truth;
mod writer;

use pyo3::prelude::*;

/// Vector search for collections that do not fit in RAM: the part of the package that is written in
/// Rust.
#[pymodule]
mod _stratann {
    use super::*;

    #[pymodule_export]
    use crate::arguments::{meant, no_attribute};
    #[pymodule_export]
    use crate::asynchronous::{Bell, Search};
    #[pymodule_export]
    use crate::attributes::{Column, Filter, column, warn_of_new};
    #[pymodule_export]
    use crate::build::{build, calibrate, is_vacant, plan, train};
    #[pymodule_export]
    use crate::catalog::Catalog;
    #[pymodule_export]
    use crate::client::{Client, connect};
    #[pymodule_export]
    use crate::create::create;
    #[pymodule_export]
    use crate::errors::{
        DamagedError, InUseError, Interrupted, NoSpaceError, OutdatedError, ServerError,
        ServerTimeoutError, StratannError,
    };
    #[pymodule_export]
    use crate::index::{Index, open, verify};
    #[pymodule_export]
    use crate::repair::repair;
    #[pymodule_export]
    use crate::servers::{ComputeServer, MemoryServer, Server, StorageServer};
    #[pymodule_export]
    use crate::shape::check_build;
    #[pymodule_export]
    use crate::truth::{recall, truth};

    /// Python calls this when it imports the module, before the engine logs.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        #[cfg(feature = "testing")]
        crate::testing::install(module)?;
        crate::logs::install(module.py())?;
        crate::servers::install(module.py())
    }

    #[pymodule_export]
    const MOST_COLUMNS: usize = stratann::bounds::MOST_COLUMNS;

    #[pymodule_export]
    const MOST_PADDED: usize = stratann::bounds::MOST_PADDED;

    #[pymodule_export]
    const MOST_PAYLOAD: usize = stratann::bounds::MOST_PAYLOAD;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name is Python's convention")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
