//! Inserts, upserts and deletes: checked whole before anything is logged, logged, and then made answers.
//!
//! What can fail comes before the log: once a change is there, it is made, and what it cannot be made in now is tried again.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::Ordering;

use stratann_layout::LogRecord;

use super::attributes::{declared, read_rows};
use super::directly::place_directly;
use super::reserved::Reservation;
use super::{LiveIndex, State};
use crate::Error;
use crate::data::{RowSource, VectorSource, check_rows};
use crate::durable::Log;
use crate::progress::{Progress, Silent, Stage};
use crate::stores::columns::{RowBytes, row_charge};
use crate::threads;

/// Rows that are logged and inserted at a time.
pub(super) const BATCH: usize = 256;

/// The largest id that a vector can have: the next one stands for "no answer" in results.
const LAST_ID: u64 = u64::MAX - 1;

/// How rows get into an index that takes them straight into its graph.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Each by itself, now.
    Directly,
    /// With many others, by a merge.
    Later,
}

impl LiveIndex {
    /// Inserts vectors under new ids: those given, or the next ones, which are returned. Calls that change the same id are put in order, here and in every
    /// other change: each waits for those that came before it.
    ///
    /// # Errors
    /// Vectors of another dimension or element type, NaN or infinity, zero vectors under cosine; an id that is in the index
    /// (replace with [`upsert`](LiveIndex::upsert)), twice in `ids` or 2^64 - 1; no ids left to count on with; a log that cannot
    /// be written. All rows are checked before the first is inserted; where a disk fills up in the middle, the error says how
    /// many are in.
    pub fn insert(
        &self,
        vectors: &dyn VectorSource,
        ids: Option<&[u64]>,
        progress: &dyn Progress,
    ) -> Result<Vec<u64>, Error> {
        self.insert_all(vectors, None, ids, progress)
    }

    /// As [`insert`](LiveIndex::insert), of vectors that have something beside them: a row for each, which is as durable as its vector.
    ///
    /// # Errors
    /// As those of [`insert`](LiveIndex::insert); more or fewer rows than vectors, one that cannot be read, or that has a value of another type
    /// than its column.
    pub fn insert_rows(
        &self,
        vectors: &dyn VectorSource,
        rows: &dyn RowSource,
        ids: Option<&[u64]>,
        progress: &dyn Progress,
    ) -> Result<Vec<u64>, Error> {
        self.insert_all(vectors, Some(rows), ids, progress)
    }

    fn insert_all(
        &self,
        vectors: &dyn VectorSource,
        attributes: Option<&dyn RowSource>,
        ids: Option<&[u64]>,
        progress: &dyn Progress,
    ) -> Result<Vec<u64>, Error> {
        self.check_all(vectors, attributes)?;
        let rest_of = self.check_unclaimed(ids.unwrap_or(&[]), vectors, attributes.is_some())?;
        let ids = self.insert_checked(vectors, attributes, ids, progress)?;
        rest_of.map_or(Ok(()), |insert| self.end(&insert))?;
        Ok(ids)
    }

    /// Refuses rows that the index does not take.
    pub(super) fn check_all(
        &self,
        vectors: &dyn VectorSource,
        attributes: Option<&dyn RowSource>,
    ) -> Result<(), Error> {
        self.health.check()?;
        self.check(vectors)?;
        self.check_attributes(attributes, vectors.rows())
    }

    /// Inserts rows that were [checked](Self::check_all).
    pub(super) fn insert_checked(
        &self,
        vectors: &dyn VectorSource,
        attributes: Option<&dyn RowSource>,
        ids: Option<&[u64]>,
        progress: &dyn Progress,
    ) -> Result<Vec<u64>, Error> {
        let rows = vectors.rows();
        let automatic = ids.is_none();
        let (ids, reservation) = match ids {
            Some(ids) => {
                check_ids(ids, rows)?;
                (ids.to_vec(), self.reserved.all(ids, progress)?)
            }
            None => self.reserve_next(rows as u64)?,
        };
        for &id in &ids {
            if self.contains(id)? {
                let expected = "an id that is not in the index (or upsert, which replaces)";
                return Err(Error::call("id", id, expected));
            }
        }
        self.put(vectors, attributes, &ids, progress)
            .map_err(|error| match error {
                // Nobody knows the ids that were given to what is in, but for this error.
                Error::Partly {
                    done,
                    total,
                    source,
                    ..
                } if automatic => Error::Partly {
                    given: ids
                        .iter()
                        .take(done)
                        .copied()
                        .min()
                        .zip(ids.iter().take(done).copied().max()),
                    done,
                    total,
                    source,
                },
                error => error,
            })?;
        drop(reservation);
        Ok(ids)
    }

    /// Inserts vectors; one whose id is in the index replaces the one that has it, and what that had beside it: it has nothing then.
    ///
    /// # Errors
    /// As [`insert`](LiveIndex::insert), but for ids that are there.
    pub fn upsert(
        &self,
        vectors: &dyn VectorSource,
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        self.upsert_all(vectors, None, ids, progress)
    }

    /// As [`upsert`](LiveIndex::upsert), of vectors that have something beside them: a row for each, in place of the one that its id had.
    ///
    /// # Errors
    /// As those of [`upsert`](LiveIndex::upsert) and, of rows, of [`insert_rows`](LiveIndex::insert_rows).
    pub fn upsert_rows(
        &self,
        vectors: &dyn VectorSource,
        rows: &dyn RowSource,
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        self.upsert_all(vectors, Some(rows), ids, progress)
    }

    fn upsert_all(
        &self,
        vectors: &dyn VectorSource,
        attributes: Option<&dyn RowSource>,
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        self.health.check()?;
        self.check(vectors)?;
        check_ids(ids, vectors.rows())?;
        self.check_attributes(attributes, vectors.rows())?;
        let rest_of = self.check_unclaimed(ids, vectors, attributes.is_some())?;
        let reservation = self.reserved.all(ids, progress)?;
        self.put(vectors, attributes, ids, progress)?;
        drop(reservation);
        rest_of.map_or(Ok(()), |insert| self.end(&insert))
    }

    /// Deletes ids: no search that begins after this answers them. Waits while another call changes one of them.
    ///
    /// # Errors
    /// An id that is not in the index, or twice in `ids`: then none is deleted; a log that cannot be written.
    pub fn delete(&self, ids: &[u64]) -> Result<(), Error> {
        self.delete_observed(ids, &Silent)
    }

    /// As [`delete`](LiveIndex::delete); `progress` may end the wait for other calls.
    ///
    /// # Errors
    /// As there; [`Error::Interrupted`] where nothing was deleted.
    pub fn delete_observed(&self, ids: &[u64], progress: &dyn Progress) -> Result<(), Error> {
        check_ids(ids, ids.len())?;
        let _reservation = self.reserved.all(ids, progress)?;
        let _gate = self.gate.read();
        // Under the gate: a merge that commits may be what ends the changes.
        self.health.check()?;
        let state = self.state();
        let mut built = Vec::with_capacity(ids.len());
        for &id in ids {
            let known = state.known(id)?;
            if !known.live {
                return Err(Error::call("id", id, "an id in the index"));
            }
            built.push((id, known.built));
        }
        self.delete_known(&state, &built)
    }

    /// Logs that ids are deleted, of each of which it is said whether the build has it, and makes them no answers. Under the gate.
    pub(super) fn delete_known(&self, state: &State, ids: &[(u64, bool)]) -> Result<(), Error> {
        let records: Vec<_> = ids
            .iter()
            .map(|&(id, _)| LogRecord::Delete { id })
            .collect();
        self.append_by(&records, Log::rotate_in_room, Log::append_in_room)?;
        for &(id, built) in ids {
            state.remove(id, built);
        }
        self.live.fetch_sub(ids.len(), Ordering::AcqRel);
        Ok(())
    }

    /// Logs records: all of them, or none. Where a sync of the log failed, in this call or before, the next one is started: what was
    /// acknowledged goes there, what was not is taken back.
    pub(super) fn append(&self, records: &[LogRecord<'_>]) -> Result<(), Error> {
        let rotate = |log: &Log| log.rotate().map(drop);
        self.append_by(records, rotate, Log::append_all)
    }

    fn append_by(
        &self,
        records: &[LogRecord<'_>],
        rotate: impl Fn(&Log) -> Result<(), Error>,
        append: impl FnOnce(&Log, &[LogRecord<'_>]) -> Result<Range<u64>, Error>,
    ) -> Result<(), Error> {
        if self.log.is_broken() {
            rotate(&self.log)?;
        }
        let appended = append(&self.log, records);
        if self.log.is_broken()
            && let Err(error) = rotate(&self.log)
        {
            tracing::warn!(index = %self.path.display(), "no log after one that failed: {error}");
        }
        appended.map(drop)
    }

    /// As many ids as are asked for, one after the other, that nobody had, and their reservation.
    pub(super) fn reserve_next(&self, count: u64) -> Result<(Vec<u64>, Reservation<'_>), Error> {
        let reserved = self.reserved.next(count, &self.next_id, LAST_ID);
        reserved.map_err(|first| {
            Error::call(
                "ids",
                format!("the next {count} from {first} on"),
                format!(
                    "ids up to {LAST_ID}: the index has one that is too near to it to count on from; give ids"
                ),
            )
        })
    }

    /// Reserves ids as a call does that has got so far, for tests.
    #[cfg(test)]
    pub(in crate::update) fn reserve<'a>(&'a self, ids: &'a [u64]) -> Reservation<'a> {
        self.reserved.all(ids, &crate::progress::Silent).unwrap()
    }

    fn check(&self, vectors: &dyn VectorSource) -> Result<(), Error> {
        let index = self.index();
        if vectors.dim() != index.dim() {
            let expected = format!("{}, the index's", index.dim());
            return Err(Error::call(
                format!("dimension of {}", vectors.name()),
                vectors.dim(),
                expected,
            ));
        }
        if vectors.element() != index.element() {
            let expected = format!("{}, the index's", index.element());
            return Err(Error::call(
                format!("element type of {}", vectors.name()),
                vectors.element(),
                expected,
            ));
        }
        let mut rows = Vec::new();
        for first in (0..vectors.rows()).step_by(BATCH) {
            let count = BATCH.min(vectors.rows() - first);
            rows.resize(count * vectors.row_bytes(), 0);
            vectors.read(first, &mut rows)?;
            check_rows(vectors, index.metric(), first, &rows)?;
        }
        Ok(())
    }

    /// Has so many rows find files of the index's own, if they go straight into the graph on storage: nothing of them is in where that fails.
    pub(super) fn own_files_for(&self, rows: usize, progress: &dyn Progress) -> Result<(), Error> {
        match self.many_of(rows) {
            0 => self.own_files(progress),
            _ => Ok(()),
        }
    }

    /// Logs and inserts rows whose ids are reserved. An error behind the first rows says how many are in.
    fn put(
        &self,
        vectors: &dyn VectorSource,
        attributes: Option<&dyn RowSource>,
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let total = ids.len();
        // How many of the next rows wait for a merge that puts them in with the others.
        let mut many = self.many_of(total);
        self.own_files_for(total, progress)?;
        let mut stage = Some(Stage::begin(progress, "inserting", ids.len() as u64));
        let next = ids.iter().max().map_or(0, |id| id.saturating_add(1));
        self.next_id.fetch_max(next, Ordering::Relaxed);
        let (mut rows, mut first) = (Vec::new(), 0);
        let _filling = (many > 0).then(|| self.fills());
        while first < total {
            let way = match many {
                0 => Way::Directly,
                _ => Way::Later,
            };
            // A merge that was to write new files has failed.
            let owned = match way == Way::Directly && self.has_to_own(&self.state()) {
                false => Ok(()),
                true => {
                    drop(stage.take());
                    let owned = self.own_files(progress);
                    stage = Some(Stage::begin(progress, "inserting", (total - first) as u64));
                    owned
                }
            };
            let batch = match &self.state().direct {
                Some(direct) => direct.batch(),
                None => BATCH,
            };
            let ids = &ids[first..total.min(first + batch)];
            let mut put = match progress.interrupted() {
                true => Err(Error::Interrupted),
                false => owned
                    .and_then(|()| self.checkpoint_if_full(progress))
                    .and_then(|()| self.put_some(vectors, attributes, first, ids, way, &mut rows)),
            };
            // Nothing of these was changed: what waits may make room for them.
            if matches!(put, Err(Error::Memory { .. })) && self.make_room(progress) {
                put = self.put_some(vectors, attributes, first, ids, way, &mut rows);
            }
            let put = put.map_err(|error| match first {
                0 => error,
                done => Error::Partly {
                    done,
                    total,
                    given: None,
                    source: match error {
                        // Something was changed.
                        Error::Interrupted => Box::new(Error::Stopped),
                        error => Box::new(error),
                    },
                },
            })?;
            progress.advance(put as u64);
            first += put;
            match way {
                Way::Directly => self.checkpoint_if_due(progress),
                Way::Later => {
                    many = many.saturating_sub(put);
                    if many == 0 {
                        // The merge has stages of its own.
                        drop(stage.take());
                        let (merged, left) = (self.merge_many(progress), total - first);
                        if merged {
                            many = self.many_of(left);
                        }
                        stage =
                            (left > 0).then(|| Stage::begin(progress, "inserting", left as u64));
                    }
                }
            }
        }
        drop(stage);
        // Searches that begin after the call look further where these are of another kind.
        self.look_if_many_came();
        Ok(())
    }

    /// Logs and inserts the rows from `first` on, as many as there are ids, or fewer where what they have beside them is long: all of these, or
    /// none. Says how many.
    fn put_some(
        &self,
        vectors: &dyn VectorSource,
        attributes: Option<&dyn RowSource>,
        first: usize,
        ids: &[u64],
        way: Way,
        rows: &mut Vec<u8>,
    ) -> Result<usize, Error> {
        let row_bytes = vectors.row_bytes();
        let mut given = read_rows(attributes, first, ids.len())?;
        let ids = match attributes {
            Some(_) => &ids[..given.len()],
            None => ids,
        };
        rows.resize(ids.len() * row_bytes, 0);
        vectors.read(first, rows)?;
        // These bytes are the ones that are logged: the caller may have written to them since all were looked at.
        check_rows(vectors, self.index().metric(), first, rows)?;
        // Logged and applied under one state: a merge begins before or after both.
        let _gate = self.gate.read();
        self.health.check()?;
        let state = self.state();
        if let Some(direct) = &state.direct {
            direct.check()?;
        }
        let (columns, attributes) = declared(&state, &mut given)?;
        let bytes = attributes.iter().map(|row| row_charge(row)).sum();
        self.check_room(&state, ids.len(), row_bytes, bytes)?;
        let mut records = Vec::with_capacity(ids.len());
        let (mut built, mut new) = (HashSet::new(), 0);
        for (at, (&id, vector)) in ids.iter().zip(rows.chunks_exact(row_bytes)).enumerate() {
            let row = attributes.get(at).map(|row| &**row);
            let known = state.known(id)?;
            if known.built {
                built.insert(id);
            }
            records.push(match known.live {
                true => LogRecord::Replace { id, vector, row },
                false => {
                    new += 1;
                    LogRecord::Insert { id, vector, row }
                }
            });
        }
        self.append(&records)?;
        columns.keep();
        self.charge(ids.len(), row_bytes, bytes);
        let direct = state.direct.as_ref().filter(|_| way == Way::Directly);
        if let Some(direct) = direct.filter(|_| state.since.is_none()) {
            place_directly(&state, direct, &mut records);
        }
        let share = records.len().div_ceil(self.options.threads).max(1);
        threads::shared(records.chunks(share), |records| {
            records
                .iter()
                .for_each(|record| place(&state, record, &built));
        });
        self.live.fetch_add(new, Ordering::AcqRel);
        Ok(ids.len())
    }
}

/// Makes a vector that is logged an answer, in memory. `built` are ids of the checkpoint's build.
fn place(state: &State, record: &LogRecord<'_>, built: &HashSet<u64>) {
    let id = record.id();
    let row = record.row().map(RowBytes::from);
    match *record {
        LogRecord::Replace { vector, .. } => state.replace(id, vector, row, built.contains(&id)),
        LogRecord::Insert { vector, .. } => _ = state.fresh().insert(id, vector, row),
        // Of rows alone, see `attributes`.
        LogRecord::Row { .. } => {}
        LogRecord::Delete { .. } => state.remove(id, built.contains(&id)),
    }
}

/// Refuses ids that are too few, too many, not unique, or no ids.
pub(super) fn check_ids(ids: &[u64], rows: usize) -> Result<(), Error> {
    if ids.len() != rows {
        let found = format!("{} for {rows} rows", ids.len());
        return Err(Error::call("ids", found, "one a row"));
    }
    let mut seen = HashSet::with_capacity(ids.len());
    for &id in ids {
        if id > LAST_ID {
            // It stands for "no answer" in results.
            return Err(Error::call("id", id, "below 18446744073709551615"));
        }
        if !seen.insert(id) {
            let found = format!("duplicate id {id}");
            return Err(Error::call("ids", found, "ids that are unique"));
        }
    }
    Ok(())
}
