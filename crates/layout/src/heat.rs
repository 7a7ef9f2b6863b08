//! How often a sample of queries of the build read each page. A search has the pages with the most
//! reads in memory.
//!
//! The payload of a [stream](crate::stream) of kind `Heat` is little-endian. It has `g` pages with
//! lists, and `v` pages with vectors alone:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | `g`: pages of the file with lists |
//! | 4 | 4 | `v`: pages of the files of kind `Vectors`, of all segments one after another |
//! | 8 | 2 g | reads of each page with lists |
//! | 8 + 2 g | 2 v | reads of each page with vectors alone |
//!
//! A count is at most 65,535.

use crate::error::LayoutError;
use crate::payload::PayloadReader;

/// Format version of these files. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

/// The decoded number of reads of each page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeatFile {
    /// Reads of each page of the file with lists.
    pub graph: Vec<u16>,
    /// Reads of each page of the files with vectors alone, for all segments in order.
    pub vectors: Vec<u16>,
}

impl HeatFile {
    /// Encodes the payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(8 + 2 * (self.graph.len() + self.vectors.len()));
        for reads in [&self.graph, &self.vectors] {
            out.extend_from_slice(&(reads.len() as u32).to_le_bytes());
        }
        for reads in [&self.graph, &self.vectors] {
            out.extend(reads.iter().flat_map(|reads| reads.to_le_bytes()));
        }
        out
    }

    /// Decodes a payload for these numbers of pages. `file` is the name in errors.
    ///
    /// # Errors
    /// Fails if the numbers of pages differ, or the payload has the wrong length.
    pub fn decode(
        payload: &[u8],
        graph_pages: u64,
        vector_pages: u64,
        file: &str,
    ) -> Result<HeatFile, LayoutError> {
        let mut reader = PayloadReader::new(payload, file);
        for (what, expected) in [
            ("number of pages with lists", graph_pages),
            ("number of pages with vectors", vector_pages),
        ] {
            let at = reader.at();
            let found = reader.u32(what)?;
            if u64::from(found) != expected {
                return Err(reader.wrong(at, what, found, expected));
            }
        }
        let graph = reader.u16s(graph_pages, "reads of the pages with lists")?;
        let vectors = reader.u16s(vector_pages, "reads of the pages with vectors")?;
        reader.end()?;
        Ok(HeatFile { graph, vectors })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> HeatFile {
        HeatFile {
            graph: vec![3, 0, 65_535],
            vectors: vec![258, 1],
        }
    }

    #[test]
    fn round_trips() {
        let file = sample();
        let bytes = file.encode();
        assert_eq!(
            bytes,
            [3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 255, 255, 2, 1, 1, 0]
        );
        assert_eq!(HeatFile::decode(&bytes, 3, 2, "heat").unwrap(), file);
        let none = HeatFile::default();
        assert_eq!(HeatFile::decode(&none.encode(), 0, 0, "h").unwrap(), none);
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let bytes = sample().encode();
        for (graph, vectors) in [(2, 3), (4, 2), (3, 1), (3, u64::MAX), (u64::MAX, 2)] {
            HeatFile::decode(&bytes, graph, vectors, "heat").unwrap_err();
        }
        for length in 0..bytes.len() {
            HeatFile::decode(&bytes[..length], 3, 2, "heat").unwrap_err();
        }
        let text = HeatFile::decode(&bytes, 3, 5, "heat")
            .unwrap_err()
            .to_string();
        assert!(
            text.starts_with("heat: number of pages with vectors at offset 4104 is 2; expected 5"),
            "{text}"
        );
        let mut longer = bytes;
        longer.push(0);
        let text = HeatFile::decode(&longer, 3, 2, "heat")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("payload length at offset 4118 is 19; expected 18"),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn any_file_round_trips(
            graph in prop::collection::vec(any::<u16>(), 0..300),
            vectors in prop::collection::vec(any::<u16>(), 0..300),
        ) {
            let file = HeatFile { graph, vectors };
            let (g, v) = (file.graph.len() as u64, file.vectors.len() as u64);
            prop_assert_eq!(HeatFile::decode(&file.encode(), g, v, "h").unwrap(), file);
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..60),
            (graph, vectors) in any::<(u64, u64)>(),
            at: prop::sample::Index,
            flip: u8,
        ) {
            let _ = HeatFile::decode(&bytes, graph, vectors, "h");
            let mut close = sample().encode();
            let at = at.index(close.len());
            close[at] ^= flip;
            let _ = HeatFile::decode(&close, 3, 2, "h");
        }
    }
}
