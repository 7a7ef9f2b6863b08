//! The placement of nodes in an index that takes direct inserts: a table from nodes to pages, and
//! the pages and changes that are not on storage yet.
//!
//! ```text
//!   page_of     node -> page         changes when a record is rewritten, always on another page
//!   unwritten   page -> its bytes    dirty pages (the write-back cache of OdinANN §3.3)
//!   pending     page -> changes      of lists, and records that are on no page yet (see `pending`)
//!   pins        running searches     a free page is not reused until older searches have ended
//! ```
//!
//! **A page never changes.** A changed record is written to a free page. A page is free if no node
//! is on it, no search reads it, and no checkpoint names it. So a search needs no lock: the page
//! that the table names for a node keeps its record until the search ends. If the record is
//! replaced meanwhile, the search may see the older version (OdinANN §3.3: a consistent snapshot of
//! each record, not of the graph).
//!
//! The layout [`inline`](super::inline) rewrites pages in place. It has no table, because a table
//! would need memory for each node. A rewritten page stays dirty until all searches that began
//! before the rewrite have ended. A search that reads a dirty page uses the dirty version.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use stratann_layout::{PendingFile, PlacementFile};

use super::counts::ListCounts;
use super::pending::{Change, NewRecord, Pending};
use crate::cache::SlotCache;

/// The bits of a word's number in its leaf, and of a leaf's number in its branch.
const LEAF_BITS: u32 = 12;
const BRANCH_BITS: u32 = 10;

type Leaf = Box<[AtomicU32]>;
type Branch = Box<[OnceLock<Leaf>]>;

/// An array with a word for every `u32`, at first 0, for any number of threads. Memory is allocated
/// only for leaves (16 KiB) with written words.
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
    #[inline]
    pub(crate) fn get(&self, at: u32) -> u32 {
        let (branch, leaf, word) = places(at);
        let leaf = self.root[branch]
            .get()
            .and_then(|branch| branch[leaf].get());
        leaf.map_or(0, |leaf| leaf[word].load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn word(&self, at: u32) -> &AtomicU32 {
        let (branch, leaf, word) = places(at);
        let branch = self.root[branch].get_or_init(|| unwritten_yet(1 << BRANCH_BITS));
        let zeros = || (0..1 << LEAF_BITS).map(|_| AtomicU32::new(0)).collect();
        &branch[leaf].get_or_init(zeros)[word]
    }

    /// A thread that reads the new value also sees all earlier writes of this thread.
    #[inline]
    pub(crate) fn set(&self, at: u32, word: u32) {
        self.word(at).store(word, Ordering::Release);
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let branches = self.root.iter().filter_map(OnceLock::get);
        let bytes = branches.map(|branch| {
            let leaves = branch.iter().filter(|leaf| leaf.get().is_some());
            size_of_val(&**branch) + (leaves.count() << (LEAF_BITS + 2))
        });
        (size_of_val(&*self.root) + bytes.sum::<usize>()) as u64
    }
}

pub(crate) type PageBytes = Arc<[u8]>;

/// The number of parts of the map of dirty pages, each with its own lock.
const SHARDS: usize = 16;

#[derive(Default)]
pub(crate) struct Unwritten {
    /// A bit for each page, so that a search takes a lock only for a dirty page.
    bits: Words,
    /// Whether pages share bits: pages with equal numbers modulo [`FEW_BITS`] have one bit.
    few: bool,
    shards: [RwLock<HashMap<u32, PageBytes>>; SHARDS],
}

/// All pages with the same bit are in one shard.
const FEW_BITS: u32 = 1 << 16;
const _: () = assert!(FEW_BITS.is_multiple_of(SHARDS as u32));

impl Unwritten {
    fn of_few() -> Self {
        Self {
            few: true,
            ..Self::default()
        }
    }

    #[inline]
    fn bit(&self, page: u32) -> u32 {
        if self.few { page % FEW_BITS } else { page }
    }

    fn shard(&self, page: u32) -> &RwLock<HashMap<u32, PageBytes>> {
        &self.shards[page as usize % SHARDS]
    }

    #[inline]
    pub(crate) fn get(&self, page: u32) -> Option<PageBytes> {
        let bit = self.bit(page);
        if self.bits.get(bit / 32) & (1 << (bit % 32)) == 0 {
            return None;
        }
        self.shard(page).read().get(&page).cloned()
    }

    /// Adds a dirty page, before any node is placed on this page.
    pub(crate) fn insert(&self, page: u32, bytes: PageBytes) {
        // The bit and the entry change together under the lock. So a thread that removes an old
        // version does not clear the bit of a newer version.
        let mut shard = self.shard(page).write();
        shard.insert(page, bytes);
        let bit = self.bit(page);
        self.bits
            .word(bit / 32)
            .fetch_or(1 << (bit % 32), Ordering::Release);
    }

    pub(crate) fn all(&self) -> Vec<(u32, PageBytes)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            all.extend(shard.iter().map(|(&page, bytes)| (page, bytes.clone())));
        }
        all
    }

    /// Removes a page that is on storage, unless newer bytes have replaced it.
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

#[derive(Default)]
pub(crate) struct Pins {
    now: AtomicU64,
    begun: Mutex<BTreeMap<u64, usize>>,
}

/// A running search, which may read every page that was in use when it began.
pub(crate) struct Pin<'a> {
    pins: &'a Pins,
    since: u64,
}

impl Pins {
    pub(crate) fn pin(&self) -> Pin<'_> {
        let mut begun = self.begun.lock();
        let since = self.now.load(Ordering::Acquire);
        *begun.entry(since).or_insert(0) += 1;
        Pin { pins: self, since }
    }

    /// Ends the current epoch and returns it. A later search does not use pages that were released
    /// in this epoch.
    pub(crate) fn advance(&self) -> u64 {
        // Because of the lock, each search that read the old epoch is registered now.
        let _begun = self.begun.lock();
        self.now.fetch_add(1, Ordering::AcqRel)
    }

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

/// The page number of a node that moves, or whose insert has not given it a page yet.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// The table's entry for a node that moves after its insert has finished.
const ON_ITS_WAY: u32 = u32::MAX - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    On(u64),
    Moves,
    /// The insert of the node was not acknowledged. It is not finished, or was given up.
    NotYet,
}

const YIELDS: u32 = 1_000;
/// The number of sleeps, 100 ms in all. If the node has no page after these sleeps, its insert was
/// given up.
const NAPS: u32 = 500;
/// The number of sleeps, 10 s in all, if the node was on a page before.
const NAPS_OF_MOVED: u32 = 50_000;
const NAP: Duration = Duration::from_micros(200);

#[derive(Default)]
pub(crate) struct Placement {
    nodes: AtomicU32,
    /// The number of nodes on a page, if the page follows from the node's number. 0 if a table has
    /// the pages.
    a_page: u32,
    page_of: Words,
    pages: AtomicU32,
    pub(crate) unwritten: Unwritten,
    pub(crate) pending: Pending,
    pub(crate) pins: Pins,
    pub(crate) lists: ListCounts,
    /// The cache of hot records, which must not return old versions of rewritten records.
    pub(crate) cache: OnceLock<Arc<SlotCache>>,
}

impl Placement {
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

    pub(crate) fn even(nodes: u32, a_page: u32) -> Self {
        Self {
            nodes: AtomicU32::new(nodes),
            a_page,
            unwritten: Unwritten::of_few(),
            pending: Pending::coded(),
            ..Self::default()
        }
    }

    pub(crate) fn count(&self, file: &PlacementFile) {
        for (node, &count) in (file.built..).zip(&file.lists) {
            self.lists.set(node, count);
        }
    }

    pub(crate) fn is_even(&self) -> bool {
        self.a_page > 0
    }

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

    #[inline]
    pub(crate) fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Acquire)
    }

    /// Adds the next node. All other data of the node, especially its code, must be stored before.
    pub(crate) fn push(&self, node: u32, page: u32) {
        if self.a_page == 0 {
            self.page_of.set(node, page);
        }
        self.nodes.store(node + 1, Ordering::Release);
    }

    #[inline]
    pub(crate) fn page_of(&self, node: u32) -> u32 {
        match self.a_page {
            0 => match self.page_of.get(node) {
                ON_ITS_WAY => NOWHERE,
                page => page,
            },
            nodes => node / nodes,
        }
    }

    pub(crate) fn standing(&self, node: u32) -> Standing {
        match self.page_of.get(node) {
            ON_ITS_WAY => Standing::Moves,
            NOWHERE => Standing::NotYet,
            page => Standing::On(page.into()),
        }
    }

    /// Waits until a node that moves is on its next page, or returns [`NOWHERE`]. A move needs no
    /// read, so the wait is short.
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

    /// The record of a node is on `page` from now on. The page is
    /// [`unwritten`](Placement::unwritten), or [`NOWHERE`] during a move.
    pub(crate) fn relocate(&self, node: u32, page: u32) {
        // First the node is removed from the cache, because the cache may have an old record of the
        // node from this page.
        if let Some(cache) = self.cache.get() {
            cache.remove(node);
        }
        let leaves = page == NOWHERE && self.page_of(node) != NOWHERE;
        self.page_of
            .set(node, if leaves { ON_ITS_WAY } else { page });
    }

    pub(crate) fn replace(&self, page: u32, bytes: PageBytes) {
        self.unwritten.insert(page, bytes);
        if let Some(cache) = self.cache.get() {
            // A search that caches a record from now on sees that the page is dirty.
            fence(Ordering::SeqCst);
            let first = page.saturating_mul(self.a_page);
            (first..first.saturating_add(self.a_page)).for_each(|node| cache.remove(node));
        }
    }

    /// Called after a search has cached a record. If the page was rewritten since, the record is
    /// removed from the cache, by this call or by the thread that rewrote the page.
    pub(crate) fn was_cached(&self, cache: &SlotCache, node: u32, page: u32) {
        if self.is_even() {
            fence(Ordering::SeqCst);
            if self.unwritten.get(page).is_some() {
                cache.remove(node);
            }
        }
    }

    pub(crate) fn pages(&self) -> u32 {
        match self.a_page {
            0 => self.pages.load(Ordering::Acquire),
            nodes => self.nodes().div_ceil(nodes),
        }
    }

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

    pub(crate) fn add_page(&self) -> u32 {
        self.pages.fetch_add(1, Ordering::AcqRel)
    }

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
        assert!(
            unwritten.get(40).is_some(),
            "the removal hit bytes that were inserted later"
        );
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
                        // When the page is not dirty any more, a thread may add the next version.
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
