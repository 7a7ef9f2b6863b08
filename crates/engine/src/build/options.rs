//! The options of a build, and its report.

use std::path::PathBuf;

use serde::Serialize;
use stratann_vector::{LowCodes, Metric};

use super::SpaceChoice;
use crate::codebook::Codebook;
use crate::fill::BlockFill;
use crate::{Compression, Layout, Order, Places, Preset};

/// The options of a build.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// The preset of the index.
    pub preset: Preset,
    /// The metric.
    pub metric: Metric,
    /// R, the most neighbours of a node. `None` means 64. If `search_memory` puts the codes into
    /// the nodes, `None` means as many neighbours as fill the blocks of a node.
    pub degree: Option<usize>,
    /// L, the length of the candidate list of the build. A longer list is slower and finds better
    /// neighbours. If R follows from `space` and is more than 64, L is at least twice R.
    pub build_list: usize,
    /// The factor by which a detour must be shorter for an edge to be dropped, on squared distances
    /// (DiskANN's convention). At least 1. A larger factor keeps more long edges.
    pub alpha: f32,
    /// The bytes of a vector's PQ code. `None` means the code size of the codebook, or a quarter of
    /// the dimensions.
    pub code_bytes: Option<usize>,
    /// The kind of low codes, for a preset with codes of two precisions; `None` is the preset's
    /// choice. `code_bytes` is then the size of the high codes.
    pub low_codes: Option<LowCodes>,
    /// A codebook to use, so that several indexes can share it. If `None`, one is trained on the
    /// rows.
    pub codebook: Option<Codebook>,
    /// The order of nodes; `None` is the preset's choice.
    pub order: Option<Order>,
    /// The layout of lists and vectors on pages; `None` is the preset's choice.
    pub layout: Option<Layout>,
    /// The compression of lists and vectors; `None` is the preset's choice.
    pub compression: Option<Compression>,
    /// C, the uncompressed bytes of a chunk of vectors in the decoupled layout (DecoupleVS §3.3).
    pub chunk_bytes: u64,
    /// The uncompressed bytes of a segment of vectors. Each segment has one trained codec.
    pub segment_bytes: u64,
    /// The share of nodes that are sampled into the navigation graph; 0 for no such graph.
    pub navigation: f64,
    /// The most memory that the build may use, in bytes; `None` for no limit.
    pub memory: Option<u64>,
    /// The memory that searches will have, in bytes; `None` means enough for all codes. If all
    /// codes do not fit it, a preset that leaves the layout open puts the codes into the nodes, and
    /// any other preset is refused. If vectors are large, it also decides whether they are stored
    /// whole or in two parts.
    pub search_memory: Option<u64>,
    /// The most bytes that the index may take on storage. R is the largest degree from 16 to 96
    /// with which the index is expected to fit, by a sample of the vectors. It excludes `degree`.
    /// Later inserts may exceed the limit.
    pub space: Option<u64>,
    /// In a cluster index: about how many vectors each cluster has. `None` means 12 if each vector
    /// is stored in all of its clusters, and 32 if it is stored once.
    pub cluster_size: Option<usize>,
    /// In a cluster index: the most clusters to which a vector belongs; `None` means 8.
    pub replicas: Option<usize>,
    /// In a cluster index: a file of recorded queries. If each vector is stored in the group of one
    /// of its clusters, that is the cluster that these queries probe most often. `None` assumes
    /// that all clusters are probed equally often. A merge does not use the file.
    pub query_log: Option<PathBuf>,
    /// Whether to measure which list size reaches which recall, so that searches can ask for a
    /// recall. The measurement costs a pass over the rows and some hundred searches. It is left out
    /// if there are fewer than 5,000 rows.
    pub calibrate: bool,
    /// The number of OS threads. A graph index is the same each time with one thread and the same
    /// seed. A cluster index is the same with any number of threads.
    pub threads: usize,
    /// The seed of all random choices.
    pub seed: u64,
    /// The external id of each row; `None` is the row number.
    pub ids: Option<Vec<u64>>,
    /// Whether to replace an existing index. It is replaced atomically, once the new one is
    /// complete.
    pub overwrite: bool,
    /// Whether the build keeps savepoints in the index's directory. If a build is killed,
    /// interrupted or fails, the next build of the same rows and options resumes from its
    /// savepoints. A build that succeeds removes them. The costs are one pass to hash the rows, and
    /// the bytes of the graph for each savepoint.
    pub resume: bool,
    /// With `resume`: the least seconds of work between two savepoints of the graph. 0 means a
    /// savepoint whenever possible, at any cost.
    pub savepoint_seconds: f64,
    /// The tiers to which files are copied for searches after the commit. The first process that
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
    /// The same options, changed so that they suit any layout. For a cluster layout, options that
    /// apply only to graphs are removed, and clusters get a few vectors.
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

    /// The options that determine the index, by the names that users know. Savepoints record them.
    pub(crate) fn named(&self) -> Vec<(&'static str, String)> {
        // Every field is named here, so that the compiler reports a new option that is not.
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
            // Calibration measures the finished index only.
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
            // With one thread, the rows determine the graph. With several, a savepoint of two
            // threads is as good for three.
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
    /// The number of vectors in the index.
    pub vectors: usize,
    /// The wall-clock seconds of each stage, in order.
    pub stages: Vec<(String, f64)>,
    /// The wall-clock seconds of the whole build.
    pub seconds: f64,
    /// The CPU seconds of the process during the build.
    pub cpu_seconds: f64,
    /// The most resident memory of the process so far, in bytes.
    pub peak_rss_bytes: u64,
    /// The mean degree of the graph.
    pub degree_mean: f64,
    /// R, the most neighbours of a node, as given or as derived from a space budget; 0 in a cluster
    /// index.
    pub degree: usize,
    /// The reasons for that degree, if it follows from a space budget.
    pub space: Option<SpaceChoice>,
    /// L, the length of the candidate list of the build; 0 in a cluster index.
    pub build_list: usize,
    /// The number of parts in which the collection was built; 1 if it fit the memory budget.
    pub parts: usize,
    /// The bytes of the index on storage.
    pub bytes: u64,
    /// The layout of lists and vectors.
    pub layout: Layout,
    /// The codec of lists.
    pub list_codec: String,
    /// The codec of vectors.
    pub vector_codec: String,
    /// How nodes fill their blocks, in the inline layout.
    pub fill: Option<BlockFill>,
    /// The number of clusters, in a cluster index.
    pub clusters: Option<u64>,
    /// The work that was taken from savepoints of an earlier build, in order: "order", "graph, pass
    /// 2 of 2: 60 %", "codebook".
    pub resumed: Vec<String>,
    /// The bytes of savepoints that were written.
    pub savepoint_bytes: u64,
}
