//! Measures the facts about an index that the planner needs.

use std::path::Path;
use std::sync::Arc;

use stratann_layout::manifest::RECALL;
use stratann_layout::{FileKind, Manifest};
use stratann_tier::Volume;

use super::{Build, BuildOptions};
use crate::Error;
use crate::data::VectorSource;
use crate::durable::Checkpoint;
use crate::graph::Constructed;
use crate::index::measured::LEAST_ROWS;
use crate::index::{Index, OpenOptions};
use crate::measure;
use crate::progress::{Progress, Silent, Stage};
use crate::recall;
use crate::stores::codes::Codes;
use crate::stores::writing::files::write_stream;

/// The bytes of memory for the measurement, in addition to the codes.
pub(super) const MEASURING: u64 = 24 << 20;

impl Build<'_> {
    /// Samples the queries for the measurement. A small collection gives no queries.
    pub(super) fn sample_queries(&self, graph: &Constructed) -> Result<Vec<u8>, Error> {
        let rows = graph.rows.in_order(&graph.order, self.writing.source);
        if rows.rows() < measure::LEAST_ROWS {
            return Ok(Vec::new());
        }
        let sample = self.writing.sample(measure::sample_size(rows.rows()));
        // Consecutive nodes may be near each other. So the first half of the queries takes every
        // second node of the sample, and the second half takes the others.
        let (first, second) = (sample.iter().step_by(2), sample.iter().skip(1).step_by(2));
        let nodes: Vec<u32> = first.chain(second).copied().collect();
        let mut queries = vec![0; nodes.len() * rows.row_bytes()];
        rows.gather(&nodes, &mut queries)?;
        Ok(queries)
    }

    /// Measures the reads that searches save with more memory, unless the cap is too low for the
    /// codes.
    pub(super) fn measure(&self, manifest: &mut Manifest, queries: &[u8]) -> Result<(), Error> {
        let codes = match self.facts.layout.has_codes_in_records() {
            true => 0,
            false => Codes::of_nodes(manifest),
        };
        let needs = codes + MEASURING;
        if queries.is_empty() || self.writing.options.memory.is_some_and(|cap| cap < needs) {
            return Ok(());
        }
        let _stage = Stage::begin(self.writing.progress, "measuring", 1);
        let index = assembled(self.volume, manifest, None)?;
        let (measured, heat) = measure::measure(&index, queries, self.writing.options.threads)?;
        manifest.measured = Some(measured);
        manifest.files.push(write_stream(
            &self.writing.checkpoint,
            FileKind::Heat,
            None,
            &heat.encode(),
        )?);
        if index.nodes() < LEAST_ROWS || !self.writing.options.calibrate {
            return Ok(());
        }
        calibrate(
            &index,
            &self.writing.checkpoint,
            self.writing.options,
            self.writing.progress,
            manifest,
        )
    }
}

pub(super) fn assembled(
    volume: &Arc<dyn Volume>,
    manifest: &Manifest,
    memory: Option<u64>,
) -> Result<Index, Error> {
    let path = Path::new(&volume.name()).to_owned();
    let options = OpenOptions {
        memory,
        ..OpenOptions::default()
    };
    let (volume, manifest) = (volume.clone(), manifest.clone());
    Index::assemble(volume, &path, manifest, &options, Arc::default(), &Silent)
}

pub(super) fn calibrate(
    index: &Index,
    checkpoint: &Checkpoint<'_>,
    options: &BuildOptions,
    progress: &dyn Progress,
    manifest: &mut Manifest,
) -> Result<(), Error> {
    let queries = recall::Queries::of(index, progress)?;
    let found = recall::measure(index, &queries, options.threads, progress)?;
    let file = write_stream(checkpoint, FileKind::Recall, None, &found.encode())?;
    manifest.files.push(file);
    manifest.writer_features |= RECALL;
    Ok(())
}
