//! The merge of an index that is open for changes. All steps that can fail run before the commit.
//!
//! ```text
//!   freeze    the next log, an empty fresh graph                    changes wait briefly
//!   merge     the files of the next checkpoint                      changes and searches run
//!   open      the next index: tables, ids, the writer of direct inserts
//!   commit    MANIFEST names the next checkpoint                    changes wait briefly
//!   swap      searches start from the next checkpoint               cannot fail
//! ```
//!
//! If a merge fails before the commit, the changes after the freeze join the frozen graph. If the
//! sync of the commit fails, the files of both checkpoints stay until a later commit is durable. If
//! it is unknown which manifest is valid, the index accepts no more changes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLock;

use super::directly::direct_of;
use super::{Before, CompactReport, LiveIndex, State, room};
use crate::durable::LogPosition;
use crate::index::replay;
use crate::index::{Index, Lent};
use crate::overlay::ranges::IdRanges;
use crate::overlay::{Overlay, Tombstones};
use crate::progress::{Progress, Silent};
use crate::stores::composition::CodesAt;
use crate::update::health::Concern;
use crate::update::ids::StoredIds;
use crate::update::merge;
use crate::update::rebalance;
use crate::{Error, plan};

/// While this value exists, new vectors go to another fresh graph, which the merge does not read.
/// A drop of this value without a commit undoes the freeze.
struct Frozen<'a> {
    live: &'a LiveIndex,
    state: Arc<State>,
    /// The position in the log after the last change that is merged.
    log_from: LogPosition,
    /// The ids of dead records, each with a bound: records of the id on lower nodes are dead.
    removed: HashMap<u64, u32>,
    /// The read timestamp at which vectors of the frozen graph are merged.
    epoch: u64,
    /// The number of dead records on storage, and the live ids that were inserted since the build.
    dead: u64,
    inserted: Vec<(u64, u64)>,
    merged: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NextCheckpoint {
    NewBuild,
    Rebalanced,
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if self.merged {
            return;
        }
        let _gate = self.live.gate.write();
        let fresh = &self.state.overlay.fresh;
        fresh[1].for_each(|id, vector, row| {
            fresh[0].insert(id, vector, row);
        });
        *self.live.state.write() = Arc::new(State {
            index: self.state.index.clone(),
            overlay: Overlay {
                fresh: vec![fresh[0].clone()],
                deleted: self.state.overlay.deleted.clone(),
                inserted: self.state.overlay.inserted.clone(),
            },
            ids: self.state.ids.clone(),
            direct: self.state.direct.clone(),
            since: None,
            rows_since: Arc::default(),
        });
    }
}

impl LiveIndex {
    /// Merges all changes into a new checkpoint, while inserts, deletes and searches continue. If
    /// the checkpoint of the last build or merge has all changes, the call does nothing.
    ///
    /// # Errors
    /// The merged index would exceed the memory budget, the disk is full, or `progress` interrupts.
    /// The index is then unchanged. A commit that may not be durable is no error:
    /// [`trouble`](crate::Stats::trouble) reports the failure, and both checkpoints are kept until
    /// a later checkpoint is durable.
    pub fn compact(&self, progress: &dyn Progress) -> Result<CompactReport, Error> {
        let _one = self.without_checkpoints(progress)?;
        self.health.check()?;
        let compacted = self.merge_now(NextCheckpoint::NewBuild, progress);
        match &compacted {
            Ok(report) => {
                self.health.recovered(Concern::Merge);
                self.merges.fetch_add(1, Ordering::Relaxed);
                tracing::info!(
                    index = %self.path.display(),
                    vectors = report.vectors,
                    seconds = report.seconds,
                    "merged"
                );
            }
            Err(error) => tracing::info!(index = %self.path.display(), "no merge: {error}"),
        }
        // After an interruption, the caller should not wait any longer.
        if self.health.is_halted() || matches!(compacted, Err(Error::Interrupted)) {
            return compacted;
        }
        match self.drain_few(progress) {
            Ok(()) | Err(Error::Interrupted) => {}
            // The vectors that were not moved stay in memory and in the log.
            Err(error) => self.health.trouble(Concern::Vectors, &error),
        }
        compacted
    }

    /// Freezes the present vectors for a merge. `None` if there is nothing to merge.
    fn freeze(&self, into: NextCheckpoint) -> Result<Option<Frozen<'_>>, Error> {
        let _gate = self.gate.write();
        let state = self.state();
        let overlay = &state.overlay;
        // Whether vectors were moved to storage since the last build or merge.
        let moved = state.index.nodes() as u64 > state.index.manifest().vectors;
        let rows = state.index.columns().has_new();
        let deleted = state.index.deleted_in(overlay) > 0;
        if !deleted && state.fresh().slots() == 0 && !moved && !rows {
            return Ok(None);
        }
        let inserted = overlay.inserted.read().all();
        let left = overlay.live(state.index.nodes());
        self.check_budget(&state, left)?;
        if into == NextCheckpoint::Rebalanced {
            self.check_rebalance(&state)?;
        }
        // If another program has replaced the manifest, this check fails before the first write.
        self.health.standing(&*self.volume)?;
        let log_from = self.log.rotate()?;
        if let Some(direct) = &state.direct {
            direct.check()?;
            direct.settle();
            direct.check()?;
        }
        let state = Arc::new(State {
            index: state.index.clone(),
            overlay: Overlay {
                fresh: vec![state.fresh().clone(), Arc::new(replay::fresh(&state.index))],
                deleted: overlay.deleted.clone(),
                inserted: overlay.inserted.clone(),
            },
            ids: state.ids.clone(),
            direct: state.direct.clone(),
            since: Some(Arc::default()),
            rows_since: Arc::default(),
        });
        *self.state.write() = state.clone();
        Ok(Some(Frozen {
            live: self,
            log_from,
            // A later delete becomes a tombstone in the overlay of the new checkpoint.
            removed: state.overlay.deleted.all(),
            epoch: state.overlay.fresh[0].epoch(),
            dead: state.overlay.deleted.len() as u64,
            inserted,
            state,
            merged: false,
        }))
    }

    /// Moves waiting vectors into the clusters on storage, and rebalances these clusters (SPFresh).
    /// Large clusters are split. In replicated layouts, small clusters are dissolved. Vectors
    /// around split and dissolved clusters are reassigned. Unchanged clusters are not written.
    /// Inserts, deletes and searches continue.
    ///
    /// # Errors
    /// Fails as [`compact`](LiveIndex::compact) does, or if the waiting vectors and the heads of
    /// the clusters exceed the memory budget.
    pub fn rebalance(&self, progress: &dyn Progress) -> Result<CompactReport, Error> {
        let _one = self.merging.lock();
        self.health.check()?;
        self.rebalance_now(progress)
    }

    /// The caller holds the lock `merging`.
    pub(super) fn rebalance_now(&self, progress: &dyn Progress) -> Result<CompactReport, Error> {
        let state = self.state();
        let waits = state.fresh().slots() > 0 || state.index.columns().has_new();
        if !state.index.has_clusters() || !waits {
            let bytes = merge::bytes_in(&*self.volume)?;
            return Ok(CompactReport {
                vectors: state.overlay.live(state.index.nodes()) as u64,
                bytes_before: bytes,
                bytes_after: bytes,
                ..CompactReport::default()
            });
        }
        drop(state);
        let report = self.merge_now(NextCheckpoint::Rebalanced, progress)?;
        tracing::debug!(
            index = %self.path.display(),
            vectors = report.merged,
            clusters = report.clusters_written,
            split = report.clusters_split,
            merged = report.clusters_merged,
            "moved waiting vectors into clusters"
        );
        Ok(report)
    }

    fn merge_now(
        &self,
        into: NextCheckpoint,
        progress: &dyn Progress,
    ) -> Result<CompactReport, Error> {
        let Some(mut frozen) = self.freeze(into)? else {
            let bytes = merge::bytes_in(&*self.volume)?;
            return Ok(CompactReport {
                vectors: self.state().index.len() as u64,
                bytes_before: bytes,
                bytes_after: bytes,
                ..CompactReport::default()
            });
        };
        let state = frozen.state.clone();
        let mut next = None;
        // `ready` locks the gate from the commit until the swap of the state. The drop of `frozen`
        // locks the gate, too, so `gate` must be dropped first.
        let mut gate = None;
        let mut ready = |manifest: &stratann_layout::Manifest| {
            let index = Arc::new(Index::open_next(
                self.volume.clone(),
                &self.path,
                manifest.clone(),
                &self.open,
                (state.index.lent(), &Silent),
            )?);
            let ids = match into {
                // A rebalance leaves the ids of the build unchanged.
                NextCheckpoint::Rebalanced => state.ids.clone(),
                NextCheckpoint::NewBuild => {
                    StoredIds::of(&index)?.ok_or_else(|| Error::Damaged {
                        file: self.volume.name(),
                        what: "the merged index has no table of ids".into(),
                    })?
                }
            };
            gate = Some(self.gate.write());
            self.health.standing(&*self.volume)?;
            next = Some(self.next_state(&state, index, ids)?);
            Ok(())
        };
        let inputs = merge::Inputs {
            removed: &frozen.removed,
            epoch: frozen.epoch,
            fresh: &state.overlay.fresh[0],
            log_from: frozen.log_from.into(),
            next_id: self.next_id.load(Ordering::Relaxed),
            dead: frozen.dead,
            inserted: frozen.inserted.clone(),
            threads: self.options.threads,
            memory: self.open.memory,
        };
        let (volume, index) = (&self.volume, &*state.index);
        let merged = match (into, index.clusters()) {
            (NextCheckpoint::Rebalanced, Some(stores)) => {
                rebalance::rebalance(volume, index, stores, &inputs, &mut ready, progress)
            }
            _ => merge::merge(volume, index, &inputs, &mut ready, progress),
        };
        let (report, committed) = match merged {
            Ok(merged) => merged,
            Err(error) => {
                drop(next);
                drop(gate);
                return Err(error);
            }
        };
        let Some(next) = next else {
            self.health
                .halt("a merge was committed before its index was opened");
            return Ok(report);
        };
        if let before @ (Before::NotYet | Before::Kept(_)) = &mut *self.before.lock() {
            *before = Before::Kept(state.clone());
        }
        // The gate stops all changes here, so no other thread asks for more memory.
        if let Some(lent) = next.index.lent() {
            lent.keep(next.index.planned_more());
        }
        *self.state.write() = Arc::new(next);
        self.replaced.fetch_add(1, Ordering::Release);
        // An earlier failed rebalance no longer delays the next rebalance.
        self.rebalance_after.store(0, Ordering::Relaxed);
        match committed.durable(&*self.volume) {
            Ok(()) => self.health.recovered(Concern::Commit),
            // The files of both checkpoints stay until a later commit is durable.
            Err(error) => self.health.no_checkpoint(&error),
        }
        // The merged index has the vectors that waited before the freeze.
        for concern in [Concern::Checkpoint, Concern::Vectors, Concern::Pages] {
            self.health.recovered(concern);
        }
        let committed = self.state().index.manifest().clone();
        self.health.committed(committed);
        frozen.merged = true;
        self.checkpointed
            .store(frozen.log_from.sequence, Ordering::Relaxed);
        // The fresh graph itself counts the memory of changes after the freeze.
        self.charged.store(0, Ordering::Relaxed);
        self.keep_room();
        self.reads.clear();
        Ok(report)
    }

    /// The state after the commit of a merged index. The caller holds the lock `gate`.
    fn next_state(&self, state: &State, index: Arc<Index>, ids: StoredIds) -> Result<State, Error> {
        let since = state.since.as_ref().map(|since| since.all());
        // A tombstone covers only nodes below its bound. Later nodes may be live under the same id.
        let nodes = index.nodes() as u32;
        let gone = since.unwrap_or_default().into_keys();
        let gone: Vec<_> = gone.map(|id| (id, nodes)).collect();
        // Dead records on storage. After a rebuild, the only dead record can be a placeholder.
        let carried = index.carried();
        let deleted = Tombstones::restore(&carried.deleted, carried.dead);
        let mut inserted = IdRanges::of(&carried.ids);
        for &(id, bound) in &gone {
            inserted.remove(id);
            deleted.insert_below(id, bound);
        }
        // The attributes that vectors received during the merge. Attributes of deleted vectors are
        // dropped.
        let gone_ids: HashSet<u64> = gone.iter().map(|&(id, _)| id).collect();
        let mut rows = std::mem::take(&mut *state.rows_since.lock());
        rows.retain(|id, _| !gone_ids.contains(id));
        index
            .columns()
            .declare_all(&state.index.columns().schema())?;
        replay::put_rows(&index, &deleted, rows)?;
        let overlay = Overlay {
            fresh: vec![state.overlay.fresh[1].clone()],
            deleted: Arc::new(deleted),
            inserted: Arc::new(RwLock::new(inserted)),
        };
        let direct = direct_of(
            &*self.storage,
            &index,
            &overlay,
            &self.options,
            &self.health,
        )?;
        Ok(State {
            overlay,
            ids,
            direct: direct.map(Arc::new),
            since: None,
            rows_since: Arc::default(),
            index,
        })
    }

    /// Checks before a merge whether the memory budget suffices, as far as this is known.
    fn check_budget(&self, state: &State, vectors: usize) -> Result<(), Error> {
        let Some(budget) = self.open.memory else {
            return Ok(());
        };
        let manifest = state.index.manifest();
        let codes = match state.index.composition().codes {
            CodesAt::Records | CodesAt::Nowhere => 0,
            CodesAt::Memory => vectors as u64 * u64::from(manifest.code_bytes),
        };
        // During the swap, memory has the copies of the old and of the merged index.
        let copies = (self.open.places).memory_bytes(&*self.volume, manifest);
        let needs = plan::least(state.index.dim(), codes).saturating_add(copies.saturating_mul(2));
        let budget = budget.saturating_add(state.index.lent().map_or(0, Lent::more));
        if budget < needs
            && let Some((budget, needs)) = room::lend(state, budget, needs - budget)
        {
            return Err(Error::Memory {
                budget,
                needs,
                part: "the merged index, which has more vectors than the last build; nothing was changed".into(),
            });
        }
        Ok(())
    }
}
