//! The inserts into an index that can be resumed after an interruption. The file `INSERTS` of the
//! index records them. Each write replaces the whole file.

use stratann_layout::LayoutError;
use stratann_layout::inserts::{
    BegunInsert, FILE_NAME, UNFINISHED, Unreadable, VERSION, decode, encode,
};
use stratann_tier::{TierError, Volume};

use super::room::replace_in_room;
use crate::Error;
use crate::stored;

/// Reads the inserts that are recorded in a volume. If the file is damaged, the result is empty,
/// since no vector depends on the file.
///
/// # Errors
/// The call fails if the file cannot be read, or if a later program wrote it. Without the file, no
/// process knows whether an insert was interrupted. The next insert might then add its rows a
/// second time.
fn read(volume: &dyn Volume) -> Result<Vec<BegunInsert>, Error> {
    let Some(text) = text(volume)? else {
        return Ok(Vec::new());
    };
    decode(&text).or_else(|why| {
        check_version(volume, why)?;
        tracing::warn!(
            "{}: damaged: it is not known which inserts were interrupted",
            volume.place(FILE_NAME)
        );
        Ok(Vec::new())
    })
}

/// Returns an error if a later program wrote the file, so that the caller keeps the content of the
/// file.
///
/// # Errors
/// The error is [`LayoutError::UnknownVersion`].
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

/// Reads the inserts into the index with this checkpoint id. If a build has replaced an earlier
/// index, inserts into that index are removed from the file. After the next change of the
/// checkpoint id, these inserts could not be distinguished from inserts into this index.
///
/// # Errors
/// The call fails for the reasons of [`read`]. It also fails if the inserts into the replaced index
/// cannot be removed from the file.
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

/// Notes in the file that a build with this checkpoint id replaces the index of the recorded
/// inserts. The note takes effect with the commit of the build. Until the commit, the inserts stay
/// valid. A file of a later program is left unchanged.
///
/// # Errors
/// The call fails if the file cannot be read or written.
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

/// Removes the inserts into a replaced index from the file. The caller must do this before the
/// checkpoint id changes, since afterwards these inserts could not be distinguished from inserts
/// into the new index. A file of a later program is left unchanged.
///
/// # Errors
/// The call fails for the reasons of [`of_index`].
pub(crate) fn settle(volume: &dyn Volume, state: Option<&str>) -> Result<(), Error> {
    match of_index(volume, state) {
        Err(Error::Layout(LayoutError::UnknownVersion { .. })) => Ok(()),
        settled => settled.map(drop),
    }
}

/// Removes the file after a build has replaced the index, since its inserts no longer apply.
pub(crate) fn forget_replaced(volume: &dyn Volume) {
    if let Err(error) = forget(volume) {
        tracing::warn!(
            "{}: this file belongs to the replaced index, and cannot be removed: {error}",
            volume.place(FILE_NAME)
        );
    }
}

/// Removes the file if it is damaged, since a damaged file has no information. With `force`, also
/// removes a file of a later program. Returns whether it removed the file.
///
/// # Errors
/// The call fails if the file cannot be read or removed, or if a later program wrote it.
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
/// The call fails if the file cannot be read.
pub(crate) fn text(volume: &dyn Volume) -> Result<Option<Vec<u8>>, TierError> {
    match volume.read(FILE_NAME) {
        Err(TierError::Missing { .. }) => Ok(None),
        read => read.map(Some),
    }
}

/// Replaces the recorded inserts of a volume, durably.
///
/// # Errors
/// The call fails if the file cannot be written. The file then has the old inserts or the new ones.
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

/// Does the same as [`write`], for fewer inserts than before. If the disk is full, the file gets
/// the reserved blocks.
///
/// # Errors
/// The call fails for the reasons of [`write`].
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
/// The call fails if the file cannot be removed.
pub(crate) fn forget(volume: &dyn Volume) -> Result<(), TierError> {
    match volume.remove(FILE_NAME) {
        Ok(()) => volume.sync(),
        Err(TierError::Missing { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
