//! The vector log of a volume: a write-ahead log with group commit.
//!
//! ```text
//!   append ─> pending ──leader: write──> written ──sync──> durable
//!             (encoded, numbered)        (kept in memory until durable, for rotate)
//!
//!   log-000001   header | record | record | ..           synced before the next one is started
//!   log-000002   header (first sequence number) | ..
//! ```
//!
//! A caller that finds no write in progress becomes the leader. The leader writes all pending
//! records in one write. If durability asks for it, the leader also makes one sync. Meanwhile other
//! callers encode records behind it and wait. The mutex is not held during the write.
//!
//! **A write that fails** (a full disk) fails the appends that wait for it. The log cuts off any
//! part of them that reached the file, and syncs the cut, so that no replay finds them. Later
//! appends succeed once there is space.
//!
//! **A sync that fails** leaves the content of the disk unknown, and a later successful sync would
//! prove nothing. So the file takes no more records. [`Log::rotate`] starts the next file with all
//! records that were acknowledged but are not yet durable. The first sequence number in the new
//! header invalidates any later record of the old file. Until the rotation, a replay may or may not
//! find an append whose sync failed.
//!
//! **After a crash** [`replay`] reads all files and returns the numbers with which the next file
//! starts. A torn file stays unchanged, since the first sequence number of the next file says where
//! it ended. Records behind the last mark may exist only in the page cache, if an earlier process
//! saw a sync fail. So the next file begins with a copy of those records, and with their first
//! sequence number. It is written as `log.new` and renamed once it is durable. A file without a
//! valid record is replaced by the next one, so that empty files do not pile up.
//!
//! **Reserved blocks.** Deletes still work on a full disk. If a delete finds no space in the
//! current file, the log switches to a file with preallocated blocks (`log.room`,
//! [`room`](super::room)). That file becomes the next log. Until another file is reserved, the log
//! refuses records other than deletes. If a process then opens the index and finds no space for a
//! log of its own, it continues the last log, provided that its mark shows all of it durable.
//! Otherwise the process takes the reserved file.
//!
//! **Rows.** A file has the version that earlier readers know until the first record with a row,
//! which they could not read. Such a record begins the next file, as after a failed sync, or
//! replaces a file without records. If a file copies records from another one, it takes over the
//! other one's version.
//!
//! **Marks.** After each sync the log notes in the file up to where it is durable
//! ([`stratann_layout::log::marks`]). A mark is one small write, and no append waits for a disk to
//! finish it. An incomplete record below the mark is damage, and an error. An incomplete record
//! behind the mark is the torn end of a crash. [`salvage`] serves repair, and takes every whole
//! record.

mod file;
mod files;
mod replay;
mod salvage;
#[cfg(test)]
mod tests;

use std::io;
use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use stratann_layout::log::{FIRST_RECORD, encode_record};
use stratann_layout::{LogHeader, LogRecord, LogShape, RecordPlace};
use stratann_tier::{Home, TierError, Volume};

use self::file::{
    LogFile, Unfinished, copy, create_empty, create_in_room, create_with, go_on, rewritten,
    take_back,
};
use self::files::numbers_in;
pub(crate) use self::files::{
    LogPosition, log_bytes, log_name, number_of, remove_logs_before, unfinished,
};
use self::replay::LogBefore;
pub(crate) use self::replay::{NextLog, replay};
pub(crate) use self::salvage::{LostRecords, salvage};
use super::room::{LOG_ROOM, drop_log_room};
use crate::stored::name_of;
use crate::{Error, ErrorKind};

/// The most bytes kept in memory until they are durable. Beyond this, the log syncs by itself.
const MOST_UNSYNCED: usize = 64 << 20;
/// The divisor of a memory budget that gives the bytes kept until they are durable.
const UNSYNCED_SHARE: u64 = 32;

/// How long the thread of [`Durability::Every`] waits after a failed sync before it rotates the
/// log: at first, and at most.
const FIRST_RESCUE: Duration = Duration::from_secs(1);
const LAST_RESCUE: Duration = Duration::from_secs(60);

/// When an append is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When the append returns.
    Always,
    /// At most this long after the append returned.
    Every(Duration),
    /// When a later [`LiveIndex::flush`](crate::LiveIndex::flush) or merge returns, or earlier.
    OnFlush,
}

/// The log that is being written. Threads share it.
#[derive(Debug)]
pub(crate) struct Log {
    shared: Arc<Shared>,
    /// The thread that syncs within the time limit; only for [`Durability::Every`].
    syncer: Option<JoinHandle<()>>,
    /// The number of the file that the log started with, if no file had that number before.
    added: Option<u64>,
    home: Home,
}

#[derive(Debug)]
struct Shared {
    volume: Arc<dyn Volume>,
    shape: LogShape,
    durability: Durability,
    /// The most bytes kept in memory until they are durable.
    most_unsynced: AtomicUsize,
    state: Mutex<State>,
    /// Signals that a leader has finished.
    led: Condvar,
    /// Signals that there are records to sync within the time limit, or that the log closes.
    due: Condvar,
}

/// The state of the log. Each sequence number here belongs to the record *behind* the bytes that it
/// describes.
#[derive(Debug)]
struct State {
    /// Number of the current file.
    number: u64,
    /// How many files this log had before the current one.
    files: u64,
    /// Whether the current file may have records with rows.
    rows: bool,
    /// Bytes to reserve for deletes; 0 for none.
    room: u64,
    /// Whether deletes have used the reserved blocks.
    room_is_taken: bool,
    /// The current file; `None` while a leader holds it.
    file: Option<LogFile>,
    /// Records behind `written` and `leading`, encoded for their future place in the file.
    pending: Vec<u8>,
    pending_sequence: u64,
    /// Bytes that a leader is writing; `pending` begins behind them.
    leading: u64,
    /// Receives the outcome of the pending appends.
    batch: Arc<Batch>,
    /// End of the written and acknowledged bytes, as an offset in the file.
    written: u64,
    written_sequence: u64,
    durable_sequence: u64,
    /// Written records that are not known to be durable, with the bytes they have in the file.
    unsynced: Vec<u8>,
    /// When the first of `unsynced` was written.
    unsynced_since: Instant,
    /// The reason why this file takes no more records, if there is one.
    broken: Option<String>,
    stop: bool,
}

/// Appends that are written together, and their outcome.
#[derive(Debug, Default)]
struct Batch {
    outcome: OnceLock<Result<(), Arc<TierError>>>,
}

impl Log {
    /// Starts the next log, as [`replay`] says, or the first one. It is durable on return. The
    /// caller holds the volume's lock.
    ///
    /// If new records follow, a later crash must not lose the records that a replay has read. If an
    /// earlier process saw a sync fail, those records may have come from the page cache alone. A
    /// sync that succeeds now would not rule that out. So this rewrites all records that are not
    /// known to be durable.
    ///
    /// # Errors
    /// There is a log of this number or above that the replay does not know: [`Error::Exists`]. The
    /// volume fails: then a replay finds the same records as before.
    pub(crate) fn start(
        volume: Arc<dyn Volume>,
        shape: LogShape,
        next: &NextLog,
        durability: Durability,
    ) -> Result<Log, Error> {
        let known = match next.replaces {
            true => next.number,
            false => next.number.saturating_sub(1),
        };
        if numbers_in(&*volume)?
            .last()
            .is_some_and(|&last| last > known)
        {
            return Err(Error::Exists {
                path: name_of(&*volume, &log_name(next.number)).into(),
                reason:
                    "a log with this number exists. Replay the logs, which gives the next number"
                        .into(),
            });
        }
        // Left behind by a crash.
        let _ = volume.remove(&unfinished());
        let header = LogHeader {
            shape,
            number: next.number,
            first_sequence: next.undurable.map_or(next.sequence, |from| from.sequence),
            marked: true,
            rows: next.rows,
        };
        let Started { file, end, rows } = match next.before {
            // Deletes have used the reserved blocks, and this file may have the only blocks left.
            Some(before) if volume.kept_room(&log_name(before.end.log))? > 0 => {
                Started::within(&*volume, before)?
            }
            _ => Started::beside(&*volume, header, next)
                .or_else(|error| Started::on_full_disk(&*volume, header, next, error))?,
        };
        let shared = Arc::new(Shared {
            volume,
            shape,
            durability,
            most_unsynced: AtomicUsize::new(MOST_UNSYNCED),
            state: Mutex::new(State {
                number: end.log,
                files: 0,
                rows,
                room: 0,
                room_is_taken: false,
                file: Some(file),
                pending: Vec::new(),
                pending_sequence: end.sequence,
                leading: 0,
                batch: Arc::default(),
                written: end.offset,
                written_sequence: end.sequence,
                durable_sequence: end.sequence,
                unsynced: Vec::new(),
                unsynced_since: Instant::now(),
                broken: None,
                stop: false,
            }),
            led: Condvar::new(),
            due: Condvar::new(),
        });
        let mut syncer = None;
        if let Durability::Every(within) = durability {
            let (keeper, volume) = (shared.clone(), &shared.volume);
            let thread = Builder::new().name("stratann-log".into());
            let started = stratann_tier::start(thread, move || keeper.sync_in_time(within));
            syncer = Some(started.map_err(|source| TierError::NoThread {
                what: format!("the syncs of the log in {}", volume.name()),
                source,
            })?);
        }
        Ok(Log {
            shared,
            syncer,
            added: (!next.replaces && end.log == next.number).then_some(next.number),
            home: Home::here(),
        })
    }

    /// Limits the bytes kept until they are durable to a share of a memory budget.
    pub(crate) fn keep_within(&self, budget: u64) {
        let share = (budget / UNSYNCED_SHARE).min(MOST_UNSYNCED as u64);
        let most = &self.shared.most_unsynced;
        most.store(share as usize, Ordering::Relaxed);
    }

    /// Reserves `bytes` from now on for deletes on a full disk, if the volume can. If there is too
    /// little space, the next record other than a delete tries again.
    pub(crate) fn keep_room(&self, bytes: u64) {
        let mut state = self.shared.state.lock();
        match self.shared.volume.keep_room(LOG_ROOM, bytes) {
            Ok(kept) => {
                state.room = if kept { bytes } else { 0 };
                state.room_is_taken = false;
            }
            Err(error) => {
                tracing::debug!("no blocks are reserved for deletes: {error}");
                state.room = bytes;
                state.room_is_taken = true;
            }
        }
    }

    /// Appends a record. Returns its sequence number once it is written, and with
    /// [`Durability::Always`] once it is durable.
    ///
    /// # Errors
    /// As for [`Log::append_all`].
    #[cfg(test)]
    pub(crate) fn append(&self, record: LogRecord<'_>) -> Result<u64, Error> {
        Ok(self.append_all(&[record])?.start)
    }

    /// Appends records in order. Returns their sequence numbers once they are written, and with
    /// [`Durability::Always`] once they are durable. A call appends all records or none, but a
    /// crash meanwhile may leave the first few.
    ///
    /// # Errors
    /// A vector of a wrong length: nothing is appended. A failed write: later appends may succeed.
    /// A failed sync, now or before: only [`Log::rotate`] helps.
    pub(crate) fn append_all(&self, records: &[LogRecord<'_>]) -> Result<Range<u64>, Error> {
        let shared = &*self.shared;
        let expected = shared.shape.vector_bytes();
        for record in records {
            let id = record.id();
            if let Some(vector) = record.vector()
                && vector.len() != expected
            {
                return Err(Error::call(
                    format!("the vector of id {id}"),
                    format!("{} bytes", vector.len()),
                    format!("a vector of this index has {expected} bytes"),
                    "Give vectors of its dimension and element type",
                ));
            }
        }
        shared.volume.check_held()?;
        let mut state = shared.state.lock();
        shared.usable(&state)?;
        if state.room_is_taken && !records.iter().all(is_delete) {
            shared.keep_room_again(&mut state)?;
        }
        if records.iter().any(LogRecord::has_row) {
            shared.take_rows(&mut state)?;
        }
        let first = state.pending_sequence;
        if records.is_empty() {
            return Ok(first..first);
        }
        let mut place = RecordPlace {
            log: state.number,
            offset: state.written_or_led() + state.pending.len() as u64,
            sequence: first,
        };
        for &record in records {
            place = encode_record(record, place, &mut state.pending);
        }
        state.pending_sequence = place.sequence;
        let batch = state.batch.clone();
        loop {
            match batch.outcome.get() {
                Some(Ok(())) => return Ok(first..place.sequence),
                Some(Err(error)) => return Err(copy_of(error).into()),
                // No write is in progress and there is no outcome, so this batch is the pending
                // one.
                None if state.file.is_some() => shared.lead(&mut state, false),
                None => shared.led.wait(&mut state),
            }
        }
    }

    /// Appends deletes as [`append_all`](Self::append_all) does. If the disk is full, they go into
    /// the reserved blocks.
    ///
    /// # Errors
    /// As for [`append_all`](Self::append_all); a full disk without reserved blocks, or with all of
    /// them used.
    pub(crate) fn append_in_room(&self, records: &[LogRecord<'_>]) -> Result<Range<u64>, Error> {
        debug_assert!(
            records.iter().all(is_delete),
            "the reserved blocks are for deletes"
        );
        loop {
            let files = self.shared.state.lock().files;
            match self.append_all(records) {
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    if !self.shared.take_room(files)? {
                        return Err(error);
                    }
                }
                appended => return appended,
            }
        }
    }

    /// Makes every append durable that returned before this call.
    ///
    /// # Errors
    /// A failed sync, now or before: only [`Log::rotate`] helps.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let shared = &*self.shared;
        shared.volume.check_held()?;
        let mut state = shared.state.lock();
        let wanted = state.written_sequence;
        loop {
            if state.durable_sequence >= wanted {
                // All acknowledged records are durable. Yet the caller should hear of a broken file
                // now, and not the next append.
                return shared.usable(&state);
            }
            shared.usable(&state)?;
            if state.file.is_some() {
                shared.lead(&mut state, true);
            } else {
                shared.led.wait(&mut state);
            }
        }
    }

    /// Makes all acknowledged records durable and starts the next file. If the current file is
    /// intact and has no record yet, it is kept. After a failed sync, the records that were not
    /// durable are rewritten to the next file. Returns the position behind all acknowledged
    /// records, where a replay begins once a checkpoint has them. Appends wait meanwhile.
    ///
    /// # Errors
    /// The next file cannot be made. Then the log is unchanged, or takes no records until a
    /// rotation succeeds.
    pub(crate) fn rotate(&self) -> Result<LogPosition, Error> {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        while state.file.is_none() {
            shared.led.wait(&mut state);
        }
        shared.rotate(&mut state, false)
    }

    /// Rotates before deletes, as [`rotate`](Self::rotate) does. If the disk is full, the next file
    /// is the one with reserved blocks.
    ///
    /// # Errors
    /// As for [`rotate`](Self::rotate); a full disk without reserved blocks.
    pub(crate) fn rotate_in_room(&self) -> Result<(), Error> {
        let files = self.shared.state.lock().files;
        match self.rotate() {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                match self.shared.take_room(files)? {
                    true => Ok(()),
                    false => Err(error),
                }
            }
            rotated => rotated.map(drop),
        }
    }

    /// Whether the current file takes no more records, so that the caller must start the next one.
    pub(crate) fn is_broken(&self) -> bool {
        self.shared.state.lock().broken.is_some()
    }

    /// Number of the current file.
    #[cfg(test)]
    pub(crate) fn number(&self) -> u64 {
        self.shared.state.lock().number
    }

    /// The name of the file that this log started, if it has no record and can be removed. If a
    /// file of this number existed before, the result is `None`: the old file would return if the
    /// removal were not durable.
    pub(crate) fn unused(&self) -> Option<String> {
        let number = self.added?;
        let state = self.shared.state.lock();
        let end = state.written_or_led() + state.pending.len() as u64;
        (state.number == number && end <= FIRST_RECORD).then(|| log_name(number))
    }

    /// Bytes of the current file that were written and acknowledged, with its header.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.state.lock().written
    }

    /// The sequence number of the next record, if no append fails meanwhile.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.shared.state.lock().pending_sequence
    }
}

impl Drop for Log {
    /// Syncs the records that wait for the time limit, since no thread would do so later.
    fn drop(&mut self) {
        if !self.home.is_here() {
            std::mem::forget(self.syncer.take());
            return; // That thread lives in another process, and so does the file.
        }
        self.shared.state.lock().stop = true;
        self.shared.due.notify_all();
        if let Some(syncer) = self.syncer.take() {
            // The thread does not panic. If it did, nothing could be done about that here.
            let _ = syncer.join();
        }
    }
}

impl Shared {
    /// Refuses a file that takes no more records.
    fn usable(&self, state: &State) -> Result<(), Error> {
        let Some(why) = &state.broken else {
            return Ok(());
        };
        let why = format!(
            "an earlier write or sync failed ({why}), so the content of the file is unknown; it takes no records until the log is rotated, which needs a working disk"
        );
        Err(Error::Tier(TierError::Io {
            action: "append",
            place: name_of(&*self.volume, &log_name(state.number)),
            offset: state.written,
            source: io::Error::other(why),
        }))
    }

    /// Writes the pending records. It syncs if `sync`, the durability or the memory limit asks for
    /// it. The caller has checked that no other leader holds the file. The batch and the state
    /// receive the outcome.
    fn lead(&self, state: &mut MutexGuard<'_, State>, sync: bool) {
        let Some(mut file) = state.file.take() else {
            return;
        };
        let bytes = mem::take(&mut state.pending);
        let batch = mem::take(&mut state.batch);
        let from = state.end_of_written();
        let to = RecordPlace {
            offset: from.offset + bytes.len() as u64,
            sequence: state.pending_sequence,
            ..from
        };
        let sync = sync
            || self.durability == Durability::Always
            || state.unsynced.len() + bytes.len() > self.most_unsynced.load(Ordering::Relaxed);
        state.leading = bytes.len() as u64;
        let outcome = MutexGuard::unlocked(state, || file.write(from, &bytes, to, sync));
        state.leading = 0;
        state.file = Some(file);
        match outcome {
            Ok(()) => {
                state.written = to.offset;
                state.written_sequence = to.sequence;
                if sync {
                    state.synced();
                } else if !bytes.is_empty() {
                    if state.unsynced.is_empty() {
                        state.unsynced_since = Instant::now();
                        self.due.notify_all();
                    }
                    state.unsynced.extend_from_slice(&bytes);
                }
                let _ = batch.outcome.set(Ok(()));
            }
            Err(failed) => {
                let error = Arc::new(failed.error);
                let _ = batch.outcome.set(Err(error.clone()));
                if failed.cut_off {
                    // The bytes before the cut were synced with it.
                    state.synced();
                    state.withdraw(error);
                } else {
                    state.break_off(error);
                }
            }
        }
        self.led.notify_all();
    }

    /// Makes the current file one that may have rows: starts the next file if this one may not.
    fn take_rows(&self, state: &mut MutexGuard<'_, State>) -> Result<(), Error> {
        while !state.rows && state.file.is_none() {
            self.led.wait(state);
        }
        if !state.rows {
            self.usable(state)?;
            // A file without records is replaced, so that empty files do not pile up.
            match state.written == FIRST_RECORD {
                true => self.replace_empty(state)?,
                false => _ = self.rotate(state, true)?,
            }
        }
        Ok(())
    }

    /// Replaces the current file, which has no record, by one of the same number that may have
    /// rows.
    fn replace_empty(&self, state: &mut State) -> Result<(), Error> {
        let end = state.end_of_written();
        let header = LogHeader {
            shape: self.shape,
            number: end.log,
            first_sequence: end.sequence,
            marked: true,
            rows: true,
        };
        match create_with(&*self.volume, header, &[], end) {
            Ok(file) => {
                (state.file, state.rows) = (Some(file), true);
                Ok(())
            }
            Err(error) => {
                // Either file may have the name now.
                let error = Arc::new(error);
                state.break_off(error.clone());
                self.led.notify_all();
                Err(copy_of(&error).into())
            }
        }
    }

    /// Reserves blocks for deletes again, before any other append.
    fn keep_room_again(&self, state: &mut State) -> Result<(), Error> {
        match self.volume.keep_room(LOG_ROOM, state.room) {
            Err(error @ TierError::NoSpace { .. }) => return Err(error.into()),
            // No other failure is a reason to refuse records for which there is space.
            Err(error) => tracing::debug!("no blocks are reserved for deletes: {error}"),
            Ok(_) => {}
        }
        state.room_is_taken = false;
        Ok(())
    }

    /// Makes the file with reserved blocks the next one, unless the log has already started a file
    /// after the first `files` ones. Returns false if no blocks are reserved.
    fn take_room(&self, files: u64) -> Result<bool, Error> {
        let mut state = self.state.lock();
        while state.file.is_none() {
            self.led.wait(&mut state);
        }
        if state.files != files {
            return Ok(true);
        }
        if self.volume.kept_room(LOG_ROOM)? == 0 {
            return Ok(false);
        }
        // The pending records would have found no space either, and not all of them are deletes.
        let full = TierError::NoSpace {
            place: name_of(&*self.volume, &log_name(state.number)),
            offset: state.written,
            len: state.pending.len() as u64,
        };
        state.withdraw(Arc::new(full));
        self.led.notify_all();
        state.room_is_taken = true;
        self.begin_next(&mut state, false, true)?;
        Ok(true)
    }

    /// The work of [`Log::rotate`] while no write is in progress. If `rows` is set, the next file
    /// may have rows, whatever records it takes over.
    fn rotate(&self, state: &mut State, rows: bool) -> Result<LogPosition, Error> {
        if state.broken.is_none() && state.written == FIRST_RECORD && (state.rows || !rows) {
            // Otherwise merges that fail one after the other would leave a file each.
            return Ok(LogPosition {
                number: state.number,
                sequence: state.written_sequence,
            });
        }
        let has_room = || self.volume.kept_room(&log_name(state.number));
        if state.broken.is_none() && state.room_is_taken && has_room()? > 0 {
            // The blocks left in the current file are for deletes, which could not use them after a
            // rotation.
            self.keep_room_again(state)?;
        }
        self.begin_next(state, rows, false)
    }

    /// Starts the next file, in the reserved blocks if `in_room` is set.
    fn begin_next(
        &self,
        state: &mut State,
        rows: bool,
        in_room: bool,
    ) -> Result<LogPosition, Error> {
        let end = state.end_of_written();
        if state.broken.is_none()
            && !state.unsynced.is_empty()
            && let Some(file) = &mut state.file
        {
            match file.sync(end) {
                Ok(()) => state.synced(),
                Err(error) => state.break_off(Arc::new(error)),
            }
        }
        let header = LogHeader {
            shape: self.shape,
            number: state.number + 1,
            first_sequence: state.durable_sequence,
            marked: true,
            rows: rows || state.rows && !(state.unsynced.is_empty() && state.pending.is_empty()),
        };
        // The old and new places of the records that are not durable.
        let old = RecordPlace {
            log: state.number,
            offset: state.written - state.unsynced.len() as u64,
            sequence: state.durable_sequence,
        };
        let new = header.start();
        let again = rewritten(self.shape, &state.unsynced, old, new);
        let end = RecordPlace {
            log: header.number,
            offset: new.offset + again.len() as u64,
            sequence: state.written_sequence,
        };
        let created = match (in_room, again.is_empty()) {
            (true, _) => create_in_room(&*self.volume, header, &again, end),
            (false, true) => create_empty(&*self.volume, header),
            (false, false) => create_with(&*self.volume, header, &again, end),
        };
        let file = match created {
            Ok(file) => file,
            Err(error) => {
                let error = Arc::new(error);
                // If the next file stayed, its header would invalidate later appends to this one.
                if !take_back(&*self.volume, header.number) && state.broken.is_none() {
                    state.break_off(error.clone());
                }
                self.led.notify_all();
                return Err(copy_of(&error).into());
            }
        };
        // The pending records were encoded for the old file.
        let old = state.end_of_written();
        state.pending = rewritten(self.shape, &state.pending, old, end);
        state.number = header.number;
        state.files += 1;
        state.rows = header.rows;
        state.file = Some(file);
        state.written = end.offset;
        state.broken = None;
        state.synced();
        Ok(LogPosition {
            number: state.number,
            sequence: state.written_sequence,
        })
    }

    /// The loop of the thread of [`Durability::Every`]. After a failed sync, acknowledged records
    /// are not durable until the log is rotated. The next append would rotate it, but there may be
    /// none. So this thread rotates it after a pause that grows.
    fn sync_in_time(&self, within: Duration) {
        let mut state = self.state.lock();
        let mut rescue = None;
        loop {
            if let (Some(why), false, false) =
                (&state.broken, state.unsynced.is_empty(), state.stop)
            {
                let (at, pause) = *rescue.get_or_insert_with(|| {
                    let file = name_of(&*self.volume, &log_name(state.number));
                    tracing::warn!("{file}: acknowledged changes are not durable yet: {why}");
                    (Instant::now() + FIRST_RESCUE, FIRST_RESCUE)
                });
                if at > Instant::now() {
                    self.due.wait_until(&mut state, at);
                    continue;
                }
                let held = MutexGuard::unlocked(&mut state, || self.volume.check_held());
                // Another thread may have rotated the log meanwhile, or may be doing so.
                if state.broken.is_none() || state.file.is_none() {
                    continue;
                }
                match held
                    .map_err(Error::from)
                    .and_then(|()| self.rotate(&mut state, false))
                {
                    Ok(_) => tracing::warn!(
                        "{}: changes that an earlier log could not make durable are durable now",
                        name_of(&*self.volume, &log_name(state.number))
                    ),
                    Err(error) => {
                        tracing::warn!("acknowledged changes are still not durable: {error}");
                        let pause = (pause * 2).min(LAST_RESCUE);
                        rescue = Some((Instant::now() + pause, pause));
                    }
                }
                continue;
            }
            rescue = None;
            if state.unsynced.is_empty() || state.broken.is_some() {
                if state.stop {
                    return;
                }
                self.due.wait(&mut state);
                continue;
            }
            let now = Instant::now();
            // A time that overflows never comes.
            let due = state.unsynced_since.checked_add(within);
            if !state.stop && due.is_none_or(|due| due > now) {
                match due {
                    Some(due) => drop(self.due.wait_until(&mut state, due)),
                    None => self.due.wait(&mut state),
                }
            } else if state.file.is_none() {
                self.led.wait(&mut state);
            } else {
                self.lead(&mut state, true);
            }
        }
    }
}

impl State {
    /// Where `pending` begins: behind the bytes that a leader is writing.
    fn written_or_led(&self) -> u64 {
        self.written + self.leading
    }

    /// The place of the record behind all written and acknowledged ones.
    fn end_of_written(&self) -> RecordPlace {
        RecordPlace {
            log: self.number,
            offset: self.written,
            sequence: self.written_sequence,
        }
    }

    /// Notes that all written records are durable.
    fn synced(&mut self) {
        self.durable_sequence = self.written_sequence;
        self.unsynced.clear();
    }

    /// Fails the pending appends, which were encoded for places behind records that were not
    /// written.
    fn withdraw(&mut self, error: Arc<TierError>) {
        self.pending.clear();
        self.pending_sequence = self.written_sequence;
        let _ = mem::take(&mut self.batch).outcome.set(Err(error));
    }

    /// Ends appends to this file.
    fn break_off(&mut self, error: Arc<TierError>) {
        self.broken = Some(error.to_string());
        self.withdraw(error);
    }
}

/// The file that a log starts with.
struct Started {
    file: LogFile,
    /// The place behind its last record.
    end: RecordPlace,
    /// Whether the file may have rows.
    rows: bool,
}

impl Started {
    /// A new file beside the existing ones.
    fn beside(volume: &dyn Volume, header: LogHeader, next: &NextLog) -> Result<Self, Error> {
        let (file, end) = match next.undurable {
            Some(from) => {
                let mut file = Unfinished::begin(volume, header)?;
                copy(volume, from, next.sequence, &mut file)?;
                let end = file.end;
                (file.finish()?, end)
            }
            None => (create_empty(volume, header)?, header.start()),
        };
        let rows = header.rows;
        Ok(Self { file, end, rows })
    }

    /// The last existing file, continued behind its last record.
    fn within(volume: &dyn Volume, LogBefore { end, rows }: LogBefore) -> Result<Self, Error> {
        let file = go_on(volume, end)?;
        Ok(Self { file, end, rows })
    }

    /// The choices left if `error` says that there is no space for a new file: the last file, or
    /// the reserved blocks.
    fn on_full_disk(
        volume: &dyn Volume,
        header: LogHeader,
        next: &NextLog,
        error: Error,
    ) -> Result<Self, Error> {
        if error.kind() != ErrorKind::NoSpace {
            return Err(error);
        }
        let _ = volume.remove(&unfinished());
        // A file that was begun would invalidate later appends to the last log. If it replaces that
        // log, there is nothing to undo.
        if !next.replaces && !take_back(volume, header.number) {
            return Err(error);
        }
        if let Some(before) = next.before {
            return Self::within(volume, before);
        }
        let rows = header.rows;
        let begun = Unfinished::begin_in_room(volume, header);
        let started = begun.map_err(Error::from).and_then(|begun| {
            let Some(mut file) = begun else {
                return Ok(None);
            };
            if let Some(from) = next.undurable {
                copy(volume, from, next.sequence, &mut file)?;
            }
            let end = file.end;
            let file = file.finish()?;
            Ok(Some(Self { file, end, rows }))
        });
        match started {
            Ok(started) => started.ok_or(error),
            Err(error) => {
                drop_log_room(volume);
                Err(error)
            }
        }
    }
}

/// Whether the reserved blocks may take a record.
fn is_delete(record: &LogRecord<'_>) -> bool {
    matches!(record, LogRecord::Delete { .. })
}

/// A copy of an error, for another caller that waited for the same write.
fn copy_of(error: &TierError) -> TierError {
    match error {
        TierError::NoSpace { place, offset, len } => TierError::NoSpace {
            place: place.clone(),
            offset: *offset,
            len: *len,
        },
        TierError::Denied { action, place } => TierError::Denied {
            action,
            place: place.clone(),
        },
        TierError::Crashed { place } => TierError::Crashed {
            place: place.clone(),
        },
        TierError::Io {
            action,
            place,
            offset,
            source,
        } => TierError::Io {
            action,
            place: place.clone(),
            offset: *offset,
            source: match source.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(source.kind(), source.to_string()),
            },
        },
        other => TierError::Io {
            action: "append",
            place: other.place().to_owned(),
            offset: 0,
            source: io::Error::other(other.to_string()),
        },
    }
}
