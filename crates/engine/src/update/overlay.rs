//! What changed since the checkpoint, as a search sees it: vectors that are in memory only, and ids of the checkpoint that
//! no longer count.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use super::fresh::FreshGraph;
use super::ranges::IdRanges;

/// Changes on top of an index on storage.
pub(crate) struct Overlay {
    /// Graphs of vectors that are not on storage yet; while they are merged, two of them.
    pub(crate) fresh: Vec<Arc<FreshGraph>>,
    /// Ids on storage that were deleted, or replaced by a vector in one of these graphs.
    pub(crate) deleted: Arc<Tombstones>,
    /// Ids of vectors that were inserted directly since the build, and count.
    pub(crate) later: Arc<RwLock<IdRanges>>,
}

impl Overlay {
    /// Vectors that are in the log and not in the checkpoint.
    pub(crate) fn logged(&self) -> u64 {
        self.fresh.iter().map(|graph| graph.len() as u64).sum()
    }

    /// Bytes that it takes in memory, about.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let fresh = self.fresh.iter().map(|graph| graph.memory_bytes() as u64);
        fresh.sum::<u64>() + self.deleted.memory_bytes()
    }

    /// Whether nothing changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.deleted.len() == 0 && self.fresh.iter().all(|graph| graph.slots() == 0)
    }

    /// Vectors beyond those on storage that a search can find, less those that it must not.
    pub(crate) fn live(&self, stored: usize) -> usize {
        (stored + self.logged() as usize).saturating_sub(self.deleted.len())
    }
}

/// Parts of the set, each with a lock: every ranked vector is looked up, on all threads.
const SHARDS: usize = 64;

/// Ids whose records do not count, each with the node below which they do not: where new vectors are inserted straight into the
/// graph, a later record of the same id may. Looked up far more often than changed, and empty as a rule.
#[derive(Debug)]
pub(crate) struct Tombstones {
    /// Records that do not count.
    dead: AtomicUsize,
    shards: [RwLock<HashMap<u64, u32>>; SHARDS],
    /// Nodes whose records were met and do not count, by their last bits. A search learns that a node is deleted when it has its id, which
    /// stands with the vector; the next one knows it as soon as it meets the node. A table of all deleted nodes would need one
    /// from id to node, which is memory for each vector; this one takes some bytes for each that was deleted.
    met: [RwLock<HashSet<u32>>; SHARDS],
}

/// Above every node: no record of the id counts.
pub(crate) const ALL_NODES: u32 = u32::MAX;

impl Default for Tombstones {
    fn default() -> Self {
        Self {
            dead: AtomicUsize::new(0),
            shards: std::array::from_fn(|_| RwLock::default()),
            met: std::array::from_fn(|_| RwLock::default()),
        }
    }
}

impl Tombstones {
    fn shard(&self, id: u64) -> &RwLock<HashMap<u64, u32>> {
        // Ids are row numbers as a rule: neighbouring ones part.
        &self.shards[(id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize % SHARDS]
    }

    /// Adds an id whose records on all nodes do not count; false if it is there already.
    pub(crate) fn insert(&self, id: u64) -> bool {
        self.insert_below(id, ALL_NODES)
    }

    /// Adds an id whose record, one that counted, is on a node below `bound`; false if it is there with this bound or a
    /// higher one.
    pub(crate) fn insert_below(&self, id: u64, bound: u32) -> bool {
        let mut shard = self.shard(id).write();
        let known = shard.entry(id).or_insert(0);
        if *known >= bound {
            return false;
        }
        *known = bound;
        // Seen by whoever starts a search after the delete returned: the lock's release orders it.
        self.dead.fetch_add(1, Ordering::Release);
        true
    }

    /// One more record does not count, whose id nobody knows.
    pub(crate) fn bury(&self) {
        self.dead.fetch_add(1, Ordering::Release);
    }

    /// Puts back what [`all`](Tombstones::all) gave, of which `dead` records do not count.
    pub(crate) fn restore(all: &[(u64, u32)], dead: usize) -> Self {
        let tombstones = Self::default();
        for &(id, bound) in all {
            tombstones.shard(id).write().insert(id, bound);
        }
        tombstones.dead.store(dead, Ordering::Release);
        tombstones
    }

    /// Whether the record of an id on a node does not count.
    #[inline]
    pub(crate) fn contains(&self, id: u64, node: u32) -> bool {
        self.len() > 0
            && self
                .shard(id)
                .read()
                .get(&id)
                .is_some_and(|&bound| node < bound)
    }

    /// As [`contains`](Tombstones::contains), of a node whose record was met; remembers those that do not count.
    #[inline]
    pub(crate) fn meets(&self, id: u64, node: u32) -> bool {
        let dead = self.contains(id, node);
        if dead && !self.knows(node) {
            self.met[node as usize % SHARDS].write().insert(node);
        }
        dead
    }

    /// Whether a node is known to have a record that does not count: it never will again.
    #[inline]
    pub(crate) fn knows(&self, node: u32) -> bool {
        self.len() > 0 && self.met[node as usize % SHARDS].read().contains(&node)
    }

    /// Whether no record of an id below any bound counts: one that the checkpoint's build has does not, then.
    pub(crate) fn contains_built(&self, id: u64) -> bool {
        self.contains(id, 0)
    }

    /// How many records do not count.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.dead.load(Ordering::Acquire)
    }

    /// All ids, each with the node below which its records do not count.
    pub(crate) fn all(&self) -> HashMap<u64, u32> {
        let shards = self.shards.iter();
        shards
            .flat_map(|shard| {
                shard
                    .read()
                    .iter()
                    .map(|(&id, &bound)| (id, bound))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Bytes that the set takes, about.
    pub(crate) fn memory_bytes(&self) -> u64 {
        // Sixteen bytes, a byte of control, and a table that is two thirds full; four bytes where the node was met.
        let met: usize = self.met.iter().map(|shard| shard.read().capacity()).sum();
        self.len() as u64 * 26 + met as u64 * 6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_there_once() {
        let set = Tombstones::default();
        assert!(!set.contains(7, 0));
        assert!(set.insert(7) && set.insert(u64::MAX) && !set.insert(7));
        assert!(set.contains(7, 3) && set.contains(u64::MAX, 3) && !set.contains(8, 3));
        let all = HashMap::from([(7, ALL_NODES), (u64::MAX, ALL_NODES)]);
        assert_eq!((set.len(), set.all()), (2, all));
    }

    #[test]
    fn a_node_that_was_met_is_known() {
        let set = Tombstones::default();
        assert!(!set.meets(7, 3) && !set.knows(3));
        set.insert_below(7, 4);
        assert!(!set.knows(3) && !set.meets(7, 4) && set.meets(7, 3));
        assert!(set.knows(3) && !set.knows(4) && !set.knows(0));
    }

    #[test]
    fn a_later_record_of_an_id_counts_until_it_goes_too() {
        let set = Tombstones::default();
        assert!(set.insert_below(7, 10));
        assert!(set.contains(7, 9) && !set.contains(7, 10) && set.contains_built(7));
        assert!(!set.insert_below(7, 10) && set.insert_below(7, 11));
        assert!(set.contains(7, 10) && set.len() == 2);
        let all: Vec<_> = set.all().into_iter().collect();
        let restored = Tombstones::restore(&all, 2);
        assert_eq!((restored.len(), restored.all()), (2, set.all()));
    }
}
