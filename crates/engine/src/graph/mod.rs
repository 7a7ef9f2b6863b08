//! Building the graph.

mod adjacency;
mod entry;
mod greedy;
mod order;
mod points;
mod prune;
mod random;
mod reach;
mod vamana;

pub use adjacency::Graph;
pub use entry::medoid;
pub use order::locality_order;
pub use points::Points;
pub use vamana::build;

/// What the build aims at. The names are those that users of DiskANN know.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// R: at most so many neighbours a node.
    pub degree: usize,
    /// L: length of the candidate list while a node searches for its neighbours.
    pub build_list: usize,
    /// Margin of the prune on squared distances, at least 1; larger keeps more long edges.
    pub alpha: f32,
    /// Worker threads.
    pub threads: usize,
    /// With one thread, the same seed gives the same graph.
    pub seed: u64,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters {
            degree: 64,
            build_list: 100,
            alpha: 1.2,
            threads: 1,
            seed: 0,
        }
    }
}

/// The build was stopped by the caller's [`Progress::interrupted`](crate::progress::Progress::interrupted).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;
