//! Writes the file of ids, which exists if ids are not node numbers. Its entries are ordered by id.
//!
//! ```text
//!   id, node ──> sorted in the available memory (`sorter.rs`) ──> ids-…
//! ```
//!
//! If the ids are exactly the numbers from 0 on, the file stores only the nodes.

use stratann_layout::ids::entry;
use stratann_layout::{FileEntry, FileKind, IdsFile};
use stratann_tier::Volume;

use super::BuildOptions;
use crate::Error;
use crate::durable::Checkpoint;
use crate::progress::{Progress, Stage};
use crate::sorter::Sorter;
use crate::stores::writing::files::write_made;

pub(crate) const LEAST_MEMORY: u64 = 1 << 20;
const MOST_MEMORY: u64 = 64 << 20;
/// The kind and the number of the scratch file. The final file of ids has no number.
const SCRATCH: (FileKind, u32) = (FileKind::Ids, 0);
const BETWEEN_LOOKS: usize = 1 << 16;

/// Whether the external id of each node is its number, so that the index needs no file of ids.
/// `order` has the row of each node.
pub(super) fn are_nodes(order: &[u32], options: &BuildOptions) -> bool {
    let ids = options.ids.as_deref();
    let id = |row: u32| ids.map_or(u64::from(row), |ids| ids[row as usize]);
    let mut nodes = (0..).zip(order);
    nodes.all(|(node, &row): (u64, _)| id(row) == node)
}

pub(super) fn write_ids(
    volume: &dyn Volume,
    checkpoint: &Checkpoint<'_>,
    order: &[u32],
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<FileEntry, Error> {
    let rows = order.len() as u64;
    let _stage = Stage::begin(progress, "sorting ids", rows);
    let memory = options.memory.map_or(MOST_MEMORY, |cap| {
        (cap / 8).clamp(LEAST_MEMORY, MOST_MEMORY)
    });
    let mut sorter = IdSorter::new(volume, checkpoint, memory);
    let ids = options.ids.as_deref();
    let mut node = 0;
    for rows in order.chunks(BETWEEN_LOOKS) {
        for &row in rows {
            let id = ids.map_or(u64::from(row), |ids| ids[row as usize]);
            sorter.push(id, node)?;
            node += 1;
        }
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        progress.advance(rows.len() as u64);
    }
    sorter.finish()
}

pub(crate) struct IdSorter<'a> {
    volume: &'a dyn Volume,
    checkpoint: &'a Checkpoint<'a>,
    sorter: Sorter<'a>,
    count: u64,
    largest: u64,
}

impl<'a> IdSorter<'a> {
    /// At most `memory` bytes of entries are in memory. Further entries are written to a file of
    /// the checkpoint.
    pub(crate) fn new(volume: &'a dyn Volume, checkpoint: &'a Checkpoint<'a>, memory: u64) -> Self {
        Self {
            volume,
            checkpoint,
            sorter: Sorter::new(volume, checkpoint, SCRATCH, memory),
            count: 0,
            largest: 0,
        }
    }

    /// Adds an entry. The caller must add each node once.
    pub(crate) fn push(&mut self, id: u64, node: u32) -> Result<(), Error> {
        self.count += 1;
        self.largest = self.largest.max(id);
        self.sorter.push(&[&id.to_be_bytes(), &node.to_be_bytes()])
    }

    /// Writes all entries, ordered by id. The call fails if an id occurs twice.
    pub(crate) fn finish(self) -> Result<FileEntry, Error> {
        // Ids are unique. So if there are as many ids as numbers from 0 to the largest id, the ids
        // are exactly these numbers.
        let file = match self.largest.checked_add(1) == Some(self.count) {
            true => IdsFile::nodes_alone(self.count),
            false => IdsFile::pairs(self.count),
        };
        let sorted = self.sorter.sorted()?;
        let volume = self.volume;
        let mut last = None;
        let (mut nodes, mut block) = (Vec::new(), Vec::new());
        let (kind, length) = (FileKind::Ids, file.payload_bytes());
        write_made(
            self.checkpoint,
            kind,
            None,
            &file.fields(),
            length,
            |push| {
                sorted.each(&mut |record| {
                    let (mut id, mut node) = ([0; 8], [0; 4]);
                    id.copy_from_slice(&record[..8]);
                    node.copy_from_slice(&record[8..]);
                    let (id, node) = (u64::from_be_bytes(id), u32::from_be_bytes(node));
                    if last.replace(id) == Some(id) {
                        return Err(Error::Damaged {
                            file: volume.name(),
                            what: format!("external id {id} occurs twice"),
                        });
                    }
                    if !file.has_nodes_alone() {
                        return push(&entry(id, node));
                    }
                    nodes.push(node);
                    if nodes.len() < file.per_block() {
                        return Ok(());
                    }
                    block.clear();
                    file.push_nodes(&nodes, &mut block);
                    nodes.clear();
                    push(&block)
                })?;
                if !nodes.is_empty() {
                    block.clear();
                    file.push_nodes(&nodes, &mut block);
                    push(&block)?;
                }
                Ok(())
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use stratann_tier::testing::{Mishap, Operation, SimVolume};

    use super::*;
    use crate::stores::ids::{IdTable, LastBlock};

    type Entry = (u64, u32);

    fn entries(count: u32) -> Vec<Entry> {
        let id = |node: u32| u64::from(node).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 3;
        (0..count).map(|node| (id(node), node)).collect()
    }

    const LITTLE: u64 = 0;

    fn sort(volume: &SimVolume, entries: &[Entry], memory: u64) -> Result<Vec<Entry>, Error> {
        let checkpoint = Checkpoint::begin(volume, true)?;
        let mut sorter = IdSorter::new(volume, &checkpoint, memory);
        for &(id, node) in entries {
            sorter.push(id, node)?;
        }
        let entry = sorter.finish()?;
        assert_eq!(
            volume.list()?,
            [&*entry.name],
            "a file of a sorted run is left"
        );
        let table = IdTable::open_file(volume, &entry, None)?;
        let mut last = LastBlock::none();
        let mut found = Vec::new();
        for block in 0..table.entries().blocks() {
            let view = table.block(block, &mut last)?;
            found.extend((0..view.len()).map(|place| view.get(place)));
        }
        Ok(found)
    }

    #[test]
    fn entries_come_out_by_id_however_many_runs_they_are() {
        for count in [1, 9, 100, 700, 3_000] {
            let entries = entries(count);
            let mut expected = entries.clone();
            expected.sort_unstable();
            for memory in [LITTLE, 20_000, LEAST_MEMORY] {
                let volume = SimVolume::new();
                let found = sort(&volume, &entries, memory).unwrap();
                assert_eq!(found, expected, "{count} in {memory} bytes");
                assert_eq!(volume.list().unwrap(), Vec::<String>::new());
            }
        }
    }

    #[test]
    fn nodes_of_row_numbers_stand_alone_and_come_out_by_id() {
        for count in [1u32, 2, 701, 3_000] {
            let entries: Vec<Entry> = (0..count)
                .map(|node| (u64::from((node * 7 + 3) % count), node))
                .collect();
            let mut expected = entries.clone();
            expected.sort_unstable();
            for memory in [LITTLE, LEAST_MEMORY] {
                let volume = SimVolume::new();
                assert_eq!(sort(&volume, &entries, memory).unwrap(), expected);
                let checkpoint = Checkpoint::begin(&volume, true).unwrap();
                let mut sorter = IdSorter::new(&volume, &checkpoint, memory);
                for &(id, node) in &entries {
                    sorter.push(id, node).unwrap();
                }
                let file = sorter.finish().unwrap();
                let table = IdTable::open_file(&volume, &file, None).unwrap();
                assert_eq!(table.entries(), IdsFile::nodes_alone(count.into()));
            }
        }
        let text =
            |entries: &[Entry]| sort(&SimVolume::new(), entries, LITTLE).map_err(|e| e.to_string());
        assert_eq!(
            text(&[(0, 1), (3, 0), (1, 2)]).unwrap(),
            [(0, 1), (1, 2), (3, 0)]
        );
        let twice = text(&[(0, 1), (2, 0), (2, 2)]).unwrap_err();
        assert!(twice.contains("id 2 occurs twice"), "{twice}");
    }

    #[test]
    fn an_id_that_stands_twice_is_named() {
        let mut twice = entries(1_000);
        twice[900].0 = twice[5].0;
        for memory in [LITTLE, LEAST_MEMORY] {
            let error = sort(&SimVolume::new(), &twice, memory).unwrap_err();
            let says = format!("id {} occurs twice", twice[5].0);
            assert!(error.to_string().contains(&says), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_written_or_read_again_is_an_error_and_leaves_nothing() {
        let entries = entries(1_500);
        for (operation, least) in [(Operation::Write, 5), (Operation::Read, 5)] {
            let mut met = 0;
            loop {
                let volume = SimVolume::new();
                volume.fail_nth(operation, met, Mishap::Undone);
                let sorted = sort(&volume, &entries, LITTLE);
                if volume.failed().is_none() {
                    break;
                }
                assert_eq!(volume.list().unwrap(), Vec::<String>::new());
                // If the manifest is missing, the check of its facts may fail.
                if let Ok(sorted) = sorted {
                    assert_eq!(sorted.len(), 1_500, "{operation:?} {met}");
                }
                met += 1;
            }
            assert!(met > least, "{operation:?}: {met}");
        }
    }
}
