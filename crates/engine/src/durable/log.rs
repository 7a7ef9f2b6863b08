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
//! If no write is in progress, a caller becomes the leader: it writes all pending records at once,
//! and syncs if the durability requires a sync. Meanwhile, other callers encode their records. No
//! thread has the mutex during the write.
//!
//! **If a write fails** (for example on a full disk), the appends of this write fail. The log
//! truncates the file to its earlier length and syncs the file, so that no replay finds the failed
//! records. Later appends may succeed.
//!
//! **If a sync fails**, the content of the disk is unknown, and a later successful sync would prove
//! nothing. So the file gets no more records. [`Log::rotate`] copies the acknowledged records that
//! may not be durable to the next file. The header of the next file has the sequence number of the
//! first record in that file. A replay ignores records of the old file from this number on.
//!
//! **After a crash**, [`replay`] reads all files. If a sync failed in an earlier process, records
//! after the last mark may exist only in the page cache. So the next file begins with a copy of
//! these records. The next file is synced, and then renamed from `log.new`. A file without a valid
//! record is replaced.
//!
//! **Reserved blocks** (`log.room`, [`room`](super::room)) let deletes succeed on a full disk: the
//! log continues in this file, and accepts only deletes until another file is reserved. If a
//! process finds no space for a new file, and the mark of the last log shows that all of this log
//! is durable, the process continues this log. Otherwise the process uses the reserved file.
//!
//! **Rows.** A row has the attributes and the payload of a vector. Earlier versions of StratANN
//! cannot read records with rows. So the first record with rows begins a file of a later format
//! version. Copied records keep the format version of their earlier file.
//!
//! **Marks.** After each sync, the log writes the durable position into the file
//! ([`stratann_layout::log::marks`]). No append waits until a mark is durable. An incomplete record
//! before the last mark is damage. An incomplete record after the mark is the torn end after a
//! crash. For a repair, [`salvage`] reads every whole record.

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

/// The largest number of bytes of records that wait for a sync.
const MOST_UNSYNCED: usize = 64 << 20;
const UNSYNCED_SHARE: u64 = 32;

/// The first and the longest pause between a failed sync and the rotation of the log under
/// [`Durability::Every`].
const FIRST_RESCUE: Duration = Duration::from_secs(1);
const LAST_RESCUE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Log {
    shared: Arc<Shared>,
    /// Syncs records within the time limit of [`Durability::Every`].
    syncer: Option<JoinHandle<()>>,
    added: Option<u64>,
    home: Home,
}

#[derive(Debug)]
struct Shared {
    volume: Arc<dyn Volume>,
    shape: LogShape,
    durability: Durability,
    most_unsynced: AtomicUsize,
    state: Mutex<State>,
    /// Signals that a leader has finished.
    led: Condvar,
    /// Signals that records wait for a sync within the time limit, or that the log is closed.
    due: Condvar,
}

/// Each sequence number is the number of the record *after* the described bytes.
#[derive(Debug)]
struct State {
    number: u64,
    files: u64,
    rows: bool,
    /// The number of bytes to reserve for deletes, or 0.
    room: u64,
    room_is_taken: bool,
    /// `None` while a leader uses the file.
    file: Option<LogFile>,
    /// The records after `written` and `leading`, encoded for their positions in the file.
    pending: Vec<u8>,
    pending_sequence: u64,
    /// The number of bytes that a leader is writing. `pending` begins after these bytes.
    leading: u64,
    batch: Arc<Batch>,
    /// The end of the written and acknowledged bytes, as an offset in the file.
    written: u64,
    written_sequence: u64,
    durable_sequence: u64,
    unsynced: Vec<u8>,
    unsynced_since: Instant,
    /// The reason why the log appends no more records to this file.
    broken: Option<String>,
    stop: bool,
}

#[derive(Debug, Default)]
struct Batch {
    outcome: OnceLock<Result<(), Arc<TierError>>>,
}

impl Log {
    /// Starts the next log as [`replay`] prescribes, or the first log, and makes this log durable.
    /// The caller has the lock of the volume.
    ///
    /// All records that are not known to be durable are written again. After a failed sync in an
    /// earlier process, these records may be only in the page cache, and a later sync would not
    /// prove that they are on the disk.
    ///
    /// # Errors
    /// The call fails with [`Error::Exists`] if a log with this number or a higher number exists
    /// that the replay did not read. After any error, a replay finds the same records as before.
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
        let _ = volume.remove(&unfinished());
        let header = LogHeader {
            shape,
            number: next.number,
            first_sequence: next.undurable.map_or(next.sequence, |from| from.sequence),
            marked: true,
            rows: next.rows,
        };
        let Started { file, end, rows } = match next.before {
            // Deletes have used the reserved blocks, so this file may have the only free blocks.
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

    pub(crate) fn keep_within(&self, budget: u64) {
        let share = (budget / UNSYNCED_SHARE).min(MOST_UNSYNCED as u64);
        let most = &self.shared.most_unsynced;
        most.store(share as usize, Ordering::Relaxed);
    }

    /// Reserves `bytes` bytes for deletes on a full disk. If there is too little space, the next
    /// record that is not a delete tries again.
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

    /// Appends a record as [`Log::append_all`] does.
    #[cfg(test)]
    pub(crate) fn append(&self, record: LogRecord<'_>) -> Result<u64, Error> {
        Ok(self.append_all(&[record])?.start)
    }

    /// Appends all records in order, or none, and returns their sequence numbers. When the call
    /// returns, the records are written, and under [`Durability::Always`] durable. After a crash
    /// during the call, the log may have the first few records.
    ///
    /// # Errors
    /// A vector has a wrong length, or a write or sync fails. After a failed write, later appends
    /// may succeed. After a failed sync, none succeeds until [`Log::rotate`].
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
                // No write is in progress, and this batch has no result, so this batch is pending.
                None if state.file.is_some() => shared.lead(&mut state, false),
                None => shared.led.wait(&mut state),
            }
        }
    }

    /// Appends deletes like [`append_all`](Self::append_all). If the disk is full, the deletes are
    /// written to the reserved blocks.
    pub(crate) fn append_in_room(&self, records: &[LogRecord<'_>]) -> Result<Range<u64>, Error> {
        assert!(
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

    /// Makes every append durable whose call returned before this call. If a sync fails, no append
    /// succeeds until [`Log::rotate`].
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let shared = &*self.shared;
        shared.volume.check_held()?;
        let mut state = shared.state.lock();
        let wanted = state.written_sequence;
        loop {
            if state.durable_sequence >= wanted {
                // If the file is broken, this call should report the error, not only the next
                // append.
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

    /// Makes all acknowledged records durable in the next file, unless the current file is intact
    /// and empty. Returns the position after these records. When a checkpoint has these records, a
    /// replay begins at this position. Appends wait during the call.
    ///
    /// # Errors
    /// The next file cannot be created. Then the log is unchanged, or accepts no records until a
    /// rotation succeeds.
    pub(crate) fn rotate(&self) -> Result<LogPosition, Error> {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        while state.file.is_none() {
            shared.led.wait(&mut state);
        }
        shared.rotate(&mut state, false)
    }

    /// Rotates like [`rotate`](Self::rotate), before deletes. If the disk is full, the file with
    /// reserved blocks becomes the next file.
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

    /// Whether the caller must rotate the log before the next append.
    pub(crate) fn is_broken(&self) -> bool {
        self.shared.state.lock().broken.is_some()
    }

    #[cfg(test)]
    pub(crate) fn number(&self) -> u64 {
        self.shared.state.lock().number
    }

    /// The name of the file that this log started, if the file has no record and can be removed. A
    /// file whose number existed before must stay: a crash could restore the earlier file.
    pub(crate) fn unused(&self) -> Option<String> {
        let number = self.added?;
        let state = self.shared.state.lock();
        let end = state.written_or_led() + state.pending.len() as u64;
        (state.number == number && end <= FIRST_RECORD).then(|| log_name(number))
    }

    /// Written and acknowledged bytes in the current file, including the header.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.state.lock().written
    }

    /// The sequence number of the next record, unless an earlier append fails.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.shared.state.lock().pending_sequence
    }
}

impl Drop for Log {
    /// Records that wait for the time limit are synced, since no thread syncs them later.
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

    /// Writes the pending records, and syncs if `sync`, the durability or the memory limit requires
    /// a sync. No other leader uses the file. The batch and the state get the result.
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
                    // The sync after the truncation also made the remaining bytes durable.
                    state.synced();
                    state.withdraw(error);
                } else {
                    state.break_off(error);
                }
            }
        }
        self.led.notify_all();
    }

    fn take_rows(&self, state: &mut MutexGuard<'_, State>) -> Result<(), Error> {
        while !state.rows && state.file.is_none() {
            self.led.wait(state);
        }
        if !state.rows {
            self.usable(state)?;
            match state.written == FIRST_RECORD {
                true => self.replace_empty(state)?,
                false => _ = self.rotate(state, true)?,
            }
        }
        Ok(())
    }

    /// Replaces the current file, which has no record, by a file that may have rows.
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

    fn keep_room_again(&self, state: &mut State) -> Result<(), Error> {
        match self.volume.keep_room(LOG_ROOM, state.room) {
            Err(error @ TierError::NoSpace { .. }) => return Err(error.into()),
            // After any other failure there may be space for records, so the log accepts records.
            Err(error) => tracing::debug!("no blocks are reserved for deletes: {error}"),
            Ok(_) => {}
        }
        state.room_is_taken = false;
        Ok(())
    }

    /// Continues the log in the file with reserved blocks, unless the log has begun another file
    /// since the caller read `files`. Returns `false` if no blocks are reserved.
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
        // The pending records fail too: the disk has no space for them, and the reserved blocks are
        // only for deletes.
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

    /// Rotates while no write is in progress. With `rows`, the next file may have rows.
    fn rotate(&self, state: &mut State, rows: bool) -> Result<LogPosition, Error> {
        if state.broken.is_none() && state.written == FIRST_RECORD && (state.rows || !rows) {
            // Without this return, each failed merge would leave an empty file.
            return Ok(LogPosition {
                number: state.number,
                sequence: state.written_sequence,
            });
        }
        let has_room = || self.volume.kept_room(&log_name(state.number));
        if state.broken.is_none() && state.room_is_taken && has_room()? > 0 {
            // After a rotation, deletes cannot use the free blocks of the current file. So other
            // blocks are reserved first.
            self.keep_room_again(state)?;
        }
        self.begin_next(state, rows, false)
    }

    /// With `in_room`, the next file has the reserved blocks.
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
                // The header of the next file would invalidate later appends to the current file.
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

    /// The thread of [`Durability::Every`]. After a failed sync, this thread rotates the log after
    /// a pause. The next append would rotate the log too, but there may be no next append. Each
    /// failure makes the next pause longer.
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
                // During the check, another thread may have begun to rotate the log.
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
    fn written_or_led(&self) -> u64 {
        self.written + self.leading
    }

    fn end_of_written(&self) -> RecordPlace {
        RecordPlace {
            log: self.number,
            offset: self.written,
            sequence: self.written_sequence,
        }
    }

    fn synced(&mut self) {
        self.durable_sequence = self.written_sequence;
        self.unsynced.clear();
    }

    /// Fails the pending appends, which were encoded for positions after unwritten records.
    fn withdraw(&mut self, error: Arc<TierError>) {
        self.pending.clear();
        self.pending_sequence = self.written_sequence;
        let _ = mem::take(&mut self.batch).outcome.set(Err(error));
    }

    fn break_off(&mut self, error: Arc<TierError>) {
        self.broken = Some(error.to_string());
        self.withdraw(error);
    }
}

struct Started {
    file: LogFile,
    end: RecordPlace,
    rows: bool,
}

impl Started {
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

    fn within(volume: &dyn Volume, LogBefore { end, rows }: LogBefore) -> Result<Self, Error> {
        let file = go_on(volume, end)?;
        Ok(Self { file, end, rows })
    }

    /// If the error says that the disk is full, continues in the last file or in the reserved
    /// blocks.
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
        // The header of a new file would invalidate later appends to the last log.
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

fn is_delete(record: &LogRecord<'_>) -> bool {
    matches!(record, LogRecord::Delete { .. })
}

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
