//! What the planner is to know of an index, measured before it is committed.

use std::path::Path;
use std::sync::Arc;

use stratann_layout::manifest::RECALL;
use stratann_layout::{FileKind, Manifest};

use super::Build;
use super::files::write_stream;
use crate::Error;
use crate::data::VectorSource;
use crate::graph::Constructed;
use crate::index::{Index, OpenOptions};
use crate::measure;
use crate::progress::Stage;
use crate::recall;
use crate::stores::codes::Codes;

/// Memory that measuring takes beside the codes.
const MEASURING: u64 = 24 << 20;

impl Build<'_> {
    /// The rows that the planner's figures are measured with; none if the collection is small.
    pub(super) fn sample_queries(&self, graph: &Constructed) -> Result<Vec<u8>, Error> {
        let rows = graph.rows.in_order(&graph.order, self.source);
        if rows.rows() < measure::LEAST_ROWS {
            return Ok(Vec::new());
        }
        let sample = self.sample(measure::sample_size(rows.rows()));
        // Both halves must be from all over: neighbours in node order may be near each other.
        let (first, second) = (sample.iter().step_by(2), sample.iter().skip(1).step_by(2));
        let nodes: Vec<u32> = first.chain(second).copied().collect();
        let mut queries = vec![0; nodes.len() * rows.row_bytes()];
        rows.gather(&nodes, &mut queries)?;
        Ok(queries)
    }

    /// Measures what memory would buy, for the planner. Left out where the memory cap has no room for the codes.
    pub(super) fn measure(&self, manifest: &mut Manifest, queries: &[u8]) -> Result<(), Error> {
        let codes = match self.facts.layout.has_codes_in_records() {
            true => 0,
            false => Codes::of_nodes(manifest),
        };
        let needs = codes + MEASURING;
        if queries.is_empty() || self.options.memory.is_some_and(|cap| cap < needs) {
            return Ok(());
        }
        let _stage = Stage::begin(self.progress, "measuring", 1);
        let path = Path::new(&self.volume.name()).to_owned();
        let index = Index::assemble(
            self.volume.clone(),
            &path,
            manifest.clone(),
            &OpenOptions::default(),
            Arc::default(),
        )?;
        let (measured, heat) = measure::measure(&index, queries, self.options.threads)?;
        manifest.measured = Some(measured);
        manifest.files.push(write_stream(
            &self.checkpoint,
            FileKind::Heat,
            None,
            &heat.encode(),
        )?);
        if index.nodes() < recall::LEAST_ROWS || !self.options.calibrate {
            return Ok(());
        }
        let (nodes, rows) = recall::own_queries(&index, self.progress)?;
        let threads = self.options.threads;
        let found = recall::measure(&index, &rows, Some(&nodes), threads, self.progress)?;
        let file = write_stream(&self.checkpoint, FileKind::Recall, None, &found.encode())?;
        manifest.files.push(file);
        manifest.writer_features |= RECALL;
        Ok(())
    }
}
