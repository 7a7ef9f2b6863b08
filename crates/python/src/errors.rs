//! The exception for each error of the engine.
//!
//! | the engine's error | Python's exception |
//! |---|---|
//! | the call was wrong, or a vector has NaN or infinity | `ValueError` |
//! | a catalog has no index of that name | `KeyError` |
//! | a file or folder is missing | `FileNotFoundError` |
//! | a file or folder exists already | `FileExistsError` |
//! | this user may not read or write a file or folder | `PermissionError` |
//! | bytes of an index differ from the written bytes | `DamagedError` |
//! | another process has the index open for changes | `InUseError` |
//! | an object of this process with other options has the index open for changes | `InUseError` |
//! | the index changed too fast to be copied | `InUseError` |
//! | changes of other indexes hold the memory of a catalog | `InUseError` |
//! | the index was changed elsewhere since it was opened here | `OutdatedError` |
//! | this object takes no more changes | `OutdatedError` |
//! | the disk is full | `NoSpaceError` |
//! | the system refuses memory | `MemoryError` |
//! | a server cannot be reached, refuses, fails, or cannot listen | `ServerError` |
//! | a server did not answer in time | `ServerTimeoutError`, a `ServerError` |
//! | any other | `StratannError`, a `RuntimeError` |
//! | the work was interrupted | `Interrupted`, a `KeyboardInterrupt` ([`crate::progress`]) |
//!
//! `StratannError` is the base class of `DamagedError`, `InUseError`, `OutdatedError`,
//! `NoSpaceError` and `ServerError`. The message is the engine's own, with the file, the value and
//! the remedy.

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
    "A correct call failed. `DamagedError`, `InUseError`, `OutdatedError`, `NoSpaceError` and `ServerError` are its \
     subclasses."
);
create_exception!(
    stratann,
    DamagedError,
    StratannError,
    "Bytes of an index differ from the bytes that were written. `stratann.verify` lists them, and `stratann.repair` rebuilds \
     the index from the vectors that can be read."
);
create_exception!(
    stratann,
    InUseError,
    StratannError,
    "Another process has the index open for changes, or another object of this process has, with other options. Searches \
     need no lock and work meanwhile. Other causes: the index changed too fast for a snapshot or an export, or changes of \
     other indexes of a catalog held its memory for too long."
);
create_exception!(
    stratann,
    OutdatedError,
    StratannError,
    "Another process has changed the index since it was opened here, or this object takes no more changes. Close it, then \
     open the index again."
);
create_exception!(
    stratann,
    NoSpaceError,
    StratannError,
    "The disk is full. The index can be searched as before."
);
create_exception!(
    stratann,
    ServerError,
    StratannError,
    "A server cannot be reached, is not the expected one, refuses, fails, or cannot be started. The message names the server \
     and a remedy.\n\
     \n\
     yet : bool\n    \
         Only on the error of a change: whether the servers may still make the change, or a part of it, after this error. Once the servers \
     have acknowledged a later change of the same `Client`, they no longer make this change. After a later change of another client, they \
     still may."
);
create_exception!(
    stratann,
    ServerTimeoutError,
    ServerError,
    "A query or a change was not answered within its time. The message names the server that did not answer."
);
create_exception!(
    stratann,
    Interrupted,
    PyKeyboardInterrupt,
    "Ctrl-C during the engine's work: a `KeyboardInterrupt` with the outcome of the work.\n\
     \n\
     done : int or None\n    \
         How many of the first rows are inserted (`insert`, `upsert`) or set (`set_attributes`, `update_attributes`), or how many of the first ids are \
     deleted (`Client.delete`). None for other work.\n\
     total : int or None\n    \
         The number of rows of the call.\n\
     complete : bool\n    \
         Whether the work was completed, because Ctrl-C came too late."
);

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

/// For an insert that ended early, the text names the call that inserts the other rows with the
/// right ids.
pub fn said(error: &Error) -> String {
    match error {
        Error::Partly {
            done,
            total,
            given: Some((first, last)),
            source,
        } => format!(
            "{source}; the first {done} of {total} rows are in the index, with ids {first} to {last}. Insert the others, vectors[{done}:], with ids=range({}, {}), \
             and with the attributes and the payload of the same rows if you passed these",
            last.saturating_add(1),
            first.saturating_add(*total as u64)
        ),
        Error::CutOff {
            done,
            total,
            first_id,
            ..
        } => format!(
            "an insert of these vectors was cut off; the first {done} of {total} are in the index, with ids {first_id} to {}. Call insert with the same vectors and \
             resume=True to insert the others. To insert all of them again, call forget_cut_off() first",
            first_id.saturating_add(*done as u64).saturating_sub(1)
        ),
        Error::Data(DataError::Extension { file, .. }) if file.ends_with(".parquet") => {
            format!(
                "{error}. Or read it with pyarrow.parquet.read_table(path), and pass its columns"
            )
        }
        error => error.to_string(),
    }
}

fn failed(error: &Error, text: String) -> PyErr {
    match error {
        Error::Partly { source, .. }
        | Error::PartlySet { source, .. }
        | Error::PartlyDeleted { source, .. }
        | Error::NotPlaced { source, .. } => failed(source, text),
        // These files are intact, but of an unknown version.
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
        | Error::OtherIndex { .. }
        | Error::Halted { .. }
        | Error::Tier(TierError::Replaced { .. } | TierError::Forked { .. }) => {
            OutdatedError::new_err(text)
        }
        Error::Tier(TierError::Server { .. }) => ServerError::new_err(text),
        _ => StratannError::new_err(text),
    }
}

/// On a full disk, the text warns that a delete does not help.
pub fn changing(py: Python<'_>, error: PyErr) -> PyErr {
    if !error.is_instance_of::<NoSpaceError>(py) {
        return error;
    }
    NoSpaceError::new_err(format!(
        "{}. The index can be searched as before. Deleting vectors frees no space by itself: the merge that frees it \
         first writes the new index beside the old one",
        error.value(py)
    ))
}

/// Vectors that no index can store are a wrong argument in Python, but a failure of the command.
fn is_value(error: &DataError) -> bool {
    matches!(
        error,
        DataError::NotFinite { .. }
            | DataError::TooLarge { .. }
            | DataError::NoDirection { .. }
            | DataError::Empty { .. }
    )
}

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
