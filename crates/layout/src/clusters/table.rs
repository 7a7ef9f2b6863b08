//! The table of a cluster index, in memory while the index is open: the length of each posting
//! list, and the number of vectors in it.
//!
//! The payload of a [stream](crate::stream) of kind `Clusters` is little-endian. It has `c`
//! clusters:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | `c`, 1 or more |
//! | 4 | 4 | `m`, bytes of the model |
//! | 8 | 4 c | bytes of each posting list, in the order of the clusters |
//! | 8 + 4 c | 4 c | the number of vectors stored in each posting list |
//! | 8 + 8 c | m | the model by which numbers of members are coded; none in a replicated index |

use super::extent::{ExtentKind, FIXED};
use crate::block::BLOCK;
use crate::error::LayoutError;
use crate::payload::PayloadReader;

/// Format version of these files. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

/// The decoded table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClustersFile {
    /// Bytes of each posting list, without the zeros after it.
    pub bytes: Vec<u32>,
    /// The number of vectors stored in each posting list.
    pub records: Vec<u32>,
    /// The model of the code for the numbers of members.
    pub model: Vec<u8>,
}

impl ClustersFile {
    /// Encodes the payload.
    pub fn encode(&self) -> Vec<u8> {
        let clusters = self.bytes.len();
        let mut out = Vec::with_capacity(8 + 8 * clusters + self.model.len());
        out.extend_from_slice(&(clusters as u32).to_le_bytes());
        out.extend_from_slice(&(self.model.len() as u32).to_le_bytes());
        for words in [&self.bytes, &self.records] {
            out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        out.extend_from_slice(&self.model);
        out
    }

    /// Decodes a payload of an index with `clusters` clusters. `file` is the name in errors.
    ///
    /// # Errors
    /// Fails if the number of clusters or a length does not match.
    pub fn decode(payload: &[u8], clusters: u64, file: &str) -> Result<ClustersFile, LayoutError> {
        let mut reader = PayloadReader::new(payload, file);
        let count = reader.u32("clusters")?;
        if u64::from(count) != clusters {
            let expected = format!("{clusters}, as in the MANIFEST");
            return Err(reader.wrong(0, "clusters", count, expected));
        }
        let model_bytes = reader.u32("bytes of the model")?;
        let at = reader.at();
        let bytes = reader.u32s(count.into(), "bytes of posting lists")?;
        if let Some(short) = bytes.iter().position(|&bytes| (bytes as usize) < FIXED) {
            let expected = format!("{FIXED} or more");
            return Err(reader.wrong(
                at + 4 * short,
                "bytes of a posting list",
                bytes[short],
                expected,
            ));
        }
        let records = reader.u32s(count.into(), "vectors in posting lists")?;
        let model = reader.bytes(model_bytes.into(), "model")?.to_vec();
        reader.end()?;
        Ok(ClustersFile {
            bytes,
            records,
            model,
        })
    }

    /// The byte offset of each posting list in its file, and the offset after the last one.
    pub fn offsets(&self, kind: ExtentKind) -> Vec<u64> {
        let mut at = BLOCK as u64;
        let mut offsets = Vec::with_capacity(self.bytes.len() + 1);
        for &bytes in &self.bytes {
            offsets.push(at);
            at = (at + u64::from(bytes)).next_multiple_of(kind.alignment());
        }
        offsets.push(at);
        offsets
    }

    /// The length in bytes of the file of posting lists.
    pub fn file_length(&self, kind: ExtentKind) -> u64 {
        let end = self.offsets(kind).last().copied().unwrap_or(0);
        end.next_multiple_of(BLOCK as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> ClustersFile {
        ClustersFile {
            bytes: vec![16, 5000, 64],
            records: vec![0, 7, 1],
            model: vec![1, 2, 3],
        }
    }

    #[test]
    fn what_is_encoded_decodes_and_says_where_extents_are() {
        let table = sample();
        assert_eq!(
            ClustersFile::decode(&table.encode(), 3, "c").unwrap(),
            table
        );
        assert_eq!(table.offsets(ExtentKind::Grouped), [4096, 4160, 9216, 9280]);
        assert_eq!(
            table.offsets(ExtentKind::Replicated),
            [4096, 8192, 16384, 20480]
        );
        assert_eq!(table.file_length(ExtentKind::Grouped), 12288);
        assert_eq!(table.file_length(ExtentKind::Replicated), 20480);
    }

    #[test]
    fn contradictions_are_refused_with_their_place() {
        let payload = sample().encode();
        let refusal = |payload: &[u8], clusters| {
            ClustersFile::decode(payload, clusters, "c")
                .unwrap_err()
                .to_string()
        };
        let short = ClustersFile {
            bytes: vec![16, 15, 64],
            ..sample()
        };
        for (text, expected) in [
            (refusal(&payload, 4), "expected 4, as in the MANIFEST"),
            (refusal(&payload[..20], 3), "cut off"),
            (refusal(&[&payload[..], &[0]].concat(), 3), "payload length"),
            (
                refusal(&short.encode(), 3),
                "bytes of a posting list at offset 4112 is 15",
            ),
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..80), clusters in 0u64..4) {
            let _ = ClustersFile::decode(&bytes, clusters, "c");
        }
    }
}
