//! A failure of a single operation of any kind. The operations before and after it work. Tests let
//! each operation of their work fail in turn.

use std::io;

use super::{SimVolume, State, place};
use crate::error::TierError;

/// The kinds of operations on a volume, its files and its tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// A file is created.
    Create,
    /// A file is opened for writing.
    Open,
    /// Bytes are written.
    Write,
    /// A file is truncated or extended.
    Resize,
    /// Blocks are reserved for a file.
    KeepRoom,
    /// A file is made durable.
    Sync,
    /// Names are made durable, by a sync of the directory.
    SyncNames,
    /// A file gets another name.
    Rename,
    /// A file is removed.
    Remove,
    /// Names are listed.
    List,
    /// A file's length or existence is queried.
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

/// The failure of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// The operation fails with `EIO`, and was not performed. For a sync, see
    /// [`SimVolume::discard_failed_syncs`].
    Undone,
    /// The operation fails with `EIO`, although it was performed, like a rename over a network
    /// whose reply was lost. An operation that only reads returns no data.
    Done,
    /// The operation fails for lack of resources. If it needs a descriptor, it fails with `EMFILE`.
    /// If it needs space, it fails with `ENOSPC`; a write fails after its first half was written.
    NoRoom,
}

impl Mishap {
    /// All kinds of failures.
    pub const ALL: [Mishap; 3] = [Mishap::Undone, Mishap::Done, Mishap::NoRoom];

    /// The error code with which the operating system reports this failure of an operation.
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
    /// The number of operations of the kind that still succeed.
    left: u64,
    /// The kind of operation, or `None` for any kind.
    only: Option<Operation>,
    mishap: Mishap,
    /// Whether all later operations fail too.
    stays: bool,
}

/// The outcome of an operation.
pub(super) enum Verdict {
    Done,
    /// The operation returns an error, but its change is made, or may be found after a crash.
    Fails(TierError),
}

impl State {
    /// Counts an operation of any kind, and lets it fail if it is the selected operation.
    ///
    /// `Err` means that the operation has no effect. `Fails` means that the operation is performed
    /// and returns an error.
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

    /// Like [`call`](State::call), for an operation that changes nothing.
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
    /// The number of operations so far, of any kind, including reads. A test passes each number
    /// below this number to [`fail_call`](SimVolume::fail_call). A call with several requests
    /// counts as several operations.
    pub fn calls(&self) -> u64 {
        self.lock_state().calls
    }

    /// Lets `calls` more operations of any kind succeed. Then the next operation fails, and later
    /// operations succeed.
    pub fn fail_call(&self, calls: u64, mishap: Mishap) {
        self.set_trip(calls, None, mishap, false);
    }

    /// Like [`fail_call`](SimVolume::fail_call), but counts only operations of one kind.
    pub fn fail_nth(&self, operation: Operation, calls: u64, mishap: Mishap) {
        self.set_trip(calls, Some(operation), mishap, false);
    }

    /// Like [`fail_nth`](SimVolume::fail_nth), but also fails all later operations of the kind.
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

    /// Returns the operation that failed by [`fail_call`](SimVolume::fail_call), with the name of
    /// the file. If no operation has failed yet, returns `None` and cancels the failure.
    pub fn failed(&self) -> Option<(Operation, String)> {
        let mut state = self.lock_state();
        state.trip = None;
        state.tripped.clone()
    }

    /// Sets whether a failed sync of files, or of names, discards the changes that it should have
    /// made durable. Linux discards them: it marks the dirty pages as clean. Then reads still
    /// return the written bytes, and a later sync succeeds, but a crash loses these bytes. By
    /// default a later sync makes the changes durable.
    pub fn discard_failed_syncs(&self, files: bool, names: bool) {
        let mut state = self.lock_state();
        (state.discards_files, state.discards_names) = (files, names);
    }
}
