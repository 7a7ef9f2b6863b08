//! What new vectors may take in memory, under a memory budget: where they wait for a merge, stand in copies of pages, or are on their way into
//! clusters.

use super::changes::BATCH;
use super::{LiveIndex, State};
use crate::index::BESIDE_FRESH;
use crate::update::merge::BEYOND_SEARCH;
use crate::update::rebalance::{self, Needs};
use crate::{Error, stored};

impl LiveIndex {
    /// Whether so many rows more may wait in memory, or, of an index that puts them on storage at once, stand in the copies of its pages that are
    /// there ([`Places`](crate::Places)).
    ///
    /// # Errors
    /// A budget that has no room for them.
    pub(super) fn check_room(
        &self,
        state: &State,
        rows: usize,
        row_bytes: usize,
    ) -> Result<(), Error> {
        #[cfg(test)]
        crate::plan::refusal::check()?;
        let memory = state.index.memory();
        let Some(budget) = memory.budget.filter(|_| memory.for_changes) else {
            return Ok(());
        };
        if state.direct.is_some() {
            // They go to storage.
            return self.check_copies(state, rows, budget);
        }
        let room = memory.inserting + memory.changes + memory.unused;
        let more = rows as u64 * (row_bytes as u64 + BESIDE_FRESH);
        let wanted = state.overlay.memory_bytes() + more;
        if wanted > room {
            return Err(Error::Memory {
                budget,
                needs: budget + (wanted - room),
                part: "the index and the vectors that wait in memory for a merge (`stratann compact` merges those that are there, with more memory; \
                       an index of the preset stratann puts them on storage at once)"
                    .into(),
            });
        }
        Ok(())
    }

    /// Whether copies in memory may grow by so many rows more. They were charged as long as they were when the index was opened; what comes
    /// in afterwards has to fit what the plan left over. A row counts as much as the copies have of each, on average: how many pages its insert writes
    /// is known afterwards only, so copies may come to be larger by what one batch of rows writes.
    fn check_copies(&self, state: &State, rows: usize, budget: u64) -> Result<(), Error> {
        let memory = state.index.memory();
        if memory.places == 0 {
            return Ok(());
        }
        let copies = (self.open.places).memory_bytes(&*self.volume, state.index.manifest());
        let each = memory.places.div_ceil((state.index.len() as u64).max(1));
        let grown = copies.saturating_sub(memory.places);
        let wanted = grown.saturating_add(each.saturating_mul(rows as u64));
        if wanted > memory.unused {
            return Err(Error::Memory {
                budget,
                needs: budget.saturating_add(wanted - memory.unused),
                part: "the index and the copies of its pages in memory (the places `dram` and those of models), which grow with each vector: \
                       give it more, or a place in a folder, such as mapped:/dev/shm/x"
                    .into(),
            });
        }
        Ok(())
    }

    /// How many vectors are worth a checkpoint that moves them into clusters in place: `wanted`, or what is usual, or fewer where a budget has no
    /// room for so many that wait, or for them on their way.
    ///
    /// # Errors
    /// The manifest says nothing of clusters.
    pub(super) fn rebalance_due_after(
        &self,
        state: &State,
        wanted: Option<u64>,
    ) -> Result<u64, Error> {
        let wanted = wanted.unwrap_or_else(|| rebalance::due_after(state.index.len() as u64));
        let (Some(room), Some(needs)) =
            (self.room_for_changes(state), self.rebalance_needs(state)?)
        else {
            return Ok(wanted);
        };
        let each = (state.index.dim() * state.index.element().size()) as u64 + BESIDE_FRESH;
        // What is deleted takes room that vectors do not have.
        let beside = state.overlay.deleted.memory_bytes();
        let on_their_way = needs.most(room.saturating_sub(beside), each);
        let memory = state.index.memory();
        let waiting = memory.inserting + memory.changes + memory.unused;
        let waiting = waiting.saturating_sub(beside) / each;
        // They come some at a time, and whether it is due is asked in between.
        let most = on_their_way.min(waiting).saturating_sub(BATCH as u64);
        Ok(wanted.min(most.max(1)))
    }

    /// Whether what waits has room on its way into clusters.
    ///
    /// # Errors
    /// It has not: with what would do.
    pub(super) fn check_rebalance(&self, state: &State) -> Result<(), Error> {
        let (Some(room), Some(needs)) =
            (self.room_for_changes(state), self.rebalance_needs(state)?)
        else {
            return Ok(());
        };
        let wanted = needs.bytes(state.fresh().len() as u64) + state.overlay.memory_bytes();
        if wanted > room {
            let budget = state.index.memory().budget.unwrap_or_default();
            return Err(Error::Memory {
                budget,
                needs: budget + (wanted - room),
                part: format!(
                    "the {} vectors that wait on their way into clusters, and the heads of these: nothing was changed, and searches find them",
                    state.fresh().len()
                ),
            });
        }
        Ok(())
    }

    /// What changes, and a checkpoint that takes them, may take in memory; `None` without a budget.
    fn room_for_changes(&self, state: &State) -> Option<u64> {
        let memory = state.index.memory();
        memory.budget.filter(|_| memory.for_changes)?;
        Some(memory.inserting + memory.changes + memory.unused + BEYOND_SEARCH)
    }

    /// `None` where there are no clusters.
    fn rebalance_needs(&self, state: &State) -> Result<Option<Needs>, Error> {
        let Some(stores) = state.index.clusters() else {
            return Ok(None);
        };
        let facts = stored::cluster_facts(&*self.volume, state.index.manifest())?;
        let dead = state.overlay.deleted.len() as u64;
        Ok(Some(Needs::of(&state.index, stores, facts, dead)))
    }
}
