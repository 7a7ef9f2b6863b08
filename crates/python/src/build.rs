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

/// The bytes of attributes and payloads, which stay in memory during a build.
fn held(rows: Option<&Table>) -> u64 {
    rows.map_or(0, Table::memory_bytes)
}

/// The error of a memory budget from which the engine got all but the bytes of attributes and
/// payloads, `held`. It names the budget that the caller gave, and the smallest that suffices.
fn with_rows(error: Error, budget: Option<u64>, held: u64) -> Error {
    match (error, budget) {
        // Another budget may be the one for searches.
        (
            Error::Memory {
                budget: given,
                needs,
                part,
            },
            Some(budget),
        ) if held > 0 && given == budget.saturating_sub(held) => Error::Memory {
            budget,
            needs: needs.saturating_add(held),
            part: format!(
                "{part}, with {held} bytes of attributes and payload, which stay in memory during the build (`stratann build --attributes FILE` reads them from a file)"
            ),
        },
        (error, _) => error,
    }
}

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

    pub fn with<T>(&self, work: impl FnOnce(&dyn VectorSource) -> PyResult<T>) -> PyResult<T> {
        match self {
            Self::File(file) => work(file),
            Self::Array(rows) => work(&rows.source()?),
        }
    }

    /// Does the same as [`new`](Self::new), but accepts a source without vectors.
    fn even_none(value: &Bound<'py, PyAny>, name: &'static str) -> PyResult<Self> {
        if let Some(path) = as_path(value) {
            let path = existing(path, "file")?;
            let file = VectorFile::open_even_empty(&path).map_err(to_python)?;
            return Ok(Self::File(file));
        }
        Ok(Self::Array(Rows::matrix(value, name, None)?))
    }

    /// Does the same as [`with`](Self::with), but accepts a source without vectors.
    fn with_even_none<T>(
        &self,
        work: impl FnOnce(&dyn VectorSource) -> PyResult<T>,
    ) -> PyResult<T> {
        match self {
            Self::Array(rows) if rows.rows() == 0 => work(&NoRows::new(rows.element(), rows.dim())),
            _ => self.with(work),
        }
    }

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
///     A vector file (.fbin .u8bin .i8bin .hbin .fvecs .bvecs .npy), which the build never loads as
///     a whole, or an array of vectors, (n, d). A C-contiguous array of float32, float16, uint8 or
///     int8 is read in place: do not write to it until this call returns. Other numbers, lists, and
///     columns of pandas, polars and pyarrow are converted to float32. The converted copy does not
///     count towards `memory`. An array without rows, (0, d), makes an index without vectors, as
///     `create` does.
/// path : str or os.PathLike
///     The folder of the index. The new index can be opened once the build has succeeded.
/// metric : str
///     "l2" (squared Euclidean distance), "ip" (minus the inner product) or "cosine" (1 - cos).
///     Smaller is nearer.
/// preset : str
///     "stratann", or a published system: "diskann", "pipeann", "aisaq", "decouplevs", "odinann",
///     "tiered-graph" (for memory that is slower than DRAM) or "distvs" (for servers). "spann" (for
///     SSDs) and "tiered-cluster" (for memory that is slower than DRAM) build clusters instead of a
///     graph.
/// degree, build_list, alpha
///     R, L and alpha of the Vamana graph. A `degree` of None is 64. If the codes are stored in the
///     nodes because of `search_memory`, None is the largest degree that fits into the storage
///     blocks of a node.
/// code_bytes : int, optional
///     The bytes of a vector's product-quantised code, which searches keep in RAM. None is a
///     quarter of the dimension.
/// low_codes : str, optional
///     For the preset "distvs", in which each vector has a low and a high code: codes of low and
///     high precision. "nested": the low code is the first half of the high code. "separate": the
///     low code is independent, half as long as the high code, and takes additional memory.
///     `code_bytes` is the length of the high code. None takes the preset's value, "nested".
/// codebook : str or os.PathLike, optional
///     A file that `stratann.train` wrote. The build then trains no codebook. Indexes of a
///     `Catalog` with the same codebook share one copy in RAM.
/// order : str, optional
///     The order of the nodes on storage, "locality" or "input". None takes the preset's value.
/// layout : str, optional
///     The layout of a graph, or of clusters. None takes the preset's value. The preset "stratann"
///     takes "packed" for small vectors. For large vectors it takes "layered", or "decoupled" if
///     vectors in two parts would not save reads.
///     - "coupled": vector and list side by side, uncompressed;
///     - "packed": vector and list side by side, compressed;
///     - "decoupled": lists and vectors apart, compressed;
///     - "csr": vector and list side by side without padding, uncompressed;
///     - "inline": as "coupled", and beside each list the codes of the nodes in the list;
///     - "layered": each list, compressed, beside the leading part of its vector (the high bits),
///       by which a search ranks; the trailing parts (the low bits) apart, in segments;
///     - of clusters, "replicated": each vector in every cluster that it is a member of;
///     - of clusters, "addressed": each vector once, in the order of the input, and for each
///       cluster the node numbers of its vectors;
///     - of clusters, "grouped": each vector once, beside the other vectors of one of its clusters.
/// compression : str, optional
///     "raw", "paper" (DecoupleVS) or "best"; all are lossless. None takes the preset's value. The
///     layouts "coupled", "inline" and "csr" accept only "raw". With any compression, the layout
///     "layered" stores vectors in two parts.
/// chunk : int or str, optional
///     If vectors or trailing parts are stored apart from lists: the uncompressed size of a chunk
///     of them, in bytes, or as "1MiB". None is 4 MiB.
/// segment : int or str, optional
///     The uncompressed size of a segment of vectors. Each segment has one trained codec. None is
///     512 MiB.
/// navigation : float
///     The share of the vectors that the navigation graph has, as a sample. With 0, the index has
///     no navigation graph.
/// memory : int or str, optional
///     The maximum memory of the build: bytes, or "2GiB". `attributes` and `payload` stay in memory
///     during the build, and count.
/// search_memory : int or str, optional
///     The memory that searches will have: bytes, or "10MB". If this memory is too small for all
///     codes, the preset "stratann" stores the codes in the nodes. For large vectors, this memory
///     also decides whether each vector is stored whole or in two parts.
/// space : int or str, optional
///     The maximum bytes of the index on storage. The build chooses the largest degree from 16 to
///     96 with which it expects the index to fit. `space` cannot be combined with `degree`.
/// cluster_size : int, optional
///     In a layout of clusters: the approximate number of vectors per cluster. None is 12 in the
///     layout "replicated", else 32.
/// replicas : int, optional
///     In a layout of clusters: the maximum number of clusters that a vector is a member of. None
///     is 8.
/// query_log : str or os.PathLike, optional
///     For the layout "grouped": a file of recorded queries. Of the clusters of a vector, the one
///     that these queries probe most often then stores the vector.
/// calibrate : bool
///     Whether the build measures the recall that each list size reaches, for `Index.search(...,
///     recall=...)`. With fewer than 5,000 vectors, it measures nothing.
/// threads : int, optional
///     The number of threads. None is one for each core. With one thread, the same seed gives the
///     same index.
/// overwrite : bool
///     Whether the complete new index may replace an index at `path`.
/// resume : bool
///     Whether the build writes savepoints to the folder of the index. If an earlier call with the
///     same vectors and arguments was interrupted, failed or was killed, the build continues from
///     its savepoints. Savepoints cost one pass over the vectors, and each savepoint writes the
///     graph once.
/// savepoint_seconds : float
///     With `resume`: the minimum time between two savepoints of the graph, in seconds. With 0, the
///     build writes savepoints as often as possible.
/// place : dict or str, optional
///     The tier from which searches read each role ("topology", "vectors"): {"topology":
///     "mapped:/dev/shm/x", "vectors": "ssd:/mnt/b"}, or the text
///     "topology=mapped:/dev/shm/x,vectors=ssd:/mnt/b". Tiers are "ssd" (the index itself),
///     "ssd:/folder" and "mapped:/folder". For "dram" and other tiers in the memory of a process,
///     pass `place` to `open`. The build makes the copies, and the returned index reads them.
/// ids : array-like of int, optional
///     (n,) integers from 0 to 2^64 - 2, the ids of the vectors. None takes the row numbers.
/// attributes : dict, list of dict, or table, optional
///     Values for filters. A dict has columns with a value for each vector; a list has a dict for
///     each vector. A table of pandas, polars or pyarrow has a row for each vector. A value is a
///     bool, an int of 64 bits, a float, a str (up to 32 KiB), a datetime, or a list of str or of
///     int. None, NaN and an empty list mean that a vector has no value. All values of a column
///     have one type. An index has at most 1,024 columns. Attributes stay in memory during the
///     build.
/// payload : list, optional
///     A JSON value of up to 64 KiB, or None, for each vector. `Index.payload` returns it; filters
///     cannot use it.
/// watch_recall : int, optional
///     As in `open`, for the returned index.
/// progress : bool or callable, optional
///     True draws a progress bar on standard error. A callable is called with (stage, done, total),
///     and once with done == total when a stage is complete. A total of 0 is an unknown total.
///
/// Returns
/// -------
/// Index
///     The open index, with `build_report`. Ctrl-C stops the build (`stratann.Interrupted`) and
///     leaves no files except, with `resume`, the savepoints.
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
    let (budget, held) = (bytes(memory)?, held(table.as_ref()));
    let options = BuildOptions {
        memory: budget.map(|budget| budget.saturating_sub(held)),
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
        run(py, &listener, |progress| {
            let built = match &table {
                Some(table) => stratann::build_with_rows(source, table, &path, &options, progress),
                None => stratann::build(source, &path, &options, progress),
            };
            built.map_err(|error| with_rows(error, budget, held))
        })
    })?;
    let report = to_dict(py, &report)?.unbind();
    opening.open(py, path, Some(report))
}

/// Whether a build with overwrite=False may begin in the folder `path`: the folder does not exist,
/// is empty, or has only files of an unfinished first build.
#[pyfunction]
pub fn is_vacant(py: Python<'_>, path: PathBuf) -> PyResult<bool> {
    py.detach(|| stratann::is_vacant(path)).map_err(to_python)
}

/// Predicts the memory and the storage of a build, from the number and size of the vectors and from
/// samples. The call makes no index.
///
/// Parameters
/// ----------
/// base, metric, preset, degree, build_list, code_bytes, order, layout, compression, navigation,
/// memory, search_memory, space, cluster_size, replicas, threads
///     As in `build`.
/// attributes, payload
///     As in `build`. The call writes a sample of these rows to the folder of temporary files, and
///     removes it.
///
/// Returns
/// -------
/// dict
///     Bytes of memory: "memory" (of a build without a cap), "least_memory" (the smallest `memory`
///     that suffices for a build) and "search_memory" (the smallest `memory` that suffices for
///     searches). "memory" and "least_memory" include `attributes` and `payload`. Bytes of storage:
///     "storage" (the index; for clusters an upper bound), "attributes" (the part of "storage" for
///     columns and payloads), "scratch" (temporary files during the build) and "raw_bytes" (the
///     uncompressed vectors). "in_parts" is True if `memory` is so small that the build would make
///     the graph in parts. The other keys are "vectors", "dimension", "element", "layout", "degree"
///     and "code_bytes".
///
///     "memory" and "least_memory" include the memory that this process uses already, such as
///     Python, its modules and your arrays. So `stratann plan` prints less for the same build. If
///     the process grows before a build, the build needs more than planned.
///
/// Raises
/// ------
/// ValueError
///     An argument is wrong, or `memory` is less than "least_memory".
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
    let (budget, held) = (bytes(memory)?, held(table.as_ref()));
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
        memory: budget.map(|budget| budget.saturating_sub(held)),
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
            let plan = stratann::plan_build_with_rows(source, table, &options, progress);
            plan.map_err(|error| with_rows(error, budget, held))
        }),
        None => stratann::plan_build(source, &options).map_err(to_python),
    })?;
    let least = plan.least_memory;
    plan.memory += held;
    plan.least_memory += held;
    match budget {
        Some(given) if given < plan.least_memory => {
            let error = Error::Memory {
                budget: given.saturating_sub(held),
                needs: least,
                part: "the build".to_owned(),
            };
            Err(to_python(with_rows(error, budget, held)))
        }
        Some(_) | None => to_dict(py, &plan),
    }
}

/// Measures the recall that searches of the index at `path` reach with each list size.
/// `Index.search(..., recall=...)` uses these numbers in every process that opens the index later.
/// A build makes the same measurement, as `queries=None` does. Typical queries of your own give
/// better numbers.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     The folder of the index. No process may change the index during the call.
/// queries : str, os.PathLike or array-like, optional
///     A file of queries, or an array (n, d) of the index's dtype. There must be at least 100
///     queries; at most 10,000 are used. With None, the queries are vectors of the index, and a
///     search for a vector leaves this vector out. In most graph indexes, None also makes queries:
///     a vector plus 0.2, 0.35 or 0.5 times the difference of two other vectors.
/// memory : int or str, optional
///     The maximum memory, as in `open`.
/// threads : int, optional
///     The number of threads. None is one for each core.
/// progress : bool or callable, optional
///     As in `build`.
///
/// Returns
/// -------
/// dict
///     "queries" (their number), and "recalls": pairs of a list size and the mean recall@10 at this
///     size.
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
        unpack: false,
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

/// Trains a codebook that several indexes can share, and writes it to the file `path`.
///
/// Parameters
/// ----------
/// base : str, os.PathLike or array-like
///     As in `build`. Training uses a sample of up to 100,000 vectors, spread evenly over the
///     input. If the vectors have more than 128 dimensions, the sample is smaller.
/// path : str or os.PathLike
///     The file to write, for `build(..., codebook=path)`.
/// code_bytes : int, optional
///     The bytes of a vector's product-quantised code. None is a quarter of the dimension.
/// low_codes : str, optional
///     For indexes with the preset "distvs": "nested" or "separate", as in `build`. `code_bytes` is
///     then the length of the high code.
/// metric : str
///     The metric of the indexes. Under "cosine", vectors are normalised.
/// threads : int, optional
///     The number of threads. None is one for each core. The codebook does not depend on this
///     number.
/// overwrite : bool
///     Whether to replace an existing file.
/// progress : bool or callable, optional
///     As in `build`.
///
/// Returns
/// -------
/// dict
///     "hash" (of the codebook's contents; in a `Catalog`, indexes with the same hash share the
///     codebook), "dimension" and "code_bytes".
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
            "{}: the file exists already. Choose another name, or pass overwrite=True",
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
