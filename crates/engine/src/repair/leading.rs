//! The leading parts of vectors, from the undamaged pages of the file of lists.
//!
//! - **Pages of the build** have the number of their first node, so the directory is not needed.
//! - **Rewritten pages** have the number of each of their nodes. The table of direct inserts has
//!   the current page of a node. If the table is lost, all pages with this node and the same
//!   external id are read, and their leading parts must be equal.
//!
//! After a crash, the log is replayed, and a node number that no checkpoint had may get another
//! vector. So the leading parts of such a node on two pages may differ. A vector of the build is
//! the same on every page.
//!
//! In memory are only the node numbers of all pages. Vectors are composed in the order of nodes.

use std::ops::Range;

use stratann_layout::{FileEntry, FileKind, PlacementFile};
use stratann_tier::Volume;

use super::files;
use super::pages::{Files, Pages, Tally, offset_of};
use crate::bits::Bits;
use crate::stores::records::PageFormat;
use crate::{Error, stored};

#[derive(Default)]
pub(super) struct LeadingParts<'m> {
    file: Option<PartFile<'m>>,
    /// The first node of each undamaged page of the build, and the page.
    pages: Vec<(u32, u64)>,
    /// If the table is lost, each node on a rewritten page, and the page.
    moved: Vec<(u32, u64)>,
    /// Nodes with this number or a higher one were inserted after the build.
    built: u32,
    /// The page that was read last.
    here: Option<u64>,
    page: Vec<u8>,
    /// The nodes of the page `here`, with their ids and the positions of their parts in `bytes`.
    parts: Vec<(u32, u64, Range<usize>)>,
    bytes: Vec<u8>,
    found: Vec<u8>,
    pub(super) wrong: Option<String>,
}

struct PartFile<'m> {
    entry: &'m FileEntry,
    name: String,
    format: Box<dyn PageFormat>,
    all: Pages,
}

impl LeadingParts<'_> {
    pub(super) fn why(&self) -> String {
        let wrong = self.wrong.clone();
        wrong.unwrap_or_else(|| "it lacks some leading parts".into())
    }

    /// `None` if the leading part is lost. `by_table` is the page of the node in the table.
    pub(super) fn of(
        &mut self,
        volume: &dyn Volume,
        (node, id): (u32, u64),
        by_table: Option<u64>,
    ) -> Result<Option<&[u8]>, Error> {
        let from = self.moved.partition_point(|&(other, _)| other < node);
        let moved = self.moved[from..].iter();
        let moved = moved.take_while(|&&(other, _)| other == node);
        let mut pages: Vec<u64> = by_table.into_iter().collect();
        pages.extend(moved.map(|&(_, page)| page));
        if node < self.built {
            let before = self.pages.partition_point(|&(first, _)| first <= node);
            pages.extend(before.checked_sub(1).map(|at| self.pages[at].1));
        }
        self.found.clear();
        let mut is_found = false;
        for page in pages {
            if self.here != Some(page) {
                self.here = Some(page);
                self.read(volume)?;
            }
            let of = |&(other, other_id, _): &(u32, u64, Range<usize>)| (other, other_id);
            let Ok(at) = self.parts.binary_search_by_key(&(node, id), of) else {
                continue;
            };
            let part = &self.bytes[self.parts[at].2.clone()];
            if is_found && self.found != part {
                return Ok(None);
            }
            self.found.clear();
            self.found.extend_from_slice(part);
            is_found = true;
            if node < self.built || by_table.is_some() {
                break;
            }
        }
        Ok(is_found.then_some(&self.found))
    }

    fn read(&mut self, volume: &dyn Volume) -> Result<(), Error> {
        self.parts.clear();
        self.bytes.clear();
        let (Some(file), Some(page)) = (&self.file, self.here) else {
            return Ok(());
        };
        self.page.resize(file.all.bytes, 0);
        let offset = offset_of(&file.all, page);
        if !files::read(volume, &file.entry.name, offset, &mut self.page)? {
            return Ok(());
        }
        // The page was readable when the pages were counted.
        let Ok(read) = file.format.read(page, &self.page, None, &file.name) else {
            return Ok(());
        };
        for stored in read.records {
            if let (Ok(node), Ok(id), Ok(bytes)) = (stored.node, stored.id, stored.bytes) {
                let start = self.bytes.len();
                self.bytes.extend_from_slice(&bytes.vector);
                self.parts.push((node, id, start..self.bytes.len()));
            }
        }
        self.parts.sort_unstable_by_key(|&(node, id, _)| (node, id));
        Ok(())
    }
}

fn pages_in_use(table: &PlacementFile, pages: u64) -> Bits {
    let mut in_use = Bits::new(pages);
    for &page in &table.page_of {
        if u64::from(page) < pages {
            in_use.add(page.into());
        }
    }
    in_use
}

impl<'m> Files<'m, '_, '_> {
    /// Finds the pages with leading parts. A lost leading part is reported with the vector that
    /// needs it. After direct inserts, `table` has the page of each node.
    pub(super) fn leading_parts(
        &mut self,
        kind: FileKind,
        table: Option<&PlacementFile>,
    ) -> Result<LeadingParts<'m>, Error> {
        let (volume, count) = (self.volume, self.manifest.vectors);
        let mut leading = LeadingParts::default();
        let Some((entry, header)) = self.file(kind, None, 0)? else {
            leading.wrong = Some("it is missing, or all of it is damaged".into());
            return Ok(leading);
        };
        let name = stored::name_of(volume, &entry.name);
        let Some(format) = self.format(kind, entry, header, (0, count), 0)? else {
            leading.wrong = Some("all of it is damaged".into());
            return Ok(leading);
        };
        // Direct inserts add pages after the pages of the build.
        let all = Pages::of(&*format, count, volume.len(&entry.name)?);
        let in_use = table.map(|table| pages_in_use(table, all.count));
        let wanted = |page: u64| in_use.as_ref().is_none_or(|in_use| in_use.has(page));
        let mut tally = Tally::default();
        self.each_page_of(entry, &all, &wanted, &mut tally, |_, tally, page, bytes| {
            let Some(bytes) = bytes else {
                return Ok(());
            };
            match format.read(page, bytes, Some(count), &name) {
                Ok(read) if read.relocated => {
                    let nodes = read.records.iter().filter(|_| in_use.is_none());
                    let nodes = nodes.filter_map(|stored| stored.node.as_ref().ok());
                    leading.moved.extend(nodes.map(|&node| (node, page)));
                }
                Ok(read) => {
                    if let Some(Ok(first)) = read.records.first().map(|first| &first.node) {
                        leading.pages.push((*first, page));
                    }
                }
                Err(error) => {
                    let offset = offset_of(&all, page);
                    tally.page(offset, files::said(volume, entry, &error));
                }
            }
            Ok(())
        })?;
        leading.built = u32::try_from(count).unwrap_or(u32::MAX);
        leading.pages.sort_unstable();
        leading.moved.sort_unstable();
        leading.wrong = tally.first.map(|(offset, what)| {
            let (bad, pages) = (tally.pages, all.count);
            format!("{bad} of {pages} pages are damaged, the first at byte {offset}: {what}")
        });
        leading.file = Some(PartFile {
            entry,
            name,
            format,
            all,
        });
        Ok(leading)
    }
}
