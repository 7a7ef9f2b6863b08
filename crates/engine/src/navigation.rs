//! The navigation graph: a small in-memory graph over a sample of the nodes, from which a search starts near its
//! answer instead of at the medoid.
//!
//! It saves the reads of the approach for about 1 % of the data in RAM. The sample is *stratified* over the node order, so that under locality order every neighbourhood has its
//! share.

use stratann_layout::navigation::NavigationFile;
use stratann_vector::Kernel;

use crate::frontier::{Frontier, distance_of, key, node_of};
use crate::visited::Visited;

/// Candidates kept while walking the navigation graph; they are the seeds of the search proper. PipeANN's is 10.
const LIST: usize = 10;

/// The walk's reusable state.
#[derive(Default)]
pub(crate) struct NavigationScratch {
    frontier: Frontier,
    visited: Visited,
    fresh: Vec<u32>,
    distances: Vec<f32>,
    seeds: Vec<u32>,
    seed_distances: Vec<f32>,
}

/// Where a search starts.
pub(crate) struct Seeds<'a> {
    /// Nodes of the index, nearest first.
    pub(crate) nodes: &'a [u32],
    /// Their exact distances.
    pub(crate) distances: &'a [f32],
    /// What finding them cost.
    pub(crate) distance_computations: u64,
}

/// A graph over sampled nodes with their vectors, all in memory.
#[derive(Debug)]
pub(crate) struct Navigation {
    file: NavigationFile,
}

impl Navigation {
    /// Takes what was read from disk; its ids and links have been checked by the layout.
    pub(crate) fn new(file: NavigationFile) -> Self {
        Self { file }
    }

    /// Its nodes.
    pub(crate) fn nodes(&self) -> usize {
        self.file.nodes.len()
    }

    /// Their vectors, one after the other.
    pub(crate) fn vectors(&self) -> &[u8] {
        &self.file.vectors
    }

    /// Bytes that it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.file.bytes()
    }

    /// The sampled nodes nearest to a query (in the element type of the index).
    pub(crate) fn nearest<'s>(
        &self,
        kernel: &Kernel,
        query: &[u8],
        scratch: &'s mut NavigationScratch,
    ) -> Seeds<'s> {
        let computations = self.walk(kernel, query, LIST, scratch);
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
        seed_distances.extend(frontier.keys().map(distance_of));
        Seeds {
            nodes: seeds,
            distances: seed_distances,
            distance_computations: computations,
        }
    }

    /// Walks to a query with a candidate list of `list`. The places in the sample that it found are in `scratch`; says how many distances
    /// that took.
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

    /// What it was made of.
    pub(crate) fn file(&self) -> &NavigationFile {
        &self.file
    }
}

/// Walks a graph in memory from its entry to a query: `links_of` says the neighbours of a node, `vectors` are those of all nodes, measured
/// by the kernel. As [`Navigation::walk`].
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
    /// What the last walk found: distances and places in the sample, nearest first.
    pub(crate) fn found(&self) -> impl Iterator<Item = (f32, u32)> {
        let keys = self.frontier.keys();
        keys.map(|key| (distance_of(key), node_of(key)))
    }
}
