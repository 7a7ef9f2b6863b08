//! Requests for estimates by low codes that a compute server has [offloaded](super). The memory
//! server answers these requests.
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
//! The low list (L_low) has the candidates by low codes. The refinement ratio (µ) is the share of
//! the low list that a round refines. A node with an offloaded code is refined in the same round as
//! other nodes, so no round is lost. Both servers [choose](nearest) the refined nodes by the same
//! rule, from identical estimates. The memory server needs no low list and no set of visited nodes,
//! and decodes no list. For offloaded codes, it only computes estimates.

use crate::frontier::key;

/// The nodes with offloaded low codes in one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// The requested nodes: at most [`MOST_OF_STEP`](super::MOST_OF_STEP). If the list is empty,
    /// the step makes no request.
    pub nodes: Vec<u32>,
    /// The number of nodes to refine by high codes. These nodes are chosen from the requested and
    /// the offered nodes.
    pub most: usize,
    /// The largest estimate that would enter the low list (L_low). The memory server does not send
    /// larger estimates.
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

/// Removes all nodes except the `most` nearest. The remaining nodes are in no particular order.
pub(super) fn nearest(nodes: &mut Vec<(u32, f32)>, most: usize) {
    if most < nodes.len() {
        nodes.select_nth_unstable_by_key(most, |&(node, estimate)| key(estimate, node));
        nodes.truncate(most);
    }
}
