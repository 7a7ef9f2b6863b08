//! Reads of an index that this process changes at the same time.
//!
//! ```text
//!   thread 1                         thread 2
//!   begins to read checkpoint 7
//!                                    changes the index, and closes it: checkpoint 8
//!                                    changes it again, and reuses pages that only checkpoint 7 has
//!   reads such a page: outdated
//!   reads again: checkpoint 8, with the later changes
//! ```
//!
//! If the object still has the same index after the error, another process has replaced the
//! checkpoint. Then the caller gets the error, since only `refresh` makes an object use the changes
//! of other processes.

use std::sync::{Arc, Weak};

use pyo3::exceptions::PyFileNotFoundError;
use pyo3::prelude::*;
use stratann::LiveIndex;

use crate::errors::OutdatedError;
use crate::handle::Now;
use crate::index::Index;

/// The maximum number of times that a call reads. Each further read needs another checkpoint during
/// the one before it.
pub const MOST_READS: usize = 20;

/// The index that a call read. It keeps no index open.
pub struct Source {
    checkpoint: Weak<stratann::Index>,
    live: Option<Weak<LiveIndex>>,
}

impl Source {
    pub fn of(index: &Arc<stratann::Index>, live: Option<&Arc<LiveIndex>>) -> Self {
        Self {
            checkpoint: Arc::downgrade(index),
            live: live.map(Arc::downgrade),
        }
    }

    /// Whether a read of `now` would read the same. An index open for changes keeps the files that
    /// its reads need, so its checkpoint does not matter.
    fn is(&self, now: &Now) -> bool {
        let now = Self::of(now.0.value(), live(now));
        match (&self.live, &now.live) {
            (Some(one), Some(other)) => one.ptr_eq(other),
            (None, None) => self.checkpoint.ptr_eq(&now.checkpoint),
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

impl Index {
    /// Calls `read` with the index that searches read now, and with the index open for changes, if
    /// there is one. If changes of this process replace that index during the call, calls `read`
    /// again with the later one.
    ///
    /// # Errors
    /// The error of `read`, or of opening the later index.
    pub fn reading<T>(
        &self,
        py: Python<'_>,
        mut read: impl FnMut(&Arc<stratann::Index>, Option<&Arc<LiveIndex>>) -> PyResult<T>,
    ) -> PyResult<T> {
        let mut now = self.now(py)?;
        let mut reads = 1;
        loop {
            now.0.at_home(&self.path, "stratann.open")?;
            #[cfg(feature = "testing")]
            crate::testing::pause(py)?;
            let error = match read(now.0.value(), live(&now)) {
                Err(error) if reads < MOST_READS && is_of_replaced_files(py, &error) => error,
                done => return done,
            };
            let source = Source::of(now.0.value(), live(&now));
            // The drop may close an index, and frees its memory before another one is opened.
            py.detach(|| drop(now));
            now = self.later(py, &source)?.ok_or(error)?;
            reads += 1;
        }
    }

    /// The index and changes for a read now. `None` if they are the ones that `source` names.
    pub fn later(&self, py: Python<'_>, source: &Source) -> PyResult<Option<Now>> {
        let now = self.now(py)?;
        Ok((!source.is(&now)).then_some(now))
    }
}

/// The index open for changes, if there is one.
pub fn live(now: &Now) -> Option<&Arc<LiveIndex>> {
    now.1.as_ref().map(|live| live.value())
}

/// Whether a read may have failed because another checkpoint has replaced the one that it reads: a
/// page was reused, or a file was removed before the read opened it.
pub fn is_of_replaced_files(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<OutdatedError>(py) || error.is_instance_of::<PyFileNotFoundError>(py)
}
