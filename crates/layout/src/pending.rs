//! Pending changes of an index, which wait until their pages are written: neighbours to add to
//! lists or to drop, and new nodes. A checkpoint stores these changes, because it removes the log
//! in which they are recorded.
//!
//! The payload of a [stream](crate::stream) of kind `Pending` is little-endian. Vectors have `v`
//! bytes:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | `c`: changes |
//! | 4 | 4 | `r`: new nodes |
//! | 8 | 12 c | changes: node of the list u32, node to add u32, node to drop u32 (2^32 - 1: none) |
//! | 8 + 12 c | … | new nodes: node u32, external id u64, links `l` u32, vector, `l` links u32 |
//!
//! The [placement](crate::placement) has the page of a new node.

use crate::block::u32_at;
use crate::error::LayoutError;
use crate::payload::PayloadReader;

/// Format version of these files. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

const CHANGE: usize = 12;
/// The value that means "no node".
pub const NOBODY: u32 = u32::MAX;

/// The decoded pending changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingFile {
    /// The node of the list, the node that is added, and the node that is dropped or [`NOBODY`].
    pub changes: Vec<[u32; 3]>,
    /// Nodes that are on no page yet.
    pub records: Vec<PendingRecord>,
}

/// A node that is on no page yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRecord {
    /// The node.
    pub node: u32,
    /// The external id of the node.
    pub id: u64,
    /// The bytes of the node's vector.
    pub vector: Vec<u8>,
    /// The neighbours of the node.
    pub list: Vec<u32>,
}

impl PendingFile {
    /// Encodes the payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(8 + CHANGE * self.changes.len());
        out.extend_from_slice(&(self.changes.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.records.len() as u32).to_le_bytes());
        let words = self.changes.iter().flatten();
        out.extend(words.flat_map(|word| word.to_le_bytes()));
        for record in &self.records {
            out.extend_from_slice(&record.node.to_le_bytes());
            out.extend_from_slice(&record.id.to_le_bytes());
            out.extend_from_slice(&(record.list.len() as u32).to_le_bytes());
            out.extend_from_slice(&record.vector);
            out.extend(record.list.iter().flat_map(|link| link.to_le_bytes()));
        }
        out
    }

    /// Decodes a payload of an index with `nodes` nodes and vectors of `vector_bytes`.
    ///
    /// # Errors
    /// Fails if the length does not match the counts, or a node is not below `nodes`.
    pub fn decode(
        payload: &[u8],
        nodes: u32,
        vector_bytes: usize,
        file: &str,
    ) -> Result<PendingFile, LayoutError> {
        let mut reader = PayloadReader::new(payload, file);
        let changes = reader.u32("number of changes")?;
        let records = reader.u32("number of new nodes")?;
        let at = reader.at();
        let words = reader.u32s(3 * u64::from(changes), "changes of lists")?;
        let changes: Vec<[u32; 3]> = words
            .chunks_exact(3)
            .map(|three| [three[0], three[1], three[2]])
            .collect();
        for (place, &[node, add, remove]) in changes.iter().enumerate() {
            if node >= nodes || add >= nodes || (remove >= nodes && remove != NOBODY) {
                let found = format!("{node}, {add} and {remove}");
                let expected = format!("below {nodes}");
                return Err(reader.wrong(
                    at + CHANGE * place,
                    "nodes of a change",
                    found,
                    expected,
                ));
            }
        }
        let mut found = Vec::new();
        for _ in 0..records {
            let at = reader.at();
            let node = reader.u32("new node")?;
            let id = reader.u64("external id")?;
            let links = reader.u32("number of links")?;
            let vector = reader
                .bytes(vector_bytes as u64, "vector of a new node")?
                .to_vec();
            let list = reader.bytes(4 * u64::from(links), "links of a new node")?;
            let list: Vec<u32> = list.chunks_exact(4).map(|four| u32_at(four, 0)).collect();
            if let Some(&wrong) = list.iter().chain([&node]).find(|&&link| link >= nodes) {
                let expected = format!("below {nodes}");
                return Err(reader.wrong(at, "new node and its links", wrong, expected));
            }
            found.push(PendingRecord {
                node,
                id,
                vector,
                list,
            });
        }
        reader.end()?;
        Ok(PendingFile {
            changes,
            records: found,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> PendingFile {
        PendingFile {
            changes: vec![[1, 8, 2], [3, 9, NOBODY]],
            records: vec![
                PendingRecord {
                    node: 8,
                    id: 0x0102,
                    vector: vec![5, 6, 7],
                    list: vec![1, 3],
                },
                PendingRecord {
                    node: 9,
                    id: 70,
                    vector: vec![0; 3],
                    list: vec![],
                },
            ],
        }
    }

    #[test]
    fn round_trips_and_stands_where_the_table_says() {
        let bytes = sample().encode();
        assert_eq!(PendingFile::decode(&bytes, 10, 3, "p").unwrap(), sample());
        assert_eq!(bytes[..12], [2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(bytes[28..32], [255; 4]);
        assert_eq!(bytes[32..38], [8, 0, 0, 0, 2, 1]);
        assert_eq!(bytes[44..51], [2, 0, 0, 0, 5, 6, 7]);
        assert_eq!(bytes.len(), 59 + 19);
        let none = PendingFile::default();
        assert_eq!(
            PendingFile::decode(&none.encode(), 0, 3, "p").unwrap(),
            none
        );
    }

    #[test]
    fn what_is_cut_off_or_no_node_is_refused() {
        let bytes = sample().encode();
        for length in 0..bytes.len() {
            PendingFile::decode(&bytes[..length], 10, 3, "p").unwrap_err();
        }
        PendingFile::decode(&[&bytes[..], &[0]].concat(), 10, 3, "p").unwrap_err();
        let error = PendingFile::decode(&bytes, 9, 3, "p").unwrap_err();
        let text = "nodes of a change at offset 4120 is 3, 9 and 4294967295; expected below 9";
        assert!(error.to_string().contains(text), "{error}");
        let alone = PendingFile {
            changes: vec![],
            ..sample()
        };
        PendingFile::decode(&alone.encode(), 9, 3, "p").unwrap_err();
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(
            bytes in prop::collection::vec(any::<u8>(), 0..200), nodes: u32, vector_bytes in 0usize..20
        ) {
            if let Ok(file) = PendingFile::decode(&bytes, nodes, vector_bytes, "p") {
                prop_assert_eq!(file.encode(), bytes);
            }
        }
    }
}
