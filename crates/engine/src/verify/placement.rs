//! What is said of where nodes are in an index that took direct inserts, and which of their ids count.
//!
//! ```text
//!   placement   node -> page; first nodes of added pages of vectors; ids that are dead, and those that came later
//!   pending     what is on no page yet
//! ```
//!
//! Ids count of the records that do: one whose id was deleted or replaced below a later node is dead, and may have the id
//! of another. The records of an index may be in several files, so what they come to is said when all were read.

use stratann_layout::{FileKind, Manifest, PendingFile, PendingRecord, PlacementFile};
use stratann_tier::Volume;

use super::Check;
use super::pages::NodeAt;
use crate::stores::Placed;
use crate::stores::topology::pending::Change;
use crate::stores::topology::placement::Placement;
use crate::{Layout, stored};

/// What is said of where nodes are.
pub(super) struct Tables {
    /// Without codes.
    pub(super) placement: PlacementFile,
    /// The file as problems name it.
    pub(super) name: String,
    /// What waits for its page: changes and new nodes, in the order of their nodes; `None` if that cannot be read.
    pub(super) pending: Option<Waiting>,
}

/// What is on no page yet.
pub(super) struct Waiting {
    changes: Vec<Change>,
    pub(super) records: Vec<PendingRecord>,
    /// The file as problems name it.
    pub(super) name: String,
}

impl Tables {
    /// What can be read of them: nothing at all without the placement.
    pub(super) fn read(volume: &dyn Volume, manifest: &Manifest) -> Option<Self> {
        let facts = manifest.placement.as_ref()?;
        let read = |kind| stored::read_stream_whole(volume, manifest, kind, None).ok();
        let payload = read(FileKind::Placement)?;
        let mut placement = stored::placement_of(volume, manifest, facts, payload).ok()?;
        placement.codes = Vec::new();
        let pending = read(FileKind::Pending).and_then(|payload| {
            let PendingFile {
                changes,
                mut records,
            } = stored::pending_of(volume, manifest, facts, &payload).ok()?;
            let changes = changes.into_iter();
            let mut changes: Vec<_> = changes
                .map(|[node, add, remove]| Change { node, add, remove })
                .collect();
            // Those of one node stay in their order.
            changes.sort_by_key(|change| change.node);
            records.sort_by_key(|record| record.node);
            Some(Waiting {
                changes,
                records,
                name: stored::file_of(volume, manifest, FileKind::Pending, None).ok()?,
            })
        });
        Some(Self {
            placement,
            name: stored::file_of(volume, manifest, FileKind::Placement, None).ok()?,
            pending,
        })
    }

    /// Whether an id is among those that came after the build.
    fn came_later(&self, id: u64) -> bool {
        let ids = &self.placement.ids;
        let behind = ids.partition_point(|&(first, _)| first <= id);
        let range = behind.checked_sub(1).map(|at| ids[at]);
        range.is_some_and(|(first, count)| id - first < count)
    }

    /// Changes of the list of a node.
    pub(super) fn changes(&self, node: u32) -> &[Change] {
        let Some(waiting) = &self.pending else {
            return &[];
        };
        let from = waiting.changes.partition_point(|change| change.node < node);
        let rest = &waiting.changes[from..];
        &rest[..rest.partition_point(|change| change.node == node)]
    }

    /// New nodes that wait for their page, of so many from `first` on.
    pub(super) fn waiting_from(&self, first: u64, count: usize) -> &[PendingRecord] {
        let Some(waiting) = &self.pending else {
            return &[];
        };
        let before = |end: u64| {
            let records = &waiting.records;
            records.partition_point(|record| u64::from(record.node) < end)
        };
        &waiting.records[before(first)..before(first + count as u64)]
    }
}

/// What the records that were read come to.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Records with an id.
    records: u64,
    /// Of these, those that do not count, and live ones that came after the build with an id that is said to have.
    dead: u64,
    later: u64,
}

/// What is wrong with the added pages of vectors that a table names, in an index of this layout.
pub(crate) fn added_wrong(layout: Layout, placement: &PlacementFile) -> Option<String> {
    let added = placement.added.len();
    let later = placement.nodes.saturating_sub(placement.built);
    match layout.has_vectors_in_records() {
        false if added == 0 && later > 0 => Some(format!(
            "it names no pages of vectors that were added, which those of {later} nodes are on"
        )),
        true if added > 0 => Some(format!(
            "it names {added} pages of vectors that were added, which the {layout} layout of this index has not"
        )),
        _ => None,
    }
}

impl Check<'_> {
    /// Whether pages may have been added to the vectors of segment `n`: also those that no checkpoint has yet, as after a crash.
    pub(super) fn may_grow(&self, n: Option<u32>) -> bool {
        let behind = n.map(|n| n as usize + 1);
        behind == Some(self.manifest.segments.len())
    }

    /// Where nodes are, as who reads pages wants it: nothing where no direct inserts were made, or where that cannot be read. Nothing
    /// waits where what does cannot be.
    pub(super) fn where_nodes_are(&self) -> Placed {
        let made = self.placed.get_or_init(|| {
            let placed = Placed::default();
            if let Some(tables) = self.placement_tables {
                let pending = stored::pending(self.volume, self.manifest).unwrap_or_default();
                let _ = placed.set(Placement::restore(&tables.placement, pending));
            }
            placed
        });
        made.clone()
    }

    /// Counts a record by its id.
    pub(super) fn counted(&mut self, place: NodeAt<'_>, id: u64) {
        self.expect_id(place, id);
        if self.manifest.placement.is_none() {
            return self.id(place, id);
        }
        // Which are dead, nobody knows without the table.
        let (Some(tables), Ok(node)) = (self.placement_tables, u32::try_from(place.node)) else {
            return;
        };
        self.counts.records += 1;
        if tables.placement.is_dead(id, node) {
            self.counts.dead += 1;
            return;
        }
        self.id(place, id);
        if node < tables.placement.built {
            return;
        }
        if tables.came_later(id) {
            self.counts.later += 1;
        } else {
            let what = format!(
                "node {node} came after the build with the outside id {id}, which is none of those that did"
            );
            self.report.problem(&tables.name, None, what);
        }
    }

    /// What counts comes to what is said, if all of it was read.
    pub(super) fn totals(&mut self) {
        let (Some(tables), Some(facts)) = (self.placement_tables, self.manifest.placement) else {
            return;
        };
        let Counts {
            records,
            dead,
            later,
        } = self.counts;
        let nodes = facts.nodes;
        if records != nodes {
            return;
        }
        let live = nodes - dead;
        if live != facts.live {
            self.claim(format!(
                "it says that {} vectors count; {live} do: of {nodes} nodes, {dead} have an id that was deleted or replaced",
                facts.live
            ));
        }
        let ranges = tables.placement.ids.iter().map(|&(_, count)| count);
        let said = ranges.fold(0u64, u64::saturating_add);
        if said > later {
            let what = format!(
                "it says that {said} outside ids came after the build; {later} of them are on nodes that did"
            );
            self.report.problem(&tables.name, None, what);
        }
    }
}
