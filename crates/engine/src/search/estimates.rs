//! The smallest estimates by code among all nodes. If vectors are apart from lists, a measurement
//! of recall sorts its queries by these estimates, because a walk knows no exact distances.
//!
//! ```text
//!   codes of all nodes ──score──> the k smallest estimates of a query
//!                                   a walk with a long list has the same k nodes in its list
//! ```

use stratann_vector::DistanceTable;

use super::before::{Best, ByCode, PIECE, Scores};
use crate::Error;
use crate::frontier::{distance_of, key};
use crate::index::Index;
use crate::overlay::{Admission, Seen};
use crate::progress::Progress;
use crate::threads;

impl Index {
    /// Returns the `k` smallest estimates of each query, in ascending order. The codes must be in
    /// memory. `queries` are consecutive vectors of the index's element type, and `left_out` has
    /// the nodes to exclude, one for each of the first queries.
    ///
    /// # Errors
    /// `progress` interrupts.
    pub(crate) fn estimates(
        &self,
        queries: &[u8],
        left_out: &[u32],
        k: usize,
        threads: usize,
        progress: &dyn Progress,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let row_bytes = self.dim() * self.element().size();
        let count = queries.len() / row_bytes;
        let each = count.div_ceil(threads.max(1)).max(1);
        let seen = self.overlay().map(|overlay| Seen {
            overlay,
            moment: overlay.now(),
        });
        let admission = seen.map_or_else(Admission::default, |seen| seen.admission());
        let found = threads::shared(
            queries.chunks(each * row_bytes).enumerate(),
            |(at, part)| {
                let mut table = DistanceTable::default();
                let mut by_code = ByCode {
                    table: &mut table,
                    codebook: self.graph_codebook(),
                    metric: self.metric(),
                    codes: self.codes(),
                    code_parts: self.code_parts(),
                };
                let mut scores = Scores::default();
                let of = part
                    .chunks_exact(row_bytes)
                    .enumerate()
                    .map(|(query, vector)| {
                        by_code.fill(vector, self.element());
                        let left_out = left_out.get(at * each + query).copied();
                        let admission = admission.without(left_out);
                        self.smallest(&mut by_code, &mut scores, &admission, k, progress)
                    });
                of.collect::<Result<Vec<_>, Error>>()
            },
        );
        let mut all = Vec::with_capacity(count);
        for part in found {
            all.extend(part?);
        }
        Ok(all)
    }

    /// The `k` smallest estimates for the query that was set, among the nodes that may be results.
    fn smallest(
        &self,
        by_code: &mut ByCode<'_, '_>,
        scores: &mut Scores,
        admission: &Admission<'_>,
        k: usize,
        progress: &dyn Progress,
    ) -> Result<Vec<f32>, Error> {
        let mut best = Best::new(k);
        let (mut piece, nodes) = (Vec::with_capacity(PIECE), self.nodes() as u32);
        for first in (0..nodes).step_by(PIECE) {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            piece.clear();
            piece.extend(first..nodes.min(first.saturating_add(PIECE as u32)));
            by_code.score(&piece, scores);
            for (&node, &score) in piece.iter().zip(&scores.scores) {
                if !admission.rules_out(node) {
                    best.offer(key(score, node));
                }
            }
        }
        Ok(best.into_sorted().into_iter().map(distance_of).collect())
    }
}
