//! The candidate list of a traversal: the L nearest nodes seen so far, in order of estimated distance.
//!
//! ```text
//!   keys    k0 < k1 < k2 < … < k(L-1)        key = (distance as ordered bits) << 32 | node
//!   states  E    E    R    U        U         Expanded, Reading, Unread
//!                          ^ cursor: nothing unread stands before it
//! ```
//!
//! Distance and node share one integer key, so that the order is total: the list's content does not depend on the
//! order in which nodes arrive, which is what makes best-first search give the same answers under any order of
//! completions.

/// What has become of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Its node has not been asked for.
    Unread,
    /// Its node's page is being read.
    Reading,
    /// Its neighbours have been scored.
    Expanded,
}

/// Candidates that there is room for from the start, at most.
const RESERVED: usize = 1 << 12;

/// A bounded sorted list of candidates. Reused from query to query; allocates only when the list size grows.
#[derive(Debug, Default)]
pub(crate) struct Frontier {
    keys: Vec<u64>,
    states: Vec<State>,
    capacity: usize,
    /// The capacity that was set.
    size: usize,
    cursor: usize,
    /// The first place at which a candidate came in since [`take_touched`](Frontier::take_touched).
    touched: usize,
}

/// Maps a distance to an integer of the same order (negative distances included).
fn ordered_bits(distance: f32) -> u32 {
    let bits = distance.to_bits();
    bits ^ (((bits as i32 >> 31) as u32) | 0x8000_0000)
}

/// The sort key of a candidate: its distance, then its node. NaN, which an estimate by code may come to where infinities
/// meet, is behind all numbers: by its bits it might stand before them.
pub(crate) fn key(distance: f32, node: u32) -> u64 {
    // The lesser of NaN and a number is the number.
    let distance = distance.min(f32::INFINITY);
    (u64::from(ordered_bits(distance)) << 32) | u64::from(node)
}

/// The distance of a key.
pub(crate) fn distance_of(key: u64) -> f32 {
    let bits = (key >> 32) as u32;
    f32::from_bits(if bits & 0x8000_0000 != 0 {
        bits & 0x7fff_ffff
    } else {
        !bits
    })
}

/// The node of a key.
pub(crate) fn node_of(key: u64) -> u32 {
    key as u32
}

impl Frontier {
    /// Empties the list and sets its size L.
    pub(crate) fn clear(&mut self, capacity: usize) {
        self.keys.clear();
        self.states.clear();
        // A list that is longer than this grows with what is met: nobody may have so many candidates.
        let room = capacity.min(RESERVED) + 1;
        self.keys.reserve(room);
        self.states.reserve(room);
        self.capacity = capacity;
        self.size = capacity;
        self.cursor = 0;
        self.touched = usize::MAX;
    }

    /// Makes room for one candidate more, up to twice the size that was set: one of those in the list turned out not to
    /// count.
    pub(crate) fn grow(&mut self) {
        self.capacity = (self.capacity + 1).min(self.size.saturating_mul(2));
    }

    /// The key that a new candidate has to beat to be kept.
    pub(crate) fn bound(&self) -> u64 {
        if self.keys.len() < self.capacity {
            u64::MAX
        } else {
            self.keys.last().copied().unwrap_or(u64::MAX)
        }
    }

    /// Adds a candidate unless it is in the list; the worst one leaves when the list is full.
    #[inline]
    pub(crate) fn insert(&mut self, key: u64) {
        if key < self.bound() {
            self.place(key);
        }
    }

    fn place(&mut self, key: u64) {
        let at = self.keys.partition_point(|&other| other < key);
        if self.keys.get(at) == Some(&key) {
            return;
        }
        if self.keys.len() == self.capacity {
            self.keys.pop();
            self.states.pop();
        }
        self.keys.insert(at, key);
        self.states.insert(at, State::Unread);
        self.cursor = self.cursor.min(at);
        self.touched = self.touched.min(at);
    }

    /// The first place at which a candidate came in since the last call; `usize::MAX` if none did.
    pub(crate) fn take_touched(&mut self) -> usize {
        std::mem::replace(&mut self.touched, usize::MAX)
    }

    /// Candidates in the list.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The candidate in a place, nearest first.
    pub(crate) fn get(&self, place: usize) -> Option<u64> {
        self.keys.get(place).copied()
    }

    /// The nearest unread candidate, which is marked as being read.
    pub(crate) fn take_unread(&mut self) -> Option<u64> {
        while let Some(&state) = self.states.get(self.cursor) {
            self.cursor += 1;
            if state == State::Unread {
                self.states[self.cursor - 1] = State::Reading;
                return Some(self.keys[self.cursor - 1]);
            }
        }
        None
    }

    /// The place of a candidate, unless it has left the list.
    pub(crate) fn position(&self, key: u64) -> Option<usize> {
        self.keys.binary_search(&key).ok()
    }

    /// Marks a candidate as expanded, and says whether it is still in the list.
    pub(crate) fn expanded(&mut self, key: u64) -> bool {
        match self.position(key) {
            Some(at) => {
                self.states[at] = State::Expanded;
                true
            }
            None => false,
        }
    }

    /// The candidates, nearest first.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        self.keys.iter().copied()
    }

    /// Whether the nearest `n` candidates have all been expanded.
    pub(crate) fn settled(&self, n: usize) -> bool {
        self.states.len() >= n
            && self.states[..n]
                .iter()
                .all(|&state| state == State::Expanded)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keeps_the_smallest_whatever_the_order(
            distances in prop::collection::vec(-1e3f32..1e3, 1..200), capacity in 1usize..50, seed in any::<u64>()
        ) {
            let mut keys: Vec<u64> = distances.iter().enumerate().map(|(i, &d)| key(d, i as u32)).collect();
            // A cheap shuffle: the list must not depend on the order of arrival.
            keys.sort_by_key(|k| (k ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let mut frontier = Frontier::default();
            frontier.clear(capacity);
            for &k in &keys {
                frontier.insert(k);
            }
            let mut expected = keys.clone();
            expected.sort_unstable();
            expected.truncate(capacity);
            prop_assert_eq!(&frontier.keys, &expected);
            let mut taken = Vec::new();
            while let Some(k) = frontier.take_unread() {
                taken.push(k);
            }
            prop_assert_eq!(&taken, &expected);
        }

        #[test]
        fn keys_order_as_distances_do(a in -1e30f32..1e30, b in -1e30f32..1e30) {
            prop_assert_eq!(a < b, ordered_bits(a) < ordered_bits(b));
            prop_assert_eq!(distance_of(key(a, 7)), a);
        }
    }

    #[test]
    fn an_insert_before_the_cursor_is_taken_next() {
        let mut frontier = Frontier::default();
        frontier.clear(4);
        frontier.insert(key(2.0, 2));
        frontier.insert(key(3.0, 3));
        assert_eq!(frontier.take_unread().map(node_of), Some(2));
        frontier.insert(key(1.0, 1));
        assert_eq!(frontier.take_unread().map(node_of), Some(1));
        assert_eq!(frontier.take_unread().map(node_of), Some(3));
        assert!(!frontier.settled(1));
        assert!(frontier.expanded(key(1.0, 1)));
        assert!(frontier.settled(1));
        assert!(!frontier.expanded(key(9.0, 9)));
    }
}
