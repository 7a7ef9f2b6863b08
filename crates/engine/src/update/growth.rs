//! Indexes that outgrew the few vectors of their last build or merge, and with them their codes, or their clusters.
//!
//! ```text
//!   vectors there are, for each of the last build or merge    fewer than 1,000          1,000 and more
//!   4 times, when a merge is due                              searches scan them all    walks rank all on pages that they read (*)
//!   16 times                                                  the same                  the same, and trouble is said
//!
//!   (*) where the last build or merge was of fewer than 1,000: codes of more tell vectors apart that came later, too
//! ```

use stratann_layout::manifest::GIVEN_CODEBOOK;

use super::due::{Due, MergeWhen};
use super::rebalance;
use crate::codebook::training_rows;
use crate::index::Index;

/// Vectors that a merge is worth which makes their codes anew: fewer are about as many as the shortest lists hold, and are found whatever their codes say.
const WORTH_CODES: u64 = 32;
/// So many times the growth with which a merge is due, an index that grew is in trouble: whoever merges in the background ends a growth before.
const FAR: f64 = 4.0;

/// Vectors of an index that outgrew its codes. Below, a search looks at each of them. From there on, trouble is said where a part is found badly.
///
/// Measured beside a walk with list 100, of indexes that began with nothing: pages and CPU a query.
///
/// ```text
///   photos, 128 bytes    stratann  900   scan  37 pages           walk  36 pages
///                        odinann   900   scan 130 pages           walk 126 pages
///   texts, 384 floats    stratann  500   scan 210 pages,  .5 ms   walk  40 pages, .8 ms
///                        stratann  900   scan 378 pages, 1.1 ms   walk  40 pages, .8 ms
///                        odinann   900   scan 817 pages, 1.6 ms   walk 111 pages, .6 ms
///                        aisaq     900   scan 808 pages, 1.9 ms   walk 101 pages, .8 ms
/// ```
///
/// A scan reads up to four pages at once, so that the widest of these has twice the requests of its walk. The walk of `odinann` finds one in seven of the 900 photos.
pub(super) const FEW: u64 = 1_000;

/// Which vectors a search looks at, beyond what it would choose by codes or heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LooksAt {
    /// Those that codes or heads lead to.
    Chosen,
    /// Also every vector on a page that a walk reads: codes tell no two apart, so that none of them is ruled out by its code.
    WholePages,
    /// Every vector of the index.
    All,
}

/// Which vectors a search has to look at in an index of which `live` are found.
pub(crate) fn looks_at(index: &Index, live: u64) -> LooksAt {
    let outgrown = growth(index, live, 1).is_some_and(|times| times >= MergeWhen::default().grown);
    match outgrown && index.manifest().built_vectors() < FEW {
        false => LooksAt::Chosen,
        true if live < FEW => LooksAt::All,
        true => LooksAt::WholePages,
    }
}

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
    let times = growth(index, live, when.least).filter(|_| live >= FEW)?;
    (times >= FAR * when.grown).then_some(Due::Grown(times))
}

/// What is said of an index of which a part is found badly.
pub(crate) fn found_badly(due: Due) -> String {
    format!("{due}, until a merge (compact the index)")
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
    fn codes_of_a_thousand_vectors_are_trusted_however_many_come() {
        for (built, live, expected) in [
            (100, 300, LooksAt::Chosen),
            (100, 400, LooksAt::All),
            (100, 1_000, LooksAt::WholePages),
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
