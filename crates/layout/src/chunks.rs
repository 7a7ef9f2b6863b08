//! The data of a segment of vectors that a search needs in memory: the page of each node, and base
//! vectors. The vectors of a chunk are encoded as differences from its base vector.
//!
//! A segment is a file of kind `Vectors`, in chunks of equally many records, each with pages of its
//! own. A file of chunks is the chunk-level metadata of DecoupleVS (section 3.3). If a merge leaves
//! the vectors' file unchanged although some vectors were deleted, it rewrites only the file of
//! chunks. A deleted record becomes *garbage*, without a node, and the merge renumbers the
//! remaining nodes. The pages keep their old numbers.
//!
//! ```text
//!   page as it was written   | 300 301 302 303 | 304 305 306 | 307 308 |  first node 300
//!   its dead slots                  1   2          0   1   2              302: by an earlier merge
//!   nodes now, from 100 on   | 100         101 |             | 102 103 |  boundaries 101, 101, 103
//! ```
//!
//! The table shows the payload of a [stream](crate::stream) of kind `Chunks`. Numbers are
//! little-endian, and a vector has `V` bytes.
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | `m`, bytes of the model of the segment's vectors |
//! | 4 | 4 | the records of each chunk, 1 or more; the last chunk may have fewer |
//! | 8 | 4 | `n`, the chunks |
//! | 12 | m | the model |
//! | … | … | the chunks, one after another |
//!
//! A chunk of `p` pages:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | number of its first page in the segment's file |
//! | 4 | 4 | `p`, 1 or more |
//! | 8 | 4 | bits: 1 if it has a base vector, 2 if it has garbage, 4 if records span pages |
//! | 12 | 4 p | for each page, the last node that starts on it or before it, ascending |
//! | 12 + 4 p | V | the base vector, if it has one |
//! | … | 2 p | if it has garbage: the number of dead slots of each page |
//! | … | 2 g | if it has garbage: all dead slots, page by page, ascending |
//! | … | ⌈p / 8⌉ | if records span pages: a bit for each page ([`RunsOn`]) |
//!
//! If the first page has only garbage, its last node is the segment's first node - 1, modulo 2^32.
//! If no record starts on a page, its last node is the last node of the page before. A page's bit
//! is set if the page's last record continues on the next page.

mod dead;

pub use dead::DeadSlots;

use crate::directory::PageDirectory;
use crate::error::LayoutError;
use crate::payload::PayloadReader;
use crate::runs::{RunsOn, byte_count};

/// Format version of these files. 1: the first; 2: records span pages.
pub const FORMAT_VERSION: u32 = 2;

const CHUNK_FIXED: usize = 12;

const BASE: u32 = 1;
const GARBAGE: u32 = 2;
const RUNS_ON: u32 = 4;

/// Consecutive nodes of a segment. A page has nodes of one chunk only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// The number of the chunk's first page in the segment's file, starting at 0.
    pub first_page: u32,
    /// The number of the chunk's pages, which are consecutive.
    pub pages: u32,
    /// The last node that starts on each page or before it, ascending.
    pub boundaries: Vec<u32>,
    /// The base vector, if vectors are encoded as differences.
    pub base: Option<Vec<u8>>,
}

/// The decoded file of one segment's chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunksFile {
    /// The model of the vectors' codec.
    pub model: Vec<u8>,
    /// The records of each chunk, including dead ones; the last chunk may have fewer.
    pub chunk_vectors: u32,
    /// The chunks, in the order of their nodes and pages.
    pub chunks: Vec<Chunk>,
    /// The records that are garbage.
    pub dead: DeadSlots,
    /// The pages whose last record continues on the next page.
    pub runs: RunsOn,
}

/// The facts about a segment that the manifest and the header of its vectors give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentSpan {
    /// The first node of the segment.
    pub first: u32,
    /// The number of nodes of the segment.
    pub nodes: u64,
    /// The number of dead records in the segment's file.
    pub garbage: u64,
    /// The number of pages of the segment's file.
    pub pages: u64,
}

impl SegmentSpan {
    fn records(&self) -> u64 {
        self.nodes.saturating_add(self.garbage)
    }
}

impl ChunksFile {
    /// Encodes the payload.
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
            let pages =
                u64::from(chunk.first_page)..u64::from(chunk.first_page) + u64::from(chunk.pages);
            let dead = || pages.clone().map(|page| self.dead.of_page(page));
            let has_garbage = dead().any(|slots| !slots.is_empty());
            let runs = self.runs.to_bytes(chunk.first_page, chunk.pages);
            let run_on = runs.iter().any(|&byte| byte != 0);
            let has = [
                (BASE, chunk.base.is_some()),
                (GARBAGE, has_garbage),
                (RUNS_ON, run_on),
            ];
            let bits = has.iter().filter(|(_, has)| *has).map(|(bit, _)| bit).sum();
            for field in [chunk.first_page, chunk.pages, bits] {
                out.extend_from_slice(&field.to_le_bytes());
            }
            out.extend(chunk.boundaries.iter().flat_map(|node| node.to_le_bytes()));
            out.extend_from_slice(chunk.base.as_deref().unwrap_or_default());
            if has_garbage {
                out.extend(dead().flat_map(|slots| (slots.len() as u16).to_le_bytes()));
                out.extend(dead().flatten().flat_map(|slot| slot.to_le_bytes()));
            }
            if run_on {
                out.extend(runs);
            }
        }
        out
    }

    /// Decodes a payload of the segment that `span` describes. `file` names the chunks' file in
    /// errors.
    ///
    /// # Errors
    /// Fails if the payload has
    ///
    /// - a length that does not match its counts, or a wrong number of chunks;
    /// - chunks whose pages are not consecutive, or are not all pages of the file;
    /// - boundaries that do not ascend, or that do not end with the last node of the chunk;
    /// - a page with more records than a page can hold, or a page without any part of a record;
    /// - dead slots that do not ascend, have no record, or differ in number from the garbage;
    /// - a chunk whose last record continues.
    pub fn decode(
        payload: &[u8],
        span: SegmentSpan,
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
        let records = span.records();
        let needed = records.div_ceil(u64::from(chunk_vectors));
        if u64::from(count) != needed {
            let expected = format!("{needed} for {records} nodes, {chunk_vectors} nodes a chunk");
            return Err(reader.wrong(8, "number of chunks", count, expected));
        }
        let model = reader.bytes(u64::from(model_bytes), "model")?.to_vec();
        let mut place = NextChunk {
            next_page: 0,
            next_node: u64::from(span.first),
            nodes_left: span.nodes,
            records_left: records,
            dead: DeadSlots::default(),
            runs: RunsOn::default(),
        };
        let mut chunks = Vec::new();
        for _ in 0..count {
            let records = place.records_left.min(u64::from(chunk_vectors));
            chunks.push(place.chunk(&mut reader, records, vector_bytes)?);
        }
        if place.next_page != span.pages {
            let at = reader.at();
            return Err(reader.wrong(at, "pages of all chunks", place.next_page, span.pages));
        }
        let garbage = place.dead.count();
        if garbage != span.garbage {
            let at = reader.at();
            return Err(reader.wrong(at, "dead slots of all chunks", garbage, span.garbage));
        }
        reader.end()?;
        Ok(ChunksFile {
            model,
            chunk_vectors,
            chunks,
            dead: place.dead,
            runs: place.runs,
        })
    }

    /// The number of nodes on each page of the segment, whose first node is `first`.
    pub fn counts(&self, first: u32) -> impl Iterator<Item = u16> + '_ {
        let mut next = first;
        let boundaries = self.chunks.iter().flat_map(|chunk| &chunk.boundaries);
        boundaries.map(move |&last| {
            let count = last.wrapping_sub(next).wrapping_add(1);
            next = last.wrapping_add(1);
            count as u16
        })
    }

    /// The number of records on each page, including garbage. `first` is the segment's first node.
    pub fn records(&self, first: u32) -> impl Iterator<Item = u16> + '_ {
        let counts = (0..).zip(self.counts(first));
        counts.map(|(page, count)| count.wrapping_add(self.dead.of_page(page).len() as u16))
    }

    /// The directory of the segment's pages. `first` is the segment's first node.
    pub fn pages(&self, first: u32) -> PageDirectory {
        PageDirectory::from_counts(first, self.counts(first))
    }

    /// The chunk that has `node`, in a segment whose first node is `first`.
    pub fn chunk_of(&self, first: u32, node: u32) -> Option<&Chunk> {
        let mut next = first;
        self.chunks.iter().find(|chunk| {
            let behind = chunk
                .boundaries
                .last()
                .map_or(next, |last| last.wrapping_add(1));
            let nodes = next..behind;
            next = behind;
            nodes.contains(&node)
        })
    }

    /// The same pages with first node `to` instead of `from`, and with more dead slots. `dead` has
    /// the pages and slots of the newly dead records, ascending.
    #[must_use]
    pub fn with_dead(&self, from: u32, to: u32, dead: &[(u32, u16)]) -> ChunksFile {
        let mut counts = self.counts(from);
        let (mut rest, mut next, mut slots) = (dead, to, Vec::new());
        let mut all = DeadSlots::default();
        let mut chunks = self.chunks.clone();
        let boundaries = chunks.iter_mut().flat_map(|chunk| &mut chunk.boundaries);
        for (page, boundary) in (0..).zip(boundaries) {
            let here = rest.partition_point(|&(of, _)| of <= page);
            let (dying, others) = rest.split_at(here);
            rest = others;
            slots.clear();
            slots.extend_from_slice(self.dead.of_page(u64::from(page)));
            slots.extend(dying.iter().map(|&(_, slot)| slot));
            slots.sort_unstable();
            all.push(page, &slots);
            let count = counts.next().unwrap_or(0);
            next = next.wrapping_add(u32::from(count).wrapping_sub(dying.len() as u32));
            *boundary = next.wrapping_sub(1);
        }
        ChunksFile {
            model: self.model.clone(),
            chunk_vectors: self.chunk_vectors,
            chunks,
            dead: all,
            runs: self.runs.clone(),
        }
    }
}

struct NextChunk {
    next_page: u64,
    next_node: u64,
    nodes_left: u64,
    records_left: u64,
    dead: DeadSlots,
    runs: RunsOn,
}

impl NextChunk {
    fn chunk(
        &mut self,
        reader: &mut PayloadReader<'_>,
        records: u64,
        vector_bytes: usize,
    ) -> Result<Chunk, LayoutError> {
        let at = reader.at();
        let first_page = reader.u32("first page of a chunk")?;
        let pages = reader.u32("pages of a chunk")?;
        let bits = reader.u32("bits of a chunk")?;
        if u64::from(first_page) != self.next_page {
            return Err(reader.wrong(at, "first page of a chunk", first_page, self.next_page));
        }
        if pages == 0 {
            return Err(reader.wrong(at + 4, "pages of a chunk", pages, "1 or more"));
        }
        if bits > BASE | GARBAGE | RUNS_ON {
            return Err(reader.wrong(at + 8, "bits of a chunk", bits, "0 to 7"));
        }
        let boundaries_at = reader.at();
        let boundaries = reader.u32s(u64::from(pages), "boundaries of a chunk")?;
        let base = match bits & BASE {
            0 => None,
            _ => Some(reader.bytes(vector_bytes as u64, "base vector")?.to_vec()),
        };
        let mut dead = Garbage::read(reader, pages, bits & GARBAGE != 0)?;
        if bits & RUNS_ON != 0 {
            self.runs(reader, first_page, pages)?;
        }
        let mut left = records;
        for (page, &last) in boundaries.iter().enumerate() {
            let (slots_at, slots) = dead.next_page();
            let at = boundaries_at + 4 * page;
            // If a page begins with the end of a record, it may be a page on which no record
            // starts.
            let begun = page > 0 && self.runs.has(self.next_page + page as u64 - 1);
            let least = u64::from(slots.is_empty() && !begun);
            let nodes = self.page(reader, at, last, least, slots.len() as u64, left)?;
            let all = nodes + slots.len() as u64;
            check_slots(reader, slots_at, slots, all)?;
            left -= all;
            self.dead
                .push(first_page.saturating_add(page as u32), slots);
        }
        if left > 0 {
            let at = boundaries_at + 4 * (boundaries.len() - 1);
            let last = self.next_node + left - 1;
            let found = boundaries[boundaries.len() - 1];
            return Err(reader.wrong(at, "last node of a chunk", found, last));
        }
        self.records_left -= records;
        self.next_page += u64::from(pages);
        Ok(Chunk {
            first_page,
            pages,
            boundaries,
            base,
        })
    }

    fn runs(
        &mut self,
        reader: &mut PayloadReader<'_>,
        first_page: u32,
        pages: u32,
    ) -> Result<(), LayoutError> {
        let (at, what) = (reader.at(), "bits of pages with a spanning record");
        let bytes = reader.bytes(byte_count(pages) as u64, what)?;
        let mut runs = RunsOn::default();
        runs.add(bytes, 0, pages);
        let last = runs.has(u64::from(pages) - 1);
        if runs.is_empty() || last || runs.to_bytes(0, pages) != bytes {
            let expected = "bits of one page or more, but not of the last page";
            let bits = format!("{bytes:?}");
            return Err(reader.wrong(at, what, bits, expected));
        }
        self.runs.add(bytes, first_page, pages);
        Ok(())
    }

    /// Returns the number of the page's nodes, and refuses fewer than `least`. From this page on,
    /// the chunk has `left` records.
    fn page(
        &mut self,
        reader: &PayloadReader<'_>,
        at: usize,
        last: u32,
        least: u64,
        dead: u64,
        left: u64,
    ) -> Result<u64, LayoutError> {
        // If the next node is 0 and the page has no node, the page's last node is -1.
        let behind = match (self.next_node, last) {
            (0, u32::MAX) => 0,
            _ => u64::from(last) + 1,
        };
        let most = left.min(u64::from(u16::MAX)).saturating_sub(dead);
        let most = most.min(self.nodes_left);
        let nodes = behind.checked_sub(self.next_node);
        let Some(nodes) = nodes.filter(|nodes| (least..=most).contains(nodes) && dead <= left)
        else {
            let node = |nodes: u64| (self.next_node + nodes) as i64 - 1;
            let expected = format!("{} to {}", node(least), node(most));
            return Err(reader.wrong(at, "last node of a page", last, expected));
        };
        self.next_node += nodes;
        self.nodes_left -= nodes;
        Ok(nodes)
    }
}

struct Garbage {
    counts: std::vec::IntoIter<u16>,
    slots: Vec<u16>,
    at: usize,
    taken: usize,
}

impl Garbage {
    fn read(reader: &mut PayloadReader<'_>, pages: u32, any: bool) -> Result<Garbage, LayoutError> {
        let (mut counts, mut slots) = (Vec::new(), Vec::new());
        if any {
            let at = reader.at();
            counts = reader.u16s(u64::from(pages), "dead slots of each page")?;
            let all = counts.iter().map(|&count| u64::from(count)).sum();
            if all == 0 {
                return Err(reader.wrong(
                    at,
                    "number of dead slots of a chunk with garbage",
                    0,
                    "1 or more",
                ));
            }
            slots = reader.u16s(all, "dead slots of a chunk")?;
        }
        Ok(Garbage {
            at: reader.at() - 2 * slots.len(),
            counts: counts.into_iter(),
            slots,
            taken: 0,
        })
    }

    fn next_page(&mut self) -> (usize, &[u16]) {
        let count = usize::from(self.counts.next().unwrap_or(0));
        let (at, start) = (self.at + 2 * self.taken, self.taken);
        self.taken += count;
        (at, &self.slots[start..self.taken])
    }
}

/// Refuses dead slots, at offset `at`, that do not ascend, or are not below `records`.
fn check_slots(
    reader: &PayloadReader<'_>,
    at: usize,
    slots: &[u16],
    records: u64,
) -> Result<(), LayoutError> {
    let mut least = 0;
    for (place, &slot) in slots.iter().enumerate() {
        if u64::from(slot) < least || u64::from(slot) >= records {
            let expected = format!("{least} or more, below {records}");
            return Err(reader.wrong(at + 2 * place, "dead slot of a page", slot, expected));
        }
        least = u64::from(slot) + 1;
    }
    Ok(())
}

/// The beta of DecoupleVS (section 3.3): the bytes of metadata for each byte of vectors, `(V + 12)
/// / C + alpha / 1024`. `C` is `chunk_bytes`, before encoding. `alpha` in (0, 1] is the ratio of
/// compressed to original size.
pub fn chunk_overhead(chunk_bytes: u64, alpha: f64, vector_bytes: usize) -> f64 {
    (vector_bytes + CHUNK_FIXED) as f64 / chunk_bytes as f64 + alpha / 1024.0
}

/// The fewest bytes of a chunk's vectors for which [`chunk_overhead`] is at most `overhead`, if
/// any.
pub fn chunk_bytes_for(overhead: f64, alpha: f64, vector_bytes: usize) -> Option<u64> {
    let left = overhead - alpha / 1024.0;
    let bytes = ((vector_bytes + CHUNK_FIXED) as f64 / left).ceil();
    (left > 0.0 && bytes < u64::MAX as f64).then_some(bytes as u64)
}

#[cfg(test)]
mod tests;
