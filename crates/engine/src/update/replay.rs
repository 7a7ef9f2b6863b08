//! What the logs say on top of a checkpoint: replayed when an index is opened.

use std::sync::Arc;

use parking_lot::RwLock;
use stratann_layout::{LogRecord, LogShape};
use stratann_tier::Volume;

use super::fresh::{FreshGraph, FreshParameters};
use super::overlay::{Overlay, Tombstones};
use super::ranges::IdRanges;
use crate::Error;
use crate::durable::{self, LogPosition, NextLog};
use crate::index::Index;

/// What a replay came to.
pub(crate) struct Replayed {
    pub(crate) overlay: Overlay,
    /// 1 more than the largest id that was logged; 0 if none was.
    pub(crate) next_id: u64,
    /// The log that is to be started.
    pub(crate) next: NextLog,
}

/// What the records of an index's logs look like.
pub(crate) fn shape(index: &Index) -> Result<LogShape, Error> {
    Ok(LogShape::new(index.element(), index.dim())?)
}

/// An empty graph for an index's new vectors.
pub(crate) fn fresh(index: &Index) -> FreshGraph {
    let parameters = FreshParameters::default();
    FreshGraph::new(index.metric(), index.element(), index.dim(), parameters)
}

/// Replays the logs of an index. Its ids need not be known: records say whether there was such an id.
pub(crate) fn replay(volume: &dyn Volume, index: &Index) -> Result<Replayed, Error> {
    let carried = index.carried();
    let fresh = fresh(index);
    let deleted = Tombstones::restore(&carried.deleted, carried.dead);
    let mut next_id = carried.next_id;
    let mut inserted = IdRanges::of(&carried.ids);
    let nodes = index.len() as u32;
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
        }
        if let Some(vector) = record.vector() {
            fresh.insert(id, vector);
        }
        next_id = next_id.max(id.saturating_add(1));
        Ok(())
    })?;
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
