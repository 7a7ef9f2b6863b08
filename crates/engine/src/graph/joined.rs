//! Merges the two lists of a node after a build in parts, and connects the parts.

use super::construct::words;

/// The number of children of each entry node in the tree of parts' entry nodes.
const BRANCHES: usize = 8;

pub(super) fn list(record: &[u8]) -> Vec<u32> {
    let mut words = words(record);
    let degree = words.next().unwrap_or(0) as usize;
    words.take(degree).collect()
}

/// The fixed edges of a node: from the entry to the first part's entry node, and from a part's
/// entry node to its children in the tree.
pub(super) fn fixed_edges(node: u32, entry: u32, starts: &[u32]) -> Vec<u32> {
    let mut fixed = Vec::new();
    if node == entry {
        fixed.extend(starts.first());
    }
    for (at, _) in starts
        .iter()
        .enumerate()
        .filter(|(_, start)| **start == node)
    {
        fixed.extend(starts.iter().skip(at * BRANCHES + 1).take(BRANCHES));
    }
    // A node may be the entry node of two parts.
    fixed.sort_unstable();
    fixed.dedup();
    fixed.retain(|&to| to != node);
    fixed
}

/// Appends the neighbours of two lists alternately and without duplicates, up to `degree`.
pub(super) fn interleave(a: &[u32], b: &[u32], degree: usize, merged: &mut Vec<u32>) {
    for place in 0..a.len().max(b.len()) {
        for list in [a, b] {
            if let Some(&neighbour) = list.get(place)
                && merged.len() < degree
                && !merged.contains(&neighbour)
            {
                merged.push(neighbour);
            }
        }
    }
    merged.truncate(degree);
}
