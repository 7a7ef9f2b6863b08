//! The manifest: the text file that names the files of an index' current checkpoint and says what is in them.
//!
//! ```text
//! STRATANN MANIFEST <format version> <crc32c of the body, 8 hex digits> <length of the body in bytes>\n
//! { ...the body: JSON, indented, ends with a newline... }
//! ```
//!
//! It is text because it is what a human looks at first. The first line has exactly one spelling, and the
//! checksum covers every byte of the body, so that any damage is found.
//!
//! Version 2 has keys that version 1 has not, from `layout` to `measured`; version 3 those from `codebook` to `build`;
//! version 4 `placement`, `kept` in a segment where reader feature bit 1 is set, and a file of ids where writer feature bit 0 is
//! set. An index of version 1 is read as one of the coupled layout, which was the only one.

use std::collections::HashSet;

use crate::block::crc32c;
use crate::error::LayoutError;
use crate::header::{FileKind, check_features};
use serde::{Deserialize, Serialize};
use stratann_vector::{Element, Metric};

/// The manifest's name in the index directory.
pub const FILE_NAME: &str = "MANIFEST";
/// The manifest's format version, which is also what users see as the format version of an index. 1: the
/// first. 2: layouts other than the coupled one. 3: the inline layout, and codebooks that are named by their content.
/// 4: records that were written anew after the build ([`crate::placement`]).
pub const FORMAT_VERSION: u32 = 4;
/// Reader feature bit of an index with records that were written anew after the build: it has the key `placement`, and
/// who does not look there reads records that are out of date.
pub const PLACEMENT: u64 = 1;
/// Reader feature bit of an index with segments that a merge kept ([`KeptFacts`]): who does not know of these takes
/// records for other nodes than they are, and garbage for vectors.
pub const KEPT: u64 = 2;
/// Reader feature bits that this build understands.
pub const READER_FEATURES: u64 = PLACEMENT | KEPT;
/// Writer feature bit of an index with a file of ids ([`crate::ids`]): who does not know of it may search the index, and would
/// leave the file behind where a merge replaces it.
pub const IDS: u64 = 1;
/// Writer feature bits that this build understands.
pub const WRITER_FEATURES: u64 = IDS;

/// The largest of the numbers that something is added to.
const LARGEST: u64 = 1 << 62;

const FIRST_WORDS: &str = "STRATANN MANIFEST ";

/// The keys that the first version has not, and the version that brought each.
const LATER_KEYS: [(&str, u32); 12] = [
    ("layout", 2),
    ("list_bytes", 2),
    ("vector_bytes", 2),
    ("list_codec", 2),
    ("vector_codec", 2),
    ("segments", 2),
    ("measured", 2),
    ("codebook", 3),
    ("next_id", 3),
    ("log_from", 3),
    ("build", 3),
    ("placement", 4),
];

/// What an index consists of, and the facts about it that a reader needs before it opens the other files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format version.
    pub format_version: u32,
    /// Feature bits that a reader must know.
    pub reader_features: u64,
    /// Feature bits that a writer must know. A reader that does not know one of them ignores the keys that
    /// it does not know; without such a bit an unknown key is an error.
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
    /// Elements of a vector.
    pub dimension: u32,
    /// Vectors in the index.
    pub vectors: u64,
    /// The degree bound R of the build.
    pub degree: u32,
    /// The list size L of the build.
    pub build_list: u32,
    /// The pruning factor of the build.
    pub alpha: f32,
    /// Bytes of a vector's code.
    pub code_bytes: u32,
    /// The order of the nodes on disk.
    pub order: String,
    /// The node that a search starts from (the medoid).
    pub entry: u32,
    /// Mean degree of the nodes.
    pub degree_mean: f64,
    /// The largest degree of a node.
    pub degree_max: u32,
    /// Edges in the graph.
    pub edges: u64,
    /// Vectors that are deleted but still on disk.
    pub deleted: u64,
    /// The seed of the build.
    pub seed: u64,
    /// The navigation graph, if there is one.
    pub navigation: Option<NavigationFacts>,
    /// How vectors and lists stand on disk: what the file of the lists calls it ([`FileKind::layout`]).
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
    /// The segments of the vectors, in the order of their nodes; none but in the decoupled layout.
    #[serde(default)]
    pub segments: Vec<SegmentFacts>,
    /// What a sample of queries read when the index was built, if that was measured.
    #[serde(default)]
    pub measured: Option<Measured>,
    /// The content hash of the codebook (BLAKE3, 64 hexadecimal digits), by which indexes that share one know it;
    /// empty in an index of a version that had none.
    #[serde(default)]
    pub codebook: String,
    /// 1 more than the largest outside id there has ever been; 0 in an index of a version that did not say. Where it is
    /// the number of vectors, the ids are 0 to that, each once; else a file of kind [`FileKind::Ids`] has them where writer
    /// feature bit [`IDS`] is set.
    #[serde(default)]
    pub next_id: u64,
    /// Where the log goes on whose records are not in the files of this checkpoint.
    #[serde(default)]
    pub log_from: LogFrom,
    /// Choices of the build that are nowhere else, so that the index can be rebuilt as it is.
    #[serde(default)]
    pub build: BuildFacts,
    /// Facts about records that were written anew after the build, if there are any; reader feature bit [`PLACEMENT`] is
    /// set then.
    #[serde(default)]
    pub placement: Option<PlacementFacts>,
    /// The files of the checkpoint.
    pub files: Vec<FileEntry>,
}

/// The layout of an index of the first version, which had no other.
fn coupled() -> String {
    FileKind::Graph.layout().unwrap_or_default().to_owned()
}

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
    /// What its file says otherwise, if a merge kept it; reader feature bit [`KEPT`] is set then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptFacts>,
}

/// Facts about the file of a segment that an earlier checkpoint wrote, and whose nodes have other numbers since, or
/// are fewer.
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

/// Facts about the navigation graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NavigationFacts {
    /// Its nodes.
    pub nodes: u64,
    /// Its degree bound.
    pub degree: u32,
}

/// Facts about an index with records that were written anew after the build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementFacts {
    /// All nodes, those of the build included.
    pub nodes: u64,
    /// Pages of the page file: its length is a [block](crate::BLOCK) and so many pages, whatever its header says.
    pub pages: u64,
    /// Vectors that count.
    pub live: u64,
    /// 1 more than the largest outside id there has ever been; the manifest's own is that of the build.
    pub next_id: u64,
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
    /// The checksum in its header block ([`crate::header::stored_checksum`]), which tells it from a file of
    /// another index.
    pub header_crc32c: u32,
}

impl FileEntry {
    /// The role of a file of this kind; `segment` is its number where a file holds one segment of several.
    pub fn role_of(kind: FileKind, segment: Option<u32>) -> String {
        match segment {
            None => kind.name().to_owned(),
            Some(segment) => format!("{kind}-{segment}"),
        }
    }

    /// What the role says: the kind of the file, and the segment that it holds. `None`: no role that this
    /// build knows.
    pub fn kind(&self) -> Option<(FileKind, Option<u32>)> {
        let (name, segment) = match self.role.split_once('-') {
            None => (self.role.as_str(), None),
            Some((name, number)) => (name, Some(number.parse().ok()?)),
        };
        let kind = FileKind::ALL.into_iter().find(|kind| kind.name() == name)?;
        let in_segments = matches!(kind, FileKind::Vectors | FileKind::Chunks);
        // One spelling only, so that no two roles are the same file's.
        let right = (segment.is_none() || in_segments) && self.role == Self::role_of(kind, segment);
        right.then_some((kind, segment))
    }
}

impl Manifest {
    /// The text of the manifest. What a version has no key for is left out of a manifest of that version.
    pub fn encode(&self) -> Vec<u8> {
        // Serialising to memory fails only for maps with keys that are not strings; there are none here.
        let body = serde_json::to_string_pretty(self).unwrap_or_default();
        let mut body = keys_of(self.format_version, &body).into_bytes();
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
        check_features(
            features.reader_features,
            READER_FEATURES,
            "reader",
            at,
            file,
        )?;

        let manifest: Manifest = serde_json::from_slice(body).map_err(json)?;
        let found: serde_json::Value = serde_json::from_slice(body).map_err(json)?;
        // Their defaults are for earlier versions alone.
        for (key, since) in LATER_KEYS {
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
        Ok(manifest)
    }

    /// The body, with the keys of its version.
    fn value(&self) -> serde_json::Result<serde_json::Value> {
        let mut value = serde_json::to_value(self)?;
        if let Some(keys) = value.as_object_mut() {
            for (key, since) in LATER_KEYS {
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

    /// Refuses an index that this build may read but must not change.
    pub fn check_writable(&self, file: &str) -> Result<(), LayoutError> {
        check_features(self.writer_features, WRITER_FEATURES, "writer", 0, file)
    }

    /// Numbers that are counted on from, added up, or taken for a share: nothing that is made of them may overflow.
    fn check_numbers(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        let lengths = self.files.iter().map(|entry| entry.length);
        let length = lengths.fold(0, u64::saturating_add);
        for (what, found) in [
            ("checkpoint", self.checkpoint),
            ("number of the log", self.log_from.number),
            ("sequence number of the log", self.log_from.sequence),
            ("length of all files", length),
            ("edges", self.edges),
            ("bytes of all lists", self.list_bytes),
            ("bytes of all vectors", self.vector_bytes),
        ] {
            if found > LARGEST {
                return Err(field(file, at, what, found, format!("at most {LARGEST}")));
            }
        }
        let share = 0.0..=1.0;
        let measured = self.measured.iter();
        let hot = measured.clone().flat_map(|measured| {
            let all = measured.hot_graph.iter().chain(&measured.hot_vectors);
            all.flat_map(|hot| [hot.share, hot.hits])
        });
        let navigation = [self.build.navigation];
        if let Some(found) = hot.chain(navigation).find(|found| !share.contains(found)) {
            return Err(field(file, at, "share", found, "0 to 1"));
        }
        let mut reads = measured.flat_map(|measured| {
            [
                measured.reads_medoid,
                measured.reads_navigation,
                measured.vector_reads,
            ]
        });
        if let Some(found) = reads.find(|found| !(0.0..=LARGEST as f64).contains(found)) {
            return Err(field(file, at, "reads of a query", found, "0 or more"));
        }
        Ok(())
    }

    /// A layout is one whose lists a kind of file holds; its segments hold each vector once, if it has any.
    fn check_layout(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        let is_called = |kind: &FileKind| kind.layout() == Some(self.layout.as_str());
        let Some(lists) = FileKind::ALL.into_iter().find(is_called) else {
            let names: Vec<_> = FileKind::ALL
                .into_iter()
                .filter_map(FileKind::layout)
                .collect();
            let (found, names) = (format!("{:?}", self.layout), names.join(", "));
            return Err(field(file, at, "layout", found, format!("one of: {names}")));
        };
        let hash = &self.codebook;
        let is_hash =
            hash.len() == 64 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !hash.is_empty() && !is_hash {
            let expected = "64 hexadecimal digits";
            return Err(field(file, at, "codebook", format!("{hash:?}"), expected));
        }
        let mut next = 0u64;
        for (number, segment) in self.segments.iter().enumerate() {
            if u64::from(segment.first) != next || segment.vectors == 0 {
                let found = format!("{number}: {} from {} on", segment.vectors, segment.first);
                let expected = format!("1 vector or more from {next} on");
                return Err(field(file, at, "segment", found, expected));
            }
            next += u64::from(segment.vectors);
            let (first, records) = segment.stored();
            if u64::from(first) + records > u64::from(u32::MAX) {
                let found = format!("{number}: {records} records from {first} on");
                let expected = "at most 4294967295 together";
                return Err(field(file, at, "segment", found, expected));
            }
            if segment.kept.is_some() && self.reader_features & KEPT == 0 {
                let (found, expected) = (
                    self.reader_features,
                    "bit 1 set where a segment was kept by a merge",
                );
                return Err(field(file, at, "reader_features", found, expected));
            }
        }
        let needed = if lists.has_segments() {
            self.vectors
        } else {
            0
        };
        if next != needed {
            let what = "number of vectors in all segments";
            let expected = format!("{needed} in the {} layout", self.layout);
            return Err(field(file, at, what, next, expected));
        }
        Ok(())
    }

    /// Who does not know of a placement must not read the index, so the bit says that there is one; and there is a node
    /// for each vector that counts.
    fn check_placement(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        let Some(facts) = &self.placement else {
            return Ok(());
        };
        if self.reader_features & PLACEMENT == 0 {
            let (found, expected) = (self.reader_features, "bit 0 set where there is a placement");
            return Err(field(file, at, "reader_features", found, expected));
        }
        if facts.live > facts.nodes {
            let what = "vectors that count of the placement";
            let expected = format!("at most {}, its nodes", facts.nodes);
            return Err(field(file, at, what, facts.live, expected));
        }
        Ok(())
    }

    /// Who does not know of a file of ids must not change the index, so the bit says that there is one.
    fn check_ids(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        if self.writer_features & IDS == 0 && self.file(FileKind::Ids.name()).is_some() {
            let (found, expected) = (self.writer_features, "bit 0 set where there are ids");
            return Err(field(file, at, "writer_features", found, expected));
        }
        Ok(())
    }

    /// A name is a name in this directory, nothing else: a manifest must not be able to point elsewhere.
    fn check_names(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        // Sets: a million names must not be compared with each other.
        let (mut names, mut roles) = (HashSet::new(), HashSet::new());
        for entry in &self.files {
            let name = entry.name.as_str();
            let bad = name.is_empty()
                || name == "."
                || name == ".."
                || name == FILE_NAME
                || name
                    .chars()
                    .any(|c| c == '/' || c == '\\' || c.is_control());
            if bad {
                let right = "a file name without any directory";
                return Err(field(
                    file,
                    at,
                    "name of a file",
                    format!("{name:?}"),
                    right,
                ));
            }
            if !names.insert(name) {
                return Err(field(
                    file,
                    at,
                    "name of a file",
                    format!("{name:?}, twice"),
                    "once",
                ));
            }
            if !roles.insert(entry.role.as_str()) {
                let role = format!("{:?}, twice", entry.role);
                return Err(field(file, at, "role of a file", role, "once"));
            }
        }
        Ok(())
    }
}

/// What decides whether the rest may be read at all.
#[derive(Deserialize)]
struct Features {
    format_version: u32,
    reader_features: u64,
}

/// An indented body without the keys that its version has not. What is left stays as it is, to the byte.
fn keys_of(version: u32, body: &str) -> String {
    let mut kept = true;
    // A line that is indented by two starts a key or ends it, and no text has a line's end in it. The last key is one of
    // all versions, so that the commas come out right.
    let of_version = |line: &&str| {
        if let Some(rest) = line.strip_prefix("  \"") {
            let key = rest.split('"').next();
            let later = |&(name, since): &(&str, u32)| since > version && key == Some(name);
            kept = !LATER_KEYS.iter().any(later);
        }
        kept
    };
    body.split_inclusive('\n').filter(of_version).collect()
}

fn first_line(version: u32, body: &[u8]) -> String {
    format!(
        "{FIRST_WORDS}{version} {:08x} {}\n",
        crc32c(body),
        body.len()
    )
}

/// Checks the first line against the body; gives the format version and where the body starts.
fn check_frame(text: &[u8], file: &str) -> Result<(u32, usize), LayoutError> {
    let head = &text[..text.len().min(FIRST_WORDS.len())];
    if head != &FIRST_WORDS.as_bytes()[..head.len()] {
        return Err(LayoutError::Magic {
            file: file.to_owned(),
            offset: 0,
            found: head.escape_ascii().to_string(),
            expected: FIRST_WORDS,
        });
    }
    let truncated = |offset: usize, expected: u64| LayoutError::Truncated {
        file: file.to_owned(),
        offset: offset as u64,
        expected,
        found: (text.len() - offset) as u64,
    };
    // The longest first line: three numbers of at most 10, 8 and 20 digits.
    let window = &text[..text.len().min(FIRST_WORDS.len() + 41)];
    let Some(end) = window.iter().position(|&byte| byte == b'\n') else {
        return Err(truncated(0, FIRST_WORDS.len() as u64 + 41));
    };
    let bad_line = || LayoutError::Field {
        file: file.to_owned(),
        offset: FIRST_WORDS.len() as u64,
        what: "rest of the first line",
        found: format!("{:?}", text[head.len()..end].escape_ascii().to_string()),
        expected: "version, checksum and length".to_owned(),
    };
    let line = std::str::from_utf8(&text[head.len()..end]).map_err(|_| bad_line())?;
    let mut words = line.split(' ');
    let mut word = || words.next().ok_or_else(bad_line);
    let (version, sum, length) = (word()?, word()?, word()?);
    let version: u32 = version.parse().map_err(|_| bad_line())?;
    let stored = u32::from_str_radix(sum, 16).map_err(|_| bad_line())?;
    let length: u64 = length.parse().map_err(|_| bad_line())?;

    if version == 0 || version > FORMAT_VERSION {
        return Err(LayoutError::UnknownVersion {
            file: file.to_owned(),
            offset: FIRST_WORDS.len() as u64,
            found: version,
            expected: FORMAT_VERSION,
        });
    }
    let body = &text[end + 1..];
    if length > body.len() as u64 {
        return Err(truncated(end + 1, length));
    }
    if length < body.len() as u64 {
        return Err(LayoutError::Length {
            file: file.to_owned(),
            expected: (end as u64 + 1).saturating_add(length),
            found: text.len() as u64,
            by: "its first line says so",
        });
    }
    let computed = crc32c(body);
    if stored != computed {
        return Err(LayoutError::Checksum {
            file: file.to_owned(),
            offset: end as u64 + 1,
            stored,
            computed,
        });
    }
    // One spelling only: "+1", "007" or upper-case digits are damage, not a dialect.
    if first_line(version, body).as_bytes() != &text[..=end] {
        return Err(bad_line());
    }
    Ok((version, end + 1))
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

fn not_json(error: &serde_json::Error, body: &[u8], at: u64, file: &str) -> LayoutError {
    let line_start: usize = body
        .split_inclusive(|&byte| byte == b'\n')
        .take(error.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    let offset = at + (line_start + error.column()) as u64;
    field(file, offset, "body", error, "the manifest's JSON")
}

/// The first key of `found` that `known` has not, at any depth.
fn first_unknown_key(found: &serde_json::Value, known: &serde_json::Value) -> Option<String> {
    use serde_json::Value;
    match (found, known) {
        (Value::Object(found), Value::Object(known)) => {
            found.iter().find_map(|(key, value)| match known.get(key) {
                None => Some(key.clone()),
                Some(known) => first_unknown_key(value, known),
            })
        }
        (Value::Array(found), Value::Array(known)) => found
            .iter()
            .zip(known)
            .find_map(|(found, known)| first_unknown_key(found, known)),
        _ => None,
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

#[cfg(test)]
mod tests;
