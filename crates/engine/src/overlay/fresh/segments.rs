//! The slots of the fresh graph and their adjacency lists, which threads read during writes.
//!
//! ```text
//!   a list:   version | degree | n n n n . . .       the version is odd during a write;
//!                                                    a reader checks it before and after a copy
//! ```
//!
//! A segment is allocated when its first slot is needed, and never moves. So a thread with a
//! [`View`] reads slots without a lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use super::FreshGraph;

/// The number of slots of a segment. A segment is so small that every memory budget has space for
/// the first one.
pub(super) const SEGMENT: usize = 1 << SEGMENT_BITS;
pub(super) const SEGMENT_BITS: u32 = 7;

/// `born` of a vector that is not live yet, and `died` of a live vector.
pub(super) const NEVER: u64 = u64::MAX;

/// After this number of attempts to read a list during a write, the reader yields the processor,
/// since the writer may have been preempted.
pub(super) const SPINS: usize = 64;

#[derive(Debug)]
pub(super) struct Point {
    /// The raw bytes of the vector, in the element type of the index.
    pub(super) vector: Box<[u8]>,
    pub(super) id: u64,
    /// The squared length, only for the inner product.
    pub(super) square: f32,
}

/// A slot fills a cache line, so that its epochs and the pointer to its vector are in one line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Node {
    /// Set before any list has the number of the slot.
    pub(super) point: OnceLock<Point>,
    /// The first epoch in which the vector is live.
    pub(super) born: AtomicU64,
    /// The first epoch in which the vector is deleted.
    pub(super) died: AtomicU64,
    pub(super) lock: Mutex<()>,
}

impl Node {
    pub(super) fn new() -> Self {
        Self {
            point: OnceLock::new(),
            born: AtomicU64::new(NEVER),
            died: AtomicU64::new(NEVER),
            lock: Mutex::new(()),
        }
    }

    /// Whether the vector is live in an epoch that has begun. Concurrent changes write later
    /// epochs, so they do not affect the result.
    #[inline]
    pub(super) fn lives(&self, epoch: u64) -> bool {
        self.born.load(Ordering::Relaxed) <= epoch && epoch < self.died.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) nodes: Box<[Node]>,
    /// The lists, with `stride` words for each node: version, degree and neighbours.
    pub(super) lists: Box<[AtomicU32]>,
    pub(super) stride: usize,
}

impl Segment {
    pub(super) fn new(width: usize) -> Self {
        let stride = width + 2;
        Self {
            nodes: (0..SEGMENT).map(|_| Node::new()).collect(),
            lists: (0..SEGMENT * stride).map(|_| AtomicU32::new(0)).collect(),
            stride,
        }
    }

    #[inline]
    pub(super) fn words(&self, at: usize) -> &[AtomicU32] {
        &self.lists[at * self.stride..][..self.stride]
    }

    /// Copies a consistent version of a list, without a lock: no write ran if the version is even
    /// and the same after the copy. A reader that sees a neighbour also sees its vector.
    #[inline]
    pub(super) fn read(&self, at: usize, list: &mut Vec<u32>) {
        let words = self.words(at);
        let mut spins = 0;
        loop {
            list.clear();
            let version = words[0].load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                let degree = words[1].load(Ordering::Relaxed) as usize;
                // During a write, the degree may be older or newer than the neighbours. But the
                // degree never exceeds the capacity of a list.
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

    /// Readers wait until `change` has written the degree and the neighbours.
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

    pub(super) fn replace(&self, at: usize, list: &[u32], lock: &MutexGuard<'_, ()>) {
        self.write(at, lock, |words| {
            words[0].store(list.len() as u32, Ordering::Relaxed);
            for (word, &neighbour) in words[1..].iter().zip(list) {
                word.store(neighbour, Ordering::Relaxed);
            }
        });
    }

    /// Appends a neighbour that is not in the list yet. Returns `false` if the list is full.
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

/// An added segment makes a new table. A search may read an older table until the search ends.
pub(super) type Segments = Arc<[Arc<Segment>]>;

pub(super) struct View<'a> {
    pub(super) graph: &'a FreshGraph,
    pub(super) segments: Segments,
}

impl<'a> View<'a> {
    pub(super) fn new(graph: &'a FreshGraph) -> Self {
        Self {
            graph,
            segments: graph.segments.read().clone(),
        }
    }

    /// Makes the slots up to this slot readable. A segment exists before any list or table has its
    /// slots.
    #[inline]
    pub(super) fn cover(&mut self, slot: u32) {
        if (slot >> SEGMENT_BITS) as usize >= self.segments.len() {
            self.segments = self.graph.segments.read().clone();
        }
    }

    #[inline]
    pub(super) fn locate(&self, slot: u32) -> (&Segment, usize) {
        let segment = &self.segments[(slot >> SEGMENT_BITS) as usize];
        (segment, slot as usize % SEGMENT)
    }

    #[inline]
    pub(super) fn node(&self, slot: u32) -> &Node {
        let (segment, at) = self.locate(slot);
        &segment.nodes[at]
    }

    /// The vector of a slot that is in a list or in the table of ids.
    #[inline]
    pub(super) fn point(&self, slot: u32) -> &Point {
        self.node(slot)
            .point
            .get()
            .expect("a slot gets its vector before any list refers to it")
    }

    #[inline]
    pub(super) fn neighbours(&mut self, slot: u32, list: &mut Vec<u32>) {
        let (segment, at) = self.locate(slot);
        segment.read(at, list);
        if let Some(&last) = list.iter().max() {
            self.cover(last);
        }
    }
}
