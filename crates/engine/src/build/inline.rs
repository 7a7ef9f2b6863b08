//! The inline layout: coupled records with the codes of their neighbours (AiSAQ §3.1), so that a search needs no codes in
//! memory but those of the nodes that it starts from.
//!
//! ```text
//!   inline-…    pages of nodes, as many on each as fit, or as many blocks for each as it needs
//!   entries-…   the entry points and their codes
//! ```

use stratann_layout::{EntryPoints, FileKind, InlineBuilder, InlineShape};

use super::Build;
use super::codes::NodeCodes;
use super::files::{Sequential, WRITE_BYTES, write_stream};
use super::sweep::{Sweep, Written};
use crate::Error;
use crate::codebook::Codebook;
use crate::graph::Constructed;

/// Writes all nodes, and the entry points, of which the first is the medoid.
pub(super) fn write(
    build: &Build<'_>,
    shape: &InlineShape,
    graph: &mut Constructed,
    codebook: &Codebook,
) -> Result<Written, Error> {
    // A node may have any other as a neighbour, so all codes come first.
    let codes = NodeCodes::encode(build, graph.rows.source(build.source), codebook)?;
    let entries = build.entry_points(graph.entry);
    let mut sweep = Sweep::new(build, graph, None)?;
    let nodes = build.source.rows() as u32;
    let header = shape.header(u64::from(nodes));
    let mut file = Sequential::create(&build.checkpoint, FileKind::Inline, None)?;
    file.write(&header.encode())?;
    let mut builder = InlineBuilder::new(*shape);
    let (mut page, mut pages) = (0, Vec::with_capacity(WRITE_BYTES + shape.page_bytes()));
    let mut of_list = Vec::new();
    while let Some(batch) = sweep.next(nodes)? {
        for place in 0..batch.len() {
            let list = batch.list(place);
            codes.gather(list, &mut of_list)?;
            builder.push(batch.id(place), batch.vector(place), list, &of_list);
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
    codes.gather(&entries, &mut of_list)?;
    let points = EntryPoints {
        nodes: entries,
        codes: of_list,
    };
    let nodes = u64::from(nodes);
    Ok(Written {
        files: vec![
            file.finish(&header)?,
            write_stream(&build.checkpoint, FileKind::Entries, None, &points.encode())?,
        ],
        // A word for the degree and one for each of R slots, in use or not.
        list_bytes: nodes * 4 * (1 + shape.degree() as u64),
        vector_bytes: nodes * shape.vector_bytes() as u64,
        list_codec: "raw".into(),
        vector_codec: "raw".into(),
        segments: Vec::new(),
    })
}
