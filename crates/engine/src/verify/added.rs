//! Pages of vectors that direct inserts added, where vectors are apart from lists.
//!
//! They stand behind those of the build in the file of the last segment, and hold the nodes that came since, one after the
//! other: the table says which node each begins with. Pages behind the last of these were written after the checkpoint, or by
//! a writer that crashed. They do not count.

use stratann_layout::{FileEntry, SlottedFacts, SlottedShape, SlottedView};

use super::Check;
use super::grown::Tables;
use super::pages::{Pages, Place};
use super::slotted::Records;
use crate::Error;

impl Check<'_> {
    /// Checks the pages that were added to a file of vectors, which has such pages and is said to have these of its build.
    pub(super) fn added(
        &mut self,
        entry: &FileEntry,
        (shape, facts): (&SlottedShape, &SlottedFacts),
        records: &mut Records<'_>,
        grown: &Tables,
        name: &str,
    ) -> Result<(), Error> {
        let (added, nodes) = (&grown.placement.added, self.nodes());
        let start = shape.file_offset(facts.pages);
        let behind = self.volume.len(&entry.name)?.saturating_sub(start);
        let there = behind / shape.page_bytes() as u64;
        let pages = Pages {
            count: there.min(added.len() as u64),
            page_bytes: shape.page_bytes(),
            start,
        };
        if let Some(first) = added.get(pages.count as usize) {
            let (page, all) = (facts.pages + pages.count, facts.pages + there);
            let what = format!(
                "its {all} pages end before page {page}, which node {first} is on by {}; {} nodes are behind its end",
                grown.name,
                nodes - u64::from(*first)
            );
            self.report.problem(name, None, what);
        }
        self.each_page(entry, &pages, |check, at, offset, bytes| {
            let page = facts.pages + at;
            let view = match SlottedView::open(shape, bytes, page, true, name) {
                Ok(view) => view,
                Err(error) => return check.report.refused(name, &error.into()),
            };
            check.report.pages += 1;
            let node_at = |at: u64| added.get(at as usize).map_or(nodes, |&first| first.into());
            let (begins, ends) = (node_at(at), node_at(at + 1));
            let found = u64::from(view.first());
            if found != begins {
                let what = format!(
                    "page {page} begins with node {found}; it is node {begins} by {}",
                    grown.name
                );
                return check.report.problem(name, Some(offset), what);
            }
            if found + view.len() as u64 != ends {
                let (held, most) = (view.len(), ends - begins);
                let what = format!(
                    "page {page} holds {held} nodes from {found} on; {most} by {}",
                    grown.name
                );
                return check.report.problem(name, Some(offset), what);
            }
            records.check(check, &view, page, name, offset);
            check.as_they_wait(&view, grown, name, offset);
        })
    }

    /// Nodes of a page that wait for a page of the graph do so with the ids that they have here.
    fn as_they_wait(&mut self, view: &SlottedView<'_>, grown: &Tables, file: &str, offset: u64) {
        for record in grown.waiting_from(view.first(), view.len()) {
            let found = view.slot_of(record.node).map(|slot| view.id(slot));
            // One that cannot be read is a problem already.
            if let Some(Ok(id)) = found
                && id != record.id
            {
                let place = Place {
                    file,
                    offset: Some(offset),
                    node: record.node.into(),
                };
                let waits = record.id;
                let of = grown.pending.as_ref().map_or("", |pending| &pending.name);
                self.node_problem(
                    place,
                    format_args!("has the outside id {id}, and waits in {of} with {waits}"),
                );
            }
        }
    }
}
