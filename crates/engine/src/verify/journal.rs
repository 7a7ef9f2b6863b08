//! Pages of an inline index that took direct inserts: each is where its nodes' numbers say, and those that a checkpoint was about
//! to write there stand in its journal as well.
//!
//! ```text
//!   journal   page -> bytes     these count: in the file the page may be as it was, torn, or not there yet
//!   file      all other pages   up to that of the last node; those behind it are what a crash left there, and do not count
//! ```
//!
//! Where the journal cannot be read, which is a problem of its own, pages count as they are in the file. Those that are not whole
//! there are lost, so that they are named, too.

use stratann_layout::{FileEntry, FileKind, InlineShape, InlineView, JournalFile};

use super::Check;
use super::pages::Pages;
use crate::{Error, stored};

impl Check<'_> {
    /// Checks all pages that count, of the file or of the journal.
    pub(super) fn journaled(&mut self, entry: &FileEntry, name: &str) -> Result<(), Error> {
        let (volume, manifest, nodes) = (self.volume, self.manifest, self.nodes());
        let (shape, _) = stored::inline(volume, manifest)?;
        let (count, start) = (shape.pages(nodes), shape.file_offset(0));
        let said = manifest.placement.map_or(count, |facts| facts.pages);
        if said != count {
            self.claim(format!(
                "it says that {said} pages are in use; {nodes} nodes are on {count}"
            ));
        }
        let journal = stored::journal(volume, manifest, shape.page_bytes()).unwrap_or_default();
        let has = |page: u64| {
            let page = u32::try_from(page);
            page.is_ok_and(|page| journal.numbers.binary_search(&page).is_ok())
        };
        let stored = volume.len(&entry.name)?.saturating_sub(start) / shape.page_bytes() as u64;
        let pages = Pages {
            count: stored.min(count),
            page_bytes: shape.page_bytes(),
            start,
        };
        // What the journal has is not read from the file, where it may not even be readable.
        let wanted = |page: u64| !has(page);
        self.each_page_of(entry, &pages, wanted, |check, page, offset, bytes| {
            let expected = Some(shape.nodes_on_page(page, nodes));
            match InlineView::open(&shape, bytes, page, expected, true, name) {
                Ok(view) => check.inline_records(&shape, page, Some(offset), name, &view),
                Err(error) => check.report.refused(name, &error.into()),
            }
        })?;
        let inside = |page: &u64| (pages.count..count).contains(page);
        if let Some(page) = (pages.count..count).find(|&page| !has(page)) {
            let numbers = journal.numbers.iter().map(|&page| u64::from(page));
            let held = numbers
                .filter(inside)
                .map(|page| shape.nodes_on_page(page, nodes) as u64);
            let behind = nodes - shape.first_node(pages.count) - held.sum::<u64>();
            let first = shape.first_node(page);
            let what = format!(
                "its {stored} pages end before page {page}, which node {first} is on; {behind} nodes are behind its end"
            );
            self.report.problem(name, None, what);
        }
        if journal.numbers.is_empty() {
            return Ok(());
        }
        let file = stored::file_of(volume, manifest, FileKind::Journal, None)?;
        for (page, bytes) in journal.pages(shape.page_bytes()) {
            let page = u64::from(page);
            let expected = Some(shape.nodes_on_page(page, nodes));
            // One that is not as it should be is a problem of the journal.
            if page < count
                && let Ok(view) = InlineView::open(&shape, bytes, page, expected, true, &file)
            {
                self.inline_records(&shape, page, None, &file, &view);
            }
        }
        Ok(())
    }

    /// Checks the journal: its pages are pages of the index, whole, and hold the nodes that there are.
    pub(super) fn journal(&mut self, payload: Vec<u8>, name: &str) -> Result<(), Error> {
        let (manifest, nodes) = (self.manifest, self.nodes());
        let (dim, degree) = (manifest.dimension as usize, manifest.degree as usize);
        let code_bytes = manifest.code_bytes as usize;
        let shape = InlineShape::new(manifest.element, dim, degree, code_bytes)?;
        let count = shape.pages(nodes);
        let journal = JournalFile::decode(payload, shape.page_bytes(), name)?;
        for (page, bytes) in journal.pages(shape.page_bytes()) {
            let page = u64::from(page);
            if page >= count {
                let what = format!("it has page {page}; {nodes} nodes are on {count} pages");
                self.report.problem(name, None, what);
                continue;
            }
            let expected = Some(shape.nodes_on_page(page, nodes));
            // Offsets are those that the page has in its file.
            let place = format!("{name}, for page {page} of {}", FileKind::Inline.name());
            if let Err(error) = InlineView::open(&shape, bytes, page, expected, true, &place) {
                self.report.problem(name, None, error.to_string());
            }
        }
        Ok(())
    }
}
