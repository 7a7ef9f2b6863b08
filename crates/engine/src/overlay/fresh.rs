//! The fresh graph: a graph in memory over vectors that no checkpoint has yet (the "temporary
//! index" of FreshDiskANN). It uses exact distances, and grows while searches run.
//!
//! ```text
//!   segments (128 slots each, allocated as needed, never moved, never freed before the graph)
//!   ┌───────────────────────────────────────────────┐ ┌─────
//!   │ nodes   | vector, id | born | died | lock |   │ │ ...       a slot has one vector
//!   │ lists   | version | degree | n n n n . . . |  │ │           written under the node's lock
//!   └───────────────────────────────────────────────┘ └─────
//!   ids       external id -> the live slot of the id (changed by each insert and delete)
//!   died      slots of deleted or replaced vectors, in the order of their deaths
//!   rows      attributes and payloads of the vectors of some slots
//! ```
//!
//! **Insert.** The insert searches for the new vector from the entry (the first inserted vector).
//! It chooses neighbours from the expanded nodes by pruning, and adds links back, as the build does
//! (`graph/vamana.rs`). **Delete** is lazy: searches still pass through the slot, but do not return
//! its vector. A merge frees the memory of deleted vectors, with the whole graph.
//!
//! **View of a search.** Every insert or delete begins an *epoch*. A slot has the epochs in which
//! its vector was `born` and `died`. A search returns the vectors that were live in the epoch of
//! its start. So while an id is replaced, a search finds exactly one of its two vectors.
//!
//! **Locks.** A walk locks only the table of segments, and only briefly. A scan also locks the ids
//! while it copies their slots. No insert holds a lock during its search. If the version of a list
//! changes during a read, the reader reads the list again. So a search sees only complete lists.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use stratann_layout::attributes::Row;
use stratann_vector::{Element, Kernel, Metric, Reduction};

use self::prune::{Pruner, Space};
use self::segments::{Node, Point, SEGMENT, SEGMENT_BITS, Segment, Segments, View};
use super::logged::{FIRST_FRESH, vector_charge};
use crate::Error;
use crate::filter::{Checked, NodeSet};
use crate::frontier::{Frontier, distance_of, key, node_of};
use crate::stores::columns::{BESIDE_ROW, RowBytes, decoded};
use crate::visited::Visited;

mod prune;
mod segments;
#[cfg(test)]
mod tests;

/// With at most this number of live vectors, a scan is as fast as a walk of the graph, and exact.
const SCAN: usize = 256;

/// The capacity of a list, as a multiple of R. A larger capacity saves prunes, but lengthens lists.
const SLACK: f64 = 1.3;

/// The largest factor by which deleted vectors lengthen the candidate list of a search.
const LONGEST: usize = 4;

/// If a search finds too few live vectors, the candidate list grows by this factor. A search that
/// needs more than `LONGEST * WIDEN` times the list size scans all vectors.
const WIDEN: usize = 4;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FreshParameters {
    /// R: the greatest length of a list after pruning.
    pub(crate) degree: usize,
    /// L of the searches for the neighbours of a new vector.
    pub(crate) build_list: usize,
    /// The margin of the pruning, as a factor on squared distances. It is at least 1.
    pub(crate) alpha: f32,
}

impl Default for FreshParameters {
    fn default() -> Self {
        Self {
            degree: 32,
            build_list: 64,
            alpha: 1.2,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreshMoment {
    epoch: u64,
    live: usize,
}

impl FreshMoment {
    /// Whether a search may return the node's vector ([`Admission`](super::Admission)).
    #[inline]
    fn admits(&self, node: &Node) -> bool {
        node.lives(self.epoch)
    }
}

#[derive(Debug, Default)]
pub(crate) struct FreshScratch {
    frontier: Frontier,
    visited: Visited,
    /// The neighbours of the current candidate, or the slots that a scan compares.
    slots: Vec<u32>,
    expanded: Vec<u64>,
    found: Vec<(f32, u64)>,
}

impl FreshScratch {
    fn offer(&mut self, k: usize, mut offer: impl FnMut(u64, f32)) {
        let nearer = |a: &(f32, u64), b: &(f32, u64)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        self.found.sort_unstable_by(nearer);
        for &(distance, id) in self.found.iter().take(k) {
            offer(id, distance);
        }
    }

    /// Walks the graph from `entry` until the `list` nearest nodes are all expanded. `frontier`
    /// then has these nodes, and `expanded` has all expanded nodes.
    fn walk(
        &mut self,
        view: &mut View<'_>,
        entry: u32,
        list: usize,
        distance: impl Fn(&Point) -> f32,
    ) {
        self.frontier.clear(list, 1, list);
        self.visited.clear(list);
        self.expanded.clear();
        view.cover(entry);
        self.visited.insert(entry);
        self.frontier
            .insert(key(distance(view.point(entry)), entry));
        while let Some(next) = self.frontier.take_unread() {
            self.expanded.push(next);
            view.neighbours(node_of(next), &mut self.slots);
            let visited = &mut self.visited;
            self.slots.retain(|&slot| visited.insert(slot));
            // Loads the vectors of all neighbours into the cache: the processor's own prefetch does
            // not reach past the computation of one distance.
            let touched = self.slots.iter().fold(0, |touched, &slot| {
                touched ^ view.point(slot).vector.first().copied().unwrap_or(0)
            });
            std::hint::black_box(touched);
            for &slot in &self.slots {
                self.frontier.insert(key(distance(view.point(slot)), slot));
            }
        }
    }
}

#[derive(Debug, Default)]
struct InsertScratch {
    search: FreshScratch,
    pruner: Pruner,
    chosen: Vec<u32>,
}

/// Any number of threads may search and change the graph at once.
#[derive(Debug)]
pub(crate) struct FreshGraph {
    kernel: Kernel,
    parameters: FreshParameters,
    /// The capacity of a list, in neighbours.
    width: usize,
    segments: RwLock<Segments>,
    next: AtomicU32,
    /// The slot of the first inserted vector, even if this vector is deleted. Every search starts
    /// at this slot.
    entry: AtomicU32,
    /// The live slot of each id. `epoch`, `live`, `born` and `died` change only under the write
    /// lock of `ids`.
    ids: RwLock<HashMap<u64, u32>>,
    /// The dead slots, in the order of their deaths, for searches of earlier epochs. The list
    /// changes only under the write lock of `ids`.
    died: RwLock<Vec<u32>>,
    rows: RwLock<HashMap<u32, RowBytes>>,
    /// The bytes of the current rows. Replaced rows do not count.
    row_bytes: AtomicUsize,
    epoch: AtomicU64,
    live: AtomicUsize,
    idle: Mutex<Vec<InsertScratch>>,
}

impl FreshGraph {
    /// Creates a graph without vectors, for vectors of `dim` elements, at least 1.
    pub(crate) fn new(
        metric: Metric,
        element: Element,
        dim: usize,
        parameters: FreshParameters,
    ) -> Self {
        let parameters = FreshParameters {
            degree: parameters.degree.max(1),
            build_list: parameters.build_list.max(1),
            alpha: parameters.alpha.max(1.0),
        };
        // A list has space for at least one neighbour more than the pruning leaves.
        let width = (parameters.degree as f64 * SLACK).ceil() as usize;
        Self {
            kernel: Kernel::new(metric, element, dim),
            parameters,
            width: width.max(parameters.degree + 1),
            segments: RwLock::new(Arc::new([])),
            next: AtomicU32::new(0),
            entry: AtomicU32::new(NONE),
            ids: RwLock::new(HashMap::new()),
            died: RwLock::default(),
            rows: RwLock::default(),
            row_bytes: AtomicUsize::new(0),
            epoch: AtomicU64::new(0),
            live: AtomicUsize::new(0),
            idle: Mutex::new(Vec::new()),
        }
    }

    /// Adds a vector, and returns its slot. Searches find a replaced vector until the new vector is
    /// live. If two threads insert the same id, the vector that becomes live last stays.
    pub(crate) fn insert(&self, id: u64, vector: &[u8], row: Option<RowBytes>) -> u32 {
        assert_eq!(
            vector.len(),
            self.kernel.row_bytes(),
            "the vector has the wrong length"
        );
        let slot = self.take_slot();
        let mut view = View::new(self);
        let square = match self.kernel.metric().reduction() {
            // The kernel's distance is the negated inner product.
            Reduction::Lifted => -self.kernel.distance(vector, vector),
            Reduction::None | Reduction::Normalised => 0.0,
        };
        view.node(slot).point.get_or_init(|| Point {
            vector: vector.into(),
            id,
            square,
        });
        if let Some(row) = row {
            self.keep_row(slot, row);
        }
        let entry = self
            .entry
            .compare_exchange(NONE, slot, Ordering::AcqRel, Ordering::Acquire);
        if let Err(entry) = entry {
            let mut scratch = self.idle.lock().pop().unwrap_or_default();
            self.link(&mut view, slot, entry, &mut scratch);
            self.idle.lock().push(scratch);
        }
        self.publish(&view, id, slot);
        slot
    }

    /// Deletes the vector of an id. Returns `false` if the id is not live.
    pub(crate) fn delete(&self, id: u64) -> bool {
        let mut ids = self.ids.write();
        let Some(slot) = ids.remove(&id) else {
            return false;
        };
        let epoch = self.epoch.load(Ordering::Relaxed) + 1;
        let view = View::new(self);
        view.node(slot).died.store(epoch, Ordering::Relaxed);
        self.died.write().push(slot);
        self.live.store(ids.len(), Ordering::Relaxed);
        self.epoch.store(epoch, Ordering::Release);
        true
    }

    fn keep_row(&self, slot: u32, row: RowBytes) {
        let mut rows = self.rows.write();
        self.row_bytes.fetch_add(row.len(), Ordering::Relaxed);
        if let Some(before) = rows.insert(slot, row) {
            self.row_bytes.fetch_sub(before.len(), Ordering::Relaxed);
        }
    }

    /// Returns `false` if the id is not live.
    pub(crate) fn set_row(&self, id: u64, row: RowBytes) -> bool {
        let ids = self.ids.read();
        let Some(&slot) = ids.get(&id) else {
            return false;
        };
        self.keep_row(slot, row);
        true
    }

    pub(crate) fn row_of(&self, slot: u32) -> Option<RowBytes> {
        self.rows.read().get(&slot).cloned()
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        self.ids.read().contains_key(&id)
    }

    #[cfg(test)]
    pub(crate) fn get(&self, id: u64) -> Option<Vec<u8>> {
        let slot = *self.ids.read().get(&id)?;
        Some(View::new(self).point(slot).vector.to_vec())
    }

    pub(crate) fn len(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// The number of used slots, including slots of deleted vectors and of running inserts.
    pub(crate) fn slots(&self) -> usize {
        self.next.load(Ordering::Relaxed) as usize
    }

    /// The memory of the graph in bytes, with the overhead of the allocator, but without the
    /// buffers of inserts.
    pub(crate) fn memory_bytes(&self) -> usize {
        /// The overhead of an allocation, in bytes.
        const ALLOCATION: usize = 16;
        let segment = SEGMENT * (size_of::<Node>() + (self.width + 2) * size_of::<u32>());
        let row = self.kernel.row_bytes() + ALLOCATION;
        // A hash table has one extra byte for each entry, and at least an eighth of the table is
        // free.
        let entry = (size_of::<(u64, u32)>() + 1) * 8 / 7;
        // This function holds one lock at a time: an insert locks the segments while it holds the
        // lock of the ids, so the opposite order could deadlock.
        let segments = self.segments.read().len();
        let ids = self.ids.read().capacity();
        let died = self.died.read().capacity() * size_of::<u32>();
        let rows = {
            let rows = self.rows.read();
            // A row is allocated behind two reference counts.
            rows.capacity() * (size_of::<(u32, RowBytes)>() + 1) * 8 / 7
                + rows.len() * (ALLOCATION + 2 * size_of::<usize>())
        };
        let row_bytes = self.row_bytes.load(Ordering::Relaxed);
        segments * segment + self.slots() * row + ids * entry + died + rows + row_bytes
    }

    /// The bytes charged to a memory budget. When the index is reopened, the charge for the log is
    /// the same ([`logged_bytes`](super::logged::logged_bytes)).
    pub(crate) fn charged_bytes(&self) -> u64 {
        let first = if self.slots() > 0 { FIRST_FRESH } else { 0 };
        first + self.slots() as u64 * vector_charge(self.kernel.row_bytes()) + self.charged_rows()
    }

    pub(crate) fn charged_rows(&self) -> u64 {
        let rows = self.rows.read().len() as u64;
        rows * BESIDE_ROW + self.row_bytes.load(Ordering::Relaxed) as u64
    }

    /// Calls `f` with the id, vector and row of each live vector, in the order of insertion.
    pub(crate) fn for_each(&self, f: impl FnMut(u64, &[u8], Option<RowBytes>)) {
        self.for_each_in(self.epoch(), f);
    }

    pub(crate) fn live_ids(&self) -> Vec<u64> {
        let mut ids = Vec::with_capacity(self.len());
        self.for_each(|id, _, _| ids.push(id));
        ids
    }

    pub(crate) fn vector(&self, id: u64) -> Option<(Box<[u8]>, Option<RowBytes>)> {
        let slot = self.ids.read().get(&id).copied()?;
        let vector = View::new(self).point(slot).vector.clone();
        Some((vector, self.row_of(slot)))
    }

    pub(crate) fn vector_at(&self, id: u64, moment: FreshMoment) -> Option<Box<[u8]>> {
        let slot = self.slot_at(id, moment)?;
        Some(View::new(self).point(slot).vector.clone())
    }

    /// `None` if the id had no vector at the read timestamp.
    pub(crate) fn row_at(&self, id: u64, moment: FreshMoment) -> Option<Option<RowBytes>> {
        Some(self.row_of(self.slot_at(id, moment)?))
    }

    fn slot_at(&self, id: u64, moment: FreshMoment) -> Option<u32> {
        let ids = self.ids.read();
        let view = View::new(self);
        let lived = |&slot: &u32| moment.admits(view.node(slot));
        let mut slot = ids.get(&id).copied().filter(lived);
        if slot.is_none() && self.epoch() != moment.epoch {
            let died = self.died.read();
            let dead = |&slot: &u32| view.node(slot).died.load(Ordering::Relaxed) <= moment.epoch;
            let since = &died[died.partition_point(dead)..];
            let of_id = |slot: &&u32| view.point(**slot).id == id && lived(slot);
            slot = since.iter().find(of_id).copied();
        }
        slot
    }

    /// The live ids from `least` on, in any order.
    pub(crate) fn ids_from(&self, least: u64) -> Vec<u64> {
        let ids = self.ids.read();
        ids.keys().copied().filter(|&id| id >= least).collect()
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn now(&self) -> FreshMoment {
        // `epoch` and `live` change only under the write lock.
        let _ids = self.ids.read();
        FreshMoment {
            epoch: self.epoch(),
            live: self.len(),
        }
    }

    pub(crate) fn for_each_at(
        &self,
        moment: FreshMoment,
        f: impl FnMut(u64, &[u8], Option<RowBytes>),
    ) {
        self.for_each_in(moment.epoch, f);
    }

    /// Calls `f` like [`for_each`](FreshGraph::for_each), for the vectors that were live in
    /// `epoch`. This epoch must have begun.
    pub(crate) fn for_each_in(&self, epoch: u64, mut f: impl FnMut(u64, &[u8], Option<RowBytes>)) {
        self.each_slot_in(epoch, |slot, id, vector| f(id, vector, self.row_of(slot)));
    }

    pub(crate) fn each_slot_at(&self, moment: FreshMoment, f: impl FnMut(u32, u64, &[u8])) {
        self.each_slot_in(moment.epoch, f);
    }

    fn each_slot_in(&self, epoch: u64, mut f: impl FnMut(u32, u64, &[u8])) {
        // `epoch` began before this read of `next`. So these slots have all vectors that are live
        // in the epoch.
        let slots = self.next.load(Ordering::Acquire);
        let mut view = View::new(self);
        for slot in 0..slots {
            view.cover(slot);
            // A running insert may have taken a slot without a segment. This slot and later slots
            // are not live.
            if (slot >> SEGMENT_BITS) as usize >= view.segments.len() {
                return;
            }
            if view.node(slot).lives(epoch) {
                let point = view.point(slot);
                f(slot, point.id, &point.vector);
            }
        }
    }

    /// Calls `offer` with the ids and distances of the `k` nearest vectors that were live at a read
    /// timestamp, ordered by distance and then by id. If at least `k` vectors were live, `offer` is
    /// called `k` times.
    pub(crate) fn search(
        &self,
        query: &[u8],
        k: usize,
        list: usize,
        moment: FreshMoment,
        scratch: &mut FreshScratch,
        offer: impl FnMut(u64, f32),
    ) {
        assert_eq!(
            query.len(),
            self.kernel.row_bytes(),
            "the query has the wrong length"
        );
        if moment.live == 0 {
            return;
        }
        let list = list.max(k).max(1);
        // If the list has room for all live vectors, a walk compares no fewer vectors than a scan,
        // and would miss unreachable vectors.
        let is_walked = moment.live > SCAN.max(list) && self.walk(query, k, list, moment, scratch);
        if !is_walked {
            self.scan(query, moment, scratch);
        }
        scratch.offer(k, offer);
    }

    pub(crate) fn matching(&self, moment: FreshMoment, filter: &Checked) -> Result<NodeSet, Error> {
        let without = filter.matches(&Row::default());
        let slots = self.next.load(Ordering::Acquire);
        let (mut view, mut found) = (View::new(self), NodeSet::default());
        for slot in 0..slots {
            view.cover(slot);
            if (slot >> SEGMENT_BITS) as usize >= view.segments.len() {
                break;
            }
            let matches = moment.admits(view.node(slot))
                && match self.row_of(slot) {
                    Some(row) => filter.matches(&decoded(&row)?),
                    None => without,
                };
            if matches {
                found.insert(slot);
            }
        }
        Ok(found)
    }

    /// Searches like [`search`](FreshGraph::search), but compares the query exactly with all
    /// vectors of `slots`.
    pub(crate) fn search_among(
        &self,
        query: &[u8],
        k: usize,
        slots: &NodeSet,
        moment: FreshMoment,
        scratch: &mut FreshScratch,
        offer: impl FnMut(u64, f32),
    ) {
        assert_eq!(
            query.len(),
            self.kernel.row_bytes(),
            "the query has the wrong length"
        );
        let view = View::new(self);
        scratch.found.clear();
        let live = slots.iter().filter(|&slot| moment.admits(view.node(slot)));
        scratch.found.extend(live.map(|slot| {
            let point = view.point(slot);
            (self.kernel.distance(query, &point.vector), point.id)
        }));
        scratch.offer(k, offer);
    }

    /// Puts live vectors near the query into `found`. Returns `false` if the walk found fewer than
    /// `k` vectors although more vectors are live.
    fn walk(
        &self,
        query: &[u8],
        k: usize,
        list: usize,
        moment: FreshMoment,
        scratch: &mut FreshScratch,
    ) -> bool {
        let live = moment.live;
        let entry = self.entry.load(Ordering::Acquire);
        if entry == NONE {
            return false;
        }
        let mut view = View::new(self);
        // Deleted vectors take up entries of the candidate list, so the list gets longer.
        let slots = self.slots();
        let mut length = (list * slots / live).clamp(list, list * LONGEST).min(slots);
        loop {
            scratch.walk(&mut view, entry, length, |point| {
                self.kernel.distance(query, &point.vector)
            });
            scratch.found.clear();
            for key in scratch.frontier.keys() {
                let slot = node_of(key);
                if moment.admits(view.node(slot)) {
                    scratch.found.push((distance_of(key), view.point(slot).id));
                }
            }
            if scratch.found.len() >= k.min(live) {
                return true;
            }
            if length >= list * LONGEST * WIDEN || length >= slots {
                return false;
            }
            length = (length * WIDEN).min(slots);
        }
    }

    fn scan(&self, query: &[u8], moment: FreshMoment, scratch: &mut FreshScratch) {
        scratch.slots.clear();
        // A vector that was deleted after the read timestamp was live at this timestamp. So the
        // scan also compares such vectors.
        {
            let ids = self.ids.read();
            scratch.slots.extend(ids.values());
            if self.epoch() != moment.epoch {
                let (view, died) = (View::new(self), self.died.read());
                let dead =
                    |&slot: &u32| view.node(slot).died.load(Ordering::Relaxed) <= moment.epoch;
                scratch.slots.extend(&died[died.partition_point(dead)..]);
                scratch.slots.retain(|&slot| moment.admits(view.node(slot)));
            }
        }
        let view = View::new(self);
        scratch.found.clear();
        scratch.found.extend(scratch.slots.iter().map(|&slot| {
            let point = view.point(slot);
            (self.kernel.distance(query, &point.vector), point.id)
        }));
    }

    fn take_slot(&self) -> u32 {
        let slot = self.next.fetch_add(1, Ordering::AcqRel);
        assert!(slot < NONE, "a graph of fresh vectors has {NONE} slots");
        loop {
            let present = self.segments.read().len();
            if ((slot >> SEGMENT_BITS) as usize) < present {
                return slot;
            }
            // The segment is created before the lock is taken, since searches wait for the lock.
            let segment = Arc::new(Segment::new(self.width));
            let mut segments = self.segments.write();
            if segments.len() == present {
                *segments = segments.iter().cloned().chain([segment]).collect();
            }
        }
    }

    fn space(&self) -> Space<'_> {
        Space {
            kernel: &self.kernel,
            product: self.kernel.metric().reduction() == Reduction::Lifted,
        }
    }

    fn link(&self, view: &mut View<'_>, slot: u32, entry: u32, scratch: &mut InsertScratch) {
        let InsertScratch {
            search,
            pruner,
            chosen,
        } = scratch;
        let space = self.space();
        // The search may replace the segments of the view. This clone keeps the new vector
        // readable.
        let segments = view.segments.clone();
        let own = &segments[(slot >> SEGMENT_BITS) as usize];
        let at = slot as usize % SEGMENT;
        let Some(point) = own.nodes[at].point.get() else {
            return;
        };
        search.walk(view, entry, self.parameters.build_list, |other| {
            space.distance(point, other)
        });
        pruner.pool.clear();
        pruner.pool.extend_from_slice(&search.expanded);
        if space.product {
            // Under the inner product, the first search compares only directions. A second search
            // finds the candidates with a large product.
            search.walk(view, entry, self.parameters.build_list, |other| {
                self.kernel.distance(&point.vector, &other.vector)
            });
            pruner.pool.extend(search.expanded.iter().map(|&best| {
                let other = node_of(best);
                key(space.distance(point, view.point(other)), other)
            }));
        }
        pruner.prune(view, space, point, &self.parameters);
        chosen.clear();
        chosen.extend_from_slice(&pruner.chosen);
        // Under the inner product, all vectors choose the same long vectors as neighbours. To spare
        // the lists of these vectors, only diverse neighbours link back.
        let asked = match space.product {
            true => pruner.diverse,
            false => chosen.len(),
        };
        // This list is written before the first link back. After that link, other inserts may add
        // to the list.
        own.replace(at, chosen, &own.nodes[at].lock.lock());
        let mut linked = false;
        for (place, &neighbour) in chosen[..asked].iter().enumerate() {
            // The farthest neighbour comes last. If no nearer neighbour has linked back, the
            // farthest must link back. Its list then drops a far link, which searches rarely need.
            let must = !linked && place + 1 == asked;
            linked |= self.link_back(view, space, neighbour, slot, must, search, pruner);
        }
    }

    /// Adds `slot` to the list of `node`, and returns whether the list has `slot` after its
    /// pruning. With `must`, the list keeps `slot`, so that a path leads to every vector.
    #[expect(clippy::too_many_arguments, reason = "the scratch, in its parts")]
    fn link_back(
        &self,
        view: &mut View<'_>,
        space: Space<'_>,
        node: u32,
        slot: u32,
        must: bool,
        search: &mut FreshScratch,
        pruner: &mut Pruner,
    ) -> bool {
        let segments = view.segments.clone();
        let segment = &segments[(node >> SEGMENT_BITS) as usize];
        let at = node as usize % SEGMENT;
        let lock = segment.nodes[at].lock.lock();
        if segment.append(at, slot, &lock) {
            return true;
        }
        view.neighbours(node, &mut search.slots);
        search.slots.push(slot);
        let point = view.point(node);
        pruner.pool.clear();
        pruner.pool.extend(
            search
                .slots
                .iter()
                .map(|&other| key(space.distance(point, view.point(other)), other)),
        );
        pruner.prune(view, space, point, &self.parameters);
        let mut kept = pruner.chosen.contains(&slot);
        if must && !kept {
            pruner.chosen.push(slot);
            kept = true;
        }
        segment.replace(at, &pruner.chosen, &lock);
        kept
    }

    fn publish(&self, view: &View<'_>, id: u64, slot: u32) {
        let mut ids = self.ids.write();
        let epoch = self.epoch.load(Ordering::Relaxed) + 1;
        if let Some(old) = ids.insert(id, slot) {
            // Another thread may have inserted the same id into a slot that this view does not
            // cover.
            View::new(self)
                .node(old)
                .died
                .store(epoch, Ordering::Relaxed);
            self.died.write().push(old);
        }
        view.node(slot).born.store(epoch, Ordering::Relaxed);
        self.live.store(ids.len(), Ordering::Relaxed);
        self.epoch.store(epoch, Ordering::Release);
    }
}
