//! The facts that a client knows about its changes: the run of storage that each change is for, the
//! possible effects, and the changes that the client waits for.

use crate::wire::{MOST_WANTED, Token};

/// The possible effects of a change that was not acknowledged. The value is `Nothing` for a request
/// that is no change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doubt {
    /// Storage has not made the change, and will not make it.
    #[default]
    Nothing,
    /// The change, or a part of it, may have been made. Storage makes no further part.
    Perhaps,
    /// Storage may still make the change.
    Yet,
}

/// The change that a request makes or withdraws.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meant {
    pub(super) number: u64,
    /// The run of storage that is to make the change, or 0 while the client knows none. No run
    /// makes a change for run 0.
    pub(super) run: u64,
    /// Whether the client asked that run for the change.
    pub(super) sent: bool,
    /// Whether an earlier run of storage may have made the change.
    pub(super) before: bool,
}

impl Meant {
    /// The possible effects of the change before storage has answered.
    pub(super) fn doubt(&self) -> Doubt {
        match (self.run, self.sent) {
            (0, _) => Doubt::Nothing,
            (_, false) => self.refused(),
            (_, true) => Doubt::Yet,
        }
    }

    /// The possible effects if the run of storage that refused the change has not made it, and will
    /// not make it.
    pub(super) fn refused(&self) -> Doubt {
        match self.before {
            true => Doubt::Perhaps,
            false => Doubt::Nothing,
        }
    }

    /// Sets the run of storage. Returns false if the change was for this run already.
    pub(super) fn is_for(&mut self, run: u64) -> bool {
        let other = self.run != run;
        self.before |= other && self.run != 0 && self.sent;
        self.sent &= !other;
        self.run = run;
        other
    }
}

/// The list of changes that a client waits for. Each change carries the list.
#[derive(Default)]
pub(super) struct Wants {
    client: u64,
    /// The newest change that the list is about.
    pub(super) newest: u64,
    /// The numbers of the changes, in ascending order. The last number may be a withdrawn change
    /// whose outcome the client does not wait for.
    numbers: Vec<u64>,
}

impl Wants {
    /// `newest` is the client's newest change, and `numbers` has the changes that it waits for.
    pub(super) fn new(client: u64, mut newest: u64, mut numbers: Vec<u64>) -> Wants {
        numbers.sort_unstable();
        if numbers.len() > MOST_WANTED {
            // The list ends before the changes over the limit, which the client has not sent yet.
            numbers.truncate(MOST_WANTED);
            newest = numbers.last().copied().unwrap_or(0);
        }
        Wants {
            client,
            newest,
            numbers,
        }
    }

    /// Adds a change, so that the client can withdraw it. Returns false if the list is full.
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

    /// The newest change that the list is about, and the changes in the list.
    pub(super) fn told(&self) -> (u64, &[u64]) {
        (self.newest, &self.numbers)
    }
}
