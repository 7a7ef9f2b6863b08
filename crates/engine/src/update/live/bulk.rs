//! Many rows at once, where vectors go straight into the graph on storage: an insert of one vector searches for it, a build shares that work.
//!
//! ```text
//!   rows that come, 1,000 or more and an eighth of what is there       they wait in the log and in memory
//!   all that come wait, or 256 MiB of them                             a merge: a build of all, or a search in memory for each that is new
//! ```
//!
//! What waits is durable and is found like any other vector. A merge that fails leaves it so, and is made when one is due. So does a crash: who
//! opens the index then leaves many that wait to the next merge, too.

use super::{LiveIndex, State};
use crate::Error;
use crate::progress::Progress;
use crate::update::health::Concern;
use crate::update::logged::vector_charge;

/// Rows that are many, and the part of what is there that they have to be.
const MANY: usize = 1_000;
const PART: usize = 8;
/// Bytes that may wait where no budget says how much.
const MOST_BYTES: u64 = 256 << 20;

impl LiveIndex {
    /// How many of the next `rows` are better put in by a merge, 0 if none: those that may wait for it.
    pub(super) fn many_of(&self, rows: usize) -> usize {
        let state = self.state();
        if state.direct.is_none() || !self.options.direct.merge_many {
            return 0;
        }
        let live = self.len();
        let memory = state.index.memory();
        let room = match memory.budget {
            None => MOST_BYTES,
            Some(_) => memory
                .for_waiting()
                .saturating_sub(state.overlay.charged_bytes())
                .min(MOST_BYTES),
        };
        let each = vector_charge(state.index.dim() * state.index.element().size());
        let most = ((room / each) as usize).min(rows);
        match is_many(most, live) {
            true => most,
            false => 0,
        }
    }

    /// Merges what was left to wait. Where it cannot, nothing is lost: it waits on.
    pub(super) fn merge_many(&self, progress: &dyn Progress) {
        if let Err(error) = self.compact(progress)
            && !matches!(error, Error::Interrupted)
        {
            self.health.trouble(Concern::Merge, &error);
        }
    }

    /// Whether so many vectors wait that a merge is cheaper than to put in each by itself, and may wait.
    pub(super) fn many_wait(&self, state: &State) -> bool {
        let waits = state.fresh().len();
        self.options.direct.merge_many
            && state.index.memory().budget.is_none()
            && is_many(waits, self.len().saturating_sub(waits))
    }
}

fn is_many(rows: usize, beside: usize) -> bool {
    rows >= MANY && rows * PART >= beside
}
