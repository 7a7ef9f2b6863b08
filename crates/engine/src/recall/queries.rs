//! The queries that a build measures with: rows of the index, and others that are made of rows.
//!
//! ```text
//!   row a, left out of its own search                     as far from the others as they are from each other
//!   row a + t (row b - row c),  t = .2, .35, .5           farther, as queries of another source are
//! ```
//!
//! Rows alone say too little of queries that are farther than rows, and the two ways to search for a row
//! ([`calibrate`](super::calibrate)) miss less of the farthest rows than searches miss of rows that were held
//! out. On package-text, asked for .95, queries of another source found .923 by rows alone and .952 by both.
//!
//! Made queries alone are not enough. Where rows lie in clusters far apart, all of these queries lie between
//! clusters, and say nothing of the queries to come. So rows count where they are nearer than made queries begin.
//!
//! With PRESS, and where vectors are read last, all queries take one depth, which follows from rows. Clusters are
//! measured with rows alone too: the distance of the nearest head tells them enough.

use std::collections::HashSet;

use stratann_layout::Searched;
use stratann_vector::{Element, Metric, first_beyond, from_f32, to_f32};

use crate::Error;
use crate::graph::random::Random;
use crate::index::Index;
use crate::progress::Progress;
use crate::stores::VectorsAt;
use crate::update::each_vector;

/// Rows of the index for each that is a query, and the fewest and most of these.
const ROWS_A_QUERY: usize = 40;
const QUERIES: std::ops::RangeInclusive<usize> = 125..=500;
/// How much of the difference of two rows is added to a third.
const SHARES: [f32; 3] = [0.2, 0.35, 0.5];

/// Queries that an index is measured with.
#[derive(Debug)]
pub(crate) struct Queries {
    /// Of the index's element type, one after the other.
    pub(crate) vectors: Vec<u8>,
    /// The nodes of the first of them, which are rows of the index; empty where a user gave all of them.
    pub(crate) nodes: Vec<u32>,
}

impl Queries {
    /// Those that an index is measured with where there are no others.
    ///
    /// # Errors
    /// A row cannot be read; an interruption.
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

    /// Rows from all over the index.
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
        // Whichever order the pages have.
        found.sort_unstable_by_key(|&(node, _)| node);
        Ok(Self {
            vectors: found.iter().flat_map(|(_, row)| row).copied().collect(),
            nodes: found.into_iter().map(|(node, _)| node).collect(),
        })
    }
}

/// As many queries as there are rows, each a row and a share of the difference of two others. A vector that no
/// search takes is left out.
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
        // Rows of which any difference overflows, or leaves nothing.
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
