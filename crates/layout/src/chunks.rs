//! What a search needs in memory of one segment of vectors: which page holds which node, and what the
//! vectors were made to differ from.
//!
//! A segment is a file of kind `Vectors`. Its nodes are cut into chunks of the same number of nodes, and each
//! chunk has pages of its own. This is the chunk-level metadata of DecoupleVS (section 3.3).
//!
//! Payload of a [stream](crate::stream) of kind `Chunks`, little-endian; `m` bytes of a model, `n` chunks,
//! `V` bytes a vector:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `m`, bytes of the model of the segment's vectors |
//! | 4 | 4 | nodes of each chunk, but the last, which may have fewer; 1 or more |
//! | 8 | 4 | `n`, the chunks |
//! | 12 | m | the model |
//! | … | … | the chunks, one after another |
//!
//! A chunk of `p` pages:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | number of its first page in the segment's file |
//! | 4 | 4 | `p`, 1 or more |
//! | 8 | 4 | 1 if it has a base vector, else 0 |
//! | 12 | 4 p | the last node of each page, ascending |
//! | 12 + 4 p | V | the base vector, if it has one |
//!
//! So a chunk takes `4 p + 12 + V` bytes, on which the paper's formula for the size of a chunk rests
//! ([`chunk_bytes_for`]).

use crate::directory::PageDirectory;
use crate::error::LayoutError;
use crate::payload::PayloadReader;

/// Bytes of a chunk beside its boundaries and its base vector.
const CHUNK_FIXED: usize = 12;

/// A run of consecutive nodes of a segment, on pages of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// The number of its first page in the segment's file, counted from 0.
    pub first_page: u32,
    /// Its pages, which follow one another.
    pub pages: u32,
    /// The last node of each of its pages, as the index numbers nodes. A page's nodes are those above the
    /// last node of the page before it.
    pub boundaries: Vec<u32>,
    /// What each of its vectors was made to differ from, if they were: the bytes of a vector.
    pub base: Option<Vec<u8>>,
}

/// The file of one segment's chunks, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunksFile {
    /// How the vectors are encoded: the bytes of a model of the codec.
    pub model: Vec<u8>,
    /// Nodes of each chunk, but the last, which may have fewer.
    pub chunk_vectors: u32,
    /// The chunks, in the order of their nodes and pages.
    pub chunks: Vec<Chunk>,
}

impl ChunksFile {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for field in [
            self.model.len() as u32,
            self.chunk_vectors,
            self.chunks.len() as u32,
        ] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&self.model);
        for chunk in &self.chunks {
            for field in [
                chunk.first_page,
                chunk.pages,
                u32::from(chunk.base.is_some()),
            ] {
                out.extend_from_slice(&field.to_le_bytes());
            }
            out.extend(chunk.boundaries.iter().flat_map(|node| node.to_le_bytes()));
            out.extend_from_slice(chunk.base.as_deref().unwrap_or_default());
        }
        out
    }

    /// Reads a payload; the segment holds nodes `first..first + nodes` on `pages` pages
    /// ([`crate::SlottedFacts`]), a vector has `vector_bytes` bytes, and `file` names the chunks' file in
    /// errors.
    ///
    /// # Errors
    /// A length that does not follow from the counts; not as many chunks as the nodes need; chunks whose pages
    /// do not follow one another or are not `pages` in all; boundaries that do not ascend, or do not end where
    /// the chunk ends; a page of more nodes than a page holds.
    pub fn decode(
        payload: &[u8],
        first: u32,
        nodes: u64,
        pages: u64,
        vector_bytes: usize,
        file: &str,
    ) -> Result<ChunksFile, LayoutError> {
        let mut reader = PayloadReader::new(payload, file);
        let model_bytes = reader.u32("bytes of the model")?;
        let chunk_vectors = reader.u32("nodes of a chunk")?;
        let count = reader.u32("number of chunks")?;
        if chunk_vectors == 0 {
            return Err(reader.wrong(4, "nodes of a chunk", 0, "1 or more"));
        }
        let needed = nodes.div_ceil(u64::from(chunk_vectors));
        if u64::from(count) != needed {
            let expected = format!("{needed} for {nodes} nodes, {chunk_vectors} each");
            return Err(reader.wrong(8, "number of chunks", count, expected));
        }
        let model = reader.bytes(u64::from(model_bytes), "model")?.to_vec();
        let mut place = Place {
            next_page: 0,
            next_node: u64::from(first),
        };
        let end = u64::from(first).saturating_add(nodes);
        let mut chunks = Vec::new();
        for _ in 0..count {
            let chunk_end = end.min(place.next_node.saturating_add(u64::from(chunk_vectors)));
            chunks.push(place.chunk(&mut reader, chunk_end, vector_bytes)?);
        }
        if place.next_page != pages {
            let at = reader.at();
            return Err(reader.wrong(at, "pages of all chunks", place.next_page, pages));
        }
        reader.end()?;
        Ok(ChunksFile {
            model,
            chunk_vectors,
            chunks,
        })
    }

    /// Records on each page of the segment, whose first record is node `first`.
    pub fn counts(&self, first: u32) -> impl Iterator<Item = u16> + '_ {
        let mut next = first;
        let boundaries = self.chunks.iter().flat_map(|chunk| &chunk.boundaries);
        boundaries.map(move |&last| {
            let count = last.wrapping_sub(next).wrapping_add(1);
            next = last.wrapping_add(1);
            count as u16
        })
    }

    /// The directory of the segment's pages, whose first record is node `first`.
    ///
    /// # Panics
    /// When a page has no node, which [`ChunksFile::decode`] refuses.
    pub fn pages(&self, first: u32) -> PageDirectory {
        PageDirectory::from_counts(first, self.counts(first))
    }

    /// The chunk that holds `node`, in a segment whose first record is node `first`; `None` if none does.
    #[inline]
    pub fn chunk_of(&self, first: u32, node: u32) -> Option<&Chunk> {
        let chunk = node
            .checked_sub(first)?
            .checked_div(self.chunk_vectors)
            .and_then(|at| self.chunks.get(at as usize))?;
        (chunk.boundaries.last() >= Some(&node)).then_some(chunk)
    }
}

/// Where the next chunk has to start.
struct Place {
    next_page: u64,
    next_node: u64,
}

impl Place {
    /// Reads a chunk that has to end before node `end`.
    fn chunk(
        &mut self,
        reader: &mut PayloadReader<'_>,
        end: u64,
        vector_bytes: usize,
    ) -> Result<Chunk, LayoutError> {
        let at = reader.at();
        let first_page = reader.u32("first page of a chunk")?;
        let pages = reader.u32("pages of a chunk")?;
        let has_base = reader.u32("whether a chunk has a base vector")?;
        if u64::from(first_page) != self.next_page {
            return Err(reader.wrong(at, "first page of a chunk", first_page, self.next_page));
        }
        if pages == 0 {
            return Err(reader.wrong(at + 4, "pages of a chunk", pages, "1 or more"));
        }
        if has_base > 1 {
            let what = "whether a chunk has a base vector";
            return Err(reader.wrong(at + 8, what, has_base, "0 or 1"));
        }
        let boundaries = reader.u32s(u64::from(pages), "boundaries of a chunk")?;
        for (page, &last) in boundaries.iter().enumerate() {
            // The nodes of this page are `next_node..=last`, 1 to 65535 of them.
            let most = (self.next_node + u64::from(u16::MAX)).min(end);
            if u64::from(last) < self.next_node || u64::from(last) >= most {
                let expected = format!("{} to {}", self.next_node, most.saturating_sub(1));
                let at = at + CHUNK_FIXED + 4 * page;
                return Err(reader.wrong(at, "last node of a page", last, expected));
            }
            self.next_node = u64::from(last) + 1;
        }
        if self.next_node != end {
            let at = at + CHUNK_FIXED + 4 * (boundaries.len() - 1);
            let what = "last node of a chunk";
            return Err(reader.wrong(at, what, self.next_node - 1, end.saturating_sub(1)));
        }
        self.next_page += u64::from(pages);
        let base = match has_base {
            0 => None,
            _ => Some(reader.bytes(vector_bytes as u64, "base vector")?.to_vec()),
        };
        Ok(Chunk {
            first_page,
            pages,
            boundaries,
            base,
        })
    }
}

/// What the chunks of `chunk_bytes` bytes of vectors, before they are encoded, take beside them, as a part of
/// those bytes: `(V + 12) / C + alpha / 1024`, where `alpha` is what the vectors shrink to, in (0, 1]. It is the
/// beta of DecoupleVS (section 3.3).
pub fn chunk_overhead(chunk_bytes: u64, alpha: f64, vector_bytes: usize) -> f64 {
    (vector_bytes + CHUNK_FIXED) as f64 / chunk_bytes as f64 + alpha / 1024.0
}

/// The fewest bytes of vectors that a chunk has to hold for [`chunk_overhead`] to be `overhead` or less; `None`
/// where no chunk is large enough, for the boundaries alone take more.
pub fn chunk_bytes_for(overhead: f64, alpha: f64, vector_bytes: usize) -> Option<u64> {
    let left = overhead - alpha / 1024.0;
    let bytes = ((vector_bytes + CHUNK_FIXED) as f64 / left).ceil();
    (left > 0.0 && bytes < u64::MAX as f64).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V: usize = 3;

    /// Nodes 100 to 109 in chunks of 4, on 6 pages.
    fn sample() -> ChunksFile {
        ChunksFile {
            model: vec![7, 8, 9, 10, 11],
            chunk_vectors: 4,
            chunks: vec![
                Chunk {
                    first_page: 0,
                    pages: 2,
                    boundaries: vec![102, 103],
                    base: Some(vec![1, 2, 3]),
                },
                Chunk {
                    first_page: 2,
                    pages: 3,
                    boundaries: vec![104, 105, 107],
                    base: None,
                },
                Chunk {
                    first_page: 5,
                    pages: 1,
                    boundaries: vec![109],
                    base: Some(vec![4, 5, 6]),
                },
            ],
        }
    }

    fn decode(payload: &[u8]) -> Result<ChunksFile, LayoutError> {
        ChunksFile::decode(payload, 100, 10, 6, V, "chunks-0")
    }

    fn refused(change: impl FnOnce(&mut ChunksFile)) -> String {
        let mut file = sample();
        change(&mut file);
        decode(&file.encode()).unwrap_err().to_string()
    }

    #[test]
    fn round_trips() {
        let file = sample();
        assert_eq!(decode(&file.encode()).unwrap(), file);
        assert!(file.counts(100).eq([3, 1, 1, 1, 2, 2]));
        let pages = file.pages(100);
        assert_eq!((pages.nodes(), pages.pages()), (10, 6));
        assert_eq!(pages.page_of(107), 4);
        let empty = ChunksFile {
            chunk_vectors: 1,
            ..ChunksFile::default()
        };
        let back = ChunksFile::decode(&empty.encode(), 0, 0, 0, V, "chunks-0").unwrap();
        assert_eq!(back, empty);
    }

    #[test]
    fn bytes_stand_where_the_table_says() {
        let bytes = sample().encode();
        assert_eq!(bytes[..12], [5, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(bytes[12..17], [7, 8, 9, 10, 11]);
        assert_eq!(bytes[17..29], [0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(bytes[29..37], [102, 0, 0, 0, 103, 0, 0, 0]);
        assert_eq!(bytes[37..40], [1, 2, 3]);
        // Chunks take the bytes that the paper's formula is made of: 4 for a page, 12, and their base.
        assert_eq!(bytes.len(), 17 + 3 * 12 + 6 * 4 + 2 * V);
    }

    #[test]
    fn a_node_has_one_chunk() {
        let file = sample();
        for node in 100..110 {
            let chunk = file.chunk_of(100, node).unwrap();
            assert_eq!(chunk, &file.chunks[(node as usize - 100) / 4], "{node}");
        }
        for node in [0, 99, 110, 111, 112, u32::MAX] {
            assert_eq!(file.chunk_of(100, node), None, "{node}");
        }
        assert_eq!(ChunksFile::default().chunk_of(0, 0), None);
    }

    #[test]
    fn every_contradiction_is_refused() {
        let text = refused(|file| file.chunks[1].first_page = 3);
        // The first chunk takes 17..40 of the payload, and the first block 4 bytes for its checksum.
        assert!(
            text.starts_with(
                "chunks-0: first page of a chunk at offset 4140 is 3, expected 2; restore"
            ),
            "{text}"
        );
        for (text, change) in [
            (
                "number of chunks at offset 4108 is 2, expected 3 for 10 nodes, 4 each",
                (|file| drop(file.chunks.pop())) as fn(&mut ChunksFile),
            ),
            ("nodes of a chunk at offset 4104 is 0", |file| {
                file.chunk_vectors = 0
            }),
            ("number of chunks", |file| file.chunk_vectors = 3),
            ("number of chunks", |file| file.chunk_vectors = 5),
            ("pages of a chunk", |file| {
                file.chunks[0].pages = 0;
                file.chunks[0].boundaries.clear();
            }),
            ("is 104, expected 103 to 103", |file| {
                file.chunks[0].boundaries[1] = 104
            }),
            ("is 102, expected 103 to 103", |file| {
                file.chunks[0].boundaries[1] = 102
            }),
            ("is 99, expected 100 to 103", |file| {
                file.chunks[0].boundaries[0] = 99
            }),
            ("is 101, expected 103 to 103", |file| {
                file.chunks[0].boundaries[1] = 101
            }),
            ("last node of a chunk", |file| {
                file.chunks[1].boundaries[2] = 106
            }),
            ("is 103, expected 104 to 107", |file| {
                file.chunks[1].boundaries[0] = 103
            }),
            ("is 110, expected 108 to 109", |file| {
                file.chunks[2].boundaries[0] = 110
            }),
            ("last node of a chunk", |file| {
                file.chunks[2].boundaries[0] = 108
            }),
            ("base vector", |file| file.chunks[2].base = Some(vec![4, 5])),
            ("payload length", |file| {
                file.chunks[2].base = Some(vec![4, 5, 6, 7])
            }),
            ("payload length", |file| {
                file.model.truncate(3);
                file.chunks[2].base = Some(vec![0; V + 2]);
            }),
        ] {
            let found = refused(change);
            assert!(found.contains(text), "{found}\n{text}");
        }
        let mut bytes = sample().encode();
        bytes[25] = 2;
        let text = decode(&bytes).unwrap_err().to_string();
        assert!(text.contains("is 2, expected 0 or 1"), "{text}");
    }

    #[test]
    fn a_segment_of_another_size_is_refused() {
        let bytes = sample().encode();
        for (first, nodes, pages, vector_bytes) in [
            (101, 10, 6, V),
            (99, 10, 6, V),
            (100, 11, 6, V),
            (100, 9, 6, V),
            (100, 10, 5, V),
            (100, 10, 7, V),
            (100, 10, 6, V - 1),
            (100, 10, 6, V + 1),
            (100, 0, 0, V),
            (u32::MAX, u64::MAX, u64::MAX, usize::MAX),
        ] {
            ChunksFile::decode(&bytes, first, nodes, pages, vector_bytes, "f").unwrap_err();
        }
        for length in 0..bytes.len() {
            decode(&bytes[..length]).unwrap_err();
        }
    }

    #[test]
    fn a_page_holds_at_most_what_its_count_holds() {
        let file = |last| ChunksFile {
            chunk_vectors: last + 1,
            chunks: vec![Chunk {
                first_page: 0,
                pages: 1,
                boundaries: vec![last],
                base: None,
            }],
            ..ChunksFile::default()
        };
        let decode = |last: u32| {
            let nodes = u64::from(last) + 1;
            ChunksFile::decode(&file(last).encode(), 0, nodes, 1, V, "f")
        };
        assert!(decode(65_534).unwrap().counts(0).eq([65_535]));
        let text = decode(65_535).unwrap_err().to_string();
        assert!(text.contains("is 65535, expected 0 to 65534"), "{text}");
    }

    #[test]
    fn the_formula_is_the_papers() {
        // Section 3.3, with C = 4 MiB, V = 128 bytes and no savings.
        let overhead = chunk_overhead(4 << 20, 1.0, 128);
        assert!((overhead - (140.0 / 4_194_304.0 + 1.0 / 1024.0)).abs() < 1e-12);
        assert_eq!(chunk_bytes_for(overhead, 1.0, 128), Some(4 << 20));
        // The boundaries alone take 1/1024.
        assert_eq!(chunk_bytes_for(1.0 / 1024.0, 1.0, 128), None);
        assert_eq!(chunk_bytes_for(0.0005, 1.0, 128), None);
        assert_eq!(chunk_bytes_for(f64::NAN, 1.0, 128), None);
        assert_eq!(chunk_bytes_for(-1.0, 0.5, 128), None);
        assert_eq!(chunk_bytes_for(0.0 + f64::MIN_POSITIVE, 0.0, 128), None);
        assert_eq!(chunk_bytes_for(140.0, 0.0, 128), Some(1));
        assert_eq!(chunk_overhead(0, 1.0, 128), f64::INFINITY);
    }

    /// Any segment: its first node, its file, and how many nodes and pages it has.
    fn any_segment() -> impl Strategy<Value = (u32, ChunksFile, u64, u64)> {
        let pages = prop::collection::vec(1u32..40, 0..60);
        let model = prop::collection::vec(any::<u8>(), 0..20);
        (any::<u16>(), pages, 1u32..200, model, any::<u64>()).prop_map(
            |(first, mut pages, chunk_vectors, model, bases)| {
                let first = u32::from(first);
                let mut file = ChunksFile {
                    model,
                    chunk_vectors,
                    chunks: Vec::new(),
                };
                let (mut nodes, mut number) = (0, 0);
                pages.reverse();
                while let Some(mut count) = pages.pop() {
                    // A page does not go on into the next chunk: cut it there.
                    let room = chunk_vectors - nodes % chunk_vectors;
                    if count > room {
                        pages.push(count - room);
                        count = room;
                    }
                    if nodes.is_multiple_of(chunk_vectors) {
                        let has_base = bases >> (file.chunks.len() % 64) & 1 == 1;
                        file.chunks.push(Chunk {
                            first_page: number,
                            base: has_base.then(|| vec![number as u8; V]),
                            ..Chunk::default()
                        });
                    }
                    nodes += count;
                    number += 1;
                    let chunk = file.chunks.last_mut().unwrap();
                    chunk.pages += 1;
                    chunk.boundaries.push(first + nodes - 1);
                }
                (first, file, u64::from(nodes), u64::from(number))
            },
        )
    }

    proptest! {
        #[test]
        fn any_segment_round_trips((first, file, nodes, pages) in any_segment()) {
            let back = ChunksFile::decode(&file.encode(), first, nodes, pages, V, "f").unwrap();
            prop_assert_eq!(&back, &file);
            let directory = file.pages(first);
            prop_assert_eq!((directory.nodes(), directory.pages()), (nodes, pages));
            for node in (first..).take(nodes as usize) {
                let chunk = file.chunk_of(first, node).unwrap();
                let page = directory.page_of(node) - u64::from(chunk.first_page);
                prop_assert!(node <= chunk.boundaries[page as usize]);
                prop_assert!(page == 0 || node > chunk.boundaries[page as usize - 1]);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            (first, nodes, pages) in any::<(u32, u64, u64)>(),
            at: prop::sample::Index,
            flip: u8,
        ) {
            let _ = ChunksFile::decode(&bytes, first, nodes, pages, V, "f");
            let mut close = sample().encode();
            let at = at.index(close.len());
            close[at] ^= flip;
            if let Ok(file) = decode(&close) {
                prop_assert_eq!(file.counts(100).map(u64::from).sum::<u64>(), 10);
            }
            // A file that was not checked is no reason to panic either.
            let mut wild = sample();
            wild.chunks[0].boundaries[0] = first;
            prop_assert_eq!(wild.counts(nodes as u32).count(), 6);
            let _ = wild.chunk_of(first, pages as u32);
        }

        #[test]
        fn the_inverse_is_the_least(overhead in 1e-6f64..1.0, alpha in 0.0f64..1.0, vector_bytes in 1usize..10_000) {
            match chunk_bytes_for(overhead, alpha, vector_bytes) {
                None => prop_assert!(overhead <= alpha / 1024.0),
                Some(bytes) => {
                    let slack = overhead * 1e-9;
                    prop_assert!(chunk_overhead(bytes, alpha, vector_bytes) <= overhead + slack);
                    prop_assert!(bytes < 2 || chunk_overhead(bytes - 1, alpha, vector_bytes) >= overhead - slack);
                }
            }
        }
    }
}
