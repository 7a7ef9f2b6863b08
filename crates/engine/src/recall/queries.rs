//! The queries of a build's measurement: rows of the index, and vectors made of rows.
//!
//! ```text
//!   row a, left out of its own search              as far from the others as they from each other
//!   row a + t (row b - row c),  t = .2, .35, .5    farther, as queries of another source are
//! ```
//!
//! Rows alone say too little about queries that are farther away. The two kinds of search for a row
//! ([`calibrate`](super::calibrate)) also miss less of the farthest rows than searches miss of
//! held-out rows. On package-text with a target of .95, queries of another source found .923 by
//! rows alone and .952 by both.
//!
//! Made queries alone are not enough. If rows lie in clusters far apart, all made queries lie
//! between clusters, and say nothing about queries to come. So rows count up to the distance at
//! which made queries begin.
//!
//! With PRESS, and where vectors are read last, all queries take one depth, which follows from
//! rows. For clusters rows are enough too, since the distance of the nearest head decides.

use std::collections::HashSet;

use stratann_layout::Searched;
use stratann_vector::{Element, Metric, first_beyond, from_f32, to_f32};

use crate::Error;
use crate::graph::random::Random;
use crate::index::Index;
use crate::progress::Progress;
use crate::stores::VectorsAt;
use crate::update::each_vector;

/// Rows of the index for each one that is a query; and the least and most queries.
const ROWS_A_QUERY: usize = 40;
const QUERIES: std::ops::RangeInclusive<usize> = 125..=500;
/// The shares of the difference of two rows that are added to a third.
const SHARES: [f32; 3] = [0.2, 0.35, 0.5];

/// The queries of a measurement.
#[derive(Debug)]
pub(crate) struct Queries {
    /// Consecutive rows of the index's element type.
    pub(crate) vectors: Vec<u8>,
    /// The nodes of the first queries, which are rows of the index. Empty if a user gave all
    /// queries.
    pub(crate) nodes: Vec<u32>,
}

impl Queries {
    /// The queries for a measurement without a user's queries.
    ///
    /// # Errors
    /// A row that cannot be read, or an interruption.
    pub(crate) fn of(index: &Index, progress: &dyn Progress) -> Result<Self, Error> {
        let mut queries = Self::rows(index, progress)?;
        let is_late = index.composition().vectors == VectorsAt::Segments;
        if index.searched() == Searched::Walk && !is_late {
            let made = made(
                &queries.vectors,
                index.element(),
                index.dim(),
                index.metric(),
            );
            queries.vectors.extend_from_slice(&made);
        }
        Ok(queries)
    }

    /// Rows from all parts of the index.
    fn rows(index: &Index, progress: &dyn Progress) -> Result<Self, Error> {
        let rows = index.nodes() as u64;
        let wanted = (index.nodes() / ROWS_A_QUERY).clamp(*QUERIES.start(), *QUERIES.end()) as u64;
        let wanted = wanted.min(rows);
        let chosen: HashSet<u32> = (0..wanted).map(|i| (i * rows / wanted) as u32).collect();
        let dead = index.overlay().map(|overlay| overlay.deleted.clone());
        let mut found: Vec<(u32, Vec<u8>)> = Vec::with_capacity(chosen.len());
        each_vector(index, progress, &mut |node, id, vector| {
            let counts = !dead.as_ref().is_some_and(|dead| dead.contains(id, node));
            if counts && chosen.contains(&node) {
                found.push((node, vector.to_vec()));
            }
            Ok(())
        })?;
        // Sorted, so that the order does not depend on the order of pages.
        found.sort_unstable_by_key(|&(node, _)| node);
        Ok(Self {
            vectors: found.iter().flat_map(|(_, row)| row).copied().collect(),
            nodes: found.into_iter().map(|(node, _)| node).collect(),
        })
    }
}

/// Makes as many queries as there are rows: each is a row plus a share of the difference of two
/// others. A vector that no search accepts is left out.
fn made(rows: &[u8], element: Element, dim: usize, metric: Metric) -> Vec<u8> {
    let row_bytes = dim * element.size();
    let count = rows.len() / row_bytes;
    let mut random = Random::new(0);
    let (mut a, mut b, mut c) = (vec![0.0; dim], vec![0.0; dim], vec![0.0; dim]);
    let (mut vector, mut made) = (vec![0; row_bytes], Vec::with_capacity(rows.len()));
    for at in 0..count {
        let row = |at: usize| &rows[at * row_bytes..(at + 1) * row_bytes];
        to_f32(element, row(at), &mut a);
        to_f32(element, row(random.below(count)), &mut b);
        to_f32(element, row(random.below(count)), &mut c);
        let share = SHARES[at % SHARES.len()];
        for ((a, b), c) in a.iter_mut().zip(&b).zip(&c) {
            *a += share * (b - c);
        }
        from_f32(element, &a, &mut vector);
        to_f32(element, &vector, &mut a);
        let is_finite = first_beyond(element, &vector, metric.largest_magnitude(dim)).is_none();
        if is_finite && a.iter().any(|&number| number != 0.0) {
            made.extend_from_slice(&vector);
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_queries_are_those_that_a_search_takes() {
        // Rows whose differences overflow, or are zero.
        let huge = [3e38f32, -3e38, 3e38, -3e38].map(f32::to_le_bytes).concat();
        assert!(made(&huge, Element::F32, 1, Metric::L2).is_empty());
        assert!(made(&[0; 12], Element::U8, 3, Metric::L2).is_empty());
        let rows: Vec<u8> = (100..220).collect();
        let made_of = |rows: &[u8]| made(rows, Element::U8, 3, Metric::L2);
        let found = made_of(&rows);
        assert_eq!((found.len(), &found), (rows.len(), &made_of(&rows)));
        assert_ne!(found, rows);
    }
}
