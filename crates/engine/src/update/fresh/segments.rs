//! Slots of the fresh graph, and their adjacency lists, which are read while they are written.
//!
//! ```text
//!   a list:   version | degree | n n n n . . .       odd while it is written; a reader looks at it before and after
//! ```
//!
//! Segments are allocated as slots are needed, and never move: whoever holds a [`View`] reads slots without a lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use super::FreshGraph;

/// Slots of a segment: large enough that segments are few, small enough that the first one, which a single vector takes, is small beside any memory budget.
pub(super) const SEGMENT: usize = 1 << SEGMENT_BITS;
/// The same as a shift.
pub(super) const SEGMENT_BITS: u32 = 7;

/// Epoch that never comes: of the birth of what is not live yet, and of the death of what lives.
pub(super) const NEVER: u64 = u64::MAX;

/// Attempts to read a list that is being written, before the reader lets other threads run: the writer may have lost its
/// processor in the middle of it.
pub(super) const SPINS: usize = 64;

/// A vector that has a slot. It never changes.
#[derive(Debug)]
pub(super) struct Point {
    /// Raw bytes, in the element type of the index.
    pub(super) vector: Box<[u8]>,
    /// The outside id.
    pub(super) id: u64,
    /// Squared length; only the inner product needs it.
    pub(super) square: f32,
}

/// A slot, as wide as a cache line: what tells whether it is an answer comes with what leads to its vector.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Node {
    /// Set before the slot's number stands in any list.
    pub(super) point: OnceLock<Point>,
    /// Epoch from which on the vector is live.
    pub(super) born: AtomicU64,
    /// Epoch from which on it is deleted.
    pub(super) died: AtomicU64,
    /// Exclusive right to write the node's list.
    pub(super) lock: Mutex<()>,
}

impl Node {
    /// A slot that nobody has taken.
    pub(super) fn new() -> Self {
        Self {
            point: OnceLock::new(),
            born: AtomicU64::new(NEVER),
            died: AtomicU64::new(NEVER),
            lock: Mutex::new(()),
        }
    }

    /// Whether the vector is live in an epoch that has begun. (A later change writes a later epoch, so it does not matter
    /// whether it is seen.)
    #[inline]
    pub(super) fn lives(&self, epoch: u64) -> bool {
        self.born.load(Ordering::Relaxed) <= epoch && epoch < self.died.load(Ordering::Relaxed)
    }
}

/// Slots that were allocated together.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) nodes: Box<[Node]>,
    /// `stride` words a node: version, degree, neighbours.
    pub(super) lists: Box<[AtomicU32]>,
    pub(super) stride: usize,
}

impl Segment {
    /// Empty slots with lists of up to `width` neighbours.
    pub(super) fn new(width: usize) -> Self {
        let stride = width + 2;
        Self {
            nodes: (0..SEGMENT).map(|_| Node::new()).collect(),
            lists: (0..SEGMENT * stride).map(|_| AtomicU32::new(0)).collect(),
            stride,
        }
    }

    /// The words of a list.
    #[inline]
    pub(super) fn words(&self, at: usize) -> &[AtomicU32] {
        &self.lists[at * self.stride..][..self.stride]
    }

    /// Copies a list, as it was at one moment. Takes no lock: an even version before and the same one after say that nobody
    /// wrote in between. Whoever reads a neighbour here also sees its vector.
    #[inline]
    pub(super) fn read(&self, at: usize, list: &mut Vec<u32>) {
        let words = self.words(at);
        let mut spins = 0;
        loop {
            list.clear();
            let version = words[0].load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                let degree = words[1].load(Ordering::Relaxed) as usize;
                // A list that is being written may state a degree that goes with other words, but never one too long.
                list.extend(
                    words[2..][..degree]
                        .iter()
                        .map(|word| word.load(Ordering::Relaxed)),
                );
                fence(Ordering::Acquire);
                if words[0].load(Ordering::Relaxed) == version {
                    return;
                }
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Lets `change` write a list's degree and neighbours, unseen by readers until it is done.
    pub(super) fn write(
        &self,
        at: usize,
        _lock: &MutexGuard<'_, ()>,
        change: impl FnOnce(&[AtomicU32]),
    ) {
        let words = self.words(at);
        let version = words[0].load(Ordering::Relaxed);
        words[0].store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change(&words[1..]);
        words[0].store(version.wrapping_add(2), Ordering::Release);
    }

    /// Replaces a list. The caller holds the node's lock.
    pub(super) fn replace(&self, at: usize, list: &[u32], lock: &MutexGuard<'_, ()>) {
        self.write(at, lock, |words| {
            words[0].store(list.len() as u32, Ordering::Relaxed);
            for (word, &neighbour) in words[1..].iter().zip(list) {
                word.store(neighbour, Ordering::Relaxed);
            }
        });
    }

    /// Appends a neighbour that is not there yet; `false` when the list is full. The caller holds the node's lock.
    pub(super) fn append(&self, at: usize, neighbour: u32, lock: &MutexGuard<'_, ()>) -> bool {
        let degree = self.words(at)[1].load(Ordering::Relaxed);
        if degree as usize + 2 >= self.stride {
            return false;
        }
        self.write(at, lock, |words| {
            words[degree as usize + 1].store(neighbour, Ordering::Relaxed);
            words[0].store(degree + 1, Ordering::Relaxed);
        });
        true
    }
}

/// All segments. Whoever has a copy keeps it for a whole search; a new segment makes a new copy.
pub(super) type Segments = Arc<[Arc<Segment>]>;

/// What one search or insert holds of the segments.
pub(super) struct View<'a> {
    pub(super) graph: &'a FreshGraph,
    pub(super) segments: Segments,
}

impl<'a> View<'a> {
    /// The segments as they are now.
    pub(super) fn new(graph: &'a FreshGraph) -> Self {
        Self {
            graph,
            segments: graph.segments.read().clone(),
        }
    }

    /// Makes sure that slots up to this one can be looked at. (A slot's segment is there before its number is anywhere.)
    #[inline]
    pub(super) fn cover(&mut self, slot: u32) {
        if (slot >> SEGMENT_BITS) as usize >= self.segments.len() {
            self.segments = self.graph.segments.read().clone();
        }
    }

    /// A slot's segment, and its place there.
    #[inline]
    pub(super) fn locate(&self, slot: u32) -> (&Segment, usize) {
        let segment = &self.segments[(slot >> SEGMENT_BITS) as usize];
        (segment, slot as usize % SEGMENT)
    }

    /// A slot.
    #[inline]
    pub(super) fn node(&self, slot: u32) -> &Node {
        let (segment, at) = self.locate(slot);
        &segment.nodes[at]
    }

    /// The vector of a slot that stands in a list or among the ids: there is one.
    #[inline]
    pub(super) fn point(&self, slot: u32) -> &Point {
        self.node(slot)
            .point
            .get()
            .expect("a slot has its vector before anything refers to it")
    }

    /// Copies the neighbours of a slot, and makes sure that they can be looked at.
    #[inline]
    pub(super) fn neighbours(&mut self, slot: u32, list: &mut Vec<u32>) {
        let (segment, at) = self.locate(slot);
        segment.read(at, list);
        if let Some(&last) = list.iter().max() {
            self.cover(last);
        }
    }
}
