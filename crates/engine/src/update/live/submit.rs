//! Searches submitted to an index that changes. Each search keeps the snapshot of its submission,
//! and continues through checkpoints and merges. No other process changes the index's files while a
//! search runs.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use stratann_tier::is_worker;

use super::LiveIndex;
use crate::data::Matrix;
use crate::filter::Filter;
use crate::index::Index;
use crate::search::{Searched, submitted};
use crate::update::due::Reads;
use crate::update::overlay::{Moment, Overlay, Seen};
use crate::{Error, SearchOptions, SearchResults, SubmittedSearch};

impl LiveIndex {
    /// Searches a batch of queries like [`search`](LiveIndex::search), but returns immediately. The
    /// search sees every change whose call returned before this call began. For the rest, see
    /// [`Index::submit`].
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
    /// call returned before this call began. For the rest, see [`Index::submit_filtered`].
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

    /// The snapshot for a search that is submitted now.
    fn now(&self) -> Box<AtMoment> {
        let (state, moment) = self.at_one_moment();
        Box::new(AtMoment {
            // The snapshot leaves out the writer of direct inserts, which is closed with the index.
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
        // If a search thread dropped the last handle, another process may have changed the index
        // meanwhile.
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

/// Searches that were submitted and have not ended.
#[derive(Default)]
pub(super) struct Submitted {
    count: Mutex<usize>,
    none: Condvar,
}

/// One submitted search. Its drop counts it as ended.
struct Counted(Arc<Submitted>);

impl Submitted {
    fn count(this: &Arc<Self>) -> Counted {
        *this.count.lock() += 1;
        Counted(this.clone())
    }

    /// Waits until all have ended, unless this thread would have to complete one of them.
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
