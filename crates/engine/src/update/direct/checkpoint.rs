//! The checkpoint of an index with direct inserts: the pages of the nodes, and the changes that
//! wait for these pages.
//!
//! ```text
//!   pages        written to pages that the last checkpoint does not name, and synced
//!   placement-…  the table from nodes to pages, new codes and ids since the build, deleted ids
//!   pending-…    changes, and nodes that are on no page yet
//!   rows-…       attributes that were only in memory; columns-… has the nodes of their values
//!   MANIFEST     names these files, the files of the build, and the log from which a replay starts
//! ```
//!
//! A checkpoint writes the whole table, 4 bytes for each node, so a checkpoint is due after inserts
//! of a fixed share of the nodes. A checkpoint is also due when many pages belong only to the last
//! checkpoint, since these pages are not free before the next checkpoint. In a graph of some ten
//! thousand nodes, a thousand inserts rewrite nearly all pages.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stratann_layout::manifest::{FORMAT_VERSION, PLACEMENT};
use stratann_layout::{
    FileKind, LogFrom, PendingFile, PendingRecord, PlacementFacts, PlacementFile, RunsOn,
};
use stratann_tier::TierError;

use super::{Direct, changes};
use crate::Error;
use crate::durable::{Checkpoint, begin_state};
use crate::stores::on_pages;
use crate::stores::topology::pending::NewRecord;
use crate::stores::topology::placement::Placement;
use crate::stores::vectors::added::Added;
use crate::stores::writing::files::write_stream;

/// The number of inserts between two checkpoints is the number of nodes divided by `SHARE`, at
/// least [`LEAST`].
const SHARE: u64 = 512;
const LEAST: u64 = 1024;
/// A checkpoint is due if many pages belong only to the last checkpoint: at least `LEAST_HELD`, and
/// at least the number of pages in use divided by `HELD`.
const HELD: usize = 4;
const LEAST_HELD: usize = 512;

fn holds_many((held, live): (usize, usize)) -> bool {
    held >= (live / HELD).max(LEAST_HELD)
}

impl Direct {
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

    /// Whether the last checkpoint has a journal with pages, which each open must read.
    pub(crate) fn leaves_pages(&self) -> bool {
        self.in_place && self.journal.is_named()
    }

    /// Whether the pages that are to be rewritten in place fill the memory for such pages.
    pub(crate) fn is_journal_full(&self) -> bool {
        let page_bytes = || self.index.graph().pages.file(0).page_bytes;
        self.in_place && self.journal.is_full(page_bytes())
    }

    /// Commits a checkpoint of the present graph, without running inserts or deletes. `log_from` is
    /// the position in the log after the last change of the checkpoint. After [`Error::Undurable`],
    /// the checkpoint is committed but may not be durable.
    pub(crate) fn checkpoint(&self, log_from: LogFrom, next_id: u64) -> Result<(), Error> {
        if self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.check()?;
        self.store.settle();
        self.check()?;
        let volume = &**self.index.volume();
        // The checkpoint builds on the manifest in the directory, so the manifest is read first.
        let mut manifest = self.health.standing(volume)?;
        // After a failed sync, pages may be lost, and a later sync would not report the loss.
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
            // A bound above the number of present nodes would also make later nodes dead.
            .map(|(id, bound)| (id, bound.min(nodes)))
            .collect();
        deleted.sort_unstable();
        let mut checkpoint = Checkpoint::begin(volume, true)?;
        // The files are written one after the other, so that a checkpoint takes little memory.
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
            // The failed commit may have renamed the manifest.
            self.store.undecided();
        })?;
        drop(checkpoint);
        // The next checkpoint builds on this checkpoint, even if a crash may restore the previous
        // checkpoint.
        if let Some(written) = written {
            columns.committed(written);
        }
        self.health.committed(manifest);
        if let Err(error) = committed.durable(volume) {
            // After a crash, either checkpoint may be valid, so no page of the two is overwritten.
            // Pages are not written in place either, since the journal may not be durable.
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
