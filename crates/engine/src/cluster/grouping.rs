//! Cluster-aware grouping (second-tier paper, §6.2): if vectors are stored once, each is stored in
//! the group of one of its clusters.
//!
//! A probe of cluster `j` reads its group at once, and each member stored elsewhere by itself. Let
//! `h_j` be the share of queries that probe `j`. `A_ij` is 1 if vector `i` is a member of `j`, and
//! `P_ij` is 1 if it is stored in the group of `j`. The least reads are then:
//!
//! ```text
//!   least  Σ_j h_j (1 + Σ_i (A_ij - P_ij))      if each vector is stored in one of its clusters
//! ```
//!
//! The paper's equation 4 has `P_ij` in place of the difference, and would then ask for the most
//! reads. Its Table 4 agrees with the formula here, so the equation is taken for a misprint. No
//! constraint connects two vectors, so the sum is least when each vector's part is. That is the
//! case when it is stored in the one of its clusters that is probed most. If all are probed alike,
//! any cluster will do, and the nearest is chosen, since the vector's neighbours are there as well.
//!
//! The sum counts each member stored elsewhere once for each probe. A search reads fewer: not the
//! members stored in another group that it probes, and members near each other with one read. So
//! the least sum is not quite the least for a search.

use stratann_vector::Kernel;

use super::{Memberships, go_on};
use crate::Error;
use crate::data::VectorSource;
use crate::navigation::{Navigation, NavigationScratch};
use crate::progress::{Progress, Stage};

/// The cluster in whose group each row is stored. `visits` counts the probes of each cluster; empty
/// if unknown.
pub(crate) fn groups(memberships: &Memberships, visits: &[u64]) -> Vec<u32> {
    let visits_of = |cluster: u32| visits.get(cluster as usize).copied().unwrap_or(0);
    let of_row = |row: u32| {
        let clusters = memberships.of(row);
        let mut best = clusters[0];
        // If both are probed alike, the nearer one.
        for &cluster in &clusters[1..] {
            if visits_of(cluster) > visits_of(best) {
                best = cluster;
            }
        }
        best
    };
    (0..memberships.rows() as u32).map(of_row).collect()
}

/// Counts how often some queries probe each cluster. Each query is assumed to probe the nearest
/// `probes` clusters. A search may probe fewer or leave out far ones, but only the ranking of
/// clusters matters. `heads` finds the clusters, and `kernel` is the index's.
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
