//! Low codes that a compute server has [offloaded](super), and asks the memory server for.
//!
//! ```text
//!   compute: lists ──> neighbours with a code here: scored, into L_low
//!                      neighbours without: asked for, with the next step
//!            the nearest µ of L_low are offered, as ever, and taken once all estimates are known
//!   memory:  estimates what was asked for, and looks by high codes at the nearest of these and of what is offered: as many as ever
//!            what was estimated, as far as it may come into L_low ──> compute, with the next lists
//! ```
//!
//! So a node without a code is looked at by its high code as soon as one with a code: no round is lost. Both sides [choose](nearest) by the same rule from the same numbers, to the bit, so that the memory
//! server keeps nothing of L_low, nor of which nodes were met, and decodes no list. All that it does for codes that are not here is to look at these.

use crate::frontier::key;

/// The most nodes that a step asks for, and the most that it hands over: a message of the servers has room for no more.
/// Which more are missing waits for the next step.
pub const MOST_OF_STEP: usize = 1 << 16;

/// The nodes of a step whose low codes are not here.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// Which, at most [`MOST_OF_STEP`]. None: there is nothing to ask for.
    pub nodes: Vec<u32>,
    /// Of these and of what is offered with them, so many are to be looked at by high codes.
    pub most: usize,
    /// Estimates above this are of no use: such nodes would not come into L_low.
    pub bound: f32,
}

impl Default for Missing {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            most: 0,
            bound: f32::INFINITY,
        }
    }
}

/// Leaves the `most` nearest of some nodes, in no order.
pub(super) fn nearest(nodes: &mut Vec<(u32, f32)>, most: usize) {
    if most < nodes.len() {
        nodes.select_nth_unstable_by_key(most, |&(node, estimate)| key(estimate, node));
        nodes.truncate(most);
    }
}
