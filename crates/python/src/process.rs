//! An index or a catalog, with the process that opened it.
//!
//! An open index has threads. A forked process (Python's `multiprocessing` on Linux, web servers)
//! inherits the memory but not the threads. If it searched or dropped the index, it would wait for
//! ever for these threads. So it gets an error for a search, and leaves the index in memory instead
//! of dropping it. It does not wait for locks of its parent's index either, since a missing thread
//! may hold them.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::errors::StratannError;

/// Does `work`, which may take long, without the interpreter's lock, so that other Python threads
/// continue. While the interpreter is shutting down, there are no other threads, and `work` simply
/// runs.
pub fn detached(work: impl FnOnce() + Send) {
    let mut work = Some(work);
    Python::try_attach(|py| work.take().map(|work| py.detach(work)));
    if let Some(work) = work {
        work();
    }
}

/// A value with threads, and the process that opened it.
pub struct Opened<T> {
    value: Arc<T>,
    process: u32,
}

impl<T> Opened<T> {
    pub fn new(value: Arc<T>) -> Self {
        Self {
            value,
            process: std::process::id(),
        }
    }

    /// Marks another value as opened by the same process.
    pub fn beside<U>(&self, value: Arc<U>) -> Opened<U> {
        Opened {
            value,
            process: self.process,
        }
    }

    /// The value, to share within this process.
    pub fn value(&self) -> &Arc<T> {
        &self.value
    }

    /// Whether this process has the threads of the value.
    fn is_home(&self) -> bool {
        std::process::id() == self.process
    }

    /// The value, for work with its threads. In a forked process, an error with `path` and
    /// `remedy`, the call that opens the value again.
    pub fn at_home(&self, path: &Path, remedy: &str) -> PyResult<&T> {
        if self.is_home() {
            return Ok(&self.value);
        }
        Err(forked(path, self.process, remedy))
    }
}

/// The error in a forked process for a value that the process `opener` has open at a path.
/// `remedy`: the call that opens the value again.
pub fn forked(path: &Path, opener: u32, remedy: &str) -> PyErr {
    StratannError::new_err(format!(
        "{}: process {opener} opened it, and this is process {}, which was forked from it without its threads. Call {remedy} \
         here",
        path.display(),
        std::process::id(),
    ))
}

/// Gives access to properties that need no threads.
impl<T> Deref for Opened<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Opened<T> {
    fn drop(&mut self) {
        if !self.is_home() {
            // Leaks one reference. The memory is a copy of the memory of the parent, and is freed
            // with the process.
            std::mem::forget(Arc::clone(&self.value));
        }
    }
}
