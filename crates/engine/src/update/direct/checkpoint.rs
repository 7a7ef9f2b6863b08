//! The checkpoint of an index that takes direct inserts: where its nodes are, and what waits for their pages.
//!
//! ```text
//!   pages        written and synced where they are: on pages that the last checkpoint does not name
//!   placement-…  the table from node to page, codes and ids that came since the build, ids that went
//!   pending-…    changes and nodes that are on no page yet
//!   rows-…       what vectors have beside them that came or was given since, and columns-… which have what
//!   MANIFEST     names these two and the files of the build, and the log that goes on from here
//! ```
//!
//! It is made often, so that a restart has little of the log to replay: what it writes grows with the table, 4 bytes a node, so
//! it is due after a share of the nodes was inserted, which makes it a fixed number of bytes an insert. It is due as well when pages that only the checkpoint before
//! names are many beside those that nodes are on: of a graph of some ten thousand nodes a thousand inserts write nearly all pages anew, and until the next checkpoint none
//! of those before is free.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stratann_layout::manifest::{FORMAT_VERSION, PLACEMENT};
use stratann_layout::{
    FileKind, LogFrom, PendingFile, PendingRecord, PlacementFacts, PlacementFile, RunsOn,
};
use stratann_tier::TierError;

use super::{Direct, changes};
use crate::Error;
use crate::build::write_stream;
use crate::durable::{Checkpoint, begin_state};
use crate::stores::on_pages;
use crate::stores::topology::pending::NewRecord;
use crate::stores::topology::placement::Placement;
use crate::stores::vectors::added::Added;

/// Inserts between two checkpoints: this share of the nodes, and no fewer than [`LEAST`].
const SHARE: u64 = 512;
/// Inserts between two checkpoints, at least.
const LEAST: u64 = 1024;
/// Pages that only the checkpoint before names, from which on the next one is due: one for so many that nodes are on, and at least.
const HELD: usize = 4;
const LEAST_HELD: usize = 512;

/// Whether pages that only the last checkpoint names are many beside those that nodes are on.
fn holds_many((held, live): (usize, usize)) -> bool {
    held >= (live / HELD).max(LEAST_HELD)
}

impl Direct {
    /// Whether a checkpoint is due after so many changes of the index.
    pub(crate) fn is_due(&self, changes: u64) -> bool {
        let due = match self.choices.checkpoint {
            Some(wanted) => changes >= wanted,
            None => {
                let by_size = (u64::from(self.placement().nodes()) / SHARE).max(LEAST);
                changes >= by_size || holds_many(self.store.held())
            }
        };
        due || self.is_journal_full()
    }

    /// Whether another checkpoint would leave less to those who open the index: one of nothing but that its pages are in their
    /// places.
    pub(crate) fn leaves_pages(&self) -> bool {
        self.in_place && self.journal.is_named()
    }

    /// Whether so much is to be written in its place that a checkpoint has to come first.
    pub(crate) fn is_journal_full(&self) -> bool {
        let page_bytes = || self.index.graph().pages.file(0).page_bytes;
        self.in_place && self.journal.is_full(page_bytes())
    }

    /// Commits a checkpoint of what the graph is now; the log goes on where `log_from` says. Nobody inserts or deletes meanwhile.
    ///
    /// # Errors
    /// Something cannot be written; the last checkpoint goes on to count.
    pub(crate) fn checkpoint(&self, log_from: LogFrom, next_id: u64) -> Result<(), Error> {
        if self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.check()?;
        self.store.settle();
        self.check()?;
        let volume = &**self.index.volume();
        // Before anything is synced: what stands in the directory is what this goes on from.
        let mut manifest = self.health.standing(volume)?;
        // Pages that a sync has failed to bring to the disk may be gone, and the next sync would not say so: they are never committed.
        let lost = |error: &TierError| self.health.sync_failed(error);
        self.file.lock().sync().inspect_err(lost)?;
        if let (Some(added), Some(segment)) = (self.added(), &self.segment) {
            added.seal();
            self.write_vectors()?;
            segment.lock().sync().inspect_err(lost)?;
        }
        let placement = self.placement();
        let nodes = placement.nodes();
        let built = manifest.vectors as u32;
        let codes = built as usize * manifest.code_bytes as usize;
        let mut deleted: Vec<(u64, u32)> = self
            .deleted
            .all()
            .into_iter()
            // No node above is there yet.
            .map(|(id, bound)| (id, bound.min(nodes)))
            .collect();
        deleted.sort_unstable();
        let mut checkpoint = Checkpoint::begin(volume, true)?;
        // One after the other, and nothing twice, so that a checkpoint takes little memory.
        let payload = PlacementFile {
            built,
            pages: placement.pages(),
            nodes,
            page_of: match self.in_place {
                true => Vec::new(),
                false => (0..nodes).map(|node| placement.page_of(node)).collect(),
            },
            added: self.added().map_or_else(Vec::new, Added::firsts),
            runs: self.added().map_or_else(RunsOn::default, Added::runs),
            codes: match self.in_place {
                true => Vec::new(),
                false => self.index.codes().get(codes..).unwrap_or_default().to_vec(),
            },
            lists: (built..nodes)
                .map(|node| placement.lists.get(node))
                .collect(),
            ids: self.inserted.read().all(),
            deleted,
        }
        .encode();
        let placed = write_stream(&checkpoint, FileKind::Placement, None, &payload)?;
        drop(payload);
        let pages = &self.index.graph().pages;
        let (waiting, journaled) =
            on_pages!(pages, pages => changes::write_waiting(self, pages, &checkpoint))?;
        let columns = self.index.columns();
        let is_dead = |id, node| self.deleted.contains(id, node);
        let memory = self.index.memory().for_segment();
        let written = columns.write_new(volume, &checkpoint, Vec::new(), &is_dead, memory)?;
        let mut files = vec![placed, waiting];
        let replaced = |role: &str| files.iter().any(|file| file.role == role);
        manifest.files.retain(|file| !replaced(&file.role));
        manifest.files.append(&mut files);
        if let Some(written) = &written {
            written.name_in(&mut manifest);
        }
        manifest.format_version = FORMAT_VERSION;
        manifest.reader_features |= PLACEMENT;
        manifest.checkpoint = checkpoint.number();
        manifest.log_from = log_from;
        manifest.placement = Some(PlacementFacts {
            nodes: nodes.into(),
            pages: placement.pages().into(),
            live: u64::from(nodes).saturating_sub(self.deleted.len() as u64),
            next_id,
            drift: None,
        });
        manifest.note_drift(self.index.drift().facts());
        begin_state(&mut manifest)?;
        let committed = checkpoint.commit(&manifest).inspect_err(|_| {
            // It may have got as far as the rename.
            self.store.undecided();
        })?;
        drop(checkpoint);
        // It is what the next one goes on from, whether a crash may take it back or not.
        if let Some(written) = written {
            columns.committed(written);
        }
        self.health.committed(manifest);
        if let Err(error) = committed.durable(volume) {
            // A crash may bring back this checkpoint or the one before: until another one is durable, no page of either is written
            // to. Where pages stay in their places, they are written when a journal has them that is durable.
            self.store.undecided();
            return Err(error);
        }
        tracing::debug!(index = %self.index.path().display(), nodes, "checkpoint");
        if self.in_place {
            self.journaled(journaled);
        }
        self.store.committed(placement);
        self.counts.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// What waits for its page.
pub(super) fn pending(placement: &Placement) -> PendingFile {
    let (changes, records) = placement.pending.all();
    let record = |(_, record): (u32, Arc<NewRecord>)| PendingRecord {
        node: record.node,
        id: record.id,
        vector: record.vector.to_vec(),
        list: record.list.to_vec(),
    };
    PendingFile {
        changes: changes
            .iter()
            .map(|change| [change.node, change.add, change.remove])
            .collect(),
        records: records.into_iter().map(record).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_wait_for_a_checkpoint_are_a_quarter_of_the_others_or_few() {
        assert!(!holds_many((511, 20)) && holds_many((512, 20)));
        assert!(!holds_many((999, 4_000)) && holds_many((1_000, 4_000)));
    }
}
