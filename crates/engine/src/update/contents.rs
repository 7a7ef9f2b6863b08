//! What an index on storage holds, from the first node to the last, whatever its layout.

use stratann_layout::BLOCK;

use crate::Error;
use crate::index::Index;
use crate::nodes::{NodePages, PageView, Pages};
use crate::progress::Progress;

/// Bytes of pages that are read at a time, about.
const PIECE: usize = 1 << 20;

/// Takes a node: its number, outside id and vector.
pub(crate) type EachVector<'a> = dyn FnMut(u32, u64, &[u8]) -> Result<(), Error> + 'a;
/// Takes a node: its number and its neighbours.
pub(crate) type EachList<'a> = dyn FnMut(u32, &[u32]) -> Result<(), Error> + 'a;
/// Takes a page: its number and its bytes.
type EachPage<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Error> + 'a;

/// Calls `each` with every node in order.
///
/// # Errors
/// A page that cannot be read or is damaged, what `each` says, or an interruption.
pub(crate) fn each_vector(
    index: &Index,
    progress: &dyn Progress,
    each: &mut EachVector<'_>,
) -> Result<(), Error> {
    let graph = index.graph();
    let mut vector = vec![0; index.dim() * index.element().size()];
    let Some(segments) = &graph.segments else {
        return match &graph.pages {
            Pages::Coupled(pages) => from_records(index, pages, progress, &mut vector, each),
            Pages::Inline(pages) => from_records(index, pages, progress, &mut vector, each),
            Pages::Packed(pages) => from_records(index, pages, progress, &mut vector, each),
            Pages::Lists(pages) => from_records(index, pages, progress, &mut vector, each),
        };
    };
    for segment in segments.iter() {
        let pages = segment.pages.directory.pages();
        let bytes = segment.pages.shape.page_bytes();
        each_page(
            index,
            &segment.name,
            pages,
            bytes,
            progress,
            &mut |page, bytes| {
                let view = segment.view(bytes, page, true)?;
                for node in (view.first()..).take(view.len()) {
                    let id = segment.vector(node, &view, &mut vector)?;
                    each(node, id, &vector)?;
                }
                Ok(())
            },
        )?;
    }
    Ok(())
}

/// Calls `each` with every node in order and its neighbours.
///
/// # Errors
/// As [`each_vector`].
pub(crate) fn each_list(
    index: &Index,
    progress: &dyn Progress,
    each: &mut EachList<'_>,
) -> Result<(), Error> {
    match &index.graph().pages {
        Pages::Coupled(pages) => lists_of(index, pages, progress, each),
        Pages::Inline(pages) => lists_of(index, pages, progress, each),
        Pages::Packed(pages) => lists_of(index, pages, progress, each),
        Pages::Lists(pages) => lists_of(index, pages, progress, each),
    }
}

fn lists_of<N: NodePages>(
    index: &Index,
    pages: &N,
    progress: &dyn Progress,
    each: &mut EachList<'_>,
) -> Result<(), Error> {
    let graph = index.graph();
    let file = graph.pages.file(graph.nodes);
    let mut list = Vec::new();
    let (count, bytes) = (file.pages, file.page_bytes);
    each_page(
        index,
        &graph.name,
        count,
        bytes,
        progress,
        &mut |page, bytes| {
            let view = pages.view(bytes, page, true)?;
            for (slot, node) in (0..view.len()).zip(view.first()..) {
                pages.list(node, &view.record(slot)?, &mut list)?;
                if let Some(&link) = list.iter().find(|&&link| u64::from(link) >= graph.nodes) {
                    return Err(Error::Damaged {
                        file: graph.file.clone(),
                        what: format!(
                            "node {node} links to node {link}, but there are {}",
                            graph.nodes
                        ),
                    });
                }
                each(node, &list)?;
            }
            Ok(())
        },
    )
}

/// Where vectors stand beside lists.
fn from_records<N: NodePages>(
    index: &Index,
    pages: &N,
    progress: &dyn Progress,
    vector: &mut [u8],
    each: &mut EachVector<'_>,
) -> Result<(), Error> {
    let graph = index.graph();
    let file = graph.pages.file(graph.nodes);
    let (count, bytes) = (file.pages, file.page_bytes);
    each_page(
        index,
        &graph.name,
        count,
        bytes,
        progress,
        &mut |page, bytes| {
            let view = pages.view(bytes, page, true)?;
            for (slot, node) in (0..view.len()).zip(view.first()..) {
                let record = view.record(slot)?;
                let id = record.id;
                each(node, id, pages.vector(node, &record, vector)?)?;
            }
            Ok(())
        },
    )
}

/// Reads the pages of a file one after the other.
fn each_page(
    index: &Index,
    name: &str,
    pages: u64,
    page_bytes: usize,
    progress: &dyn Progress,
    each: &mut EachPage<'_>,
) -> Result<(), Error> {
    let step = (PIECE / page_bytes).max(1) as u64;
    let mut buffer = vec![0; step.min(pages) as usize * page_bytes];
    for first in (0..pages).step_by(step as usize) {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let now = step.min(pages - first) as usize;
        let buffer = &mut buffer[..now * page_bytes];
        let offset = BLOCK as u64 + first * page_bytes as u64;
        index.volume().read_at(name, offset, buffer)?;
        for (page, bytes) in (first..).zip(buffer.chunks_exact(page_bytes)) {
            each(page, bytes)?;
        }
    }
    Ok(())
}
