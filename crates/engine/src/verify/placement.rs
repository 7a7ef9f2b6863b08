//! Checks the table of nodes and pages of an index that took direct inserts, and the live ids.
//!
//! ```text
//!   placement   node -> page; first nodes of added pages of vectors; dead ids, and later ids
//!   pending     nodes and changes that are on no page yet
//! ```
//!
//! Ids must be unique among live records. If an id was deleted or replaced, the table has a bound:
//! records of this id on nodes below the bound are dead. Totals are checked after all files were
//! read.

use stratann_layout::{FileKind, Manifest, PendingFile, PendingRecord, PlacementFile};
use stratann_tier::Volume;

use super::Check;
use super::pages::NodeAt;
use crate::stores::Placed;
use crate::stores::reading;
use crate::stores::topology::pending::Change;
use crate::stores::topology::placement::Placement;
use crate::{Layout, stored};

pub(super) struct Tables {
    pub(super) placement: PlacementFile,
    pub(super) name: String,
    /// Pending changes and new nodes, ordered by node. `None` if they cannot be read.
    pub(super) pending: Option<Waiting>,
}

pub(super) struct Waiting {
    changes: Vec<Change>,
    pub(super) records: Vec<PendingRecord>,
    pub(super) name: String,
}

impl Tables {
    pub(super) fn read(volume: &dyn Volume, manifest: &Manifest) -> Option<Self> {
        let facts = manifest.placement.as_ref()?;
        let read = |kind| stored::read_stream_whole(volume, manifest, kind, None).ok();
        let payload = read(FileKind::Placement)?;
        let mut placement = reading::placement_of(volume, manifest, facts, payload).ok()?;
        placement.codes = Vec::new();
        let pending = read(FileKind::Pending).and_then(|payload| {
            let PendingFile {
                changes,
                mut records,
            } = reading::pending_of(volume, manifest, facts, &payload).ok()?;
            let changes = changes.into_iter();
            let mut changes: Vec<_> = changes
                .map(|[node, add, remove]| Change { node, add, remove })
                .collect();
            // The sort is stable, so the changes of a node stay in their order.
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

    fn came_later(&self, id: u64) -> bool {
        let ids = &self.placement.ids;
        let behind = ids.partition_point(|&(first, _)| first <= id);
        let range = behind.checked_sub(1).map(|at| ids[at]);
        range.is_some_and(|(first, count)| id - first < count)
    }

    pub(super) fn changes(&self, node: u32) -> &[Change] {
        let Some(waiting) = &self.pending else {
            return &[];
        };
        let from = waiting.changes.partition_point(|change| change.node < node);
        let rest = &waiting.changes[from..];
        &rest[..rest.partition_point(|change| change.node == node)]
    }

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

#[derive(Debug, Default)]
pub(super) struct Counts {
    records: u64,
    dead: u64,
    /// The number of live records that were inserted after the build and are in the table.
    later: u64,
}

/// The fault in the table's list of added pages, if this list does not fit the layout.
pub(crate) fn added_wrong(layout: Layout, placement: &PlacementFile) -> Option<String> {
    let added = placement.added.len();
    let later = placement.nodes.saturating_sub(placement.built);
    match layout.has_vectors_in_records() {
        false if added == 0 && later > 0 => Some(format!(
            "it names no pages of inserted vectors, but {later} nodes need them"
        )),
        true if added > 0 => Some(format!(
            "it names {added} pages of inserted vectors, which the {layout} layout of this index does not have"
        )),
        _ => None,
    }
}

impl Check<'_> {
    /// Whether segment `n` is the last segment. Only its file may have pages that no checkpoint
    /// names, after a crash.
    pub(super) fn may_grow(&self, n: Option<u32>) -> bool {
        let behind = n.map(|n| n as usize + 1);
        behind == Some(self.manifest.segments.len())
    }

    /// The pages of the nodes, for readers of pages. The table is empty if there were no direct
    /// inserts, or if the table cannot be read.
    pub(super) fn where_nodes_are(&self) -> Placed {
        let made = self.placed.get_or_init(|| {
            let placed = Placed::default();
            if let Some(tables) = self.placement_tables {
                let pending = reading::pending(self.volume, self.manifest).unwrap_or_default();
                let _ = placed.set(Placement::restore(&tables.placement, pending));
            }
            placed
        });
        made.clone()
    }

    pub(super) fn counted(&mut self, place: NodeAt<'_>, id: u64) {
        self.expect_id(place, id);
        if self.manifest.placement.is_none() {
            return self.id(place, id);
        }
        // If the table of deleted ids cannot be read, it is unknown which records are dead.
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
                "node {node} was inserted after the build with the external id {id}, which the table does not list"
            );
            self.report.problem(&tables.name, None, what);
        }
    }

    /// Checks the totals against the manifest, if all records were read.
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
                "it says that {} vectors are live; {live} are: of {nodes} nodes, {dead} have an id that was deleted or replaced",
                facts.live
            ));
        }
        let ranges = tables.placement.ids.iter().map(|&(_, count)| count);
        let said = ranges.fold(0u64, u64::saturating_add);
        if said > later {
            let what = format!(
                "it lists {said} external ids that were inserted after the build, but only {later} of them are on nodes inserted since"
            );
            self.report.problem(&tables.name, None, what);
        }
    }
}
