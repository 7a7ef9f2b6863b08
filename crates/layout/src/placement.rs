//! The placement of an index: the pages of rewritten nodes, and facts about vectors that were
//! inserted after its build.
//!
//! New nodes and changed records are on relocated pages ([`crate::slotted`], [`crate::coupled`]).
//! If an index overwrites the pages of the build in place and puts new nodes on pages behind, a
//! node's page follows from its number, and the file has no table. In a cluster index, the file has
//! only the inserted and deleted ids, and 0 for each number of incoming links. [Another
//! table](crate::clusters::amended) has the positions of clusters.
//!
//! The payload of a [stream](crate::stream) of kind `Placement` is little-endian. It has `n` nodes,
//! `b` of them from the build, `r` ranges of ids, `d` deleted ids, and `v` added pages of vectors:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | `n`: nodes |
//! | 4 | 4 | `b`: nodes of the build, at most `n` |
//! | 8 | 4 | pages of the page file that may be in use |
//! | 12 | 8 | bytes of all codes: `n - b` times the bytes of one code |
//! | 20 | 8 | `r`: ranges of ids |
//! | 28 | 8 | `d`: deleted ids |
//! | 36 | 4 | `v`: pages of vectors that were added after the last segment; otherwise 0 |
//! | 40 | 4 | `t`: nodes in the table: all `n`, or 0 if a node's page follows from its number |
//! | 44 | 4 t | the page of each node, below the number of pages |
//! | 44 + 4 t | 4 v | the first node of each added page of vectors: ascending, in `b..n` |
//! | … | 16 r | ranges of external ids inserted after the build: first id u64, number u64 |
//! | … | 12 d | deleted ids, ascending: id u64, and node u32 below which its records are dead |
//! | … | … | codes of nodes `b..n`, one after another |
//! | … | n - b | for each of nodes `b..n` its incoming links; 0: unknown, 255: 255 or more |
//! | … | ⌈v / 8⌉ | a bit for each added page of vectors ([`RunsOn`]); absent if all are 0 |
//!
//! - `v` is 0 if vectors have no files of their own.
//! - If no record starts on an added page of vectors, its first node is the first node of the next
//!   page. The bit of a page is set if its last record continues on the next page.
//! - Ranges of ids ascend, with at least one id between two of them, and are not empty.
//! - The node of a deleted id is at most `n`, or 4294967295 for all nodes.

use std::ops::Range;

use crate::block::{u32_at, u64_at};
use crate::error::LayoutError;
use crate::payload::PayloadReader;
use crate::runs::{RunsOn, byte_count};

/// Format version of these files. If segments have version 1 ([`crate::slotted`]), the bits at the
/// end are absent.
pub const FORMAT_VERSION: u32 = 1;

const FIXED: usize = 44;
const RANGE: usize = 16;
const DELETED: usize = 12;

/// The decoded placement of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementFile {
    /// The number of nodes.
    pub nodes: u32,
    /// The number of nodes of the build; later nodes were inserted.
    pub built: u32,
    /// The number of pages of the page file that may be in use, above all numbers in `page_of`.
    pub pages: u32,
    /// The page of each node; empty if the page follows from the node's number.
    pub page_of: Vec<u32>,
    /// The first node of each added page of vectors, if vectors are stored apart from lists.
    pub added: Vec<u32>,
    /// The added pages, counted from 0, whose last record continues on the next page.
    pub runs: RunsOn,
    /// Codes of the nodes from `built` on, one after another.
    pub codes: Vec<u8>,
    /// How many lists contain each node from `built` on: 0 if unknown, 255 if 255 or more.
    pub lists: Vec<u8>,
    /// External ids inserted after the build: first id and number, in ascending, separate ranges.
    pub ids: Vec<(u64, u64)>,
    /// Deleted ids, ascending, each with a node. The id's records at lower nodes are dead. With
    /// `u32::MAX`, all records of the id are dead.
    pub deleted: Vec<(u64, u32)>,
}

impl PlacementFile {
    /// Whether the record of an id at a node is dead: deleted, or replaced at a later node.
    pub fn is_dead(&self, id: u64, node: u32) -> bool {
        let at = self.deleted.binary_search_by_key(&id, |&(id, _)| id);
        at.is_ok_and(|at| node < self.deleted[at].1)
    }

    /// Encodes the payload. [`PlacementFile::decode`] refuses contradicting fields.
    pub fn encode(&self) -> Vec<u8> {
        let words = 4 * (self.page_of.len() + self.added.len())
            + RANGE * self.ids.len()
            + DELETED * self.deleted.len();
        let runs = byte_count(self.added.len() as u32);
        let length = FIXED + words + self.codes.len() + self.lists.len() + runs;
        let mut out = Vec::with_capacity(length);
        for field in [self.nodes, self.built, self.pages] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        for length in [self.codes.len(), self.ids.len(), self.deleted.len()] {
            out.extend_from_slice(&(length as u64).to_le_bytes());
        }
        out.extend_from_slice(&(self.added.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.page_of.len() as u32).to_le_bytes());
        for word in self.page_of.iter().chain(&self.added) {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for (first, count) in &self.ids {
            out.extend_from_slice(&first.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
        }
        for (id, bound) in &self.deleted {
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&bound.to_le_bytes());
        }
        out.extend_from_slice(&self.codes);
        out.extend_from_slice(&self.lists);
        if !self.runs.is_empty() {
            out.extend(self.runs.to_bytes(0, self.added.len() as u32));
        }
        out
    }

    /// Decodes a payload. `code_bytes` is the length of a code, and `file` the name in errors.
    ///
    /// # Errors
    /// Fails if the payload has
    ///
    /// - a length that does not match its counts;
    /// - more nodes of the build than nodes;
    /// - codes of another length than `code_bytes` for each later node;
    /// - a page number that is not below the number of pages;
    /// - first nodes of added pages that do not ascend from the build's end;
    /// - ranges of ids that are empty, too large, touch each other or do not ascend;
    /// - deleted ids that do not ascend, or a bound above the number of nodes.
    pub fn decode(
        mut payload: Vec<u8>,
        code_bytes: usize,
        file: &str,
    ) -> Result<PlacementFile, LayoutError> {
        let mut reader = PayloadReader::new(&payload, file);
        let nodes = reader.u32("number of nodes")?;
        let built = reader.u32("number of nodes of the build")?;
        let pages = reader.u32("number of pages")?;
        let found = reader.u64("bytes of all codes")?;
        let ranges = reader.u64("number of ranges of ids")?;
        let dead = reader.u64("number of deleted ids")?;
        let added = reader.u32("number of added pages of vectors")?;
        let table = reader.u32("number of nodes in the table")?;
        if table != 0 && table != nodes {
            let expected = format!("0 or {nodes}, the number of nodes");
            return Err(reader.wrong(40, "number of nodes in the table", table, expected));
        }
        if built > nodes {
            let expected = format!("at most {nodes}, the number of nodes");
            return Err(reader.wrong(4, "number of nodes of the build", built, expected));
        }
        let later = u64::from(nodes - built);
        if later.checked_mul(code_bytes as u64) != Some(found) {
            let expected = format!("{code_bytes} for each of {later} nodes");
            return Err(reader.wrong(12, "bytes of all codes", found, expected));
        }

        let at = reader.at();
        let page_of = reader.u32s(u64::from(table), "pages of the nodes")?;
        if let Some(node) = page_of.iter().position(|&page| page >= pages) {
            let expected = format!("below {pages}");
            return Err(reader.wrong(at + 4 * node, "page of a node", page_of[node], expected));
        }
        let added_at = reader.at();
        let added = reader.u32s(u64::from(added), "first nodes of added pages of vectors")?;
        let ids = read_ids(&mut reader, ranges)?;
        let deleted = read_deleted(&mut reader, dead, nodes)?;
        let codes_at = reader.at();
        reader.bytes(found, "codes")?;
        let lists = reader.bytes(later, "numbers of lists")?.to_vec();
        let runs = read_runs(&mut reader, payload.len(), added.len() as u32)?;
        check_added(&reader, added_at, &added, &runs, built..nodes)?;
        reader.end()?;

        // The codes are moved within the payload's buffer, so that they are never in memory twice.
        payload.drain(..codes_at);
        payload.truncate(found as usize);
        payload.shrink_to_fit();
        Ok(PlacementFile {
            nodes,
            built,
            pages,
            page_of,
            added,
            runs,
            codes: payload,
            lists,
            ids,
            deleted,
        })
    }
}

fn read_runs(
    reader: &mut PayloadReader<'_>,
    length: usize,
    pages: u32,
) -> Result<RunsOn, LayoutError> {
    let (at, what) = (reader.at(), "bits of added pages with a spanning record");
    let mut runs = RunsOn::default();
    if pages == 0 || length - at != byte_count(pages) {
        return Ok(runs);
    }
    let bytes = reader.bytes(byte_count(pages) as u64, what)?;
    runs.add(bytes, 0, pages);
    // A checkpoint completes the last page, so the last record of this page does not continue.
    if runs.is_empty() || runs.has(u64::from(pages) - 1) || runs.to_bytes(0, pages) != bytes {
        let expected = "bits of one page or more, but not of the last page";
        return Err(reader.wrong(at, what, format!("{bytes:?}"), expected));
    }
    Ok(runs)
}

/// Checks that at least one of the `later` nodes starts on each page. A page that begins with the
/// rest of a record needs no such node.
fn check_added(
    reader: &PayloadReader<'_>,
    at: usize,
    added: &[u32],
    runs: &RunsOn,
    later: Range<u32>,
) -> Result<(), LayoutError> {
    let (built, nodes) = (later.start, later.end);
    let mut least = built;
    for (page, &first) in added.iter().enumerate() {
        let next = added.get(page + 1).copied().unwrap_or(nodes);
        let begun = page > 0 && runs.has(page as u64 - 1);
        // After the last node, only pages with the rest of its record may follow.
        let starts = first < nodes || (begun && first == nodes && next == nodes);
        if first < least || !starts || (page == 0 && first > built) {
            let expected = match page {
                0 => format!("{built}, and below {nodes}"),
                _ => format!("from {least} on, and below {nodes}"),
            };
            let what = "first node of an added page of vectors";
            return Err(reader.wrong(at + 4 * page, what, first, expected));
        }
        // If no record starts on this page, the next page may have the same first node.
        least = first + u32::from(!begun || next != first);
    }
    Ok(())
}

fn read_ids(reader: &mut PayloadReader<'_>, count: u64) -> Result<Vec<(u64, u64)>, LayoutError> {
    let what = "range of ids";
    let mut at = reader.at();
    let bytes = reader.bytes(count.saturating_mul(RANGE as u64), "ranges of ids")?;
    let mut ranges = Vec::with_capacity(bytes.len() / RANGE);
    let mut least = Some(0);
    for range in bytes.chunks_exact(RANGE) {
        let (first, count) = (u64_at(range, 0), u64_at(range, 8));
        let found = || format!("{count} ids from id {first} on");
        if least.is_none_or(|least| first < least) {
            let expected = "ascending ranges with gaps between them";
            return Err(reader.wrong(at, what, found(), expected));
        }
        let Some(end) = first.checked_add(count) else {
            return Err(reader.wrong(at, what, found(), "ids below 2^64 - 1"));
        };
        if count == 0 {
            return Err(reader.wrong(at + 8, what, found(), "1 id or more"));
        }
        ranges.push((first, count));
        least = end.checked_add(1);
        at += RANGE;
    }
    Ok(ranges)
}

fn read_deleted(
    reader: &mut PayloadReader<'_>,
    count: u64,
    nodes: u32,
) -> Result<Vec<(u64, u32)>, LayoutError> {
    let mut at = reader.at();
    let bytes = reader.bytes(count.saturating_mul(DELETED as u64), "deleted ids")?;
    let mut deleted: Vec<(u64, u32)> = Vec::with_capacity(bytes.len() / DELETED);
    for one in bytes.chunks_exact(DELETED) {
        let (id, bound) = (u64_at(one, 0), u32_at(one, 8));
        if let Some(&(last, _)) = deleted.last().filter(|&&(last, _)| id <= last) {
            return Err(reader.wrong(at, "deleted id", id, format!("above {last}")));
        }
        if bound > nodes && bound != u32::MAX {
            let expected = format!("at most {nodes}, the number of nodes, or {}", u32::MAX);
            return Err(reader.wrong(at + 8, "bound of a deleted id", bound, expected));
        }
        deleted.push((id, bound));
        at += DELETED;
    }
    Ok(deleted)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> PlacementFile {
        PlacementFile {
            nodes: 5,
            built: 3,
            pages: 9,
            page_of: vec![0, 8, 1, 7, 8],
            added: vec![3, 4],
            runs: RunsOn::default(),
            codes: vec![1, 2, 3, 4],
            lists: vec![9, 0],
            ids: vec![(5, 1), (7, 2), (0x0102, 3)],
            deleted: vec![(2, 0), (6, 5), (u64::MAX, u32::MAX)],
        }
    }

    fn decode(payload: &[u8]) -> Result<PlacementFile, LayoutError> {
        PlacementFile::decode(payload.to_vec(), 2, "placement")
    }

    #[test]
    fn round_trips() {
        let file = sample();
        assert_eq!(decode(&file.encode()).unwrap(), file);
        let none = PlacementFile::default();
        for code_bytes in [0, 2, usize::MAX] {
            let back = PlacementFile::decode(none.encode(), code_bytes, "p").unwrap();
            assert_eq!(back, none);
        }
        let last = PlacementFile {
            ids: vec![(0, u64::MAX - 3), (u64::MAX - 2, 2)],
            ..none
        };
        assert_eq!(decode(&last.encode()).unwrap(), last);
    }

    #[test]
    fn bytes_stand_where_the_table_says() {
        let bytes = sample().encode();
        assert_eq!(bytes[..12], [5, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0]);
        assert_eq!(bytes[12..20], 4u64.to_le_bytes());
        assert_eq!(bytes[20..28], 3u64.to_le_bytes());
        assert_eq!(bytes[28..36], 3u64.to_le_bytes());
        assert_eq!(
            bytes[36..52],
            [2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0]
        );
        assert_eq!(bytes[64..72], [3, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(
            bytes[72..88],
            [5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(bytes[104..113], [2, 1, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(bytes[120..132], [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[132..144], [6, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(bytes[144..156], [255; 12]);
        assert_eq!(bytes[156..], [1, 2, 3, 4, 9, 0]);
    }

    #[test]
    fn every_contradiction_is_refused() {
        for (change, text) in [
            (
                (|file| file.page_of[3] = 9) as fn(&mut PlacementFile),
                "placement: page of a node at offset 4156 is 9; expected below 9",
            ),
            (|file| file.pages = 8, "page of a node at offset 4148 is 8"),
            (
                |file| file.built = 6,
                "number of nodes of the build at offset 4104 is 6; expected at most 5",
            ),
            (
                |file| file.built = 4,
                "bytes of all codes at offset 4112 is 4; expected 2 for each of 1 nodes",
            ),
            (
                |file| file.added[0] = 2,
                "first node of an added page of vectors at offset 4164 is 2; expected 3, and below 5",
            ),
            (
                |file| file.page_of.truncate(4),
                "number of nodes in the table at offset 4140 is 4; expected 0 or 5, the number of nodes",
            ),
            (|file| file.added[0] = 4, "is 4; expected 3"),
            (
                |file| file.added[1] = 3,
                "at offset 4168 is 3; expected from 4 on, and below 5",
            ),
            (|file| file.added[1] = 5, "is 5; expected from 4 on"),
            (|file| file.codes.push(1), "is 5; expected 2 for each of 2"),
            (|file| file.codes.clear(), "is 0; expected 2 for each of 2"),
            (
                |file| file.ids[1] = (7, 0),
                "range of ids at offset 4196 is 0 ids from id 7 on; expected 1 id or more",
            ),
            (
                |file| file.ids[1].0 = 6,
                "range of ids at offset 4188 is 2 ids from id 6 on; expected ascending ranges",
            ),
            (|file| file.ids[1].0 = 5, "is 2 ids from id 5 on"),
            (|file| file.ids[0].1 = 3, "is 2 ids from id 7 on"),
            (|file| file.ids.swap(0, 2), "expected ascending ranges"),
            (
                |file| file.ids[2] = (u64::MAX, 1),
                "expected ids below 2^64 - 1",
            ),
            (|file| file.ids[0].1 = u64::MAX, "is 18446744073709551615"),
            (
                |file| file.ids[1].1 = u64::MAX - 7,
                "is 3 ids from id 258 on; expected ascending ranges",
            ),
            (
                |file| file.deleted[1].0 = 2,
                "deleted id at offset 4232 is 2; expected above 2",
            ),
            (|file| file.deleted.swap(0, 2), "deleted id"),
            (
                |file| file.deleted[1].1 = 6,
                "bound of a deleted id at offset 4240 is 6; expected at most 5, the number of nodes, or",
            ),
            (|file| file.deleted[0].1 = u32::MAX - 1, "bound"),
        ] {
            let mut file = sample();
            change(&mut file);
            let found = decode(&file.encode()).unwrap_err().to_string();
            assert!(found.contains(text), "{found}\n{text}");
        }
        let bytes = sample().encode();
        for length in 0..bytes.len() {
            decode(&bytes[..length]).unwrap_err();
        }
        let longer = [&bytes[..], &[0; 2]].concat();
        let text = decode(&longer).unwrap_err().to_string();
        assert!(text.contains("payload length"), "{text}");
        for code_bytes in [0, 1, 3, usize::MAX] {
            PlacementFile::decode(bytes.clone(), code_bytes, "p").unwrap_err();
        }
        for at in [20, 28, 36] {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].fill(255);
            let text = decode(&bytes).unwrap_err().to_string();
            assert!(text.contains("cut off after"), "{text}");
        }
        let mut bytes = bytes;
        bytes[..8].fill(255);
        bytes[12..20].fill(0);
        bytes[40..44].fill(255);
        let text = decode(&bytes).unwrap_err().to_string();
        assert!(text.contains("cut off after"), "{text}");
    }

    #[test]
    fn added_pages_that_go_on_stand_at_the_end() {
        let with = |added: &[u32], runs: &[u32]| {
            let mut file = PlacementFile {
                added: added.to_vec(),
                ..sample()
            };
            runs.iter().for_each(|&page| file.runs.set(page));
            file
        };
        for (added, runs, bits) in [
            (&[3, 4][..], &[0][..], 1),
            (&[3, 4, 4], &[0, 1], 3),
            (&[3, 4, 4, 5], &[0, 1, 2], 7),
            (&[3, 5, 5], &[0, 1], 3),
        ] {
            let file = with(added, runs);
            let bytes = file.encode();
            assert_eq!(bytes[bytes.len() - 1], bits);
            assert_eq!(bytes.len(), with(added, &[]).encode().len() + 1);
            assert_eq!(decode(&bytes).unwrap(), file);
        }
        for (added, runs, text) in [
            (&[3, 4][..], &[1][..], "but not of the last"),
            (&[3, 4, 4], &[1], "is 4; expected from 5 on"),
            (&[3, 4, 4], &[], "is 4; expected from 5 on"),
            (&[3, 4, 5], &[0], "is 5; expected from 5 on"),
            (&[3, 4, 6], &[0, 1], "is 6; expected from 5 on"),
            (&[3, 3, 3, 4], &[0, 1], "is 3; expected from 4 on"),
        ] {
            let text_of = decode(&with(added, runs).encode()).unwrap_err().to_string();
            assert!(text_of.contains(text), "{text_of}\n{text}");
        }
        let largest = PlacementFile {
            nodes: u32::MAX,
            built: u32::MAX - 1,
            page_of: Vec::new(),
            codes: vec![0; 2],
            lists: vec![0],
            ids: Vec::new(),
            deleted: Vec::new(),
            ..with(&[u32::MAX - 1, u32::MAX, 0], &[0])
        };
        let text = decode(&largest.encode()).unwrap_err().to_string();
        assert!(text.contains("first node of an added page"), "{text}");
        let bytes = sample().encode();
        for bits in [0, 5] {
            let longer = [&bytes[..], &[bits]].concat();
            let text = decode(&longer).unwrap_err().to_string();
            assert!(
                text.contains("bits of added pages with a spanning record"),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_file_round_trips(
            pages in 1u32..,
            page_of in prop::collection::vec(any::<u32>(), 0..200),
            later: prop::sample::Index,
            (added, go_on) in (0u8..9, any::<u64>()),
            table: bool,
            code_bytes in 0usize..40,
            gaps in prop::collection::vec((1u64..1 << 50, 1u64..1 << 50), 0..50),
            deleted in prop::collection::btree_map(any::<u64>(), prop::option::of(any::<u32>()), 0..50),
        ) {
            let nodes = page_of.len();
            let built = later.index(nodes + 1);
            let mut next = 0;
            let ids = gaps.into_iter().map(|(gap, count)| {
                let first = next + gap;
                next = first + count;
                (first, count)
            }).collect();
            let bound = |bound: Option<u32>| bound.map_or(u32::MAX, |b| b % (nodes as u32 + 1));
            let added: Vec<u32> = (built as u32..nodes as u32).step_by(1 + added as usize).collect();
            let mut runs = RunsOn::default();
            for page in (1..added.len() as u32).filter(|page| go_on >> (page % 64) & 1 != 0) {
                runs.set(page - 1);
            }
            let file = PlacementFile {
                nodes: nodes as u32,
                built: built as u32,
                pages,
                page_of: page_of.iter().filter(|_| table).map(|page| page % pages).collect(),
                added,
                runs,
                codes: (0..(nodes - built) * code_bytes).map(|at| at as u8).collect(),
                lists: (built..nodes).map(|node| node as u8).collect(),
                ids,
                deleted: deleted.into_iter().map(|(id, b)| (id, bound(b))).collect(),
            };
            prop_assert_eq!(PlacementFile::decode(file.encode(), code_bytes, "p").unwrap(), file);
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            code_bytes: usize,
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            bit: prop::sample::Index,
        ) {
            let _ = PlacementFile::decode(bytes, code_bytes, "p");
            let check = |close: &[u8]| {
                if let Ok(file) = decode(close) {
                    assert_eq!(file.encode(), close);
                    assert!(file.page_of.iter().all(|&page| page < file.pages));
                }
            };
            let mut close = sample().encode();
            let at = bit.index(8 * close.len());
            close[at / 8] ^= 1 << (at % 8);
            check(&close);
            for (at, byte) in damage {
                let at = at.index(close.len());
                close[at] = byte;
            }
            check(&close);
        }
    }
}
