//! Inserts vectors into the graph on storage, moves waiting vectors there, and makes checkpoints
//! without a merge.
//!
//! While a file to which direct inserts write has other names (hard links), deletes and attributes
//! are only logged, and logged vectors wait in memory. The first insert that must write to the file
//! copies it, and searches read the copy. A merge writes new files anyway, so it copies nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stratann_layout::LogRecord;
use stratann_tier::Volume;

use super::changes::BATCH;
use super::{INTERRUPTIBLE, LiveIndex, State};
use crate::WriteOptions;
use crate::index::Index;
use crate::index::replay;
use crate::overlay::Overlay;
use crate::progress::{Progress, Silent, WithinStage};
use crate::update::direct::{Direct, is_taken, own_files};
use crate::update::health::{Concern, Health};
use crate::{Error, ErrorKind, Update};

impl LiveIndex {
    /// Moves vectors replayed from the log into the graph on storage. If `progress` interrupts, the
    /// remaining vectors wait until the next change.
    pub(super) fn with_fresh_drained(self, progress: &dyn Progress) -> Result<Self, Error> {
        if self.state().direct.is_some() && self.state().fresh().slots() > 0 {
            match self.drain_few(progress).and_then(|()| self.checkpoint()) {
                Err(Error::Interrupted) => self.hurries.store(true, Ordering::Relaxed),
                // On a full disk, the open succeeds, so that deletes are possible.
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    self.health.no_checkpoint(&error);
                }
                drained => _ = drained?,
            }
        }
        Ok(self)
    }

    /// Whether new vectors go into the graph on storage, at once or after files are
    /// [copied](Self::own_files).
    pub(super) fn goes_directly(&self, state: &State) -> bool {
        let way = self.options.update.unwrap_or(state.index.preset().update);
        state.direct.is_some() || is_taken(&state.index, way)
    }

    /// Copies files if only hard links prevent direct inserts, and inserts the waiting vectors into
    /// the graph. A merge writes new files, so the call copies no file during a merge. After an
    /// error, the index is unchanged.
    pub(super) fn own_files(&self, progress: &dyn Progress) -> Result<(), Error> {
        let one = loop {
            if !self.has_to_own(&self.state()) {
                return Ok(());
            }
            if let Some(one) = self.merging.try_lock_for(INTERRUPTIBLE) {
                break one;
            }
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
        };
        let state = self.state();
        if !self.has_to_own(&state) {
            return Ok(());
        }
        self.health.check()?;
        own_files(&*self.storage, &state.index, progress)?;
        {
            let _gate = self.gate.write();
            let state = self.state();
            let (index, overlay) = (&state.index, &state.overlay);
            let direct = direct_of(&*self.storage, index, overlay, &self.options, &self.health)?;
            *self.state.write() = Arc::new(State {
                index: state.index.clone(),
                overlay: state.overlay.clone(),
                ids: state.ids.clone(),
                direct: direct.map(Arc::new),
                since: None,
                rows_since: Arc::default(),
            });
        }
        if self.state().fresh().slots() > 0 {
            // If this step fails, no vector is lost, since the vectors are in the log.
            match self.drain_few(progress).and_then(|()| self.checkpoint()) {
                // After an interruption, the next change tries again.
                Ok(_) | Err(Error::Interrupted) => {}
                Err(error) => self.health.no_checkpoint(&error),
            }
        }
        drop(one);
        Ok(())
    }

    /// Whether only hard links prevent direct inserts, and no merge runs.
    pub(super) fn has_to_own(&self, state: &State) -> bool {
        state.direct.is_none() && state.since.is_none() && self.goes_directly(state)
    }

    /// Calls [`own_files`](Self::own_files) because attributes wait for a checkpoint. Without
    /// direct inserts, a checkpoint would need a merge. The stage that the caller reports to
    /// `progress` does not end.
    pub(super) fn own_files_for_rows(&self, progress: &dyn Progress) {
        match self.own_files(&WithinStage(progress)) {
            Ok(()) | Err(Error::Interrupted) => {}
            Err(error) => self.health.no_checkpoint(&error),
        }
    }

    /// Moves waiting vectors like [`drain_fresh`](Self::drain_fresh), unless a merge is cheaper.
    pub(super) fn drain_few(&self, progress: &dyn Progress) -> Result<(), Error> {
        match self.many_wait(&self.state()) {
            true => Ok(()),
            false => self.drain_fresh(progress),
        }
    }

    /// Moves vectors from memory into the graph on storage, in batches. After an error or an
    /// interruption, the remaining vectors continue to wait in memory and in the log.
    pub(super) fn drain_fresh(&self, progress: &dyn Progress) -> Result<(), Error> {
        let state = self.state();
        let Some(direct) = &state.direct else {
            return Ok(());
        };
        let fresh = state.fresh();
        if fresh.slots() == 0 {
            return Ok(());
        }
        for ids in fresh.live_ids().chunks(direct.batch()) {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            // If a search finds a vector in memory and on storage, the search returns the vector
            // once.
            let _gate = self.gate.write();
            direct.check()?;
            let vector = |&id: &u64| fresh.vector(id).map(|(vector, row)| (id, vector, row));
            let rows: Vec<_> = ids.iter().filter_map(vector).collect();
            let records: Vec<_> = rows
                .iter()
                .map(|(id, vector, row)| LogRecord::Insert {
                    id: *id,
                    vector,
                    row: row.as_deref(),
                })
                .collect();
            let left = direct.insert(&records);
            for (at, record) in records.iter().enumerate() {
                if !left.contains(&at) {
                    fresh.delete(record.id());
                }
            }
        }
        let _gate = self.gate.write();
        let state = self.state();
        if state.fresh().len() == 0 {
            *self.state.write() = Arc::new(State {
                overlay: Overlay {
                    fresh: vec![Arc::new(replay::fresh(&state.index))],
                    deleted: state.overlay.deleted.clone(),
                    inserted: state.overlay.inserted.clone(),
                },
                index: state.index.clone(),
                ids: state.ids.clone(),
                direct: state.direct.clone(),
                since: None,
                rows_since: Arc::default(),
            });
            self.health.recovered(Concern::Vectors);
        }
        Ok(())
    }

    /// Makes a checkpoint without a merge, so that a restart has nothing to replay. If vectors wait
    /// in memory, makes no checkpoint, and returns `false`.
    pub(super) fn checkpoint(&self) -> Result<bool, Error> {
        // The check for drift comes before the lock, so that inserts continue during this check.
        self.look_if_many_came();
        let _gate = self.gate.write();
        let state = self.state();
        let waits = state.overlay.fresh.iter().any(|fresh| fresh.slots() > 0);
        let Some(direct) = state.direct.as_ref().filter(|_| !waits) else {
            return Ok(false);
        };
        let sequence = self.log.next_sequence();
        if self.checkpointed.load(Ordering::Relaxed) == sequence {
            return Ok(true);
        }
        self.health.check()?;
        let log_from = self.log.rotate()?;
        direct.checkpoint(log_from.into(), self.next_id.load(Ordering::Relaxed))?;
        self.health.recovered(Concern::Commit);
        self.checkpointed.store(sequence, Ordering::Relaxed);
        self.charged.store(0, Ordering::Relaxed);
        self.keep_room();
        Ok(true)
    }

    /// Writes pages of the journal in place, and makes another checkpoint, so that the next open
    /// need not keep these pages in memory.
    pub(super) fn leave_nothing(&self) -> Result<(), Error> {
        let state = self.state();
        let Some(direct) = state.direct.as_ref().filter(|direct| direct.leaves_pages()) else {
            return Ok(());
        };
        let _gate = self.gate.write();
        let log_from = self.health.standing(&*self.volume)?.log_from;
        // If the log has later changes, the next process replays these changes.
        if log_from.sequence != self.log.next_sequence() {
            return Ok(());
        }
        direct.checkpoint(log_from, self.next_id.load(Ordering::Relaxed))
    }

    /// Retries a failed checkpoint when pages that wait for a checkpoint fill the memory.
    pub(super) fn checkpoint_if_full(&self, progress: &dyn Progress) -> Result<(), Error> {
        let direct = self.state().direct.clone();
        if direct.is_some_and(|direct| direct.is_journal_full())
            && let Some(_one) = self.merging.try_lock()
        {
            self.drain_fresh(progress)?;
            self.checkpoint()?;
        }
        Ok(())
    }

    pub(super) fn checkpoint_if_due(&self, progress: &dyn Progress) {
        let state = self.state();
        let Some(direct) = &state.direct else {
            self.rebalance_if_due(&state);
            return;
        };
        let since = self.log.next_sequence() - self.checkpointed.load(Ordering::Relaxed);
        if (direct.is_due(since) || self.are_rows_due(&state))
            && let Some(_one) = self.merging.try_lock()
        {
            // If the disk has no space for a checkpoint, no insert is lost, since the log has the
            // inserts.
            let made = self.drain_few(progress).and_then(|()| self.checkpoint());
            match made {
                Ok(true) => self.health.recovered(Concern::Checkpoint),
                // Vectors wait in memory, and `Concern::Vectors` reports them.
                Ok(false) | Err(Error::Interrupted) => {}
                Err(error) => self.health.no_checkpoint(&error),
            }
        }
    }

    pub(super) fn rebalances(&self, state: &State) -> bool {
        let way = self.options.update.unwrap_or(state.index.preset().update);
        state.index.has_clusters() && way == Update::Rebalance
    }

    fn rebalance_if_due(&self, state: &State) {
        if !self.rebalances(state) {
            return;
        }
        let waits = self.waiting(state);
        let due = self.rebalance_due_after(state, self.options.direct.checkpoint);
        // If the manifest lacks facts about clusters, the rebalance below reports the error.
        let due = due.unwrap_or(waits);
        if waits >= due.max(self.rebalance_after.load(Ordering::Relaxed)) {
            self.rebalance_or_say_why_not(waits);
        }
    }

    /// Rebalances because memory for waiting vectors is full, even after an earlier failure.
    /// Returns `false` if no vector was moved.
    pub(super) fn rebalance_for_room(&self, state: &State) -> bool {
        let waits = self.waiting(state);
        let some = waits > 0 || state.index.columns().has_new();
        some && self.rebalances(state) && self.rebalance_or_say_why_not(waits)
    }

    fn rebalance_or_say_why_not(&self, waits: u64) -> bool {
        let Some(_one) = self.merging.try_lock() else {
            return false;
        };
        match self.rebalance_now(&Silent) {
            Ok(_) => {
                self.health.recovered(Concern::Checkpoint);
                true
            }
            Err(error) => {
                // A retry processes all waiting vectors, so the index does not retry at every call.
                let next = waits + (waits / 2).max(BATCH as u64);
                self.rebalance_after.store(next, Ordering::Relaxed);
                self.health.no_checkpoint(&error);
                false
            }
        }
    }
}

pub(super) fn direct_of(
    storage: &dyn Volume,
    index: &Arc<Index>,
    overlay: &Overlay,
    options: &WriteOptions,
    health: &Arc<Health>,
) -> Result<Option<Direct>, Error> {
    let update = options.update.unwrap_or(index.preset().update);
    let (choices, threads) = (options.direct, options.threads);
    Direct::open(storage, index, overlay, update, choices, threads, health)
}

/// Inserts logged vectors into the graph on storage. After the call, `records` has only the vectors
/// that must wait in memory.
pub(super) fn place_directly(state: &State, direct: &Direct, records: &mut Vec<LogRecord<'_>>) {
    let fresh = state.fresh();
    let waits = |record: &LogRecord<'_>| fresh.slots() > 0 && fresh.contains(record.id());
    // If the old vector of an id waits in memory, the graph on storage has no live vector of this
    // id, and needs no tombstone.
    let replaced = records.iter().filter(|record| waits(record));
    let replaced: Vec<u64> = replaced.map(|record| record.id()).collect();
    for record in records.iter_mut() {
        if let LogRecord::Replace { id, vector, row } = *record
            && replaced.contains(&id)
        {
            *record = LogRecord::Insert { id, vector, row };
        }
    }
    let left = direct.insert(records);
    let placed = |at: &usize| left.binary_search(at).is_err();
    for at in (0..records.len()).filter(placed) {
        // The new vector is in the graph, so the old vector is deleted from memory.
        let id = records[at].id();
        if replaced.contains(&id) {
            fresh.delete(id);
        }
    }
    let mut at = 0;
    records.retain(|_| {
        at += 1;
        left.contains(&(at - 1))
    });
}
