//! If a result was inserted after the last build or merge, and codes hardly distinguish such
//! vectors, a further walk with a longer candidate list follows.
//!
//! ```text
//!   walk with the list ──results──> is a result newer than the build, and did such vectors drift?
//!                                     ├──no───> done
//!                                     └──yes──> walk again from the start, with a list 8 times as
//!                                               long, up to a quarter of all nodes
//! ```
//!
//! The estimate of a drifted vector ([`drift`](crate::update)) is about the same as the estimates
//! of its neighbours. So chance decides which drifted vectors a short list has. The further walk
//! ranks every inserted node on the pages that it reads.
//!
//! Recall@10 of queries near inserted vectors, which have 24 floats and are shifted by 3. "750
//! beside 1,500" are 750 inserted vectors beside 1,500 vectors of the build.
//!
//! ```text
//!                750 beside 1,500, list 50     2,000 beside 4,000, second walk: recall, pages read
//!                first walk    second walk     list 20        list 50        list 100
//!   stratann     .953          1.000           .843,  90      .987, 126      .998, 148
//!   odinann      .473           .992           .787, 140      .920, 256      .985, 391
//!   aisaq        .418           .993           .450,  71      .803, 154      .975, 248
//!   decouplevs   .405           .942
//! ```
//!
//! Without whole pages, the recall of `odinann` was .517, .757 and .930 in the three columns on the
//! right, with 206, 472 and 918 pages.
//!
//! The second walk starts from the beginning. To continue the first walk would save about an eighth
//! of the reads, but every first walk would then have to keep candidates that it now drops.

use super::traversal::SCAN_FROM;
use super::walker::Plan;
use crate::Rerank;
use crate::index::Index;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Uses {
    /// Whether a walk ranks all nodes on a page that it has read.
    pub(crate) whole_page: bool,
    /// The rule that ends re-ranking, if vectors are apart from lists.
    pub(crate) rerank: Rerank,
}

/// The factor on the list size of the first walk, smaller if the memory budget requires it.
const TIMES: usize = 8;

/// The list size of a further walk, or 0 if no such walk is needed. The plan's list size does not
/// suffice, because it was measured before the drift.
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

/// The expected number of nodes that a further walk visits, including nodes that do not match the
/// filter.
pub(super) fn walked_further(plan: &Plan, list: usize) -> usize {
    let walked = (list as u64).saturating_mul(plan.walked as u64) / plan.list.max(1) as u64;
    walked as usize
}
