//! Sorts records that may need more space than memory has.
//!
//! ```text
//!   push ──> memory ──full: sort──> run | run | run | ..   a temporary file of the checkpoint
//!                                    └─────┴──merge──> run   while there are too many to merge
//!   each ──> the records in memory, or all runs merged       any number of times
//! ```
//!
//! A record ends with a big-endian number of four bytes. Records are sorted by the bytes before
//! this number, and then by the number. Of equal records, only one is returned.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::hash::{DefaultHasher, Hasher};
use std::mem;
use std::ops::Range;

use stratann_layout::FileKind;
use stratann_tier::{Volume, VolumeFile, VolumeReader};

use crate::Error;
use crate::durable::Checkpoint;

const TAIL: usize = 4;
/// There is one buffer for the run that is written, and one for each run that is merged into it.
const BUFFER: usize = 32 << 10;
/// The least bytes of memory, and the least and largest number of runs that are merged at a time.
const LEAST: usize = 4 << 10;
const LEAST_RUNS: usize = 4;
const MOST_RUNS: usize = 256;
const PLACE: usize = size_of::<Range<u32>>();

pub(crate) struct Sorter<'a> {
    volume: &'a dyn Volume,
    checkpoint: &'a Checkpoint<'a>,
    scratch: (FileKind, u32),
    most: usize,
    longest: usize,
    bytes: Vec<u8>,
    places: Vec<Range<u32>>,
    spilled: Option<Spilled>,
}

struct Spilled {
    name: String,
    file: Box<dyn VolumeFile>,
    runs: Vec<Range<u64>>,
}

impl Drop for Sorter<'_> {
    fn drop(&mut self) {
        if let Some(spilled) = self.spilled.take() {
            // If this removal fails, the next writer removes the file.
            let _ = self.volume.remove(&spilled.name);
        }
    }
}

/// Without this hash, damage of the temporary file would get a valid checksum in the next file.
fn mixed(record: &[u8]) -> u32 {
    let mut hasher = DefaultHasher::new();
    hasher.write(record);
    hasher.finish() as u32
}

fn order(a: &[u8], b: &[u8]) -> Ordering {
    let parts = |record: &'_ [u8]| record.len().saturating_sub(TAIL);
    let ((a, a_number), (b, b_number)) = (a.split_at(parts(a)), b.split_at(parts(b)));
    a.cmp(b).then_with(|| a_number.cmp(b_number))
}

impl<'a> Sorter<'a> {
    pub(crate) fn new(
        volume: &'a dyn Volume,
        checkpoint: &'a Checkpoint<'a>,
        scratch: (FileKind, u32),
        memory: u64,
    ) -> Self {
        Self {
            volume,
            checkpoint,
            scratch,
            // While a table grows by doubling, its old copy is in memory as well.
            most: usize::try_from(memory / 2)
                .unwrap_or(usize::MAX)
                .clamp(LEAST, 1 << 30),
            longest: 0,
            bytes: Vec::new(),
            places: Vec::new(),
            spilled: None,
        }
    }

    /// The record consists of `parts` in order, and has at least four bytes.
    pub(crate) fn push(&mut self, parts: &[&[u8]]) -> Result<(), Error> {
        let more: usize = parts.iter().map(|part| part.len()).sum();
        self.longest = self.longest.max(more);
        let takes = self.bytes.len() + more + (self.places.len() + 1) * PLACE;
        if takes > self.most && !self.places.is_empty() {
            self.spill()?;
        }
        let start = self.bytes.len() as u32;
        parts
            .iter()
            .for_each(|part| self.bytes.extend_from_slice(part));
        self.places.push(start..self.bytes.len() as u32);
        Ok(())
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        let record = |place: &Range<u32>| &bytes[place.start as usize..place.end as usize];
        self.places
            .sort_unstable_by(|a, b| order(record(a), record(b)));
        self.places.dedup_by(|a, b| record(a) == record(b));
    }

    fn spill(&mut self) -> Result<(), Error> {
        self.sort();
        let (bytes, places) = (&self.bytes, &self.places);
        let spilled = match &mut self.spilled {
            Some(spilled) => spilled,
            none => {
                let (kind, n) = (self.scratch.0, Some(self.scratch.1));
                none.insert(Spilled {
                    file: self.checkpoint.create(kind, n)?,
                    name: self.checkpoint.name(kind, n),
                    runs: Vec::new(),
                })
            }
        };
        let mut run = Writing::behind(spilled);
        for place in places {
            run.push(&bytes[place.start as usize..place.end as usize], spilled)?;
        }
        run.finish(spilled)?;
        self.bytes.clear();
        self.places.clear();
        Ok(())
    }

    pub(crate) fn sorted(mut self) -> Result<Sorted<'a>, Error> {
        if self.spilled.is_none() {
            self.sort();
            return Ok(Sorted(self));
        }
        self.spill()?;
        (self.bytes, self.places) = (Vec::new(), Vec::new());
        let most = (self.most / BUFFER).clamp(LEAST_RUNS, MOST_RUNS);
        if let Some(spilled) = &mut self.spilled {
            while spilled.runs.len() > most {
                let rest = spilled.runs.split_off(most);
                let runs = mem::replace(&mut spilled.runs, rest);
                let reader = self.volume.open_reader(&spilled.name)?;
                let mut run = Writing::behind(spilled);
                let name = spilled.name.clone();
                let from = (&*reader, &*name, self.longest);
                merge(from, &runs, &mut |record| run.push(record, spilled))?;
                run.finish(spilled)?;
            }
        }
        Ok(Sorted(self))
    }
}

pub(crate) struct Sorted<'a>(Sorter<'a>);

impl Sorted<'_> {
    pub(crate) fn each(
        &self,
        each: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(spilled) = &self.0.spilled else {
            let mut places = self.0.places.iter();
            return places
                .try_for_each(|at| each(&self.0.bytes[at.start as usize..at.end as usize]));
        };
        let reader = self.0.volume.open_reader(&spilled.name)?;
        merge(
            (&*reader, &spilled.name, self.0.longest),
            &spilled.runs,
            each,
        )
    }
}

/// The run that is being written, at the end of the file. A record is its length, its hash
/// ([`mixed`]) and its bytes.
struct Writing {
    start: u64,
    end: u64,
    buffer: Vec<u8>,
}

impl Writing {
    fn behind(spilled: &Spilled) -> Self {
        let end = spilled.file.len();
        Self {
            start: end,
            end,
            buffer: Vec::with_capacity(BUFFER),
        }
    }

    fn push(&mut self, record: &[u8], spilled: &mut Spilled) -> Result<(), Error> {
        self.buffer
            .extend_from_slice(&(record.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(&mixed(record).to_le_bytes());
        self.buffer.extend_from_slice(record);
        match self.buffer.len() >= BUFFER {
            true => self.write(spilled),
            false => Ok(()),
        }
    }

    fn write(&mut self, spilled: &mut Spilled) -> Result<(), Error> {
        spilled.file.write_at(self.end, &self.buffer)?;
        self.end += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn finish(mut self, spilled: &mut Spilled) -> Result<(), Error> {
        self.write(spilled)?;
        spilled.runs.push(self.start..self.end);
        Ok(())
    }
}

struct Head<'r> {
    record: Vec<u8>,
    reader: &'r dyn VolumeReader,
    name: &'r str,
    longest: usize,
    rest: Range<u64>,
    buffer: Vec<u8>,
    at: usize,
}

impl Head<'_> {
    fn advance(&mut self) -> Result<bool, Error> {
        if self.at == self.buffer.len() && self.rest.is_empty() {
            return Ok(false);
        }
        let (mut length, mut expected) = ([0; 4], [0; 4]);
        length.copy_from_slice(self.take(4)?);
        expected.copy_from_slice(self.take(4)?);
        let length = u32::from_le_bytes(length) as usize;
        if !(TAIL..=self.longest).contains(&length) {
            return Err(self.is_not_what_came());
        }
        let mut record = mem::take(&mut self.record);
        record.clear();
        record.extend_from_slice(self.take(length)?);
        self.record = record;
        match mixed(&self.record) == u32::from_le_bytes(expected) {
            true => Ok(true),
            false => Err(self.is_not_what_came()),
        }
    }

    fn is_not_what_came(&self) -> Error {
        Error::Damaged {
            file: self.name.to_owned(),
            what: "a scratch file of a sort has other bytes than were written to it. Check the disk, and try again".into(),
        }
    }

    fn take(&mut self, bytes: usize) -> Result<&[u8], Error> {
        let held = self.buffer.len() - self.at;
        if held < bytes {
            self.buffer.drain(..self.at);
            let there = self.rest.end - self.rest.start;
            let more = (bytes.max(BUFFER) - held).min(usize::try_from(there).unwrap_or(usize::MAX));
            self.buffer.resize(held + more, 0);
            self.reader
                .read_at(self.rest.start, &mut self.buffer[held..])?;
            (self.rest.start, self.at) = (self.rest.start + more as u64, 0);
        }
        let from = self.at;
        self.at = (from + bytes).min(self.buffer.len());
        match self.at - from == bytes {
            true => Ok(&self.buffer[from..self.at]),
            false => Err(self.is_not_what_came()),
        }
    }
}

impl PartialEq for Head<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head<'_> {}

impl PartialOrd for Head<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        order(&self.record, &other.record)
    }
}

fn merge(
    (reader, name, longest): (&dyn VolumeReader, &str, usize),
    runs: &[Range<u64>],
    each: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut heads = BinaryHeap::with_capacity(runs.len());
    for run in runs {
        let mut head = Head {
            record: Vec::new(),
            reader,
            name,
            longest,
            rest: run.clone(),
            buffer: Vec::new(),
            at: 0,
        };
        if head.advance()? {
            heads.push(Reverse(head));
        }
    }
    let (mut last, mut is_first) = (Vec::new(), true);
    while let Some(mut head) = heads.peek_mut() {
        if is_first || last != head.0.record {
            each(&head.0.record)?;
            is_first = false;
            mem::swap(&mut last, &mut head.0.record);
        }
        if !head.0.advance()? {
            PeekMut::pop(head);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stratann_tier::testing::SimVolume;

    use super::*;

    const SCRATCH: (FileKind, u32) = (FileKind::Columns, 0);

    proptest! {
        #[test]
        fn records_are_given_once_and_in_their_order(
            records in prop::collection::vec(
                (prop::collection::vec(0u8..4, 0..9), 0u32..4, 0usize..30),
                0..600,
            ),
            memory in prop::sample::select(vec![0, 9_000, 40_000, u64::MAX]),
        ) {
            let volume = SimVolume::new();
            let checkpoint = Checkpoint::begin(&volume, true).unwrap();
            let mut sorter = Sorter::new(&volume, &checkpoint, SCRATCH, memory);
            let mut expected = Vec::new();
            for (key, number, longer) in records {
                // Some records are longer than the memory and the buffers.
                let key = if longer == 7 { key.repeat(9_000) } else { key };
                sorter.push(&[&key, &number.to_be_bytes()]).unwrap();
                expected.push((key, number));
            }
            expected.sort();
            expected.dedup();
            let sorted = sorter.sorted().unwrap();
            for _ in 0..2 {
                let mut found = Vec::new();
                sorted.each(&mut |record| {
                    let (key, number) = record.split_at(record.len() - 4);
                    found.push((key.to_vec(), u32::from_be_bytes(number.try_into().unwrap())));
                    Ok(())
                }).unwrap();
                prop_assert_eq!(&found, &expected);
            }
            drop(sorted);
            prop_assert_eq!(volume.list().unwrap().len(), 0);
        }
    }

    #[test]
    fn a_scratch_file_that_was_changed_is_told() {
        let volume = SimVolume::new();
        let checkpoint = Checkpoint::begin(&volume, true).unwrap();
        let mut sorter = Sorter::new(&volume, &checkpoint, SCRATCH, 0);
        for n in 0..2_000u32 {
            sorter.push(&[&n.to_be_bytes()]).unwrap();
        }
        let sorted = sorter.sorted().unwrap();
        let name = volume.list().unwrap().remove(0);
        let start = sorted.0.spilled.as_ref().unwrap().runs[0].start;
        // The offsets are in a length, in a hash, and in a record.
        for at in [start, start + 3, start + 5, start + 9] {
            let (mut file, mut one) = (volume.open(&name).unwrap(), [0]);
            volume.read_at(&name, at, &mut one).unwrap();
            file.write_at(at, &[one[0] ^ 4]).unwrap();
            let error = sorted.each(&mut |_| Ok(())).unwrap_err();
            assert!(error.to_string().contains(&name), "{at}: {error}");
            file.write_at(at, &one).unwrap();
        }
        sorted.each(&mut |_| Ok(())).unwrap();
    }

    #[test]
    fn a_disk_that_is_full_is_told() {
        let volume = SimVolume::new();
        let checkpoint = Checkpoint::begin(&volume, true).unwrap();
        let mut sorter = Sorter::new(&volume, &checkpoint, SCRATCH, 0);
        volume.fail_after(3, stratann_tier::testing::Failure::NoSpace);
        let pushed = (0..2_000u32).try_for_each(|n| sorter.push(&[&n.to_be_bytes()]));
        pushed.unwrap_err();
    }
}
