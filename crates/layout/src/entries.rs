//! The entry points of an inline index. Memory has the codes of these nodes only (AiSAQ §3.1).
//!
//! The payload of a [stream](crate::stream) of kind `Entries` is little-endian. It has `n` entry
//! points, with codes of `c` bytes:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | `n`, at least 1 |
//! | 4 | 4 | `c` |
//! | 8 | 4 n | the nodes of the entry points; the first is the medoid |
//! | 8 + 4 n | c n | the codes of these nodes, in the same order |

use crate::error::LayoutError;
use crate::payload::PayloadReader;

/// Format version of these files. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

/// The nodes where a search may start, with their codes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryPoints {
    /// The nodes, at least one.
    pub nodes: Vec<u32>,
    /// The codes of the nodes, one after the other.
    pub codes: Vec<u8>,
}

impl EntryPoints {
    /// Encodes the payload.
    pub fn encode(&self) -> Vec<u8> {
        let code_bytes = self.codes.len().checked_div(self.nodes.len()).unwrap_or(0);
        let mut out = Vec::with_capacity(8 + 4 * self.nodes.len() + self.codes.len());
        out.extend_from_slice(&(self.nodes.len() as u32).to_le_bytes());
        out.extend_from_slice(&(code_bytes as u32).to_le_bytes());
        out.extend(self.nodes.iter().flat_map(|node| node.to_le_bytes()));
        out.extend_from_slice(&self.codes);
        out
    }

    /// Decodes a payload of an index with `nodes` nodes. `file` is the name in errors.
    ///
    /// # Errors
    /// Fails if there is no entry point, a node does not exist, or a length does not match.
    pub fn decode(
        payload: &[u8],
        nodes: u64,
        code_bytes: usize,
        file: &str,
    ) -> Result<EntryPoints, LayoutError> {
        let mut reader = PayloadReader::new(payload, file);
        let count = u64::from(reader.u32("number of entry points")?);
        if count == 0 || count > nodes {
            let expected = format!("1 to {nodes}, the number of nodes");
            return Err(reader.wrong(0, "number of entry points", count, expected));
        }
        let found = reader.u32("bytes of a code")?;
        if found as usize != code_bytes {
            return Err(reader.wrong(4, "bytes of a code", found, code_bytes));
        }
        let at = reader.at();
        let entries = reader.u32s(count, "entry points")?;
        if let Some(place) = entries.iter().position(|&node| u64::from(node) >= nodes) {
            let expected = format!("below {nodes}");
            return Err(reader.wrong(at + 4 * place, "entry point", entries[place], expected));
        }
        let codes = reader.bytes(count.saturating_mul(code_bytes as u64), "codes")?;
        reader.end()?;
        Ok(EntryPoints {
            nodes: entries,
            codes: codes.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> EntryPoints {
        EntryPoints {
            nodes: vec![70, 3, 99],
            codes: vec![1, 2, 3, 4, 5, 6],
        }
    }

    #[test]
    fn what_is_encoded_decodes() {
        let found = EntryPoints::decode(&sample().encode(), 100, 2, "entries").unwrap();
        assert_eq!(found, sample());
    }

    #[test]
    fn contradictions_are_refused_with_their_place() {
        let refusal = |payload: &[u8], nodes, code_bytes| {
            let error = EntryPoints::decode(payload, nodes, code_bytes, "entries");
            error.unwrap_err().to_string()
        };
        let payload = sample().encode();
        for (text, expected) in [
            (refusal(&payload, 99, 2), "entry point"),
            (refusal(&payload, 2, 2), "1 to 2, the number of nodes"),
            (refusal(&payload, 100, 3), "bytes of a code"),
            (refusal(&payload[..17], 100, 2), "cut off"),
            (
                refusal(&[&payload[..], &[0]].concat(), 100, 2),
                "payload length",
            ),
            (
                refusal(&EntryPoints::default().encode(), 100, 0),
                "number of entry points",
            ),
        ] {
            assert!(
                text.contains(expected) && text.contains("entries"),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = EntryPoints::decode(&bytes, 1_000, 2, "entries");
        }
    }
}
