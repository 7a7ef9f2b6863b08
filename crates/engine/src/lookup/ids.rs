//! Lists the ids of an index in ascending order.

use std::collections::{BTreeSet, BinaryHeap};

use super::LookUp;
use crate::Error;
use crate::index::Index;
use crate::overlay::{Dead, Overlay, Seen};
use crate::progress::Silent;
use crate::search::{Exactness, Nodes};
use crate::stores::ids::{IdTable, LastBlock};

/// The `most` lowest live ids from `least` on, ascending. `new` has the ids of vectors that were
/// inserted after the build.
pub(super) fn listed(
    look_up: &LookUp<'_>,
    new: &BTreeSet<u64>,
    least: u64,
    most: usize,
) -> Result<Vec<u64>, Error> {
    let mut ids = Vec::with_capacity(most.min(1 << 16));
    let mut new = new.iter().copied().peekable();
    let mut built = Built::new(look_up, least, most)?;
    while ids.len() < most {
        let next = built.next()?;
        let before = |&id: &u64| next.is_none_or(|next| id <= next);
        // If an id of the build was replaced, both the build and `new` may have it.
        match (new.next_if(before), next) {
            (Some(id), next) => {
                ids.push(id);
                if next != Some(id) {
                    built.put_back(next);
                }
            }
            (None, Some(id)) => ids.push(id),
            (None, None) => break,
        }
    }
    Ok(ids)
}

/// The `most` lowest live ids from `least` on, of vectors inserted after the build. If changes run
/// meanwhile, the result belongs to no single read timestamp.
pub(super) fn new_ids(overlay: &Overlay, least: u64, most: usize) -> BTreeSet<u64> {
    let mut ids: BTreeSet<u64> = overlay.inserted.read().from(least).take(most).collect();
    for fresh in &overlay.fresh {
        ids.extend(fresh.ids_from(least));
    }
    while ids.len() > most {
        ids.pop_last();
    }
    ids
}

struct Built<'a> {
    source: Source<'a>,
    dead: Option<Dead<'a>>,
    back: Option<u64>,
}

enum Source<'a> {
    /// The next row number and the exclusive end, if ids are row numbers.
    Rows(u64, u64),
    Table(&'a IdTable, u64, Box<LastBlock>),
    /// Ids in descending order. The next id is the last element.
    Found(Vec<u64>),
}

impl<'a> Built<'a> {
    fn new(look_up: &LookUp<'a>, least: u64, most: usize) -> Result<Self, Error> {
        let (index, dead) = (look_up.index, look_up.seen.map(|seen| seen.dead()));
        let source = if index.has_row_numbers() {
            Source::Rows(least, index.manifest().vectors)
        } else if let Some(table) = look_up.table {
            let mut last = Box::new(LastBlock::none());
            let entry = match table.find(least, &mut last)? {
                Ok((entry, _)) | Err(entry) => entry,
            };
            Source::Table(table, entry, last)
        } else {
            Source::Found(least_of(look_up, dead, least, most)?)
        };
        Ok(Self {
            source,
            dead,
            back: None,
        })
    }

    fn put_back(&mut self, id: Option<u64>) {
        self.back = id;
    }

    fn next(&mut self) -> Result<Option<u64>, Error> {
        if let Some(id) = self.back.take() {
            return Ok(Some(id));
        }
        loop {
            let id = match &mut self.source {
                Source::Rows(next, end) if *next < *end => {
                    *next += 1;
                    *next - 1
                }
                Source::Table(table, entry, last) if *entry < table.entries().entries() => {
                    let id = table.id_at(*entry, last)?;
                    *entry += 1;
                    id
                }
                Source::Found(ids) => match ids.pop() {
                    Some(id) => id,
                    None => return Ok(None),
                },
                Source::Rows(..) | Source::Table(..) => return Ok(None),
            };
            if self.dead.is_none_or(|dead| !dead.counts_not(id)) {
                return Ok(Some(id));
            }
        }
    }
}

/// For an index without a file of ids: the `most` lowest live ids of the build from `least` on, in
/// descending order. The ids are read from all records.
fn least_of(
    look_up: &LookUp<'_>,
    dead: Option<Dead<'_>>,
    least: u64,
    most: usize,
) -> Result<Vec<u64>, Error> {
    let built = look_up.index.manifest().vectors as u32;
    let mut heap = BinaryHeap::new();
    let mut each = |_, id, _: &[u8]| {
        let is_less = heap.len() < most || heap.peek().is_some_and(|&last| id < last);
        if id >= least && is_less && dead.is_none_or(|dead| !dead.counts_not(id)) {
            heap.push(id);
            if heap.len() > most {
                heap.pop();
            }
        }
    };
    look_up.index.each_node(
        Nodes::Range(0, built),
        Exactness::IdAlone,
        look_up.admission(),
        look_up.progress,
        &mut each,
    )?;
    let mut ids = heap.into_vec();
    ids.sort_unstable_by(|a, b| b.cmp(a));
    Ok(ids)
}

impl Index {
    /// The first `most` ids above `after` in ascending order. Changes after the open of the index
    /// do not count. To continue, pass the last id as `after`.
    ///
    /// # Errors
    /// The file of ids cannot be read or is damaged. Without this file: the records cannot be read
    /// or are damaged.
    pub fn ids(&self, after: Option<u64>, most: usize) -> Result<Vec<u64>, Error> {
        self.ids_in_order(after, most)
            .map_err(|error| self.outdated(error))
    }

    fn ids_in_order(&self, after: Option<u64>, most: usize) -> Result<Vec<u64>, Error> {
        let Some(least) = after.map_or(Some(0), |after| after.checked_add(1)) else {
            return Ok(Vec::new());
        };
        let carried;
        let overlay = match self.overlay() {
            Some(overlay) => overlay,
            // The log is empty, but the checkpoint may have ids that were inserted or deleted after
            // the build.
            None => {
                carried = Overlay::carried(self.carried());
                &carried
            }
        };
        let look_up = LookUp {
            index: self,
            table: self.id_table()?,
            seen: Some(Seen {
                overlay,
                moment: overlay.now(),
            }),
            nodes: self.nodes() as u32,
            progress: &Silent,
        };
        listed(&look_up, &new_ids(overlay, least, most), least, most)
    }

    /// Whether an id was in the index when it was opened.
    ///
    /// # Errors
    /// Fails as [`ids`](Index::ids) does.
    pub fn contains(&self, id: u64) -> Result<bool, Error> {
        let found = self.ids(id.checked_sub(1), 1)?;
        Ok(found.first() == Some(&id))
    }
}
