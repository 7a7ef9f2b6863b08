//! Statistics of an index, which `stratann stats` prints.

use serde::Serialize;
use stratann_layout::{CoupledShape, FileEntry, FileKind, IndexKind, Manifest, Role, stream};

use super::{DirectCounts, IndexHealth, far_grown, found_badly};
use crate::fill::BlockFill;
use crate::index::Index;
use crate::overlay::Overlay;
use crate::plan::MemoryPlan;
use crate::stores::codes::Codes;
use crate::stores::{ClusterStores, Composition};
use crate::{Calibrated, LiveRecall, RecallWatch};

/// Facts about an index. The keys of their JSON (`stratann stats --json`) are a stable interface.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// The preset with which the index was built.
    pub preset: String,
    /// The number of vectors on storage, including deleted vectors and direct inserts.
    pub vectors: u64,
    /// The number of vectors that searches find, in the checkpoint and in the log.
    pub live: u64,
    /// The reason for which a merge is due (`stratann compact`). `None` if no merge is due.
    pub due: Option<String>,
    /// The dimension of the vectors.
    pub dimension: u32,
    /// The element type of the vectors.
    pub element: String,
    /// The metric.
    pub metric: String,
    /// The mean degree of the nodes. In a cluster index, all numbers of a graph are 0.
    pub degree_mean: f64,
    /// The largest degree.
    pub degree_max: u32,
    /// R, the degree bound of the build.
    pub degree: u32,
    /// L, the list size of the build.
    pub build_list: u32,
    /// The parameter alpha of the build.
    pub alpha: f32,
    /// The assignment of node numbers to rows.
    pub order: String,
    /// The layout on disk: `coupled`, `packed`, `decoupled`, `inline`, `csr` or `layered` for a
    /// graph; `replicated`, `addressed` or `grouped` for clusters.
    pub layout: String,
    /// The compression of lists and vectors.
    pub compression: Codecs,
    /// The bytes of the code of one vector.
    pub code_bytes: u32,
    /// The content hash of the codebook. It is empty below format version 3.
    pub codebook: String,
    /// The share of blocks that nodes use, in the layout `inline` only.
    pub fill: Option<BlockFill>,
    /// The number of nodes in the navigation graph; 0 if there is none.
    pub navigation_nodes: u64,
    /// Facts about the clusters of a cluster index.
    pub clusters: Option<ClusterStats>,
    /// The bytes of all files, divided by the raw bytes of live vectors: the index amplification of
    /// the paper on second-tier memory, plus 1. 0 without vectors.
    pub amplification: f64,
    /// The bytes on disk of each component.
    pub bytes: Bytes,
    /// The bits of all lists, without the navigation graph, divided by the number of edges.
    pub bits_per_edge: f64,
    /// The raw bytes of the vectors, divided by the bytes of the vectors on disk.
    pub vector_ratio: f64,
    /// The bytes of the same vectors, graph, codes and navigation graph in the coupled layout.
    pub coupled_bytes: u64,
    /// The share of `coupled_bytes` that this index saves: `1 - bytes.total / coupled_bytes`. It
    /// may be negative.
    pub saved: f64,
    /// The saved share for graph and vectors only, the figure of papers.
    pub graph_and_vectors: GraphAndVectors,
    /// The number of vectors of the checkpoint that were deleted or replaced after the checkpoint.
    pub deleted: u64,
    /// The number of deleted vectors whose records are still in segments, since a merge left these
    /// segments unchanged. If there are many such records, a later merge frees their space
    /// (DecoupleVS §3.5).
    pub garbage: u64,
    /// The number of vectors in the log that are not in the checkpoint.
    pub logged: u64,
    /// The bytes of the log's files, which are not in [`Stats::bytes`].
    pub log_bytes: u64,
    /// The bytes that are reserved for deletes on a full disk, in addition to all other bytes. 0 if
    /// the file system cannot reserve blocks.
    pub room_bytes: u64,
    /// The cost of direct inserts since the index was opened for changes. `None` without direct
    /// inserts.
    pub direct: Option<DirectCounts>,
    /// The last health check of a sample ([`Index::health`]), if the index is open for changes.
    pub health: IndexHealth,
    /// The gravest failure in the background, if the index is open for changes, and the reason for
    /// one of four states:
    ///
    /// - The handle takes no more changes.
    /// - A checkpoint may not be durable.
    /// - Vectors that belong in the graph on storage wait in memory.
    /// - The last checkpoint is old.
    ///
    /// Acknowledged changes stay in the log, and searches find them.
    pub trouble: Option<String>,
    /// The queries with which recall was measured. `None` if recall was not measured.
    pub calibrated: Option<Calibrated>,
    /// The recall of served queries, under a [watch](crate::OpenOptions::watch_recall).
    pub live_recall: Option<LiveRecall>,
    /// The division of the memory budget that was given when the index was opened.
    pub memory: MemoryPlan,
    /// The format version of the index.
    pub format_version: u32,
    /// The version of StratANN that wrote the index.
    pub created_by: String,
}

/// Facts about clusters. A cluster index has these facts instead of facts about a graph.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClusterStats {
    /// The present number of clusters. The other fields are facts of the last build or merge.
    pub clusters: u64,
    /// The number of vectors in a cluster that the build aimed for.
    pub size: u32,
    /// The largest number of clusters that a vector may be in.
    pub replicas: u32,
    /// The mean number of clusters that a vector is in.
    pub replicas_mean: f64,
    /// The mean number of members of a cluster.
    pub members_mean: f64,
    /// The number of members of the largest cluster.
    pub members_max: u32,
}

/// The compression of lists and vectors, by the names of the build. Empty in format version 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Codecs {
    /// The codec of lists.
    pub list_codec: String,
    /// The codec of vectors.
    pub vector_codec: String,
}

/// The bytes of pages of lists and vectors, and of the tables needed to read them: the directory
/// and the chunks of segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct GraphAndVectors {
    /// The bytes on disk.
    pub bytes: u64,
    /// The bytes that the same lists and vectors would take in the coupled layout.
    pub coupled_bytes: u64,
    /// The share of `coupled_bytes` that is saved: `1 - bytes / coupled_bytes`.
    pub saved: f64,
}

/// The bytes on disk of each component.
///
/// | component | coupled, inline, csr | packed | decoupled, layered |
/// |---|---|---|---|
/// | graph | for each node, its degree and R links | encoded lists | encoded lists |
/// | vectors | vectors | encoded vectors | encoded vectors, and the files of chunks |
/// | codes | one for each node; in inline R for each node | one for each node | one for each node |
/// | ids | 8 bytes a vector | in `other` | in `other` |
///
/// A file of ids, which exists if ids are not row numbers, adds 12 bytes for each vector to the
/// ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// The bytes of adjacency lists and of the navigation graph.
    pub graph: u64,
    /// The bytes of vectors.
    pub vectors: u64,
    /// The bytes of codes and of the codebook.
    pub codes: u64,
    /// The bytes of ids in the records of the layouts coupled, inline and csr, and of the file of
    /// ids.
    pub ids: u64,
    /// The bytes of the attributes of vectors: of the rows, and of the column index.
    pub columns: u64,
    /// All other bytes: headers, checksums, padding, counts of reads, and pages that direct inserts
    /// appended. If records have different lengths: also their lengths, the ids, the directory and
    /// garbage.
    pub other: u64,
    /// The sum of all components, which is the number of bytes of the files.
    pub total: u64,
}

impl Index {
    pub(crate) fn deleted_in(&self, overlay: &Overlay) -> u64 {
        overlay.deleted.len().saturating_sub(self.placeholders()) as u64
    }

    /// The statistics of the index.
    pub fn stats(&self) -> Stats {
        let manifest = self.manifest();
        let composition = self.composition();
        let (mut bytes, graph_and_vectors) = match &manifest.kind {
            IndexKind::Graph(_) => (bytes(manifest, composition), graph_and_vectors(manifest)),
            IndexKind::Cluster(_) => {
                let id_bytes = self.clusters().map_or(0, ClusterStores::id_bytes);
                let came = self.clusters().map_or(0, ClusterStores::records_since);
                clustered(manifest, id_bytes, came)
            }
        };
        let graph = match &manifest.kind {
            IndexKind::Graph(facts) => Some(facts),
            IndexKind::Cluster(_) => None,
        };
        let placement = manifest.placement.filter(|_| graph.is_some());
        let grown = placement.map_or(0, |placement| {
            let (built, _) = self.graph().files();
            placement.pages.saturating_sub(built.pages) * built.page_bytes as u64
        });
        bytes.other += grown;
        bytes.total += grown;
        let mut coupled_bytes =
            bytes.total - graph_and_vectors.bytes + graph_and_vectors.coupled_bytes;
        if composition.has_codes_in_records() {
            // The coupled layout stores each code once, so the file of entry points is superfluous.
            coupled_bytes += stream::file_length(Codes::of_nodes(manifest));
            coupled_bytes -= bytes_of(manifest, FileKind::Entries);
        }
        let row_bytes = manifest.dimension as usize * manifest.element.size();
        let live_bytes = (self.len() * row_bytes) as u64;
        Stats {
            preset: manifest.preset.clone(),
            vectors: self.len() as u64,
            live: self.live() as u64,
            due: self.due(|| None, || None).map(|due| due.to_string()),
            dimension: manifest.dimension,
            element: manifest.element.to_string(),
            metric: manifest.metric.to_string(),
            degree_mean: graph.map_or(0.0, |graph| graph.degree_mean),
            degree_max: graph.map_or(0, |graph| graph.degree_max),
            degree: graph.map_or(0, |graph| graph.degree),
            build_list: graph.map_or(0, |graph| graph.build_list),
            alpha: graph.map_or(0.0, |graph| graph.alpha),
            order: manifest.order.clone(),
            layout: manifest.layout.clone(),
            compression: Codecs {
                list_codec: manifest.list_codec.clone(),
                vector_codec: manifest.vector_codec.clone(),
            },
            code_bytes: manifest.code_bytes,
            codebook: manifest.codebook.clone(),
            fill: composition.has_codes_in_records().then(|| {
                let (dim, degree) = (
                    manifest.dimension as usize,
                    manifest.graph().degree as usize,
                );
                BlockFill::of(manifest.element, dim, degree, manifest.code_bytes as usize)
            }),
            navigation_nodes: manifest.kind.navigation_nodes(),
            clusters: manifest.clusters().map(|facts| ClusterStats {
                clusters: self
                    .clusters()
                    .map_or(facts.clusters, |now| now.clusters().into()),
                size: facts.size,
                replicas: facts.replicas,
                replicas_mean: facts.members as f64 / manifest.vectors.max(1) as f64,
                members_mean: facts.members as f64 / facts.clusters.max(1) as f64,
                members_max: facts.largest,
            }),
            amplification: match live_bytes {
                0 => 0.0,
                live_bytes => bytes.total as f64 / live_bytes as f64,
            },
            bits_per_edge: graph.map_or(0.0, |graph| {
                8.0 * list_bytes(manifest) as f64 / graph.edges.max(1) as f64
            }),
            vector_ratio: match graph {
                Some(_) => raw_bytes(manifest) as f64 / vector_bytes(manifest).max(1) as f64,
                None => live_bytes as f64 / bytes.vectors.max(1) as f64,
            },
            bytes,
            coupled_bytes,
            saved: saved(bytes.total, coupled_bytes),
            graph_and_vectors,
            deleted: self.overlay().map_or(0, |overlay| self.deleted_in(overlay)),
            garbage: manifest
                .segments
                .iter()
                .map(|segment| u64::from(segment.garbage()))
                .sum(),
            logged: self.overlay().map_or(0, Overlay::logged),
            log_bytes: self.log_bytes(),
            room_bytes: self.room_bytes(),
            direct: None,
            health: IndexHealth::default(),
            trouble: far_grown(self, self.live() as u64).map(found_badly),
            calibrated: self.recall().calibrated(),
            live_recall: (self.options().watch_recall.as_ref()).map(RecallWatch::found),
            memory: MemoryPlan {
                changes: self.overlay().map_or(0, Overlay::memory_bytes),
                ..self.memory().clone()
            },
            format_version: manifest.format_version,
            created_by: manifest.created_by.clone(),
        }
    }
}

/// The components of a cluster index. `came` is the number of vectors in clusters written after the
/// build. Until a merge, the replaced clusters count too.
fn clustered(manifest: &Manifest, id_bytes: usize, came: u64) -> (Bytes, GraphAndVectors) {
    let total = bytes_where(manifest, |_| true);
    let replicated = manifest.layout == FileKind::Replicated.name();
    let copies = match manifest.clusters() {
        Some(facts) if replicated => facts.members.saturating_add(came),
        _ => manifest.nodes(),
    };
    let vector_bytes = u64::from(manifest.dimension) * manifest.element.size() as u64;
    let vectors = copies.saturating_mul(vector_bytes);
    let leads = [
        FileKind::Navigation,
        FileKind::Clusters,
        FileKind::Postings,
        FileKind::Amended,
    ];
    let graph = bytes_where(manifest, |kind| leads.contains(&kind));
    let in_records = copies.saturating_mul(id_bytes as u64);
    let ids = in_records + bytes_where(manifest, |kind| kind.role() == Role::Ids);
    let columns = bytes_where(manifest, |kind| kind.role() == Role::Columns);
    let bytes = Bytes {
        graph,
        vectors,
        codes: 0,
        ids,
        columns,
        // The MANIFEST, which may be wrong, has some of these numbers.
        other: [graph, vectors, ids, columns]
            .into_iter()
            .fold(total, u64::saturating_sub),
        total,
    };
    let graph_and_vectors = GraphAndVectors {
        bytes: total,
        coupled_bytes: total,
        saved: 0.0,
    };
    (bytes, graph_and_vectors)
}

fn bytes(manifest: &Manifest, composition: &Composition) -> Bytes {
    let graph = list_bytes(manifest) + bytes_of(manifest, FileKind::Navigation);
    let vectors = vector_bytes(manifest) + bytes_of(manifest, FileKind::Chunks);
    let codes = bytes_where(manifest, |kind| kind.role() == Role::Codes)
        + code_bytes_in_records(manifest, composition);
    let in_records = match composition.is_encoded() {
        true => 0,
        false => 8 * manifest.vectors,
    };
    let ids = in_records + bytes_where(manifest, |kind| kind.role() == Role::Ids);
    let columns = bytes_where(manifest, |kind| kind.role() == Role::Columns);
    let total = bytes_where(manifest, |_| true);
    Bytes {
        graph,
        vectors,
        codes,
        ids,
        columns,
        // The MANIFEST, which may be wrong, has some of these numbers.
        other: [graph, vectors, codes, ids, columns]
            .into_iter()
            .fold(total, u64::saturating_sub),
        total,
    }
}

fn graph_and_vectors(manifest: &Manifest) -> GraphAndVectors {
    let tables = [FileKind::Chunks, FileKind::Directory];
    let bytes = bytes_where(manifest, |kind| kind.has_pages() || tables.contains(&kind));
    let (dim, degree) = (
        manifest.dimension as usize,
        manifest.graph().degree as usize,
    );
    // An open index has an element type, dimension and degree that the coupled layout supports.
    let coupled_bytes = CoupledShape::new(manifest.element, dim, degree)
        .map_or(bytes, |shape| shape.file_length(manifest.vectors));
    GraphAndVectors {
        bytes,
        coupled_bytes,
        saved: saved(bytes, coupled_bytes),
    }
}

fn code_bytes_in_records(manifest: &Manifest, composition: &Composition) -> u64 {
    match composition.has_codes_in_records() {
        true => {
            manifest.vectors * u64::from(manifest.graph().degree) * u64::from(manifest.code_bytes)
        }
        false => 0,
    }
}

fn bytes_of(manifest: &Manifest, kind: FileKind) -> u64 {
    bytes_where(manifest, |of| of == kind)
}

fn bytes_where(manifest: &Manifest, counts: impl Fn(FileKind) -> bool) -> u64 {
    let of_kind = |entry: &&FileEntry| entry.kind().is_some_and(|(kind, _)| counts(kind));
    let entries = manifest.files.iter().filter(of_kind);
    entries.map(|entry| entry.length).sum()
}

fn saved(bytes: u64, all: u64) -> f64 {
    1.0 - bytes as f64 / all.max(1) as f64
}

/// In the coupled layout, a list has one word for the degree and one for each of R links.
fn list_bytes(manifest: &Manifest) -> u64 {
    match manifest.list_bytes {
        0 => 4 * manifest.vectors * (1 + u64::from(manifest.graph().degree)),
        bytes => bytes,
    }
}

/// If the manifest does not have the number of bytes of all vectors, the vectors are uncompressed.
fn vector_bytes(manifest: &Manifest) -> u64 {
    match manifest.vector_bytes {
        0 => raw_bytes(manifest),
        bytes => bytes,
    }
}

fn raw_bytes(manifest: &Manifest) -> u64 {
    manifest.vectors * u64::from(manifest.dimension) * manifest.element.size() as u64
}
