//! Finds the true nearest vectors of some queries. It compares each query with every vector that
//! may be a result.
//!
//! ```text
//!   each vector ── meet ──> a block ── full? compare ──> tile by tile with each query
//!                                                          ──> heaps of the k nearest
//! ```

use std::collections::BinaryHeap;

use stratann_vector::Kernel;

use crate::Error;
use crate::index::Index;
use crate::index::contents::each_vector;
use crate::progress::Progress;
use crate::threads;

/// The bytes of vectors that are compared with all queries at a time. These vectors stay in the L2
/// cache.
pub(crate) const TILE: usize = 128 << 10;
/// The bytes of vectors that are collected before all threads compare them.
const BLOCK: usize = 4 << 20;

/// A vector that was found: its distance, as an integer that sorts like the distance, and its id.
pub(crate) type Found = (u32, u64);

/// Converts a distance to an integer that sorts like the distance. NaN sorts last. Only an overflow
/// can cause NaN.
pub(crate) fn ordered(distance: f32) -> u32 {
    let distance = distance.min(f32::INFINITY) + 0.0;
    let bits = distance.to_bits();
    bits ^ (((bits as i32 >> 31) as u32) | 0x8000_0000)
}

pub(crate) fn distance_of(found: Found) -> f32 {
    let bits = found.0;
    f32::from_bits(match bits & 0x8000_0000 != 0 {
        true => bits & 0x7fff_ffff,
        false => !bits,
    })
}

/// The location of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On storage.
    Node(u32),
    /// In memory only: the number of the fresh graph, and the slot in this graph.
    Slot(usize, u32),
}

/// The conditions of the caller on the compared vectors.
pub(crate) trait Wants: Sync {
    /// Whether a vector that is near enough may be a result of a query.
    fn admits(&self, query: usize, place: Place, id: u64) -> bool;

    /// Whether the distance of an admitted vector with this id must be reported. Vectors farther
    /// than the k-th nearest so far are never reported.
    fn tells(&self, query: usize, id: u64) -> bool;
}

pub(crate) struct Nearest<'q> {
    kernel: Kernel,
    shares: Vec<Share<'q>>,
    rows: Vec<u8>,
    names: Vec<(Place, u64)>,
}

pub(crate) struct OfQuery {
    /// The nearest vectors, nearest first.
    pub(crate) nearest: Vec<Found>,
    /// The reported distances of ids for which [`Wants::tells`] is true. The list has all such ids
    /// up to the distance of the last vector of `nearest`. It may also have farther ids.
    pub(crate) told: Vec<Found>,
}

/// The queries of one thread, with the nearest vectors of each query so far.
struct Share<'q> {
    /// The number of the first query.
    first: usize,
    queries: &'q [u8],
    heaps: Vec<Heap>,
    distances: Vec<f32>,
}

/// The nearest vectors of one query so far.
struct Heap {
    k: usize,
    nearest: BinaryHeap<Found>,
    told: Vec<Found>,
}

impl Heap {
    fn new(k: usize) -> Self {
        Self {
            k,
            nearest: BinaryHeap::with_capacity(k + 1),
            told: Vec::new(),
        }
    }

    /// The distance of the k-th nearest vector so far. A farther vector is not among the nearest.
    fn limit(&self) -> u32 {
        match self.nearest.peek() {
            Some(worst) if self.nearest.len() == self.k => worst.0,
            _ => u32::MAX,
        }
    }

    fn offer(&mut self, found: Found) {
        self.nearest.push(found);
        if self.nearest.len() > self.k {
            self.nearest.pop();
        }
    }
}

impl<'q> Nearest<'q> {
    /// Begins a comparison with `queries`, which are consecutive vectors of the index's element
    /// type. `ks` has the k of each query. Each k is at least 1.
    pub(crate) fn new(index: &Index, queries: &'q [u8], ks: &[usize], threads: usize) -> Self {
        let kernel = Kernel::new(index.metric(), index.element(), index.dim());
        let each = ks.len().div_ceil(threads.max(1)).max(1);
        let shares = queries
            .chunks(each * kernel.row_bytes())
            .zip(ks.chunks(each));
        let shares = shares.enumerate().map(|(at, (queries, ks))| Share {
            first: at * each,
            queries,
            heaps: ks.iter().map(|&k| Heap::new(k)).collect(),
            distances: Vec::new(),
        });
        Self {
            shares: shares.collect(),
            kernel,
            rows: Vec::new(),
            names: Vec::new(),
        }
    }

    /// Adds a vector to the vectors that wait for the comparison.
    pub(crate) fn meet(&mut self, place: Place, id: u64, vector: &[u8]) {
        self.rows.extend_from_slice(vector);
        self.names.push((place, id));
    }

    /// The bytes of the vectors that wait for the comparison.
    pub(crate) fn waiting(&self) -> usize {
        self.rows.len()
    }

    /// Compares the waiting vectors with all queries.
    pub(crate) fn compare(&mut self, wants: &impl Wants) {
        let (kernel, rows, names) = (&self.kernel, &self.rows, &self.names);
        threads::shared(self.shares.iter_mut(), |share| {
            share.compare(kernel, rows, names, wants);
        });
        self.rows.clear();
        self.names.clear();
    }

    /// Returns the results of each query. No vector may wait for the comparison.
    pub(crate) fn found(self) -> Vec<OfQuery> {
        let heaps = self.shares.into_iter().flat_map(|share| share.heaps);
        heaps
            .map(|heap| OfQuery {
                nearest: heap.nearest.into_sorted_vec(),
                told: heap.told,
            })
            .collect()
    }
}

impl Share<'_> {
    /// Compares all queries of this thread with some vectors.
    fn compare(
        &mut self,
        kernel: &Kernel,
        rows: &[u8],
        names: &[(Place, u64)],
        wants: &impl Wants,
    ) {
        let row_bytes = kernel.row_bytes();
        let tile = (TILE / row_bytes).max(1);
        for (rows, names) in rows.chunks(tile * row_bytes).zip(names.chunks(tile)) {
            self.distances.resize(names.len(), 0.0);
            let queries = self.queries.chunks_exact(row_bytes);
            for (at, (query, heap)) in queries.zip(&mut self.heaps).enumerate() {
                kernel.distances_dense(query, rows, &mut self.distances);
                let (number, mut limit) = (self.first + at, heap.limit());
                for (&(place, id), &distance) in names.iter().zip(&self.distances) {
                    let distance = ordered(distance);
                    if distance > limit || !wants.admits(number, place, id) {
                        continue;
                    }
                    if wants.tells(number, id) {
                        heap.told.push((distance, id));
                    }
                    heap.offer((distance, id));
                    limit = heap.limit();
                }
            }
        }
    }
}

/// Admits every vector except one node for each query. The list of nodes may be shorter than the
/// list of queries.
struct AllBut<'a>(&'a [u32]);

impl Wants for AllBut<'_> {
    fn admits(&self, query: usize, place: Place, _: u64) -> bool {
        let out = self.0.get(query);
        out.is_none_or(|&node| place != Place::Node(node))
    }

    fn tells(&self, _: usize, _: u64) -> bool {
        false
    }
}

/// Returns the `k` nearest vectors of each query, nearest first. `queries` are consecutive vectors
/// of the index's element type.
///
/// `left_out` has the nodes to exclude, one for each of the first queries. Deleted vectors, and
/// vectors that were inserted after the checkpoint, are excluded too.
pub(crate) fn nearest(
    index: &Index,
    queries: &[u8],
    left_out: &[u32],
    k: usize,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<Vec<Found>>, Error> {
    let count = queries.len() / (index.dim() * index.element().size());
    let mut nearest = Nearest::new(index, queries, &vec![k; count], threads);
    let wants = AllBut(left_out);
    let dead = index.overlay().map(|overlay| overlay.deleted.clone());
    each_vector(index, progress, &mut |node, id, vector| {
        if dead.as_ref().is_some_and(|dead| dead.contains(id, node)) {
            return Ok(());
        }
        nearest.meet(Place::Node(node), id, vector);
        if nearest.waiting() >= BLOCK {
            nearest.compare(&wants);
        }
        Ok(())
    })?;
    nearest.compare(&wants);
    let found = nearest.found().into_iter();
    Ok(found.map(|found| found.nearest).collect())
}
