//! The packed layout: the codes of list and vector side by side, as many nodes on a page as fit.
//!
//! ```text
//!   packed-…      slotted pages of all nodes
//!   directory-…   what lists and vectors are coded with; nodes of each page
//! ```

use stratann_layout::{DirectoryFile, FileKind, SlottedShape};

use super::Build;
use super::coding::Coding;
use super::encode::Encoder;
use super::files::write_stream;
use super::slotted::SlottedFile;
use super::sweep::{Sweep, Written};
use crate::Error;
use crate::data::VectorSource;

/// What decides where everything stands.
pub(super) struct PackedFormat {
    shape: SlottedShape,
    coding: Coding,
    /// Nodes whose vectors are coded with one model.
    segment_nodes: u32,
}

impl PackedFormat {
    /// Pages that hold the largest record there can be; segments of `segment_bytes` of vectors, but of one at least.
    pub(super) fn new(
        source: &dyn VectorSource,
        degree: usize,
        coding: Coding,
        segment_bytes: u64,
    ) -> Result<Self, Error> {
        Ok(Self {
            shape: SlottedShape::new(
                FileKind::Packed,
                source.element(),
                source.dim(),
                degree,
                coding.largest_list() + coding.largest_vector(),
            )?,
            segment_nodes: (segment_bytes / coding.vector_bytes() as u64)
                .clamp(1, u64::from(u32::MAX)) as u32,
            coding,
        })
    }
}

/// Writes all nodes.
pub(super) fn write(
    build: &Build<'_>,
    format: &PackedFormat,
    sweep: &mut Sweep<'_>,
) -> Result<Written, Error> {
    let lists = format.coding.learn_lists(sweep.lists())?;
    let mut encoder = Encoder::new(lists, build.options.threads);
    let mut pages = SlottedFile::create(&build.checkpoint, format.shape, None, 0)?;
    let mut vector_models = Vec::new();
    for segment in sweep.segments(format.segment_nodes) {
        let end = segment.end;
        // No bases: one belongs to a chunk of vectors (DecoupleVS §3.3), and packed pages have none.
        let vectors = format
            .coding
            .learn_vectors(build, sweep.rows(), segment, None)?;
        vector_models.push(vectors.model.to_bytes());
        while let Some(nodes) = sweep.next(end)? {
            encoder.encode(&nodes, Some(&vectors))?;
            for (place, (list, vector)) in encoder.codes().enumerate() {
                pages.push(nodes.id(place), list, vector)?;
            }
        }
    }
    let (pages, counts) = pages.finish()?;
    let directory = DirectoryFile {
        list_model: encoder.list_model(),
        segment_vectors: format.segment_nodes,
        vector_models,
        counts,
    };
    let directory = write_stream(
        &build.checkpoint,
        FileKind::Directory,
        None,
        &directory.encode(),
    )?;
    Ok(Written {
        files: vec![pages, directory],
        list_bytes: encoder.list_bytes(),
        vector_bytes: encoder.vector_bytes(),
        list_codec: encoder.list_codecs(),
        vector_codec: encoder.vector_codecs(),
        segments: Vec::new(),
    })
}
