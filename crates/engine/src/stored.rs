//! The files of an index directory: finding them, reading them whole, and refusing what does not fit the manifest.

use std::path::Path;

use stratann_layout::header::stored_checksum;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{
    BLOCK, CoupledShape, FileEntry, FileHeader, FileKind, LayoutError, Manifest, StreamReader,
};
use stratann_tier::{Directory, Volume};

use crate::Error;

/// Bytes taken from a file at a time, so that a large file never exists twice in memory.
const PIECE: usize = 256 * BLOCK;

/// The directory at `path`, which must exist.
pub(crate) fn existing(path: &Path) -> Result<Directory, Error> {
    if !path.is_dir() {
        let reason = if path.exists() {
            "it is a file; an index is a directory"
        } else {
            "no such directory; build an index there with `stratann build BASE INDEX`"
        };
        return Err(Error::not_an_index(path, reason));
    }
    Ok(Directory::open(path)?)
}

/// The manifest of the index in a volume.
pub(crate) fn manifest(volume: &dyn Volume) -> Result<Manifest, Error> {
    if !volume.exists(MANIFEST) {
        return Err(Error::not_an_index(
            Path::new(&volume.name()),
            "it has no MANIFEST: a build that was interrupted, or another directory; build the index again",
        ));
    }
    let manifest = Manifest::decode(&volume.read(MANIFEST)?, &name_of(volume, MANIFEST))?;
    let wrong = |what: String| {
        Err(Error::Damaged {
            file: name_of(volume, MANIFEST),
            what,
        })
    };
    let (vectors, dimension) = (manifest.vectors, manifest.dimension);
    if vectors == 0 || vectors >= u64::from(u32::MAX) || dimension == 0 {
        return wrong(format!("{vectors} vectors of {dimension} dimensions"));
    }
    if manifest.code_bytes == 0 || manifest.code_bytes > dimension {
        return wrong(format!(
            "codes of {} bytes for {dimension} dimensions",
            manifest.code_bytes
        ));
    }
    if u64::from(manifest.entry) >= vectors {
        return wrong(format!("entry node {} of {vectors}", manifest.entry));
    }
    Ok(manifest)
}

/// The manifest's entry for a file of this kind.
pub(crate) fn entry<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
    kind: FileKind,
) -> Result<&'m FileEntry, Error> {
    manifest.file(kind.name()).ok_or_else(|| Error::Damaged {
        file: name_of(volume, MANIFEST),
        what: format!("it names no {kind} file"),
    })
}

/// Refuses a file whose length is not what the manifest says.
pub(crate) fn check_length(
    volume: &dyn Volume,
    entry: &FileEntry,
    found: u64,
) -> Result<(), Error> {
    if found == entry.length {
        return Ok(());
    }
    Err(LayoutError::Length {
        file: name_of(volume, &entry.name),
        expected: entry.length,
        found,
        by: "the MANIFEST says so",
    }
    .into())
}

/// Reads the header of the file of pages, and refuses one that is damaged, of another index, or of another shape than
/// the manifest says.
pub(crate) fn check_shape(
    volume: &dyn Volume,
    entry: &FileEntry,
    shape: &CoupledShape,
    nodes: u64,
) -> Result<(), Error> {
    let file = name_of(volume, &entry.name);
    let mut first = vec![0; BLOCK];
    volume.read_at(&entry.name, 0, &mut first)?;
    let header = FileHeader::decode_as(FileKind::Graph, &first, &file)?;
    header.check_length(entry.length, &file)?;
    let claims = CoupledShape::from_header(&header, &file)?;
    if stored_checksum(&first) != entry.header_crc32c || claims != (*shape, nodes) {
        return Err(Error::Damaged {
            file,
            what: "its header is not the one that the MANIFEST names: a file of another index"
                .into(),
        });
    }
    Ok(())
}

/// Reads a byte string of the index into `out`, which is as long as its payload must be.
pub(crate) fn read_stream(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    out: &mut [u8],
) -> Result<(), Error> {
    stream(volume, manifest, kind, |reader, piece| {
        reader.push_into(piece, out)
    })
}

/// Reads a byte string of the index whose length only its header knows.
pub(crate) fn read_stream_whole(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
) -> Result<Vec<u8>, Error> {
    let mut payload = Vec::new();
    stream(volume, manifest, kind, |reader, piece| {
        reader.push_with(piece, |bytes| payload.extend_from_slice(bytes))
    })?;
    Ok(payload)
}

/// Takes a byte string through `sink` piece by piece, checking its length, header and every block.
fn stream(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    mut sink: impl FnMut(&mut StreamReader, &[u8]) -> Result<(), LayoutError>,
) -> Result<(), Error> {
    let entry = entry(volume, manifest, kind)?;
    let file = name_of(volume, &entry.name);
    check_length(volume, entry, volume.len(&entry.name)?)?;
    let mut buffer = vec![0; PIECE.min(entry.length as usize).max(BLOCK)];
    volume.read_at(&entry.name, 0, &mut buffer[..BLOCK])?;
    let mut reader = StreamReader::open(kind, &buffer[..BLOCK], &file)?;
    reader.header().check_length(entry.length, &file)?;
    let mut offset = BLOCK as u64;
    while offset < entry.length {
        let now = (entry.length - offset).min(buffer.len() as u64) as usize;
        volume.read_at(&entry.name, offset, &mut buffer[..now])?;
        sink(&mut reader, &buffer[..now])?;
        offset += now as u64;
    }
    reader.finish()?;
    Ok(())
}

/// A file of the index as errors name it.
pub(crate) fn name_of(volume: &dyn Volume, name: &str) -> String {
    format!("{}/{name}", volume.name())
}
