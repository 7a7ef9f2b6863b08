//! The graph: the adjacency lists of all nodes, the order of the nodes, and the node where searches
//! start.
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
//! At the end `equal.rs` links equal rows, since the prune keeps only one of several equal
//! neighbours. Then `reach.rs` links the nodes to which no list leads.
//!
//! `rounding.rs` rounds floats to a byte each during the build, if that preserves near neighbours.
//! `rows.rs` returns the rows in the order of the nodes, from memory, a scratch file or the source.
//! `kept.rs` saves a partial graph, and restores it if the build was killed. `shuffle.rs` decides
//! which nodes share a page, after the graph is built.
//!
//! [`construct()`] does the whole work. Its parts are public for callers with rows in memory, such
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

use crate::data::DataError;
use std::path::PathBuf;

/// The parameters of the build, under the names that users of DiskANN know.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// The most neighbours of a node (R), 1 or more.
    pub degree: usize,
    /// The list size of the searches that find the neighbours of a node (L), 1 or more.
    pub build_list: usize,
    /// The margin of the prune on squared distances, at least 1. A larger margin keeps more long
    /// edges.
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

/// The caller's [`Progress::interrupted`](crate::progress::Progress::interrupted) stopped the
/// build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl From<Interrupted> for GraphError {
    fn from(_: Interrupted) -> GraphError {
        GraphError::Interrupted
    }
}

/// A graph of the first rows of a source, which a build extends.
pub trait Known: Sync + std::fmt::Debug {
    /// The number of rows that have lists. These are the first rows.
    fn rows(&self) -> usize;
    /// Calls `each` with each row that has a list, and with its neighbours, which are rows as well.
    /// If there are more neighbours than a list may have, the caller drops the last ones.
    ///
    /// # Errors
    /// The lists cannot be read.
    fn each(&self, each: &mut dyn FnMut(u32, &[u32])) -> Result<(), GraphError>;
}

/// The error of a graph that could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The vectors cannot be read, or cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The memory cap is too low for a build in any number of parts.
    #[error(
        "a build of these vectors needs at least {least} bytes of memory; {given} were allowed. Raise the cap (--memory)"
    )]
    Memory {
        /// The cap in bytes.
        given: u64,
        /// The lowest cap that suffices, in bytes.
        least: u64,
    },
    /// The source has more rows than there are ids.
    #[error(
        "{rows} vectors are too many; one index holds up to {most}. Divide them among several indexes"
    )]
    Rows {
        /// Rows of the source.
        rows: usize,
        /// The most rows that are accepted.
        most: usize,
    },
    /// A scratch file of the capped build failed.
    #[error("{}: cannot {action} a scratch file of the build: {source}", path.display())]
    Scratch {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        action: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The graph to extend cannot be read.
    #[error(transparent)]
    Known(Box<crate::Error>),
    /// The user stopped the work.
    #[error("interrupted")]
    Interrupted,
}
