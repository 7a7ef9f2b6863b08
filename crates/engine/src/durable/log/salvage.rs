//! Salvage reads every whole record of damaged logs, even if records between them are missing.
//!
//! Each record has the number of its log, its offset and its sequence number, so a record can be
//! recognised without earlier bytes. A log without a header is searched from its first byte on. A
//! later log supersedes the records of earlier logs from the first sequence number of the later log
//! on.

use stratann_layout::log::{EndReason, FIRST_RECORD, Gap};
use stratann_layout::{BLOCK, LogHeader, LogRecord, LogShape, RecordPlace};
use stratann_tier::Volume;

use super::files::{LogPosition, log_name, numbers_in};
use super::replay::{Apply, Opened, Reading, open};
use crate::Error;
use crate::stored::name_of;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LostRecords {
    pub(crate) file: String,
    pub(crate) what: String,
    /// The largest number of records that may be lost. 0 means that the log is damaged, but no
    /// record is lost.
    pub(crate) records: u64,
}

/// Reads the bytes of a file from an offset on, with zeros for unreadable bytes.
pub(crate) type ReadLossy<'a> = dyn Fn(&str, u64, &mut [u8]) -> Result<(), Error> + 'a;

/// Passes all whole records after `from` to `apply`, in the order of their sequence numbers, and
/// returns the missing records. `is_damage` decides which errors are skipped. A log of a later
/// version is an error.
pub(crate) fn salvage(
    volume: &dyn Volume,
    shape: LogShape,
    from: LogPosition,
    is_damage: fn(&Error) -> bool,
    read: &ReadLossy<'_>,
    apply: &mut Apply<'_>,
) -> Result<Vec<LostRecords>, Error> {
    let first_number = from.number.max(1);
    let mut logs = Vec::new();
    let mut work = Work {
        from: from.sequence,
        expected: from.sequence,
        lost: Vec::new(),
        fault: None,
    };
    let mut wanted = first_number;
    for number in numbers_in(volume)? {
        if number < first_number {
            continue;
        }
        let mut found = Source::of(volume, shape, number, is_damage)?;
        if number != wanted {
            let what = "this log is missing".to_owned();
            found.missing = Some((name_of(volume, &log_name(wanted)), what));
        }
        wanted = number.saturating_add(1);
        logs.push(found);
    }
    let mut limit = None;
    for log in logs.iter_mut().rev() {
        log.limit = limit;
        if log.exact && log.read {
            let first = log.reading.header.first_sequence;
            limit = Some(limit.map_or(first, |limit: u64| limit.min(first)));
        }
    }
    if let Some(first) = logs.first()
        && first.exact
        && first.missing.is_none()
        && from.sequence == 0
    {
        work.expected = first.reading.header.first_sequence;
    }
    let last = logs.iter().rposition(|log| log.read);
    for (at, log) in logs.into_iter().enumerate() {
        work.log(log, last == Some(at), read, apply)?;
    }
    Ok(work.lost)
}

struct Source {
    reading: Reading,
    /// Whether the header has the number of the first record.
    exact: bool,
    /// Whether the records are read. They are not read if the log belongs to another index, or was
    /// never finished.
    read: bool,
    fault: Option<String>,
    /// The name of the log that is missing before this log, and a message about it.
    missing: Option<(String, String)>,
    /// The sequence number from which on later logs supersede the records of this log.
    limit: Option<u64>,
}

impl Source {
    fn of(
        volume: &dyn Volume,
        shape: LogShape,
        number: u64,
        is_damage: fn(&Error) -> bool,
    ) -> Result<Source, Error> {
        let name = log_name(number);
        let file = name_of(volume, &name);
        let source = |reading, exact, read, fault| Source {
            reading,
            exact,
            read,
            fault,
            missing: None,
            limit: None,
        };
        let without_header = |first: &[u8]| {
            // In every version of logs, these first bytes have no part of a record.
            let header = LogHeader::decode(first, number, &file).unwrap_or(LogHeader {
                shape,
                number,
                first_sequence: 0,
                marked: false,
                rows: false,
            });
            Ok::<_, Error>(Reading {
                len: volume.len(&name)?,
                name: name.clone(),
                file: file.clone(),
                header,
                durable: None,
            })
        };
        match open(volume, shape, number) {
            Ok(Opened::Whole(reading)) => Ok(source(reading, true, true, None)),
            Ok(Opened::Torn(_)) => Ok(source(without_header(&[])?, false, false, None)),
            Err(error) if is_damage(&error) => {
                let mut first = vec![0; BLOCK];
                let decoded = match volume.read_at(&name, 0, &mut first) {
                    Ok(()) => LogHeader::decode(&first, number, &file).ok(),
                    Err(_) => None,
                };
                let reading = without_header(&first)?;
                // The marks are damaged, or the log belongs to another index, whose records are not
                // read.
                let ours = decoded.is_none_or(|header| header.shape == shape);
                let fault = error.to_string();
                let fault = fault.strip_prefix(&format!("{file}: ")).unwrap_or(&fault);
                let fault = fault.split(';').next().unwrap_or_default().to_owned();
                Ok(source(
                    reading,
                    decoded.is_some() && ours,
                    ours,
                    Some(fault),
                ))
            }
            Err(error) => Err(error),
        }
    }
}

struct Work {
    /// The checkpoint has the records below this sequence number.
    from: u64,
    expected: u64,
    lost: Vec<LostRecords>,
    /// The fault that ended the previous log, and the file of that log.
    fault: Option<(String, String)>,
}

impl Work {
    fn log(
        &mut self,
        log: Source,
        is_last: bool,
        read: &ReadLossy<'_>,
        apply: &mut Apply<'_>,
    ) -> Result<(), Error> {
        if let Some(missing) = log.missing {
            self.fault = Some(missing);
        }
        let Source { reading, limit, .. } = log;
        if let Some(what) = log.fault {
            if !log.read {
                let records = records_in(&reading, reading.len.saturating_sub(FIRST_RECORD));
                let file = reading.file;
                self.lost.push(LostRecords {
                    file,
                    what,
                    records,
                });
                return Ok(());
            }
            let file = reading.file.clone();
            self.lost.push(LostRecords {
                file,
                what,
                records: 0,
            });
        }
        if !log.read {
            return Ok(());
        }
        let read_at = |offset, out: &mut [u8]| read(&reading.name, offset, out);
        let from = self.from;
        let mut counted = |sequence, record: LogRecord<'_>| match sequence >= from {
            true => apply(sequence, record),
            false => Ok(()),
        };
        let start = match log.exact {
            true => Some(reading.header.start()),
            false => None,
        };
        let begin = RecordPlace {
            sequence: self.expected,
            ..reading.header.start()
        };
        let mut gap = match start {
            Some(start) => Gap::behind(reading.header.shape, start, reading.len),
            None => Gap::before_any(reading.header.shape, begin, reading.len),
        };
        let mut next = match start {
            Some(start) => Some(start),
            None => reading.next_behind(&read_at, &mut gap)?,
        };
        let mut end = (begin, EndReason::Clean);
        while let Some(place) = next.filter(|next| limit.is_none_or(|limit| next.sequence < limit))
        {
            self.goes_on_with(place.sequence, &reading);
            end = reading.read(&read_at, place, limit, &mut counted)?;
            self.expected = self.expected.max(end.0.sequence);
            self.fault = None;
            if end.1.is_clean() {
                break;
            }
            let what = format!("no complete record at offset {} ({})", end.0.offset, end.1);
            self.fault = Some((reading.file.clone(), what));
            gap.again(end.0);
            next = reading.next_behind(&read_at, &mut gap)?;
        }
        if is_last && let Some((file, what)) = self.fault.take() {
            let durable = reading
                .durable
                .map(|durable| durable.sequence.max(self.from));
            let known = durable.and_then(|durable| durable.checked_sub(self.expected));
            let torn = records_in(&reading, reading.len.saturating_sub(end.0.offset));
            self.lost.push(LostRecords {
                file,
                what,
                records: known.unwrap_or(0).max(torn),
            });
        } else if is_last
            && let Some(durable) = reading.durable.map(|durable| durable.sequence)
            && durable > self.expected
        {
            let what = format!(
                "it ends at offset {}, but its mark says that later records were durable",
                end.0.offset
            );
            self.fault = Some((reading.file.clone(), what));
            self.goes_on_with(durable, &reading);
        }
        Ok(())
    }

    fn goes_on_with(&mut self, sequence: u64, log: &Reading) {
        let least = self.expected.max(self.from);
        if let Some(records) = sequence.checked_sub(least).filter(|&records| records > 0) {
            let (file, what) = self.fault.take().unwrap_or_else(|| {
                let what = format!(
                    "it continues with sequence number {sequence}, but must continue with {least}"
                );
                (log.file.clone(), what)
            });
            self.lost.push(LostRecords {
                file,
                what,
                records,
            });
        }
        self.expected = self.expected.max(sequence);
    }
}

/// The number of records with a vector and without attributes that fill `bytes` bytes, rounded up.
fn records_in(reading: &Reading, bytes: u64) -> u64 {
    bytes.div_ceil(reading.header.shape.vector_record() as u64)
}
