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
//! Version 2 has keys that version 1 has not, from `layout` to `measured`. An index of version 1 is read as
//! one of the coupled layout, which was the only one.

use crate::block::crc32c;
use crate::error::LayoutError;
use crate::header::{FileKind, check_features};
use serde::{Deserialize, Serialize};
use stratann_vector::{Element, Metric};

/// The manifest's name in the index directory.
pub const FILE_NAME: &str = "MANIFEST";
/// The manifest's format version, which is also what users see as the format version of an index. 1: the
/// first. 2: layouts other than the coupled one.
pub const FORMAT_VERSION: u32 = 2;
/// The layout in which a node's vector and list stand side by side as they are ([`crate::coupled`]).
pub const COUPLED: &str = "coupled";
/// The layout in which they stand side by side, encoded ([`crate::slotted`]).
pub const PACKED: &str = "packed";
/// The layout in which they stand in files of their own, encoded ([`crate::slotted`]).
pub const DECOUPLED: &str = "decoupled";
/// Reader feature bits that this build understands.
pub const READER_FEATURES: u64 = 0;
/// Writer feature bits that this build understands.
pub const WRITER_FEATURES: u64 = 0;

const FIRST_WORDS: &str = "STRATANN MANIFEST ";

/// The keys that version 1 has not.
const KEYS_OF_2: [&str; 7] = [
    "layout",
    "list_bytes",
    "vector_bytes",
    "list_codec",
    "vector_codec",
    "segments",
    "measured",
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
    /// How vectors and lists stand on disk: [`COUPLED`], [`PACKED`] or [`DECOUPLED`].
    #[serde(default = "coupled")]
    pub layout: String,
    /// Encoded bytes of all lists; 0 where they are not encoded.
    #[serde(default)]
    pub list_bytes: u64,
    /// Encoded bytes of all vectors; 0 where they are not encoded.
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
    /// The files of the checkpoint.
    pub files: Vec<FileEntry>,
}

fn coupled() -> String {
    COUPLED.to_owned()
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
    /// The text of the manifest. What version 1 has no key for is left out of a manifest of version 1.
    pub fn encode(&self) -> Vec<u8> {
        // Serialising to memory fails only for maps with keys that are not strings; there are none here.
        let mut body = match self.format_version {
            1 => self
                .value()
                .and_then(|value| serde_json::to_vec_pretty(&value)),
            _ => serde_json::to_vec_pretty(self),
        }
        .unwrap_or_default();
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
        if version >= 2 {
            // Their defaults are for version 1 alone.
            for key in KEYS_OF_2 {
                if found.get(key).is_none() {
                    let expected = "a key of this version";
                    return Err(field(
                        file,
                        at,
                        "key",
                        format!("{key:?}, missing"),
                        expected,
                    ));
                }
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
        manifest.check_names(at, file)?;
        manifest.check_layout(at, file)?;
        Ok(manifest)
    }

    /// The body, with the keys of its version.
    fn value(&self) -> serde_json::Result<serde_json::Value> {
        let mut value = serde_json::to_value(self)?;
        if let (1, Some(keys)) = (self.format_version, value.as_object_mut()) {
            keys.retain(|key, _| !KEYS_OF_2.contains(&key.as_str()));
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

    /// A layout is one of three; the segments of the decoupled one hold each vector once, and the others have
    /// none.
    fn check_layout(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        if ![COUPLED, PACKED, DECOUPLED].contains(&self.layout.as_str()) {
            let (found, expected) = (format!("{:?}", self.layout), "coupled, packed or decoupled");
            return Err(field(file, at, "layout", found, expected));
        }
        let mut next = 0u64;
        for (number, segment) in self.segments.iter().enumerate() {
            if u64::from(segment.first) != next || segment.vectors == 0 {
                let found = format!("{number}: {} from {} on", segment.vectors, segment.first);
                let expected = format!("1 vector or more from {next} on");
                return Err(field(file, at, "segment", found, expected));
            }
            next += u64::from(segment.vectors);
        }
        let needed = match self.layout.as_str() {
            DECOUPLED => self.vectors,
            _ => 0,
        };
        if next != needed {
            let what = "number of vectors in all segments";
            let expected = format!("{needed} in the {} layout", self.layout);
            return Err(field(file, at, what, next, expected));
        }
        Ok(())
    }

    /// A name is a name in this directory, nothing else: a manifest must not be able to point elsewhere.
    fn check_names(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        for (index, entry) in self.files.iter().enumerate() {
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
            if self.files[..index]
                .iter()
                .any(|other| other.name == entry.name)
            {
                return Err(field(
                    file,
                    at,
                    "name of a file",
                    format!("{name:?}, twice"),
                    "once",
                ));
            }
            if self.files[..index]
                .iter()
                .any(|other| other.role == entry.role)
            {
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Manifest {
        Manifest {
            format_version: FORMAT_VERSION,
            reader_features: 0,
            writer_features: 0,
            created_by: "0.1.0".into(),
            checkpoint: 1,
            preset: "diskann".into(),
            element: Element::U8,
            metric: Metric::InnerProduct,
            dimension: 128,
            vectors: 100_000,
            degree: 64,
            build_list: 100,
            alpha: 1.2,
            code_bytes: 32,
            order: "input".into(),
            entry: 4711,
            degree_mean: 61.237_891_234_567_89,
            degree_max: 64,
            edges: 6_123_789,
            deleted: 0,
            seed: u64::MAX,
            navigation: Some(NavigationFacts {
                nodes: 1000,
                degree: 24,
            }),
            layout: DECOUPLED.into(),
            list_bytes: 8_123_456,
            vector_bytes: 8_654_321,
            list_codec: "gaps".into(),
            vector_codec: "columns".into(),
            segments: vec![
                SegmentFacts {
                    first: 0,
                    vectors: 65_536,
                    codec: "columns".into(),
                },
                SegmentFacts {
                    first: 65_536,
                    vectors: 34_464,
                    codec: "raw".into(),
                },
            ],
            measured: Some(Measured {
                queries: 100,
                list: 80,
                reads_medoid: 81.25,
                reads_navigation: 60.1,
                vector_reads: 12.7,
                hot_graph: vec![HotShare {
                    share: 0.01,
                    hits: 0.123_456_789,
                }],
                hot_vectors: vec![],
            }),
            files: vec![
                FileEntry {
                    role: "graph".into(),
                    name: "graph.1".into(),
                    length: 40_964_096,
                    header_crc32c: 0xdead_beef,
                },
                FileEntry {
                    role: "codes".into(),
                    name: "codes.1".into(),
                    length: 4_104_192,
                    header_crc32c: 17,
                },
            ],
        }
    }

    /// What version 1 can say of it.
    fn sample_of_1() -> Manifest {
        Manifest {
            format_version: 1,
            layout: COUPLED.into(),
            list_bytes: 0,
            vector_bytes: 0,
            list_codec: String::new(),
            vector_codec: String::new(),
            segments: Vec::new(),
            measured: None,
            ..sample()
        }
    }

    /// Frames a body that a test has made up.
    fn framed(body: &str) -> Vec<u8> {
        framed_as(FORMAT_VERSION, body)
    }

    fn framed_as(version: u32, body: &str) -> Vec<u8> {
        let mut text = first_line(version, body.as_bytes()).into_bytes();
        text.extend_from_slice(body.as_bytes());
        text
    }

    fn body(manifest: &Manifest) -> serde_json::Value {
        serde_json::to_value(manifest).unwrap()
    }

    fn decode_value(value: &serde_json::Value) -> Result<Manifest, LayoutError> {
        Manifest::decode(&framed(&value.to_string()), "MANIFEST")
    }

    #[test]
    fn round_trip_and_text() {
        let manifest = sample();
        let text = manifest.encode();
        assert_eq!(Manifest::decode(&text, "MANIFEST").unwrap(), manifest);
        let text = String::from_utf8(text).unwrap();
        let (first, body) = text.split_once('\n').unwrap();
        assert_eq!(
            first,
            format!(
                "STRATANN MANIFEST 2 {:08x} {}",
                crc32c::crc32c(body.as_bytes()),
                body.len()
            )
        );
        assert!(body.starts_with("{\n  \"format_version\": 2,"), "{body}");
        assert!(body.contains("\"element\": \"u8\""), "{body}");
        assert!(body.contains("\"metric\": \"ip\""), "{body}");
        assert_eq!(manifest.file("codes").unwrap().name, "codes.1");
        assert_eq!(manifest.file("navigation"), None);
    }

    #[test]
    fn every_bit_flip_is_found() {
        let mut text = sample().encode();
        for bit in 0..text.len() * 8 {
            text[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&text, "MANIFEST").is_err(), "bit {bit}");
            text[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn every_truncation_is_found() {
        let text = sample().encode();
        for length in 0..text.len() {
            Manifest::decode(&text[..length], "MANIFEST").unwrap_err();
        }
        let mut longer = text;
        longer.push(b'\n');
        let error = Manifest::decode(&longer, "MANIFEST").unwrap_err();
        assert!(matches!(error, LayoutError::Length { .. }), "{error}");
    }

    #[test]
    fn the_first_line_has_one_spelling() {
        let body = "{}";
        let sum = crc32c::crc32c(body.as_bytes());
        for line in [
            format!("STRATANN MANIFEST 02 {sum:08x} 2\n"),
            format!("STRATANN MANIFEST 2 {sum:08X} 2\n"),
            format!("STRATANN MANIFEST 2 {sum:08x} +2\n"),
            format!("STRATANN MANIFEST 2 {sum:08x} 2 \n"),
            format!("STRATANN MANIFEST 2 {sum:08x} 2\r\n"),
            format!("STRATANN MANIFEST 2  {sum:08x} 2\n"),
            "STRATANN MANIFEST 2\n".to_owned(),
            "STRATANN MANIFEST \n".to_owned(),
        ] {
            let error =
                Manifest::decode(format!("{line}{body}").as_bytes(), "MANIFEST").unwrap_err();
            assert!(
                matches!(error, LayoutError::Field { offset: 18, .. }),
                "{line:?}: {error}"
            );
        }
    }

    #[test]
    fn newer_version_is_refused() {
        let mut manifest = sample();
        manifest.format_version = 3;
        let text = Manifest::decode(&manifest.encode(), "a.idx/MANIFEST")
            .unwrap_err()
            .to_string();
        assert!(
            text.starts_with(
                "a.idx/MANIFEST: unknown format version 3 at offset 18 (2 is the newest"
            ),
            "{text}"
        );
        let mut value = body(&sample());
        value["format_version"] = 0.into();
        decode_value(&value).unwrap_err();
    }

    #[test]
    fn unknown_features_are_refused() {
        let mut manifest = sample();
        manifest.reader_features = 1 << 40 | 1 << 7;
        let text = Manifest::decode(&manifest.encode(), "MANIFEST")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("MANIFEST: unknown reader feature bit 7 at offset"),
            "{text}"
        );
        manifest.reader_features = 0;
        manifest.writer_features = 2;
        let back = Manifest::decode(&manifest.encode(), "MANIFEST").unwrap();
        let text = back.check_writable("MANIFEST").unwrap_err().to_string();
        assert!(text.contains("writer feature bit 1"), "{text}");
    }

    #[test]
    fn unknown_keys_need_a_feature_bit() {
        for path in [
            "",
            "/navigation",
            "/files/1",
            "/segments/1",
            "/measured",
            "/measured/hot_graph/0",
        ] {
            let mut value = body(&sample());
            value.pointer_mut(path).unwrap()["colour"] = "blue".into();
            let text = decode_value(&value).unwrap_err().to_string();
            assert!(
                text.contains("is \"colour\", expected a key of this version"),
                "{text}"
            );
            value["writer_features"] = 1.into();
            decode_value(&value).unwrap();
        }
        let mut value = body(&sample());
        value.as_object_mut().unwrap().remove("entry");
        let text = decode_value(&value).unwrap_err().to_string();
        assert!(text.contains("missing field `entry`"), "{text}");
    }

    #[test]
    fn names_stay_in_the_directory() {
        for name in [
            "",
            ".",
            "..",
            "/etc/passwd",
            "../x",
            "a/b",
            "a\\b",
            "MANIFEST",
            "a\0",
            "codes.1",
        ] {
            let mut manifest = sample();
            manifest.files[0].name = name.into();
            let text = Manifest::decode(&manifest.encode(), "MANIFEST")
                .unwrap_err()
                .to_string();
            assert!(text.contains("name of a file"), "{name:?}: {text}");
        }
        let mut manifest = sample();
        manifest.files[0].role = "codes".into();
        Manifest::decode(&manifest.encode(), "MANIFEST").unwrap_err();
    }

    #[test]
    fn values_of_wrong_types_are_refused_with_their_place() {
        let text = String::from_utf8(sample().encode()).unwrap();
        let (_, json) = text.split_once('\n').unwrap();
        let bad = framed(&json.replace("\"u8\"", "\"u9\""));
        let error = Manifest::decode(&bad, "MANIFEST").unwrap_err();
        let at = error.offset().unwrap() as usize;
        let near = String::from_utf8_lossy(&bad[at - 20..at]);
        assert!(near.contains("u9"), "{near:?}");
        assert!(error.to_string().contains("u9"), "{error}");
        Manifest::decode(&framed("[]"), "MANIFEST").unwrap_err();
        Manifest::decode(&framed(""), "MANIFEST").unwrap_err();
        Manifest::decode(&framed("\u{fffd}"), "MANIFEST").unwrap_err();
    }

    #[test]
    fn version_1_is_read_as_coupled() {
        let manifest = sample_of_1();
        let text = manifest.encode();
        assert!(text.starts_with(b"STRATANN MANIFEST 1 "));
        assert_eq!(Manifest::decode(&text, "MANIFEST").unwrap(), manifest);
        // A key of version 2 is none of version 1.
        for key in KEYS_OF_2 {
            let mut value = manifest.value().unwrap();
            assert_eq!(value.get(key), None, "{key}");
            value[key] = body(&manifest)[key].take();
            let error =
                Manifest::decode(&framed_as(1, &value.to_string()), "MANIFEST").unwrap_err();
            let text = error.to_string();
            let expected = format!("is \"{key}\", expected a key of this version");
            assert!(text.contains(&expected), "{text}");
        }
    }

    #[test]
    fn the_frozen_manifest_of_version_1_is_read() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/index-v1/MANIFEST"
        );
        let manifest = Manifest::decode(&std::fs::read(path).unwrap(), "MANIFEST").unwrap();
        assert_eq!(manifest.format_version, 1);
        assert_eq!(manifest.layout, COUPLED);
        assert_eq!((manifest.list_bytes, manifest.vector_bytes), (0, 0));
        assert_eq!((&*manifest.list_codec, &*manifest.vector_codec), ("", ""));
        assert!(manifest.segments.is_empty() && manifest.measured.is_none());
        let again = Manifest::decode(&manifest.encode(), "MANIFEST").unwrap();
        assert_eq!(again, manifest);
    }

    #[test]
    fn version_2_needs_its_keys() {
        for key in KEYS_OF_2 {
            let mut value = body(&sample());
            value.as_object_mut().unwrap().remove(key);
            let text = decode_value(&value).unwrap_err().to_string();
            assert!(text.contains(&format!("is \"{key}\", missing")), "{text}");
        }
    }

    #[test]
    fn layouts_and_segments_that_contradict_each_other_are_refused() {
        for (change, text) in [
            (
                (|m| m.layout = "scattered".into()) as fn(&mut Manifest),
                "layout at offset",
            ),
            (
                |m| m.layout = PACKED.into(),
                "is 100000, expected 0 in the packed layout",
            ),
            (
                |m| m.layout = COUPLED.into(),
                "is 100000, expected 0 in the coupled layout",
            ),
            (
                |m| m.segments.clear(),
                "is 0, expected 100000 in the decoupled layout",
            ),
            (|m| drop(m.segments.pop()), "is 65536, expected 100000"),
            (|m| m.vectors += 1, "is 100000, expected 100001"),
            (
                |m| m.segments[1].first += 1,
                "segment at offset 34 is 1: 34464 from 65537 on, expected 1 vector or more from 65536 on",
            ),
            (|m| m.segments[0].first = 1, "is 0: 65536 from 1 on"),
            (|m| m.segments[0].vectors = 0, "is 0: 0 from 0 on"),
            (|m| m.segments.swap(0, 1), "is 0: 34464 from 65536 on"),
        ] {
            let mut manifest = sample();
            change(&mut manifest);
            let error = Manifest::decode(&manifest.encode(), "MANIFEST").unwrap_err();
            let found = error.to_string();
            assert!(found.contains(text), "{found}\n{text}");
        }
        for layout in [COUPLED, PACKED] {
            let mut manifest = sample();
            manifest.layout = layout.into();
            manifest.segments.clear();
            let back = Manifest::decode(&manifest.encode(), "MANIFEST").unwrap();
            assert_eq!(back, manifest);
        }
    }

    #[test]
    fn a_role_says_kind_and_segment() {
        let entry = |role: &str| FileEntry {
            role: role.into(),
            ..sample().files[0].clone()
        };
        for kind in FileKind::ALL {
            assert_eq!(entry(kind.name()).kind(), Some((kind, None)));
            let in_segments = matches!(kind, FileKind::Vectors | FileKind::Chunks);
            for segment in [0, 3, u32::MAX] {
                let role = FileEntry::role_of(kind, Some(segment));
                let right = in_segments.then_some((kind, Some(segment)));
                assert_eq!(entry(&role).kind(), right, "{role}");
            }
        }
        for role in [
            "",
            "-",
            "-3",
            "colours",
            "vectors-",
            "vectors-03",
            "vectors-+3",
            "vectors--3",
            "vectors-3-4",
            "vectors-4294967296",
            "Vectors-3",
            "vectors-3 ",
            "vectors 3",
        ] {
            assert_eq!(entry(role).kind(), None, "{role:?}");
        }

        let mut manifest = sample();
        for (at, role) in ["vectors-0", "chunks-1", "vectors-1"].iter().enumerate() {
            let mut entry = entry(role);
            entry.name = format!("{role}-{at}");
            manifest.files.push(entry);
        }
        let manifest = Manifest::decode(&manifest.encode(), "MANIFEST").unwrap();
        let role = |kind, segment| Some(manifest.segment_file(kind, segment)?.role.as_str());
        assert_eq!(role(FileKind::Vectors, 1), Some("vectors-1"));
        assert_eq!(role(FileKind::Chunks, 1), Some("chunks-1"));
        assert_eq!(role(FileKind::Chunks, 0), None);
        assert_eq!(role(FileKind::Graph, 0), None);
    }

    proptest! {
        #[test]
        fn any_manifest_round_trips(
            (element, metric) in (0usize..4, 0usize..3),
            (dimension, degree, build_list, code_bytes, entry, degree_max) in any::<(u32, u32, u32, u32, u32, u32)>(),
            (checkpoint, vectors, edges, deleted, seed) in any::<(u64, u64, u64, u64, u64)>(),
            alpha in 1.0f32..100.0,
            degree_mean in 0.0f64..1e6,
            preset in ".*",
            navigation in prop::option::of(any::<(u64, u32)>()),
            (list_bytes, vector_bytes) in any::<(u64, u64)>(),
            codecs in any::<(String, String)>(),
            segments in prop::collection::vec(any::<u16>(), 0..5),
            measured in prop::option::of((any::<(u32, u32)>(), prop::collection::vec(0.0f64..1.0, 0..6))),
            packed: bool,
            files in prop::collection::btree_map("[a-z]{1,8}\\.[0-9]{1,5}", any::<(u64, u32)>(), 0..5),
        ) {
            let mut first = 0;
            let segments: Vec<_> = segments.into_iter().map(|vectors| {
                let vectors = u32::from(vectors) + 1;
                first += vectors;
                SegmentFacts { first: first - vectors, vectors, codec: format!("{vectors}") }
            }).collect();
            let layout = match (segments.is_empty(), packed) {
                (false, _) => DECOUPLED,
                (true, true) => PACKED,
                (true, false) => COUPLED,
            };
            let vectors = if segments.is_empty() { vectors } else { u64::from(first) };
            let measured = measured.map(|((queries, list), numbers)| Measured {
                queries, list,
                reads_medoid: numbers.iter().sum::<f64>() * 1e3,
                reads_navigation: numbers.len() as f64,
                vector_reads: 1.0 / (1.0 + numbers.len() as f64),
                hot_graph: numbers.iter().map(|&share| HotShare { share, hits: 1.0 - share }).collect(),
                hot_vectors: numbers.iter().map(|&hits| HotShare { share: hits / 3.0, hits }).collect(),
            });
            let manifest = Manifest {
                layout: layout.into(),
                list_codec: codecs.0, vector_codec: codecs.1,
                list_bytes, vector_bytes, segments, measured,
                element: Element::ALL[element],
                metric: Metric::ALL[metric],
                dimension, degree, build_list, code_bytes, entry, degree_max,
                checkpoint, vectors, edges, deleted, seed,
                alpha, degree_mean, preset,
                navigation: navigation.map(|(nodes, degree)| NavigationFacts { nodes, degree }),
                files: files.into_iter().map(|(name, (length, header_crc32c))| FileEntry {
                    role: format!("role of {name}"), name, length, header_crc32c,
                }).collect(),
                ..sample()
            };
            prop_assert_eq!(Manifest::decode(&manifest.encode(), "m").unwrap(), manifest);
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), form in 0..3) {
            if form == 1 {
                bytes.splice(..0, *b"STRATANN MANIFEST 2 ");
            }
            if form == 2 {
                let line = first_line(FORMAT_VERSION, &bytes);
                bytes.splice(..0, line.into_bytes());
            }
            let _ = Manifest::decode(&bytes, "m");
        }

        #[test]
        fn damaged_json_never_panics(at: prop::sample::Index, byte: u8) {
            let text = sample().encode();
            let start = text.iter().position(|&b| b == b'\n').unwrap() + 1;
            let mut json = text[start..].to_vec();
            let at = at.index(json.len());
            json[at] = byte;
            let mut damaged = first_line(FORMAT_VERSION, &json).into_bytes();
            damaged.extend_from_slice(&json);
            let _ = Manifest::decode(&damaged, "m");
        }
    }
}
