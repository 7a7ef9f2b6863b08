//! The names and numbers of the logs, and the choice of the logs that are still needed.

use stratann_layout::log::FIRST_RECORD;
use stratann_layout::log::marks::read_marks;
use stratann_layout::{FileKind, LogFrom, LogHeader};
use stratann_tier::Volume;

use crate::Error;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPosition {
    /// The number of the log with the record after this position. 0 means the first log, number 1.
    pub(crate) number: u64,
    /// The sequence number of the record after this position. 0 means the first record of the log.
    pub(crate) sequence: u64,
}

impl From<LogFrom> for LogPosition {
    fn from(from: LogFrom) -> Self {
        Self {
            number: from.number,
            sequence: from.sequence,
        }
    }
}

impl From<LogPosition> for LogFrom {
    fn from(position: LogPosition) -> Self {
        Self {
            number: position.number,
            sequence: position.sequence,
        }
    }
}

pub(crate) fn log_name(number: u64) -> String {
    format!("{}-{number:06}", FileKind::Log)
}

/// The temporary name of a log that starts with copied records, until it is complete.
pub(crate) fn unfinished() -> String {
    format!("{}.new", FileKind::Log)
}

pub(crate) fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(FileKind::Log.name())?.strip_prefix('-')?;
    let number = digits.parse().ok()?;
    // Each number has exactly one name, so a sign or another number of digits is refused.
    (log_name(number) == name).then_some(number)
}

pub(super) fn numbers_in(volume: &dyn Volume) -> Result<Vec<u64>, Error> {
    let names = volume.list()?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// An upper bound of the bytes of records from log `number` on. If a later log has copies of the
/// records after the mark of an earlier log, these records count once.
pub(crate) fn log_bytes(volume: &dyn Volume, number: u64) -> Result<u64, Error> {
    let (mut bytes, mut later) = (0, None);
    for log in numbers_in(volume)?.into_iter().rev() {
        if log >= number {
            let (name, mut front) = (log_name(log), vec![0; FIRST_RECORD as usize]);
            let len = volume.len(&name)?;
            front.truncate(len.min(FIRST_RECORD) as usize);
            volume.read_at(&name, 0, &mut front)?;
            // A damaged header is reported by a replay.
            let Ok(header) = LogHeader::decode(&front, log, &name) else {
                bytes += len.saturating_sub(FIRST_RECORD);
                continue;
            };
            let mark = read_marks(&front, log).filter(|_| header.marked);
            let end = match (mark, later) {
                (Some(mark), Some(later)) if mark.sequence >= later => len.min(mark.offset),
                _ => len,
            };
            bytes += end.saturating_sub(header.start().offset);
            later = Some(header.first_sequence);
        }
    }
    Ok(bytes)
}

/// Durably removes the logs below `number`, whose records a checkpoint has.
pub(crate) fn remove_logs_before(volume: &dyn Volume, number: u64) -> Result<(), Error> {
    let mut numbers = numbers_in(volume)?;
    numbers.retain(|&earlier| earlier < number);
    // The oldest log is removed first, so that an interruption leaves no gap between logs.
    for earlier in &numbers {
        volume.remove(&log_name(*earlier))?;
    }
    if !numbers.is_empty() {
        volume.sync()?;
    }
    Ok(())
}
