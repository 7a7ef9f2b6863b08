//! Computes the memory that a log takes after a replay, before the replay. It uses the same charges
//! by which a budget lets changes wait. So changes that were accepted under a budget fit under it
//! when the index is opened again.

use std::collections::HashMap;

use stratann_layout::{LogRecord, LogShape, Manifest};
use stratann_tier::Volume;

use super::overlay::TOMBSTONE;
use crate::Error;
use crate::durable::{self, LogPosition};
use crate::stores::columns::row_charge;

/// Memory of a vector in the fresh graph beyond its bytes: its list, its place, and the allocator's
/// share.
const BESIDE_FRESH: u64 = 300;

/// Additional memory of the first vector: tables, and a segment of that graph, which is mostly
/// free.
pub(crate) const FIRST_FRESH: u64 = 64 << 10;

/// The charge of a waiting vector of so many bytes.
pub(crate) fn vector_charge(bytes: usize) -> u64 {
    bytes as u64 + BESIDE_FRESH
}

/// The bytes charged for the log of an index. Each vector counts, even if it was replaced in the
/// log, since only a merge frees its memory. If a vector was given several rows, the last counts.
/// Dead ids on storage count as well.
///
/// A damaged log counts up to the damage; the replay reports it.
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

/// Processes records as the replay does.
#[derive(Default)]
struct Charges {
    /// Charge of a vector.
    vector: u64,
    bytes: u64,
    /// Whether there was a vector.
    any: bool,
    /// The live vectors of the log, with the charge of each one's row.
    fresh: HashMap<u64, u64>,
    /// Charges of rows of vectors on storage.
    stored: HashMap<u64, u64>,
}

impl Charges {
    fn take(&mut self, record: &LogRecord<'_>) {
        let id = record.id();
        if let LogRecord::Replace { .. } | LogRecord::Delete { .. } = record
            // A vector that was in the log stays in memory, with its row.
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
