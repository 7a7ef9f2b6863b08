//! Replays the logs of an index when the index is opened.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use stratann_layout::{LogRecord, LogShape};
use stratann_tier::Volume;

use super::contents::each_vector;
use crate::Error;
use crate::durable::{self, LogPosition, NextLog};
use crate::index::Index;
use crate::overlay::fresh::{FreshGraph, FreshParameters};
use crate::overlay::ranges::IdRanges;
use crate::overlay::{Overlay, Tombstones};
use crate::progress::Silent;
use crate::stores::columns::{RowBytes, Windows};

pub(crate) struct Replayed {
    pub(crate) overlay: Overlay,
    /// The checkpoint's next id, or one more than the largest logged id if that is larger.
    pub(crate) next_id: u64,
    /// The log file that a writer starts next.
    pub(crate) next: NextLog,
}

pub(crate) fn shape(index: &Index) -> Result<LogShape, Error> {
    Ok(LogShape::new(index.element(), index.dim())?)
}

pub(crate) fn fresh(index: &Index) -> FreshGraph {
    let parameters = FreshParameters::default();
    FreshGraph::new(index.metric(), index.element(), index.dim(), parameters)
}

/// Replays the logs without a table of ids, because each record shows whether the index had its id.
pub(crate) fn replay(volume: &dyn Volume, index: &Index) -> Result<Replayed, Error> {
    let carried = index.carried();
    let fresh = fresh(index);
    let deleted = Tombstones::restore(&carried.deleted, carried.dead);
    let mut next_id = carried.next_id;
    let mut inserted = IdRanges::of(&carried.ids);
    let nodes = index.nodes() as u32;
    // Nodes are looked up at the end, when only the last row of each id is left.
    let (columns, mut rows) = (index.columns(), HashMap::new());
    let mut remove = |id: u64| {
        if !fresh.delete(id) {
            inserted.remove(id);
            deleted.insert_below(id, nodes);
        }
    };
    let from = LogPosition::from(index.manifest().log_from);
    let replayed = durable::replay(volume, shape(index)?, from, &mut |_, record| {
        let id = record.id();
        if let LogRecord::Replace { .. } | LogRecord::Delete { .. } = record {
            remove(id);
            rows.remove(&id);
        }
        let row = record.row().map(RowBytes::from);
        if let Some(row) = &row {
            columns.declare_logged(row)?;
        }
        match (record.vector(), row) {
            (Some(vector), row) => _ = fresh.insert(id, vector, row),
            (None, Some(row)) => {
                if !fresh.set_row(id, row.clone()) {
                    rows.insert(id, row);
                }
            }
            (None, None) => {}
        }
        next_id = next_id.max(id.saturating_add(1));
        Ok(())
    })?;
    put_rows(index, &deleted, rows)?;
    match &replayed.torn {
        _ if replayed.records == 0 => {}
        None => {
            tracing::debug!(index = %index.path().display(), records = replayed.records, "replayed the log");
        }
        Some(torn) => tracing::info!(
            index = %index.path().display(),
            records = replayed.records,
            file = %torn.file,
            "replayed the log, which a crash has cut off at byte {}",
            torn.offset
        ),
    }
    Ok(Replayed {
        overlay: Overlay {
            fresh: vec![Arc::new(fresh)],
            deleted: Arc::new(deleted),
            inserted: Arc::new(RwLock::new(inserted)),
        },
        next_id,
        next: replayed.next,
    })
}

/// Adds the rows of a log to the columns. The log gives the ids of rows, so their nodes are looked
/// up.
pub(crate) fn put_rows(
    index: &Index,
    deleted: &Tombstones,
    rows: HashMap<u64, RowBytes>,
) -> Result<(), Error> {
    let columns = index.columns();
    let mut windows = Windows::default();
    let mut unknown = Vec::new();
    for (&id, row) in &rows {
        match columns.node_of(id, &mut windows)? {
            Some(node) => columns.put(node, id, row.clone()),
            None => unknown.push(id),
        }
    }
    for (id, node) in nodes_of(index, deleted, &unknown)? {
        if let Some(row) = rows.get(&id) {
            columns.put(node, id, row.clone());
        }
    }
    Ok(())
}

/// The live nodes of ids whose vectors have no row yet. The call reads all records, and no insert
/// may run meanwhile.
fn nodes_of(index: &Index, deleted: &Tombstones, ids: &[u64]) -> Result<HashMap<u64, u32>, Error> {
    let mut nodes = HashMap::new();
    if ids.is_empty() {
        return Ok(nodes);
    }
    let wanted: std::collections::HashSet<u64> = ids.iter().copied().collect();
    each_vector(index, &Silent, &mut |node, id, _| {
        if wanted.contains(&id) && !deleted.contains(id, node) {
            let newest = nodes.entry(id).or_insert(node);
            *newest = node.max(*newest);
        }
        Ok(())
    })?;
    Ok(nodes)
}
