//! The exception for each error of the engine.
//!
//! | the engine's error | Python's exception |
//! |---|---|
//! | the call was wrong, or a vector holds NaN or infinity | `ValueError` |
//! | a catalog has no index of that name | `KeyError` |
//! | a file or folder is missing, exists already, or may not be touched | `FileNotFoundError`, `FileExistsError`, `PermissionError` |
//! | bytes of an index differ from the bytes that were written | `DamagedError` |
//! | another process changes the index, or an object of this process with other options; it changed too fast to be copied; or a catalog's memory is in use | `InUseError` |
//! | the index was changed elsewhere since it was opened here, or this object takes no more changes | `OutdatedError` |
//! | the disk is full | `NoSpaceError` |
//! | the system refuses memory | `MemoryError` |
//! | a server cannot be reached, refuses, fails, or cannot listen; it did not answer in time | `ServerError`; its subclass `ServerTimeoutError` |
//! | any other | `StratannError`, a `RuntimeError`, the base class of the five above |
//! | the work was interrupted | `Interrupted`, a `KeyboardInterrupt` ([`crate::progress`]) |
//!
//! The message is the engine's own, with the file, the value and the remedy.

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

/// The text of an error. For an insert that ended early it names the call that inserts the other
/// rows. An `insert` without ids would otherwise continue after the ids of these rows.
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

/// The subclass of [`StratannError`] for an error.
fn failed(error: &Error, text: String) -> PyErr {
    match error {
        Error::Partly { source, .. }
        | Error::PartlySet { source, .. }
        | Error::PartlyDeleted { source, .. }
        | Error::NotPlaced { source, .. } => failed(source, text),
        // Intact, but of a version that is unknown here.
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

/// The error of a change of an index. If the disk is full, it warns that a delete does not help.
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

/// Whether the vectors are such that no index can hold them. The command reports a failure then,
/// but in Python they are the value of an argument.
fn is_value(error: &DataError) -> bool {
    matches!(
        error,
        DataError::NotFinite { .. }
            | DataError::TooLarge { .. }
            | DataError::NoDirection { .. }
            | DataError::Empty { .. }
    )
}

/// The error of the operating system, if it is the cause.
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
