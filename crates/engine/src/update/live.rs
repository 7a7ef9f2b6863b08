//! An index that accepts inserts and deletes while searches run.
//!
//! ```text
//!   insert ─> reserve ids ─> log (durable as promised) ─┬─> graph on storage (see `direct`), or
//!                                                       └─> fresh graph ─┐
//!   delete ─> reserve ids ─> log                       ─> tombstones ────┤ Overlay
//!   search ─> index on storage, tombstones left out ─> fresh graphs ─────┘ merged: the k nearest
//!
//!   compact    freeze:  next log, empty fresh graph            changes wait briefly
//!              merge:   all live rows ─> new checkpoint        inserts, deletes and searches run
//!              commit:  MANIFEST names the next log            changes wait briefly
//!              drain:   waiting vectors ─> graph on storage    if inserts are direct
//! ```
//!
//! The layout and the preset decide whether new vectors are linked into the graph on storage at
//! once, or wait in memory for a merge or a rebalance.
//!
//! **Guarantees.** When a call returns, its changes are durable as [`Durability`] says, and every
//! later search sees them. A crash loses no acknowledged change, but may keep changes that were not
//! acknowledged.
//!
//! **Processes.** One process holds the lock file and changes the index. Other processes see the
//! changes that were logged before they opened the index.

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

pub(crate) use self::attributes::Meanwhile;
use self::directly::direct_of;
use self::reserved::Reserved;
pub use self::resumable::{CutOff, CutOffInsert, Resumed};
use self::submit::Submitted;
use super::direct::Direct;
use super::due::{Due, Extents, Reads, garbage_of_graph};
use super::due::{far_grown, found_badly};
use super::health::{Concern, Health};
use super::ids::StoredIds;
use super::scattered::Scattered;
use crate::data::VectorSource;
use crate::durable::{Log, inserts, opened_from};
use crate::index::growth::{LooksAt, looks_at};
use crate::index::replay::{self, Replayed};
use crate::index::{Index, OpenOptions};
use crate::overlay::fresh::FreshGraph;
use crate::overlay::{Moment, Overlay, Seen, Tombstones};
use crate::places::Purpose;
use crate::progress::{Progress, Silent};
use crate::stores::columns::RowBytes;
use crate::stores::ids::IdTable;
use crate::watch::Measurer;
use crate::{
    Durability, Error, Filter, MergeWhen, RecallWatch, SearchOptions, SearchResults, Stats, Update,
    WriteOptions, bounds, stored,
};

/// The interval at which a call that waits for a merge checks for an interruption.
const INTERRUPTIBLE: Duration = Duration::from_millis(50);

/// Whether a merge kept or replaced the codebook, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CodebookFate {
    /// The codebook is unchanged: it fits the present vectors, or the index has no codebook.
    #[default]
    Kept,
    /// The index had outgrown its codebook, so a new codebook is trained on the present vectors.
    Trained,
    /// The index has outgrown its codebook, but keeps it. The codebook was given to the build
    /// ([`BuildOptions::codebook`](crate::BuildOptions::codebook)), and other indexes may share it.
    Outgrown,
}

/// The results of a merge.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CompactReport {
    /// Vectors in the new checkpoint.
    pub vectors: u64,
    /// Vectors that the merge moved from memory to the checkpoint.
    pub merged: u64,
    /// Vectors that had been inserted directly into the graph on storage since the last merge.
    pub direct: u64,
    /// Vectors of the last checkpoint that were deleted or replaced.
    pub removed: u64,
    /// Segments whose files the merge left unchanged, with their garbage (DecoupleVS §3.5). 0 if
    /// vectors are stored beside their lists, or in locality order.
    pub segments_kept: u64,
    /// Segments whose vectors were rewritten: the last segment, and segments with much garbage.
    pub segments_rewritten: u64,
    /// Vectors in the rewritten segments.
    pub vectors_rewritten: u64,
    /// The codebook after the merge.
    pub codebook: CodebookFate,
    /// Clusters that were rewritten in place (SPFresh), including split and merged clusters. 0
    /// after a rebuild.
    pub clusters_written: u64,
    /// Clusters that were split.
    pub clusters_split: u64,
    /// Clusters that were dissolved because they had become too small.
    pub clusters_merged: u64,
    /// The number of times that a vector joined another cluster because a new head was nearer.
    pub reassigned: u64,
    /// Bytes of the index on storage before the merge, including logs.
    pub bytes_before: u64,
    /// Bytes of the index on storage after the merge, including logs.
    pub bytes_after: u64,
    /// The duration of the merge, in seconds of wall-clock time.
    pub seconds: f64,
}

struct State {
    index: Arc<Index>,
    overlay: Overlay,
    ids: StoredIds,
    direct: Option<Arc<Direct>>,
    /// During a merge: the ids of merged vectors that were deleted or replaced after the merge
    /// began.
    since: Option<Arc<Tombstones>>,
    /// During a merge: the attributes and payloads that merged vectors received after the merge
    /// began.
    rows_since: Arc<Mutex<HashMap<u64, RowBytes>>>,
}

/// A checkpoint and the changes after it, at one read timestamp.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) index: Arc<Index>,
    pub(crate) overlay: Overlay,
    pub(crate) moment: Moment,
    /// If the checkpoint has no table of ids, this table gives the node of each id of the build.
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

#[derive(Default)]
enum Before {
    #[default]
    Unwanted,
    /// A caller wants the previous checkpoint, but no merge has run since this request.
    NotYet,
    /// The state that the last merge replaced, with the changes made during that merge.
    Kept(Arc<State>),
}

#[derive(Clone, Copy)]
struct Known {
    built: bool,
    live: bool,
}

impl State {
    fn fresh(&self) -> &Arc<FreshGraph> {
        // The last graph takes new vectors.
        &self.overlay.fresh[self.overlay.fresh.len() - 1]
    }

    /// A change calls this function before it writes its log record, since the look-up can fail.
    fn known(&self, id: u64) -> Result<Known, Error> {
        let built = self.ids.contains(id)?;
        let live = self.is_new(id) || built && !self.overlay.deleted.contains_built(id);
        Ok(Known { built, live })
    }

    fn is_new(&self, id: u64) -> bool {
        self.overlay.fresh.iter().any(|fresh| fresh.contains(id)) || self.was_inserted(id)
    }

    fn was_inserted(&self, id: u64) -> bool {
        self.overlay.inserted.read().contains(id)
    }

    fn remove(&self, id: u64, built: bool) {
        if !self.fresh().delete(id) {
            self.remove_older(id, built);
        }
    }

    /// At every read timestamp, a search finds exactly one of the old and the new vector.
    fn replace(&self, id: u64, vector: &[u8], row: Option<RowBytes>, built: bool) {
        let newest = self.fresh().contains(id);
        self.fresh().insert(id, vector, row);
        if !newest {
            self.remove_older(id, built);
        }
    }

    /// Hides the vectors of an id, except in the graph that takes new vectors.
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

/// An index that is open for changes. Any number of threads may share it.
pub struct LiveIndex {
    path: PathBuf,
    volume: Arc<dyn Volume>,
    /// The directory of the whole index, even if `volume` reads copies elsewhere.
    storage: Arc<dyn Volume>,
    open: OpenOptions,
    options: WriteOptions,
    state: RwLock<Arc<State>>,
    log: Log,
    next_id: AtomicU64,
    /// The number of vectors after all acknowledged changes. A sum over storage and memory would
    /// count a vector twice while a merge moves the vector.
    live: AtomicUsize,
    reserved: Reserved,
    /// The inserts that can be resumed after an interruption, as in the file `INSERTS`.
    begun: Mutex<Vec<BegunInsert>>,
    /// Changes hold this lock for reading. A merge holds this lock for writing when the merge
    /// begins and commits.
    gate: RwLock<()>,
    /// Held during a merge or a checkpoint.
    merging: Mutex<()>,
    before: Mutex<Before>,
    reads: Arc<Reads>,
    scattered: Scattered,
    /// Whether an interrupt ended the opening before all logged vectors were inserted into the
    /// graph. If so, the close does not insert the remaining vectors either.
    hurries: AtomicBool,
    /// The number of running calls that leave new vectors in memory, and merge them at the end.
    filling: AtomicUsize,
    submitted: Arc<Submitted>,
    /// The last checkpoint has every change whose sequence number in the log is below this number.
    checkpointed: AtomicU64,
    /// Bytes of memory that the changes since the last checkpoint take when the index is reopened.
    charged: AtomicU64,
    /// After a failed rebalance, the number of waiting vectors at which the index tries again.
    /// Otherwise 0.
    rebalance_after: AtomicU64,
    merges: AtomicU64,
    pub(super) replaced: Arc<AtomicU64>,
    health: Arc<Health>,
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
    /// Makes a checkpoint of direct inserts, unless vectors still wait in memory, and removes an
    /// empty log. A forked process does nothing, since threads of the parent may hold locks of the
    /// index.
    fn drop(&mut self) {
        if !self.home.is_here() {
            return;
        }
        // Measurements of recall read files that other processes may change after the close.
        self.measurers.get_mut().clear();
        self.close();
        // After the lock is released, another process may change the files. So submitted searches
        // end first.
        self.submitted.wait();
    }
}

impl LiveIndex {
    fn close(&self) {
        if matches!(self.options.durability, Durability::Every(_))
            && !self.log.is_broken()
            && let Err(error) = self.log.flush()
        {
            tracing::warn!(index = %self.path.display(), "the log was not synced: {error}");
        }
        // If a sync failed, the log file may lack changes. The rotation writes them to the next
        // log.
        if self.log.is_broken()
            && let Err(error) = self.log.rotate()
        {
            tracing::error!(index = %self.path.display(), "changes that were not synced may be lost: {error}");
        }
        if self.health.is_halted() {
            return;
        }
        // Without this release, the code pages of inserts would stay in memory beside the code
        // pages that the checkpoint loads.
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
            // No change is lost, since the log has all changes.
            self.health.trouble(Concern::Checkpoint, &error);
        }
        if let Some(unused) = self.log.unused()
            && !self.health.is_halted()
            && let Err(error) = self.volume.remove(&unused)
        {
            self.health.trouble(Concern::Rest, &error);
        }
    }

    /// Opens the index in a directory for changes, and locks the directory.
    ///
    /// # Errors
    /// Fails as [`Index::open`] does. It also fails if another process has the index open for
    /// changes, or if the log is damaged.
    pub fn open(
        path: impl AsRef<Path>,
        open: &OpenOptions,
        options: &WriteOptions,
    ) -> Result<Self, Error> {
        Self::open_lent(path.as_ref(), open, options, None, &Silent)
    }

    /// Opens an index like [`open`](Self::open). `before` is the index that was open for reading,
    /// and may lease memory from a shared budget.
    fn open_lent(
        path: &Path,
        open: &OpenOptions,
        options: &WriteOptions,
        before: Option<&Index>,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        let home: Arc<dyn Volume> = Arc::new(stored::existing(path)?);
        let path = &*stored::home(path)?;
        // The lock creates a file. So the manifest is read first, and a folder without an index
        // stays unchanged.
        stored::manifest(&*home)?;
        // No other process may change the files while they are copied.
        let lock = home.lock()?;
        let volume = (open.places).over(&home, path, Purpose::Change, open.memory)?;
        let lent = before.and_then(Index::lent);
        let index = Arc::new(Index::open_for_changes(volume, path, open, lent, progress)?);
        // The start may write, so another index is refused before that.
        before.map_or(Ok(()), |before| index.check_form(before.form()))?;
        let has_budget = index.memory().budget.is_some();
        let live = Self::start(lock, home, index, options, progress)?;
        if has_budget {
            release_code_pages();
        }
        Ok(live)
    }

    #[cfg(test)]
    pub(crate) fn open_in(
        volume: Arc<dyn Volume>,
        path: &Path,
        open: &OpenOptions,
        options: &WriteOptions,
    ) -> Result<Self, Error> {
        // The lock creates a file, and a folder without an index must stay unchanged.
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

    /// Opens for changes an index that is already open for reading. Without a memory budget, both
    /// indexes share their tables. Under a budget, the opened index replaces `index`.
    ///
    /// An index of a [`Catalog`](crate::Catalog) leases a part of the catalog's budget: enough for
    /// a few changes, and half of the remaining memory. The lease is at most the memory that an
    /// index of this size can use. Later the catalog leases more if necessary, and may close other
    /// indexes.
    ///
    /// Both indexes count towards the budget until every caller has dropped them. If memory is
    /// short, the call waits, at most for
    /// [`CatalogOptions::patience`](crate::CatalogOptions::patience). A merge takes up to 64 MiB
    /// beyond the budget.
    ///
    /// # Errors
    /// Fails as [`LiveIndex::open`] does. The error is [`Error::Memory`] if the catalog's budget is
    /// too small for this index alone, and [`Error::Crowded`] if callers hold too many other
    /// indexes.
    pub fn over(index: &Arc<Index>, options: &WriteOptions) -> Result<Self, Error> {
        Self::over_observed(index, options, &Silent)
    }

    /// Opens an index like [`over`](LiveIndex::over). `progress` can interrupt the wait for memory.
    /// If `progress` interrupts the inserts of logged vectors into the graph, the call succeeds,
    /// and the remaining vectors wait in memory.
    ///
    /// # Errors
    /// Fails as [`over`](LiveIndex::over) does. If `progress` interrupted the wait for memory, the
    /// error is [`Error::Interrupted`].
    pub fn over_observed(
        index: &Arc<Index>,
        options: &WriteOptions,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        if !index.options().places.is_empty() {
            // Changes never go to copies at other places, since other processes may share these
            // copies.
            index.volume().check_path(index.path())?;
            let (path, open) = (index.path(), index.opener());
            return Self::open_lent(path, open.options(), options, Some(index), progress);
        }
        let lock = index.volume().lock()?;
        let manifest = stored::manifest(&**index.volume())?;
        // If direct inserts added nodes after the checkpoint, the index is opened again, which
        // replays the log.
        let nodes = manifest
            .placement
            .map_or(manifest.vectors, |facts| facts.nodes);
        // In an index opened for searches only, cached pages fill the memory that inserts need.
        let memory = index.memory();
        let has_room = memory.budget.is_none() || memory.for_changes;
        if has_room && manifest == *index.manifest() && index.nodes() as u64 == nodes {
            let (volume, index) = (index.volume().clone(), index.clone());
            return Self::start(lock, volume, index, options, progress);
        }
        let (volume, opener) = (index.volume().clone(), index.opener());
        let (path, open, lent) = (index.path(), opener.options(), index.lent());
        let newer = Index::open_for_changes(volume.clone(), path, open, lent, progress)?;
        newer.check_form(index.form())?;
        Self::start(lock, volume, Arc::new(newer), options, progress)
    }

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
                let reason = "this index is a graph, and rebalance needs clusters";
                let remedy = "Use another update method";
                return Err(Error::call("update", Update::Rebalance, reason, remedy));
            }
            (Some(way), true) if !matches!(way, Update::Merge | Update::Rebalance) => {
                let reason = "this is an index of clusters";
                let remedy = "Use merge or rebalance";
                return Err(Error::call("update", way, reason, remedy));
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

    #[cfg(test)]
    pub(crate) fn on_storage(&self) -> Arc<Index> {
        self.state().index.clone()
    }

    #[cfg(test)]
    pub(super) fn parts(&self) -> (Arc<Index>, Overlay) {
        let state = self.state();
        if let Some(direct) = &state.direct {
            direct.settle();
        }
        (state.index.clone(), state.overlay.clone())
    }

    /// The number of live vectors.
    pub fn len(&self) -> usize {
        self.live.load(Ordering::Acquire)
    }

    /// Whether the directory still has this index, and the handle accepts changes. If not, open the
    /// index again.
    ///
    /// # Errors
    /// The directory cannot be read, or this process is a fork of the process that opened the
    /// index.
    pub fn is_current(&self) -> Result<bool, Error> {
        let checked = self.volume.check_held();
        match checked.and_then(|()| self.volume.check_path(&self.path)) {
            Err(TierError::Replaced { .. }) => Ok(false),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(!self.health.is_halted()),
        }
    }

    /// Whether the index has no live vector.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The checkpoint that searches start from.
    pub fn index(&self) -> Arc<Index> {
        self.state().index.clone()
    }

    /// The directory of the index.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Facts and sizes of the index, after all acknowledged changes.
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
        // If searches scan all vectors, drift does not make them miss vectors.
        let live = self.len() as u64;
        let drifted = drifted.filter(|_| looks_at(&state.index, live) != LooksAt::All);
        let badly = drifted.map(Due::Drifted);
        let badly = badly.or_else(|| far_grown(&state.index, live));
        stats.trouble = self.health.says().or(badly.map(found_badly));
        stats.live = live;
        stats.due = self.due_as_known(drifted).map(|due| due.to_string());
        if let Some(direct) = &state.direct {
            stats.direct = Some(direct.counts());
            stats.memory.changes += direct.memory_bytes();
        }
        stats
    }

    pub(crate) fn watch_recall(&self) -> Option<&RecallWatch> {
        self.open.watch_recall.as_ref()
    }

    /// Offers served queries to the sample.
    pub(crate) fn has_served(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: Option<&Filter>,
    ) {
        if let Some(watch) = self.watch_recall().filter(|watch| !watch.is_told()) {
            watch.has_served(queries, options, filter);
        }
    }

    pub(crate) fn measurers(&self) -> &Mutex<Vec<Measurer>> {
        &self.measurers
    }

    /// The number of merges since the index was opened, also in the background.
    pub fn merges(&self) -> u64 {
        self.merges.load(Ordering::Relaxed)
    }

    /// Whether the index has a vector with this id.
    ///
    /// # Errors
    /// The table of ids cannot be read.
    pub fn contains(&self, id: u64) -> Result<bool, Error> {
        let found = self.by_id(&[id], |reading, id, windows| {
            Ok(reading.contains(id, windows)?.then_some(()))
        });
        Ok(found?.first().is_some_and(Option::is_some))
    }

    /// Searches like [`search_observed`](LiveIndex::search_observed), but takes no samples for the
    /// measurement of recall.
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

    pub(super) fn at_a_moment<T>(&self, search: impl FnOnce(&Index, Seen<'_>) -> T) -> T {
        let (state, moment) = self.at_one_moment();
        let seen = Seen {
            overlay: &state.overlay,
            moment,
        };
        search(&state.index, seen)
    }

    fn at_one_moment(&self) -> (Arc<State>, Moment) {
        // The state and the timestamp are read under one lock, since a merge may move vectors to a
        // later checkpoint.
        let state = self.state.read();
        (state.clone(), state.overlay.now())
    }

    pub(crate) fn at_present(&self) -> Snapshot {
        Snapshot::of(&self.state.read())
    }

    pub(crate) fn while_nobody_changes<T>(&self, act: impl FnOnce(&Snapshot) -> T) -> T {
        let _gate = self.gate.write();
        act(&self.at_present())
    }

    /// The directory that has all files of the index, even if searches read copies elsewhere.
    pub(crate) fn home_on_storage(&self) -> Result<Directory, Error> {
        self.volume.check_held()?;
        self.volume.check_path(&self.path)?;
        let directory = Directory::open(&self.path)?;
        // After the first check, the path may have been given to another directory.
        self.volume.check_path(&self.path)?;
        Ok(directory)
    }

    /// Prevents checkpoints and merges until the guard is dropped. Changes continue.
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

    /// After this call, each merge keeps the checkpoint that it replaces. Callers with unanswered
    /// requests may need that checkpoint.
    pub(crate) fn keep_before(&self) {
        let mut before = self.before.lock();
        if let Before::Unwanted = *before {
            *before = Before::NotYet;
        }
    }

    pub(crate) fn forget_before(&self) {
        let kept = match &mut *self.before.lock() {
            before @ Before::Kept(_) => std::mem::replace(before, Before::NotYet),
            _ => return,
        };
        drop(kept);
    }

    pub(crate) fn snapshots(&self) -> (Option<Snapshot>, Snapshot) {
        // A merge first puts the replaced state into `before`. So if `now` is the result of a
        // merge, `before` has the state before that merge.
        let now = self.at_present();
        let before = match &*self.before.lock() {
            Before::Kept(state) => Some(Snapshot::of(state)),
            Before::Unwanted | Before::NotYet => None,
        };
        (before, now)
    }

    /// Checks search options as [`search`](LiveIndex::search) does.
    ///
    /// # Errors
    /// A number is beyond its bound ([`bounds`](crate::bounds)).
    pub fn check_search(&self, options: &SearchOptions) -> Result<(), Error> {
        let state = self.state();
        let numbers = state.index.check_numbers(options, Some(&state.overlay));
        numbers.map(drop)
    }

    /// In `logged`, each waiting change counts as the number of vectors that would take the same
    /// memory.
    pub(super) fn extents(&self) -> Extents {
        let state = self.state();
        let by_itself = self.takes_in_place() || self.is_filling();
        let (came, garbage) = self.garbage();
        Extents {
            stored: state.index.len() as u64,
            deleted: state.index.deleted_in(&state.overlay),
            logged: match state.direct {
                Some(_) => state.overlay.logged(),
                None => self.waiting(&state),
            },
            by_itself,
            live: self.len() as u64,
            came,
            garbage,
        }
    }

    pub(super) fn takes_in_place(&self) -> bool {
        // After a failed rebalance, a merge may still succeed.
        self.rebalances(&self.state()) && self.rebalance_after.load(Ordering::Relaxed) == 0
    }

    /// The number of vectors inserted since the last build or merge, and the share of garbage. For
    /// clusters, garbage is the dead bytes. For a graph, garbage is the pages beyond the number
    /// that a merge would need.
    fn garbage(&self) -> (u64, f64) {
        let state = self.state();
        let came = |nodes: u64| nodes.saturating_sub(state.index.manifest().vectors);
        match (state.index.clusters(), &state.direct) {
            (Some(clusters), _) => (came(clusters.nodes()), clusters.garbage()),
            (None, Some(direct)) => {
                let live = state.overlay.live(state.index.nodes()) as u64;
                let garbage = garbage_of_graph(&state.index, live, direct.counts().pages);
                (came(state.index.nodes() as u64), garbage)
            }
            (None, None) => (0, 0.0),
        }
    }

    pub(super) fn scattered(&self) -> &Scattered {
        &self.scattered
    }

    pub(super) fn reads(&self) -> &Reads {
        &self.reads
    }

    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    /// Syncs all inserts and deletes that were made before this call.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn flush(&self) -> Result<(), Error> {
        match self.log.is_broken() {
            // The rotation writes and syncs another log file with all acknowledged changes that may
            // not be durable.
            true => self.log.rotate().map(drop),
            false => self.log.flush(),
        }
    }
}
