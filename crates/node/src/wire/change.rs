//! What goes between servers of changes: their tokens, what their clients still wait for, ids, and what came of them.

use super::u64_at;

/// The most changes that a client says it waits for. More of them wait until some of these are over.
pub const MOST_WANTED: usize = 4096;

/// Ids, or other numbers, as they came: a u64 each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ids<'a>(pub &'a [u8]);

impl Ids<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len() / 8
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.0.chunks_exact(8).map(|id| u64_at(id, 0))
    }
}

/// What tells a change from every other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Token {
    /// Which run of storage is to make it. 0: its client knows of none yet.
    pub run: u64,
    /// Which client wants it: a number that this one has drawn at random.
    pub client: u64,
    /// Which of its changes: they count from 1 on.
    pub number: u64,
}

/// What a client waits for when it says so: of its changes up to the `newest` all others are over, and never to be made any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// The last of its changes that this is about.
    pub newest: u64,
    /// Those that it waits for, at most [`MOST_WANTED`].
    pub numbers: Ids<'a>,
}

impl Wanted<'_> {
    /// Whether its client waits for a change.
    pub fn has(&self, number: u64) -> bool {
        number <= self.newest && self.numbers.iter().any(|other| other == number)
    }
}

/// What a change did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Ids whose vectors are in the index now.
    pub upserted: u32,
    /// Ids that were in it and are no more.
    pub deleted: u32,
}
