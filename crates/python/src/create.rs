//! `stratann.create`: an index without vectors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use stratann::{BuildOptions, Element, OpenOptions, Places, Schema, Silent, column_type};

use crate::arguments::{memory as bytes, named_path};
use crate::arrays::dtype_name;
use crate::errors::to_python;
use crate::index::{Index, to_dict};
use crate::opening::Opening;
use crate::progress::{Listener, run};
use crate::shape::Shape;

const MANIFEST: &str = "MANIFEST";
const MOST: usize = u16::MAX as usize;
const ELEMENTS: [Element; 4] = [Element::F32, Element::F16, Element::U8, Element::I8];

/// Creates an index without vectors in the new folder `path`, and opens it. `Index.insert` and
/// `Index.upsert` add the vectors.
///
/// A column of attributes that `columns` does not name is added with the first vector that has a
/// value for it. As the index grows, merges train its codebook again, until the index is as good as
/// one that was built from all of its vectors. A merge is a call of `Index.compact`, or starts
/// automatically with `merges=True`.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     The folder of the index.
/// dimension : int
///     The number of elements of each vector, 1 to 65,535.
/// dtype : str or numpy.dtype
///     The type of the elements: "float32", "float16", "uint8" or "int8".
/// metric, preset, degree, build_list, alpha, code_bytes, low_codes, codebook, order, layout,
/// compression, chunk, segment, navigation
///     As in `build`.
/// search_memory, cluster_size, replicas, seed, overwrite, place
///     As in `build`.
/// columns : dict, optional
///     The columns of attributes and their types, as in `Index.columns`: {"year": "integer"}. Types
///     are "boolean", "integer", "float", "string", "timestamp", "list of strings" and "list of
///     integers". The first value of any other column decides its type. A filter can use the
///     columns given here even before a vector has a value in them.
/// exist_ok : bool
///     If the index exists already: whether to open it unchanged instead of raising
///     FileExistsError. The existing index must have this dimension, dtype and metric, and these
///     columns; otherwise a ValueError names the difference. The other arguments of a build apply
///     only to a new index. If several processes make this call at the same time, one process
///     creates the index, and the other processes wait for up to ten seconds.
/// memory, io, cache, cache_entries, durability, merges, watch_recall
///     As in `open`. These arguments apply to a new index and to an index that existed already.
///
/// Returns
/// -------
/// Index
///     The open index. A new index has length 0 and a `build_report`. An index that existed already
///     has no report.
#[pyfunction]
#[pyo3(signature = (path, *, dimension, dtype=None, columns=None, metric="l2", preset="stratann", degree=None, build_list=100, alpha=1.2,
    code_bytes=None, low_codes=None, codebook=None, order=None, layout=None, compression=None, chunk=None, segment=None, navigation=0.01,
    search_memory=None, cluster_size=None, replicas=None, seed=42, overwrite=false, exist_ok=false, place=None,
    memory=None, io="auto", cache=None, cache_entries=None, durability=None, merges=true, watch_recall=None),
    text_signature = "(path, *, dimension, dtype='float32', columns=None, metric='l2', preset='stratann', degree=None, build_list=100, alpha=1.2, code_bytes=None, low_codes=None, codebook=None, order=None, layout=None, compression=None, chunk=None, segment=None, navigation=0.01, search_memory=None, cluster_size=None, replicas=None, seed=42, overwrite=False, exist_ok=False, place=None, memory=None, io='auto', cache=None, cache_entries=None, durability=None, merges=True, watch_recall=None)")]
#[expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of the Python function"
)]
pub fn create<'py>(
    py: Python<'py>,
    path: PathBuf,
    dimension: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    columns: Option<&Bound<'py, PyAny>>,
    metric: &str,
    preset: &str,
    #[pyo3(from_py_with = crate::arguments::count_or_none::degree)] degree: Option<usize>,
    #[pyo3(from_py_with = crate::arguments::count::build_list)] build_list: usize,
    alpha: f32,
    #[pyo3(from_py_with = crate::arguments::count_or_none::code_bytes)] code_bytes: Option<usize>,
    low_codes: Option<&str>,
    codebook: Option<PathBuf>,
    order: Option<&str>,
    layout: Option<&str>,
    compression: Option<&str>,
    chunk: Option<&Bound<'py, PyAny>>,
    segment: Option<&Bound<'py, PyAny>>,
    navigation: f64,
    search_memory: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = crate::arguments::count_or_none::cluster_size)] cluster_size: Option<
        usize,
    >,
    #[pyo3(from_py_with = crate::arguments::count_or_none::replicas)] replicas: Option<usize>,
    #[pyo3(from_py_with = crate::arguments::count::seed)] seed: usize,
    overwrite: bool,
    exist_ok: bool,
    place: Option<&Bound<'py, PyAny>>,
    memory: Option<&Bound<'py, PyAny>>,
    io: &str,
    cache: Option<&Bound<'py, PyAny>>,
    cache_entries: Option<&Bound<'py, PyAny>>,
    durability: Option<&Bound<'py, PyAny>>,
    merges: bool,
    #[pyo3(from_py_with = crate::arguments::count_or_none::watch_recall)] watch_recall: Option<
        usize,
    >,
) -> PyResult<Index> {
    let path = named_path(path, "index")?;
    let dimension = dimension_of(dimension)?;
    let element = dtype.map_or(Ok(Element::F32), element_of)?;
    let columns = columns.map_or(Ok(Schema::default()), schema_of)?;
    if exist_ok && overwrite {
        return Err(PyValueError::new_err(
            "exist_ok and overwrite are both given; the first keeps an existing index, the second replaces it. Pass one of them",
        ));
    }
    let shape = Shape {
        metric,
        preset,
        degree,
        build_list,
        alpha,
        code_bytes,
        low_codes,
        codebook,
        order,
        layout,
        compression,
        chunk,
        segment,
        navigation,
        search_memory,
        cluster_size,
        replicas,
        seed,
        overwrite,
        place,
    };
    let options = shape.options()?;
    let opening = Opening {
        memory,
        io,
        cache,
        cache_entries,
        navigation: None,
        place,
        durability,
        merges,
        watch_recall,
    };
    opening.check()?;
    let budget = bytes(memory)?;
    if budget.is_some() && (overwrite || !path.join(MANIFEST).exists()) {
        let folder = match path.parent().map(tempfile::tempdir_in) {
            Some(Ok(beside)) => beside,
            _ => tempfile::tempdir()?,
        };
        check_memory(py, folder.path(), element, dimension, &options, budget)?;
    }
    let report = run(py, &Listener::new(None)?, |progress| match exist_ok {
        true => stratann::create_if_absent(&path, element, dimension, &columns, &options, progress),
        false => {
            stratann::create_with_columns(&path, element, dimension, &columns, &options, progress)
                .map(Some)
        }
    })?;
    let report = report.map(|report| to_dict(py, &report)).transpose()?;
    let report = report.map(Bound::unbind);
    let index = opening.open(py, path, report)?;
    let there = index.schema(py)?;
    there.check_has(&columns, &index.path).map_err(to_python)?;
    Ok(index)
}

fn schema_of(given: &Bound<'_, PyAny>) -> PyResult<Schema> {
    let wrong = || {
        PyTypeError::new_err(
            "columns is of another type. Pass a dict of names and types, such as {\"year\": \"integer\"}",
        )
    };
    let given: BTreeMap<String, Bound<'_, PyAny>> = given.extract().map_err(|_| wrong())?;
    let mut columns = Vec::with_capacity(given.len());
    for (name, kind) in &given {
        // A Python type stands for its name: `float` is accepted, and for `int` the error suggests
        // "integer".
        let asked = kind
            .extract::<String>()
            .or_else(|_| kind.getattr("__name__")?.extract());
        let asked: String = asked.unwrap_or_default();
        match column_type(&asked) {
            Ok(found) => columns.push((name.as_str(), found)),
            Err(error) => {
                return Err(PyValueError::new_err(format!(
                    "columns has {name:?} of type {}; {error}",
                    kind.repr()?
                )));
            }
        }
    }
    Schema::of(columns).map_err(to_python)
}

/// Refuses a budget that is too small for an empty index in `folder`, before the build, which may
/// replace an old index.
pub fn check_memory(
    py: Python<'_>,
    folder: &Path,
    element: Element,
    dimension: usize,
    options: &BuildOptions,
    memory: Option<u64>,
) -> PyResult<()> {
    let trial = folder.join("trial.idx");
    let options = BuildOptions {
        overwrite: false,
        places: Places::default(),
        ..options.clone()
    };
    let open = OpenOptions {
        memory,
        ..OpenOptions::default()
    };
    let tried = py.detach(|| {
        stratann::create(&trial, element, dimension, &options, &Silent)?;
        stratann::Index::open(&trial, &open).map(drop)
    });
    tried.map_err(to_python)
}

fn dimension_of(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    let number = match value.is_instance_of::<PyBool>() {
        true => Err(PyTypeError::new_err("")),
        false => value.extract::<usize>(),
    };
    match number {
        Ok(number) if (1..=MOST).contains(&number) => Ok(number),
        Err(error) if !error.is_instance_of::<PyOverflowError>(value.py()) => {
            let kind = value.get_type().name()?;
            Err(PyTypeError::new_err(format!(
                "dimension is a {kind}; it is a number of elements. Pass an int from 1 to {MOST}"
            )))
        }
        _ => Err(PyValueError::new_err(format!(
            "dimension is {}; a vector has 1 to {MOST} elements. Pass a number in this range",
            value.str()?
        ))),
    }
}

fn element_of(dtype: &Bound<'_, PyAny>) -> PyResult<Element> {
    let numpy = dtype.py().import("numpy")?;
    let name: String = match numpy.call_method1("dtype", (dtype,)) {
        Ok(known) => known.getattr("name")?.extract()?,
        Err(_) => dtype.repr()?.to_string(),
    };
    let found = ELEMENTS.into_iter().find(|&one| dtype_name(one) == name);
    found.ok_or_else(|| {
        let names = ELEMENTS.map(dtype_name).join(", ");
        PyValueError::new_err(format!(
            "dtype is {name}; an index has other element types. Use one of: {names}"
        ))
    })
}
