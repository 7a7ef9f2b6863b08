//! An index that takes inserts and deletes while it is searched.
//!
//! ```text
//!   insert ─> reserve ids ─> log (durable as promised) ─┬─> graph on storage (see `direct`), or
//!                                                       └─> fresh graph ─┐
//!   delete ─> reserve ids ─> log                       ─> tombstones ────┤ Overlay
//!   search ─> index on storage, tombstones left out ─> fresh graphs ─────┘ merged: the k nearest
//!
//!   compact    freeze:  next log, empty fresh graph            nobody writes for a moment
//!              merge:   live rows of all ─> new checkpoint     inserts, deletes and searches go on
//!              commit:  MANIFEST names the next log            nobody writes for a moment
//!              drain:   what came meanwhile ─> new graph       where inserts are direct
//! ```
//!
//! Layout and preset say whether vectors go into the graph on storage at once, or wait in memory: for a merge, or, in a cluster index, for
//! a rebalance of the clusters that they go into. But for merges, a checkpoint is made every so many inserts.
//!
//! **What is promised.** A call that returned is durable as [`Durability`] says; searches that begin after it see it. After a
//! crash, everything acknowledged is there again: the checkpoint that the manifest names, and the logs from the one on that it
//! names. What was logged but not yet acknowledged may be there as well.
//!
//! **Who may do what.** One process has the index open for changes (it holds the lock file); any number of its threads insert,
//! delete and search. Other processes open it for reading, see what was logged by then, and open it again to see more.

mod attributes;
mod bulk;
mod changes;
mod compact;
mod directly;
mod reserved;
mod resumable;
mod room;
mod submit;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use serde::Serialize;
use stratann_layout::inserts::BegunInsert;
use stratann_tier::{Directory, Home, LockGuard, TierError, Volume, release_code_pages};

use self::directly::direct_of;
use self::reserved::Reserved;
pub use self::resumable::{CutOff, CutOffInsert, Resumed};
use self::submit::Submitted;
use super::direct::{Direct, DirectOptions};
use super::due::{Due, MergeWhen, Reads};
use super::fresh::FreshGraph;
use super::growth::{LooksAt, far_grown, found_badly, looks_at};
use super::health::{Concern, Health};
use super::ids::StoredIds;
use super::overlay::{Moment, Overlay, Seen, Tombstones};
use super::replay::{self, Replayed};
use super::scattered::Scattered;
use crate::data::VectorSource;
use crate::durable::{Durability, Log, inserts, opened_from};
use crate::index::{Index, Lent, OpenOptions};
use crate::places::Purpose;
use crate::progress::{Progress, Silent};
use crate::recall::Measurer;
use crate::stores::columns::RowBytes;
use crate::stores::ids::IdTable;
use crate::{Error, RecallWatch, SearchOptions, SearchResults, Stats, Update, bounds, stored};

/// How to open an index for changes.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// When a call that changes something may return.
    pub durability: Durability,
    /// OS threads that insert the rows of one call.
    pub threads: usize,
    /// How new vectors get in; `None` is what the preset does. Where the layout does not let them in so, they wait for a
    /// merge.
    pub update: Option<Update>,
    /// How they are inserted directly.
    pub direct: DirectOptions,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            durability: Durability::Always,
            threads: crate::threads::processors(),
            update: None,
            direct: DirectOptions::default(),
        }
    }
}

/// How long one waits for a merge before one asks whether to go on waiting.
const INTERRUPTIBLE: Duration = Duration::from_millis(50);

/// What a merge did about the codebook, which says what codes mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CodebookFate {
    /// It stays as it is: it serves the vectors as well as one that is trained on them would, or there is none.
    #[default]
    Kept,
    /// One was trained on the vectors that there are now: the index had outgrown that which it had.
    Trained,
    /// The index has outgrown it, and it stays all the same, since it was given to the build
    /// ([`BuildOptions::codebook`](crate::BuildOptions::codebook)) and other indexes may share it.
    Outgrown,
}

/// What a merge did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CompactReport {
    /// Vectors in the new checkpoint.
    pub vectors: u64,
    /// Vectors that came from the log.
    pub merged: u64,
    /// Vectors that had been inserted straight into the graph on storage since the last merge.
    pub direct: u64,
    /// Vectors of the last checkpoint that were deleted or replaced.
    pub removed: u64,
    /// Segments of vectors whose files stayed as they are, garbage included (DecoupleVS §3.5); 0 where vectors stand beside
    /// their lists, or order decides where.
    pub segments_kept: u64,
    /// Segments whose vectors were written anew: the last one, and those with much garbage.
    pub segments_rewritten: u64,
    /// Vectors of these.
    pub vectors_rewritten: u64,
    /// What became of the codebook.
    pub codebook: CodebookFate,
    /// Clusters that were written anew in place (SPFresh), those that were split or merged among them; 0 where the whole index was built anew.
    pub clusters_written: u64,
    /// Clusters that were split.
    pub clusters_split: u64,
    /// Clusters that were dissolved because they had become too small.
    pub clusters_merged: u64,
    /// Clusters that vectors joined because a head near them came: each counts that a vector joined.
    pub reassigned: u64,
    /// Bytes on storage before and after, logs included.
    pub bytes_before: u64,
    /// Bytes on storage afterwards.
    pub bytes_after: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// What a search starts from: replaced as a whole when a checkpoint is.
struct State {
    index: Arc<Index>,
    overlay: Overlay,
    ids: StoredIds,
    /// What puts vectors into the graph on storage, where that is how they get in.
    direct: Option<Arc<Direct>>,
    /// While a merge goes on: ids of what it merges that were deleted or replaced since it began.
    since: Option<Arc<Tombstones>>,
    /// The same: rows that vectors of what it merges were given since.
    rows_since: Arc<Mutex<HashMap<u64, RowBytes>>>,
}

/// A checkpoint with what changed since, at one moment: whoever has it goes by that, whatever comes.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) index: Arc<Index>,
    pub(crate) overlay: Overlay,
    pub(crate) moment: Moment,
    /// Which node of the build has an id, where the checkpoint does not say it and it was found out.
    pub(crate) collected: Option<Arc<IdTable>>,
}

impl Snapshot {
    fn of(state: &State) -> Self {
        let overlay = state.overlay.clone();
        Self {
            index: state.index.clone(),
            moment: overlay.now(),
            overlay,
            collected: state.ids.as_table(),
        }
    }
}

/// The checkpoint before the last merge.
#[derive(Default)]
enum Before {
    /// Nobody wants it.
    #[default]
    Unwanted,
    /// There was no merge since somebody wanted it, or it was given up.
    NotYet,
    /// As the merge found it, with what came while it went on.
    Kept(Arc<State>),
}

/// What is known of an id.
#[derive(Clone, Copy)]
struct Known {
    /// The checkpoint's build has it.
    built: bool,
    /// It is in the index.
    live: bool,
}

impl State {
    /// The graph that takes new vectors.
    fn fresh(&self) -> &Arc<FreshGraph> {
        // There is always one, and it is the last.
        &self.overlay.fresh[self.overlay.fresh.len() - 1]
    }

    /// What is known of an id: asked, once, before a change is logged, so that nothing can fail afterwards.
    fn known(&self, id: u64) -> Result<Known, Error> {
        let built = self.ids.contains(id)?;
        let live = self.is_new(id) || built && !self.overlay.deleted.contains_built(id);
        Ok(Known { built, live })
    }

    /// Whether a vector of an id came since the build, and counts.
    fn is_new(&self, id: u64) -> bool {
        self.overlay.fresh.iter().any(|fresh| fresh.contains(id)) || self.was_inserted(id)
    }

    /// Whether a vector of an id was inserted directly since the build, and counts.
    fn was_inserted(&self, id: u64) -> bool {
        self.overlay.inserted.read().contains(id)
    }

    /// Makes an id no answer; `built` is what is [`known`](State::known) of it.
    fn remove(&self, id: u64, built: bool) {
        if !self.fresh().delete(id) {
            self.remove_older(id, built);
        }
    }

    /// Makes a vector an answer in place of any that has its id: at every moment a search finds the one or the other.
    fn replace(&self, id: u64, vector: &[u8], row: Option<RowBytes>, built: bool) {
        let newest = self.fresh().contains(id);
        self.fresh().insert(id, vector, row);
        if !newest {
            self.remove_older(id, built);
        }
    }

    /// Makes what has an id no answer, but for what the graph has that takes new vectors.
    fn remove_older(&self, id: u64, built: bool) {
        let merging = self.overlay.fresh.len() > 1;
        let frozen = merging && self.overlay.fresh[0].delete(id);
        let inserted = !frozen && self.overlay.inserted.write().remove(id);
        let stored = !frozen
            && (inserted || built)
            && self
                .overlay
                .deleted
                .insert_below(id, self.index.nodes() as u32);
        if let (true, Some(since)) = (frozen || stored, &self.since) {
            since.insert(id);
        }
    }
}

/// An index that is open for changes. Shared by any number of threads.
pub struct LiveIndex {
    path: PathBuf,
    volume: Arc<dyn Volume>,
    /// The directory that has all of it, whatever `volume` reads from copies elsewhere.
    storage: Arc<dyn Volume>,
    open: OpenOptions,
    options: WriteOptions,
    state: RwLock<Arc<State>>,
    log: Log,
    next_id: AtomicU64,
    /// Vectors that there are, by what was acknowledged. Records on storage and in memory count one twice while it goes from one to the other.
    live: AtomicUsize,
    /// Ids that calls are changing: two calls never change the same one at once.
    reserved: Reserved,
    /// Inserts that can go on where they are cut off, as `INSERTS` names them.
    begun: Mutex<Vec<BegunInsert>>,
    /// Held for reading by calls that change something, for writing while a merge begins and commits.
    gate: RwLock<()>,
    /// Held by a merge or a checkpoint: there is one at a time.
    merging: Mutex<()>,
    /// The checkpoint before the last merge, for who asked for it to be kept.
    before: Mutex<Before>,
    /// What searches read since the last merge.
    reads: Arc<Reads>,
    /// What the last look told of what probes read.
    scattered: Scattered,
    /// Whether whoever opened it had no patience for vectors of the log to go into the graph on storage: then closing leaves them where they wait.
    hurries: AtomicBool,
    /// Calls that let rows wait, and merge them by themselves.
    filling: AtomicUsize,
    /// Searches that were submitted and have not ended.
    submitted: Arc<Submitted>,
    /// The sequence number of the log up to which the last checkpoint goes.
    checkpointed: AtomicU64,
    /// Bytes that what was logged since is charged when the index is opened again.
    charged: AtomicU64,
    /// Vectors that are to wait in memory before clusters are to take them again, where that failed.
    rebalance_after: AtomicU64,
    /// Merges since it was opened.
    merges: AtomicU64,
    /// Checkpoints that took the place of another since it was opened.
    pub(super) replaced: Arc<AtomicU64>,
    /// What went wrong, and whether changes go on.
    health: Arc<Health>,
    /// What measures recall in the background, one for each watch.
    measurers: Mutex<Vec<Measurer>>,
    home: Home,
    _lock: LockGuard,
}

impl std::fmt::Debug for LiveIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "LiveIndex({}: {} vectors)",
            self.path.display(),
            self.len()
        )
    }
}

impl Drop for LiveIndex {
    /// A log that nothing was written to is of no use to anyone; what was inserted need not be replayed. In a forked process
    /// all of it is the parent's, and its locks may be held by threads that are not here.
    fn drop(&mut self) {
        if !self.home.is_here() {
            return;
        }
        // It reads what others may change once this is closed.
        self.measurers.get_mut().clear();
        self.close();
        // Until now nobody else could change the files that they read.
        self.submitted.wait();
    }
}

impl LiveIndex {
    /// Leaves the index as the next one is to find it.
    fn close(&self) {
        // What is promised to be synced in time is so now, while there is still somebody to rotate the log if that fails.
        if matches!(self.options.durability, Durability::Every(_))
            && !self.log.is_broken()
            && let Err(error) = self.log.flush()
        {
            tracing::warn!(index = %self.path.display(), "the log was not synced: {error}");
        }
        // What a sync failed to keep is in memory alone, until the next log has it.
        if self.log.is_broken()
            && let Err(error) = self.log.rotate()
        {
            tracing::error!(index = %self.path.display(), "what was not synced may be lost: {error}");
        }
        if self.health.is_halted() {
            return;
        }
        // The code that inserted is done; what writes the checkpoint would count on top of it.
        if self.index().memory().budget.is_some() {
            release_code_pages();
        }
        let drained = match self.hurries.load(Ordering::Relaxed) {
            true => Ok(()),
            false => self.drain_few(&Silent),
        };
        let left = drained
            .and_then(|()| self.checkpoint())
            .and_then(|_| self.leave_nothing());
        if let Err(error) = left {
            // Nothing is lost: it is in the log.
            self.health.trouble(Concern::Checkpoint, &error);
        }
        if let Some(unused) = self.log.unused()
            && !self.health.is_halted()
            && let Err(error) = self.volume.remove(&unused)
        {
            self.health.trouble(Concern::Rest, &error);
        }
    }

    /// Opens the index in a directory for changes, and takes its lock.
    ///
    /// # Errors
    /// As [`Index::open`], an index that another process changes, a log that is damaged.
    pub fn open(
        path: impl AsRef<Path>,
        open: &OpenOptions,
        options: &WriteOptions,
    ) -> Result<Self, Error> {
        Self::open_lent(path.as_ref(), open, options, None, &Silent)
    }

    /// As [`open`](Self::open), in the place of an index that has its memory from there.
    fn open_lent(
        path: &Path,
        open: &OpenOptions,
        options: &WriteOptions,
        lent: Option<&Lent>,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        let home: Arc<dyn Volume> = Arc::new(stored::existing(path)?);
        let path = &*stored::home(path)?;
        // Looked at before the lock, which is a file: a folder that is no index is left as it is.
        stored::manifest(&*home)?;
        // And the lock before the copies, of what nobody else changes while they are made.
        let lock = home.lock()?;
        let volume = (open.places).over(&home, path, Purpose::Change, open.memory)?;
        let index = Arc::new(Index::open_for_changes(volume, path, open, lent, progress)?);
        let has_budget = index.memory().budget.is_some();
        let live = Self::start(lock, home, index, options, progress)?;
        if has_budget {
            release_code_pages();
        }
        Ok(live)
    }

    /// Opens the index in a volume, with nothing placed elsewhere.
    #[cfg(test)]
    pub(crate) fn open_in(
        volume: Arc<dyn Volume>,
        path: &Path,
        open: &OpenOptions,
        options: &WriteOptions,
    ) -> Result<Self, Error> {
        // Looked at before the lock, which is a file: a folder that is no index is left as it is.
        stored::manifest(&*volume)?;
        let lock = volume.lock()?;
        let index = Arc::new(Index::open_for_changes(
            volume.clone(),
            path,
            open,
            None,
            &Silent,
        )?);
        Self::start(lock, volume, index, options, &Silent)
    }

    /// Opens an index for changes that is open for reading, whose tables it goes on with, or, where it has a memory budget, whose place it takes.
    ///
    /// One of a [`Catalog`](crate::Catalog) has a part of the catalog's budget: at least as much as a few changes at a time need, and half of what is free
    /// beyond that, as far as an index of its size can use it. Where more waits in memory, or a merge has made a larger index, more is lent, if there is room.
    /// Others are closed for it, and it is counted until it is dropped. `index` is counted for as long as somebody
    /// holds it, so drop it. Where there is no room, this waits for others to be dropped ([`CatalogOptions::patience`](crate::CatalogOptions::patience)). A merge takes up to 64 MiB more while it goes on, as it does beside any budget.
    ///
    /// # Errors
    /// As [`LiveIndex::open`]; a budget of a catalog that has no room for it ([`Error::Memory`]), or not beside what callers hold ([`Error::Crowded`]).
    pub fn over(index: &Arc<Index>, options: &WriteOptions) -> Result<Self, Error> {
        Self::over_observed(index, options, &Silent)
    }

    /// As [`over`](LiveIndex::over); `progress` is asked whether to go on, every few milliseconds while it waits for memory of a catalog, and before each batch of vectors
    /// of the log that goes into the graph on storage. Where it ends the latter, the others go on waiting, and the index is open.
    ///
    /// # Errors
    /// As there; [`Error::Interrupted`], where nothing was opened.
    pub fn over_observed(
        index: &Arc<Index>,
        options: &WriteOptions,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        if !index.options().places.is_empty() {
            // Copies that are only searched are not written to, and may be shared with other processes. What is opened is what stands at
            // the path, which is to be the index that is open.
            index.volume().check_path(index.path())?;
            return Self::open_lent(
                index.path(),
                index.opener().options(),
                options,
                index.lent(),
                progress,
            );
        }
        let lock = index.volume().lock()?;
        let manifest = stored::manifest(&**index.volume())?;
        // What was inserted through it, and could not be put into a checkpoint, is replayed from the log.
        let nodes = manifest
            .placement
            .map_or(manifest.vectors, |facts| facts.nodes);
        // One that was opened for searching alone has pages in the memory that inserts are to take.
        let memory = index.memory();
        let has_room = memory.budget.is_none() || memory.for_changes;
        if has_room && manifest == *index.manifest() && index.nodes() as u64 == nodes {
            let (volume, index) = (index.volume().clone(), index.clone());
            return Self::start(lock, volume, index, options, progress);
        }
        let (volume, opener) = (index.volume().clone(), index.opener());
        let (path, open, lent) = (index.path(), opener.options(), index.lent());
        let index = Index::open_for_changes(volume.clone(), path, open, lent, progress)?;
        let index = Arc::new(index);
        Self::start(lock, volume, index, options, progress)
    }

    /// Opens what is behind `index`, whose files are in `storage`; its lock is held.
    fn start(
        lock: LockGuard,
        storage: Arc<dyn Volume>,
        index: Arc<Index>,
        options: &WriteOptions,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        bounds::writing(options)?;
        match (options.update, index.has_clusters()) {
            (Some(Update::Rebalance), false) => {
                let expected = "another way: the index is a graph, and it is of clusters";
                return Err(Error::call("update", Update::Rebalance, expected));
            }
            (Some(way), true) if !matches!(way, Update::Merge | Update::Rebalance) => {
                let expected = "merge or rebalance, since the index is of clusters";
                return Err(Error::call("update", way, expected));
            }
            _ => {}
        }
        let volume = index.volume().clone();
        let name = stored::name_of(&*volume, stratann_layout::manifest::FILE_NAME);
        index.manifest().check_writable(&name)?;
        opened_from(&*volume, index.manifest())?;
        let ids = StoredIds::of_any(&index)?;
        let Replayed {
            overlay,
            next_id,
            next,
        } = replay::replay(&*volume, &index)?;
        let log = Log::start(
            volume.clone(),
            replay::shape(&index)?,
            &next,
            options.durability,
        )?;
        if let Some(budget) = index.memory().budget {
            log.keep_within(budget);
        }
        let replayed = overlay.fresh[0].slots() > 0
            || overlay.deleted.len() > index.carried().dead
            || index.columns().has_new();
        // What was replayed is in no checkpoint yet.
        let checkpointed = match replayed {
            true => index.manifest().log_from.sequence,
            false => log.next_sequence(),
        };
        let health = Arc::new(Health::new(index.path(), index.manifest().clone()));
        let direct = direct_of(&*storage, &index, &overlay, options, &health)?;
        let begun = inserts::of_index(&*volume, index.manifest().state.as_deref())?;
        let next_id = next_id.max(ids.next_id()).max(resumable::behind(&begun));
        Ok(Self {
            path: index.path().to_owned(),
            volume,
            storage,
            open: index.options().clone(),
            options: options.clone(),
            checkpointed: AtomicU64::new(checkpointed),
            charged: AtomicU64::new(index.memory().changes),
            health,
            reads: Arc::default(),
            scattered: Scattered::default(),
            hurries: AtomicBool::new(false),
            filling: AtomicUsize::new(0),
            rebalance_after: AtomicU64::new(0),
            submitted: Arc::default(),
            next_id: AtomicU64::new(next_id),
            begun: Mutex::new(begun),
            live: AtomicUsize::new(overlay.live(index.nodes())),
            state: RwLock::new(Arc::new(State {
                index,
                overlay,
                ids,
                direct: direct.map(Arc::new),
                since: None,
                rows_since: Arc::default(),
            })),
            log,
            reserved: Reserved::default(),
            gate: RwLock::default(),
            merging: Mutex::default(),
            merges: AtomicU64::new(0),
            replaced: Arc::default(),
            before: Mutex::default(),
            measurers: Mutex::default(),
            home: Home::here(),
            _lock: lock,
        })
        .inspect(Self::keep_room)
        .and_then(|live| live.with_fresh_drained(progress))
    }

    fn state(&self) -> Arc<State> {
        self.state.read().clone()
    }

    /// The index on storage as it is now, for tests that read it beside changes.
    #[cfg(test)]
    pub(crate) fn on_storage(&self) -> Arc<Index> {
        self.state().index.clone()
    }

    /// What searches start from, for tests that look at all of it.
    #[cfg(test)]
    pub(super) fn parts(&self) -> (Arc<Index>, Overlay) {
        let state = self.state();
        if let Some(direct) = &state.direct {
            direct.settle();
        }
        (state.index.clone(), state.overlay.clone())
    }

    /// The vectors that a search can find, at every moment.
    pub fn len(&self) -> usize {
        self.live.load(Ordering::Acquire)
    }

    /// Whether it is what the index in its directory is: false once the directory was moved or removed, or another has taken its
    /// path, and once it takes no more changes. Then open the index again.
    ///
    /// # Errors
    /// Nobody can tell; this process was forked from the one that opened it.
    pub fn is_current(&self) -> Result<bool, Error> {
        let checked = self.volume.check_held();
        match checked.and_then(|()| self.volume.check_path(&self.path)) {
            Err(TierError::Replaced { .. }) => Ok(false),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(!self.health.is_halted()),
        }
    }

    /// Whether all vectors were deleted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The checkpoint that searches start from.
    pub fn index(&self) -> Arc<Index> {
        self.state().index.clone()
    }

    /// The directory it lives in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the index is and what it takes; vectors and deleted ones are those of now.
    pub fn stats(&self) -> Stats {
        let state = self.state();
        let mut stats = state.index.stats();
        stats.deleted = state.index.deleted_in(&state.overlay);
        stats.logged = state.overlay.logged();
        stats.memory.changes = state.overlay.memory_bytes()
            + state.index.columns().new_bytes()
            + state.index.id_hash_bytes();
        stats.health = self.seen_health();
        let drifted = stats.health.drifted;
        let drifted = drifted.filter(|&share| share >= MergeWhen::default().drifted);
        // Nothing is missed where all are looked at.
        let live = self.len() as u64;
        let drifted = drifted.filter(|_| looks_at(&state.index, live) != LooksAt::All);
        let badly = drifted.map(Due::Drifted);
        let badly = badly.or_else(|| far_grown(&state.index, live));
        stats.trouble = self.health.says().or(badly.map(found_badly));
        if let Some(direct) = &state.direct {
            stats.direct = Some(direct.counts());
            stats.memory.changes += direct.memory_bytes();
        }
        stats
    }

    /// What keeps a sample of the queries that are served.
    pub(crate) fn watch_recall(&self) -> Option<&RecallWatch> {
        self.open.watch_recall.as_ref()
    }

    /// What measures recall in the background, one for each watch.
    pub(crate) fn measurers(&self) -> &Mutex<Vec<Measurer>> {
        &self.measurers
    }

    /// Merges that were made since it was opened: those of [`compact`](LiveIndex::compact), also in the background.
    pub fn merges(&self) -> u64 {
        self.merges.load(Ordering::Relaxed)
    }

    /// Whether an id is in the index.
    ///
    /// # Errors
    /// The table of ids cannot be read.
    pub fn contains(&self, id: u64) -> Result<bool, Error> {
        let found = self.by_id(&[id], |reading, id, windows| {
            Ok(reading.contains(id, windows)?.then_some(()))
        });
        Ok(found?.first().is_some_and(Option::is_some))
    }

    /// Searches a batch of queries; sees every change whose call returned before this one began.
    ///
    /// # Errors
    /// As [`Index::search`].
    pub fn search(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
    ) -> Result<SearchResults, Error> {
        self.search_observed(queries, options, &Silent)
    }

    /// As [`search`](LiveIndex::search); `progress` is told of each query that is done and may interrupt the batch.
    ///
    /// # Errors
    /// As [`Index::search_observed`].
    pub fn search_observed(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error> {
        let found = self.search_unwatched(queries, options, progress)?;
        self.has_served(queries, options, None);
        Ok(found)
    }

    /// The same; live recall is not of it.
    pub(crate) fn search_unwatched(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error> {
        let (state, moment) = self.at_one_moment();
        let seen = Seen {
            overlay: &state.overlay,
            moment,
        };
        let results = state
            .index
            .search_with(queries, options, progress, None, Some(seen))?;
        let deleted = submit::deleted((&state.index, &state.overlay));
        self.reads.add(options, &results, deleted);
        Ok(results)
    }

    /// Runs a search of what counts now.
    pub(super) fn at_a_moment<T>(&self, search: impl FnOnce(&Index, Seen<'_>) -> T) -> T {
        let (state, moment) = self.at_one_moment();
        let seen = Seen {
            overlay: &state.overlay,
            moment,
        };
        search(&state.index, seen)
    }

    /// What a search starts from, and the moment of it that the search sees.
    fn at_one_moment(&self) -> (Arc<State>, Moment) {
        // One moment of all that is searched, while nobody puts anything else in its place: from here on vectors may go from one
        // graph to another, also to that of an index that this search does not know.
        let state = self.state.read();
        (state.clone(), state.overlay.now())
    }

    /// What counts now.
    pub(crate) fn at_present(&self) -> Snapshot {
        Snapshot::of(&self.state.read())
    }

    /// Has something done at a moment when nobody changes anything.
    pub(crate) fn while_nobody_changes<T>(&self, act: impl FnOnce(&Snapshot) -> T) -> T {
        let _gate = self.gate.write();
        act(&self.at_present())
    }

    /// The directory that has all of it, wherever copies are.
    ///
    /// # Errors
    /// It is not at its path any more, or this process does not hold its lock.
    pub(crate) fn home_on_storage(&self) -> Result<Directory, Error> {
        self.volume.check_held()?;
        self.volume.check_path(&self.path)?;
        let directory = Directory::open(&self.path)?;
        // The one that was looked at, and not one that took its place since.
        self.volume.check_path(&self.path)?;
        Ok(directory)
    }

    /// As long as what is returned is there, no checkpoint is made, and no merge begins. Changes go on.
    ///
    /// # Errors
    /// An interruption through `progress`, while a merge is waited for.
    pub(crate) fn without_checkpoints(
        &self,
        progress: &dyn Progress,
    ) -> Result<MutexGuard<'_, ()>, Error> {
        loop {
            if let Some(none) = self.merging.try_lock_for(INTERRUPTIBLE) {
                return Ok(none);
            }
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
        }
    }

    /// From now on the checkpoint before the last merge is kept, with what it takes in memory and on storage: for who has asked something of it that is
    /// not answered yet.
    pub(crate) fn keep_before(&self) {
        let mut before = self.before.lock();
        if let Before::Unwanted = *before {
            *before = Before::NotYet;
        }
    }

    /// Gives up the checkpoint before the last merge.
    pub(crate) fn forget_before(&self) {
        let kept = match &mut *self.before.lock() {
            before @ Before::Kept(_) => std::mem::replace(before, Before::NotYet),
            _ => return,
        };
        drop(kept);
    }

    /// The checkpoint before the last merge, if it is kept, as it was when its place was taken; and what counts now.
    pub(crate) fn snapshots(&self) -> (Option<Snapshot>, Snapshot) {
        // In this order: a merge puts what it replaces into `before`, and then itself into `state`. So where this is what a merge made, the one before is there.
        let now = self.at_present();
        let before = match &*self.before.lock() {
            Before::Kept(state) => Some(Snapshot::of(state)),
            Before::Unwanted | Before::NotYet => None,
        };
        (before, now)
    }

    /// Refuses the numbers that a [`search`](LiveIndex::search) refuses, whatever the queries are.
    ///
    /// # Errors
    /// A number beyond its bound ([`bounds`](crate::bounds)).
    pub fn check_search(&self, options: &SearchOptions) -> Result<(), Error> {
        let state = self.state();
        let numbers = state.index.check_numbers(options, Some(&state.overlay));
        numbers.map(drop)
    }

    /// Vectors on storage, those of them that do not count, and as many as what waits in memory is worth.
    pub(super) fn extents(&self) -> (u64, u64, u64) {
        let state = self.state();
        (
            state.index.len() as u64,
            state.index.deleted_in(&state.overlay),
            match state.direct {
                Some(_) => state.overlay.logged(),
                None => self.waiting(&state),
            },
        )
    }

    /// Whether vectors that wait go into clusters in place, by themselves.
    pub(super) fn takes_in_place(&self) -> bool {
        // After one that failed, a merge may do what it could not.
        self.rebalances(&self.state()) && self.rebalance_after.load(Ordering::Relaxed) == 0
    }

    /// Vectors that came since the last build or merge, and the share of files of clusters that does not count any more; in place of it, of a graph into which
    /// vectors come directly, the share of its pages that the last build or merge would not have taken for as many vectors.
    pub(super) fn garbage(&self) -> (u64, f64) {
        let state = self.state();
        let came = |nodes: u64| nodes.saturating_sub(state.index.manifest().vectors);
        match (state.index.clusters(), &state.direct) {
            (Some(clusters), _) => (came(clusters.nodes()), clusters.garbage()),
            (None, Some(direct)) => {
                let built = state.index.graph().files().0.pages as f64;
                let each = built / state.index.manifest().vectors.max(1) as f64;
                let pages = direct.counts().pages.max(1) as f64;
                let share = 1.0 - each * state.overlay.live(state.index.nodes()) as f64 / pages;
                (came(state.index.nodes() as u64), share.max(0.0))
            }
            (None, None) => (0, 0.0),
        }
    }

    /// What the last look told of what probes read.
    pub(super) fn scattered(&self) -> &Scattered {
        &self.scattered
    }

    /// What searches read since the last merge.
    pub(super) fn reads(&self) -> &Reads {
        &self.reads
    }

    /// What went wrong, and whether changes go on.
    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    /// Makes everything durable that was inserted and deleted before.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn flush(&self) -> Result<(), Error> {
        match self.log.is_broken() {
            // It makes durable, in another file, what was acknowledged.
            true => self.log.rotate().map(drop),
            false => self.log.flush(),
        }
    }
}
