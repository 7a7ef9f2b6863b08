//! The leading parts of vectors of which segments have the trailing ones, off the whole pages of the file that has them beside the lists.
//!
//! Pages say which node they begin with, so that the directory is not needed. What is known of all of them at a time is that number; a
//! page is read again when a vector of it is put together, and vectors come in the order of nodes.

use std::ops::Range;

use stratann_layout::{FileEntry, FileKind};
use stratann_tier::Volume;

use super::files;
use super::pages::{Files, Pages, Tally, offset_of};
use crate::stores::records::PageFormat;
use crate::{Error, stored};

/// The leading parts of vectors.
#[derive(Default)]
pub(super) struct LeadingParts<'m> {
    file: Option<PartFile<'m>>,
    /// The first node of each page that is whole, and the page, by node.
    pages: Vec<(u32, u64)>,
    /// The page that was read last, its bytes, and its nodes with the bytes of their parts among those in `bytes`.
    here: Option<u64>,
    page: Vec<u8>,
    parts: Vec<(u32, Range<usize>)>,
    bytes: Vec<u8>,
    /// Why not all of them can be read.
    pub(super) wrong: Option<String>,
}

/// The file that has them.
struct PartFile<'m> {
    entry: &'m FileEntry,
    /// As errors name it.
    name: String,
    format: Box<dyn PageFormat>,
    all: Pages,
}

impl LeadingParts<'_> {
    /// Why one is not to be had.
    pub(super) fn why(&self) -> String {
        let wrong = self.wrong.clone();
        wrong.unwrap_or_else(|| "it does not have all of their leading parts".into())
    }

    /// That of a node's vector; `None` if it is not to be had.
    pub(super) fn of(&mut self, volume: &dyn Volume, node: u32) -> Result<Option<&[u8]>, Error> {
        let at = self.pages.partition_point(|&(first, _)| first <= node);
        let page = at.checked_sub(1).map(|at| self.pages[at].1);
        if page.is_none() || self.file.is_none() {
            return Ok(None);
        }
        if self.here != page {
            self.here = page;
            self.read(volume)?;
        }
        let at = self.parts.binary_search_by_key(&node, |&(node, _)| node);
        Ok(at.ok().map(|at| &self.bytes[self.parts[at].1.clone()]))
    }

    /// Takes the parts of the page that is to be here.
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
        // It was whole when it was counted.
        let Ok(read) = file.format.read(page, &self.page, None, &file.name) else {
            return Ok(());
        };
        for stored in read.records {
            if let (Ok(node), Ok(bytes)) = (stored.node, stored.bytes) {
                let start = self.bytes.len();
                self.bytes.extend_from_slice(&bytes.vector);
                self.parts.push((node, start..self.bytes.len()));
            }
        }
        self.parts.sort_unstable_by_key(|&(node, _)| node);
        Ok(())
    }
}

impl<'m> Files<'m, '_, '_> {
    /// The leading parts of vectors, which stand beside the lists in a file of this kind. What is not to be had of them is told with the
    /// vectors of which they are the leading parts.
    pub(super) fn leading_parts(&mut self, kind: FileKind) -> Result<LeadingParts<'m>, Error> {
        let (volume, count) = (self.volume, self.manifest.vectors);
        let mut leading = LeadingParts::default();
        let Some((entry, header)) = self.file(kind, None, 0)? else {
            leading.wrong = Some("it is not there, or all of it is damaged".into());
            return Ok(leading);
        };
        let name = stored::name_of(volume, &entry.name);
        let Some(format) = self.format(kind, entry, header, (0, count), 0)? else {
            leading.wrong = Some("all of it is damaged".into());
            return Ok(leading);
        };
        let all = Pages::of(&*format, count, entry.length);
        let mut tally = Tally::default();
        self.each_page(entry, &all, &mut tally, |_, tally, page, bytes| {
            match format.read(page, bytes, Some(count), &name) {
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
        leading.pages.sort_unstable();
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
