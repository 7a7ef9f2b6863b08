//! Pages are written anew in their places, all or none: how an index takes inserts that has neither codes nor tables in memory.
//!
//! ```text
//!   insert of p:   p behind the last node: its page follows from its number
//!                  for each neighbour n: its page composed anew, with p and its code in the list of n
//!   composed       in memory; searches see it there
//!   checkpoint     all that were composed ──> journal, MANIFEST names it: from here on they count
//!                  then each in its place, and nothing waits
//! ```
//!
//! Where pages move ([`relocate`](super::relocate), [`accumulate`](super::accumulate)), a table says where each node is: 4 bytes a
//! node, beside the codes that are in memory anyway. AiSAQ (§3.1) has neither codes nor anything else there that grows
//! with the index, and so a node has to stay where its number says. A page that is written in its place is at risk while it is
//! written, and so is a checkpoint that names it: hence the journal ([`stratann_layout::journal`]), of which each page is written
//! twice. When what is composed and not yet in the journal takes [`JOURNAL`] bytes, a checkpoint is due.
//!
//! A search that began before may be reading a page while it is written. So its new bytes stay in memory until all
//! of those are over, and a read that ends looks there first.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use stratann_layout::{BLOCK, FileEntry, FileKind, InlineBuilder, JournalFile};

use super::Direct;
use super::insert::{Inserter, Newborn};
use super::prune::Decision;
use crate::Error;
use crate::build::write_pieces;
use crate::durable::Checkpoint;
use crate::nodes::inline::InlinePages;
use crate::nodes::placement::{PageBytes, Placement};
use crate::nodes::{NodePages, PageView};

/// Bytes of composed pages after which a checkpoint is due.
const JOURNAL: usize = 1 << 20;
/// Threads that write pages in their places, and pages below which they are not worth it.
const WRITERS: usize = 4;
const FEW: usize = 32;

/// A page that was composed.
type Composed = (u32, PageBytes);

/// What became of the pages that were composed.
#[derive(Default)]
pub(super) struct Journal {
    /// Pages that the last checkpoint has not.
    composed: Mutex<BTreeSet<u32>>,
    /// Those of the last checkpoint that are to be written in their places.
    due: Mutex<Vec<Composed>>,
    /// Those that are there, and the moment at which they were.
    resting: Mutex<Vec<(u64, Vec<Composed>)>>,
    /// Pages in the journal of the last checkpoint.
    named: AtomicUsize,
}

impl Journal {
    /// With the pages that the journal of the last checkpoint has, which are unwritten.
    pub(super) fn open(placement: &Placement) -> Self {
        let due = placement.unwritten.all();
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

    /// Whether pages of so many bytes that were composed are enough for a checkpoint.
    pub(super) fn is_full(&self, page_bytes: usize) -> bool {
        self.composed.lock().len() * page_bytes >= JOURNAL
    }
}

impl Direct {
    /// Puts what was composed since the last checkpoint into the journal of the next one. Nobody inserts.
    pub(super) fn write_journal(
        &self,
        checkpoint: &Checkpoint<'_>,
        page_bytes: usize,
    ) -> Result<(FileEntry, Vec<Composed>), Error> {
        let unwritten = &self.placement().unwritten;
        let composed = self.journal.composed.lock();
        let pages = composed.iter().filter_map(|&page| {
            let bytes = unwritten.get(page)?;
            Some((page, bytes))
        });
        let pages: Vec<Composed> = pages.collect();
        let numbers: Vec<u32> = pages.iter().map(|(page, _)| *page).collect();
        let head = JournalFile::head(page_bytes, &numbers);
        let bytes = pages.iter().map(|(_, bytes)| &**bytes);
        let pieces: Vec<&[u8]> = std::iter::once(&head[..]).chain(bytes).collect();
        let entry = write_pieces(checkpoint, FileKind::Journal, None, &[], &pieces)?;
        Ok((entry, pages))
    }

    /// The checkpoint whose journal has these pages is committed: each is written in its place.
    pub(super) fn journaled(&self, pages: Vec<Composed>) {
        self.journal.named.store(pages.len(), Ordering::Relaxed);
        self.journal.composed.lock().clear();
        self.journal.due.lock().extend(pages);
        // What cannot be written now is tried again, before the next insert.
        let _ = self.write_in_place();
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

    /// Writes the pages of the last checkpoint in their places, if that is still to be done.
    pub(super) fn write_in_place(&self) -> Result<(), Error> {
        let placement = self.placement();
        let mut due = self.journal.due.lock();
        if !due.is_empty() {
            // New pages are the last by number, and the first to be written: others lead to what is on them.
            due.sort_unstable_by_key(|(page, _)| Reverse(*page));
            // They wait for the device, one after the other.
            let share = due.len().div_ceil(WRITERS).max(FEW);
            std::thread::scope(|scope| {
                let writing: Vec<_> = due
                    .chunks(share)
                    .map(|pages| scope.spawn(|| self.write_some(pages)))
                    .collect();
                writing.into_iter().try_for_each(|work| match work.join() {
                    Ok(done) => done,
                    Err(panic) => std::panic::resume_unwind(panic),
                })
            })?;
            let moment = placement.pins.advance();
            let written = std::mem::take(&mut *due);
            self.journal.resting.lock().push((moment, written));
        }
        let oldest = placement.pins.oldest();
        self.journal.resting.lock().retain(|(moment, pages)| {
            let over = *moment < oldest;
            for (page, bytes) in pages.iter().filter(|_| over) {
                // Of a page that the memory budget holds, that is the one that counts.
                if self.index.graph().resident.get((*page).into()).is_none() {
                    placement.unwritten.remove(*page, bytes);
                }
            }
            !over
        });
        Ok(())
    }
}

/// What pages are composed with.
#[derive(Default)]
pub(super) struct InPlace {
    builder: Option<InlineBuilder>,
    list: Vec<u32>,
    codes: Vec<u8>,
    /// The list of a node that stays as it is.
    other: Vec<u32>,
}

impl InPlace {
    /// Composes a page anew: all its records, of which the one in place `changed` gets the list at hand, and those that `more`
    /// adds.
    fn compose(
        &mut self,
        pages: &InlinePages,
        page: u32,
        bytes: Option<&[u8]>,
        changed: Option<usize>,
        more: impl FnOnce(&mut InlineBuilder, &[u32], &[u8]),
    ) -> Result<PageBytes, Error> {
        let builder = self
            .builder
            .get_or_insert_with(|| InlineBuilder::new(pages.shape));
        builder.clear();
        if let Some(bytes) = bytes {
            let view = pages.view(bytes, page.into(), false)?;
            for slot in 0..view.len() {
                let record = view.record(slot)?;
                let vector = &record.vector[..pages.shape.vector_bytes()];
                if changed == Some(slot) {
                    builder.push(record.id, vector, &self.list, &self.codes);
                } else {
                    pages.list(0, &record, &mut self.other)?;
                    builder.push(record.id, vector, &self.other, record.codes);
                }
            }
        }
        more(builder, &self.list, &self.codes);
        Ok(PageBytes::from(builder.finish(page.into())))
    }
}

/// Links a new node and its neighbours. Gives its number; `None` if its page cannot be read.
pub(super) fn link(
    inserter: &mut Inserter<'_, InlinePages>,
    work: &mut InPlace,
    newborn: &Newborn<'_>,
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
    let Some((node, appended)) = direct.birth(newborn, |node| {
        let page = placement.page_of(node);
        let _one = direct.locks[direct.stripe(page)].lock();
        let first = inserter.pages.shape.first_node(page.into());
        let before = match first < u64::from(node) {
            true => Some(latest(inserter, page)?),
            false => None,
        };
        let bytes = work.compose(
            inserter.pages,
            page,
            before.as_deref(),
            None,
            |builder, list, codes| builder.push(newborn.id, vector, list, codes),
        )?;
        publish(direct, page, bytes);
        placement.push(node, page);
        Ok::<_, Error>(())
    }) else {
        return Ok(None);
    };
    appended?;
    inserter.born();
    let mut linked = false;
    for at in inserter.asked() {
        // A page that cannot be read says so to the searches that need it.
        linked |= link_back(inserter, work, at, node, newborn.code, linked).unwrap_or(false);
    }
    Ok(Some(node))
}

/// Links a neighbour back to a new node, if it is to be. Says whether it was.
fn link_back(
    inserter: &mut Inserter<'_, InlinePages>,
    work: &mut InPlace,
    at: usize,
    node: u32,
    code: &[u8],
    linked: bool,
) -> Result<bool, Error> {
    let (direct, pages) = (inserter.direct, inserter.pages);
    let neighbour = inserter.chosen[at];
    let page = direct.placement().page_of(neighbour.node);
    let _one = direct.locks[direct.stripe(page)].lock();
    let bytes = latest(inserter, page)?;
    let view = pages.view(&bytes, page.into(), false)?;
    let Some(slot) = view.slot_of(neighbour.node) else {
        return Ok(false);
    };
    let record = view.record(slot)?;
    pages.list(neighbour.node, &record, &mut inserter.list)?;
    work.list.clone_from(&inserter.list);
    work.codes.clear();
    work.codes.extend_from_slice(record.codes);
    let leaves = match inserter.decide(&neighbour, node, Some(record.codes)) {
        Decision::Keep if at > 0 || linked => return Ok(false),
        // Somebody has to lead to the new node.
        Decision::Keep => match inserter.make_room() {
            None if work.list.len() == direct.degree => return Ok(false),
            leaves => leaves,
        },
        Decision::Add => None,
        Decision::Replace(leaves) => Some(leaves),
    };
    let place = leaves.and_then(|leaves| work.list.iter().position(|&link| link == leaves));
    match place {
        Some(place) => {
            work.list[place] = node;
            work.codes[place * code.len()..][..code.len()].copy_from_slice(code);
        }
        None => {
            work.list.push(node);
            work.codes.extend_from_slice(code);
        }
    }
    let bytes = work.compose(pages, page, Some(&bytes), Some(slot), |_, _, _| ())?;
    publish(direct, page, bytes);
    inserter.joined(node);
    Ok(true)
}

/// A page as it is now; its lock is held.
fn latest(inserter: &Inserter<'_, InlinePages>, page: u32) -> Result<PageBytes, Error> {
    // What the search holds is older, if there is anything else.
    match inserter.direct.placement().unwritten.get(page) {
        Some(bytes) => Ok(bytes),
        None => inserter.page_bytes(page),
    }
}

/// Puts a composed page where searches find it.
fn publish(direct: &Direct, page: u32, bytes: PageBytes) {
    direct.placement().unwritten.insert(page, bytes);
    direct.journal.composed.lock().insert(page);
    direct.store.counts.composed.fetch_add(1, Ordering::Relaxed);
}
