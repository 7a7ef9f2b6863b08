//! The changes since the checkpoint, as a search sees them: vectors that are only in memory, and
//! ids of the checkpoint that were deleted or replaced.
//!
//! A search fixes one [`Moment`], its read timestamp, before its first look-up. Otherwise the
//! search could miss both vectors of a replaced id: it could look for the new vector before the
//! change, and for the old vector after the change.
//!
//! ```text
//!   upsert             new vector can be found ──> old vector is dead from moment 8 on
//!   search   moment 7 ──> fresh graphs without new vector ─> storage: the old vector is live
//! ```

mod admission;
mod carried;
pub(crate) mod fresh;
pub(crate) mod logged;
pub(crate) mod ranges;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use roaring::RoaringBitmap;

pub(crate) use self::admission::{Admission, Matching};
pub(crate) use self::carried::CarriedIds;
use self::fresh::{FreshGraph, FreshMoment};
use self::ranges::IdRanges;
use crate::Error;

/// The changes since an index's checkpoint. Clones share the changes.
#[derive(Clone)]
pub(crate) struct Overlay {
    /// The graphs of vectors that no checkpoint has; two graphs during a merge.
    pub(crate) fresh: Vec<Arc<FreshGraph>>,
    pub(crate) deleted: Arc<Tombstones>,
    /// The ids of live vectors that came by direct inserts since the build.
    pub(crate) inserted: Arc<RwLock<IdRanges>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    dead: u32,
    fresh: [FreshMoment; 2],
}

#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) overlay: &'a Overlay,
    pub(crate) moment: Moment,
}

impl<'a> Seen<'a> {
    pub(crate) fn admission(&self) -> Admission<'a> {
        Admission::but(self.dead())
    }

    pub(crate) fn dead(&self) -> Dead<'a> {
        Dead {
            tombstones: &self.overlay.deleted,
            at: self.moment.dead,
        }
    }

    pub(crate) fn fresh(&self) -> impl Iterator<Item = (&'a FreshGraph, FreshMoment)> + use<'a> {
        let graphs = self.overlay.fresh.iter();
        graphs.map(|fresh| &**fresh).zip(self.moment.fresh)
    }
}

impl Overlay {
    pub(crate) fn none() -> Self {
        Self {
            fresh: Vec::new(),
            deleted: Arc::default(),
            inserted: Arc::default(),
        }
    }

    /// The overlay of a checkpoint without later records in the log.
    pub(crate) fn carried(carried: &CarriedIds) -> Self {
        Self {
            fresh: Vec::new(),
            deleted: Arc::new(Tombstones::restore(&carried.deleted, carried.dead)),
            inserted: Arc::new(RwLock::new(IdRanges::of(&carried.ids))),
        }
    }

    /// While an id is replaced, a search at the current timestamp sees the old vector, the new
    /// vector, or both.
    pub(crate) fn now(&self) -> Moment {
        // A replacement first adds the new vector, and then the tombstone of the old one. The
        // timestamps are read in reverse order, so a search sees at least one vector.
        let dead = self.deleted.moment();
        let mut fresh = [FreshMoment::default(); 2];
        for (moment, graph) in fresh.iter_mut().zip(&self.fresh) {
            *moment = graph.now();
        }
        Moment { dead, fresh }
    }

    pub(crate) fn logged(&self) -> u64 {
        self.fresh.iter().map(|graph| graph.len() as u64).sum()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let fresh = self.fresh.iter().map(|graph| graph.memory_bytes() as u64);
        fresh.sum::<u64>() + self.deleted.memory_bytes()
    }

    /// The bytes charged to a memory budget: the bytes in memory, or the charges at the inserts if
    /// these are more.
    pub(crate) fn charged_bytes(&self) -> u64 {
        let fresh = self.fresh.iter();
        let charged = fresh.map(|graph| graph.charged_bytes().max(graph.memory_bytes() as u64));
        charged.sum::<u64>() + self.deleted.charged_bytes()
    }

    pub(crate) fn charged_rows(&self) -> u64 {
        self.fresh.iter().map(|graph| graph.charged_rows()).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.deleted.len() == 0 && self.fresh.iter().all(|graph| graph.slots() == 0)
    }

    pub(crate) fn live(&self, stored: usize) -> usize {
        (stored + self.logged() as usize).saturating_sub(self.deleted.len())
    }
}

/// The bytes of an entry of a hash table: sixteen bytes and a control byte, in a table that is two
/// thirds full.
const STONE: u64 = 26;
/// A dead id also takes sixteen bytes in a checkpoint's list, and twenty in the table `met`.
pub(crate) const TOMBSTONE: u64 = STONE + 16 + 20;

/// Each shard has a lock, since all search threads look up every ranked vector.
const SHARDS: usize = 64;

/// If an id is replaced more than this number of times during a search, the search may miss the
/// vector that was live at its timestamp.
const OVERTAKEN: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Stone {
    bound: u32,
    /// The timestamp from which the records below `bound` are dead. This timestamp is the number of
    /// dead records, including the record of this tombstone.
    since: u32,
}

#[derive(Debug, Default)]
struct Shard {
    stones: HashMap<u64, Stone>,
    /// The earlier tombstones of ids that were replaced more than once, for searches with earlier
    /// timestamps.
    earlier: HashMap<u64, Vec<Stone>>,
}

/// The ids with dead records, each with a bound. Records on nodes below the bound are dead.
/// Look-ups are far more frequent than changes, and the set is usually empty.
#[derive(Debug)]
pub(crate) struct Tombstones {
    /// The number of dead records. This number only grows, so it is also the read timestamp.
    dead: AtomicUsize,
    shards: [RwLock<Shard>; SHARDS],
    /// The dead nodes that searches have met, each with the timestamp from which it is dead. Ids
    /// are stored with vectors, so the first search that meets a dead node must read its record. A
    /// table from ids to nodes would need memory for each vector.
    met: [RwLock<HashMap<u32, u32>>; SHARDS],
    /// The timestamp up to which all dead nodes with attributes are in `met`.
    rows_met: Mutex<Option<u32>>,
}

#[derive(Clone, Copy)]
pub(crate) struct Dead<'a> {
    tombstones: &'a Tombstones,
    at: u32,
}

impl Dead<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.at == 0 || self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.tombstones.len()
    }

    /// Whether the record of an id on a node is dead at the read timestamp. If so, the node is
    /// added to `met`.
    #[inline]
    pub(crate) fn meets(&self, id: u64, node: u32) -> bool {
        if self.is_empty() {
            return false;
        }
        let Some(since) = self.tombstones.since(id, node, self.at) else {
            return false;
        };
        if !self.knows(node) {
            let mut met = self.tombstones.met[node as usize % SHARDS].write();
            let known = met.entry(node).or_insert(since);
            *known = since.min(*known);
        }
        true
    }

    /// Whether the record of an id in the checkpoint's build is dead at the read timestamp.
    pub(crate) fn counts_not(&self, id: u64) -> bool {
        !self.is_empty() && self.tombstones.since(id, 0, self.at).is_some()
    }

    pub(crate) fn went_since(&self, id: u64) -> bool {
        let shard = self.tombstones.shard(id).read();
        let last = shard.stones.get(&id);
        last.is_some_and(|stone| stone.since > self.at)
    }

    pub(crate) fn at_most(&self) -> u64 {
        u64::from(self.at)
    }

    pub(crate) fn rows_to_meet(&self) -> u64 {
        let met = self.tombstones.rows_met.lock().unwrap_or_default();
        u64::from(self.at.saturating_sub(met))
    }

    /// Adds all dead nodes with rows of attributes to `met`. `look` receives the ids with records
    /// that died since the last call, in ascending order. `look` must call the given function with
    /// each node of these ids that has a row, and may call it with other nodes.
    pub(crate) fn meet_rows(
        &self,
        look: impl FnOnce(&[u64], &mut dyn FnMut(u64, u32)) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut met = self.tombstones.rows_met.lock();
        let is_new = |since: u32| since <= self.at && met.is_none_or(|met| since > met);
        let mut ids = Vec::new();
        for shard in &self.tombstones.shards {
            let shard = shard.read();
            let went = shard.stones.iter().filter(|(id, stone)| {
                let mut earlier = shard.earlier.get(id).into_iter().flatten();
                is_new(stone.since) || earlier.any(|stone| is_new(stone.since))
            });
            ids.extend(went.map(|(&id, _)| id));
        }
        if !ids.is_empty() {
            ids.sort_unstable();
            look(&ids, &mut |id, node| _ = self.meets(id, node))?;
        }
        *met = (*met).max(Some(self.at));
        Ok(())
    }

    pub(crate) fn met(&self) -> RoaringBitmap {
        let mut nodes = RoaringBitmap::new();
        for shard in &self.tombstones.met {
            let shard = shard.read();
            let dead = shard.iter().filter(|&(_, &since)| since <= self.at);
            nodes.extend(dead.map(|(&node, _)| node));
        }
        nodes
    }

    /// Whether a node is in `met` and dead at the read timestamp.
    #[inline]
    pub(crate) fn knows(&self, node: u32) -> bool {
        !self.is_empty()
            && self.tombstones.met[node as usize % SHARDS]
                .read()
                .get(&node)
                .is_some_and(|&since| since <= self.at)
    }
}

/// With this bound, all records of an id are dead.
pub(crate) const ALL_NODES: u32 = u32::MAX;

impl Default for Tombstones {
    fn default() -> Self {
        Self {
            dead: AtomicUsize::new(0),
            shards: std::array::from_fn(|_| RwLock::default()),
            met: std::array::from_fn(|_| RwLock::default()),
            rows_met: Mutex::default(),
        }
    }
}

impl Tombstones {
    fn shard(&self, id: u64) -> &RwLock<Shard> {
        // The multiplication distributes consecutive ids over the shards.
        &self.shards[(id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize % SHARDS]
    }

    pub(crate) fn insert(&self, id: u64) -> bool {
        self.insert_below(id, ALL_NODES)
    }

    /// Marks the records of an id on nodes below `bound` as dead. Returns `false` if the id already
    /// has this bound or a higher bound.
    pub(crate) fn insert_below(&self, id: u64, bound: u32) -> bool {
        let mut shard = self.shard(id).write();
        let before = shard.stones.get(&id).copied();
        if before.is_some_and(|before| before.bound >= bound) {
            return false;
        }
        // The count changes before the unlock, so that a search after a delete sees the delete.
        let dead = self.dead.fetch_add(1, Ordering::Release) + 1;
        let since = u32::try_from(dead).unwrap_or(u32::MAX);
        shard.stones.insert(id, Stone { bound, since });
        if let Some(before) = before {
            let earlier = shard.earlier.entry(id).or_default();
            if earlier.len() == OVERTAKEN {
                // The second oldest tombstone gets the timestamp of the oldest. So an earlier
                // search may miss a vector that was live, but never finds a vector that was dead.
                let oldest = earlier.remove(0);
                earlier[0].since = oldest.since;
            }
            earlier.push(before);
        }
        true
    }

    /// Marks the record of an insert that was given up. The id may have a live record on another
    /// node.
    pub(crate) fn mark_dead(&self, node: u32) {
        self.dead.fetch_add(1, Ordering::Release);
        let since = 0;
        self.met[node as usize % SHARDS].write().insert(node, since);
    }

    pub(crate) fn restore(all: &[(u64, u32)], dead: usize) -> Self {
        let tombstones = Self::default();
        for &(id, bound) in all {
            let stone = Stone { bound, since: 0 };
            tombstones.shard(id).write().stones.insert(id, stone);
        }
        tombstones.dead.store(dead, Ordering::Release);
        tombstones
    }

    fn moment(&self) -> u32 {
        u32::try_from(self.len()).unwrap_or(u32::MAX)
    }

    /// The records that are dead at the time of each look-up, not at a fixed read timestamp.
    pub(crate) fn as_it_comes(&self) -> Dead<'_> {
        Dead {
            tombstones: self,
            at: u32::MAX,
        }
    }

    #[inline]
    pub(crate) fn contains(&self, id: u64, node: u32) -> bool {
        self.len() > 0 && self.since(id, node, u32::MAX).is_some()
    }

    fn since(&self, id: u64, node: u32, at: u32) -> Option<u32> {
        let shard = self.shard(id).read();
        let last = shard.stones.get(&id)?;
        if node >= last.bound {
            return None;
        }
        if last.since <= at {
            return Some(last.since);
        }
        let earlier = shard.earlier.get(&id)?.iter();
        earlier
            .filter(|stone| node < stone.bound && stone.since <= at)
            .map(|stone| stone.since)
            .min()
    }

    pub(crate) fn contains_built(&self, id: u64) -> bool {
        self.contains(id, 0)
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.dead.load(Ordering::Acquire)
    }

    /// All ids with dead records, each with the bound below which its records are dead.
    pub(crate) fn all(&self) -> HashMap<u64, u32> {
        let shards = self.shards.iter();
        shards
            .flat_map(|shard| {
                shard
                    .read()
                    .stones
                    .iter()
                    .map(|(&id, stone)| (id, stone.bound))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        // Ten bytes for each node in `met`, and 50 bytes for each id that was replaced more than
        // once.
        let met: usize = self.met.iter().map(|shard| shard.read().capacity()).sum();
        let shards = self.shards.iter();
        let lists: usize = shards.map(|shard| shard.read().earlier.capacity()).sum();
        self.len() as u64 * STONE + met as u64 * 10 + lists as u64 * 50
    }

    fn charged_bytes(&self) -> u64 {
        self.memory_bytes().max(self.len() as u64 * TOMBSTONE)
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
        let now = || set.as_it_comes();
        assert!(!now().meets(7, 3) && !now().knows(3));
        set.insert_below(7, 4);
        assert!(!now().knows(3) && !now().meets(7, 4) && now().meets(7, 3));
        assert!(now().knows(3) && !now().knows(4) && !now().knows(0));
        set.mark_dead(9);
        assert!(now().knows(9) && !now().knows(8) && set.len() == 2);
    }

    #[test]
    fn a_moment_is_not_changed_by_what_comes_after_it() {
        let set = Tombstones::default();
        let at = |at| Dead {
            tombstones: &set,
            at,
        };
        assert_eq!(set.moment(), 0);
        for id in [5, 7, 8] {
            set.insert_below(id, 10);
        }
        let before = set.moment();
        assert!(at(1).meets(5, 3) && !at(1).meets(7, 3) && at(2).meets(7, 3));
        // For an earlier timestamp, a node that died later is live, even if a search has met it.
        assert!(at(2).knows(3) && at(1).knows(3) && !at(0).knows(3));
        for bound in 11..20 {
            set.insert_below(7, bound);
        }
        assert!(at(before).meets(7, 9) && !at(before).meets(7, 10));
        assert!(at(before + 1).meets(7, 10) && !at(before + 1).meets(7, 11));
        assert!(!at(before).knows(10) && at(before + 1).knows(10));
        // After more than `OVERTAKEN` replacements, a search may miss the vector of its timestamp.
        for bound in 20..200 {
            set.insert_below(7, bound);
        }
        assert!((10..180).all(|node| at(before + 1).meets(7, node)));
        assert!(at(before + 1).meets(7, 9) && !at(before + 1).meets(7, 199));
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
