//! The file of ids, of an index whose ids are not row numbers: entries come by node, and stand there by id.
//!
//! ```text
//!   id, node ──> a run, sorted when it is full ──> ids-…-0000, one run after another ──> merged ──> ids-…
//! ```
//!
//! A run has what memory there is for it; where all entries are one, nothing is spooled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use stratann_layout::ids::{ENTRY, entry};
use stratann_layout::{FileEntry, FileKind};
use stratann_tier::{Volume, VolumeFile, VolumeReader};

use super::BuildOptions;
use super::files::write_made;
use crate::Error;
use crate::durable::Checkpoint;
use crate::progress::{Progress, Stage};

/// Memory for runs, at least and at most.
pub(crate) const LEAST_MEMORY: u64 = 1 << 20;
const MOST_MEMORY: u64 = 64 << 20;
/// Bytes of a run that are written or read at once, at most.
const PIECE: usize = 64 << 10;
/// Entries between two looks at whether to go on.
const BETWEEN_LOOKS: usize = 1 << 16;

/// An id and its node.
type Entry = (u64, u32);

/// Writes which node has which id; `order` has the row of each node.
pub(super) fn write_ids(
    volume: &dyn Volume,
    checkpoint: &Checkpoint<'_>,
    order: &[u32],
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<FileEntry, Error> {
    let rows = order.len() as u64;
    let _stage = Stage::begin(progress, "sorting ids", rows);
    let memory = options.memory.map_or(MOST_MEMORY, |cap| cap / 8);
    let mut sorter = IdSorter::new(volume, checkpoint, rows, memory);
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

/// Sorts entries by id, in bounded memory.
pub(crate) struct IdSorter<'a> {
    volume: &'a dyn Volume,
    checkpoint: &'a Checkpoint<'a>,
    /// Bytes for runs while they are sorted, and for parts of all while they are merged.
    memory: usize,
    run: Vec<Entry>,
    /// Entries of a run at most.
    most: usize,
    /// Runs that were full.
    spooled: Option<Spooled>,
    /// Of all entries, in any order ([`mixed`]): what is spooled has no checksum of its own.
    sum: u64,
}

/// A number that another entry hardly has.
fn mixed((id, node): Entry) -> u64 {
    let mut mixed = id ^ u64::from(node).rotate_left(32);
    for _ in 0..2 {
        mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    mixed ^ (mixed >> 32)
}

impl<'a> IdSorter<'a> {
    /// For about so many entries in so many bytes of memory, within bounds; what does not fit is spooled to a file of the
    /// checkpoint, which is written in `volume`.
    pub(crate) fn new(
        volume: &'a dyn Volume,
        checkpoint: &'a Checkpoint<'a>,
        entries: u64,
        memory: u64,
    ) -> Self {
        let memory = memory.clamp(LEAST_MEMORY, MOST_MEMORY) as usize;
        let most = (memory - PIECE) / size_of::<Entry>();
        Self {
            volume,
            checkpoint,
            memory,
            run: Vec::with_capacity(usize::try_from(entries).unwrap_or(most).min(most)),
            most,
            spooled: None,
            sum: 0,
        }
    }

    /// Takes an entry.
    ///
    /// # Errors
    /// A run cannot be spooled.
    pub(crate) fn push(&mut self, id: u64, node: u32) -> Result<(), Error> {
        if self.run.len() == self.most {
            self.spool()?;
        }
        self.run.push((id, node));
        self.sum = self.sum.wrapping_add(mixed((id, node)));
        Ok(())
    }

    /// Writes the checkpoint's file of all entries, by id.
    ///
    /// # Errors
    /// It cannot be written, what was spooled cannot be read or is not what it was, or an id stands twice.
    pub(crate) fn finish(mut self) -> Result<FileEntry, Error> {
        if self.spooled.is_some() {
            self.spool()?;
        }
        let Some(spooled) = self.spooled.take() else {
            self.run.sort_unstable();
            let run = &self.run;
            let entries = run.iter().map(|&entry| Ok(entry));
            return self.write(run.len() as u64, entries);
        };
        // Its memory is that of the merge from here on.
        self.run = Vec::new();
        let written = self.write(spooled.entries, spooled.merged(self.memory)?);
        // What is left of it goes with the checkpoint.
        let _ = self.volume.remove(&spooled.name);
        written
    }

    fn write(
        &self,
        count: u64,
        mut entries: impl Iterator<Item = Result<Entry, Error>>,
    ) -> Result<FileEntry, Error> {
        let (kind, length) = (FileKind::Ids, count * ENTRY as u64);
        let wrong = |what: String| Error::Damaged {
            file: self.volume.name(),
            what,
        };
        let (mut last, mut sum) = (None, 0u64);
        write_made(self.checkpoint, kind, None, &[], length, |push| {
            entries.try_for_each(|found| {
                let (id, node) = found?;
                if last.replace(id) == Some(id) {
                    return Err(wrong(format!("outside id {id} stands twice")));
                }
                sum = sum.wrapping_add(mixed((id, node)));
                push(&entry(id, node))
            })?;
            // Sealed with right checksums, wrong ids would make others that are there look free.
            if sum != self.sum {
                return Err(wrong(
                    "ids were read from a scratch file otherwise than they were written there: look after the disk, and try again".into(),
                ));
            }
            Ok(())
        })
    }

    /// Sorts the run, and appends it to what is spooled.
    fn spool(&mut self) -> Result<(), Error> {
        self.run.sort_unstable();
        let spooled = match &mut self.spooled {
            Some(spooled) => spooled,
            none => none.insert(Spooled::create(self.volume, self.checkpoint)?),
        };
        let mut piece = Vec::with_capacity(PIECE);
        for entries in self.run.chunks(PIECE / ENTRY) {
            piece.clear();
            piece.extend(entries.iter().flat_map(|&(id, node)| entry(id, node)));
            spooled.file.append(&piece)?;
            spooled.entries += entries.len() as u64;
        }
        spooled.ends.push(spooled.file.len());
        self.run.clear();
        Ok(())
    }
}

/// Runs in a file, one after another, as entries stand in a file of ids.
struct Spooled {
    name: String,
    file: Box<dyn VolumeFile>,
    reader: Box<dyn VolumeReader>,
    /// Where each run ends.
    ends: Vec<u64>,
    /// Entries of all.
    entries: u64,
}

impl Spooled {
    fn create(volume: &dyn Volume, checkpoint: &Checkpoint<'_>) -> Result<Self, Error> {
        // The file of ids itself has no number.
        let (kind, n) = (FileKind::Ids, Some(0));
        let (name, file) = (checkpoint.name(kind, n), checkpoint.create(kind, n)?);
        Ok(Self {
            reader: volume.open_reader(&name)?,
            name,
            file,
            ends: Vec::new(),
            entries: 0,
        })
    }

    /// All entries, by id, in so many bytes of memory.
    fn merged(&self, memory: usize) -> Result<Merged<'_>, Error> {
        let piece = (memory / self.ends.len().max(1)).clamp(ENTRY, PIECE);
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        let mut merged = Merged {
            runs: Vec::with_capacity(self.ends.len()),
            next: BinaryHeap::with_capacity(self.ends.len()),
        };
        for (at, (from, end)) in starts.zip(self.ends.iter().copied()).enumerate() {
            let mut run = Run {
                reader: &*self.reader,
                left: from..end,
                piece: piece - piece % ENTRY,
                bytes: Vec::new(),
                at: 0,
            };
            merged
                .next
                .extend(run.next()?.map(|entry| Reverse((entry, at))));
            merged.runs.push(run);
        }
        Ok(merged)
    }
}

/// Runs that become one.
struct Merged<'a> {
    runs: Vec<Run<'a>>,
    /// The next entry of each run that has one, and the run.
    next: BinaryHeap<Reverse<(Entry, usize)>>,
}

impl Iterator for Merged<'_> {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse((entry, run)) = self.next.pop()?;
        match self.runs[run].next() {
            Ok(next) => self.next.extend(next.map(|next| Reverse((next, run)))),
            Err(error) => return Some(Err(error)),
        }
        Some(Ok(entry))
    }
}

/// A run that is read piece by piece.
struct Run<'a> {
    reader: &'a dyn VolumeReader,
    /// What of the file is not read yet.
    left: std::ops::Range<u64>,
    /// Bytes that are read at once.
    piece: usize,
    bytes: Vec<u8>,
    at: usize,
}

impl Run<'_> {
    fn next(&mut self) -> Result<Option<Entry>, Error> {
        if self.at == self.bytes.len() {
            let now = (self.left.end - self.left.start).min(self.piece as u64);
            self.bytes.resize(now as usize, 0);
            self.reader.read_at(self.left.start, &mut self.bytes)?;
            self.left.start += now;
            self.at = 0;
        }
        let Some(bytes) = self.bytes.get(self.at..self.at + ENTRY) else {
            return Ok(None);
        };
        self.at += ENTRY;
        let (mut id, mut node) = ([0; 8], [0; 4]);
        id.copy_from_slice(&bytes[..8]);
        node.copy_from_slice(&bytes[8..]);
        Ok(Some((u64::from_le_bytes(id), u32::from_le_bytes(node))))
    }
}

#[cfg(test)]
mod tests {
    use stratann_tier::testing::{Mishap, Operation, SimVolume};

    use super::*;
    use crate::stores::ids::{IdTable, LastBlock};

    /// So many entries in an order that has nothing to do with their ids.
    fn entries(count: u32) -> Vec<Entry> {
        let id = |node: u32| u64::from(node).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 3;
        (0..count).map(|node| (id(node), node)).collect()
    }

    /// Sorts entries in runs of `most`.
    fn sort(volume: &SimVolume, entries: &[Entry], most: usize) -> Result<Vec<Entry>, Error> {
        let checkpoint = Checkpoint::begin(volume, true)?;
        let mut sorter = IdSorter::new(volume, &checkpoint, 7, 0);
        sorter.most = most;
        // Of each of many runs a few entries at a time.
        sorter.memory = 40 * ENTRY;
        for &(id, node) in entries {
            sorter.push(id, node)?;
        }
        let entry = sorter.finish()?;
        assert_eq!(volume.list()?, [&*entry.name], "what is left of runs");
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
        for count in [1, 9, 10, 11, 700, 3_000] {
            let entries = entries(count);
            let mut expected = entries.clone();
            expected.sort_unstable();
            for most in [10, 341, 2_999, 3_000, 10_000] {
                let volume = SimVolume::new();
                let found = sort(&volume, &entries, most).unwrap();
                assert_eq!(found, expected, "{count} in runs of {most}");
                assert_eq!(volume.list().unwrap(), Vec::<String>::new());
            }
        }
    }

    #[test]
    fn what_is_read_otherwise_than_it_was_spooled_is_no_file_of_ids() {
        let entries = entries(500);
        let mut wrong = 0;
        for byte in [0, 7, 8, 1_205] {
            let volume = SimVolume::new();
            let checkpoint = Checkpoint::begin(&volume, true).unwrap();
            let mut sorter = IdSorter::new(&volume, &checkpoint, 7, 0);
            sorter.most = 90;
            for &(id, node) in &entries {
                sorter.push(id, node).unwrap();
            }
            let spooled = sorter.spooled.as_mut().unwrap();
            let mut found = [0];
            spooled.reader.read_at(byte, &mut found).unwrap();
            spooled.file.write_at(byte, &[found[0] ^ 64]).unwrap();
            let error = sorter.finish().unwrap_err().to_string();
            wrong += usize::from(error.contains("scratch file"));
        }
        assert_eq!(wrong, 4);
    }

    #[test]
    fn an_id_that_stands_twice_is_named() {
        for most in [3, 10] {
            let twice = [(7, 0), (5, 1), (6, 2), (9, 3), (5, 4)];
            let error = sort(&SimVolume::new(), &twice, most).unwrap_err();
            assert!(error.to_string().contains("id 5 stands twice"), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_spooled_or_read_again_is_an_error_and_leaves_nothing() {
        let entries = entries(500);
        for (operation, least) in [(Operation::Write, 5), (Operation::Read, 5)] {
            let mut met = 0;
            loop {
                let volume = SimVolume::new();
                volume.fail_nth(operation, met, Mishap::Undone);
                let sorted = sort(&volume, &entries, 90);
                if volume.failed().is_none() {
                    break;
                }
                assert_eq!(volume.list().unwrap(), Vec::<String>::new());
                // What is asked of a manifest that is not there may fail without harm.
                if let Ok(sorted) = sorted {
                    assert_eq!(sorted.len(), 500, "{operation:?} {met}");
                }
                met += 1;
            }
            assert!(met > least, "{operation:?}: {met}");
        }
    }
}
