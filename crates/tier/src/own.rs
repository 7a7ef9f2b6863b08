//! Files with other names: a backup by hard links (`cp -al`) has the bytes of the original, and
//! would change with them.
//!
//! ```text
//!   graph-000001 ─┐               graph-000001.own       the bytes copied, synced
//!                 ├─> bytes  ──>  graph-000001.own ────> graph-000001, renamed; the directory synced
//!   the backup ───┘               the backup ──────────> the bytes as they were
//! ```
//!
//! A crash leaves the name with the old bytes or with their copy, which are the same. What it
//! leaves of a copy is known by its name ([`copy_of`]). A tier that has the file open goes on with
//! the old bytes until it is told of the new file ([`Tier::reopen`](crate::Tier::reopen)).

use crate::error::TierError;
use crate::volume::{Volume, VolumeFile, VolumeReader};

/// What the name of a copy ends with until it has the name of its file.
const UNFINISHED: &str = ".own";

/// Bytes that are copied at a time.
const PIECE: u64 = 1 << 20;

/// The name of the file that a file of this name is an unfinished copy of.
pub fn copy_of(name: &str) -> Option<&str> {
    name.strip_suffix(UNFINISHED)
}

/// What became of a file that is to have no other name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned {
    /// It had no other name.
    Before,
    /// A copy of it has the name now.
    Copied,
    /// The copy was given up: the file is what it was.
    GivenUp,
}

/// Makes a file of a volume one that has no other name, durably, where it has others: these keep
/// its bytes. The caller holds the volume's lock, and nobody writes to the file. `copied` is told
/// of each piece, in bytes, and says whether to go on.
///
/// # Errors
/// The volume fails: then the file is what it was, and the copy is removed. One that has no space
/// for the copy is [`TierError::NoSpaceForCopy`].
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
        "{}: has other names (hard links), which keep its bytes: {len} bytes are copied before it is changed",
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
    // A sync that follows one that failed would not make the name durable: it is given once more.
    if volume.sync().is_err() {
        put(volume, &*reader, name, &mut |_| true).map_err(no_space)?;
        volume.sync()?;
    }
    Ok(Owned::Copied)
}

/// Gives the name to a copy of what is read. False: it was given up.
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
        // Where it stays, the next checkpoint removes it.
        let _ = volume.remove(&copy);
    }
    written
}

/// Writes the bytes of a file to another one, durably; shares the blocks where the file system can.
/// False: it was given up.
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
