//! Checks pages of an inline index that took direct inserts. The position of a page follows from
//! its nodes. The journal has the pages that the last checkpoint was to write in place.
//!
//! ```text
//!   journal   page -> bytes     valid; the same page of the file may be old, torn, or missing
//!   file      all other pages   up to the last node's page; a crash may leave later pages
//! ```
//!
//! If the journal cannot be read, all pages are taken from the file.

use stratann_layout::{FileEntry, FileKind, JournalFile};

use super::Check;
use super::pages::Pages;
use super::records::Records;
use crate::stores::composition::FixedFormatOf;
use crate::stores::reading;
use crate::stores::records::PageRecords;
use crate::{Error, stored};

impl Check<'_> {
    pub(super) fn journaled(
        &mut self,
        format: FixedFormatOf,
        entry: &FileEntry,
        name: &str,
    ) -> Result<(), Error> {
        let (volume, manifest, nodes) = (self.volume, self.manifest, self.nodes());
        reading::pages(volume, manifest, self.composition.lists, None)?;
        let format = format(manifest)?;
        let count = format.pages(nodes);
        let said = manifest.placement.map_or(count, |facts| facts.pages);
        if said != count {
            self.claim(format!(
                "it says that {said} pages are in use; {nodes} nodes are on {count} pages"
            ));
        }
        let journal = reading::journal(volume, manifest, format.page_bytes()).unwrap_or_default();
        let has = |page: u64| {
            let page = u32::try_from(page);
            page.is_ok_and(|page| journal.numbers.binary_search(&page).is_ok())
        };
        let tables = self.tables(None);
        let mut records = self.records_of(self.composition.lists, &tables, &*format, 0);
        let mut pages = Pages::of(&*format, 0);
        let stored = volume.len(&entry.name)?.saturating_sub(pages.start);
        let stored = stored / pages.page_bytes as u64;
        pages.count = stored.min(count);
        // A page that the journal has may be unreadable in the file, and is not read there.
        let wanted = |page: u64| !has(page);
        self.each_page_of(
            entry,
            &pages,
            wanted,
            |check, page, offset, bytes| match format.read(page, bytes, Some(nodes), name) {
                Ok(read) => check.journaled_page(&mut records, &read, page, name, Some(offset)),
                Err(error) => check.report.refused(name, &error.into()),
            },
        )?;
        let inside = |page: &u64| (pages.count..count).contains(page);
        if let Some(page) = (pages.count..count).find(|&page| !has(page)) {
            let numbers = journal.numbers.iter().map(|&page| u64::from(page));
            let on = |page| format.nodes_on(page, nodes);
            let held = numbers.filter(inside).map(|page| on(page).1);
            let behind = nodes - on(pages.count).0 - held.sum::<u64>();
            let first = on(page).0;
            let what = format!(
                "its {stored} pages end before page {page}, which has node {first}; {behind} nodes are behind the end"
            );
            self.report.problem(name, None, what);
        }
        if journal.numbers.is_empty() {
            return Ok(());
        }
        let file = stored::file_of(volume, manifest, FileKind::Journal, None)?;
        for (page, bytes) in journal.pages(format.page_bytes()) {
            let page = u64::from(page);
            // The check of the journal itself reports a fault of its page.
            if page < count
                && let Ok(read) = format.read(page, bytes, Some(nodes), &file)
            {
                self.journaled_page(&mut records, &read, page, &file, None);
            }
        }
        Ok(())
    }

    fn journaled_page(
        &mut self,
        records: &mut Records<'_>,
        read: &PageRecords<'_>,
        page: u64,
        file: &str,
        offset: Option<u64>,
    ) {
        self.report.pages += 1;
        records.check(self, read, page, file, offset);
    }

    /// Checks the pages in a journal. Each page must belong to the index, be undamaged, and have
    /// existing nodes.
    pub(super) fn journal(&mut self, payload: Vec<u8>, name: &str) -> Result<(), Error> {
        let (manifest, nodes) = (self.manifest, self.nodes());
        let Some(format) = self.composition.fixed_format(manifest)? else {
            // This layout has no journal, so a manifest that names a journal is at fault.
            return Ok(());
        };
        let count = format.pages(nodes);
        let journal = JournalFile::decode(payload, format.page_bytes(), name)?;
        for (page, bytes) in journal.pages(format.page_bytes()) {
            let page = u64::from(page);
            if page >= count {
                let what = format!("it has page {page}; {nodes} nodes are on {count} pages");
                self.report.problem(name, None, what);
                continue;
            }
            // The offset is in the file of pages, not in the journal.
            let place = format!(
                "{name}, for page {page} of {}",
                self.composition.lists.name()
            );
            if let Err(error) = format.read(page, bytes, Some(nodes), &place) {
                self.report.problem(name, None, error.to_string());
            }
        }
        Ok(())
    }
}
