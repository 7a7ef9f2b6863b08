//! An index or a catalog, with the process that opened it.
//!
//! An open index has threads. A forked process (Python's `multiprocessing` on Linux, web servers)
//! inherits the memory but not the threads. A search there would wait for ever for threads that do
//! not exist, and so would dropping the index. So a search in a forked process is refused, and the
//! drop is skipped. A forked process does not wait for locks of its parent's index either, since a
//! thread that does not exist may hold them.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::errors::StratannError;

/// Does `work`, which may take long, without the interpreter's lock, so that other Python threads
/// continue. While the interpreter is shutting down, there are no other threads.
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

    /// Another value that was opened by the same process.
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

    /// Whether this process has its threads.
    fn is_home(&self) -> bool {
        std::process::id() == self.process
    }

    /// The value with its threads. In a forked process, an error with its path and the call that
    /// helps.
    pub fn at_home(&self, path: &Path, remedy: &str) -> PyResult<&T> {
        if self.is_home() {
            return Ok(&self.value);
        }
        Err(forked(path, self.process, remedy))
    }
}

/// The error in a forked process for a value that process `opener` has open at a path. `remedy`:
/// the call that helps.
pub fn forked(path: &Path, opener: u32, remedy: &str) -> PyErr {
    StratannError::new_err(format!(
        "{}: process {opener} opened it, and this is process {}, which was forked from it without its threads. Call {remedy} \
         here",
        path.display(),
        std::process::id(),
    ))
}

/// For properties that need no threads.
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
