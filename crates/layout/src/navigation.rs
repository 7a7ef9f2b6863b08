//! The file of the navigation graph: a sample of the nodes, the graph over them, and their vectors.
//!
//! The payload of a [stream](crate::stream) of kind `Navigation` is little-endian. It has `s`
//! sampled nodes and `e` links:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | `s`, the sampled nodes |
//! | 4 | 4 | entry: the position in the sample where a walk starts, below `s` |
//! | 8 | 4 | bytes a vector |
//! | 12 | 4 | `e`, the links of all positions |
//! | 16 | 4 s | the index's node for each position, ascending |
//! | 16 + 4 s | 4 (s + 1) | where each position's links start; the first is 0, the last is `e` |
//! | … | 4 e | links: positions, below `s` |
//! | … | s × bytes a vector | vectors |
//!
//! From format version 2 on, vectors may be *rounded* if the elements of the index are larger than
//! a byte. An element is then a signed byte, and a vector has as many bytes as dimensions. The
//! step, an f32 above 0, is inserted at offset 16. Rounding saves memory, and suffices to choose
//! the nodes that a search starts from.

use crate::error::LayoutError;

/// Format version of these files. 2: also rounded vectors.
pub const FORMAT_VERSION: u32 = 2;

const FIXED: usize = 16;
const STEP: usize = 4;

/// A decoded navigation graph.
#[derive(Clone, Debug, PartialEq)]
pub struct NavigationFile {
    /// The position at which a walk starts.
    pub entry: u32,
    /// The index's node for each position.
    pub nodes: Vec<u32>,
    /// For each position, the offset of its first link in `links`. The last offset is the number of
    /// links.
    pub offsets: Vec<u32>,
    /// Links of all positions, one after another; each is a position.
    pub links: Vec<u32>,
    /// Vectors of all positions, in the element type of the index, or rounded.
    pub vectors: Vec<u8>,
    /// The value of one step, if vectors are rounded to signed bytes.
    pub step: Option<f32>,
}

impl NavigationFile {
    /// The links of a position.
    pub fn links_of(&self, position: u32) -> &[u32] {
        let at = position as usize;
        &self.links[self.offsets[at] as usize..self.offsets[at + 1] as usize]
    }

    /// Bytes in memory: the payload except its first 16 or 20 bytes.
    pub fn bytes(&self) -> u64 {
        (4 * (self.nodes.len() + self.offsets.len() + self.links.len()) + self.vectors.len()) as u64
    }

    /// Encodes the payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED + self.bytes() as usize);
        let sampled = self.nodes.len();
        let row_bytes = self.vectors.len().checked_div(sampled).unwrap_or(0);
        for field in [
            sampled as u32,
            self.entry,
            row_bytes as u32,
            self.links.len() as u32,
        ] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        if let Some(step) = self.step {
            out.extend_from_slice(&step.to_le_bytes());
        }
        for words in [&self.nodes, &self.offsets, &self.links] {
            out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        out.extend_from_slice(&self.vectors);
        out
    }

    /// Decodes a payload. `nodes` is the index's number of nodes. A vector has `row_bytes` bytes,
    /// or `rounded` bytes if vectors are rounded.
    ///
    /// # Errors
    /// Fails if a length, the step, a node, an offset or a link is wrong.
    pub fn decode(
        mut payload: Vec<u8>,
        nodes: u64,
        row_bytes: usize,
        rounded: Option<usize>,
        file: &str,
    ) -> Result<Self, LayoutError> {
        let wrong = |offset: usize, what: &'static str, found: String, expected: String| {
            LayoutError::Field {
                file: file.to_owned(),
                offset: offset as u64,
                what,
                found,
                expected,
            }
        };
        let word = |at: usize| -> Option<u32> {
            let bytes = payload.get(at..at + 4)?;
            Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        let (Some(sampled), Some(entry), Some(row), Some(edges)) =
            (word(0), word(4), word(8), word(12))
        else {
            return Err(wrong(
                0,
                "payload length",
                payload.len().to_string(),
                format!("at least {FIXED}"),
            ));
        };
        let (s, e) = (u64::from(sampled), u64::from(edges));
        // Vectors with elements of one byte are never rounded.
        let rounded = rounded.filter(|&bytes| bytes != row_bytes && row as usize == bytes);
        let (fixed, row_bytes) = match rounded {
            Some(bytes) => (FIXED + STEP, bytes),
            None => (FIXED, row_bytes),
        };
        let expected = fixed as u64 + 4 * (s + s + 1 + e) + s * row_bytes as u64;
        if row as usize != row_bytes || payload.len() as u64 != expected {
            return Err(wrong(
                0,
                "navigation graph",
                format!(
                    "{sampled} vectors of {row} bytes and {edges} links in {} bytes",
                    payload.len()
                ),
                format!("vectors of {row_bytes} bytes, and {expected} bytes in all"),
            ));
        }
        let step = rounded.and_then(|_| word(FIXED)).map(f32::from_bits);
        if let Some(step) = step.filter(|step| !(step.is_finite() && *step > 0.0)) {
            let expected = "a finite number above 0".to_owned();
            return Err(wrong(
                FIXED,
                "step of rounded vectors",
                step.to_string(),
                expected,
            ));
        }
        let words = |first: usize, count: usize| -> Vec<u32> {
            payload[first..first + 4 * count]
                .chunks_exact(4)
                .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect()
        };
        let (s, e) = (s as usize, e as usize);
        let at_offsets = fixed + 4 * s;
        let at_links = at_offsets + 4 * (s + 1);
        let (nodes_of, offsets) = (words(fixed, s), words(at_offsets, s + 1));
        let links = words(at_links, e);
        // The vectors are moved within the payload's buffer, so they are never in memory twice.
        payload.drain(..at_links + 4 * e);
        payload.shrink_to_fit();
        let found = Self {
            entry,
            nodes: nodes_of,
            offsets,
            links,
            vectors: payload,
            step,
        };
        if entry >= sampled {
            return Err(wrong(
                4,
                "entry",
                entry.to_string(),
                format!("below {sampled}"),
            ));
        }
        if let Some(at) = found
            .nodes
            .iter()
            .position(|&node| u64::from(node) >= nodes)
        {
            return Err(wrong(
                fixed + 4 * at,
                "sampled node",
                found.nodes[at].to_string(),
                format!("below {nodes}"),
            ));
        }
        let rising = found.offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        if !rising || found.offsets[0] != 0 || found.offsets[s] != edges {
            let expected = format!("rising from 0 to {edges}");
            return Err(wrong(
                at_offsets,
                "link offsets",
                "out of order".into(),
                expected,
            ));
        }
        if let Some(at) = found.links.iter().position(|&link| link >= sampled) {
            return Err(wrong(
                at_links + 4 * at,
                "link",
                found.links[at].to_string(),
                format!("below {sampled}"),
            ));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> NavigationFile {
        NavigationFile {
            entry: 1,
            nodes: vec![3, 8, 20],
            offsets: vec![0, 2, 3, 4],
            links: vec![1, 2, 0, 1],
            vectors: vec![1, 2, 3, 4, 5, 6],
            step: None,
        }
    }

    fn decoded(bytes: &[u8], row_bytes: usize) -> Result<NavigationFile, LayoutError> {
        NavigationFile::decode(bytes.to_vec(), 21, row_bytes, Some(2), "navigation")
    }

    #[test]
    fn round_trips() {
        let file = sample();
        assert_eq!(decoded(&file.encode(), 2).unwrap(), file);
        assert_eq!(file.links_of(0), [1, 2]);
        let rounded = NavigationFile {
            step: Some(0.25),
            ..file.clone()
        };
        let bytes = rounded.encode();
        assert_eq!(bytes.len(), file.encode().len() + 4);
        assert_eq!(bytes[16..20], 0.25f32.to_le_bytes());
        assert_eq!(decoded(&bytes, 8).unwrap(), rounded);
        assert_eq!(rounded.bytes(), file.bytes());
    }

    #[test]
    fn vectors_are_rounded_where_they_may_be_and_by_a_step() {
        let rounded = |step| {
            let file = NavigationFile {
                step: Some(step),
                ..sample()
            };
            file.encode()
        };
        let bytes = rounded(0.25);
        decoded(&bytes, 8).unwrap();
        decoded(&bytes, 2).unwrap_err();
        NavigationFile::decode(bytes, 21, 8, None, "navigation").unwrap_err();
        decoded(&sample().encode(), 8).unwrap_err();
        for step in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let text = decoded(&rounded(step), 8).unwrap_err().to_string();
            assert!(
                text.contains("step of rounded vectors at offset 16"),
                "{text}"
            );
        }
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let bytes = sample().encode();
        assert!(
            NavigationFile::decode(bytes.clone(), 20, 2, None, "navigation").is_err(),
            "node 20 of 20"
        );
        assert!(
            NavigationFile::decode(bytes.clone(), 21, 4, None, "navigation").is_err(),
            "other vectors"
        );
        assert!(decoded(&bytes[..bytes.len() - 1], 2).is_err());
        for (at, value) in [(4, 3u8), (28, 9), (32, 200), (48, 7)] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            assert!(decoded(&bytes, 2).is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0usize..70, flip: u8) {
            let _ = decoded(&bytes, 8);
            let mut close = sample().encode();
            let at = at % close.len();
            close[at] ^= flip;
            let _ = (decoded(&close, 2), decoded(&close, 8));
        }
    }
}
