//! Checks pages of an index that took direct inserts. Every node must be pending, or on the page
//! that the placement table gives.
//!
//! ```text
//!   placement   node -> page      pages without a node are not read: their content does not count
//!   page        records           only records whose node is on this page, according to the table
//!   pending     changes, records  a list is checked as it will be when its page is written
//! ```
//!
//! If vectors are stored apart from lists, they are never pending, and are on pages of segments
//! ([`super::added`]). If vectors are in two parts, the pages of lists have the leading parts and
//! the ids.

use stratann_layout::{FileEntry, FileKind, LayoutError};

use super::Check;
use super::pages::{NodeAt, Pages};
use super::placement::Tables;
use super::records::Records;
use crate::Error;
use crate::bits::Bits;
use crate::stores::VectorsAt;
use crate::stores::reading;
use crate::stores::topology::pending::apply;

struct Page<'p> {
    number: u64,
    offset: u64,
    bytes: &'p [u8],
}

struct Walk<'t> {
    tables: &'t Tables,
    /// The nodes whose current record was found.
    found: Bits,
    damaged: Bits,
    links: Vec<u32>,
}

impl Check<'_> {
    pub(super) fn placed(
        &mut self,
        entry: &FileEntry,
        kind: FileKind,
        name: &str,
    ) -> Result<(), Error> {
        let file = reading::pages(self.volume, self.manifest, kind, None)?;
        let tables = self.tables(None);
        let mut records = self.records_of(kind, &tables, &*file.format, file.first);
        // The check of the table itself reports its faults.
        let Some(placement_tables) = self.placement_tables else {
            return self.advance(entry.length);
        };
        let mut pages = Pages::of(&*file.format, 0);
        let stored = self.volume.len(&entry.name)?.saturating_sub(pages.start);
        let stored = stored / pages.page_bytes as u64;
        pages.count = stored.min(placement_tables.placement.pages.into());
        let in_use = self.in_use(placement_tables, pages.count, name);
        let mut walk = Walk {
            tables: placement_tables,
            found: Bits::new(placement_tables.placement.page_of.len() as u64),
            damaged: Bits::new(pages.count),
            links: Vec::new(),
        };
        let wanted = |page: u64| in_use.has(page);
        self.each_page_of(entry, &pages, wanted, |check, number, offset, bytes| {
            let page = Page {
                number,
                offset,
                bytes,
            };
            check.placed_page(&mut walk, &mut records, &page, name);
        })?;
        self.waiting(&mut walk);
        self.places(&walk);
        Ok(())
    }

    fn in_use(&mut self, tables: &Tables, pages: u64, name: &str) -> Bits {
        let mut waits = Bits::new(tables.placement.page_of.len() as u64);
        for record in tables.pending.iter().flat_map(|pending| &pending.records) {
            waits.add(record.node.into());
        }
        let mut in_use = Bits::new(pages);
        let (mut behind, mut first) = (0u64, None);
        for (node, &page) in (0..).zip(&tables.placement.page_of) {
            if waits.has(node) {
                continue;
            }
            if u64::from(page) < pages {
                in_use.add(page.into());
            } else if tables.pending.is_some() || node < u64::from(tables.placement.built) {
                behind += 1;
                first.get_or_insert((node, page));
            }
        }
        if let Some((node, page)) = first {
            let what = format!(
                "its {pages} pages end before page {page}, which has node {node} according to {}; {behind} nodes are behind the end",
                tables.name
            );
            self.report.problem(name, None, what);
        }
        in_use
    }

    fn placed_page(
        &mut self,
        walk: &mut Walk<'_>,
        records: &mut Records<'_>,
        page: &Page<'_>,
        name: &str,
    ) {
        let (format, built) = (records.format, self.manifest.vectors);
        let read = match format.read(page.number, page.bytes, Some(built), name) {
            Ok(read) => read,
            Err(error) => return self.passed_over(walk, page.number, name, &error.into()),
        };
        self.report.pages += 1;
        for stored in read.records {
            let Some((place, node)) = self.is_here(walk, stored.node, page, name) else {
                continue;
            };
            match stored.bytes.and_then(|bytes| Ok((bytes, stored.id?))) {
                Ok((bytes, id)) => {
                    if records.decode_list(self, place, &bytes.list) {
                        std::mem::swap(&mut walk.links, &mut records.links);
                        self.list(walk, place, node, format.list_bytes(&bytes.list));
                    }
                    if records.vectors {
                        records.vector(self, place, &bytes.vector);
                    }
                    if records.leading {
                        records.leading(self, place, node.into(), &bytes.vector);
                    }
                    if records.vectors || records.leading {
                        self.counted(place, id);
                    }
                }
                Err(error) => self.report.refused(name, &error.into()),
            }
        }
    }

    fn passed_over(&mut self, walk: &mut Walk<'_>, page: u64, name: &str, error: &Error) {
        walk.damaged.add(page);
        self.report.refused(name, error);
    }

    /// `None` if the table has another page for the node of the record.
    fn is_here<'n>(
        &mut self,
        walk: &mut Walk<'_>,
        node: Result<u32, LayoutError>,
        page: &Page<'_>,
        file: &'n str,
    ) -> Option<(NodeAt<'n>, u32)> {
        let node = match node {
            Ok(node) => node,
            Err(error) => {
                self.report.refused(file, &error.into());
                return None;
            }
        };
        let place = NodeAt {
            file,
            offset: Some(page.offset),
            node: node.into(),
        };
        let page_of = &walk.tables.placement.page_of;
        let Some(&here) = page_of.get(node as usize) else {
            let nodes = page_of.len();
            self.node_problem(
                place,
                format_args!("does not exist; there are {nodes} nodes"),
            );
            return None;
        };
        // A moved record leaves its old bytes on its old page. If there are two records of a node,
        // the first record counts.
        if u64::from(here) != page.number || !walk.found.add(node.into()) {
            return None;
        }
        self.report.nodes += 1;
        Some((place, node))
    }

    /// `walk.links` has the list of the node. Pending changes are applied before the check.
    fn list(&mut self, walk: &mut Walk<'_>, place: NodeAt<'_>, node: u32, bytes: usize) {
        let degree = self.manifest.graph().degree as usize;
        let changes = walk.tables.changes(node);
        if !changes.is_empty() {
            let most = walk.links.len().max(degree);
            apply(changes, node, &mut walk.links);
            // Two concurrent inserts may both have used the last free slot of a list. Only the
            // first link will be written, so the second link is no damage.
            walk.links.truncate(most);
        }
        self.links(place, &walk.links, bytes);
    }

    fn waiting(&mut self, walk: &mut Walk<'_>) {
        let tables = walk.tables;
        let Some(pending) = &tables.pending else {
            return;
        };
        let mut waits = Bits::new(tables.placement.page_of.len() as u64);
        for record in &pending.records {
            let place = NodeAt {
                file: &pending.name,
                offset: None,
                node: record.node.into(),
            };
            let node = record.node;
            if !waits.add(node.into()) {
                self.node_problem(place, "has two pending records");
                continue;
            }
            if !walk.found.add(node.into()) {
                let page = tables.placement.page_of[node as usize];
                self.node_problem(
                    place,
                    format_args!("has a pending record, but is on page {page} already"),
                );
                continue;
            }
            self.report.nodes += 1;
            walk.links.clear();
            walk.links.extend_from_slice(&record.list);
            self.list(walk, place, node, 4 * record.list.len());
            match self.composition.vectors {
                VectorsAt::Records => {
                    self.vector(place, &record.vector, record.vector.len());
                    self.counted(place, record.id);
                }
                // The vector is checked with its trailing part.
                VectorsAt::Parts => self.counted(place, record.id),
                // The vector and the id are checked with the pages of vectors.
                VectorsAt::Segments => {}
            }
        }
    }

    fn places(&mut self, walk: &Walk<'_>) {
        let tables = walk.tables;
        let (built, knows) = (u64::from(tables.placement.built), tables.pending.is_some());
        for (node, &page) in (0..).zip(&tables.placement.page_of) {
            // If the pending changes cannot be read, a node that no page has may be one of them.
            let unknown = walk.damaged.has(page.into()) || (!knows && node >= built);
            if !walk.found.has(node) && !unknown {
                let what = format!("it places node {node} on page {page}, which does not have it");
                self.report.problem(&tables.name, None, what);
            }
        }
    }
}
