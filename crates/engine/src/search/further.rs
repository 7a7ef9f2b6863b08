//! Searches that look further: an answer is a vector that came since the last build or merge, and codes say little of such vectors.
//!
//! ```text
//!   walk with the list ──answers──> is one of them of what came, and has that drifted? ──no──> done
//!                                       └──yes──> walk from the beginning, with a list 8 times as long, up to a quarter of all nodes
//! ```
//!
//! Codes that are not made for a vector ([`drift`](crate::update)) say about the same of it and of its neighbours. So a list holds some of them by chance, and a walk
//! ends beside the nearest. A longer list has room for more of them, and all of it is ranked. A page that was read serves all its nodes, and each of them that came is ranked.
//!
//! Recall@10 of queries near rows of 24 floats that came shifted by 3:
//!
//! ```text
//!                750 beside 1,500, list 50        2,000 beside 4,000, with a second walk: recall, pages read
//!                a first walk    a second one     list 20        list 50        list 100
//!   stratann     .953            1.000            .843,  90      .987, 126      .998, 148
//!   odinann      .473             .992            .787, 140      .920, 256      .985, 391
//!   aisaq        .418             .993            .450,  71      .803, 154      .975, 248
//!   decouplevs   .405             .942
//! ```
//!
//! With the longer list alone, which whole pages did not serve, `odinann` found .517, .757 and .930 of the latter, and read 206, 472 and 918 pages.
//!
//! **A second walk from the beginning.** To go on from the state of the first walk would save the reads of that walk, an eighth. But each query would have to keep the candidates
//! that it drops now. So queries with other answers would compute more than in an index that has not drifted.

use super::traversal::SCAN_FROM;
use super::walker::Plan;
use crate::Rerank;
use crate::index::Index;

/// What a walk makes of what it reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uses {
    /// Whether a page that was read serves all its nodes.
    pub(crate) whole_page: bool,
    /// When re-ranking ends, where vectors are apart from lists.
    pub(crate) rerank: Rerank,
}

/// How many times as long the list is; less under a memory budget that has no room for it.
const TIMES: usize = 8;

/// The list with which a search looks further that goes by a plan: 0 if it does not. It is never shorter than that of the plan, which whole pages serve the second time. A search for
/// a recall has the longest list that such a search takes as its own, but it was measured before the drift.
pub(super) fn further(index: &Index, plan: &Plan) -> usize {
    if plan.drifted_from.is_none() {
        return 0;
    }
    let fits = |list: usize| index.most_at_once(walked_further(plan, list), 1) > 0;
    let most = index.nodes() / SCAN_FROM;
    let longest = plan.list.saturating_mul(TIMES).min(most).max(plan.list);
    if longest == plan.list || fits(longest) {
        return longest;
    }
    let (mut shorter, mut longer) = (plan.list, longest);
    while longer - shorter > 1 {
        let between = shorter + (longer - shorter) / 2;
        match fits(between) {
            true => shorter = between,
            false => longer = between,
        }
    }
    shorter
}

/// Nodes that a walk is expected to go through that looks further with a list: with this, what does not match a filter.
pub(super) fn walked_further(plan: &Plan, list: usize) -> usize {
    let walked = (list as u64).saturating_mul(plan.walked as u64) / plan.list.max(1) as u64;
    walked as usize
}
