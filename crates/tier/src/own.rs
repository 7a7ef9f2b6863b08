//! Copies of files that have other names (hard links), as after a backup by `cp -al`. A write to
//! the original would change the backup too.
//!
//! ```text
//!   graph-000001 ─┐               graph-000001.own       the bytes copied, synced
//!                 ├─> bytes  ──>  graph-000001.own ────> graph-000001, renamed; directory synced
//!   the backup ───┘               the backup ──────────> the old bytes
//! ```
//!
//! After a crash the name leads to the old file or to the copy, with equal bytes ([`copy_of`]
//! recognises an unfinished copy). An open tier reads the old file until
//! [`Tier::reopen`](crate::Tier::reopen).

use crate::error::TierError;
use crate::volume::{Volume, VolumeFile, VolumeReader};

const UNFINISHED: &str = ".own";

const PIECE: u64 = 1 << 20;

/// The name of the file whose unfinished copy has this name.
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

/// If a file has other names, replaces it by a durable copy with one name. The caller holds the
/// volume's lock, and no thread writes to the file. `copied` returns whether to continue.
///
/// # Errors
/// [`TierError::NoSpaceForCopy`], or an error of the volume. The file is then unchanged.
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
    // After a failed sync, a second sync might not make the rename durable, so the copy is made
    // again.
    if volume.sync().is_err() {
        put(volume, &*reader, name, &mut |_| true).map_err(no_space)?;
        volume.sync()?;
    }
    Ok(Owned::Copied)
}

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

/// Copies durably, by a reflink if possible; `false` if the caller cancelled the copy.
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
