//! Coupled pages: records of one size, nothing encoded.

use stratann_layout::{CoupledShape, FileEntry, PageView};

use super::Check;
use super::pages::{Pages, Place};
use crate::{Error, stored};

impl Check<'_> {
    /// Checks all pages of a coupled index.
    pub(super) fn coupled(&mut self, entry: &FileEntry, name: &str) -> Result<(), Error> {
        let manifest = self.manifest;
        let nodes = manifest.vectors;
        let shape = CoupledShape::new(
            manifest.element,
            manifest.dimension as usize,
            manifest.degree as usize,
        )?;
        stored::check_shape(self.volume, entry, &shape, nodes)?;
        let pages = Pages {
            count: shape.pages(nodes),
            page_bytes: shape.page_bytes(),
            start: shape.file_offset(0),
        };
        // A word for the degree and one for each link there is room for.
        let list_bytes = 4 * (1 + shape.degree());
        let mut links = Vec::new();
        self.each_page(entry, &pages, |check, page, offset, bytes| {
            let expected = shape.nodes_on_page(page, nodes);
            let view = match PageView::open(&shape, bytes, page, Some(expected), true, name) {
                Ok(view) => view,
                Err(error) => return check.report.refused(name, &error.into()),
            };
            check.report.pages += 1;
            for (node, found) in (shape.first_node(page)..).zip(view.nodes()) {
                let found = match found {
                    Ok(found) => found,
                    Err(error) => {
                        check.report.refused(name, &error.into());
                        continue;
                    }
                };
                let place = Place {
                    file: name,
                    offset,
                    node,
                };
                check.report.nodes += 1;
                found.neighbours.copy_into(&mut links);
                check.links(place, &links, list_bytes);
                check.vector(place, found.vector, found.vector.len());
                check.id(place, found.id);
            }
        })
    }
}
