//! Which node has which outside id: what has to be known to insert, replace and delete by id. Where the ids are row numbers the
//! manifest says so, and there is no such file.
//!
//! Payload of a [stream] of kind `Ids`, little-endian: an entry for each vector of the build, by ascending id.
//! Entry `i`:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 12 i | 8 | an outside id |
//! | 12 i + 8 | 4 | its node |
//!
//! 341 entries are the payload of a block, to the byte. So each block can be read, verified and searched alone, the place of an
//! entry says its block, and a search needs neither an index of the blocks nor anything else in memory: it guesses a block from
//! the least and the largest id, and what it finds there bounds the next guess. Ids as differences and nodes in as few bits as
//! they need would take a third of the space, 4 bytes instead of 12 a vector, where ids are close to each other, and as much where
//! they are hashes; but blocks would hold different numbers of entries, and all that reads or checks one would have to decode it.

use crate::block::{self, BLOCK, PAYLOAD, u32_at, u64_at};
use crate::error::LayoutError;
use crate::header::{FileHeader, FileKind};
use crate::stream::{self, StreamReader};

/// Format version of these files. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

/// Bytes of an entry.
pub const ENTRY: usize = 12;

/// Entries of a block.
pub const ENTRIES: usize = PAYLOAD / ENTRY;

const _: () = assert!(ENTRIES * ENTRY == PAYLOAD, "an entry is in one block");

/// An entry as it is stored.
pub fn entry(id: u64, node: u32) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes[8..].copy_from_slice(&node.to_le_bytes());
    bytes
}

/// A file of ids: how many there are, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdsFile {
    entries: u64,
}

impl IdsFile {
    /// The file of so many entries.
    pub fn new(entries: u64) -> IdsFile {
        IdsFile { entries }
    }

    /// What the first bytes of a file (a block of them or more) say, and the header that they are; `file` names the file in
    /// errors.
    ///
    /// # Errors
    /// A header that is damaged, of another kind or version, or of a payload that is no number of entries.
    pub fn open(first: &[u8], file: &str) -> Result<(IdsFile, FileHeader), LayoutError> {
        let reader = StreamReader::open(FileKind::Ids, first, file)?;
        reader.fields().end()?;
        let payload = reader.payload_length();
        if !payload.is_multiple_of(ENTRY as u64) {
            return Err(LayoutError::Field {
                file: file.to_owned(),
                offset: 48,
                what: "payload length",
                found: payload.to_string(),
                expected: format!("a multiple of {ENTRY}"),
            });
        }
        let ids = IdsFile::new(payload / ENTRY as u64);
        Ok((ids, reader.header().clone()))
    }

    /// How many entries there are.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Bytes of the payload.
    pub fn payload_bytes(&self) -> u64 {
        self.entries.saturating_mul(ENTRY as u64)
    }

    /// Blocks of entries.
    pub fn blocks(&self) -> u64 {
        self.entries.div_ceil(ENTRIES as u64)
    }

    /// Where in the file block `block` of the entries stands, counted from 0.
    pub fn block_offset(block: u64) -> u64 {
        block.saturating_add(1).saturating_mul(BLOCK as u64)
    }

    /// Where in the file entry `entry` stands.
    pub fn offset(entry: u64) -> u64 {
        stream::file_offset(entry.saturating_mul(ENTRY as u64))
    }

    /// Verifies block `block` of the entries, whose bytes are given.
    ///
    /// # Errors
    /// A block that the file has not, a wrong checksum, ids that do not ascend, or a node that there is not.
    pub fn block<'a>(
        &self,
        bytes: &'a [u8],
        block: u64,
        file: &str,
    ) -> Result<IdsBlock<'a>, LayoutError> {
        let first = block.saturating_mul(ENTRIES as u64);
        let left = self.entries.saturating_sub(first);
        let wrong = |offset, what, found: u64, expected: String| LayoutError::Field {
            file: file.to_owned(),
            offset,
            what,
            found: found.to_string(),
            expected,
        };
        if left == 0 {
            let expected = format!("below {}", self.blocks());
            return Err(wrong(
                IdsFile::block_offset(block),
                "block of ids",
                block,
                expected,
            ));
        }
        block::check(bytes, block.saturating_add(1), file)?;
        let count = left.min(ENTRIES as u64) as usize;
        let (entries, padding) = bytes[BLOCK - PAYLOAD..].split_at(count * ENTRY);
        let end = IdsFile::offset(first).saturating_add(entries.len() as u64);
        crate::error::check_zero(padding, end, file)?;
        let view = IdsBlock { first, entries };
        let mut before = None;
        for place in 0..count {
            let (id, node) = view.get(place);
            let at = IdsFile::offset(first.saturating_add(place as u64));
            if let Some(before) = before.filter(|&before| id <= before) {
                return Err(wrong(at, "outside id", id, format!("above {before}")));
            }
            if u64::from(node) >= self.entries {
                let expected = format!("below {}", self.entries);
                return Err(wrong(
                    at + 8,
                    "node of an outside id",
                    node.into(),
                    expected,
                ));
            }
            before = Some(id);
        }
        Ok(view)
    }
}

/// The entries of a block: at least one, by ascending id.
#[derive(Clone, Copy, Debug)]
pub struct IdsBlock<'a> {
    first: u64,
    entries: &'a [u8],
}

impl IdsBlock<'_> {
    /// The number of its first entry in the file.
    pub fn first_entry(&self) -> u64 {
        self.first
    }

    /// How many entries it has.
    #[expect(clippy::len_without_is_empty, reason = "a block has an entry or more")]
    pub fn len(&self) -> usize {
        self.entries.len() / ENTRY
    }

    /// The id and the node of an entry.
    ///
    /// # Panics
    /// When `place` is not below [`len`](IdsBlock::len).
    pub fn get(&self, place: usize) -> (u64, u32) {
        (self.id(place), u32_at(self.entries, place * ENTRY + 8))
    }

    fn id(&self, place: usize) -> u64 {
        u64_at(self.entries, place * ENTRY)
    }

    /// Its least and its largest id.
    pub fn ends(&self) -> (u64, u64) {
        (self.id(0), self.id(self.len() - 1))
    }

    /// The place of an id, or the one where it would stand.
    pub fn find(&self, id: u64) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.id(middle).cmp(&id) {
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::block::seal;

    /// A file of these entries.
    fn encode(entries: &[(u64, u32)]) -> Vec<u8> {
        let payload: Vec<u8> = entries
            .iter()
            .flat_map(|&(id, node)| entry(id, node))
            .collect();
        stream::encode(FileKind::Ids, &payload, &[])
    }

    fn block_of(bytes: &[u8], block: u64) -> &[u8] {
        let at = IdsFile::block_offset(block) as usize;
        &bytes[at..at + BLOCK]
    }

    /// Ids with gaps, on nodes the other way round.
    fn sample(count: u32) -> Vec<(u64, u32)> {
        (0..count)
            .map(|i| (7 + 3 * u64::from(i), count - 1 - i))
            .collect()
    }

    #[test]
    fn every_entry_is_found_in_its_block_and_no_other_id_is() {
        for count in [1, 340, 341, 342, 1_000] {
            let entries = sample(count);
            let bytes = encode(&entries);
            let (file, header) = IdsFile::open(&bytes, "ids").unwrap();
            assert_eq!(header.length, bytes.len() as u64);
            assert_eq!(file, IdsFile::new(count.into()));
            assert_eq!(
                (file.payload_bytes(), file.blocks()),
                (12 * u64::from(count), u64::from(count.div_ceil(341)))
            );
            for (i, &(id, node)) in (0..).zip(&entries) {
                let view = file.block(block_of(&bytes, i / 341), i / 341, "ids");
                let view = view.unwrap();
                let place = (i % 341) as usize;
                assert_eq!(view.find(id), Ok(place));
                assert_eq!(
                    (view.get(place), view.first_entry()),
                    ((id, node), i - i % 341)
                );
                assert_eq!(view.find(id - 1), Err(place));
                assert_eq!(view.find(id + 1), Err(place + 1));
                let at = IdsFile::offset(i) as usize;
                assert_eq!(bytes[at..at + ENTRY], entry(id, node));
            }
        }
        let bytes = encode(&sample(5));
        let view = IdsFile::new(5)
            .block(block_of(&bytes, 0), 0, "ids")
            .unwrap();
        assert_eq!((view.len(), view.ends()), (5, (7, 19)));
    }

    #[test]
    fn contradictions_are_refused_with_their_place() {
        let refused = |entries: &[(u64, u32)], change: &dyn Fn(&mut [u8])| {
            let mut bytes = encode(entries);
            change(&mut bytes);
            seal(&mut bytes[BLOCK..2 * BLOCK], 1);
            let (file, _) = IdsFile::open(&bytes, "ids").unwrap();
            let error = file.block(block_of(&bytes, 0), 0, "ids").unwrap_err();
            error.to_string()
        };
        let whole = |_: &mut [u8]| {};
        for (text, expected) in [
            (
                refused(&[(3, 0), (9, 1), (9, 2)], &whole),
                "ids: outside id at offset 4124 is 9, expected above 9",
            ),
            (
                refused(&[(3, 0), (9, 1), (8, 2)], &whole),
                "ids: outside id at offset 4124 is 8, expected above 9",
            ),
            (
                refused(&[(3, 0), (9, 2)], &whole),
                "ids: node of an outside id at offset 4120 is 2, expected below 2",
            ),
            (refused(&[(3, 0)], &|bytes| bytes[BLOCK + 16] = 1), "4112"),
        ] {
            assert!(text.contains(expected), "{text}");
        }
        let bytes = encode(&sample(400));
        let (file, _) = IdsFile::open(&bytes, "ids").unwrap();
        for (block, at) in [(0, 1), (1, 0), (2, 1), (u64::MAX, 0)] {
            file.block(block_of(&bytes, at), block, "ids").unwrap_err();
        }
        file.block(&bytes[BLOCK..2 * BLOCK - 1], 0, "ids")
            .unwrap_err();
        let (none, _) = IdsFile::open(&encode(&[]), "ids").unwrap();
        assert_eq!(none.blocks(), 0);
        none.block(block_of(&bytes, 0), 0, "ids").unwrap_err();
    }

    #[test]
    fn a_header_of_anything_else_is_refused() {
        let refused = |bytes: &[u8]| IdsFile::open(bytes, "ids").unwrap_err().to_string();
        let odd = stream::encode(FileKind::Ids, &[0; 13], &[]);
        assert!(refused(&odd).contains("is 13, expected a multiple of 12"));
        let more = stream::encode(FileKind::Ids, &[0; 12], &[1]);
        assert!(refused(&more).contains("fields"), "{}", refused(&more));
        refused(&stream::encode(FileKind::Heat, &[0; 12], &[]));
        refused(&[]);
    }

    proptest! {
        #[test]
        fn any_ids_round_trip(
            mut ids in prop::collection::hash_set(any::<u64>(), 1..1_200),
            absent: u64,
        ) {
            ids.remove(&absent);
            ids.insert(absent ^ 1);
            let mut ids: Vec<u64> = ids.into_iter().collect();
            ids.sort_unstable();
            let entries: Vec<(u64, u32)> = ids.iter().copied().zip(0..).collect();
            let bytes = encode(&entries);
            let (file, _) = IdsFile::open(&bytes, "ids").unwrap();
            let mut back = Vec::new();
            for block in 0..file.blocks() {
                let view = file.block(block_of(&bytes, block), block, "ids").unwrap();
                prop_assert!(view.find(absent).is_err());
                back.extend((0..view.len()).map(|place| view.get(place)));
            }
            prop_assert_eq!(back, entries);
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..2 * BLOCK),
            payload: u64,
            entries: u64,
            block: u64,
            sealed: bool,
        ) {
            let _ = IdsFile::open(&bytes, "f");
            let fields = payload.to_le_bytes().to_vec();
            let header = FileHeader::new(FileKind::Ids, stream::file_length(payload), fields);
            let _ = IdsFile::open(&header.encode(), "f");
            let small = entries % 1_000;
            for (entries, block) in [(entries, block), (small, block % 3)] {
                if sealed && bytes.len() >= BLOCK {
                    seal(&mut bytes[..BLOCK], block.saturating_add(1));
                }
                let end = bytes.len().min(BLOCK);
                if let Ok(view) = IdsFile::new(entries).block(&bytes[..end], block, "f") {
                    let _ = (view.ends(), view.find(entries), view.first_entry());
                }
            }
        }
    }
}
