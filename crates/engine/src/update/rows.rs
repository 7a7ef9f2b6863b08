//! The rows of a merge that keeps segments: the vectors of the index in another order, and then the
//! new vectors. The vectors are read from the files of the index, so only rewritten vectors are
//! copied.
//!
//! ```text
//!   row     0 ..                                                          ..    rows
//!           | live, in kept segments        | live, in rewritten    | new vectors |
//!   node        12 13 15 ..                     3 4 9 .. 88 90            a file
//! ```

use stratann_vector::Element;

use crate::Error;
use crate::data::{DataError, VectorFile, VectorSource, check_range};
use crate::index::Index;
use crate::index::contents::vector_pages;
use crate::stores::vectors::segments::{Extent, Segments};

const PIECE: usize = 1 << 20;

pub(super) struct IndexRows<'a> {
    index: &'a Index,
    segments: &'a Segments,
    name: String,
    /// The nodes of one segment have consecutive rows, in ascending order of nodes.
    node_of: Vec<u32>,
    new: Option<VectorFile>,
}

impl<'a> IndexRows<'a> {
    pub(super) fn new(
        index: &'a Index,
        segments: &'a Segments,
        node_of: Vec<u32>,
        new: Option<VectorFile>,
    ) -> Self {
        Self {
            name: index.path().display().to_string(),
            index,
            segments,
            node_of,
            new,
        }
    }

    fn stored(&self, nodes: &[u32], mut out: &mut [u8]) -> Result<(), Error> {
        let (mut pages, mut scratch) = (Vec::new(), Vec::new());
        let mut rest = nodes;
        while let Some(&node) = rest.first() {
            let place = self.segments.place_of(node);
            let segment = self.segments.get(place.segment);
            // One read serves the next nodes of this segment within about `PIECE` bytes.
            let size = segment.pages.shape.page_bytes();
            let end = place.page + (PIECE / size).max(1) as u64;
            let there = segment.pages.directory.pages();
            let same = |&node: &u32| {
                let other = self.segments.place_of(node);
                other.segment == place.segment && (place.page..end).contains(&other.page)
            };
            let count = rest.iter().take_while(|node| same(node)).count();
            let (run, later) = rest.split_at(count);
            rest = later;
            let all = Extent {
                pages: (self.segments.place_of(run[run.len() - 1]).end() - place.page) as u32,
                ..place
            };
            pages.resize(all.pages as usize * size, 0);
            if all.end() <= there {
                let (offset, _) = segment.span(all);
                let volume = self.index.volume();
                volume.read_at(&segment.name, offset, &mut pages)?;
            } else {
                for (page, bytes) in (place.page..).zip(pages.chunks_exact_mut(size)) {
                    let one = Extent {
                        page,
                        pages: 1,
                        ..place
                    };
                    vector_pages(self.index, one, bytes)?;
                }
            }
            let on_pages =
                |a: &u32, b: &u32| self.segments.place_of(*a) == self.segments.place_of(*b);
            for run in run.chunk_by(on_pages) {
                let here = self.segments.place_of(run[0]);
                let view = segment.view(all.part(&pages, here), here.page, true)?;
                for &node in run {
                    let (vector, others) = out.split_at_mut(self.row_bytes());
                    segment.vector(node, here.page, &view, &[], &mut scratch, vector)?;
                    out = others;
                }
            }
        }
        Ok(())
    }
}

impl VectorSource for IndexRows<'_> {
    fn rows(&self) -> usize {
        self.node_of.len() + self.new.as_ref().map_or(0, VectorSource::rows)
    }

    fn dim(&self) -> usize {
        self.index.dim()
    }

    fn element(&self) -> Element {
        self.index.element()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        let count = check_range(self, first, out.len())?;
        let stored = self.node_of.len();
        let nodes = &self.node_of[first.min(stored)..(first + count).min(stored)];
        let (now, later) = out.split_at_mut(nodes.len() * self.row_bytes());
        if !nodes.is_empty() {
            let read = self.stored(nodes, now);
            read.map_err(|error| DataError::Index(Box::new(error)))?;
        }
        match &self.new {
            Some(new) if !later.is_empty() => new.read(first.max(stored) - stored, later),
            _ => Ok(()),
        }
    }
}
