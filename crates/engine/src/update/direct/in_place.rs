//! Pages are written anew in their places, all or none: how an index takes inserts that has neither codes nor tables in memory.
//!
//! ```text
//!   insert of p:   p behind the last node: its page follows from its number, and is composed in memory
//!                  for each neighbour n: "p joins the list of n" waits, and beside it, once, the code of p
//!   searches       see both: a list that was read is amended, with the codes beside it
//!   checkpoint     each page that something waits for is read, composed ──> journal, MANIFEST names it: from here on they count
//!                  then the same once more, some at a time, each page in its place; and nothing waits
//! ```
//!
//! Where pages move ([`relocate`](super::relocate), [`accumulate`](super::accumulate)), a table says where each node is: 4 bytes a
//! node, beside the codes that are in memory anyway. AiSAQ (§3.1) has neither codes nor anything else there that grows
//! with the index, and so a node has to stay where its number says. A page that is written in its place is at risk while it is
//! written, and so is a checkpoint that names it: hence the journal ([`stratann_layout::journal`]), of which each page is written
//! twice. A page that waits takes a page of memory, a change of it some tens of bytes: so changes wait, and pages are composed one
//! at a time. When those that are to be written take [`JOURNAL`] bytes, a checkpoint is due; whoever opens the index after a
//! crash has so much in memory.
//!
//! A search that began before may be reading a page while it is written. So its new bytes stay in memory until all
//! of those are over, and a read that ends looks there first.

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
use crate::build::write_made;
use crate::durable::Checkpoint;
use crate::stores::topology::pending::{Change, NONE, Pending};
use crate::stores::topology::placement::{PageBytes, Placement};
use crate::stores::{CodedComposer, PageView, Rewritable, on_pages, too_long};
use crate::threads::shared;
use crate::update::health::Concern;

/// Bytes of pages to write after which a checkpoint is due.
const JOURNAL: usize = 2 << 20;
/// Threads that read or write pages in their places, where memory is not scarce, and the pages of each at a time: those are in
/// memory.
pub(super) const JOURNAL_THREADS: usize = 4;
const PAGES_AT_ONCE: usize = 8;
/// How long writing waits for searches that began before it, so that what it wrote leaves memory.
const PATIENCE: Duration = Duration::from_millis(20);

/// A page that was composed.
type Composed = (u32, PageBytes);

/// What became of the pages that are written anew.
#[derive(Default)]
pub(super) struct Journal {
    /// Pages that are to be in the next checkpoint: composed, or something waits for them.
    changed: Mutex<BTreeSet<u32>>,
    /// Those of the last checkpoint that are to be written in their places.
    due: Mutex<Vec<u32>>,
    /// Those that are there, and the moment at which they were.
    resting: Mutex<Vec<(u64, Vec<Composed>)>>,
    /// Pages in the journal of the last checkpoint.
    named: AtomicUsize,
}

impl Journal {
    /// With the pages that the journal of the last checkpoint has, which are unwritten.
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

    /// Whether the last checkpoint has pages in it, which whoever opens the index has to keep in memory.
    pub(super) fn is_named(&self) -> bool {
        self.named.load(Ordering::Relaxed) > 0
    }

    /// Whether pages of so many bytes that are to be written are enough for a checkpoint.
    pub(super) fn is_full(&self, page_bytes: usize) -> bool {
        self.changed.lock().len() * page_bytes >= JOURNAL
    }
}

impl Direct {
    /// Puts what changed since the last checkpoint into the journal of the next one. Nobody inserts. Gives the pages.
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

    /// The checkpoint whose journal has these pages is committed: each is written in its place.
    pub(super) fn journaled(&self, numbers: Vec<u32>) {
        self.journal.named.store(numbers.len(), Ordering::Relaxed);
        self.journal.changed.lock().clear();
        self.journal.due.lock().extend(numbers);
        // What cannot be written now is tried again, before the next insert.
        if let Err(error) = self.write_in_place() {
            self.health.trouble(Concern::Pages, &error);
        }
    }

    /// Pages as they are with all that waits for them. Nobody inserts.
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

    /// A page as it is with all that waits for it.
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

    /// Writes the pages of the last checkpoint in their places, if that is still to be done.
    pub(super) fn write_in_place(&self) -> Result<(), Error> {
        let pages = &self.index.graph().pages;
        on_pages!(pages, pages => changes::write_in_place(self, pages))
    }

    /// The same, of a layout whose pages stay.
    pub(super) fn write_due<N: Rewritable>(&self, pages: &N) -> Result<(), Error> {
        let placement = self.placement();
        let mut due = self.journal.due.lock();
        if !due.is_empty() {
            // New pages are the last by number, and the first to be written: others lead to what is on them.
            due.sort_unstable_by_key(|&page| Reverse(page));
            while !due.is_empty() {
                let some = due.len().min(self.journal_threads * PAGES_AT_ONCE);
                let composed = self.composed(pages, &due[..some])?;
                for (page, bytes) in &composed {
                    placement.replace(*page, bytes.clone());
                    placement.pending.settled(*page);
                }
                // They wait for the device, one after the other.
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

    /// Forgets pages that are in their places and that no search is left for that began before; waits for those until `until`.
    fn wake(&self, placement: &Placement, until: Option<Instant>) {
        loop {
            let oldest = placement.pins.oldest();
            let mut resting = self.journal.resting.lock();
            resting.retain(|(moment, pages)| {
                let over = *moment < oldest;
                for (page, bytes) in pages.iter().filter(|_| over) {
                    // Of a page that the memory budget holds, that is the one that counts.
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

/// What pages are composed with.
pub(super) struct InPlace<N: Rewritable> {
    composer: Option<N::Composer>,
    /// The list of a new node, and the codes beside it.
    list: Vec<u32>,
    codes: Vec<u8>,
    /// The list of a node that is there, and the codes beside it if it was amended.
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
    /// Composes a page anew: the records that are on it, with what waits for their lists if that is given, and behind them a new
    /// one, of an outside id and a vector, with the list at hand.
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
        // As many nodes as the index says leave room for the next.
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

/// Links a new node and its neighbours. Gives its number; `None` if its page cannot be read.
pub(super) fn link<N: Rewritable>(
    inserter: &mut Inserter<'_, N>,
    work: &mut InPlace<N>,
    new_node: &NewNode<'_>,
) -> Result<Option<u32>, Error> {
    let direct = inserter.direct;
    let placement = direct.placement();
    if inserter.chosen.is_empty() {
        // Nobody would find it: it waits in memory.
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
        // A page that cannot be read says so to the searches that need it.
        linked |= link_back(inserter, work, at, node, linked).unwrap_or(false);
    }
    Ok(Some(node))
}

/// Links a neighbour back to a new node, if it is to be. Says whether it was.
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
        // Somebody has to lead to the new node.
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
