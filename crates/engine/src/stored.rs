//! Finds and reads the files that the manifest of an index names. Files that contradict the
//! manifest are refused.

mod place;
mod streams;

use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{FileEntry, FileKind, LayoutError, Manifest};
use stratann_tier::{TierError, Volume};

pub use self::place::vectors_in;
pub(crate) use self::place::{
    UNFINISHED_SNAPSHOT, existing, home, indexes_in, is_absent, is_index, layout, manifest,
};
pub(crate) use self::streams::{
    check_room, check_stream, read_opened, read_pieces, read_stream, read_stream_whole,
};
use crate::Error;

/// If an index has several files of this kind, `n` is the number of the file, from 0.
pub(crate) fn entry<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
    kind: FileKind,
    n: Option<u32>,
) -> Result<&'m FileEntry, Error> {
    let role = FileEntry::role_of(kind, n);
    manifest
        .file(&role)
        .ok_or_else(|| damaged(volume, MANIFEST, format!("it names no {role} file")))
}

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

/// Refuses a file that is shorter than the manifest says. If no pages may be appended, a longer
/// file is refused too.
pub(crate) fn check_file(
    volume: &dyn Volume,
    entry: &FileEntry,
    kind: FileKind,
) -> Result<(), Error> {
    let length = volume.len(&entry.name)?;
    // Direct inserts append pages. After a crash, the file may have pages that no checkpoint names.
    if kind.has_pages() && length >= entry.length {
        return Ok(());
    }
    check_length(volume, entry, length)
}

/// An upper bound of the number of nodes by the lengths of files, because each node takes at least
/// a byte.
pub(crate) fn most_nodes(volume: &dyn Volume, manifest: &Manifest) -> u64 {
    let nodes = manifest
        .placement
        .map_or(manifest.vectors, |facts| facts.nodes);
    let lengths = manifest.files.iter().map(|file| volume.len(&file.name));
    let bytes = lengths.map(|length| length.unwrap_or(0));
    nodes.min(bytes.fold(0, u64::saturating_add))
}

/// The name of a file of this kind for errors.
pub(crate) fn file_of(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    n: Option<u32>,
) -> Result<String, Error> {
    Ok(name_of(volume, &entry(volume, manifest, kind, n)?.name))
}

pub(crate) fn damaged(volume: &dyn Volume, name: &str, what: impl Into<String>) -> Error {
    Error::Damaged {
        file: name_of(volume, name),
        what: what.into(),
    }
}

/// The error of an undamaged file that is not the file that the manifest names.
pub(crate) fn of_another_index(volume: &dyn Volume, entry: &FileEntry) -> Error {
    damaged(
        volume,
        &entry.name,
        "its header is not the header that the MANIFEST names, so it is a file of another index",
    )
}

/// If the error is that a file of the manifest is missing, returns the error of a damaged index. If
/// the index has another manifest by now, or none, the error stays as it is.
pub(crate) fn missing_is_damage(error: Error, volume: &dyn Volume, read: &Manifest) -> Error {
    let Error::Tier(TierError::Missing { place, .. }) = &error else {
        return error;
    };
    let mut names = read.files.iter().map(|entry| &entry.name);
    match names.find(|name| volume.place(name) == *place) {
        Some(name) if manifest(volume).is_ok_and(|now| now == *read) => {
            let what = "the file is missing (if the index is being copied, wait for its end)";
            damaged(volume, name, what)
        }
        _ => error,
    }
}

pub(crate) fn name_of(volume: &dyn Volume, name: &str) -> String {
    volume.place(name)
}
