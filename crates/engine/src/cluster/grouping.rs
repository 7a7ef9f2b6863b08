//! Cluster-aware grouping (second-tier memory paper, §6.2): each vector is stored in the group of
//! one of its clusters.
//!
//! A probe of cluster `j` reads the group of `j` at once, and each member stored elsewhere
//! separately. `h_j` is the share of queries that probe `j`. `A_ij` is 1 if vector `i` is a member
//! of `j`, and `P_ij` is 1 if the group of `j` has `i`. The reads are:
//!
//! ```text
//!   least  Σ_j h_j (1 + Σ_i (A_ij - P_ij))      if each vector is stored in one of its clusters
//! ```
//!
//! The paper's equation 4 has `P_ij` in place of the difference. To minimise that sum would
//! maximise the reads, which contradicts the paper's Table 4. The sum is least if each vector is
//! stored in the most probed of its clusters, and among equally probed clusters in the nearest.

use stratann_vector::Kernel;

use super::{Memberships, go_on};
use crate::Error;
use crate::data::VectorSource;
use crate::navigation::{Navigation, NavigationScratch};
use crate::progress::{Progress, Stage};

/// The cluster in whose group each row is stored. `visits` has the number of probes of each
/// cluster, and is empty if the numbers are unknown.
pub(crate) fn groups(memberships: &Memberships, visits: &[u64]) -> Vec<u32> {
    let visits_of = |cluster: u32| visits.get(cluster as usize).copied().unwrap_or(0);
    let of_row = |row: u32| {
        let clusters = memberships.of(row);
        let mut best = clusters[0];
        for &cluster in &clusters[1..] {
            if visits_of(cluster) > visits_of(best) {
                best = cluster;
            }
        }
        best
    };
    (0..memberships.rows() as u32).map(of_row).collect()
}

/// Counts the probes of each cluster, if each query probes the nearest `probes` clusters.
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
