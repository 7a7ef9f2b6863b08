//! The ids that a checkpoint has in addition to the ids of its build.

use stratann_layout::{Manifest, PlacementFile};

use super::TOMBSTONE;
use crate::stores::ids::PLACEHOLDER_ID;

#[derive(Clone, Debug, Default)]
pub(crate) struct CarriedIds {
    /// The live inserted ids, as ascending ranges: first id and number of ids.
    pub(crate) ids: Vec<(u64, u64)>,
    /// The ids of dead records, each with a bound: records of the id on lower nodes are dead.
    pub(crate) deleted: Vec<(u64, u32)>,
    pub(crate) dead: usize,
    pub(crate) next_id: u64,
}

impl CarriedIds {
    pub(crate) fn charge(&self) -> u64 {
        self.dead as u64 * TOMBSTONE
    }

    /// After a build or merge, only a placeholder is dead.
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
