//! `stratann._stratann`: what the Python package `stratann` is made of.
//!
//! Python decides nothing here. Every function checks its arguments the way a Python user expects (a `TypeError`
//! that names the dtype, a `ValueError` that names the shape), borrows numpy's memory, releases the interpreter's
//! lock, calls the engine, and hands the result's own memory to numpy:
//!
//! ```text
//!  numpy array ── view as bytes ──> arrays::Rows ──┐
//!  path ── VectorFile::open ───────────────────────┴─> &dyn VectorSource ─> engine
//!  numpy array <── the vector moves, its bytes stay ── SearchResults <───────┘
//! ```
//!
//! `arguments` reads what a user writes ("2GiB", "locality"), `progress` runs long work beside the calling thread
//! so that Ctrl-C and callbacks reach Python, `process` keeps a forked process from waiting for threads that it does
//! not have, `logs` hands what the engine tells to `logging`, `errors` says which exception an engine's error becomes.

#![forbid(unsafe_code)]

mod arguments;
mod arrays;
mod build;
mod catalog;
mod errors;
mod index;
mod logs;
mod process;
mod progress;
mod repair;
mod truth;

use pyo3::prelude::*;

/// Vector search for collections that do not fit in RAM: the part of the package that is written in Rust.
#[pymodule]
mod _stratann {
    use super::*;

    #[pymodule_export]
    use crate::build::{build, train};
    #[pymodule_export]
    use crate::catalog::Catalog;
    #[pymodule_export]
    use crate::errors::{
        DamagedError, InUseError, Interrupted, NoSpaceError, OutdatedError, StratannError,
    };
    #[pymodule_export]
    use crate::index::{Index, open, verify};
    #[pymodule_export]
    use crate::repair::repair;
    #[pymodule_export]
    use crate::truth::{recall, truth};

    /// Before anything is told.
    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::logs::install();
        Ok(())
    }

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name is Python's convention")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
