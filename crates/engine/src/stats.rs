//! What an index is and what it takes: the answer of `stratann stats`.

use serde::Serialize;
use stratann_layout::{FileKind, Manifest};
use stratann_vector::Element;

use crate::index::Index;

/// Facts about an index, with the keys of DESIGN §6 and some more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// The preset it was built with.
    pub preset: String,
    /// Vectors in it.
    pub vectors: u64,
    /// Their dimension.
    pub dimension: u32,
    /// Their element type.
    pub element: String,
    /// The metric.
    pub metric: String,
    /// Mean degree of the nodes.
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
    /// Bytes of a vector's code.
    pub code_bytes: u32,
    /// Nodes in the navigation graph; 0 if there is none.
    pub navigation_nodes: u64,
    /// Bytes on disk by component.
    pub bytes: Bytes,
    /// Bits that an edge takes on disk.
    pub bits_per_edge: f64,
    /// Raw bytes of the vectors over what they take on disk.
    pub vector_ratio: f64,
    /// Vectors that are deleted but still on disk.
    pub deleted: u64,
    /// Bytes of tables that a search keeps in memory: codes and codebook, and the navigation graph if it is used.
    pub memory: Memory,
    /// The format version of the index.
    pub format_version: u32,
    /// The version of StratANN that wrote it.
    pub created_by: String,
}

/// Bytes on disk by component; headers, checksums and padding are `other`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Degrees and adjacency lists, unused slots included, and the navigation graph.
    pub graph: u64,
    /// Vectors.
    pub vectors: u64,
    /// Codes and codebook.
    pub codes: u64,
    /// Outside ids.
    pub ids: u64,
    /// Everything else.
    pub other: u64,
    /// The sum, which is what the files take.
    pub total: u64,
}

/// Bytes of tables in memory while searching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Codes and codebook.
    pub codes: u64,
    /// The navigation graph, when a search uses it.
    pub navigation: u64,
}

impl Index {
    /// What the index is and what it takes.
    pub fn stats(&self) -> Stats {
        let manifest = self.manifest();
        let bytes = bytes(manifest);
        let codes = self.codes().len() as u64 + 4 * self.quantizer().centroids().len() as u64;
        Stats {
            preset: manifest.preset.clone(),
            vectors: manifest.vectors,
            dimension: manifest.dimension,
            element: manifest.element.to_string(),
            metric: manifest.metric.to_string(),
            degree_mean: manifest.degree_mean,
            degree_max: manifest.degree_max,
            degree: manifest.degree,
            build_list: manifest.build_list,
            alpha: manifest.alpha,
            order: manifest.order.clone(),
            code_bytes: manifest.code_bytes,
            navigation_nodes: manifest.navigation.as_ref().map_or(0, |n| n.nodes),
            bits_per_edge: 8.0 * list_bytes(manifest) as f64 / manifest.edges.max(1) as f64,
            vector_ratio: 1.0,
            bytes,
            deleted: manifest.deleted,
            memory: Memory {
                codes,
                navigation: manifest
                    .file(FileKind::Navigation.name())
                    .filter(|_| self.has_navigation())
                    .map_or(0, |entry| entry.length),
            },
            format_version: manifest.format_version,
            created_by: manifest.created_by.clone(),
        }
    }
}

/// The coupled layout gives every node the same room: a list of R slots, a vector, an id.
fn bytes(manifest: &Manifest) -> Bytes {
    let length = |kind: FileKind| manifest.file(kind.name()).map_or(0, |entry| entry.length);
    let total = manifest.files.iter().map(|entry| entry.length).sum();
    let row = u64::from(manifest.dimension) * Element::size(manifest.element) as u64;
    let graph = list_bytes(manifest) + length(FileKind::Navigation);
    let vectors = manifest.vectors * row;
    let codes = length(FileKind::Codes) + length(FileKind::Codebook);
    let ids = manifest.vectors * 8;
    Bytes {
        graph,
        vectors,
        codes,
        ids,
        other: total - (graph + vectors + codes + ids).min(total),
        total,
    }
}

/// What the lists take in the coupled layout: every node has a word for its degree and one for each of R slots.
fn list_bytes(manifest: &Manifest) -> u64 {
    4 * manifest.vectors * (1 + u64::from(manifest.degree))
}
