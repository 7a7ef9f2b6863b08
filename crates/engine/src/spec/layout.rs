//! The layout of an index. [`stores::topology`](crate::stores::topology) has the properties of each
//! layout.

use serde::{Deserialize, Serialize};

/// The layout of an index: the form in which it stores the list and the vector of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// The vector and the list are side by side in records of one size. Neither of them is
    /// compressed, as in DiskANN.
    Coupled,
    /// The compressed vector and the compressed list are side by side in slotted pages.
    Packed,
    /// Compressed lists are in pages without vectors, and compressed vectors are in segments, as in
    /// DecoupleVS §3.3.
    Decoupled,
    /// The layout [`Coupled`](Layout::Coupled), with the codes of the neighbours beside each list
    /// (AiSAQ §3.1). So no codes stay in memory.
    Inline,
    /// The layout [`Packed`](Layout::Packed), but with only the leading part of each vector beside
    /// its list. A search ranks nodes by the leading parts. The trailing parts are in segments.
    Layered,
    /// The id, vector and list of each node are stored without padding, for memory that is read in
    /// units of bytes (second-tier memory §5).
    Csr,
    /// Clusters in place of a graph. Each posting list has the vectors of all its members, as in
    /// SPANN.
    Replicated,
    /// Clusters in place of a graph. Each posting list has only the numbers of its members, and
    /// every vector is stored once. The second-tier memory paper calls this layout decoupled
    /// (§6.1).
    Addressed,
    /// The layout [`Addressed`](Layout::Addressed), but each vector is stored in the group of one
    /// of its clusters. One read returns a whole group (second-tier memory paper, §6.2).
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
