//! Links between equal rows: each leads to the next one and the one before.
//!
//! The prune lets one of several equal rows stand for all ([`prune`](super::prune)). Where free slots are filled with the nearest that were left
//! out, equal rows lead to each other all the same. They do not where every list is full of rows that are equally far, such as rows with
//! a single element that is not 0: a search then comes to one of ten equal rows and to none of the other nine. The searches of the build
//! have the same trouble, so the pass here goes by the rows' bytes.
//!
//! ```text
//!   rows ──> hash and node, sorted ──> runs of one hash, told apart by bytes ──> groups of equal rows, each by number
//!
//!   a group:    3 ⇄ 8 ⇄ 21 ⇄ 40 ⇄ (3)        two links a row, whatever the size of the group
//! ```
//!
//! A list that is full gives up another equal row for such a link, or else the farthest row that many lists lead to. The pass comes after
//! nodes were linked that no list led to (`reach.rs`). So each equal row has a way to it from elsewhere, and a search that takes any of these ways finds
//! all of them. Rings alone do not help where all other rows are equally far: the prune has an order for ties, too ([`prune`](super::prune)). Lists of rows that equal no other stay as they are. Rows are equal here if their points in the build's space are: floats that were rounded to the same bytes count as equal, as
//! they do for the prune.

use super::Interrupted;
use super::adjacency::Slots;
use super::points::Points;
use crate::progress::Progress;
use crate::threads;
use std::hash::{DefaultHasher, Hasher};

/// Bytes for each row while groups are looked for and linked: an entry, and a count of links.
pub(super) const BYTES_A_ROW: u64 = size_of::<Entry>() as u64 + 1;

/// The upper half is the hash of a row, the lower half its node, so that sorting brings equal rows together, and by number.
type Entry = u64;

/// Rows that are hashed between two looks at whether the build is to stop.
const BATCH: usize = 1024;

/// Lists keep a row that no more lists than this lead to: searches would hardly come to it by fewer.
const FEW: u8 = 8;

/// Lists of fewer neighbours than this have no room for rings of equal rows: two of their links would lead nowhere else. With lists of 12, and rows of which many
/// are there often, a row that was inserted later was not found with a list of 50.
const LEAST_RING: usize = 24;

/// Links equal rows, and says whether any list was changed: then some node may have lost the last list that led to it. Lists have at most `degree` neighbours, the nearest first, before and after. Lists that are shorter than rings
/// are worth ([`LEAST_RING`]) stay as they are.
///
/// # Errors
/// [`Interrupted`] when `progress` says so.
pub(super) fn link(
    points: &Points<'_>,
    slots: &Slots,
    degree: usize,
    threads: usize,
    progress: &dyn Progress,
) -> Result<bool, Interrupted> {
    match degree < LEAST_RING {
        true => Ok(false),
        false => close_rings(points, slots, degree, threads, progress),
    }
}

/// As [`link`], whatever the length of lists.
fn close_rings(
    points: &Points<'_>,
    slots: &Slots,
    degree: usize,
    threads: usize,
    progress: &dyn Progress,
) -> Result<bool, Interrupted> {
    let mut entries = hashed(points, threads, progress)?;
    entries.sort_unstable();
    let mut rings = Rings {
        slots,
        degree,
        leading: Vec::new(),
        list: Vec::new(),
    };
    for run in entries.chunk_by_mut(|a, b| a >> 32 == b >> 32) {
        if run.len() == 1 {
            continue;
        }
        let row = |entry: &Entry| points.row(node_of(*entry));
        if run.iter().all(|entry| row(entry) == row(&run[0])) {
            rings.close(run);
            continue;
        }
        // Different rows have the same hash now and then.
        run.sort_unstable_by(|a, b| row(a).cmp(row(b)).then(a.cmp(b)));
        for group in run.chunk_by(|a, b| row(a) == row(b)) {
            rings.close(group);
        }
    }
    Ok(!rings.leading.is_empty())
}

/// The node of an entry.
fn node_of(entry: Entry) -> u32 {
    entry as u32
}

/// The entries of all rows, by number.
fn hashed(
    points: &Points<'_>,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<Entry>, Interrupted> {
    let mut entries = vec![0; points.rows()];
    let share = points.rows().div_ceil(threads.max(1)).max(1);
    let shares = entries.chunks_mut(share).enumerate();
    let done = threads::shared(shares, |(at, share_entries)| {
        for (batch, some) in share_entries.chunks_mut(BATCH).enumerate() {
            if progress.interrupted() {
                return Err(Interrupted);
            }
            let first = at * share + batch * BATCH;
            for (node, entry) in (first as u32..).zip(some) {
                *entry = hash(points.row(node)) << 32 | u64::from(node);
            }
        }
        Ok(())
    });
    done.into_iter().collect::<Result<(), Interrupted>>()?;
    Ok(entries)
}

/// A number that another row hardly has. What is built does not depend on it.
fn hash(row: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(row);
    hasher.finish()
}

/// Rings that are closed one after the other.
struct Rings<'a> {
    slots: &'a Slots,
    degree: usize,
    /// How many lists lead to each node, 255 at most. Empty until the first list is changed.
    leading: Vec<u8>,
    list: Vec<u32>,
}

impl Rings<'_> {
    /// Links the rows of a group, ascending by node, to a ring.
    fn close(&mut self, group: &[Entry]) {
        let count = group.len();
        if count < 2 {
            return;
        }
        for (at, &entry) in group.iter().enumerate() {
            let next = node_of(group[(at + 1) % count]);
            let before = node_of(group[(at + count - 1) % count]);
            // Of two rows one is both.
            let ring = [next, before];
            self.lead(node_of(entry), &ring[..(count - 1).min(2)], group);
        }
    }

    /// Has a node of the group lead to others of it.
    fn lead(&mut self, node: u32, ring: &[u32], group: &[Entry]) {
        self.list.clear();
        self.list.extend(self.slots.neighbours(node));
        if ring.iter().all(|to| self.list.contains(to)) {
            return;
        }
        self.count_leading();
        self.list.retain(|to| !ring.contains(to));
        while self.list.len() + ring.len() > self.degree {
            // The ring leads to the other equal rows, but nowhere else.
            let is_equal = |to: &u32| {
                let of_group = group.binary_search_by_key(to, |entry| node_of(*entry));
                of_group.is_ok()
            };
            let has_others = |to: &u32| self.leading[*to as usize] > FEW;
            let equal = self.list.iter().rposition(is_equal);
            let spare = equal.or_else(|| self.list.iter().rposition(has_others));
            let gone = self.list.remove(spare.unwrap_or(self.list.len() - 1));
            let left = &mut self.leading[gone as usize];
            // A count of 255 may stand for any that is more.
            *left = if *left == u8::MAX { *left } else { *left - 1 };
        }
        self.list.splice(..0, ring.iter().copied());
        let lock = self.slots.lock(node);
        self.slots.replace(node, &self.list, &lock);
    }

    /// Counts once how many lists lead to each node. What rings add is left out: they are ways between equal rows alone.
    fn count_leading(&mut self) {
        if !self.leading.is_empty() {
            return;
        }
        self.leading.resize(self.slots.nodes(), 0);
        for node in 0..self.slots.nodes() as u32 {
            for to in self.slots.neighbours(node) {
                let count = &mut self.leading[to as usize];
                *count = count.saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;
    use stratann_vector::Element;

    /// What becomes of lists of rows of one byte each.
    fn linked(rows: &[u8], degree: usize, lists: &[&[u32]]) -> Vec<Vec<u32>> {
        let points = Points::new(rows, Element::U8, 1);
        let slots = Slots::new(rows.len(), degree);
        for (node, list) in (0..).zip(lists) {
            slots.replace(node, list, &slots.lock(node));
        }
        for threads in [1, 3] {
            close_rings(&points, &slots, degree, threads, &Silent).unwrap();
        }
        let nodes = 0..rows.len() as u32;
        nodes.map(|node| slots.neighbours(node).collect()).collect()
    }

    #[test]
    fn equal_rows_become_a_ring_by_number() {
        let rows = [7, 1, 7, 2, 7, 1, 7, 3];
        let lists = linked(
            &rows,
            4,
            &[&[], &[3], &[4], &[7, 1], &[], &[], &[3, 7], &[]],
        );
        let expected: [&[u32]; 8] = [
            &[2, 6],
            &[5, 3],
            &[4, 0],
            &[7, 1],
            &[6, 2],
            &[1],
            &[0, 4, 3, 7],
            &[],
        ];
        assert_eq!(lists, expected);
    }

    #[test]
    fn a_full_list_gives_up_an_equal_row_or_else_the_farthest() {
        // Of six equal rows the first leads to three others and one that is far; the second to far ones only.
        let rows = [7, 7, 7, 7, 7, 7, 9, 10, 11, 12];
        let far = [6, 7, 8, 9];
        let full: &[&[u32]] = &[&[2, 3, 4, 9], &far, &far, &[2, 4, 6, 7], &far, &far];
        let lists = linked(&rows, 4, full);
        assert_eq!(lists[0], [1, 5, 2, 9]);
        assert_eq!(lists[1], [2, 0, 6, 7]);
        // It has both already.
        assert_eq!(lists[3], full[3]);
    }

    #[test]
    fn rows_that_differ_and_lists_that_are_short_stay_as_they_are() {
        let lists: &[&[u32]] = &[&[1, 2, 3], &[0], &[3], &[2, 1, 0]];
        assert_eq!(linked(&[1, 2, 3, 4], 4, lists), lists);
        let equal = [1; 4];
        let points = Points::new(&equal, Element::U8, 1);
        let slots = Slots::new(4, LEAST_RING);
        for (degree, changed) in [(LEAST_RING - 1, false), (LEAST_RING, true)] {
            let linked = link(&points, &slots, degree, 1, &Silent);
            assert_eq!(linked, Ok(changed), "{degree}");
        }
    }
}
