//! The changes of a cluster index since its build: rewritten and split clusters, and new vectors.
//!
//! The files of the build stay unchanged. A checkpoint that moves vectors into clusters adds a
//! *segment*, a file of posting lists with the changed clusters. If vectors are stored once, the
//! checkpoint also adds a file of [members](super::member) with the new vectors, which begins with
//! vector `first`. If segments have several posting lists of a cluster, the last one of the latest
//! segment counts.
//!
//! The payload of a [stream](crate::stream) of kind `Amended` is little-endian. It has `s` segments
//! of posting lists, `e` posting lists in all segments together, and `m` files of members:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | the number of clusters now: with split-off clusters, without merged ones |
//! | 4 | 4 | `s` |
//! | 8 | 4 | `e` |
//! | 12 | 4 | `m`; 0 if vectors are stored in the posting lists of all their clusters |
//! | 16 | 8 s | for each segment its number, ascending, and its posting lists, 1 or more |
//! | 16 + 8 s | 4 e | the cluster of each posting list, in the order of the lists |
//! | … | 4 e | the bytes of each posting list |
//! | … | 4 e | the number of vectors in each posting list; 0 if each vector is stored once |
//! | … | 8 m | for each file of members its number and its first vector, both ascending |
//!
//! The first vector of the first file of members follows the last vector of the build.

use super::extent::{ExtentKind, FIXED};
use crate::block::BLOCK;
use crate::error::LayoutError;
use crate::payload::PayloadReader;

/// Format version of this table. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

/// A segment of posting lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtentSegment {
    /// The number of the file, a part of its role in the manifest.
    pub number: u32,
    /// The posting lists of the segment, in the order of the file.
    pub extents: Vec<AmendedExtent>,
}

/// A posting list of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmendedExtent {
    /// The cluster of the posting list.
    pub cluster: u32,
    /// The length of the posting list in bytes, without the zeros after it.
    pub bytes: u32,
    /// The number of vectors stored in the posting list.
    pub records: u32,
}

/// A file of members that was written after the build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberSegment {
    /// The number of the file, a part of its role in the manifest.
    pub number: u32,
    /// The number of the first vector in the file, which ends before the next file's first vector.
    pub first: u32,
}

/// The decoded table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AmendedFile {
    /// The current number of clusters.
    pub clusters: u32,
    /// Segments of posting lists.
    pub extents: Vec<ExtentSegment>,
    /// Files of members.
    pub members: Vec<MemberSegment>,
}

impl ExtentSegment {
    /// The byte offset of each posting list in its file, and the offset after the last one.
    pub fn offsets(&self, kind: ExtentKind) -> Vec<u64> {
        let mut at = BLOCK as u64;
        let mut offsets = Vec::with_capacity(self.extents.len() + 1);
        for extent in &self.extents {
            offsets.push(at);
            at = (at + u64::from(extent.bytes)).next_multiple_of(kind.alignment());
        }
        offsets.push(at);
        offsets
    }

    /// The length in bytes of the segment's file.
    pub fn file_length(&self, kind: ExtentKind) -> u64 {
        let end = self.offsets(kind).last().copied().unwrap_or(0);
        end.next_multiple_of(BLOCK as u64)
    }
}

impl AmendedFile {
    /// Encodes the payload.
    pub fn encode(&self) -> Vec<u8> {
        let all = || self.extents.iter().flat_map(|segment| &segment.extents);
        let mut words = vec![
            self.clusters,
            self.extents.len() as u32,
            all().count() as u32,
            self.members.len() as u32,
        ];
        for segment in &self.extents {
            words.extend([segment.number, segment.extents.len() as u32]);
        }
        words.extend(all().map(|extent| extent.cluster));
        words.extend(all().map(|extent| extent.bytes));
        words.extend(all().map(|extent| extent.records));
        for segment in &self.members {
            words.extend([segment.number, segment.first]);
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Decodes a payload. The build had `built` vectors, and the index now has `vectors`.
    ///
    /// # Errors
    /// Fails if a length, a cluster, or the order of segments or first vectors is wrong.
    pub fn decode(
        payload: &[u8],
        (built, vectors): (u32, u32),
        file: &str,
    ) -> Result<AmendedFile, LayoutError> {
        let mut reader = PayloadReader::new(payload, file);
        let clusters = reader.u32("clusters")?;
        let segments = reader.u32("segments of posting lists")?;
        let count = reader.u32("posting lists")?;
        let files = reader.u32("files of members")?;
        if clusters == 0 || clusters > vectors {
            let expected = format!("1 to {vectors}, the number of vectors");
            return Err(reader.wrong(0, "clusters", clusters, expected));
        }
        let at = reader.at();
        let pairs = reader.u32s(u64::from(segments) * 2, "segments of posting lists")?;
        let (mut left, mut last) = (u64::from(count), None);
        for (n, pair) in pairs.chunks_exact(2).enumerate() {
            let (number, extents) = (pair[0], pair[1]);
            if last >= Some(number) {
                let what = "number of a segment";
                return Err(reader.wrong(at + 8 * n, what, number, "ascending numbers"));
            }
            if extents == 0 || u64::from(extents) > left {
                let what = "posting lists of a segment";
                let expected = format!("1 to {left}, the remaining posting lists");
                return Err(reader.wrong(at + 8 * n + 4, what, extents, expected));
            }
            left -= u64::from(extents);
            last = Some(number);
        }
        if left > 0 {
            let expected = format!("{}, as in its segments", u64::from(count) - left);
            return Err(reader.wrong(8, "posting lists", count, expected));
        }
        let at = reader.at();
        let of = reader.u32s(count.into(), "clusters of posting lists")?;
        if let Some(n) = of.iter().position(|&cluster| cluster >= vectors) {
            let expected = format!("below {vectors}");
            return Err(reader.wrong(at + 4 * n, "cluster of a posting list", of[n], expected));
        }
        let at = reader.at();
        let bytes = reader.u32s(count.into(), "bytes of posting lists")?;
        if let Some(n) = bytes.iter().position(|&bytes| (bytes as usize) < FIXED) {
            let expected = format!("{FIXED} or more");
            return Err(reader.wrong(at + 4 * n, "bytes of a posting list", bytes[n], expected));
        }
        let records = reader.u32s(count.into(), "vectors in posting lists")?;
        let mut all = of.iter().zip(&bytes).zip(&records);
        let extents = pairs.chunks_exact(2).map(|pair| ExtentSegment {
            number: pair[0],
            extents: (all.by_ref().take(pair[1] as usize))
                .map(|((&cluster, &bytes), &records)| AmendedExtent {
                    cluster,
                    bytes,
                    records,
                })
                .collect(),
        });
        let extents = extents.collect();
        let at = reader.at();
        let pairs = reader.u32s(u64::from(files) * 2, "files of members")?;
        let mut members: Vec<MemberSegment> = Vec::with_capacity(files as usize);
        for (n, pair) in pairs.chunks_exact(2).enumerate() {
            let (number, first) = (pair[0], pair[1]);
            let (right, expected) = match members.last() {
                None => (
                    first == built,
                    format!("{built}, the first after the vectors of the build"),
                ),
                Some(last) => (
                    number > last.number && first > last.first,
                    format!("above number {} from vector {} on", last.number, last.first),
                ),
            };
            if !right || first >= vectors {
                let found = format!("number {number} from vector {first} on, of {vectors} vectors");
                return Err(reader.wrong(at + 8 * n, "file of members", found, expected));
            }
            members.push(MemberSegment { number, first });
        }
        reader.end()?;
        Ok(AmendedFile {
            clusters,
            extents,
            members,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent(cluster: u32, bytes: u32, records: u32) -> AmendedExtent {
        AmendedExtent {
            cluster,
            bytes,
            records,
        }
    }

    fn sample() -> AmendedFile {
        AmendedFile {
            clusters: 5,
            extents: vec![
                ExtentSegment {
                    number: 2,
                    extents: vec![extent(3, 5000, 7), extent(4, 16, 0)],
                },
                ExtentSegment {
                    number: 9,
                    extents: vec![extent(3, 64, 1)],
                },
            ],
            members: vec![
                MemberSegment {
                    number: 1,
                    first: 20,
                },
                MemberSegment {
                    number: 4,
                    first: 22,
                },
            ],
        }
    }

    fn refusal(file: &AmendedFile) -> String {
        AmendedFile::decode(&file.encode(), (20, 25), "a")
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn what_is_encoded_decodes_and_says_where_extents_are() {
        let table = sample();
        let back = AmendedFile::decode(&table.encode(), (20, 25), "a").unwrap();
        assert_eq!(back, table);
        let first = &table.extents[0];
        assert_eq!(first.offsets(ExtentKind::Grouped), [4096, 9152, 9216]);
        assert_eq!(first.offsets(ExtentKind::Replicated), [4096, 12288, 16384]);
        assert_eq!(first.file_length(ExtentKind::Grouped), 12288);
        let none = AmendedFile {
            clusters: 1,
            ..AmendedFile::default()
        };
        let back = AmendedFile::decode(&none.encode(), (1, 1), "a").unwrap();
        assert_eq!(back, none);
    }

    #[test]
    fn contradictions_are_refused_with_their_place() {
        let changed = |change: &dyn Fn(&mut AmendedFile)| {
            let mut file = sample();
            change(&mut file);
            refusal(&file)
        };
        for (text, expected) in [
            (changed(&|f| f.clusters = 0), "clusters at offset 4100 is 0"),
            (changed(&|f| f.clusters = 26), "expected 1 to 25"),
            (changed(&|f| f.extents[1].number = 2), "ascending numbers"),
            (
                changed(&|f| f.extents[1].extents.clear()),
                "posting lists of a segment",
            ),
            (
                changed(&|f| f.extents[0].extents[0].cluster = 25),
                "below 25",
            ),
            (
                changed(&|f| f.extents[0].extents[0].bytes = 15),
                "16 or more",
            ),
            (
                changed(&|f| f.members[0].first = 19),
                "the first after the vectors of the build",
            ),
            (changed(&|f| f.members[1].first = 20), "from vector 20 on"),
            (changed(&|f| f.members[1].first = 25), "of 25 vectors"),
        ] {
            assert!(text.contains(expected), "{text}");
        }
        let payload = sample().encode();
        for wrong in [
            &payload[..payload.len() - 1],
            &[&payload[..], &[0]].concat(),
        ] {
            assert!(AmendedFile::decode(wrong, (20, 25), "a").is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(words in prop::collection::vec(0u32..6, 0..30)) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let _ = AmendedFile::decode(&bytes, (3, 5), "a");
        }
    }
}
