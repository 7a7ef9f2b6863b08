//! Blocks on storage that an index reserves, so that deletes still work on a full disk.
//!
//! ```text
//!   log.room        empty, with blocks for the deletes of the next log
//!                   a delete that finds no space:  it becomes log-00000N
//!   MANIFEST.room   empty, with blocks for one small file
//!                   opening for changes:           it becomes MANIFEST, whose old blocks are kept
//!                   forgetting an insert:          it becomes INSERTS
//! ```
//!
//! A rename keeps the blocks of a file, so no other program can use them. Until `log.room` is
//! reserved again, the index refuses inserts and accepts deletes. If the file system cannot
//! preallocate blocks ([`Volume::keep_room`]), an index on a full disk accepts no deletes.

use stratann_layout::LogRecord;
use stratann_layout::log::FIRST_RECORD;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_tier::{BLOCK, TierError, Volume, VolumeFile};

pub(super) const LOG_ROOM: &str = "log.room";
const SMALL_ROOM: &str = "MANIFEST.room";

/// The minimum and maximum number of deletes for which blocks are reserved. Between these limits,
/// blocks are reserved for the deletion of all vectors.
const FEWEST_DELETES: u64 = 1_000;
const MOST_DELETES: u64 = 10_000;

pub(crate) fn room_for_deletes(vectors: u64) -> u64 {
    let deletes = vectors.clamp(FEWEST_DELETES, MOST_DELETES);
    let each = LogRecord::Delete { id: 0 }.encoded_bytes() as u64;
    (FIRST_RECORD + deletes * each).next_multiple_of(BLOCK as u64)
}

pub(crate) fn is_room(name: &str) -> bool {
    name == LOG_ROOM || name == SMALL_ROOM
}

/// The bytes of storage that are reserved for deletes in an index.
pub(crate) fn kept_room(volume: &dyn Volume) -> Result<u64, TierError> {
    Ok(volume.kept_room(LOG_ROOM)? + volume.kept_room(SMALL_ROOM)?)
}

/// Reserves all blocks, as far as there is space.
pub(crate) fn keep_room(volume: &dyn Volume, vectors: u64) {
    let kept = volume.keep_room(LOG_ROOM, room_for_deletes(vectors));
    if let Err(error) = kept.and_then(|_| keep_small_room(volume)) {
        tracing::warn!("no blocks are reserved for deletes on a full disk: {error}");
    }
}

/// Reserves blocks for a manifest of its present size, and one block more.
pub(crate) fn keep_small_room(volume: &dyn Volume) -> Result<(), TierError> {
    let block = BLOCK as u64;
    if volume.keep_room(SMALL_ROOM, block)? {
        let bytes = volume.len(MANIFEST)?.next_multiple_of(block) + block;
        volume.keep_room(SMALL_ROOM, bytes)?;
    }
    Ok(())
}

/// The reserved file that becomes the next log, if there is one.
pub(super) fn take_log_room(volume: &dyn Volume) -> Result<Option<Box<dyn VolumeFile>>, TierError> {
    take(volume, LOG_ROOM)
}

pub(super) fn drop_log_room(volume: &dyn Volume) {
    let _ = volume.remove(LOG_ROOM);
}

/// Replaces a small file durably on a full disk, with the reserved blocks. Without reserved blocks,
/// the result is `false`. After an error, the volume has the old file or the new one.
pub(super) fn replace_in_room(
    volume: &dyn Volume,
    name: &str,
    bytes: &[u8],
) -> Result<bool, TierError> {
    let Some(mut file) = take(volume, SMALL_ROOM)? else {
        return Ok(false);
    };
    let written = file
        .write_at(0, bytes)
        // `set_len` frees the blocks that the file does not need.
        .and_then(|()| file.set_len(bytes.len() as u64))
        .and_then(|()| file.sync());
    drop(file);
    if let Err(error) = written {
        let _ = volume.remove(SMALL_ROOM);
        return Err(error);
    }
    volume.rename(SMALL_ROOM, name)?;
    volume.sync()?;
    // The blocks of the replaced file are free now.
    if let Err(error) = keep_small_room(volume) {
        tracing::warn!(
            "{}: the blocks of this file cannot be reserved again: {error}",
            volume.place(SMALL_ROOM)
        );
    }
    Ok(true)
}

fn take(volume: &dyn Volume, name: &str) -> Result<Option<Box<dyn VolumeFile>>, TierError> {
    if volume.kept_room(name)? == 0 {
        return Ok(None);
    }
    match volume.open(name) {
        Ok(file) if file.is_empty() => Ok(Some(file)),
        // An earlier attempt wrote to the file, or a backup shares the file through a hard link.
        // The next reservation makes another file.
        Ok(_) | Err(TierError::Missing { .. } | TierError::NotPlain { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
