//! Files with other names: a backup by hard links (`cp -al`) has the bytes of the original, and would change with them.
//!
//! ```text
//!   graph-000001 ─┐               graph-000001.own       the bytes copied, synced
//!                 ├─> bytes  ──>  graph-000001.own ────> graph-000001, renamed; the directory synced
//!   the backup ───┘               the backup ──────────> the bytes as they were
//! ```
//!
//! A crash leaves the name with the old bytes or with their copy, which are the same. What it leaves of a copy is known by its name ([`copy_of`]).
//! Who has the file open goes on with the old bytes: it is to be made one of its own before it is opened for reading.

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

/// Makes a file of a volume one that has no other name, durably, where it has others: these keep its bytes. Says whether it had. The caller holds the volume's lock.
///
/// # Errors
/// The volume fails, or has no room for the copy: then the file is what it was, and the copy is removed.
pub fn own(volume: &dyn Volume, name: &str) -> Result<bool, TierError> {
    if !volume.has_other_names(name)? {
        return Ok(false);
    }
    let reader = volume.open_reader(name)?;
    tracing::info!(
        "{}: has other names (hard links), which keep its bytes: {} bytes are copied before it is changed",
        volume.place(name),
        reader.size()?
    );
    put(volume, &*reader, name)?;
    // A sync that follows one that failed would not make the name durable: it is given once more.
    if volume.sync().is_err() {
        put(volume, &*reader, name)?;
        volume.sync()?;
    }
    Ok(true)
}

/// Gives the name to a copy of what is read.
fn put(volume: &dyn Volume, reader: &dyn VolumeReader, name: &str) -> Result<(), TierError> {
    let copy = format!("{name}{UNFINISHED}");
    let written = volume
        .create(&copy)
        .and_then(|mut file| write(reader, &mut *file))
        .and_then(|()| volume.rename(&copy, name));
    written.inspect_err(|_| {
        // Where it stays, the next checkpoint removes it.
        let _ = volume.remove(&copy);
    })
}

/// Writes the bytes of a file to another one, durably; shares the blocks where the file system can.
fn write(reader: &dyn VolumeReader, file: &mut dyn VolumeFile) -> Result<(), TierError> {
    if !file.share(reader)? {
        let (mut offset, end) = (0, reader.size()?);
        let mut piece = vec![0; PIECE.min(end) as usize];
        while offset < end {
            piece.truncate((end - offset).min(PIECE) as usize);
            reader.read_at(offset, &mut piece)?;
            file.write_at(offset, &piece)?;
            offset += piece.len() as u64;
        }
    }
    file.sync()
}
