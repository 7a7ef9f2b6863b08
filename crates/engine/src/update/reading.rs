//! Reads by id and by filter at one read timestamp, on storage and in memory. A row has the
//! attributes and the payload of one vector.
//!
//! ```text
//!   an id ──> in memory at the timestamp? ────────────────────────────────────> its row
//!         └─> live on storage at the timestamp? ──> has its live node a row? ──> its row
//!
//!   a filter ──> rows in memory, at the timestamp ────────────────────────> ids
//!            └─> columns ──> nodes, except those dead at the timestamp ──┘
//!                            by the rows of nodes. If many nodes match, or vectors without a
//!                            row match, a scan of all ids in order finds the matching ids
//! ```
//!
//! Other threads may move vectors from memory to storage meanwhile, even to a new checkpoint. So a
//! read by filter takes its timestamp while no change runs, and keeps the columns as a [`View`]. If
//! a read by id does not find the id, and the index has changed, the read is repeated.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use stratann_layout::attributes::Row;

use super::ids::StoredIds;
use crate::Error;
use crate::filter::{Checked, Filter, NodeSet, Schema};
use crate::index::Index;
use crate::overlay::ranges::IdRanges;
use crate::overlay::{Dead, Moment, Overlay, Seen, Tombstones};
use crate::stores::columns::{RowBytes, View, Windows, decoded};

const SOME: usize = 1024;

pub(crate) struct Reading<'a> {
    index: &'a Index,
    seen: Seen<'a>,
    /// `None` if an earlier version wrote the index without a file of ids. Then only ids with rows
    /// are known.
    ids: Option<&'a StoredIds>,
    /// The columns and the number of nodes. Both may be later than the read timestamp.
    view: View,
    nodes: u32,
}

pub(crate) struct Matched {
    filter: Checked,
    /// Whether vectors without attributes match.
    without: bool,
    /// The matching nodes on storage, including dead nodes.
    nodes: NodeSet,
    fresh: BTreeMap<u64, RowBytes>,
}

impl<'a> Reading<'a> {
    pub(crate) fn new(
        index: &'a Index,
        overlay: &'a Overlay,
        moment: Moment,
        ids: Option<&'a StoredIds>,
    ) -> Self {
        // The view is taken after the timestamp, so that the view has the rows of vectors that
        // moved to storage earlier.
        let view = index.columns().view();
        Self {
            index,
            seen: Seen { overlay, moment },
            ids,
            view,
            nodes: index.nodes() as u32,
        }
    }

    /// The number of nodes when this value was made.
    pub(crate) fn nodes(&self) -> u32 {
        self.nodes
    }

    fn dead(&self) -> Dead<'a> {
        self.seen.dead()
    }

    pub(crate) fn contains(&self, id: u64, windows: &mut Windows) -> Result<bool, Error> {
        let mut fresh = self.seen.fresh();
        if fresh.any(|(fresh, moment)| fresh.row_at(id, moment).is_some()) {
            return Ok(true);
        }
        self.is_stored(id, windows)
    }

    fn is_stored(&self, id: u64, windows: &mut Windows) -> Result<bool, Error> {
        if self.seen.overlay.inserted.read().contains(id) {
            return Ok(true);
        }
        if self.dead().counts_not(id) {
            return Ok(false);
        }
        match self.ids {
            Some(ids) => ids.contains(id),
            None => Ok(self.view.node_of(id, windows)?.is_some()),
        }
    }

    pub(crate) fn row(&self, id: u64, windows: &mut Windows) -> Result<Option<RowBytes>, Error> {
        let mut fresh = self.seen.fresh();
        if let Some(row) = fresh.find_map(|(fresh, moment)| fresh.row_at(id, moment)) {
            return Ok(Some(row.unwrap_or_default()));
        }
        if !self.is_stored(id, windows)? {
            return Ok(None);
        }
        let found = match self.stored_node(id, windows)? {
            Some(node) => self.view.row_of(node, windows)?,
            None => None,
        };
        Ok(Some(found.map(|found| found.row).unwrap_or_default()))
    }

    /// `None` if the live node of the id has no row.
    fn stored_node(&self, id: u64, windows: &mut Windows) -> Result<Option<u32>, Error> {
        let node = self.view.node_of(id, windows)?;
        // The columns may have the row of a replaced vector.
        Ok(node.filter(|&node| !self.dead().meets(id, node)))
    }

    pub(crate) fn matched(&self, filter: &Filter) -> Result<Matched, Error> {
        let filter = filter.check(&self.index.columns().schema())?;
        let mut fresh = BTreeMap::new();
        for (graph, moment) in self.seen.fresh() {
            let mut wrong = None;
            graph.for_each_at(moment, |id, _, row| {
                let row = row.unwrap_or_default();
                match decoded(&row) {
                    Ok(attributes) if filter.matches(&attributes) => _ = fresh.insert(id, row),
                    Ok(_) => {}
                    Err(error) => wrong = Some(error),
                }
            });
            wrong.map_or(Ok(()), Err)?;
        }
        Ok(Matched {
            nodes: self.view.matching(&filter, self.nodes)?,
            without: filter.matches(&Row::default()),
            fresh,
            filter,
        })
    }

    pub(crate) fn count(&self, filter: &Filter) -> Result<u64, Error> {
        let Matched {
            nodes,
            fresh,
            without,
            ..
        } = self.matched(filter)?;
        let (dead, fresh) = (self.dead(), fresh.len() as u64);
        if dead.is_empty() {
            return Ok(fresh + nodes.len());
        }
        if !without && nodes.len() < dead.rows_to_meet() {
            // If fewer nodes match than ids are dead, a look-up of each match is faster.
            let (mut windows, mut count) = (Windows::default(), fresh);
            for node in nodes.iter() {
                let id = self.view.id_of(node, &mut windows)?;
                count += u64::from(id.is_some_and(|id| !dead.meets(id, node)));
            }
            return Ok(count);
        }
        dead.meet_rows(|ids, each| self.view.nodes_of(ids, each))?;
        let mut met = dead.met();
        met.remove_range(self.nodes..);
        // The dead nodes that are not in `met` have no row.
        let others = match without {
            true => dead.at_most().saturating_sub(met.len()),
            false => 0,
        };
        Ok(fresh + (nodes.0 - met).len().saturating_sub(others))
    }

    /// The first `limit` matching ids above `after`, in ascending order.
    pub(crate) fn ids(
        &self,
        matched: &Matched,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<u64>, Error> {
        let Some(least) = after.map_or(Some(0), |after| after.checked_add(1)) else {
            return Ok(Vec::new());
        };
        let found = matched.nodes.len();
        // If one of n ids matches, a scan of all ids examines n ids for each requested id. Without
        // this scan, all matching nodes are examined.
        let looked_at = (limit as u64).saturating_mul(u64::from(self.nodes)) / found.max(1);
        let by_nodes = !matched.without && (self.ids.is_none() || found <= looked_at);
        let mut ids = match by_nodes {
            true => self.ids_of(&matched.nodes, least)?,
            false => self.ids_in_order(matched, least, limit)?,
        };
        ids.extend(matched.fresh.range(least..).take(limit).map(|(&id, _)| id));
        ids.sort_unstable();
        ids.truncate(limit);
        Ok(ids)
    }

    /// The live ids of some nodes from `least` on, in any order.
    fn ids_of(&self, nodes: &NodeSet, least: u64) -> Result<Vec<u64>, Error> {
        let (dead, mut windows, mut ids) = (self.dead(), Windows::default(), Vec::new());
        for node in nodes.iter().filter(|&node| !dead.knows(node)) {
            if let Some(id) = self.view.id_of(node, &mut windows)?
                && id >= least
                && !dead.meets(id, node)
            {
                ids.push(id);
            }
        }
        Ok(ids)
    }

    /// At least `limit` matching ids on storage from `least` on, or all, in ascending order.
    fn ids_in_order(&self, matched: &Matched, least: u64, limit: usize) -> Result<Vec<u64>, Error> {
        let (mut windows, mut found) = (Windows::default(), Vec::new());
        let mut next = Some(least);
        while let Some(from) = next
            && found.len() < limit
        {
            let (ids, behind) = self.ids_from(from)?;
            next = behind;
            for id in ids {
                let matches = match self.stored_node(id, &mut windows)? {
                    Some(node) => matched.nodes.contains(node),
                    None => matched.without,
                };
                if matches {
                    found.push(id);
                }
            }
        }
        Ok(found)
    }

    /// Some live ids on storage from `from` on, in ascending order, and the first id that was not
    /// examined.
    fn ids_from(&self, from: u64) -> Result<(Vec<u64>, Option<u64>), Error> {
        let Some(stored) = self.ids else {
            let reason = "an earlier version wrote this index without a file of ids";
            let remedy = "Compact the index (`stratann compact`)";
            return Err(Error::call(
                "index",
                self.index.path().display(),
                reason,
                remedy,
            ));
        };
        let mut ids = stored.some_from(from, SOME)?;
        let inserted = self.seen.overlay.inserted.read();
        let came: Vec<u64> = inserted.from(from).take(SOME).collect();
        drop(inserted);
        // Each of the two lists may be cut off after `SOME` ids, so the result ends at the first
        // cut.
        let ends = [&ids, &came].map(|ids| ids.last().copied().filter(|_| ids.len() == SOME));
        let end = ends.into_iter().flatten().min();
        let dead = self.dead();
        ids.retain(|&id| !dead.counts_not(id));
        ids.extend(came);
        ids.sort_unstable();
        ids.dedup();
        if let Some(end) = end {
            ids.truncate(ids.partition_point(|&id| id <= end));
        }
        Ok((ids, end.and_then(|end| end.checked_add(1))))
    }

    /// The first `limit` matching vectors with ids above `after`, with rows, in ascending order of
    /// ids.
    pub(crate) fn scroll(
        &self,
        filter: &Filter,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Row)>, Error> {
        let matched = self.matched(filter)?;
        let mut windows = Windows::default();
        let mut with_row = |id| {
            let row = match matched.fresh.get(&id) {
                Some(row) => row.clone(),
                None => match self.stored_node(id, &mut windows)? {
                    Some(node) => {
                        let found = self.view.row_of(node, &mut windows)?;
                        found.map(|found| found.row).unwrap_or_default()
                    }
                    None => RowBytes::default(),
                },
            };
            Ok((id, decoded(&row)?))
        };
        let ids = self.ids(&matched, after, limit)?;
        ids.into_iter().map(&mut with_row).collect()
    }

    pub(crate) fn attributes(&self, ids: &[u64]) -> Result<Vec<Option<Row>>, Error> {
        let mut windows = Windows::default();
        let mut row = |&id: &u64| {
            let found = self.row(id, &mut windows)?;
            found.map(|row| decoded(&row)).transpose()
        };
        ids.iter().map(&mut row).collect()
    }
}

impl Matched {
    pub(crate) fn into_filter(self) -> Checked {
        self.filter
    }
}

impl Index {
    fn changes(&self) -> Cow<'_, Overlay> {
        match self.overlay() {
            Some(overlay) => Cow::Borrowed(overlay),
            None => {
                let carried = self.carried();
                Cow::Owned(Overlay {
                    fresh: Vec::new(),
                    deleted: Arc::new(Tombstones::restore(&carried.deleted, carried.dead)),
                    inserted: Arc::new(RwLock::new(IdRanges::of(&carried.ids))),
                })
            }
        }
    }

    fn read<T>(&self, work: impl FnOnce(&Reading<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let (overlay, ids) = (self.changes(), StoredIds::of(self)?);
        work(&Reading::new(self, &overlay, overlay.now(), ids.as_ref()))
    }

    /// The columns of the index: their names and types.
    pub fn schema(&self) -> Schema {
        self.columns().schema()
    }

    /// Counts the vectors that match a filter.
    ///
    /// # Errors
    /// The filter does not fit the columns, or columns cannot be read.
    pub fn count(&self, filter: &Filter) -> Result<u64, Error> {
        self.read(|reading| reading.count(filter))
    }

    /// Checks whether a filter fits the columns.
    ///
    /// # Errors
    /// The error is [`Error::Filter`].
    pub fn check_filter(&self, filter: &Filter) -> Result<(), Error> {
        filter.check(&self.schema()).map(drop)
    }

    /// Returns the first `limit` vectors with ids above `after` that match a filter, with
    /// attributes, in ascending order of ids.
    ///
    /// # Errors
    /// Fails as [`count`](Index::count) does.
    pub fn scroll(
        &self,
        filter: &Filter,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Row)>, Error> {
        self.read(|reading| reading.scroll(filter, after, limit))
    }

    /// Returns the first `limit` ids above `after` that match a filter, in ascending order.
    ///
    /// # Errors
    /// Fails as [`count`](Index::count) does.
    pub fn ids_matching(
        &self,
        filter: &Filter,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<u64>, Error> {
        self.read(|reading| reading.ids(&reading.matched(filter)?, after, limit))
    }

    /// Reads the attributes of vectors by id. `None` if the id is not in the index.
    ///
    /// # Errors
    /// The columns or the table of ids cannot be read.
    pub fn attributes(&self, ids: &[u64]) -> Result<Vec<Option<Row>>, Error> {
        self.read(|reading| reading.attributes(ids))
    }
}
