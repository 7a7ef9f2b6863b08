//! Handles indexes that have outgrown their last build or merge, whose codes or clusters do not
//! suit the later vectors.
//!
//! An index has outgrown its last build or merge if it has at least 4 times as many vectors. Then a
//! merge is due. Until the merge, searches examine more vectors, depending on the present number:
//!
//! - *Fewer than 1,000 vectors*: searches scan all vectors.
//! - *1,000 to 9,999 vectors*: if the last build or merge had fewer than 128 vectors, searches of
//!   graphs scan all vectors. If it had 128 to 999 vectors, and the layout stores vectors beside
//!   lists, walks rank all vectors on the pages that they read.
//! - *10,000 and more vectors*: if the last build or merge had fewer than 1,000 vectors, walks rank
//!   all vectors on the pages that they read. If it had fewer than 128 vectors, `trouble` also
//!   reports the index.
//! - If the last build or merge had 1,000 or more vectors, searches examine no more vectors than
//!   usual.

use stratann_layout::manifest::GIVEN_CODEBOOK;

use super::Index;
use crate::MergeWhen;
use crate::codebook::training_rows;

/// If fewer vectors than this were inserted, even the shortest candidate list has room for all of
/// them.
const WORTH_CODES: u64 = 32;

/// If an index has outgrown its codes and has fewer vectors than this, each search scans all
/// vectors. A scan reads as many pages as a walk, or a few times as many.
pub(crate) const FEW: u64 = 1_000;

/// Codes that were trained on fewer vectors than this hardly distinguish vectors.
pub(crate) const LEAST_TRAINED: u64 = 128;

/// If codes hardly distinguish vectors and the index has fewer vectors than this, each search scans
/// all vectors. Among 1,000 texts inserted into an empty index, a walk with list size 100 found 11
/// % of the ten nearest.
pub(crate) const SCANNED: u64 = 10_000;

/// A rebalance is due when the number of new vectors is the number on storage, divided by `SHARE`
/// (for merges in OdinANN §4.1). Each vector joins several clusters, so even fewer new vectors
/// would change most clusters.
const SHARE: u64 = 16;
const LEAST_NEW: u64 = 1024;

pub(crate) fn rebalance_after(nodes: u64) -> u64 {
    (nodes / SHARE).max(LEAST_NEW)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LooksAt {
    Chosen,
    /// The vectors of `Chosen`. If vectors are beside lists, also every vector on a page that a
    /// walk reads.
    WholePages,
    All,
}

pub(crate) fn looks_at(index: &Index, live: u64) -> LooksAt {
    let outgrown = growth(index, live, 1).is_some_and(|times| times >= MergeWhen::default().grown);
    let built = index.manifest().built_vectors();
    if !outgrown || built >= FEW {
        return LooksAt::Chosen;
    }
    // In a cluster index, searches find inserted vectors by heads, not by codes.
    let tells_nothing = built < LEAST_TRAINED && !index.has_clusters();
    match live < if tells_nothing { SCANNED } else { FEW } {
        true => LooksAt::All,
        false => LooksAt::WholePages,
    }
}

/// The present number of vectors, `live`, as a multiple of the number at the last build or merge.
/// The result is `None` in three cases:
///
/// - The last build or merge had at least as many vectors as a codebook is trained on. In a cluster
///   index: at least as many vectors as one rebalance moves.
/// - The codebook was given to the build.
/// - Since the last build or merge, fewer than `least` and fewer than 32 vectors were inserted.
pub(crate) fn growth(index: &Index, live: u64, least: u64) -> Option<f64> {
    let manifest = index.manifest();
    let built = manifest.built_vectors();
    let came = live.saturating_sub(built);
    // In a cluster index, a merge helps because it makes better clusters than splits alone.
    let enough = match index.has_clusters() {
        false => training_rows(index.dim()) as u64,
        true => rebalance_after(0),
    };
    let few = manifest.vectors < enough;
    let own = manifest.writer_features & GIVEN_CODEBOOK == 0;
    let counts = few && own && came >= least.min(WORTH_CODES);
    counts.then(|| live as f64 / built.max(1) as f64)
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
