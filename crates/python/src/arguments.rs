//! Arguments as a Python user writes them. The engine checks the range of counts
//! (`stratann::bounds`).

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use pyo3::exceptions::PyBaseException;
use pyo3::exceptions::{
    PyAttributeError, PyFileNotFoundError, PyOverflowError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyString};
use stratann::{CacheSize, Durability, Index, Places, Rerank};

/// A recall determines the list size, so only one of the two may be passed.
pub fn refuse_both(recall: Option<f64>, list_size: Option<usize>) -> PyResult<()> {
    match (recall, list_size) {
        (Some(recall), Some(list)) => Err(PyValueError::new_err(format!(
            "recall={recall} and list_size={list} are both given, and both set the list size of the search. Pass one of them"
        ))),
        _ => Ok(()),
    }
}

/// Python's own error does not name the argument.
fn whole(value: &Bound<'_, PyAny>, argument: &str) -> PyResult<usize> {
    value.extract::<usize>().map_err(|error| {
        let py = value.py();
        let shown = value
            .repr()
            .map_or_else(|_| "?".into(), |shown| shown.to_string());
        match error.is_instance_of::<PyOverflowError>(py) {
            true => PyValueError::new_err(format!(
                "{argument}={shown}; it is out of range. Pass a positive whole number"
            )),
            false => PyTypeError::new_err(format!(
                "{argument}={shown}; it is of another type. Pass a whole number"
            )),
        }
    })
}

pub fn count_if_any(value: &Bound<'_, PyAny>, argument: &str) -> PyResult<Option<usize>> {
    match value.is_none() {
        true => Ok(None),
        false => whole(value, argument).map(Some),
    }
}

/// `what` is the type in words.
pub fn if_any<'py, T>(value: &Bound<'py, PyAny>, argument: &str, what: &str) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    match value.is_none() {
        true => Ok(None),
        false => typed(value, argument, what).map(Some),
    }
}

/// `what` is the type in words.
pub fn typed<'py, T>(value: &Bound<'py, PyAny>, argument: &str, what: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    value.extract().map_err(|_| {
        let shown = value
            .repr()
            .map_or_else(|_| "?".into(), |shown| shown.to_string());
        PyTypeError::new_err(format!(
            "{argument}={shown}; it is of another type. Pass {what}"
        ))
    })
}

/// pyo3's `from_py_with` passes no name of the argument, so each count needs a function.
macro_rules! counts {
    (given: $($name:ident),+; optional: $($maybe:ident),+) => {
        pub mod count {
            use super::{Bound, PyAny, PyResult, whole};

            $(pub fn $name(value: &Bound<'_, PyAny>) -> PyResult<usize> {
                whole(value, stringify!($name))
            })+
        }

        pub mod count_or_none {
            use super::{Bound, PyAny, PyResult, count_if_any};

            $(pub fn $maybe(value: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
                count_if_any(value, stringify!($maybe))
            })+
        }
    };
}

counts!(
    given: k, most, size, build_list, seed, threads, list_size, beam, in_flight, seeds, waiting, clients;
    optional: k, count, list_size, probes, cluster_size, replicas, beam, threads, in_flight, degree, code_bytes, connections, watch_recall
);

/// The type's error has the form "value; reason", and the reason lists the names.
pub fn named<T: FromStr>(value: &str, argument: &str) -> PyResult<T>
where
    T::Err: std::fmt::Display,
{
    value.parse().map_err(|error: T::Err| {
        let error = error.to_string();
        let meant = match meant_in(value, &error) {
            Some(name) => format!(" (did you mean {name:?}?)"),
            None => String::new(),
        };
        let reason = match error.split_once("; ") {
            Some((named, reason)) if named.trim_end_matches('"').ends_with(value) => reason,
            _ => &error,
        };
        PyValueError::new_err(format!("{argument}={value:?}; {reason}{meant}"))
    })
}

/// Of the names that an error lists, the one most similar to the typed name.
fn meant_in<'a>(typed: &str, error: &'a str) -> Option<&'a str> {
    let (_, names) = error.rsplit_once("one of")?;
    meant_of(
        typed,
        names.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_'),
    )
}

/// Names in other libraries, and their names here. A name with several meanings has several lines.
const ELSEWHERE: &[(&str, &str)] = &[
    ("top_k", "k"),
    ("topk", "k"),
    ("n_neighbors", "k"),
    ("limit", "k"),
    ("n_results", "k"),
    ("where", "filter"),
    ("expr", "filter"),
    ("query_filter", "filter"),
    ("payloads", "payload"),
    ("num_threads", "threads"),
    ("ef", "list_size"),
    ("ef_search", "list_size"),
    ("dim", "dimension"),
    ("element", "dtype"),
    ("space", "metric"),
    ("exist_ok", "overwrite"),
    ("M", "degree"),
    ("m", "degree"),
    ("ef_construction", "build_list"),
    ("metadata", "attributes"),
    ("metadatas", "attributes"),
    ("embeddings", "vectors"),
    ("include", "attributes"),
    ("include_metadata", "attributes"),
    ("output_fields", "attributes"),
    ("with_payload", "payload"),
    ("schema", "columns"),
    ("fields", "columns"),
    ("add", "insert"),
    ("add", "put"),
    ("add_items", "insert"),
    ("add_with_ids", "insert"),
    ("add_documents", "put"),
    ("insert", "put"),
    ("upsert", "put"),
    ("query", "search"),
    ("knn_query", "search"),
    ("similarity_search", "search"),
    ("fetch", "get"),
    ("retrieve", "get"),
    ("remove", "delete"),
    ("remove_ids", "delete"),
    ("pop", "delete"),
    ("clear", "delete_matching"),
    ("optimize", "compact"),
    ("describe_index_stats", "stats"),
];

/// The name that a user probably meant: the equivalent of another library's name, or the most
/// similar name.
pub fn meant_of<'a>(typed: &str, names: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let elsewhere = ELSEWHERE.iter().filter(|(other, _)| *other == typed);
    for (_, here) in elsewhere {
        if let Some(name) = names.clone().find(|name| name == here) {
            return Some(name);
        }
    }
    stratann::meant(typed, names)
}

/// The name out of `names` that a user probably meant by `typed`, or None.
#[pyfunction]
pub fn meant(typed: &str, names: Vec<String>) -> Option<String> {
    meant_of(typed, names.iter().map(String::as_str)).map(str::to_owned)
}

/// The AttributeError, with the name that the user probably meant.
#[pyfunction]
pub fn no_attribute<'py>(
    object: &Bound<'py, PyAny>,
    name: &str,
) -> PyResult<Bound<'py, PyBaseException>> {
    let py = object.py();
    let class = object.get_type();
    let names: Vec<String> = class.dir()?.extract()?;
    let public = names.iter().map(String::as_str);
    let public = public.filter(|name| !name.starts_with('_'));
    // Python itself looks up names that begin with an underscore.
    let meant = Some(name).filter(|name| !name.starts_with('_'));
    let meant = meant.and_then(|name| meant_of(name, public));
    let meant = meant.map_or(String::new(), |meant| format!(" (did you mean {meant:?}?)"));
    let function = function_of_index(py, object, name)?;
    let text = format!(
        "{:?} has no attribute {name:?}{}",
        class.name()?.to_string(),
        function.unwrap_or(meant)
    );
    let error = PyAttributeError::new_err(text);
    Ok(error.into_value(py).into_bound(py))
}

/// If a user calls a function of the package as a method, the reason and the remedy.
fn function_of_index(
    py: Python<'_>,
    object: &Bound<'_, PyAny>,
    name: &str,
) -> PyResult<Option<String>> {
    if name.starts_with('_') || !object.is_instance_of::<crate::index::Index>() {
        return Ok(None);
    }
    let is_one = py.import("stratann.naming")?.hasattr(name)?;
    let public: Vec<String> = py.import("stratann")?.getattr("__all__")?.extract()?;
    Ok(
        (is_one && public.iter().any(|other| other == name)).then(|| {
            // These functions take the path of an existing index.
            let arguments = match ["calibrate", "open", "repair", "verify"].contains(&name) {
                true => "index.path",
                false => "..",
            };
            format!("; it is a function of the package. Call stratann.{name}({arguments})")
        }),
    )
}

/// The places are a dict of roles and tiers, or a text as on the command line. `None` means the
/// index's own folder.
pub fn places(value: Option<&Bound<'_, PyAny>>) -> PyResult<Places> {
    let Some(value) = value else {
        return Ok(Places::default());
    };
    if let Ok(text) = value.cast::<PyString>() {
        return named(&text.extract::<String>()?, "place");
    }
    let Ok(dict) = value.cast::<PyDict>() else {
        return Err(PyTypeError::new_err(format!(
            "place={}; it is of another type. Pass a dict such as {{\"topology\": \"mapped:/dev/shm/x\"}}, or None",
            value.repr()?
        )));
    };
    let mut places = Places::default();
    for (role, tier) in dict {
        let (role, tier): (String, String) = (role.extract()?, tier.extract()?);
        places.put(&role, &tier).map_err(PyValueError::new_err)?;
    }
    Ok(places)
}

/// A size is an integer, or a text such as "64MiB" or "2.5GB". `nothing` is the meaning of `None`.
pub fn size(
    value: Option<&Bound<'_, PyAny>>,
    argument: &str,
    nothing: &str,
) -> PyResult<Option<u64>> {
    let Some(value) = value else { return Ok(None) };
    if value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>() {
        return match value.extract::<u64>() {
            Ok(bytes) if bytes > 0 => Ok(Some(bytes)),
            _ => Err(PyValueError::new_err(format!(
                "{argument}={}; it is no size. Pass a positive number of bytes, or None for {nothing}",
                value.repr()?
            ))),
        };
    }
    let Ok(text) = value.cast::<PyString>() else {
        return Err(PyTypeError::new_err(format!(
            "{argument}={}; it is of another type. Pass a number of bytes, a text such as \"64MiB\", or None for {nothing}",
            value.repr()?
        )));
    };
    let text = text.to_string();
    match bytes(&text) {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(PyValueError::new_err(format!(
            "{argument}={text:?}; it is no size. Write it as \"64MiB\", \"2.5GB\" or a number of bytes (units: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)"
        ))),
    }
}

/// Decimal units are powers of 1000, and binary units powers of 1024.
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

pub fn memory(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    size(value, "memory", "no cap")
}

/// The value is "always", "flush", or a number of milliseconds.
pub fn durability(value: Option<&Bound<'_, PyAny>>) -> PyResult<Durability> {
    let Some(value) = value else {
        return Ok(Durability::Always);
    };
    if let Ok(text) = value.cast::<PyString>() {
        match text.to_string().as_str() {
            "always" => return Ok(Durability::Always),
            "flush" => return Ok(Durability::OnFlush),
            _ => {}
        }
    } else if value.is_instance_of::<PyInt>()
        && !value.is_instance_of::<PyBool>()
        && let Ok(milliseconds) = value.extract()
    {
        return Ok(Durability::Every(Duration::from_millis(milliseconds)));
    }
    Err(PyValueError::new_err(format!(
        "durability={}; there is no such choice. Pass \"always\", \"flush\", or a number of milliseconds",
        value.repr()?
    )))
}

/// The size is in bytes, in entries, or a share of the vectors of an index.
pub fn cache(
    vectors: impl FnOnce() -> PyResult<usize>,
    bytes: Option<&Bound<'_, PyAny>>,
    entries: Option<&Bound<'_, PyAny>>,
) -> PyResult<CacheSize> {
    let Some(entries) = entries else {
        let bytes = size(bytes, "cache", "no cache")?;
        return Ok(bytes.map_or(CacheSize::None, CacheSize::Bytes));
    };
    if bytes.is_some() {
        return Err(PyValueError::new_err(
            "cache and cache_entries are both given, and both set the size of the cache. Pass one of them",
        ));
    }
    let wrong = || -> PyResult<PyErr> {
        Ok(PyValueError::new_err(format!(
            "cache_entries={}; it is no number of entries. Pass a positive number, a text such as \"1%\" (of the vectors, up to 100%), or \
             None for no cache",
            entries.repr()?
        )))
    };
    // A cache has at most one entry for each vector, but at least one entry in total.
    let vectors = || Ok::<_, PyErr>(vectors()?.max(1));
    if entries.is_instance_of::<PyInt>() && !entries.is_instance_of::<PyBool>() {
        return match entries.extract::<usize>() {
            Ok(count) if count > 0 => Ok(CacheSize::Entries(count.min(vectors()?))),
            _ => Err(wrong()?),
        };
    }
    let Ok(text) = entries.cast::<PyString>() else {
        return Err(PyTypeError::new_err(format!(
            "cache_entries={}; it is of another type. Pass a number, a text such as \"1%\", or None for no cache",
            entries.repr()?
        )));
    };
    let text = text.to_string();
    let percent = text.trim().strip_suffix('%').map(str::trim_end);
    match percent.and_then(|percent| percent.parse::<f64>().ok()) {
        Some(percent) if percent > 0.0 && percent <= 100.0 => {
            let vectors = vectors()?;
            let entries = (percent / 100.0 * vectors as f64).round() as usize;
            Ok(CacheSize::Entries(entries.clamp(1, vectors)))
        }
        _ => Err(wrong()?),
    }
}

/// The passed values, and the preset's values for the other ones. `None` if no value is passed.
pub fn rerank(
    batch: Option<usize>,
    benefit: Option<f64>,
    mode: Option<&str>,
    ratio: Option<f64>,
    index: &Index,
) -> PyResult<Option<Rerank>> {
    if (batch, benefit, mode, ratio) == (None, None, None, None) {
        return Ok(None);
    }
    let preset = index.preset().rerank;
    if batch == Some(0) {
        return Err(PyValueError::new_err(
            "rerank_batch=0; a batch has at least one candidate. Pass at least 1, or None for the preset's value",
        ));
    }
    if let Some(benefit) = benefit
        && !(0.0..=1.0).contains(&benefit)
    {
        return Err(PyValueError::new_err(format!(
            "benefit={benefit}; it is no share. Pass a number from 0 to 1, or None for the preset's value"
        )));
    }
    if let Some(ratio) = ratio
        && !(0.0..=1.0).contains(&ratio)
    {
        return Err(PyValueError::new_err(format!(
            "rerank_ratio={ratio}; it is no share. Pass a number from 0 to 1, or None for the preset's value"
        )));
    }
    let estimate = match mode {
        None => preset.estimate,
        Some("batches") => false,
        Some("estimate") => true,
        Some(mode) => {
            return Err(PyValueError::new_err(format!(
                "rerank={mode:?}; there is no such choice. Use one of: batches, estimate"
            )));
        }
    };
    Ok(Some(Rerank {
        batch: batch.unwrap_or(preset.batch).min(index.len().max(1)),
        benefit: benefit.unwrap_or(preset.benefit),
        estimate,
        // With `rerank`, the preset's share does not apply.
        ratio: match (ratio, mode) {
            (Some(ratio), _) => ratio,
            (None, Some(_)) => 0.0,
            (None, None) => preset.ratio,
        },
    }))
}

/// `None` is one thread for each core.
pub fn threads(value: Option<usize>) -> PyResult<usize> {
    match value {
        Some(0) => Err(PyValueError::new_err(
            "threads=0; a call needs at least one. Pass at least 1, or None for one thread for each core",
        )),
        Some(threads) => Ok(threads),
        None => Ok(stratann::processors()),
    }
}

/// `what` is the object at the path, for errors.
pub fn named_path(path: PathBuf, what: &str) -> PyResult<PathBuf> {
    match path.as_os_str().is_empty() {
        true => Err(PyValueError::new_err(format!(
            "the path of the {what} is empty; no {what} has an empty path. Pass the path of the {what}"
        ))),
        false => Ok(path),
    }
}

/// Raises FileNotFoundError before the call reads anything.
pub fn existing(path: PathBuf, what: &str) -> PyResult<PathBuf> {
    let path = named_path(path, what)?;
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(PyFileNotFoundError::new_err(format!(
                "{}: no such {what}. Check the path",
                path.display()
            )))
        }
        _ => Ok(path),
    }
}

/// A path is a `str` or an `os.PathLike`.
pub fn path(value: &Bound<'_, PyAny>) -> Option<PathBuf> {
    value.extract::<PathBuf>().ok()
}

pub fn shown(path: &Path) -> String {
    path.display().to_string()
}
