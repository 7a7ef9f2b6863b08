//! What the logs say: which vectors of the checkpoint they overrule, and which they bring.
//!
//! They are read twice, so that no vector is kept in memory: first for the last word on each id, then for the vectors that
//! this leaves. Of a log that is damaged, what is before the damage counts: nobody could tell what follows on what.

use std::collections::HashMap;

use stratann_layout::log::FIRST_RECORD;
use stratann_layout::{LogRecord, LogShape, Manifest};
use stratann_tier::Volume;

use super::{Lost, files};
use crate::Error;
use crate::durable::{self, LogPosition, log_bytes};
use crate::progress::Progress;

/// The last word on an id.
struct Last {
    /// Whether the checkpoint had it: it was first replaced or deleted.
    stored: bool,
    /// The record with its vector; `None`: it was deleted.
    vector: Option<u64>,
}

/// What the logs of an index say.
pub(super) struct Changes {
    ids: HashMap<u64, Last>,
    /// 1 more than the largest id that was logged; 0 if none was.
    pub(super) next_id: u64,
    /// What of the logs does not count, if they are damaged.
    pub(super) lost: Option<Lost>,
}

/// Takes a record and its sequence number.
type Apply<'a> = dyn FnMut(u64, LogRecord<'_>) -> Result<(), Error> + 'a;

/// Takes an id and its vector.
type EachVector<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Error> + 'a;

/// Hands over the records that count. Gives what ends them, if anything does but their number: the file and why.
fn replay(
    volume: &dyn Volume,
    manifest: &Manifest,
    progress: &dyn Progress,
    apply: &mut Apply<'_>,
) -> Result<Option<(String, String)>, Error> {
    let shape = LogShape::new(manifest.element, manifest.dimension as usize)?;
    let from = LogPosition::from(manifest.log_from);
    let replayed = durable::replay(volume, shape, from, &mut |sequence, record| {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        apply(sequence, record)
    });
    match replayed {
        Ok(replayed) => Ok(replayed.torn.map(|torn| {
            let what = format!(
                "its last whole record ends at byte {} ({}); what is behind it does not count: as a crash leaves it, or damage",
                torn.offset, torn.reason
            );
            (torn.file, what)
        })),
        Err(Error::Damaged { file, what }) => Ok(Some((file, what))),
        Err(error) if files::is_damage(&error) => {
            let text = error.to_string();
            let (file, what) = text.split_once(": ").unwrap_or(("", &text));
            let file = match file.starts_with(&volume.name()) {
                true => file.to_owned(),
                false => volume.name(),
            };
            Ok(Some((file, files::first_part(what).to_owned())))
        }
        Err(error) => Err(error),
    }
}

impl Changes {
    /// Reads the logs of an index, those from the one on that its manifest names.
    pub(super) fn read(
        volume: &dyn Volume,
        manifest: &Manifest,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        let mut ids = HashMap::new();
        let (mut next_id, mut read) = (0, 0);
        let end = replay(volume, manifest, progress, &mut |sequence, record| {
            let id = record.id();
            let last = ids.entry(id).or_insert(Last {
                stored: !matches!(record, LogRecord::Insert { .. }),
                vector: None,
            });
            last.vector = record.vector().map(|_| sequence);
            next_id = next_id.max(id.saturating_add(1));
            read += record.encoded_bytes() as u64;
            Ok(())
        })?;
        let lost = end.map(|(file, what)| {
            // Each takes a record of its size; deletes are shorter, and some may be known to the checkpoint.
            let left =
                log_bytes(volume, manifest.log_from.number).map_or(0, |all| all - read.min(all));
            let shape = LogShape::new(manifest.element, manifest.dimension as usize);
            let record = shape.map_or(FIRST_RECORD, |shape| shape.longest_record() as u64);
            Lost {
                file,
                what: format!("{what}; inserts, replacements and deletes behind that are lost"),
                vectors: left.div_ceil(record.max(1)),
            }
        });
        Ok(Self { ids, next_id, lost })
    }

    /// Whether a vector of the checkpoint with this id does not count any more.
    pub(super) fn overrules(&self, id: u64) -> bool {
        self.ids.contains_key(&id)
    }

    /// How many ids there were in the checkpoint that do not count any more, of those that `which` says.
    pub(super) fn superseded(&self, which: impl Fn(u64) -> bool) -> u64 {
        let ids = self.ids.iter();
        let stored = ids.filter(|(id, last)| last.stored && which(**id));
        stored.count() as u64
    }

    /// Calls `each` with the vectors that count.
    pub(super) fn each_vector(
        &self,
        volume: &dyn Volume,
        manifest: &Manifest,
        progress: &dyn Progress,
        each: &mut EachVector<'_>,
    ) -> Result<(), Error> {
        replay(volume, manifest, progress, &mut |sequence, record| {
            let last = self.ids.get(&record.id());
            match record.vector() {
                Some(vector) if last.is_some_and(|last| last.vector == Some(sequence)) => {
                    each(record.id(), vector)
                }
                _ => Ok(()),
            }
        })?;
        Ok(())
    }
}
