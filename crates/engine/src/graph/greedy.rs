//! Greedy search of the growing graph, for the candidate neighbours of a new node.
//!
//! ```text
//!            entry                list (sorted, L long)          expanded (for the prune)
//!              o                  | 3 . | 5 x | 9 . | ...         entry, ..., every node whose
//!            / | \                    ^ nearest not yet           neighbours were looked at
//!           o  o  o  <- distances       expanded: next
//! ```

use super::adjacency::Slots;
use super::points::Points;

/// A node and its squared distance from the searched point, or from the node whose list is pruned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) distance: f32,
    pub(crate) id: u32,
}

impl Candidate {
    /// Orders candidates by distance, then by node number, so that a build with one thread is
    /// reproducible.
    #[inline]
    pub(super) fn order(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
        a.distance.total_cmp(&b.distance).then(a.id.cmp(&b.id))
    }
}

/// The top bit of a node number in the candidate list, set if the candidate was expanded.
const EXPANDED: u32 = 1 << 31;

const RESERVED: usize = 1 << 12;

pub(super) struct CandidateList {
    items: Vec<Candidate>,
    capacity: usize,
    /// All candidates before this position are expanded.
    cursor: usize,
}

impl CandidateList {
    fn new() -> CandidateList {
        CandidateList {
            items: Vec::new(),
            capacity: 0,
            cursor: 0,
        }
    }

    fn clear(&mut self, capacity: usize) {
        self.items.clear();
        // A list with a larger `capacity` grows while candidates are found.
        self.items.reserve(capacity.min(RESERVED) + 1);
        self.capacity = capacity;
        self.cursor = 0;
    }

    #[inline]
    fn insert(&mut self, distance: f32, id: u32) {
        if self.items.len() == self.capacity {
            if self
                .items
                .last()
                .is_none_or(|last| distance >= last.distance)
            {
                return;
            }
            self.items.pop();
        }
        let at = self.items.partition_point(|item| item.distance <= distance);
        self.items.insert(at, Candidate { distance, id });
        self.cursor = self.cursor.min(at);
    }

    #[inline]
    fn next(&mut self) -> Option<Candidate> {
        while let Some(item) = self.items.get_mut(self.cursor) {
            self.cursor += 1;
            if item.id & EXPANDED == 0 {
                let found = *item;
                item.id |= EXPANDED;
                return Some(found);
            }
        }
        None
    }

    #[inline]
    fn peek(&self) -> Option<u32> {
        self.items[self.cursor.min(self.items.len())..]
            .iter()
            .map(|item| item.id)
            .find(|id| id & EXPANDED == 0)
    }
}

/// A new search changes the stamp instead of clearing the table.
pub(super) struct Seen {
    stamps: Vec<u8>,
    stamp: u8,
}

impl Seen {
    fn new(nodes: usize) -> Seen {
        Seen {
            stamps: vec![0; nodes],
            stamp: 0,
        }
    }

    fn clear(&mut self) {
        if self.stamp == u8::MAX {
            self.stamps.fill(0);
            self.stamp = 0;
        }
        self.stamp += 1;
    }

    /// Returns `true` if the node had not been seen.
    #[inline]
    fn insert(&mut self, node: u32) -> bool {
        let stamp = &mut self.stamps[node as usize];
        let fresh = *stamp != self.stamp;
        *stamp = self.stamp;
        fresh
    }
}

pub(super) struct Search {
    list: CandidateList,
    seen: Seen,
    fresh: Vec<u32>,
    distances: Vec<f32>,
    /// The nodes that the last search expanded, in the order of expansion.
    pub(super) expanded: Vec<Candidate>,
}

impl Search {
    pub(super) fn new(nodes: usize) -> Search {
        Search {
            list: CandidateList::new(),
            seen: Seen::new(nodes),
            fresh: Vec::new(),
            distances: Vec::new(),
            expanded: Vec::new(),
        }
    }

    pub(super) fn bytes(nodes: usize) -> u64 {
        nodes as u64 + (64 << 10)
    }

    pub(super) fn run(
        &mut self,
        points: &Points<'_>,
        slots: &Slots,
        query: &[u8],
        entry: u32,
        length: usize,
    ) {
        self.list.clear(length);
        self.seen.clear();
        self.expanded.clear();
        self.seen.insert(entry);
        self.distances.resize(1, 0.0);
        points.distances(query, &[entry], &mut self.distances);
        self.list.insert(self.distances[0], entry);
        while let Some(next) = self.list.next() {
            self.expanded.push(next);
            // Whether a neighbour was seen is unpredictable, so the code avoids a branch.
            let mut count = 0;
            self.fresh.resize(slots.slots(), 0);
            let (fresh, stamps, stamp) = (
                &mut self.fresh[..],
                &mut self.seen.stamps[..],
                self.seen.stamp,
            );
            for neighbour in slots.neighbours(next.id) {
                fresh[count] = neighbour;
                let seen = &mut stamps[neighbour as usize];
                count += usize::from(*seen != stamp);
                *seen = stamp;
            }
            self.fresh.truncate(count);
            if let Some(following) = self.list.peek() {
                slots.touch(following);
            }
            self.distances.resize(self.fresh.len(), 0.0);
            points.distances(query, &self.fresh, &mut self.distances);
            for (&id, &distance) in self.fresh.iter().zip(&self.distances) {
                self.list.insert(distance, id);
            }
        }
    }

    /// The nearest nodes that the last search found, in order of distance.
    pub(super) fn nearest(&self) -> impl Iterator<Item = Candidate> {
        self.list.items.iter().map(|item| Candidate {
            distance: item.distance,
            id: item.id & !EXPANDED,
        })
    }
}
