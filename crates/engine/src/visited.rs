//! The filter of nodes that a query has scored: direct-mapped, and allowed to forget.
//!
//! ```text
//!   slot = hash(node):   holds the last node that came here
//!   same node?   seen, skip it          another?   new, it takes the slot
//! ```
//!
//! Forgetting a node costs a distance, nothing else: a node that is scored again either stands in the candidate list
//! already, or falls short of its bound as it did before. In return, a look-up is one load and no branch that depends on
//! data, and the size follows the list size, not the collection: it stays in the second-level cache at any scale.

/// Not a node: internal ids stay below it.
const EMPTY: u32 = u32::MAX;
/// Slots for each candidate of the list: a hop brings tens of new nodes.
const SLOTS_A_CANDIDATE: usize = 256;
/// Slots at least and at most.
const LEAST: usize = 1 << 12;
const MOST: usize = 1 << 20;

/// A forgetful set of node ids.
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
    /// Bytes of the filter for a candidate list of `list`.
    pub(crate) fn bytes(list: usize) -> usize {
        slots(list) * size_of::<u32>()
    }

    /// Bytes that it has taken.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }

    /// Empties the filter and sizes it for a candidate list of `list`.
    pub(crate) fn clear(&mut self, list: usize) {
        let size = slots(list);
        self.slots.clear();
        self.slots.resize(size, EMPTY);
        self.shift = 32 - size.trailing_zeros();
    }

    /// Adds a node; false if it is known to be there.
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
        // A search with a list of 30 scores about a thousand nodes.
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
