//! What changed since the checkpoint, as a search sees it: vectors that are in memory only, and ids of the checkpoint that
//! no longer count.
//!
//! A search goes by what counted at one [`Moment`], before it looks at anything. Else it could look for the new vector of
//! an id before that is there, and for the old one when it does not count any more, and find neither:
//!
//! ```text
//!   upsert             new vector can be found ──> old one does not count, as of moment 8
//!   search   moment 7 ──> fresh graphs, without it ──────> index on storage: the old one counts until 8
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use roaring::RoaringBitmap;

use super::fresh::{FreshGraph, FreshMoment};
use super::ids::CarriedIds;
use super::ranges::IdRanges;
use crate::Error;
use crate::search::Admission;

/// Changes on top of an index on storage. A clone shares them.
#[derive(Clone)]
pub(crate) struct Overlay {
    /// Graphs of vectors that are not on storage yet; while they are merged, two of them.
    pub(crate) fresh: Vec<Arc<FreshGraph>>,
    /// Ids on storage that were deleted, or replaced by a vector in one of these graphs.
    pub(crate) deleted: Arc<Tombstones>,
    /// Ids of vectors that were inserted directly since the build, and count.
    pub(crate) inserted: Arc<RwLock<IdRanges>>,
}

/// What counts when a search begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Tombstones.
    dead: u32,
    /// Of each graph, in their order.
    fresh: [FreshMoment; 2],
}

/// Changes as they were at a moment.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) overlay: &'a Overlay,
    pub(crate) moment: Moment,
}

impl<'a> Seen<'a> {
    /// What may be an answer of the index on storage.
    pub(crate) fn admission(&self) -> Admission<'a> {
        Admission::but(self.dead())
    }

    /// What does not count of the index on storage.
    pub(crate) fn dead(&self) -> Dead<'a> {
        Dead {
            tombstones: &self.overlay.deleted,
            at: self.moment.dead,
        }
    }

    /// The graphs of new vectors, each with what may be an answer of it.
    pub(crate) fn fresh(&self) -> impl Iterator<Item = (&'a FreshGraph, FreshMoment)> + use<'a> {
        let graphs = self.overlay.fresh.iter();
        graphs.map(|fresh| &**fresh).zip(self.moment.fresh)
    }
}

impl Overlay {
    /// No change at all.
    pub(crate) fn none() -> Self {
        Self {
            fresh: Vec::new(),
            deleted: Arc::default(),
            inserted: Arc::default(),
        }
    }

    /// That of a checkpoint on which nothing was logged.
    pub(crate) fn carried(carried: &CarriedIds) -> Self {
        Self {
            fresh: Vec::new(),
            deleted: Arc::new(Tombstones::restore(&carried.deleted, carried.dead)),
            inserted: Arc::new(RwLock::new(IdRanges::of(&carried.ids))),
        }
    }

    /// The moment of now. Of each change of an id's vector it has seen at least what the change took away, or what it brought.
    pub(crate) fn now(&self) -> Moment {
        // The other way round than changes, which bring before they take away: from where old vectors are to where new
        // ones are.
        let dead = self.deleted.moment();
        let mut fresh = [FreshMoment::default(); 2];
        for (moment, graph) in fresh.iter_mut().zip(&self.fresh) {
            *moment = graph.now();
        }
        Moment { dead, fresh }
    }

    /// Vectors that are in the log and not in the checkpoint.
    pub(crate) fn logged(&self) -> u64 {
        self.fresh.iter().map(|graph| graph.len() as u64).sum()
    }

    /// Bytes that it takes in memory, about.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let fresh = self.fresh.iter().map(|graph| graph.memory_bytes() as u64);
        fresh.sum::<u64>() + self.deleted.memory_bytes()
    }

    /// Bytes that a budget counts for it, at least what it takes and what its vectors were charged when they came.
    pub(crate) fn charged_bytes(&self) -> u64 {
        let fresh = self.fresh.iter();
        let charged = fresh.map(|graph| graph.charged_bytes().max(graph.memory_bytes() as u64));
        charged.sum::<u64>() + self.deleted.charged_bytes()
    }

    /// Of these, those of rows.
    pub(crate) fn charged_rows(&self) -> u64 {
        self.fresh.iter().map(|graph| graph.charged_rows()).sum()
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

/// Bytes of an id that does not count: sixteen, a byte of control, and a table that is two thirds full.
const STONE: u64 = 26;
/// Bytes that a budget counts for it: also sixteen in the list that a checkpoint keeps, and those of its node once searches have met it.
pub(super) const TOMBSTONE: u64 = STONE + 16 + 20;

/// Parts of the set, each with a lock: every ranked vector is looked up, on all threads.
const SHARDS: usize = 64;

/// Replacements of one id that a search may be overtaken by, and still find the vector that counted when it began.
const OVERTAKEN: usize = 16;

/// An id's records on nodes below the bound do not count.
#[derive(Clone, Copy, Debug)]
struct Stone {
    bound: u32,
    /// From this moment on: how many records did not count, with this one.
    since: u32,
}

#[derive(Debug, Default)]
struct Shard {
    stones: HashMap<u64, Stone>,
    /// Those before the last, oldest first, of ids that were replaced more than once: the last one does not say what did not
    /// count before.
    earlier: HashMap<u64, Vec<Stone>>,
}

/// Ids whose records do not count, each with the node below which they do not: where new vectors are inserted straight into the
/// graph, a later record of the same id may. Looked up far more often than changed, and empty as a rule.
#[derive(Debug)]
pub(crate) struct Tombstones {
    /// Records that do not count. It only grows, so that it tells moments from each other.
    dead: AtomicUsize,
    shards: [RwLock<Shard>; SHARDS],
    /// Nodes whose records were met and do not count, by their last bits, and since when. A search learns that a node is
    /// deleted when it has its id, which stands with the vector; the next one knows it as soon as it meets the node. A table
    /// of all deleted nodes would need one from id to node, which is memory for each vector; this one takes some bytes for
    /// each that was deleted.
    met: [RwLock<HashMap<u32, u32>>; SHARDS],
    /// The moment up to which all nodes that do not count and have rows were met.
    rows_met: Mutex<Option<u32>>,
}

/// What does not count at a moment.
#[derive(Clone, Copy)]
pub(crate) struct Dead<'a> {
    tombstones: &'a Tombstones,
    at: u32,
}

impl Dead<'_> {
    /// Whether everything counts.
    pub(crate) fn is_empty(&self) -> bool {
        self.at == 0 || self.len() == 0
    }

    /// How many records do not count now.
    pub(crate) fn len(&self) -> usize {
        self.tombstones.len()
    }

    /// Whether the record of an id on a node does not count; such nodes are remembered.
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

    /// Whether a record of an id that the checkpoint's build has does not count.
    pub(crate) fn counts_not(&self, id: u64) -> bool {
        !self.is_empty() && self.tombstones.since(id, 0, self.at).is_some()
    }

    /// Whether a record of an id went since the moment.
    pub(crate) fn went_since(&self, id: u64) -> bool {
        let shard = self.tombstones.shard(id).read();
        let last = shard.stones.get(&id);
        last.is_some_and(|stone| stone.since > self.at)
    }

    /// How many records do not count at the moment.
    pub(crate) fn at_most(&self) -> u64 {
        u64::from(self.at)
    }

    /// How many ids [`meet_rows`](Dead::meet_rows) would look up, at most.
    pub(crate) fn rows_to_meet(&self) -> u64 {
        let met = self.tombstones.rows_met.lock().unwrap_or_default();
        u64::from(self.at.saturating_sub(met))
    }

    /// Meets all nodes that do not count and have rows: `look` is given the ids that went since somebody did so the last time, ascending, and calls
    /// what it is given with all nodes of them that have rows, and others as it likes.
    ///
    /// # Errors
    /// Those of `look`.
    pub(crate) fn meet_rows(
        &self,
        look: impl FnOnce(&[u64], &mut dyn FnMut(u64, u32)) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // Who comes meanwhile waits, and finds all of it done.
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

    /// The nodes that were met so far and do not count at the moment.
    pub(crate) fn met(&self) -> RoaringBitmap {
        let mut nodes = RoaringBitmap::new();
        for shard in &self.tombstones.met {
            let shard = shard.read();
            let dead = shard.iter().filter(|&(_, &since)| since <= self.at);
            nodes.extend(dead.map(|(&node, _)| node));
        }
        nodes
    }

    /// Whether a node is known to have a record that does not count: it never will again.
    #[inline]
    pub(crate) fn knows(&self, node: u32) -> bool {
        !self.is_empty()
            && self.tombstones.met[node as usize % SHARDS]
                .read()
                .get(&node)
                .is_some_and(|&since| since <= self.at)
    }
}

/// Above every node: no record of the id counts.
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
        let before = shard.stones.get(&id).copied();
        if before.is_some_and(|before| before.bound >= bound) {
            return false;
        }
        // Seen by whoever starts a search after the delete returned: the lock's release orders it.
        let dead = self.dead.fetch_add(1, Ordering::Release) + 1;
        let since = u32::try_from(dead).unwrap_or(u32::MAX);
        shard.stones.insert(id, Stone { bound, since });
        if let Some(before) = before {
            let earlier = shard.earlier.entry(id).or_default();
            if earlier.len() == OVERTAKEN {
                // What is deleted is never answered, though it had been there when a search began.
                let oldest = earlier.remove(0);
                earlier[0].since = oldest.since;
            }
            earlier.push(before);
        }
        true
    }

    /// The record on a node does not count and never did: it was given up while it was made. Its id may be somewhere else.
    pub(crate) fn mark_dead(&self, node: u32) {
        self.dead.fetch_add(1, Ordering::Release);
        let since = 0;
        self.met[node as usize % SHARDS].write().insert(node, since);
    }

    /// Puts back what [`all`](Tombstones::all) gave, of which `dead` records do not count.
    pub(crate) fn restore(all: &[(u64, u32)], dead: usize) -> Self {
        let tombstones = Self::default();
        for &(id, bound) in all {
            let stone = Stone { bound, since: 0 };
            tombstones.shard(id).write().stones.insert(id, stone);
        }
        tombstones.dead.store(dead, Ordering::Release);
        tombstones
    }

    /// The moment of now.
    fn moment(&self) -> u32 {
        u32::try_from(self.len()).unwrap_or(u32::MAX)
    }

    /// What does not count at any moment while it is asked.
    pub(crate) fn as_it_comes(&self) -> Dead<'_> {
        Dead {
            tombstones: self,
            at: u32::MAX,
        }
    }

    /// Whether the record of an id on a node does not count.
    #[inline]
    pub(crate) fn contains(&self, id: u64, node: u32) -> bool {
        self.len() > 0 && self.since(id, node, u32::MAX).is_some()
    }

    /// Since when the record of an id on a node does not count, if it does not at a moment.
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
                    .stones
                    .iter()
                    .map(|(&id, stone)| (id, stone.bound))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Bytes that the set takes, about.
    pub(crate) fn memory_bytes(&self) -> u64 {
        // Eight where the node was met, and a list where an id was replaced more than once.
        let met: usize = self.met.iter().map(|shard| shard.read().capacity()).sum();
        let shards = self.shards.iter();
        let lists: usize = shards.map(|shard| shard.read().earlier.capacity()).sum();
        self.len() as u64 * STONE + met as u64 * 10 + lists as u64 * 50
    }

    /// Bytes that a budget counts for it, at least what it takes.
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
        // One that was given up while it was made.
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
        // What a later search knows, one that began before does not.
        assert!(at(2).knows(3) && at(1).knows(3) && !at(0).knows(3));
        for bound in 11..20 {
            set.insert_below(7, bound);
        }
        assert!(at(before).meets(7, 9) && !at(before).meets(7, 10));
        assert!(at(before + 1).meets(7, 10) && !at(before + 1).meets(7, 11));
        assert!(!at(before).knows(10) && at(before + 1).knows(10));
        // Whoever is overtaken that often does not find what is deleted.
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
