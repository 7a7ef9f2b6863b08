//! What changed since the checkpoint, as a search sees it: vectors that are in memory only, and ids of the checkpoint that
//! no longer count.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use super::fresh::FreshGraph;

/// Changes on top of an index on storage.
pub(crate) struct Overlay {
    /// Graphs of vectors that are not on storage yet; while they are merged, two of them.
    pub(crate) fresh: Vec<Arc<FreshGraph>>,
    /// Ids on storage that were deleted, or replaced by a vector in one of these graphs.
    pub(crate) deleted: Arc<Tombstones>,
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

/// A set of ids that do not count. Looked up far more often than changed, and empty as a rule.
#[derive(Debug)]
pub(crate) struct Tombstones {
    count: AtomicUsize,
    shards: [RwLock<HashSet<u64>>; SHARDS],
}

impl Default for Tombstones {
    fn default() -> Self {
        Self {
            count: AtomicUsize::new(0),
            shards: std::array::from_fn(|_| RwLock::default()),
        }
    }
}

impl Tombstones {
    fn shard(&self, id: u64) -> &RwLock<HashSet<u64>> {
        // Ids are row numbers as a rule: neighbouring ones part.
        &self.shards[(id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize % SHARDS]
    }

    /// Adds an id; false if it is there already.
    pub(crate) fn insert(&self, id: u64) -> bool {
        let new = self.shard(id).write().insert(id);
        if new {
            // Seen by whoever starts a search after the delete returned: the lock's release orders it.
            self.count.fetch_add(1, Ordering::Release);
        }
        new
    }

    /// Whether an id is there.
    #[inline]
    pub(crate) fn contains(&self, id: u64) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.shard(id).read().contains(&id)
    }

    /// How many ids there are.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// All ids.
    pub(crate) fn ids(&self) -> HashSet<u64> {
        let shards = self.shards.iter();
        shards
            .flat_map(|shard| shard.read().iter().copied().collect::<Vec<_>>())
            .collect()
    }

    /// Bytes that the set takes, about.
    pub(crate) fn memory_bytes(&self) -> u64 {
        // Eight bytes, a byte of control, and a table that is two thirds full.
        self.len() as u64 * 14
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_there_once() {
        let set = Tombstones::default();
        assert!(!set.contains(7));
        assert!(set.insert(7) && set.insert(u64::MAX) && !set.insert(7));
        assert!(set.contains(7) && set.contains(u64::MAX) && !set.contains(8));
        assert_eq!((set.len(), set.ids()), (2, HashSet::from([7, u64::MAX])));
    }
}
