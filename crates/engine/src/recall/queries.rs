//! The queries of a build's measurement: vectors of the index (*rows*), and vectors made of rows.
//!
//! ```text
//!   row a, left out of its own search              as far from the others as they from each other
//!   row a + t (row b - row c),  t = .2, .35, .5    farther, as queries of another source are
//! ```
//!
//! Rows alone represent distant queries badly. Also, for the farthest rows, the two kinds of search
//! ([`calibrate`](super::calibrate)) miss less than searches for rows that were held out of the
//! build. On package-text with a recall target of .95, queries of another source found .923 after a
//! measurement with rows alone, and .956 after a measurement with both kinds of queries.
//!
//! A made query is nearer to its row `a` than to any other row. Every search would find row `a`, so
//! this result would say nothing about recall. Therefore the results of the query exclude row `a`.
//!
//! Made queries alone are not enough. If rows form clusters that are far from each other, all made
//! queries are between clusters, and do not represent future queries. So rows count too, up to the
//! distance at which made queries begin.
//!
//! With PRESS, all queries use one depth, and a measurement with rows is enough for it. For
//! clusters, rows are enough too, because the distance of the nearest head decides.

use std::collections::HashSet;

use stratann_layout::Searched;
use stratann_vector::{Element, Metric, first_beyond, from_f32, to_f32};

use crate::Error;
use crate::graph::random::Random;
use crate::index::Index;
use crate::index::contents::each_vector;
use crate::progress::Progress;

/// Of this many vectors of the index, one becomes a query. `QUERIES` has the least and the most
/// queries.
const ROWS_A_QUERY: usize = 40;
const QUERIES: std::ops::RangeInclusive<usize> = 125..=500;
/// The shares of the difference of two vectors that are added to a third vector.
const SHARES: [f32; 3] = [0.2, 0.35, 0.5];

/// The queries of a measurement.
#[derive(Debug)]
pub(crate) struct Queries {
    /// Consecutive vectors of the index's element type.
    pub(crate) vectors: Vec<u8>,
    /// For each query, the node that is excluded from its results: the query's own node, or the
    /// node of the vector `a` of a made query. The list is empty if a user gave the queries.
    pub(crate) nodes: Vec<u32>,
    /// The number of queries that are vectors of the index. These queries come first.
    pub(crate) rows: usize,
}

impl Queries {
    /// Returns the queries for a measurement without queries of a user.
    ///
    /// # Errors
    /// A vector cannot be read, or `progress` interrupts.
    pub(crate) fn of(index: &Index, progress: &dyn Progress) -> Result<Self, Error> {
        let mut queries = Self::rows(index, progress)?;
        if index.searched() == Searched::Walk {
            queries = queries.with_made(index.element(), index.dim(), index.metric());
        }
        Ok(queries)
    }

    /// Returns vectors from all parts of the index, evenly spaced by node.
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
        // The vectors are sorted, so that their order does not depend on the order of pages.
        found.sort_unstable_by_key(|&(node, _)| node);
        Ok(Self {
            vectors: found.iter().flat_map(|(_, row)| row).copied().collect(),
            rows: found.len(),
            nodes: found.into_iter().map(|(node, _)| node).collect(),
        })
    }

    /// Returns every second vector as a query, and then the made queries of all vectors. Each of
    /// these vectors is searched twice and each made query once, so the number of searches stays
    /// about the same.
    fn with_made(&self, element: Element, dim: usize, metric: Metric) -> Self {
        let row_bytes = dim * element.size();
        let rows = self.vectors.chunks_exact(row_bytes).step_by(2);
        let mut vectors: Vec<u8> = rows.flatten().copied().collect();
        let mut nodes: Vec<u32> = self.nodes.iter().copied().step_by(2).collect();
        let rows = nodes.len();
        for (vector, row) in made(&self.vectors, element, dim, metric) {
            vectors.extend_from_slice(&vector);
            nodes.push(self.nodes[row]);
        }
        Self {
            vectors,
            nodes,
            rows,
        }
    }
}

/// Makes a query for each vector in `rows`: the vector plus a share of the difference of two
/// others. Returns the queries with the positions of their vectors. Leaves out a query that a
/// search refuses, and a query that rounds to its vector.
fn made(rows: &[u8], element: Element, dim: usize, metric: Metric) -> Vec<(Vec<u8>, usize)> {
    let row_bytes = dim * element.size();
    let row = |at: usize| &rows[at * row_bytes..(at + 1) * row_bytes];
    let count = rows.len() / row_bytes;
    let mut random = Random::new(0);
    let (mut a, mut b, mut c) = (vec![0.0; dim], vec![0.0; dim], vec![0.0; dim]);
    let mut made = Vec::with_capacity(count);
    for at in 0..count {
        to_f32(element, row(at), &mut a);
        to_f32(element, row(random.below(count)), &mut b);
        to_f32(element, row(random.below(count)), &mut c);
        let share = SHARES[at % SHARES.len()];
        for ((a, b), c) in a.iter_mut().zip(&b).zip(&c) {
            *a += share * (b - c);
        }
        let mut vector = vec![0; row_bytes];
        from_f32(element, &a, &mut vector);
        to_f32(element, &vector, &mut a);
        let is_finite = first_beyond(element, &vector, metric.largest_magnitude(dim)).is_none();
        let is_zero = a.iter().all(|&number| number == 0.0);
        if is_finite && !is_zero && vector != row(at) {
            made.push((vector, at));
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_queries_are_those_that_a_search_takes() {
        // The differences of these vectors overflow, or are zero.
        let huge = [3e38f32, -3e38, 3e38, -3e38].map(f32::to_le_bytes).concat();
        assert!(made(&huge, Element::F32, 1, Metric::L2).is_empty());
        assert!(made(&[0; 12], Element::U8, 3, Metric::L2).is_empty());
        // These vectors have small integers, so most shares of their differences round to zero.
        let small: Vec<u8> = (0..120).map(|i| u8::from(i % 40 == 0) + 1).collect();
        for (vector, row) in made(&small, Element::U8, 3, Metric::L2) {
            assert_ne!(vector, small[3 * row..3 * row + 3]);
        }
        let rows: Vec<u8> = (100..220).collect();
        let made_of = |rows: &[u8]| made(rows, Element::U8, 3, Metric::L2);
        let found = made_of(&rows);
        assert!(
            found.len() > 35 && found == made_of(&rows),
            "{}",
            found.len()
        );
    }

    #[test]
    fn the_row_beside_a_made_query_is_no_answer_of_it() {
        let rows = Queries {
            vectors: (0u8..40).map(|i| 6 * i).collect(),
            nodes: (0..40).map(|node| 1000 + node).collect(),
            rows: 40,
        };
        let all = rows.with_made(Element::U8, 1, Metric::L2);
        assert_eq!((all.rows, all.nodes.len()), (20, all.vectors.len()));
        assert_eq!(all.nodes[..3], [1000, 1002, 1004]);
        let made = made(&rows.vectors, Element::U8, 1, Metric::L2);
        let nodes: Vec<u32> = made.iter().map(|&(_, row)| rows.nodes[row]).collect();
        assert!(nodes.len() > 20 && all.nodes[20..] == nodes);
    }
}
