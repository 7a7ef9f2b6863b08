//! What a live index does where vectors go straight into the graph on storage: put them there, also those that waited in
//! memory, and make checkpoints that merge nothing.
//!
//! ```text
//!   a file that inserts write to has other names (hard links)     deletes and rows of attributes are logged, vectors of a log wait in memory
//!   the first insert that is to write to it                       it is copied, the copy takes its name, searches read the copy
//!   or a merge                                                    writes new files, and copies nothing
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stratann_layout::LogRecord;
use stratann_tier::Volume;

use super::changes::BATCH;
use super::{INTERRUPTIBLE, LiveIndex, State, WriteOptions};
use crate::index::Index;
use crate::progress::{Progress, Silent, WithinStage};
use crate::update::direct::{Direct, is_taken, own_files};
use crate::update::health::{Concern, Health};
use crate::update::overlay::Overlay;
use crate::update::replay;
use crate::{Error, ErrorKind, Update};

impl LiveIndex {
    /// With what was replayed from the log in the graph on storage, where that is how vectors get in. Where `progress` ends that, the rest goes on waiting: whoever asked
    /// for a change asks again whether to go on.
    pub(super) fn with_fresh_drained(self, progress: &dyn Progress) -> Result<Self, Error> {
        if self.state().direct.is_some() && self.state().fresh().slots() > 0 {
            match self.drain_few(progress).and_then(|()| self.checkpoint()) {
                Err(Error::Interrupted) => self.hurries.store(true, Ordering::Relaxed),
                // They are in the log, and found there. Deletes go on, and need not wait for room.
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    self.health.no_checkpoint(&error);
                }
                drained => _ = drained?,
            }
        }
        Ok(self)
    }

    /// Whether vectors go straight into the graph on storage: now, or once its files are [its own](Self::own_files).
    pub(super) fn goes_directly(&self, state: &State) -> bool {
        let way = self.options.update.unwrap_or(state.index.preset().update);
        state.direct.is_some() || is_taken(&state.index, way)
    }

    /// Has vectors go straight into the graph on storage where only other names of its files kept them from it: copies these, and puts in the vectors that waited for that.
    /// While a merge goes on nothing is copied: it writes new files, and vectors wait for it as ever.
    ///
    /// # Errors
    /// The volume fails, or has no space for a copy; an interruption through `progress`. Nothing was changed.
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
        // Whoever had the lock before may have done it.
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
            // They are in the log: nothing is lost if that cannot be done now.
            match self.drain_few(progress).and_then(|()| self.checkpoint()) {
                // Whoever is interrupted asks again.
                Ok(_) | Err(Error::Interrupted) => {}
                Err(error) => self.health.no_checkpoint(&error),
            }
        }
        drop(one);
        Ok(())
    }

    /// Whether only other names of its files keep vectors from the graph on storage, and no merge writes new ones.
    pub(super) fn has_to_own(&self, state: &State) -> bool {
        state.direct.is_none() && state.since.is_none() && self.goes_directly(state)
    }

    /// As [`own_files`](Self::own_files), for rows that wait for a checkpoint: one is made for the graph on storage alone. The stage of the call goes on.
    pub(super) fn own_files_for_rows(&self, progress: &dyn Progress) {
        match self.own_files(&WithinStage(progress)) {
            // Whoever is interrupted asks again.
            Ok(()) | Err(Error::Interrupted) => {}
            Err(error) => self.health.no_checkpoint(&error),
        }
    }

    /// As [`drain_fresh`](Self::drain_fresh), unless vectors wait that are so many that a merge is to do it.
    pub(super) fn drain_few(&self, progress: &dyn Progress) -> Result<(), Error> {
        match self.many_wait(&self.state()) {
            true => Ok(()),
            false => self.drain_fresh(progress),
        }
    }

    /// Moves vectors from memory into the graph on storage, some at a time.
    ///
    /// # Errors
    /// The volume fails, or an interruption through `progress`, which is asked before each batch. What was not moved goes on waiting, in memory and in the
    /// log, and searches find it.
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
            // Nobody deletes what is on its way. A search may meet it twice, and answers it once.
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

    /// Makes a checkpoint without a merge, so that a restart has nothing to replay. Says whether there is one: not while vectors wait
    /// in memory.
    pub(super) fn checkpoint(&self) -> Result<bool, Error> {
        // Inserts go on meanwhile. Those that come in between are as those before, as far as anybody knows.
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

    /// Writes what a checkpoint left to be written in its place, and says so in another one: who opens the index then has
    /// nothing of it to keep in memory.
    pub(super) fn leave_nothing(&self) -> Result<(), Error> {
        let state = self.state();
        let Some(direct) = state.direct.as_ref().filter(|direct| direct.leaves_pages()) else {
            return Ok(());
        };
        let _gate = self.gate.write();
        let log_from = self.health.standing(&*self.volume)?.log_from;
        // What came since the last checkpoint, if that could not be made, is for those who replay the log.
        if log_from.sequence != self.log.next_sequence() {
            return Ok(());
        }
        direct.checkpoint(log_from, self.next_id.load(Ordering::Relaxed))
    }

    /// Makes the checkpoint that was due and could not be made, where what it is to write fills memory.
    ///
    /// # Errors
    /// It still cannot: a full disk, or an interruption through `progress`.
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

    /// Makes a checkpoint if enough was inserted since the last one.
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
            // What was inserted is in the log: nothing is lost if there is no room for a checkpoint now.
            let made = self.drain_few(progress).and_then(|()| self.checkpoint());
            match made {
                Ok(true) => self.health.recovered(Concern::Checkpoint),
                // Vectors wait in memory, of which `Concern::Vectors` tells, or until whoever is interrupted asks again.
                Ok(false) | Err(Error::Interrupted) => {}
                Err(error) => self.health.no_checkpoint(&error),
            }
        }
    }

    /// Whether vectors go into the clusters on storage, some at a time.
    pub(super) fn rebalances(&self, state: &State) -> bool {
        let way = self.options.update.unwrap_or(state.index.preset().update);
        state.index.has_clusters() && way == Update::Rebalance
    }

    /// Moves vectors from memory into the clusters on storage if enough of them wait, where that is how they get in.
    fn rebalance_if_due(&self, state: &State) {
        if !self.rebalances(state) {
            return;
        }
        let waits = self.waiting(state);
        let due = self.rebalance_due_after(state, self.options.direct.checkpoint);
        // What the manifest does not say, the checkpoint itself refuses.
        let due = due.unwrap_or(waits);
        if waits >= due.max(self.rebalance_after.load(Ordering::Relaxed)) {
            self.rebalance_or_say_why_not(waits);
        }
    }

    /// Moves what waits into the clusters on storage because nothing more may wait, whatever went wrong the last time; false if that is not how
    /// vectors get in, or it could not be done.
    pub(super) fn rebalance_for_room(&self, state: &State) -> bool {
        let waits = self.waiting(state);
        let some = waits > 0 || state.index.columns().has_new();
        some && self.rebalances(state) && self.rebalance_or_say_why_not(waits)
    }

    fn rebalance_or_say_why_not(&self, waits: u64) -> bool {
        let Some(_one) = self.merging.try_lock() else {
            return false;
        };
        // What was inserted is in the log, and searches find it: nothing is lost if there is no room for a checkpoint now.
        match self.rebalance_now(&Silent) {
            Ok(_) => {
                self.health.recovered(Concern::Checkpoint);
                true
            }
            Err(error) => {
                // All of them are looked at again then: not at every call.
                let next = waits + (waits / 2).max(BATCH as u64);
                self.rebalance_after.store(next, Ordering::Relaxed);
                self.health.no_checkpoint(&error);
                false
            }
        }
    }
}

/// What puts vectors into the graph of an index that was opened so, whose files are in `storage`.
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

/// Puts logged vectors into the graph on storage; those stay in `records` that have to wait in memory.
pub(super) fn place_directly(state: &State, direct: &Direct, records: &mut Vec<LogRecord<'_>>) {
    let fresh = state.fresh();
    let waits = |record: &LogRecord<'_>| fresh.slots() > 0 && fresh.contains(record.id());
    // What is in memory is replaced there, and need not be told from the graph's.
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
        // One that has to wait takes the place of what is there when it gets into memory, and not before.
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
