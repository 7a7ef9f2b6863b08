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
//! The layout and the preset decide whether new vectors go straight into the graph on storage or
//! wait in memory. A merge moves waiting vectors to storage. In a cluster index, a rebalance moves
//! them into the clusters that they join. An index with direct inserts makes a checkpoint after a
//! number of inserts that depends on its size.
//!
//! **Guarantees.** When a call returns, its changes are durable as [`Durability`] says, and every
//! later search sees them. After a crash, every acknowledged change is recovered from the
//! checkpoint in the manifest and from the logs, beginning with the log that the manifest names.
//! Changes that were logged but not yet acknowledged may be recovered as well.
//!
//! **Processes.** At most one process has the index open for changes. This process holds the lock
//! file of the index. Any number of its threads insert, delete and search. Other processes open the
//! index for reading. These processes see the changes that were logged before they opened the
//! index. To see later changes, they open the index again.

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
use crate::index::{Index, Lent, OpenOptions};
use crate::overlay::fresh::FreshGraph;
use crate::overlay::{Moment, Overlay, Seen, Tombstones};
use crate::places::Purpose;
use crate::progress::{Progress, Silent};
use crate::recall::Measurer;
use crate::stores::columns::RowBytes;
use crate::stores::ids::IdTable;
use crate::{
    Durability, Error, MergeWhen, RecallWatch, SearchOptions, SearchResults, Stats, Update,
    WriteOptions, bounds, stored,
};

/// The interval at which a call that waits for a merge checks for an interruption.
const INTERRUPTIBLE: Duration = Duration::from_millis(50);

/// Whether a merge kept or replaced the codebook, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CodebookFate {
    /// The codebook is unchanged. A codebook trained on the present vectors would be no better, or
    /// the index has no codebook.
    #[default]
    Kept,
    /// The codebook is replaced. The index had outgrown it, and the new codebook is trained on the
    /// present vectors.
    Trained,
    /// The codebook is unchanged, although the index has outgrown it. The caller of the build gave
    /// this codebook ([`BuildOptions::codebook`](crate::BuildOptions::codebook)), and other indexes
    /// may share it.
    Outgrown,
}

/// The results of a merge.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CompactReport {
    /// Vectors in the new checkpoint.
    pub vectors: u64,
    /// Vectors that waited in memory and in the log until the merge added them to the checkpoint.
    pub merged: u64,
    /// Vectors that had been inserted directly into the graph on storage since the last merge.
    pub direct: u64,
    /// Vectors of the last checkpoint that were deleted or replaced.
    pub removed: u64,
    /// Segments whose files the merge left unchanged, with their garbage (DecoupleVS §3.5). 0 if
    /// vectors are stored beside their lists, or if vectors are stored in locality order.
    pub segments_kept: u64,
    /// Segments whose vectors were rewritten: the last segment, and segments with much garbage.
    pub segments_rewritten: u64,
    /// Vectors in the rewritten segments.
    pub vectors_rewritten: u64,
    /// The codebook after the merge.
    pub codebook: CodebookFate,
    /// Clusters that were rewritten in place (SPFresh), including split and merged ones. 0 if the
    /// whole index was rebuilt.
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

/// The state that a search starts from. A checkpoint replaces the whole state.
struct State {
    index: Arc<Index>,
    overlay: Overlay,
    ids: StoredIds,
    /// The writer of the graph on storage, if inserts are direct.
    direct: Option<Arc<Direct>>,
    /// During a merge: the merged ids that were deleted or replaced since the merge began.
    since: Option<Arc<Tombstones>>,
    /// During a merge: the rows of attributes that merged vectors have received since the merge
    /// began.
    rows_since: Arc<Mutex<HashMap<u64, RowBytes>>>,
}

/// A checkpoint and the changes after it, at one read timestamp. Later changes do not affect this
/// value.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) index: Arc<Index>,
    pub(crate) overlay: Overlay,
    pub(crate) moment: Moment,
    /// The nodes of the build by id, if the checkpoint has no table of ids and this process made
    /// the table from the records.
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
    /// No caller has asked to keep the previous checkpoint.
    #[default]
    Unwanted,
    /// A caller has asked to keep the previous checkpoint. But no merge has run since that request,
    /// or the caller has dropped the checkpoint.
    NotYet,
    /// The state that the last merge replaced, with the changes that calls made during that merge.
    Kept(Arc<State>),
}

/// Whether an id is in the build and in the index.
#[derive(Clone, Copy)]
struct Known {
    /// The build of the checkpoint has the id.
    built: bool,
    /// The id is in the index now.
    live: bool,
}

impl State {
    /// The graph that takes new vectors.
    fn fresh(&self) -> &Arc<FreshGraph> {
        // There is always at least one graph. The last graph takes new vectors.
        &self.overlay.fresh[self.overlay.fresh.len() - 1]
    }

    /// Looks up an id. A change calls this function before it is logged, so that no step after the
    /// log can fail.
    fn known(&self, id: u64) -> Result<Known, Error> {
        let built = self.ids.contains(id)?;
        let live = self.is_new(id) || built && !self.overlay.deleted.contains_built(id);
        Ok(Known { built, live })
    }

    /// Whether the index has a vector with this id that was inserted since the build.
    fn is_new(&self, id: u64) -> bool {
        self.overlay.fresh.iter().any(|fresh| fresh.contains(id)) || self.was_inserted(id)
    }

    /// Whether the index has a vector with this id that was inserted directly since the build.
    fn was_inserted(&self, id: u64) -> bool {
        self.overlay.inserted.read().contains(id)
    }

    /// Hides the vector of an id from searches. `built` is the [`Known::built`] of the id.
    fn remove(&self, id: u64, built: bool) {
        if !self.fresh().delete(id) {
            self.remove_older(id, built);
        }
    }

    /// Makes a vector visible in place of any vector with its id. At every read timestamp, a search
    /// finds exactly one of the two vectors.
    fn replace(&self, id: u64, vector: &[u8], row: Option<RowBytes>, built: bool) {
        let newest = self.fresh().contains(id);
        self.fresh().insert(id, vector, row);
        if !newest {
            self.remove_older(id, built);
        }
    }

    /// Hides the vectors of an id from searches, except in the graph that takes new vectors.
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
    /// The number of vectors after all acknowledged changes. This number is not a sum over storage
    /// and memory: while a vector is moved, the sum would count it twice.
    live: AtomicUsize,
    /// The ids that calls are changing. Two calls never change the same id at the same time.
    reserved: Reserved,
    /// The inserts that can be resumed after an interruption. The file `INSERTS` has the same
    /// inserts.
    begun: Mutex<Vec<BegunInsert>>,
    /// A call that changes the index holds this lock for reading. A merge holds this lock for
    /// writing when the merge begins and when it commits.
    gate: RwLock<()>,
    /// Locked during a merge or a checkpoint, so that only one of them runs at a time.
    merging: Mutex<()>,
    /// The checkpoint before the last merge, if a caller asked to keep it.
    before: Mutex<Before>,
    /// The reads of searches since the last merge.
    reads: Arc<Reads>,
    /// The last measurement of the reads of probes.
    scattered: Scattered,
    /// Whether the opening was interrupted while it inserted vectors of the log into the graph on
    /// storage. In that case, the close does not insert these vectors either.
    hurries: AtomicBool,
    /// The number of running calls that let rows wait and then merge them.
    filling: AtomicUsize,
    /// The submitted searches that have not ended.
    submitted: Arc<Submitted>,
    /// The last checkpoint has every change whose sequence number in the log is below this number.
    checkpointed: AtomicU64,
    /// The memory in bytes that the changes logged since the last checkpoint take when the index is
    /// opened again.
    charged: AtomicU64,
    /// After a failed rebalance, the number of waiting vectors at which the index tries again.
    /// Otherwise 0.
    rebalance_after: AtomicU64,
    /// The number of merges since the index was opened.
    merges: AtomicU64,
    /// The number of checkpoints of merges and rebalances since the index was opened.
    pub(super) replaced: Arc<AtomicU64>,
    /// The failures, and whether the index still accepts changes.
    health: Arc<Health>,
    /// The measurements of recall in the background, one for each watch.
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
    /// Makes a checkpoint of direct inserts, so that no process need replay them. If vectors still
    /// wait in memory, no checkpoint is made. Removes the log if it has no records. In a forked
    /// process, the drop does nothing: threads that exist only in the parent may hold locks of the
    /// index.
    fn drop(&mut self) {
        if !self.home.is_here() {
            return;
        }
        // Measurements of recall read files that other processes may change after the close.
        self.measurers.get_mut().clear();
        self.close();
        // Until the lock is released, no other process changes the files that submitted searches
        // read.
        self.submitted.wait();
    }
}

impl LiveIndex {
    /// Prepares the files for the next process that opens the index.
    fn close(&self) {
        // Changes that would be synced at the next interval are synced now. If the sync fails, the
        // code below rotates the log.
        if matches!(self.options.durability, Durability::Every(_))
            && !self.log.is_broken()
            && let Err(error) = self.log.flush()
        {
            tracing::warn!(index = %self.path.display(), "the log was not synced: {error}");
        }
        // If a sync failed, its changes are only in memory until the next log has them.
        if self.log.is_broken()
            && let Err(error) = self.log.rotate()
        {
            tracing::error!(index = %self.path.display(), "changes that were not synced may be lost: {error}");
        }
        if self.health.is_halted() {
            return;
        }
        // The code pages of inserts are no longer needed. Without this call, they would stay in
        // memory while the checkpoint loads its own code pages.
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

    /// Opens an index like [`open`](Self::open). If the opened index replaces an index that leases
    /// memory from a shared budget, `lent` is the lease of the replaced index.
    fn open_lent(
        path: &Path,
        open: &OpenOptions,
        options: &WriteOptions,
        lent: Option<&Lent>,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        let home: Arc<dyn Volume> = Arc::new(stored::existing(path)?);
        let path = &*stored::home(path)?;
        // The lock creates a file. So the manifest is read first, and a folder without an index
        // stays unchanged.
        stored::manifest(&*home)?;
        // The lock is taken before copies are made, so that no other process changes the files
        // during the copying.
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

    /// Opens the index in a volume, without copies at other places.
    #[cfg(test)]
    pub(crate) fn open_in(
        volume: Arc<dyn Volume>,
        path: &Path,
        open: &OpenOptions,
        options: &WriteOptions,
    ) -> Result<Self, Error> {
        // The lock creates a file. So the manifest is read first, and a folder without an index
        // stays unchanged.
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

    /// Opens for changes an index that is already open for reading. Without a memory budget, the
    /// opened index shares the tables of `index`. Under a memory budget, the opened index shares no
    /// tables, and replaces `index`.
    ///
    /// An index of a [`Catalog`](crate::Catalog) leases a part of the catalog's budget. The lease
    /// covers at least a few changes at a time. In addition, the lease covers half of the memory
    /// that then remains free, up to the memory that an index of this size can use. If more vectors
    /// wait in memory, or a merge has made the index larger, the catalog leases more memory to the
    /// index. If necessary, the catalog closes other indexes.
    ///
    /// The opened index counts towards the budget until it is dropped. Drop `index` too: it counts
    /// towards the budget until every caller has dropped it. If memory is short, the call waits
    /// until other indexes are dropped
    /// ([`CatalogOptions::patience`](crate::CatalogOptions::patience)). While a merge runs, it
    /// takes up to 64 MiB beyond the budget, as with any budget.
    ///
    /// # Errors
    /// Fails as [`LiveIndex::open`] does. The error is [`Error::Memory`] if the catalog's budget is
    /// too small for this index. It is [`Error::Crowded`] if the budget is too small for this index
    /// together with the indexes that callers hold.
    pub fn over(index: &Arc<Index>, options: &WriteOptions) -> Result<Self, Error> {
        Self::over_observed(index, options, &Silent)
    }

    /// Opens an index like [`over`](LiveIndex::over). While the call waits for memory of a catalog,
    /// it asks `progress` every few milliseconds whether to stop. The call asks `progress` also
    /// before it inserts each batch of logged vectors into the graph on storage. If `progress`
    /// interrupts at that point, the call succeeds, and the remaining vectors wait in memory.
    ///
    /// # Errors
    /// Fails as [`over`](LiveIndex::over) does. If `progress` interrupted the wait for memory, the
    /// error is [`Error::Interrupted`], and no index was opened.
    pub fn over_observed(
        index: &Arc<Index>,
        options: &WriteOptions,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        if !index.options().places.is_empty() {
            // Changes never go to copies at other places, since other processes may share these
            // copies. So the index folder at the path of `index` is opened. This folder must still
            // have the same index.
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
        // `index` may have more nodes than the last checkpoint, from direct inserts. Then the index
        // is opened again, and these inserts are replayed from the log.
        let nodes = manifest
            .placement
            .map_or(manifest.vectors, |facts| facts.nodes);
        // If `index` was opened for searches only, cached pages fill the memory that inserts need.
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

    /// Opens the files of `index`, which are in `storage`. The caller holds the lock.
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
        // No checkpoint has the replayed changes.
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

    /// The current index on storage, for tests that read the index while it changes.
    #[cfg(test)]
    pub(crate) fn on_storage(&self) -> Arc<Index> {
        self.state().index.clone()
    }

    /// The index and the overlay that searches start from, for tests that examine them.
    #[cfg(test)]
    pub(super) fn parts(&self) -> (Arc<Index>, Overlay) {
        let state = self.state();
        if let Some(direct) = &state.direct {
            direct.settle();
        }
        (state.index.clone(), state.overlay.clone())
    }

    /// The number of vectors that a search can find at present.
    pub fn len(&self) -> usize {
        self.live.load(Ordering::Acquire)
    }

    /// Whether the directory still has the index that this handle has opened. The result is false
    /// if the directory was moved, removed or replaced, or if this handle accepts no more changes.
    /// In that case, open the index again.
    ///
    /// # Errors
    /// The directory cannot be read, or this process was forked from the process that opened the
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

    /// Facts and sizes of the index. The numbers of live and deleted vectors include all
    /// acknowledged changes.
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
        // A search that scans all vectors misses no vector because of drift.
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

    /// The setting for the measurement of recall on sampled queries, if a caller gave one.
    pub(crate) fn watch_recall(&self) -> Option<&RecallWatch> {
        self.open.watch_recall.as_ref()
    }

    /// The measurements of recall in the background, one for each watch.
    pub(crate) fn measurers(&self) -> &Mutex<Vec<Measurer>> {
        &self.measurers
    }

    /// The number of merges since the index was opened: calls of [`compact`](LiveIndex::compact),
    /// and merges in the background.
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

    /// Searches a batch of queries. The search sees every change whose call returned before this
    /// call began.
    ///
    /// # Errors
    /// Fails as [`Index::search`] does.
    pub fn search(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
    ) -> Result<SearchResults, Error> {
        self.search_observed(queries, options, &Silent)
    }

    /// Searches a batch of queries like [`search`](LiveIndex::search). `progress` is called for
    /// each finished query, and may interrupt the batch.
    ///
    /// # Errors
    /// Fails as [`Index::search_observed`] does.
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

    /// Searches like [`search_observed`](LiveIndex::search_observed), but takes no sample of the
    /// queries for the measurement of recall.
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

    /// Runs a search with the current state at the current read timestamp.
    pub(super) fn at_a_moment<T>(&self, search: impl FnOnce(&Index, Seen<'_>) -> T) -> T {
        let (state, moment) = self.at_one_moment();
        let seen = Seen {
            overlay: &state.overlay,
            moment,
        };
        search(&state.index, seen)
    }

    /// The state that a search starts from, and its read timestamp.
    fn at_one_moment(&self) -> (Arc<State>, Moment) {
        // The state and the timestamp are read under one lock. After that, vectors may be moved to
        // another graph, even to a later checkpoint that this search does not read.
        let state = self.state.read();
        (state.clone(), state.overlay.now())
    }

    /// The current state with its read timestamp.
    pub(crate) fn at_present(&self) -> Snapshot {
        Snapshot::of(&self.state.read())
    }

    /// Runs a function while no call changes the index.
    pub(crate) fn while_nobody_changes<T>(&self, act: impl FnOnce(&Snapshot) -> T) -> T {
        let _gate = self.gate.write();
        act(&self.at_present())
    }

    /// The directory that has all files of the index, even if searches read copies at other places.
    ///
    /// # Errors
    /// The index is no longer at its path, or this process does not hold its lock.
    pub(crate) fn home_on_storage(&self) -> Result<Directory, Error> {
        self.volume.check_held()?;
        self.volume.check_path(&self.path)?;
        let directory = Directory::open(&self.path)?;
        // The path may have been given to another directory between the first check and `open`. So
        // the path is checked again.
        self.volume.check_path(&self.path)?;
        Ok(directory)
    }

    /// Prevents checkpoints and merges until the returned guard is dropped. Changes continue.
    ///
    /// # Errors
    /// `progress` interrupts the wait for a running merge.
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

    /// After this call, each merge keeps the replaced checkpoint in memory and on storage. Callers
    /// need the replaced checkpoint while they have unanswered requests about it.
    pub(crate) fn keep_before(&self) {
        let mut before = self.before.lock();
        if let Before::Unwanted = *before {
            *before = Before::NotYet;
        }
    }

    /// Drops the checkpoint before the last merge.
    pub(crate) fn forget_before(&self) {
        let kept = match &mut *self.before.lock() {
            before @ Before::Kept(_) => std::mem::replace(before, Before::NotYet),
            _ => return,
        };
        drop(kept);
    }

    /// The state that the last merge replaced, if it is kept, and the current state.
    pub(crate) fn snapshots(&self) -> (Option<Snapshot>, Snapshot) {
        // The order of the two reads matters: a merge first puts the replaced state into `before`,
        // and then the new state into `state`. So if `now` is the result of a merge, `before` has
        // the state before that merge.
        let now = self.at_present();
        let before = match &*self.before.lock() {
            Before::Kept(state) => Some(Snapshot::of(state)),
            Before::Unwanted | Before::NotYet => None,
        };
        (before, now)
    }

    /// Checks search options. The errors are those that [`search`](LiveIndex::search) would return
    /// for any queries with these options.
    ///
    /// # Errors
    /// A number is beyond its bound ([`bounds`](crate::bounds)).
    pub fn check_search(&self, options: &SearchOptions) -> Result<(), Error> {
        let state = self.state();
        let numbers = state.index.check_numbers(options, Some(&state.overlay));
        numbers.map(drop)
    }

    /// The counts by which a merge may be due. All waiting changes count as waiting vectors: as
    /// many as would take the same memory.
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

    /// Whether a rebalance moves waiting vectors into the clusters, without a merge.
    pub(super) fn takes_in_place(&self) -> bool {
        // After a failed rebalance, a merge may still succeed.
        self.rebalances(&self.state()) && self.rebalance_after.load(Ordering::Relaxed) == 0
    }

    /// The number of vectors inserted since the last build or merge, and the share of garbage. For
    /// clusters, garbage is the dead bytes in the files. For a graph with direct inserts, garbage
    /// is the surplus of pages over the number that a merge would need for the same vectors.
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

    /// The last measurement of the reads of probes.
    pub(super) fn scattered(&self) -> &Scattered {
        &self.scattered
    }

    /// The reads of searches since the last merge.
    pub(super) fn reads(&self) -> &Reads {
        &self.reads
    }

    /// The failures, and whether the index still accepts changes.
    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    /// Syncs all inserts and deletes that were made before this call.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn flush(&self) -> Result<(), Error> {
        match self.log.is_broken() {
            // The rotation writes all acknowledged changes that may not be durable into another log
            // file, and syncs it.
            true => self.log.rotate().map(drop),
            false => self.log.flush(),
        }
    }
}
