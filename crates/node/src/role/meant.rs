//! A client's knowledge of its changes: the run of storage that each is for, its possible effects,
//! and the changes that the client waits for.

use crate::wire::{MOST_WANTED, Token};

/// The possible effects of a change that was not acknowledged. For a request that is no change,
/// `Nothing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doubt {
    /// The change was not made and will not be.
    #[default]
    Nothing,
    /// The change, or a part of it, may have been made. No further part will be.
    Perhaps,
    /// The change may still be made.
    Yet,
}

/// A change, or the subject of a withdrawal.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meant {
    pub(super) number: u64,
    /// The run of storage that is to make it; 0 while none is known, and then none makes it.
    pub(super) run: u64,
    /// Whether that run was asked for it.
    pub(super) sent: bool,
    /// Whether an earlier run may have made it.
    pub(super) before: bool,
}

impl Meant {
    /// The possible effects, before storage has answered.
    pub(super) fn doubt(&self) -> Doubt {
        match (self.run, self.sent) {
            (0, _) => Doubt::Nothing,
            (_, false) => self.refused(),
            (_, true) => Doubt::Yet,
        }
    }

    /// The possible effects if this run has not made it and will not.
    pub(super) fn refused(&self) -> Doubt {
        match self.before {
            true => Doubt::Perhaps,
            false => Doubt::Nothing,
        }
    }

    /// Sets the run of storage. False if the change was for this run already.
    pub(super) fn is_for(&mut self, run: u64) -> bool {
        let other = self.run != run;
        self.before |= other && self.run != 0 && self.sent;
        self.sent &= !other;
        self.run = run;
        other
    }
}

/// The list of changes that a client waits for, which goes with each change.
#[derive(Default)]
pub(super) struct Wants {
    client: u64,
    /// The newest change that the list is about.
    pub(super) newest: u64,
    /// Ascending. A change that is given up without waiting for its outcome may be last.
    numbers: Vec<u64>,
}

impl Wants {
    /// `newest`: the client's newest change. `numbers`: the changes that it waits for.
    pub(super) fn new(client: u64, mut newest: u64, mut numbers: Vec<u64>) -> Wants {
        numbers.sort_unstable();
        if numbers.len() > MOST_WANTED {
            // The list ends before the changes over the limit, which are not sent yet.
            numbers.truncate(MOST_WANTED);
            newest = numbers.last().copied().unwrap_or(0);
        }
        Wants {
            client,
            newest,
            numbers,
        }
    }

    /// Adds a change, so that it can be given up. False if the list is full.
    pub(super) fn add(&mut self, number: u64) -> bool {
        let room = self.numbers.len() < MOST_WANTED;
        if room {
            self.numbers.push(number);
        }
        room
    }

    /// The token of a change of this client.
    pub(super) fn token(&self, meant: &Meant) -> Token {
        Token {
            run: meant.run,
            client: self.client,
            number: meant.number,
        }
    }

    /// The newest change that the list is about, and the changes in it.
    pub(super) fn told(&self) -> (u64, &[u64]) {
        (self.newest, &self.numbers)
    }
}
