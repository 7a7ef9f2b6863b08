//! Divides the memory of a build under a cap into parts and buffers.
//!
//! ```text
//!   free bytes = overhead + tables (a few words a row of the collection)
//!                + buffers + one part of `capacity` rows
//! ```
//!
//! While no part is built, the sample, the read blocks and the file buffers use the memory of a
//! part.

use super::Parameters;
use super::adjacency::Slots;
use super::construct::OVERHEAD;
use super::equal;
use super::greedy::Search;
use super::vamana::slots_for;

/// The most parts. Each part has two open files, and a process may have 1024.
const MOST_PARTS: usize = 256;

/// The capacity of all parts, divided by the number of their rows, so that parts may differ in
/// size.
const ROOM: f64 = 1.2;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) parts: usize,
    /// The largest number of rows in a part, counting home rows and guest rows.
    pub(super) capacity: usize,
    /// The number of rows in the sample from which the centres are computed.
    pub(super) sample: usize,
    /// Bytes of a file buffer. A part has two files, each with a buffer.
    pub(super) buffer: usize,
    /// The bytes of a block of rows that is read from the source.
    pub(super) block: usize,
}

/// Bytes for each row: the order, its inverse, and 8 bytes for two part numbers, or later for
/// parents and nodes to visit.
const TABLES: u64 = 4 + 4 + 4 + 4;

impl Plan {
    /// Returns the plan with the fewest parts in `free` bytes. If no plan fits, the error is the
    /// least memory that suffices. A resumed build keeps `divided`, if it still fits.
    pub(super) fn new(
        rows: usize,
        point_bytes: usize,
        row_bytes: usize,
        dim: usize,
        parameters: &Parameters,
        free: u64,
        divided: Option<(usize, usize)>,
    ) -> Result<Plan, u64> {
        let degree = part_degree(parameters.degree);
        let fixed = OVERHEAD + rows as u64 * TABLES;
        let least_buffers = |parts: usize| 2 * parts as u64 * (4 << 10);
        // The bytes of a row of a part: the point, the slots, and the order of insertion with
        // stamps. Hashes later use the memory of the order and the stamps.
        let ordering = point_bytes as u64 + 16;
        let stamps = parameters.threads as u64 * Search::bytes(1).saturating_sub(Search::bytes(0));
        let building = point_bytes as u64
            + Slots::bytes(1, slots_for(degree))
            + (4 + stamps).max(equal::BYTES_A_ROW);
        let merging = (degree as u64 + 1) * 4 + 8;
        let a_row = ordering.max(building).max(merging);
        let capacity_of =
            |parts: usize| ((2 * rows) as f64 / parts as f64 * ROOM).ceil() as usize + 1;
        let need = |parts: usize| {
            let threads = parameters.threads as u64 * Search::bytes(0);
            fixed
                + threads
                + least_buffers(parts)
                + capacity_of(parts) as u64 * a_row
                + (256 << 10).max(4 * row_bytes as u64)
        };
        // Fewer than three parts save no memory, because each row is in two parts. Small parts have
        // poor graphs.
        let most = MOST_PARTS.min(rows / (4 * degree)).max(3);
        let fits = |&parts: &usize| need(parts) <= free;
        let again = divided.filter(|(parts, _)| (3..=most).contains(parts) && fits(parts));
        let Some(parts) = again.map_or_else(|| (3..=most).find(fits), |(parts, _)| Some(parts))
        else {
            let least = (3..=most).map(need).min().unwrap_or(fixed);
            return Err(least);
        };
        let spare = free - need(parts);
        let during_deal = capacity_of(parts) as u64 * a_row + spare;
        let sampled = dim as u64 * 4 + 16;
        let sample = ((during_deal / 3 / sampled) as usize)
            .min(rows)
            .min((parts * 512).max(20_000))
            .max(parts * 4);
        // The saved sample took at most a third of the memory, which was slightly larger then. So
        // half is allowed here.
        let kept = again.map(|(_, sample)| sample).filter(|&sample| {
            (parts * 4..=rows.max(parts * 4)).contains(&sample)
                && (sample as u64 <= during_deal / 2 / sampled || sample == parts * 4)
        });
        Ok(Plan {
            parts,
            capacity: capacity_of(parts),
            sample: kept.unwrap_or(sample),
            buffer: ((during_deal / 4 / (2 * parts as u64)) as usize).clamp(4 << 10, 256 << 10),
            block: ((during_deal / 8) as usize).clamp(4 * row_bytes, 4 << 20),
        })
    }
}

/// The degree of a part's graph. Two lists of this length, with some overlap, make R neighbours.
pub(super) fn part_degree(degree: usize) -> usize {
    (degree * 2).div_ceil(3)
}
