//! The memory that the changes in a log take after a replay. Waiting changes under a budget are
//! charged the same, so accepted changes also fit when the index is opened again.

use std::collections::HashMap;

use stratann_layout::{LogRecord, LogShape, Manifest};
use stratann_tier::Volume;

use super::TOMBSTONE;
use crate::Error;
use crate::durable::{self, LogPosition};
use crate::stores::columns::row_charge;

/// The bytes that a vector takes in the fresh graph beyond its elements: list, slot, and overhead
/// of the allocator.
const BESIDE_FRESH: u64 = 300;

/// The additional bytes of the first vector: tables, and one segment of the fresh graph.
pub(crate) const FIRST_FRESH: u64 = 64 << 10;

pub(crate) fn vector_charge(bytes: usize) -> u64 {
    bytes as u64 + BESIDE_FRESH
}

/// The bytes charged for the log of an index, up to any damage, which the replay reports. Each
/// vector counts, even if a later record replaces it, since only a merge frees its memory. Of
/// several rows of attributes for a vector, the last counts. Ids on storage that the log deletes or
/// replaces count as well.
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
        tracing::debug!("the log was counted only up to an error: {error}");
    }
    Ok(charges.bytes + if charges.any { FIRST_FRESH } else { 0 })
}

/// Records are counted in the order of the replay.
#[derive(Default)]
struct Charges {
    vector: u64,
    bytes: u64,
    any: bool,
    /// The charges of the attributes of live vectors in the log.
    fresh: HashMap<u64, u64>,
    stored: HashMap<u64, u64>,
}

impl Charges {
    fn take(&mut self, record: &LogRecord<'_>) {
        let id = record.id();
        if let LogRecord::Replace { .. } | LogRecord::Delete { .. } = record
            // A replaced vector in the log stays in memory with its row.
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
