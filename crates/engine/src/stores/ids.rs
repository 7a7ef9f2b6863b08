//! The file of ids of an index on storage, which maps an id to its node.
//!
//! ```text
//!   id ──> guess a block by the ids at both ends ──> read and verify it
//!            ──> the block has the id, or is a new end: guess again
//! ```
//!
//! Only the smallest and the largest id are in memory. If ids are row numbers, the file has only
//! nodes, and the block follows from the id. [`stratann_layout::ids`] has the byte table.
//!
//! For other ids, a look-up guesses the block by interpolation. If ids are hashes, or row numbers
//! with gaps, the first guess is right, or wrong by a block or two. Later, every second guess is
//! the middle of the range. So a look-up reads at most about twice as many blocks as a binary
//! search.

use std::ops::Range;
use std::sync::Arc;

use stratann_layout::header::stored_checksum;
use stratann_layout::{BLOCK, FileEntry, FileKind, IdsBlock, IdsFile, Manifest};
use stratann_tier::{Volume, VolumeReader};

use crate::{Error, stored};

/// The external id of a placeholder; in results it means "no result".
pub(crate) const PLACEHOLDER_ID: u64 = u64::MAX;

/// If more consecutive blocks are damaged, the ids after them count as unreadable.
const MOST_DAMAGED: usize = 64;
/// A look-up first guesses by interpolation, this many times. Then every second guess is the middle
/// of the remaining range.
const BY_IDS: u32 = 4;

/// An open file of ids. It stays readable after its name is removed.
#[derive(Debug)]
pub(crate) struct IdTable {
    reader: Arc<dyn VolumeReader>,
    file: String,
    entries: IdsFile,
    ends: (u64, u64),
}

/// The entry of an id: its number and node. `Err` has the number of the entry before which the id
/// would be.
pub(crate) type Found = Result<(u64, u32), u64>;

/// The last block that was read, cached for look-ups nearby.
pub(crate) struct LastBlock {
    number: Option<u64>,
    bytes: [u8; BLOCK],
}

impl LastBlock {
    pub(crate) fn none() -> Self {
        Self {
            number: None,
            bytes: [0; BLOCK],
        }
    }
}

impl IdTable {
    /// `None` if ids are row numbers, or if an earlier version wrote the index.
    pub(crate) fn open(volume: &dyn Volume, manifest: &Manifest) -> Result<Option<Self>, Error> {
        let Some(entry) = manifest.file(FileKind::Ids.name()) else {
            return Ok(None);
        };
        Self::open_file(volume, entry, Some(manifest.vectors)).map(Some)
    }

    /// `expected` is the number of ids, if it is known.
    pub(crate) fn open_file(
        volume: &dyn Volume,
        entry: &FileEntry,
        expected: Option<u64>,
    ) -> Result<Self, Error> {
        let reader = volume.open_reader(&entry.name)?.into();
        Self::opened(reader, volume, entry, expected)
    }

    /// Opens a table by an open file, whose name may already be removed.
    pub(crate) fn opened(
        reader: Arc<dyn VolumeReader>,
        volume: &dyn Volume,
        entry: &FileEntry,
        expected: Option<u64>,
    ) -> Result<Self, Error> {
        stored::check_length(volume, entry, reader.size()?)?;
        let file = stored::name_of(volume, &entry.name);
        let mut last = LastBlock::none();
        reader.read_at(0, &mut last.bytes)?;
        let (entries, header) = IdsFile::open(&last.bytes, &file)?;
        header.check_length(entry.length, &file)?;
        if stored_checksum(&last.bytes) != entry.header_crc32c {
            return Err(stored::of_another_index(volume, entry));
        }
        let found = entries.entries();
        if let Some(vectors) = expected.filter(|&vectors| vectors != found) {
            let what = format!("it has {found} ids; the MANIFEST says {vectors} vectors");
            return Err(Error::Damaged { file, what });
        }
        let mut table = Self {
            reader,
            file,
            entries,
            ends: (0, 0),
        };
        let (least, _) = table.block(0, &mut last)?.ends();
        let (_, largest) = table.block(entries.blocks() - 1, &mut last)?.ends();
        table.ends = (least, largest);
        Ok(table)
    }

    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    pub(crate) fn entries(&self) -> IdsFile {
        self.entries
    }

    pub(crate) fn largest(&self) -> u64 {
        self.ends.1
    }

    pub(crate) fn block<'b>(
        &self,
        block: u64,
        last: &'b mut LastBlock,
    ) -> Result<IdsBlock<'b>, Error> {
        if last.number != Some(block) {
            last.number = None;
            let offset = IdsFile::block_offset(block);
            self.reader.read_at(offset, &mut last.bytes)?;
        }
        let view = self.entries.block(&last.bytes, block, &self.file)?;
        last.number = Some(block);
        Ok(view)
    }

    pub(crate) fn id_at(&self, entry: u64, last: &mut LastBlock) -> Result<u64, Error> {
        let view = self.block(entry / self.entries.per_block() as u64, last)?;
        let place = (entry - view.first_entry()) as usize;
        Ok(view.get(place).0)
    }

    pub(crate) fn node_of(&self, id: u64) -> Result<Option<u32>, Error> {
        let found = self.find(id, &mut LastBlock::none())?;
        Ok(found.ok().map(|(_, node)| node))
    }

    /// The entry of an id. The block in `last` is tried first.
    pub(crate) fn find(&self, id: u64, last: &mut LastBlock) -> Result<Found, Error> {
        let (mut least, mut most) = self.ends;
        if id < least {
            return Ok(Err(0));
        }
        if id > most {
            return Ok(Err(self.entries.entries()));
        }
        if let Some(block) = self.entries.block_of(id) {
            let view = self.block(block, last)?;
            let place = (id - view.first_entry()) as usize;
            return Ok(Ok((id, view.get(place).1)));
        }
        let (mut low, mut high) = (0, self.entries.blocks());
        let mut next = last.number.filter(|&number| number < high);
        let mut guesses = 0;
        // A block that may have the id but cannot be read, with its error.
        let mut damaged = None;
        while low < high {
            let block = next.take().unwrap_or_else(|| {
                guesses += 1;
                match guesses <= BY_IDS || guesses % 2 == 0 {
                    true => low + between(id, least, most, high - low),
                    false => low + (high - low) / 2,
                }
            });
            let view = match self.block(block, last) {
                Ok(view) => view,
                Err(error) => {
                    // If `id` is at least the first id of the next readable block, the damaged
                    // block does not have `id`.
                    let (next_block, first) = self.readable(block + 1..high, last);
                    if first.is_some_and(|first| id >= first) {
                        (low, next) = (next_block, Some(next_block));
                    } else {
                        (high, damaged) = (block, Some((block, error)));
                    }
                    continue;
                }
            };
            let (first, end) = view.ends();
            if id < first {
                (high, most) = (block, first);
            } else if id > end {
                (low, least) = (block + 1, end);
            } else {
                let entry = |place: usize| view.first_entry() + place as u64;
                return Ok(match view.find(id) {
                    Ok(place) => Ok((entry(place), view.get(place).1)),
                    Err(place) => Err(entry(place)),
                });
            }
        }
        match damaged {
            Some((block, error)) if block == low => Err(error),
            _ => Ok(Err(low * self.entries.per_block() as u64)),
        }
    }

    /// The first readable block of `blocks`, and its smallest id. The id is `None` if the first
    /// [`MOST_DAMAGED`] blocks are unreadable.
    fn readable(&self, blocks: Range<u64>, last: &mut LastBlock) -> (u64, Option<u64>) {
        let end = blocks.end;
        for block in blocks.take(MOST_DAMAGED) {
            if let Ok(view) = self.block(block, last) {
                return (block, Some(view.ends().0));
            }
        }
        (end, None)
    }
}

/// The position of `id` among `count` evenly spaced entries.
fn between(id: u64, least: u64, most: u64, count: u64) -> u64 {
    let span = u128::from(most.saturating_sub(least)) + 1;
    let at = u128::from(id.saturating_sub(least)) * u128::from(count) / span;
    u64::try_from(at).unwrap_or(u64::MAX).min(count - 1)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use stratann_layout::ids::{self, ENTRIES};
    use stratann_layout::stream;
    use stratann_tier::TierError;
    use stratann_tier::testing::SimVolume;

    use super::*;

    #[derive(Debug)]
    struct Counted(Arc<dyn VolumeReader>, Arc<AtomicU64>);

    impl VolumeReader for Counted {
        fn size(&self) -> Result<u64, TierError> {
            self.0.size()
        }

        fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.read_at(offset, out)
        }
    }

    fn entry_of(volume: &SimVolume, ids: &[u64]) -> FileEntry {
        let count = ids.len() as u32;
        let entries = ids.iter().zip((0..count).rev());
        let payload: Vec<u8> = entries
            .flat_map(|(&id, node)| ids::entry(id, node))
            .collect();
        written(volume, &stream::encode(FileKind::Ids, &payload, &[]))
    }

    fn entry_of_rows(volume: &SimVolume, count: u32) -> FileEntry {
        let file = IdsFile::nodes_alone(count.into());
        let (nodes, mut payload) = ((0..count).rev().collect::<Vec<u32>>(), Vec::new());
        for nodes in nodes.chunks(file.per_block()) {
            file.push_nodes(nodes, &mut payload);
        }
        written(
            volume,
            &stream::encode(FileKind::Ids, &payload, &file.fields()),
        )
    }

    fn written(volume: &SimVolume, bytes: &[u8]) -> FileEntry {
        volume
            .create("ids-000001")
            .unwrap()
            .write_at(0, bytes)
            .unwrap();
        FileEntry {
            role: "ids".into(),
            name: "ids-000001".into(),
            length: bytes.len() as u64,
            header_crc32c: stored_checksum(bytes),
        }
    }

    fn table(ids: &[u64]) -> (IdTable, Arc<AtomicU64>) {
        let volume = SimVolume::new();
        opened(&volume, &entry_of(&volume, ids))
    }

    fn opened(volume: &SimVolume, entry: &FileEntry) -> (IdTable, Arc<AtomicU64>) {
        let mut table = IdTable::open_file(volume, entry, None).unwrap();
        let reads = Arc::new(AtomicU64::new(0));
        table.reader = Arc::new(Counted(table.reader, reads.clone()));
        (table, reads)
    }

    #[test]
    fn ids_are_found_in_few_reads_whatever_they_are() {
        let count = 100_000u64;
        let hash = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1;
        let mut hashes: Vec<u64> = (0..count).map(hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        let gaps = (0..count).map(|i| i + i / 9 + i / 1_000 * 500).collect();
        let late = (0..count).map(|i| u64::MAX / 2 + 1_000 * i).collect();
        let ends = (0..count).map(|i| {
            if i < count / 2 {
                i
            } else {
                u64::MAX - count + i
            }
        });
        let squares = (0..count).map(|i| i * i * i);
        // A binary search would read log2(294) = 8.2 of 294 blocks.
        for (what, ids, mean, most) in [
            ("gaps", gaps, 2.0, 4),
            ("hashes", hashes, 2.1, 5),
            ("late", late, 1.5, 2),
            ("two ends", ends.collect::<Vec<u64>>(), 12.0, 21),
            ("cubes", squares.collect(), 9.0, 21),
        ] {
            let (table, reads) = table(&ids);
            let (mut all, mut worst) = (0, 0);
            for (at, &id) in ids.iter().enumerate().step_by(7) {
                reads.store(0, Ordering::Relaxed);
                let node = (ids.len() - 1 - at) as u32;
                assert_eq!(table.node_of(id).unwrap(), Some(node), "{what}: {id}");
                let reads = reads.load(Ordering::Relaxed);
                (all, worst) = (all + reads, worst.max(reads));
            }
            let found = all as f64 / ids.len().div_ceil(7) as f64;
            assert!(found <= mean && worst <= most, "{what}: {found}, {worst}");
        }
    }

    #[test]
    fn row_numbers_are_found_in_one_read_and_a_damaged_block_hides_its_own() {
        let (volume, count) = (SimVolume::new(), 20_000u32);
        let entry = entry_of_rows(&volume, count);
        // An entry takes fifteen bits, so a block has 2,182 entries.
        assert_eq!(entry.length, 4096 * (1 + 10));
        let (table, reads) = opened(&volume, &entry);
        assert_eq!(
            (table.largest(), table.entries().per_block()),
            (19_999, 2_182)
        );
        let mut last = LastBlock::none();
        for id in 0..u64::from(count) {
            let node = count - 1 - id as u32;
            assert_eq!(table.find(id, &mut last).unwrap(), Ok((id, node)));
            assert_eq!(table.id_at(id, &mut last).unwrap(), id);
        }
        assert_eq!(reads.swap(0, Ordering::Relaxed), 10);
        assert_eq!(table.find(count.into(), &mut last).unwrap(), Err(20_000));
        assert_eq!(table.node_of(u64::MAX).unwrap(), None);
        assert_eq!(
            reads.load(Ordering::Relaxed),
            0,
            "an id outside the range of ids caused a read"
        );
        let mut file = volume.open(&entry.name).unwrap();
        file.write_at(IdsFile::block_offset(3) + 9, &[255]).unwrap();
        for id in (0..u64::from(count)).step_by(97) {
            let found = table.node_of(id);
            match (3 * 2_182..4 * 2_182).contains(&id) {
                true => assert_eq!(found.unwrap_err().kind(), crate::ErrorKind::Damaged),
                false => assert_eq!(found.unwrap(), Some(count - 1 - id as u32)),
            }
        }
    }

    #[test]
    fn what_is_not_there_would_stand_somewhere() {
        let ids: Vec<u64> = (0..2_000).map(|i| 10 + 5 * i).collect();
        let (table, reads) = table(&ids);
        assert_eq!(table.largest(), 10_005);
        let mut last = LastBlock::none();
        for id in 0..10_020 {
            let found = table.find(id, &mut last).unwrap();
            let expected = match ids.binary_search(&id) {
                Ok(at) => Ok((at as u64, (1_999 - at) as u32)),
                Err(at) => Err(at as u64),
            };
            assert_eq!(found, expected, "{id}");
        }
        // Every block is read once, and each of four ids between two blocks costs one more read.
        assert_eq!(reads.load(Ordering::Relaxed), 6 + 5 * 4);
        for id in [9, 10_006, u64::MAX] {
            assert_eq!(table.node_of(id).unwrap(), None);
        }
        assert_eq!(
            reads.load(Ordering::Relaxed),
            26,
            "an id outside the range of ids caused a read"
        );
    }

    #[test]
    fn a_damaged_block_hides_no_ids_of_others() {
        let ids: Vec<u64> = (0..3_400).map(|i| 7 * i * i).collect();
        let volume = SimVolume::new();
        let entry = entry_of(&volume, &ids);
        let blocks = ids.len().div_ceil(ENTRIES) as u64;
        for damaged in [vec![5], vec![3, 4], vec![1, 8], vec![blocks - 2]] {
            let table = IdTable::open_file(&volume, &entry, None).unwrap();
            let flip = |block: u64| {
                let at = IdsFile::block_offset(block) + 100;
                let mut byte = [0];
                volume.read_at(&entry.name, at, &mut byte).unwrap();
                let mut file = volume.open(&entry.name).unwrap();
                file.write_at(at, &[byte[0] ^ 1]).unwrap();
            };
            damaged.iter().for_each(|&block| flip(block));
            for (at, &id) in ids.iter().enumerate() {
                let found = table.find(id, &mut LastBlock::none());
                match damaged.contains(&((at / ENTRIES) as u64)) {
                    true => assert!(found.is_err(), "{damaged:?}: {at}"),
                    false => {
                        let expected = (at as u64, (ids.len() - 1 - at) as u32);
                        assert_eq!(found.unwrap(), Ok(expected), "{damaged:?}: {at}");
                    }
                }
                // The file does not have the id `id + 1`, and no damaged block could have it.
                let beside = [at.saturating_sub(1), at + 1];
                let whole = |at: usize| !damaged.contains(&((at / ENTRIES) as u64));
                if whole(at) && beside.into_iter().all(whole) && id > 0 {
                    assert_eq!(table.node_of(id + 1).unwrap(), None, "{damaged:?}: {at}");
                }
            }
            damaged.iter().for_each(|&block| flip(block));
        }
    }

    #[test]
    fn damage_is_an_error_where_it_is_read() {
        let ids: Vec<u64> = (0..1_000).map(|i| 3 * i).collect();
        let volume = SimVolume::new();
        let entry = entry_of(&volume, &ids);
        let open = || IdTable::open_file(&volume, &entry, None);
        let flip = |at: u64| {
            let mut byte = [0];
            volume.read_at(&entry.name, at, &mut byte).unwrap();
            let mut file = volume.open(&entry.name).unwrap();
            file.write_at(at, &[byte[0] ^ 1]).unwrap();
        };
        let table = open().unwrap();
        flip(2 * BLOCK as u64 + 77);
        assert_eq!(table.node_of(3).unwrap(), Some(998));
        let text = table.node_of(3 * 400).unwrap_err().to_string();
        assert!(
            text.contains("ids-000001") && text.contains("8192"),
            "{text}"
        );
        open().unwrap();
        for at in [100, BLOCK as u64 + 5, 3 * BLOCK as u64 + 5] {
            flip(at);
            open().unwrap_err();
            flip(at);
        }
        open().unwrap();
        let short = FileEntry {
            length: entry.length - BLOCK as u64,
            ..entry.clone()
        };
        IdTable::open_file(&volume, &short, None).unwrap_err();
        let other = FileEntry {
            header_crc32c: entry.header_crc32c ^ 1,
            ..entry
        };
        let text = IdTable::open_file(&volume, &other, None)
            .unwrap_err()
            .to_string();
        assert!(text.contains("another index"), "{text}");
        let none = IdTable::open_file(&volume, &entry_of(&volume, &[]), None).unwrap_err();
        assert!(none.to_string().contains("ids"), "{none}");
    }
}
