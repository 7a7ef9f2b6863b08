//! The options of a build, and its report.

use std::path::PathBuf;

use serde::Serialize;
use stratann_vector::{LowCodes, Metric};

use super::SpaceChoice;
use crate::codebook::Codebook;
use crate::fill::BlockFill;
use crate::{Compression, Layout, Order, Places, Preset};

/// How to build an index.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// The preset that the index is built for.
    pub preset: Preset,
    /// The metric.
    pub metric: Metric,
    /// R, the most neighbours of a node. `None` is 64. If `search_memory` puts the codes into the
    /// nodes, `None` is as many as fill their blocks.
    pub degree: Option<usize>,
    /// L, the candidate list of the build: a larger one is slower and finds better neighbours. With
    /// `space` and a degree of more than 64, at least twice the degree.
    pub build_list: usize,
    /// How much nearer a detour must be for an edge to be dropped, as a factor on squared distances
    /// (DiskANN's convention). At least 1; a larger value keeps more long edges.
    pub alpha: f32,
    /// Bytes of a vector's PQ code. `None` takes the codebook's size, or a quarter of the
    /// dimensions.
    pub code_bytes: Option<usize>,
    /// The kind of low codes, for a preset with codes of two precisions; `None` is the preset's
    /// choice. `code_bytes` is then the size of the high codes.
    pub low_codes: Option<LowCodes>,
    /// A codebook to use, so that several indexes can share it. `None` trains one on the rows.
    pub codebook: Option<Codebook>,
    /// The order of nodes; `None` is the preset's choice.
    pub order: Option<Order>,
    /// The layout of lists and vectors on pages; `None` is the preset's choice.
    pub layout: Option<Layout>,
    /// The compression of lists and vectors; `None` is the preset's choice.
    pub compression: Option<Compression>,
    /// C, the uncompressed bytes of a chunk of vectors in the decoupled layout (DecoupleVS §3.3).
    pub chunk_bytes: u64,
    /// The uncompressed bytes of a segment of vectors; each segment has one trained codec.
    pub segment_bytes: u64,
    /// The share of nodes sampled into the navigation graph; 0 for none.
    pub navigation: f64,
    /// The most memory that the build may use, in bytes; `None` for no limit.
    pub memory: Option<u64>,
    /// The memory that searches will have, in bytes. If it cannot hold all codes, a preset that
    /// leaves the layout open puts the codes into the nodes, and any other preset is refused. For
    /// large vectors it also decides whether they are stored whole or in two parts. `None` means
    /// enough for the codes.
    pub search_memory: Option<u64>,
    /// The most bytes that the index may take on storage. R is the largest of 16 to 96 that is
    /// expected to fit, by a sample of the vectors. It excludes `degree`. Later inserts may exceed
    /// it.
    pub space: Option<u64>,
    /// In a cluster index: about how many vectors each cluster has. `None` is 12 if each vector is
    /// stored in all of its clusters, and 32 if it is stored once.
    pub cluster_size: Option<usize>,
    /// In a cluster index: the most clusters that a vector is a member of; `None` is 8.
    pub replicas: Option<usize>,
    /// In a cluster index: a file of recorded queries. If each vector is stored in the group of one
    /// of its clusters, that is the cluster which these queries probe most often. `None` assumes
    /// that all clusters are probed alike. A merge does not use the file.
    pub query_log: Option<PathBuf>,
    /// Whether to measure which list size reaches which recall, so that searches can ask for a
    /// recall. Calibration costs a pass over the rows and some hundred searches. It is left out for
    /// fewer than 5,000 rows.
    pub calibrate: bool,
    /// OS threads. In a graph index, one thread and a seed give the same index each time. A cluster
    /// index is the same with any number of threads.
    pub threads: usize,
    /// Seed of every random choice.
    pub seed: u64,
    /// The external id of each row; `None` is the row number.
    pub ids: Option<Vec<u64>>,
    /// Whether to replace an existing index, atomically, once the new one is complete.
    pub overwrite: bool,
    /// Whether the build keeps savepoints in the index's directory. A killed, interrupted or failed
    /// build of the same rows and options is then resumed from its savepoints. A build that
    /// succeeds removes them. The cost is one pass to hash the rows, and the bytes of the graph
    /// once for each savepoint.
    pub resume: bool,
    /// With `resume`: the least seconds of work between two savepoints of the graph. 0 makes a
    /// savepoint whenever possible, at any cost.
    pub savepoint_seconds: f64,
    /// The tiers to copy files to for searches, once the index is committed. The first process that
    /// opens the index with the same places then finds the copies. The copies do not count as
    /// memory of the build.
    pub places: Places,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self {
            preset: Preset::default(),
            metric: Metric::L2,
            degree: None,
            build_list: 100,
            alpha: 1.2,
            code_bytes: None,
            low_codes: None,
            codebook: None,
            order: None,
            layout: None,
            compression: None,
            chunk_bytes: 4 << 20,
            segment_bytes: 512 << 20,
            navigation: 0.01,
            memory: None,
            search_memory: None,
            space: None,
            cluster_size: None,
            replicas: None,
            query_log: None,
            calibrate: true,
            threads: crate::threads::processors(),
            seed: 42,
            ids: None,
            overwrite: false,
            resume: false,
            savepoint_seconds: 120.0,
            places: Places::default(),
        }
    }
}

impl BuildOptions {
    /// The same options for any layout. If it is a cluster layout, options that only graphs have
    /// are removed, and clusters get a few vectors.
    #[cfg(test)]
    pub(crate) fn in_any_layout(self) -> Self {
        match self
            .layout
            .or(self.preset.layout)
            .is_some_and(Layout::has_clusters)
        {
            false => self,
            true => Self {
                degree: None,
                build_list: Self::default().build_list,
                alpha: Self::default().alpha,
                code_bytes: None,
                low_codes: None,
                codebook: None,
                order: None,
                compression: None,
                cluster_size: Some(6),
                ..self
            },
        }
    }

    /// The options that determine the index, by the names that users know, for savepoints.
    pub(crate) fn named(&self) -> Vec<(&'static str, String)> {
        // Every field is named, so that the compiler asks where a new option belongs.
        let Self {
            preset,
            metric,
            degree,
            build_list,
            alpha,
            code_bytes,
            low_codes,
            codebook,
            order,
            layout,
            compression,
            chunk_bytes,
            segment_bytes,
            navigation,
            memory,
            search_memory,
            space,
            cluster_size,
            replicas,
            query_log,
            threads,
            seed,
            ids,
            overwrite: _,
            resume: _,
            savepoint_seconds: _,
            places: _,
            // Calibration measures the finished index.
            calibrate: _,
        } = self;
        fn said<T: std::fmt::Display>(value: &Option<T>) -> String {
            value.as_ref().map_or("none".into(), T::to_string)
        }
        let ids = ids.as_ref().map(|ids| {
            let mut hasher = blake3::Hasher::new();
            for id in ids {
                hasher.update(&id.to_le_bytes());
            }
            hasher.finalize()
        });
        vec![
            ("preset", format!("{preset:?}")),
            ("metric", metric.to_string()),
            ("degree", said(degree)),
            ("build list", build_list.to_string()),
            ("alpha", alpha.to_string()),
            ("code bytes", said(code_bytes)),
            ("low codes", said(low_codes)),
            ("codebook", said(&codebook.as_ref().map(Codebook::hash))),
            ("order", said(order)),
            ("layout", said(layout)),
            ("compression", said(compression)),
            ("chunk bytes", chunk_bytes.to_string()),
            ("segment bytes", segment_bytes.to_string()),
            ("navigation", navigation.to_string()),
            ("memory", said(memory)),
            ("search memory", said(search_memory)),
            ("space", said(space)),
            ("cluster size", said(cluster_size)),
            ("replicas", said(replicas)),
            (
                "query log",
                said(&query_log.as_ref().map(|path| path.display())),
            ),
            // With one thread the graph follows from the rows. A savepoint of two threads serves
            // three as well.
            (
                "threads",
                if *threads == 1 { "one" } else { "several" }.into(),
            ),
            ("seed", seed.to_string()),
            ("ids", said(&ids)),
        ]
    }
}

/// The report of a build.
#[derive(Clone, Debug, Serialize)]
pub struct BuildReport {
    /// Vectors in the index.
    pub vectors: usize,
    /// Wall-clock seconds of each stage, in order.
    pub stages: Vec<(String, f64)>,
    /// Wall-clock seconds in all.
    pub seconds: f64,
    /// CPU seconds of the process during the build.
    pub cpu_seconds: f64,
    /// The most resident memory of the process so far, in bytes.
    pub peak_rss_bytes: u64,
    /// Mean degree of the graph.
    pub degree_mean: f64,
    /// R, the most neighbours of a node, as given or as derived from a space budget; 0 in a cluster
    /// index.
    pub degree: usize,
    /// Why that R, if it follows from a space budget.
    pub space: Option<SpaceChoice>,
    /// L, the candidate list with which neighbours were searched; 0 in a cluster index.
    pub build_list: usize,
    /// Parts that the collection was built in; 1 if it fit the memory budget.
    pub parts: usize,
    /// Bytes of the index on disk.
    pub bytes: u64,
    /// The layout of lists and vectors.
    pub layout: Layout,
    /// The codec of lists.
    pub list_codec: String,
    /// The codec of vectors.
    pub vector_codec: String,
    /// How nodes fill their blocks, in the inline layout.
    pub fill: Option<BlockFill>,
    /// Clusters, in a cluster index.
    pub clusters: Option<u64>,
    /// The work taken over from savepoints of an earlier build, in order: "order", "graph, pass 2
    /// of 2: 60 %", "codebook".
    pub resumed: Vec<String>,
    /// Bytes of savepoints that were written.
    pub savepoint_bytes: u64,
}
