//! Sets of nodes.

use std::ops::{BitAnd, BitOr, Sub};

use roaring::RoaringBitmap;

/// Nodes of an index on storage, as a Roaring bitmap.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeSet(pub(crate) RoaringBitmap);

impl NodeSet {
    /// The nodes below a number.
    pub(crate) fn below(nodes: u32) -> Self {
        let mut set = RoaringBitmap::new();
        set.insert_range(0..nodes);
        Self(set)
    }

    /// Whether a node is in.
    #[inline]
    pub(crate) fn contains(&self, node: u32) -> bool {
        self.0.contains(node)
    }

    /// Adds a node.
    pub(crate) fn insert(&mut self, node: u32) {
        self.0.insert(node);
    }

    /// Bytes that it takes, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.serialized_size()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    /// How many there are from a number on.
    pub(crate) fn len_from(&self, first: u32) -> u64 {
        self.0.range_cardinality(first..)
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// They, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter()
    }

    /// Those in a range.
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
