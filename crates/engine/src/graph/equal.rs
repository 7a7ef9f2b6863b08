//! Links equal rows to each other: each row links to the next equal row and to the previous one.
//!
//! The prune and the searches of the build keep only one of several equal rows
//! ([`prune`](super::prune)). Without the links, a search may reach only one of ten equal rows.
//! Rows count as equal if the build has equal points for them.
//!
//! ```text
//!   rows ──> hash and node, sorted ──> runs of one hash, divided by bytes
//!        ──> groups of equal rows, each in the order of nodes
//!
//!   a group:    3 ⇄ 8 ⇄ 21 ⇄ 40 ⇄ (3)        two links a row, whatever the size of the group
//! ```
//!
//! In a full list, a link of the ring replaces a link to another equal row, or to the farthest row
//! to which many lists link. `reach.rs` ran before, so edges from other rows lead to each ring.

use super::Interrupted;
use super::adjacency::Slots;
use super::points::Points;
use crate::progress::Progress;
use crate::threads;
use std::hash::{DefaultHasher, Hasher};

/// The bytes for each row: an entry, and a count of links.
pub(super) const BYTES_A_ROW: u64 = size_of::<Entry>() as u64 + 1;

/// The upper half of an entry is the hash of a row, and the lower half is its node, so equal rows
/// sort together.
type Entry = u64;

const BATCH: usize = 1024;

/// A list first gives up links to rows to which more than this many lists link. Searches would
/// hardly reach rows with fewer links.
const FEW: u8 = 8;

/// The least degree with rings. In lists of 12, two links to equal rows are too many: a search with
/// a list size of 50 missed a row that was inserted later.
const LEAST_RING: usize = 24;

/// Returns whether any list was changed. A node may lose the last edge that leads to it. If
/// `degree` is below [`LEAST_RING`], nothing changes.
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
        run.sort_unstable_by(|a, b| row(a).cmp(row(b)).then(a.cmp(b)));
        for group in run.chunk_by(|a, b| row(a) == row(b)) {
            rings.close(group);
        }
    }
    Ok(!rings.leading.is_empty())
}

fn node_of(entry: Entry) -> u32 {
    entry as u32
}

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

fn hash(row: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(row);
    hasher.finish()
}

struct Rings<'a> {
    slots: &'a Slots,
    degree: usize,
    /// The number of lists that link to each node, at most 255. Empty until a list is changed.
    leading: Vec<u8>,
    list: Vec<u32>,
}

impl Rings<'_> {
    /// The rows of a group ascend by node.
    fn close(&mut self, group: &[Entry]) {
        let count = group.len();
        if count < 2 {
            return;
        }
        for (at, &entry) in group.iter().enumerate() {
            let next = node_of(group[(at + 1) % count]);
            let before = node_of(group[(at + count - 1) % count]);
            // In a group of two rows, the next row is also the previous one.
            let ring = [next, before];
            self.lead(node_of(entry), &ring[..(count - 1).min(2)], group);
        }
    }

    fn lead(&mut self, node: u32, ring: &[u32], group: &[Entry]) {
        self.list.clear();
        self.list.extend(self.slots.neighbours(node));
        if ring.iter().all(|to| self.list.contains(to)) {
            return;
        }
        self.count_leading();
        self.list.retain(|to| !ring.contains(to));
        while self.list.len() + ring.len() > self.degree {
            // A search reaches the other equal rows through the ring.
            let is_equal = |to: &u32| {
                let of_group = group.binary_search_by_key(to, |entry| node_of(*entry));
                of_group.is_ok()
            };
            let has_others = |to: &u32| self.leading[*to as usize] > FEW;
            let equal = self.list.iter().rposition(is_equal);
            let spare = equal.or_else(|| self.list.iter().rposition(has_others));
            let gone = self.list.remove(spare.unwrap_or(self.list.len() - 1));
            let left = &mut self.leading[gone as usize];
            // A count of 255 may mean a larger number.
            *left = if *left == u8::MAX { *left } else { *left - 1 };
        }
        self.list.splice(..0, ring.iter().copied());
        let lock = self.slots.lock(node);
        self.slots.replace(node, &self.list, &lock);
    }

    /// Links of rings do not count, because they connect only equal rows.
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

    /// The final lists, for rows of one byte each.
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
        // The first of six equal rows links to three others, and the second only to far rows.
        let rows = [7, 7, 7, 7, 7, 7, 9, 10, 11, 12];
        let far = [6, 7, 8, 9];
        let full: &[&[u32]] = &[&[2, 3, 4, 9], &far, &far, &[2, 4, 6, 7], &far, &far];
        let lists = linked(&rows, 4, full);
        assert_eq!(lists[0], [1, 5, 2, 9]);
        assert_eq!(lists[1], [2, 0, 6, 7]);
        // This list already has both links of the ring.
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
