//! A file with a byte string, its *payload*. A read verifies each block that it covers.

use std::cell::Cell;
use std::ops::Range;

use stratann_layout::header::stored_checksum;
use stratann_layout::stream::{blocks_of, unseal};
use stratann_layout::{BLOCK, FileEntry, FileHeader, LayoutError, PAYLOAD};
use stratann_tier::{Volume, VolumeReader};

use crate::{Error, stored};

/// The cost of reading columns: the number of reads, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Looked {
    pub(crate) reads: u64,
    pub(crate) bytes: u64,
}

thread_local! {
    static LOOKED: Cell<Looked> = const { Cell::new(Looked { reads: 0, bytes: 0 }) };
}

impl Looked {
    /// Returns the result of `look`, and the cost of its reads in this thread.
    pub(crate) fn of<T>(look: impl FnOnce() -> T) -> (T, Self) {
        let before = LOOKED.get();
        let found = look();
        let after = LOOKED.get();
        let cost = Self {
            reads: after.reads - before.reads,
            bytes: after.bytes - before.bytes,
        };
        (found, cost)
    }

    fn add(bytes: usize) {
        let Self { reads, bytes: sum } = LOOKED.get();
        LOOKED.set(Self {
            reads: reads + 1,
            bytes: sum + bytes as u64,
        });
    }
}

/// An open file, which stays readable after its name is removed.
#[derive(Debug)]
pub(super) struct StreamFile {
    reader: Box<dyn VolumeReader>,
    pub(super) file: String,
}

/// The bytes that were last read from a payload, cached for reads nearby.
#[derive(Debug, Default)]
pub(super) struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// `None` if the window does not have all of the part.
    fn part(&self, part: &Range<u64>) -> Option<Range<usize>> {
        let from = part.start.checked_sub(self.start)?;
        let to = part.end.checked_sub(self.start)?;
        (to <= self.bytes.len() as u64).then_some(from as usize..to as usize)
    }
}

impl StreamFile {
    /// `open` parses the first block of the file.
    pub(super) fn open<T>(
        volume: &dyn Volume,
        entry: &FileEntry,
        open: impl FnOnce(&[u8], &str) -> Result<(T, FileHeader), LayoutError>,
    ) -> Result<(StreamFile, T), Error> {
        let reader = volume.open_reader(&entry.name)?;
        stored::check_length(volume, entry, reader.size()?)?;
        let file = stored::name_of(volume, &entry.name);
        let mut first = [0; BLOCK];
        reader.read_at(0, &mut first)?;
        let (found, header) = open(&first, &file)?;
        header.check_length(entry.length, &file)?;
        if stored_checksum(&first) != entry.header_crc32c {
            return Err(stored::of_another_index(volume, entry));
        }
        Ok((StreamFile { reader, file }, found))
    }

    /// Reads a part of the payload. According to the header of the file, the payload must have this
    /// part.
    pub(super) fn read(&self, part: Range<u64>) -> Result<Vec<u8>, Error> {
        let mut window = Window::default();
        let range = self.fill(&mut window, part, 0)?;
        window.bytes.truncate(range.end);
        window.bytes.drain(..range.start);
        Ok(window.bytes)
    }

    /// A part of the payload. If the window does not have the part, the payload is read up to `to`.
    pub(super) fn read_in<'w>(
        &self,
        window: &'w mut Window,
        part: Range<u64>,
        to: u64,
    ) -> Result<&'w [u8], Error> {
        let range = match window.part(&part) {
            Some(range) => range,
            None => {
                let more = to.saturating_sub(part.end);
                self.fill(window, part, more)?
            }
        };
        Ok(&window.bytes[range])
    }

    /// Reads a part of the payload and the `more` bytes after it.
    fn fill(
        &self,
        window: &mut Window,
        part: Range<u64>,
        more: u64,
    ) -> Result<Range<usize>, Error> {
        if part.is_empty() {
            // The part is an empty row, or an empty set of nodes.
            return Ok(0..0);
        }
        let blocks = blocks_of(part.start..part.end + more);
        let length = (blocks.end - blocks.start) as usize * BLOCK;
        window.start = (blocks.start - 1) * PAYLOAD as u64;
        window.bytes.resize(length, 0);
        Looked::add(length);
        let read = self
            .reader
            .read_at(blocks.start * BLOCK as u64, &mut window.bytes)
            .map_err(Error::from)
            .and_then(|()| Ok(unseal(&mut window.bytes, blocks.start, &self.file)?));
        if let Err(error) = read {
            window.bytes.clear();
            return Err(error);
        }
        let from = (part.start - window.start) as usize;
        Ok(from..from + (part.end - part.start) as usize)
    }
}
