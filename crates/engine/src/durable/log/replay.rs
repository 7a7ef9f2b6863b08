//! Replay: what the logs say, record by record, and where they end.

use stratann_layout::log::{EndReason, FIRST_RECORD};
use stratann_layout::{
    BLOCK, LayoutError, LogHeader, LogRecord, LogRecords, LogShape, RecordPlace,
};
use stratann_tier::Volume;

use super::files::{LogPosition, log_name, numbers_in};
use crate::Error;
use crate::stored::name_of;

/// Bytes that a replay reads at once. The longest record has a quarter of it.
const PIECE: usize = 1 << 20;

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// Number of the log to start next.
    pub(crate) next_number: u64,
    /// Sequence number of the record to append next.
    pub(crate) next_sequence: u64,
    /// Records that were handed over.
    pub(crate) records: u64,
    /// Where the last log does not end behind its last record; after a crash that is how it should be.
    pub(crate) torn: Option<Torn>,
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
/// on; all that is before it was handed over. A torn end is none in the last log, nor in an earlier one if the next one
/// goes on there. Or `apply`'s error.
pub(crate) fn replay(
    volume: &dyn Volume,
    shape: LogShape,
    from: LogPosition,
    apply: &mut dyn FnMut(u64, LogRecord<'_>) -> Result<(), Error>,
) -> Result<Replayed, Error> {
    let first_number = from.number.max(1);
    let mut numbers = numbers_in(volume)?;
    numbers.retain(|&number| number >= first_number);
    // The torn creations have no header.
    let mut logs = Vec::with_capacity(numbers.len());
    let mut torn = None;
    // Said when all that is before it was handed over.
    let mut damage = None;
    for (at, &number) in numbers.iter().enumerate() {
        let expected = first_number.saturating_add(at as u64);
        if number != expected {
            damage = Some(Error::Damaged {
                file: name_of(volume, &log_name(expected)),
                what: format!(
                    "this log is missing, and {} is there; put it back, or inserts and deletes are lost",
                    log_name(number)
                ),
            });
            break;
        }
        match open(volume, shape, number) {
            Err(error) => {
                damage = Some(error);
                break;
            }
            Ok(Ok(log)) => {
                torn = None;
                logs.push(log);
            }
            Ok(Err(reason)) => {
                torn = Some(Torn {
                    file: name_of(volume, &log_name(number)),
                    offset: 0,
                    reason,
                });
            }
        }
    }
    let mut replayed = Replayed {
        next_number: numbers
            .last()
            .map_or(first_number, |last| last.saturating_add(1)),
        next_sequence: from.sequence,
        records: 0,
        torn,
    };
    let mut expected = None;
    for (at, log) in logs.iter().enumerate() {
        let first = log.header.first_sequence;
        let right = match expected {
            None => first <= from.sequence || from.sequence == 0,
            Some(expected) => first == expected,
        };
        if !right {
            let expected = expected.unwrap_or(from.sequence);
            return Err(Error::Damaged {
                file: log.file.clone(),
                what: format!(
                    "the first sequence number at offset 64 is {first}, {expected} expected"
                ),
            });
        }
        let next = logs.get(at + 1).map(|next| next.header.first_sequence);
        let (behind, end) = log.read(volume, next, &mut |sequence, record| {
            if sequence >= from.sequence {
                replayed.records += 1;
                apply(sequence, record)?;
            }
            Ok(())
        })?;
        match next {
            // What is missing is of no interest if the checkpoint has it.
            Some(next) if behind < next && next > from.sequence => {
                let (offset, reason) = end;
                return Err(Error::Damaged {
                    file: log.file.clone(),
                    what: format!(
                        "its records end at offset {offset} ({reason}) with sequence number {behind}, and {} goes on \
                         with {next}: what was between is lost",
                        logs[at + 1].file
                    ),
                });
            }
            Some(next) => expected = Some(next),
            None => {
                replayed.next_sequence = behind.max(from.sequence);
                let (offset, reason) = end;
                if !reason.is_clean() && replayed.torn.is_none() {
                    replayed.torn = Some(Torn {
                        file: log.file.clone(),
                        offset,
                        reason: reason.to_string(),
                    });
                }
            }
        }
    }
    damage.map_or(Ok(replayed), Err)
}

/// A log that is read.
struct Reading {
    name: String,
    /// Its name in errors.
    file: String,
    header: LogHeader,
    len: u64,
}

/// Reads a log's header. The inner error is a header that was never written whole, and why one thinks so: the file is
/// not longer than it, and records are not written before the header is durable.
fn open(
    volume: &dyn Volume,
    shape: LogShape,
    number: u64,
) -> Result<Result<Reading, String>, Error> {
    let name = log_name(number);
    let file = name_of(volume, &name);
    let len = volume.len(&name)?;
    let mut block = vec![0; len.min(BLOCK as u64) as usize];
    volume.read_at(&name, 0, &mut block)?;
    let header = match LogHeader::decode(&block, number, &file) {
        Ok(header) => header,
        Err(
            LayoutError::Truncated { .. }
            | LayoutError::Magic { .. }
            | LayoutError::Checksum { .. },
        ) if len <= BLOCK as u64 => {
            return Ok(Err("its header was not written whole".into()));
        }
        Err(error) => return Err(error.into()),
    };
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
    Ok(Ok(Reading {
        name,
        file,
        header,
        len,
    }))
}

impl Reading {
    /// Hands over the records below the sequence number `limit`. Returns the sequence number behind them, and where and
    /// why they ended.
    fn read(
        &self,
        volume: &dyn Volume,
        limit: Option<u64>,
        apply: &mut dyn FnMut(u64, LogRecord<'_>) -> Result<(), Error>,
    ) -> Result<(u64, (u64, EndReason)), Error> {
        let mut place = RecordPlace {
            log: self.header.number,
            offset: FIRST_RECORD,
            sequence: self.header.first_sequence,
        };
        let (mut held, mut read) = (Vec::new(), FIRST_RECORD);
        loop {
            let kept = held.len();
            let more = ((PIECE - kept) as u64).min(self.len.saturating_sub(read)) as usize;
            held.resize(kept + more, 0);
            volume.read_at(&self.name, read, &mut held[kept..])?;
            read += more as u64;
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
                return Ok((place.sequence, (place.offset, end)));
            }
        }
    }
}
