//! Reads byte strings: files that are read from start to end, piece by piece.

use stratann_layout::{BLOCK, FileEntry, FileKind, LayoutError, Manifest, StreamReader};
use stratann_tier::{Volume, VolumeReader};

use super::{check_length, entry, name_of};
use crate::Error;

/// The bytes of a piece. Files are read in pieces, so that a large file is never twice in memory.
const PIECE: usize = 256 * BLOCK;

/// Checks the length of the file before memory is allocated for the payload.
pub(crate) fn check_room(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    payload: u64,
) -> Result<(), Error> {
    let entry = entry(volume, manifest, kind, None)?;
    let (found, expected) = (
        volume.len(&entry.name)?,
        stratann_layout::stream::file_length(payload),
    );
    if found >= expected {
        return Ok(());
    }
    Err(LayoutError::Length {
        file: name_of(volume, &entry.name),
        expected,
        found,
        by: "the vectors of the MANIFEST need as many",
    }
    .into())
}

/// Reads the payload into `out`, which must have the length of the payload.
pub(crate) fn read_stream(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    out: &mut [u8],
) -> Result<(), Error> {
    read_pieces(volume, manifest, kind, None, |reader, piece| {
        reader.push_into(piece, out)
    })
}

/// Reads the whole payload, whose length is in the header of the file.
pub(crate) fn read_stream_whole(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    n: Option<u32>,
) -> Result<Vec<u8>, Error> {
    let mut payload = Vec::new();
    read_pieces(volume, manifest, kind, n, |reader, piece| {
        reader.push_with(piece, |bytes| payload.extend_from_slice(bytes))
    })?;
    Ok(payload)
}

/// Checks a byte string without keeping it in memory. Returns the length of the payload.
pub(crate) fn check_stream(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    n: Option<u32>,
) -> Result<u64, Error> {
    let mut length = 0;
    read_pieces(volume, manifest, kind, n, |reader, piece| {
        reader.push_with(piece, |bytes| length += bytes.len() as u64)
    })?;
    Ok(length)
}

/// `sink` must push each piece into the reader, which verifies the length, the header and every
/// block.
pub(crate) fn read_pieces(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    n: Option<u32>,
    sink: impl FnMut(&mut StreamReader, &[u8]) -> Result<(), LayoutError>,
) -> Result<(), Error> {
    let entry = entry(volume, manifest, kind, n)?;
    stream_of(
        &*volume.open_reader(&entry.name)?,
        volume,
        entry,
        kind,
        sink,
    )
}

fn stream_of(
    opened: &dyn VolumeReader,
    volume: &dyn Volume,
    entry: &FileEntry,
    kind: FileKind,
    mut sink: impl FnMut(&mut StreamReader, &[u8]) -> Result<(), LayoutError>,
) -> Result<(), Error> {
    let file = name_of(volume, &entry.name);
    check_length(volume, entry, opened.size()?)?;
    let mut buffer = vec![0; PIECE.min(entry.length as usize).max(BLOCK)];
    opened.read_at(0, &mut buffer[..BLOCK])?;
    let mut reader = StreamReader::open(kind, &buffer[..BLOCK], &file)?;
    reader.header().check_length(entry.length, &file)?;
    let mut offset = BLOCK as u64;
    while offset < entry.length {
        let now = (entry.length - offset).min(buffer.len() as u64) as usize;
        opened.read_at(offset, &mut buffer[..now])?;
        sink(&mut reader, &buffer[..now])?;
        offset += now as u64;
    }
    reader.finish()?;
    Ok(())
}

/// Reads from an open file, which may have been renamed or removed.
pub(crate) fn read_opened(
    opened: &dyn VolumeReader,
    volume: &dyn Volume,
    entry: &FileEntry,
    kind: FileKind,
) -> Result<Vec<u8>, Error> {
    let mut payload = Vec::new();
    stream_of(opened, volume, entry, kind, |reader, piece| {
        reader.push_with(piece, |bytes| payload.extend_from_slice(bytes))
    })?;
    Ok(payload)
}
