//! The batched merge: the live rows of a checkpoint and of a fresh graph become the next checkpoint (FreshDiskANN; the graph's
//! part of DecoupleVS §3.5).
//!
//! Rows are spooled beside the index, vectors of the checkpoint first, so that memory holds none of them beyond what the
//! build's own cap allows. Codebook and choices of the build stay: codes of the same vectors are the same.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use stratann_layout::LogFrom;
use stratann_tier::{TierError, Volume};
use stratann_vector::Element;

use super::contents::each_vector;
use super::fresh::FreshGraph;
use super::live::CompactReport;
use crate::build::{self, BuildOptions};
use crate::data::VectorFile;
use crate::index::Index;
use crate::progress::{Progress, Stage};
use crate::{Error, Preset};

/// What goes into a merge besides the index.
pub(super) struct Inputs<'a> {
    /// Ids on storage that are left out.
    pub(super) removed: &'a HashSet<u64>,
    /// New vectors.
    pub(super) fresh: &'a FreshGraph,
    /// Where the log goes on that is not merged.
    pub(super) log_from: LogFrom,
    /// The id that comes next.
    pub(super) next_id: u64,
    pub(super) threads: usize,
    /// The cap on memory, if there is one.
    pub(super) memory: Option<u64>,
}

/// Memory that a merge may take beyond a search's budget.
const BEYOND_SEARCH: u64 = 64 << 20;

/// Writes the next checkpoint and commits it.
pub(super) fn merge(
    volume: &Arc<dyn Volume>,
    index: &Index,
    inputs: &Inputs<'_>,
    progress: &dyn Progress,
) -> Result<CompactReport, Error> {
    let start = Instant::now();
    let bytes_before = bytes_in(&**volume)?;
    let scratch = build::ScratchFolder::beside(index.path())?;
    let path = scratch
        .path()
        .join(format!("rows.{}", extension(index.element())));
    let rows = spool(index, inputs, &path, progress)?;
    let manifest = index.manifest();
    let preset: Preset = manifest.preset.parse()?;
    let facts = &manifest.build;
    let defaults = BuildOptions::default();
    let chosen = |value: u64, default: u64| if value == 0 { default } else { value };
    let options = BuildOptions {
        preset,
        metric: manifest.metric,
        degree: Some(manifest.degree as usize),
        build_list: manifest.build_list as usize,
        alpha: manifest.alpha,
        code_bytes: None,
        codebook: Some(index.codebook().clone()),
        order: Some(manifest.order.parse()?),
        layout: Some(manifest.layout.parse()?),
        compression: match facts.compression.as_str() {
            "" => None,
            named => Some(named.parse()?),
        },
        chunk_bytes: chosen(facts.chunk_bytes, defaults.chunk_bytes),
        segment_bytes: chosen(facts.segment_bytes, defaults.segment_bytes),
        navigation: match (&manifest.navigation, facts.navigation) {
            (None, _) => 0.0,
            (Some(_), 0.0) => defaults.navigation,
            (Some(_), share) => share,
        },
        memory: inputs.memory.map(|budget| budget + BEYOND_SEARCH),
        search_memory: None,
        threads: inputs.threads,
        seed: manifest.seed,
        ids: Some(rows.ids),
        overwrite: true,
    };
    let source = VectorFile::open(&path)?;
    let carried = build::Carried {
        log_from: inputs.log_from,
        next_id: inputs.next_id,
    };
    let report = build::rebuild(volume, scratch.path(), &source, &options, carried, progress)?;
    Ok(CompactReport {
        vectors: report.vectors as u64,
        merged: rows.merged,
        removed: rows.removed,
        bytes_before,
        bytes_after: bytes_in(&**volume)?,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// What was spooled.
struct Spooled {
    ids: Vec<u64>,
    merged: u64,
    removed: u64,
}

/// Writes all live rows to a file of vectors.
fn spool(
    index: &Index,
    inputs: &Inputs<'_>,
    path: &Path,
    progress: &dyn Progress,
) -> Result<Spooled, Error> {
    let failed = |source| TierError::io("write", path.display().to_string(), 0, 0, source);
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).map_err(failed)?);
    // The number of rows is known when they are written.
    let dim = index.dim() as u32;
    file.write_all(&[[0; 4], dim.to_le_bytes()].concat())
        .map_err(failed)?;
    let mut ids = Vec::with_capacity(index.len());
    let mut removed = 0;
    let stage = Stage::begin(progress, "reading vectors", index.len() as u64);
    each_vector(index, progress, &mut |_, id, vector| {
        progress.advance(1);
        if inputs.removed.contains(&id) {
            removed += 1;
            return Ok(());
        }
        ids.push(id);
        Ok(file.write_all(vector).map_err(failed)?)
    })?;
    drop(stage);
    let stored = ids.len();
    let mut written = Ok(());
    inputs.fresh.for_each(|id, vector| {
        if written.is_ok() {
            ids.push(id);
            written = file.write_all(vector);
        }
    });
    written.map_err(failed)?;
    let mut file = file
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    std::io::Seek::rewind(&mut file).map_err(failed)?;
    file.write_all(&(ids.len() as u32).to_le_bytes())
        .map_err(failed)?;
    Ok(Spooled {
        merged: (ids.len() - stored) as u64,
        removed,
        ids,
    })
}

/// The ending of a file of such vectors.
fn extension(element: Element) -> &'static str {
    match element {
        Element::F32 => "fbin",
        Element::F16 => "hbin",
        Element::U8 => "u8bin",
        Element::I8 => "i8bin",
    }
}

/// Bytes of all files of an index.
fn bytes_in(volume: &dyn Volume) -> Result<u64, Error> {
    let mut bytes = 0;
    for name in volume.list()? {
        bytes += volume.len(&name)?;
    }
    Ok(bytes)
}
