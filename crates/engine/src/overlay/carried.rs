//! The ids that a checkpoint has beside the ids of its build.

use stratann_layout::{Manifest, PlacementFile};

use super::TOMBSTONE;
use crate::stores::ids::PLACEHOLDER_ID;

/// The ids that were inserted or deleted between a build and the checkpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct CarriedIds {
    /// The live inserted ids, as ascending ranges. A range is its first id and the number of its
    /// ids.
    pub(crate) ids: Vec<(u64, u64)>,
    /// The ids of dead records, each with a bound. The records of an id on nodes below the bound
    /// are dead.
    pub(crate) deleted: Vec<(u64, u32)>,
    /// The number of dead records.
    pub(crate) dead: usize,
    /// One more than the largest id that the index has ever had.
    pub(crate) next_id: u64,
}

impl CarriedIds {
    /// The bytes that a memory budget is charged for the dead records.
    pub(crate) fn charge(&self) -> u64 {
        self.dead as u64 * TOMBSTONE
    }

    /// The ids of a checkpoint that a build or merge wrote: none inserted and none deleted. If the
    /// index was built of no rows, its placeholder is dead.
    pub(crate) fn of_build(manifest: &Manifest) -> Self {
        match manifest.has_placeholder() {
            false => Self::default(),
            true => Self {
                deleted: vec![(PLACEHOLDER_ID, 1)],
                dead: 1,
                ..Self::default()
            },
        }
    }

    /// The ids recorded in a checkpoint.
    pub(crate) fn of(file: PlacementFile, manifest: &Manifest) -> Self {
        let nodes = u64::from(file.nodes);
        let facts = manifest.placement;
        Self {
            ids: file.ids,
            deleted: file.deleted,
            dead: facts.map_or(0, |facts| nodes.saturating_sub(facts.live)) as usize,
            next_id: facts.map_or(0, |facts| facts.next_id),
        }
    }
}
