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
//! with one write. If the durability requires it, the leader also makes one sync. During the write,
//! other callers encode their records after the pending ones, and wait. No thread has the mutex
//! during the write.
//!
//! **If a write fails** (for example on a full disk), the appends that wait for it fail. Some bytes
//! of their records may have reached the file. The log cuts these bytes off and syncs the cut, so
//! that no replay finds them. When there is space again, later appends succeed.
//!
//! **If a sync fails**, the content of the disk is unknown, and a later successful sync would prove
//! nothing. So the log appends no more records to the file. [`Log::rotate`] starts the next file
//! with all records that were acknowledged but may not be durable. The first sequence number in the
//! new header invalidates later records of the old file. Before the rotation, it is unknown whether
//! a replay would find an append whose sync failed.
//!
//! **After a crash**, [`replay`] reads all files, and returns the numbers with which the next file
//! starts. A torn file stays unchanged: the first sequence number of the next file shows where the
//! valid records of the torn file end. If a sync failed in an earlier process, records after the
//! last mark may exist only in the page cache. So the next file begins with a copy of these records
//! and has their first sequence number. The next file is written as `log.new` and renamed when it
//! is durable. If a file has no valid record, the next file replaces it, so that empty files do not
//! accumulate.
//!
//! **Reserved blocks.** Deletes are possible on a full disk. If a delete finds no space in the
//! current file, the log continues in a file with preallocated blocks (`log.room`,
//! [`room`](super::room)), which becomes the next log. Until another such file is reserved, the log
//! accepts only deletes. A process that opens the index may find no space for a log of its own. If
//! the mark of the last log shows that all of this log is durable, the process continues the last
//! log. Otherwise the process uses the reserved file.
//!
//! **Rows.** Earlier versions of StratANN cannot read records with rows. Until the first record
//! with rows, each file has a format version that they know. The first record with rows begins the
//! next file, as after a failed sync. If the current file has no records, the log replaces this
//! file instead. If a file gets copies of records from another file, it has the format version of
//! that file.
//!
//! **Marks.** After each sync, the log writes a mark into the file. The mark has the position up to
//! which the file is durable ([`stratann_layout::log::marks`]). A mark is one small write, and no
//! append waits until the mark is on the disk. An incomplete record before the mark is damage, and
//! an error. An incomplete record after the mark is the torn end after a crash. For a repair,
//! [`salvage`] reads every whole record.

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
use crate::{Durability, Error, ErrorKind};

/// The largest number of bytes of records that stay in memory until they are durable. When the log
/// reaches this limit, it syncs.
const MOST_UNSYNCED: usize = 64 << 20;
/// Under a memory budget, the limit is the budget divided by this number.
const UNSYNCED_SHARE: u64 = 32;

/// The first and the longest pause that the thread of [`Durability::Every`] makes after a failed
/// sync, before it rotates the log.
const FIRST_RESCUE: Duration = Duration::from_secs(1);
const LAST_RESCUE: Duration = Duration::from_secs(60);

/// The log that is being written. Several threads share it.
#[derive(Debug)]
pub(crate) struct Log {
    shared: Arc<Shared>,
    /// The thread that syncs records within the time limit. It exists only under
    /// [`Durability::Every`].
    syncer: Option<JoinHandle<()>>,
    /// The number of the file with which the log started, if the log created this file.
    added: Option<u64>,
    home: Home,
}

#[derive(Debug)]
struct Shared {
    volume: Arc<dyn Volume>,
    shape: LogShape,
    durability: Durability,
    /// The largest number of bytes that stay in memory until they are durable.
    most_unsynced: AtomicUsize,
    state: Mutex<State>,
    /// Signals that a leader has finished.
    led: Condvar,
    /// Signals that records wait for a sync within the time limit, or that the log is closed.
    due: Condvar,
}

/// The state of the log. Each sequence number in it is the number of the record *after* the
/// described bytes.
#[derive(Debug)]
struct State {
    /// The number of the current file.
    number: u64,
    /// The number of files that this log has had before the current file.
    files: u64,
    /// Whether the current file may have records with rows.
    rows: bool,
    /// The number of bytes to reserve for deletes. It is 0 if none are to be reserved.
    room: u64,
    /// Whether deletes have used the reserved blocks.
    room_is_taken: bool,
    /// The current file. `None` while a leader uses it.
    file: Option<LogFile>,
    /// The records after `written` and `leading`, encoded for their positions in the file.
    pending: Vec<u8>,
    pending_sequence: u64,
    /// The number of bytes that a leader is writing. `pending` begins after these bytes.
    leading: u64,
    /// Receives the outcome of the pending appends.
    batch: Arc<Batch>,
    /// The end of the written and acknowledged bytes, as an offset in the file.
    written: u64,
    written_sequence: u64,
    durable_sequence: u64,
    /// The written records that may not be durable, as the bytes that they have in the file.
    unsynced: Vec<u8>,
    /// The time at which the first record of `unsynced` was written.
    unsynced_since: Instant,
    /// The reason why the log appends no more records to this file. `None` while it appends.
    broken: Option<String>,
    stop: bool,
}

/// Appends that one write writes together, and the result of this write.
#[derive(Debug, Default)]
struct Batch {
    outcome: OnceLock<Result<(), Arc<TierError>>>,
}

impl Log {
    /// Starts the next log as [`replay`] prescribes, or the first log. The log is durable when the
    /// call returns. The caller has the lock of the volume.
    ///
    /// After new records are appended, a later crash must not lose the records that a replay has
    /// read. If a sync failed in an earlier process, the replay may have read these records only
    /// from the page cache. A sync that succeeds now would not prove that they are on the disk. So
    /// the call rewrites all records that are not known to be durable.
    ///
    /// # Errors
    /// The call fails with [`Error::Exists`] if there is a log of this number or a higher one that
    /// the replay did not read. It also fails if the volume fails. A later replay then finds the
    /// same records as before.
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
            // Deletes have used the reserved blocks. So this file may have the only free blocks.
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

    /// Limits the bytes that stay in memory until they are durable, to a share of a memory budget.
    pub(crate) fn keep_within(&self, budget: u64) {
        let share = (budget / UNSYNCED_SHARE).min(MOST_UNSYNCED as u64);
        let most = &self.shared.most_unsynced;
        most.store(share as usize, Ordering::Relaxed);
    }

    /// Reserves `bytes` bytes for deletes on a full disk, if the volume can reserve blocks. If
    /// there is too little space, the next record that is not a delete tries again.
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

    /// Appends a record. Returns its sequence number when the record is written. Under
    /// [`Durability::Always`], returns it when the record is durable.
    ///
    /// # Errors
    /// The call fails for the reasons of [`Log::append_all`].
    #[cfg(test)]
    pub(crate) fn append(&self, record: LogRecord<'_>) -> Result<u64, Error> {
        Ok(self.append_all(&[record])?.start)
    }

    /// Appends records in order. Returns their sequence numbers when the records are written. Under
    /// [`Durability::Always`], returns them when the records are durable. A call appends all
    /// records or none. After a crash during the call, the first few records may be in the log.
    ///
    /// # Errors
    /// If a vector has a wrong length, the call fails, and no record is appended. If a write fails,
    /// the call fails, and later appends may succeed. If a sync fails, or an earlier sync has
    /// failed, no append succeeds until [`Log::rotate`].
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
                // No write is in progress, and this batch has no result. So it is the pending
                // batch.
                None if state.file.is_some() => shared.lead(&mut state, false),
                None => shared.led.wait(&mut state),
            }
        }
    }

    /// Does the same as [`append_all`](Self::append_all), for deletes. If the disk is full, the
    /// deletes are written to the reserved blocks.
    ///
    /// # Errors
    /// The call fails for the reasons of [`append_all`](Self::append_all). It also fails if the
    /// disk is full, and no reserved blocks are left.
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

    /// Makes every append durable whose call returned before this call.
    ///
    /// # Errors
    /// The call fails if a sync fails, or if an earlier sync has failed. No append then succeeds
    /// until [`Log::rotate`].
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let shared = &*self.shared;
        shared.volume.check_held()?;
        let mut state = shared.state.lock();
        let wanted = state.written_sequence;
        loop {
            if state.durable_sequence >= wanted {
                // All acknowledged records are durable. But if the file is broken, this caller
                // should get the error, and not the caller of the next append.
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

    /// Makes all acknowledged records durable, and starts the next file. If the current file is
    /// intact and has no record, it stays the current file. After a failed sync, records that may
    /// not be durable are written again, to the next file. Returns the position after all
    /// acknowledged records. When a checkpoint has these records, a replay begins at this position.
    /// Appends wait during the call.
    ///
    /// # Errors
    /// The call fails if the next file cannot be created. Then the log is unchanged, or it accepts
    /// no records until a rotation succeeds.
    pub(crate) fn rotate(&self) -> Result<LogPosition, Error> {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        while state.file.is_none() {
            shared.led.wait(&mut state);
        }
        shared.rotate(&mut state, false)
    }

    /// Does the same as [`rotate`](Self::rotate), before deletes. If the disk is full, the file
    /// with reserved blocks becomes the next file.
    ///
    /// # Errors
    /// The call fails for the reasons of [`rotate`](Self::rotate). It also fails if the disk is
    /// full and no blocks are reserved.
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

    /// Whether the log can append no more records to the current file, so that the caller must
    /// rotate the log.
    pub(crate) fn is_broken(&self) -> bool {
        self.shared.state.lock().broken.is_some()
    }

    /// The number of the current file.
    #[cfg(test)]
    pub(crate) fn number(&self) -> u64 {
        self.shared.state.lock().number
    }

    /// The name of the file that this log started, if the file has no record and can be removed.
    /// `None` if a file with this number existed before: after a removal that is not durable, a
    /// crash would restore the earlier file.
    pub(crate) fn unused(&self) -> Option<String> {
        let number = self.added?;
        let state = self.shared.state.lock();
        let end = state.written_or_led() + state.pending.len() as u64;
        (state.number == number && end <= FIRST_RECORD).then(|| log_name(number))
    }

    /// The number of written and acknowledged bytes in the current file, including the header.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.state.lock().written
    }

    /// The sequence number of the next record, if no append fails before it.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.shared.state.lock().pending_sequence
    }
}

impl Drop for Log {
    /// Syncs the records that wait for the time limit, since no thread syncs them later.
    fn drop(&mut self) {
        if !self.home.is_here() {
            std::mem::forget(self.syncer.take());
            return; // The thread runs in another process, which also has the file.
        }
        self.shared.state.lock().stop = true;
        self.shared.due.notify_all();
        if let Some(syncer) = self.syncer.take() {
            // If the thread has panicked, this drop can do nothing about the panic.
            let _ = syncer.join();
        }
    }
}

impl Shared {
    /// Returns an error if the log can append no more records to the file.
    fn usable(&self, state: &State) -> Result<(), Error> {
        let Some(why) = &state.broken else {
            return Ok(());
        };
        let why = format!(
            "an earlier write or sync failed ({why}), so the content of the file is unknown; the file takes no more records, and a new log begins when the disk works again"
        );
        Err(Error::Tier(TierError::Io {
            action: "append",
            place: name_of(&*self.volume, &log_name(state.number)),
            offset: state.written,
            source: io::Error::other(why),
        }))
    }

    /// Writes the pending records. It also syncs if `sync`, the durability or the memory limit
    /// requires a sync. The caller has checked that no other leader uses the file. The result is
    /// stored in the batch and in the state.
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

    /// Ensures that the current file may have rows. If it may not, the call starts the next file.
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

    /// Replaces the current file, which has no record, by a file with the same number that may have
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
                // It is unknown which of the two files has the name now.
                let error = Arc::new(error);
                state.break_off(error.clone());
                self.led.notify_all();
                Err(copy_of(&error).into())
            }
        }
    }

    /// Reserves the blocks for deletes before any other append, if they are not reserved.
    fn keep_room_again(&self, state: &mut State) -> Result<(), Error> {
        match self.volume.keep_room(LOG_ROOM, state.room) {
            Err(error @ TierError::NoSpace { .. }) => return Err(error.into()),
            // After any other failure there may be space for records, so the log accepts them.
            Err(error) => tracing::debug!("no blocks are reserved for deletes: {error}"),
            Ok(_) => {}
        }
        state.room_is_taken = false;
        Ok(())
    }

    /// Continues the log in the file with reserved blocks. If the log has already had more than
    /// `files` files, the call changes nothing. Returns `false` if no blocks are reserved.
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
        // There is no space for the pending records either. Some of them may not be deletes.
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

    /// Does the work of [`Log::rotate`] while no write is in progress. If `rows` is set, the next
    /// file may have rows, even if no copied record has rows.
    fn rotate(&self, state: &mut State, rows: bool) -> Result<LogPosition, Error> {
        if state.broken.is_none() && state.written == FIRST_RECORD && (state.rows || !rows) {
            // The current file stays. Otherwise each of several failed merges would leave a file.
            return Ok(LogPosition {
                number: state.number,
                sequence: state.written_sequence,
            });
        }
        let has_room = || self.volume.kept_room(&log_name(state.number));
        if state.broken.is_none() && state.room_is_taken && has_room()? > 0 {
            // Deletes could use the unused blocks of the current file. After a rotation they
            // cannot, so other blocks are reserved first.
            self.keep_room_again(state)?;
        }
        self.begin_next(state, rows, false)
    }

    /// Starts the next file. If `in_room` is set, the file has the reserved blocks.
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
        // The positions of the records that may not be durable, in the old file and in the next
        // one.
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
                // If the next file stayed, its header would invalidate later appends to the current
                // file.
                if !take_back(&*self.volume, header.number) && state.broken.is_none() {
                    state.break_off(error.clone());
                }
                self.led.notify_all();
                return Err(copy_of(&error).into());
            }
        };
        // The pending records were encoded for positions in the old file.
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
    /// no next append. So this thread rotates the log after a pause. Each failure makes the next
    /// pause longer.
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
                // Another thread may have rotated the log during the check, or may be rotating it.
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
            // If the addition overflows, the sync is never due.
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
    /// The position at which `pending` begins. It is after the bytes that a leader is writing.
    fn written_or_led(&self) -> u64 {
        self.written + self.leading
    }

    /// The position after all written and acknowledged records.
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

    /// Fails the pending appends, since they were encoded for positions after records that were not
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

/// The file with which a log starts.
struct Started {
    file: LogFile,
    /// The position after the last record of the file.
    end: RecordPlace,
    /// Whether the file may have rows.
    rows: bool,
}

impl Started {
    /// Creates a new file, and leaves the existing files unchanged.
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

    /// Opens the last existing file, to continue it after its last record.
    fn within(volume: &dyn Volume, LogBefore { end, rows }: LogBefore) -> Result<Self, Error> {
        let file = go_on(volume, end)?;
        Ok(Self { file, end, rows })
    }

    /// Uses the last file or the reserved blocks, if `error` says that there is no space for a new
    /// file.
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
        // A new file that was begun would invalidate later appends to the last log, so it must be
        // removed. If the new file replaces the last log, it may stay.
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
