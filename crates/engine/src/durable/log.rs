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
//! If no write is in progress, a caller becomes the leader. The leader writes all pending records
//! with one write. If the durability requires it, the leader also makes one sync. Meanwhile other
//! callers encode their records behind the pending ones and wait. The mutex is not held during the
//! write.
//!
//! **If a write fails** (on a full disk), the appends that wait for it fail. Some bytes of their
//! records may have reached the file. The log cuts these off and syncs the cut, so that no replay
//! finds them. Later appends succeed once there is space.
//!
//! **If a sync fails**, the content of the disk is unknown, and a later successful sync would prove
//! nothing. So the file takes no more records. [`Log::rotate`] starts the next file with all
//! records that were acknowledged but are not yet durable. The first sequence number in the new
//! header invalidates later records of the old file. Before the rotation, it is open whether a
//! replay finds an append whose sync failed.
//!
//! **After a crash**, [`replay`] reads all files and returns the numbers with which the next file
//! starts. A torn file stays unchanged: the first sequence number of the next file shows where its
//! valid records end. If a sync failed in an earlier process, records behind the last mark may
//! exist only in the page cache. So the next file begins with a copy of those records, and with
//! their first sequence number. It is written as `log.new` and renamed once it is durable. If a
//! file has no valid record, the next one replaces it, so that empty files do not accumulate.
//!
//! **Reserved blocks.** Deletes are possible on a full disk. If a delete finds no space in the
//! current file, the log continues in a file with preallocated blocks (`log.room`,
//! [`room`](super::room)), which becomes the next log. Until another such file is reserved, the log
//! accepts deletes only. Now suppose that a process opens the index and finds no space for a log of
//! its own. If the mark of the last log shows that all of it is durable, the process continues that
//! log. Otherwise it takes the reserved file.
//!
//! **Rows.** Earlier readers cannot read records with rows. So a file has the version that they
//! know until the first such record. That record begins the next file, as after a failed sync, or
//! replaces a file without records. If a file copies records from another one, it takes over the
//! version of that file.
//!
//! **Marks.** After each sync, the log writes a mark into the file: up to this place it is durable
//! ([`stratann_layout::log::marks`]). A mark is one small write, and no append waits until it is on
//! the disk. An incomplete record before the mark is damage, and an error. An incomplete record
//! behind the mark is the torn end after a crash. For a repair, [`salvage`] reads every whole
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

/// The most bytes of records kept in memory until they are durable. At this limit, the log syncs.
const MOST_UNSYNCED: usize = 64 << 20;
/// The same limit under a memory budget: the budget divided by this.
const UNSYNCED_SHARE: u64 = 32;

/// How long the thread of [`Durability::Every`] waits after a failed sync before it rotates the
/// log: the first pause, and the longest.
const FIRST_RESCUE: Duration = Duration::from_secs(1);
const LAST_RESCUE: Duration = Duration::from_secs(60);

/// The time by which an append is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When the append returns.
    Always,
    /// At most this long after the append returned.
    Every(Duration),
    /// When a later [`LiveIndex::flush`](crate::LiveIndex::flush) or merge returns, or before.
    OnFlush,
}

/// The log that is being written. Threads share it.
#[derive(Debug)]
pub(crate) struct Log {
    shared: Arc<Shared>,
    /// The thread that syncs within the time limit. It exists only under [`Durability::Every`].
    syncer: Option<JoinHandle<()>>,
    /// The number of the file that the log started with, if the log created that file.
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
    /// Signals that records must be synced within the time limit, or that the log is closed.
    due: Condvar,
}

/// The state of the log. Each sequence number here is the number of the record *after* the bytes
/// that it describes.
#[derive(Debug)]
struct State {
    /// The number of the current file.
    number: u64,
    /// The number of files that this log has had before the current one.
    files: u64,
    /// Whether the current file may have records with rows.
    rows: bool,
    /// Bytes to reserve for deletes; 0 if none are to be reserved.
    room: u64,
    /// Whether deletes have used the reserved blocks.
    room_is_taken: bool,
    /// The current file; `None` while a leader uses it.
    file: Option<LogFile>,
    /// Records behind `written` and `leading`, encoded for their place in the file.
    pending: Vec<u8>,
    pending_sequence: u64,
    /// Bytes that a leader is writing; `pending` begins behind them.
    leading: u64,
    /// Receives the outcome of the pending appends.
    batch: Arc<Batch>,
    /// The end of the written and acknowledged bytes, as an offset in the file.
    written: u64,
    written_sequence: u64,
    durable_sequence: u64,
    /// Written records that may not be durable, with the bytes that they have in the file.
    unsynced: Vec<u8>,
    /// When the first of `unsynced` was written.
    unsynced_since: Instant,
    /// Why this file takes no more records; `None` while it takes them.
    broken: Option<String>,
    stop: bool,
}

/// Appends that are written together, and their result.
#[derive(Debug, Default)]
struct Batch {
    outcome: OnceLock<Result<(), Arc<TierError>>>,
}

impl Log {
    /// Starts the next log as [`replay`] prescribes, or the first one. The log is durable when the
    /// call returns. The caller holds the volume's lock.
    ///
    /// When new records follow, a later crash must not lose the records that a replay has read. If
    /// a sync failed in an earlier process, the replay may have read them from the page cache
    /// alone, and a sync that succeeds now would not show it. So all records that are not known to
    /// be durable are rewritten.
    ///
    /// # Errors
    /// [`Error::Exists`]: there is a log of this number or a higher one that the replay did not
    /// read. The volume fails: a later replay finds the same records as before.
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
        // A crash may have left this file.
        let _ = volume.remove(&unfinished());
        let header = LogHeader {
            shape,
            number: next.number,
            first_sequence: next.undurable.map_or(next.sequence, |from| from.sequence),
            marked: true,
            rows: next.rows,
        };
        let Started { file, end, rows } = match next.before {
            // Deletes have used the reserved blocks, and this file may have the only free blocks.
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

    /// Limits the bytes that are kept until they are durable to a share of a memory budget.
    pub(crate) fn keep_within(&self, budget: u64) {
        let share = (budget / UNSYNCED_SHARE).min(MOST_UNSYNCED as u64);
        let most = &self.shared.most_unsynced;
        most.store(share as usize, Ordering::Relaxed);
    }

    /// From now on, reserves `bytes` for deletes on a full disk, if the volume can. If there is too
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

    /// Appends a record. Returns its sequence number when it is written; under
    /// [`Durability::Always`], when it is durable.
    ///
    /// # Errors
    /// Fails as [`Log::append_all`] does.
    #[cfg(test)]
    pub(crate) fn append(&self, record: LogRecord<'_>) -> Result<u64, Error> {
        Ok(self.append_all(&[record])?.start)
    }

    /// Appends records in order. Returns their sequence numbers when they are written; under
    /// [`Durability::Always`], when they are durable. A call appends all records or none, but a
    /// crash during the call may leave the first few.
    ///
    /// # Errors
    /// A vector has a wrong length: no record is appended. A write fails: later appends may
    /// succeed. A sync fails, or has failed before: no append succeeds before [`Log::rotate`].
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
                // No write is in progress, and this batch has no result, so it is the pending one.
                None if state.file.is_some() => shared.lead(&mut state, false),
                None => shared.led.wait(&mut state),
            }
        }
    }

    /// Appends deletes like [`append_all`](Self::append_all). If the disk is full, they are written
    /// to the reserved blocks.
    ///
    /// # Errors
    /// Fails as [`append_all`](Self::append_all) does, or if the disk is full, and no blocks are
    /// reserved or all of them are used.
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
    /// A sync fails, or has failed before: no append succeeds before [`Log::rotate`].
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let shared = &*self.shared;
        shared.volume.check_held()?;
        let mut state = shared.state.lock();
        let wanted = state.written_sequence;
        loop {
            if state.durable_sequence >= wanted {
                // All acknowledged records are durable. But if the file is broken, this caller
                // should get the error, and not the next append.
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
    /// intact and has no record, it is kept instead. After a failed sync, the records that may not
    /// be durable are rewritten to the next file. Returns the position behind all acknowledged
    /// records: a replay begins there once a checkpoint has these records. Appends wait during the
    /// call.
    ///
    /// # Errors
    /// The next file cannot be created. Then the log is unchanged, or takes no records until a
    /// rotation succeeds.
    pub(crate) fn rotate(&self) -> Result<LogPosition, Error> {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        while state.file.is_none() {
            shared.led.wait(&mut state);
        }
        shared.rotate(&mut state, false)
    }

    /// Rotates before deletes, like [`rotate`](Self::rotate). If the disk is full, the file with
    /// reserved blocks becomes the next one.
    ///
    /// # Errors
    /// Fails as [`rotate`](Self::rotate) does, or if the disk is full and no blocks are reserved.
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

    /// Whether the current file takes no more records, so that the caller must rotate the log.
    pub(crate) fn is_broken(&self) -> bool {
        self.shared.state.lock().broken.is_some()
    }

    /// The number of the current file.
    #[cfg(test)]
    pub(crate) fn number(&self) -> u64 {
        self.shared.state.lock().number
    }

    /// The name of the file that this log started, if it has no record and can be removed. `None`
    /// if a file of this number existed before: if the removal were not durable, the old file would
    /// be back after a crash.
    pub(crate) fn unused(&self) -> Option<String> {
        let number = self.added?;
        let state = self.shared.state.lock();
        let end = state.written_or_led() + state.pending.len() as u64;
        (state.number == number && end <= FIRST_RECORD).then(|| log_name(number))
    }

    /// The written and acknowledged bytes of the current file, including its header.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.state.lock().written
    }

    /// The sequence number of the next record, unless an append fails first.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.shared.state.lock().pending_sequence
    }
}

impl Drop for Log {
    /// Syncs the records that wait for the time limit, since no thread would sync them later.
    fn drop(&mut self) {
        if !self.home.is_here() {
            std::mem::forget(self.syncer.take());
            return; // The thread runs in another process, which also has the file.
        }
        self.shared.state.lock().stop = true;
        self.shared.due.notify_all();
        if let Some(syncer) = self.syncer.take() {
            // The thread does not panic. If it did, nothing could be done about it here.
            let _ = syncer.join();
        }
    }
}

impl Shared {
    /// Returns an error if the file takes no more records.
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

    /// Writes the pending records. It also syncs if `sync`, the durability or the memory limit
    /// requires it. The caller has checked that no other leader uses the file. The batch and the
    /// state get the result.
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
                    // The sync of the cut also made the bytes before the cut durable.
                    state.synced();
                    state.withdraw(error);
                } else {
                    state.break_off(error);
                }
            }
        }
        self.led.notify_all();
    }

    /// Ensures that the current file may have rows: if it may not, the next file is started.
    fn take_rows(&self, state: &mut MutexGuard<'_, State>) -> Result<(), Error> {
        while !state.rows && state.file.is_none() {
            self.led.wait(state);
        }
        if !state.rows {
            self.usable(state)?;
            // A file without records is replaced, so that empty files do not accumulate.
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

    /// If the blocks for deletes are not reserved, reserves them, before any other append.
    fn keep_room_again(&self, state: &mut State) -> Result<(), Error> {
        match self.volume.keep_room(LOG_ROOM, state.room) {
            Err(error @ TierError::NoSpace { .. }) => return Err(error.into()),
            // After any other failure there may be space for records, so they are accepted.
            Err(error) => tracing::debug!("no blocks are reserved for deletes: {error}"),
            Ok(_) => {}
        }
        state.room_is_taken = false;
        Ok(())
    }

    /// Makes the file with reserved blocks the next one, unless the log has already started more
    /// than `files` files. `false` if no blocks are reserved.
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
        // There is no space for the pending records either, and not all of them are deletes.
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
    /// may have rows, whichever records it takes over.
    fn rotate(&self, state: &mut State, rows: bool) -> Result<LogPosition, Error> {
        if state.broken.is_none() && state.written == FIRST_RECORD && (state.rows || !rows) {
            // Without this, each of several failed merges would leave a file.
            return Ok(LogPosition {
                number: state.number,
                sequence: state.written_sequence,
            });
        }
        let has_room = || self.volume.kept_room(&log_name(state.number));
        if state.broken.is_none() && state.room_is_taken && has_room()? > 0 {
            // The unused blocks of the current file are reserved for deletes, which cannot use them
            // after a rotation.
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
        // The places of the records that may not be durable: in the old file and in the next one.
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
                // If the next file stayed, its header would invalidate later appends to this file.
                if !take_back(&*self.volume, header.number) && state.broken.is_none() {
                    state.break_off(error.clone());
                }
                self.led.notify_all();
                return Err(copy_of(&error).into());
            }
        };
        // The pending records were encoded for places in the old file.
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
    /// no next append. So this thread rotates the log, after a pause that grows with each failure.
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
                // Another thread may have rotated the log meanwhile, or may be rotating it.
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
            // If the time overflows, it is never reached.
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
    /// The place where `pending` begins: behind the bytes that a leader is writing.
    fn written_or_led(&self) -> u64 {
        self.written + self.leading
    }

    /// The place behind all written and acknowledged records.
    fn end_of_written(&self) -> RecordPlace {
        RecordPlace {
            log: self.number,
            offset: self.written,
            sequence: self.written_sequence,
        }
    }

    /// Records that all written records are durable.
    fn synced(&mut self) {
        self.durable_sequence = self.written_sequence;
        self.unsynced.clear();
    }

    /// Fails the pending appends, since they were encoded for places behind records that were not
    /// written.
    fn withdraw(&mut self, error: Arc<TierError>) {
        self.pending.clear();
        self.pending_sequence = self.written_sequence;
        let _ = mem::take(&mut self.batch).outcome.set(Err(error));
    }

    /// Ends the appends to this file.
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
    /// Creates a new file beside the existing ones.
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

    /// Opens the last existing file, to continue behind its last record.
    fn within(volume: &dyn Volume, LogBefore { end, rows }: LogBefore) -> Result<Self, Error> {
        let file = go_on(volume, end)?;
        Ok(Self { file, end, rows })
    }

    /// If `error` is that there is no space for a new file, uses the last file or the reserved
    /// blocks instead.
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
        // If a new file was begun and stayed, it would invalidate later appends to the last log. If
        // the new file replaces that log, it may stay.
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

/// Whether a record may be written to the reserved blocks.
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
