//! Handles indexes that outgrew the few vectors of their last build or merge, and with them their
//! codes or their clusters.
//!
//! When a merge is due, the index has at least 4 times the vectors of its last build or merge. Then
//! searches do more, depending on both numbers:
//!
//! - *Fewer than 1,000 vectors*: if the last build or merge had fewer than 1,000, searches scan all
//!   vectors.
//! - *1,000 to 9,999*: if it had fewer than 128, searches of graphs scan all vectors. If it had 128
//!   to 999, walks rank all vectors on the pages they read, in layouts whose pages have vectors.
//! - *10,000 and more*: if it had fewer than 1,000, walks rank all vectors on the pages they read.
//!   If it had fewer than 128, `trouble` reports the index as well.
//! - If it had 1,000 or more, searches do nothing more.

use stratann_layout::manifest::GIVEN_CODEBOOK;

use super::due::{Due, MergeWhen};
use super::rebalance;
use crate::codebook::training_rows;
use crate::index::Index;

/// Vectors from which on a merge for new codes is worth it. Fewer are about as many as the shortest
/// lists hold, and are found whatever their codes say.
const WORTH_CODES: u64 = 32;

/// In an index that outgrew its codes, a search with fewer vectors than this examines each of them.
/// That reads about as many pages as a walk, or a few times as many.
pub(super) const FEW: u64 = 1_000;

/// With fewer vectors in a build or merge, codes hardly tell vectors apart.
const LEAST_TRAINED: u64 = 128;

/// With such codes, a search with fewer vectors than this examines each of them. Beyond that, a
/// walk reads a tenth of the pages of a scan, or less, and misses most of the nearest. Of 1,000
/// texts inserted into an empty index, a list of 100 found 11 % of the ten nearest.
const SCANNED: u64 = 10_000;

/// Which vectors a search examines, beyond those chosen by codes or heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LooksAt {
    /// Those that codes or heads lead to.
    Chosen,
    /// Also every vector on a page that a walk reads, in layouts with vectors beside lists: codes
    /// rule none of them out.
    WholePages,
    /// Every vector of the index.
    All,
}

/// Which vectors a search must examine in an index with `live` vectors.
pub(crate) fn looks_at(index: &Index, live: u64) -> LooksAt {
    let outgrown = growth(index, live, 1).is_some_and(|times| times >= MergeWhen::default().grown);
    let built = index.manifest().built_vectors();
    if !outgrown || built >= FEW {
        return LooksAt::Chosen;
    }
    // Heads lead to the clusters of all inserted vectors.
    let tells_nothing = built < LEAST_TRAINED && !index.has_clusters();
    match live < if tells_nothing { SCANNED } else { FEW } {
        true => LooksAt::All,
        false => LooksAt::WholePages,
    }
}

/// The present number of vectors as a multiple of the last build's or merge's. `live` is the number
/// of live vectors. It is given if the last build or merge had fewer vectors than a codebook is
/// trained on; in a cluster index, fewer than one rebalance takes. The codebook must be the index's
/// own. At least `least` vectors must have been inserted since, or somewhat more than a search
/// examines in any case.
pub(super) fn growth(index: &Index, live: u64, least: u64) -> Option<f64> {
    let manifest = index.manifest();
    let built = manifest.built_vectors();
    let came = live.saturating_sub(built);
    // Clusters of a build are better than clusters that come of splits alone.
    let enough = match index.has_clusters() {
        false => training_rows(index.dim()) as u64,
        true => rebalance::due_after(0),
    };
    let few = manifest.vectors < enough;
    let own = manifest.writer_features & GIVEN_CODEBOOK == 0;
    let counts = few && own && came >= least.min(WORTH_CODES);
    counts.then(|| live as f64 / built.max(1) as f64)
}

/// Why some vectors of an index are found badly, if they are since it grew to many times the last
/// build or merge.
pub(crate) fn far_grown(index: &Index, live: u64) -> Option<Due> {
    let times = growth(index, live, 1)?;
    // Vectors that wait in memory have a graph of their own, which uses no codes.
    let linked = live.min(index.nodes() as u64) >= SCANNED && !index.has_clusters();
    (linked && index.manifest().built_vectors() < LEAST_TRAINED).then_some(Due::Grown(times))
}

/// The message about an index in which some vectors are found badly.
pub(crate) fn found_badly(due: Due) -> String {
    match due {
        Due::Drifted(_) => format!("{due}, until a merge (compact the index)"),
        due => format!(
            "a part of the vectors is found badly, since {due}, until a merge (compact the index)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenOptions;
    use crate::build::{BuildOptions, build};
    use crate::data::Matrix;
    use crate::progress::Silent;
    use stratann_vector::Element;

    #[test]
    fn the_more_vectors_codes_were_made_of_the_more_they_are_trusted() {
        for (built, live, expected) in [
            (100, 300, LooksAt::Chosen),
            (100, 400, LooksAt::All),
            (100, 9_999, LooksAt::All),
            (100, 10_000, LooksAt::WholePages),
            (128, 999, LooksAt::All),
            (128, 1_000, LooksAt::WholePages),
            (999, 5_000, LooksAt::WholePages),
            (1_000, 5_000, LooksAt::Chosen),
            (1_000, 50_000, LooksAt::Chosen),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("index");
            let bytes = (0..built * 16).map(|at| (at * at % 251) as u8).collect();
            let rows = Matrix::new(bytes, built, 16, Element::U8).unwrap();
            let options = BuildOptions {
                degree: Some(8),
                build_list: 16,
                ..BuildOptions::default()
            };
            build(&rows, &path, &options, &Silent).unwrap();
            let index = Index::open(&path, &OpenOptions::default()).unwrap();
            assert_eq!(looks_at(&index, live), expected, "{built}, then {live}");
        }
    }
}
