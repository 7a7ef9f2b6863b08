//! Cluster-aware grouping (second-tier paper, §6.2): where vectors stand once, each stands in the group of one of its clusters.
//!
//! A probe of cluster `j` reads its group at once, and each member that stands elsewhere by itself. With `h_j` the share of queries that
//! probe `j`, `A_ij` 1 where vector `i` is a member of `j`, and `P_ij` 1 where it stands in the group of `j`, the least reads are those of
//!
//! ```text
//!   least  Σ_j h_j (1 + Σ_i (A_ij - P_ij))      where each vector stands in one of its clusters
//! ```
//!
//! The paper's equation 4 has `P_ij` in the place of the difference, although its Table 4 says what it does here, and would then ask for the
//! most reads: taken for a misprint. No constraint ties one vector to another, so the sum is least when each vector's part of it is: when it
//! stands in the cluster of its own that is probed most. Where all are probed alike, that is any of them, and the nearest is chosen: its
//! neighbours are there as well.
//!
//! The sum counts each member that stands elsewhere once for each probe. A search reads fewer: not those that stand in a group which it
//! probes as well, and those near each other in one read. What is least for the sum is therefore not quite the least for a search.

use stratann_vector::Kernel;

use super::{Memberships, go_on};
use crate::Error;
use crate::data::VectorSource;
use crate::navigation::{Navigation, NavigationScratch};
use crate::progress::{Progress, Stage};

/// The cluster in whose group each row stands. `visits` says how often each cluster was probed; empty where that is not known.
pub(crate) fn groups(memberships: &Memberships, visits: &[u64]) -> Vec<u32> {
    let visits_of = |cluster: u32| visits.get(cluster as usize).copied().unwrap_or(0);
    let of_row = |row: u32| {
        let clusters = memberships.of(row);
        let mut best = clusters[0];
        // The nearer one where both are probed alike.
        for &cluster in &clusters[1..] {
            if visits_of(cluster) > visits_of(best) {
                best = cluster;
            }
        }
        best
    };
    (0..memberships.rows() as u32).map(of_row).collect()
}

/// How often each cluster is probed by some queries, each of which is taken to probe the nearest so many, though a search may probe fewer or
/// leave out far ones: only which cluster is probed more often than another counts. `heads` leads to them, and `kernel` is that of the index.
///
/// # Errors
/// Queries that cannot be read, or an interruption.
pub(crate) fn visits(
    heads: &Navigation,
    kernel: &Kernel,
    queries: &dyn VectorSource,
    probes: usize,
    progress: &dyn Progress,
) -> Result<Vec<u64>, Error> {
    let _stage = Stage::begin(progress, "counting visits", queries.rows() as u64);
    let mut visits = vec![0; heads.nodes()];
    let mut scratch = NavigationScratch::default();
    let mut query = vec![0; queries.row_bytes()];
    for at in 0..queries.rows() {
        go_on(progress)?;
        queries.read(at, &mut query)?;
        heads.walk(kernel, &query, probes, &mut scratch);
        for (_, cluster) in scratch.found() {
            visits[cluster as usize] += 1;
        }
        progress.advance(1);
    }
    Ok(visits)
}
