//! The coupled layout: vector and list side by side in records of one size, neither compressed.
//!
//! ```text
//!   graph-…   pages of nodes, as many on each as fit
//! ```

use stratann_layout::{CoupledShape, FileKind, PageBuilder};

use super::Build;
use super::files::{Sequential, WRITE_BYTES};
use super::sweep::{Sweep, Written};
use crate::Error;

/// Writes all nodes.
pub(super) fn write(
    build: &Build<'_>,
    shape: &CoupledShape,
    sweep: &mut Sweep<'_>,
) -> Result<Written, Error> {
    let nodes = build.source.rows() as u32;
    let header = shape.header(u64::from(nodes));
    let mut file = Sequential::create(&build.checkpoint, FileKind::Graph, None)?;
    file.write(&header.encode())?;
    let mut builder = PageBuilder::new(*shape);
    let (mut page, mut pages) = (0, Vec::with_capacity(WRITE_BYTES + shape.page_bytes()));
    while let Some(batch) = sweep.next(nodes)? {
        for place in 0..batch.len() {
            // The neighbours stay in the order of the graph: no code asks for another.
            builder.push(batch.id(place), batch.vector(place), batch.list(place));
            if builder.is_full() || batch.number(place) + 1 == nodes {
                pages.extend_from_slice(builder.finish(page));
                builder.clear();
                page += 1;
            }
            if pages.len() >= WRITE_BYTES {
                file.write(&pages)?;
                pages.clear();
            }
        }
    }
    file.write(&pages)?;
    let nodes = u64::from(nodes);
    Ok(Written {
        files: vec![file.finish(&header)?],
        // A word for the degree and one for each of R slots, in use or not.
        list_bytes: nodes * 4 * (1 + shape.degree() as u64),
        vector_bytes: nodes * shape.vector_bytes() as u64,
        list_codec: "raw".into(),
        vector_codec: "raw".into(),
        segments: Vec::new(),
    })
}
