//! The slots of the fresh graph and their adjacency lists. Threads can read a list while another
//! thread writes it.
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

/// The number of slots of a segment. It is so large that there are few segments. But it is so small
/// that the first segment, which is allocated for a single vector, is small compared with any
/// memory budget.
pub(super) const SEGMENT: usize = 1 << SEGMENT_BITS;
/// The binary logarithm of [`SEGMENT`].
pub(super) const SEGMENT_BITS: u32 = 7;

/// An epoch that never occurs. It is `born` of a vector that is not live yet, and `died` of a live
/// vector.
pub(super) const NEVER: u64 = u64::MAX;

/// The number of attempts to read a list that another thread is writing. After these attempts, the
/// reader yields to other threads, since the writer may have been preempted.
pub(super) const SPINS: usize = 64;

/// A vector in a slot. It never changes.
#[derive(Debug)]
pub(super) struct Point {
    /// The raw bytes of the vector, in the element type of the index.
    pub(super) vector: Box<[u8]>,
    /// The external id.
    pub(super) id: u64,
    /// The squared length of the vector. Only the inner product needs it.
    pub(super) square: f32,
}

/// A slot. It has the size of a cache line, so that the epochs of the vector and the pointer to the
/// vector are in the same line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Node {
    /// The vector. It is set before any list has the number of the slot.
    pub(super) point: OnceLock<Point>,
    /// The first epoch in which the vector is live.
    pub(super) born: AtomicU64,
    /// The first epoch in which the vector is deleted.
    pub(super) died: AtomicU64,
    /// The lock for writes of the list.
    pub(super) lock: Mutex<()>,
}

impl Node {
    /// Creates an unused slot.
    pub(super) fn new() -> Self {
        Self {
            point: OnceLock::new(),
            born: AtomicU64::new(NEVER),
            died: AtomicU64::new(NEVER),
            lock: Mutex::new(()),
        }
    }

    /// Whether the vector is live in an epoch that has begun. Later changes write later epochs, so
    /// it does not matter whether this thread sees them.
    #[inline]
    pub(super) fn lives(&self, epoch: u64) -> bool {
        self.born.load(Ordering::Relaxed) <= epoch && epoch < self.died.load(Ordering::Relaxed)
    }
}

/// Slots that were allocated together.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) nodes: Box<[Node]>,
    /// The lists, with `stride` words for each node: version, degree and neighbours.
    pub(super) lists: Box<[AtomicU32]>,
    pub(super) stride: usize,
}

impl Segment {
    /// Creates unused slots with lists of up to `width` neighbours.
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

    /// Copies a consistent version of a list, without a lock. If the version is even before the
    /// copy, and the same after it, no write ran during the copy. A reader that sees a neighbour in
    /// the list also sees the vector of the neighbour.
    #[inline]
    pub(super) fn read(&self, at: usize, list: &mut Vec<u32>) {
        let words = self.words(at);
        let mut spins = 0;
        loop {
            list.clear();
            let version = words[0].load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                let degree = words[1].load(Ordering::Relaxed) as usize;
                // During a write, the degree may be older or newer than the neighbours. But it
                // never exceeds the capacity of a list.
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

    /// Calls `change` to write the degree and the neighbours of a list. Readers wait until the
    /// change is complete.
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

    /// Replaces a list. The caller holds the lock of the node.
    pub(super) fn replace(&self, at: usize, list: &[u32], lock: &MutexGuard<'_, ()>) {
        self.write(at, lock, |words| {
            words[0].store(list.len() as u32, Ordering::Relaxed);
            for (word, &neighbour) in words[1..].iter().zip(list) {
                word.store(neighbour, Ordering::Relaxed);
            }
        });
    }

    /// Appends a neighbour that is not in the list. Returns `false` if the list is full. The caller
    /// holds the lock of the node.
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

/// The table of all segments. When a segment is added, a new table replaces this one. A search may
/// read an older table until it ends.
pub(super) type Segments = Arc<[Arc<Segment>]>;

/// The segments that one search or insert can read.
pub(super) struct View<'a> {
    pub(super) graph: &'a FreshGraph,
    pub(super) segments: Segments,
}

impl<'a> View<'a> {
    /// Creates a view of the present segments.
    pub(super) fn new(graph: &'a FreshGraph) -> Self {
        Self {
            graph,
            segments: graph.segments.read().clone(),
        }
    }

    /// Makes the slots up to this slot readable. The segment of a slot exists before any list or
    /// table has the number of the slot.
    #[inline]
    pub(super) fn cover(&mut self, slot: u32) {
        if (slot >> SEGMENT_BITS) as usize >= self.segments.len() {
            self.segments = self.graph.segments.read().clone();
        }
    }

    /// The segment of a slot, and the slot's index in it.
    #[inline]
    pub(super) fn locate(&self, slot: u32) -> (&Segment, usize) {
        let segment = &self.segments[(slot >> SEGMENT_BITS) as usize];
        (segment, slot as usize % SEGMENT)
    }

    /// The node of a slot.
    #[inline]
    pub(super) fn node(&self, slot: u32) -> &Node {
        let (segment, at) = self.locate(slot);
        &segment.nodes[at]
    }

    /// The vector of a slot. The slot must be in a list or in the table of ids, since such a slot
    /// has a vector.
    #[inline]
    pub(super) fn point(&self, slot: u32) -> &Point {
        self.node(slot)
            .point
            .get()
            .expect("a slot gets its vector before any list refers to it")
    }

    /// Copies the neighbours of a slot, and makes their slots readable.
    #[inline]
    pub(super) fn neighbours(&mut self, slot: u32, list: &mut Vec<u32>) {
        let (segment, at) = self.locate(slot);
        segment.read(at, list);
        if let Some(&last) = list.iter().max() {
            self.cover(last);
        }
    }
}
