//! What new vectors may take in memory, under a memory budget: where they wait for a merge, or stand in copies of pages.

use super::{LiveIndex, State};
use crate::Error;
use crate::index::BESIDE_FRESH;

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
}
