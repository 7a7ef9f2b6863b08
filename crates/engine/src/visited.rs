//! The set of nodes that a query has scored: open addressing over `u32`, emptied between queries.
//!
//! Its size follows the query (some thousands of nodes), not the collection, so that it stays in the second-level
//! cache and costs the same at any scale.

/// Not a node: internal ids stay below it.
const EMPTY: u32 = u32::MAX;

/// A set of node ids.
#[derive(Debug)]
pub(crate) struct Visited {
    slots: Vec<u32>,
    len: usize,
    shift: u32,
}

impl Default for Visited {
    fn default() -> Self {
        Self::with_bits(12)
    }
}

impl Visited {
    fn with_bits(bits: u32) -> Self {
        Self {
            slots: vec![EMPTY; 1 << bits],
            len: 0,
            shift: 32 - bits,
        }
    }

    /// Empties the set.
    pub(crate) fn clear(&mut self) {
        self.slots.fill(EMPTY);
        self.len = 0;
    }

    /// Adds a node; true if it was not there.
    pub(crate) fn insert(&mut self, node: u32) -> bool {
        if self.len * 2 >= self.slots.len() {
            self.grow();
        }
        let mask = self.slots.len() - 1;
        let mut at = (node.wrapping_mul(0x9E37_79B1) >> self.shift) as usize;
        loop {
            let slot = self.slots[at & mask];
            if slot == node {
                return false;
            }
            if slot == EMPTY {
                self.slots[at & mask] = node;
                self.len += 1;
                return true;
            }
            at += 1;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = Self::with_bits(32 - self.shift + 1);
        for &node in self.slots.iter().filter(|&&node| node != EMPTY) {
            larger.insert(node);
        }
        *self = larger;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_a_set(nodes in prop::collection::vec(0u32..20_000, 0..9_000)) {
            let mut visited = Visited::default();
            for _ in 0..2 {
                let mut model = HashSet::new();
                visited.clear();
                for &node in &nodes {
                    prop_assert_eq!(visited.insert(node), model.insert(node));
                }
            }
        }
    }
}
