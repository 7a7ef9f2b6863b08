//! An index or a catalog, and the process that opened it.
//!
//! What is open has threads, and a forked process (Python's `multiprocessing` on Linux, web servers) inherits the
//! memory but not the threads: a search there would wait for ever for workers that do not exist, and so would dropping
//! it. Here the one is refused and the other left undone. Nor does a forked process wait for a lock of what its parent has open: a thread that is not here may
//! have held it.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::errors::StratannError;

/// Does `work`, which may take long, without the interpreter, so that other threads of Python go on. When the interpreter is being taken down there are none.
pub fn detached(work: impl FnOnce() + Send) {
    let mut work = Some(work);
    Python::try_attach(|py| work.take().map(|work| py.detach(work)));
    if let Some(work) = work {
        work();
    }
}

/// Something with threads that knows where it was opened.
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

    /// Another one that was opened where this was.
    pub fn beside<U>(&self, value: Arc<U>) -> Opened<U> {
        Opened {
            value,
            process: self.process,
        }
    }

    /// It, to be shared with others of this process.
    pub fn value(&self) -> &Arc<T> {
        &self.value
    }

    /// Whether its threads are here.
    fn is_home(&self) -> bool {
        std::process::id() == self.process
    }

    /// It with its threads, or an error in a forked process that names it, by its path, and what to call.
    pub fn at_home(&self, path: &Path, remedy: &str) -> PyResult<&T> {
        if self.is_home() {
            return Ok(&self.value);
        }
        Err(forked(path, self.process, remedy))
    }
}

/// The error of a forked process that asks for what process `opener` has open at a path; `remedy` is what to call.
pub fn forked(path: &Path, opener: u32, remedy: &str) -> PyErr {
    StratannError::new_err(format!(
        "{}: it was opened in process {opener} and this is {}, which was forked from it without its threads: call {remedy} \
         here",
        path.display(),
        std::process::id(),
    ))
}

/// What needs no threads: the facts about it.
impl<T> Deref for Opened<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Opened<T> {
    fn drop(&mut self) {
        if !self.is_home() {
            // One reference for ever: the memory is the parent's copy, and ends with the process.
            std::mem::forget(Arc::clone(&self.value));
        }
    }
}
