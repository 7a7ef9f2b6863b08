//! The inserts that can be resumed after an interruption, recorded in the file `INSERTS`. Each
//! write replaces the whole file.

use stratann_layout::LayoutError;
use stratann_layout::inserts::{
    BegunInsert, FILE_NAME, UNFINISHED, Unreadable, VERSION, decode, encode,
};
use stratann_tier::{TierError, Volume};

use super::room::replace_in_room;
use crate::Error;
use crate::stored;

/// The recorded inserts. A damaged file counts as empty, since no vector depends on it.
///
/// # Errors
/// The file cannot be read, or a later version of StratANN wrote it. The file is not ignored in
/// this case, since the next insert might add rows a second time.
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

/// Fails with [`LayoutError::UnknownVersion`] if a later version of StratANN wrote the file.
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

/// Reads the inserts into the index with this checkpoint id. Inserts into a replaced index are
/// removed: after the next change of the checkpoint id, they could not be distinguished from
/// inserts into this index.
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

/// Notes in the file that a build with this checkpoint id replaces the index. The inserts stay
/// valid until the commit of the build. A file of a later version of StratANN stays unchanged.
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

/// Removes the inserts into a replaced index. After the next change of the checkpoint id, these
/// inserts would count as inserts into the new index. A file of a later version of StratANN stays
/// unchanged.
pub(crate) fn settle(volume: &dyn Volume, state: Option<&str>) -> Result<(), Error> {
    match of_index(volume, state) {
        Err(Error::Layout(LayoutError::UnknownVersion { .. })) => Ok(()),
        settled => settled.map(drop),
    }
}

pub(crate) fn forget_replaced(volume: &dyn Volume) {
    if let Err(error) = forget(volume) {
        tracing::warn!(
            "{}: this file belongs to the replaced index, and cannot be removed: {error}",
            volume.place(FILE_NAME)
        );
    }
}

/// Removes the file if it is damaged, or with `force` if a later version of StratANN wrote it.
/// Returns whether it removed the file.
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

/// The text of the file, if the file exists.
pub(crate) fn text(volume: &dyn Volume) -> Result<Option<Vec<u8>>, TierError> {
    match volume.read(FILE_NAME) {
        Err(TierError::Missing { .. }) => Ok(None),
        read => read.map(Some),
    }
}

/// Replaces the recorded inserts durably. After an error, the file has the old inserts or the new
/// ones.
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

/// Writes fewer inserts than before. On a full disk, the file is written to the reserved blocks.
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

/// Removes all recorded inserts, durably.
pub(crate) fn forget(volume: &dyn Volume) -> Result<(), TierError> {
    match volume.remove(FILE_NAME) {
        Ok(()) => volume.sync(),
        Err(TierError::Missing { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
