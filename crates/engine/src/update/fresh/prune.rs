//! Chooses the neighbours of a node in the fresh graph (robust prune, as in `graph/prune.rs`).

use stratann_vector::Kernel;

use super::FreshParameters;
use super::segments::{Point, View};
use crate::frontier::{distance_of, key, node_of};

/// A list is filled up to R divided by this with neighbours that are not diverse. On disk a node's
/// slots are read anyway, and full lists save reads. In memory each neighbour costs a distance.
pub(super) const FILL: usize = 2;

/// Distances between vectors of the graph, for the build: squared Euclidean ones, or proportional
/// to them, so that the prune's margin means the same under every metric.
///
/// | metric | space of the build | distance there |
/// |---|---|---|
/// | L2 | the vectors | the kernel's |
/// | cosine | the vectors, scaled to length 1 | the kernel's, half of the squared one |
/// | inner product | the same | one minus the cosine |
///
/// Under the inner product half of a list is for directions. The other half is for the vectors with
/// the largest product with the node, its best answers if it were a query. The reduction of
/// `graph/space.rs` is not used, for two reasons: it needs the longest vector beforehand, and it
/// isolates long vectors if lengths differ. There they are near to few others, although they answer
/// many queries, so few lists have them (package-text-2k, lengths log-normal with deviation 0.5:
/// recall@10 0.83).
#[derive(Clone, Copy)]
pub(super) struct Space<'a> {
    pub(super) kernel: &'a Kernel,
    /// Whether the kernel's distance is the negated product.
    pub(super) product: bool,
}

impl Space<'_> {
    /// The distance between two vectors.
    #[inline]
    pub(super) fn distance(&self, a: &Point, b: &Point) -> f32 {
        let distance = self.kernel.distance(&a.vector, &b.vector);
        if !self.product {
            return distance;
        }
        // The roots are taken separately, since the product of the squares may overflow a float.
        let lengths = a.square.sqrt() * b.square.sqrt();
        if lengths > 0.0 {
            (1.0 + distance / lengths).max(0.0)
        } else {
            1.0
        }
    }
}

/// Chooses neighbours that are near, but apart from each other (robust prune, as in
/// `graph/prune.rs`).
#[derive(Debug, Default)]
pub(super) struct Pruner {
    /// Keys of the candidates by their distance from the node; the caller fills the pool.
    pub(super) pool: Vec<u64>,
    /// The chosen neighbours.
    pub(super) chosen: Vec<u32>,
    /// For each candidate the largest d(node, candidate) / d(chosen, candidate) seen, and with how
    /// many of the chosen it was compared.
    pub(super) factors: Vec<(f32, u32)>,
    /// How many of the chosen neighbours are diverse; they come first.
    pub(super) diverse: usize,
    /// Under the inner product, keys by product of the candidates left out.
    pub(super) rest: Vec<u64>,
}

/// The count of comparisons of a candidate that was chosen.
pub(super) const CHOSEN: u32 = u32::MAX;

impl Pruner {
    /// Chooses from the pool: diverse ones nearest first, then, up to a share of the degree, the
    /// nearest of the others. The latter connect equal rows. Under the inner product the list is
    /// filled up, by product.
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

    /// Chooses candidates to which no chosen one is nearer than the node, by the margin `alpha`.
    pub(super) fn round(&mut self, view: &View<'_>, space: Space<'_>, degree: usize, alpha: f32) {
        for (&candidate, (factor, compared)) in self.pool.iter().zip(&mut self.factors) {
            if self.chosen.len() >= degree {
                return;
            }
            let point = view.point(node_of(candidate));
            while *factor <= alpha && (*compared as usize) < self.chosen.len() {
                let chosen = view.point(self.chosen[*compared as usize]);
                let between = space.distance(point, chosen);
                // Of two equal rows, one represents both.
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
