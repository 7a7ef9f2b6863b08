//! One operation of any kind that fails, while those before and after it work: what a test
//! enumerates.

use std::io;

use super::{SimVolume, State, place};
use crate::error::TierError;

/// What may be asked of a volume, its files and its tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// A file is created.
    Create,
    /// A file is opened for writing.
    Open,
    /// Bytes are written.
    Write,
    /// A file is cut or filled up.
    Resize,
    /// Blocks are given to a file ahead of its bytes.
    KeepRoom,
    /// A file is made durable.
    Sync,
    /// Names are made durable: the directory.
    SyncNames,
    /// A file gets another name.
    Rename,
    /// A file is removed.
    Remove,
    /// Names are listed.
    List,
    /// A file's length is asked for, or whether there is one.
    Len,
    /// Bytes are read through the volume.
    Read,
    /// The lock is taken.
    Lock,
    /// A file is opened for random reads.
    OpenTier,
    /// Bytes are read through a tier.
    TierRead,
}

/// How one operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// With `EIO`; nothing was done. Of a sync, see [`SimVolume::discard_failed_syncs`].
    Undone,
    /// With `EIO`, though it was done: a rename over a network whose answer was lost. What only
    /// reads is not done.
    Done,
    /// For want of room: `ENOSPC`, a write after its first half; where a descriptor is needed
    /// `EMFILE`.
    NoRoom,
}

impl Mishap {
    /// All of them.
    pub const ALL: [Mishap; 3] = [Mishap::Undone, Mishap::Done, Mishap::NoRoom];

    /// What the operating system would say.
    fn code(self, operation: Operation) -> i32 {
        use Operation::{Len, List, Lock, Open, OpenTier, Read, TierRead};
        match (self, operation) {
            (Self::Undone | Self::Done, _) | (Self::NoRoom, Len | TierRead) => libc::EIO,
            (Self::NoRoom, Open | OpenTier | Lock | Read | List) => libc::EMFILE,
            (Self::NoRoom, _) => libc::ENOSPC,
        }
    }
}

/// A mishap that waits for its operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trip {
    /// Operations of the kind that still succeed.
    left: u64,
    /// The kind; `None` is any.
    only: Option<Operation>,
    mishap: Mishap,
    /// Whether all behind it fail as well.
    stays: bool,
}

/// What becomes of an operation.
pub(super) enum Verdict {
    Done,
    /// It fails, but its change is made, or may be found after the crash.
    Fails(TierError),
}

impl State {
    /// Counts an operation of any kind, and fails the one that is to fail.
    ///
    /// `Err`: nothing happens. `Fails`: it is done nevertheless.
    pub(super) fn call(
        &mut self,
        operation: Operation,
        action: &'static str,
        name: &str,
        offset: u64,
        len: u64,
    ) -> Result<Verdict, TierError> {
        self.alive(name)?;
        self.calls += 1;
        let Some(trip) = &mut self.trip else {
            return Ok(Verdict::Done);
        };
        if trip.only.is_some_and(|only| only != operation) {
            return Ok(Verdict::Done);
        }
        if trip.left > 0 {
            trip.left -= 1;
            return Ok(Verdict::Done);
        }
        let (mishap, stays) = (trip.mishap, trip.stays);
        if !stays {
            self.trip = None;
        }
        self.tripped = Some((operation, name.to_owned()));
        let source = io::Error::from_raw_os_error(mishap.code(operation));
        let error = TierError::io(action, place(name), offset, len, source);
        match mishap {
            Mishap::Done => Ok(Verdict::Fails(error)),
            Mishap::Undone | Mishap::NoRoom => Err(error),
        }
    }

    /// As [`call`](State::call), for what changes nothing.
    pub(super) fn look(
        &mut self,
        operation: Operation,
        action: &'static str,
        name: &str,
    ) -> Result<(), TierError> {
        match self.call(operation, action, name, 0, 0)? {
            Verdict::Done => Ok(()),
            Verdict::Fails(error) => Err(error),
        }
    }
}

impl SimVolume {
    /// Operations so far of whatever kind, reads included: what a test enumerates for
    /// [`fail_call`](SimVolume::fail_call). A call that asks for several things is several
    /// operations.
    pub fn calls(&self) -> u64 {
        self.lock_state().calls
    }

    /// Lets `calls` more operations of whatever kind succeed, and fails the next one, once.
    pub fn fail_call(&self, calls: u64, mishap: Mishap) {
        self.set_trip(calls, None, mishap, false);
    }

    /// As [`fail_call`](SimVolume::fail_call), where only operations of one kind are counted.
    pub fn fail_nth(&self, operation: Operation, calls: u64, mishap: Mishap) {
        self.set_trip(calls, Some(operation), mishap, false);
    }

    /// As [`fail_nth`](SimVolume::fail_nth), and fails all others of the kind that come behind it.
    pub fn fail_from(&self, operation: Operation, calls: u64, mishap: Mishap) {
        self.set_trip(calls, Some(operation), mishap, true);
    }

    fn set_trip(&self, left: u64, only: Option<Operation>, mishap: Mishap, stays: bool) {
        let mut state = self.lock_state();
        state.tripped = None;
        state.trip = Some(Trip {
            left,
            only,
            mishap,
            stays,
        });
    }

    /// The operation that [`fail_call`](SimVolume::fail_call) failed, and the file's name; `None`
    /// if it has not come yet, which it then does no more.
    pub fn failed(&self) -> Option<(Operation, String)> {
        let mut state = self.lock_state();
        state.trip = None;
        state.tripped.clone()
    }

    /// Whether a sync that fails discards what it was to make durable, of files and of names: as
    /// Linux does, which marks the pages clean that it could not write. They are read as they were
    /// written, a later sync succeeds, and a crash shows that they are not there. By default a
    /// later sync makes up for one that failed.
    pub fn discard_failed_syncs(&self, files: bool, names: bool) {
        let mut state = self.lock_state();
        (state.discards_files, state.discards_names) = (files, names);
    }
}
