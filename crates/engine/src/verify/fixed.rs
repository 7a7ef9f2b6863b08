//! Pages of records of one size, of which nothing is encoded: coupled ones, and those with the neighbours' codes.

use stratann_layout::{
    FileEntry, InlineNode, InlineShape, InlineView, LayoutError, Neighbours, NodeView, PageView,
};

use super::Check;
use super::pages::{Pages, Place};
use crate::{Error, stored};

/// What every record has, whatever stands beside it.
struct Found<'a> {
    id: u64,
    neighbours: Neighbours<'a>,
    vector: &'a [u8],
}

impl<'a> From<NodeView<'a>> for Found<'a> {
    fn from(node: NodeView<'a>) -> Self {
        Self {
            id: node.id,
            neighbours: node.neighbours,
            vector: node.vector,
        }
    }
}

impl<'a> From<InlineNode<'a>> for Found<'a> {
    fn from(node: InlineNode<'a>) -> Self {
        Self {
            id: node.id,
            neighbours: node.neighbours,
            vector: node.vector,
        }
    }
}

impl Check<'_> {
    /// Checks all pages of a coupled index.
    pub(super) fn coupled(&mut self, entry: &FileEntry, name: &str) -> Result<(), Error> {
        let nodes = self.manifest.vectors;
        let (shape, _) = stored::coupled(self.volume, self.manifest)?;
        let pages = Pages {
            count: shape.pages(nodes),
            page_bytes: shape.page_bytes(),
            start: shape.file_offset(0),
        };
        self.each_page(entry, &pages, |check, page, offset, bytes| {
            let expected = Some(shape.nodes_on_page(page, nodes));
            let first = shape.first_node(page);
            match PageView::open(&shape, bytes, page, expected, true, name) {
                Ok(view) if view.is_relocated() => check.no_relocated(page, offset, name),
                Ok(view) => {
                    let nodes = view.nodes().map(|node| node.map(Found::from));
                    check.records(first, Some(offset), name, nodes);
                }
                Err(error) => check.report.refused(name, &error.into()),
            }
        })
    }

    /// Checks all pages of an inline index. Whether the codes are those of the neighbours is not: a checksum covers
    /// them, and a search that is led astray by a wrong one still ranks by the vectors.
    pub(super) fn inline(&mut self, entry: &FileEntry, name: &str) -> Result<(), Error> {
        let nodes = self.manifest.vectors;
        let (shape, _) = stored::inline(self.volume, self.manifest)?;
        let pages = Pages {
            count: shape.pages(nodes),
            page_bytes: shape.page_bytes(),
            start: shape.file_offset(0),
        };
        self.each_page(entry, &pages, |check, page, offset, bytes| {
            let expected = Some(shape.nodes_on_page(page, nodes));
            match InlineView::open(&shape, bytes, page, expected, true, name) {
                Ok(view) => check.inline_records(&shape, page, Some(offset), name, &view),
                Err(error) => check.report.refused(name, &error.into()),
            }
        })
    }

    /// Checks the records of an inline page; `offset` is that of the page in `file`, if it is in its place there.
    pub(super) fn inline_records(
        &mut self,
        shape: &InlineShape,
        page: u64,
        offset: Option<u64>,
        file: &str,
        view: &InlineView<'_>,
    ) {
        let nodes = view.nodes().map(|node| node.map(Found::from));
        self.records(shape.first_node(page), offset, file, nodes);
    }

    /// Checks the records of a page that starts at `offset`, of which the first is that of node `first`.
    fn records<'p>(
        &mut self,
        first: u64,
        offset: Option<u64>,
        file: &str,
        records: impl Iterator<Item = Result<Found<'p>, LayoutError>>,
    ) {
        self.report.pages += 1;
        // A word for the degree and one for each link there is room for.
        let list_bytes = 4 * (1 + self.manifest.degree as usize);
        let mut links = Vec::new();
        for (node, found) in (first..).zip(records) {
            match found {
                Ok(found) => {
                    let place = Place { file, offset, node };
                    self.report.nodes += 1;
                    found.neighbours.copy_into(&mut links);
                    self.links(place, &links, list_bytes);
                    self.vector(place, found.vector, found.vector.len());
                    self.counted(place, found.id);
                }
                Err(error) => self.report.refused(file, &error.into()),
            }
        }
    }
}
