//! Submitted searches of an index that is open for changes. Each search reads the snapshot of the
//! time when it was submitted, even after later checkpoints and merges. No other process changes
//! the index's files while a search runs.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use stratann_tier::is_worker;

use super::LiveIndex;
use crate::data::Matrix;
use crate::filter::Filter;
use crate::index::Index;
use crate::overlay::{Moment, Overlay, Seen};
use crate::search::{Searched, submitted};
use crate::update::due::Reads;
use crate::{Error, SearchOptions, SearchResults, SubmittedSearch};

impl LiveIndex {
    /// Searches a batch of queries like [`search`](LiveIndex::search), but returns immediately. The
    /// search sees every change whose call returned before this call began. For errors and
    /// deadlines, see [`Index::submit`].
    ///
    /// Dropping the index waits for the submitted searches, unless a search thread drops it.
    ///
    /// # Errors
    /// Fails as [`Index::submit`] does.
    ///
    /// # Panics
    /// Panics as [`Index::submit`] does.
    pub fn submit(
        &self,
        queries: Matrix,
        options: &SearchOptions,
        deadline: Option<Instant>,
    ) -> Result<SubmittedSearch, Error> {
        submitted(self.now(), queries, options, None, deadline)
    }

    /// Searches a batch of queries like [`search_filtered`](LiveIndex::search_filtered), but
    /// returns immediately, like [`submit`](LiveIndex::submit). The search sees every change whose
    /// call returned before this call began. For errors and deadlines, see
    /// [`Index::submit_filtered`].
    ///
    /// # Errors
    /// Fails as [`Index::submit_filtered`] does.
    ///
    /// # Panics
    /// Panics as [`Index::submit`] does.
    pub fn submit_filtered(
        &self,
        queries: Matrix,
        options: &SearchOptions,
        filter: &Filter,
        deadline: Option<Instant>,
    ) -> Result<SubmittedSearch, Error> {
        submitted(self.now(), queries, options, Some(filter), deadline)
    }

    /// The current snapshot, for a search that is about to be submitted.
    fn now(&self) -> Box<AtMoment> {
        let (state, moment) = self.at_one_moment();
        Box::new(AtMoment {
            // The snapshot leaves out the writer of direct inserts, since the writer is closed with
            // the index.
            index: state.index.clone(),
            overlay: state.overlay.clone(),
            moment,
            reads: self.reads.clone(),
            _counted: Submitted::count(&self.submitted),
        })
    }
}

/// A snapshot of an index.
struct AtMoment {
    index: Arc<Index>,
    overlay: Overlay,
    moment: Moment,
    reads: Arc<Reads>,
    _counted: Counted,
}

impl Searched for AtMoment {
    fn index(&self) -> &Index {
        &self.index
    }

    fn seen(&self) -> Option<Seen<'_>> {
        Some(Seen {
            overlay: &self.overlay,
            moment: self.moment,
        })
    }

    fn settle(
        &self,
        options: &SearchOptions,
        outcome: Result<SearchResults, Error>,
    ) -> Result<SearchResults, Error> {
        // If a search thread dropped the last handle of the index, another process may have changed
        // the index during this search.
        let outcome = outcome.map_err(|error| self.index.outdated(error));
        outcome.inspect(|results| {
            if results.explained.is_some() {
                // The reads of a filtered search do not show the state of the graph.
                return;
            }
            let seen = (&*self.index, &self.overlay);
            self.reads.add(options, results, deleted(seen));
        })
    }
}

/// The share of the vectors on storage that were deleted or replaced.
pub(super) fn deleted((index, overlay): (&Index, &Overlay)) -> f64 {
    overlay.deleted.len() as f64 / index.nodes() as f64
}

/// The number of submitted searches that have not ended.
#[derive(Default)]
pub(super) struct Submitted {
    count: Mutex<usize>,
    none: Condvar,
}

/// One submitted search in the count. The drop of this value removes the search from the count.
struct Counted(Arc<Submitted>);

impl Submitted {
    fn count(this: &Arc<Self>) -> Counted {
        *this.count.lock() += 1;
        Counted(this.clone())
    }

    /// Waits until all submitted searches have ended. A search thread does not wait, since it would
    /// wait for a search that it has to complete itself.
    pub(super) fn wait(&self) {
        let mut count = self.count.lock();
        while *count > 0 && !is_worker() {
            self.none.wait(&mut count);
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}
