//! Reads the vectors of an index that took direct inserts. A record is on the page to which it was
//! last written, and some records are on no page yet.
//!
//! ```text
//!   placement is readable   the record of each node on its page in the table, and pending
//!                           records; dead records are left out
//!   placement is lost       every record on every undamaged page, and pending records;
//!                           for each id, the record on the highest node
//! ```
//!
//! Without the placement, the current pages and the deleted ids are unknown. So the repair restores
//! deleted ids. A replaced record has a lower node than its replacement. So the repair first reads
//! all pages, to find the highest node of each id.

use std::borrow::Cow;

use stratann_layout::{
    BLOCK, FileEntry, FileKind, LayoutError, PendingFile, PlacementFacts, PlacementFile,
};

use super::Lost;
use super::files::{self, Header};
use super::pages::{Files, Pages, Tally, offset_of};
use super::tables::{Decoded, Decoders};
use crate::bits::Bits;
use crate::stores::reading;
use crate::stores::records::PageFormat;
use crate::verify::added_wrong;
use crate::{Error, Layout, stored};

fn not_in<'a>(found: &'a Bits, placement: &'a PlacementFile) -> impl Iterator<Item = u32> + 'a {
    let nodes = (0..).zip(&placement.page_of);
    nodes.filter_map(|(node, &page)| (!found.has(node)).then_some(page))
}

struct PageFile<'m> {
    entry: &'m FileEntry,
    name: String,
    format: Box<dyn PageFormat>,
    decoders: Decoders,
    stored: u64,
}

type Record<'p> = (u32, u64, Cow<'p, [u8]>);

impl PageFile<'_> {
    /// `built` is the number of nodes of the build. If a part of a record is lost, the record is
    /// `None`, because it may be live or dead.
    fn records<'p>(
        &'p self,
        built: u64,
        page: u64,
        bytes: &'p [u8],
    ) -> Result<impl Iterator<Item = Option<Record<'p>>> + use<'p>, LayoutError> {
        let read = self.format.read(page, bytes, Some(built), &self.name)?;
        let records = read.records.into_iter();
        Ok(records.map(|stored| {
            Some((
                stored.node.ok()?,
                stored.id.ok()?,
                stored.bytes.ok()?.vector,
            ))
        }))
    }
}

pub(super) type Table<T> = Result<T, String>;

pub(super) struct Newest {
    /// The two halves of each id, and the inverted node. So the highest node of an id sorts first.
    records: Vec<[u32; 3]>,
    /// At this number of records, a record is dropped if its id has a record with a higher node.
    limit: usize,
    taken: Bits,
}

impl Newest {
    pub(super) fn new() -> Self {
        Self {
            records: Vec::new(),
            limit: 1 << 12,
            taken: Bits::new(0),
        }
    }

    pub(super) fn add(&mut self, id: u64, node: u32) {
        if self.records.len() >= self.limit {
            self.condense();
            // The limit is a third more than the number of ids, so each id takes 16 bytes of
            // memory.
            self.limit = self.limit.max(self.records.len() / 3 * 4);
            self.records.reserve_exact(self.limit - self.records.len());
        }
        self.records.push([(id >> 32) as u32, id as u32, !node]);
    }

    fn condense(&mut self) {
        self.records.sort_unstable();
        self.records.dedup_by_key(|record| [record[0], record[1]]);
    }

    /// No record may be added afterwards. Returns the number of ids.
    pub(super) fn finish(&mut self) -> u64 {
        self.condense();
        let ids = self.records.len() as u64;
        self.taken = Bits::new(ids);
        ids
    }

    /// The position of a record, if its node is the highest node of its id. `None` if a record of
    /// this id was already taken.
    pub(super) fn wants(&self, id: u64, node: u32) -> Option<u64> {
        let record = [(id >> 32) as u32, id as u32, !node];
        let at = self.records.binary_search(&record).ok()? as u64;
        (!self.taken.has(at)).then_some(at)
    }
}

impl<'m> Files<'m, '_, '_> {
    /// Returns an upper bound of the number of vectors that should exist.
    pub(super) fn placed(&mut self, layout: Layout, facts: &PlacementFacts) -> Result<u64, Error> {
        let pages = self.page_file(layout, facts.live)?;
        let placement = self.placement(layout, facts)?;
        let pending = self.table(FileKind::Pending, |files, payload| {
            reading::pending_of(files.volume, files.manifest, facts, &payload)
        })?;
        match placement {
            Ok(placement) => self.by_table(facts, pages, &placement, pending),
            Err(why) => self.by_search(facts, pages, why, pending),
        }
    }

    pub(super) fn placement(
        &self,
        layout: Layout,
        facts: &PlacementFacts,
    ) -> Result<Table<PlacementFile>, Error> {
        let found = self.table(FileKind::Placement, |files, payload| {
            reading::placement_of(files.volume, files.manifest, facts, payload)
        })?;
        Ok(
            found.and_then(|placement| match added_wrong(layout, &placement) {
                Some(what) => Err(what),
                None => Ok(placement),
            }),
        )
    }

    /// If the file is lost, `live` vectors are lost with it.
    fn page_file(&mut self, layout: Layout, live: u64) -> Result<Option<PageFile<'m>>, Error> {
        let (volume, manifest) = (self.volume, self.manifest);
        let composition = layout.composition();
        let kind = composition.lists;
        let Some((entry, header)) = self.file(kind, None, live)? else {
            return Ok(None);
        };
        let nodes = (0, manifest.vectors);
        let Some(format) = self.format(kind, entry, header, nodes, live)? else {
            return Ok(None);
        };
        let length = volume.len(&entry.name)?.saturating_sub(BLOCK as u64);
        Ok(Some(PageFile {
            entry,
            name: stored::name_of(volume, &entry.name),
            stored: length / format.page_bytes() as u64,
            format,
            decoders: Decoders::beside_lists(volume, manifest, composition)?,
        }))
    }

    pub(super) fn table<T>(
        &self,
        kind: FileKind,
        decode: impl FnOnce(&Self, Vec<u8>) -> Result<T, Error>,
    ) -> Result<Table<T>, Error> {
        let (volume, manifest) = (self.volume, self.manifest);
        let Ok(entry) = stored::entry(volume, manifest, kind, None) else {
            return Ok(Err("the MANIFEST does not name it".into()));
        };
        match files::header(volume, entry, kind)? {
            Header::Right(_) => {}
            Header::Damaged(what) | Header::None(what) => return Ok(Err(what)),
        }
        let read = stored::read_stream_whole(volume, manifest, kind, None);
        match read.and_then(|payload| decode(self, payload)) {
            Ok(table) => Ok(Ok(table)),
            Err(error) if files::is_damage(&error) => Ok(Err(files::said(volume, entry, &error))),
            Err(error) => Err(error),
        }
    }

    pub(super) fn table_name(&self, kind: FileKind) -> String {
        let file = stored::file_of(self.volume, self.manifest, kind, None);
        file.unwrap_or_else(|_| stored::name_of(self.volume, kind.name()))
    }

    /// Takes the record of each node from the page that the table gives, and the pending records.
    /// Dead records are left out.
    fn by_table(
        &mut self,
        facts: &PlacementFacts,
        pages: Option<PageFile<'m>>,
        placement: &PlacementFile,
        pending: Table<PendingFile>,
    ) -> Result<u64, Error> {
        let nodes = facts.nodes;
        let (mut found, mut live) = (Bits::new(nodes), 0);
        let mut waiting = Tally::default();
        for record in pending.iter().flat_map(|pending| &pending.records) {
            if found.has(record.node.into()) {
                continue;
            }
            found.add(record.node.into());
            if !placement.is_dead(record.id, record.node) {
                live += 1;
                waiting.fault((self.take)(record.id, &record.vector)?);
            }
        }
        // Only pages of nodes that are not pending are read.
        let mut in_use = Bits::new(facts.pages);
        let unfound = not_in(&found, placement);
        unfound.for_each(|page| {
            in_use.add(page.into());
        });
        let (mut tally, mut damaged) = (Tally::default(), Bits::new(facts.pages));
        let pages_of = |count: u64| Pages {
            count,
            bytes: pages
                .as_ref()
                .map_or(BLOCK, |pages| pages.format.page_bytes()),
            behind: 0,
        };
        if let Some(file) = &pages {
            let (entry, volume, built) = (file.entry, self.volume, self.manifest.vectors);
            let mut vector = vec![0; self.vector_bytes()];
            let all = pages_of(facts.pages);
            let wanted = |page: u64| in_use.has(page);
            self.each_page_of(
                entry,
                &all,
                &wanted,
                &mut tally,
                |files, tally, page, bytes| {
                    let Some(bytes) = bytes else {
                        damaged.add(page);
                        return Ok(());
                    };
                    let records = match file.records(built, page, bytes) {
                        Ok(records) => records,
                        Err(error) => {
                            damaged.add(page);
                            tally.page(offset_of(&all, page), files::said(volume, entry, &error));
                            return Ok(());
                        }
                    };
                    for record in records {
                        // This record is damaged, so its node counts as missing.
                        let Some((node, id, bytes)) = record else {
                            damaged.add(page);
                            continue;
                        };
                        let here = placement.page_of.get(node as usize);
                        if here.is_none_or(|&here| u64::from(here) != page)
                            || found.has(node.into())
                        {
                            continue;
                        }
                        found.add(node.into());
                        if placement.is_dead(id, node) {
                            continue;
                        }
                        live += 1;
                        match file.decoders.decode(node, &bytes, &mut vector) {
                            Decoded::Vector => tally.fault((files.take)(id, &vector)?),
                            Decoded::Orphan => tally.orphans += 1,
                            Decoded::Wrong => tally.undecodable += 1,
                        }
                    }
                    Ok(())
                },
            )?;
        }
        // Some missing nodes may be dead. So at most the missing live vectors are lost.
        let mut left = facts.live.saturating_sub(live);
        let (waits, on): (Vec<u32>, Vec<u32>) = not_in(&found, placement)
            .partition(|&page| pending.is_err() && !damaged.has(page.into()) && pages.is_some());
        let (on_pages, elsewhere) = (on.len() as u64, waits.len() as u64);
        let (missing, mut share) = (on_pages + elsewhere, |nodes: u64| {
            let share = nodes.min(left);
            left -= share;
            share
        });
        let (on_pages, elsewhere) = (share(on_pages), share(elsewhere));
        if let Some(file) = &pages {
            self.orphans_of(file, tally.orphans);
            tally.seen = 0;
            self.tell(file.entry, &pages_of(in_use.count()), on_pages, tally);
        }
        self.tell_pending(pending.err(), &waiting, elsewhere);
        Ok(match missing {
            0 => live,
            _ => facts.live.max(live),
        })
    }

    fn by_search(
        &mut self,
        facts: &PlacementFacts,
        pages: Option<PageFile<'m>>,
        why: String,
        pending: Table<PendingFile>,
    ) -> Result<u64, Error> {
        let built = self.manifest.vectors;
        let all = Pages {
            count: pages.as_ref().map_or(0, |pages| pages.stored),
            bytes: pages
                .as_ref()
                .map_or(BLOCK, |pages| pages.format.page_bytes()),
            behind: 0,
        };
        let any = |_: u64| true;
        let most = stored::most_nodes(self.volume, self.manifest);
        let (mut newest, mut nodes) = (Newest::new(), Bits::new(most));
        let mut see = |newest: &mut Newest, id: u64, node: u32| {
            newest.add(id, node);
            if u64::from(node) < facts.nodes {
                nodes.add(node.into());
            }
        };
        for record in pending.iter().flat_map(|pending| &pending.records) {
            see(&mut newest, record.id, record.node);
        }
        let mut tally = Tally::default();
        if let Some(file) = &pages {
            let (entry, volume) = (file.entry, self.volume);
            self.each_page_of(entry, &all, &any, &mut tally, |_, tally, page, bytes| {
                let Some(bytes) = bytes else {
                    return Ok(());
                };
                match file.records(built, page, bytes) {
                    Ok(records) => records
                        .flatten()
                        .for_each(|(node, id, _)| see(&mut newest, id, node)),
                    Err(error) => {
                        tally.page(offset_of(&all, page), files::said(volume, entry, &error));
                    }
                }
                Ok(())
            })?;
        }
        let missing = facts.nodes - nodes.count();
        let ids = newest.finish();
        let mut waiting = Tally::default();
        for record in pending.iter().flat_map(|pending| &pending.records) {
            if let Some(at) = newest.wants(record.id, record.node) {
                newest.taken.add(at);
                waiting.fault((self.take)(record.id, &record.vector)?);
            }
        }
        let (bad, first) = (tally.pages, tally.first.take());
        let mut tally = Tally::default();
        if let Some(file) = &pages {
            let mut vector = vec![0; self.vector_bytes()];
            let mut again = Tally::default();
            self.each_page_of(
                file.entry,
                &all,
                &any,
                &mut again,
                |files, _, page, bytes| {
                    let Some(Ok(records)) = bytes.map(|bytes| file.records(built, page, bytes))
                    else {
                        return Ok(());
                    };
                    for (node, id, bytes) in records.flatten() {
                        let Some(at) = newest.wants(id, node) else {
                            continue;
                        };
                        match file.decoders.decode(node, &bytes, &mut vector) {
                            Decoded::Vector => {
                                newest.taken.add(at);
                                tally.fault((files.take)(id, &vector)?);
                            }
                            Decoded::Orphan => tally.orphans += 1,
                            Decoded::Wrong => tally.undecodable += 1,
                        }
                    }
                    Ok(())
                },
            )?;
        }
        // The same record may have been counted as lost on several pages.
        let untaken = ids - newest.taken.count();
        tally.orphans = tally.orphans.min(untaken);
        tally.undecodable = untaken - tally.orphans;
        let lost = missing.min(facts.live);
        if let Some(found) = &pages {
            self.orphans_of(found, tally.orphans);
            let what = match first {
                _ if missing == 0 => None,
                Some((offset, what)) => Some(format!(
                    "{bad} of {} pages are damaged or unused, the first at byte {offset}: {what}",
                    all.count
                )),
                None if pending.is_ok() => Some(format!(
                    "its pages have {missing} nodes fewer than the MANIFEST says"
                )),
                None => None,
            };
            self.lost.extend(what.map(|what| Lost {
                file: found.name.clone(),
                what,
                vectors: lost,
            }));
            self.tell(found.entry, &all, 0, tally);
        }
        self.tell_placement(&why);
        self.tell_pending(pending.err(), &waiting, lost);
        Ok(ids + lost)
    }

    pub(super) fn tell_placement(&mut self, why: &str) {
        self.lost.push(Lost {
            file: self.table_name(FileKind::Placement),
            what: format!(
                "{why}: without this file, the repair takes the latest record of each id, on any page, so an unknown number of deleted ids comes back"
            ),
            vectors: 0,
        });
    }

    /// If the file of pending records is lost, `vectors` vectors are lost with it.
    fn tell_pending(&mut self, why: Option<String>, waiting: &Tally, vectors: u64) {
        let file = self.table_name(FileKind::Pending);
        self.tell_faults(&file, waiting);
        if let Some(why) = why {
            let what =
                format!("{why}: nodes that were on no page yet, and changes of lists, are lost");
            self.lost.push(Lost {
                file,
                what,
                vectors,
            });
        }
    }

    fn orphans_of(&mut self, file: &PageFile<'m>, vectors: u64) {
        if vectors > 0 {
            self.orphans(
                (FileKind::Directory, None),
                &file.decoders,
                file.entry,
                vectors,
            );
        }
    }
}
