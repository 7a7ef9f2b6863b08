//! Reads the logs, whose records replace, delete or add vectors.
//!
//! The first pass finds the last record of each id, and the second pass reads its vector. So no
//! vector stays in memory. In a damaged log, every readable record counts, because each
//! record has a sequence number.

use std::collections::HashMap;

use stratann_layout::{BLOCK, LogRecord, LogShape, Manifest};
use stratann_tier::Volume;

use super::{Lost, files};
use crate::Error;
use crate::durable::{self, LogPosition, LostRecords};
use crate::progress::Progress;

struct Last {
    /// Whether the first record of the id replaces or deletes a vector. Then the checkpoint has the
    /// id.
    stored: bool,
    /// The sequence number of the record with the vector; `None` if the vector was deleted.
    vector: Option<u64>,
}

pub(super) struct Changes {
    ids: HashMap<u64, Last>,
    /// The last row of each id in the logs. Empty if the id has no attributes.
    pub(super) rows: HashMap<u64, Vec<u8>>,
    /// The number after the largest id in the logs, or 0.
    pub(super) next_id: u64,
    pub(super) lost: Vec<Lost>,
}

type Apply<'a> = dyn FnMut(u64, LogRecord<'_>) -> Result<(), Error> + 'a;

type EachVector<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Error> + 'a;

fn salvage(
    volume: &dyn Volume,
    manifest: &Manifest,
    progress: &dyn Progress,
    apply: &mut Apply<'_>,
) -> Result<Vec<LostRecords>, Error> {
    let shape = LogShape::new(manifest.element, manifest.dimension as usize)?;
    let from = LogPosition::from(manifest.log_from);
    let read = |name: &str, offset: u64, out: &mut [u8]| {
        if files::read(volume, name, offset, out)? {
            return Ok(());
        }
        let mut at = offset;
        for block in out.chunks_mut(BLOCK) {
            if !files::read(volume, name, at, block)? {
                block.fill(0);
            }
            at += block.len() as u64;
        }
        Ok(())
    };
    let mut apply = |sequence, record: LogRecord<'_>| {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        apply(sequence, record)
    };
    durable::salvage(volume, shape, from, files::is_damage, &read, &mut apply)
}

impl Changes {
    pub(super) fn read(
        volume: &dyn Volume,
        manifest: &Manifest,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        let (mut ids, mut rows) = (HashMap::new(), HashMap::new());
        let mut next_id = 0;
        let lost = salvage(volume, manifest, progress, &mut |sequence, record| {
            let id = record.id();
            match record {
                LogRecord::Delete { .. } => _ = rows.remove(&id),
                _ => _ = rows.insert(id, record.row().unwrap_or_default().to_vec()),
            }
            if let LogRecord::Row { .. } = record {
                // A row of attributes does not change the vector.
                return Ok(());
            }
            let last = ids.entry(id).or_insert(Last {
                stored: !matches!(record, LogRecord::Insert { .. }),
                vector: None,
            });
            last.vector = record.vector().map(|_| sequence);
            next_id = next_id.max(id.saturating_add(1));
            Ok(())
        })?;
        let lost = lost.into_iter().map(|lost| Lost {
            file: lost.file,
            what: match lost.records {
                0 => format!("{}; no record is lost", lost.what),
                records => format!(
                    "{}; at most {records} inserts, replacements and deletes are lost",
                    lost.what
                ),
            },
            vectors: lost.records,
        });
        let lost = lost.collect();
        Ok(Self {
            ids,
            rows,
            next_id,
            lost,
        })
    }

    pub(super) fn overrules(&self, id: u64) -> bool {
        self.ids.contains_key(&id)
    }

    /// Counts the vectors of the checkpoint that the log replaces or deletes, if `which` returns
    /// true for their ids.
    pub(super) fn superseded(&self, which: impl Fn(u64) -> bool) -> u64 {
        let ids = self.ids.iter();
        let stored = ids.filter(|(id, last)| last.stored && which(**id));
        stored.count() as u64
    }

    pub(super) fn each_vector(
        &self,
        volume: &dyn Volume,
        manifest: &Manifest,
        progress: &dyn Progress,
        each: &mut EachVector<'_>,
    ) -> Result<(), Error> {
        salvage(volume, manifest, progress, &mut |sequence, record| {
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
