//! Where nodes are in an index that takes direct inserts: a table from node to page, and what of the pages is not on
//! storage yet.
//!
//! ```text
//!   page_of     node -> page            changed when a record is written anew: always on another page
//!   unwritten   page -> its bytes       composed, and not on storage yet (the write-back cache of OdinANN §3.3)
//!   pending     page -> changes         of lists, and records that are on no page yet (see `pending`)
//!   pins        searches that go on     a page that nobody needs any more rests until those are over
//! ```
//!
//! **A page never changes.** What is written anew goes to a page that no node is on, no search is reading and no checkpoint
//! names. So a search needs no lock: the page that the table names holds the node's record, now and until the search
//! ends, and a record that was replaced meanwhile is merely a bit older (OdinANN §3.3: a consistent snapshot of each
//! record, not of the graph).
//!
//! Where pages stay in their places there is no table, which takes memory for each node (see [`inline`](super::inline)): a page
//! that was composed anew is unwritten until no search is left that began before, and a read that ends finds it here.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use stratann_layout::{PendingFile, PlacementFile};

use super::counts::ListCounts;
use super::pending::{Change, NewRecord, Pending};
use crate::cache::SlotCache;

/// Words of a leaf, and leaves of a branch, as shifts: together with the branches of a root, all that a `u32` tells apart.
const LEAF_BITS: u32 = 12;
const BRANCH_BITS: u32 = 10;

type Leaf = Box<[AtomicU32]>;
type Branch = Box<[OnceLock<Leaf>]>;

/// An array of words that any number of threads read and write, with a place for every `u32`; those never written are 0.
/// Takes memory where it was written, in steps of 16 KiB.
pub(crate) struct Words {
    root: Box<[OnceLock<Branch>]>,
}

fn unwritten_yet<T>(count: u32) -> Box<[OnceLock<T>]> {
    (0..count).map(|_| OnceLock::new()).collect()
}

impl Default for Words {
    fn default() -> Self {
        Self {
            root: unwritten_yet(1 << (32 - BRANCH_BITS - LEAF_BITS)),
        }
    }
}

/// The places of a word: of its branch, of its leaf, and in the leaf.
#[inline]
fn places(at: u32) -> (usize, usize, usize) {
    let leaf = at >> LEAF_BITS;
    (
        (leaf >> BRANCH_BITS) as usize,
        leaf as usize & ((1 << BRANCH_BITS) - 1),
        at as usize & ((1 << LEAF_BITS) - 1),
    )
}

impl Words {
    /// The word in a place.
    #[inline]
    pub(crate) fn get(&self, at: u32) -> u32 {
        let (branch, leaf, word) = places(at);
        let leaf = self.root[branch]
            .get()
            .and_then(|branch| branch[leaf].get());
        leaf.map_or(0, |leaf| leaf[word].load(Ordering::Acquire))
    }

    /// A place that is written from now on.
    #[inline]
    pub(crate) fn word(&self, at: u32) -> &AtomicU32 {
        let (branch, leaf, word) = places(at);
        let branch = self.root[branch].get_or_init(|| unwritten_yet(1 << BRANCH_BITS));
        let zeros = || (0..1 << LEAF_BITS).map(|_| AtomicU32::new(0)).collect();
        &branch[leaf].get_or_init(zeros)[word]
    }

    /// Writes a word; what was written before it is seen by whoever reads it.
    #[inline]
    pub(crate) fn set(&self, at: u32, word: u32) {
        self.word(at).store(word, Ordering::Release);
    }

    /// Bytes that it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let branches = self.root.iter().filter_map(OnceLock::get);
        let bytes = branches.map(|branch| {
            let leaves = branch.iter().filter(|leaf| leaf.get().is_some());
            size_of_val(&**branch) + (leaves.count() << (LEAF_BITS + 2))
        });
        (size_of_val(&*self.root) + bytes.sum::<usize>()) as u64
    }
}

/// A page's bytes, which searches read while it waits to be written.
pub(crate) type PageBytes = Arc<[u8]>;

/// Parts of the map of unwritten pages, each with a lock.
const SHARDS: usize = 16;

/// Pages that are composed and not on storage yet.
#[derive(Default)]
pub(crate) struct Unwritten {
    /// A bit for each page, so that a search takes a lock only for a page that is here.
    bits: Words,
    /// Whether a bit stands for all pages whose numbers end alike, so that bits do not grow with the file.
    few: bool,
    shards: [RwLock<HashMap<u32, PageBytes>>; SHARDS],
}

/// Bits, where one stands for several pages; those are in one shard.
const FEW_BITS: u32 = 1 << 16;
const _: () = assert!(FEW_BITS.is_multiple_of(SHARDS as u32));

impl Unwritten {
    /// Of a few pages of a file of any length.
    fn of_few() -> Self {
        Self {
            few: true,
            ..Self::default()
        }
    }

    /// A page's bit.
    #[inline]
    fn bit(&self, page: u32) -> u32 {
        if self.few { page % FEW_BITS } else { page }
    }

    fn shard(&self, page: u32) -> &RwLock<HashMap<u32, PageBytes>> {
        &self.shards[page as usize % SHARDS]
    }

    /// A page's bytes, if it is here.
    #[inline]
    pub(crate) fn get(&self, page: u32) -> Option<PageBytes> {
        let bit = self.bit(page);
        if self.bits.get(bit / 32) & (1 << (bit % 32)) == 0 {
            return None;
        }
        self.shard(page).read().get(&page).cloned()
    }

    /// Puts a page here, before any node is said to be on it.
    pub(crate) fn insert(&self, page: u32, bytes: PageBytes) {
        // Bit and entry change together, under the lock: one that leaves must not take with it what comes after it.
        let mut shard = self.shard(page).write();
        shard.insert(page, bytes);
        let bit = self.bit(page);
        self.bits
            .word(bit / 32)
            .fetch_or(1 << (bit % 32), Ordering::Release);
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<(u32, PageBytes)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            all.extend(shard.iter().map(|(&page, bytes)| (page, bytes.clone())));
        }
        all
    }

    /// Takes a page out that is on storage, unless other bytes have come in its place.
    pub(crate) fn remove(&self, page: u32, written: &PageBytes) {
        let mut shard = self.shard(page).write();
        if shard
            .get(&page)
            .is_some_and(|bytes| Arc::ptr_eq(bytes, written))
        {
            shard.remove(&page);
            let bit = self.bit(page);
            if self.few && shard.keys().any(|&other| self.bit(other) == bit) {
                return;
            }
            self.bits
                .word(bit / 32)
                .fetch_and(!(1 << (bit % 32)), Ordering::AcqRel);
        }
    }
}

/// Searches that go on, each with the moment at which it began.
#[derive(Default)]
pub(crate) struct Pins {
    now: AtomicU64,
    begun: Mutex<BTreeMap<u64, usize>>,
}

/// A search that goes on. It may read every page that was in use when it began.
pub(crate) struct Pin<'a> {
    pins: &'a Pins,
    since: u64,
}

impl Pins {
    /// Begins a search.
    pub(crate) fn pin(&self) -> Pin<'_> {
        let mut begun = self.begun.lock();
        let since = self.now.load(Ordering::Acquire);
        *begun.entry(since).or_insert(0) += 1;
        Pin { pins: self, since }
    }

    /// Ends a moment, and gives it: who begins from now on does not see what was given up in it.
    pub(crate) fn advance(&self) -> u64 {
        // Under the lock: a search that reads the moment before is registered when this returns.
        let _begun = self.begun.lock();
        self.now.fetch_add(1, Ordering::AcqRel)
    }

    /// The first moment of which a search goes on; that to come if none does.
    pub(crate) fn oldest(&self) -> u64 {
        let begun = self.begun.lock();
        let oldest = begun.first_key_value().map(|(&since, _)| since);
        oldest.unwrap_or(self.now.load(Ordering::Acquire))
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let mut begun = self.pins.begun.lock();
        if let Some(count) = begun.get_mut(&self.since) {
            *count -= 1;
            if *count == 0 {
                begun.remove(&self.since);
            }
        }
    }
}

/// The page of a node that is on its way from one page to another, or whose insert has not come so far.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// What the table has for one that is on its way: its insert has come so far, and it is an answer.
const ON_ITS_WAY: u32 = u32::MAX - 1;

/// Where a node stands at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// On a page, or waiting to be put on it.
    On(u64),
    /// On its way from one page to another.
    Moves,
    /// On none: its insert has not come so far, or was given up. Whoever inserts it has not heard that it is in.
    NotYet,
}

/// How often a thread lets others run while a node is on its way from one page to another.
const YIELDS: u32 = 1_000;
/// How often it sleeps then, and how long: 100 ms in all. A node that is on no page even then has an insert that was given up.
const NAPS: u32 = 500;
/// How often for one that was on a page before: 10 s in all.
const NAPS_OF_MOVED: u32 = 50_000;
const NAP: Duration = Duration::from_micros(200);

/// Where nodes are.
#[derive(Default)]
pub(crate) struct Placement {
    nodes: AtomicU32,
    /// Nodes of a page, where a node's page follows from its number; 0 where it is in the table.
    a_page: u32,
    page_of: Words,
    /// Pages of the file that were ever in use.
    pages: AtomicU32,
    pub(crate) unwritten: Unwritten,
    pub(crate) pending: Pending,
    pub(crate) pins: Pins,
    /// Of nodes that came after the build.
    pub(crate) lists: ListCounts,
    /// The cache of hot records, if there is one: what is written anew must not be found there as it was.
    pub(crate) cache: OnceLock<Arc<SlotCache>>,
}

impl Placement {
    /// Nodes `0..n` on the pages that are given, of a file of so many pages.
    pub(crate) fn new(page_of: impl Iterator<Item = u32>, pages: u32) -> Self {
        let placement = Self::default();
        let mut nodes = 0;
        for page in page_of {
            placement.page_of.set(nodes, page);
            nodes += 1;
        }
        placement.nodes.store(nodes, Ordering::Release);
        placement.pages.store(pages, Ordering::Release);
        placement
    }

    /// So many nodes whose pages follow from their numbers, `a_page` on each.
    pub(crate) fn even(nodes: u32, a_page: u32) -> Self {
        Self {
            nodes: AtomicU32::new(nodes),
            a_page,
            unwritten: Unwritten::of_few(),
            pending: Pending::coded(),
            ..Self::default()
        }
    }

    /// Takes on how many lists lead to nodes.
    pub(crate) fn count(&self, file: &PlacementFile) {
        for (node, &count) in (file.built..).zip(&file.lists) {
            self.lists.set(node, count);
        }
    }

    /// Whether nodes' pages follow from their numbers.
    pub(crate) fn is_even(&self) -> bool {
        self.a_page > 0
    }

    /// As a checkpoint has it: where nodes are, and what waits for their pages.
    pub(crate) fn restore(file: &PlacementFile, pending: PendingFile) -> Self {
        let placement = Self::new(file.page_of.iter().copied(), file.pages);
        placement.count(file);
        for [node, add, remove] in pending.changes {
            let change = Change { node, add, remove };
            let page = placement.page_of(node);
            placement.pending.change(page, change, || true);
        }
        for record in pending.records {
            let page = placement.page_of(record.node);
            let record = NewRecord {
                node: record.node,
                id: record.id,
                vector: record.vector.into(),
                list: record.list.into(),
            };
            let record = Arc::new(record);
            placement.pending.append(page, record, || true, || ());
        }
        placement
    }

    /// How many nodes there are.
    #[inline]
    pub(crate) fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Acquire)
    }

    /// Adds the next node, on a page. What else there is of it, its code first of all, is in its place.
    pub(crate) fn push(&self, node: u32, page: u32) {
        if self.a_page == 0 {
            self.page_of.set(node, page);
        }
        self.nodes.store(node + 1, Ordering::Release);
    }

    /// The page that a node is on.
    #[inline]
    pub(crate) fn page_of(&self, node: u32) -> u32 {
        match self.a_page {
            // No file has so many pages.
            0 => match self.page_of.get(node) {
                ON_ITS_WAY => NOWHERE,
                page => page,
            },
            nodes => node / nodes,
        }
    }

    /// Where a node of the table stands.
    pub(crate) fn standing(&self, node: u32) -> Standing {
        match self.page_of.get(node) {
            ON_ITS_WAY => Standing::Moves,
            NOWHERE => Standing::NotYet,
            page => Standing::On(page.into()),
        }
    }

    /// The page of a node. One that is on its way from one page to another is there in a moment, which no read is part of, but which
    /// may be long where the thread that moves it has lost its processor.
    #[cold]
    pub(crate) fn page_soon(&self, node: u32) -> u32 {
        for turn in 0..YIELDS + NAPS_OF_MOVED {
            match self.page_of.get(node) {
                ON_ITS_WAY => {}
                NOWHERE if turn < YIELDS + NAPS => {}
                NOWHERE => break,
                page => return page,
            }
            match turn < YIELDS {
                true => std::thread::yield_now(),
                false => std::thread::sleep(NAP),
            }
        }
        NOWHERE
    }

    /// Says that a node's record is on another page now, which is in [`unwritten`](Placement::unwritten), or [`NOWHERE`] for
    /// a moment.
    pub(crate) fn relocate(&self, node: u32, page: u32) {
        // Before the page that it is on now is asked for: it may have been on it long ago.
        if let Some(cache) = self.cache.get() {
            cache.remove(node);
        }
        let leaves = page == NOWHERE && self.page_of(node) != NOWHERE;
        self.page_of
            .set(node, if leaves { ON_ITS_WAY } else { page });
    }

    /// Puts a page that was composed anew, where pages stay in their places, before the one that is there.
    pub(crate) fn replace(&self, page: u32, bytes: PageBytes) {
        self.unwritten.insert(page, bytes);
        if let Some(cache) = self.cache.get() {
            // A search that puts a record there from now on sees that the page is unwritten.
            fence(Ordering::SeqCst);
            let first = page.saturating_mul(self.a_page);
            (first..first.saturating_add(self.a_page)).for_each(|node| cache.remove(node));
        }
    }

    /// A search has put a record into the cache from a page that it read. If that page was composed anew in its place meanwhile, the record
    /// is taken out again, here or by who composed it.
    pub(crate) fn was_cached(&self, cache: &SlotCache, node: u32, page: u32) {
        if self.is_even() {
            fence(Ordering::SeqCst);
            if self.unwritten.get(page).is_some() {
                cache.remove(node);
            }
        }
    }

    /// Pages of the file.
    pub(crate) fn pages(&self) -> u32 {
        match self.a_page {
            0 => self.pages.load(Ordering::Acquire),
            nodes => self.nodes().div_ceil(nodes),
        }
    }

    /// For each page of the file, whether a node is on it.
    pub(crate) fn pages_in_use(&self) -> Vec<bool> {
        let mut in_use = vec![self.is_even(); self.pages() as usize];
        let moves = !self.is_even();
        for node in (0..self.nodes()).take_while(|_| moves) {
            if let Some(page) = in_use.get_mut(self.page_of(node) as usize) {
                *page = true;
            }
        }
        in_use
    }

    /// Adds a page behind the others.
    pub(crate) fn add_page(&self) -> u32 {
        self.pages.fetch_add(1, Ordering::AcqRel)
    }

    /// Bytes that it takes in memory, about.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.page_of.memory_bytes()
            + self.unwritten.bits.memory_bytes()
            + self.pending.memory_bytes()
            + self.lists.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_zero_until_they_are_written() {
        let words = Words::default();
        assert_eq!(words.get(u32::MAX), 0);
        let empty = words.memory_bytes();
        let places = [0, 4_095, 4_096, 1 << 22, u32::MAX];
        for (word, &at) in (1..).zip(&places) {
            words.set(at, word);
        }
        assert_eq!(places.map(|at| words.get(at)), [1, 2, 3, 4, 5]);
        assert_eq!((words.get(4_097), words.get(1 << 31)), (0, 0));
        let leaves = words.memory_bytes() - empty;
        assert!(
            (4 * 16_384..200_000).contains(&leaves),
            "four leaves, three branches: {leaves}"
        );
    }

    #[test]
    fn a_page_is_here_until_it_is_written() {
        let unwritten = Unwritten::default();
        assert!(unwritten.get(40).is_none());
        unwritten.insert(40, Arc::from([1, 2]));
        unwritten.insert(56, Arc::from([3]));
        let bytes = unwritten.get(40).unwrap();
        assert_eq!(*bytes, [1, 2]);
        unwritten.insert(40, Arc::from([1, 2]));
        unwritten.remove(40, &bytes);
        assert!(unwritten.get(40).is_some(), "those are others");
        let bytes = unwritten.get(40).unwrap();
        unwritten.remove(40, &bytes);
        assert!(unwritten.get(40).is_none() && unwritten.get(56).is_some());
    }

    #[test]
    fn a_page_that_leaves_takes_nothing_with_it_that_comes_after_it() {
        let unwritten = Unwritten::default();
        std::thread::scope(|scope| {
            for page in 0..4 {
                let unwritten = &unwritten;
                scope.spawn(move || {
                    for round in 0..20_000u32 {
                        let bytes = PageBytes::from(round.to_le_bytes());
                        unwritten.insert(page, bytes.clone());
                        // Whoever sees that it has gone may put the next one here at once.
                        unwritten.remove(page, &bytes);
                        let next = PageBytes::from([1]);
                        unwritten.insert(page, next.clone());
                        assert_eq!(unwritten.get(page).as_deref(), Some(&[1][..]));
                        unwritten.remove(page, &next);
                    }
                });
            }
        });
    }

    #[test]
    fn the_oldest_search_that_goes_on_is_known() {
        let pins = Pins::default();
        let first = pins.pin();
        assert_eq!(pins.advance(), 0);
        let (second, third) = (pins.pin(), pins.pin());
        assert_eq!(pins.oldest(), 0);
        drop(first);
        assert_eq!(pins.oldest(), 1);
        drop(second);
        assert_eq!((pins.oldest(), pins.advance()), (1, 1));
        drop(third);
        assert_eq!(pins.oldest(), 2);
    }
}
