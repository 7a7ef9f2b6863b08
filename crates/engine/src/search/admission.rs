//! What may be an answer: the one predicate that candidate lists, ranking, re-ranking and scans ask, whatever the strategy.
//!
//! ```text
//!   rules_out(node)   before its record is here: candidate list, scan      what is known of it already
//!   admits(id, node)  its record is here: ranking, re-ranking              and remembered, where the answer is no
//! ```
//!
//! A node that may be no answer leads on all the same, and takes no place in the candidate list ([`frontier`](crate::frontier)).
//!
//! Today it is deletes that say no, as they were when the search began. Another reason, such as an attribute that is asked for, joins
//! them here; and in `FreshMoment::admits` (`update/fresh.rs`), which is asked of vectors that are in memory only and that
//! tell for themselves when they were deleted.

use crate::update::Dead;

/// What may be an answer of an index on storage.
#[derive(Clone, Copy, Default)]
pub(crate) struct Admission<'a> {
    /// What does not count, where something may have been deleted.
    dead: Option<Dead<'a>>,
}

impl<'a> Admission<'a> {
    /// All that does count.
    pub(crate) fn but(dead: Dead<'a>) -> Self {
        Self { dead: Some(dead) }
    }

    /// Whether everything may be.
    pub(crate) fn is_of_all(&self) -> bool {
        self.dead.is_none_or(|dead| dead.is_empty())
    }

    /// How many records may not be, at most.
    pub(crate) fn refused(&self) -> usize {
        self.dead.map_or(0, |dead| dead.len())
    }

    /// Whether an id's record on a node may be. The next search knows a node that may not.
    #[inline]
    pub(crate) fn admits(&self, id: u64, node: u32) -> bool {
        !self.dead.is_some_and(|dead| dead.meets(id, node))
    }

    /// Whether a node is known to be no answer, though its record is not here.
    #[inline]
    pub(crate) fn rules_out(&self, node: u32) -> bool {
        self.dead.is_some_and(|dead| dead.knows(node))
    }
}
