//! Reads files of pages piece by piece, and makes the checks of nodes that any layout needs.

use stratann_layout::{BLOCK, FileEntry};
use stratann_vector::first_invalid;

use super::Check;
use crate::Error;
use crate::stores::records::PageFormat;

const PIECE: u64 = 1 << 20;

pub(super) struct Pages {
    pub(super) count: u64,
    pub(super) page_bytes: usize,
    pub(super) start: u64,
    /// The largest number of pages onto which a record may continue after its first page.
    pub(super) behind: u64,
}

impl Pages {
    pub(super) fn of(format: &dyn PageFormat, count: u64) -> Self {
        Self {
            count,
            page_bytes: format.page_bytes(),
            start: BLOCK as u64,
            behind: format.pages_behind() as u64,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct NodeAt<'a> {
    pub(super) file: &'a str,
    /// `None` if the node is pending.
    pub(super) offset: Option<u64>,
    pub(super) node: u64,
}

impl Check<'_> {
    /// Passes each page to `each`: its number, its offset, and its bytes with the bytes of the next
    /// pages.
    pub(super) fn each_page(
        &mut self,
        entry: &FileEntry,
        pages: &Pages,
        each: impl FnMut(&mut Self, u64, u64, &[u8]),
    ) -> Result<(), Error> {
        self.each_page_of(entry, pages, |_| true, each)
    }

    pub(super) fn each_page_of(
        &mut self,
        entry: &FileEntry,
        pages: &Pages,
        wanted: impl Fn(u64) -> bool,
        mut each: impl FnMut(&mut Self, u64, u64, &[u8]),
    ) -> Result<(), Error> {
        let size = pages.page_bytes as u64;
        let step = (PIECE / size).clamp(1, pages.count.max(1));
        let mut buffer = Vec::new();
        let mut page = 0;
        while page < pages.count {
            let most = step.min(pages.count - page);
            let now = (0..most).take_while(|&i| wanted(page + i)).count() as u64;
            if now == 0 {
                page += 1;
                continue;
            }
            let read = pages.count.min(page + now + pages.behind) - page;
            buffer.resize((read * size) as usize, 0);
            let offset = pages.start + page * size;
            self.volume.read_at(&entry.name, offset, &mut buffer)?;
            for i in 0..now {
                let behind = read.min(i + 1 + pages.behind);
                let bytes = &buffer[(i * size) as usize..(behind * size) as usize];
                each(self, page + i, offset + i * size, bytes);
            }
            page += now;
            self.advance(now * size)?;
        }
        Ok(())
    }

    pub(super) fn nodes(&self) -> u64 {
        let placement = self.manifest.placement;
        placement.map_or(self.manifest.vectors, |facts| facts.nodes)
    }

    /// Reports that a page has rewritten records, although pages of this index are never rewritten.
    pub(super) fn no_relocated(&mut self, page: u64, offset: u64, file: &str) {
        let what =
            format!("page {page} has rewritten records, but the MANIFEST says that there are none");
        self.report.problem(file, Some(offset), what);
    }

    pub(super) fn node_problem(&mut self, place: NodeAt<'_>, what: impl std::fmt::Display) {
        let what = format!("node {} {what}", place.node);
        self.report.problem(place.file, place.offset, what);
    }

    /// Checks the list of a node, and adds its `bytes` bytes on storage to the sums.
    pub(super) fn links(&mut self, place: NodeAt<'_>, links: &[u32], bytes: usize) {
        let (nodes, degree) = (self.nodes(), self.manifest.graph().degree);
        self.sums.lists += 1;
        self.sums.edges += links.len() as u64;
        self.sums.degree_max = self.sums.degree_max.max(links.len() as u32);
        self.sums.list_bytes += bytes as u64;
        self.report.edges += links.len() as u64;
        if links.len() > degree as usize {
            let found = links.len();
            self.node_problem(
                place,
                format_args!("has {found} links, but this index allows {degree}"),
            );
        }
        if let Some(link) = links.iter().find(|&&link| u64::from(link) >= nodes) {
            self.node_problem(place, format_args!("links to {link} of {nodes} nodes"));
        }
    }

    /// Checks the vector of a node, and adds its `bytes` bytes on storage to the sums.
    pub(super) fn vector(&mut self, place: NodeAt<'_>, vector: &[u8], bytes: usize) {
        self.sums.vectors += 1;
        self.sums.vector_bytes += bytes as u64;
        if let Some(column) = first_invalid(self.manifest.element, vector) {
            self.node_problem(
                place,
                format_args!("has NaN or infinity in column {column}"),
            );
        }
    }

    pub(super) fn id(&mut self, place: NodeAt<'_>, id: u64) {
        if !self.ids.insert(id) {
            self.node_problem(
                place,
                format_args!("has the external id {id}, which another node has, too"),
            );
        }
    }
}
