//! The vector log of a volume: the write-ahead log, with group commit.
//!
//! ```text
//!   append ─> pending ──leader: write──> written ──sync──> durable
//!             (encoded, numbered)        (kept in memory until durable, for rotate)
//!
//!   log-000001   header | record | record | ..           synced before the next one is started
//!   log-000002   header (first sequence number) | ..
//! ```
//!
//! Whoever finds nobody writing is the leader: it writes all that is pending in one write and, if durability asks for
//! it, one sync, while others encode behind it and wait. The mutex is not held meanwhile.
//!
//! **A write that fails** (a full disk) fails the appends that wait for it. What it may have left of them is cut off,
//! and the cut is synced, so that none of it is ever replayed; later appends work when there is room. **A sync that
//! fails** says nothing about what the disk has, and a second one that succeeds would not either. So the file takes
//! nothing more. [`Log::rotate`] starts the next one with everything that was acknowledged and not yet durable; its
//! header's first sequence number takes back whatever the old file has beyond that. Until then an append that failed
//! by a sync may or may not be found by a replay.
//!
//! **After a crash** [`replay`] reads all files; the next is started with the numbers that it says. A torn file stays
//! as it is: the next one's first sequence number says where it ended. What was read from behind the last mark may be in the
//! memory of the operating system alone, where a sync of the process before has failed; so the next file begins with it,
//! and with its first sequence number. It is written under another name (`log.new`) and renamed when it is durable. A file
//! without any record that counts is replaced by the next one, so that none pile up.
//!
//! **Room.** Deletes go on when the disk is full: an append that finds no room there goes into a file that has its blocks ahead (`log.room`, [`room`](super::room)), which becomes the
//! next log. Until another one is kept, records that are no deletes are refused. A process that comes then and finds no room for a log of its own goes on in the last one,
//! if all of that is durable by its mark; else it takes the room.
//!
//! **Rows.** A file is of the version that earlier readers know until a record with a row comes, which none of them could read: that one begins the next
//! file, as after a failed sync, or takes the place of one that has no record. A file that takes on what another one has takes on its version.
//!
//! **Marks.** After each sync the file says up to where it was durable ([`stratann_layout::log::marks`]): one small write,
//! which no append waits for a disk to take. What is not whole below the mark was damaged, and is an error; what is not
//! whole behind it is the torn end of a crash. [`salvage`] is for who repairs: it takes every whole record there is.

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

/// Bytes that are kept in memory until they are durable; beyond them the log syncs without being asked.
const MOST_UNSYNCED: usize = 64 << 20;
/// Of a memory budget, one part in so many.
const UNSYNCED_SHARE: u64 = 32;

/// How long the thread of [`Durability::Every`] waits after a sync that failed before it rotates the log, at first and at most.
const FIRST_RESCUE: Duration = Duration::from_secs(1);
const LAST_RESCUE: Duration = Duration::from_secs(60);

/// When an append is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When it returns.
    Always,
    /// At the latest so long after it returned.
    Every(Duration),
    /// When a later [`LiveIndex::flush`](crate::LiveIndex::flush) or merge returns (or before).
    OnFlush,
}

/// The log that is being written. Threads share it.
#[derive(Debug)]
pub(crate) struct Log {
    shared: Arc<Shared>,
    /// The thread that syncs in time; only for [`Durability::Every`].
    syncer: Option<JoinHandle<()>>,
    /// Number of the log that it was started with, if there was none of that number.
    added: Option<u64>,
    home: Home,
}

#[derive(Debug)]
struct Shared {
    volume: Arc<dyn Volume>,
    shape: LogShape,
    durability: Durability,
    /// Bytes that are kept in memory until they are durable.
    most_unsynced: AtomicUsize,
    state: Mutex<State>,
    /// A leader is done.
    led: Condvar,
    /// There is something to sync in time, or nothing ever again.
    due: Condvar,
}

/// Its sequence numbers are of the record *behind* what they speak of.
#[derive(Debug)]
struct State {
    /// Number of the current file.
    number: u64,
    /// How many files there were before it.
    files: u64,
    /// Whether it may have rows.
    rows: bool,
    /// Bytes of room that are to be kept for deletes; 0 where none is.
    room: u64,
    /// Whether deletes have taken it.
    room_is_taken: bool,
    /// `None` while a leader has it.
    file: Option<LogFile>,
    /// Records behind `written` and `leading`, encoded for where they will stand.
    pending: Vec<u8>,
    pending_sequence: u64,
    /// Bytes that a leader is writing; `pending` begins behind them.
    leading: u64,
    /// What becomes of them.
    batch: Arc<Batch>,
    /// The end of what was written and acknowledged, as an offset in the file.
    written: u64,
    written_sequence: u64,
    durable_sequence: u64,
    /// The records that were written and are not known to be durable, as they stand in the file.
    unsynced: Vec<u8>,
    /// When the first of them came.
    unsynced_since: Instant,
    /// Why nothing more may be appended to this file.
    broken: Option<String>,
    stop: bool,
}

/// Appends that are written together, and what became of them.
#[derive(Debug, Default)]
struct Batch {
    outcome: OnceLock<Result<(), Arc<TierError>>>,
}

impl Log {
    /// Starts the next log, as [`replay`] says, or the first; durable when it returns. The caller holds the volume's lock.
    ///
    /// What a replay has read must not be lost in a later crash, when there are records behind it. It may have come from memory
    /// alone, if a sync of an earlier process has failed; and a sync that succeeds now would not show that. So
    /// what is not known to be durable is written anew.
    ///
    /// # Errors
    /// A log of this number or above is there that the replay does not know ([`Error::Exists`]), or the volume fails: then a
    /// replay finds what it found before.
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
                    "a log of this number is there; replay the logs, which says the next number"
                        .into(),
            });
        }
        // What a crash has left of one.
        let _ = volume.remove(&unfinished());
        let header = LogHeader {
            shape,
            number: next.number,
            first_sequence: next.undurable.map_or(next.sequence, |from| from.sequence),
            marked: true,
            rows: next.rows,
        };
        let Started { file, end, rows } = match next.before {
            // Deletes have taken the room that was kept, and there may be no more than what they left of it.
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

    /// Keeps no more than a share of a memory budget until it is durable.
    pub(crate) fn keep_within(&self, budget: u64) {
        let share = (budget / UNSYNCED_SHARE).min(MOST_UNSYNCED as u64);
        let most = &self.shared.most_unsynced;
        most.store(share as usize, Ordering::Relaxed);
    }

    /// From now on keeps so many bytes of room for deletes on a full disk, if the volume can. Without so much, it is tried again when a record comes that is no delete.
    pub(crate) fn keep_room(&self, bytes: u64) {
        let mut state = self.shared.state.lock();
        match self.shared.volume.keep_room(LOG_ROOM, bytes) {
            Ok(kept) => {
                state.room = if kept { bytes } else { 0 };
                state.room_is_taken = false;
            }
            Err(error) => {
                tracing::debug!("no room is kept for deletes: {error}");
                state.room = bytes;
                state.room_is_taken = true;
            }
        }
    }

    /// Appends a record; returns its sequence number when it is written, and with [`Durability::Always`] durable.
    ///
    /// # Errors
    /// As [`Log::append_all`].
    #[cfg(test)]
    pub(crate) fn append(&self, record: LogRecord<'_>) -> Result<u64, Error> {
        Ok(self.append_all(&[record])?.start)
    }

    /// Appends records, one behind the other; returns their sequence numbers when they are written, and with
    /// [`Durability::Always`] durable. All of them or none; but a crash meanwhile may leave the first few.
    ///
    /// # Errors
    /// A vector of a wrong length, of which nothing is appended; a failed write, after which others may succeed; a failed
    /// sync, now or before, after which only [`Log::rotate`] helps.
    pub(crate) fn append_all(&self, records: &[LogRecord<'_>]) -> Result<Range<u64>, Error> {
        let shared = &*self.shared;
        let expected = shared.shape.vector_bytes();
        for record in records {
            let id = record.id();
            if let Some(vector) = record.vector()
                && vector.len() != expected
            {
                let (what, expected) = (
                    format!("the vector of id {id}"),
                    format!("{expected} bytes"),
                );
                return Err(Error::call(
                    what,
                    format!("{} bytes", vector.len()),
                    expected,
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
                // Nobody writes, and no outcome: the batch is the pending one.
                None if state.file.is_some() => shared.lead(&mut state, false),
                None => shared.led.wait(&mut state),
            }
        }
    }

    /// As [`append_all`](Self::append_all), of deletes: where the disk is full they go into the room that is kept for them.
    ///
    /// # Errors
    /// As those of [`append_all`](Self::append_all); a full disk where no room is kept, or all of it is used.
    pub(crate) fn append_in_room(&self, records: &[LogRecord<'_>]) -> Result<Range<u64>, Error> {
        debug_assert!(records.iter().all(is_delete), "the room is for deletes");
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

    /// Everything whose append has returned is durable when this returns.
    ///
    /// # Errors
    /// A failed sync, now or before, after which only [`Log::rotate`] helps.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let shared = &*self.shared;
        shared.volume.check_held()?;
        let mut state = shared.state.lock();
        let wanted = state.written_sequence;
        loop {
            if state.durable_sequence >= wanted {
                // Nothing is missing of what was acknowledged; yet who appends next should not be the first to hear.
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

    /// Makes durable whatever was acknowledged, and starts the next file, unless the current one is whole and has no record yet; after a failed sync the
    /// records that were not durable are written again there. Returns the position behind all records that were acknowledged: where a replay
    /// begins once a checkpoint has them. Appends wait meanwhile.
    ///
    /// # Errors
    /// The next file cannot be made. Then the log is as it was, or takes nothing until this succeeds.
    pub(crate) fn rotate(&self) -> Result<LogPosition, Error> {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        while state.file.is_none() {
            shared.led.wait(&mut state);
        }
        shared.rotate(&mut state, false)
    }

    /// As [`rotate`](Self::rotate), before deletes: where the disk is full the next file is the one in which room is kept for them.
    ///
    /// # Errors
    /// As those of [`rotate`](Self::rotate); a full disk where no room is kept.
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

    /// Whether the current file takes nothing more: then the next one is to be started.
    pub(crate) fn is_broken(&self) -> bool {
        self.shared.state.lock().broken.is_some()
    }

    /// Number of the current file.
    #[cfg(test)]
    pub(crate) fn number(&self) -> u64 {
        self.shared.state.lock().number
    }

    /// The name of the file that was started, if it has no record and nobody needs it: there was none of its number
    /// before, which would come back if its removal were not durable.
    pub(crate) fn unused(&self) -> Option<String> {
        let number = self.added?;
        let state = self.shared.state.lock();
        let end = state.written_or_led() + state.pending.len() as u64;
        (state.number == number && end <= FIRST_RECORD).then(|| log_name(number))
    }

    /// Bytes of the current file that were written and acknowledged, its header included.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.state.lock().written
    }

    /// The sequence number that the next record gets, if no append fails meanwhile.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.shared.state.lock().pending_sequence
    }
}

impl Drop for Log {
    /// Syncs what was to be synced in time: nobody else would.
    fn drop(&mut self) {
        if !self.home.is_here() {
            std::mem::forget(self.syncer.take());
            return; // That thread lives in another process, and so does the file.
        }
        self.shared.state.lock().stop = true;
        self.shared.due.notify_all();
        if let Some(syncer) = self.syncer.take() {
            // It does not panic, and if it did there would be nothing to do about it here.
            let _ = syncer.join();
        }
    }
}

impl Shared {
    /// Refuses a file to which nothing more may be appended.
    fn usable(&self, state: &State) -> Result<(), Error> {
        let Some(why) = &state.broken else {
            return Ok(());
        };
        let why = format!(
            "an earlier write or sync failed ({why}), and nobody knows what the file has; nothing is appended to it \
             until the log is rotated, which needs a disk that works"
        );
        Err(Error::Tier(TierError::Io {
            action: "append",
            place: name_of(&*self.volume, &log_name(state.number)),
            offset: state.written,
            source: io::Error::other(why),
        }))
    }

    /// Writes what is pending, and syncs if asked to or if durability or memory wants it. The caller has seen that the
    /// file is there. What became of it is in the batch and the state.
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
                    // What stands before the cut was synced with it.
                    state.synced();
                    state.withdraw(error);
                } else {
                    state.break_off(error);
                }
            }
        }
        self.led.notify_all();
    }

    /// Has the current file be one that may have rows: the next one, if this is none.
    fn take_rows(&self, state: &mut MutexGuard<'_, State>) -> Result<(), Error> {
        while !state.rows && state.file.is_none() {
            self.led.wait(state);
        }
        if !state.rows {
            self.usable(state)?;
            // One without records is replaced, so that none pile up.
            match state.written == FIRST_RECORD {
                true => self.replace_empty(state)?,
                false => _ = self.rotate(state, true)?,
            }
        }
        Ok(())
    }

    /// Has a file of the same number that may have rows take the place of the current one, which has no record.
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
                // Nobody knows which of the two has the name.
                let error = Arc::new(error);
                state.break_off(error.clone());
                self.led.notify_all();
                Err(copy_of(&error).into())
            }
        }
    }

    /// Keeps room for deletes again, before anything else is appended.
    fn keep_room_again(&self, state: &mut State) -> Result<(), Error> {
        match self.volume.keep_room(LOG_ROOM, state.room) {
            Err(error @ TierError::NoSpace { .. }) => return Err(error.into()),
            // Whatever it is, it is no reason to refuse what there is room for.
            Err(error) => tracing::debug!("no room is kept for deletes: {error}"),
            Ok(_) => {}
        }
        state.room_is_taken = false;
        Ok(())
    }

    /// Has the next file be the one in which room is kept, unless there is another one by now than that before which there were `files`. False where no room is kept.
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
        // What waits would have found no room either, and not all of it is deletes.
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

    /// What [`Log::rotate`] does when nobody writes; `rows` says whether the next file is to take records with rows, whatever goes over to it.
    fn rotate(&self, state: &mut State, rows: bool) -> Result<LogPosition, Error> {
        if state.broken.is_none() && state.written == FIRST_RECORD && (state.rows || !rows) {
            // Merges that fail one after the other would leave a file each.
            return Ok(LogPosition {
                number: state.number,
                sequence: state.written_sequence,
            });
        }
        let has_room = || self.volume.kept_room(&log_name(state.number));
        if state.broken.is_none() && state.room_is_taken && has_room()? > 0 {
            // What the current file has left of it is for deletes, which would not find it behind the next one.
            self.keep_room_again(state)?;
        }
        self.begin_next(state, rows, false)
    }

    /// Starts the next file, in the room that is kept if `in_room`.
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
        // Where the records that are not durable stand, and where they will.
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
                // A next file that stays would take back what is appended to this one.
                if !take_back(&*self.volume, header.number) && state.broken.is_none() {
                    state.break_off(error.clone());
                }
                self.led.notify_all();
                return Err(copy_of(&error).into());
            }
        };
        // What waits was encoded for the old file.
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

    /// What the thread of [`Durability::Every`] does. Where a sync has failed, what was acknowledged is undurable until the
    /// log is rotated; whoever appends next would do that, but nobody may. So it does, now and then.
    fn sync_in_time(&self, within: Duration) {
        let mut state = self.state.lock();
        let mut rescue = None;
        loop {
            if let (Some(why), false, false) =
                (&state.broken, state.unsynced.is_empty(), state.stop)
            {
                let (at, pause) = *rescue.get_or_insert_with(|| {
                    let file = name_of(&*self.volume, &log_name(state.number));
                    tracing::warn!("{file}: what was acknowledged is not durable yet: {why}");
                    (Instant::now() + FIRST_RESCUE, FIRST_RESCUE)
                });
                if at > Instant::now() {
                    self.due.wait_until(&mut state, at);
                    continue;
                }
                let held = MutexGuard::unlocked(&mut state, || self.volume.check_held());
                // Somebody may have rotated it meanwhile, or be at it.
                if state.broken.is_none() || state.file.is_none() {
                    continue;
                }
                match held
                    .map_err(Error::from)
                    .and_then(|()| self.rotate(&mut state, false))
                {
                    Ok(_) => tracing::warn!(
                        "{}: what an earlier log could not make durable is durable now",
                        name_of(&*self.volume, &log_name(state.number))
                    ),
                    Err(error) => {
                        tracing::warn!("what was acknowledged is still not durable: {error}");
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
            // A time that cannot be told never comes.
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
    /// Where `pending` begins: behind what a leader is writing.
    fn written_or_led(&self) -> u64 {
        self.written + self.leading
    }

    /// Where the record stands, or will, behind all that were written and acknowledged.
    fn end_of_written(&self) -> RecordPlace {
        RecordPlace {
            log: self.number,
            offset: self.written,
            sequence: self.written_sequence,
        }
    }

    /// Whatever was written is durable.
    fn synced(&mut self) {
        self.durable_sequence = self.written_sequence;
        self.unsynced.clear();
    }

    /// Fails what waits: it was encoded for places behind something that was not written.
    fn withdraw(&mut self, error: Arc<TierError>) {
        self.pending.clear();
        self.pending_sequence = self.written_sequence;
        let _ = mem::take(&mut self.batch).outcome.set(Err(error));
    }

    /// Nothing more is appended to this file.
    fn break_off(&mut self, error: Arc<TierError>) {
        self.broken = Some(error.to_string());
        self.withdraw(error);
    }
}

/// The file that a log is started with.
struct Started {
    file: LogFile,
    /// The place behind what it has.
    end: RecordPlace,
    /// Whether it may have rows.
    rows: bool,
}

impl Started {
    /// A file beside those that are there.
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

    /// The last file that is there, behind its last record.
    fn within(volume: &dyn Volume, LogBefore { end, rows }: LogBefore) -> Result<Self, Error> {
        let file = go_on(volume, end)?;
        Ok(Self { file, end, rows })
    }

    /// What is left where there is no room for one, as `error` says: the last file, or the room that is kept.
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
        // One that was begun would take back what is appended to the last one. Where it replaces that, there is nothing to take back.
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

/// Whether a record is one for which room is kept.
fn is_delete(record: &LogRecord<'_>) -> bool {
    matches!(record, LogRecord::Delete { .. })
}

/// The same error once more, for another of those who waited for it.
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
