//! Ascending sets of node numbers: the lowest number, and then the gaps, as LEB128 varints.
//!
//! Nodes are numbered in locality order, so most gaps are small, and a node needs one to two bytes.
//! Sorting loses nothing, because the order of a list follows from distance and node number.
//!
//! The f32 estimates of scored nodes are not rounded, so servers return exactly the results of a
//! single process.

use super::{MOST_NODES, WireError, u32_at};

/// Node numbers as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes<'a>(pub &'a [u8]);

/// Sorts nodes, drops duplicates, and appends the set.
pub fn append(nodes: &mut Vec<u32>, out: &mut Vec<u8>) {
    nodes.sort_unstable();
    nodes.dedup();
    append_gaps(nodes.iter().copied(), out);
}

fn append_gaps(nodes: impl Iterator<Item = u32>, out: &mut Vec<u8>) {
    let mut before = 0;
    for node in nodes {
        let mut gap = node - before;
        while gap >= 0x80 {
            out.push(gap as u8 | 0x80);
            gap >>= 7;
        }
        out.push(gap as u8);
        before = node;
    }
}

/// Node numbers as received, with an estimate of the distance of each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scored<'a> {
    /// The nodes.
    pub nodes: Nodes<'a>,
    /// An f32 for each node, in the order of the nodes.
    pub estimates: &'a [u8],
}

/// Sorts nodes, drops duplicates, and appends their count, the set, and the estimates.
pub fn append_scored(nodes: &mut Vec<(u32, f32)>, out: &mut Vec<u8>) {
    nodes.sort_unstable_by_key(|&(node, _)| node);
    nodes.dedup_by_key(|&mut (node, _)| node);
    out.extend((nodes.len() as u32).to_le_bytes());
    append_gaps(nodes.iter().map(|&(node, _)| node), out);
    let estimates = nodes.iter().map(|&(_, estimate)| estimate.to_le_bytes());
    estimates.for_each(|bytes| out.extend(bytes));
}

impl Scored<'_> {
    pub(super) fn append(&self, out: &mut Vec<u8>) {
        out.extend(((self.estimates.len() / 4) as u32).to_le_bytes());
        out.extend(self.nodes.0);
        out.extend(self.estimates);
    }

    /// Overwrites `nodes` with at most [`MOST_NODES`] ascending numbers below `end`, and any
    /// estimates.
    ///
    /// # Errors
    /// The bytes are no such set, or nodes and estimates differ in number.
    pub fn read(&self, end: u32, nodes: &mut Vec<(u32, f32)>) -> Result<(), WireError> {
        nodes.clear();
        let mut estimates = (self.estimates.chunks_exact(4)).map(|b| f32::from_bits(u32_at(b, 0)));
        let offset = self.nodes.0.len();
        let wrong = || WireError::Body {
            kind: "set of nodes",
            what: "the number of estimates differs from the number of nodes",
            offset,
            len: offset + self.estimates.len(),
        };
        self.nodes.each(end, |node| {
            nodes.push((node, estimates.next().ok_or_else(wrong)?));
            Ok(())
        })?;
        match estimates.next() {
            None => Ok(()),
            Some(_) => Err(wrong()),
        }
    }
}

impl Nodes<'_> {
    /// Overwrites `nodes` with at most [`MOST_NODES`] ascending numbers below `end`.
    ///
    /// # Errors
    /// The bytes are no such set.
    pub fn read(&self, end: u32, nodes: &mut Vec<u32>) -> Result<(), WireError> {
        nodes.clear();
        self.each(end, |node| {
            nodes.push(node);
            Ok(())
        })
    }

    fn each(
        &self,
        end: u32,
        mut each: impl FnMut(u32) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        let wrong = |what, offset| {
            Err(WireError::Body {
                kind: "set of nodes",
                what,
                offset,
                len: self.0.len(),
            })
        };
        let (mut at, mut count, mut last) = (0, 0, 0);
        while at < self.0.len() {
            let (began, mut gap, mut shift) = (at, 0u64, 0);
            loop {
                let Some(&byte) = self.0.get(at) else {
                    return wrong("the bytes end within a node", began);
                };
                at += 1;
                gap |= u64::from(byte & 0x7F) << shift;
                shift += 7;
                if byte < 0x80 {
                    break;
                }
                if shift > 28 {
                    return wrong("a node has more than five bytes", began);
                }
            }
            if count > 0 && gap == 0 {
                return wrong("a node occurs twice", began);
            }
            match u32::try_from(u64::from(last) + gap) {
                Ok(node) if node < end && count < MOST_NODES => {
                    each(node)?;
                    last = node;
                    count += 1;
                }
                Ok(node) if node < end => {
                    return wrong("the set has more nodes than allowed", began);
                }
                _ => return wrong("the node does not exist", began),
            }
        }
        Ok(())
    }
}
