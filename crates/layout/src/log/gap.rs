//! Searches for the next whole record of a log, after a position without one. Records start at
//! multiples of 8, with checksums over log and offset, so no earlier bytes are needed. A record
//! counts only if the gap has space for as many records as its sequence number skips.

use super::{ALIGNMENT, KIND, LENGTH, LogShape, PAYLOAD, RESERVED};
use super::{RecordPlace, SEQUENCE, record_bytes, whole_record};
use crate::block::{u32_at, u64_at};

/// A search computes checksums of at most this many times the file's bytes, because damaged bytes
/// may look like many records.
const EFFORT: u64 = 8;

/// A position of a log without a record, and the state of the search after it.
#[derive(Debug, Clone)]
pub struct Gap {
    shape: LogShape,
    start: RecordPlace,
    /// Whether `start.sequence` is the number of the missing record. Otherwise it is a lower bound
    /// of this number.
    exact: bool,
    next: u64,
    effort: u64,
}

impl Gap {
    /// A gap that begins where an expected record is missing. `len` is the length of the file.
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

    /// A gap whose expected record is unknown: any sequence number from `start`'s on counts.
    pub fn before_any(shape: LogShape, start: RecordPlace, len: u64) -> Gap {
        Gap {
            exact: false,
            next: start.offset,
            ..Gap::behind(shape, start, len)
        }
    }

    /// Restarts the search at another gap of the same file.
    pub fn again(&mut self, missing: RecordPlace) {
        let next = missing.offset.saturating_add(1);
        self.start = missing;
        self.exact = true;
        self.next = next
            .checked_next_multiple_of(ALIGNMENT as u64)
            .unwrap_or(u64::MAX);
    }

    /// The offset of the next bytes for [`search`](Gap::search).
    pub fn next(&self) -> u64 {
        self.next
    }

    #[cfg(test)]
    pub(super) fn effort(&self) -> u64 {
        self.effort
    }

    /// Searches `bytes`, which begin at [`next`](Gap::next). They are at least as many as the
    /// longest record has, or reach the end of the file (`to_end`). If the result is `None`, the
    /// search continues at the new `next`. If that is the end of the file, the search is over.
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
        // Most bytes are elements of vectors, so cheap checks come first.
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
