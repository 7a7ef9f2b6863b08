//! What an index knows of inserts that can go on where they are cut off: its file `INSERTS`, replaced as a whole.

use stratann_layout::inserts::{BegunInsert, FILE_NAME, UNFINISHED, decode, encode};
use stratann_tier::{TierError, Volume};

/// The inserts that a volume knows of. A file that is damaged is no reason to refuse an index: no vector depends on it.
///
/// # Errors
/// It cannot be read: whether one was cut off is not known then, and the next might insert its rows again.
pub(crate) fn read(volume: &dyn Volume) -> Result<Vec<BegunInsert>, TierError> {
    let Some(text) = text(volume)? else {
        return Ok(Vec::new());
    };
    Ok(decode(&text).unwrap_or_else(|| {
        tracing::warn!(
            "{}: damaged, or of another version: it is not known which inserts were cut off",
            volume.place(FILE_NAME)
        );
        Vec::new()
    }))
}

/// The text of the file, if there is one.
///
/// # Errors
/// It cannot be read.
pub(crate) fn text(volume: &dyn Volume) -> Result<Option<Vec<u8>>, TierError> {
    match volume.read(FILE_NAME) {
        Err(TierError::Missing { .. }) => Ok(None),
        read => read.map(Some),
    }
}

/// Has a volume know of these inserts, durably.
///
/// # Errors
/// It cannot be written; then it knows of those before, or of these.
pub(crate) fn write(volume: &dyn Volume, inserts: &[BegunInsert]) -> Result<(), TierError> {
    if inserts.is_empty() {
        return forget(volume);
    }
    let mut file = volume.create(UNFINISHED)?;
    file.write_at(0, &encode(inserts))?;
    file.sync()?;
    drop(file);
    volume.rename(UNFINISHED, FILE_NAME)?;
    volume.sync()
}

/// Has a volume know of none, durably.
///
/// # Errors
/// The file cannot be removed.
pub(crate) fn forget(volume: &dyn Volume) -> Result<(), TierError> {
    match volume.remove(FILE_NAME) {
        Ok(()) => volume.sync(),
        Err(TierError::Missing { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
