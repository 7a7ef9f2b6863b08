//! What stands behind a place of a log where no record is: the next whole record, if there is one.
//!
//! Records stand at multiples of 8 and say of themselves which log and offset they are of, so that
//! the next one is found without what stands before it. It is taken for one only if so many records
//! as are missing fit the gap.

use super::{ALIGNMENT, KIND, LENGTH, LogShape, PAYLOAD, RESERVED};
use super::{RecordPlace, SEQUENCE, record_bytes, whole_record};
use crate::block::{u32_at, u64_at};

/// Bytes that are checksummed for each byte of a gap, at most: bytes that only look like records
/// are not worth more.
const EFFORT: u64 = 8;

/// A place of a log without a record, and a search for the next one behind it.
#[derive(Debug, Clone)]
pub struct Gap {
    shape: LogShape,
    start: RecordPlace,
    /// Whether `start.sequence` is that of the record which should stand there; else it is only the
    /// least that may follow.
    exact: bool,
    /// Where the search goes on.
    next: u64,
    /// Bytes that may still be checksummed.
    effort: u64,
}

impl Gap {
    /// A gap that begins where a record should stand and does not; `len` is the length of the file.
    pub fn behind(shape: LogShape, missing: RecordPlace, len: u64) -> Gap {
        let longest = shape.longest_record() as u64;
        let mut gap = Gap {
            shape,
            start: missing,
            exact: true,
            next: 0,
            effort: len.saturating_mul(EFFORT).saturating_add(4 * longest),
        };
        gap.again(missing);
        gap
    }

    /// The same where nobody knows which record should stand at `start`, if any: the first whole
    /// record from there on of a sequence number that is at least that of `start`.
    pub fn before_any(shape: LogShape, start: RecordPlace, len: u64) -> Gap {
        Gap {
            exact: false,
            next: start.offset,
            ..Gap::behind(shape, start, len)
        }
    }

    /// Begins again at another gap of the same file.
    pub fn again(&mut self, missing: RecordPlace) {
        let next = missing.offset.saturating_add(1);
        self.start = missing;
        self.exact = true;
        self.next = next
            .checked_next_multiple_of(ALIGNMENT as u64)
            .unwrap_or(u64::MAX);
    }

    /// Where the next bytes for [`search`](Gap::search) begin.
    pub fn next(&self) -> u64 {
        self.next
    }

    #[cfg(test)]
    pub(super) fn effort(&self) -> u64 {
        self.effort
    }

    /// Searches the bytes of the file from [`next`](Gap::next) on, which reach its end or have at
    /// least the bytes of the longest record. `None`: there is none in them, and `next` is behind
    /// what was searched; at the file's end when what is left cannot hold one, or the search has
    /// found too much that only looks like records.
    pub fn search(&mut self, bytes: &[u8], to_end: bool) -> Option<RecordPlace> {
        let longest = self.shape.longest_record();
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= PAYLOAD) {
            if !to_end && rest.len() < longest {
                break;
            }
            let offset = self.next.saturating_add(at as u64);
            if let Some(place) = self.record_at(offset, rest) {
                self.next = offset;
                return Some(place);
            }
            if self.effort == 0 {
                at = bytes.len();
                break;
            }
            at += ALIGNMENT;
        }
        self.next = self.next.saturating_add(at as u64);
        None
    }

    fn record_at(&mut self, offset: u64, bytes: &[u8]) -> Option<RecordPlace> {
        // What is cheap comes first: most bytes are elements of vectors.
        let length = u32_at(bytes, LENGTH) as usize;
        let (vector, row) = self.shape.payload_of(bytes[KIND], length).ok()?;
        let payload = vector + row;
        let sequence = u64_at(bytes, SEQUENCE);
        let shortest = record_bytes(0) as u64;
        let missing = offset.saturating_sub(self.start.offset) / shortest;
        let least = self.start.sequence.saturating_add(self.exact.into());
        let most = match self.exact {
            true => self.start.sequence.saturating_add(missing),
            false => u64::MAX,
        };
        let plausible = bytes[RESERVED..LENGTH].iter().all(|&byte| byte == 0)
            && (least..=most).contains(&sequence);
        if !plausible {
            return None;
        }
        self.effort = self.effort.saturating_sub(record_bytes(payload) as u64);
        let place = RecordPlace {
            log: self.start.log,
            offset,
            sequence,
        };
        whole_record(self.shape, place, bytes)
            .is_ok()
            .then_some(place)
    }
}
