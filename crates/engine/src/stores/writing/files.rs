//! Writes the files of a checkpoint sequentially, and creates their manifest entries.

use stratann_layout::{BLOCK, FileEntry, FileHeader, FileKind, StreamWriter, header};
use stratann_tier::{TierError, VolumeFile};

use crate::Error;
use crate::durable::Checkpoint;

pub(crate) const WRITE_BYTES: usize = 1 << 20;

pub(crate) struct Sequential {
    file: Box<dyn VolumeFile>,
    entry: FileEntry,
}

impl Sequential {
    /// If an index has several files of this kind, `n` is the number of the file, from 0.
    pub(crate) fn create(
        checkpoint: &Checkpoint<'_>,
        kind: FileKind,
        n: Option<u32>,
    ) -> Result<Self, Error> {
        Ok(Self {
            file: checkpoint.create(kind, n)?,
            entry: FileEntry {
                role: FileEntry::role_of(kind, n),
                name: checkpoint.name(kind, n),
                length: 0,
                header_crc32c: 0,
            },
        })
    }

    /// The header at the start of the file is written last.
    pub(crate) fn create_headless(
        checkpoint: &Checkpoint<'_>,
        kind: FileKind,
        n: Option<u32>,
    ) -> Result<Self, Error> {
        let mut file = Self::create(checkpoint, kind, n)?;
        file.entry.length = BLOCK as u64;
        Ok(file)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        self.file.write_at(self.entry.length, bytes)?;
        self.entry.length += bytes.len() as u64;
        Ok(())
    }

    /// Syncs the file. The caller must have written the header.
    pub(crate) fn finish(mut self, header: &FileHeader) -> Result<FileEntry, TierError> {
        self.entry.header_crc32c = header::stored_checksum(&header.encode());
        self.file.sync()?;
        Ok(self.entry)
    }

    pub(crate) fn finish_headless(mut self, header: &FileHeader) -> Result<FileEntry, TierError> {
        self.file.write_at(0, &header.encode())?;
        self.finish(header)
    }
}

/// A file whose parts begin at multiples of an alignment. The file ends with a whole block.
pub(crate) struct Aligned {
    file: Sequential,
    bytes: Vec<u8>,
    /// The length of the file, including bytes that are not written yet.
    length: u64,
}

impl Aligned {
    pub(crate) fn create(
        checkpoint: &Checkpoint<'_>,
        kind: FileKind,
        n: Option<u32>,
    ) -> Result<Self, Error> {
        Ok(Self {
            file: Sequential::create_headless(checkpoint, kind, n)?,
            bytes: Vec::with_capacity(WRITE_BYTES),
            length: BLOCK as u64,
        })
    }

    /// Appends a part. The next part begins at a multiple of `alignment`.
    pub(crate) fn push(&mut self, part: &[u8], alignment: u64) -> Result<(), Error> {
        self.bytes.extend_from_slice(part);
        self.length += part.len() as u64;
        self.pad(alignment);
        if self.bytes.len() >= WRITE_BYTES {
            self.file.write(&self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }

    fn pad(&mut self, alignment: u64) {
        let end = self.length.next_multiple_of(alignment);
        self.bytes
            .resize(self.bytes.len() + (end - self.length) as usize, 0);
        self.length = end;
    }

    /// `header` makes the header for the final length.
    pub(crate) fn finish(
        mut self,
        header: impl FnOnce(u64) -> FileHeader,
    ) -> Result<FileEntry, Error> {
        self.pad(BLOCK as u64);
        if !self.bytes.is_empty() {
            self.file.write(&self.bytes)?;
        }
        Ok(self.file.finish_headless(&header(self.length))?)
    }
}

pub(crate) fn write_stream(
    checkpoint: &Checkpoint<'_>,
    kind: FileKind,
    n: Option<u32>,
    payload: &[u8],
) -> Result<FileEntry, Error> {
    write_pieces(checkpoint, kind, n, &[], &[payload])
}

pub(crate) fn write_pieces(
    checkpoint: &Checkpoint<'_>,
    kind: FileKind,
    n: Option<u32>,
    fields: &[u8],
    pieces: &[&[u8]],
) -> Result<FileEntry, Error> {
    let length = pieces.iter().map(|piece| piece.len() as u64).sum();
    write_made(checkpoint, kind, n, fields, length, |push| {
        pieces.iter().try_for_each(|piece| push(piece))
    })
}

/// `make` must push the pieces of the byte string, one after the other.
pub(crate) fn write_made(
    checkpoint: &Checkpoint<'_>,
    kind: FileKind,
    n: Option<u32>,
    fields: &[u8],
    length: u64,
    make: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error>,
) -> Result<FileEntry, Error> {
    let mut file = Sequential::create(checkpoint, kind, n)?;
    let mut writer = StreamWriter::new(kind, length, fields);
    let mut sink = |blocks: &[u8]| file.write(blocks);
    make(&mut |piece| Ok(writer.push(piece, &mut sink)?))?;
    let header = writer.finish(&mut sink)?;
    Ok(file.finish(&header)?)
}
