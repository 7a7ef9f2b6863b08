//! Reads the vectors of an inline index that took direct inserts. The position of a page follows
//! from its nodes. The journal has the pages that the last checkpoint was to write in place.
//!
//! ```text
//!   journal is readable     its pages, and all other pages of the file up to the last node's page
//!   journal is lost         pages as they are in the file: torn pages are lost, and old pages lack
//!                           newer nodes
//!   placement is readable   all records except dead records
//!   placement is lost       for each id, the record on the highest node
//! ```
//!
//! The id and the vector of a node never change, so older versions of a page have them too.

use std::borrow::Cow;

use stratann_layout::{FileEntry, FileKind, JournalFile, LayoutError, PlacementFacts};

use super::Lost;
use super::apart::Rule;
use super::files;
use super::pages::{Files, Pages, Tally, offset_of};
use super::placed::Newest;
use crate::stores::records::FixedFormat;
use crate::{Error, Layout, stored};

type Record<'p> = (u32, u64, Cow<'p, [u8]>);

struct Even<'m> {
    format: Box<dyn FixedFormat>,
    nodes: u64,
    pages: Pages,
    /// `None` if the whole file is lost.
    file: Option<(&'m FileEntry, String)>,
    journal: JournalFile,
    /// The readable pages of the journal, ascending.
    laid: Vec<u32>,
}

impl Even<'_> {
    fn is_laid(&self, page: u64) -> bool {
        u32::try_from(page).is_ok_and(|page| self.laid.binary_search(&page).is_ok())
    }

    fn records<'p>(
        &'p self,
        page: u64,
        bytes: &'p [u8],
        file: &'p str,
    ) -> Result<Vec<Record<'p>>, LayoutError> {
        let read = self.format.read(page, bytes, None, file)?;
        let records = read.records.into_iter().filter_map(|stored| {
            let node = stored
                .node
                .ok()
                .filter(|&node| u64::from(node) < self.nodes)?;
            Some((node, stored.id.ok()?, stored.bytes.ok()?.vector))
        });
        Ok(records.collect())
    }
}

impl<'m> Files<'m, '_, '_> {
    /// Returns an upper bound of the number of vectors that should exist.
    pub(super) fn journaled(
        &mut self,
        layout: Layout,
        format: Box<dyn FixedFormat>,
        facts: &PlacementFacts,
    ) -> Result<u64, Error> {
        let placement = self.placement(layout, facts)?;
        // If the file is lost, its loss has this position in the report.
        let told = self.lost.len();
        let even = self.even(layout, format, facts)?;
        let rule = match &placement {
            Ok(placement) => Rule::Table(placement),
            Err(_) => Rule::Newest(self.newest_of(&even)?),
        };
        let mut live = 0;
        let mut tally = self.each_node(&even, |files, tally, (node, id, vector)| {
            if rule.takes(id, node) {
                live += 1;
                tally.fault((files.take)(id, &vector)?);
            }
            Ok(())
        })?;
        // Some missing nodes may be dead. So at most the missing live vectors are lost.
        let most = match &placement {
            Ok(_) => facts.live.saturating_sub(live),
            Err(_) => facts.live,
        };
        let missing = facts.nodes.saturating_sub(tally.seen);
        let lost = missing.min(most);
        match even.file {
            Some((entry, _)) => {
                tally.seen = 0;
                self.tell(entry, &even.pages, lost, tally);
            }
            None => {
                if let Some(told) = self.lost.get_mut(told) {
                    told.vectors = lost;
                }
                self.tell_faults(&self.table_name(FileKind::Journal), &tally);
            }
        }
        Ok(match placement {
            Ok(_) if missing == 0 => live,
            Ok(_) => facts.live.max(live),
            Err(why) => {
                self.tell_placement(&why);
                live + lost
            }
        })
    }

    fn even(
        &mut self,
        layout: Layout,
        format: Box<dyn FixedFormat>,
        facts: &PlacementFacts,
    ) -> Result<Even<'m>, Error> {
        let found = self.file(layout.composition().lists, None, facts.live)?;
        let file_name = |entry: &FileEntry| stored::name_of(self.volume, &entry.name);
        let mut even = Even {
            pages: Pages::of(&*format, facts.nodes, 0),
            format,
            nodes: facts.nodes,
            file: found.map(|(entry, _)| (entry, file_name(entry))),
            journal: JournalFile::default(),
            laid: Vec::new(),
        };
        let name = self.table_name(FileKind::Journal);
        let journal = self.table(FileKind::Journal, |_, payload| {
            Ok(JournalFile::decode(payload, even.pages.bytes, &name)?)
        })?;
        match journal {
            Ok(journal) => even.journal = journal,
            Err(why) => self.lost.push(Lost {
                what: format!(
                    "{why}: the file of pages is used without the journal; some of its pages may be torn, or lack the latest nodes"
                ),
                file: name,
                vectors: 0,
            }),
        }
        let pages = even.journal.pages(even.pages.bytes);
        let whole = pages.filter(|&(page, bytes)| {
            let (page, nodes) = (u64::from(page), Some(facts.nodes));
            page < even.pages.count && even.format.read(page, bytes, nodes, "").is_ok()
        });
        even.laid = whole.map(|(page, _)| page).collect();
        Ok(even)
    }

    fn newest_of(&mut self, even: &Even<'m>) -> Result<Newest, Error> {
        let mut newest = Newest::new();
        self.each_node(even, |_, _, (node, id, _)| {
            newest.add(id, node);
            Ok(())
        })?;
        newest.finish();
        Ok(newest)
    }

    /// Passes the records of all current pages to `each`. Returns the losses.
    fn each_node(
        &mut self,
        even: &Even<'m>,
        mut each: impl FnMut(&mut Self, &mut Tally, Record<'_>) -> Result<(), Error>,
    ) -> Result<Tally, Error> {
        let (volume, mut tally) = (self.volume, Tally::default());
        for (page, bytes) in even.journal.pages(even.pages.bytes) {
            if !even.is_laid(page.into()) {
                continue;
            }
            for record in even.records(page.into(), bytes, "").into_iter().flatten() {
                tally.seen += 1;
                each(self, &mut tally, record)?;
            }
        }
        let Some((entry, name)) = &even.file else {
            return Ok(tally);
        };
        let wanted = |page: u64| !even.is_laid(page);
        self.each_page_of(
            entry,
            &even.pages,
            &wanted,
            &mut tally,
            |this, tally, page, bytes| {
                let Some(bytes) = bytes else {
                    return Ok(());
                };
                match even.records(page, bytes, name) {
                    Ok(records) => {
                        tally.seen += records.len() as u64;
                        for record in records {
                            each(this, tally, record)?;
                        }
                    }
                    Err(error) => {
                        let offset = offset_of(&even.pages, page);
                        tally.page(offset, files::said(volume, entry, &error));
                    }
                }
                Ok(())
            },
        )?;
        Ok(tally)
    }
}
