//! The frontier: the candidate list of a traversal, with the L nearest nodes seen so far, in order
//! of estimated distance.
//!
//! ```text
//!   keys    k0 < k1 < k2 < … < k(L-1) │ < …      key = (distance as ordered bits) << 32 | node
//!   states  E    E    R    U        U │ U        Expanded, Reading, Unread
//!                          ^ cursor   │ ^ end: what follows is reserve
//! ```
//!
//! Distance and node share one integer key, so the order is total. So the list does not depend on
//! the order in which nodes arrive, and best-first search gives the same results under any order of
//! completions.
//!
//! **Nodes that may not be results**, such as deleted nodes, are traversed, but do not count among
//! the L candidates (the dynamic candidate pool of OdinANN §3.4.1). A search may find such a node
//! only when it reads the node's record. Then the search *refuses* the candidate. So the list keeps
//! a reserve of candidates after the L. The first candidate of the reserve then counts instead of
//! the refused candidate.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Unread,
    Reading,
    Expanded,
}

/// The largest number of candidates for which a new list reserves memory.
const RESERVED: usize = 1 << 12;

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    known: u8,
}

const REFUSED: u8 = 1;
const EXACT: u8 = 2;
const NOTED: u8 = 4;

impl Entry {
    fn is(self, known: u8) -> bool {
        self.known & known != 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyIs {
    Estimated,
    Exact,
}

/// A search reads no candidate beyond these distances: `estimated` limits estimates by codes, and
/// `exact` limits exact distances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) estimated: f32,
    pub(crate) exact: f32,
}

impl Bounds {
    fn admit(&self, key: u64, entry: Entry) -> bool {
        let bound = if entry.is(EXACT) {
            self.exact
        } else {
            self.estimated
        };
        // If the bound is NaN, all candidates are within the bound.
        let beyond = distance_of(key) > bound;
        !beyond
    }
}

/// A bounded sorted list of candidates, which is used again for each query.
#[derive(Debug, Default)]
pub(crate) struct Frontier {
    keys: Vec<u64>,
    entries: Vec<Entry>,
    /// L, the number of candidates that count, without refused ones.
    size: usize,
    /// The number of candidates before `end` that are not refused. It is at most `size`.
    live: usize,
    /// The start of the reserve. Candidates before it count.
    end: usize,
    /// The largest number of candidates in the list that are not refused.
    room: usize,
    refused: usize,
    most: usize,
    cursor: usize,
    touched: usize,
}

/// Maps a distance to an integer that sorts like the distance, even a negative one.
fn ordered_bits(distance: f32) -> u32 {
    let bits = distance.to_bits();
    bits ^ (((bits as i32 >> 31) as u32) | 0x8000_0000)
}

/// The sort key of a candidate: its distance, then its node. NaN sorts like infinity. An estimate
/// by code can be NaN if infinities meet.
pub(crate) fn key(distance: f32, node: u32) -> u64 {
    // `min` of NaN and a number returns the number.
    let distance = distance.min(f32::INFINITY);
    (u64::from(ordered_bits(distance)) << 32) | u64::from(node)
}

pub(crate) fn distance_of(key: u64) -> f32 {
    let bits = (key >> 32) as u32;
    f32::from_bits(if bits & 0x8000_0000 != 0 {
        bits & 0x7fff_ffff
    } else {
        !bits
    })
}

pub(crate) fn node_of(key: u64) -> u32 {
    key as u32
}

impl Frontier {
    /// Sets L to `size`. If candidates may be refused, the list keeps up to `size * shares`
    /// candidates that are not refused, and at most `most` candidates in all.
    pub(crate) fn clear(&mut self, size: usize, shares: usize, most: usize) {
        self.keys.clear();
        self.entries.clear();
        self.size = size;
        self.room = size.saturating_mul(shares);
        self.most = most.max(self.room);
        // A long list allocates memory only when candidates need it.
        let reserved = self.room.min(RESERVED) + 1;
        self.keys.reserve(reserved);
        self.entries.reserve(reserved);
        (self.live, self.end, self.refused) = (0, 0, 0);
        self.cursor = 0;
        self.touched = usize::MAX;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.keys.capacity() * size_of::<u64>() + self.entries.capacity() * size_of::<Entry>()
    }

    pub(crate) fn bound(&self) -> u64 {
        match self.end.checked_sub(1) {
            Some(last) if self.live == self.size || self.end == self.most => self.keys[last],
            _ => u64::MAX,
        }
    }

    fn is_full(&self) -> bool {
        self.keys.len() - self.refused >= self.room || self.keys.len() >= self.most
    }

    /// The bound below which the key of a new candidate must be to enter the list.
    fn last(&self) -> u64 {
        match self.keys.last() {
            Some(&last) if self.is_full() => last,
            _ => u64::MAX,
        }
    }

    /// Adds a candidate unless it is in the list. A full list drops its worst candidate.
    #[inline]
    pub(crate) fn insert(&mut self, key: u64) {
        if key < self.last() {
            self.place(key, 0);
        }
    }

    /// `refused` says whether the candidate's node must not be a result. The function is called
    /// only if the list would keep the candidate.
    #[inline]
    pub(crate) fn insert_unless(&mut self, key: u64, refused: impl FnOnce(u32) -> bool) {
        if key < self.last() {
            self.place(key, u8::from(refused(node_of(key))) * REFUSED);
        }
    }

    /// If `noted`, the search has already noted the exact distance of the key.
    pub(crate) fn insert_exact_unless(
        &mut self,
        key: u64,
        noted: bool,
        refused: impl FnOnce(u32) -> bool,
    ) {
        if key < self.last() {
            let noted = u8::from(noted) * NOTED;
            let refused = u8::from(refused(node_of(key))) * REFUSED;
            self.place(key, EXACT | noted | refused);
        }
    }

    fn place(&mut self, key: u64, known: u8) {
        let at = self.keys.partition_point(|&other| other < key);
        if self.keys.get(at) == Some(&key) {
            return;
        }
        let (state, refused) = (State::Unread, known & REFUSED != 0);
        self.keys.insert(at, key);
        self.entries.insert(at, Entry { state, known });
        self.refused += usize::from(refused);
        if at < self.end {
            self.end += 1;
            self.live += usize::from(!refused);
        }
        self.settle_end();
        while self.keys.len() > self.most || self.keys.len() - self.refused > self.room {
            self.drop_last();
        }
        self.cursor = self.cursor.min(at);
        self.touched = self.touched.min(at);
    }

    fn settle_end(&mut self) {
        while self.live > self.size {
            self.end -= 1;
            self.live -= usize::from(!self.entries[self.end].is(REFUSED));
        }
        while self.live == self.size && self.end > 0 && self.entries[self.end - 1].is(REFUSED) {
            self.end -= 1;
        }
        while self.live < self.size && self.end < self.keys.len() {
            self.live += usize::from(!self.entries[self.end].is(REFUSED));
            self.end += 1;
        }
    }

    fn drop_last(&mut self) {
        self.keys.pop();
        let Some(last) = self.entries.pop() else {
            return;
        };
        self.refused -= usize::from(last.is(REFUSED));
        if self.end > self.keys.len() {
            self.end = self.keys.len();
            self.live -= usize::from(!last.is(REFUSED));
        }
        self.cursor = self.cursor.min(self.keys.len());
    }

    pub(crate) fn refuse(&mut self, key: u64) {
        let Ok(at) = self.keys.binary_search(&key) else {
            return;
        };
        if self.entries[at].is(REFUSED) {
            return;
        }
        self.entries[at].known |= REFUSED;
        self.refused += 1;
        if at < self.end {
            self.live -= 1;
            self.settle_end();
        }
    }

    pub(crate) fn is_refused(&self, place: usize) -> bool {
        let entry = self.entries.get(place);
        entry.is_some_and(|entry| entry.is(REFUSED))
    }

    /// The first position of an insertion since the last call; `usize::MAX` if there was none.
    pub(crate) fn take_touched(&mut self) -> usize {
        std::mem::replace(&mut self.touched, usize::MAX)
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.live < self.size && self.keys.len() >= self.most
    }

    pub(crate) fn len(&self) -> usize {
        self.end
    }

    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// The position after the next `count` candidates from `place` on. Refused candidates do not
    /// count.
    #[inline]
    pub(crate) fn behind(&self, place: usize, count: usize) -> usize {
        if self.refused == 0 || count == 0 {
            return place.saturating_add(count).min(self.end);
        }
        let entries = self.entries.get(place..self.end).unwrap_or_default();
        let live = entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| !entry.is(REFUSED));
        match live.map(|(at, _)| at).nth(count - 1) {
            Some(last) => place + last + 1,
            None => self.end,
        }
    }

    pub(crate) fn get(&self, place: usize) -> Option<u64> {
        self.keys.get(place).copied()
    }

    pub(crate) fn take_unread(&mut self) -> Option<u64> {
        while self.cursor < self.end {
            self.cursor += 1;
            let entry = &mut self.entries[self.cursor - 1];
            if entry.state == State::Unread {
                entry.state = State::Reading;
                return Some(self.keys[self.cursor - 1]);
            }
        }
        None
    }

    /// Takes the nearest unread candidate, up to the `depth`-th candidate that is not refused. A
    /// refused candidate is taken only if its position is below a limit: the number of candidates
    /// in this range that are not refused, plus the share `through` of the refused candidates, and
    /// at least `depth`. Refused candidates beyond the limit are taken later only if a nearer
    /// candidate is inserted.
    pub(crate) fn take_unread_among(&mut self, depth: usize, through: f64) -> Option<u64> {
        let until = match depth < self.size {
            true => self.behind(0, depth),
            false => self.end,
        };
        let live = depth.min(self.live);
        let refused = until.saturating_sub(live);
        let through = (live + (refused as f64 * through).ceil() as usize).max(depth);
        while self.cursor < until {
            let (place, entry) = (self.cursor, &mut self.entries[self.cursor]);
            self.cursor += 1;
            if entry.state == State::Unread && (place < through || !entry.is(REFUSED)) {
                entry.state = State::Reading;
                return Some(self.keys[place]);
            }
        }
        None
    }

    /// Takes only candidates within `bounds`. A later call with wider bounds may take the others.
    pub(crate) fn take_unread_within(&mut self, bounds: &Bounds) -> Option<u64> {
        let farthest = bounds.estimated.max(bounds.exact);
        // The cursor may not pass an unread candidate.
        while self.cursor < self.end && self.entries[self.cursor].state != State::Unread {
            self.cursor += 1;
        }
        for place in self.cursor..self.end {
            let (key, entry) = (self.keys[place], self.entries[place]);
            if distance_of(key) > farthest {
                return None;
            }
            if entry.state == State::Unread && bounds.admit(key, entry) {
                self.entries[place].state = State::Reading;
                return Some(key);
            }
        }
        None
    }

    /// Notes that the search has used the exact distance of a candidate. Returns the kind of
    /// distance in the key, or `None` if the exact distance was noted before.
    pub(crate) fn note(&mut self, key: u64) -> Option<KeyIs> {
        let at = self.position(key)?;
        let entry = &mut self.entries[at];
        if entry.is(NOTED) {
            return None;
        }
        entry.known |= NOTED;
        Some(match entry.is(EXACT) {
            true => KeyIs::Exact,
            false => KeyIs::Estimated,
        })
    }

    pub(crate) fn unread(&self) -> impl Iterator<Item = u64> + '_ {
        (self.cursor..self.end)
            .filter(|&at| self.entries[at].state == State::Unread)
            .map(|at| self.keys[at])
    }

    pub(crate) fn has_unread(&self) -> bool {
        let rest = self.entries.get(self.cursor..self.end);
        rest.is_some_and(|rest| rest.iter().any(|entry| entry.state == State::Unread))
    }

    pub(crate) fn position(&self, key: u64) -> Option<usize> {
        self.keys.binary_search(&key).ok()
    }

    pub(crate) fn expanded(&mut self, key: u64) -> bool {
        match self.position(key) {
            Some(at) => {
                self.entries[at].state = State::Expanded;
                true
            }
            None => false,
        }
    }

    pub(crate) fn put_back(&mut self, key: u64) {
        if let Some(at) = self.position(key) {
            self.entries[at].state = State::Unread;
            self.cursor = self.cursor.min(at);
        }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        self.keys[..self.end].iter().copied()
    }

    pub(crate) fn settled(&self, n: usize) -> bool {
        self.end >= n
            && self.entries[..n]
                .iter()
                .all(|entry| entry.state == State::Expanded)
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
            frontier.clear(capacity, 1, capacity);
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

        // The final list has the nearest live candidates, and all deleted candidates before the
        // last live candidate.
        #[test]
        fn the_deleted_take_no_place(
            distances in prop::collection::vec((-1e3f32..1e3, any::<bool>(), any::<bool>()), 1..200),
            size in 1usize..30,
        ) {
            let mut frontier = Frontier::default();
            frontier.clear(size, 200, 1_000);
            let (mut keys, mut live) = (Vec::new(), Vec::new());
            for (i, &(distance, refused, known)) in distances.iter().enumerate() {
                let key = key(distance, i as u32);
                frontier.insert_unless(key, |_| refused && known);
                keys.push((key, refused));
                live.extend((!refused).then_some(key));
            }
            keys.sort_unstable();
            live.sort_unstable();
            let mut taken = Vec::new();
            while let Some(key) = frontier.take_unread() {
                taken.push(key);
                if keys.contains(&(key, true)) {
                    frontier.refuse(key);
                    frontier.refuse(key);
                }
                frontier.expanded(key);
            }
            let last = live.get(size - 1).copied().unwrap_or(u64::MAX);
            let expected: Vec<u64> = keys.iter().map(|k| k.0).filter(|&k| k <= last).collect();
            prop_assert_eq!(&taken, &expected);
            prop_assert!(!frontier.has_unread());
            let counted = (0..frontier.len()).filter(|&place| !frontier.is_refused(place)).count();
            prop_assert_eq!(counted, size.min(live.len()));
        }

        #[test]
        fn the_list_stays_within_its_room(
            distances in prop::collection::vec((-1e3f32..1e3, any::<bool>()), 1..200),
            size in 1usize..20, shares in 1usize..4, most in 1usize..50,
        ) {
            let mut frontier = Frontier::default();
            frontier.clear(size, shares, most);
            for (i, &(distance, refused)) in distances.iter().enumerate() {
                let key = key(distance, i as u32);
                frontier.insert(key);
                if refused {
                    frontier.refuse(key);
                }
                prop_assert!(frontier.keys.len() <= most.max(size * shares));
                prop_assert!(frontier.keys.len() - frontier.refused <= size * shares);
                prop_assert!(frontier.live <= size && frontier.end <= frontier.keys.len());
                let live = (0..frontier.end).filter(|&place| !frontier.is_refused(place)).count();
                prop_assert_eq!(live, frontier.live);
                let refused = frontier.entries.iter().filter(|entry| entry.is(REFUSED)).count();
                prop_assert_eq!(refused, frontier.refused);
            }
        }

        #[test]
        fn keys_order_as_distances_do(a in -1e30f32..1e30, b in -1e30f32..1e30) {
            prop_assert_eq!(a < b, ordered_bits(a) < ordered_bits(b));
            prop_assert_eq!(distance_of(key(a, 7)), a);
        }
    }

    #[test]
    fn estimates_and_exact_distances_have_bounds_of_their_own() {
        let mut frontier = Frontier::default();
        frontier.clear(8, 1, 8);
        frontier.insert(key(1.0, 1));
        frontier.insert(key(3.0, 2));
        frontier.insert_exact_unless(key(4.0, 3), false, |_| false);
        frontier.insert_exact_unless(key(6.0, 4), true, |_| false);
        frontier.insert(key(f32::NAN, 5));
        let mut within = |estimated, exact| {
            let taken = frontier.take_unread_within(&Bounds { estimated, exact });
            taken.map(node_of)
        };
        assert_eq!(within(0.5, 0.5), None);
        assert_eq!(within(2.0, 5.0), Some(1));
        assert_eq!(within(2.0, 5.0), Some(3));
        assert_eq!(within(2.0, 5.0), None);
        assert_eq!(within(3.0, 5.0), Some(2));
        assert_eq!(within(9.0, 6.0), Some(4));
        assert_eq!(within(9.0, 9.0), None);
        assert!(frontier.has_unread());
        assert_eq!(frontier.take_unread().map(node_of), Some(5));
        assert_eq!(frontier.note(key(1.0, 1)), Some(KeyIs::Estimated));
        assert_eq!(frontier.note(key(1.0, 1)), None);
        assert_eq!(frontier.note(key(4.0, 3)), Some(KeyIs::Exact));
        assert_eq!(frontier.note(key(6.0, 4)), None);
        assert_eq!(frontier.note(key(7.0, 7)), None);
    }

    #[test]
    fn of_candidates_that_are_no_answers_only_the_nearest_are_taken() {
        let filled = |count: u32| {
            let mut frontier = Frontier::default();
            frontier.clear(8, 1, 64);
            for node in 0..count {
                let distance = node as f32;
                frontier.insert_unless(key(distance, node), |node| !node.is_multiple_of(4));
            }
            frontier
        };
        let taken = |mut frontier: Frontier, depth, through| {
            let next = || frontier.take_unread_among(depth, through).map(node_of);
            std::iter::from_fn(next).collect::<Vec<u32>>()
        };
        // The fifth candidate that counts is at position 16. Of the 17 candidates up to it, 12 are
        // refused.
        assert_eq!(taken(filled(64), 5, 1.0), (0..=16).collect::<Vec<_>>());
        let half = (0..=10).chain([12, 16]).collect::<Vec<_>>();
        assert_eq!(taken(filled(64), 5, 0.5), half);
        assert_eq!(taken(filled(64), 5, 0.0), [0, 1, 2, 3, 4, 8, 12, 16]);
        // Only 5 of the 19 candidates count. All candidates at the first 5 + 7 positions are taken.
        let few = (0..=12).chain([16]).collect::<Vec<_>>();
        assert_eq!(taken(filled(19), 8, 0.5), few);
        let mut frontier = filled(64);
        while frontier.take_unread_among(5, 0.5).is_some() {}
        frontier.insert_unless(key(0.5, 99), |_| true);
        assert_eq!(frontier.take_unread_among(5, 0.5).map(node_of), Some(99));
    }

    #[test]
    fn an_insert_before_the_cursor_is_taken_next() {
        let mut frontier = Frontier::default();
        frontier.clear(4, 1, 4);
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
