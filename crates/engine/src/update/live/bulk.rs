//! Bulk inserts into an index with direct inserts. Each direct insert makes its own search. A build
//! shares this work between vectors.
//!
//! ```text
//!   new rows: 1,000 or more, and an eighth of the index    the rows wait in the log and in memory
//!   all new rows wait, or 256 MiB of rows wait             a merge: a build of all rows, or a
//!                                                          search in memory for each new row
//! ```
//!
//! Waiting vectors are durable, and searches find them. After a failed merge, these vectors wait
//! for the next merge, and the remaining rows of the call are inserted one by one.

use std::sync::atomic::Ordering;

use super::{LiveIndex, State};
use crate::Error;
use crate::overlay::logged::vector_charge;
use crate::progress::Progress;
use crate::update::health::Concern;

/// A bulk insert has at least `MANY` rows, and one row for each `PART` vectors of the index.
const MANY: usize = 1_000;
const PART: usize = 8;
const MOST_BYTES: u64 = 256 << 20;

impl LiveIndex {
    /// The number of the next `rows` rows that should wait for a merge, or 0 if direct inserts are
    /// better.
    pub(super) fn many_of(&self, rows: usize) -> usize {
        let state = self.state();
        if !self.goes_directly(&state) || !self.options.direct.merge_many {
            return 0;
        }
        let live = self.len();
        if state.index.memory().budget.is_some() {
            return 0;
        }
        let room = MOST_BYTES.saturating_sub(state.overlay.charged_bytes());
        let each = vector_charge(state.index.dim() * state.index.element().size());
        let most = ((room / each) as usize).min(rows);
        match is_many(most, live) {
            true => most,
            false => 0,
        }
    }

    /// Merges the waiting rows, which stay in memory if the result is `false`.
    pub(super) fn merge_many(&self, progress: &dyn Progress) -> bool {
        match self.compact(progress) {
            Ok(_) => true,
            Err(error) => {
                if !matches!(error, Error::Interrupted) {
                    self.health.trouble(Concern::Merge, &error);
                }
                false
            }
        }
    }

    /// Until the returned value is dropped, the running call counts as a call that leaves new
    /// vectors in memory and merges them later.
    pub(super) fn fills(&self) -> Filling<'_> {
        self.filling.fetch_add(1, Ordering::Relaxed);
        Filling(self)
    }

    pub(in crate::update) fn is_filling(&self) -> bool {
        self.filling.load(Ordering::Relaxed) > 0
    }

    /// Whether a merge is cheaper than single inserts of the waiting vectors, and is allowed.
    pub(super) fn many_wait(&self, state: &State) -> bool {
        let waits = state.fresh().len();
        self.options.direct.merge_many
            && state.index.memory().budget.is_none()
            && is_many(waits, self.len().saturating_sub(waits))
    }
}

pub(super) struct Filling<'a>(&'a LiveIndex);

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.0.filling.fetch_sub(1, Ordering::Relaxed);
    }
}

fn is_many(rows: usize, beside: usize) -> bool {
    rows >= MANY && rows * PART >= beside
}
