//! Checks pages of vectors that direct inserts added.
//!
//! In the last segment, added pages follow the pages of the build. Pages that the placement table
//! does not name are from after the checkpoint, or from a crashed writer. `verify` ignores these
//! pages.

use super::Check;
use super::pages::{NodeAt, Pages};
use super::placement::Tables;
use super::records::{Records, Runs};
use crate::Error;
use crate::stores::reading;
use crate::stores::records::PageRecords;
use reading::PagesFile;

impl Check<'_> {
    pub(super) fn added(
        &mut self,
        file: &PagesFile<'_>,
        records: &mut Records<'_>,
        placement_tables: &Tables,
        name: &str,
    ) -> Result<(), Error> {
        let (added, nodes) = (&placement_tables.placement.added, self.nodes());
        let built = Pages::of(&*file.format, file.pages);
        let start = built.start + file.pages * built.page_bytes as u64;
        let behind = self.volume.len(&file.entry.name)?.saturating_sub(start);
        let there = behind / built.page_bytes as u64;
        let pages = Pages {
            count: there.min(added.len() as u64),
            start,
            ..built
        };
        if let Some(first) = added.get(pages.count as usize) {
            let (page, all) = (file.pages + pages.count, file.pages + there);
            let what = format!(
                "its {all} pages end before page {page}, which has node {first} according to {}; {} nodes are behind the end",
                placement_tables.name,
                nodes - u64::from(*first)
            );
            self.report.problem(name, None, what);
        }
        let mut runs = Runs::default();
        self.each_page(file.entry, &pages, |check, at, offset, bytes| {
            let page = file.pages + at;
            let read = match file.format.read(page, bytes, None, name) {
                Ok(read) => read,
                Err(error) => {
                    runs = Runs::default();
                    return check.report.refused(name, &error.into());
                }
            };
            check.report.pages += 1;
            let said = Some(placement_tables.placement.runs.has(at));
            runs.check(check, &read, said, (page, offset), name);
            let node_at = |at: u64| added.get(at as usize).map_or(nodes, |&first| first.into());
            let (begins, ends) = (node_at(at), node_at(at + 1));
            let (found, held) = (read.first, read.records.len() as u64);
            if found != begins {
                let what = format!(
                    "page {page} begins with node {found}; according to {}, it should be node {begins}",
                    placement_tables.name
                );
                return check.report.problem(name, Some(offset), what);
            }
            if found + held != ends {
                let most = ends - begins;
                let what = format!(
                    "page {page} has {held} nodes, the first is node {found}; it should have {most} nodes by {}",
                    placement_tables.name
                );
                return check.report.problem(name, Some(offset), what);
            }
            records.check(check, &read, page, name, Some(offset));
            check.as_they_wait(&read, placement_tables, name, offset);
        })
    }

    /// A pending record has the whole vector. The two parts on pages must give the same vector.
    pub(super) fn waits_as(&mut self, place: NodeAt<'_>, node: u32, vector: &[u8]) {
        let Some(tables) = self.placement_tables else {
            return;
        };
        let waiting = tables.waiting_from(node.into(), 1);
        if waiting.iter().any(|record| *record.vector != *vector) {
            let of = tables.pending.as_ref().map_or("", |pending| &pending.name);
            self.node_problem(
                place,
                format_args!("has another vector in {of} than on this page"),
            );
        }
    }

    /// The ids on a page of vectors must equal the pending ids.
    fn as_they_wait(
        &mut self,
        read: &PageRecords<'_>,
        placement_tables: &Tables,
        file: &str,
        offset: u64,
    ) {
        for record in placement_tables.waiting_from(read.first, read.records.len()) {
            let slot = u64::from(record.node) - read.first;
            let found = read.records.get(slot as usize).map(|stored| &stored.id);
            // Another check has reported an unreadable id.
            if let Some(Ok(id)) = found
                && *id != record.id
            {
                let place = NodeAt {
                    file,
                    offset: Some(offset),
                    node: record.node.into(),
                };
                let waits = record.id;
                let of = placement_tables
                    .pending
                    .as_ref()
                    .map_or("", |pending| &pending.name);
                self.node_problem(
                    place,
                    format_args!("has the external id {id}, but {waits} in {of}"),
                );
            }
        }
    }
}
