//! The graph: which node is whose neighbour, which row gets which node id, and where searches start.
//!
//! ```text
//!                              order.rs                  vamana.rs, entry.rs
//!   source ──> space.rs ──> ids in locality order ──> graph of all points ───────────────┐
//!      │       (metric as                                                                ├─> construct.rs
//!      │        squared L2)     partition.rs                                             │   order, rows,
//!      └─ does not fit ──> parts with overlap ──> a graph for each part ──> merged lists ┘   lists, entry
//!         the cap               budget.rs, scratch.rs, reach.rs
//!
//!   one node's turn in vamana.rs:    greedy.rs               prune.rs            adjacency.rs
//!                                search for itself  ──>  nearest, but apart  ──> its list, and back edges
//! ```
//!
//! In the end `equal.rs` links equal rows, of which the prune lets one stand for all, and `reach.rs` links the nodes that no list leads to.
//!
//! `rounding.rs` makes floats a byte each while the graph is built, where that keeps who is near whom; `rows.rs` gives the rows in the order
//! of the nodes, from memory, a scratch file or the source; `kept.rs` has what is kept of a graph for a build that is killed.
//! `shuffle.rs` decides, once there is a graph, which nodes share a page.
//!
//! [`construct()`] does it all. The pieces are public for those who have rows in memory already, such as the navigation
//! graph over a sample: [`Points`], [`locality_order`], [`medoid`], [`build`].

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

use crate::data::DataError;
use std::path::PathBuf;

/// What the build aims at. The names are those that users of DiskANN know.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// R: at most so many neighbours a node; 1 or more.
    pub degree: usize,
    /// L: length of the candidate list while a node searches for its neighbours; 1 or more.
    pub build_list: usize,
    /// Margin of the prune on squared distances, at least 1; larger keeps more long edges.
    pub alpha: f32,
    /// Worker threads; 1 or more.
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

impl From<Interrupted> for GraphError {
    fn from(_: Interrupted) -> GraphError {
        GraphError::Interrupted
    }
}

/// A graph of the first rows of a source, for a build to go on from.
pub trait Known: Sync + std::fmt::Debug {
    /// The first so many rows have lists.
    fn rows(&self) -> usize;
    /// Calls `each` with each of these rows and its neighbours, which are rows as well; there may be more than fit a list,
    /// and what has no room is left out.
    ///
    /// # Errors
    /// They cannot be read.
    fn each(&self, each: &mut dyn FnMut(u32, &[u32])) -> Result<(), GraphError>;
}

/// Why no graph was built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The vectors cannot be read, or cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The cap is below what the build needs with as many parts as there can be.
    #[error(
        "a build of these vectors needs at least {least} bytes of memory, {given} were allowed; raise the cap (--memory)"
    )]
    Memory {
        /// The cap in bytes.
        given: u64,
        /// The least that would do, in bytes.
        least: u64,
    },
    /// More rows than ids.
    #[error("{rows} vectors; one index holds up to {most}")]
    Rows {
        /// Rows of the source.
        rows: usize,
        /// Rows that would be accepted.
        most: usize,
    },
    /// A scratch file of the capped build.
    #[error("{}: cannot {action} a scratch file of the build: {source}", path.display())]
    Scratch {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The graph to go on from cannot be read.
    #[error(transparent)]
    Known(Box<crate::Error>),
    /// The user wanted the work to stop.
    #[error("interrupted")]
    Interrupted,
}
