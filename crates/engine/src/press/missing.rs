//! Requests for estimates by low codes that a compute server has [offloaded](super).
//!
//! ```text
//!   compute: lists ──> neighbours with a code here: scored, into L_low
//!                      neighbours without a code: requested with the next step
//!            the nearest share µ of L_low is offered; once all estimates are known, the nodes
//!            that were refined are marked as selected
//!   memory:  estimates the requested nodes; of these and the offered nodes, refines the nearest
//!            by high codes, as many as the share µ of L_low
//!            estimates that are small enough for L_low ──> compute, with the next lists
//! ```
//!
//! A round refines the share µ of the low list (L_low). A node with an offloaded code is refined in
//! the same round as other nodes. Both servers [choose](nearest) from identical estimates, so the
//! memory server needs no low list.

use crate::frontier::key;

/// The nodes with offloaded low codes in one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// The requested nodes: at most [`MOST_OF_STEP`](super::MOST_OF_STEP), or none for no request.
    pub nodes: Vec<u32>,
    /// The number of nodes to refine by high codes, of the requested and the offered nodes.
    pub most: usize,
    /// The largest estimate that would enter the low list (L_low). Larger estimates are not sent.
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

/// Reduces `nodes` to the `most` nearest, in no particular order.
pub(super) fn nearest(nodes: &mut Vec<(u32, f32)>, most: usize) {
    if most < nodes.len() {
        nodes.select_nth_unstable_by_key(most, |&(node, estimate)| key(estimate, node));
        nodes.truncate(most);
    }
}
