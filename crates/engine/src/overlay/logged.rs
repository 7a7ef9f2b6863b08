//! Computes the memory that the changes in a log will take after a replay, before the replay runs.
//! The charges are the same as for changes that wait under a memory budget. So if changes were
//! accepted under a budget, they also fit into this budget when the index is opened again.

use std::collections::HashMap;

use stratann_layout::{LogRecord, LogShape, Manifest};
use stratann_tier::Volume;

use super::TOMBSTONE;
use crate::Error;
use crate::durable::{self, LogPosition};
use crate::stores::columns::row_charge;

/// The bytes of memory that a vector in the fresh graph takes beyond its own bytes: its list, its
/// slot, and the overhead of the allocator.
const BESIDE_FRESH: u64 = 300;

/// The additional bytes of memory of the first vector: tables, and one segment of the fresh graph.
/// Most slots of this segment are unused.
pub(crate) const FIRST_FRESH: u64 = 64 << 10;

/// The bytes of memory charged for a waiting vector of `bytes` bytes.
pub(crate) fn vector_charge(bytes: usize) -> u64 {
    bytes as u64 + BESIDE_FRESH
}

/// The bytes charged for the log of an index. Each vector in the log counts, even if a later record
/// replaces it, since only a merge frees its memory. If a vector has several rows, the last row
/// counts. Ids on storage that the log deletes or replaces count as well.
///
/// If a log is damaged, the records before the damage count. The later replay reports the damage.
///
/// # Errors
/// The manifest has an invalid shape.
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

/// The sum of the charges of records, in the order in which the replay will apply them.
#[derive(Default)]
struct Charges {
    /// The charge of a vector.
    vector: u64,
    bytes: u64,
    /// Whether any record has a vector.
    any: bool,
    /// The live vectors of the log, each with the charge of its row.
    fresh: HashMap<u64, u64>,
    /// The charges of the rows of vectors on storage.
    stored: HashMap<u64, u64>,
}

impl Charges {
    fn take(&mut self, record: &LogRecord<'_>) {
        let id = record.id();
        if let LogRecord::Replace { .. } | LogRecord::Delete { .. } = record
            // If the replaced vector is in the log, it stays in memory with its row, so its charge
            // stays.
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
