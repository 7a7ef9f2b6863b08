//! Which exception an engine's error becomes.
//!
//! | the engine says | Python raises |
//! |---|---|
//! | the call was wrong, or a vector holds NaN or infinity | `ValueError` |
//! | a catalog has no index of that name | `KeyError` |
//! | a file or folder is missing, exists already, or may not be touched | `FileNotFoundError`, `FileExistsError`, `PermissionError` |
//! | bytes of an index are not what was written | `DamagedError` |
//! | another process changes the index, or an object of this one with other options; or it changed too fast to be copied; a catalog's memory is in use | `InUseError` |
//! | somebody else has changed it since it was opened here, or it takes no more changes through this object | `OutdatedError` |
//! | the disk is full | `NoSpaceError` |
//! | the system refuses memory | `MemoryError` |
//! | a server is not there, refuses, fails, or cannot listen; did not answer in time | `ServerError`; `ServerTimeoutError`, a kind of it |
//! | anything else | `StratannError`, a `RuntimeError`, of which the five above are kinds |
//! | the work was interrupted | `Interrupted`, a `KeyboardInterrupt` ([`crate::progress`]) |
//!
//! The message is the engine's own: it names the file, the value and the remedy.

use std::error::Error as _;
use std::io::ErrorKind;

use pyo3::create_exception;
use pyo3::exceptions::{
    PyFileExistsError, PyFileNotFoundError, PyKeyError, PyKeyboardInterrupt, PyMemoryError,
    PyPermissionError, PyRuntimeError, PyValueError,
};
use pyo3::prelude::*;
use stratann::{DataError, Error, LayoutError, TierError};

create_exception!(
    stratann,
    StratannError,
    PyRuntimeError,
    "The work could not be done though the call was right. `DamagedError`, `InUseError`, `OutdatedError`, `NoSpaceError` \
     and `ServerError` are kinds of it."
);
create_exception!(
    stratann,
    DamagedError,
    StratannError,
    "Bytes of an index are not what was written: `stratann.verify` says which, and `stratann.repair` builds the index anew \
     from the vectors that can be read."
);
create_exception!(
    stratann,
    InUseError,
    StratannError,
    "Another process changes the index, or another object of this one that was opened with other options; or it changed too fast to be copied or \
     exported as of one moment. Searching needs no lock and works meanwhile. Also: other indexes of a catalog have its memory, and none of it came back \
     in time for a change."
);
create_exception!(
    stratann,
    OutdatedError,
    StratannError,
    "The index was changed by somebody else since it was opened here, or takes no more changes through this object: close it, then \
     open the index again."
);
create_exception!(
    stratann,
    NoSpaceError,
    StratannError,
    "The disk is full. What is in the index can be searched as before."
);
create_exception!(
    stratann,
    ServerError,
    StratannError,
    "A server cannot be reached, is another one than was meant, refuses, fails, or cannot be started: the message names it, and what would help.\n\
     \n\
     yet : bool\n    \
         Of a change: whether it, or some of it, may still be made after this. A later change by the same `Client` that is acknowledged rules that out; one by another does not. Not there otherwise."
);
create_exception!(
    stratann,
    ServerTimeoutError,
    ServerError,
    "There was no answer within the time that a query has; the message says who was waited for."
);
create_exception!(
    stratann,
    Interrupted,
    PyKeyboardInterrupt,
    "Ctrl-C in the middle of the engine's work: a `KeyboardInterrupt` that knows what became of it.\n\
     \n\
     done : int or None\n    \
         Of `insert`, `upsert` and `set_attributes`, and of `Client.delete`: how many rows are in or set, or ids are gone, the first ones. None for other work.\n\
     total : int or None\n    \
         How many rows the call had.\n\
     complete : bool\n    \
         Whether the work was done all the same, because Ctrl-C came too late."
);

/// The exception for `error`.
pub fn to_python(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    let text = said(&error);
    match (&error, io_kind(&error)) {
        (Error::NoSuchIndex { .. }, _) => PyKeyError::new_err(text),
        (Error::Exists { .. } | Error::CutOff { .. }, _) | (_, Some(ErrorKind::AlreadyExists)) => {
            PyFileExistsError::new_err(text)
        }
        (_, Some(ErrorKind::NotFound)) => PyFileNotFoundError::new_err(text),
        (_, Some(ErrorKind::PermissionDenied)) => PyPermissionError::new_err(text),
        (Error::Data(data), _) if is_value(data) => PyValueError::new_err(text),
        _ if error.is_call_wrong() => PyValueError::new_err(text),
        _ => failed(&error, text),
    }
}

/// The text of an error. An insert that ended in the middle names the call that inserts the other rows: an `insert` without ids would count on behind
/// the ids that these were to have.
pub fn said(error: &Error) -> String {
    match error {
        Error::Partly {
            done,
            total,
            given: Some((first, last)),
            source,
        } => format!(
            "{source}; the first {done} of {total} rows are in, with ids {first} to {last}. Insert the others, vectors[{done}:], with ids=range({}, {}), \
             and with the attributes and the payload of the same rows if you gave these",
            last.saturating_add(1),
            first.saturating_add(*total as u64)
        ),
        Error::CutOff {
            done,
            total,
            first_id,
            ..
        } => format!(
            "an insert of these vectors was cut off: the first {done} of {total} are in, with ids {first_id} to {}. Call insert with them and resume=True to \
             insert the others, or forget_cut_off() first to insert all of them anew",
            first_id.saturating_add(*done as u64).saturating_sub(1)
        ),
        error => error.to_string(),
    }
}

/// The kind of [`StratannError`] that an error is.
fn failed(error: &Error, text: String) -> PyErr {
    match error {
        Error::Partly { source, .. }
        | Error::PartlySet { source, .. }
        | Error::PartlyDeleted { source, .. }
        | Error::NotPlaced { source, .. } => failed(source, text),
        // Whole, and of a version that this one does not know.
        Error::Layout(
            LayoutError::UnknownKind { .. }
            | LayoutError::UnknownVersion { .. }
            | LayoutError::UnknownIndexKind { .. }
            | LayoutError::UnknownFeature { .. },
        ) => StratannError::new_err(text),
        Error::Damaged { .. }
        | Error::DamagedLog { .. }
        | Error::Layout(_)
        | Error::Codec { .. } => DamagedError::new_err(text),
        Error::Tier(TierError::Short { .. } | TierError::OutOfRange { .. }) => {
            DamagedError::new_err(text)
        }
        Error::Tier(TierError::InUse { .. }) | Error::Restless { .. } | Error::Crowded { .. } => {
            InUseError::new_err(text)
        }
        Error::Tier(
            TierError::NoSpace { .. } | TierError::NoSpaceForCopy { .. } | TierError::NoRoom { .. },
        ) => NoSpaceError::new_err(text),
        Error::Data(DataError::Io { source, .. }) if source.kind() == ErrorKind::StorageFull => {
            NoSpaceError::new_err(text)
        }
        Error::Tier(TierError::NoMemory { .. }) | Error::Data(DataError::Room { .. }) => {
            PyMemoryError::new_err(text)
        }
        Error::Outdated { .. }
        | Error::Halted { .. }
        | Error::Tier(TierError::Replaced { .. } | TierError::Forked { .. }) => {
            OutdatedError::new_err(text)
        }
        Error::Tier(TierError::Server { .. }) => ServerError::new_err(text),
        _ => StratannError::new_err(text),
    }
}

/// An error of a change of an index. Where the disk is full, what one would try first does not help.
pub fn changing(py: Python<'_>, error: PyErr) -> PyErr {
    if !error.is_instance_of::<NoSpaceError>(py) {
        return error;
    }
    NoSpaceError::new_err(format!(
        "{}; the index can be searched as before. Deleting vectors makes no room by itself: the merge that gives their space back \
         writes the new index beside the old one first",
        error.value(py)
    ))
}

/// Whether vectors were given that no index can hold: the command line says that the work failed, but in Python
/// they are the value of an argument.
fn is_value(error: &DataError) -> bool {
    matches!(
        error,
        DataError::NotFinite { .. }
            | DataError::TooLarge { .. }
            | DataError::NoDirection { .. }
            | DataError::Empty { .. }
    )
}

/// What the operating system said, if it is the cause.
fn io_kind(error: &Error) -> Option<ErrorKind> {
    match error {
        Error::Tier(TierError::Denied { .. } | TierError::NotPrivate { .. }) => {
            return Some(ErrorKind::PermissionDenied);
        }
        Error::Tier(TierError::Missing { .. }) => return Some(ErrorKind::NotFound),
        Error::Partly { source, .. }
        | Error::PartlySet { source, .. }
        | Error::PartlyDeleted { source, .. }
        | Error::NotPlaced { source, .. } => {
            return io_kind(source);
        }
        _ => {}
    }
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            return Some(io.kind());
        }
        cause = inner.source();
    }
    None
}
