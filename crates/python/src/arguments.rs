//! What a user writes as an argument: sizes in bytes, names, counts.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use pyo3::exceptions::{PyFileNotFoundError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyString};

/// A value with a fixed set of names; the type's own error says which ones there are.
pub fn named<T: FromStr>(value: &str, argument: &str) -> PyResult<T>
where
    T::Err: std::fmt::Display,
{
    value
        .parse()
        .map_err(|error| PyValueError::new_err(format!("{argument}={value:?}: {error}")))
}

/// Bytes: an integer, or a text such as "64MiB" or "2.5GB". `None` stays `None`: no cap.
pub fn memory(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    let Some(value) = value else { return Ok(None) };
    if value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>() {
        return match value.extract::<u64>() {
            Ok(bytes) if bytes > 0 => Ok(Some(bytes)),
            _ => Err(PyValueError::new_err(format!(
                "memory={}: it must be a positive number of bytes, or None for no cap",
                value.repr()?
            ))),
        };
    }
    let Ok(text) = value.cast::<PyString>() else {
        return Err(PyTypeError::new_err(format!(
            "memory={}: pass a number of bytes, a text such as \"64MiB\", or None for no cap",
            value.repr()?
        )));
    };
    let text = text.to_string();
    match bytes(&text) {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(PyValueError::new_err(format!(
            "memory={text:?}: write it as \"64MiB\", \"2.5GB\" or a number of bytes (units: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)"
        ))),
    }
}

/// "2.5GB" as bytes: decimal units are powers of 1000, binary ones of 1024.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1000_u64.pow(2),
        "gb" => 1000_u64.pow(3),
        "tb" => 1000_u64.pow(4),
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    let bytes = number * scale as f64;
    (bytes >= 1.0 && bytes < u64::MAX as f64).then_some(bytes as u64)
}

/// A number of threads; `None` is one for each core.
pub fn threads(value: Option<usize>) -> PyResult<usize> {
    match value {
        Some(0) => Err(PyValueError::new_err(
            "threads=0: it must be at least 1, or None for one a core",
        )),
        Some(threads) => Ok(threads),
        None => Ok(std::thread::available_parallelism().map_or(1, NonZero::get)),
    }
}

/// A path that must lead somewhere; says so in Python's own way, before anything else is read.
pub fn existing(path: PathBuf, what: &str) -> PyResult<PathBuf> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(
            PyFileNotFoundError::new_err(format!("{}: no such {what}", path.display())),
        ),
        _ => Ok(path),
    }
}

/// Whether a value is a path (`str` or `os.PathLike`), and which.
pub fn path(value: &Bound<'_, PyAny>) -> Option<PathBuf> {
    value.extract::<PathBuf>().ok()
}

/// A path as a message shows it.
pub fn shown(path: &Path) -> String {
    path.display().to_string()
}
