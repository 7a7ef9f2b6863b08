//! An index and the process that opened it.
//!
//! An open index has threads, and a forked process (Python's `multiprocessing` on Linux, web servers) inherits the
//! memory but not the threads: a search there would wait for ever for workers that do not exist, and so would dropping
//! the index. Here the one is refused and the other left undone.

use std::ops::Deref;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::errors::StratannError;

/// An index that knows where it was opened.
pub struct Opened {
    index: Arc<stratann::Index>,
    process: u32,
}

impl Opened {
    pub fn new(index: stratann::Index) -> Self {
        Self {
            index: Arc::new(index),
            process: std::process::id(),
        }
    }

    /// Whether the index's threads are here.
    fn is_home(&self) -> bool {
        std::process::id() == self.process
    }

    /// The index with its threads, or an error in a forked process.
    pub fn at_home(&self) -> PyResult<&stratann::Index> {
        if self.is_home() {
            return Ok(&self.index);
        }
        Err(StratannError::new_err(format!(
            "{}: the index was opened in process {} and this is {}, which was forked from it without its threads: call \
             stratann.open here",
            self.index.path().display(),
            self.process,
            std::process::id(),
        )))
    }
}

/// What needs no threads: the facts about the index.
impl Deref for Opened {
    type Target = stratann::Index;

    fn deref(&self) -> &stratann::Index {
        &self.index
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.is_home() {
            // One reference for ever: the memory is the parent's copy, and ends with the process.
            std::mem::forget(Arc::clone(&self.index));
        }
    }
}
