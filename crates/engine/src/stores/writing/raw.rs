//! Writes a file of pages with unencoded records of one size.

use stratann_layout::FileHeader;

use super::Writing;
use super::files::{Sequential, WRITE_BYTES};
use super::sweep::{Nodes, Sweep, Written};
use crate::Error;
use crate::stores::records::PageFormat;

/// `push` adds a node to the current page. If the page is full, or the node is the last, `push`
/// appends the page to the buffer.
pub(crate) fn write_raw(
    build: &Writing<'_>,
    format: &dyn PageFormat,
    header: &FileHeader,
    sweep: &mut Sweep<'_>,
    mut push: impl FnMut(&Nodes<'_>, usize, bool, &mut Vec<u8>) -> Result<(), Error>,
) -> Result<Written, Error> {
    let nodes = build.source.rows() as u32;
    let mut file = Sequential::create(&build.checkpoint, header.kind, None)?;
    file.write(&header.encode())?;
    let mut pages = Vec::with_capacity(WRITE_BYTES + format.page_bytes());
    while let Some(batch) = sweep.next(nodes)? {
        for place in 0..batch.len() {
            let last = batch.number(place) + 1 == nodes;
            push(&batch, place, last, &mut pages)?;
            if pages.len() >= WRITE_BYTES {
                file.write(&pages)?;
                pages.clear();
            }
        }
    }
    file.write(&pages)?;
    Ok(Written {
        files: vec![file.finish(header)?],
        // All slots of a list count, even unused ones.
        list_bytes: u64::from(nodes) * format.list_bytes(&[]) as u64,
        vector_bytes: u64::from(nodes) * build.source.row_bytes() as u64,
        list_codec: "raw".into(),
        vector_codec: "raw".into(),
        segments: Vec::new(),
    })
}
