//! Submitted searches of an index that is open for changes. A search reads the snapshot of the time
//! of its submission, even after later checkpoints. No other process changes the files during the
//! search.

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
    /// Searches like [`search`](LiveIndex::search), but returns immediately. The search sees the
    /// changes of all calls that have returned. Dropping the index waits for submitted searches,
    /// unless a search thread drops the index.
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

    /// Searches like [`search_filtered`](LiveIndex::search_filtered), but returns immediately, like
    /// [`submit`](LiveIndex::submit).
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

    fn now(&self) -> Box<AtMoment> {
        let (state, moment) = self.at_one_moment();
        Box::new(AtMoment {
            // The writer of direct inserts is closed with the index, so the snapshot does not have
            // the writer.
            index: state.index.clone(),
            overlay: state.overlay.clone(),
            moment,
            reads: self.reads.clone(),
            _counted: Submitted::count(&self.submitted),
        })
    }
}

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
        // If a search thread dropped the last handle, another process may have changed the index.
        let outcome = outcome.map_err(|error| self.index.outdated(error));
        outcome.inspect(|results| {
            if results.explained.is_some() {
                return;
            }
            let seen = (&*self.index, &self.overlay);
            self.reads.add(options, results, deleted(seen));
        })
    }
}

pub(super) fn deleted((index, overlay): (&Index, &Overlay)) -> f64 {
    overlay.deleted.len() as f64 / index.nodes() as f64
}

#[derive(Default)]
pub(super) struct Submitted {
    count: Mutex<usize>,
    none: Condvar,
}

struct Counted(Arc<Submitted>);

impl Submitted {
    fn count(this: &Arc<Self>) -> Counted {
        *this.count.lock() += 1;
        Counted(this.clone())
    }

    /// If the caller is a search thread, the call does not wait, since the thread may have to
    /// complete such a search itself.
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
