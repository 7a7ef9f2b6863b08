//! Direct inserts: new vectors are linked into the graph on storage while searches run (OdinANN).
//! Searches find inserted nodes through the [`placement`](crate::stores::topology::placement)
//! table.
//!
//! ```text
//!   insert.rs       one insert: search, prune, link
//!   prune.rs        which node leaves a full list for a new node
//!   relocate.rs     writes changed records together on other pages, as in the paper   ┐
//!   accumulate.rs   changes wait until enough of them wait for a page (our own)       │ strategies
//!   in_place.rs     rewrites pages in place after a journal: needs little memory      ┘
//!   changes.rs      the strategies that a layout supports
//!   compose.rs      composes pages from records
//!   store.rs        the pages: which are in use, which are free, and the threads that write them
//!   checkpoint.rs   writes tables and waiting changes, so that a restart is fast
//! ```

mod accumulate;
mod changes;
mod checkpoint;
mod compose;
mod in_place;
mod insert;
mod prune;
mod relocate;
mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use stratann_layout::{BLOCK, LogRecord, RunsOn};
use stratann_tier::{Home, Owned, Task, Thread, Tier, Volume, VolumeFile, WorkerPool, own};

use self::accumulate::Threshold;
use self::changes::{Way, takes};
use self::in_place::{JOURNAL_THREADS, Journal};
use self::insert::{Inserter, NewNode};
use self::store::PageStore;
use super::health::{Concern, Health};
use crate::index::Index;
use crate::index::growth::LooksAt;
use crate::index::inserting::{BEYOND, Room, tight_bytes};
use crate::overlay::Admission;
use crate::overlay::ranges::IdRanges;
use crate::overlay::{Overlay, Tombstones};
use crate::progress::{Progress, Stage};
use crate::search::{Ends, Growth, Plan, Timer, Uses, Within};
use crate::stores::topology::placement::{PageBytes, Placement};
use crate::stores::vectors::added::Added;
use crate::stores::{NodePages, on_pages};
use crate::{DirectOptions, Error, Press, Update};

/// The costs of direct inserts since the index was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DirectCounts {
    /// Vectors that were inserted.
    pub inserts: u64,
    /// Lists of old nodes that a new node joined.
    pub changes: u64,
    /// Full lists whose old nodes had to be compared with each other
    /// ([`Pruning::Delta`](crate::Pruning::Delta)).
    pub fallbacks: u64,
    /// Pages that were composed, some of them several times before one write.
    pub pages_composed: u64,
    /// Pages that were written.
    pub pages_written: u64,
    /// Pages of vectors that were written, if vectors are stored apart from lists.
    pub vector_pages_written: u64,
    /// Pages that the searches of inserts read.
    pub pages_read: u64,
    /// Pages in the file.
    pub pages: u64,
    /// Pages without a node.
    pub pages_free: u64,
    /// Checkpoints that were committed.
    pub checkpoints: u64,
}

#[derive(Debug, Default)]
struct Counts {
    inserts: AtomicU64,
    changes: AtomicU64,
    fallbacks: AtomicU64,
    reads: AtomicU64,
    vector_pages: AtomicU64,
    checkpoints: AtomicU64,
}

/// The number of rows that are logged and inserted together.
const BATCH: usize = 64;
const STRIPES: usize = 1 << 12;
/// The number of threads that write pages. These threads only wait for the device.
const WRITERS: usize = 4;

/// The log records of one call, which several tasks insert.
struct Batch<'a> {
    records: &'a [LogRecord<'a>],
    next: AtomicUsize,
    /// The positions of the records that could not be inserted.
    left: Mutex<Vec<usize>>,
}

pub(crate) struct Direct {
    index: Arc<Index>,
    update: Update,
    choices: DirectOptions,
    degree: usize,
    alpha: f32,
    plan: Plan,
    deleted: Arc<Tombstones>,
    inserted: Arc<RwLock<IdRanges>>,
    worker_pool: WorkerPool,
    threads: usize,
    store: Arc<PageStore>,
    writers: Vec<JoinHandle<()>>,
    /// The file of the graph, for all writes and syncs outside the writer threads.
    file: Mutex<Box<dyn VolumeFile>>,
    /// The file of new vectors, if vectors are stored apart from lists.
    segment: Option<Mutex<Box<dyn VolumeFile>>>,
    in_place: bool,
    journal_threads: usize,
    journal: Journal,
    threshold: Threshold,
    /// Held while a node gets its number.
    numbering: Mutex<()>,
    /// The locks of records that change, chosen by node ([`Update::Relocate`]).
    locks: Box<[Mutex<()>]>,
    /// Held while an insert chooses pages for changed records.
    allocating: Mutex<()>,
    /// Whether an insert failed after its node got a number. If so, the graph in memory disagrees
    /// with the log.
    failed: AtomicBool,
    health: Arc<Health>,
    counts: Counts,
    home: Home,
}

pub(crate) fn is_taken(index: &Index, update: Update) -> bool {
    if index.has_clusters() {
        return false;
    }
    let takes = on_pages!(&index.graph().pages, pages => takes(pages, update));
    // `CodeParts` store codes in pieces of fixed size, so no code can be added.
    let merges = matches!(update, Update::Merge | Update::Rebalance);
    takes && !merges && index.code_parts().is_none()
}

/// The files to which direct inserts write, with the tiers that read these files.
fn written_files(index: &Index) -> impl Iterator<Item = (&str, &dyn Tier)> {
    let graph = index.graph();
    let last = graph.segments.as_ref().map(|segments| segments.last());
    let segment = last.map(|segment| (&*segment.name, &*segment.tier));
    [Some((&*graph.name, &*graph.tier)), segment]
        .into_iter()
        .flatten()
}

/// Whether hard links of files are the only obstacle to direct inserts.
fn is_linked(home: &dyn Volume, index: &Index, update: Update) -> Result<bool, Error> {
    if !is_taken(index, update) {
        return Ok(false);
    }
    for (name, _) in written_files(index) {
        if home.has_other_names(name)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Replaces each file to which direct inserts write by a copy, if the file has other names (hard
/// links). Searches read the copies after [`Direct::open`]. No thread may write to the files during
/// the call.
pub(crate) fn own_files(
    home: &dyn Volume,
    index: &Index,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let mut bytes = 0;
    for (name, _) in written_files(index) {
        if home.has_other_names(name)? {
            bytes += home.len(name)?;
        }
    }
    if bytes > 0 {
        let _stage = Stage::begin(progress, "copying files with other names (bytes)", bytes);
        for (name, _) in written_files(index) {
            let owned = own(home, name, &mut |bytes| {
                progress.advance(bytes);
                !progress.interrupted()
            });
            if owned? == Owned::GivenUp {
                return Err(Error::Interrupted);
            }
        }
    }
    Ok(())
}

/// Adds the placement table, by which later searches find nodes.
fn prepare(index: &Index) -> &Placement {
    let graph = index.graph();
    if let Some(segments) = &graph.segments {
        segments.grow(&[], &RunsOn::default(), graph.nodes as u32);
    }
    graph.placement.get_or_init(|| {
        let nodes = graph.nodes as u32;
        on_pages!(&graph.pages, pages => pages.placement(nodes))
    })
}

impl Direct {
    /// Opens the writer of direct inserts. `None` if the layout does not support this strategy, or
    /// if files have hard links and must first be [copied](own_files).
    pub(crate) fn open(
        home: &dyn Volume,
        index: &Arc<Index>,
        overlay: &Overlay,
        update: Update,
        choices: DirectOptions,
        threads: usize,
        health: &Arc<Health>,
    ) -> Result<Option<Self>, Error> {
        if !is_taken(index, update) {
            return Ok(None);
        }
        let placement = prepare(index);
        if is_linked(home, index, update)? {
            return Ok(None);
        }
        // After the index was opened, this or a killed process may have replaced a file by a copy.
        // Reads and writes must use the same file.
        for (_, tier) in written_files(index) {
            tier.reopen()?;
        }
        let graph = index.graph();
        let pages = graph.pages.file(graph.nodes);
        let in_place = !graph.composition.records_move();
        let degree = index.manifest().graph().degree as usize;
        let preset = index.preset();
        let beyond = if preset.whole_page { 0 } else { BEYOND };
        let list = choices.list.unwrap_or(degree + beyond);
        let budget = index.options().memory;
        let room = budget.map(|_| index.memory().inserting - index.memory().rows);
        let Room {
            threads,
            in_flight,
            unwritten,
            pending,
        } = match (in_place, room) {
            (true, Some(room)) => Room {
                threads: threads.min((room / tight_bytes(pages.page_bytes)).max(1) as usize),
                ..Room::of(None, threads, &choices, list, pages.page_bytes)
            },
            (_, room) => Room::of(room, threads, &choices, list, pages.page_bytes),
        };
        let choices = DirectOptions {
            in_flight,
            pending,
            ..choices
        };
        if let Some(cache) = index.cache() {
            let _ = placement.cache.set(cache.clone());
        }
        let segment = match &graph.segments {
            None => None,
            Some(segments) => {
                let file = index.volume().open_pages(&segments.last().name)?;
                Some(Mutex::new(file))
            }
        };
        let manifest = index.manifest();
        let kept = index.clone();
        let kept = move |page: u32| kept.graph().resident.get(page.into()).is_some();
        let store = PageStore::new(placement, pages.page_bytes, unwritten, Box::new(kept));
        let mut direct = Self {
            index: index.clone(),
            degree,
            alpha: manifest.graph().alpha,
            plan: Plan {
                k: list,
                list,
                fresh_list: list,
                probe_depth: None,
                growth: Growth::NONE,
                widest: 0,
                before: f64::INFINITY,
                candidates: 0,
                beam: preset.beam,
                strategy: preset.strategy,
                // An insert begins at the same nodes as a search without seeds.
                press: Press {
                    seeds: 0,
                    ..Press::default()
                },
                navigation: preset.navigation && index.has_navigation(),
                whole_page: preset.whole_page,
                rerank: preset.rerank,
                exact: false,
                ends: Ends::WithItsList,
                looks_at: LooksAt::Chosen,
                drifted_from: None,
                further: 0,
                further_uses: Uses {
                    whole_page: preset.whole_page,
                    rerank: preset.rerank,
                },
                hold: true,
                parts: false,
                way: crate::Way::Within,
                through: 1.0,
                walked: list,
                longest: usize::MAX,
            },
            deleted: overlay.deleted.clone(),
            inserted: overlay.inserted.clone(),
            worker_pool: WorkerPool::new(threads, index.options().io)?,
            threads,
            store: Arc::new(store),
            writers: Vec::new(),
            home: Home::here(),
            file: Mutex::new(index.volume().open_pages(&graph.name)?),
            segment,
            in_place,
            journal_threads: if threads == 1 { 1 } else { JOURNAL_THREADS },
            journal: match in_place {
                true => Journal::open(placement),
                false => Journal::default(),
            },
            threshold: Threshold::new(match update {
                Update::InPlace => 0,
                Update::Accumulate | Update::Relocate | Update::Merge | Update::Rebalance => {
                    choices.pending
                }
            }),
            numbering: Mutex::default(),
            locks: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            allocating: Mutex::default(),
            failed: AtomicBool::new(false),
            health: health.clone(),
            counts: Counts::default(),
            update,
            choices,
        };
        if !in_place {
            direct.start_writers()?;
        }
        Ok(Some(direct))
    }

    /// If pages are rewritten in place, no writer threads are needed, since a checkpoint writes
    /// such pages.
    fn start_writers(&mut self) -> Result<(), Error> {
        for number in 0..WRITERS {
            let (store, index) = (self.store.clone(), self.index.clone());
            let graph = self.index.graph();
            let mut file = index.volume().open_pages(&graph.name)?;
            let work = move || {
                if let Some(placement) = index.graph().placement.get() {
                    store.write(placement, &mut *file);
                }
            };
            let named = std::thread::Builder::new().name(format!("stratann-write-{number}"));
            let started = stratann_tier::start(named, work);
            let failed = |source| {
                let what = format!("writing {}", graph.file);
                stratann_tier::TierError::NoThread { what, source }
            };
            self.writers.push(started.map_err(failed)?);
        }
        Ok(())
    }

    fn placement(&self) -> &Placement {
        self.index
            .graph()
            .placement
            .get()
            .expect("an index that takes direct inserts has a placement")
    }

    /// Gives a new node its number, its code, its attributes, and its vector if vectors are stored
    /// apart from lists. `place` chooses the page. If `place` fails, the node has no number. `None`
    /// if memory is short.
    fn number<T>(
        &self,
        new_node: &NewNode<'_>,
        place: impl FnOnce(u32) -> Result<T, Error>,
    ) -> Result<Option<(u32, T)>, Error> {
        let _one = self.numbering.lock();
        let node = self.placement().nodes();
        if node >= u32::MAX - 2 {
            return Ok(None);
        }
        if !self.in_place && self.index.codes().append(new_node.code).is_none() {
            return Ok(None);
        }
        if let Some(added) = self.added() {
            added.append(node, new_node.id, new_node.apart);
        }
        // The row is stored before any search can find the node. In an index with columns, each
        // node has a row.
        let columns = self.index.columns();
        if new_node.row.is_some() || !columns.is_empty() {
            columns.put(node, new_node.id, new_node.row.unwrap_or_default().into());
        }
        match place(node) {
            Ok(placed) => Ok(Some((node, placed))),
            Err(error) => {
                columns.take_back(node);
                Err(error)
            }
        }
    }

    fn added(&self) -> Option<&Added> {
        self.index.graph().segments.as_ref()?.added()
    }

    fn write_vectors(&self) -> Result<(), Error> {
        if let (Some(added), Some(file)) = (self.added(), &self.segment) {
            let written = added.write(file)?;
            self.counts
                .vector_pages
                .fetch_add(written, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Marks a node whose insert failed as dead, and stops direct inserts until the index is opened
    /// again, since memory no longer agrees with the log.
    fn abandon(&self, node: u32) {
        self.failed.store(true, Ordering::Release);
        self.deleted.mark_dead(node);
    }

    fn stripe(&self, node: u32) -> usize {
        node as usize % STRIPES
    }

    fn count(&self, which: impl FnOnce(&Counts) -> &AtomicU64) {
        which(&self.counts).fetch_add(1, Ordering::Relaxed);
    }

    fn add_fallbacks(&self, fallbacks: u64) {
        self.counts
            .fallbacks
            .fetch_add(fallbacks, Ordering::Relaxed);
    }

    /// The bytes of a page without its pending changes, from memory or else from storage.
    fn page_bytes<N: NodePages>(&self, pages: &N, page: u32) -> Result<PageBytes, Error> {
        let graph = self.index.graph();
        if let Some(bytes) = graph.in_memory(page.into()) {
            return Ok(bytes.into());
        }
        let (_, length) = pages.place(page.into());
        let mut bytes = vec![0; length];
        let offset = BLOCK as u64 + u64::from(page) * length as u64;
        self.index
            .volume()
            .read_at(&graph.name, offset, &mut bytes)?;
        pages.view(&bytes, page.into(), true)?;
        Ok(bytes.into())
    }

    /// Retries failed writes, and waits while too many pages are dirty.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.health.check()?;
        if self.store.has_failed() {
            self.store
                .retry(self.placement(), &mut **self.file.lock())?;
        }
        self.store.pace();
        self.write_in_place()?;
        self.write_vectors()
    }

    /// Inserts the vectors of records, and returns the positions of failed records. An insert fails
    /// without memory for the code, without a neighbour, or after a failed read of a page.
    pub(crate) fn insert(&self, records: &[LogRecord<'_>]) -> Vec<usize> {
        let batch = Batch {
            records,
            next: AtomicUsize::new(0),
            left: Mutex::default(),
        };
        if self.failed.load(Ordering::Acquire) {
            return (0..records.len()).collect();
        }
        let threads = self.threads.min(records.len()).max(1);
        self.worker_pool.run(threads, &|thread, _| {
            let tasks = records.len().div_ceil(threads).min(self.in_flight());
            let tasks = (0..tasks)
                .map(|_| Box::pin(self.task(thread, &batch)) as Task<'_>)
                .collect();
            thread.run_all(tasks);
        });
        let mut left = batch.left.into_inner();
        left.sort_unstable();
        left
    }

    /// The number of concurrent inserts on each thread: 1 if pages are rewritten in place, to save
    /// memory.
    fn in_flight(&self) -> usize {
        match self.in_place {
            true => 1,
            false => self.choices.in_flight.max(1),
        }
    }

    /// Rows that are logged and inserted together. A checkpoint waits for at most one such batch.
    pub(crate) fn batch(&self) -> usize {
        match self.in_place {
            true => BATCH / 16,
            false => BATCH,
        }
    }

    async fn task(&self, thread: &Thread, batch: &Batch<'_>) {
        on_pages!(&self.index.graph().pages, pages => self.task_on(pages, thread, batch).await);
    }

    async fn task_on<N: NodePages>(&self, pages: &N, thread: &Thread, batch: &Batch<'_>)
    where
        N::Changes: Way<N>,
    {
        let timer = Timer::new(false);
        let within = Within {
            thread,
            timer: &timer,
            heat: None,
            admission: Admission::but(self.deleted.as_it_comes()),
        };
        let mut inserter = Inserter::new(self, pages, &within);
        let (link, mut work) = (N::Changes::link(self.update), Default::default());
        loop {
            let at = batch.next.fetch_add(1, Ordering::Relaxed);
            let Some(record) = batch.records.get(at) else {
                return;
            };
            let (id, Some(vector)) = (record.id(), record.vector()) else {
                continue;
            };
            let inserted = match &mut inserter {
                Ok(inserter) => {
                    let new = (id, vector, record.row());
                    inserter.insert(new, link, &mut work).await
                }
                Err(_) => Ok(None),
            };
            // The vector is in the log and waits in memory, so it is not lost.
            let failed = inserted.as_ref().err().or(inserter.as_ref().err());
            if let Some(error) = failed {
                self.health.trouble(Concern::Vectors, error);
            }
            let Ok(Some(node)) = inserted else {
                batch.left.lock().push(at);
                continue;
            };
            if let Ok(inserter) = &inserter {
                let reads = inserter.walker.traversal.counters.graph_reads;
                self.counts.reads.fetch_add(reads, Ordering::Relaxed);
            }
            self.count(|counts| &counts.inserts);
            self.inserted.write().insert(id);
            if let LogRecord::Replace { .. } = record {
                self.deleted.insert_below(id, node);
            }
        }
    }

    /// Without [`DirectOptions::write_behind`], waits until the pages of an insert are on storage.
    fn wait_for(&self, pages: &[u32]) {
        if !self.choices.write_behind {
            self.store.wait_for(self.placement(), pages);
        }
    }

    /// Waits until all queued pages are written. No insert may run during the call.
    pub(crate) fn settle(&self) {
        self.store.settle();
    }

    pub(crate) fn counts(&self) -> DirectCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        DirectCounts {
            inserts: of(&self.counts.inserts),
            changes: of(&self.counts.changes),
            fallbacks: of(&self.counts.fallbacks),
            pages_composed: of(&self.store.counts.composed),
            pages_written: of(&self.store.counts.written),
            vector_pages_written: of(&self.counts.vector_pages),
            pages_read: of(&self.counts.reads),
            pages: self.placement().pages().into(),
            pages_free: self.store.free() as u64,
            checkpoints: of(&self.counts.checkpoints),
        }
    }

    /// The approximate bytes of memory that inserts take, beyond the memory of searches.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let placement = self.placement();
        let codes = self.index.codes().len() as u64;
        let built = u64::from(self.index.manifest().code_bytes) * self.index.manifest().vectors;
        placement.memory_bytes() + codes.saturating_sub(built) + self.store.memory_bytes()
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // In a forked process these threads do not exist.
            self.writers.drain(..).for_each(std::mem::forget);
            return;
        }
        self.store.stop();
        for writer in self.writers.drain(..) {
            if writer.join().is_err() {
                tracing::error!("a thread that wrote pages panicked");
            }
        }
    }
}
