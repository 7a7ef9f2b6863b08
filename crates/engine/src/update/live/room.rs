//! Limits of memory for changes under a budget: for waiting vectors and attributes, copies of
//! pages, and rebalances. This module also reserves blocks, so that deletes are possible on a full
//! disk.
//!
//! The charge for a change is the memory of its log record at the next open
//! ([`logged_bytes`](crate::update::logged_bytes)). The limit is the memory that is available at
//! this open.

use std::sync::atomic::Ordering;

use super::changes::BATCH;
use super::{LiveIndex, State};
use crate::Error;
use crate::durable::{keep_small_room, room_for_deletes};
use crate::index::growth::rebalance_after;
use crate::overlay::logged::{FIRST_FRESH, vector_charge};
use crate::progress::Progress;
use crate::stores::reading;
use crate::update::merge::BEYOND_SEARCH;
use crate::update::rebalance::Needs;

/// Without a budget, a checkpoint is due if more than this number of bytes of attributes wait.
const MOST_ROWS: u64 = 64 << 20;

fn waiting_rows(state: &State) -> u64 {
    state.index.columns().new_bytes() + state.overlay.charged_rows()
}

/// Leases memory from the catalog of the index. If the catalog has too little memory, returns the
/// present budget and a sufficient budget, in bytes.
pub(super) fn lend(state: &State, budget: u64, missing: u64) -> Option<(u64, u64)> {
    match state.index.lent() {
        Some(lent) => {
            let grown = lent.grow(state.index.path(), missing);
            grown.err().map(|short| (short.budget, short.needs))
        }
        None => Some((budget, budget.saturating_add(missing))),
    }
}

impl LiveIndex {
    /// Reserves blocks for the deletion of all present vectors on a full disk.
    pub(super) fn keep_room(&self) {
        self.log.keep_room(room_for_deletes(self.len() as u64));
        if let Err(error) = keep_small_room(&*self.volume) {
            // Only a process that opens the index later, on a full disk, needs these blocks.
            tracing::debug!(index = %self.path.display(), "no space is reserved for the next manifest: {error}");
        }
    }

    /// Checks whether the budget has memory for `rows` vectors of `row_bytes` bytes and the charges
    /// of their `attributes` ([`row_charge`](crate::stores::columns::row_charge)). With direct
    /// inserts, only attributes wait, but vectors must fit into the copies of pages
    /// ([`Places`](crate::Places)).
    pub(super) fn check_room(
        &self,
        state: &State,
        rows: usize,
        row_bytes: usize,
        attributes: u64,
    ) -> Result<(), Error> {
        #[cfg(test)]
        crate::plan::refusal::check()?;
        let memory = state.index.memory();
        let Some(budget) = memory.budget.filter(|_| memory.for_changes) else {
            return Ok(());
        };
        if state.direct.is_some() {
            self.check_copies(state, rows, budget)?;
            return self.check_rows(state, attributes, budget);
        }
        let room = memory.for_waiting() + state.index.lent_since();
        let first = match rows > 0 && state.fresh().slots() == 0 {
            true => FIRST_FRESH,
            false => 0,
        };
        let more = rows as u64 * vector_charge(row_bytes) + attributes + first;
        let waits = state.overlay.charged_bytes() + state.index.columns().new_bytes();
        let wanted = waits + more;
        if wanted > room
            && let Some((budget, needs)) = lend(state, budget, wanted - room)
        {
            return Err(Error::Memory {
                budget,
                needs,
                part: "the index and the vectors that wait in memory for a merge (with more memory, `stratann compact` merges the waiting vectors; \
                       an index of the preset stratann writes new vectors to storage at once)"
                    .into(),
            });
        }
        Ok(())
    }

    fn check_rows(&self, state: &State, more: u64, budget: u64) -> Result<(), Error> {
        let room = state.index.memory().for_rows() + state.index.lent_since();
        let wanted = waiting_rows(state) + more;
        if more == 0 || wanted <= room {
            return Ok(());
        }
        let Some((budget, needs)) = lend(state, budget, wanted - room) else {
            return Ok(());
        };
        Err(Error::Memory {
            budget,
            needs,
            part: "the index and the attributes and payloads that wait in memory for a checkpoint; nothing was changed (a call with fewer rows needs less memory)"
                .into(),
        })
    }

    /// A checkpoint is due if many attributes wait, or a replay of the log would take much memory.
    pub(super) fn are_rows_due(&self, state: &State) -> bool {
        let memory = state.index.memory();
        let logged = self.charged.load(Ordering::Relaxed);
        match memory.budget.filter(|_| memory.for_changes) {
            Some(_) => {
                let most = |room: u64| room / 4 * 3;
                state.index.columns().new_bytes() > most(memory.for_rows())
                    || logged > most(memory.for_log())
            }
            None => state.index.columns().new_bytes() > MOST_ROWS,
        }
    }

    /// The waiting changes, as a number of vectors. Attributes without a vector count by their
    /// charge. Replaced vectors count too, since the log has them.
    pub(super) fn waiting(&self, state: &State) -> u64 {
        let each = vector_charge(state.index.dim() * state.index.element().size());
        let logged = self.charged.load(Ordering::Relaxed) / each;
        logged.max(state.fresh().len() as u64)
    }

    /// The charge lasts until a checkpoint has the changes.
    pub(super) fn charge(&self, vectors: usize, row_bytes: usize, attributes: u64) {
        let more = vectors as u64 * vector_charge(row_bytes) + attributes;
        self.charged.fetch_add(more, Ordering::Relaxed);
    }

    /// Moves waiting changes to storage, because memory is full. `false` if only a merge can move
    /// the changes, if nothing waits, or if the move failed.
    pub(super) fn make_room(&self, progress: &dyn Progress) -> bool {
        self.own_files_for_rows(progress);
        let state = self.state();
        if state.direct.is_none() {
            return self.rebalance_for_room(&state);
        }
        let Some(_one) = self.merging.try_lock().filter(|_| waiting_rows(&state) > 0) else {
            return false;
        };
        match self.drain_fresh(progress).and_then(|()| self.checkpoint()) {
            Ok(made) => made,
            Err(Error::Interrupted) => false,
            Err(error) => {
                self.health.no_checkpoint(&error);
                false
            }
        }
    }

    /// Checks whether the copies in memory may grow by `rows` rows of average size, within the
    /// memory that the plan left unused. The pages that an insert writes are known only after the
    /// insert, so the writes of one batch may exceed the limit.
    fn check_copies(&self, state: &State, rows: usize, budget: u64) -> Result<(), Error> {
        let memory = state.index.memory();
        if memory.places == 0 {
            return Ok(());
        }
        let copies = (self.open.places).memory_bytes(&*self.volume, state.index.manifest());
        let each = memory.places.div_ceil((state.index.nodes() as u64).max(1));
        let grown = copies.saturating_sub(memory.places);
        let wanted = grown.saturating_add(each.saturating_mul(rows as u64));
        if wanted > memory.unused {
            return Err(Error::Memory {
                budget,
                needs: budget.saturating_add(wanted - memory.unused),
                part: "the index and the copies of its pages in memory (the places `dram` and models), which grow with each vector \
                       (a place in a folder, such as mapped:/dev/shm/x, does not count towards the budget)"
                    .into(),
            });
        }
        Ok(())
    }

    /// The number of waiting vectors at which a rebalance is due: `wanted` or the default, or fewer
    /// if the budget is small.
    pub(super) fn rebalance_due_after(
        &self,
        state: &State,
        wanted: Option<u64>,
    ) -> Result<u64, Error> {
        let wanted = wanted.unwrap_or_else(|| rebalance_after(state.index.nodes() as u64));
        let (Some(room), Some(needs)) =
            (self.room_for_changes(state), self.rebalance_needs(state)?)
        else {
            return Ok(wanted);
        };
        let each = vector_charge(state.index.dim() * state.index.element().size());
        // Tombstones and attributes take memory that vectors cannot use.
        let beside = state.overlay.deleted.memory_bytes() + waiting_rows(state);
        let on_their_way = needs.most(room.saturating_sub(beside), each);
        let memory = state.index.memory();
        let waiting = memory.for_waiting().saturating_sub(beside) / each;
        // The number of waiting vectors is checked only between two batches of inserts, so one
        // batch must fit, too.
        let most = on_their_way.min(waiting).saturating_sub(BATCH as u64);
        Ok(wanted.min(most.max(1)))
    }

    /// Checks whether the memory suffices for a rebalance. The error has the number of bytes that
    /// suffice.
    pub(super) fn check_rebalance(&self, state: &State) -> Result<(), Error> {
        let (Some(room), Some(needs)) =
            (self.room_for_changes(state), self.rebalance_needs(state)?)
        else {
            return Ok(());
        };
        let wanted = needs.bytes(state.fresh().len() as u64)
            + state.overlay.memory_bytes()
            + state.index.columns().new_bytes();
        let budget = state.index.memory().budget.unwrap_or_default();
        if wanted > room
            && let Some((budget, needs)) = lend(state, budget, wanted - room)
        {
            return Err(Error::Memory {
                budget,
                needs,
                part: format!(
                    "the {} vectors that wait to be moved into clusters, and the heads of the clusters; nothing was changed, and searches find these vectors",
                    state.fresh().len()
                ),
            });
        }
        Ok(())
    }

    /// The bytes for changes and for their checkpoint. `None` without a memory budget.
    fn room_for_changes(&self, state: &State) -> Option<u64> {
        let memory = state.index.memory();
        memory.budget.filter(|_| memory.for_changes)?;
        Some(memory.for_waiting() + state.index.lent_since() + BEYOND_SEARCH)
    }

    fn rebalance_needs(&self, state: &State) -> Result<Option<Needs>, Error> {
        let Some(stores) = state.index.clusters() else {
            return Ok(None);
        };
        let facts = reading::cluster_facts(&*self.volume, state.index.manifest())?;
        let dead = state.overlay.deleted.len() as u64;
        Ok(Some(Needs::of(&state.index, stores, facts, dead)))
    }
}
