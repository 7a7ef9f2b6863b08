//! The low list (L_low) of PRESS (DistVS §3.1, `ExpandLow` and the selection of `ExpandHigh`). High
//! codes refine the nearest candidates of this list.

use stratann_vector::{DistanceTable, Metric, ProductQuantizer};

use crate::Press;
use crate::bounds;
use crate::frontier::{Frontier, distance_of, key, node_of};

/// The most nodes that one step requests, and the most nodes that one step sends for refinement. A
/// message carries no more, so further nodes wait for the next step.
pub const MOST_OF_STEP: usize = 1 << 16;

#[derive(Debug, Default)]
pub(crate) struct LowList {
    table: DistanceTable,
    list: Frontier,
    /// The greatest length of the list (D_low).
    size: usize,
    press: Press,
    nodes: Vec<u32>,
    keys: Vec<u64>,
    scores: Vec<f32>,
    computations: u64,
}

/// The number of start nodes. On photo-sift-100k, 8 start nodes took 1 % more work than 4.
pub(crate) const BEGUN: usize = 4;
/// In each step of the descent ([`seeds`](LowList::seeds)), this many nodes around each near node
/// are scored, and the window shrinks by this factor.
const FAN: usize = 4;
/// The descent ends when the window has at most this many nodes.
const STRETCH: usize = 16;

impl LowList {
    /// The greatest length of the low list (D_low), if the high list has at most `list` candidates.
    pub(crate) fn size(press: Press, list: usize) -> usize {
        ((list as f64 * press.low).round() as usize).clamp(1, bounds::MOST_LIST)
    }

    /// Under cosine, the query must have length 1.
    pub(crate) fn fill(&mut self, quantizer: &ProductQuantizer, metric: Metric, query: &[f32]) {
        quantizer.table(metric, query, &mut self.table);
    }

    /// The table must be filled before the first distance.
    pub(crate) fn begin(&mut self, size: usize, press: Press) {
        self.list.clear(size, 1, size);
        (self.size, self.press) = (size, press);
        self.computations = 0;
    }

    /// Appends the start nodes of the search, with their low-code estimates. Without
    /// `Press::seeds`, the start node is `entry`. Otherwise the search descends to the start nodes:
    ///
    /// ```text
    ///   nodes   0 .........|.........|.........|......... n   `Press::seeds` nodes, evenly spaced
    ///                           the nearest four
    ///                         ..|..|..|..|..                  four more around each, in a window
    ///                                                         as long as the gap between two seeds
    ///                               ...                       a quarter of the window, and so on
    /// ```
    ///
    /// In locality order, these steps descend to the query's neighbourhood without a graph. `codes`
    /// are in node order, and `entry` must have a code.
    pub(crate) fn seeds(
        &mut self,
        codes: &[u8],
        entry: u32,
        nodes: &mut Vec<u32>,
        distances: &mut Vec<f32>,
    ) {
        let all = codes.len() / self.table.code_bytes();
        let (mut looked, mut scores) = (std::mem::take(&mut self.nodes), Vec::new());
        std::mem::swap(&mut scores, &mut self.scores);
        self.keys.clear();
        looked.clear();
        let count = self.press.seeds.min(all);
        match count {
            0 => looked.push(entry),
            _ => looked.extend(spaced(count, all)),
        }
        let mut stretch = all / count.max(1);
        loop {
            self.score(codes, &looked, &mut scores);
            let scored = looked.iter().zip(&scores);
            self.keys
                .extend(scored.map(|(&node, &score)| key(score, node)));
            self.keys.sort_unstable();
            self.keys.dedup();
            self.keys.truncate(BEGUN);
            if count == 0 || stretch <= STRETCH {
                break;
            }
            looked.clear();
            for &near in &self.keys {
                let first = (node_of(near) as usize).saturating_sub(stretch / 2);
                let around = (0..FAN).map(|at| first + (2 * at + 1) * stretch / (2 * FAN));
                looked.extend(around.map(|node| node.min(all - 1) as u32));
            }
            looked.sort_unstable();
            looked.dedup();
            stretch /= FAN;
        }
        nodes.extend(self.keys.iter().copied().map(node_of));
        distances.extend(self.keys.iter().copied().map(distance_of));
        (self.nodes, self.scores) = (looked, scores);
    }

    /// Puts nodes into the list with estimates by `codes`, which are in node order.
    pub(crate) fn meet(&mut self, codes: &[u8], nodes: &[u32]) {
        self.meet_at(codes, nodes, nodes);
    }

    /// The codes of `nodes` are at the positions `places`.
    pub(crate) fn meet_at(&mut self, codes: &[u8], places: &[u32], nodes: &[u32]) {
        self.scores.resize(self.scores.len().max(nodes.len()), 0.0);
        let scores = &mut self.scores[..nodes.len()];
        self.table.score(codes, places, scores);
        for (&node, &score) in nodes.iter().zip(&*scores) {
            self.list.insert(key(score, node));
        }
        self.computations += nodes.len() as u64;
    }

    /// Takes the low-code estimates of the memory server.
    pub(crate) fn hear(&mut self, nodes: &[(u32, f32)]) {
        for &(node, estimate) in nodes {
            self.list.insert(key(estimate, node));
        }
    }

    /// Appends the nearest untaken nodes: as many as the step may take if `asked` nodes join the
    /// list. Returns this number, and the largest estimate that enters the list.
    pub(crate) fn offer(&self, asked: usize, nodes: &mut Vec<(u32, f32)>) -> (usize, f32) {
        let most = self.share(self.size.min(self.list.len() + asked));
        let unread = self.list.unread().take(most);
        nodes.extend(unread.map(|key| (node_of(key), distance_of(key))));
        let bound = match self.list.bound() {
            u64::MAX => f32::INFINITY,
            bound => distance_of(bound),
        };
        (most, bound)
    }

    /// Marks a node as taken, if the list still has it.
    pub(crate) fn take_node(&mut self, node: u32, estimate: f32) {
        self.list.expanded(key(estimate, node));
    }

    /// The number of nodes to take at once. The bound of messages also applies in one process, so
    /// that one process and several servers find the same results.
    fn share(&self, len: usize) -> usize {
        // If rounding leaves the product just below a whole number, the addend prevents truncation.
        let count = (len as f64 * self.press.ratio + 1e-4) as usize;
        count.clamp(1, MOST_OF_STEP)
    }

    pub(crate) fn take(&mut self, nodes: &mut Vec<u32>, distances: &mut Vec<f32>) {
        for _ in 0..self.share(self.list.len()) {
            match self.list.take_unread() {
                Some(key) => {
                    nodes.push(node_of(key));
                    distances.push(distance_of(key));
                }
                None => return,
            }
        }
    }

    /// Scores nodes, which do not enter the list.
    pub(crate) fn score(&mut self, codes: &[u8], nodes: &[u32], distances: &mut Vec<f32>) {
        distances.clear();
        distances.resize(nodes.len(), 0.0);
        self.table.score(codes, nodes, distances);
        self.computations += nodes.len() as u64;
    }

    pub(crate) fn computations(&self) -> u64 {
        self.computations
    }
}

pub(crate) fn spaced(count: usize, all: usize) -> impl Iterator<Item = u32> {
    (0..count).map(move |at| ((2 * at + 1) * all / (2 * count)) as u32)
}

#[cfg(test)]
mod tests {
    use stratann_vector::Training;

    use super::*;

    #[test]
    fn the_nearest_that_are_left_are_taken_a_share_of_the_list_at_a_time() {
        let rows: Vec<f32> = (0..256).map(|i| i as f32).collect();
        let quantizer = ProductQuantizer::train(&rows, 1, 1, &Training::default()).unwrap();
        let mut codes = vec![0; 256];
        quantizer.encode(&rows, &mut codes, 1);
        let mut low = LowList::default();
        low.fill(&quantizer, Metric::L2, &[0.0]);
        low.begin(20, Press::PAPER);
        let nodes: Vec<u32> = (0..256).rev().collect();
        low.meet(&codes, &nodes);
        assert_eq!(low.computations(), 256);
        let (mut taken, mut distances) = (Vec::new(), Vec::new());
        // The list is full, and all nodes outside are farther.
        for expected in [6, 12, 18, 20, 20] {
            low.take(&mut taken, &mut distances);
            assert_eq!(taken, (0..expected).collect::<Vec<u32>>());
            let right = |(&node, &distance): (&u32, &f32)| distance == (node * node) as f32;
            assert!(taken.len() == distances.len() && taken.iter().zip(&distances).all(right));
        }
    }

    #[test]
    fn no_more_are_taken_at_once_than_a_message_has_room_for() {
        let mut low = LowList::default();
        let press = Press {
            ratio: 1.0,
            ..Press::PAPER
        };
        low.begin(1 << 20, press);
        assert_eq!(low.share(1 << 20), MOST_OF_STEP);
        assert_eq!(low.share(1000), 1000);
    }

    #[test]
    fn a_search_begins_at_the_nearest_of_nodes_that_are_evenly_spaced() {
        // In locality order, 40 nodes at a time have the same code.
        let rows: Vec<f32> = (0..256).map(|i| i as f32).collect();
        let quantizer = ProductQuantizer::train(&rows, 1, 1, &Training::default()).unwrap();
        let numbers: Vec<f32> = (0..10_000).map(|i| (i / 40) as f32).collect();
        let mut codes = vec![0; 10_000];
        quantizer.encode(&numbers, &mut codes, 1);
        let mut low = LowList::default();
        let mut seeds = |count: usize, codes: &[u8], query: u32| {
            let press = Press {
                seeds: count,
                ..Press::PAPER
            };
            low.fill(&quantizer, Metric::L2, &[(query / 40) as f32]);
            low.begin(20, press);
            let (mut nodes, mut distances) = (Vec::new(), Vec::new());
            low.seeds(codes, 7, &mut nodes, &mut distances);
            assert!(nodes.len() == distances.len() && distances.is_sorted());
            (nodes, low.computations())
        };
        assert_eq!(seeds(0, &codes, 4000), (vec![7], 1));
        // The 64 seeds are 156 nodes apart. Each further step scores at most 16 nodes.
        let (nodes, computations) = seeds(64, &codes, 4000);
        assert!(
            nodes.len() == 4 && computations > 64 && computations <= 64 + 2 * 16,
            "{computations}"
        );
        assert_eq!(nodes[0] / 40, 100, "{nodes:?}");
        for end in [0, 9_999] {
            let (nodes, _) = seeds(64, &codes, end);
            assert_eq!(nodes[0] / 40, end / 40, "{nodes:?}");
        }
        assert_eq!(seeds(64, &codes[..3], 0), (vec![0, 1, 2], 3));
    }
}
