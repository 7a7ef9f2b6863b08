//! Pending changes, which wait in memory until their page is written. A pending change adds a
//! neighbour to a list, removes a neighbour, or is the record of a node that is on no page yet.
//!
//! ```text
//!   page 17    node 4: + 9001          the new node 9001 needs a link from node 4
//!              node 7: + 9001 - 12     and from node 7, whose full list drops node 12
//!              record of node 9001     the new node itself
//! ```
//!
//! An insert adds a back link to tens of lists, on about as many pages. OdinANN §3.2 writes the
//! changed records together to other pages. In this engine, records stay near their neighbours.
//! Changes take some ten bytes each, and wait until a page has enough of them.
//!
//! Each search applies the pending changes to the lists that it reads. If the changes are lost,
//! they can be computed again from the vectors in the log. So a loss costs only time.
//!
//! If codes are beside lists (`inline`), the codes of nodes that the changes add are also in
//! memory. Bits mark pages with pending changes. Pages with equal numbers modulo 65,536 share a
//! bit, so that the bits do not grow with the index.
//!
//! Changes treat a list as a set, so their order and their repetition make no difference.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::placement::Words;

const SHARDS: usize = 64;

const PAGE_BITS: u32 = 1 << 16;
const _: () = assert!(PAGE_BITS.is_multiple_of(SHARDS as u32));

pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) node: u32,
    pub(crate) add: u32,
    pub(crate) remove: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewRecord {
    pub(crate) node: u32,
    pub(crate) id: u64,
    pub(crate) vector: Box<[u8]>,
    pub(crate) list: Box<[u32]>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) changes: Vec<Change>,
    pub(crate) records: Vec<Arc<NewRecord>>,
    /// Whether a thread is building the page.
    taken: bool,
}

/// The weight of a new record, as a number of changes. A search needs two look-ups for a new
/// record, so its page is written sooner.
const RECORD_WEIGHT: usize = 2;

impl Waiting {
    fn weight(&self) -> usize {
        self.changes.len() + RECORD_WEIGHT * self.records.len()
    }

    fn bytes(&self) -> u64 {
        let records = self.records.iter().map(|record| {
            record.vector.len() + 4 * record.list.len() + size_of::<NewRecord>() + 32
        });
        let waits = records.sum::<usize>() + self.changes.len() * size_of::<Change>();
        (waits + size_of::<Waiting>()) as u64
    }
}

pub(crate) struct Pending {
    /// A bit for each node whose list has pending changes. If codes are beside lists, there is a
    /// bit for each page instead. A search takes a lock only if the bit is set. A bit is cleared
    /// only when the change is on a page.
    bits: Words,
    codes: Option<RwLock<HashMap<u32, Box<[u8]>>>>,
    pages: Words,
    bytes: AtomicU64,
    shards: [RwLock<HashMap<u32, Waiting>>; SHARDS],
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            bits: Words::default(),
            codes: None,
            pages: Words::default(),
            bytes: AtomicU64::new(0),
            shards: std::array::from_fn(|_| RwLock::default()),
        }
    }
}

fn mark(bits: &Words, at: u32) {
    bits.word(at / 32)
        .fetch_or(1 << (at % 32), Ordering::Release);
}

fn clear(bits: &Words, at: u32) {
    bits.word(at / 32)
        .fetch_and(!(1 << (at % 32)), Ordering::Release);
}

#[inline]
fn marked(bits: &Words, at: u32) -> bool {
    bits.get(at / 32) & (1 << (at % 32)) != 0
}

impl Pending {
    pub(crate) fn coded() -> Self {
        Self {
            codes: Some(RwLock::default()),
            ..Self::default()
        }
    }

    #[inline]
    fn bit(&self, page: u32, node: u32) -> u32 {
        match self.codes {
            // All pages with the same bit are in one shard.
            Some(_) => page % PAGE_BITS,
            None => node,
        }
    }

    fn shard(&self, page: u32) -> &RwLock<HashMap<u32, Waiting>> {
        &self.shards[page as usize % SHARDS]
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let codes = self.codes.as_ref().map_or(0, |codes| {
            let codes = codes.read();
            let entry = size_of::<(u32, Box<[u8]>)>() + 16;
            codes.values().map(|code| code.len() + entry).sum()
        });
        // On average, the capacity of a `Vec` exceeds its length by half.
        let waits = self.bytes() * 3 / 2 + codes as u64;
        waits + self.bits.memory_bytes() + self.pages.memory_bytes()
    }

    #[inline]
    pub(crate) fn amend(&self, page: u32, node: u32, list: &mut Vec<u32>) {
        if marked(&self.bits, self.bit(page, node)) {
            let shard = self.shard(page).read();
            if let Some(waiting) = shard.get(&page) {
                apply(&waiting.changes, node, list);
            }
        }
    }

    /// Applies pending changes to a list and its `codes`. The updated codes are written to
    /// `amended`. The result is false if the page has no pending changes.
    #[inline]
    pub(crate) fn amend_coded(
        &self,
        page: u32,
        node: u32,
        list: &mut Vec<u32>,
        codes: &[u8],
        amended: &mut Vec<u8>,
    ) -> bool {
        let (Some(known), true) = (&self.codes, marked(&self.bits, self.bit(page, node))) else {
            return false;
        };
        let shard = self.shard(page).read();
        let Some(waiting) = shard.get(&page) else {
            return false;
        };
        amended.clear();
        amended.extend_from_slice(codes);
        let known = known.read();
        for change in waiting.changes.iter().filter(|change| change.node == node) {
            if let Some(code) = known.get(&change.add) {
                apply_coded(change, code, list, amended);
            }
        }
        true
    }

    pub(crate) fn learn(&self, node: u32, code: &[u8]) {
        if let Some(codes) = &self.codes {
            codes.write().insert(node, code.into());
        }
    }

    pub(crate) fn has(&self, page: u32) -> bool {
        self.shard(page).read().contains_key(&page)
    }

    /// Removes the changes of a page, which was rewritten in place with these changes.
    pub(crate) fn settled(&self, page: u32) {
        let mut shard = self.shard(page).write();
        if let Some(waiting) = shard.remove(&page) {
            self.bytes.fetch_sub(waiting.bytes(), Ordering::Relaxed);
            let bit = self.bit(page, NONE);
            if !shard.keys().any(|&other| self.bit(other, NONE) == bit) {
                clear(&self.bits, bit);
            }
        }
    }

    /// Drops all codes. No change may be pending.
    pub(crate) fn forget_codes(&self) {
        if let Some(codes) = &self.codes {
            *codes.write() = HashMap::new();
        }
    }

    pub(crate) fn record(&self, page: u32, node: u32) -> Option<Arc<NewRecord>> {
        let shard = self.shard(page).read();
        let records = &shard.get(&page)?.records;
        records.iter().find(|record| record.node == node).cloned()
    }

    #[inline]
    pub(crate) fn records_of(&self, page: u32, out: &mut Vec<u32>) {
        if marked(&self.pages, page)
            && let Some(waiting) = self.shard(page).read().get(&page)
        {
            out.extend(waiting.records.iter().map(|record| record.node));
        }
    }

    /// Adds to the changes of `page`. Under the page's lock, `still` checks that the page is still
    /// right. Returns the new weight.
    fn add(
        &self,
        page: u32,
        (bits, at): (&Words, u32),
        still: impl FnOnce() -> bool,
        add: impl FnOnce(&mut Waiting),
    ) -> Option<usize> {
        let mut shard = self.shard(page).write();
        if !still() {
            return None;
        }
        // Bits are set and cleared only under the lock.
        mark(bits, at);
        let waiting = shard.entry(page).or_default();
        // If `take_any` created the entry, its bytes are already counted.
        let known = waiting.taken || waiting.weight() > 0;
        let before = if known { waiting.bytes() } else { 0 };
        add(waiting);
        self.bytes
            .fetch_add(waiting.bytes() - before, Ordering::Relaxed);
        Some(waiting.weight())
    }

    /// Adds a change, if `still` confirms under the page's lock that the node is on `page`. Returns
    /// the new weight.
    pub(crate) fn change(
        &self,
        page: u32,
        change: Change,
        still: impl FnOnce() -> bool,
    ) -> Option<usize> {
        let bit = (&self.bits, self.bit(page, change.node));
        self.add(page, bit, still, |waiting| waiting.changes.push(change))
    }

    /// Adds a record, if `still` confirms under the page's lock that `page` is in use. `then` runs
    /// under this lock.
    pub(crate) fn append(
        &self,
        page: u32,
        record: Arc<NewRecord>,
        still: impl FnOnce() -> bool,
        then: impl FnOnce(),
    ) -> Option<usize> {
        self.add(page, (&self.pages, page), still, |waiting| {
            waiting.records.push(record);
            then();
        })
    }

    pub(crate) fn weight(&self, page: u32) -> usize {
        let shard = self.shard(page).read();
        shard.get(&page).map_or(0, Waiting::weight)
    }

    /// Takes the changes of a page, to write them. The changes stay pending until
    /// [`settle`](Pending::settle). `None` if there are no changes, or if another thread writes the
    /// page.
    pub(crate) fn take(&self, page: u32) -> Option<Waiting> {
        let mut shard = self.shard(page).write();
        let waiting = shard.get_mut(&page)?;
        if waiting.taken {
            return None;
        }
        waiting.taken = true;
        Some(waiting.clone())
    }

    /// Takes the changes of a page that is written together with other pages. `None` if another
    /// thread writes the page.
    pub(crate) fn take_any(&self, page: u32) -> Option<Waiting> {
        let mut shard = self.shard(page).write();
        if let Some(waiting) = shard.get_mut(&page) {
            if waiting.taken {
                return None;
            }
            waiting.taken = true;
            return Some(waiting.clone());
        }
        let waiting = Waiting {
            taken: true,
            ..Waiting::default()
        };
        self.bytes.fetch_add(waiting.bytes(), Ordering::Relaxed);
        shard.insert(page, waiting.clone());
        Some(waiting)
    }

    /// Ends the write of a page whose taken changes are on other pages now. Under the page's lock,
    /// `leave` receives the changes that were added meanwhile, and moves the nodes off the page.
    /// Returns the later changes.
    pub(crate) fn settle(
        &self,
        page: u32,
        taken: &Waiting,
        leave: impl FnOnce(&Waiting),
    ) -> Waiting {
        let mut shard = self.shard(page).write();
        let mut rest = shard.remove(&page).unwrap_or_default();
        self.bytes.fetch_sub(rest.bytes(), Ordering::Relaxed);
        rest.changes.drain(..taken.changes.len());
        rest.records.drain(..taken.records.len());
        // `leave` runs before the marks are cleared. So a search that finds no mark also sees that
        // the node has left the page.
        leave(&rest);
        for change in &taken.changes {
            clear(&self.bits, change.node);
        }
        clear(&self.pages, page);
        rest
    }

    pub(crate) fn give_back(&self, page: u32) {
        if let Some(waiting) = self.shard(page).write().get_mut(&page) {
            waiting.taken = false;
        }
    }

    pub(crate) fn all(&self) -> (Vec<Change>, Vec<(u32, Arc<NewRecord>)>) {
        let (mut changes, mut records) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            for (&page, waiting) in &*shard.read() {
                changes.extend_from_slice(&waiting.changes);
                records.extend(waiting.records.iter().map(|record| (page, record.clone())));
            }
        }
        (changes, records)
    }
}

pub(crate) fn apply(changes: &[Change], node: u32, list: &mut Vec<u32>) {
    for change in changes.iter().filter(|change| change.node == node) {
        if change.remove != NONE
            && let Some(at) = list.iter().position(|&link| link == change.remove)
        {
            list.swap_remove(at);
        }
        if !list.contains(&change.add) {
            list.push(change.add);
        }
    }
}

/// Applies a change to a list and its codes. A new neighbour gets the position of the removed
/// neighbour.
fn apply_coded(change: &Change, code: &[u8], list: &mut Vec<u32>, codes: &mut Vec<u8>) {
    let place = |node: u32, list: &[u32]| list.iter().position(|&link| link == node);
    let leaves = match change.remove {
        NONE => None,
        remove => place(remove, list),
    };
    let bytes = |at: usize| at * code.len()..(at + 1) * code.len();
    match (leaves, place(change.add, list)) {
        (Some(at), None) => {
            list[at] = change.add;
            codes[bytes(at)].copy_from_slice(code);
        }
        (None, None) => {
            list.push(change.add);
            codes.extend_from_slice(code);
        }
        (Some(at), Some(_)) => {
            list.remove(at);
            codes.drain(bytes(at));
        }
        (None, Some(_)) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(node: u32, add: u32, remove: u32) -> Change {
        Change { node, add, remove }
    }

    #[test]
    fn a_list_is_amended_until_its_page_is_written() {
        let pending = Pending::default();
        let amended = |node: u32| {
            let mut list = vec![1, 2, 3];
            pending.amend(17, node, &mut list);
            list.sort_unstable();
            list
        };
        assert_eq!(pending.change(17, change(4, 9, 2), || true), Some(1));
        assert_eq!(pending.change(17, change(5, 9, NONE), || false), None);
        assert_eq!((amended(4), amended(5)), (vec![1, 3, 9], vec![1, 2, 3]));
        let taken = pending.take(17).unwrap();
        assert!(
            pending.take(17).is_none(),
            "two writers took the changes of one page"
        );
        assert_eq!(pending.change(17, change(4, 10, 9), || true), Some(2));
        assert_eq!(
            amended(4),
            [1, 3, 10],
            "a change is invisible while its page is written"
        );
        let rest = pending.settle(17, &taken, |_| {});
        assert_eq!(rest.changes, [change(4, 10, 9)]);
        assert_eq!((amended(4), pending.bytes()), (vec![1, 2, 3], 0));
    }

    #[test]
    fn a_list_is_marked_until_its_node_has_left_the_page() {
        let pending = Pending::default();
        pending.change(17, change(4, 9, NONE), || true);
        let taken = pending.take(17).unwrap();
        // A search that reads the list waits for the lock, and then sees that the node has moved.
        pending.settle(17, &taken, |_| assert!(marked(&pending.bits, 4)));
        assert!(!marked(&pending.bits, 4));
        // Now the node is on page 18, and another thread adds a link to node 11.
        assert_eq!(pending.change(18, change(4, 11, NONE), || true), Some(1));
        let mut list = vec![1];
        pending.amend(18, 4, &mut list);
        assert_eq!(list, [1, 11]);
    }

    #[test]
    fn a_list_is_amended_together_with_the_codes_beside_it() {
        let pending = Pending::coded();
        let amended = |page, node| {
            let (mut list, mut codes) = (vec![1, 2, 3], Vec::new());
            let some = pending.amend_coded(page, node, &mut list, &[10, 20, 30], &mut codes);
            some.then_some((list, codes))
        };
        let (page, alike) = (17, 17 + PAGE_BITS);
        assert_eq!(amended(page, 4), None);
        pending.learn(9, &[90]);
        pending.learn(8, &[80]);
        for changed in [
            change(4, 9, 2),
            change(4, 8, NONE),
            change(4, 9, 1),
            change(5, 8, 3),
        ] {
            pending.change(page, changed, || true);
        }
        pending.change(alike, change(6, 8, 7), || true);
        assert_eq!(amended(page, 4), Some((vec![9, 3, 8], vec![90, 30, 80])));
        assert_eq!(amended(page, 5), Some((vec![1, 2, 8], vec![10, 20, 80])));
        assert_eq!(
            amended(alike, 6),
            Some((vec![1, 2, 3, 8], vec![10, 20, 30, 80]))
        );
        assert!(pending.has(page) && !pending.has(page + 1));
        let (mut list, mut codes) = (vec![9, 3, 8], Vec::new());
        assert!(pending.amend_coded(page, 4, &mut list, &[90, 30, 80], &mut codes));
        assert_eq!((list, codes), (vec![9, 3, 8], vec![90, 30, 80]));
        // The bit stays set, because another page with the same bit has changes.
        pending.settled(page);
        assert_eq!(amended(page, 4), None);
        assert!(amended(alike, 6).is_some());
        pending.settled(alike);
        assert_eq!((amended(alike, 6), pending.bytes()), (None, 0));
        pending.forget_codes();
    }

    #[test]
    fn a_record_is_found_with_the_page_that_it_will_be_on() {
        let pending = Pending::default();
        let record = Arc::new(NewRecord {
            node: 9,
            id: 70,
            vector: [1, 2].into(),
            list: [4].into(),
        });
        let mut pushed = false;
        let weight = pending.append(3, record.clone(), || true, || pushed = true);
        assert_eq!((weight, pushed), (Some(RECORD_WEIGHT), true));
        assert_eq!(pending.record(3, 9), Some(record));
        assert_eq!((pending.record(3, 8), pending.record(4, 9)), (None, None));
        let mut nodes = Vec::new();
        (0..5).for_each(|page| pending.records_of(page, &mut nodes));
        assert_eq!(nodes, [9]);
        pending.give_back(3);
        let taken = pending.take(3).unwrap();
        assert!(pending.settle(3, &taken, |_| {}).records.is_empty());
        assert!(pending.record(3, 9).is_none() && pending.all().1.is_empty());
    }
}
