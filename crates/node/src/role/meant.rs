//! What a client knows of its changes: for which run of storage each is meant, what may become of it, and for which it waits.

use crate::wire::{MOST_WANTED, Token};

/// What may have become of a change that its client was not told to be made; of what is no change, nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doubt {
    /// It was not made, and will not be.
    #[default]
    Nothing,
    /// It, or some of it, may have been made. Nothing more of it will be.
    Perhaps,
    /// It may be made yet.
    Yet,
}

/// Which change it is, or is about.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meant {
    pub(super) number: u64,
    /// The run of storage that is to make it; 0 while none is known: then none makes it.
    pub(super) run: u64,
    /// That run was asked for it.
    pub(super) sent: bool,
    /// One before that may have made it.
    pub(super) before: bool,
}

impl Meant {
    /// What may become of it, where no storage has said anything of it.
    pub(super) fn doubt(&self) -> Doubt {
        match (self.run, self.sent) {
            (0, _) => Doubt::Nothing,
            (_, false) => self.refused(),
            (_, true) => Doubt::Yet,
        }
    }

    /// Where this run of storage has not made it, and will not.
    pub(super) fn refused(&self) -> Doubt {
        match self.before {
            true => Doubt::Perhaps,
            false => Doubt::Nothing,
        }
    }

    /// This is the run of storage that there is. False: it was meant for that before.
    pub(super) fn is_for(&mut self, run: u64) -> bool {
        let other = self.run != run;
        self.before |= other && self.run != 0 && self.sent;
        self.sent &= !other;
        self.run = run;
        other
    }
}

/// For which changes a client waits, as it says with each.
#[derive(Default)]
pub(super) struct Wants {
    client: u64,
    /// The last change that it says something of.
    pub(super) newest: u64,
    /// Ascending, but for one that is given up without waiting for what became of it.
    numbers: Vec<u64>,
}

impl Wants {
    /// Of a client of which `newest` is the last change, and `numbers` are those that it waits for.
    pub(super) fn new(client: u64, mut newest: u64, mut numbers: Vec<u64>) -> Wants {
        numbers.sort_unstable();
        if numbers.len() > MOST_WANTED {
            // Nothing is said of those behind it, which are not asked for yet.
            numbers.truncate(MOST_WANTED);
            newest = numbers.last().copied().unwrap_or(0);
        }
        Wants {
            client,
            newest,
            numbers,
        }
    }

    /// Names one more, so that it can be given up. False: there is no room for it.
    pub(super) fn add(&mut self, number: u64) -> bool {
        let room = self.numbers.len() < MOST_WANTED;
        if room {
            self.numbers.push(number);
        }
        room
    }

    /// What tells a change of this client from every other.
    pub(super) fn token(&self, meant: &Meant) -> Token {
        Token {
            run: meant.run,
            client: self.client,
            number: meant.number,
        }
    }

    /// The newest that it says something of, and those that it waits for.
    pub(super) fn told(&self) -> (u64, &[u64]) {
        (self.newest, &self.numbers)
    }
}
