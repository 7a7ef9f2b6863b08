//! One list of the two or more that a node of a build in parts has: those of its parts, and edges that hold the parts together.

use super::construct::words;

/// Edges that join the starts of the parts: each has so many others below it.
const BRANCHES: usize = 8;

/// The neighbours in a record of `lists-p`.
pub(super) fn list(record: &[u8]) -> Vec<u32> {
    let mut words = words(record);
    let degree = words.next().unwrap_or(0) as usize;
    words.take(degree).collect()
}

/// Edges that a node has whatever its lists say: from the entry to the first start, and from each start to those below
/// it in a tree.
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
    // One node can be the start of two parts.
    fixed.sort_unstable();
    fixed.dedup();
    fixed.retain(|&to| to != node);
    fixed
}

/// Appends two lists to `merged`, taking turns, without duplicates, until it has `degree` neighbours.
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
