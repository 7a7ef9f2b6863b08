//! `stratann.build` and `stratann.train`, and the sources of their vectors.

use std::path::PathBuf;

use pyo3::exceptions::PyFileExistsError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use stratann::{
    BuildOptions, Codebook, Element, Error, NoRows, OpenOptions, TrainOptions, VectorFile,
    VectorSource,
};

use crate::arguments::{
    existing, memory as bytes, named, named_path, path as as_path, shown, size,
    threads as thread_count,
};
use crate::arrays::{self, Rows};
use crate::attributes::Table;
use crate::errors::to_python;
use crate::index::{Index, to_dict};
use crate::opening::Opening;
use crate::progress::{Listener, run};
use crate::shape::{SPACE, Shape};

/// The memory cap less the bytes of the attribute rows that are in memory during a build.
fn beside_rows(memory: Option<u64>, rows: Option<&Table>) -> PyResult<Option<u64>> {
    let (Some(budget), Some(rows)) = (memory, rows) else {
        return Ok(memory);
    };
    let held = rows.memory_bytes();
    match budget.checked_sub(held) {
        Some(left) => Ok(Some(left)),
        None => Err(to_python(Error::Memory {
            budget,
            needs: held,
            part: "attributes and payload alone, which are in memory while the index is built (`stratann build --attributes FILE` reads them from a file)"
                .into(),
        })),
    }
}

/// Vectors from a user: a file, which is streamed, or an array, which is borrowed.
pub enum Vectors<'py> {
    File(VectorFile),
    Array(Rows<'py>),
}

impl<'py> Vectors<'py> {
    /// `name`: the argument's name in the caller's signature. Arrays are converted to the wanted
    /// element type, if one is given.
    pub fn new(
        value: &Bound<'py, PyAny>,
        name: &'static str,
        wanted: Option<Element>,
    ) -> PyResult<Self> {
        if let Some(path) = as_path(value) {
            let path = existing(path, "file")?;
            return Ok(Self::File(VectorFile::open(&path).map_err(to_python)?));
        }
        Ok(Self::Array(Rows::matrix(value, name, wanted)?))
    }

    /// Calls `work` with the vectors for the engine.
    pub fn with<T>(&self, work: impl FnOnce(&dyn VectorSource) -> PyResult<T>) -> PyResult<T> {
        match self {
            Self::File(file) => work(file),
            Self::Array(rows) => work(&rows.source()?),
        }
    }

    /// As [`new`](Self::new), for the vectors of a build, which may be none.
    fn even_none(value: &Bound<'py, PyAny>, name: &'static str) -> PyResult<Self> {
        if let Some(path) = as_path(value) {
            let path = existing(path, "file")?;
            let file = VectorFile::open_even_empty(&path).map_err(to_python)?;
            return Ok(Self::File(file));
        }
        Ok(Self::Array(Rows::matrix(value, name, None)?))
    }

    /// As [`with`](Self::with), for vectors that may be none.
    fn with_even_none<T>(
        &self,
        work: impl FnOnce(&dyn VectorSource) -> PyResult<T>,
    ) -> PyResult<T> {
        match self {
            Self::Array(rows) if rows.rows() == 0 => work(&NoRows::new(rows.element(), rows.dim())),
            _ => self.with(work),
        }
    }

    /// Their element type.
    pub fn element(&self) -> Element {
        match self {
            Self::File(file) => file.element(),
            Self::Array(rows) => rows.element(),
        }
    }

    fn rows(&self) -> usize {
        match self {
            Self::File(file) => file.rows(),
            Self::Array(rows) => rows.rows(),
        }
    }
}

/// Builds an index of `base` in the new folder `path`, and opens it.
///
/// Parameters
/// ----------
/// base : str, os.PathLike or array-like
///     A vector file (.fbin .u8bin .i8bin .hbin .fvecs .bvecs .npy), which is streamed, or vectors, (n, d): a C-contiguous array of
///     float32, float16, uint8 or int8 is read in place (do not write to it until this returns); other numbers, lists and columns of
///     pandas, polars and pyarrow are converted to float32, which takes memory beyond the cap. An array of no rows, (0, d), makes an index
///     without vectors, as `create` does.
/// path : str or os.PathLike
///     The folder of the index. Nothing that opens is there before the build has succeeded.
/// metric : str
///     "l2" (squared Euclidean distance), "ip" (minus the inner product) or "cosine" (1 - cos). Smaller is nearer.
/// preset : str
///     "stratann", or a published system's choices: "diskann", "pipeann", "aisaq", "decouplevs", "odinann"; of clusters instead of
///     a graph "spann" (on SSD) and "tiered-cluster" (on memory that is slower than DRAM).
/// degree, build_list, alpha
///     R, L and alpha of the Vamana graph; a degree of None is 64, or with `search_memory` what fills the blocks.
/// code_bytes : int, optional
///     Bytes of a vector's compressed code, which search keeps in RAM; None lets the engine choose.
/// low_codes : str, optional
///     With the preset "distvs", whose codes are of two precisions: "nested" (the low code is the first half of the high one) or "separate" (a code by itself, half as
///     long, which takes memory besides). `code_bytes` are those of the high code. None takes the preset's, "nested".
/// codebook : str or os.PathLike, optional
///     The file that `stratann.train` wrote, instead of a codebook of the index's own. Indexes in a `Catalog` that
///     have the same share it in RAM.
/// order : str, optional
///     "locality" or "input": in which order nodes lie on disk; None takes the preset's.
/// layout : str, optional
///     "coupled" (vector and list side by side, as they are), "packed" (side by side, compressed), "decoupled"
///     (lists and vectors apart, compressed), "inline" (as coupled, with the neighbours' codes) or "layered"
///     (compressed lists beside the leading parts of vectors, by which a search ranks; trailing parts in segments). Of clusters:
///     "replicated" (each vector in every cluster that it is in), "addressed" (each once) or "grouped" (each once, by cluster).
///     None takes the preset's, which may go by the vectors: "stratann" takes "packed" for small
///     ones, and for large ones "layered", or "decoupled" where they are not fit for that.
/// compression : str, optional
///     "raw", "paper" (DecoupleVS) or "best", always without loss; None takes the preset's. "coupled" and "inline"
///     know only "raw", and "layered" codes vectors in two parts whatever this says.
/// chunk : int or str, optional
///     Uncompressed size of a chunk of vectors where these, or their trailing parts, are apart from the lists: bytes,
///     or "1MiB"; None is 4 MiB.
/// segment : int or str, optional
///     Uncompressed size of a segment of vectors, which is compressed as one; None is 512 MiB.
/// navigation : float
///     Share of the vectors sampled into the navigation graph, 0 for none.
/// memory : int or str, optional
///     A cap on the build's memory: bytes, or "2GiB". `attributes` and `payload`, which are in memory meanwhile, count.
/// search_memory : int or str, optional
///     What searches will have: bytes, or "10MB". Where it cannot hold all codes, "stratann" puts them into the nodes
///     on storage; of large vectors it says whether they are kept in two parts or whole.
/// space : int or str, optional
///     The most bytes that the index may take: the degree is the largest of 16 to 96 with which it is expected to fit.
///     Not together with `degree`.
/// cluster_size : int, optional
///     Vectors for each cluster, about, in a layout of clusters; None is 12 if they are replicated, else 32.
/// replicas : int, optional
///     The most clusters that a vector is a member of; None is 8.
/// query_log : str or os.PathLike, optional
///     A file of queries, as they come: in the "grouped" layout each vector stands in the group of the cluster that these probe most.
/// calibrate : bool
///     Whether it is measured how much searches find with which list, for `Index.search(..., recall=...)`; of fewer than 5,000 vectors it is not.
/// threads : int, optional
///     None is one for each core. With 1 the same seed gives the same index.
/// overwrite : bool
///     Whether an index at `path` may be replaced, once the new one is complete.
/// resume : bool
///     Keep savepoints in the folder of the index, and go on from those that a call with the same vectors and arguments left when it
///     was interrupted, failed, or its process was killed. Costs a pass over the vectors, and the bytes of the graph for each
///     savepoint.
/// savepoint_seconds : float
///     With `resume`: seconds of work between two savepoints of the graph, at least; 0 is as often as there can be one.
/// place : dict or str, optional
///     On which tier each role ("topology", "vectors") is read: {"topology": "mapped:/dev/shm/x", "vectors": "ssd:/mnt/b"}, or the same as
///     "topology=mapped:/dev/shm/x,vectors=ssd:/mnt/b". Tiers are "ssd" (where the index is), "ssd:/folder" and "mapped:/folder"; those in the
///     memory of a process are for `open`. Copies are made when the index is built, and it is opened on them.
/// ids : array-like of int, optional
///     (n,) integers from 0 to 2^64 - 2 by which search names the vectors; None takes the row numbers.
/// attributes : dict, list of dict, or table, optional
///     What filters ask for: a dict of columns with a value for each vector, a list of a dict for each, or a DataFrame or Table of pandas, polars
///     or pyarrow. A value is a bool, an int of 64 bits, a float, a str (up to 32 KiB), a datetime, or a list of str or of int; None, NaN and an empty
///     list are none. A column has one type, and there may be 1,024. They are in memory during the build.
/// payload : list, optional
///     Anything that JSON can say, up to 64 KiB of it, or None, for each vector: `Index.payload` gives it back, and nothing looks into it.
/// watch_recall : int, optional
///     As that of `open`, for the index that is returned.
/// progress : bool or callable, optional
///     True draws a bar on standard error; a callable is called with (stage, done, total), once with
///     done == total when a stage is complete. A total of 0 is unknown.
///
/// Returns
/// -------
/// Index
///     Open, with `build_report`. Ctrl-C stops the build and leaves nothing behind but, with `resume`, its savepoints
///     (`stratann.Interrupted`).
#[pyfunction]
#[pyo3(signature = (base, path, *, metric="l2", preset="stratann", degree=None, build_list=100, alpha=1.2,
    code_bytes=None, low_codes=None, codebook=None, order=None, layout=None, compression=None, chunk=None, segment=None, navigation=0.01,
    memory=None, search_memory=None, space=None, cluster_size=None, replicas=None, query_log=None, calibrate=true, threads=None, seed=42, overwrite=false, resume=false,
    savepoint_seconds=120.0, place=None, ids=None, attributes=None, payload=None, watch_recall=None, progress=None))]
#[expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of the Python function"
)]
pub fn build<'py>(
    py: Python<'py>,
    base: &Bound<'py, PyAny>,
    path: PathBuf,
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
    memory: Option<&Bound<'py, PyAny>>,
    search_memory: Option<&Bound<'py, PyAny>>,
    space: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = crate::arguments::count_or_none::cluster_size)] cluster_size: Option<
        usize,
    >,
    #[pyo3(from_py_with = crate::arguments::count_or_none::replicas)] replicas: Option<usize>,
    query_log: Option<PathBuf>,
    calibrate: bool,
    #[pyo3(from_py_with = crate::arguments::count_or_none::threads)] threads: Option<usize>,
    #[pyo3(from_py_with = crate::arguments::count::seed)] seed: usize,
    overwrite: bool,
    resume: bool,
    savepoint_seconds: f64,
    place: Option<&Bound<'py, PyAny>>,
    ids: Option<&Bound<'py, PyAny>>,
    attributes: Option<&Bound<'py, PyAny>>,
    payload: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = crate::arguments::count_or_none::watch_recall)] watch_recall: Option<
        usize,
    >,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Index> {
    let path = named_path(path, "index")?;
    let opening = Opening {
        watch_recall,
        ..Opening::at(place)
    };
    opening.check()?;
    let vectors = Vectors::even_none(base, "base")?;
    let ids = ids
        .map(|ids| arrays::ids(ids, Some(vectors.rows())))
        .transpose()?;
    let table = Table::of(py, attributes, payload, vectors.rows(), false, None)?;
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
    let options = BuildOptions {
        memory: beside_rows(bytes(memory)?, table.as_ref())?,
        space: size(space, "space", SPACE)?,
        query_log: query_log.map(|path| existing(path, "file")).transpose()?,
        calibrate,
        threads: thread_count(threads)?,
        ids,
        resume,
        savepoint_seconds,
        ..shape.options()?
    };
    let listener = Listener::new(progress)?;
    let report = vectors.with_even_none(|source| {
        run(py, &listener, |progress| match &table {
            Some(table) => stratann::build_with_rows(source, table, &path, &options, progress),
            None => stratann::build(source, &path, &options, progress),
        })
    })?;
    let report = to_dict(py, &report)?.unbind();
    opening.open(py, path, Some(report))
}

/// Whether a build that replaces nothing may begin in the folder `path`: nothing is there, or only the files of a first build that has no index yet.
#[pyfunction]
pub fn is_vacant(py: Python<'_>, path: PathBuf) -> PyResult<bool> {
    py.detach(|| stratann::is_vacant(path)).map_err(to_python)
}

/// Says what a build will take in memory and on storage, by the sizes of the vectors and samples of them. Nothing is written.
///
/// Parameters
/// ----------
/// base, metric, preset, degree, build_list, code_bytes, order, layout, compression, navigation, memory, search_memory, space, cluster_size, replicas, threads
///     As those of `build`.
/// attributes, payload
///     As `build` takes them. A sample of them is written to the folder of temporary files, and removed.
///
/// Returns
/// -------
/// dict
///     In bytes: "memory" of the process without a cap, "least_memory", the smallest `memory` that
///     will do (both with `attributes` and `payload`, which are in memory meanwhile); "storage" of
///     the index (of clusters the most), and its part for columns and payloads, "attributes";
///     "scratch" beside it meanwhile; "search_memory", the least for searches; "raw_bytes" of the
///     vectors. "in_parts": whether the graph would be built in parts under `memory`. "vectors",
///     "dimension", "element", "layout", "degree" and "code_bytes".
#[pyfunction]
#[pyo3(signature = (base, *, metric="l2", preset="stratann", degree=None, build_list=100, code_bytes=None, order=None, layout=None,
    compression=None, navigation=0.01, memory=None, search_memory=None, space=None, cluster_size=None, replicas=None, threads=None,
    attributes=None, payload=None))]
#[expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of the Python function"
)]
pub fn plan<'py>(
    py: Python<'py>,
    base: &Bound<'py, PyAny>,
    metric: &str,
    preset: &str,
    #[pyo3(from_py_with = crate::arguments::count_or_none::degree)] degree: Option<usize>,
    #[pyo3(from_py_with = crate::arguments::count::build_list)] build_list: usize,
    #[pyo3(from_py_with = crate::arguments::count_or_none::code_bytes)] code_bytes: Option<usize>,
    order: Option<&str>,
    layout: Option<&str>,
    compression: Option<&str>,
    navigation: f64,
    memory: Option<&Bound<'py, PyAny>>,
    search_memory: Option<&Bound<'py, PyAny>>,
    space: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = crate::arguments::count_or_none::cluster_size)] cluster_size: Option<
        usize,
    >,
    #[pyo3(from_py_with = crate::arguments::count_or_none::replicas)] replicas: Option<usize>,
    #[pyo3(from_py_with = crate::arguments::count_or_none::threads)] threads: Option<usize>,
    attributes: Option<&Bound<'py, PyAny>>,
    payload: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let vectors = Vectors::even_none(base, "base")?;
    let table = Table::of(py, attributes, payload, vectors.rows(), false, None)?;
    let options = BuildOptions {
        preset: named(preset, "preset")?,
        metric: named(metric, "metric")?,
        degree,
        build_list,
        code_bytes,
        order: order.map(|order| named(order, "order")).transpose()?,
        layout: layout.map(|layout| named(layout, "layout")).transpose()?,
        compression: compression
            .map(|compression| named(compression, "compression"))
            .transpose()?,
        navigation,
        memory: beside_rows(bytes(memory)?, table.as_ref())?,
        search_memory: size(search_memory, "search_memory", "enough for all codes")?,
        space: size(space, "space", SPACE)?,
        cluster_size,
        replicas,
        threads: thread_count(threads)?,
        ..BuildOptions::default()
    };
    let listener = Listener::new(None)?;
    let mut plan = vectors.with_even_none(|source| match &table {
        Some(table) => run(py, &listener, |progress| {
            stratann::plan_build_with_rows(source, table, &options, progress)
        }),
        None => stratann::plan_build(source, &options).map_err(to_python),
    })?;
    let held = table.map_or(0, |table| table.memory_bytes());
    plan.memory += held;
    plan.least_memory += held;
    to_dict(py, &plan)
}

/// Measures how much searches of the index at `path` find with which list size, by how far the k-th answer is; `Index.search(..., recall=...)` of those who open the
/// index from then on goes by it. A build has done so with vectors of its own; queries like those to come are better.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     The folder of the index, which nobody may be changing meanwhile.
/// queries : str, os.PathLike or array-like, optional
///     A file of queries or (n, d), of the index's dtype; up to 10,000 of them are searched. None takes vectors of the index, each as if it
///     were not there, and vectors made of these.
/// memory : int or str, optional
///     A cap in bytes, as that of `open`.
/// threads : int, optional
///     None is one for each core.
/// progress : bool or callable, optional
///     As that of `build`.
///
/// Returns
/// -------
/// dict
///     "queries", and "recalls": pairs of a list size and the mean recall@10 with it.
#[pyfunction]
#[pyo3(signature = (path, queries=None, *, memory=None, threads=None, progress=None))]
pub fn calibrate<'py>(
    py: Python<'py>,
    path: PathBuf,
    queries: Option<&Bound<'py, PyAny>>,
    memory: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = crate::arguments::count_or_none::threads)] threads: Option<usize>,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let path = existing(path, "index")?;
    let threads = thread_count(threads)?;
    let open = OpenOptions {
        memory: bytes(memory)?,
        ..OpenOptions::default()
    };
    let element = stratann::Index::open(&path, &open)
        .map_err(to_python)?
        .element();
    let queries = queries
        .map(|queries| Vectors::new(queries, "queries", Some(element)))
        .transpose()?;
    let listener = Listener::new(progress)?;
    let measured = |source: Option<&dyn VectorSource>| {
        run(py, &listener, |progress| {
            stratann::calibrate(&path, &open, source, threads, progress)
        })
    };
    let found = match &queries {
        None => measured(None)?,
        Some(queries) => queries.with(|source| measured(Some(source)))?,
    };
    to_dict(py, &found)
}

/// Trains a codebook for indexes that are to share one, and writes it to the file `path`.
///
/// Parameters
/// ----------
/// base : str, os.PathLike or array-like
///     As that of `build`; an even sample of up to 100,000 vectors is used, fewer of more than 128 dimensions.
/// path : str or os.PathLike
///     The file to write, for `build(..., codebook=path)`.
/// code_bytes : int, optional
///     Bytes of a vector's compressed code; None is a quarter of the dimensions.
/// low_codes : str, optional
///     For indexes with codes of two precisions, as of the preset "distvs": "nested" or "separate", as that of `build`. `code_bytes` are those of the high code.
/// metric : str
///     That of the indexes: under "cosine", vectors are normalised.
/// threads : int, optional
///     None is one for each core. The codebook does not depend on them.
/// overwrite : bool
///     Whether a file that is there may be replaced.
/// progress : bool or callable, optional
///     As that of `build`.
///
/// Returns
/// -------
/// dict
///     "hash" (of the content, by which indexes that share a codebook know it), "dimension" and "code_bytes".
#[pyfunction]
#[pyo3(signature = (base, path, *, code_bytes=None, low_codes=None, metric="l2", threads=None, seed=42, overwrite=false, progress=None))]
#[expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of the Python function"
)]
pub fn train<'py>(
    py: Python<'py>,
    base: &Bound<'py, PyAny>,
    path: PathBuf,
    #[pyo3(from_py_with = crate::arguments::count_or_none::code_bytes)] code_bytes: Option<usize>,
    low_codes: Option<&str>,
    metric: &str,
    #[pyo3(from_py_with = crate::arguments::count_or_none::threads)] threads: Option<usize>,
    #[pyo3(from_py_with = crate::arguments::count::seed)] seed: usize,
    overwrite: bool,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let path = named_path(path, "codebook")?;
    let vectors = Vectors::new(base, "base", None)?;
    if !overwrite && path.symlink_metadata().is_ok() {
        return Err(PyFileExistsError::new_err(format!(
            "{}: it exists: choose another name, or pass overwrite=True",
            shown(&path)
        )));
    }
    let options = TrainOptions {
        metric: named(metric, "metric")?,
        code_bytes,
        threads: thread_count(threads)?,
        seed: seed as u64,
        low_codes: low_codes
            .map(|low_codes| named(low_codes, "low_codes"))
            .transpose()?,
    };
    let listener = Listener::new(progress)?;
    let codebook = vectors.with(|source| {
        run(py, &listener, |progress| {
            let codebook = Codebook::train(source, &options, progress)?;
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            codebook.write(&path)?;
            Ok(codebook)
        })
    })?;
    let facts = PyDict::new(py);
    facts.set_item("hash", codebook.hash())?;
    facts.set_item("dimension", codebook.dim())?;
    facts.set_item("code_bytes", codebook.code_bytes())?;
    Ok(facts)
}
