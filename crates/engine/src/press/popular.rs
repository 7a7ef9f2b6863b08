//! If a compute server lacks memory for all low codes, it has the codes of the most popular nodes
//! (DistVS §3.3, "Using low-memory compute servers"). The memory server estimates distances by the
//! other, *offloaded* codes (`missing.rs`).
//!
//! The popularity of a node is its in-degree. Half of the codes suffice for more than half of the
//! distances.
//!
//! ```text
//!   sent, for some nodes         a bit for each, from the lowest of the first byte on: whether its
//!                                code follows; then: the codes
//!   memory of a compute server   the bits, the number of set bits before each 512 nodes, the codes
//! ```

use super::packed::PackedLists;
use crate::Error;

const BLOCK: usize = 512;

pub(super) struct Popularity {
    /// For each node, the number of more popular nodes. No two nodes have the same number.
    ranks: Vec<u32>,
}

impl Popularity {
    pub(super) fn memory_bytes(&self) -> u64 {
        size_of_val(&self.ranks[..]) as u64
    }

    #[inline]
    pub(super) fn keeps(&self, node: u32, kept: u32) -> bool {
        self.ranks[node as usize] < kept
    }
}

/// Counts the popularity of nodes, some lists at a time, because a request may not wait for all
/// lists.
pub(super) struct Counting {
    degrees: Vec<u32>,
    next: u32,
    list: Vec<u32>,
}

impl Counting {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            degrees: vec![0; nodes],
            next: 0,
            list: Vec::new(),
        }
    }

    /// Reads at most `most` more lists. After an error, the next call begins with the same list.
    pub(super) fn step(
        &mut self,
        lists: &PackedLists,
        most: u32,
    ) -> Result<Option<Popularity>, Error> {
        let nodes = self.degrees.len() as u32;
        let end = self.next.saturating_add(most).min(nodes);
        while self.next < end {
            lists.decode(self.next, &mut self.list)?;
            for &neighbour in &self.list {
                if let Some(degree) = self.degrees.get_mut(neighbour as usize) {
                    *degree = degree.saturating_add(1);
                }
            }
            self.next += 1;
        }
        if self.next < nodes {
            return Ok(None);
        }
        let ranks = ranked(std::mem::take(&mut self.degrees));
        Ok(Some(Popularity { ranks }))
    }
}

fn ranked(mut degrees: Vec<u32>) -> Vec<u32> {
    let most = degrees.iter().max().map_or(0, |&most| most as usize);
    let mut before = vec![0u32; most + 1];
    for &degree in &degrees {
        before[degree as usize] += 1;
    }
    let mut higher = 0;
    for count in before.iter_mut().rev() {
        higher += std::mem::replace(count, higher);
    }
    for degree in &mut degrees {
        let rank = &mut before[*degree as usize];
        *degree = *rank;
        *rank += 1;
    }
    degrees
}

pub(super) struct Kept {
    bits: Vec<u64>,
    before: Vec<u32>,
    count: usize,
}

impl Kept {
    pub(super) fn bytes(nodes: usize) -> u64 {
        (nodes.div_ceil(64) * size_of::<u64>() + nodes.div_ceil(BLOCK) * size_of::<u32>()) as u64
    }

    /// Ignores bits after the last node. `None` if the number of bytes is wrong.
    pub(super) fn new(sent: &[u8], nodes: usize) -> Option<Self> {
        if sent.len() != nodes.div_ceil(8) {
            return None;
        }
        let mut bits = vec![0u64; nodes.div_ceil(64)];
        for node in (0..nodes).filter(|node| sent[node / 8] >> (node % 8) & 1 == 1) {
            bits[node / 64] |= 1 << (node % 64);
        }
        let (mut before, mut count) = (Vec::with_capacity(nodes.div_ceil(BLOCK)), 0);
        for block in bits.chunks(BLOCK / 64) {
            before.push(count as u32);
            count += block
                .iter()
                .map(|word| word.count_ones() as usize)
                .sum::<usize>();
        }
        if count == 0 {
            (bits, before) = (Vec::new(), Vec::new());
        }
        Some(Self {
            bits,
            before,
            count,
        })
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        (size_of_val(&self.bits[..]) + size_of_val(&self.before[..])) as u64
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The node whose code is at a position, or `None` after the last code.
    pub(super) fn node(&self, place: usize) -> Option<u32> {
        let block = (self
            .before
            .partition_point(|&before| before as usize <= place))
        .checked_sub(1)?;
        let mut left = place - self.before[block] as usize;
        let first = block * (BLOCK / 64);
        for (at, &word) in self.bits.iter().enumerate().skip(first) {
            let ones = word.count_ones() as usize;
            if left < ones {
                let mut word = word;
                (0..left).for_each(|_| word &= word - 1);
                return Some((64 * at) as u32 + word.trailing_zeros());
            }
            left -= ones;
        }
        None
    }

    /// The position of a node's code, or `None` if the code is offloaded.
    #[inline]
    pub(super) fn place(&self, node: u32) -> Option<u32> {
        let (word, bit) = (node as usize / 64, node % 64);
        let own = *self.bits.get(word)?;
        if own >> bit & 1 == 0 {
            return None;
        }
        let block = node as usize / BLOCK;
        let between = &self.bits[block * (BLOCK / 64)..word];
        let ones: u32 = between.iter().map(|word| word.count_ones()).sum();
        Some(self.before[block] + ones + (own & ((1 << bit) - 1)).count_ones())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_as_many_link_to_are_ranked_by_number() {
        assert_eq!(ranked(vec![3, 0, 7, 3, 7, 1]), [2, 5, 0, 3, 1, 4]);
        assert!(ranked(Vec::new()).is_empty());
    }

    #[test]
    fn codes_of_nodes_that_are_kept_stand_in_their_order() {
        for nodes in [1usize, 63, 64, 65, 511, 512, 513, 2000] {
            let is_kept = |node: usize| node.is_multiple_of(3) || node % 64 == 63;
            let mut sent = vec![0u8; nodes.div_ceil(8)];
            for node in (0..nodes).filter(|&node| is_kept(node)) {
                sent[node / 8] |= 1 << (node % 8);
            }
            let kept = Kept::new(&sent, nodes).unwrap();
            let mut place = 0;
            for node in 0..nodes {
                let expected = is_kept(node).then_some(place);
                assert_eq!(kept.place(node as u32), expected, "node {node} of {nodes}");
                if is_kept(node) {
                    assert_eq!(
                        kept.node(place as usize),
                        Some(node as u32),
                        "{place} of {nodes}"
                    );
                }
                place += u32::from(is_kept(node));
            }
            assert_eq!(kept.count(), place as usize);
            assert_eq!(kept.node(place as usize), None);
            assert_eq!(kept.place(nodes as u32 + 64), None);
            assert!(Kept::new(&sent[1..], nodes).is_none());
        }
    }
}
