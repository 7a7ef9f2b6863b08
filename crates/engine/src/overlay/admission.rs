//! Admission: which nodes may be results, in candidate lists, ranking, re-ranking and scans.
//!
//! ```text
//!   rules_out(node)   uses known facts, before the node's record is read   candidate list, scan
//!   admits(id, node)  uses the id in the record; remembers deleted nodes   ranking, re-ranking
//! ```
//!
//! A walk still traverses an excluded node, but the node takes no place in the candidate list
//! ([`frontier`](crate::frontier)). A node is excluded by a delete before the search began, by a
//! filter, or by a measurement of recall whose query is the vector of the node. For vectors in
//! memory, `FreshMoment::admits` (`fresh.rs`) checks deletes.

use super::Dead;
use crate::filter::NodeSet;
use crate::stores::columns::Looked;

#[derive(Clone, Copy)]
pub(crate) struct Matching<'a> {
    pub(crate) nodes: &'a NodeSet,
    /// The matches in the fresh graphs, by slot: the number of a vector in its graph.
    pub(crate) fresh: [&'a NodeSet; 2],
    /// The cost of finding the matches.
    pub(crate) looked: Looked,
}

impl Matching<'_> {
    pub(crate) fn len(&self) -> usize {
        let fresh = self.fresh.iter().map(|slots| slots.len());
        (self.nodes.len() + fresh.sum::<u64>()) as usize
    }
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Admission<'a> {
    dead: Option<Dead<'a>>,
    /// The nodes that match a filter, and the number of other nodes.
    among: Option<(&'a NodeSet, usize)>,
    /// A node that is excluded because its vector is the query.
    left_out: Option<u32>,
}

impl<'a> Admission<'a> {
    pub(crate) fn but(dead: Dead<'a>) -> Self {
        Self {
            dead: Some(dead),
            among: None,
            left_out: None,
        }
    }

    /// Restricts the admission to `nodes`, in an index of `all` nodes.
    pub(crate) fn among(self, nodes: &'a NodeSet, all: usize) -> Self {
        let others = all.saturating_sub(nodes.len() as usize);
        Self {
            among: Some((nodes, others)),
            ..self
        }
    }

    /// The nodes that match the filter, including deleted nodes.
    pub(crate) fn nodes(&self) -> Option<&'a NodeSet> {
        self.among.map(|(nodes, _)| nodes)
    }

    #[inline]
    pub(crate) fn filters_out(&self, node: u32) -> bool {
        self.among.is_some_and(|(nodes, _)| !nodes.contains(node))
    }

    pub(crate) fn without(self, left_out: Option<u32>) -> Self {
        Self { left_out, ..self }
    }

    pub(crate) fn is_of_all(&self) -> bool {
        let all = self.among.is_none() && self.left_out.is_none();
        all && self.dead.is_none_or(|dead| dead.is_empty())
    }

    pub(crate) fn refused(&self) -> usize {
        let among = self.among.map_or(0, |(_, others)| others);
        among + self.deleted() + usize::from(self.left_out.is_some())
    }

    /// The number of deletes. The node of a deleted id may be unknown until its record is read.
    pub(crate) fn deleted(&self) -> usize {
        self.dead.map_or(0, |dead| dead.len())
    }

    /// Whether `node`, whose record has `id`, may be a result. A node of a deleted id is remembered
    /// for the next search.
    #[inline]
    pub(crate) fn admits(&self, id: u64, node: u32) -> bool {
        self.may_be(node) && !self.dead.is_some_and(|dead| dead.meets(id, node))
    }

    /// Whether `node` is excluded by facts that are known before its record is read.
    #[inline]
    pub(crate) fn rules_out(&self, node: u32) -> bool {
        !self.may_be(node) || self.dead.is_some_and(|dead| dead.knows(node))
    }

    /// Whether `node` may be a result, apart from deletes.
    #[inline]
    fn may_be(&self, node: u32) -> bool {
        self.left_out != Some(node) && !self.filters_out(node)
    }
}
