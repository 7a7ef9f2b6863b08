//! A replay reads the records of the logs in order, and finds the end of the records.

use std::cell::Cell;

use stratann_layout::log::marks::read_marks;
use stratann_layout::log::{EndReason, FIRST_RECORD, FORMAT_VERSION, Gap};
use stratann_layout::{
    BLOCK, LayoutError, LogHeader, LogRecord, LogRecords, LogShape, RecordPlace,
};
use stratann_tier::{TierError, Volume};

use super::files::{LogPosition, log_name, numbers_in};
use crate::Error;
use crate::stored::name_of;

/// The bytes of one read. The longest record has about half as many bytes.
const PIECE: usize = 1 << 20;

/// The number of attempts to read the marks. After these attempts, the marks count as damaged. A
/// writer may change both marks during one attempt.
const TRIES: usize = 3;

/// To count whole records after the end of a log, a replay reads at most four times the bytes of
/// the log, plus this number of bytes. The count is only for a message, but each gap costs one
/// read.
const COUNTING: u64 = 64 * PIECE as u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// The numbers with which the next log begins.
    pub(crate) next: NextLog,
    /// The number of records that were passed to `apply`.
    pub(crate) records: u64,
    /// The torn end of the last log, which is normal after a crash.
    pub(crate) torn: Option<Torn>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NextLog {
    pub(crate) number: u64,
    /// Whether a log with this number exists. The next log gets all records of that log, and
    /// replaces that log.
    pub(crate) replaces: bool,
    /// The sequence number of the first record that is appended to the next log.
    pub(crate) sequence: u64,
    /// The first replayed record that is not known to be durable. This record and all later records
    /// are written again.
    pub(crate) undurable: Option<RecordPlace>,
    /// Whether the log with the undurable records may have rows (attributes and payloads).
    pub(crate) rows: bool,
    /// The last log, if it can be continued: the log is whole and, by its mark, durable, and the
    /// next record follows the last record of the log.
    pub(crate) before: Option<LogBefore>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogBefore {
    pub(crate) end: RecordPlace,
    pub(crate) rows: bool,
}

impl NextLog {
    #[cfg(test)]
    pub(super) fn fresh(number: u64, sequence: u64) -> Self {
        Self {
            number,
            replaces: false,
            sequence,
            undurable: None,
            rows: false,
            before: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Torn {
    /// The name of the file.
    pub(crate) file: String,
    /// The offset in bytes after the last whole record, 0 if even the header is torn.
    pub(crate) offset: u64,
    pub(crate) reason: String,
    /// The number of whole records after the offset. None of them is known to have been durable.
    pub(crate) whole: u64,
    /// Whether `whole` is a lower bound, because the replay stopped counting.
    pub(crate) more: bool,
}

/// Passes the records after `from` to `apply`, in order, with their sequence numbers.
///
/// After a crash, the replay passes on every whole record up to the first gap, even records that
/// are not durable or acknowledged. After a failed sync, a log begins with records from before the
/// position that [`Log::rotate`] returned. So if a caller stores only the number of the file, the
/// next replay passes some records again.
///
/// # Errors
/// A log between others is missing, a header is wrong, or a log ends before its mark or before the
/// first record of the next log. All records before the damage were passed on. A torn end of the
/// last log is no error. A torn end of an earlier log is no error if the next log continues there.
pub(crate) fn replay(
    volume: &dyn Volume,
    shape: LogShape,
    from: LogPosition,
    apply: &mut dyn FnMut(u64, LogRecord<'_>) -> Result<(), Error>,
) -> Result<Replayed, Error> {
    let first_number = from.number.max(1);
    let mut numbers = numbers_in(volume)?;
    numbers.retain(|&number| number >= first_number);
    let Logs {
        logs,
        torn,
        mut beheaded,
        damage,
    } = open_all(volume, shape, first_number, &numbers)?;
    let mut replayed = Replayed {
        // The next log replaces a log without records, or an unfinished log, under the same number.
        // If the old log were removed first, a crash could restore the old log beside a log with
        // more records.
        next: NextLog {
            number: numbers.last().copied().unwrap_or(first_number),
            replaces: !numbers.is_empty(),
            sequence: from.sequence,
            undurable: None,
            rows: false,
            before: None,
        },
        records: 0,
        torn,
    };
    let mut expected = None;
    let next_of = goes_on(&logs);
    for (log, next) in logs.iter().zip(next_of) {
        let first = log.header.first_sequence;
        let limit = next.map(|next| next.header.first_sequence);
        if limit.is_some_and(|limit| first >= limit) && expected.is_some() {
            // Later logs supersede all records of this log.
            continue;
        }
        let right = match expected {
            // After a build, the first log may begin with any sequence number.
            None => first <= from.sequence || from.sequence == 0 && beheaded.is_none(),
            Some(expected) => first == expected,
        };
        if let Some(Torn { file, reason, .. }) = beheaded.take_if(|_| !right) {
            return Err(Error::Damaged {
                file,
                what: format!(
                    "{reason}, but {} begins with sequence number {first}, so records of this log are lost. `stratann repair` keeps the readable records",
                    log.file
                ),
            });
        }
        if !right {
            let expected = expected.unwrap_or(from.sequence);
            return Err(Error::Damaged {
                file: log.file.clone(),
                what: format!(
                    "the first sequence number at offset 64 is {first}, but must be {expected}"
                ),
            });
        }
        let read = |offset, out: &mut [u8]| Ok(volume.read_at(&log.name, offset, out)?);
        let (end, reason) =
            log.read(&read, log.header.start(), limit, &mut |sequence, record| {
                if sequence >= from.sequence {
                    replayed.records += 1;
                    apply(sequence, record)?;
                }
                Ok(())
            })?;
        let there_was = log.missing_behind(next, limit, end.sequence.max(from.sequence));
        if let Some((sequence, evidence)) = there_was {
            let (whole, more) = log.whole_behind(&read, end, Some(sequence))?;
            return Err(Error::DamagedLog {
                file: log.file.clone(),
                offset: end.offset,
                sequence: end.sequence,
                reason: reason.to_string(),
                evidence,
                missing: sequence - end.sequence,
                whole,
                more,
            });
        }
        if end.sequence > first {
            let next = log.next_after(end, from);
            (replayed.next.undurable, replayed.next.rows) = (next.undurable, next.rows);
            if numbers.last() == Some(&log.header.number) {
                replayed.next = next;
            }
        }
        match limit {
            Some(next) => expected = Some(next),
            None => {
                replayed.next.sequence = end.sequence.max(from.sequence);
                let is_whole = reason.is_clean() && end.offset == log.len;
                let goes_on = is_whole
                    && log.durable == Some(end)
                    && numbers.last() == Some(&end.log)
                    // If a log has no records, its marks were written before the first sync of the
                    // log.
                    && end.sequence > first
                    && end.sequence == replayed.next.sequence;
                let rows = log.header.rows;
                replayed.next.before = goes_on.then_some(LogBefore { end, rows });
                if !reason.is_clean() && replayed.torn.is_none() {
                    let (whole, more) = log.whole_behind(&read, end, None)?;
                    replayed.torn = Some(Torn {
                        file: log.file.clone(),
                        offset: end.offset,
                        reason: reason.to_string(),
                        whole,
                        more,
                    });
                }
            }
        }
    }
    damage.map_or(Ok(replayed), Err)
}

#[derive(Default)]
struct Logs {
    /// The logs that have a whole header.
    logs: Vec<Reading>,
    /// A log that comes after these logs and has a torn header.
    torn: Option<Torn>,
    /// A log that comes before these logs and has no whole header.
    beheaded: Option<Torn>,
    /// The damage after these logs. It is reported after the records of these logs were passed on.
    damage: Option<Error>,
}

/// Opens the logs with these numbers, up to the first missing or damaged log.
fn open_all(
    volume: &dyn Volume,
    shape: LogShape,
    first_number: u64,
    numbers: &[u64],
) -> Result<Logs, Error> {
    let mut found = Logs::default();
    for (at, &number) in numbers.iter().enumerate() {
        let expected = first_number.saturating_add(at as u64);
        if number != expected {
            found.damage = Some(Error::Damaged {
                file: name_of(volume, &log_name(expected)),
                what: format!(
                    "this log is missing, but {} exists. Restore the missing log, or inserts and deletes are lost",
                    log_name(number)
                ),
            });
            break;
        }
        match open(volume, shape, number) {
            // A writer may have removed empty logs, the last log first.
            Err(Error::Tier(TierError::Missing { .. }))
                if numbers_in(volume)?.last().is_none_or(|&last| last < number) =>
            {
                break;
            }
            Err(error) => {
                found.damage = Some(error);
                break;
            }
            Ok(Opened::Whole(log)) => {
                if found.logs.is_empty() {
                    found.beheaded = found.torn.take();
                }
                found.torn = None;
                found.logs.push(log);
            }
            Ok(Opened::Torn(reason)) => {
                found.torn = Some(Torn {
                    file: name_of(volume, &log_name(number)),
                    offset: 0,
                    reason,
                    whole: 0,
                    more: false,
                });
            }
        }
    }
    Ok(found)
}

/// Passes the records of one log with sequence numbers below `limit` to `apply`. Returns the
/// position at which the records ended.
pub(super) fn each_from(
    volume: &dyn Volume,
    shape: LogShape,
    from: RecordPlace,
    limit: u64,
    apply: &mut dyn FnMut(LogRecord<'_>) -> Result<(), Error>,
) -> Result<RecordPlace, Error> {
    let Opened::Whole(log) = open(volume, shape, from.log)? else {
        return Ok(from);
    };
    let read = |offset, out: &mut [u8]| Ok(volume.read_at(&log.name, offset, out)?);
    let mut apply = |_, record: LogRecord<'_>| apply(record);
    Ok(log.read(&read, from, Some(limit), &mut apply)?.0)
}

/// For each log: the later log with the lowest first sequence number. From this number on, the
/// later log supersedes the records of the earlier log.
fn goes_on(logs: &[Reading]) -> Vec<Option<&Reading>> {
    let (mut next, mut of_each) = (None::<&Reading>, Vec::with_capacity(logs.len()));
    for log in logs.iter().rev() {
        of_each.push(next);
        let first = |log: &Reading| log.header.first_sequence;
        if next.is_none_or(|next| first(log) <= first(next)) {
            next = Some(log);
        }
    }
    of_each.reverse();
    of_each
}

pub(super) type ReadAt<'a> = dyn Fn(u64, &mut [u8]) -> Result<(), Error> + 'a;

pub(super) type Apply<'a> = dyn FnMut(u64, LogRecord<'_>) -> Result<(), Error> + 'a;

pub(super) struct Reading {
    pub(super) name: String,
    pub(super) file: String,
    pub(super) header: LogHeader,
    pub(super) len: u64,
    /// The position after the records that were durable, if the log has marks.
    pub(super) durable: Option<RecordPlace>,
}

pub(super) enum Opened {
    Whole(Reading),
    /// The start of the file was never completely written. The first record is written only when
    /// the start is durable, so the file has no records.
    Torn(String),
}

pub(super) fn open(volume: &dyn Volume, shape: LogShape, number: u64) -> Result<Opened, Error> {
    let name = log_name(number);
    let file = name_of(volume, &name);
    let mut tries = 1;
    // The marks are read before the length, so that the length includes all bytes that the marks
    // declare durable.
    let (front, header) = loop {
        let len = volume.len(&name)?;
        let mut front = vec![0; len.min(FIRST_RECORD) as usize];
        volume.read_at(&name, 0, &mut front)?;
        let header = match LogHeader::decode(&front, number, &file) {
            Ok(header) => header,
            Err(
                LayoutError::Truncated { .. }
                | LayoutError::Magic { .. }
                | LayoutError::Checksum { .. },
            ) if may_be_torn(&front, len) => {
                return Ok(Opened::Torn("its header is incomplete".into()));
            }
            Err(error) => return Err(error.into()),
        };
        if !header.marked || read_marks(&front, number).is_some() {
            break (front, header);
        }
        if len <= FIRST_RECORD {
            return Ok(Opened::Torn("its marks are incomplete".into()));
        }
        if tries == TRIES {
            return Err(Error::Damaged {
                file,
                what: "neither of its marks, at offsets 4096 and 8192, is complete, so its durable length is unknown"
                    .into(),
            });
        }
        tries += 1;
    };
    let durable = match header.marked {
        true => read_marks(&front, number),
        false => None,
    };
    let is_short = (front.len() as u64) < header.start().offset;
    if is_short && durable.is_none_or(|durable| durable.sequence <= header.first_sequence) {
        return Ok(Opened::Torn("its marks are incomplete".into()));
    }
    if header.shape != shape {
        let say = |shape: LogShape| format!("{} x {}", shape.element(), shape.dim());
        return Err(Error::Damaged {
            file,
            what: format!(
                "the fields at offset 48 give vectors of {}, but the index has vectors of {}, so this log is of another index",
                say(header.shape),
                say(shape)
            ),
        });
    }
    Ok(Opened::Whole(Reading {
        durable,
        len: volume.len(&name)?,
        name,
        file,
        header,
    }))
}

/// Whether a crash during the creation may have caused an unreadable header. If so, the file has no
/// records.
fn may_be_torn(front: &[u8], len: u64) -> bool {
    // A log with marks has a longer start. The version shows whether a log has marks. The version
    // is in the first 16 bytes, which reach the disk together or not at all.
    let first = front.get(..16).unwrap_or_default();
    let is_marked = (2..=FORMAT_VERSION).any(|version| first.ends_with(&version.to_le_bytes()));
    len <= BLOCK as u64 || len <= FIRST_RECORD && (is_marked || first.iter().all(|&byte| byte == 0))
}

impl Reading {
    /// If records are missing after `known`: the sequence number up to which records existed, and a
    /// text with the evidence. `known` is the end of the records of this log or of the checkpoint,
    /// whichever is larger. `next` continues this log with record `limit`.
    fn missing_behind(
        &self,
        next: Option<&Reading>,
        limit: Option<u64>,
        known: u64,
    ) -> Option<(u64, String)> {
        let (there_was, evidence) = match next {
            Some(next) => {
                let first = limit?;
                (
                    first,
                    format!("{} begins with sequence number {first}", next.file),
                )
            }
            None => {
                let durable = self.durable.as_ref()?.sequence;
                let evidence =
                    format!("its mark says that it was durable up to sequence number {durable}");
                (durable, evidence)
            }
        };
        (there_was > known).then_some((there_was, evidence))
    }

    /// The log to start after this log. The valid records of this log end at `end`.
    ///
    /// If a sync failed in another process, storage may lack records that reads still return, and a
    /// later sync would not report the loss. So records after the mark are written again. A log
    /// without records before its mark is replaced, since its name may not be durable either.
    fn next_after(&self, end: RecordPlace, from: LogPosition) -> NextLog {
        let (number, start) = (self.header.number, self.header.start());
        let (replaces, undurable) = match self.durable {
            // The checkpoint has all records of this log.
            _ if end.sequence <= from.sequence => (false, None),
            // Without marks, no record of the log is known to be durable.
            None => (false, Some(start)),
            Some(mark) if mark.sequence <= start.sequence => (true, Some(start)),
            Some(mark) => (
                false,
                Some(mark).filter(|mark| mark.sequence < end.sequence),
            ),
        };
        NextLog {
            number: match replaces {
                true => number,
                false => number.saturating_add(1),
            },
            replaces,
            sequence: end.sequence,
            rows: undurable.is_some() && self.header.rows,
            undurable,
            before: None,
        }
    }

    /// Passes the records from `place` on, with sequence numbers below `limit`, to `apply`. Returns
    /// the position and the reason of the end.
    pub(super) fn read(
        &self,
        read_at: &ReadAt<'_>,
        mut place: RecordPlace,
        limit: Option<u64>,
        apply: &mut Apply<'_>,
    ) -> Result<(RecordPlace, EndReason), Error> {
        let (mut held, mut read) = (Vec::new(), place.offset);
        loop {
            let kept = held.len();
            let more = ((PIECE - kept) as u64).min(self.len.saturating_sub(read)) as usize;
            if more > 0 {
                held.resize(kept + more, 0);
                read_at(read, &mut held[kept..])?;
                read += more as u64;
            }
            let mut records = LogRecords::new(self.header.shape, place, &held);
            let end = loop {
                if limit.is_some_and(|limit| records.place().sequence >= limit) {
                    break EndReason::Clean;
                }
                match records.next_record() {
                    Ok((sequence, record)) => apply(sequence, record)?,
                    Err(end) => break end.reason,
                }
            };
            place = records.place();
            let rest = records.rest().len();
            held.drain(..held.len() - rest);
            let goes_on = matches!(end, EndReason::Clean | EndReason::Short { .. })
                && limit.is_none_or(|limit| place.sequence < limit)
                && read < self.len;
            if !goes_on {
                return Ok((place, end));
            }
        }
    }

    pub(super) fn next_behind(
        &self,
        read_at: &ReadAt<'_>,
        gap: &mut Gap,
    ) -> Result<Option<RecordPlace>, Error> {
        let mut piece = Vec::new();
        while gap.next() < self.len {
            let from = gap.next();
            let bytes = (self.len - from).min(PIECE as u64);
            piece.resize(bytes as usize, 0);
            read_at(from, &mut piece)?;
            let found = gap.search(&piece, from + bytes == self.len);
            if found.is_some() || gap.next() == from {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The number of whole records after a position, and whether there may be more.
    fn whole_behind(
        &self,
        read_at: &ReadAt<'_>,
        mut missing: RecordPlace,
        limit: Option<u64>,
    ) -> Result<(u64, bool), Error> {
        let most = self.len.saturating_mul(4).saturating_add(COUNTING);
        let spent = Cell::new(0_u64);
        let counted = |offset, out: &mut [u8]| {
            spent.set(spent.get().saturating_add(out.len() as u64));
            read_at(offset, out)
        };
        let mut whole = 0;
        let mut gap = Gap::behind(self.header.shape, missing, self.len);
        while let Some(found) = self.next_behind(&counted, &mut gap)? {
            (missing, _) = self.read(&counted, found, limit, &mut |_, _| {
                whole += 1;
                Ok(())
            })?;
            if spent.get() > most {
                return Ok((whole, true));
            }
            gap.again(missing);
        }
        Ok((whole, false))
    }
}
