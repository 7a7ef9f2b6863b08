//! Makes every node reachable from the entry.
//!
//! Pruning can take away a node's last incoming edge, above all among equal rows. Such a node gets an edge from a node
//! near it that can be reached: in a free slot, or in place of an edge that is not needed to reach anything.
//!
//! ```text
//!   entry ━━> a ━━> b      ━ edges of the tree by which nodes are reached: never taken away
//!             ┃ ╲          ─ others: the last one of a full list may be replaced by an edge to u
//!             v  ─> c
//!             d      u (unreachable)
//! ```

use super::adjacency::Slots;
use super::greedy::Search;
use super::points::Points;

/// Stands for "not reached" in the table of parents.
const NOBODY: u32 = u32::MAX;

/// Links every node that cannot be reached from `entry`; returns how many edges that took. Not for use beside other
/// writers. Lists keep at most `degree` neighbours.
pub(super) fn link_unreachable(points: &Points<'_>, slots: &Slots, entry: u32, length: usize, degree: usize) -> usize {
    let mut tree = Tree { slots, parents: vec![NOBODY; points.rows()], stack: Vec::new(), degree };
    tree.reach(entry, entry);
    let mut search: Option<Search> = None;
    let mut linked: Vec<u32> = Vec::new();
    for node in 0..points.rows() as u32 {
        if tree.parents[node as usize] != NOBODY {
            continue;
        }
        // The node's own neighbours are near it, and often one of them can be reached.
        let near: Vec<u32> = slots.neighbours(node).collect();
        let mut done = near.iter().any(|&from| tree.link(from, node));
        if !done {
            let search = search.get_or_insert_with(|| Search::new(points.rows()));
            search.run(points, slots, points.row(node), entry, length);
            done = search.nearest().chain(search.expanded.iter().copied()).any(|from| tree.link(from.id, node));
        }
        // Only reached among thousands of equal rows: the node linked last can lead on to the next.
        if done || linked.iter().rev().any(|&from| tree.link(from, node)) {
            linked.push(node);
        }
    }
    linked.len()
}

struct Tree<'a> {
    slots: &'a Slots,
    /// From which node each was reached first; the entry is its own parent.
    parents: Vec<u32>,
    stack: Vec<u32>,
    degree: usize,
}

impl Tree<'_> {
    /// Notes that `node` is reached from `parent`, and whatever follows from it.
    fn reach(&mut self, node: u32, parent: u32) {
        self.parents[node as usize] = parent;
        self.stack.push(node);
        while let Some(from) = self.stack.pop() {
            for to in self.slots.neighbours(from) {
                if self.parents[to as usize] == NOBODY {
                    self.parents[to as usize] = from;
                    self.stack.push(to);
                }
            }
        }
    }

    /// Adds the edge `from -> node` if `from` is reachable and has room for it.
    fn link(&mut self, from: u32, node: u32) -> bool {
        if from == node || self.parents[from as usize] == NOBODY {
            return false;
        }
        let mut list: Vec<u32> = self.slots.neighbours(from).collect();
        if list.len() < self.degree {
            list.push(node);
        } else {
            let spare = list.iter().rposition(|&to| self.parents[to as usize] != from);
            let Some(spare) = spare else { return false };
            list[spare] = node;
        }
        self.slots.replace(from, &list, &self.slots.lock(from));
        self.reach(node, from);
        true
    }
}
