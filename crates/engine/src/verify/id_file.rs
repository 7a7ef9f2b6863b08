//! Checks the file of ids: ids ascend, and each record of the build has an entry.
//!
//! Records are looked up in batches, sorted by id. So each block is read about once for each batch.
//! A bit for each entry shows whether a record has its id.

use stratann_layout::Manifest;
use stratann_tier::Volume;

use super::pages::NodeAt;
use super::{Check, VerifyReport};
use crate::Error;
use crate::bits::Bits;
use crate::stores::ids::{IdTable, LastBlock};

const BATCH: usize = 1 << 16;
const BETWEEN_LOOKS: u64 = 256;

pub(super) struct IdFile {
    ids: IdTable,
    /// The ids and nodes of records that wait for the look-up.
    waiting: Vec<(u64, u32)>,
    records: u64,
    /// For each entry, whether a record has its id.
    found: Bits,
    /// Whether a look-up could not read a block. Then it is unknown which entries have no record.
    unread: bool,
}

impl IdFile {
    /// `None` if there is no file of ids, or if its header is wrong.
    pub(super) fn open(volume: &dyn Volume, manifest: &Manifest) -> Option<Self> {
        let ids = IdTable::open(volume, manifest).ok()??;
        Some(Self {
            found: Bits::new(ids.entries().entries()),
            ids,
            waiting: Vec::new(),
            records: 0,
            unread: false,
        })
    }

    fn look_up(&mut self, report: &mut VerifyReport) {
        self.waiting.sort_unstable();
        let mut last = LastBlock::none();
        for (id, node) in self.waiting.drain(..) {
            // The check of the file itself reports the unreadable block.
            let Ok(found) = self.ids.find(id, &mut last) else {
                self.unread = true;
                continue;
            };
            if let Ok((entry, _)) = found {
                self.found.add(entry);
            }
            let (entry, what) = match found {
                Ok((_, of)) if of == node => continue,
                Ok((entry, of)) => (
                    entry,
                    format!("external id {id} leads to node {of}; node {node} has this id"),
                ),
                Err(entry) => (entry, format!("external id {id} of node {node} is missing")),
            };
            report.problem(
                self.ids.file(),
                Some(self.ids.entries().offset(entry)),
                what,
            );
        }
    }

    fn superfluous(&self, report: &mut VerifyReport) {
        let entries = self.ids.entries();
        let all = entries.entries();
        if self.unread || self.records < all || self.found.count() == all {
            return;
        }
        let mut last = LastBlock::none();
        for block in 0..entries.blocks() {
            let Ok(view) = self.ids.block(block, &mut last) else {
                continue;
            };
            for (place, entry) in (0..view.len()).zip(view.first_entry()..) {
                if !self.found.has(entry) {
                    let (id, node) = view.get(place);
                    let what =
                        format!("external id {id} leads to node {node}; no node has this id");
                    report.problem(
                        self.ids.file(),
                        Some(self.ids.entries().offset(entry)),
                        what,
                    );
                }
            }
        }
    }
}

impl Check<'_> {
    pub(super) fn id_file(&mut self, name: &str) -> Result<(), Error> {
        let Some(table) = IdTable::open(self.volume, self.manifest)? else {
            return Ok(());
        };
        let (entries, next_id) = (table.entries(), self.manifest.next_id);
        let mut last = LastBlock::none();
        let mut before: Option<u64> = None;
        for block in 0..entries.blocks() {
            let view = match table.block(block, &mut last) {
                Ok(view) => view,
                Err(error) => {
                    self.report.refused(name, &error);
                    before = None;
                    continue;
                }
            };
            let ((first, end), at) = (view.ends(), entries.offset(view.first_entry()));
            if let Some(before) = before.filter(|&before| first <= before) {
                let what = format!("external id {first} comes after {before}; ids must ascend");
                self.report.problem(name, Some(at), what);
            }
            before = Some(end);
            if block % BETWEEN_LOOKS == 0 {
                self.advance(0)?;
            }
        }
        // The id of a placeholder belongs to no vector.
        let counts = !self.manifest.has_placeholder();
        if counts && table.largest().saturating_add(1) > next_id {
            let largest = table.largest();
            self.claim(format!(
                "it says that the next external id is {next_id}, but {largest} exists"
            ));
        }
        Ok(())
    }

    /// A record of the build must be in the file of ids. Without this file, ids are row numbers,
    /// and must be less than `next_id`.
    pub(super) fn expect_id(&mut self, place: NodeAt<'_>, id: u64) {
        let (node, manifest) = (place.node, self.manifest);
        let Some(file) = &mut self.id_file else {
            let are_rows = manifest.has_row_numbers();
            if are_rows && node < manifest.vectors && id >= manifest.next_id {
                let next = manifest.next_id;
                self.node_problem(
                    place,
                    format_args!("has the external id {id}, but all must be below {next}"),
                );
            }
            return;
        };
        let Some(node) = u32::try_from(node).ok().filter(|_| node < manifest.vectors) else {
            return;
        };
        file.waiting.push((id, node));
        file.records += 1;
        if file.waiting.len() == BATCH {
            file.look_up(&mut self.report);
        }
    }

    pub(super) fn unmatched_ids(&mut self) {
        if let Some(file) = &mut self.id_file {
            file.look_up(&mut self.report);
            file.superfluous(&mut self.report);
        }
    }
}
