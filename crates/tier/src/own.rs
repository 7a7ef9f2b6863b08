//! Copies of files that have other names (hard links). A backup by hard links (`cp -al`) shares the
//! bytes of the original. A write to the original would change the backup too.
//!
//! ```text
//!   graph-000001 ─┐               graph-000001.own       the bytes copied, synced
//!                 ├─> bytes  ──>  graph-000001.own ────> graph-000001, renamed; directory synced
//!   the backup ───┘               the backup ──────────> the old bytes
//! ```
//!
//! After a crash the name leads to the old file or to the copy, whose bytes are equal. An
//! unfinished copy is recognised by its name ([`copy_of`]). An open tier continues to read the old
//! file until [`Tier::reopen`](crate::Tier::reopen) is called.

use crate::error::TierError;
use crate::volume::{Volume, VolumeFile, VolumeReader};

/// The suffix of the name of an unfinished copy. A finished copy gets the file's name.
const UNFINISHED: &str = ".own";

/// The number of bytes that are copied with one call.
const PIECE: u64 = 1 << 20;

/// Returns the name of the file whose unfinished copy has this name; `None` if this is not the name
/// of an unfinished copy.
pub fn copy_of(name: &str) -> Option<&str> {
    name.strip_suffix(UNFINISHED)
}

/// The result of [`own`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned {
    /// The file had no other name.
    Before,
    /// A copy of the file has the name now.
    Copied,
    /// The caller cancelled the copy, and the file is unchanged.
    GivenUp,
}

/// If a file has other names, replaces it by a durable copy with one name. The other names keep the
/// old file. The caller holds the volume's lock, and no thread writes to the file. `copied` is
/// called with the bytes of each copied piece, and returns whether to continue.
///
/// # Errors
/// If an operation of the volume fails, the file is unchanged and the copy is removed. If there is
/// too little space for the copy, the error is [`TierError::NoSpaceForCopy`].
pub fn own(
    volume: &dyn Volume,
    name: &str,
    copied: &mut dyn FnMut(u64) -> bool,
) -> Result<Owned, TierError> {
    if !volume.has_other_names(name)? {
        return Ok(Owned::Before);
    }
    let reader = volume.open_reader(name)?;
    let len = reader.size()?;
    tracing::info!(
        "{}: the file has other names (hard links), so its {len} bytes are copied before it is changed",
        volume.place(name),
    );
    let no_space = |error| match error {
        TierError::NoSpace { .. } => TierError::NoSpaceForCopy {
            place: volume.place(name),
            len,
        },
        error => error,
    };
    if !put(volume, &*reader, name, copied).map_err(no_space)? {
        return Ok(Owned::GivenUp);
    }
    // After a failed sync, a second sync might not make the rename durable. So the copy is made and
    // renamed once more.
    if volume.sync().is_err() {
        put(volume, &*reader, name, &mut |_| true).map_err(no_space)?;
        volume.sync()?;
    }
    Ok(Owned::Copied)
}

/// Copies the file, and gives the copy the file's name. The result is `false` if the caller
/// cancelled the copy.
fn put(
    volume: &dyn Volume,
    reader: &dyn VolumeReader,
    name: &str,
    copied: &mut dyn FnMut(u64) -> bool,
) -> Result<bool, TierError> {
    let copy = format!("{name}{UNFINISHED}");
    let written = volume
        .create(&copy)
        .and_then(|mut file| write(reader, &mut *file, copied))
        .and_then(|whole| match whole {
            true => volume.rename(&copy, name).map(|()| true),
            false => Ok(false),
        });
    if !matches!(written, Ok(true)) {
        // If the copy cannot be removed, the next checkpoint removes it.
        let _ = volume.remove(&copy);
    }
    written
}

/// Copies the bytes of one file into another, durably. A reflink is used if the file system
/// supports it. The result is `false` if the caller cancelled the copy.
fn write(
    reader: &dyn VolumeReader,
    file: &mut dyn VolumeFile,
    copied: &mut dyn FnMut(u64) -> bool,
) -> Result<bool, TierError> {
    let (mut offset, end) = (0, reader.size()?);
    if file.share(reader)? {
        offset = end;
    }
    let mut piece = vec![0; PIECE.min(end) as usize];
    while offset < end {
        piece.truncate((end - offset).min(PIECE) as usize);
        reader.read_at(offset, &mut piece)?;
        file.write_at(offset, &piece)?;
        offset += piece.len() as u64;
        if !copied(piece.len() as u64) {
            return Ok(false);
        }
    }
    file.sync().map(|()| true)
}
