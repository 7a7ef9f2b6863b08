//! The parts of messages about changes: tokens, the changes that clients wait for, ids and
//! outcomes.

use super::u64_at;

/// The largest number of changes that a client lists as wanted. Further changes wait.
pub const MOST_WANTED: usize = 4096;

/// Ids, or other numbers, in the form in which they were received: a u64 each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ids<'a>(pub &'a [u8]);

impl Ids<'_> {
    /// Number of ids.
    pub fn len(&self) -> usize {
        self.0.len() / 8
    }

    /// Whether there are no ids.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ids, in their order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.0.chunks_exact(8).map(|id| u64_at(id, 0))
    }
}

/// The unique name of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Token {
    /// The run of storage that is to make the change, or 0 if the client knows no run yet.
    pub run: u64,
    /// The client's random number.
    pub client: u64,
    /// The number of the change. A client counts its changes from 1.
    pub number: u64,
}

/// The changes that a client waits for. Storage must never make the client's other changes up to
/// `newest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// The newest change that the list is about.
    pub newest: u64,
    /// The changes that the client waits for, at most [`MOST_WANTED`].
    pub numbers: Ids<'a>,
}

impl Wanted<'_> {
    /// Whether the client waits for a change.
    pub fn has(&self, number: u64) -> bool {
        number <= self.newest && self.numbers.iter().any(|other| other == number)
    }
}

/// The effect of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// The number of ids that were inserted or replaced.
    pub upserted: u32,
    /// The number of ids that were deleted.
    pub deleted: u32,
}
