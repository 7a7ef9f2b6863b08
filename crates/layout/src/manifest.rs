//! The manifest: the text file that names the files of an index' current checkpoint and says what
//! is in them.
//!
//! ```text
//! STRATANN MANIFEST <format version> <crc32c of the body, 8 hex digits> <length of the body in bytes>\n
//! { ...the body: JSON, indented, ends with a newline... }
//! ```
//!
//! It is text because it is what a human looks at first. The first line has exactly one spelling,
//! and the checksum covers every byte of the body, so that any damage is found.
//!
//! Keys stand in the order of `text.rs`, which is that in which they came: facts of one kind of
//! index among those of all. Version 2 has keys that version 1 has not, from `layout` to
//! `measured`; version 3 those from `codebook` to `build`; version 4 `placement`, `kept` in a
//! segment where reader feature bit 1 is set, and a file of ids where writer feature bit 0 is set,
//! `state` where writer feature bit 1 is, files of columns where writer feature bit 2 is, a file of
//! what searches find where writer feature bit 3 is, and `drift` in the placement where writer
//! feature bit 5 is. Where reader feature bit 3 is set, its one vector is a placeholder and none
//! ([`PLACEHOLDER`]). An index of version 1 is read as one of the coupled layout, which was the
//! only one.

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
/// The manifest's format version, which is also what users see as the format version of an index.
/// 1: the first. 2: layouts other than the coupled one. 3: the inline layout, and codebooks that
/// are named by their content. 4: records that were written anew after the build
/// ([`crate::placement`]).
pub const FORMAT_VERSION: u32 = 4;
/// Reader feature bit of an index with records that were written anew after the build: it has the
/// key `placement`, and who does not look there reads records that are out of date.
pub const PLACEMENT: u64 = 1;
/// Reader feature bit of an index with segments that a merge kept ([`KeptFacts`]): who does not
/// know of these takes records for other nodes than they are, and garbage for vectors.
pub const KEPT: u64 = 2;
/// Reader feature bit of an index that was built of no rows: its one record of the build is a
/// placeholder, which is dead from the beginning and has the outside id 2^64 - 1, which no vector
/// has. Who does not know of it would answer it.
pub const PLACEHOLDER: u64 = 8;
/// Reader feature bits that this build understands.
pub const READER_FEATURES: u64 = PLACEMENT | KEPT | KIND | PLACEHOLDER;
/// Writer feature bit of an index with a file of ids ([`crate::ids`]): who does not know of it may
/// search the index, and would leave the file behind where a merge replaces it.
pub const IDS: u64 = 1;
/// Writer feature bit of an index with a [`Manifest::state`]: who does not know of it may search
/// the index, and would leave the same state on what it has changed.
pub const STATE: u64 = 2;
/// Writer feature bit of an index with columns ([`crate::columns`]): who does not know of them may
/// search its vectors, and would leave the rows behind where it changes or merges these.
pub const COLUMNS: u64 = 4;
/// Writer feature bit of an index with a file of what searches find ([`crate::recall`]): who does
/// not know of it may search the index, and would leave it on one that is another.
pub const RECALL: u64 = 8;
/// Writer feature bit of an index whose codebook was given to its build, and may be that of others:
/// a merge keeps it. Who does not know of it may search the index, and would forget that where it
/// merges it.
pub const GIVEN_CODEBOOK: u64 = 16;
/// Writer feature bit of an index that says how far codes are off of what came ([`DriftFacts`]).
/// Who does not know of it may search the index, and would leave out what it says where it changes
/// the index.
pub const DRIFT: u64 = 32;
/// Writer feature bits that this build understands.
pub const WRITER_FEATURES: u64 = IDS | STATE | COLUMNS | RECALL | GIVEN_CODEBOOK | DRIFT;

/// Hexadecimal digits of [`Manifest::state`].
pub const STATE_DIGITS: usize = 32;

/// The largest of the numbers that something is added to.
const LARGEST: u64 = 1 << 62;

/// What an index consists of, and the facts about it that a reader needs before it opens the other
/// files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format version.
    pub format_version: u32,
    /// Feature bits that a reader must know.
    pub reader_features: u64,
    /// Feature bits that a writer must know. A reader that does not know one of them ignores the
    /// keys that it does not know; without such a bit an unknown key is an error.
    pub writer_features: u64,
    /// The version of StratANN that wrote this.
    pub created_by: String,
    /// The checkpoint's number, counted up with each replacement of the manifest.
    pub checkpoint: u64,
    /// The preset that the index was built with.
    pub preset: String,
    /// Element type of the vectors.
    #[serde(with = "by_name")]
    pub element: Element,
    /// The metric that the graph was built for.
    #[serde(with = "by_name")]
    pub metric: Metric,
    /// What only indexes of its kind have.
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
    /// How vectors and lists stand on disk: what the file of the lists calls it
    /// ([`FileKind::layout`]).
    #[serde(default = "coupled")]
    pub layout: String,
    /// Encoded bytes of all lists; 0 where they are not encoded.
    #[serde(default)]
    pub list_bytes: u64,
    /// Encoded bytes of all vectors, garbage left out; 0 where they are not encoded.
    #[serde(default)]
    pub vector_bytes: u64,
    /// How the lists are encoded, in words; empty where they are not.
    #[serde(default)]
    pub list_codec: String,
    /// How the vectors are encoded, in words; empty where they are not.
    #[serde(default)]
    pub vector_codec: String,
    /// The segments of the vectors, in the order of their nodes; none but where vectors, or
    /// trailing parts, stand apart (decoupled, layered).
    #[serde(default)]
    pub segments: Vec<SegmentFacts>,
    /// What a sample of queries read when the index was built, if that was measured.
    #[serde(default)]
    pub measured: Option<Measured>,
    /// The content hash of the codebook (BLAKE3, 64 hexadecimal digits), by which indexes that
    /// share one know it; empty in an index of a version that had none.
    #[serde(default)]
    pub codebook: String,
    /// 1 more than the largest outside id there has ever been; 0 in an index of a version that did
    /// not say. Where it is the number of vectors, the ids are 0 to that, each once; else a file of
    /// kind [`FileKind::Ids`] has them where writer feature bit [`IDS`] is set.
    #[serde(default)]
    pub next_id: u64,
    /// Where the log goes on whose records are not in the files of this checkpoint.
    #[serde(default)]
    pub log_from: LogFrom,
    /// Choices of the build that are nowhere else, so that the index can be rebuilt as it is.
    #[serde(default)]
    pub build: BuildFacts,
    /// Facts about records that were written anew after the build, if there are any; reader feature
    /// bit [`PLACEMENT`] is set then.
    #[serde(default)]
    pub placement: Option<PlacementFacts>,
    /// What tells this checkpoint from every other of any index, on whatever machine: a random
    /// number in [`STATE_DIGITS`] hexadecimal digits, drawn anew for each. `None` in a checkpoint
    /// of a version that had none; writer feature bit [`STATE`] is set where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The files of the checkpoint.
    pub files: Vec<FileEntry>,
}

/// The layout of an index of the first version, which had no other.
fn coupled() -> String {
    FileKind::Graph.layout().unwrap_or_default().to_owned()
}

impl Manifest {
    /// The text of the manifest. What a version has no key for is left out of a manifest of that
    /// version.
    pub fn encode(&self) -> Vec<u8> {
        // Serialising to memory fails only for maps with keys that are not strings; there are none
        // here.
        let body = serde_json::to_string_pretty(self).unwrap_or_default();
        let mut body = in_order(self.format_version, &body).into_bytes();
        body.push(b'\n');
        let mut text = first_line(self.format_version, &body).into_bytes();
        text.extend_from_slice(&body);
        text
    }

    /// Reads the text of a manifest; `file` is its name for messages.
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
        // Their defaults are for earlier versions alone.
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

    /// The body, with the keys of its version.
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

    /// The file of this kind that holds segment `segment`.
    pub fn segment_file(&self, kind: FileKind, segment: u32) -> Option<&FileEntry> {
        self.file(&FileEntry::role_of(kind, Some(segment)))
    }

    /// The numbers of its segments of columns, in their order: the newest row of a node counts.
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

    /// Makes it that of a state of its own, which `random` bytes tell from all others.
    pub fn begin_state(&mut self, random: [u8; STATE_DIGITS / 2]) {
        let digits = u128::from_be_bytes(random);
        self.state = Some(format!("{digits:0width$x}", width = STATE_DIGITS));
        self.writer_features |= STATE;
    }

    /// Says how far codes are off of what came after the build, or, with `None`, no more. Without a
    /// placement there is nothing that came.
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

    /// What it says of a graph.
    ///
    /// # Panics
    /// When it is that of another kind of index: nobody asks who has not looked which kind it is.
    pub fn graph(&self) -> &GraphFacts {
        match &self.kind {
            IndexKind::Graph(facts) => facts,
            IndexKind::Cluster(_) => panic!("a cluster index has no facts of a graph"),
        }
    }

    /// The same, to be changed.
    ///
    /// # Panics
    /// As [`graph`](Manifest::graph).
    pub fn graph_mut(&mut self) -> &mut GraphFacts {
        match &mut self.kind {
            IndexKind::Graph(facts) => facts,
            IndexKind::Cluster(_) => panic!("a cluster index has no facts of a graph"),
        }
    }

    /// Whether it was built of no rows: its one record of the build is a placeholder, which is no
    /// vector.
    pub fn has_placeholder(&self) -> bool {
        self.reader_features & PLACEHOLDER != 0
    }

    /// Vectors of the build: a placeholder is none.
    pub fn built_vectors(&self) -> u64 {
        self.vectors
            .saturating_sub(u64::from(self.has_placeholder()))
    }

    /// Whether the ids of the build are row numbers: 0 to the number of its vectors, each once.
    pub fn has_row_numbers(&self) -> bool {
        self.next_id == self.vectors && !self.has_placeholder()
    }

    /// Numbers that nodes have: those of the build, and of what came after it.
    pub fn nodes(&self) -> u64 {
        self.placement.map_or(self.vectors, |facts| facts.nodes)
    }

    /// What it says of clusters; `None` if it is that of another kind of index.
    pub fn clusters(&self) -> Option<&ClusterFacts> {
        match &self.kind {
            IndexKind::Graph(_) => None,
            IndexKind::Cluster(facts) => Some(facts),
        }
    }
}

/// What decides whether the rest may be read at all.
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

/// Element types and metrics stand in the manifest by name.
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
