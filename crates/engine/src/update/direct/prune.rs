//! Decides which node leaves a full list for a new node (OdinANN §3.3, optimisation 2).
//!
//! **Delta pruning** compares the new node with all old nodes, but not the old nodes with each
//! other: O(R) comparisons instead of O(R²). The owner is the node that has the list. A node is
//! *shielded* if another node is nearer to the owner, and is also nearer to the shielded node than
//! the owner is. The margin `alpha` says how much nearer. In the paper, such a node violates the
//! triangle inequality.
//!
//! 1. If the comparison with the new node shows shielded nodes, the farthest shielded node
//!    leaves. If this node is the new node, it does not join.
//! 2. Otherwise the old nodes are compared with each other, the farthest first, and the first
//!    shielded node leaves.
//! 3. If no node is shielded, the farthest node leaves.
//!
//! Distances are computed from codes, as in the paper (§4.2.1). But the owner's vector is known, so
//! distances from the owner are computed from the vector itself. Inner products become distances as
//! in the build ([`Space`]), with the maximum length of the compared vectors as the bound.

use stratann_vector::{DistanceTable, Element, Metric, Reduction};

use crate::Pruning;
use crate::codebook::Codebook;
use crate::graph::{Candidate, Points, Pruner, Rule, Space};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The list stays unchanged, since a search usually reaches the new node through a node of the
    /// list.
    Keep,
    Add,
    Replace(u32),
}

pub(super) struct ListPruner<'a> {
    codebook: &'a Codebook,
    metric: Metric,
    degree: usize,
    alpha: f32,
    pruning: Pruning,
    from_owner: Vec<f32>,
    from_new: Vec<f32>,
    order: Vec<u32>,
    places: Vec<u32>,
    rows: Vec<u8>,
    lifted: Vec<u8>,
    full: Pruner,
    /// Decisions for which old nodes had to be compared with each other.
    pub(super) fallbacks: u64,
}

#[derive(Clone, Copy)]
pub(super) enum Codes<'a> {
    All(&'a [u8]),
    /// The codes of the nodes of the list, in the order of the list.
    Beside(&'a [u8]),
}

pub(super) struct New<'a> {
    pub(super) node: u32,
    pub(super) table: &'a DistanceTable,
    /// The vector of the new node, in the space of the codes.
    pub(super) floats: &'a [f32],
    /// The distance from the new node to the owner of the list, computed from codes.
    pub(super) distance: f32,
}

impl<'a> ListPruner<'a> {
    pub(super) fn new(
        codebook: &'a Codebook,
        metric: Metric,
        degree: usize,
        alpha: f32,
        pruning: Pruning,
    ) -> Self {
        Self {
            codebook,
            metric,
            degree,
            alpha,
            pruning,
            from_owner: Vec::new(),
            from_new: Vec::new(),
            order: Vec::new(),
            places: Vec::new(),
            rows: Vec::new(),
            lifted: Vec::new(),
            full: Pruner::new(),
            fallbacks: 0,
        }
    }

    /// `owner` is the vector of the list's node, in the space of the codes. Nodes for which `keeps`
    /// is true stay, except under full pruning.
    pub(super) fn decide(
        &mut self,
        owner: &[f32],
        list: &[u32],
        new: &New<'_>,
        codes: Codes<'_>,
        keeps: &dyn Fn(u32) -> bool,
    ) -> Decision {
        if list.contains(&new.node) {
            return Decision::Keep;
        }
        if list.len() < self.degree {
            return Decision::Add;
        }
        self.places.clear();
        let codes = match codes {
            Codes::All(codes) => {
                self.places.extend_from_slice(list);
                codes
            }
            Codes::Beside(codes) => {
                self.places.extend(0..list.len() as u32);
                codes
            }
        };
        self.decode(owner, codes);
        let product = self.metric.reduction() == Reduction::Lifted;
        if product || self.pruning == Pruning::Full {
            append(&mut self.rows, new.floats);
        }
        let dim = match product {
            true => self.lift(),
            false => self.codebook.dim(),
        };
        if self.pruning == Pruning::Full {
            return self.decide_fully(list, dim);
        }
        let points = Points::new(&self.rows, Element::F32, dim);
        // Row 0 is the owner. The rows of the list follow.
        self.order.clear();
        self.order.extend(1..=list.len() as u32);
        self.from_owner.resize(list.len(), 0.0);
        self.from_new.resize(list.len(), 0.0);
        points.distances(points.row(0), &self.order, &mut self.from_owner);
        let new_far = if product {
            let row = list.len() as u32 + 1;
            points.distances(points.row(row), &self.order, &mut self.from_new);
            let mut far = [0.0];
            points.distances(points.row(0), &[row], &mut far);
            far[0]
        } else {
            new.table.score(codes, &self.places, &mut self.from_new);
            new.distance
        };
        let scale = scale(self.metric);
        let distances = self.from_owner.iter().zip(&self.from_new);
        let (mut farthest, mut leaves) = (f32::NEG_INFINITY, None);
        for (&node, (&old, &between)) in list.iter().zip(distances) {
            let old = scale * old;
            let (far, who) = if old > new_far {
                if keeps(node) {
                    continue;
                }
                (old, Decision::Replace(node))
            } else {
                (new_far, Decision::Keep)
            };
            if self.alpha * between < far && far > farthest {
                (farthest, leaves) = (far, Some(who));
            }
        }
        if let Some(leaves) = leaves {
            return leaves;
        }
        self.fallbacks += 1;
        let from_owner = &self.from_owner;
        let distance = |row: u32| from_owner[row as usize - 1];
        self.order
            .sort_unstable_by(|&a, &b| distance(b).total_cmp(&distance(a)));
        for (at, &far) in self.order.iter().enumerate() {
            if keeps(list[far as usize - 1]) {
                continue;
            }
            let nearer = &self.order[at + 1..];
            let between = &mut self.from_new[..nearer.len()];
            points.distances(points.row(far), nearer, between);
            if between
                .iter()
                .any(|between| self.alpha * between < distance(far))
            {
                return Decision::Replace(list[far as usize - 1]);
            }
        }
        let leaves = |far: &&u32| !keeps(list[**far as usize - 1]);
        match self.order.iter().find(leaves) {
            Some(&far) if scale * distance(far) > new_far => {
                Decision::Replace(list[far as usize - 1])
            }
            _ => Decision::Keep,
        }
    }

    fn decide_fully(&mut self, list: &[u32], dim: usize) -> Decision {
        let points = Points::new(&self.rows, Element::F32, dim);
        let joins = list.len() as u32 + 1;
        self.order.clear();
        self.order.extend(1..=joins);
        self.from_owner.resize(self.order.len(), 0.0);
        points.distances(points.row(0), &self.order, &mut self.from_owner);
        let pool = self.order.iter().zip(&self.from_owner);
        self.full.pool.clear();
        self.full
            .pool
            .extend(pool.map(|(&id, &distance)| Candidate { distance, id }));
        let rule = Rule {
            degree: self.degree,
            alpha: self.alpha,
            saturate: true,
        };
        let kept = self.full.prune(&points, 0, &rule);
        if !kept.contains(&joins) {
            return Decision::Keep;
        }
        let leaves = (1..joins).find(|row| !kept.contains(row));
        leaves.map_or(Decision::Add, |row| {
            Decision::Replace(list[row as usize - 1])
        })
    }

    /// Transforms all rows so that a larger inner product means a smaller distance. Returns the new
    /// dimension.
    fn lift(&mut self) -> usize {
        let mut space = Space::new(self.metric, Element::F32, self.codebook.dim());
        space.measure(&self.rows);
        self.lifted.clear();
        space.append(&self.rows, &mut self.lifted);
        std::mem::swap(&mut self.rows, &mut self.lifted);
        space.point_bytes() / Element::F32.size()
    }

    /// Fills `rows` with the vector of the owner, followed by the decoded codes of the list.
    fn decode(&mut self, owner: &[f32], codes: &[u8]) {
        self.rows.clear();
        append(&mut self.rows, owner);
        let quantizer = self.codebook.quantizer();
        quantizer.decode_rows(codes, &self.places, &mut self.rows);
    }
}

fn append(rows: &mut Vec<u8>, floats: &[f32]) {
    rows.extend(floats.iter().flat_map(|value| value.to_le_bytes()));
}

/// The factor that converts squared distances to the scale of distances between codes.
pub(super) fn scale(metric: Metric) -> f32 {
    match metric.reduction() {
        // The vectors have length 1, so half of the squared distance is 1 minus the inner product.
        Reduction::Normalised => 0.5,
        Reduction::None | Reduction::Lifted => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrainOptions;
    use crate::data::Matrix;

    /// The vectors are at the points `list` of a line, the owner at 0, and the new vector at `new`.
    fn decide(list: &[f32], new: f32, degree: usize, pruning: Pruning) -> Decision {
        let values: Vec<f32> = (-64..64).map(|value| value as f32).collect();
        let bytes = |values: &[f32]| {
            values
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        let rows = Matrix::new(bytes(&values), values.len(), 1, Element::F32).unwrap();
        let options = TrainOptions {
            metric: Metric::L2,
            code_bytes: Some(1),
            threads: 1,
            seed: 1,
            low_codes: None,
        };
        let codebook = Codebook::train(&rows, &options, &crate::progress::Silent).unwrap();
        let mut codes = vec![0; list.len()];
        codebook.quantizer().encode(list, &mut codes, 1);
        let mut table = DistanceTable::default();
        codebook.quantizer().table(Metric::L2, &[new], &mut table);
        let mut pruner = ListPruner::new(&codebook, Metric::L2, degree, 1.2, pruning);
        let nodes: Vec<u32> = (0..list.len() as u32).collect();
        let new = New {
            node: 99,
            table: &table,
            floats: &[new],
            distance: new * new,
        };
        let keeps = |_| false;
        let decided = pruner.decide(&[0.0], &nodes, &new, Codes::All(&codes), &keeps);
        let beside = pruner.decide(&[0.0], &nodes, &new, Codes::Beside(&codes), &keeps);
        assert_eq!(decided, beside);
        decided
    }

    #[test]
    fn a_list_with_room_takes_everyone_and_a_full_one_gives_up_the_farthest_that_is_shielded() {
        let room = decide(&[10.0, 20.0], 30.0, 3, Pruning::Delta);
        assert_eq!(room, Decision::Add);
        let farthest = decide(&[10.0, 20.0, -30.0], 5.0, 3, Pruning::Delta);
        assert_eq!(farthest, Decision::Replace(1));
        assert_eq!(
            decide(&[10.0, -30.0], 40.0, 2, Pruning::Delta),
            Decision::Keep
        );
    }

    #[test]
    fn where_the_new_one_shields_nobody_the_old_ones_are_compared() {
        let old = decide(&[-10.0, -20.0], 8.0, 2, Pruning::Delta);
        assert_eq!(old, Decision::Replace(1));
        assert_eq!(
            decide(&[-30.0], 8.0, 1, Pruning::Delta),
            Decision::Replace(0)
        );
        assert_eq!(decide(&[-8.0], 30.0, 1, Pruning::Delta), Decision::Keep);
    }

    #[test]
    fn comparing_all_decides_alike() {
        for (list, new) in [
            (&[10.0, 20.0, -30.0][..], 5.0),
            (&[-10.0, -20.0], 8.0),
            (&[-30.0], 8.0),
            (&[-8.0], 30.0),
        ] {
            let [delta, full] =
                [Pruning::Delta, Pruning::Full].map(|p| decide(list, new, list.len(), p));
            assert_eq!(delta, full, "{list:?} {new}");
        }
    }
}
