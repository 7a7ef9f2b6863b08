//! The visited set of a query. It is a direct-mapped filter of the nodes that were scored, and may
//! forget nodes.
//!
//! ```text
//!   slot = hash(node):        the slot has the last node with this hash
//!   slot has this node:       the node was scored, so the search skips it
//!   slot has another node:    the search scores the node, which replaces the other one
//! ```
//!
//! A forgotten node costs only one more distance. When the search scores it again, the candidate
//! list already has it, or its distance is beyond the bound of the list as before. In return, a
//! look-up is one load without a data-dependent branch. The size of the filter depends on the list
//! size, not on the collection. So the filter stays in the second-level cache for collections of
//! any size.

/// The value of an empty slot. All node numbers are below it.
const EMPTY: u32 = u32::MAX;
/// The number of slots for each candidate of the list. It is large, since a hop scores tens of new
/// nodes.
const SLOTS_A_CANDIDATE: usize = 256;
/// The least and the largest number of slots.
const LEAST: usize = 1 << 12;
const MOST: usize = 1 << 20;

/// A set of nodes that may forget some of its nodes.
#[derive(Debug, Default)]
pub(crate) struct Visited {
    slots: Vec<u32>,
    shift: u32,
}

fn slots(list: usize) -> usize {
    list.saturating_mul(SLOTS_A_CANDIDATE)
        .clamp(LEAST, MOST)
        .next_power_of_two()
}

impl Visited {
    /// The bytes of the filter for a candidate list of size `list`.
    pub(crate) fn bytes(list: usize) -> usize {
        slots(list) * size_of::<u32>()
    }

    /// The bytes that the filter takes in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }

    /// Empties the filter and sizes it for a candidate list of size `list`.
    pub(crate) fn clear(&mut self, list: usize) {
        let size = slots(list);
        self.slots.clear();
        self.slots.resize(size, EMPTY);
        self.shift = 32 - size.trailing_zeros();
    }

    /// Adds a node. Returns false if the set has the node already.
    #[inline]
    pub(crate) fn insert(&mut self, node: u32) -> bool {
        let at = (node.wrapping_mul(0x9E37_79B1) >> self.shift) as usize;
        let Some(slot) = self.slots.get_mut(at) else {
            return true;
        };
        std::mem::replace(slot, node) != node
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn never_claims_to_have_seen_what_it_has_not(nodes in prop::collection::vec(0u32..20_000, 0..9_000)) {
            let mut visited = Visited::default();
            for _ in 0..2 {
                let mut model = HashSet::new();
                visited.clear(30);
                for &node in &nodes {
                    let new = model.insert(node);
                    prop_assert!(visited.insert(node) || !new);
                }
            }
        }
    }

    #[test]
    fn forgets_little_at_the_size_of_a_search() {
        // A search with a list size of 30 scores about a thousand nodes.
        let mut visited = Visited::default();
        visited.clear(30);
        let nodes: Vec<u32> = (0..1_000)
            .map(|i: u32| i.wrapping_mul(2_654_435_761) >> 8)
            .collect();
        for &node in &nodes {
            visited.insert(node);
        }
        let forgotten = nodes.iter().filter(|&&node| visited.insert(node)).count();
        assert!(forgotten < 200, "{forgotten} of 1000");
    }
}
