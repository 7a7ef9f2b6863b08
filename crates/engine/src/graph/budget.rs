//! How the capped build spends its memory: how many parts, how large, and which buffers.
//!
//! ```text
//!   free bytes = overhead + tables (a few words a row of the collection) + buffers + one part of `capacity` rows
//! ```
//!
//! What a part needs while it is built is free before and after; then the sample, the read blocks and the file buffers
//! take shares of it.

use super::Parameters;
use super::adjacency::Slots;
use super::construct::OVERHEAD;
use super::equal;
use super::greedy::Search;
use super::vamana::slots_for;

/// Each part has two files open while rows are dealt out, and processes may have 1024.
const MOST_PARTS: usize = 256;

/// Room in all parts together, as a multiple of the rows that go there: parts need not be quite equal.
const ROOM: f64 = 1.2;

/// How the cap is spent.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) parts: usize,
    /// Rows a part, home and guest.
    pub(super) capacity: usize,
    /// Rows of the sample from which the centres come.
    pub(super) sample: usize,
    /// Bytes of each of the buffers of two files a part.
    pub(super) buffer: usize,
    /// Bytes of the blocks in which the source is read.
    pub(super) block: usize,
}

/// Bytes for each row of the collection at the most: order, its inverse, two part numbers; in the end order, its inverse,
/// from where it is reached, and what is still to be looked at.
const TABLES: u64 = 4 + 4 + 4 + 4;

impl Plan {
    /// The fewest parts that fit, or the least memory that would do. The parts and the sample of a build that this one goes on from
    /// count if there is room for them still.
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
        // A row while its part is ordered, or built: the point, slots, and order of insertion with stamps, or, later, the hashes by
        // which equal rows are found. Rows that are transformed pass through a small block.
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
        // Three parts of which each row is in two are the fewest that save anything; tiny parts make poor graphs.
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
        // Half of what is there holds a sample as well that was a third of a little more.
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

/// Degree within a part: two lists of it make a list of R with some overlap.
pub(super) fn part_degree(degree: usize) -> usize {
    (degree * 2).div_ceil(3)
}
