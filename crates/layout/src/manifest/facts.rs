//! What the manifest says of parts of an index, whatever its kind: its log, its build, its
//! segments, what was measured, its files.

use serde::{Deserialize, Serialize};

use crate::header::{FileKind, Form};

/// A place between two records of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogFrom {
    /// The number of the file that the next record is in.
    pub number: u64,
    /// That record's sequence number.
    pub sequence: u64,
}

impl Default for LogFrom {
    /// Before the first record of all.
    fn default() -> LogFrom {
        LogFrom {
            number: 1,
            sequence: 1,
        }
    }
}

/// Choices of the build that cannot be seen from what it wrote.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BuildFacts {
    /// How lists and vectors were asked to be compressed; empty if nobody said.
    pub compression: String,
    /// Uncompressed bytes of a chunk of vectors.
    pub chunk_bytes: u64,
    /// Uncompressed bytes of a segment of vectors.
    pub segment_bytes: u64,
    /// The share of the nodes in the navigation graph.
    pub navigation: f64,
    /// What low codes are, where codes are of two precisions and these are not as the preset has
    /// them; else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub low_codes: String,
}

/// Facts about a segment of the vectors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentFacts {
    /// Its first node.
    pub first: u32,
    /// Its vectors: those of nodes `first..first + vectors`.
    pub vectors: u32,
    /// How they are encoded, in words.
    pub codec: String,
    /// What its file says otherwise, if a merge kept it; reader feature bit [`KEPT`](super::KEPT)
    /// is set then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptFacts>,
}

/// Facts about the file of a segment that an earlier checkpoint wrote, and whose nodes have other
/// numbers since, or are fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFacts {
    /// Its first node, as the file says.
    pub first: u32,
    /// Records in the file that are garbage: no nodes any more ([`crate::chunks`] says which).
    pub garbage: u32,
}

impl SegmentFacts {
    /// The records of its file: the first node by their numbers, and how many they are.
    pub fn stored(&self) -> (u32, u64) {
        let garbage = u64::from(self.garbage());
        let first = self.kept.map_or(self.first, |kept| kept.first);
        (first, u64::from(self.vectors) + garbage)
    }

    /// Records of its file that are garbage.
    pub fn garbage(&self) -> u32 {
        self.kept.map_or(0, |kept| kept.garbage)
    }
}

/// What a sample of queries read when the index was built: what a plan for the memory is made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The queries.
    pub queries: u32,
    /// Their list size.
    pub list: u32,
    /// Pages with lists that a query read, from the medoid on; the mean.
    pub reads_medoid: f64,
    /// Pages with lists that a query read, from the navigation graph on; the mean.
    pub reads_navigation: f64,
    /// Pages with vectors alone that a query read; the mean.
    pub vector_reads: f64,
    /// What the hottest pages with lists would have saved, by rising share.
    pub hot_graph: Vec<HotShare>,
    /// What the hottest pages with vectors alone would have saved, by rising share.
    pub hot_vectors: Vec<HotShare>,
}

/// What it would save to keep the hottest pages in memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HotShare {
    /// The share of the pages, hottest first, 0 to 1.
    pub share: f64,
    /// The share of the reads that they would have served, 0 to 1.
    pub hits: f64,
}

/// Facts about an index into which vectors came after the build: straight into a graph, whose
/// records were written anew for it, or into clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementFacts {
    /// All nodes, those of the build included; of clusters, the numbers of vectors that were given
    /// so far.
    pub nodes: u64,
    /// Pages of the page file: its length is a [block](crate::BLOCK) and so many pages, whatever
    /// its header says. 0 in a cluster index.
    pub pages: u64,
    /// Vectors that count.
    pub live: u64,
    /// 1 more than the largest outside id there has ever been; the manifest's own is that of the
    /// build.
    pub next_id: u64,
    /// How far codes are off of the vectors that came, if a sample of them was looked at; writer
    /// feature bit 5 is set then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<DriftFacts>,
}

/// How many of the vectors that came after the build are of a kind that its codes are not made for,
/// as a look at a sample told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriftFacts {
    /// Vectors that had come since the build when the sample was taken.
    pub came: u64,
    /// Those of another kind, in thousandths of the vectors that had come: 0 to 1,000.
    pub thousandths: u32,
}

/// A file of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// What the file is for: the name of its [`FileKind`], and for a file of one segment its number
    /// (`vectors-3`). See [`FileEntry::role_of`] and [`FileEntry::kind`].
    pub role: String,
    /// Its name in the index directory, without any directory.
    pub name: String,
    /// Its length in bytes.
    pub length: u64,
    /// The checksum in its header block ([`crate::header::stored_checksum`]), which tells it from a
    /// file of another index.
    pub header_crc32c: u32,
}

impl FileEntry {
    /// The role of a file of this kind; `segment` is its number where a file holds one segment of
    /// several.
    pub fn role_of(kind: FileKind, segment: Option<u32>) -> String {
        match segment {
            None => kind.name().to_owned(),
            Some(segment) => format!("{kind}-{segment}"),
        }
    }

    /// What the role says: the kind of the file, and the segment that it holds. `None`: no role
    /// that this build knows.
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
        // One spelling only, so that no two roles are the same file's.
        let right = (segment.is_none() || in_segments) && self.role == Self::role_of(kind, segment);
        right.then_some((kind, segment))
    }
}
