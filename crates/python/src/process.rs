//! An index or a catalog, with the process that opened it.
//!
//! A forked process inherits the memory of an open index, but not its threads, for which a search
//! or a drop would wait for ever. So a search is an error, and the index stays in memory. The
//! forked process also never waits for a lock, because a missing thread may hold the lock.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::errors::StratannError;

/// Does `work` without the interpreter's lock, so that other Python threads continue. While the
/// interpreter ends, there are no other Python threads, and `work` simply runs.
pub fn detached(work: impl FnOnce() + Send) {
    let mut work = Some(work);
    Python::try_attach(|py| work.take().map(|work| py.detach(work)));
    if let Some(work) = work {
        work();
    }
}

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

    pub fn beside<U>(&self, value: Arc<U>) -> Opened<U> {
        Opened {
            value,
            process: self.process,
        }
    }

    pub fn value(&self) -> &Arc<T> {
        &self.value
    }

    fn is_home(&self) -> bool {
        std::process::id() == self.process
    }

    /// The value, for work with its threads. A forked process gets an error with `remedy`, the call
    /// that opens the value again.
    pub fn at_home(&self, path: &Path, remedy: &str) -> PyResult<&T> {
        if self.is_home() {
            return Ok(&self.value);
        }
        Err(forked(path, self.process, remedy))
    }
}

/// The error in a forked process. `opener` has the value open, and `remedy` is the call that opens
/// it again.
pub fn forked(path: &Path, opener: u32, remedy: &str) -> PyErr {
    StratannError::new_err(format!(
        "{}: process {opener} opened it, and this is process {}, which was forked from it without its threads. Call {remedy} \
         here",
        path.display(),
        std::process::id(),
    ))
}

/// Access without a check of the process, for properties, which need no threads.
impl<T> Deref for Opened<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Opened<T> {
    fn drop(&mut self) {
        if !self.is_home() {
            // Leaks one reference to memory that is a copy of the parent's.
            std::mem::forget(Arc::clone(&self.value));
        }
    }
}
