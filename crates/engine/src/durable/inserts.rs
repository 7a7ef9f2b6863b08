//! What an index knows of inserts that can go on where they are cut off: its file `INSERTS`, replaced as a whole.

use stratann_layout::LayoutError;
use stratann_layout::inserts::{
    BegunInsert, FILE_NAME, UNFINISHED, Unreadable, VERSION, decode, encode,
};
use stratann_tier::{TierError, Volume};

use super::room::replace_in_room;
use crate::Error;
use crate::stored;

/// The inserts that a volume knows of. A file that is damaged is no reason to refuse an index: no vector depends on it.
///
/// # Errors
/// It cannot be read, or a later program wrote it: whether an insert was cut off is not known then, and the next might insert its rows again.
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

/// Refuses a file that a later program wrote: what it says stays.
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

/// The inserts into an index of this state that its volume knows of. Those into the index before it, which a build took the place of, are forgotten: a later state would not
/// tell them any more.
///
/// # Errors
/// As those of [`read`]; those into the index before cannot be forgotten.
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

/// Whether an insert was one into the index before that of this state, which a build took the place of.
pub(crate) fn is_replaced(insert: &BegunInsert, state: Option<&str>) -> bool {
    insert.replaced_by.is_some() && insert.replaced_by.as_deref() == state
}

/// Has the inserts that a volume knows of, if any, be those into the index before a build of this state, once its commit counts. Until then they are what they were. What a
/// later program says stays as it is until then.
///
/// # Errors
/// It cannot be read, or written.
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

/// Forgets those into the index before that of this state, before another state comes: then they could not be told any more. What a later program says stays as it is.
///
/// # Errors
/// As those of [`of_index`].
pub(crate) fn settle(volume: &dyn Volume, state: Option<&str>) -> Result<(), Error> {
    match of_index(volume, state) {
        Err(Error::Layout(LayoutError::UnknownVersion { .. })) => Ok(()),
        settled => settled.map(drop),
    }
}

/// Removes the file where a build took the place of the index: what is left of it says nothing.
pub(crate) fn forget_replaced(volume: &dyn Volume) {
    if let Err(error) = forget(volume) {
        tracing::warn!(
            "{}: of the index before, and it cannot be removed: {error}",
            volume.place(FILE_NAME)
        );
    }
}

/// Removes a file that says nothing, since it is damaged; with `force` also one that a later program wrote. Whether there was one.
///
/// # Errors
/// It cannot be read, or removed; a later program wrote it.
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

/// As [`write`], to know of fewer: on a full disk it takes the room that is kept.
///
/// # Errors
/// As those of [`write`].
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
