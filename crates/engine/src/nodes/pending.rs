//! Changes that wait for their page to be written: neighbours to add and to drop, and nodes that are on no page yet.
//!
//! ```text
//!   page 17    node 4: + 9001          a new node asked 4 to link back
//!              node 7: + 9001 - 12     the same of 7, whose list was full: 12 leaves it
//!              record of node 9001     the new node itself
//! ```
//!
//! An insert asks tens of nodes to link back to it, and these are on about as many pages: to write each of them is what
//! OdinANN §3.2 avoids by writing the changed records together on other pages. Here they stay where they are, near
//! their neighbours, and changes wait in memory until a page has enough of them to be worth a write: some ten bytes a
//! change, where the record that it changes takes some hundred. The log has the vectors that they come from, so that
//! losing them costs nothing but time. Searches see them at once: a list that was read is amended.
//!
//! Changes are of sets, so that none is wrong if it is seen twice, or in another order: a neighbour that is there is not
//! added, one that is not there is not dropped, and a node is added to a list once, when it is new.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::placement::Words;

/// Parts of the map, each with a lock.
const SHARDS: usize = 64;

/// No node.
pub(crate) const NONE: u32 = u32::MAX;

/// What a list is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Whose list.
    pub(crate) node: u32,
    /// Who joins it.
    pub(crate) add: u32,
    /// Who leaves it, or [`NONE`].
    pub(crate) remove: u32,
}

/// A node that is on no page yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewRecord {
    pub(crate) node: u32,
    /// The outside id.
    pub(crate) id: u64,
    /// The vector's bytes, as they came.
    pub(crate) vector: Box<[u8]>,
    /// Its neighbours.
    pub(crate) list: Box<[u32]>,
}

/// What waits for one page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) changes: Vec<Change>,
    pub(crate) records: Vec<Arc<NewRecord>>,
    /// Someone is composing the page.
    taken: bool,
}

/// What a new record weighs beside a change: a page with one is written sooner, since reading it takes two looks.
const RECORD_WEIGHT: usize = 2;

impl Waiting {
    /// How much waits, in changes.
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

/// Everything that waits, by page.
pub(crate) struct Pending {
    /// A bit for each node whose list is to change or whose record is here, so that a search takes a lock for those only.
    /// A bit that is set in vain costs a look; none is cleared before its change is on a page.
    bits: Words,
    /// The same for pages with records.
    pages: Words,
    bytes: AtomicU64,
    shards: [RwLock<HashMap<u32, Waiting>>; SHARDS],
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            bits: Words::default(),
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
    fn shard(&self, page: u32) -> &RwLock<HashMap<u32, Waiting>> {
        &self.shards[page as usize % SHARDS]
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of memory that it takes, about.
    pub(crate) fn memory_bytes(&self) -> u64 {
        // Vectors grow by half on average beyond what they hold.
        self.bytes() * 3 / 2 + self.bits.memory_bytes() + self.pages.memory_bytes()
    }

    /// Amends a list that was read from `page`.
    #[inline]
    pub(crate) fn amend(&self, page: u32, node: u32, list: &mut Vec<u32>) {
        if marked(&self.bits, node) {
            let shard = self.shard(page).read();
            if let Some(waiting) = shard.get(&page) {
                apply(&waiting.changes, node, list);
            }
        }
    }

    /// The record of a node that is said to be on `page` and is not there.
    pub(crate) fn record(&self, page: u32, node: u32) -> Option<Arc<NewRecord>> {
        let shard = self.shard(page).read();
        let records = &shard.get(&page)?.records;
        records.iter().find(|record| record.node == node).cloned()
    }

    /// Nodes that belong to a page and are not on it yet, at the end of `out`.
    #[inline]
    pub(crate) fn records_of(&self, page: u32, out: &mut Vec<u32>) {
        if marked(&self.pages, page)
            && let Some(waiting) = self.shard(page).read().get(&page)
        {
            out.extend(waiting.records.iter().map(|record| record.node));
        }
    }

    /// Adds to what waits for `page`, if `still` says, under the page's lock, that it is the right one. Gives how much
    /// waits for it now.
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
        // Under the lock, as they are cleared.
        mark(bits, at);
        let waiting = shard.entry(page).or_default();
        // One that was made for the taking is counted already.
        let known = waiting.taken || waiting.weight() > 0;
        let before = if known { waiting.bytes() } else { 0 };
        add(waiting);
        self.bytes
            .fetch_add(waiting.bytes() - before, Ordering::Relaxed);
        Some(waiting.weight())
    }

    /// Adds a change to what waits for `page`, if `still` says, under the page's lock, that its node is there. Gives how
    /// much waits for the page now.
    pub(crate) fn change(
        &self,
        page: u32,
        change: Change,
        still: impl FnOnce() -> bool,
    ) -> Option<usize> {
        let bit = (&self.bits, change.node);
        self.add(page, bit, still, |waiting| waiting.changes.push(change))
    }

    /// Adds a record to what waits for `page`, if `still` says, under the page's lock, that the page is in use; `then` is done
    /// under the same lock.
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

    /// How much waits for a page, in changes.
    pub(crate) fn weight(&self, page: u32) -> usize {
        let shard = self.shard(page).read();
        shard.get(&page).map_or(0, Waiting::weight)
    }

    /// What waits for a page, to be written now. It goes on to wait until [`settle`](Pending::settle). None if nothing does,
    /// or someone else is writing it.
    pub(crate) fn take(&self, page: u32) -> Option<Waiting> {
        let mut shard = self.shard(page).write();
        let waiting = shard.get_mut(&page)?;
        if waiting.taken {
            return None;
        }
        waiting.taken = true;
        Some(waiting.clone())
    }

    /// As [`take`](Pending::take), of a page that is written for another's sake: perhaps nothing waits for it. None if
    /// someone else is writing it.
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

    /// What was taken of a page is on others now, as `relocate` makes known under the page's lock, which is told what came
    /// meanwhile; gives that.
    pub(crate) fn settle(
        &self,
        page: u32,
        taken: &Waiting,
        relocate: impl FnOnce(&Waiting),
    ) -> Waiting {
        let mut shard = self.shard(page).write();
        let mut rest = shard.remove(&page).unwrap_or_default();
        self.bytes.fetch_sub(rest.bytes(), Ordering::Relaxed);
        rest.changes.drain(..taken.changes.len());
        rest.records.drain(..taken.records.len());
        relocate(&rest);
        for change in &taken.changes {
            clear(&self.bits, change.node);
        }
        clear(&self.pages, page);
        for change in &rest.changes {
            mark(&self.bits, change.node);
        }
        rest
    }

    /// Gives back what was taken: its page could not be written.
    pub(crate) fn give_back(&self, page: u32) {
        if let Some(waiting) = self.shard(page).write().get_mut(&page) {
            waiting.taken = false;
        }
    }

    /// All that waits: the changes, and the records, each with its page.
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

/// Applies the changes of a node to its list.
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
        assert!(pending.take(17).is_none(), "one at a time");
        assert_eq!(pending.change(17, change(4, 10, 9), || true), Some(2));
        assert_eq!(amended(4), [1, 3, 10], "it is seen while it is written");
        let rest = pending.settle(17, &taken, |_| {});
        assert_eq!(rest.changes, [change(4, 10, 9)]);
        assert_eq!((amended(4), pending.bytes()), (vec![1, 2, 3], 0));
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
