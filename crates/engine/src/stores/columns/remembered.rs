//! A cache of the matches of filters. For a segment and one condition, the cache has the matching
//! nodes.
//!
//! Many programs search one query at a time, with the same filter. If half of 100,000 rows match,
//! each call would read 610 kB of an index part again.
//!
//! The files of a segment never change, so a cached set never becomes wrong.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use roaring::RoaringBitmap;

use super::view::Asked;
use crate::Error;

const CAPPED: u64 = 256 << 10;
const FREE: u64 = 16 << 20;
/// The number is small, because an eviction examines all sets.
const MOST_SETS: usize = 256;

/// A condition on a segment: the segment's number, the column, and the look-up.
type Key = (u32, String, Asked);

#[derive(Debug)]
pub(super) struct Remembered {
    most: u64,
    /// Whether the memory plan reserves `most` bytes.
    capped: bool,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    sets: HashMap<Key, Set>,
    bytes: u64,
    now: u64,
}

#[derive(Debug)]
struct Set {
    nodes: Arc<RoaringBitmap>,
    bytes: u64,
    used: u64,
}

impl Remembered {
    pub(super) fn new(memory: Option<u64>) -> Self {
        Self {
            most: memory.map_or(FREE, |_| CAPPED),
            capped: memory.is_some(),
            kept: Mutex::default(),
        }
    }

    /// The bytes that the cache uses. With a memory budget, the most bytes that it may use.
    pub(super) fn memory_bytes(&self) -> u64 {
        match self.capped {
            true => self.most,
            false => self.kept.lock().bytes,
        }
    }

    /// Cached nodes, or else the nodes that `look` finds. If `look` fails, nothing is cached.
    pub(super) fn get(
        &self,
        key: Key,
        look: impl FnOnce() -> Result<RoaringBitmap, Error>,
    ) -> Result<Arc<RoaringBitmap>, Error> {
        if let Some(nodes) = self.kept.lock().used(&key) {
            return Ok(nodes);
        }
        let nodes = Arc::new(look()?);
        let bytes = (nodes.serialized_size() + size_of::<(Key, Set)>() + key.1.len()) as u64
            + key.2.memory_bytes();
        if bytes <= self.most {
            self.kept.lock().keep(key, nodes.clone(), bytes, self.most);
        }
        Ok(nodes)
    }
}

impl Default for Remembered {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Kept {
    fn used(&mut self, key: &Key) -> Option<Arc<RoaringBitmap>> {
        self.now += 1;
        let set = self.sets.get_mut(key)?;
        set.used = self.now;
        Some(set.nodes.clone())
    }

    fn keep(&mut self, key: Key, nodes: Arc<RoaringBitmap>, bytes: u64, most: u64) {
        let used = self.now;
        let set = Set { nodes, bytes, used };
        self.bytes += bytes;
        if let Some(before) = self.sets.insert(key, set) {
            // Another thread has looked up the same condition at the same time.
            self.bytes -= before.bytes;
        }
        while self.bytes > most || self.sets.len() > MOST_SETS {
            let oldest = self.sets.iter().min_by_key(|(_, set)| set.used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            if let Some(gone) = self.sets.remove(&oldest) {
                self.bytes -= gone.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(at: u32) -> Key {
        (at, "year".into(), Asked::Any)
    }

    #[test]
    fn sets_are_kept_that_were_used_last_and_no_more_bytes_than_may_be() {
        let remembered = Remembered {
            most: 2_000,
            capped: true,
            kept: Mutex::default(),
        };
        let set = |at: u32| -> RoaringBitmap { (at..at + 100).step_by(2).collect() };
        let look = |at: u32, expected: bool| {
            let mut looked = false;
            let found = remembered.get(key(at), || {
                looked = true;
                Ok(set(at))
            });
            assert_eq!((&*found.unwrap(), looked), (&set(at), expected), "{at}");
            assert!(remembered.kept.lock().bytes <= 2_000);
        };
        look(0, true);
        look(0, false);
        (1..40).for_each(|at| look(at, true));
        look(39, false);
        look(0, true);
        let failed = remembered.get(key(50), || Err(Error::Stopped));
        assert!(failed.is_err());
        look(50, true);
        let large = || Ok((0..100_000).step_by(2).collect());
        remembered.get(key(60), large).unwrap();
        look(50, false);
        assert!(!remembered.kept.lock().sets.contains_key(&key(60)));
        let free = Remembered::default();
        (0..1000).for_each(|at| drop(free.get(key(at), || Ok(set(at)))));
        assert_eq!(free.kept.lock().sets.len(), MOST_SETS);
    }
}
