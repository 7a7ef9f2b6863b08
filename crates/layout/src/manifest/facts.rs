//! The manifest's facts about parts that every kind of index has.

use serde::{Deserialize, Serialize};

use crate::header::{FileKind, Form};

/// A position between two records of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogFrom {
    /// The number of the file with the next record.
    pub number: u64,
    /// The sequence number of that record.
    pub sequence: u64,
}

impl Default for LogFrom {
    fn default() -> LogFrom {
        LogFrom {
            number: 1,
            sequence: 1,
        }
    }
}

/// Choices of the build that its files do not show.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BuildFacts {
    /// The requested compression of lists and vectors; empty if none was requested.
    pub compression: String,
    /// Uncompressed bytes of a chunk of vectors.
    pub chunk_bytes: u64,
    /// Uncompressed bytes of a segment of vectors.
    pub segment_bytes: u64,
    /// The share of the index's nodes that the navigation graph has.
    pub navigation: f64,
    /// The kind of low codes, if it differs from the preset's; otherwise empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub low_codes: String,
}

/// Facts about a segment of the vectors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentFacts {
    /// The first node of the segment.
    pub first: u32,
    /// The number of vectors: nodes `first..first + vectors`.
    pub vectors: u32,
    /// The encoding of the vectors, in words.
    pub codec: String,
    /// The facts of a file that a merge left unchanged, with reader feature bit
    /// [`KEPT`](super::KEPT).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptFacts>,
}

/// Facts about the file of a segment whose nodes were renumbered or removed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFacts {
    /// The first node according to the file.
    pub first: u32,
    /// Dead records in the file ([`crate::chunks`]).
    pub garbage: u32,
}

impl SegmentFacts {
    /// The first record of the file, and the count of its records.
    pub fn stored(&self) -> (u32, u64) {
        let garbage = u64::from(self.garbage());
        let first = self.kept.map_or(self.first, |kept| kept.first);
        (first, u64::from(self.vectors) + garbage)
    }

    /// The number of dead records in the file.
    pub fn garbage(&self) -> u32 {
        self.kept.map_or(0, |kept| kept.garbage)
    }
}

/// The reads of a sample of queries, which the build measured for plans of memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The number of queries.
    pub queries: u32,
    /// The list size of the queries.
    pub list: u32,
    /// The mean number of pages with lists that a query read if its walk began at the medoid.
    pub reads_medoid: f64,
    /// The mean number of pages with lists that a query read if the navigation graph chose the
    /// beginning of its walk.
    pub reads_navigation: f64,
    /// The mean number of pages with only vectors that a query read.
    pub vector_reads: f64,
    /// The hit rates of the hottest pages with lists, by rising number of pages.
    pub hot_graph: Vec<HotShare>,
    /// The hit rates of the hottest pages with only vectors, by rising number of pages.
    pub hot_vectors: Vec<HotShare>,
}

/// The hit rate of the hottest pages, if memory had these pages.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HotShare {
    /// The share of the pages, hottest first, from 0 to 1.
    pub share: f64,
    /// The share of the reads that these pages would have served, 0 to 1.
    pub hits: f64,
}

/// Facts about an index into which vectors were inserted, by direct inserts or rebalances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementFacts {
    /// The number of nodes, including nodes of the build. In a cluster index, the number of vector
    /// numbers.
    pub nodes: u64,
    /// Pages of the page file after its first [block](crate::BLOCK). 0 in a cluster index.
    pub pages: u64,
    /// Live vectors.
    pub live: u64,
    /// The largest external id ever used, plus 1. The manifest's key `next_id` has the value of the
    /// build.
    pub next_id: u64,
    /// The drift of inserted vectors from the codes, with writer feature bit 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<DriftFacts>,
}

/// The estimated share of inserted vectors that the codes represent badly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriftFacts {
    /// Vectors inserted between the build and the sample.
    pub came: u64,
    /// The share of these vectors with drift, in thousandths: 0 to 1,000.
    pub thousandths: u32,
}

/// A file of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The role: the name of the [`FileKind`], and the number of a segment (`vectors-3`).
    pub role: String,
    /// The name of the file in the index directory, without any directory.
    pub name: String,
    /// The length of the file in bytes.
    pub length: u64,
    /// The checksum in the file's header block ([`crate::header::stored_checksum`]).
    pub header_crc32c: u32,
}

impl FileEntry {
    /// The role of a file of this kind, and of segment `segment`.
    pub fn role_of(kind: FileKind, segment: Option<u32>) -> String {
        match segment {
            None => kind.name().to_owned(),
            Some(segment) => format!("{kind}-{segment}"),
        }
    }

    /// Parses the role: the kind of the file, and its segment. `None` for an unknown role.
    pub fn kind(&self) -> Option<(FileKind, Option<u32>)> {
        let (name, segment) = match self.role.split_once('-') {
            None => (self.role.as_str(), None),
            Some((name, number)) => (name, Some(number.parse().ok()?)),
        };
        let kind = FileKind::ALL.into_iter().find(|kind| kind.name() == name)?;
        let in_segments = matches!(
            kind,
            FileKind::Vectors | FileKind::Chunks | FileKind::Rows | FileKind::Columns
        ) || matches!(kind.form(), Form::Clusters(_));
        // Only one spelling is accepted, so that no two roles mean the same file.
        let right = (segment.is_none() || in_segments) && self.role == Self::role_of(kind, segment);
        right.then_some((kind, segment))
    }
}
