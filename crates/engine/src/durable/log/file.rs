//! The file of a log that is being written: its creation, appends, syncs and marks.

use stratann_layout::log::encode_record;
use stratann_layout::log::marks::{MARK_BYTES, MARKS, encode_mark};
use stratann_layout::{LogHeader, LogRecords, LogShape, RecordPlace};
use stratann_tier::{TierError, Volume, VolumeFile};

use super::files::{log_name, unfinished};
use super::replay::each_from;
use crate::Error;
use crate::durable::room::{LOG_ROOM, drop_log_room, take_log_room};
use crate::stored::name_of;

const COPIED_AT_ONCE: usize = 1 << 20;

/// The current file, and the slot of the older mark, which the next mark overwrites.
#[derive(Debug)]
pub(super) struct LogFile {
    pub(super) file: Box<dyn VolumeFile>,
    pub(super) slot: usize,
}

pub(super) struct Failed {
    pub(super) error: TierError,
    /// Whether the file durably has the content that it had before the write.
    pub(super) cut_off: bool,
}

impl LogFile {
    pub(super) fn write(
        &mut self,
        from: RecordPlace,
        bytes: &[u8],
        to: RecordPlace,
        sync: bool,
    ) -> Result<(), Failed> {
        if !bytes.is_empty()
            && let Err(error) = self.file.write_at(from.offset, bytes)
        {
            let cut_off = self
                .file
                .set_len(from.offset)
                .and_then(|()| self.sync(from))
                .is_ok();
            return Err(Failed { error, cut_off });
        }
        if sync {
            self.sync(to).map_err(|error| Failed {
                error,
                cut_off: false,
            })?;
        }
        Ok(())
    }

    pub(super) fn sync(&mut self, end: RecordPlace) -> Result<(), TierError> {
        self.file.sync()?;
        self.mark(end);
        Ok(())
    }

    pub(super) fn mark(&mut self, end: RecordPlace) {
        // If the mark cannot be written, the sync is still a success: a reader uses the earlier
        // mark.
        let mark = encode_mark(end, self.slot);
        if self.file.write_at(MARKS[self.slot], &mark).is_ok() {
            self.slot = 1 - self.slot;
        }
    }
}

/// Creates a durable log file without records. The header and the marks are synced before the first
/// record, so a torn start without records is no damage.
pub(super) fn create_empty(volume: &dyn Volume, header: LogHeader) -> Result<LogFile, TierError> {
    let mut file = volume.create(&log_name(header.number))?;
    file.write_at(0, &header.encode_front())?;
    file.sync()?;
    volume.sync()?;
    Ok(LogFile { file, slot: 0 })
}

/// Creates a durable log file with its first records, up to `end`.
pub(super) fn create_with(
    volume: &dyn Volume,
    header: LogHeader,
    records: &[u8],
    end: RecordPlace,
) -> Result<LogFile, TierError> {
    let mut file = Unfinished::begin(volume, header)?;
    file.append(records, end)?;
    file.finish()
}

/// Creates a file like [`create_with`], in the reserved blocks. If the creation fails, the
/// reservation is removed.
pub(super) fn create_in_room(
    volume: &dyn Volume,
    header: LogHeader,
    records: &[u8],
    end: RecordPlace,
) -> Result<LogFile, TierError> {
    let created = Unfinished::begin_in_room(volume, header).and_then(|begun| {
        let mut file = begun.ok_or_else(|| TierError::NoSpace {
            place: volume.place(LOG_ROOM),
            offset: 0,
            len: header.start().offset,
        })?;
        file.append(records, end)?;
        file.finish()
    });
    if created.is_err() {
        drop_log_room(volume);
    }
    created
}

/// A log that begins with records copied from an earlier log. When the new log has its final name,
/// a reader ignores these records in the earlier log. So the new log gets this name only when the
/// records are durable.
pub(super) struct Unfinished<'a> {
    pub(super) volume: &'a dyn Volume,
    name: String,
    pub(super) file: Box<dyn VolumeFile>,
    pub(super) header: LogHeader,
    pub(super) end: RecordPlace,
}

impl<'a> Unfinished<'a> {
    pub(super) fn begin(volume: &'a dyn Volume, header: LogHeader) -> Result<Self, TierError> {
        let file = volume.create(&unfinished())?;
        Self::begin_in(volume, unfinished(), file, header)
    }

    /// Begins a log in the reserved blocks, if there are any.
    pub(super) fn begin_in_room(
        volume: &'a dyn Volume,
        header: LogHeader,
    ) -> Result<Option<Self>, TierError> {
        let Some(file) = take_log_room(volume)? else {
            return Ok(None);
        };
        Self::begin_in(volume, LOG_ROOM.to_owned(), file, header).map(Some)
    }

    fn begin_in(
        volume: &'a dyn Volume,
        name: String,
        mut file: Box<dyn VolumeFile>,
        header: LogHeader,
    ) -> Result<Self, TierError> {
        file.write_at(0, &header.encode_front())?;
        let end = header.start();
        Ok(Self {
            volume,
            name,
            file,
            header,
            end,
        })
    }

    /// Appends records that were encoded for the present end of the file, up to `end`.
    pub(super) fn append(&mut self, records: &[u8], end: RecordPlace) -> Result<(), TierError> {
        self.file.write_at(self.end.offset, records)?;
        self.end = end;
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<LogFile, TierError> {
        let name = log_name(self.header.number);
        self.file.sync()?;
        self.volume.rename(&self.name, &name)?;
        // The file is opened again, so that errors have its final name.
        let file = self.volume.open(&name)?;
        self.volume.sync()?;
        let mut file = LogFile { file, slot: 0 };
        file.mark(self.end);
        Ok(file)
    }
}

pub(super) fn copy(
    volume: &dyn Volume,
    from: RecordPlace,
    limit: u64,
    to: &mut Unfinished<'_>,
) -> Result<(), Error> {
    let (shape, mut bytes, mut end) = (to.header.shape, Vec::new(), to.end);
    let copied = each_from(volume, shape, from, limit, &mut |record| {
        end = encode_record(record, end, &mut bytes);
        if bytes.len() >= COPIED_AT_ONCE {
            to.append(&bytes, end)?;
            bytes.clear();
        }
        Ok(())
    })?;
    to.append(&bytes, end)?;
    match copied.sequence == limit {
        true => Ok(()),
        false => Err(Error::Damaged {
            file: name_of(volume, &log_name(from.log)),
            what: format!(
                "its record {} at offset {} could be read earlier, but not now",
                copied.sequence, copied.offset
            ),
        }),
    }
}

/// Opens a log to continue it after its last record, at `end`. The mark of the log shows that the
/// whole log is durable.
pub(super) fn go_on(volume: &dyn Volume, end: RecordPlace) -> Result<LogFile, TierError> {
    let name = log_name(end.log);
    let mut slot = 0;
    for (newest, at) in MARKS.into_iter().enumerate() {
        let mut mark = [0; MARK_BYTES];
        volume.read_at(&name, at, &mut mark)?;
        if mark == encode_mark(end, newest) {
            slot = 1 - newest;
        }
    }
    let file = volume.open(&name)?;
    Ok(LogFile { file, slot })
}

/// Removes a log that could not be completed. Returns whether the removal is durable.
pub(super) fn take_back(volume: &dyn Volume, number: u64) -> bool {
    match volume.remove(&log_name(number)) {
        Ok(()) | Err(TierError::Missing { .. }) => volume.sync().is_ok(),
        Err(_) => false,
    }
}

pub(super) fn rewritten(
    shape: LogShape,
    bytes: &[u8],
    from: RecordPlace,
    mut to: RecordPlace,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut records = LogRecords::new(shape, from, bytes);
    while let Ok((_, record)) = records.next_record() {
        to = encode_record(record, to, &mut out);
    }
    assert_eq!(
        out.len(),
        bytes.len(),
        "some of the records that this process wrote cannot be read"
    );
    out
}
