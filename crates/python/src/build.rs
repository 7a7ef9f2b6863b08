//! `stratann.build` and `stratann.train`, and where their vectors come from.

use std::path::PathBuf;

use pyo3::exceptions::PyFileExistsError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use stratann::{
    BuildOptions, Codebook, Error, OpenOptions, TrainOptions, VectorFile, VectorSource,
};

use crate::arguments::{
    existing, memory as bytes, named, named_path, path as as_path, places, shown, size,
    threads as thread_count,
};
use crate::arrays::{self, Rows};
use crate::errors::to_python;
use crate::index::{Changes, Index, to_dict};
use crate::progress::{Listener, run};

/// Vectors as a user passes them: a file, which is streamed, or an array, which is borrowed.
pub enum Vectors<'py> {
    File(VectorFile),
    Array(Rows<'py>),
}

impl<'py> Vectors<'py> {
    /// `name` is what the caller's signature calls the argument.
    pub fn new(value: &Bound<'py, PyAny>, name: &'static str) -> PyResult<Self> {
        if let Some(path) = as_path(value) {
            let path = existing(path, "file")?;
            return Ok(Self::File(VectorFile::open(&path).map_err(to_python)?));
        }
        Ok(Self::Array(Rows::matrix(value, name)?))
    }

    /// Calls `work` with what the engine reads.
    pub fn with<T>(&self, work: impl FnOnce(&dyn VectorSource) -> PyResult<T>) -> PyResult<T> {
        match self {
            Self::File(file) => work(file),
            Self::Array(rows) => work(&rows.source()?),
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
/// base : str, os.PathLike or numpy.ndarray
///     A vector file (.fbin .u8bin .i8bin .hbin .fvecs .bvecs .npy), which is streamed, or a C-contiguous array
///     of the shape (n, d) and the dtype float32, float16, uint8 or int8, which is read in place: do not write
///     to it until this returns.
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
///     A cap on the build's memory: bytes, or "2GiB".
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
/// ids : numpy.ndarray, optional
///     (n,) integers by which search names the vectors; None takes the row numbers.
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
    code_bytes=None, codebook=None, order=None, layout=None, compression=None, chunk=None, segment=None, navigation=0.01,
    memory=None, search_memory=None, space=None, cluster_size=None, replicas=None, query_log=None, threads=None, seed=42, overwrite=false, resume=false,
    savepoint_seconds=120.0, place=None, ids=None, progress=None))]
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
    #[pyo3(from_py_with = crate::arguments::count_or_none::threads)] threads: Option<usize>,
    #[pyo3(from_py_with = crate::arguments::count::seed)] seed: usize,
    overwrite: bool,
    resume: bool,
    savepoint_seconds: f64,
    place: Option<&Bound<'py, PyAny>>,
    ids: Option<&Bound<'py, PyAny>>,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Index> {
    let path = named_path(path, "index")?;
    let vectors = Vectors::new(base, "base")?;
    let ids = ids
        .map(|ids| arrays::ids(ids, Some(vectors.rows())))
        .transpose()?;
    let codebook = codebook
        .map(|path| Codebook::read(existing(path, "codebook")?).map_err(to_python))
        .transpose()?;
    let defaults = BuildOptions::default();
    let options = BuildOptions {
        preset: named(preset, "preset")?,
        metric: named(metric, "metric")?,
        degree,
        build_list,
        alpha,
        code_bytes,
        codebook,
        order: order.map(|order| named(order, "order")).transpose()?,
        layout: layout.map(|layout| named(layout, "layout")).transpose()?,
        compression: compression
            .map(|compression| named(compression, "compression"))
            .transpose()?,
        chunk_bytes: size(chunk, "chunk", "4 MiB")?.unwrap_or(defaults.chunk_bytes),
        segment_bytes: size(segment, "segment", "512 MiB")?.unwrap_or(defaults.segment_bytes),
        navigation,
        memory: bytes(memory)?,
        search_memory: size(search_memory, "search_memory", "enough for all codes")?,
        space: size(space, "space", "as much as a degree of 64 takes")?,
        cluster_size,
        replicas,
        query_log: query_log.map(|path| existing(path, "file")).transpose()?,
        threads: thread_count(threads)?,
        seed: seed as u64,
        ids,
        overwrite,
        resume,
        savepoint_seconds,
        places: places(place)?,
    };
    let listener = Listener::new(progress)?;
    let report = vectors.with(|source| {
        run(py, &listener, |progress| {
            stratann::build(source, &path, &options, progress)
        })
    })?;
    let report = to_dict(py, &report)?.unbind();
    Index::new(
        py,
        path,
        OpenOptions {
            places: options.places.clone(),
            ..OpenOptions::default()
        },
        Changes::default(),
        Some(report),
    )
}

/// Trains a codebook for indexes that are to share one, and writes it to the file `path`.
///
/// Parameters
/// ----------
/// base : str, os.PathLike or numpy.ndarray
///     As that of `build`; an even sample of up to 100,000 vectors is used, fewer of more than 128 dimensions.
/// path : str or os.PathLike
///     The file to write, for `build(..., codebook=path)`.
/// code_bytes : int, optional
///     Bytes of a vector's compressed code; None is a quarter of the dimensions.
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
#[pyo3(signature = (base, path, *, code_bytes=None, metric="l2", threads=None, seed=42, overwrite=false, progress=None))]
#[expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of the Python function"
)]
pub fn train<'py>(
    py: Python<'py>,
    base: &Bound<'py, PyAny>,
    path: PathBuf,
    #[pyo3(from_py_with = crate::arguments::count_or_none::code_bytes)] code_bytes: Option<usize>,
    metric: &str,
    #[pyo3(from_py_with = crate::arguments::count_or_none::threads)] threads: Option<usize>,
    #[pyo3(from_py_with = crate::arguments::count::seed)] seed: usize,
    overwrite: bool,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let path = named_path(path, "codebook")?;
    let vectors = Vectors::new(base, "base")?;
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
