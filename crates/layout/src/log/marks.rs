//! The marks after the header of a log. A mark records up to which offset the log was durable.
//!
//! ```text
//! a mark, at offsets 4096 and 8192 of the file
//!      0     4  crc32c of (offset of the mark in the file u64, then bytes 4..32)
//!      4     4  zero
//!      8     8  number of the log (u64)
//!     16     8  offset up to which the file was durable (u64)
//!     24     8  sequence number of the record that begins at this offset, now or later (u64)
//! ```
//!
//! A writer writes a mark *after* a sync, over the older of the two marks, without a sync of the
//! mark itself. So a mark may lag behind the durable end, but never exceeds it. One of the two
//! marks is always whole, because a sync makes it durable before the other mark is written. Each
//! mark is within one sector, in a block of its own.

use super::{FIRST_RECORD, RecordPlace};
use crate::block::{BLOCK, checksum, u32_at, u64_at};

/// The offsets of a log's marks, in bytes.
pub const MARKS: [u64; 2] = [BLOCK as u64, 2 * BLOCK as u64];

/// Bytes of a mark.
pub const MARK_BYTES: usize = 32;

/// Encodes the mark at [`MARKS`]`[slot]` for a log that is durable up to `place`.
///
/// # Panics
/// Panics if `slot` is not 0 or 1.
pub fn encode_mark(place: RecordPlace, slot: usize) -> [u8; MARK_BYTES] {
    let mut mark = [0; MARK_BYTES];
    mark[8..16].copy_from_slice(&place.log.to_le_bytes());
    mark[16..24].copy_from_slice(&place.offset.to_le_bytes());
    mark[24..32].copy_from_slice(&place.sequence.to_le_bytes());
    let sum = checksum(MARKS[slot], &mark[4..]);
    mark[..4].copy_from_slice(&sum.to_le_bytes());
    mark
}

/// The newer of the whole marks of log `number`. `front` is the first bytes of the log.
pub fn read_marks(front: &[u8], number: u64) -> Option<RecordPlace> {
    let whole = MARKS.into_iter().filter_map(|at| {
        let start = usize::try_from(at).ok()?;
        let mark = front.get(start..start.checked_add(MARK_BYTES)?)?;
        let place = RecordPlace {
            log: u64_at(mark, 8),
            offset: u64_at(mark, 16),
            sequence: u64_at(mark, 24),
        };
        let right = u32_at(mark, 0) == checksum(at, &mark[4..])
            && u32_at(mark, 4) == 0
            && place.log == number
            && place.offset >= FIRST_RECORD;
        right.then_some(place)
    });
    whole.max_by_key(|place| (place.sequence, place.offset))
}
