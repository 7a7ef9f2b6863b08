//! What a build is told, and what it says that it did.

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
    /// The row of choices that the index is built for.
    pub preset: Preset,
    /// What "near" means.
    pub metric: Metric,
    /// R, the most neighbours of a node; `None` is 64, or where `search_memory` puts the codes into the nodes, as many as
    /// fill their blocks.
    pub degree: Option<usize>,
    /// L, the candidate list of the build: larger is slower and better. With `space`, at least twice a degree of more than 64.
    pub build_list: usize,
    /// How much nearer a detour must be for an edge to be dropped, as a factor on squared distances (DiskANN's
    /// convention); at least 1, and larger keeps more long edges.
    pub alpha: f32,
    /// Bytes of a vector's PQ code; `None` is the codebook's, or a quarter of the dimensions.
    pub code_bytes: Option<usize>,
    /// What low codes are, in a preset whose codes are of two precisions; `None` is the preset's choice. `code_bytes` are those of the high ones.
    pub low_codes: Option<LowCodes>,
    /// The codebook to use, so that it is shared with other indexes; `None` trains one on the rows.
    pub codebook: Option<Codebook>,
    /// How node ids are assigned; `None` is the preset's choice.
    pub order: Option<Order>,
    /// How lists and vectors become bytes; `None` is the preset's choice.
    pub layout: Option<Layout>,
    /// How they are compressed; `None` is the preset's choice.
    pub compression: Option<Compression>,
    /// C, the uncompressed bytes of a chunk of vectors in the decoupled layout (DecoupleVS §3.3).
    pub chunk_bytes: u64,
    /// The uncompressed bytes of a segment of vectors, which is compressed as one.
    pub segment_bytes: u64,
    /// The share of nodes sampled into the navigation graph; 0 for none.
    pub navigation: f64,
    /// The most memory that the build may use, in bytes; `None` is as much as it wants.
    pub memory: Option<u64>,
    /// The memory that searches will have. Where it cannot hold all codes, a preset that leaves the layout open puts them
    /// into the nodes; another one is refused. Of large vectors it says whether they are kept in two parts or whole. `None` is enough for the codes.
    pub search_memory: Option<u64>,
    /// The most bytes that the index may take on storage: R is the largest of 16 to 96 with which it is expected to, by a sample of the
    /// vectors. Not together with `degree`. What comes later, by inserts, is beyond it.
    pub space: Option<u64>,
    /// In a cluster index: vectors for each cluster, about; `None` is 12 where each vector stands in all of its clusters, and 32 where it stands
    /// once.
    pub cluster_size: Option<usize>,
    /// In a cluster index: the most clusters that a vector is a member of; `None` is 8.
    pub replicas: Option<usize>,
    /// In a cluster index: a file of queries, as they come. Where each vector stands in the group of one of its clusters, that is then the
    /// one which they probe most; `None` takes all clusters to be probed alike. A merge does not know of it.
    pub query_log: Option<PathBuf>,
    /// Whether it is measured how much searches find with which list, so that they can be asked for a recall; of fewer than 5,000 rows, and of clusters, it is
    /// not. A pass over the rows and some hundred searches.
    pub calibrate: bool,
    /// OS threads. One thread and a seed give the same index each time; with clusters any number does.
    pub threads: usize,
    /// Seed of every random choice.
    pub seed: u64,
    /// The outside id of each row; `None` is the row number.
    pub ids: Option<Vec<u64>>,
    /// Whether an index that is already there is replaced, atomically, when the new one is whole.
    pub overwrite: bool,
    /// Whether the build keeps savepoints in the index's directory, and goes on from those that a build of the same rows and options left
    /// there when it was killed, interrupted or failed. A build that succeeds removes them. Costs a pass over the rows, which are
    /// hashed, and the bytes of the graph once for each savepoint.
    pub resume: bool,
    /// With `resume`: the least seconds of work between two savepoints of the graph. 0 is as often as there can be one, whatever it costs.
    pub savepoint_seconds: f64,
    /// Where copies are made of what searches read, once the index is committed, so that the first to open it with the same places finds them.
    /// Not in the memory of the build.
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
    /// The same in any layout: where it is one of clusters, without what only graphs have, and with clusters of a few vectors.
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

    /// What of the options the index follows from, by the names that a user knows, for savepoints.
    pub(crate) fn named(&self) -> Vec<(&'static str, String)> {
        // All by name: an option that is added has to be put here or there.
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
            // Measured of what was built.
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
            // With one thread the graph follows from the rows; what two made is as good for three.
            (
                "threads",
                if *threads == 1 { "one" } else { "several" }.into(),
            ),
            ("seed", seed.to_string()),
            ("ids", said(&ids)),
        ]
    }
}

/// What a build did.
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
    /// The most memory the process has had resident so far.
    pub peak_rss_bytes: u64,
    /// Mean degree of the graph.
    pub degree_mean: f64,
    /// R, the most neighbours of a node, as it was asked for or follows from a budget of space; 0 in a cluster index.
    pub degree: usize,
    /// Why that R, where it follows from a budget of space.
    pub space: Option<SpaceChoice>,
    /// L, the candidate list that neighbours were looked for with; 0 in a cluster index.
    pub build_list: usize,
    /// Parts that the collection was built in; 1 if it fit the memory budget.
    pub parts: usize,
    /// Bytes of the index on disk.
    pub bytes: u64,
    /// How lists and vectors became bytes.
    pub layout: Layout,
    /// What lists are coded with.
    pub list_codec: String,
    /// What vectors are coded with.
    pub vector_codec: String,
    /// How nodes fill their blocks, in the inline layout.
    pub fill: Option<BlockFill>,
    /// Clusters, in a cluster index.
    pub clusters: Option<u64>,
    /// What was taken over from savepoints of a build before, in order: "order", "graph, pass 2 of 2: 60 %", "codebook".
    pub resumed: Vec<String>,
    /// Bytes of savepoints that were written.
    pub savepoint_bytes: u64,
}
