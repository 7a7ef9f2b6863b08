//! The pages of a graph with direct inserts: their use, and the threads that write them.
//!
//! ```text
//!   take ──> composed, dirty ──writer──> on storage ──the last record leaves──> without records
//!    ^                                                                                 │
//!    │             if the last checkpoint names the page: waits for the next checkpoint│
//!    │             if an earlier search may still read the page: rests until its end   │
//!    └── empty, or spare ──────────────────────────────────────────────────────────────┘
//! ```
//!
//! **Shadow pages.** A page that the last checkpoint names is not overwritten before the next
//! commit, so the checkpoint survives a crash. A page that was composed and emptied between two
//! checkpoints is free as soon as no search reads it. No record is moved only to free a page.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use stratann_layout::BLOCK;
use stratann_tier::{TierError, VolumeFile};

use crate::Error;
use crate::stores::topology::placement::{NOWHERE, PageBytes, Placement};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// For changed and new records (OdinANN §3.2.2, rule 1). The records of this page have moved
    /// away one by one.
    Empty,
    /// For records of another page that move together (rule 2). The records of this page have moved
    /// in the same way, so such moves use no empty pages.
    Spare,
}

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    live: u16,
    /// The bytes of the records on the page, or [`FULL`] if unknown.
    used: u16,
    /// The interval between two checkpoints in which the page was composed.
    born: u32,
}

/// The value of `used` for a page that was not composed since the index was opened.
const FULL: u16 = u16::MAX;

struct State {
    pages: Vec<Page>,
    empty: Vec<u32>,
    spare: Vec<u32>,
    /// Pages in the order of their timestamps. A page becomes free when all searches that began
    /// before its timestamp have ended.
    resting: VecDeque<(u64, u32, Use)>,
    /// Pages that only the last checkpoint names. These pages are not reused before the next
    /// commit.
    waiting: Vec<(u32, Use)>,
    /// The number of the present interval between two checkpoints.
    interval: u32,
}

#[derive(Default)]
struct Queue {
    pages: VecDeque<u32>,
    writing: usize,
    failed: Vec<u32>,
    error: Option<TierError>,
    stop: bool,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) composed: AtomicU64,
    pub(super) written: AtomicU64,
}

pub(super) struct PageStore {
    state: Mutex<State>,
    queue: Mutex<Queue>,
    /// Signals that there is a page to write, or that the writers are to end.
    work: Condvar,
    /// Signals that a page was written, or that a write failed.
    done: Condvar,
    page_bytes: usize,
    /// The maximum number of dirty pages that wait for their write.
    most: usize,
    /// Whether a page is never reused, since a memory budget keeps the page in memory as the build
    /// wrote it.
    kept: Box<dyn Fn(u32) -> bool + Send + Sync>,
    pub(super) counts: Counts,
}

const PAGE_HEADER: usize = 32;

impl PageStore {
    /// The state of the pages of a placement. A checkpoint names all of these pages. `kept` selects
    /// pages that stay unchanged. If pages are rewritten in place, no states are needed.
    pub(super) fn new(
        placement: &Placement,
        page_bytes: usize,
        most: usize,
        kept: Box<dyn Fn(u32) -> bool + Send + Sync>,
    ) -> Self {
        let unknown = Page {
            used: FULL,
            ..Page::default()
        };
        let moves = !placement.is_even();
        let count = if moves { placement.pages() } else { 0 };
        let mut pages = vec![unknown; count as usize];
        for node in (0..placement.nodes()).take_while(|_| moves) {
            if let Some(page) = pages.get_mut(placement.page_of(node) as usize) {
                page.live = page.live.saturating_add(1);
            }
        }
        let free = |(_, page): &(u32, &Page)| page.live == 0;
        let empty = (0..).zip(&pages).filter(free).map(|(number, _)| number);
        let empty: Vec<u32> = empty.filter(|&page| !kept(page)).collect();
        Self {
            state: Mutex::new(State {
                empty,
                spare: Vec::new(),
                resting: VecDeque::new(),
                waiting: Vec::new(),
                interval: 1,
                pages,
            }),
            queue: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            page_bytes,
            most,
            kept,
            counts: Counts::default(),
        }
    }

    pub(super) fn live(&self, page: u32) -> usize {
        let state = self.state.lock();
        state
            .pages
            .get(page as usize)
            .map_or(0, |page| page.live.into())
    }

    pub(super) fn used(&self, page: u32) -> usize {
        let state = self.state.lock();
        match state.pages.get(page as usize) {
            Some(page) if page.used != FULL => page.used.into(),
            _ => self.page_bytes,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.page_bytes - PAGE_HEADER
    }

    pub(super) fn take_empty(&self, placement: &Placement) -> Option<u32> {
        let mut state = self.state.lock();
        state.wake(placement);
        state.empty.pop()
    }

    /// A page for the records of another page: spare, or else empty, or else new.
    pub(super) fn take_spare(&self, placement: &Placement) -> u32 {
        let mut state = self.state.lock();
        state.wake(placement);
        let spare = state.spare.pop().or_else(|| state.empty.pop());
        drop(state);
        spare.unwrap_or_else(|| self.take_new(placement))
    }

    /// A free page, or else a new page.
    pub(super) fn take_any(&self, placement: &Placement) -> u32 {
        let mut state = self.state.lock();
        state.wake(placement);
        let free = state.empty.pop().or_else(|| state.spare.pop());
        drop(state);
        free.unwrap_or_else(|| self.take_new(placement))
    }

    pub(super) fn take_new(&self, placement: &Placement) -> u32 {
        let page = placement.add_page();
        let mut state = self.state.lock();
        if state.pages.len() <= page as usize {
            state.pages.resize(page as usize + 1, Page::default());
        }
        page
    }

    /// Frees a page that was taken but not used.
    pub(super) fn give_back(&self, page: u32) {
        self.state.lock().empty.push(page);
    }

    /// Makes a composed page visible to searches. The page counts as in use until
    /// [`release`](PageStore::release). Otherwise the page would be freed if its first nodes moved
    /// away before its last nodes were recorded.
    pub(super) fn publish(&self, placement: &Placement, page: u32, bytes: PageBytes, used: usize) {
        {
            let mut state = self.state.lock();
            let interval = state.interval;
            let page = &mut state.pages[page as usize];
            page.live = 1;
            page.born = interval;
            page.used = u16::try_from(used).unwrap_or(FULL);
        }
        placement.unwritten.insert(page, bytes);
        self.counts.composed.fetch_add(1, Ordering::Relaxed);
    }

    /// All nodes of a published page are recorded. From now on, the page is freed when its last
    /// node leaves.
    pub(super) fn release(&self, placement: &Placement, page: u32) {
        self.state
            .lock()
            .leave(placement, page, Use::Empty, &self.kept);
    }

    /// Queues a published page for its write. All nodes of the page must be recorded.
    pub(super) fn enqueue(&self, page: u32) {
        self.queue.lock().pages.push_back(page);
        self.work.notify_one();
    }

    /// Records that nodes have moved to a page. An old page without nodes becomes free for the use
    /// `then`.
    pub(super) fn relocate(&self, placement: &Placement, nodes: &[u32], page: u32, then: Use) {
        let mut state = self.state.lock();
        for &node in nodes {
            let before = placement.page_of(node);
            placement.relocate(node, page);
            state.leave(placement, before, then, &self.kept);
            if page != NOWHERE {
                state.pages[page as usize].live += 1;
            }
        }
    }

    pub(super) fn join(&self, page: u32) {
        self.state.lock().pages[page as usize].live += 1;
    }

    pub(super) fn pace(&self) {
        let mut queue = self.queue.lock();
        while queue.pages.len() + queue.writing > self.most && queue.error.is_none() {
            self.done.wait(&mut queue);
        }
    }

    /// Waits until some published pages are written, or a write fails.
    pub(super) fn wait_for(&self, placement: &Placement, pages: &[u32]) {
        let mut queue = self.queue.lock();
        while queue.error.is_none()
            && pages
                .iter()
                .any(|&page| placement.unwritten.get(page).is_some())
        {
            self.done.wait(&mut queue);
        }
    }

    /// Writes queued pages on this thread until [`stop`](PageStore::stop).
    pub(super) fn write(&self, placement: &Placement, file: &mut dyn VolumeFile) {
        let mut queue = self.queue.lock();
        loop {
            let Some(page) = queue.pages.pop_front() else {
                if queue.stop {
                    return;
                }
                self.work.wait(&mut queue);
                continue;
            };
            queue.writing += 1;
            drop(queue);
            let outcome = self.write_one(placement, page, file);
            queue = self.queue.lock();
            queue.writing -= 1;
            if let Err(error) = outcome {
                queue.failed.push(page);
                queue.error.get_or_insert(error);
            }
            self.done.notify_all();
        }
    }

    fn write_one(
        &self,
        placement: &Placement,
        page: u32,
        file: &mut dyn VolumeFile,
    ) -> Result<(), TierError> {
        // An emptied page is written as well, since a search may be about to read it.
        if let Some(bytes) = placement.unwritten.get(page) {
            let offset = BLOCK as u64 + u64::from(page) * self.page_bytes as u64;
            file.write_at(offset, &bytes)?;
            self.counts.written.fetch_add(1, Ordering::Relaxed);
            placement.unwritten.remove(page, &bytes);
        }
        Ok(())
    }

    pub(super) fn retry(
        &self,
        placement: &Placement,
        file: &mut dyn VolumeFile,
    ) -> Result<(), Error> {
        let mut queue = self.queue.lock();
        while let Some(&page) = queue.failed.last() {
            self.write_one(placement, page, file)?;
            queue.failed.pop();
        }
        queue.error = None;
        self.done.notify_all();
        Ok(())
    }

    pub(super) fn has_failed(&self) -> bool {
        self.queue.lock().error.is_some()
    }

    /// Waits until all queued pages are written. No page may be composed during the call.
    pub(super) fn settle(&self) {
        let mut queue = self.queue.lock();
        while queue.pages.len() + queue.writing > 0 {
            self.done.wait(&mut queue);
        }
    }

    /// Ends the writer threads after they have written all queued pages.
    pub(super) fn stop(&self) {
        self.queue.lock().stop = true;
        self.work.notify_all();
    }

    /// After the durable commit of the present pages, pages that only the previous checkpoint named
    /// become free.
    pub(super) fn committed(&self, placement: &Placement) {
        let mut state = self.state.lock();
        state.interval += 1;
        let moment = placement.pins.advance();
        for (page, then) in std::mem::take(&mut state.waiting) {
            state.resting.push_back((moment, page, then));
        }
    }

    /// After an uncertain commit of the present pages, pages of either checkpoint are not reused
    /// before a durable commit.
    pub(super) fn undecided(&self) {
        self.state.lock().interval += 1;
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        (self.state.lock().pages.len() * size_of::<Page>()) as u64
    }

    /// The number of pages that only the last checkpoint names, and the number of pages with nodes.
    pub(super) fn held(&self) -> (usize, usize) {
        let state = self.state.lock();
        let queues = state.resting.len() + state.waiting.len();
        let free = queues + state.empty.len() + state.spare.len();
        (state.waiting.len(), state.pages.len().saturating_sub(free))
    }

    /// The number of pages without a node, including pages that cannot be reused yet.
    pub(super) fn free(&self) -> usize {
        let state = self.state.lock();
        let queues = state.resting.len() + state.waiting.len();
        queues + state.empty.len() + state.spare.len()
    }
}

impl State {
    fn leave(&mut self, placement: &Placement, page: u32, then: Use, kept: &dyn Fn(u32) -> bool) {
        let Some(left) = self.pages.get_mut(page as usize) else {
            return;
        };
        left.live = left.live.saturating_sub(1);
        if left.live > 0 || kept(page) {
            return;
        }
        if left.born == self.interval {
            self.resting
                .push_back((placement.pins.advance(), page, then));
        } else {
            self.waiting.push((page, then));
        }
    }

    fn wake(&mut self, placement: &Placement) {
        if self.resting.is_empty() {
            return;
        }
        let oldest = placement.pins.oldest();
        while let Some(&(moment, page, then)) = self.resting.front() {
            // A writer may still write the old content of a dirty page.
            if moment >= oldest || placement.unwritten.get(page).is_some() {
                break;
            }
            self.resting.pop_front();
            match then {
                Use::Empty => self.empty.push(page),
                Use::Spare => self.spare.push(page),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes() -> PageBytes {
        PageBytes::from([0; 8])
    }

    /// Two pages of the build, each with two nodes.
    fn store() -> (Placement, PageStore) {
        let placement = Placement::new([0, 0, 1, 1].into_iter(), 2);
        let store = PageStore::new(&placement, 8, 16, Box::new(|_| false));
        (placement, store)
    }

    #[test]
    fn a_page_that_a_checkpoint_names_waits_for_the_next_one() {
        let (placement, store) = store();
        let page = store.take_any(&placement);
        assert_eq!((page, placement.pages()), (2, 3));
        store.publish(&placement, page, bytes(), 8);
        store.relocate(&placement, &[0], page, Use::Empty);
        store.release(&placement, page);
        assert_eq!((store.live(0), store.live(2)), (1, 1));
        store.relocate(&placement, &[1], page, Use::Empty);
        assert_eq!((store.live(0), store.free()), (0, 1));
        assert_eq!(store.held(), (1, 2));
        assert_eq!(
            store.take_empty(&placement),
            None,
            "a page of the last checkpoint was reused"
        );
        store.committed(&placement);
        assert_eq!(store.held(), (0, 2));
        assert_eq!(store.take_empty(&placement), Some(0));
        assert_eq!(store.take_any(&placement), 3);
    }

    #[test]
    fn a_page_that_came_and_went_between_checkpoints_is_free_when_no_search_reads_it() {
        let (placement, store) = store();
        let page = store.take_any(&placement);
        store.publish(&placement, page, bytes(), 8);
        store.relocate(&placement, &[0], page, Use::Empty);
        store.release(&placement, page);
        let search = placement.pins.pin();
        let next = store.take_any(&placement);
        store.publish(&placement, next, bytes(), 8);
        store.relocate(&placement, &[0], next, Use::Spare);
        store.release(&placement, next);
        assert_eq!(
            store.take_empty(&placement),
            None,
            "a page that a search may read was reused"
        );
        drop(search);
        assert_eq!(
            store.take_spare(&placement),
            4,
            "the page is not written yet"
        );
        let bytes = placement.unwritten.get(page).unwrap();
        placement.unwritten.remove(page, &bytes);
        assert_eq!(store.take_spare(&placement), page);
    }

    #[test]
    fn a_page_stays_in_use_until_all_its_nodes_are_on_it() {
        let (placement, store) = store();
        let page = store.take_any(&placement);
        store.publish(&placement, page, bytes(), 8);
        let written = placement.unwritten.get(page).unwrap();
        placement.unwritten.remove(page, &written);
        store.relocate(&placement, &[0], page, Use::Empty);
        let other = store.take_any(&placement);
        store.publish(&placement, other, bytes(), 8);
        store.relocate(&placement, &[0], other, Use::Empty);
        store.release(&placement, other);
        assert_eq!(store.take_empty(&placement), None);
        store.relocate(&placement, &[2], page, Use::Empty);
        store.release(&placement, page);
        assert_eq!((store.live(page), store.take_empty(&placement)), (1, None));
        store.relocate(&placement, &[2], other, Use::Empty);
        assert_eq!(store.take_empty(&placement), Some(page));
    }

    #[test]
    fn what_cannot_be_written_is_tried_again() {
        #[derive(Debug)]
        struct Full(bool, Vec<u64>);
        impl VolumeFile for Full {
            fn write_at(&mut self, offset: u64, _: &[u8]) -> Result<(), TierError> {
                if self.0 {
                    let full = std::io::Error::from_raw_os_error(28);
                    return Err(TierError::io("write", "page", offset, 8, full));
                }
                self.1.push(offset);
                Ok(())
            }
            fn len(&self) -> u64 {
                0
            }
            fn set_len(&mut self, _: u64) -> Result<(), TierError> {
                Ok(())
            }
            fn sync(&mut self) -> Result<(), TierError> {
                Ok(())
            }
        }
        let (placement, store) = store();
        let page = store.take_any(&placement);
        store.publish(&placement, page, bytes(), 8);
        store.relocate(&placement, &[0], page, Use::Empty);
        store.release(&placement, page);
        store.enqueue(page);
        store.stop();
        let mut file = Full(true, Vec::new());
        store.write(&placement, &mut file);
        assert!(store.has_failed() && placement.unwritten.get(page).is_some());
        assert!(store.retry(&placement, &mut file).is_err());
        file.0 = false;
        store.retry(&placement, &mut file).unwrap();
        assert!(!store.has_failed() && placement.unwritten.get(page).is_none());
        assert_eq!(file.1, [BLOCK as u64 + 16]);
    }
}
