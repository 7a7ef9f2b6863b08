//! Requests for low codes that a compute server has [offloaded](super) to the memory server.
//!
//! ```text
//!   compute: lists ──> neighbours with a code here: scored, into L_low
//!                      neighbours without a code: requested with the next step
//!            the nearest µ of L_low are offered, and taken once all estimates are known
//!   memory:  estimates the requested nodes; by high codes refines µ of these and of the offered
//!            nodes, the nearest
//!            estimates that are small enough for L_low ──> compute, with the next lists
//! ```
//!
//! So a node without a code on the compute server is refined in the same round as a node with a
//! code, and no round is lost. Both servers [choose](nearest) by the same rule from identical
//! numbers. So the memory server needs no L_low and no set of visited nodes, and decodes no list.
//! For offloaded codes, it only computes estimates.

use crate::frontier::key;

/// The most nodes that a step requests, and the most that it hands over to be refined. A message of
/// the servers cannot carry more. Further missing nodes wait for the next step.
pub const MOST_OF_STEP: usize = 1 << 16;

/// The nodes of a step whose low codes are offloaded.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// The requested nodes, at most [`MOST_OF_STEP`]. If there are none, the step makes no request.
    pub nodes: Vec<u32>,
    /// The number of nodes to refine by high codes, out of the requested and the offered nodes.
    pub most: usize,
    /// The largest estimate that would enter L_low. Larger estimates need not be sent.
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

/// Keeps the `most` nearest of some nodes, in no particular order.
pub(super) fn nearest(nodes: &mut Vec<(u32, f32)>, most: usize) {
    if most < nodes.len() {
        nodes.select_nth_unstable_by_key(most, |&(node, estimate)| key(estimate, node));
        nodes.truncate(most);
    }
}
