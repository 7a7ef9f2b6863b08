//! What a log takes in memory once it is replayed, found before it is: by the same charges by which a budget lets changes wait, so that what was
//! accepted under a budget has room under it when the index is opened again.

use std::collections::HashMap;

use stratann_layout::{LogRecord, LogShape, Manifest};
use stratann_tier::Volume;

use super::overlay::TOMBSTONE;
use crate::Error;
use crate::durable::{self, LogPosition};
use crate::stores::columns::row_charge;

/// What a vector takes in the graph of fresh ones beyond its bytes: its list, its place, and the allocator's share.
const BESIDE_FRESH: u64 = 300;

/// What the first of them takes besides: a segment of that graph, most of which is free, and tables.
pub(crate) const FIRST_FRESH: u64 = 64 << 10;

/// What a vector of so many bytes is charged that waits in memory.
pub(crate) fn vector_charge(bytes: usize) -> u64 {
    bytes as u64 + BESIDE_FRESH
}

/// Bytes that the log of an index is charged: each vector, whether it was replaced in the log or not, since its memory comes back with a merge
/// alone; of rows that were given to one vector the last; and ids on storage that do not count any more.
///
/// Of a log that is damaged, up to there: who replays it is told.
///
/// # Errors
/// The manifest says a shape that there is not.
pub(crate) fn logged_bytes(volume: &dyn Volume, manifest: &Manifest) -> Result<u64, Error> {
    let shape = LogShape::new(manifest.element, manifest.dimension as usize)?;
    let mut charges = Charges {
        vector: vector_charge(shape.vector_bytes()),
        ..Charges::default()
    };
    let from = LogPosition::from(manifest.log_from);
    let surveyed = durable::replay(volume, shape, from, &mut |_, record| {
        charges.take(&record);
        Ok(())
    });
    if let Err(error) = surveyed {
        tracing::debug!("the log was surveyed up to an error: {error}");
    }
    Ok(charges.bytes + if charges.any { FIRST_FRESH } else { 0 })
}

/// Goes by records as the replay does.
#[derive(Default)]
struct Charges {
    /// Charge of a vector.
    vector: u64,
    bytes: u64,
    /// Whether there was a vector.
    any: bool,
    /// The live vectors of the log, with the charge of the row of each.
    fresh: HashMap<u64, u64>,
    /// Charges of rows of vectors on storage.
    stored: HashMap<u64, u64>,
}

impl Charges {
    fn take(&mut self, record: &LogRecord<'_>) {
        let id = record.id();
        if let LogRecord::Replace { .. } | LogRecord::Delete { .. } = record
            // What was in the log before stays in memory, with its row.
            && self.fresh.remove(&id).is_none()
        {
            self.bytes -= self.stored.remove(&id).unwrap_or_default();
            self.bytes += TOMBSTONE;
        }
        let row = record.row().map_or(0, row_charge);
        if record.vector().is_some() {
            self.any = true;
            self.bytes += self.vector + row;
            self.fresh.insert(id, row);
        } else if row > 0 {
            let before = match self.fresh.get_mut(&id) {
                Some(of_fresh) => std::mem::replace(of_fresh, row),
                None => self.stored.insert(id, row).unwrap_or_default(),
            };
            self.bytes = self.bytes + row - before;
        }
    }
}
