//! Indexes that outgrew the few vectors of their last build or merge, and with them their codes, or their clusters.

use stratann_layout::manifest::GIVEN_CODEBOOK;

use super::due::{Due, MergeWhen};
use super::rebalance;
use crate::codebook::training_rows;
use crate::index::Index;

/// Vectors that a merge is worth which makes their codes anew: fewer are about as many as the shortest lists hold, and are found whatever their codes say.
const WORTH_CODES: u64 = 32;
/// So many times the growth with which a merge is due, an index that grew is in trouble: whoever merges in the background ends a growth before.
const FAR: f64 = 4.0;

/// How many times the vectors of its last build or merge an index has of which `live` are found, where a codebook would be trained on more of them, or it is of
/// clusters and a rebalance takes more at once, and `least` vectors came since, or some more than a search looks at in any case.
pub(super) fn growth(index: &Index, live: u64, least: u64) -> Option<f64> {
    let manifest = index.manifest();
    let built = manifest.built_vectors();
    let came = live.saturating_sub(built);
    // Of clusters those of a build are better than those that come of splits alone.
    let enough = match index.has_clusters() {
        false => training_rows(index.dim()) as u64,
        true => rebalance::due_after(0),
    };
    let few = manifest.vectors < enough;
    let own = manifest.writer_features & GIVEN_CODEBOOK == 0;
    let counts = few && own && came >= least.min(WORTH_CODES);
    counts.then(|| live as f64 / built.max(1) as f64)
}

/// Why a part of the vectors of an index is found badly, if it is since they are many times as many as those of the last build or merge.
pub(crate) fn far_grown(index: &Index, live: u64) -> Option<Due> {
    let when = MergeWhen::default();
    let times = growth(index, live, when.least).filter(|_| live >= when.least)?;
    (times >= FAR * when.grown).then_some(Due::Grown(times))
}

/// What is said of an index of which a part is found badly.
pub(crate) fn found_badly(due: Due) -> String {
    format!("{due}, until a merge (compact the index)")
}
