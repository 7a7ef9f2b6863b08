//! What vectors may take that wait in memory for a merge, under a memory budget.

use super::{LiveIndex, State};
use crate::Error;
use crate::index::BESIDE_FRESH;

impl LiveIndex {
    /// Whether so many rows more may wait in memory.
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
            return Ok(());
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
}
