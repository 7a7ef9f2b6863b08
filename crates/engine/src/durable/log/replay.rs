//! Replay: what the logs say, record by record, and where they end.

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

/// Bytes that a replay reads at once. The longest record has about half of it.
const PIECE: usize = 1 << 20;

/// How often marks are read before they count as damaged: a writer may be at both of them while they are read once.
const TRIES: usize = 3;

/// Bytes that may be read, beyond four times those of a log, to count the whole records behind its end: the number is for a
/// message alone, and one that is full of gaps would have a piece read for each.
const COUNTING: u64 = 64 * PIECE as u64;

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// How the next log begins.
    pub(crate) next: NextLog,
    /// Records that were handed over.
    pub(crate) records: u64,
    /// Where the last log does not end behind its last record; after a crash that is how it should be.
    pub(crate) torn: Option<Torn>,
}

/// How the log begins that is started behind those that were replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NextLog {
    /// Its number.
    pub(crate) number: u64,
    /// Whether there is a log of this number, which has nothing that the next one will not have.
    pub(crate) replaces: bool,
    /// Sequence number of the record to append.
    pub(crate) sequence: u64,
    /// The place of the first record that was replayed and is not known to be durable: from there on everything is written
    /// anew.
    pub(crate) undurable: Option<RecordPlace>,
    /// Whether the log that has it may have rows.
    pub(crate) rows: bool,
    /// The log before it, where that could go on: it is whole to its end, all of it is durable by its mark, and its next record would be the one to append.
    pub(crate) before: Option<LogBefore>,
}

/// The last log that was replayed, where it could go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogBefore {
    /// The place behind its last record.
    pub(crate) end: RecordPlace,
    /// Whether it may have rows.
    pub(crate) rows: bool,
}

impl NextLog {
    /// The first log, or one behind whatever there is.
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

/// The torn end of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Torn {
    /// The file.
    pub(crate) file: String,
    /// Where its last whole record ends, in bytes; 0 if not even its header is whole.
    pub(crate) offset: u64,
    /// What is wrong with what stands there.
    pub(crate) reason: String,
    /// Whole records behind it; none of them is known to have been durable.
    pub(crate) whole: u64,
    /// Whether there may be more of them: counting was given up.
    pub(crate) more: bool,
}

/// Hands over the records behind `from`, in order and with their sequence numbers; reads at most 1 MiB at once.
///
/// They need not have been durable, nor acknowledged, when a crash came: whatever is whole and without gap counts.
/// Without any log from `from.number` on there are no records. Where a log was rotated because a sync had failed, it
/// begins with records from before the position that [`Log::rotate`] returned, so that who keeps the number only gets
/// some records of which the checkpoint knows already.
///
/// # Errors
/// Damage: a log that is missing between others, a header that is not right, a log that ends before the next one goes
/// on or before its mark says that it was durable; all that is before it was handed over. A torn end is none in the last
/// log, nor in an earlier one if the next one goes on there. Or `apply`'s error.
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
        // One that has no records, or was never finished, is replaced: by its own number, since the removal of a name that
        // is not durable would bring it back behind one that has more.
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
            // Taken back as a whole.
            continue;
        }
        let right = match expected {
            // The first log after a build begins with what it likes.
            None => first <= from.sequence || from.sequence == 0 && beheaded.is_none(),
            Some(expected) => first == expected,
        };
        if let Some(Torn { file, reason, .. }) = beheaded.take_if(|_| !right) {
            return Err(Error::Damaged {
                file,
                what: format!(
                    "{reason}, and {} goes on with {first}: there were records in it (`stratann repair` takes what is left)",
                    log.file
                ),
            });
        }
        if !right {
            let expected = expected.unwrap_or(from.sequence);
            return Err(Error::Damaged {
                file: log.file.clone(),
                what: format!(
                    "the first sequence number at offset 64 is {first}, {expected} expected"
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
                    // The marks of a log without records were written before its first sync.
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

/// The logs of an index, as their headers say.
#[derive(Default)]
struct Logs {
    /// Those with a header.
    logs: Vec<Reading>,
    /// One behind them without, whose creation was torn.
    torn: Option<Torn>,
    /// One before them without.
    beheaded: Option<Torn>,
    /// What is wrong behind them: said when their records were handed over.
    damage: Option<Error>,
}

/// Opens the logs of these numbers, up to the first that is missing or damaged.
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
                    "this log is missing, and {} is there; put it back, or inserts and deletes are lost",
                    log_name(number)
                ),
            });
            break;
        }
        match open(volume, shape, number) {
            // A writer removes those that have nothing, the last one first.
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

/// Hands over the records of a log from a place on, below the sequence number `limit`. Returns where they ended.
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

/// Of each log the one that goes on where its records end to count: of those behind it, the one that begins first.
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

/// Fills bytes of a log from an offset on.
pub(super) type ReadAt<'a> = dyn Fn(u64, &mut [u8]) -> Result<(), Error> + 'a;

/// Takes a record and its sequence number.
pub(super) type Apply<'a> = dyn FnMut(u64, LogRecord<'_>) -> Result<(), Error> + 'a;

/// A log that is read.
pub(super) struct Reading {
    pub(super) name: String,
    /// Its name in errors.
    pub(super) file: String,
    pub(super) header: LogHeader,
    pub(super) len: u64,
    /// The place behind the records that were durable, if the log has marks.
    pub(super) durable: Option<RecordPlace>,
}

/// What there is of a log.
pub(super) enum Opened {
    Whole(Reading),
    /// Its beginning was never written whole, for this reason: the file has no records, which are not written before
    /// that is durable.
    Torn(String),
}

/// Reads what is in front of a log's records.
pub(super) fn open(volume: &dyn Volume, shape: LogShape, number: u64) -> Result<Opened, Error> {
    let name = log_name(number);
    let file = name_of(volume, &name);
    let mut tries = 1;
    // The marks before the length: what they say was durable is in the file by then.
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
                return Ok(Opened::Torn("its header was not written whole".into()));
            }
            Err(error) => return Err(error.into()),
        };
        if !header.marked || read_marks(&front, number).is_some() {
            break (front, header);
        }
        if len <= FIRST_RECORD {
            return Ok(Opened::Torn("its marks were not written whole".into()));
        }
        if tries == TRIES {
            return Err(Error::Damaged {
                file,
                what: "neither of its marks, at offsets 4096 and 8192, is whole: nobody knows how much of it was durable"
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
        return Ok(Opened::Torn("its marks were not written whole".into()));
    }
    if header.shape != shape {
        let say = |shape: LogShape| format!("{} x {}", shape.element(), shape.dim());
        return Err(Error::Damaged {
            file,
            what: format!(
                "its vectors are {} by the fields at offset 48, those of the index {}: a log of another index",
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

/// Whether a file whose header cannot be read may be one that was being made, and so has no records.
fn may_be_torn(front: &[u8], len: u64) -> bool {
    // One with marks is longer; that it is one is said before what is torn, or nothing is.
    let first = front.get(..16).unwrap_or_default();
    let is_marked = (2..=FORMAT_VERSION).any(|version| first.ends_with(&version.to_le_bytes()));
    len <= BLOCK as u64 || len <= FIRST_RECORD && (is_marked || first.iter().all(|&byte| byte == 0))
}

impl Reading {
    /// The sequence number up to which there were records of it once, and what says so, if that is behind `known`: where its records
    /// end, or those that the checkpoint has, if these are more. `next` is the log that goes on, with record `limit`.
    fn missing_behind(
        &self,
        next: Option<&Reading>,
        limit: Option<u64>,
        known: u64,
    ) -> Option<(u64, String)> {
        let (there_was, evidence) = match next {
            Some(next) => {
                let first = limit?;
                (first, format!("{} goes on with {first}", next.file))
            }
            None => {
                let durable = self.durable.as_ref()?.sequence;
                let evidence = format!("its mark says that it was durable up to {durable}");
                (durable, evidence)
            }
        };
        (there_was > known).then_some((there_was, evidence))
    }

    /// The log that is started behind this one, whose records that count end at `end`.
    ///
    /// Nobody knows whether a sync of this file failed, after which it may lack on storage what is read from memory now. A sync
    /// that succeeds would say nothing. So what is behind the mark is written anew; a log that has nothing before its mark
    /// is replaced as a whole, of whose name as little is known.
    fn next_after(&self, end: RecordPlace, from: LogPosition) -> NextLog {
        let (number, start) = (self.header.number, self.header.start());
        let (replaces, undurable) = match self.durable {
            // The checkpoint has it all.
            _ if end.sequence <= from.sequence => (false, None),
            // It never said what was durable.
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

    /// Hands over the records from `place` on, below the sequence number `limit`. Returns where they ended, and why.
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

    /// Where the next whole record stands in a gap.
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

    /// How many whole records stand behind a place where there is none, below the sequence number `limit`; and whether counting
    /// was given up, so that there may be more.
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
