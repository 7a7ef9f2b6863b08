//! What an index is and what it takes: the answer of `stratann stats`.

use serde::Serialize;
use stratann_layout::{CoupledShape, FileEntry, FileKind, IndexKind, Manifest, Role, stream};

use crate::fill::BlockFill;
use crate::index::Index;
use crate::plan::MemoryPlan;
use crate::recall::{LiveRecall, RecallWatch};
use crate::stores::codes::Codes;
use crate::stores::{ClusterStores, Composition};
use crate::update::{DirectCounts, IndexHealth, Overlay, far_grown, found_badly};

/// Facts about an index, as `stratann stats --json` prints them: the keys are an interface.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// The preset it was built with.
    pub preset: String,
    /// Vectors in the checkpoint.
    pub vectors: u64,
    /// Their dimension.
    pub dimension: u32,
    /// Their element type.
    pub element: String,
    /// The metric.
    pub metric: String,
    /// Mean degree of the nodes; 0 in a cluster index, as the other numbers of a graph.
    pub degree_mean: f64,
    /// The largest degree.
    pub degree_max: u32,
    /// R, the degree bound of the build.
    pub degree: u32,
    /// L, the list size of the build.
    pub build_list: u32,
    /// alpha of the build.
    pub alpha: f32,
    /// How node ids were assigned.
    pub order: String,
    /// How a node's list and vector stand on disk: `coupled`, `packed`, `decoupled`, `inline` or `layered`; of clusters `replicated`,
    /// `addressed` or `grouped`.
    pub layout: String,
    /// How they are compressed.
    pub compression: Codecs,
    /// Bytes of a vector's code.
    pub code_bytes: u32,
    /// The content hash of the codebook; empty in an index of a format version below 3.
    pub codebook: String,
    /// How nodes fill their blocks, in the inline layout.
    pub fill: Option<BlockFill>,
    /// Nodes in the navigation graph; 0 if there is none.
    pub navigation_nodes: u64,
    /// The clusters, in a cluster index.
    pub clusters: Option<ClusterStats>,
    /// What all files take over the bytes of the vectors as they are, those that count: the index amplification of the second-tier paper, that 1 is
    /// added to. 0 where there are no vectors.
    pub amplification: f64,
    /// Bytes on disk by component.
    pub bytes: Bytes,
    /// Bits that an edge takes on disk: those of all lists, without the navigation graph, by the edges.
    pub bits_per_edge: f64,
    /// Raw bytes of the vectors over what they take on disk.
    pub vector_ratio: f64,
    /// Bytes that the same collection and graph would take in the coupled layout, with the same codes and the same
    /// navigation graph.
    pub coupled_bytes: u64,
    /// The part of them that this index saves, up to 1: `1 - bytes.total / coupled_bytes`. Below 0 it takes more.
    pub saved: f64,
    /// The same of the graph and the vectors alone, which is what papers count.
    pub graph_and_vectors: GraphAndVectors,
    /// Vectors of the checkpoint that were deleted or replaced since.
    pub deleted: u64,
    /// Records in segments of vectors that are no vectors of the checkpoint any more: what a merge deleted and left where it
    /// was. A later one frees it when it is much (DecoupleVS §3.5).
    pub garbage: u64,
    /// Vectors that are in the log and not in the checkpoint.
    pub logged: u64,
    /// Bytes of the log's files, which are not among [`Stats::bytes`].
    pub log_bytes: u64,
    /// Bytes of storage that are kept for deletes on a full disk, beyond [`Stats::bytes`] and the log; 0 where the file system does not give blocks ahead.
    pub room_bytes: u64,
    /// What direct inserts cost since the index was opened for changes, where it takes them.
    pub direct: Option<DirectCounts>,
    /// What the last look at a sample told, while the index is open for changes; [`Index::health`] looks.
    pub health: IndexHealth,
    /// The gravest of what went wrong without a call that failed for it, while the index is open for changes: why it takes no more
    /// of them through this handle, why a checkpoint may not be durable, why vectors wait in memory that belong in the graph on
    /// storage, why there is no checkpoint of late. What is acknowledged is in the log and is found; opening the index takes longer,
    /// and so may every search.
    pub trouble: Option<String>,
    /// How much of the true nearest searches found, of queries that were served, where the index was opened with a
    /// [watch](crate::OpenOptions::watch_recall).
    pub live_recall: Option<LiveRecall>,
    /// How memory is divided while searching, under the budget that the index was opened with.
    pub memory: MemoryPlan,
    /// The format version of the index.
    pub format_version: u32,
    /// The version of StratANN that wrote it.
    pub created_by: String,
}

/// What a cluster index has instead of a graph.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClusterStats {
    /// How many clusters there are now. What follows is of the build, until a merge.
    pub clusters: u64,
    /// Vectors for each that the build aimed at.
    pub size: u32,
    /// The most clusters that a vector was to be a member of.
    pub replicas: u32,
    /// Clusters that a vector is a member of, on average.
    pub replicas_mean: f64,
    /// Members of a cluster, on average.
    pub members_mean: f64,
    /// Members of the largest.
    pub members_max: u32,
}

/// How lists and vectors are compressed, in the words of the build; empty in an index of format version 1, where they
/// are not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Codecs {
    /// What lists are coded with.
    pub list_codec: String,
    /// What vectors are coded with.
    pub vector_codec: String,
}

/// What the files of nodes take: pages of lists and of vectors, and the tables without which these cannot be read (the
/// directory, and the chunks of segments). Codes, codebook, navigation graph and counts of reads are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct GraphAndVectors {
    /// Bytes on disk.
    pub bytes: u64,
    /// Bytes of the same in the coupled layout.
    pub coupled_bytes: u64,
    /// The part of them that is saved: `1 - bytes / coupled_bytes`.
    pub saved: f64,
}

/// Bytes on disk by component.
///
/// | component | coupled, inline | packed | decoupled |
/// |---|---|---|---|
/// | graph | a degree and R slots a node | encoded lists | encoded lists |
/// | vectors | vectors | encoded vectors | encoded vectors, and the files of chunks |
/// | codes | inline: R a node | one a node | one a node |
/// | ids | 8 a vector | in other | in other |
///
/// The file that says which node has which id, where ids are not row numbers, is among the ids of any layout, 12 bytes a vector.
/// What ids take on pages of records of different lengths depends on the ids of each page, and is written down nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Adjacency lists, and the navigation graph.
    pub graph: u64,
    /// Vectors.
    pub vectors: u64,
    /// Codes and codebook.
    pub codes: u64,
    /// Outside ids: those in the records of the coupled and the inline layout, and the file of ids, if there is one.
    pub ids: u64,
    /// What vectors have beside them: rows, and which of them have what.
    pub columns: u64,
    /// Everything else: headers, checksums, padding, counts of reads; where records have different lengths also these
    /// lengths, the ids, the directory, and vectors that are garbage; and what direct inserts have added to the pages of the build.
    pub other: u64,
    /// The sum, which is what the files take.
    pub total: u64,
}

impl Index {
    /// Vectors of the checkpoint that do not count: a placeholder is none of them.
    pub(crate) fn deleted_in(&self, overlay: &Overlay) -> u64 {
        overlay.deleted.len().saturating_sub(self.placeholders()) as u64
    }

    /// What the index is and what it takes.
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
        // What direct inserts have added to the file of pages: nobody counts what of it is lists, and what vectors.
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
            // There, each code stands once, in a file of its own, which has those of the entry points as well.
            coupled_bytes += stream::file_length(Codes::of_nodes(manifest));
            coupled_bytes -= bytes_of(manifest, FileKind::Entries);
        }
        let row_bytes = manifest.dimension as usize * manifest.element.size();
        let live_bytes = (self.len() * row_bytes) as u64;
        Stats {
            preset: manifest.preset.clone(),
            vectors: self.len() as u64,
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

/// A cluster index by component: what vectors take that stand several times is among the vectors, and what leads to them among the graph.
/// `came` vectors stand in clusters that were written since the build; those of before are counted as well, until a merge. Nothing of it
/// would be in the coupled layout.
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
        // Some of these are what the MANIFEST says, which nobody has to believe.
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

/// The index by component.
fn bytes(manifest: &Manifest, composition: &Composition) -> Bytes {
    let graph = list_bytes(manifest) + bytes_of(manifest, FileKind::Navigation);
    let vectors = vector_bytes(manifest) + bytes_of(manifest, FileKind::Chunks);
    let codes = bytes_where(manifest, |kind| kind.role() == Role::Codes)
        + code_bytes_in_records(manifest, composition);
    // Else nobody counts those in the records: they are beside the encoded vectors.
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
        // Some of these are what the MANIFEST says, which nobody has to believe.
        other: [graph, vectors, codes, ids, columns]
            .into_iter()
            .fold(total, u64::saturating_sub),
        total,
    }
}

/// The files of nodes, and what they would be in the coupled layout.
fn graph_and_vectors(manifest: &Manifest) -> GraphAndVectors {
    let tables = [FileKind::Chunks, FileKind::Directory];
    let bytes = bytes_where(manifest, |kind| kind.has_pages() || tables.contains(&kind));
    let (dim, degree) = (
        manifest.dimension as usize,
        manifest.graph().degree as usize,
    );
    // An index with a shape that the coupled layout does not hold does not open.
    let coupled_bytes = CoupledShape::new(manifest.element, dim, degree)
        .map_or(bytes, |shape| shape.file_length(manifest.vectors));
    GraphAndVectors {
        bytes,
        coupled_bytes,
        saved: saved(bytes, coupled_bytes),
    }
}

/// What codes take beside lists: c bytes for each of R neighbours.
fn code_bytes_in_records(manifest: &Manifest, composition: &Composition) -> u64 {
    match composition.has_codes_in_records() {
        true => {
            manifest.vectors * u64::from(manifest.graph().degree) * u64::from(manifest.code_bytes)
        }
        false => 0,
    }
}

/// What files of this kind take together.
fn bytes_of(manifest: &Manifest, kind: FileKind) -> u64 {
    bytes_where(manifest, |of| of == kind)
}

/// What files of those kinds take together of which `counts` says so.
fn bytes_where(manifest: &Manifest, counts: impl Fn(FileKind) -> bool) -> u64 {
    let of_kind = |entry: &&FileEntry| entry.kind().is_some_and(|(kind, _)| counts(kind));
    let entries = manifest.files.iter().filter(of_kind);
    entries.map(|entry| entry.length).sum()
}

/// The part of `all` that `bytes` are less.
fn saved(bytes: u64, all: u64) -> f64 {
    1.0 - bytes as f64 / all.max(1) as f64
}

/// What all lists take. Where the manifest does not say, they are those of the coupled layout: every node has a word
/// for its degree and one for each of R slots.
fn list_bytes(manifest: &Manifest) -> u64 {
    match manifest.list_bytes {
        0 => 4 * manifest.vectors * (1 + u64::from(manifest.graph().degree)),
        bytes => bytes,
    }
}

/// What all vectors take. Where the manifest does not say, they stand as they are.
fn vector_bytes(manifest: &Manifest) -> u64 {
    match manifest.vector_bytes {
        0 => raw_bytes(manifest),
        bytes => bytes,
    }
}

/// What all vectors take before they are encoded.
fn raw_bytes(manifest: &Manifest) -> u64 {
    manifest.vectors * u64::from(manifest.dimension) * manifest.element.size() as u64
}
