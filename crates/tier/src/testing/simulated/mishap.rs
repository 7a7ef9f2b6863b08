//! A failure of a single operation of any kind, while all other operations work.

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
    /// The operation fails with `EIO`, and has no effect ([`SimVolume::discard_failed_syncs`]).
    Undone,
    /// The operation fails with `EIO`, but takes effect, like a rename whose reply was lost.
    Done,
    /// The operation fails for lack of descriptors or space. A write fails after its first half.
    NoRoom,
}

impl Mishap {
    /// All kinds of failures.
    pub const ALL: [Mishap; 3] = [Mishap::Undone, Mishap::Done, Mishap::NoRoom];

    fn code(self, operation: Operation) -> i32 {
        use Operation::{Len, List, Lock, Open, OpenTier, Read, TierRead};
        match (self, operation) {
            (Self::Undone | Self::Done, _) | (Self::NoRoom, Len | TierRead) => libc::EIO,
            (Self::NoRoom, Open | OpenTier | Lock | Read | List) => libc::EMFILE,
            (Self::NoRoom, _) => libc::ENOSPC,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Trip {
    left: u64,
    only: Option<Operation>,
    mishap: Mishap,
    stays: bool,
}

pub(super) enum Verdict {
    Done,
    /// The operation returns an error, but its change takes effect, or may appear after a crash.
    Fails(TierError),
}

impl State {
    /// Counts an operation. With `Err`, the operation has no effect. With `Fails`, the operation
    /// takes effect and returns an error.
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
    /// The number of operations so far, also of reads, for [`fail_call`](SimVolume::fail_call).
    pub fn calls(&self) -> u64 {
        self.lock_state().calls
    }

    /// Lets `calls` more operations of any kind succeed, and then one operation fail.
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

    /// The operation that failed by [`fail_call`](SimVolume::fail_call). If no operation has failed
    /// yet, cancels the failure.
    pub fn failed(&self) -> Option<(Operation, String)> {
        let mut state = self.lock_state();
        state.trip = None;
        state.tripped.clone()
    }

    /// Sets whether a failed sync of files, or of names, discards the changes, as on Linux: a later
    /// sync succeeds, but a crash loses the bytes. By default a later sync makes them durable.
    pub fn discard_failed_syncs(&self, files: bool, names: bool) {
        let mut state = self.lock_state();
        (state.discards_files, state.discards_names) = (files, names);
    }
}
