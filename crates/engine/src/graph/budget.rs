//! Divides the memory of a capped build: how many parts, how large, and which buffers.
//!
//! ```text
//!   free bytes = overhead + tables (a few words a row of the collection)
//!                + buffers + one part of `capacity` rows
//! ```
//!
//! The memory for building a part is free before and after. At those times the sample, the read
//! blocks and the file buffers use shares of it.

use super::Parameters;
use super::adjacency::Slots;
use super::construct::OVERHEAD;
use super::equal;
use super::greedy::Search;
use super::vamana::slots_for;

/// The most parts: each part has two files open while rows are distributed, and processes may have
/// 1024.
const MOST_PARTS: usize = 256;

/// Capacity of all parts together, as a multiple of their rows: parts need not be quite equal.
const ROOM: f64 = 1.2;

/// The division of the memory.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) parts: usize,
    /// Rows of a part, home and guest.
    pub(super) capacity: usize,
    /// Rows of the sample from which the centres are computed.
    pub(super) sample: usize,
    /// Bytes of each of the buffers of a part's two files.
    pub(super) buffer: usize,
    /// Bytes of the blocks in which the source is read.
    pub(super) block: usize,
}

/// The most bytes for each row of the collection: order, its inverse, two part numbers. At the end:
/// order, its inverse, the parent of each node, and the nodes still to visit.
const TABLES: u64 = 4 + 4 + 4 + 4;

impl Plan {
    /// The plan with the fewest parts that fit, or the least memory that suffices. A resumed build
    /// keeps its parts and sample size, if they still fit.
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
        // A row while its part is ordered or built: the point, slots, and the order of insertion
        // with stamps. Later, the hashes that find equal rows take the place of the latter. Rows
        // that are transformed pass through a small block.
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
        // Each row is in two parts, so three parts are the fewest that save memory. Tiny parts make
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
        // Half of the present memory is enough for a saved sample that was a third of a slightly
        // larger memory.
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

/// Degree within a part: two such lists make a list of R, with some overlap.
pub(super) fn part_degree(degree: usize) -> usize {
    (degree * 2).div_ceil(3)
}
