//! Reads the vectors of an index that stores vectors apart from lists and took direct inserts. The
//! vectors are in segments, and on added pages after the last segment.
//!
//! ```text
//!   placement is readable   added pages that it names; dead records are left out
//!   placement is lost       added pages, each of which continues the page before, up to the
//!                           last node; for each id, the record on the highest node
//! ```
//!
//! A page has the number of its first node, so added pages are found without the placement table.
//! Pages with nodes above the last node are from after the checkpoint, and the log has their
//! vectors. If vectors are in two parts, the leading parts are on pages of the graph.
//!
//! If a merge left a segment unchanged, the node numbers on its pages are from before the merge.
//! All records of such a segment have different ids, and are older than each later delete. So the
//! repair treats each record as a record of the segment's first node.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;

use stratann_layout::{
    BLOCK, FileEntry, FileKind, PendingFile, PendingRecord, PlacementFacts, PlacementFile,
    SegmentFacts,
};

use super::files;
use super::pages::{Files, Pages, Tally, offset_of};
use super::placed::Newest;
use super::tables::{Decoded, Decoders};
use crate::stores::VectorsAt;
use crate::stores::reading;
use crate::stores::records::PageFormat;
use crate::{Error, Layout, stored};

struct Part<'m> {
    entry: &'m FileEntry,
    name: String,
    n: u32,
    format: Box<dyn PageFormat>,
    decoders: Decoders,
    /// The records of the build, by the node numbers on their pages.
    built: Range<u64>,
    /// The number of pages of the build.
    pages: u64,
    vectors: u64,
    /// If a merge left the segment unchanged, its first node. Each record counts as this node's
    /// record.
    kept_as: Option<u32>,
    /// The nodes on added pages. Only the last segment has such pages.
    inserted: Range<u64>,
    behind: u64,
}

struct Found<'p> {
    stored: u32,
    id: u64,
    bytes: Option<&'p [u8]>,
    /// Whether the record is garbage, if that is known.
    garbage: Option<bool>,
}

/// The order in which segments are read. Segments whose garbage is unknown come last, the newest
/// first. So a new vector is taken before the vector that it replaced.
fn in_turn(pieces: &[Piece<'_>]) -> Vec<usize> {
    let known = |&at: &usize| match &pieces[at] {
        Piece::Found(part) => part.decoders.garbage.is_known(),
        Piece::Nothing(..) => true,
    };
    let (mut turns, unclear): (Vec<_>, Vec<_>) = (0..pieces.len()).partition(known);
    turns.extend(unclear.into_iter().rev());
    turns
}

enum Piece<'m> {
    Found(Box<Part<'m>>),
    /// The position of the loss in the report, and the number of lost nodes.
    Nothing(usize, u64),
}

#[derive(Clone, Copy)]
enum Added<'p> {
    Named(&'p [u32]),
    /// The table is lost. Each added page must continue the page before.
    Following,
}

pub(super) enum Rule<'p> {
    Table(&'p PlacementFile),
    Newest(Newest),
}

impl Rule<'_> {
    pub(super) fn takes(&self, id: u64, node: u32) -> bool {
        match self {
            Rule::Table(placement) => !placement.is_dead(id, node),
            Rule::Newest(newest) => newest.wants(id, node).is_some(),
        }
    }
}

impl Part<'_> {
    fn nodes(&self) -> u64 {
        self.vectors + length(&self.inserted)
    }

    /// The node number that decides whether a record is live. `stored` is the node number on the
    /// page.
    fn node(&self, stored: u32) -> u32 {
        self.kept_as.unwrap_or(stored)
    }

    fn pages(&self, added: Added<'_>) -> Pages {
        let behind = match added {
            _ if self.inserted.is_empty() => 0,
            Added::Named(added) => added.len() as u64,
            Added::Following => self.behind,
        };
        Pages {
            count: self.pages + behind,
            bytes: self.format.page_bytes(),
            behind: self.format.pages_behind() as u64,
        }
    }

    /// The fault in the node numbers of a page, if there is one. The page is from the build, or is
    /// an added page. `added` has the first nodes of added pages, according to the table.
    fn wrong(&self, page: u64, nodes: &Range<u64>, added: &[u32]) -> Option<String> {
        let (begins, ends) = (nodes.start, nodes.end);
        if page < self.pages {
            let inside = begins >= self.built.start && ends <= self.built.end;
            return (!inside).then(|| {
                format!("it begins with node {begins}, which is not in the range of its file")
            });
        }
        let at = (page - self.pages) as usize;
        let named = |at: usize| added.get(at).map_or(self.inserted.end, |&node| node.into());
        let (first, end) = (named(at), named(at + 1));
        ((begins, ends) != (first, end))
            .then(|| format!("it has nodes {begins} to {ends}, but should have {first} to {end}"))
    }
}

fn length(nodes: &Range<u64>) -> u64 {
    nodes.end.saturating_sub(nodes.start)
}

impl<'m> Files<'m, '_, '_> {
    /// Returns an upper bound of the number of vectors that should exist.
    pub(super) fn apart(&mut self, layout: Layout, facts: &PlacementFacts) -> Result<u64, Error> {
        let placement = self.placement(layout, facts)?;
        let mut pieces = self.pieces(facts)?;
        let composition = layout.composition();
        let in_parts = composition.vectors == VectorsAt::Parts;
        // If vectors are in two parts, new nodes without a page are pending, with their whole
        // vectors.
        let pending = match in_parts {
            true => self.table(FileKind::Pending, |files, payload| {
                reading::pending_of(files.volume, files.manifest, facts, &payload)
            })?,
            false => Ok(PendingFile::default()),
        };
        let records = || pending.iter().flat_map(|pending| &pending.records);
        let (rule, added) = match &placement {
            Ok(placement) => (Rule::Table(placement), Added::Named(&placement.added)),
            Err(_) => {
                let waiting = records().map(|record| (record.id, record.node));
                let newest = self.newest(&pieces, waiting)?;
                (Rule::Newest(newest), Added::Following)
            }
        };
        let mut waiting: HashMap<u32, &PendingRecord> = HashMap::new();
        for record in records().filter(|record| rule.takes(record.id, record.node)) {
            // If a node has two records, the first record counts.
            waiting.entry(record.node).or_insert(record);
        }
        let mut leading = match in_parts {
            true => {
                let table = placement.as_ref().ok();
                let mut leading = self.leading_parts(composition.lists, table)?;
                if let (None, Err(why)) = (&leading.wrong, &pending) {
                    let file = self.table_name(FileKind::Pending);
                    leading.wrong =
                        Some(format!("new leading parts were pending in {file}: {why}"));
                }
                Some(leading)
            }
            false => None,
        };
        let (mut live, mut missing) = (waiting.len() as u64, 0);
        // The number of pending nodes whose trailing parts were not found.
        let mut unseen = live;
        let mut tallies: Vec<_> = pieces.iter().map(|_| Tally::default()).collect();
        for at in in_turn(&pieces) {
            let Piece::Found(part) = &pieces[at] else {
                continue;
            };
            let mut vector = vec![0; self.vector_bytes()];
            let mut here = 0;
            let each = |files: &mut Self, tally: &mut Tally, found: &Found<'_>| {
                let waits = waiting.get(&found.stored);
                if waits.is_some_and(|record| record.id == found.id) {
                    unseen = unseen.saturating_sub(found.bytes.is_some().into());
                    return Ok(());
                }
                if rule.takes(found.id, part.node(found.stored)) {
                    here += u64::from(found.bytes.is_some());
                    let Some(bytes) = found.bytes else {
                        return Ok(());
                    };
                    let node = found.stored;
                    let decoded = match &mut leading {
                        Some(leading) => {
                            let page_of = placement.as_ref().map(|placement| &placement.page_of);
                            let page = page_of.ok().and_then(|of| of.get(node as usize).copied());
                            match leading.of(files.volume, (node, found.id), page.map(u64::from))? {
                                Some(first) => {
                                    part.decoders.decode_with(node, first, bytes, &mut vector)
                                }
                                None => Decoded::Orphan,
                            }
                        }
                        None => part.decoders.decode(node, bytes, &mut vector),
                    };
                    match decoded {
                        Decoded::Vector => {
                            tally.taken((files.take)(found.id, &vector)?, found.garbage);
                        }
                        Decoded::Orphan => tally.orphans += 1,
                        Decoded::Wrong => tally.undecodable += 1,
                    }
                }
                Ok(())
            };
            tallies[at] = self.each_record(part, added, each)?;
            // Some of these records may be garbage, so at most all nodes of the segment count as
            // live.
            live += part.nodes().min(here);
        }
        let mut waited = Tally::default();
        for record in waiting.values() {
            waited.fault((self.take)(record.id, &record.vector)?);
        }
        let file = self.table_name(FileKind::Pending);
        self.tell_faults(&file, &waited);
        // Some missing nodes may be dead. So at most the missing live vectors are lost.
        let mut left = match &placement {
            Ok(_) => facts.live.saturating_sub(live),
            Err(_) => facts.live,
        };
        let mut share = |nodes: u64| {
            missing += nodes;
            let share = nodes.min(left);
            left -= share;
            share
        };
        let last = pieces.len().saturating_sub(1);
        for (at, (piece, mut tally)) in pieces.iter_mut().zip(tallies).enumerate() {
            // Pending nodes belong to the last segment. They are not lost.
            let spared = if at == last { unseen } else { 0 };
            let part = match piece {
                Piece::Found(part) => part,
                &mut Piece::Nothing(told, nodes) => {
                    let share = share(nodes.saturating_sub(spared));
                    if let Some(lost) = self.lost.get_mut(told) {
                        lost.vectors = share;
                    }
                    continue;
                }
            };
            let lost = share(part.nodes().saturating_sub(tally.seen + spared));
            tally.seen = 0;
            let garbage = length(&part.built).saturating_sub(part.vectors);
            let mut tables = (FileKind::Chunks, Some(part.n));
            if let Some(leading) = &leading
                && part.decoders.has_model()
            {
                // The model is known, so vectors that do not decode lack only their leading parts.
                tables = (composition.lists, None);
                part.decoders.wrong = Some(leading.why());
            }
            self.unclear(tables, &part.decoders, part.entry, garbage, tally.unclear);
            // Some lost records may be garbage, so at most all nodes of the segment are lost.
            tally.orphans = tally.orphans.min(part.nodes());
            if tally.orphans > 0 {
                self.orphans(tables, &part.decoders, part.entry, tally.orphans);
            }
            self.tell(part.entry, &part.pages(added), lost, tally);
        }
        Ok(match placement {
            Ok(_) if missing == 0 => live,
            Ok(_) => facts.live.max(live),
            Err(why) => {
                self.tell_placement(&why);
                live + missing.min(facts.live)
            }
        })
    }

    fn pieces(&mut self, facts: &PlacementFacts) -> Result<Vec<Piece<'m>>, Error> {
        let manifest = self.manifest;
        let last = manifest.segments.len().saturating_sub(1);
        let mut pieces = Vec::new();
        for (n, segment) in (0..).zip(&manifest.segments) {
            let inserted = match n as usize == last {
                true => manifest.vectors..facts.nodes,
                false => 0..0,
            };
            let nodes = u64::from(segment.vectors) + length(&inserted);
            let told = self.lost.len();
            pieces.push(match self.part(n, segment, inserted)? {
                Some(part) => Piece::Found(Box::new(part)),
                None => Piece::Nothing(told, nodes),
            });
        }
        Ok(pieces)
    }

    /// Opens segment `n`, whose added pages have the nodes `inserted`. If the file is lost, the
    /// result is `None`, and the loss is reported.
    fn part(
        &mut self,
        n: u32,
        segment: &SegmentFacts,
        inserted: Range<u64>,
    ) -> Result<Option<Part<'m>>, Error> {
        let (volume, kind) = (self.volume, FileKind::Vectors);
        let (first, count) = segment.stored();
        let vectors = u64::from(segment.vectors);
        let nodes = vectors + length(&inserted);
        let Some((entry, header)) = self.file(kind, Some(n), nodes)? else {
            return Ok(None);
        };
        let Some(format) = self.format(kind, entry, header, (first, count), nodes)? else {
            return Ok(None);
        };
        let pages = |length: u64| length.saturating_sub(BLOCK as u64) / format.page_bytes() as u64;
        let built = pages(entry.length);
        Ok(Some(Part {
            entry,
            name: stored::name_of(volume, &entry.name),
            n,
            decoders: Decoders::segment(volume, self.manifest, n)?,
            built: u64::from(first)..u64::from(first) + count,
            vectors,
            kept_as: segment.kept.map(|_| segment.first),
            pages: built,
            inserted,
            behind: pages(volume.len(&entry.name)?).saturating_sub(built),
            format,
        }))
    }

    fn newest(
        &mut self,
        pieces: &[Piece<'m>],
        waiting: impl Iterator<Item = (u64, u32)>,
    ) -> Result<Newest, Error> {
        let mut newest = Newest::new();
        waiting.for_each(|(id, node)| newest.add(id, node));
        for piece in pieces {
            if let Piece::Found(part) = piece {
                self.each_record(part, Added::Following, |_, _, found| {
                    newest.add(found.id, part.node(found.stored));
                    Ok(())
                })?;
            }
        }
        newest.finish();
        Ok(newest)
    }

    /// Passes all records to `each`, except records that certainly are garbage. Returns the losses.
    fn each_record(
        &mut self,
        part: &Part<'m>,
        added: Added<'_>,
        mut each: impl FnMut(&mut Self, &mut Tally, &Found<'_>) -> Result<(), Error>,
    ) -> Result<Tally, Error> {
        let (volume, pages) = (self.volume, part.pages(added));
        // The node with which the next added page must begin, if the table is lost.
        let next = Cell::new(part.inserted.start);
        let wanted = |page: u64| {
            let named = matches!(added, Added::Named(_));
            page < part.pages || named || next.get() < part.inserted.end
        };
        let mut tally = Tally::default();
        self.each_page_of(
            part.entry,
            &pages,
            &wanted,
            &mut tally,
            |files, tally, page, bytes| {
                let Some(bytes) = bytes else {
                    return Ok(());
                };
                let offset = offset_of(&pages, page);
                let read = match part.format.read(page, bytes, None, &part.name) {
                    Ok(read) => read,
                    Err(error) => {
                        tally.page(offset, files::said(volume, part.entry, &error));
                        return Ok(());
                    }
                };
                let nodes = read.first..read.first + read.records.len() as u64;
                match added {
                    Added::Following if page >= part.pages => {
                        // A crashed writer may have left a page that does not continue the page
                        // before.
                        if nodes.start < next.get() || nodes.end > part.inserted.end {
                            return Ok(());
                        }
                        next.set(nodes.end);
                    }
                    Added::Following => {
                        if let Some(what) = part.wrong(page, &nodes, &[]) {
                            tally.page(offset, what);
                            return Ok(());
                        }
                    }
                    Added::Named(added) => {
                        if let Some(what) = part.wrong(page, &nodes, added) {
                            tally.page(offset, what);
                            return Ok(());
                        }
                    }
                }
                for (slot, record) in read.records.into_iter().enumerate() {
                    let garbage = part.decoders.garbage.has(page, slot);
                    // Added pages have no garbage records.
                    let garbage = if page < part.pages {
                        garbage
                    } else {
                        Some(false)
                    };
                    // A record whose id is unreadable may be live or dead, so its node counts as
                    // missing.
                    let certain = garbage == Some(true);
                    if let (Ok(stored), Ok(id), false) = (record.node, record.id, certain) {
                        // A record that continues on a lost page counts as missing.
                        tally.seen += u64::from(record.bytes.is_ok());
                        let found = Found {
                            stored,
                            id,
                            bytes: record.bytes.as_ref().ok().map(|bytes| &*bytes.vector),
                            garbage,
                        };
                        each(files, tally, &found)?;
                    }
                }
                Ok(())
            },
        )?;
        Ok(tally)
    }
}
