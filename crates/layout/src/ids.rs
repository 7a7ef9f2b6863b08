//! The node of each external id, for changes and look-ups by id. If the id of each node equals the
//! node's number, this file does not exist.
//!
//! The file is a [stream](crate::stream) of kind `Ids`. Arbitrary ids are stored as *pairs*: the
//! header has no fields, and the payload has an entry for each vector of the build, by ascending
//! id, little-endian. Entry `i`:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 12 i | 8 | an external id |
//! | 12 i + 8 | 4 | its node |
//!
//! 341 entries fill the payload of a block exactly, so a reader verifies and searches each block by
//! itself. A look-up needs no data in memory: it guesses a block from the least and the largest id
//! of the file, and the ids in this block bound the next guess.
//!
//! If the ids are row numbers and nodes have another order, the file stores *nodes alone* (from
//! format version 2 on): entry `i` is the node of id `i`. The header has a field:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 8 | the number of entries n, 1 to 2^32 |
//!
//! An entry takes B bits, as many as the number n - 1 needs, at least 1. A block has E = 32,736 / B
//! entries. So entry `i` is in the payload of block `i / E`, in the B bits that begin with bit B (i
//! mod E), the lowest bits of the first byte first. The bits after the last entry are zero.

use crate::block::{self, BLOCK, PAYLOAD, u32_at, u64_at};
use crate::error::LayoutError;
use crate::header::{FieldsWriter, FileHeader, FileKind};
use crate::stream::StreamReader;

/// Format version of these files. 1: pairs. 2: pairs, or nodes alone.
pub const FORMAT_VERSION: u32 = 2;

/// Bytes of a pair.
pub const ENTRY: usize = 12;

/// Pairs of a block.
pub const ENTRIES: usize = PAYLOAD / ENTRY;

const _: () = assert!(
    ENTRIES * ENTRY == PAYLOAD,
    "a pair of id and node spans two blocks"
);

/// Encodes a pair.
pub fn entry(id: u64, node: u32) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes[8..].copy_from_slice(&node.to_le_bytes());
    bytes
}

const MOST_ALONE: u64 = 1 << 32;

/// The form and the number of entries of a file of ids, from which all positions follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdsFile {
    entries: u64,
    /// Bits of an entry in a file of nodes alone; 0 for pairs.
    bits: u32,
}

impl IdsFile {
    /// The file with this number of pairs.
    pub fn pairs(entries: u64) -> IdsFile {
        IdsFile { entries, bits: 0 }
    }

    /// The file of nodes alone, whose ids are all numbers below `entries` (from 1 to 2^32).
    pub fn nodes_alone(entries: u64) -> IdsFile {
        let bits = u64::BITS - entries.saturating_sub(1).leading_zeros();
        IdsFile {
            entries,
            bits: bits.clamp(1, u32::BITS),
        }
    }

    /// Decodes the first bytes of a file, one block or more. `file` is the name in errors.
    ///
    /// # Errors
    /// Fails if the header is wrong, or the length does not match the entries.
    pub fn open(first: &[u8], file: &str) -> Result<(IdsFile, FileHeader), LayoutError> {
        let reader = StreamReader::open(FileKind::Ids, first, file)?;
        let (payload, mut fields) = (reader.payload_length(), reader.fields());
        let wrong = |offset, what, found: u64, expected| LayoutError::Field {
            file: file.to_owned(),
            offset,
            what,
            found: found.to_string(),
            expected,
        };
        let is_pairs = fields.is_at_end() || reader.header().version < 2;
        let ids = if is_pairs {
            IdsFile::pairs(payload / ENTRY as u64)
        } else {
            let at = fields.offset();
            let entries = fields.u64("number of ids")?;
            if !(1..=MOST_ALONE).contains(&entries) {
                let expected = format!("1 to {MOST_ALONE}");
                return Err(wrong(at, "number of ids", entries, expected));
            }
            IdsFile::nodes_alone(entries)
        };
        fields.end()?;
        if payload != ids.payload_bytes() {
            let expected = match is_pairs {
                true => format!("a multiple of {ENTRY}"),
                false => format!("{} for {} ids", ids.payload_bytes(), ids.entries),
            };
            return Err(wrong(48, "payload length", payload, expected));
        }
        Ok((ids, reader.header().clone()))
    }

    /// The fields of the header.
    pub fn fields(&self) -> Vec<u8> {
        match self.bits {
            0 => Vec::new(),
            _ => FieldsWriter::new().u64(self.entries).finish(),
        }
    }

    /// Whether the file has nodes alone: the ids are all numbers below the number of entries.
    pub fn has_nodes_alone(&self) -> bool {
        self.bits > 0
    }

    /// Entries of a full block.
    pub fn per_block(&self) -> usize {
        match self.bits {
            0 => ENTRIES,
            bits => 8 * PAYLOAD / bits as usize,
        }
    }

    /// Appends the payload of a block of nodes with consecutive ids. All blocks except the last
    /// must be full.
    ///
    /// # Panics
    /// Panics if the file has pairs, the block is too small, or a node is too large.
    pub fn push_nodes(&self, nodes: &[u32], out: &mut Vec<u8>) {
        assert!(
            self.has_nodes_alone() && nodes.len() <= self.per_block(),
            "{} nodes for a block of {}",
            nodes.len(),
            self.per_block()
        );
        let start = out.len();
        let (mut waiting, mut bits) = (0u64, 0);
        for &node in nodes {
            assert!(
                u64::from(node) < self.entries,
                "node {node} of {} entries",
                self.entries
            );
            waiting |= u64::from(node) << bits;
            bits += self.bits;
            while bits >= 8 {
                out.push(waiting as u8);
                waiting >>= 8;
                bits -= 8;
            }
        }
        if bits > 0 {
            out.push(waiting as u8);
        }
        if nodes.len() == self.per_block() {
            out.resize(start + PAYLOAD, 0);
        }
    }

    /// The number of entries.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Bytes of the payload.
    pub fn payload_bytes(&self) -> u64 {
        match u64::from(self.bits) {
            0 => self.entries.saturating_mul(ENTRY as u64),
            bits => {
                let per_block = self.per_block() as u64;
                let rest = (self.entries % per_block * bits).div_ceil(8);
                self.entries / per_block * PAYLOAD as u64 + rest
            }
        }
    }

    /// The number of blocks of entries.
    pub fn blocks(&self) -> u64 {
        self.entries.div_ceil(self.per_block() as u64)
    }

    /// The block of an id, counted from 0, in a file of nodes alone; `None` for pairs.
    pub fn block_of(&self, id: u64) -> Option<u64> {
        let is_there = self.has_nodes_alone() && id < self.entries;
        is_there.then(|| id / self.per_block() as u64)
    }

    /// The offset in the file of block `block`, counted from 0.
    pub fn block_offset(block: u64) -> u64 {
        block.saturating_add(1).saturating_mul(BLOCK as u64)
    }

    /// The offset in the file of the first byte of entry `entry`.
    pub fn offset(&self, entry: u64) -> u64 {
        let per_block = self.per_block() as u64;
        let at = match u64::from(self.bits) {
            0 => entry % per_block * ENTRY as u64,
            bits => entry % per_block * bits / 8,
        };
        IdsFile::block_offset(entry / per_block).saturating_add((BLOCK - PAYLOAD) as u64 + at)
    }

    /// Verifies block `block` of the entries.
    ///
    /// # Errors
    /// Fails if there is no such block, or the checksum, the order or a node is wrong.
    pub fn block<'a>(
        &self,
        bytes: &'a [u8],
        block: u64,
        file: &str,
    ) -> Result<IdsBlock<'a>, LayoutError> {
        let first = block.saturating_mul(self.per_block() as u64);
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
        let len = left.min(self.per_block() as u64) as usize;
        let used = match self.bits as usize {
            0 => len * ENTRY,
            bits => (len * bits).div_ceil(8),
        };
        let (entries, padding) = bytes[BLOCK - PAYLOAD..].split_at(used);
        let end = self.offset(first).saturating_add(used as u64);
        crate::error::check_zero(padding, end, file)?;
        let view = IdsBlock {
            first,
            len,
            entries,
            bits: self.bits,
        };
        let behind = view.bits_behind();
        if behind != 0 {
            return Err(LayoutError::Reserved {
                file: file.to_owned(),
                offset: end - 1,
                found: behind,
            });
        }
        let mut before = None;
        for place in 0..len {
            let (id, node) = view.get(place);
            let at = self.offset(first.saturating_add(place as u64));
            if let Some(before) = before.filter(|&before| id <= before) {
                return Err(wrong(at, "external id", id, format!("above {before}")));
            }
            if u64::from(node) >= self.entries {
                let at = if self.has_nodes_alone() { at } else { at + 8 };
                let expected = format!("below {}", self.entries);
                return Err(wrong(at, "node of an external id", node.into(), expected));
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
    len: usize,
    entries: &'a [u8],
    bits: u32,
}

impl IdsBlock<'_> {
    /// The number of the block's first entry in the file.
    pub fn first_entry(&self) -> u64 {
        self.first
    }

    /// The number of entries.
    #[expect(clippy::len_without_is_empty, reason = "a block has one entry or more")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The id and the node of an entry.
    ///
    /// # Panics
    /// Panics if `place` is not below [`len`](IdsBlock::len).
    pub fn get(&self, place: usize) -> (u64, u32) {
        let node = match self.bits {
            0 => u32_at(self.entries, place * ENTRY + 8),
            bits => {
                assert!(place < self.len, "entry {place} of {}", self.len);
                let at = place * bits as usize;
                // The window has at most 7 bits before the entry, and at most 32 bits of the entry.
                let window = self.window(at / 8) >> (at % 8);
                (window & ((1 << bits) - 1)) as u32
            }
        };
        (self.id(place), node)
    }

    fn window(&self, at: usize) -> u64 {
        let rest = &self.entries[at..];
        let mut eight = [0; 8];
        let count = rest.len().min(8);
        eight[..count].copy_from_slice(&rest[..count]);
        u64::from_le_bytes(eight)
    }

    fn bits_behind(&self) -> u8 {
        match (self.len * self.bits as usize % 8, self.entries.last()) {
            (0, _) | (_, None) => 0,
            (used, Some(last)) => last >> used << used,
        }
    }

    fn id(&self, place: usize) -> u64 {
        match self.bits {
            0 => u64_at(self.entries, place * ENTRY),
            _ => self.first + place as u64,
        }
    }

    /// The least and the largest id.
    pub fn ends(&self) -> (u64, u64) {
        (self.id(0), self.id(self.len() - 1))
    }

    /// The position of an id. If the id is absent, `Err` has the position at which it would be
    /// inserted.
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
    use crate::stream;

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
            assert_eq!(file, IdsFile::pairs(count.into()));
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
                let at = file.offset(i) as usize;
                assert_eq!(bytes[at..at + ENTRY], entry(id, node));
            }
        }
        let bytes = encode(&sample(5));
        let view = IdsFile::pairs(5)
            .block(block_of(&bytes, 0), 0, "ids")
            .unwrap();
        assert_eq!((view.len(), view.ends()), (5, (7, 19)));
    }

    fn encode_nodes(nodes: &[u32]) -> Vec<u8> {
        let file = IdsFile::nodes_alone(nodes.len() as u64);
        let mut payload = Vec::new();
        for nodes in nodes.chunks(file.per_block()) {
            file.push_nodes(nodes, &mut payload);
        }
        assert_eq!(payload.len() as u64, file.payload_bytes());
        stream::encode(FileKind::Ids, &payload, &file.fields())
    }

    #[test]
    fn nodes_alone_take_as_many_bits_as_their_number_and_are_found_by_their_ids() {
        for (count, bits, per_block) in [
            (1, 1, 32_736),
            (2, 1, 32_736),
            (3, 2, 16_368),
            (2_976, 12, 2_728),
            (5_456, 13, 2_518),
            (5_457, 13, 2_518),
            (100_000, 17, 1_925),
        ] {
            let nodes: Vec<u32> = (0..count).map(|i| (i * 7 + 3) % count).collect();
            let bytes = encode_nodes(&nodes);
            let (file, header) = IdsFile::open(&bytes, "ids").unwrap();
            assert_eq!(header.length, bytes.len() as u64);
            assert_eq!((file.bits, file.per_block()), (bits, per_block), "{count}");
            assert_eq!(
                (file.entries(), file.blocks()),
                (
                    u64::from(count),
                    u64::from(count).div_ceil(per_block as u64)
                )
            );
            for (id, &node) in (0..).zip(&nodes).step_by(1 + nodes.len() / 3_000) {
                let block = file.block_of(id).unwrap();
                let view = file.block(block_of(&bytes, block), block, "ids").unwrap();
                let place = (id - view.first_entry()) as usize;
                assert_eq!((view.find(id), view.get(place)), (Ok(place), (id, node)));
                let (least, largest) = view.ends();
                assert_eq!(view.find(largest + 1), Err(view.len()));
                assert!((least..=largest).contains(&id));
                let mut others = nodes.clone();
                others[id as usize] ^= 1;
                if u64::from(others[id as usize]) < file.entries() {
                    let other = encode_nodes(&others);
                    let from = file.offset(id) as usize;
                    assert_ne!(
                        other[from..from + 2],
                        bytes[from..from + 2],
                        "{count}: {id}"
                    );
                }
            }
            assert_eq!(file.block_of(count.into()), None);
        }
        assert_eq!(IdsFile::nodes_alone(1_000_000).payload_bytes(), 2_501_222);
        assert_eq!(IdsFile::nodes_alone(1 << 32).bits, 32);
        assert_eq!(IdsFile::pairs(9).block_of(3), None);
    }

    #[test]
    fn nodes_that_there_are_not_and_bits_behind_the_last_are_refused() {
        let refused = |nodes: &[u32], change: &dyn Fn(&mut [u8])| {
            let mut bytes = encode_nodes(nodes);
            change(&mut bytes[BLOCK + 4..]);
            seal(&mut bytes[BLOCK..2 * BLOCK], 1);
            let (file, _) = IdsFile::open(&bytes, "ids").unwrap();
            let error = file.block(block_of(&bytes, 0), 0, "ids").unwrap_err();
            error.to_string()
        };
        let nodes = [4, 3, 2, 1, 0];
        for (text, expected) in [
            (
                refused(&nodes, &|bytes| bytes[0] = bytes[0] & !7 | 5),
                "ids: node of an external id at offset 4100 is 5; expected below 5",
            ),
            (refused(&nodes, &|bytes| bytes[1] |= 0x80), "4101"),
            (refused(&nodes, &|bytes| bytes[2] = 1), "4102"),
        ] {
            assert!(text.contains(expected), "{text}");
        }
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
                "ids: external id at offset 4124 is 9; expected above 9",
            ),
            (
                refused(&[(3, 0), (9, 1), (8, 2)], &whole),
                "ids: external id at offset 4124 is 8; expected above 9",
            ),
            (
                refused(&[(3, 0), (9, 2)], &whole),
                "ids: node of an external id at offset 4120 is 2; expected below 2",
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
        assert!(refused(&odd).contains("is 13; expected a multiple of 12"));
        let fields = |entries: u64| IdsFile::nodes_alone(entries).fields();
        for (payload, fields, expected) in [
            (12, vec![1], "number of ids"),
            (12, [fields(4), vec![1]].concat(), "fields"),
            (
                12,
                fields(0),
                "number of ids at offset 56 is 0; expected 1 to",
            ),
            (
                12,
                fields((1 << 32) + 1),
                "number of ids at offset 56 is 4294967297",
            ),
            (12, fields(4), "is 12; expected 1 for 4 ids"),
        ] {
            let text = refused(&stream::encode(FileKind::Ids, &vec![0; payload], &fields));
            assert!(text.contains(expected), "{text}");
        }
        let mut header = FileHeader::new(FileKind::Ids, stream::file_length(1), Vec::new());
        header.fields = [&1u64.to_le_bytes()[..], &fields(4)].concat();
        IdsFile::open(&header.encode(), "ids").unwrap();
        header.version = 1;
        let text = refused(&header.encode());
        assert!(
            text.contains("fields"),
            "the first version of the file had no fields: {text}"
        );
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
        fn any_nodes_round_trip(nodes in prop::collection::vec(0u32..5_000, 1..5_000)) {
            let count = nodes.len() as u32;
            let nodes: Vec<u32> = nodes.iter().map(|node| node % count).collect();
            let bytes = encode_nodes(&nodes);
            let (file, _) = IdsFile::open(&bytes, "ids").unwrap();
            let mut back = Vec::new();
            for block in 0..file.blocks() {
                let view = file.block(block_of(&bytes, block), block, "ids").unwrap();
                back.extend((0..view.len()).map(|place| view.get(place)));
            }
            let expected: Vec<(u64, u32)> = (0..).zip(nodes).collect();
            prop_assert_eq!(back, expected);
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
            let alone = [&fields[..], &entries.to_le_bytes()].concat();
            for fields in [fields, alone] {
                let header = FileHeader::new(FileKind::Ids, stream::file_length(payload), fields);
                let _ = IdsFile::open(&header.encode(), "f");
            }
            let small = entries % 1_000;
            for (entries, block) in [(entries, block), (small, block % 3)] {
                if sealed && bytes.len() >= BLOCK {
                    seal(&mut bytes[..BLOCK], block.saturating_add(1));
                }
                let end = bytes.len().min(BLOCK);
                for file in [IdsFile::pairs(entries), IdsFile::nodes_alone(entries)] {
                    if let Ok(view) = file.block(&bytes[..end], block, "f") {
                        let _ = (view.ends(), view.find(entries), view.get(view.len() - 1));
                    }
                }
            }
        }
    }
}
