//! Computes the memory that a log will take after a replay, before the replay. The charges are
//! those by which a budget lets changes wait. So if changes were accepted under a budget, they fit
//! under it when the index is opened again.

use std::collections::HashMap;

use stratann_layout::{LogRecord, LogShape, Manifest};
use stratann_tier::Volume;

use super::overlay::TOMBSTONE;
use crate::Error;
use crate::durable::{self, LogPosition};
use crate::stores::columns::row_charge;

/// Memory of a vector in the fresh graph, beyond its bytes: its list, its slot, and the overhead of
/// the allocator.
const BESIDE_FRESH: u64 = 300;

/// Additional memory of the first vector: tables, and a segment of the fresh graph, whose slots are
/// mostly unused.
pub(crate) const FIRST_FRESH: u64 = 64 << 10;

/// The memory that a waiting vector of so many bytes is charged.
pub(crate) fn vector_charge(bytes: usize) -> u64 {
    bytes as u64 + BESIDE_FRESH
}

/// The bytes charged for the log of an index. Each vector counts, even if a later record replaces
/// it, since only a merge frees its memory. If a vector has several rows, the last one counts. Dead
/// ids on storage count as well.
///
/// If a log is damaged, the records before the damage count. The replay reports the damage.
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
        tracing::debug!("the log was surveyed up to an error: {error}");
    }
    Ok(charges.bytes + if charges.any { FIRST_FRESH } else { 0 })
}

/// Adds up the charges of records, as the replay will apply them.
#[derive(Default)]
struct Charges {
    /// The charge of a vector.
    vector: u64,
    bytes: u64,
    /// Whether there was a record with a vector.
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
            // If the vector was in the log, it stays in memory, with its row.
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
