//! The layout of an index. [`stores::topology`](crate::stores::topology) has its properties.

use serde::{Deserialize, Serialize};

/// The layout of an index: the form in which it stores the list and the vector of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// The uncompressed vector and list are side by side in records of one size, as in DiskANN.
    Coupled,
    /// The compressed vector and the compressed list are side by side in slotted pages.
    Packed,
    /// Compressed lists are in pages, and compressed vectors in segments, as in DecoupleVS §3.3.
    Decoupled,
    /// As [`Coupled`](Layout::Coupled), with the codes of the neighbours beside each list (AiSAQ
    /// §3.1), so that no codes stay in memory.
    Inline,
    /// As [`Packed`](Layout::Packed), but only the leading part of each vector is beside its list.
    /// The trailing parts are in segments.
    Layered,
    /// The id, vector and list of each node without padding, for memory that is read in units of
    /// bytes (second-tier memory §5).
    Csr,
    /// Clusters. A posting list has the vectors of all its members, as in SPANN.
    Replicated,
    /// Clusters. A posting list has only the numbers of its members; every vector is stored once.
    /// The second-tier memory paper calls this layout decoupled (§6.1).
    Addressed,
    /// As [`Addressed`](Layout::Addressed), but each vector is in the group of one of its clusters.
    /// One read returns a whole group (second-tier memory paper, §6.2).
    Grouped,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Layout; 9] = [
        Self::Coupled,
        Self::Packed,
        Self::Decoupled,
        Self::Inline,
        Self::Layered,
        Self::Csr,
        Self::Replicated,
        Self::Addressed,
        Self::Grouped,
    ];
}
