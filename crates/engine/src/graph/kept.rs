//! Saves a partial graph in savepoints ([`savepoint`](crate::savepoint)), and restores it after the
//! build was killed.
//!
//! | savepoint | content, u32 each |
//! |---|---|
//! | order | the row of each node |
//! | lists | pass (0, 1; 2: done), nodes done, nodes; for each node: degree, neighbours |
//! | plan | number of parts, number of rows in the sample |
//!
//! Lists are saved between two batches of a pass, when no thread works on them. The later work
//! depends only on the lists, the number of nodes done, and the order. Under a memory cap, each
//! part has its own lists, and the plan is saved, because the plan depends on free memory.

use super::adjacency::Slots;
use crate::progress::Progress;
use crate::savepoint::{Content, Hash, Savepoints, Unfit, What};

const DONE: u32 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) pass: u32,
    pub(super) nodes: usize,
}

impl Reached {
    pub(super) const END: Reached = Reached {
        pass: DONE,
        nodes: 0,
    };

    pub(super) fn within(self, pass: u32) -> Option<usize> {
        match self.pass.cmp(&pass) {
            std::cmp::Ordering::Less => Some(0),
            std::cmp::Ordering::Equal => Some(self.nodes),
            std::cmp::Ordering::Greater => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct KeptLists<'a> {
    pub(super) savepoints: &'a Savepoints<'a>,
    /// The hash of the inputs on which node numbers and lists depend.
    pub(super) input: Hash,
    pub(super) degree: usize,
    /// The number of the part, from 1. It is 0 if there are no parts.
    pub(super) part: u32,
}

impl KeptLists<'_> {
    pub(super) fn are_due(&self) -> bool {
        self.savepoints.is_due()
    }

    /// During the call, no other thread may write to the lists.
    pub(super) fn keep(&self, slots: &Slots, reached: Reached, progress: &dyn Progress) {
        let nodes = slots.nodes() as u32;
        let degrees = (0..nodes).map(|node| 1 + slots.degree(node) as u64);
        let bytes = 4 * (3 + degrees.sum::<u64>());
        let place = (What::Lists, self.part);
        self.savepoints
            .keep(place, &self.input, bytes, progress, |sink| {
                sink.words([reached.pass, reached.nodes as u32, nodes])?;
                let mut list: Vec<u8> = Vec::new();
                for node in 0..nodes {
                    list.clear();
                    list.extend((slots.degree(node) as u32).to_le_bytes());
                    list.extend(slots.neighbours(node).flat_map(u32::to_le_bytes));
                    sink.bytes(&list)?;
                }
                Ok(())
            });
    }

    /// Fills the lists, if there is a usable savepoint, and returns how far the saved build had
    /// come.
    pub(super) fn take_up(&self, slots: &Slots) -> Reached {
        let place = (What::Lists, self.part);
        let read = |content: &mut Content| fill(slots, self.degree, content);
        self.savepoints
            .read(place, &self.input, read)
            .unwrap_or_else(|| {
                for node in 0..slots.nodes() as u32 {
                    slots.replace(node, &[], &slots.lock(node));
                }
                Reached::default()
            })
    }
}

/// Finished lists have at most `when_done` neighbours. After an error, some lists may be filled.
fn fill(slots: &Slots, when_done: usize, content: &mut Content) -> Result<Reached, Unfit> {
    let (pass, done, nodes) = (content.word()?, content.word()?, content.word()?);
    if nodes as usize != slots.nodes() {
        return Err(content.wrong(format_args!(
            "lists of {nodes} nodes; the build has {}",
            slots.nodes()
        )));
    }
    let possible = match pass {
        0 | 1 => done <= nodes,
        _ => pass == DONE && done == 0,
    };
    if !possible {
        return Err(content.wrong(format_args!("{done} of {nodes} nodes done in pass {pass}")));
    }
    // Finished lists are written to pages unchanged.
    let most = if pass == DONE {
        when_done
    } else {
        slots.slots()
    };
    let mut sorted = Vec::new();
    let (mut bytes, mut list) = (
        vec![0; 4 * slots.slots()],
        Vec::with_capacity(slots.slots()),
    );
    for node in 0..nodes {
        let degree = content.word()? as usize;
        let room = bytes.get_mut(..degree.saturating_mul(4));
        let Some(bytes) = room.filter(|_| degree <= most) else {
            return Err(content.wrong(format_args!(
                "node {node} has {degree} neighbours; at most {most} are possible"
            )));
        };
        content.bytes(bytes)?;
        list.clear();
        list.extend(super::construct::words(bytes));
        if let Some(other) = list.iter().find(|&&other| other >= nodes) {
            return Err(content.wrong(format_args!(
                "node {node} has the neighbour {other}; the build has only {nodes} nodes"
            )));
        }
        if pass == DONE {
            sorted.clear();
            sorted.extend_from_slice(&list);
            sorted.push(node);
            sorted.sort_unstable();
            if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(content.wrong(format_args!(
                    "node {node} is its own neighbour, or has node {} twice",
                    pair[0]
                )));
            }
        }
        slots.replace(node, &list, &slots.lock(node));
    }
    Ok(Reached {
        pass,
        nodes: done as usize,
    })
}

pub(super) fn order(savepoints: &Savepoints<'_>, input: &Hash, rows: usize) -> Option<Vec<u32>> {
    let order = savepoints.read((What::Order, 0), input, |content| {
        if content.left() != 4 * rows as u64 {
            let found = content.left();
            return Err(content.wrong(format_args!("the order of {rows} rows has {found} bytes")));
        }
        let (mut order, mut seen) = (Vec::with_capacity(rows), vec![false; rows]);
        for _ in 0..rows {
            let row = content.word()?;
            match seen.get_mut(row as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => {
                    return Err(
                        content.wrong(format_args!("row {row} does not exist, or occurs twice"))
                    );
                }
            }
            order.push(row);
        }
        Ok(order)
    })?;
    savepoints.resumed("order".to_owned());
    Some(order)
}

pub(super) fn keep_order(
    savepoints: &Savepoints<'_>,
    input: &Hash,
    order: &[u32],
    progress: &dyn Progress,
) {
    let bytes = 4 * order.len() as u64;
    savepoints.keep((What::Order, 0), input, bytes, progress, |sink| {
        sink.words(order.iter().copied())
    });
}

pub(super) fn plan(savepoints: &Savepoints<'_>) -> Option<(usize, usize)> {
    savepoints.read((What::Plan, 0), &savepoints.input(&[]), |content| {
        Ok((content.word()? as usize, content.word()? as usize))
    })
}

pub(super) fn keep_plan(
    savepoints: &Savepoints<'_>,
    (parts, sample): (usize, usize),
    progress: &dyn Progress,
) {
    let input = savepoints.input(&[]);
    savepoints.keep((What::Plan, 0), &input, 8, progress, |sink| {
        sink.words([parts as u32, sample as u32])
    });
}

#[cfg(test)]
mod tests;
