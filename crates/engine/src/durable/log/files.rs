//! The files of the logs. This module has their names and numbers, and chooses the files that are
//! still needed.

use stratann_layout::log::FIRST_RECORD;
use stratann_layout::log::marks::read_marks;
use stratann_layout::{FileKind, LogFrom, LogHeader};
use stratann_tier::Volume;

use crate::Error;

/// A position between two records of the logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPosition {
    /// The number of the log that has, or will have, the record after this position. 0 means the
    /// first log, whose number is 1.
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

/// The name of a log's file.
pub(crate) fn log_name(number: u64) -> String {
    format!("{}-{number:06}", FileKind::Log)
}

/// The temporary name of a log that starts with copied records. It has this name until it is
/// complete.
pub(crate) fn unfinished() -> String {
    format!("{}.new", FileKind::Log)
}

/// The number of the log with this name. `None` if this is not the name of a log.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(FileKind::Log.name())?.strip_prefix('-')?;
    let number = digits.parse().ok()?;
    // Each number has exactly one name. So names with signs, or with another number of digits, are
    // refused.
    (log_name(number) == name).then_some(number)
}

/// The numbers of the logs in a volume, in ascending order.
pub(super) fn numbers_in(volume: &dyn Volume) -> Result<Vec<u64>, Error> {
    let names = volume.list()?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// An upper bound of the bytes of records in the logs from `number` on. If a later log has copies
/// of records from after the mark of an earlier log, these records count only once.
pub(crate) fn log_bytes(volume: &dyn Volume, number: u64) -> Result<u64, Error> {
    let (mut bytes, mut later) = (0, None);
    for log in numbers_in(volume)?.into_iter().rev() {
        if log >= number {
            let (name, mut front) = (log_name(log), vec![0; FIRST_RECORD as usize]);
            let len = volume.len(&name)?;
            front.truncate(len.min(FIRST_RECORD) as usize);
            volume.read_at(&name, 0, &mut front)?;
            // A file that is too short for a header has no records. If a header is damaged, a
            // replay reports it.
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

/// Removes the logs with numbers below `number`, since a checkpoint has their records. The removal
/// is durable when the call returns.
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
