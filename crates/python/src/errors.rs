//! Which exception an engine's error becomes.
//!
//! | the engine says | Python raises |
//! |---|---|
//! | the call was wrong, or a vector holds NaN or infinity | `ValueError` |
//! | a catalog has no index of that name | `KeyError` |
//! | a file or folder is missing, exists already, or may not be touched | `FileNotFoundError`, `FileExistsError`, `PermissionError` |
//! | anything else (damage, a full disk, an index in use) | `StratannError`, a `RuntimeError` |
//!
//! The message is the engine's own: it names the file, the value and the remedy.

use std::error::Error as _;
use std::io::ErrorKind;

use pyo3::create_exception;
use pyo3::exceptions::{
    PyFileExistsError, PyFileNotFoundError, PyKeyError, PyPermissionError, PyRuntimeError,
    PyValueError,
};
use pyo3::prelude::*;
use stratann::{DataError, Error, TierError};

create_exception!(
    stratann,
    StratannError,
    PyRuntimeError,
    "The work could not be done though the call was right: a damaged index, a full disk, an index in use."
);

/// The exception for `error`.
pub fn to_python(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    let text = error.to_string();
    match (&error, io_kind(&error)) {
        (Error::NoSuchIndex { .. }, _) => PyKeyError::new_err(text),
        (Error::Exists { .. }, _) | (_, Some(ErrorKind::AlreadyExists)) => {
            PyFileExistsError::new_err(text)
        }
        (_, Some(ErrorKind::NotFound)) => PyFileNotFoundError::new_err(text),
        (_, Some(ErrorKind::PermissionDenied)) => PyPermissionError::new_err(text),
        (Error::Data(data), _) if is_value(data) => PyValueError::new_err(text),
        _ if error.is_call_wrong() => PyValueError::new_err(text),
        _ => StratannError::new_err(text),
    }
}

/// Whether vectors were given that no index can hold: the command line says that the work failed, but in Python
/// they are the value of an argument.
fn is_value(error: &DataError) -> bool {
    matches!(
        error,
        DataError::NotFinite { .. } | DataError::NoDirection { .. } | DataError::Empty { .. }
    )
}

/// What the operating system said, if it is the cause.
fn io_kind(error: &Error) -> Option<ErrorKind> {
    match error {
        Error::Tier(TierError::Denied { .. }) => return Some(ErrorKind::PermissionDenied),
        Error::Tier(TierError::Missing { .. }) => return Some(ErrorKind::NotFound),
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
