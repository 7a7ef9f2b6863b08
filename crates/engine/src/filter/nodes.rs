//! Sets of nodes.

use std::ops::{BitAnd, BitOr, Sub};

use roaring::RoaringBitmap;

/// A set of nodes of an index on storage, as a Roaring bitmap.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeSet(pub(crate) RoaringBitmap);

impl NodeSet {
    pub(crate) fn below(nodes: u32) -> Self {
        let mut set = RoaringBitmap::new();
        set.insert_range(0..nodes);
        Self(set)
    }

    #[inline]
    pub(crate) fn contains(&self, node: u32) -> bool {
        self.0.contains(node)
    }

    pub(crate) fn insert(&mut self, node: u32) {
        self.0.insert(node);
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.serialized_size()
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    pub(crate) fn len_from(&self, first: u32) -> u64 {
        self.0.range_cardinality(first..)
    }

    pub(crate) fn len_in(&self, range: std::ops::Range<u32>) -> u64 {
        self.0.range_cardinality(range)
    }

    /// The node of the set that has exactly `before` smaller nodes in the set.
    pub(crate) fn nth(&self, before: u64) -> Option<u32> {
        self.0.select(u32::try_from(before).ok()?)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter()
    }

    pub(crate) fn iter_in(&self, range: std::ops::Range<u32>) -> impl Iterator<Item = u32> + '_ {
        self.0.range(range)
    }
}

impl FromIterator<u32> for NodeSet {
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        Self(nodes.into_iter().collect())
    }
}

impl BitAnd for NodeSet {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for NodeSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Sub for NodeSet {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}
