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
//!              digest:  what came meanwhile ─> new graph       where inserts are direct
//! ```
//!
//! Layout and preset say whether vectors go into the graph on storage at once, or wait in memory for a merge. In
//! the first case a checkpoint is made every so many inserts, without a merge.
//!
//! **What is promised.** A call that returned is durable as [`Durability`] says; searches that begin after it see it. After a
//! crash, everything acknowledged is there again: the checkpoint that the manifest names, and the logs from the one on that it
//! names (DESIGN §2.3). What was logged but not yet acknowledged may be there as well.
//!
//! **Who may do what.** One process has the index open for changes (it holds the lock file); any number of its threads insert,
//! delete and search. Other processes open it for reading, see what was logged by then, and open it again to see more.

mod directly;
mod room;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use stratann_layout::LogRecord;
use stratann_tier::{LockGuard, Volume};

use self::directly::{direct_of, place_directly};
use super::direct::{Direct, DirectOptions};
use super::due::Reads;
use super::fresh::FreshGraph;
use super::ids::StoredIds;
use super::merge;
use super::overlay::{Overlay, Tombstones};
use super::replay::{self, Replayed};
use crate::data::{VectorSource, check_rows};
use crate::durable::{Durability, Log, LogPosition, log_name, opened_from};
use crate::index::{Index, OpenOptions};
use crate::nodes::Pages;
use crate::progress::{Progress, Silent, Stage};
use crate::{Error, SearchOptions, SearchResults, Stats, Update, bounds, stored};

/// Rows that are logged and inserted at a time.
const BATCH: usize = 256;

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
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            update: None,
            direct: DirectOptions::default(),
        }
    }
}

/// What a merge did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CompactReport {
    /// Vectors in the new checkpoint.
    pub vectors: u64,
    /// Vectors that came from the log.
    pub merged: u64,
    /// Vectors of the last checkpoint that were deleted or replaced.
    pub removed: u64,
    /// Segments of vectors whose files stayed as they are, garbage included (DecoupleVS §3.5); 0 where vectors stand beside
    /// their lists, or order decides where.
    pub segments_kept: u64,
    /// Segments whose vectors were written anew: the last one, and those with much garbage.
    pub segments_rewritten: u64,
    /// Vectors of these.
    pub vectors_rewritten: u64,
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
}

impl State {
    /// The graph that takes new vectors.
    fn fresh(&self) -> &Arc<FreshGraph> {
        // There is always one, and it is the last.
        &self.overlay.fresh[self.overlay.fresh.len() - 1]
    }

    /// Whether an id is in the index.
    fn contains(&self, id: u64) -> Result<bool, Error> {
        if self.overlay.fresh.iter().any(|fresh| fresh.contains(id)) || self.came_later(id) {
            return Ok(true);
        }
        Ok(!self.overlay.deleted.contains_built(id) && self.ids.contains(id)?)
    }

    /// Whether a vector of an id was inserted directly since the build, and counts.
    fn came_later(&self, id: u64) -> bool {
        self.overlay.later.read().contains(id)
    }

    /// Makes an id no answer. Says whether it was one.
    fn remove(&self, id: u64) -> Result<bool, Error> {
        if self.fresh().delete(id) {
            return Ok(true);
        }
        let merging = self.overlay.fresh.len() > 1;
        let frozen = merging && self.overlay.fresh[0].delete(id);
        let later = !frozen && self.overlay.later.write().remove(id);
        let stored = !frozen
            && (later || self.ids.contains(id)?)
            && self
                .overlay
                .deleted
                .insert_below(id, self.index.len() as u32);
        if let (true, Some(since)) = (frozen || stored, &self.since) {
            since.insert(id);
        }
        Ok(frozen || stored)
    }
}

/// An index that is open for changes. Shared by any number of threads.
pub struct LiveIndex {
    path: PathBuf,
    volume: Arc<dyn Volume>,
    open: OpenOptions,
    options: WriteOptions,
    state: RwLock<Arc<State>>,
    log: Log,
    /// Where the log began that was started when this was opened.
    started: LogPosition,
    next_id: AtomicU64,
    /// Ids that a call is changing: two calls never change the same one at once.
    reserved: Mutex<HashSet<u64>>,
    /// Held for reading by calls that change something, for writing while a merge begins and commits.
    gate: RwLock<()>,
    /// Held by a merge or a checkpoint: there is one at a time.
    merging: Mutex<()>,
    /// What searches read since the last merge.
    reads: Reads,
    /// The sequence number of the log up to which the last checkpoint goes.
    checkpointed: AtomicU64,
    /// Why the last checkpoint that was due could not be made.
    trouble: Mutex<Option<String>>,
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
    /// A log that nothing was written to is of no use to anyone; what was inserted need not be replayed.
    fn drop(&mut self) {
        let _ = self.digest();
        let _ = self.checkpoint();
        let _ = self.leave_nothing();
        let LogPosition { number, sequence } = self.started;
        if (self.log.number(), self.log.next_sequence()) == (number, sequence) {
            let _ = self.volume.remove(&log_name(number));
        }
    }
}

/// Ids of a call, given back when it ends.
struct Reservation<'a> {
    index: &'a LiveIndex,
    ids: &'a [u64],
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut reserved = self.index.reserved.lock();
        for id in self.ids {
            reserved.remove(id);
        }
    }
}

impl LiveIndex {
    /// Opens the index in a directory for changes, and takes its lock.
    ///
    /// # Errors
    /// As [`Index::open`], an index that another process changes, a log that is damaged.
    pub fn open(
        path: impl AsRef<Path>,
        open: &OpenOptions,
        options: &WriteOptions,
    ) -> Result<Self, Error> {
        let path = path.as_ref();
        Self::open_in(Arc::new(stored::existing(path)?), path, open, options)
    }

    /// Opens the index in a volume.
    pub(crate) fn open_in(
        volume: Arc<dyn Volume>,
        path: &Path,
        open: &OpenOptions,
        options: &WriteOptions,
    ) -> Result<Self, Error> {
        let lock = volume.lock()?;
        let index = Arc::new(Index::open_for_changes(volume.clone(), path, open)?);
        Self::start(lock, index, options)
    }

    /// Opens an index for changes that is open for reading, whose tables it goes on with.
    ///
    /// # Errors
    /// As [`LiveIndex::open`].
    pub fn over(index: &Arc<Index>, options: &WriteOptions) -> Result<Self, Error> {
        let lock = index.volume().lock()?;
        let manifest = stored::manifest(&**index.volume())?;
        // What was inserted through it, and could not be put into a checkpoint, is replayed from the log.
        let nodes = manifest
            .placement
            .map_or(manifest.vectors, |facts| facts.nodes);
        // One that was opened for searching alone has pages in the memory that inserts are to take.
        let inline = matches!(index.graph().pages, Pages::Inline(_));
        let has_room = index.memory().budget.is_none() || !inline;
        if has_room && manifest == *index.manifest() && index.len() as u64 == nodes {
            return Self::start(lock, index.clone(), options);
        }
        let (volume, path, open) = (index.volume().clone(), index.path(), index.options());
        let index = Arc::new(Index::open_for_changes(volume, path, open)?);
        Self::start(lock, index, options)
    }

    /// Opens what is behind `index`; its lock is held.
    fn start(lock: LockGuard, index: Arc<Index>, options: &WriteOptions) -> Result<Self, Error> {
        bounds::writing(options)?;
        let volume = index.volume().clone();
        let name = stored::name_of(&*volume, stratann_layout::manifest::FILE_NAME);
        index.manifest().check_writable(&name)?;
        opened_from(&*volume, index.manifest())?;
        let ids = StoredIds::of(&index)?;
        let Replayed {
            overlay,
            next_id,
            next_number,
            next_sequence,
        } = replay::replay(&*volume, &index)?;
        let log = Log::start(
            volume.clone(),
            replay::shape(&index)?,
            next_number,
            next_sequence,
            options.durability,
        )?;
        let replayed = overlay.fresh[0].slots() > 0 || overlay.deleted.len() > index.carried().dead;
        // What was replayed is in no checkpoint yet.
        let checkpointed = match replayed {
            true => index.manifest().log_from.sequence,
            false => log.next_sequence(),
        };
        let direct = direct_of(&index, &overlay, options)?;
        Ok(Self {
            path: index.path().to_owned(),
            volume,
            open: *index.options(),
            options: options.clone(),
            checkpointed: AtomicU64::new(checkpointed),
            trouble: Mutex::default(),
            reads: Reads::default(),
            next_id: AtomicU64::new(next_id.max(ids.next_id())),
            state: RwLock::new(Arc::new(State {
                index,
                overlay,
                ids,
                direct: direct.map(Arc::new),
                since: None,
            })),
            log,
            started: LogPosition {
                number: next_number,
                sequence: next_sequence,
            },
            reserved: Mutex::default(),
            gate: RwLock::default(),
            merging: Mutex::default(),
            _lock: lock,
        })
        .and_then(Self::digested)
    }

    fn state(&self) -> Arc<State> {
        self.state.read().clone()
    }

    /// What searches start from, for tests that look at all of it.
    #[cfg(test)]
    pub(super) fn parts(&self) -> (Arc<Index>, Overlay) {
        let state = self.state();
        if let Some(direct) = &state.direct {
            direct.settle();
        }
        let Overlay {
            fresh,
            deleted,
            later,
        } = &state.overlay;
        let overlay = Overlay {
            fresh: fresh.clone(),
            deleted: deleted.clone(),
            later: later.clone(),
        };
        (state.index.clone(), overlay)
    }

    /// The vectors that a search can find.
    pub fn len(&self) -> usize {
        let state = self.state();
        state.overlay.live(state.index.len())
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
        stats.deleted = state.overlay.deleted.len() as u64;
        stats.logged = state.overlay.logged();
        stats.memory.changes = state.overlay.memory_bytes();
        if let Some(direct) = &state.direct {
            stats.direct = Some(direct.counts());
            stats.trouble = match stats.logged {
                0 => self.trouble.lock().clone(),
                _ => direct.trouble().or_else(|| self.trouble.lock().clone()),
            };
            stats.memory.changes += direct.memory_bytes();
        }
        stats
    }

    /// Whether an id is in the index.
    ///
    /// # Errors
    /// The table of ids cannot be read.
    pub fn contains(&self, id: u64) -> Result<bool, Error> {
        self.state().contains(id)
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
        let state = self.state();
        let overlay = Some(&state.overlay);
        let results = state
            .index
            .search_with(queries, options, progress, None, overlay)?;
        let deleted = state.overlay.deleted.len() as f64 / state.index.len() as f64;
        self.reads.add(options, &results, deleted);
        Ok(results)
    }

    /// Vectors on storage, those of them that do not count, and those that wait in memory.
    pub(super) fn extents(&self) -> (u64, u64, u64) {
        let state = self.state();
        let Overlay { deleted, .. } = &state.overlay;
        (
            state.index.len() as u64,
            deleted.len() as u64,
            state.overlay.logged(),
        )
    }

    /// What searches read since the last merge.
    pub(super) fn reads(&self) -> &Reads {
        &self.reads
    }

    /// Inserts vectors under new ids: those given, or the next ones, which are returned.
    ///
    /// # Errors
    /// Vectors of another dimension or element type, NaN or infinity, zero vectors under cosine; an id that is in the index
    /// (replace with [`upsert`](LiveIndex::upsert)) or twice in `ids`; a log that cannot be written. All rows are checked
    /// before the first is inserted; where a disk fills up in the middle, the error says how many are in.
    pub fn insert(
        &self,
        vectors: &dyn VectorSource,
        ids: Option<&[u64]>,
        progress: &dyn Progress,
    ) -> Result<Vec<u64>, Error> {
        self.check(vectors)?;
        let rows = vectors.rows();
        let ids = match ids {
            Some(ids) => {
                check_ids(ids, rows)?;
                ids.to_vec()
            }
            None => {
                let first = self.next_id.fetch_add(rows as u64, Ordering::Relaxed);
                (first..first + rows as u64).collect()
            }
        };
        let reservation = self.reserve(&ids)?;
        let state = self.state();
        for &id in &ids {
            if state.contains(id)? {
                let expected = "an id that is not in the index (or upsert, which replaces)";
                return Err(Error::call("id", id, expected));
            }
        }
        self.put(vectors, &ids, progress)?;
        drop(reservation);
        Ok(ids)
    }

    /// Inserts vectors; one whose id is in the index replaces the one that has it.
    ///
    /// # Errors
    /// As [`insert`](LiveIndex::insert), but for ids that are there.
    pub fn upsert(
        &self,
        vectors: &dyn VectorSource,
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        self.check(vectors)?;
        check_ids(ids, vectors.rows())?;
        let _reservation = self.reserve(ids)?;
        self.put(vectors, ids, progress)
    }

    /// Deletes ids: no search that begins after this answers them.
    ///
    /// # Errors
    /// An id that is not in the index, or twice in `ids`: then none is deleted; a log that cannot be written.
    pub fn delete(&self, ids: &[u64]) -> Result<(), Error> {
        check_ids(ids, ids.len())?;
        let _reservation = self.reserve(ids)?;
        let _gate = self.gate.read();
        let state = self.state();
        for &id in ids {
            if !state.contains(id)? {
                return Err(Error::call("id", id, "an id in the index"));
            }
        }
        let records: Vec<_> = ids.iter().map(|&id| LogRecord::Delete { id }).collect();
        self.log.append_all(&records)?;
        for &id in ids {
            state.remove(id)?;
        }
        Ok(())
    }

    /// Makes everything durable that was inserted and deleted before.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn flush(&self) -> Result<(), Error> {
        self.log.flush()
    }

    /// Merges what is in the log into a new checkpoint. Inserts, deletes and searches go on meanwhile. Does nothing if
    /// nothing changed since the last checkpoint.
    ///
    /// # Errors
    /// No vector would be left; a full disk; an interruption through `progress`. The index is then what it was.
    pub fn compact(&self, progress: &dyn Progress) -> Result<CompactReport, Error> {
        let _one = self.merging.lock();
        let (state, log_from, snapshot) = {
            let _gate = self.gate.write();
            let state = self.state();
            let overlay = &state.overlay;
            let moved = state
                .index
                .graph()
                .placement
                .get()
                .is_some_and(|placement| {
                    u64::from(placement.nodes()) > state.index.manifest().vectors
                });
            if overlay.deleted.len() == 0 && state.fresh().slots() == 0 && !moved {
                let bytes = merge::bytes_in(&*self.volume)?;
                return Ok(CompactReport {
                    vectors: state.index.len() as u64,
                    bytes_before: bytes,
                    bytes_after: bytes,
                    ..CompactReport::default()
                });
            }
            if overlay.live(state.index.len()) == 0 {
                let expected = "at least one (delete the directory instead)";
                return Err(Error::call("vectors left in the index", 0, expected));
            }
            let log_from = self.log.rotate()?;
            if let Some(direct) = &state.direct {
                // It is read from storage.
                direct.check()?;
                direct.settle();
            }
            let frozen = Arc::new(State {
                index: state.index.clone(),
                overlay: Overlay {
                    fresh: vec![state.fresh().clone(), Arc::new(replay::fresh(&state.index))],
                    deleted: overlay.deleted.clone(),
                    later: overlay.later.clone(),
                },
                ids: state.ids.clone(),
                direct: state.direct.clone(),
                since: Some(Arc::default()),
            });
            *self.state.write() = frozen.clone();
            // What is merged is what counts now, to the id: what goes later is a tombstone on the new checkpoint.
            let snapshot = (overlay.deleted.all(), state.fresh().epoch());
            (frozen, log_from, snapshot)
        };
        let (removed, epoch) = snapshot;
        let merged = merge::merge(
            &self.volume,
            &state.index,
            &merge::Inputs {
                removed: &removed,
                epoch,
                fresh: &state.overlay.fresh[0],
                log_from: log_from.into(),
                next_id: self.next_id.load(Ordering::Relaxed),
                threads: self.options.threads,
                memory: self.open.memory,
            },
            progress,
        );
        let gate = self.gate.write();
        let opened = merged.and_then(|report| {
            let index = Arc::new(Index::open_for_changes(
                self.volume.clone(),
                &self.path,
                &self.open,
            )?);
            let ids = StoredIds::of(&index)?;
            let since = state
                .since
                .as_ref()
                .map(|since| since.all())
                .unwrap_or_default();
            // Of all nodes that there are now: a later one of the same id may count.
            let nodes = index.len() as u32;
            let gone: Vec<_> = since.into_keys().map(|id| (id, nodes)).collect();
            let deleted = Arc::new(Tombstones::restore(&gone, gone.len()));
            let overlay = Overlay {
                fresh: vec![state.overlay.fresh[1].clone()],
                deleted,
                later: Arc::default(),
            };
            let direct = direct_of(&index, &overlay, &self.options)?;
            Ok((report, index, ids, overlay, direct))
        });
        match opened {
            Ok((report, index, ids, overlay, direct)) => {
                *self.state.write() = Arc::new(State {
                    overlay,
                    ids,
                    direct: direct.map(Arc::new),
                    since: None,
                    index,
                });
                self.checkpointed
                    .store(log_from.sequence, Ordering::Relaxed);
                self.reads.clear();
                drop(gate);
                // What cannot be moved now stays in memory and in the log.
                let _ = self.digest();
                Ok(report)
            }
            Err(error) => {
                // Back to one graph: what came in meanwhile joins what was frozen.
                self.unfreeze(&state);
                drop(gate);
                let _ = self.digest();
                Err(error)
            }
        }
    }

    /// Undoes the freeze of a merge that failed.
    fn unfreeze(&self, state: &State) {
        let fresh = &state.overlay.fresh;
        fresh[1].for_each(|id, vector| {
            fresh[0].insert(id, vector);
        });
        *self.state.write() = Arc::new(State {
            index: state.index.clone(),
            overlay: Overlay {
                fresh: vec![fresh[0].clone()],
                deleted: state.overlay.deleted.clone(),
                later: state.overlay.later.clone(),
            },
            ids: state.ids.clone(),
            direct: state.direct.clone(),
            since: None,
        });
    }

    fn check(&self, vectors: &dyn VectorSource) -> Result<(), Error> {
        let index = self.index();
        if vectors.dim() != index.dim() {
            let expected = format!("{}, the index's", index.dim());
            return Err(Error::call(
                format!("dimension of {}", vectors.name()),
                vectors.dim(),
                expected,
            ));
        }
        if vectors.element() != index.element() {
            let expected = format!("{}, the index's", index.element());
            return Err(Error::call(
                format!("element type of {}", vectors.name()),
                vectors.element(),
                expected,
            ));
        }
        let mut rows = Vec::new();
        for first in (0..vectors.rows()).step_by(BATCH) {
            let count = BATCH.min(vectors.rows() - first);
            rows.resize(count * vectors.row_bytes(), 0);
            vectors.read(first, &mut rows)?;
            check_rows(vectors, index.metric(), first, &rows)?;
        }
        Ok(())
    }

    fn reserve<'a>(&'a self, ids: &'a [u64]) -> Result<Reservation<'a>, Error> {
        let mut reserved = self.reserved.lock();
        if let Some(id) = ids.iter().find(|id| reserved.contains(id)) {
            let expected = "an id that no other call is changing at the same time";
            return Err(Error::call("id", id, expected));
        }
        reserved.extend(ids);
        Ok(Reservation { index: self, ids })
    }

    /// Logs and inserts rows whose ids are reserved.
    fn put(
        &self,
        vectors: &dyn VectorSource,
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let _stage = Stage::begin(progress, "inserting", ids.len() as u64);
        let row_bytes = vectors.row_bytes();
        let next = ids.iter().max().map_or(0, |id| id.saturating_add(1));
        self.next_id.fetch_max(next, Ordering::Relaxed);
        let mut rows = Vec::new();
        let total = ids.len();
        let batch = match &self.state().direct {
            Some(direct) => direct.batch(),
            None => BATCH,
        };
        for (first, ids) in (0..total).step_by(batch).zip(ids.chunks(batch)) {
            let partly = |error: Error| match first {
                0 => error,
                done => Error::Partly {
                    done,
                    total,
                    source: match error {
                        // Something was changed.
                        Error::Interrupted => Box::new(Error::Stopped),
                        error => Box::new(error),
                    },
                },
            };
            if progress.interrupted() {
                return Err(partly(Error::Interrupted));
            }
            rows.resize(ids.len() * row_bytes, 0);
            vectors.read(first, &mut rows)?;
            self.checkpoint_if_full().map_err(partly)?;
            // Logged and applied under one state: a merge begins before or after both.
            let gate = self.gate.read();
            let state = self.state();
            if let Some(direct) = &state.direct {
                direct.check().map_err(partly)?;
            }
            self.check_room(&state, ids.len(), row_bytes)
                .map_err(partly)?;
            let mut records = Vec::with_capacity(ids.len());
            for (&id, vector) in ids.iter().zip(rows.chunks_exact(row_bytes)) {
                records.push(match state.contains(id)? {
                    true => LogRecord::Replace { id, vector },
                    false => LogRecord::Insert { id, vector },
                });
            }
            self.log.append_all(&records).map_err(partly)?;
            if let Some(direct) = state.direct.as_ref().filter(|_| state.since.is_none()) {
                place_directly(&state, direct, &mut records);
            }
            let share = records.len().div_ceil(self.options.threads).max(1);
            let place = |records: &[LogRecord<'_>]| {
                for record in records {
                    if let LogRecord::Replace { id, .. } = record {
                        state.remove(*id)?;
                    }
                    if let Some(vector) = record.vector() {
                        state.fresh().insert(record.id(), vector);
                    }
                }
                Ok::<_, Error>(())
            };
            if share >= records.len() {
                place(&records)?;
            } else {
                std::thread::scope(|scope| {
                    let work: Vec<_> = records
                        .chunks(share)
                        .map(|records| scope.spawn(move || place(records)))
                        .collect();
                    work.into_iter().try_for_each(|work| match work.join() {
                        Ok(done) => done,
                        Err(panic) => std::panic::resume_unwind(panic),
                    })
                })?;
            }
            drop(gate);
            self.checkpoint_if_due();
            progress.advance(ids.len() as u64);
        }
        Ok(())
    }
}

/// Refuses ids that are too few, too many, not unique, or no ids.
fn check_ids(ids: &[u64], rows: usize) -> Result<(), Error> {
    if ids.len() != rows {
        let found = format!("{} for {rows} rows", ids.len());
        return Err(Error::call("ids", found, "one a row"));
    }
    let mut seen = HashSet::with_capacity(ids.len());
    for &id in ids {
        if id == u64::MAX {
            // It stands for "no answer" in results.
            return Err(Error::call("id", id, "below 18446744073709551615"));
        }
        if !seen.insert(id) {
            let found = format!("duplicate id {id}");
            return Err(Error::call("ids", found, "ids that are unique"));
        }
    }
    Ok(())
}
