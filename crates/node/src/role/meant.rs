//! A client's changes: the run of storage that each change is for, the possible effects, and the
//! changes that the client waits for.

use crate::wire::{MOST_WANTED, Token};

/// The possible effects of a change that was not acknowledged.
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

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meant {
    pub(super) number: u64,
    /// The run of storage that is to make the change. No run makes a change that is for run 0.
    pub(super) run: u64,
    pub(super) sent: bool,
    pub(super) before: bool,
}

impl Meant {
    pub(super) fn doubt(&self) -> Doubt {
        match (self.run, self.sent) {
            (0, _) => Doubt::Nothing,
            (_, false) => self.refused(),
            (_, true) => Doubt::Yet,
        }
    }

    /// The possible effects after a refusal by a run of storage that will never make the change.
    pub(super) fn refused(&self) -> Doubt {
        match self.before {
            true => Doubt::Perhaps,
            false => Doubt::Nothing,
        }
    }

    /// Returns false if the change was for this run already.
    pub(super) fn is_for(&mut self, run: u64) -> bool {
        let other = self.run != run;
        self.before |= other && self.run != 0 && self.sent;
        self.sent &= !other;
        self.run = run;
        other
    }
}

#[derive(Default)]
pub(super) struct Wants {
    client: u64,
    pub(super) newest: u64,
    /// The numbers ascend, except that the last may be a withdrawn change.
    numbers: Vec<u64>,
}

impl Wants {
    pub(super) fn new(client: u64, mut newest: u64, mut numbers: Vec<u64>) -> Wants {
        numbers.sort_unstable();
        if numbers.len() > MOST_WANTED {
            // Changes over the limit are not sent yet, so the list ends before them.
            numbers.truncate(MOST_WANTED);
            newest = numbers.last().copied().unwrap_or(0);
        }
        Wants {
            client,
            newest,
            numbers,
        }
    }

    /// Returns false if the list is full.
    pub(super) fn add(&mut self, number: u64) -> bool {
        let room = self.numbers.len() < MOST_WANTED;
        if room {
            self.numbers.push(number);
        }
        room
    }

    pub(super) fn token(&self, meant: &Meant) -> Token {
        Token {
            run: meant.run,
            client: self.client,
            number: meant.number,
        }
    }

    pub(super) fn told(&self) -> (u64, &[u64]) {
        (self.newest, &self.numbers)
    }
}
