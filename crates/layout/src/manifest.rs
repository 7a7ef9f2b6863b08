//! The manifest: a text file that names and describes the files of an index's current checkpoint.
//!
//! ```text
//! STRATANN MANIFEST <format version> <crc32c of the body, 8 hex digits> <bytes of the body>\n
//! { ...the body: JSON, indented, ends with a newline... }
//! ```
//!
//! The first line has exactly one valid spelling, and the checksum covers the body, so a reader
//! notices any damage. The order of the keys is the order in which versions added them (`text.rs`).
//!
//! Later versions add these keys and files:
//!
//! - version 2: the keys from `layout` to `measured`;
//! - version 3: the keys from `codebook` to `build`;
//! - version 4: `placement`;
//! - reader feature bit 1: `kept` in a segment; bit 2: `kind` and `cluster`;
//! - writer feature bit 0: a file of ids; bit 1: `state`; bit 2: files of columns; bit 3: a file of
//!   recall; bit 5: `drift` in the placement.
//!
//! With reader feature bit 3, the only record of the build is a placeholder ([`PLACEHOLDER`]). An
//! index of version 1 has the coupled layout.

mod checks;
mod facts;
mod kind;
#[cfg(test)]
mod tests;
mod text;

use serde::{Deserialize, Serialize};
use stratann_vector::{Element, Metric};

pub use self::facts::{
    BuildFacts, DriftFacts, FileEntry, HotShare, KeptFacts, LogFrom, Measured, PlacementFacts,
    SegmentFacts,
};
pub use self::kind::{ClusterFacts, GraphFacts, IndexKind, KIND, NavigationFacts};
use self::text::{check_frame, first_line, first_unknown_key, in_order, later_keys, not_json};
use crate::error::LayoutError;
use crate::header::{FileKind, check_features};

/// The manifest's name in the index directory.
pub const FILE_NAME: &str = "MANIFEST";
/// The format version of a manifest and an index. Version 2 added the layouts besides the coupled
/// one, version 3 the inline layout and codebooks by content, and version 4 the records rewritten
/// after the build.
pub const FORMAT_VERSION: u32 = 4;
/// Reader feature bit of rewritten records (key `placement`). A reader without it would read
/// outdated records.
pub const PLACEMENT: u64 = 1;
/// Reader feature bit of segments whose files a merge left unchanged ([`KeptFacts`]). Nodes have
/// other numbers in such a file.
pub const KEPT: u64 = 2;
/// Reader feature bit of an index that was built without vectors. The only record of its build is
/// dead, with the external id 2^64 - 1.
pub const PLACEHOLDER: u64 = 8;
/// Reader feature bits that this build supports.
pub const READER_FEATURES: u64 = PLACEMENT | KEPT | KIND | PLACEHOLDER;
/// Writer feature bit of a file of ids ([`crate::ids`]), which the merge of an older program would
/// lose.
pub const IDS: u64 = 1;
/// Writer feature bit of a [`Manifest::state`], which an older program would leave outdated.
pub const STATE: u64 = 2;
/// Writer feature bit of columns ([`crate::columns`]), which an older program would lose.
pub const COLUMNS: u64 = 4;
/// Writer feature bit of a file of recall ([`crate::recall`]), which an older program would leave
/// outdated.
pub const RECALL: u64 = 8;
/// Writer feature bit of a codebook that the user gave to the build. A merge keeps this codebook.
pub const GIVEN_CODEBOOK: u64 = 16;
/// Writer feature bit of a drift ([`DriftFacts`]), which an older program would drop.
pub const DRIFT: u64 = 32;
/// Writer feature bits that this build supports.
pub const WRITER_FEATURES: u64 = IDS | STATE | COLUMNS | RECALL | GIVEN_CODEBOOK | DRIFT;

/// Hexadecimal digits of [`Manifest::state`].
pub const STATE_DIGITS: usize = 32;

/// The largest valid value of a number that a later checkpoint increases.
const LARGEST: u64 = 1 << 62;

/// The description of an index, which a reader needs before it opens the other files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format version.
    pub format_version: u32,
    /// Feature bits that a reader must know.
    pub reader_features: u64,
    /// Feature bits that a writer must know. If an unknown bit is set, unknown keys are no error.
    pub writer_features: u64,
    /// The version of StratANN that wrote this manifest.
    pub created_by: String,
    /// The checkpoint's number, incremented with each replacement of the manifest.
    pub checkpoint: u64,
    /// The preset that the index was built with.
    pub preset: String,
    /// Element type of the vectors.
    #[serde(with = "by_name")]
    pub element: Element,
    /// The metric that the index was built for.
    #[serde(with = "by_name")]
    pub metric: Metric,
    /// The facts that only this kind of index has.
    #[serde(flatten)]
    pub kind: IndexKind,
    /// Elements of a vector.
    pub dimension: u32,
    /// Vectors in the index.
    pub vectors: u64,
    /// Bytes of a vector's code.
    pub code_bytes: u32,
    /// The order of the nodes on disk.
    pub order: String,
    /// Vectors that are deleted but still on disk.
    pub deleted: u64,
    /// The seed of the build.
    pub seed: u64,
    /// The layout of vectors and lists on disk ([`FileKind::layout`]).
    #[serde(default = "coupled")]
    pub layout: String,
    /// Encoded bytes of all lists; 0 if they are not encoded.
    #[serde(default)]
    pub list_bytes: u64,
    /// Encoded bytes of all vectors, without garbage; 0 if they are not encoded.
    #[serde(default)]
    pub vector_bytes: u64,
    /// The encoding of the lists, in words; empty if they are not encoded.
    #[serde(default)]
    pub list_codec: String,
    /// The encoding of the vectors, in words; empty if they are not encoded.
    #[serde(default)]
    pub vector_codec: String,
    /// The segments of vectors or trailing parts that have files of their own, in the order of
    /// nodes.
    #[serde(default)]
    pub segments: Vec<SegmentFacts>,
    /// The reads of a sample of queries, if the build measured them.
    #[serde(default)]
    pub measured: Option<Measured>,
    /// The content hash by which indexes share a codebook (BLAKE3, 64 hexadecimal digits).
    #[serde(default)]
    pub codebook: String,
    /// The largest external id ever used, plus 1. If this equals the number of vectors, the ids are
    /// all smaller numbers. Otherwise, with [`IDS`], a file of kind [`FileKind::Ids`] has the ids.
    #[serde(default)]
    pub next_id: u64,
    /// The position of the first log record that the files of this checkpoint do not include.
    #[serde(default)]
    pub log_from: LogFrom,
    /// Choices of the build that no other key records. A rebuild uses them.
    #[serde(default)]
    pub build: BuildFacts,
    /// Facts about records that were rewritten after the build, with bit [`PLACEMENT`].
    #[serde(default)]
    pub placement: Option<PlacementFacts>,
    /// The checkpoint id, a random number in [`STATE_DIGITS`] hexadecimal digits ([`STATE`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The files of the checkpoint.
    pub files: Vec<FileEntry>,
}

fn coupled() -> String {
    FileKind::Graph.layout().unwrap_or_default().to_owned()
}

impl Manifest {
    /// Encodes the manifest as text, without the keys that its version does not have.
    pub fn encode(&self) -> Vec<u8> {
        // Only a map whose keys are not strings makes this fail, and a manifest has no such map.
        let body = serde_json::to_string_pretty(self).unwrap_or_default();
        let mut body = in_order(self.format_version, &body).into_bytes();
        body.push(b'\n');
        let mut text = first_line(self.format_version, &body).into_bytes();
        text.extend_from_slice(&body);
        text
    }

    /// Decodes the text of a manifest. `file` is its name in messages.
    pub fn decode(text: &[u8], file: &str) -> Result<Manifest, LayoutError> {
        let (version, body_at) = check_frame(text, file)?;
        let body = &text[body_at..];
        let at = body_at as u64;
        let json = |error: serde_json::Error| not_json(&error, body, at, file);

        let features: Features = serde_json::from_slice(body).map_err(json)?;
        if features.format_version != version {
            return Err(field(
                file,
                at,
                "format_version",
                features.format_version,
                version,
            ));
        }
        let bits = features.reader_features;
        check_features(bits, READER_FEATURES, "reader", at, file)?;
        IndexKind::check(features.kind.as_deref(), bits, at, file)?;

        let manifest: Manifest = serde_json::from_slice(body).map_err(json)?;
        let found: serde_json::Value = serde_json::from_slice(body).map_err(json)?;
        // Only earlier versions may omit these keys.
        for (key, since) in later_keys() {
            if version >= since && found.get(key).is_none() {
                let (found, expected) = (format!("{key:?}, missing"), "a key of this version");
                return Err(field(file, at, "key", found, expected));
            }
        }
        if manifest.writer_features & !WRITER_FEATURES == 0 {
            let known = manifest.value().map_err(json)?;
            if let Some(key) = first_unknown_key(&found, &known) {
                return Err(field(
                    file,
                    at,
                    "key",
                    format!("{key:?}"),
                    "a key of this version",
                ));
            }
        }
        manifest.check_numbers(at, file)?;
        manifest.check_names(at, file)?;
        manifest.check_layout(at, file)?;
        manifest.check_placement(at, file)?;
        manifest.check_ids(at, file)?;
        manifest.check_placeholder(at, file)?;
        manifest.check_state(at, file)?;
        manifest.check_columns(at, file)?;
        manifest.check_recall(at, file)?;
        Ok(manifest)
    }

    fn value(&self) -> serde_json::Result<serde_json::Value> {
        let mut value = serde_json::to_value(self)?;
        if let Some(keys) = value.as_object_mut() {
            for (key, since) in later_keys() {
                if self.format_version < since {
                    keys.remove(key);
                }
            }
        }
        Ok(value)
    }

    /// The file with this role.
    pub fn file(&self, role: &str) -> Option<&FileEntry> {
        self.files.iter().find(|entry| entry.role == role)
    }

    /// The file of this kind that has segment `segment`.
    pub fn segment_file(&self, kind: FileKind, segment: u32) -> Option<&FileEntry> {
        self.file(&FileEntry::role_of(kind, Some(segment)))
    }

    /// The segments of columns, ascending. If several segments have a row of one node, the newest
    /// segment's row counts.
    pub fn column_segments(&self) -> Vec<u32> {
        let of_rows = |entry: &FileEntry| match entry.kind() {
            Some((FileKind::Rows, n)) => n,
            _ => None,
        };
        let mut numbers: Vec<u32> = self.files.iter().filter_map(of_rows).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Refuses an index that this build may read but must not change.
    pub fn check_writable(&self, file: &str) -> Result<(), LayoutError> {
        check_features(self.writer_features, WRITER_FEATURES, "writer", 0, file)
    }

    /// Gives the checkpoint its own id, from random bytes.
    pub fn begin_state(&mut self, random: [u8; STATE_DIGITS / 2]) {
        let digits = u128::from_be_bytes(random);
        self.state = Some(format!("{digits:0width$x}", width = STATE_DIGITS));
        self.writer_features |= STATE;
    }

    /// Records or removes the drift of inserted vectors. Without a placement, no vector was
    /// inserted.
    pub fn note_drift(&mut self, drift: Option<DriftFacts>) {
        let drift = drift.filter(|_| self.placement.is_some());
        self.writer_features &= !DRIFT;
        if drift.is_some() {
            self.writer_features |= DRIFT;
        }
        if let Some(placement) = &mut self.placement {
            placement.drift = drift;
        }
    }

    /// The facts of a graph.
    ///
    /// # Panics
    /// Panics if the index is of another kind.
    pub fn graph(&self) -> &GraphFacts {
        match &self.kind {
            IndexKind::Graph(facts) => facts,
            IndexKind::Cluster(_) => panic!("a cluster index has no facts of a graph"),
        }
    }

    /// The facts of a graph, mutable.
    ///
    /// # Panics
    /// Panics as [`graph`](Manifest::graph) does.
    pub fn graph_mut(&mut self) -> &mut GraphFacts {
        match &mut self.kind {
            IndexKind::Graph(facts) => facts,
            IndexKind::Cluster(_) => panic!("a cluster index has no facts of a graph"),
        }
    }

    /// Whether the only record of the build is a placeholder, which is not a vector.
    pub fn has_placeholder(&self) -> bool {
        self.reader_features & PLACEHOLDER != 0
    }

    /// The number of vectors of the build, without a placeholder.
    pub fn built_vectors(&self) -> u64 {
        self.vectors
            .saturating_sub(u64::from(self.has_placeholder()))
    }

    /// Whether the external ids of the build are the numbers below the number of vectors.
    pub fn has_row_numbers(&self) -> bool {
        self.next_id == self.vectors && !self.has_placeholder()
    }

    /// The number of nodes, of the build and of later inserts.
    pub fn nodes(&self) -> u64 {
        self.placement.map_or(self.vectors, |facts| facts.nodes)
    }

    /// The facts of clusters; `None` if the index is of another kind.
    pub fn clusters(&self) -> Option<&ClusterFacts> {
        match &self.kind {
            IndexKind::Graph(_) => None,
            IndexKind::Cluster(facts) => Some(facts),
        }
    }
}

#[derive(Deserialize)]
struct Features {
    format_version: u32,
    reader_features: u64,
    kind: Option<String>,
}

fn field(
    file: &str,
    offset: u64,
    what: &'static str,
    found: impl ToString,
    expected: impl ToString,
) -> LayoutError {
    LayoutError::Field {
        file: file.to_owned(),
        offset,
        what,
        found: found.to_string(),
        expected: expected.to_string(),
    }
}

mod by_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<T: std::fmt::Display, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: std::str::FromStr<Err: std::fmt::Display>,
        D: Deserializer<'de>,
    {
        let name = std::borrow::Cow::<str>::deserialize(deserializer)?;
        name.parse().map_err(D::Error::custom)
    }
}
