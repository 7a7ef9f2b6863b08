//! The cache of hot records. The cache has values of bounded length, with nodes as keys. All search
//! threads share the cache without a lock.
//!
//! ```text
//!   node ─hash→ set   tags       k  k  k  k  k  k  k  k   the node in each of the eight ways
//!                     sequences  s  s  s  s  s  s  s  s   a seqlock and CLOCK bit for each way
//!                     hand             ^                  start of the search for a victim
//!                                      │
//!   slots │ length:4 stamp:4 │ value … │ length:4 stamp:4 │ value … │ …    one for each way
//! ```
//!
//! In DecoupleVS (§3.4), the cache of hot compressed neighbour lists evicts the least recently used
//! entry of the whole cache. Here a key belongs to one set of eight *ways*, and CLOCK approximates
//! this policy within the set. So hits never wait for each other.
//!
//! The cache may lose any value at any time: while a thread writes a way, a look-up of its key
//! misses and an insert does nothing. A returned value is never torn, and it is the right value if
//! **all values of one key and stamp are equal**.
//!
//! # Records that change
//!
//! The stamp is the number of the page from which a record was read. Direct inserts rewrite
//! records:
//!
//! - *on another page* (`stores/topology/placement.rs`). No search looks for the stamp of the old
//!   page. Before the placement records that a node returns to a page of the same number, the
//!   writer [removes](SlotCache::remove) the node from the cache. A page is reused only after all
//!   searches that may have read it have ended, so no thread caches an older record of the page
//!   afterwards.
//! - *in the same place*, in the inline layout. Searches look among dirty pages before the cache.
//!   The writer first makes the page dirty, and then removes its nodes from the cache. A search
//!   first caches a record, and then removes the record from the cache if the page is dirty. In
//!   each of the two threads a fence separates the two steps, so one of the threads sees the other
//!   thread's first step.
//!
//! # Why no read is torn
//!
//! Let *S* be a way's sequence and *D* the data that it protects: the tag and the words of the
//! slot.
//!
//! ```text
//! writer                                        reader
//! W1  CAS S: even → odd, Acquire                R1  s = load S, Acquire;      odd: miss
//! W2  fence(Release)                            R2  load D, each Relaxed
//! W3  store D, each Relaxed                     R3  fence(Acquire)
//! W4  store S: odd → next even, Release         R4  t = load S, Relaxed;      s ≠ t: miss
//! ```
//!
//! W1 reads the value of the previous writer's W4, or a later change of the CLOCK bit, which
//! continues the release sequence. So W3 of each writer happens before W3 of the next writer. Let w
//! be the writer whose W4 gave S the even value that R1 returned.
//!
//! - *R2 returns nothing older than the words of w.* R1 acquires the value that W4 of w released,
//!   so W3 of w happens before R2. Coherence then forbids R2 to return a value that w replaced.
//! - *R2 returns nothing newer, or the reader reports a miss.* Suppose that R2 returned a word that
//!   a later writer v stored. The fence W2 of v is before this store, and the fence R3 of the
//!   reader is after this load, so W2 synchronises with R3. So W1 of v happens before R4, and R4
//!   returns the odd value of v or a later value of S. This value is not s, so R4 reports a miss.
//!
//! So if s = t, the tag and all words are from w, unless S wraps between R1 and R4, after a
//! multiple of 2³⁰ writes of this one way. The comparison ignores the CLOCK bit, which protects
//! nothing.

use std::fmt;
use std::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use stratann_tier::ask_for_memory;

use crate::Error;

const WAYS: usize = 8;
/// All node numbers are below the tag of an empty way.
const EMPTY: u32 = u32::MAX;
/// Bytes of a word of a slot. The first word has the length in its low bits, and the stamp in its
/// high bits.
const WORD: usize = size_of::<u64>();
const STAMP: u32 = u32::BITS;

const WRITING: u32 = 1;
/// The CLOCK bit: set if the way was read after the hand of CLOCK last passed the way.
const READ: u32 = 2;
const STEP: u32 = 4;

#[repr(align(64))]
struct Set {
    tags: [AtomicU32; WAYS],
    sequences: [AtomicU32; WAYS],
}

pub(crate) struct SlotCache {
    sets: Vec<Set>,
    hands: Vec<AtomicU8>,
    words: Vec<AtomicU64>,
    slot_words: usize,
    slot_bytes: usize,
    capacity: usize,
}

fn slot_words(slot_bytes: usize) -> usize {
    slot_bytes.div_ceil(WORD).saturating_add(1)
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

fn hash(key: u32) -> u64 {
    // The golden ratio and another odd constant. After a single multiplication, keys whose stride
    // is a Fibonacci number would fall into few sets.
    let spread = u64::from(key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (spread ^ (spread >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

impl SlotCache {
    /// Refuses a cache that is too large for memory. Without this check, [`new`](Self::new) would
    /// end the process.
    pub(crate) fn check_room(capacity_entries: usize, slot_bytes: usize) -> Result<(), Error> {
        let words = capacity_entries.checked_mul(slot_words(slot_bytes));
        let bytes = words.and_then(|words| words.checked_mul(size_of::<u64>()));
        let asked = ask_for_memory(
            "the cache",
            bytes.map_or(u64::MAX, |bytes| bytes as u64),
            "",
        );
        asked.map_err(|_| {
            Error::call(
                "cache",
                format!("{capacity_entries} entries of {slot_bytes} bytes"),
                "the system refuses so much memory",
                "Give a smaller cache",
            )
        })
    }

    /// Makes a cache of `capacity_entries` values of up to `slot_bytes` bytes.
    ///
    /// The operating system allocates pages at the first write, so the memory grows up to
    /// [`memory_bytes`](Self::memory_bytes), which a budget must reserve from the start.
    pub(crate) fn new(capacity_entries: usize, slot_bytes: usize) -> SlotCache {
        let slot_words = slot_words(slot_bytes);
        let sets = (0..capacity_entries.div_ceil(WAYS))
            .map(|set| Set {
                tags: std::array::from_fn(|_| AtomicU32::new(EMPTY)),
                // The missing ways of the last set are marked as being written, so no thread uses
                // them.
                sequences: std::array::from_fn(|way| {
                    let exists = set * WAYS + way < capacity_entries;
                    AtomicU32::new(if exists { 0 } else { WRITING })
                }),
            })
            .collect::<Vec<_>>();
        SlotCache {
            hands: (0..sets.len()).map(|_| AtomicU8::new(0)).collect(),
            sets,
            // The allocator gives zeroed memory, and `collect` reuses it without a copy.
            words: vec![0; capacity_entries.saturating_mul(slot_words)]
                .into_iter()
                .map(AtomicU64::new)
                .collect(),
            slot_words,
            slot_bytes,
            capacity: capacity_entries,
        }
    }

    /// The number of entries for which [`memory_bytes`](Self::memory_bytes) is at most `bytes`.
    pub(crate) fn entries_for(bytes: u64, slot_bytes: usize) -> usize {
        let slot = (slot_words(slot_bytes) as u64).saturating_mul(WORD as u64);
        let overhead = (size_of::<Set>() + size_of::<AtomicU8>()) as u64;
        let set = slot.saturating_mul(WAYS as u64).saturating_add(overhead);
        let bytes = bytes.saturating_sub(size_of::<SlotCache>() as u64);
        let entries = bytes / set * WAYS as u64 + (bytes % set).saturating_sub(overhead) / slot;
        usize::try_from(entries).unwrap_or(usize::MAX)
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let bytes = size_of::<SlotCache>()
            + self.sets.capacity() * size_of::<Set>()
            + self.hands.capacity()
            + self.words.capacity() * WORD;
        bytes as u64
    }

    /// Copies the value of `key` under `stamp` into `out`, without a lock. After a miss (false),
    /// `out` has arbitrary bytes.
    #[inline]
    pub(crate) fn get(&self, key: u32, stamp: u32, out: &mut Vec<u8>) -> bool {
        let at = self.set_of(key);
        let Some(set) = self.sets.get(at) else {
            return false;
        };
        // All tags are compared before any branch, since the matching way cannot be predicted.
        let mut ways = set.ways_of(key);
        while ways != 0 {
            let way = ways.trailing_zeros() as usize;
            if self.copy(set, at, way, (key, stamp), out) {
                return true;
            }
            ways &= ways - 1;
        }
        false
    }

    /// Offers a value under a stamp. A value that is too long or already present is ignored, and so
    /// is any value while another thread writes the way.
    pub(crate) fn insert(&self, key: u32, stamp: u32, value: &[u8]) {
        let at = self.set_of(key);
        let Some((set, hand)) = self.sets.get(at).zip(self.hands.get(at)) else {
            return;
        };
        let Ok(length) = u32::try_from(value.len()) else {
            return;
        };
        if value.len() > self.slot_bytes || key == EMPTY {
            return;
        }
        let taken = match set.ways_of(key) {
            0 => set.take_victim(hand),
            ways => {
                let way = ways.trailing_zeros() as usize;
                let first = self.slot(at, way).first();
                // Another thread may have replaced the value of this way, which does no harm.
                if first.is_some_and(|word| (word.load(Relaxed) >> STAMP) as u32 == stamp) {
                    return;
                }
                set.take(way).map(|sequence| (way, sequence))
            }
        };
        let Some((way, sequence)) = taken else {
            return;
        };
        // W2: a thread that sees one of the stores below also sees that the way is being written.
        fence(Release);
        if let Some((first, rest)) = self.slot(at, way).split_first() {
            first.store(u64::from(length) | (u64::from(stamp) << STAMP), Relaxed);
            for (word, bytes) in rest.iter().zip(value.chunks(WORD)) {
                word.store(word_of(bytes), Relaxed);
            }
            set.tags[way].store(key, Relaxed);
        }
        // W4. The cleared CLOCK bit means that a value must be used again to stay.
        let next = (sequence & !(WRITING | READ)).wrapping_add(STEP);
        set.sequences[way].store(next, Release);
    }

    /// Removes all values of a key that were inserted before this call, under any stamp. The call
    /// waits for threads that are writing such values.
    pub(crate) fn remove(&self, key: u32) {
        let Some(set) = self.sets.get(self.set_of(key)) else {
            return;
        };
        for way in 0..WAYS {
            while key != EMPTY && set.tags[way].load(Relaxed) == key {
                let Some(sequence) = set.take(way) else {
                    std::thread::yield_now();
                    continue;
                };
                // W2, W3 and W4 of the tag alone. Another key may have the way by now, and loses
                // its value.
                fence(Release);
                set.tags[way].store(EMPTY, Relaxed);
                let next = (sequence & !(WRITING | READ)).wrapping_add(STEP);
                set.sequences[way].store(next, Release);
            }
        }
    }

    fn set_of(&self, key: u32) -> usize {
        // The hash as a fraction of 2^64, times the number of sets (Lemire's fast range).
        ((u128::from(hash(key)) * self.sets.len() as u128) >> 64) as usize
    }

    fn slot(&self, set: usize, way: usize) -> &[AtomicU64] {
        let from = (set * WAYS + way) * self.slot_words;
        self.words
            .get(from..from + self.slot_words)
            .unwrap_or_default()
    }

    fn copy(
        &self,
        set: &Set,
        at: usize,
        way: usize,
        (key, stamp): (u32, u32),
        out: &mut Vec<u8>,
    ) -> bool {
        let sequence = &set.sequences[way];
        let before = sequence.load(Acquire);
        if before & WRITING != 0 || before < STEP {
            return false;
        }
        // The first check may have read the tag of an earlier value.
        let tag = set.tags[way].load(Relaxed);
        let Some((first, rest)) = self.slot(at, way).split_first() else {
            return false;
        };
        let first = first.load(Relaxed);
        let length = first as u32 as usize;
        let Some(rest) = rest.get(..length.div_ceil(WORD)) else {
            return false;
        };
        out.resize(rest.len() * WORD, 0);
        for (bytes, word) in out.chunks_exact_mut(WORD).zip(rest) {
            bytes.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        out.truncate(length);
        // R3: for each value loaded above, the loads below see that its writer began.
        fence(Acquire);
        let after = sequence.load(Relaxed);
        if (before ^ after) & !READ != 0 || tag != key || (first >> STAMP) as u32 != stamp {
            return false;
        }
        if after & READ == 0 {
            // The way may have another value by now. Then that value survives one more round.
            sequence.fetch_or(READ, Relaxed);
        }
        true
    }
}

impl Set {
    #[inline]
    fn ways_of(&self, key: u32) -> u32 {
        let mut ways = 0;
        for (way, tag) in self.tags.iter().enumerate() {
            ways |= u32::from(tag.load(Relaxed) == key) << way;
        }
        ways
    }

    /// Marks a way as being written (W1), and returns its earlier sequence. `None` if another
    /// thread writes the way.
    fn take(&self, way: usize) -> Option<u32> {
        let sequence = self.sequences[way].load(Relaxed);
        if sequence & WRITING != 0 {
            return None;
        }
        self.sequences[way]
            .compare_exchange(sequence, sequence | WRITING, Acquire, Relaxed)
            .ok()
    }

    /// Chooses a way by CLOCK, and marks it as being written (W1). `None` if another thread takes
    /// the chosen way first, or if other threads write all ways.
    fn take_victim(&self, hand: &AtomicU8) -> Option<(usize, u32)> {
        let from = usize::from(hand.load(Relaxed));
        // All CLOCK bits may be set in the first round.
        for step in 0..2 * WAYS {
            let way = (from + step) % WAYS;
            let sequence = self.sequences[way].load(Relaxed);
            if sequence & WRITING != 0 {
                continue;
            }
            if sequence & READ != 0 {
                self.sequences[way].fetch_and(!READ, Relaxed);
                continue;
            }
            self.sequences[way]
                .compare_exchange(sequence, sequence | WRITING, Acquire, Relaxed)
                .ok()?;
            hand.store(((way + 1) % WAYS) as u8, Relaxed);
            return Some((way, sequence));
        }
        None
    }
}

impl fmt::Debug for SlotCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotCache")
            .field("capacity", &self.capacity)
            .field("slot_bytes", &self.slot_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;

    fn value_of(key: u32, longest: usize, out: &mut Vec<u8>) {
        let mut state = hash(key) | 1;
        out.clear();
        out.resize((hash(!key) % (longest as u64 + 1)) as usize, 0);
        for byte in out {
            state = state.wrapping_mul(6_364_136_223_846_793_005) + 1;
            *byte = (state >> 56) as u8;
        }
    }

    proptest! {
        // Each insertion of a key has another value, so that the test notices an old value.
        #[test]
        fn returns_what_was_inserted_last(
            capacity in 0usize..70,
            slot_bytes in 0usize..40,
            steps in prop::collection::vec((0u32..100, prop::collection::vec(any::<u8>(), 0..48)), 0..1_000),
        ) {
            let cache = SlotCache::new(capacity, slot_bytes);
            let mut model = HashMap::new();
            let mut out = vec![1; 3];
            for (key, value) in &steps {
                if cache.get(*key, 0, &mut out) {
                    prop_assert_eq!(Some(&&out), model.get(key));
                } else {
                    cache.insert(*key, 0, value);
                    prop_assert_eq!(cache.get(*key, 0, &mut out), capacity > 0 && value.len() <= slot_bytes);
                    model.insert(*key, value);
                }
            }
            let kept = (0..100).filter(|&key| cache.get(key, 0, &mut out)).count();
            prop_assert!(kept <= capacity);
        }

        #[test]
        fn a_budget_is_used_up_and_never_exceeded(bytes in 0u64..200_000, slot_bytes in 0usize..400) {
            let entries = SlotCache::entries_for(bytes, slot_bytes);
            let cache = SlotCache::new(entries, slot_bytes);
            prop_assert_eq!(cache.capacity(), entries);
            prop_assert!(entries == 0 || cache.memory_bytes() <= bytes);
            prop_assert!(SlotCache::new(entries + 1, slot_bytes).memory_bytes() > bytes);
        }
    }

    #[test]
    fn budgets_beyond_all_memory_do_not_overflow() {
        assert_eq!(SlotCache::entries_for(u64::MAX, usize::MAX), 0);
        assert!(SlotCache::entries_for(u64::MAX, 0) > 1 << 50);
        assert_eq!(SlotCache::entries_for(0, 160), 0);
    }

    #[test]
    fn fills_to_its_capacity() {
        for capacity in [1, 2, 7, 8, 9, 100, 1_001] {
            let cache = SlotCache::new(capacity, 4);
            let mut out = Vec::new();
            for key in 0..20_000u32 {
                cache.insert(key, 0, &key.to_le_bytes());
            }
            let kept = (0..20_000)
                .filter(|&key| cache.get(key, 0, &mut out))
                .count();
            assert_eq!(kept, capacity);
        }
    }

    #[test]
    fn without_room_everything_misses() {
        let cache = SlotCache::new(0, 160);
        cache.insert(3, 0, b"three");
        assert!(!cache.get(3, 0, &mut Vec::new()));
        assert_eq!(cache.capacity(), 0);
        assert_eq!(cache.memory_bytes(), size_of::<SlotCache>() as u64);
    }

    #[test]
    fn values_of_every_length_up_to_the_slot() {
        for slot_bytes in [0, 1, 3, 4, 5, 12, 13, 160] {
            let cache = SlotCache::new(8, slot_bytes);
            let mut out = Vec::new();
            for length in 0..=slot_bytes + 9 {
                let value: Vec<u8> = (1..=length as u8).collect();
                let key = length as u32;
                cache.insert(key, 0, &value);
                assert_eq!(cache.get(key, 0, &mut out), length <= slot_bytes);
                if length <= slot_bytes {
                    assert_eq!(out, value);
                }
            }
        }
    }

    #[test]
    fn a_value_counts_under_its_stamp_until_another_takes_its_place() {
        let cache = SlotCache::new(WAYS, 8);
        let mut out = Vec::new();
        cache.insert(7, 1, b"old");
        assert!(cache.get(7, 1, &mut out) && out == b"old");
        assert!(!cache.get(7, 2, &mut out));
        cache.insert(7, 2, b"new");
        assert!(cache.get(7, 2, &mut out) && out == b"new");
        assert!(
            !cache.get(7, 1, &mut out),
            "the new version left a copy of the old one"
        );
        cache.remove(7);
        assert!(!cache.get(7, 2, &mut out) && !cache.get(7, 1, &mut out));
        cache.insert(7, 1, b"again");
        assert!(cache.get(7, 1, &mut out) && out == b"again");
    }

    #[test]
    fn nothing_that_was_inserted_before_survives_a_removal() {
        let cache = SlotCache::new(WAYS, 8);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2u32 {
                let (cache, stop) = (&cache, &stop);
                scope.spawn(move || {
                    let mut out = Vec::new();
                    for i in 0u32.. {
                        if stop.load(Relaxed) {
                            break;
                        }
                        let key = 1 + (i ^ thread) % 12;
                        cache.insert(key, 0, b"others");
                        cache.get(0, 0, &mut out);
                    }
                });
            }
            let mut out = Vec::new();
            let mut kept = 0;
            for round in 0..100_000u32 {
                cache.insert(0, round, &round.to_le_bytes());
                kept += u32::from(cache.get(0, round, &mut out));
                cache.remove(0);
                let left = (0..=round)
                    .rev()
                    .take(3)
                    .any(|stamp| cache.get(0, stamp, &mut out));
                assert!(!left, "round {round}");
            }
            stop.store(true, Relaxed);
            assert!(kept > 100, "{kept}");
        });
    }

    #[test]
    fn a_value_that_is_too_long_evicts_nothing() {
        let cache = SlotCache::new(1, 4);
        cache.insert(1, 0, b"four");
        cache.insert(2, 0, b"fives");
        let mut out = Vec::new();
        assert!(cache.get(1, 0, &mut out));
        assert_eq!(out, b"four");
        assert!(!cache.get(2, 0, &mut out));
    }

    #[test]
    fn the_tag_of_empty_ways_is_no_key() {
        for (capacity, keys) in [(WAYS, 0), (WAYS, WAYS as u32), (WAYS - 1, WAYS as u32 - 1)] {
            let cache = SlotCache::new(capacity, 4);
            let mut out = Vec::new();
            (0..keys).for_each(|key| cache.insert(key, 0, b"four"));
            assert!(!cache.get(EMPTY, 0, &mut out));
            cache.insert(EMPTY, 0, b"four");
            assert!(!cache.get(EMPTY, 0, &mut out));
            assert!((0..keys).all(|key| cache.get(key, 0, &mut out)));
        }
    }

    #[test]
    fn a_key_that_is_there_is_not_inserted_again() {
        let cache = SlotCache::new(WAYS, 4);
        let mut out = Vec::new();
        for key in (0..WAYS as u32).chain([3; 2 * WAYS]) {
            cache.insert(key, 0, &key.to_le_bytes());
        }
        assert!((0..WAYS as u32).all(|key| cache.get(key, 0, &mut out)));
    }

    #[test]
    fn a_key_that_is_read_between_inserts_stays() {
        let cache = SlotCache::new(WAYS, 4);
        let mut out = Vec::new();
        cache.insert(0, 0, b"hot");
        for key in 1..1_000 {
            assert!(
                cache.get(0, 0, &mut out),
                "key 0 is gone before key {key} was inserted"
            );
            cache.insert(key, 0, b"cold");
        }
        cache.insert(1_000, 0, b"cold");
        assert!(cache.get(0, 0, &mut out));
        for key in 1_001..1_001 + 2 * WAYS as u32 {
            cache.insert(key, 0, b"cold");
        }
        assert!(!cache.get(0, 0, &mut out));
    }

    #[test]
    fn when_all_have_been_read_an_insert_still_finds_room() {
        let cache = SlotCache::new(WAYS, 4);
        let mut out = Vec::new();
        for key in 0..100 {
            cache.insert(key, 0, b"hot");
            assert!(cache.get(key, 0, &mut out));
        }
    }

    #[test]
    fn keys_at_any_stride_spread_over_the_sets() {
        for stride in [1, 2, 8, 20, 64, 4_096, 10_946, 75_025, 65_536] {
            let cache = SlotCache::new(8_000, 0);
            let mut loads = vec![0u32; cache.sets.len()];
            for i in 0..8_000u32 {
                loads[cache.set_of(i.wrapping_mul(stride))] += 1;
            }
            // A random function puts 27 or more keys into one of 1,000 sets in one of 10,000 cases.
            let most = loads.iter().max().copied().unwrap_or(0);
            assert!(most <= 26, "{most} keys are in one set at stride {stride}");
        }
    }

    fn hits_of_lru(capacity: usize, keys: &[u32]) -> usize {
        let (mut used, mut order) = (HashMap::new(), BTreeMap::new());
        let mut hits = 0;
        for (now, &key) in keys.iter().enumerate() {
            match used.insert(key, now) {
                Some(before) => {
                    order.remove(&before);
                    hits += 1;
                }
                None if order.len() == capacity => {
                    if let Some((_, oldest)) = order.pop_first() {
                        used.remove(&oldest);
                    }
                }
                None => {}
            }
            order.insert(now, key);
        }
        hits
    }

    fn skewed(keys: u32, count: u64) -> Vec<u32> {
        (0..count)
            .map(|i| {
                let uniform = (hash(i as u32 ^ 0x5555) >> 11) as f64 / (1u64 << 53) as f64;
                let rank = f64::from(keys).powf(uniform) - 1.0;
                (rank as u32).wrapping_mul(0x9E37_79B1)
            })
            .collect()
    }

    #[test]
    fn hits_about_as_often_as_least_recently_used() {
        let keys = skewed(100_000, 200_000);
        for capacity in [200, 1_000, 10_000] {
            let cache = SlotCache::new(capacity, 4);
            let mut out = Vec::new();
            let mut hits = 0;
            for &key in &keys {
                if cache.get(key, 0, &mut out) {
                    hits += 1;
                } else {
                    cache.insert(key, 0, &[]);
                }
            }
            let lru = hits_of_lru(capacity, &keys);
            eprintln!("{capacity} entries: {hits} hits, LRU {lru}");
            assert!(
                hits * 100 > lru * 97,
                "the cache has {hits} hits, LRU has {lru}"
            );
        }
    }

    #[test]
    fn no_thread_sees_a_torn_value() {
        const LONGEST: usize = 160;
        const THREADS: usize = 4;
        for (capacity, keys) in [(1, 3), (3, 7), (8, 12), (20, 60)] {
            let cache = SlotCache::new(capacity, LONGEST);
            let (hits, start) = (AtomicUsize::new(0), Barrier::new(THREADS));
            std::thread::scope(|scope| {
                for thread in 0..THREADS as u32 {
                    let (cache, hits, start) = (&cache, &hits, &start);
                    scope.spawn(move || {
                        let (mut out, mut expected) = (Vec::new(), Vec::new());
                        start.wait();
                        for i in 0..100_000u32 {
                            let key = (hash(i ^ (thread << 28)) >> 40) as u32 % keys;
                            value_of(key, LONGEST, &mut expected);
                            if cache.get(key, 0, &mut out) {
                                assert_eq!(out, expected, "key {key}");
                                hits.fetch_add(1, Relaxed);
                            } else {
                                cache.insert(key, 0, &expected);
                            }
                        }
                    });
                }
            });
            assert!(hits.into_inner() > 1_000);
        }
    }

    /// Nanoseconds of a call, as the best of some runs. Each key depends on the result of the
    /// previous call.
    fn time(threads: u32, keys: &[u32], look_up: impl Fn(u32, &mut Vec<u8>) -> u8 + Sync) -> f64 {
        const ROUNDS: u32 = 400_000;
        let run = |_| {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let look_up = &look_up;
                    scope.spawn(move || {
                        let (mut out, mut sum) = (Vec::new(), 0u32);
                        for i in 0..ROUNDS {
                            let random = u128::from(hash((i ^ (thread << 28)).wrapping_add(sum)));
                            let at = (random * keys.len() as u128) >> 64;
                            sum += u32::from(look_up(keys[at as usize], &mut out));
                        }
                        std::hint::black_box(sum);
                    });
                }
            });
            start.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
        };
        (0..10).map(run).fold(f64::INFINITY, f64::min)
    }

    #[test]
    #[ignore = "measures: cargo test --release -p stratann cache -- --ignored --nocapture"]
    fn time_of_a_hit() {
        const SLOT: usize = 160;
        for entries in [8, 1_000, 10_000, 100_000, 1_000_000, 4_000_000] {
            let cache = SlotCache::new(entries, SLOT);
            for key in 0..entries as u32 {
                cache.insert(key, 0, &[key as u8; SLOT]);
            }
            let mut out = Vec::new();
            let kept: Vec<u32> = (0..entries as u32)
                .filter(|&key| cache.get(key, 0, &mut out))
                .collect();
            for threads in [1, 2] {
                let alone = time(threads, &kept, |key, _| key as u8);
                let hit = time(threads, &kept, |key, out| {
                    assert!(cache.get(key, 0, out));
                    out[SLOT / 2]
                });
                eprintln!(
                    "{entries} entries, {} MiB, {threads} threads: {:.1} ns a hit, and {alone:.1} ns to draw its key",
                    cache.memory_bytes() >> 20,
                    hit - alone
                );
            }
        }
    }
}
