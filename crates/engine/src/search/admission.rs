//! What may be an answer: the one predicate that candidate lists, ranking, re-ranking and scans ask, whatever the strategy.
//!
//! ```text
//!   rules_out(node)   before its record is here: candidate list, scan      what is known of it already
//!   admits(id, node)  its record is here: ranking, re-ranking              and remembered, where a delete says no
//! ```
//!
//! A node that may be no answer leads on all the same, and takes no place in the candidate list ([`frontier`](crate::frontier)).
//!
//! Three say no: deletes, as they were when the search began, of which the record's id tells; a filter, whose nodes are known from the
//! beginning; and, where recall is measured, the row that is the query itself. Vectors that are in memory only tell for themselves when they were deleted (`FreshMoment::admits` in `update/fresh.rs`), and which of them
//! match a filter stands beside its nodes ([`Matching`]).

use crate::filter::NodeSet;
use crate::stores::columns::Looked;
use crate::update::Dead;

/// What matches a filter, for all queries of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Matching<'a> {
    /// Nodes of the index on storage.
    pub(crate) nodes: &'a NodeSet,
    /// Slots of each graph of vectors that are in memory only.
    pub(crate) fresh: [&'a NodeSet; 2],
    /// What it cost to find out.
    pub(crate) looked: Looked,
}

impl Matching<'_> {
    /// How many there are, the deleted included.
    pub(crate) fn len(&self) -> usize {
        let fresh = self.fresh.iter().map(|slots| slots.len());
        (self.nodes.len() + fresh.sum::<u64>()) as usize
    }
}

/// What may be an answer of an index on storage.
#[derive(Clone, Copy, Default)]
pub(crate) struct Admission<'a> {
    /// What does not count, where something may have been deleted.
    dead: Option<Dead<'a>>,
    /// What alone counts, where there is a filter, and how many nodes do not.
    among: Option<(&'a NodeSet, usize)>,
    /// A node that a query is to find nothing of: that of a row that is asked for as if it were not in the index.
    left_out: Option<u32>,
}

impl<'a> Admission<'a> {
    /// All that does count.
    pub(crate) fn but(dead: Dead<'a>) -> Self {
        Self {
            dead: Some(dead),
            among: None,
            left_out: None,
        }
    }

    /// The same, but only these of `all` nodes.
    pub(crate) fn among(self, nodes: &'a NodeSet, all: usize) -> Self {
        let others = all.saturating_sub(nodes.len() as usize);
        Self {
            among: Some((nodes, others)),
            ..self
        }
    }

    /// The nodes that alone may be, where a filter says so; some of them may be deleted.
    pub(crate) fn nodes(&self) -> Option<&'a NodeSet> {
        self.among.map(|(nodes, _)| nodes)
    }

    /// The same without a node.
    pub(crate) fn without(self, left_out: Option<u32>) -> Self {
        Self { left_out, ..self }
    }

    /// Whether everything may be.
    pub(crate) fn is_of_all(&self) -> bool {
        let all = self.among.is_none() && self.left_out.is_none();
        all && self.dead.is_none_or(|dead| dead.is_empty())
    }

    /// How many records may not be, at most.
    pub(crate) fn refused(&self) -> usize {
        let among = self.among.map_or(0, |(_, others)| others);
        among + self.deleted() + usize::from(self.left_out.is_some())
    }

    /// Of these, the ones of which perhaps nobody knows before their records are here.
    pub(crate) fn deleted(&self) -> usize {
        self.dead.map_or(0, |dead| dead.len())
    }

    /// Whether an id's record on a node may be. The next search knows a deleted node that may not.
    #[inline]
    pub(crate) fn admits(&self, id: u64, node: u32) -> bool {
        self.may_be(node) && !self.dead.is_some_and(|dead| dead.meets(id, node))
    }

    /// Whether a node is known to be no answer, though its record is not here.
    #[inline]
    pub(crate) fn rules_out(&self, node: u32) -> bool {
        !self.may_be(node) || self.dead.is_some_and(|dead| dead.knows(node))
    }

    /// Whether a node may be, if nothing is deleted.
    #[inline]
    fn may_be(&self, node: u32) -> bool {
        self.left_out != Some(node) && self.among.is_none_or(|(nodes, _)| nodes.contains(node))
    }
}
