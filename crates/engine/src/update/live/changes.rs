//! Inserts, upserts and deletes. A change is checked as a whole, then logged, then made visible.
//!
//! All steps that can fail come before the log record: a logged change always becomes visible. If
//! the pages of a change cannot be written at once, the index writes them later.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::Ordering;

use stratann_layout::LogRecord;
use stratann_vector::Element;

use super::attributes::{Misspelt, declared, read_rows};
use super::directly::place_directly;
use super::reserved::Reservation;
use super::{LiveIndex, State};
use crate::Error;
use crate::build::twice;
use crate::data::{NoRows, RowSource, VectorSource, check_rows};
use crate::durable::Log;
use crate::progress::{Progress, Silent, Stage};
use crate::stores::columns::{RowBytes, row_charge};
use crate::threads;

/// The maximum number of rows that are logged and inserted together.
pub(super) const BATCH: usize = 256;

/// The largest id of a vector. In results, the next number means "no result".
const LAST_ID: u64 = u64::MAX - 1;

/// How rows are inserted, if the index takes direct inserts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Directly,
    Later,
}

impl LiveIndex {
    /// Inserts vectors, and returns their ids: `ids`, or the next free ids. Calls that change the
    /// same id run in the order in which they began.
    ///
    /// # Errors
    /// - The dimension or element type differs from the index, or a vector has NaN or infinity, or
    ///   is zero under cosine.
    /// - An id is in the index (to replace its vector, call [`upsert`](LiveIndex::upsert)), is
    ///   twice in `ids`, or is 2^64 - 1.
    /// - No free id remains, or the log cannot be written.
    ///
    /// All rows are checked before the first row is inserted. An error after some rows, such as a
    /// full disk, has the number of inserted rows.
    pub fn insert(
        &self,
        vectors: &dyn VectorSource,
        ids: Option<&[u64]>,
        progress: &dyn Progress,
    ) -> Result<Vec<u64>, Error> {
        self.insert_all(vectors, None, ids, progress)
    }

    /// Inserts vectors as [`insert`](LiveIndex::insert) does, with one row of attributes for each
    /// vector. A row is as durable as its vector. If the name of a new column is one edit from an
    /// older name, `progress` gets a warning.
    ///
    /// # Errors
    /// Fails as [`insert`](LiveIndex::insert) does. It also fails if the numbers of rows and
    /// vectors differ, if a row cannot be read, or if a value has another type than its column.
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
        let misspelt = self.check_all(vectors, attributes)?;
        let rest_of = self.check_unclaimed(ids.unwrap_or(&[]), vectors, attributes.is_some())?;
        let inserted = self.insert_checked(vectors, attributes, ids, progress);
        misspelt.warn_after(&inserted, progress);
        let ids = inserted?;
        rest_of.map_or(Ok(()), |insert| self.end(&insert))?;
        Ok(ids)
    }

    pub(super) fn check_all(
        &self,
        vectors: &dyn VectorSource,
        attributes: Option<&dyn RowSource>,
    ) -> Result<Misspelt, Error> {
        self.health.check()?;
        self.check(vectors)?;
        self.check_attributes(attributes, vectors.rows())
    }

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
                let reason = "the index has a vector with this id";
                let remedy = "Give another id, or upsert, which replaces the vector";
                return Err(Error::call("id", id, reason, remedy));
            }
        }
        self.put(vectors, attributes, &ids, progress)
            .map_err(|error| match error {
                // The caller does not know the automatic ids of the inserted rows.
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

    /// Inserts vectors. If an id is in the index, the new vector replaces the old vector and its
    /// attributes.
    ///
    /// # Errors
    /// Fails as [`insert`](LiveIndex::insert) does, but not for an id that is in the index.
    pub fn upsert(
        &self,
        vectors: &dyn VectorSource,
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        self.upsert_all(vectors, None, ids, progress)
    }

    /// Inserts or replaces vectors as [`upsert`](LiveIndex::upsert) does, with one row of
    /// attributes for each vector. The call warns as `insert_rows` does.
    ///
    /// # Errors
    /// Fails as [`upsert`](LiveIndex::upsert) and [`insert_rows`](LiveIndex::insert_rows) do.
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
        let misspelt = self.check_attributes(attributes, vectors.rows())?;
        let rest_of = self.check_unclaimed(ids, vectors, attributes.is_some())?;
        let reservation = self.reserved.all(ids, progress)?;
        let put = self.put(vectors, attributes, ids, progress);
        misspelt.warn_after(&put, progress);
        put?;
        drop(reservation);
        rest_of.map_or(Ok(()), |insert| self.end(&insert))
    }

    /// Deletes the vectors with these ids, so that no later search returns them. The call waits
    /// while another call changes one of these ids.
    ///
    /// # Errors
    /// If an id is not in the index, or is twice in `ids`, no vector is deleted. The call also
    /// fails if the log cannot be written.
    pub fn delete(&self, ids: &[u64]) -> Result<(), Error> {
        self.delete_observed(ids, &Silent)
    }

    /// Deletes ids like [`delete`](LiveIndex::delete). `progress` may interrupt the call until it
    /// begins to delete: while it waits for other calls, or looks up the ids.
    ///
    /// # Errors
    /// Fails as `delete` does. If `progress` interrupted the call, the error is
    /// [`Error::Interrupted`], and no vector was deleted.
    pub fn delete_observed(&self, ids: &[u64], progress: &dyn Progress) -> Result<(), Error> {
        check_ids(ids, ids.len())?;
        let _reservation = self.reserved.all(ids, progress)?;
        let _gate = self.gate.read();
        // The commit of a merge may have stopped all changes, so the health is checked under the
        // lock `gate`.
        self.health.check()?;
        let state = self.state();
        let mut built = Vec::with_capacity(ids.len());
        for &id in ids {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let known = state.known(id)?;
            if !known.live {
                return Err(no_such_id(id));
            }
            built.push((id, known.built));
        }
        self.delete_known(&state, &built)
    }

    /// Logs the deletion of ids, and hides their vectors. Each flag says whether the last build or
    /// merge stored the id. The caller holds the lock `gate`.
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

    /// Logs all records or none. After a failed sync, the next log gets the acknowledged records,
    /// and revokes all other records.
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
            tracing::warn!(index = %self.path.display(), "the log failed, and the next log cannot be started: {error}");
        }
        appended.map(drop)
    }

    /// The next `count` consecutive ids, which no vector has ever had.
    pub(super) fn reserve_next(&self, count: u64) -> Result<(Vec<u64>, Reservation<'_>), Error> {
        let reserved = self.reserved.next(count, &self.next_id, LAST_ID);
        reserved.map_err(|first| {
            Error::call(
                "the next id",
                first,
                format!("{count} ids from this id on would exceed the largest id, {LAST_ID}"),
                "Give the ids",
            )
        })
    }

    #[cfg(test)]
    pub(in crate::update) fn reserve<'a>(&'a self, ids: &'a [u64]) -> Reservation<'a> {
        self.reserved.all(ids, &crate::progress::Silent).unwrap()
    }

    fn check(&self, vectors: &dyn VectorSource) -> Result<(), Error> {
        let index = self.index();
        index.check_shape_of(vectors, "vectors")?;
        let mut rows = Vec::new();
        for first in (0..vectors.rows()).step_by(BATCH) {
            let count = BATCH.min(vectors.rows() - first);
            rows.resize(count * vectors.row_bytes(), 0);
            vectors.read(first, &mut rows)?;
            check_rows(vectors, index.metric(), first, &rows)?;
        }
        Ok(())
    }

    /// Fails if [`insert`](LiveIndex::insert) would refuse all vectors of this shape, so that a
    /// caller can check the shape before it makes rows.
    ///
    /// # Errors
    /// The dimension or the element type differs from the index, or the index takes no more
    /// changes.
    pub fn check_shape(&self, element: Element, dim: usize) -> Result<(), Error> {
        self.health.check()?;
        self.check(&NoRows::new(element, dim))
    }

    /// Before an insert of `rows` rows into the graph on storage, replaces each file with hard
    /// links by a copy.
    pub(super) fn own_files_for(&self, rows: usize, progress: &dyn Progress) -> Result<(), Error> {
        match self.many_of(rows) {
            0 => self.own_files(progress),
            _ => Ok(()),
        }
    }

    /// Logs and inserts rows whose ids are reserved. The error has the number of inserted rows.
    fn put(
        &self,
        vectors: &dyn VectorSource,
        attributes: Option<&dyn RowSource>,
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let total = ids.len();
        // The number of rows that wait until a merge inserts them together.
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
            // If a merge of the waiting rows failed, the files with hard links are not replaced
            // yet.
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
            // If waiting vectors are moved to storage, the memory may suffice for the batch.
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
                        // The merge reports its own stages to `progress`.
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
        // This call checks for drift. If the inserted vectors have drifted, later searches examine
        // more candidates.
        self.look_if_many_came();
        Ok(())
    }

    /// Logs and inserts the rows of `ids` from row `first` on, fewer if attributes are long.
    /// Returns their number. If the call fails, no row is inserted.
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
        // The caller may have changed the vectors since all rows were checked.
        check_rows(vectors, self.index().metric(), first, rows)?;
        // No merge may begin between the log record and the change of the state.
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

/// Makes a logged vector visible in memory. `built` has the ids that the last build or merge
/// stored.
fn place(state: &State, record: &LogRecord<'_>, built: &HashSet<u64>) {
    let id = record.id();
    let row = record.row().map(RowBytes::from);
    match *record {
        LogRecord::Replace { vector, .. } => state.replace(id, vector, row, built.contains(&id)),
        LogRecord::Insert { vector, .. } => _ = state.fresh().insert(id, vector, row),
        LogRecord::Row { .. } => {}
        LogRecord::Delete { .. } => state.remove(id, built.contains(&id)),
    }
}

pub(super) fn no_such_id(id: u64) -> Error {
    let reason = "the index has no vector with this id";
    Error::call("id", id, reason, "Give an id in the index")
}

pub(super) fn check_ids(ids: &[u64], rows: usize) -> Result<(), Error> {
    if ids.len() != rows {
        let reason = format!("there are {rows} rows, and each has one id");
        let remedy = "Give one id for each row";
        return Err(Error::call("number of ids", ids.len(), reason, remedy));
    }
    let mut seen = HashSet::with_capacity(ids.len());
    for &id in ids {
        if id > LAST_ID {
            let reason = "this number stands for a missing answer in results";
            let remedy = format!("Give an id of at most {LAST_ID}");
            return Err(Error::call("id", id, reason, remedy));
        }
        if !seen.insert(id) {
            return Err(twice(id));
        }
    }
    Ok(())
}
