//! The options of a build.

use std::path::PathBuf;

use stratann_vector::{LowCodes, Metric};

use crate::codebook::Codebook;
use crate::{Compression, Layout, Order, Places, Preset};

/// The options of a build.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// The preset of the index.
    pub preset: Preset,
    /// The metric.
    pub metric: Metric,
    /// R, the largest number of neighbours of a node. `None` means 64. If `search_memory` puts the
    /// codes into the nodes, `None` means the number that fills the blocks of a node.
    pub degree: Option<usize>,
    /// L, the list size of the build. A larger L is slower and finds better neighbours. If R
    /// follows from `space` and is more than 64, L is at least twice R.
    pub build_list: usize,
    /// An edge is dropped if a detour is shorter by this factor of squared distances (as in
    /// DiskANN). The factor is at least 1. With a larger factor, more long edges stay.
    pub alpha: f32,
    /// The bytes of a vector's PQ code. `None` means the code size of `codebook`, or without a
    /// codebook a quarter of the dimensions.
    pub code_bytes: Option<usize>,
    /// The kind of low codes. `None` is the choice of the preset. With low codes, `code_bytes` is
    /// the size of the high codes.
    pub low_codes: Option<LowCodes>,
    /// A codebook, which several indexes can share. With `None`, the build trains one on the rows.
    pub codebook: Option<Codebook>,
    /// The order of nodes. `None` means the choice of the preset.
    pub order: Option<Order>,
    /// The layout of lists and vectors on pages. `None` means the choice of the preset.
    pub layout: Option<Layout>,
    /// The compression of lists and vectors. `None` means the choice of the preset.
    pub compression: Option<Compression>,
    /// C, the uncompressed bytes of a chunk of vectors in the decoupled layout (DecoupleVS §3.3).
    pub chunk_bytes: u64,
    /// The uncompressed bytes of a segment of vectors. Each segment has a codec of its own.
    pub segment_bytes: u64,
    /// The share of nodes in the sample for the navigation graph; 0 for none.
    pub navigation: f64,
    /// The largest amount of memory that the build may use, in bytes. `None` means no limit.
    pub memory: Option<u64>,
    /// The memory that searches will have, in bytes. `None` is enough for all codes. If the memory
    /// is too small for all codes, the build puts the codes into the nodes; a preset with another
    /// layout is refused. The memory also decides whether large vectors are in two parts.
    pub search_memory: Option<u64>,
    /// The largest number of bytes that the index may take on storage, before later inserts. R is
    /// then the largest degree from 16 to 96 with which the index is expected to fit. `space` and
    /// `degree` exclude each other.
    pub space: Option<u64>,
    /// The approximate number of vectors in each cluster. `None` means 32, or 12 in `replicated`.
    pub cluster_size: Option<usize>,
    /// The largest number of clusters that a vector of a cluster index may be in. `None` means 8.
    pub replicas: Option<usize>,
    /// A file of recorded queries, for the layout `grouped`. Of the clusters of a vector, the
    /// vector is stored in the group of the cluster that these queries probe most often. `None`
    /// assumes equal frequencies. A merge does not use the file.
    pub query_log: Option<PathBuf>,
    /// Whether the build measures which list size reaches which recall. The measurement needs a
    /// pass over the rows and some hundred searches. A build of fewer than 5,000 rows does not
    /// measure.
    pub calibrate: bool,
    /// The number of OS threads. With one thread, the same rows and seed give the same graph. A
    /// cluster index is the same with any number of threads.
    pub threads: usize,
    /// The seed of all random choices.
    pub seed: u64,
    /// The external id of each row. `None` means that ids are row numbers.
    pub ids: Option<Vec<u64>>,
    /// Whether the build may replace an existing index, atomically when the new one is complete.
    pub overwrite: bool,
    /// Whether a build leaves savepoints if it fails or is killed. The next build of the same rows
    /// with the same options resumes from them, and removes them when it succeeds. Savepoints cost
    /// one pass to hash the rows, and the bytes of the graph.
    pub resume: bool,
    /// The least seconds of work between two savepoints of the graph. With 0, savepoints are
    /// written whenever possible.
    pub savepoint_seconds: f64,
    /// Tiers to which the build copies files for searches after the commit. The copies do not count
    /// as memory of the build.
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
    /// A cluster layout loses the options of graphs, and gets small clusters.
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

    /// The options that determine the index. Savepoints record them by the names that users know.
    pub(crate) fn named(&self) -> Vec<(&'static str, String)> {
        // The pattern names every field, so that the compiler reports a missing new option.
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
            // Calibration measures the finished index and does not change it.
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
            // With one thread, the rows determine the graph. With several threads they do not.
            (
                "threads",
                if *threads == 1 { "one" } else { "several" }.into(),
            ),
            ("seed", seed.to_string()),
            ("ids", said(&ids)),
        ]
    }
}
