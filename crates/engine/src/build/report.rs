//! The report of a build.

use serde::Serialize;

use super::SpaceChoice;
use crate::Layout;
use crate::fill::BlockFill;

/// The report of a build.
#[derive(Clone, Debug, Serialize)]
pub struct BuildReport {
    /// The number of vectors in the index.
    pub vectors: usize,
    /// The name of each stage and its wall-clock time in seconds, in order.
    pub stages: Vec<(String, f64)>,
    /// The wall-clock time of the whole build in seconds.
    pub seconds: f64,
    /// The CPU time of the process during the build, in seconds.
    pub cpu_seconds: f64,
    /// The largest resident memory of the process up to the end of the build, in bytes.
    pub peak_rss_bytes: u64,
    /// The mean degree of the graph's nodes.
    pub degree_mean: f64,
    /// R, the largest number of neighbours of a node. It is 0 in a cluster index.
    pub degree: usize,
    /// The reasons for this degree, if it follows from a space budget.
    pub space: Option<SpaceChoice>,
    /// L, the list size of the build; 0 in a cluster index.
    pub build_list: usize,
    /// The number of parts in which the graph was built; 1 if the memory budget sufficed.
    pub parts: usize,
    /// The bytes of the index on storage.
    pub bytes: u64,
    /// The layout of lists and vectors.
    pub layout: Layout,
    /// The codec of lists.
    pub list_codec: String,
    /// The codec of vectors.
    pub vector_codec: String,
    /// The share of blocks that nodes use, in the inline layout.
    pub fill: Option<BlockFill>,
    /// The number of clusters. `None` for a graph index.
    pub clusters: Option<u64>,
    /// The work from savepoints of an earlier build, in order: "order", "graph, pass 2 of 2: 60 %",
    /// "codebook".
    pub resumed: Vec<String>,
    /// The bytes of savepoints that the build wrote.
    pub savepoint_bytes: u64,
}
