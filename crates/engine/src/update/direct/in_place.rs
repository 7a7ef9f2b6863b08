//! The strategy that rewrites pages in place, through a journal, so that an index without codes or
//! tables in memory takes inserts.
//!
//! ```text
//!   insert of p:   p gets the next number, which gives its page; the page is composed in memory
//!                  for each neighbour n, the change "p joins the list of n" waits;
//!                  the code of p waits once
//!   search:        applies pending changes to each list that it reads, and to its codes
//!   checkpoint:    each changed page is composed ──> journal, which MANIFEST names
//!                  after the commit, each of these pages is composed again and written in place
//! ```
//!
//! If records move ([`relocate`](super::relocate), [`accumulate`](super::accumulate)), a table in
//! memory has 4 bytes for each node. In AiSAQ (§3.1), no data in memory grows with the index. So in
//! this strategy, the page of a node follows from its number.
//!
//! A crash during a write in place would damage the checkpoint. So a page is first written into a
//! journal ([`stratann_layout::journal`]). Pending changes take less memory than composed pages, so
//! pages are composed only when they are written. A checkpoint is due when the changed pages reach
//! [`JOURNAL`] bytes, since an open after a crash loads this number of bytes into memory.
//!
//! A search may read a page during the write. So the new bytes stay in memory until all searches
//! that began before the write have ended, and searches prefer bytes in memory.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stratann_layout::{BLOCK, FileEntry, FileKind, JournalFile};

use super::insert::{Inserter, NewNode};
use super::prune::Decision;
use super::{Direct, changes};
use crate::Error;
use crate::durable::Checkpoint;
use crate::stores::topology::pending::{Change, NONE, Pending};
use crate::stores::topology::placement::{PageBytes, Placement};
use crate::stores::writing::files::write_made;
use crate::stores::{CodedComposer, PageView, Rewritable, on_pages, too_long};
use crate::threads::shared;
use crate::update::health::Concern;

/// A checkpoint is due when the changed pages have at least this number of bytes.
const JOURNAL: usize = 2 << 20;
/// The number of threads that compose and write pages, and the pages that a thread has in memory.
pub(super) const JOURNAL_THREADS: usize = 4;
const PAGES_AT_ONCE: usize = 8;
/// The maximum wait of a write in place for earlier searches. When these searches have ended, the
/// written pages can be dropped from memory.
const PATIENCE: Duration = Duration::from_millis(20);

type Composed = (u32, PageBytes);

#[derive(Default)]
pub(super) struct Journal {
    /// Pages with new bytes or pending changes since the last checkpoint.
    changed: Mutex<BTreeSet<u32>>,
    /// Pages in the journal of the last checkpoint that are still to be written in place.
    due: Mutex<Vec<u32>>,
    /// Pages that were written in place but are still in memory, with the timestamp after their
    /// write.
    resting: Mutex<Vec<(u64, Vec<Composed>)>>,
    named: AtomicUsize,
}

impl Journal {
    /// At the open, all pages in the journal are in memory, and are still to be written in place.
    pub(super) fn open(placement: &Placement) -> Self {
        let due: Vec<u32> = placement
            .unwritten
            .all()
            .into_iter()
            .map(|(page, _)| page)
            .collect();
        Self {
            named: AtomicUsize::new(due.len()),
            due: Mutex::new(due),
            ..Self::default()
        }
    }

    /// Whether the journal of the last checkpoint has pages. Each open keeps these pages in memory.
    pub(super) fn is_named(&self) -> bool {
        self.named.load(Ordering::Relaxed) > 0
    }

    pub(super) fn is_full(&self, page_bytes: usize) -> bool {
        self.changed.lock().len() * page_bytes >= JOURNAL
    }
}

impl Direct {
    /// Writes the changed pages into the journal of the next checkpoint, and returns their numbers.
    /// No insert may run.
    pub(super) fn write_journal<N: Rewritable>(
        &self,
        checkpoint: &Checkpoint<'_>,
        pages: &N,
    ) -> Result<(FileEntry, Vec<u32>), Error> {
        let numbers: Vec<u32> = self.journal.changed.lock().iter().copied().collect();
        let page_bytes = pages.file(0).page_bytes;
        let head = JournalFile::head(page_bytes, &numbers);
        let length = (head.len() + numbers.len() * page_bytes) as u64;
        let kind = FileKind::Journal;
        let entry = write_made(checkpoint, kind, None, &[], length, |push| {
            push(&head)?;
            numbers
                .chunks(self.journal_threads * PAGES_AT_ONCE)
                .try_for_each(|some| {
                    let composed = self.composed(pages, some)?;
                    composed.iter().try_for_each(|(_, bytes)| push(bytes))
                })
        })?;
        Ok((entry, numbers))
    }

    /// Writes pages in place. The journal of a committed checkpoint has these pages.
    pub(super) fn journaled(&self, numbers: Vec<u32>) {
        self.journal.named.store(numbers.len(), Ordering::Relaxed);
        self.journal.changed.lock().clear();
        self.journal.due.lock().extend(numbers);
        // If a page cannot be written, the write is tried again before the next insert.
        if let Err(error) = self.write_in_place() {
            self.health.trouble(Concern::Pages, &error);
        }
    }

    /// Composes pages with all their pending changes. No insert may run.
    fn composed<N: Rewritable>(&self, pages: &N, numbers: &[u32]) -> Result<Vec<Composed>, Error> {
        let share = numbers.len().div_ceil(self.journal_threads).max(1);
        let compose = |numbers: &[u32]| {
            let mut work = InPlace::default();
            let one = |&page| Ok((page, self.compose_waiting(pages, &mut work, page)?));
            numbers.iter().map(one).collect::<Result<Vec<_>, Error>>()
        };
        let shares = shared(numbers.chunks(share), compose).into_iter();
        let composed = shares.collect::<Result<Vec<_>, Error>>()?;
        Ok(composed.into_iter().flatten().collect())
    }

    fn compose_waiting<N: Rewritable>(
        &self,
        pages: &N,
        work: &mut InPlace<N>,
        page: u32,
    ) -> Result<PageBytes, Error> {
        let placement = self.placement();
        let bytes = self.page_bytes(pages, page)?;
        match placement.pending.has(page) {
            true => {
                let waiting = Some(&placement.pending);
                work.compose(self, pages, page, Some(&bytes), waiting, None)
            }
            false => Ok(bytes),
        }
    }

    pub(super) fn write_in_place(&self) -> Result<(), Error> {
        let pages = &self.index.graph().pages;
        on_pages!(pages, pages => changes::write_in_place(self, pages))
    }

    /// Writes the due pages in place, for a layout whose pages do not move.
    pub(super) fn write_due<N: Rewritable>(&self, pages: &N) -> Result<(), Error> {
        let placement = self.placement();
        let mut due = self.journal.due.lock();
        if !due.is_empty() {
            // New pages have the highest numbers, and are written first, since lists on other pages
            // link to nodes on new pages.
            due.sort_unstable_by_key(|&page| Reverse(page));
            while !due.is_empty() {
                let some = due.len().min(self.journal_threads * PAGES_AT_ONCE);
                let composed = self.composed(pages, &due[..some])?;
                for (page, bytes) in &composed {
                    placement.replace(*page, bytes.clone());
                    placement.pending.settled(*page);
                }
                let written = shared(composed.chunks(PAGES_AT_ONCE), |pages| {
                    self.write_some(pages)
                });
                written.into_iter().collect::<Result<(), Error>>()?;
                due.drain(..some);
                let moment = placement.pins.advance();
                self.journal.resting.lock().push((moment, composed));
                self.wake(placement, Some(Instant::now() + PATIENCE));
            }
            placement.pending.forget_codes();
            self.health.recovered(Concern::Pages);
        }
        self.wake(placement, None);
        Ok(())
    }

    fn write_some(&self, pages: &[Composed]) -> Result<(), Error> {
        let mut file = self.index.volume().open_pages(&self.index.graph().name)?;
        for (page, bytes) in pages {
            let offset = BLOCK as u64 + u64::from(*page) * bytes.len() as u64;
            file.write_at(offset, bytes)?;
            self.store.counts.written.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// If all searches that began before a write in place have ended, drops the written pages from
    /// memory. With `until`, the call waits for these searches, at most until that time.
    fn wake(&self, placement: &Placement, until: Option<Instant>) {
        loop {
            let oldest = placement.pins.oldest();
            let mut resting = self.journal.resting.lock();
            resting.retain(|(moment, pages)| {
                let over = *moment < oldest;
                for (page, bytes) in pages.iter().filter(|_| over) {
                    // `resident` may have old bytes of the page. Then the new bytes stay in
                    // `unwritten`, which reads look up first.
                    if self.index.graph().resident.get((*page).into()).is_none() {
                        placement.unwritten.remove(*page, bytes);
                    }
                }
                !over
            });
            let rest = !resting.is_empty();
            drop(resting);
            if !rest || until.is_none_or(|until| Instant::now() >= until) {
                return;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

pub(super) struct InPlace<N: Rewritable> {
    composer: Option<N::Composer>,
    list: Vec<u32>,
    codes: Vec<u8>,
    other: Vec<u32>,
    amended: Vec<u8>,
}

impl<N: Rewritable> Default for InPlace<N> {
    fn default() -> Self {
        Self {
            composer: None,
            list: Vec::new(),
            codes: Vec::new(),
            other: Vec::new(),
            amended: Vec::new(),
        }
    }
}

impl<N: Rewritable> InPlace<N> {
    /// Composes a page from the records in `bytes`, with the changes in `waiting`. The record of
    /// `new_node` (external id and vector) comes last, with the list in `self`.
    fn compose(
        &mut self,
        direct: &Direct,
        pages: &N,
        page: u32,
        bytes: Option<&[u8]>,
        waiting: Option<&Pending>,
        new_node: Option<(u64, &[u8])>,
    ) -> Result<PageBytes, Error> {
        let file = &direct.index.graph().file;
        // If the page for the next node is not damaged, it has a free slot.
        let too_many = || Error::Damaged {
            file: file.clone(),
            what: format!("page {page} has more records than nodes of the index"),
        };
        let composer = self.composer.get_or_insert_with(|| pages.composer());
        composer.start();
        if let Some(bytes) = bytes {
            let view = pages.view(bytes, page.into(), false)?;
            for slot in 0..view.len() {
                let (node, record) = (view.node(slot)?, view.record(slot)?);
                let (list, amended) = (&mut self.other, &mut self.amended);
                pages.list(node, &record, list)?;
                let changes = waiting.is_some_and(|waiting| {
                    waiting.amend_coded(page, node, list, record.codes, amended)
                });
                let codes = if changes { &**amended } else { record.codes };
                if list.len() > direct.degree {
                    return Err(too_long(file, node, list.len(), direct.degree));
                }
                if !composer.push(record.id, record.vector, list, codes) {
                    return Err(too_many());
                }
            }
        }
        if let Some((id, vector)) = new_node
            && !composer.push(id, vector, &self.list, &self.codes)
        {
            return Err(too_many());
        }
        Ok(PageBytes::from(composer.finish(page)))
    }
}

/// Returns the number of the new node. `None` if the node has no neighbour, or if the index has too
/// many nodes.
pub(super) fn link<N: Rewritable>(
    inserter: &mut Inserter<'_, N>,
    work: &mut InPlace<N>,
    new_node: &NewNode<'_>,
) -> Result<Option<u32>, Error> {
    let direct = inserter.direct;
    let placement = direct.placement();
    if inserter.chosen.is_empty() {
        return Ok(None);
    }
    work.list.clear();
    work.codes.clear();
    for at in 0..inserter.chosen.len() {
        let neighbour = inserter.chosen[at];
        work.list.push(neighbour.node);
        inserter.code_of(&neighbour, &mut work.codes);
    }
    let vector = &inserter.walker.traversal.ranking.query;
    let Some((node, ())) = direct.number(new_node, |node| {
        let page = placement.page_of(node);
        let _one = direct.locks[direct.stripe(page)].lock();
        let first = inserter.pages.first_node(page);
        let before = match first < u64::from(node) {
            true => Some(inserter.page_bytes(page)?),
            false => None,
        };
        let new_node = (new_node.id, &**vector);
        let before = before.as_deref();
        let bytes = work.compose(direct, inserter.pages, page, before, None, Some(new_node))?;
        placement.replace(page, bytes);
        direct.journal.changed.lock().insert(page);
        direct.store.counts.composed.fetch_add(1, Ordering::Relaxed);
        placement.push(node, page);
        Ok(())
    })?
    else {
        return Ok(None);
    };
    inserter.born();
    placement.pending.learn(node, new_node.code);
    let mut linked = false;
    for at in inserter.asked() {
        // If a page cannot be read, the searches that need this page report the error.
        linked |= link_back(inserter, work, at, node, linked).unwrap_or(false);
    }
    Ok(Some(node))
}

/// Adds a new node to the list of a neighbour, and returns whether the list then links to the node.
fn link_back<N: Rewritable>(
    inserter: &mut Inserter<'_, N>,
    work: &mut InPlace<N>,
    at: usize,
    node: u32,
    linked: bool,
) -> Result<bool, Error> {
    let (direct, pages) = (inserter.direct, inserter.pages);
    let placement = direct.placement();
    let neighbour = inserter.chosen[at];
    let page = placement.page_of(neighbour.node);
    let _one = direct.locks[direct.stripe(page)].lock();
    let bytes = inserter.page_bytes(page)?;
    let view = pages.view(&bytes, page.into(), false)?;
    let Some(slot) = view.slot_of(neighbour.node) else {
        return Ok(false);
    };
    let record = view.record(slot)?;
    let list = &mut inserter.list;
    pages.list(neighbour.node, &record, list)?;
    let pending = &placement.pending;
    let amended = pending.amend_coded(page, neighbour.node, list, record.codes, &mut work.amended);
    let beside = match amended {
        true => &work.amended[..],
        false => record.codes,
    };
    let remove = match inserter.decide(&neighbour, node, Some(beside)) {
        Decision::Keep if at > 0 || linked => return Ok(false),
        Decision::Keep => match inserter.make_room() {
            None if inserter.list.len() == direct.degree => return Ok(false),
            leaves => leaves.unwrap_or(NONE),
        },
        Decision::Add => NONE,
        Decision::Replace(leaves) => leaves,
    };
    let change = Change {
        node: neighbour.node,
        add: node,
        remove,
    };
    pending.change(page, change, || true);
    direct.journal.changed.lock().insert(page);
    inserter.joined(node);
    Ok(true)
}
