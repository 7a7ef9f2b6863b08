//! Adjacency lists: during the build in slots, which several threads write, and afterwards in a
//! compact form.
//!
//! ```text
//! Slots (during the build)             slots + 1 words a node
//!   node 0: | degree | n n n n . . . . |   one cache line: degree, first 15 neighbours
//!   node 1: | degree | n n n n n n . . |
//!
//! Graph (afterwards)
//!   offsets: | 0 | 4 | 10 | ...              neighbours(i) = edges[offsets[i] .. offsets[i + 1]]
//!   edges:   | n n n n | n n n n n n | ...
//! ```
//!
//! Readers of [`Slots`] take no lock. They may see a half-replaced list of valid node numbers,
//! which suffices for a search. Writers take the lock that the node's number selects.

use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// There are many more locks than threads, so that two threads rarely need the same lock.
const LOCKS: usize = 1024;

pub(super) struct Slots {
    words: Vec<AtomicU32>,
    slots: usize,
    locks: Vec<Mutex<()>>,
}

impl Slots {
    pub(super) fn new(nodes: usize, slots: usize) -> Slots {
        let mut words = Vec::new();
        words.resize_with(nodes * (slots + 1), || AtomicU32::new(0));
        Slots {
            words,
            slots,
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
        }
    }

    pub(super) fn reserve(&mut self, nodes: usize) {
        let words = nodes * (self.slots + 1);
        self.words
            .reserve_exact(words.saturating_sub(self.words.len()));
    }

    pub(super) fn clear(&mut self, nodes: usize) {
        self.words.clear();
        self.words
            .resize_with(nodes * (self.slots + 1), || AtomicU32::new(0));
    }

    pub(super) fn bytes(nodes: usize, slots: usize) -> u64 {
        nodes as u64 * (slots as u64 + 1) * 4
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    pub(super) fn nodes(&self) -> usize {
        self.words.len() / (self.slots + 1)
    }

    pub(super) fn degree(&self, node: u32) -> usize {
        self.list(node)[0].load(Relaxed) as usize
    }

    #[inline]
    fn list(&self, node: u32) -> &[AtomicU32] {
        let start = node as usize * (self.slots + 1);
        &self.words[start..start + self.slots + 1]
    }

    #[inline]
    pub(super) fn neighbours(&self, node: u32) -> impl Iterator<Item = u32> {
        let list = self.list(node);
        let degree = list[0].load(Relaxed) as usize;
        list[1..=degree].iter().map(|word| word.load(Relaxed))
    }

    /// Loads the start of a node's list into the processor's cache.
    #[inline]
    pub(super) fn touch(&self, node: u32) {
        std::hint::black_box(self.list(node)[0].load(Relaxed));
    }

    /// Locks the list of a node, together with all lists that have the same lock.
    #[inline]
    pub(super) fn lock(&self, node: u32) -> MutexGuard<'_, ()> {
        self.locks[node as usize % LOCKS].lock()
    }

    pub(super) fn replace(&self, node: u32, neighbours: &[u32], _lock: &MutexGuard<'_, ()>) {
        let list = self.list(node);
        for (word, &neighbour) in list[1..].iter().zip(neighbours) {
            word.store(neighbour, Relaxed);
        }
        list[0].store(neighbours.len() as u32, Relaxed);
    }

    /// Appends a neighbour, unless the list has it already. Returns false if the list is full.
    pub(super) fn append(&self, node: u32, neighbour: u32, _lock: &MutexGuard<'_, ()>) -> bool {
        let list = self.list(node);
        let degree = list[0].load(Relaxed) as usize;
        if list[1..=degree]
            .iter()
            .any(|word| word.load(Relaxed) == neighbour)
        {
            return true;
        }
        if degree == self.slots {
            return false;
        }
        list[degree + 1].store(neighbour, Relaxed);
        list[0].store(degree as u32 + 1, Relaxed);
        true
    }

    /// Removes the gaps between the lists in place, so that memory never exceeds the slots.
    pub(super) fn into_graph(mut self) -> Graph {
        let nodes = self.nodes();
        let stride = self.slots + 1;
        let mut offsets = Vec::with_capacity(nodes + 1);
        offsets.push(0);
        let mut end = 0;
        for node in 0..nodes {
            let degree = *self.words[node * stride].get_mut() as usize;
            for slot in 0..degree {
                // Each earlier list has freed the word of its degree, so no word moves to a later
                // position.
                let neighbour = *self.words[node * stride + 1 + slot].get_mut();
                *self.words[end].get_mut() = neighbour;
                end += 1;
            }
            offsets.push(end);
        }
        self.words.truncate(end);
        // `collect` reuses the allocation, because the items have the same size.
        let mut edges: Vec<u32> = self.words.into_iter().map(AtomicU32::into_inner).collect();
        edges.shrink_to_fit();
        Graph { offsets, edges }
    }
}

/// A finished graph: the adjacency lists, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    offsets: Vec<usize>,
    edges: Vec<u32>,
}

impl Graph {
    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether the graph has no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The neighbours of a node, usually in order of distance.
    #[inline]
    pub fn neighbours(&self, node: u32) -> &[u32] {
        let node = node as usize;
        &self.edges[self.offsets[node]..self.offsets[node + 1]]
    }

    /// The number of directed edges.
    pub fn edges(&self) -> u64 {
        self.edges.len() as u64
    }

    /// The mean number of neighbours of a node.
    pub fn degree_mean(&self) -> f64 {
        if self.is_empty() {
            0.0
        } else {
            self.edges.len() as f64 / self.len() as f64
        }
    }

    /// The largest number of neighbours of a node.
    pub fn degree_max(&self) -> usize {
        self.offsets
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_grow_are_replaced_and_close_up() {
        let slots = Slots::new(4, 3);
        let lock = slots.lock(1);
        for neighbour in [2, 3, 2, 0] {
            assert!(slots.append(1, neighbour, &lock));
        }
        assert!(
            !slots.append(1, 4, &lock),
            "a full list accepted a new neighbour"
        );
        assert!(
            slots.append(1, 3, &lock),
            "a full list refused a neighbour that it already has"
        );
        drop(lock);
        slots.replace(3, &[1], &slots.lock(3));
        assert_eq!(slots.neighbours(1).collect::<Vec<_>>(), [2, 3, 0]);
        let graph = slots.into_graph();
        assert_eq!((graph.len(), graph.edges(), graph.degree_max()), (4, 4, 3));
        assert_eq!(graph.degree_mean(), 1.0);
        let lists: Vec<&[u32]> = (0..4).map(|node| graph.neighbours(node)).collect();
        assert_eq!(lists, [&[][..], &[2, 3, 0], &[], &[1]]);
    }

    #[test]
    fn cleared_slots_are_empty_in_the_same_memory() {
        let mut slots = Slots::new(0, 2);
        slots.reserve(5);
        slots.clear(5);
        slots.replace(4, &[1, 2], &slots.lock(4));
        slots.clear(3);
        assert!((0..3).all(|node| slots.neighbours(node).next().is_none()));
        assert_eq!(slots.into_graph().len(), 3);
    }
}
