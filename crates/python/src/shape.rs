//! What an index is to be, as `build` and `create` are told it.

use std::path::PathBuf;

use pyo3::prelude::*;
use stratann::{BuildOptions, Codebook};

use crate::arguments::{existing, named, places, size};
use crate::errors::to_python;

/// Arguments that both have, as a user writes them.
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
    /// Bytes, or a text such as "1MiB", as [`segment`](Self::segment) and [`search_memory`](Self::search_memory) are.
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
    /// The options of a build that makes such an index; all others as they are by default.
    ///
    /// # Errors
    /// A name that is none of those that there are, a size that is none, a codebook that is not there or cannot be read.
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
