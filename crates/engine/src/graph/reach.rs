//! Makes every node reachable from the entry node.
//!
//! A prune, or the cut of merged lists, can remove the last edge that leads to a node. Such a node
//! gets an edge from a reachable node near it, in a free slot or in place of an edge outside the
//! tree.
//!
//! ```text
//!   entry ━━> a ━━> b      ━ edges of the tree by which nodes are reached: never taken away
//!             ┃ ╲          ─ others: the last one of a full list may be replaced by an edge to u
//!             v  ─> c
//!             d      u (unreachable)
//! ```

use super::adjacency::Slots;
use std::convert::Infallible;

const NOBODY: u32 = u32::MAX;

/// The number of the most recently linked nodes that are tried as the start of the next edge.
const LAST: usize = 64;

/// Lists that can be read and replaced, in memory or in a file.
pub(super) trait Store {
    type Error;
    fn list(&mut self, node: u32, out: &mut Vec<u32>) -> Result<(), Self::Error>;
    fn replace(&mut self, node: u32, neighbours: &[u32]) -> Result<(), Self::Error>;
}

impl<S: Store> Store for &mut S {
    type Error = S::Error;

    fn list(&mut self, node: u32, out: &mut Vec<u32>) -> Result<(), S::Error> {
        (**self).list(node, out)
    }

    fn replace(&mut self, node: u32, neighbours: &[u32]) -> Result<(), S::Error> {
        (**self).replace(node, neighbours)
    }
}

impl Store for &Slots {
    type Error = Infallible;

    fn list(&mut self, node: u32, out: &mut Vec<u32>) -> Result<(), Infallible> {
        out.clear();
        out.extend(self.neighbours(node));
        Ok(())
    }

    fn replace(&mut self, node: u32, neighbours: &[u32]) -> Result<(), Infallible> {
        Slots::replace(self, node, neighbours, &self.lock(node));
        Ok(())
    }
}

/// Links unreachable nodes of `nodes`, in a graph of `all` nodes. Returns the number of added edges
/// minus the number of removed edges. After a node's own neighbours, nodes of `near` are tried.
pub(super) fn link_unreachable<S: Store>(
    store: S,
    (all, nodes): (usize, impl Iterator<Item = u32>),
    entry: u32,
    degree: usize,
    mut near: impl FnMut(u32) -> Vec<u32>,
) -> Result<u64, S::Error> {
    let parents = vec![NOBODY; all];
    let mut tree = Tree {
        store,
        parents,
        stack: Vec::new(),
        list: Vec::new(),
        degree,
        added: 0,
    };
    tree.reach(entry, entry)?;
    let mut linked: Vec<u32> = Vec::new();
    let mut own = Vec::new();
    for node in nodes {
        if tree.parents[node as usize] != NOBODY {
            continue;
        }
        // Often one of the node's own neighbours is reachable, so these are tried first.
        tree.store.list(node, &mut own)?;
        let mut done = tree.link_from_any(own.iter().copied(), node)?;
        done = done || tree.link_from_any(near(node).into_iter(), node)?;
        // Among thousands of equal rows, the node that was linked last can link to the next node.
        done = done || tree.link_from_any(linked.iter().rev().take(LAST).copied(), node)?;
        if done {
            linked.push(node);
        }
    }
    Ok(tree.added)
}

struct Tree<S> {
    store: S,
    /// The node from which each node was first reached. The entry node is its own parent.
    parents: Vec<u32>,
    stack: Vec<u32>,
    list: Vec<u32>,
    degree: usize,
    added: u64,
}

impl<S: Store> Tree<S> {
    /// Marks `node`, and all nodes that can be reached from it, as reached.
    fn reach(&mut self, node: u32, parent: u32) -> Result<(), S::Error> {
        self.parents[node as usize] = parent;
        self.stack.push(node);
        while let Some(from) = self.stack.pop() {
            self.store.list(from, &mut self.list)?;
            for &to in &self.list {
                if self.parents[to as usize] == NOBODY {
                    self.parents[to as usize] = from;
                    self.stack.push(to);
                }
            }
        }
        Ok(())
    }

    fn link_from_any(
        &mut self,
        from: impl Iterator<Item = u32>,
        node: u32,
    ) -> Result<bool, S::Error> {
        for from in from {
            if self.link(from, node)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn link(&mut self, from: u32, node: u32) -> Result<bool, S::Error> {
        if from == node || self.parents[from as usize] == NOBODY {
            return Ok(false);
        }
        self.store.list(from, &mut self.list)?;
        if self.list.len() < self.degree {
            self.list.push(node);
            self.added += 1;
        } else {
            let parents = &self.parents;
            let Some(spare) = self
                .list
                .iter()
                .rposition(|&to| parents[to as usize] != from)
            else {
                return Ok(false);
            };
            self.list[spare] = node;
        }
        self.store.replace(from, &self.list)?;
        self.reach(node, from)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_without_incoming_edges_are_linked_and_none_is_lost() {
        // No edge leads from nodes 0, 1 and 2, which are reachable, to the others.
        let slots = Slots::new(6, 2);
        for (node, list) in [[1, 2], [0, 2], [1, 0], [1, 2], [5, 5], [4, 4]]
            .iter()
            .enumerate()
        {
            slots.replace(node as u32, list, &slots.lock(node as u32));
        }
        let added = link_unreachable(&slots, (6, 0..6), 0, 2, |_| vec![3, 2, 1, 0]).unwrap();
        assert_eq!(added, 0);
        let mut reached = vec![0u32];
        for at in 0.. {
            let Some(&node) = reached.get(at) else { break };
            for to in slots.neighbours(node) {
                if !reached.contains(&to) {
                    reached.push(to);
                }
            }
        }
        assert_eq!(reached.len(), 6);
    }
}
