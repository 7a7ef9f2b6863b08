//! The inserts into an index that can be resumed after an interruption. They are in its file
//! `INSERTS`, which is always replaced as a whole.

use stratann_layout::LayoutError;
use stratann_layout::inserts::{
    BegunInsert, FILE_NAME, UNFINISHED, Unreadable, VERSION, decode, encode,
};
use stratann_tier::{TierError, Volume};

use super::room::replace_in_room;
use crate::Error;
use crate::stored;

/// Reads the inserts that are recorded in a volume. If the file is damaged, the result is empty: no
/// vector depends on it.
///
/// # Errors
/// The file cannot be read, or a later program wrote it. Then it is unknown whether an insert was
/// interrupted, and the next insert might add its rows twice.
fn read(volume: &dyn Volume) -> Result<Vec<BegunInsert>, Error> {
    let Some(text) = text(volume)? else {
        return Ok(Vec::new());
    };
    decode(&text).or_else(|why| {
        check_version(volume, why)?;
        tracing::warn!(
            "{}: damaged: it is not known which inserts were cut off",
            volume.place(FILE_NAME)
        );
        Ok(Vec::new())
    })
}

/// Returns an error if a later program wrote the file, so that its content is kept.
///
/// # Errors
/// [`LayoutError::UnknownVersion`].
fn check_version(volume: &dyn Volume, why: Unreadable) -> Result<(), Error> {
    match why {
        Unreadable::Damaged => Ok(()),
        Unreadable::Later(found) => Err(Error::Layout(LayoutError::UnknownVersion {
            file: stored::name_of(volume, FILE_NAME),
            offset: 0,
            found,
            expected: VERSION,
        })),
    }
}

/// Reads the inserts into the index with this checkpoint id. A build may have replaced the index
/// before it. Inserts into the replaced index are removed from the file, since they could not be
/// distinguished after the next change of the checkpoint id.
///
/// # Errors
/// Fails as [`read`] does, or if the inserts into the replaced index cannot be removed from the
/// file.
pub(crate) fn of_index(
    volume: &dyn Volume,
    state: Option<&str>,
) -> Result<Vec<BegunInsert>, Error> {
    let mut begun = read(volume)?;
    let known = begun.len();
    begun.retain(|insert| !is_replaced(insert, state));
    if begun.len() < known {
        write_fewer(volume, &begun)?;
    }
    Ok(begun)
}

/// Whether an insert belongs to the index that the build with this checkpoint id replaced.
pub(crate) fn is_replaced(insert: &BegunInsert, state: Option<&str>) -> bool {
    insert.replaced_by.is_some() && insert.replaced_by.as_deref() == state
}

/// Records that a build with this checkpoint id replaces the index of the recorded inserts, if
/// there are any. The record takes effect with the commit of the build. Until then the inserts stay
/// valid, and a file of a later program is unchanged.
///
/// # Errors
/// The file cannot be read or written.
pub(crate) fn replace(volume: &dyn Volume, state: Option<&str>) -> Result<(), Error> {
    let mut begun = match read(volume) {
        Err(Error::Layout(LayoutError::UnknownVersion { .. })) => return Ok(()),
        begun => begun?,
    };
    if begun.is_empty() {
        return Ok(());
    }
    for insert in &mut begun {
        insert.replaced_by = state.map(str::to_owned);
    }
    Ok(write(volume, &begun)?)
}

/// Removes the inserts into a replaced index from the file. This must be done before the checkpoint
/// id changes, since afterwards they could not be distinguished. A file of a later program is
/// unchanged.
///
/// # Errors
/// Fails as [`of_index`] does.
pub(crate) fn settle(volume: &dyn Volume, state: Option<&str>) -> Result<(), Error> {
    match of_index(volume, state) {
        Err(Error::Layout(LayoutError::UnknownVersion { .. })) => Ok(()),
        settled => settled.map(drop),
    }
}

/// Removes the file after a build has replaced the index: its inserts no longer apply.
pub(crate) fn forget_replaced(volume: &dyn Volume) {
    if let Err(error) = forget(volume) {
        tracing::warn!(
            "{}: it belongs to the replaced index, and cannot be removed: {error}",
            volume.place(FILE_NAME)
        );
    }
}

/// Removes a damaged file, which has no information; with `force` also a file of a later program.
/// Returns whether a file was removed.
///
/// # Errors
/// The file cannot be read or removed, or a later program wrote it.
pub(crate) fn forget_damaged(volume: &dyn Volume, force: bool) -> Result<bool, Error> {
    let text = text(volume)?;
    let Some(Err(why)) = text.map(|text| decode(&text)) else {
        return Ok(false);
    };
    if !force {
        check_version(volume, why)?;
    }
    forget(volume)?;
    Ok(true)
}

/// Reads the text of the file, if the file exists.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn text(volume: &dyn Volume) -> Result<Option<Vec<u8>>, TierError> {
    match volume.read(FILE_NAME) {
        Err(TierError::Missing { .. }) => Ok(None),
        read => read.map(Some),
    }
}

/// Replaces the recorded inserts of a volume, durably.
///
/// # Errors
/// The file cannot be written. Then it has the old inserts or the new ones.
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

/// Records fewer inserts, like [`write`]. On a full disk this uses the reserved blocks.
///
/// # Errors
/// Fails as [`write`] does.
pub(crate) fn write_fewer(volume: &dyn Volume, inserts: &[BegunInsert]) -> Result<(), TierError> {
    match write(volume, inserts) {
        Err(error @ TierError::NoSpace { .. }) => {
            let _ = volume.remove(UNFINISHED);
            match replace_in_room(volume, FILE_NAME, &encode(inserts))? {
                true => Ok(()),
                false => Err(error),
            }
        }
        written => written,
    }
}

/// Removes all recorded inserts of a volume, durably.
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
