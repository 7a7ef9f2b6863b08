//! Bulk inserts into an index with direct inserts. A single insert searches for its vector, and a
//! build shares that work between vectors.
//!
//! ```text
//!   new rows, 1,000 or more and an eighth of the index     they wait in the log and in memory
//!   all of them wait, or 256 MiB of them                   a merge: a build of all rows, or a
//!                                                          search in memory for each new one
//! ```
//!
//! Waiting vectors are durable, and searches find them. If the merge fails, they stay so, and the
//! other rows of the call are inserted one by one. Vectors that a call or a crash left waiting stay
//! so until the next merge. No checkpoint has them, and a process that opens the index reads them
//! from the log.

use std::sync::atomic::Ordering;

use super::{LiveIndex, State};
use crate::Error;
use crate::progress::Progress;
use crate::update::health::Concern;
use crate::update::logged::vector_charge;

/// The fewest rows for a bulk insert, and the divisor of the index size that gives the other limit.
const MANY: usize = 1_000;
const PART: usize = 8;
/// Bytes that may wait.
const MOST_BYTES: u64 = 256 << 20;

impl LiveIndex {
    /// How many of the next `rows` are to wait for a merge; 0 if direct inserts are better.
    pub(super) fn many_of(&self, rows: usize) -> usize {
        let state = self.state();
        if !self.goes_directly(&state) || !self.options.direct.merge_many {
            return 0;
        }
        let live = self.len();
        // A merge may take more memory than a budget leaves.
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

    /// Merges the waiting rows. If that fails, nothing is lost: they continue to wait, and the
    /// result is false.
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

    /// While the returned value exists, a call lets rows wait, and merges them by itself.
    pub(super) fn fills(&self) -> Filling<'_> {
        self.filling.fetch_add(1, Ordering::Relaxed);
        Filling(self)
    }

    /// Whether a call lets rows wait that it merges by itself.
    pub(in crate::update) fn is_filling(&self) -> bool {
        self.filling.load(Ordering::Relaxed) > 0
    }

    /// Whether so many vectors wait that a merge is cheaper than inserting each, and they may wait.
    pub(super) fn many_wait(&self, state: &State) -> bool {
        let waits = state.fresh().len();
        self.options.direct.merge_many
            && state.index.memory().budget.is_none()
            && is_many(waits, self.len().saturating_sub(waits))
    }
}

/// A call that lets rows wait.
pub(super) struct Filling<'a>(&'a LiveIndex);

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.0.filling.fetch_sub(1, Ordering::Relaxed);
    }
}

fn is_many(rows: usize, beside: usize) -> bool {
    rows >= MANY && rows * PART >= beside
}
