//! The common arguments of `build` and `create`.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use stratann::{BuildOptions, Codebook, Compression, Element, LowCodes, NoRows, Order};

use crate::arguments::{existing, memory as bytes, named, places, size, threads as thread_count};
use crate::create::check_memory;
use crate::errors::to_python;
use crate::opening::Opening;
use crate::progress::Listener;

pub const SPACE: &str = "as much as a degree of 64 takes";

pub struct Shape<'a, 'py> {
    pub metric: &'a str,
    pub preset: &'a str,
    pub degree: Option<usize>,
    pub build_list: usize,
    pub alpha: f32,
    pub code_bytes: Option<usize>,
    pub low_codes: Option<&'a str>,
    pub codebook: Option<PathBuf>,
    pub order: Option<&'a str>,
    pub layout: Option<&'a str>,
    pub compression: Option<&'a str>,
    /// The size in bytes, or a text such as "1MiB". [`segment`](Self::segment) and
    /// [`search_memory`](Self::search_memory) have the same form.
    pub chunk: Option<&'a Bound<'py, PyAny>>,
    pub segment: Option<&'a Bound<'py, PyAny>>,
    pub navigation: f64,
    pub search_memory: Option<&'a Bound<'py, PyAny>>,
    pub cluster_size: Option<usize>,
    pub replicas: Option<usize>,
    pub seed: usize,
    pub overwrite: bool,
    pub place: Option<&'a Bound<'py, PyAny>>,
}

impl Shape<'_, '_> {
    /// The options of a build with these arguments. Other options have their defaults.
    pub fn options(self) -> PyResult<BuildOptions> {
        let codebook = self
            .codebook
            .map(|path| Codebook::read(existing(path, "codebook")?).map_err(to_python))
            .transpose()?;
        let defaults = BuildOptions::default();
        Ok(BuildOptions {
            preset: named(self.preset, "preset")?,
            metric: named(self.metric, "metric")?,
            degree: self.degree,
            build_list: self.build_list,
            alpha: self.alpha,
            code_bytes: self.code_bytes,
            low_codes: self
                .low_codes
                .map(|low_codes| named(low_codes, "low_codes"))
                .transpose()?,
            codebook,
            order: self.order.map(|order| named(order, "order")).transpose()?,
            layout: self
                .layout
                .map(|layout| named(layout, "layout"))
                .transpose()?,
            compression: self
                .compression
                .map(|compression| named(compression, "compression"))
                .transpose()?,
            chunk_bytes: size(self.chunk, "chunk", "4 MiB")?.unwrap_or(defaults.chunk_bytes),
            segment_bytes: size(self.segment, "segment", "512 MiB")?
                .unwrap_or(defaults.segment_bytes),
            navigation: self.navigation,
            search_memory: size(self.search_memory, "search_memory", "enough for all codes")?,
            cluster_size: self.cluster_size,
            replicas: self.replicas,
            seed: self.seed as u64,
            overwrite: self.overwrite,
            places: places(self.place)?,
            ..defaults
        })
    }
}

/// The options as arguments of Python's `build`, as far as an index records them.
pub fn arguments<'py>(py: Python<'py>, options: &BuildOptions) -> PyResult<Bound<'py, PyDict>> {
    let named = PyDict::new(py);
    named.set_item("metric", options.metric.name())?;
    named.set_item("preset", options.preset.name)?;
    named.set_item("degree", options.degree)?;
    named.set_item("build_list", options.build_list)?;
    // The value is converted through decimals, because 1.2 as a float of 32 bits is another number
    // in Python.
    named.set_item("alpha", options.alpha.to_string().parse::<f64>().ok())?;
    named.set_item("code_bytes", options.code_bytes)?;
    named.set_item("low_codes", options.low_codes.map(LowCodes::name))?;
    named.set_item("order", options.order.map(Order::name))?;
    named.set_item("layout", options.layout.map(|layout| layout.to_string()))?;
    named.set_item("compression", options.compression.map(Compression::name))?;
    named.set_item("chunk", options.chunk_bytes)?;
    named.set_item("segment", options.segment_bytes)?;
    named.set_item("navigation", options.navigation)?;
    named.set_item("cluster_size", options.cluster_size)?;
    named.set_item("replicas", options.replicas)?;
    named.set_item("seed", options.seed)?;
    Ok(named)
}

/// Checks the arguments of a later build, as `build` does, and `memory` and `watch_recall`, as
/// `open` does. `dimension` is the dimension of float32 vectors, or None if it is not known yet.
/// With None, the call does not check arguments that depend on the dimension. The call checks no
/// files, because they need not exist before the build.
///
/// Returns the arguments that an index records ([`arguments`]), in the form of `Index._built_with`.
#[pyfunction]
#[pyo3(signature = (dimension, memory, *, metric="l2", preset="stratann", degree=None, build_list=100, alpha=1.2, code_bytes=None, low_codes=None,
    codebook=None, order=None, layout=None, compression=None, chunk=None, segment=None, navigation=0.01, search_memory=None, space=None, cluster_size=None,
    replicas=None, query_log=None, calibrate=true, threads=None, seed=42, resume=false, savepoint_seconds=120.0, place=None, watch_recall=None,
    progress=None))]
#[expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of the Python function"
)]
pub fn check_build<'py>(
    py: Python<'py>,
    dimension: Option<usize>,
    memory: Option<&Bound<'py, PyAny>>,
    metric: &str,
    preset: &str,
    #[pyo3(from_py_with = crate::arguments::count_or_none::degree)] degree: Option<usize>,
    #[pyo3(from_py_with = crate::arguments::count::build_list)] build_list: usize,
    alpha: f32,
    #[pyo3(from_py_with = crate::arguments::count_or_none::code_bytes)] code_bytes: Option<usize>,
    low_codes: Option<&str>,
    #[expect(unused_variables, reason = "a file, which the build looks for")] codebook: Option<
        PathBuf,
    >,
    order: Option<&str>,
    layout: Option<&str>,
    compression: Option<&str>,
    chunk: Option<&Bound<'py, PyAny>>,
    segment: Option<&Bound<'py, PyAny>>,
    navigation: f64,
    search_memory: Option<&Bound<'py, PyAny>>,
    space: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = crate::arguments::count_or_none::cluster_size)] cluster_size: Option<
        usize,
    >,
    #[pyo3(from_py_with = crate::arguments::count_or_none::replicas)] replicas: Option<usize>,
    #[expect(unused_variables, reason = "a file, which the build looks for")] query_log: Option<
        PathBuf,
    >,
    calibrate: bool,
    #[pyo3(from_py_with = crate::arguments::count_or_none::threads)] threads: Option<usize>,
    #[pyo3(from_py_with = crate::arguments::count::seed)] seed: usize,
    resume: bool,
    savepoint_seconds: f64,
    place: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = crate::arguments::count_or_none::watch_recall)] watch_recall: Option<
        usize,
    >,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let opening = Opening {
        watch_recall,
        ..Opening::at(None)
    };
    opening.check()?;
    let memory = bytes(memory)?;
    Listener::new(progress)?;
    let shape = Shape {
        metric,
        preset,
        degree,
        build_list,
        alpha,
        code_bytes,
        low_codes,
        // The codebook file is not read. If the index of a `stratann.documents` store exists
        // already, the file may be gone.
        codebook: None,
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
        overwrite: false,
        place,
    };
    // `space` limits the size of an index with vectors, so the plan below does not use it.
    size(space, "space", SPACE)?;
    let options = BuildOptions {
        calibrate,
        threads: thread_count(threads)?,
        resume,
        savepoint_seconds,
        ..shape.options()?
    };
    if let Some(dimension) = dimension {
        stratann::plan_build(&NoRows::new(Element::F32, dimension), &options).map_err(to_python)?;
    }
    // If the temporary folder cannot be made, the build reports it.
    match tempfile::tempdir() {
        Ok(folder) if memory.is_some() => {
            let dimension = dimension.unwrap_or(1);
            check_memory(py, folder.path(), Element::F32, dimension, &options, memory)?;
        }
        _ => {}
    }
    arguments(py, &options)
}
