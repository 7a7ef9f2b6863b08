//! The visited set of a query: a direct-mapped filter of scored nodes. It may forget nodes.
//!
//! ```text
//!   slot = hash(node):        the slot has the last node with this hash
//!   slot has this node:       the node was scored, so the search skips it
//!   slot has another node:    the search scores the node, which replaces the other
//! ```
//!
//! A forgotten node costs one more distance, and does not change the candidate list. In return, a
//! look-up is one load without a data-dependent branch. The size depends only on the list size, so
//! the filter stays in the second-level cache.

/// All node numbers are below the value of an empty slot.
const EMPTY: u32 = u32::MAX;
/// The number of slots for each candidate. A hop scores tens of new nodes.
const SLOTS_A_CANDIDATE: usize = 256;
const LEAST: usize = 1 << 12;
const MOST: usize = 1 << 20;

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
    pub(crate) fn bytes(list: usize) -> usize {
        slots(list) * size_of::<u32>()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }

    pub(crate) fn clear(&mut self, list: usize) {
        let size = slots(list);
        self.slots.clear();
        self.slots.resize(size, EMPTY);
        self.shift = 32 - size.trailing_zeros();
    }

    /// False if the set has the node already.
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
