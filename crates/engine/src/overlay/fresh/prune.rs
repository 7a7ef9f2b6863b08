//! Chooses the neighbours of a node in the fresh graph (robust prune, as in `graph/prune.rs`).

use stratann_vector::Kernel;

use super::FreshParameters;
use super::segments::{Point, View};
use crate::frontier::{distance_of, key, node_of};

/// Neighbours that are not diverse fill a list up to R divided by this number. On storage, full
/// lists save reads. In memory, each neighbour costs the computation of a distance.
pub(super) const FILL: usize = 2;

/// The distances by which the graph is built, proportional to squared Euclidean distances, so that
/// `alpha` means the same under every metric.
///
/// | metric | space of the build | distance in this space |
/// |---|---|---|
/// | L2 | the vectors | the kernel's |
/// | cosine | the vectors, scaled to length 1 | the kernel's, half of the squared distance |
/// | inner product | the vectors, scaled to length 1 | one minus the cosine |
///
/// Under the inner product, half of a list is for near directions, and half for the largest
/// products with the node. The reduction of `graph/space.rs` would need the longest vector before
/// the first insert. It also isolates long vectors, which are results of many queries
/// (package-text-2k, lengths log-normal with deviation 0.5: recall@10 0.83).
#[derive(Clone, Copy)]
pub(super) struct Space<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) product: bool,
}

impl Space<'_> {
    #[inline]
    pub(super) fn distance(&self, a: &Point, b: &Point) -> f32 {
        let distance = self.kernel.distance(&a.vector, &b.vector);
        if !self.product {
            return distance;
        }
        // The product of the squared lengths may overflow a float.
        let lengths = a.square.sqrt() * b.square.sqrt();
        if lengths > 0.0 {
            (1.0 + distance / lengths).max(0.0)
        } else {
            1.0
        }
    }
}

/// Robust prune, as in `graph/prune.rs`.
#[derive(Debug, Default)]
pub(super) struct Pruner {
    /// The candidates, as keys of their distance from the node.
    pub(super) pool: Vec<u64>,
    pub(super) chosen: Vec<u32>,
    /// For each candidate: the largest ratio d(node, candidate) / d(chosen, candidate) so far, and
    /// the number of chosen neighbours compared.
    pub(super) factors: Vec<(f32, u32)>,
    /// The number of diverse neighbours, which come first in `chosen`.
    pub(super) diverse: usize,
    /// Under the inner product: the candidates that are not diverse, as keys of their product with
    /// the node.
    pub(super) rest: Vec<u64>,
}

pub(super) const CHOSEN: u32 = u32::MAX;

impl Pruner {
    /// Chooses the diverse neighbours first. Then the nearest other candidates fill the list up to
    /// a share of the degree, which connects equal rows. Under the inner product, the largest
    /// products fill the list up to the degree instead.
    pub(super) fn prune(
        &mut self,
        view: &View<'_>,
        space: Space<'_>,
        node: &Point,
        parameters: &FreshParameters,
    ) {
        self.pool.sort_unstable();
        self.pool.dedup();
        self.chosen.clear();
        self.factors.clear();
        self.factors.resize(self.pool.len(), (0.0, 0));
        let degree = if space.product {
            parameters.degree.div_ceil(2)
        } else {
            parameters.degree
        };
        self.round(view, space, degree, 1.0);
        if parameters.alpha > 1.0 {
            self.round(view, space, degree, parameters.alpha);
        }
        self.diverse = self.chosen.len();
        let rest = self.pool.iter().zip(&self.factors);
        let rest = rest.filter(|(_, factor)| factor.1 != CHOSEN);
        if space.product {
            self.rest.clear();
            self.rest.extend(rest.map(|(&candidate, _)| {
                let slot = node_of(candidate);
                let product = space
                    .kernel
                    .distance(&node.vector, &view.point(slot).vector);
                key(product, slot)
            }));
            self.rest.sort_unstable();
            let room = parameters.degree - self.diverse;
            let best = self.rest.iter().take(room);
            self.chosen
                .extend(best.map(|&candidate| node_of(candidate)));
        } else {
            let room = parameters
                .degree
                .div_ceil(FILL)
                .saturating_sub(self.diverse);
            let nearest = rest.take(room);
            self.chosen
                .extend(nearest.map(|(&candidate, _)| node_of(candidate)));
        }
    }

    /// Chooses each candidate unless a chosen neighbour is nearer to the candidate than the node
    /// is, by the margin `alpha`.
    pub(super) fn round(&mut self, view: &View<'_>, space: Space<'_>, degree: usize, alpha: f32) {
        for (&candidate, (factor, compared)) in self.pool.iter().zip(&mut self.factors) {
            if self.chosen.len() >= degree {
                return;
            }
            let point = view.point(node_of(candidate));
            while *factor <= alpha && (*compared as usize) < self.chosen.len() {
                let chosen = view.point(self.chosen[*compared as usize]);
                let between = space.distance(point, chosen);
                // If two candidates are equal, only one of them is diverse.
                let ratio = if between > 0.0 {
                    distance_of(candidate) / between
                } else {
                    f32::INFINITY
                };
                *factor = factor.max(ratio);
                *compared += 1;
            }
            if *factor <= alpha {
                self.chosen.push(node_of(candidate));
                (*factor, *compared) = (f32::INFINITY, CHOSEN);
            }
        }
    }
}
