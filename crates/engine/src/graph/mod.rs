//! The graph. It consists of the adjacency lists of all nodes, the order of the nodes, and the node
//! at which searches start.
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
//! The prune keeps only one of several equal neighbours. So at the end of a build, `equal.rs` links
//! equal rows. Then `reach.rs` links the nodes that no search reaches.
//!
//! `rounding.rs` rounds floats to a byte each during the build, if this preserves near neighbours.
//! `rows.rs` returns the rows in the order of the nodes, from memory, a scratch file or the source.
//! `kept.rs` saves a partial graph, and restores it after the build was killed. After the graph is
//! built, `shuffle.rs` decides which nodes share a page.
//!
//! [`construct()`] does the whole work. Its steps are public for callers with rows in memory, such
//! as the build of the navigation graph over a sample: [`Points`], [`locality_order`], [`medoid`],
//! [`build`].

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

/// The parameters of the build. They have the names that users of DiskANN know.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// The largest number of neighbours of a node (R), 1 or more.
    pub degree: usize,
    /// The list size of the searches that find the neighbours of a node (L), 1 or more.
    pub build_list: usize,
    /// The margin of the prune (alpha), which applies to squared distances. It is at least 1. With
    /// a larger margin, more long edges stay.
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

/// The error of a build that the caller's
/// [`Progress::interrupted`](crate::progress::Progress::interrupted) stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl From<Interrupted> for GraphError {
    fn from(_: Interrupted) -> GraphError {
        GraphError::Interrupted
    }
}

/// A graph of the first rows of a source. A build extends it by the other rows.
pub trait Known: Sync + std::fmt::Debug {
    /// The number of rows that have lists. They are the first rows of the source.
    fn rows(&self) -> usize;
    /// Calls `each` with each row that has a list, and with its neighbours, which are rows as well.
    /// If the list has more neighbours than a list may have, the caller drops the last ones.
    ///
    /// # Errors
    /// The call fails if the lists cannot be read.
    fn each(&self, each: &mut dyn FnMut(u32, &[u32])) -> Result<(), GraphError>;
}
