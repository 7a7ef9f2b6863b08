//! The graph: the adjacency lists of all nodes, their order, and the node at which searches start.
//!
//! ```text
//!                               order.rs                   vamana.rs, entry.rs
//!   source ──> space.rs ──> ids in locality order ──> graph of all points ────────┐
//!      │       (metric as                                                         ├─> construct.rs
//!      │        squared L2)     partition.rs                                      │   order, rows,
//!      └─ too large ──> parts with overlap ──> a graph of each ──> merged lists ──┘   lists, entry
//!                         budget.rs, scratch.rs, reach.rs
//!
//!   an insert in vamana.rs:    greedy.rs              prune.rs             adjacency.rs
//!                         search for itself ──> nearest, but apart ──> its list, and back edges
//! ```
//!
//! The prune keeps only one of several equal rows, so `equal.rs` links equal rows at the end of the
//! build. Before and after this step, `reach.rs` links the nodes that no search reaches.
//! `rounding.rs` rounds floats during the build, `kept.rs` saves a partial graph, and `shuffle.rs`
//! decides which nodes share a page.
//!
//! [`construct()`] does the whole work. Its steps are public for callers with rows in memory:
//! [`Points`], [`locality_order`], [`medoid`], [`build`].

mod adjacency;
mod budget;
mod construct;
mod entry;
mod equal;
mod greedy;
mod joined;
mod kept;
mod order;
mod partition;
mod points;
mod prune;
pub(crate) mod random;
mod reach;
mod rounding;
mod rows;
mod scratch;
mod shuffle;
mod space;
#[cfg(test)]
mod tests;
mod vamana;

pub use construct::{Constructed, Lists, Order, Task, construct};
pub(crate) use construct::{needs, resident_bytes};
use entry::medoid;
pub(crate) use greedy::Candidate;
use order::locality_order;
pub(crate) use points::Points;
pub(crate) use prune::{Pruner, Rule};
pub(crate) use rows::NodeRows;
pub(crate) use shuffle::{Filling, shuffle};
pub(crate) use space::Space;

pub use crate::error::GraphError;

/// The parameters of the build, with the names of DiskANN.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// The largest number of neighbours of a node (R), 1 or more.
    pub degree: usize,
    /// The list size of the searches that find the neighbours of a node (L), 1 or more.
    pub build_list: usize,
    /// The margin of the prune (alpha) on squared distances, at least 1.
    pub alpha: f32,
    /// The number of worker threads, 1 or more.
    pub threads: usize,
    /// The seed of all random choices. With one thread, the same seed gives the same graph.
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

/// The error of a build that [`Progress`](crate::progress::Progress) interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl From<Interrupted> for GraphError {
    fn from(_: Interrupted) -> GraphError {
        GraphError::Interrupted
    }
}

/// A graph of the first rows of a source, which a build extends.
pub trait Known: Sync + std::fmt::Debug {
    /// The number of rows that have lists. They are the first rows of the source.
    fn rows(&self) -> usize;
    /// Calls `each` with each of these rows and its neighbours. If there are too many neighbours,
    /// the caller drops the last ones.
    ///
    /// # Errors
    /// The lists cannot be read.
    fn each(&self, each: &mut dyn FnMut(u32, &[u32])) -> Result<(), GraphError>;
}
