//! The navigation graph: a small graph in memory over about 1 % of the nodes. A search uses it to
//! start near its results instead of at the medoid.
//!
//! The sample is *stratified* over the node order. So in locality order, each neighbourhood has its
//! share of the sample.
//!
//! Seeds need not be exact. So vectors of floats are *rounded* to a byte for each element, and so
//! are queries. If rounded vectors distinguish a node's neighbours less well than whole vectors,
//! the build keeps whole vectors.

use stratann_layout::navigation::NavigationFile;
use stratann_vector::{Element, Kernel, Metric, to_f32};

use crate::frontier::{Frontier, distance_of, key, node_of};
use crate::visited::Visited;

/// The list size of a walk, which finds the seeds of the search. PipeANN also uses 10.
const LIST: usize = 10;
const STEPS: f32 = 127.0;
/// If a walk finds no direction, all nodes are compared, up to this number of nodes.
const LOOKED_AT: usize = 1 << 16;
/// The number of nodes in one step of this comparison.
const AT_ONCE: usize = 1 << 10;
/// The largest squared error of rounded distances, relative to the variance of the distances to
/// neighbours. On package-text, this error is 7e-5.
const TELLING: f64 = 1e-3;

#[derive(Default)]
pub(crate) struct NavigationScratch {
    frontier: Frontier,
    visited: Visited,
    fresh: Vec<u32>,
    distances: Vec<f32>,
    seeds: Vec<u32>,
    seed_distances: Vec<f32>,
    floats: Vec<f32>,
    rounded: Vec<u8>,
}

pub(crate) struct Seeds<'a> {
    pub(crate) nodes: &'a [u32],
    pub(crate) distances: &'a [f32],
    pub(crate) are_exact: bool,
    pub(crate) distance_computations: u64,
}

#[derive(Debug)]
pub(crate) struct Navigation {
    file: NavigationFile,
    rounding: Option<Rounding>,
}

#[derive(Debug)]
struct Rounding {
    kernel: Kernel,
    metric: Metric,
    element: Element,
    step: f32,
}

impl Rounding {
    fn new(metric: Metric, element: Element, dim: usize, step: f32) -> Self {
        Self {
            kernel: Kernel::new(metric, Element::I8, dim),
            metric,
            element,
            step,
        }
    }

    /// Returns the factor by which distances from the rounded query must be multiplied.
    fn round(&self, query: &[u8], floats: &mut Vec<f32>, rounded: &mut Vec<u8>) -> f32 {
        floats.resize(self.kernel.dim(), 0.0);
        to_f32(self.element, query, floats);
        // Squares of differences need the same step for query and vectors.
        let step = match self.metric {
            Metric::L2 => self.step,
            Metric::InnerProduct | Metric::Cosine => step_of(floats).unwrap_or(1.0),
        };
        rounded.clear();
        append_rounded(floats, step, rounded);
        match self.metric {
            Metric::L2 | Metric::InnerProduct => self.step * step,
            Metric::Cosine => 1.0,
        }
    }
}

/// The smallest step with which every element fits into a byte. `None` if no such step exists.
fn step_of(floats: &[f32]) -> Option<f32> {
    let largest = floats.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let step = largest / STEPS;
    (step.is_normal() && floats.iter().all(|x| x.is_finite())).then_some(step)
}

fn append_rounded(floats: &[f32], step: f32, out: &mut Vec<u8>) {
    let steps = |x: &f32| (x / step).round().clamp(-STEPS, STEPS) as i8;
    out.extend(floats.iter().map(|x| steps(x) as u8));
}

/// If rounded vectors do not distinguish a node's neighbours as well as whole vectors, the graph
/// stays unchanged.
pub(crate) fn rounded(
    file: NavigationFile,
    metric: Metric,
    element: Element,
    dim: usize,
) -> NavigationFile {
    let row_bytes = dim * element.size();
    if element.size() == 1 || row_bytes == 0 {
        return file;
    }
    let mut floats = vec![0.0; dim];
    let mut most = 0.0f32;
    for row in file.vectors.chunks_exact(row_bytes) {
        to_f32(element, row, &mut floats);
        most = floats.iter().fold(most, |most, x| most.max(x.abs()));
    }
    let Some(step) = step_of(&[most]) else {
        return file;
    };
    let mut vectors = Vec::with_capacity(file.nodes.len() * dim);
    for row in file.vectors.chunks_exact(row_bytes) {
        to_f32(element, row, &mut floats);
        append_rounded(&floats, step, &mut vectors);
    }
    let exact = Kernel::new(metric, element, dim);
    let rounding = Rounding::new(metric, element, dim, step);
    let unit = f64::from(match metric {
        Metric::L2 | Metric::InnerProduct => step * step,
        Metric::Cosine => 1.0,
    });
    let whole = |at: u32| &file.vectors[at as usize * row_bytes..][..row_bytes];
    let small = |at: u32| &vectors[at as usize * dim..][..dim];
    let (mut count, mut error, mut sum, mut squares) = (0.0, 0.0, 0.0, 0.0);
    for node in 0..file.nodes.len() as u32 {
        for &link in file.links_of(node) {
            let distance = f64::from(exact.distance(whole(node), whole(link)));
            let estimate = unit * f64::from(rounding.kernel.distance(small(node), small(link)));
            count += 1.0;
            error += (distance - estimate) * (distance - estimate);
            sum += distance;
            squares += distance * distance;
        }
    }
    let variance = squares / count - (sum / count) * (sum / count);
    // NaN fails this comparison, so the graph then keeps whole vectors.
    if error / count <= TELLING * variance {
        NavigationFile {
            vectors,
            step: Some(step),
            ..file
        }
    } else {
        file
    }
}

impl Navigation {
    /// The crate `layout` has already checked the ids and the links of the file.
    pub(crate) fn new(file: NavigationFile) -> Self {
        Self {
            file,
            rounding: None,
        }
    }

    /// The rows in the file of the index may be rounded.
    pub(crate) fn of_rows(
        file: NavigationFile,
        metric: Metric,
        element: Element,
        dim: usize,
    ) -> Self {
        let rounding = file
            .step
            .map(|step| Rounding::new(metric, element, dim, step));
        Self { file, rounding }
    }

    pub(crate) fn nodes(&self) -> usize {
        self.file.nodes.len()
    }

    pub(crate) fn vectors(&self) -> &[u8] {
        &self.file.vectors
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.file.bytes()
    }

    pub(crate) fn nearest<'s>(
        &self,
        kernel: &Kernel,
        query: &[u8],
        scratch: &'s mut NavigationScratch,
    ) -> Seeds<'s> {
        let (computations, unit) = match &self.rounding {
            None => (self.walk(kernel, query, LIST, scratch), 1.0),
            Some(rounding) => {
                let mut rounded = std::mem::take(&mut scratch.rounded);
                let unit = rounding.round(query, &mut scratch.floats, &mut rounded);
                let computations = self.walk(&rounding.kernel, &rounded, LIST, scratch);
                scratch.rounded = rounded;
                (computations, unit)
            }
        };
        let NavigationScratch {
            frontier,
            seeds,
            seed_distances,
            ..
        } = scratch;
        seeds.clear();
        seeds.extend(
            frontier
                .keys()
                .map(|key| self.file.nodes[node_of(key) as usize]),
        );
        seed_distances.clear();
        seed_distances.extend(frontier.keys().map(|key| unit * distance_of(key)));
        Seeds {
            nodes: seeds,
            distances: seed_distances,
            are_exact: self.rounding.is_none(),
            distance_computations: computations,
        }
    }

    /// Walks towards a query, with a candidate list of size `list`. The found positions in the
    /// sample are in `scratch`. Returns the number of computed distances.
    pub(crate) fn walk(
        &self,
        kernel: &Kernel,
        query: &[u8],
        list: usize,
        scratch: &mut NavigationScratch,
    ) -> u64 {
        let NavigationFile { entry, vectors, .. } = &self.file;
        let links_of = |place| self.file.links_of(place);
        walk(*entry, links_of, vectors, (kernel, query), list, scratch)
    }

    /// Walks like [`walk`](Self::walk). If all found nodes are equally far from the query, and the
    /// graph has up to 65,536 nodes, all nodes are compared. Such ties are usual if each vector has
    /// a single element that is not 0.
    pub(crate) fn look(
        &self,
        kernel: &Kernel,
        query: &[u8],
        list: usize,
        scratch: &mut NavigationScratch,
    ) -> u64 {
        let computations = self.walk(kernel, query, list, scratch);
        let nodes = self.nodes();
        let Some((first, _)) = scratch.found().next() else {
            return computations;
        };
        let is_tied = scratch.found().all(|(distance, _)| distance == first);
        // No vector is nearer than a found vector that equals the query.
        let is_nearest = first == 0.0 && kernel.metric() != Metric::InnerProduct;
        if !is_tied || is_nearest || list >= nodes || nodes > LOOKED_AT {
            return computations;
        }
        scratch.frontier.clear(list, 1, list);
        let vectors = self.file.vectors.chunks(AT_ONCE * kernel.row_bytes());
        for (chunk, vectors) in vectors.enumerate() {
            let distances = &mut scratch.distances;
            distances.resize(vectors.len() / kernel.row_bytes(), 0.0);
            kernel.distances_dense(query, vectors, distances);
            let first = (chunk * AT_ONCE) as u32;
            for (node, &distance) in (first..).zip(distances.iter()) {
                scratch.frontier.insert(key(distance, node));
            }
        }
        computations + nodes as u64
    }

    pub(crate) fn file(&self) -> &NavigationFile {
        &self.file
    }
}

/// Walks a graph in memory. `links_of` returns the neighbours of a node.
pub(crate) fn walk<'g>(
    entry: u32,
    links_of: impl Fn(u32) -> &'g [u32],
    vectors: &[u8],
    (kernel, query): (&Kernel, &[u8]),
    list: usize,
    scratch: &mut NavigationScratch,
) -> u64 {
    let NavigationScratch {
        frontier,
        visited,
        fresh,
        distances,
        ..
    } = scratch;
    frontier.clear(list, 1, list);
    visited.clear(list);
    fresh.clear();
    visited.insert(entry);
    fresh.push(entry);
    let mut computations = 0;
    loop {
        distances.resize(fresh.len(), 0.0);
        kernel.distances(query, vectors, fresh, distances);
        computations += fresh.len() as u64;
        for (&node, &distance) in fresh.iter().zip(distances.iter()) {
            frontier.insert(key(distance, node));
        }
        let Some(next) = frontier.take_unread() else {
            return computations;
        };
        fresh.clear();
        for &link in links_of(node_of(next)) {
            if visited.insert(link) {
                fresh.push(link);
            }
        }
    }
}

impl NavigationScratch {
    pub(crate) fn found(&self) -> impl Iterator<Item = (f32, u32)> {
        let keys = self.frontier.keys();
        keys.map(|key| (distance_of(key), node_of(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::random::Random;

    const DIM: usize = 48;
    const NODES: usize = 600;

    fn rows(count: usize, seed: u64, offset: f32) -> Vec<f32> {
        let mut random = Random::new(seed);
        let mut unit = || random.below(2_001) as f32 / 1_000.0 - 1.0;
        let centres: Vec<f32> = (0..8 * DIM).map(|_| unit()).collect();
        (0..count * DIM)
            .map(|at| {
                let (row, element) = (at / DIM, at % DIM);
                let beside = if element == 0 { offset } else { 0.0 };
                centres[row % 8 * DIM + element] + 0.3 * unit() + beside
            })
            .collect()
    }

    /// Each node has 24 links, to nodes whose numbers are larger by square numbers.
    fn graph(rows: &[f32]) -> NavigationFile {
        let (mut links, mut offsets) = (Vec::new(), vec![0]);
        for node in 0..NODES as u32 {
            links.extend((1..=24).map(|step| (node + step * step) % NODES as u32));
            offsets.push(links.len() as u32);
        }
        NavigationFile {
            entry: 0,
            nodes: (0..NODES as u32).collect(),
            offsets,
            links,
            vectors: rows.iter().flat_map(|x| x.to_le_bytes()).collect(),
            step: None,
        }
    }

    #[test]
    fn rounded_vectors_lead_to_the_same_seeds() {
        for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
            let whole = graph(&rows(NODES, 1, 0.0));
            let file = rounded(whole.clone(), metric, Element::F32, DIM);
            assert!(file.step.is_some(), "{metric}");
            assert_eq!(file.vectors.len(), NODES * DIM);
            let one = Navigation::of_rows(whole, metric, Element::F32, DIM);
            let other = Navigation::of_rows(file, metric, Element::F32, DIM);
            let kernel = Kernel::new(metric, Element::F32, DIM);
            let (mut same, mut all) = (0, 0);
            let (mut a, mut b) = (NavigationScratch::default(), NavigationScratch::default());
            for query in rows(100, 2, 0.0).chunks_exact(DIM) {
                let query: Vec<u8> = query.iter().flat_map(|x| x.to_le_bytes()).collect();
                let exact = one.nearest(&kernel, &query, &mut a);
                let found = other.nearest(&kernel, &query, &mut b);
                assert!(exact.are_exact && !found.are_exact);
                same += found
                    .nodes
                    .iter()
                    .filter(|node| exact.nodes.contains(node))
                    .count();
                all += exact.nodes.len();
                for (&node, &distance) in found.nodes.iter().zip(found.distances) {
                    let bytes = &one.vectors()[node as usize * 4 * DIM..][..4 * DIM];
                    let exact = kernel.distance(&query, bytes);
                    let error = (distance - exact).abs();
                    assert!(
                        error <= 0.01 * exact.abs() + 0.1,
                        "{metric}: {distance}, {exact}"
                    );
                }
            }
            assert!(same * 100 > all * 95, "{metric}: {same} of {all}");
        }
    }

    #[test]
    fn vectors_stay_whole_where_rounded_ones_say_little_and_where_they_are_bytes() {
        // The differences between rows are a hundredth of the step of rounded vectors.
        let far = graph(&rows(NODES, 1, 9_000.0));
        for metric in [Metric::L2, Metric::InnerProduct] {
            assert_eq!(
                rounded(far.clone(), metric, Element::F32, DIM),
                far,
                "{metric}"
            );
        }
        let zeros = graph(&vec![0.0; NODES * DIM]);
        assert_eq!(rounded(zeros.clone(), Metric::L2, Element::F32, DIM), zeros);
        let bytes = graph(&rows(NODES, 1, 0.0));
        let wide = 4 * DIM;
        assert_eq!(rounded(bytes.clone(), Metric::L2, Element::U8, wide), bytes);
    }

    #[test]
    fn where_all_are_equally_far_from_a_query_the_one_that_is_nearer_is_found() {
        // Each vector has one non-zero element, at its own position. Each node links to the next 24
        // nodes.
        let (mut links, mut offsets) = (Vec::new(), vec![0]);
        let mut vectors = vec![0; NODES * NODES];
        for node in 0..NODES {
            links.extend((1..=24).map(|step| ((node + step) % NODES) as u32));
            offsets.push(links.len() as u32);
            vectors[node * NODES + node] = 200;
        }
        let navigation = Navigation::new(NavigationFile {
            entry: 0,
            nodes: (0..NODES as u32).collect(),
            offsets,
            links,
            vectors,
            step: None,
        });
        let mut scratch = NavigationScratch::default();
        for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
            let kernel = Kernel::new(metric, Element::U8, NODES);
            for node in [0, 300, NODES as u32 - 1] {
                let query = navigation.vectors()[node as usize * NODES..][..NODES].to_vec();
                let walked = navigation.walk(&kernel, &query, 20, &mut scratch);
                let is_found = scratch.found().any(|(_, found)| found == node);
                assert_eq!(is_found, node == 0, "{metric}: a walk, {node}");
                let looked = navigation.look(&kernel, &query, 20, &mut scratch);
                let first = scratch.found().next().map(|(_, found)| found);
                assert_eq!(first, Some(node), "{metric}");
                let all = if node == 0 { 0 } else { NODES as u64 };
                assert_eq!(looked, walked + all, "{metric}: {node}");
            }
        }
    }
}
