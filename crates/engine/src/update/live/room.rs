//! Limits of memory and storage for changes. Under a memory budget, this module limits the new
//! vectors and rows that wait for a merge, are in copies of pages, or are moved into clusters. It
//! also reserves blocks on storage, so that deletes are possible on a full disk.
//!
//! An accepted change is charged the memory that its log record will take when the index is opened
//! again ([`logged_bytes`](crate::update::logged_bytes)). The limit is the memory that will then be
//! available.

use std::sync::atomic::Ordering;

use super::changes::BATCH;
use super::{LiveIndex, State};
use crate::durable::{keep_small_room, room_for_deletes};
use crate::progress::Progress;
use crate::update::logged::{FIRST_FRESH, vector_charge};
use crate::update::merge::BEYOND_SEARCH;
use crate::update::rebalance::{self, Needs};
use crate::{Error, stored};

/// Rows of so many bytes are worth a checkpoint if there is no budget.
const MOST_ROWS: u64 = 64 << 20;

/// The bytes of the rows that wait for a checkpoint.
fn waiting_rows(state: &State) -> u64 {
    state.index.columns().new_bytes() + state.overlay.charged_rows()
}

/// Leases memory from the catalog for one of its indexes. If that fails, returns the present budget
/// and a sufficient one, in bytes.
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
    /// Reserves blocks on storage for deletes on a full disk, as many as the present vectors need.
    pub(super) fn keep_room(&self) {
        self.log.keep_room(room_for_deletes(self.len() as u64));
        if let Err(error) = keep_small_room(&*self.volume) {
            // This handle does not need the blocks. A process that opens the index later on a full
            // disk does.
            tracing::debug!(index = %self.path.display(), "no room is kept for a manifest: {error}");
        }
    }

    /// Checks whether `rows` more vectors, and rows that are charged so many bytes
    /// ([`row_charge`](crate::stores::columns::row_charge)), may wait in memory. In an index with
    /// direct inserts, rows wait for a checkpoint, and vectors must fit the copies of its pages in
    /// memory ([`Places`](crate::Places)).
    ///
    /// # Errors
    /// The budget is too small for them.
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
            // Vectors go straight to storage.
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
                part: "the index and the vectors that wait in memory for a merge (`stratann compact` merges the waiting ones, with more memory; \
                       an index of the preset stratann puts them on storage at once)"
                    .into(),
            });
        }
        Ok(())
    }

    /// Checks whether `more` bytes of rows may wait for a checkpoint.
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
            part: "the index and the attributes and payloads that wait in memory for a checkpoint; nothing was changed (fewer at a time need less)"
                .into(),
        })
    }

    /// Whether enough rows wait for a checkpoint, or a replay of the log would take too much
    /// memory.
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

    /// The changes that wait in memory and in the log for a merge or a rebalance, as a number of
    /// vectors. Rows set without vectors count by their charges. Replaced vectors count too, since
    /// they are in the log.
    pub(super) fn waiting(&self, state: &State) -> u64 {
        let each = vector_charge(state.index.dim() * state.index.element().size());
        let logged = self.charged.load(Ordering::Relaxed) / each;
        logged.max(state.fresh().len() as u64)
    }

    /// Charges changes for their log records until a checkpoint has them.
    pub(super) fn charge(&self, vectors: usize, row_bytes: usize, attributes: u64) {
        let more = vectors as u64 * vector_charge(row_bytes) + attributes;
        self.charged.fetch_add(more, Ordering::Relaxed);
    }

    /// Moves waiting changes to storage because memory for them is full. `false` if the index does
    /// not work that way, or if the move failed.
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

    /// Checks whether copies in memory may grow by so many rows. The copies were charged when the
    /// index was opened; later growth must fit the memory that the plan left unused. A row counts
    /// as the average size of a row in the copies. The pages that an insert writes are known only
    /// afterwards, so copies may exceed the limit by the writes of one batch.
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
                       (a place in a folder, such as mapped:/dev/shm/x, takes none of the budget)"
                    .into(),
            });
        }
        Ok(())
    }

    /// The number of waiting vectors that is worth a checkpoint, which moves them into clusters. It
    /// is `wanted`, or the usual number. It is smaller if the budget is too small to keep or move
    /// so many.
    ///
    /// # Errors
    /// The manifest has no facts about clusters.
    pub(super) fn rebalance_due_after(
        &self,
        state: &State,
        wanted: Option<u64>,
    ) -> Result<u64, Error> {
        let wanted = wanted.unwrap_or_else(|| rebalance::due_after(state.index.nodes() as u64));
        let (Some(room), Some(needs)) =
            (self.room_for_changes(state), self.rebalance_needs(state)?)
        else {
            return Ok(wanted);
        };
        let each = vector_charge(state.index.dim() * state.index.element().size());
        // Tombstones and rows take memory that vectors cannot use.
        let beside = state.overlay.deleted.memory_bytes() + waiting_rows(state);
        let on_their_way = needs.most(room.saturating_sub(beside), each);
        let memory = state.index.memory();
        let waiting = memory.for_waiting().saturating_sub(beside) / each;
        // Vectors are inserted in batches, and the check comes between two batches.
        let most = on_their_way.min(waiting).saturating_sub(BATCH as u64);
        Ok(wanted.min(most.max(1)))
    }

    /// Checks whether there is memory to move waiting vectors into clusters.
    ///
    /// # Errors
    /// There is not enough memory: the error says how much is enough.
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
                    "the {} vectors that wait for their clusters, and the heads of these; nothing was changed, and searches find them",
                    state.fresh().len()
                ),
            });
        }
        Ok(())
    }

    /// The memory for changes and for the checkpoint that stores them, in bytes; `None` without a
    /// budget.
    fn room_for_changes(&self, state: &State) -> Option<u64> {
        let memory = state.index.memory();
        memory.budget.filter(|_| memory.for_changes)?;
        Some(memory.for_waiting() + state.index.lent_since() + BEYOND_SEARCH)
    }

    /// The memory that a rebalance needs; `None` if there are no clusters.
    fn rebalance_needs(&self, state: &State) -> Result<Option<Needs>, Error> {
        let Some(stores) = state.index.clusters() else {
            return Ok(None);
        };
        let facts = stored::cluster_facts(&*self.volume, state.index.manifest())?;
        let dead = state.overlay.deleted.len() as u64;
        Ok(Some(Needs::of(&state.index, stores, facts, dead)))
    }
}
