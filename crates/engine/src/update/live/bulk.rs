//! Many rows at once, where vectors go straight into the graph on storage: an insert of one vector searches for it, a build shares that work.
//!
//! ```text
//!   rows that come, 1,000 or more and an eighth of what is there       they wait in the log and in memory
//!   all that come wait, or 256 MiB of them                             a merge: a build of all, or a search in memory for each that is new
//! ```
//!
//! What waits is durable and is found like any other vector. Where the merge fails, what waits is left so, and the other rows of the call are inserted
//! each by itself. What a call or a crash left goes on waiting for the next merge: it is in no checkpoint, and whoever opens the index reads it from the log.

use std::sync::atomic::Ordering;

use super::{LiveIndex, State};
use crate::Error;
use crate::progress::Progress;
use crate::update::health::Concern;
use crate::update::logged::vector_charge;

/// Rows that are many, and the part of what is there that they have to be.
const MANY: usize = 1_000;
const PART: usize = 8;
/// Bytes that may wait.
const MOST_BYTES: u64 = 256 << 20;

impl LiveIndex {
    /// How many of the next `rows` are better put in by a merge, 0 if none: those that may wait for it.
    pub(super) fn many_of(&self, rows: usize) -> usize {
        let state = self.state();
        if !self.goes_directly(&state) || !self.options.direct.merge_many {
            return 0;
        }
        let live = self.len();
        // A merge may take more than a budget leaves.
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

    /// Merges what was left to wait. Where it cannot, nothing is lost: it waits on, and this says false.
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

    /// While what is returned is there, a call lets rows wait, and merges them by itself.
    pub(super) fn fills(&self) -> Filling<'_> {
        self.filling.fetch_add(1, Ordering::Relaxed);
        Filling(self)
    }

    /// Whether a call lets rows wait that it merges by itself.
    pub(in crate::update) fn is_filling(&self) -> bool {
        self.filling.load(Ordering::Relaxed) > 0
    }

    /// Whether so many vectors wait that a merge is cheaper than to put in each by itself, and may wait.
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
