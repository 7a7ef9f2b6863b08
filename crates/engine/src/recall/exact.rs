//! The true nearest of some queries, of all vectors that the checkpoint of an index holds.

use std::collections::BinaryHeap;

use stratann_vector::Kernel;

use crate::Error;
use crate::index::Index;
use crate::progress::Progress;
use crate::threads;
use crate::update::each_vector;

/// Bytes of vectors that are compared with all queries at a time: they stay in the L2 cache.
const TILE: usize = 128 << 10;
/// Bytes that are collected for all threads.
const BLOCK: usize = 4 << 20;

/// What is found of a query: as an integer of the distance's order, and the outside id.
pub(super) type Found = (u32, u64);

/// Distances as integers of the same order. NaN, which only an overflow can come to, is behind all numbers.
pub(super) fn ordered(distance: f32) -> u32 {
    let distance = distance.min(f32::INFINITY) + 0.0;
    let bits = distance.to_bits();
    bits ^ (((bits as i32 >> 31) as u32) | 0x8000_0000)
}

/// Its distance.
pub(super) fn distance_of(found: Found) -> f32 {
    let bits = found.0;
    f32::from_bits(match bits & 0x8000_0000 != 0 {
        true => bits & 0x7fff_ffff,
        false => !bits,
    })
}

/// Queries of one thread, and the nearest so far.
struct Share<'q> {
    /// The number of the first of them.
    first: usize,
    queries: &'q [u8],
    nearest: Vec<BinaryHeap<Found>>,
    distances: Vec<f32>,
}

/// The `k` nearest of each of `queries`, rows of the index's element type one after the other, nearest first. `left_out` has a node that
/// does not count for each of the first. What was deleted, or came since the checkpoint, is not looked at.
pub(super) fn nearest(
    index: &Index,
    queries: &[u8],
    left_out: &[u32],
    k: usize,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<Vec<Found>>, Error> {
    let row_bytes = index.dim() * index.element().size();
    let count = queries.len() / row_bytes;
    let kernel = Kernel::new(index.metric(), index.element(), index.dim());
    let each = count.div_ceil(threads.max(1)).max(1);
    let mut shares: Vec<Share<'_>> = queries
        .chunks(each * row_bytes)
        .enumerate()
        .map(|(at, queries)| Share {
            first: at * each,
            queries,
            nearest: vec![BinaryHeap::with_capacity(k + 1); queries.len() / row_bytes],
            distances: Vec::new(),
        })
        .collect();
    let (mut rows, mut names): (Vec<u8>, Vec<(u32, u64)>) = (Vec::new(), Vec::new());
    let mut compare = |rows: &mut Vec<u8>, names: &mut Vec<(u32, u64)>| {
        threads::shared(shares.iter_mut(), |share| {
            share.compare(&kernel, row_bytes, rows, names, left_out, k);
        });
        rows.clear();
        names.clear();
    };
    let dead = index.overlay().map(|overlay| overlay.deleted.clone());
    each_vector(index, progress, &mut |node, id, vector| {
        if dead.as_ref().is_some_and(|dead| dead.contains(id, node)) {
            return Ok(());
        }
        rows.extend_from_slice(vector);
        names.push((node, id));
        if rows.len() >= BLOCK {
            compare(&mut rows, &mut names);
        }
        Ok(())
    })?;
    compare(&mut rows, &mut names);
    let found = shares.into_iter().flat_map(|share| share.nearest);
    Ok(found.map(BinaryHeap::into_sorted_vec).collect())
}

impl Share<'_> {
    /// Compares all its queries with some vectors.
    fn compare(
        &mut self,
        kernel: &Kernel,
        row_bytes: usize,
        rows: &[u8],
        names: &[(u32, u64)],
        left_out: &[u32],
        k: usize,
    ) {
        let tile = (TILE / row_bytes).max(1);
        for (rows, names) in rows.chunks(tile * row_bytes).zip(names.chunks(tile)) {
            self.distances.resize(names.len(), 0.0);
            let queries = self.queries.chunks_exact(row_bytes);
            for (at, (query, nearest)) in queries.zip(&mut self.nearest).enumerate() {
                kernel.distances_dense(query, rows, &mut self.distances);
                let out = left_out.get(self.first + at).copied();
                let mut limit = match nearest.peek() {
                    Some(worst) if nearest.len() == k => worst.0,
                    _ => u32::MAX,
                };
                for (&(node, id), &distance) in names.iter().zip(&self.distances) {
                    let distance = ordered(distance);
                    if distance > limit || out == Some(node) {
                        continue;
                    }
                    nearest.push((distance, id));
                    if nearest.len() > k {
                        nearest.pop();
                    }
                    if let Some(worst) = nearest.peek().filter(|_| nearest.len() == k) {
                        limit = worst.0;
                    }
                }
            }
        }
    }
}
