//! Sets attributes of vectors, together with vectors or alone, and reads attributes by id. A row
//! has the attributes and the payload of one vector.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use stratann_layout::LogRecord;
use stratann_layout::attributes::Row;

use super::changes::{BATCH, check_ids, no_such_id};
use super::{LiveIndex, Snapshot, State};
use crate::Error;
use crate::data::{Cleared, RowSource};
use crate::filter::{Checked, Filter, Schema};
use crate::index::Index;
use crate::progress::{Progress, Silent, Stage};
use crate::stores::columns::{Declared, RowBytes, Windows, decoded, encoded, row_charge};
use crate::update::reading::Reading;

/// The maximum number of vectors that [`LiveIndex::delete_matching`] deletes in one batch.
const SOME: usize = 1024;

/// The maximum number of look-ups of an id during concurrent changes. If changes interfere with all
/// of these look-ups, changes wait for one more look-up.
const TRIES: usize = 8;

/// Whether changes run or wait while a call reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meanwhile {
    Change,
    Wait,
}

/// The treatment of old attributes and payload that a new row does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    Go,
    Stay,
}

/// For the ids of one call: the nodes of vectors on storage that have no row of attributes.
#[derive(Default)]
struct Places {
    /// The checkpoint to which `nodes` refers. A merge changes the node of an id.
    of: Option<Arc<Index>>,
    nodes: HashMap<u64, u32>,
}

impl Places {
    fn add(&self, index: &Arc<Index>, unknown: &mut Vec<u64>, nodes: &mut HashMap<u64, u32>) {
        if self.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, index)) {
            unknown.retain(|id| match self.nodes.get(id) {
                Some(&node) => nodes.insert(*id, node).is_some(),
                None => true,
            });
        }
    }
}

/// The approximate size of a batch of rows, in bytes. The memory for a batch is several times as
/// large.
const READ_AT_ONCE: usize = 1 << 20;

/// Reads `count` rows of a call from row `first` on, or fewer if rows are long.
pub(super) fn read_rows(
    attributes: Option<&dyn RowSource>,
    first: usize,
    count: usize,
) -> Result<Vec<Row>, Error> {
    let Some(attributes) = attributes else {
        return Ok(Vec::new());
    };
    let (mut rows, mut bytes) = (Vec::with_capacity(count), 0);
    for at in first..first + count {
        let row = attributes.row(at)?;
        bytes += encoded(&row)?.len();
        rows.push(row);
        if bytes >= READ_AT_ONCE {
            break;
        }
    }
    Ok(rows)
}

/// Encodes rows for the log. The index gets the new columns of the rows only after
/// [`Declared::keep`].
pub(super) fn declared<'a>(
    state: &'a State,
    rows: &mut [Row],
) -> Result<(Declared<'a>, Vec<RowBytes>), Error> {
    let columns = state.index.columns().declare(rows)?;
    let rows = rows.iter().map(|row| Ok(encoded(row)?.into()));
    Ok((columns, rows.collect::<Result<_, Error>>()?))
}

impl State {
    fn set_row(&self, id: u64, node: Option<u32>, row: RowBytes) {
        let (newest, frozen) = match &self.overlay.fresh[..] {
            [frozen, newest] => (newest, Some(frozen)),
            _ => (self.fresh(), None),
        };
        if newest.set_row(id, row.clone()) {
            return;
        }
        if self.since.is_some() {
            // A merge may already have read the old row.
            self.rows_since.lock().insert(id, row.clone());
        }
        if frozen.is_some_and(|frozen| frozen.set_row(id, row.clone())) {
            return;
        }
        if let Some(node) = node {
            self.index.columns().put(node, id, row);
        }
    }
}

/// Warnings about new columns with names similar to the names of existing columns.
#[derive(Default)]
pub(super) struct Misspelt(Vec<String>);

impl Misspelt {
    fn warn(&self, progress: &dyn Progress) {
        for warning in &self.0 {
            progress.warn(warning);
        }
    }

    pub(super) fn warn_after<T>(&self, written: &Result<T, Error>, progress: &dyn Progress) {
        if matches!(written, Ok(_) | Err(Error::Partly { .. })) {
            self.warn(progress);
        }
    }
}

impl LiveIndex {
    /// The columns of the index: their names and types.
    pub fn schema(&self) -> Schema {
        self.state().index.columns().schema()
    }

    /// Takes a snapshot while no change runs, so that a vector that moves from memory to storage is
    /// found exactly once.
    pub(in crate::update) fn reading<T>(
        &self,
        work: impl FnOnce(&Reading<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.reading_at(Meanwhile::Change, |_, reading| work(reading))
    }

    /// Does the same, and also gives `work` the snapshot.
    pub(crate) fn reading_at<T>(
        &self,
        meanwhile: Meanwhile,
        work: impl FnOnce(&Snapshot, &Reading<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let gate = self.gate.write();
        let state = self.state();
        let mut snapshot = Snapshot::of(&state);
        let inserted = state.overlay.inserted.read().clone();
        // The set of inserted ids has no read timestamp, so this call copies the set.
        snapshot.overlay.inserted = Arc::new(RwLock::new(inserted));
        let (overlay, moment) = (&snapshot.overlay, snapshot.moment);
        let reading = Reading::new(&snapshot.index, overlay, moment, Some(&state.ids));
        let _gate = match meanwhile {
            Meanwhile::Wait => Some(gate),
            Meanwhile::Change => {
                drop(gate);
                None
            }
        };
        work(&snapshot, &reading)
    }

    /// Calls `read` for each id at the current timestamp. Usually, the call does not wait for
    /// changes.
    pub(super) fn by_id<T>(
        &self,
        ids: &[u64],
        mut read: impl FnMut(&Reading<'_>, u64, &mut Windows) -> Result<Option<T>, Error>,
    ) -> Result<Vec<Option<T>>, Error> {
        let mut found: Vec<Option<T>> = ids.iter().map(|_| None).collect();
        let mut look = |reading: &Reading<'_>| {
            let (mut windows, mut all) = (Windows::default(), true);
            for (&id, found) in ids.iter().zip(&mut found) {
                if found.is_none() {
                    *found = read(reading, id, &mut windows)?;
                    all &= found.is_some();
                }
            }
            Ok(all)
        };
        for _ in 0..TRIES {
            let (state, moment) = self.at_one_moment();
            let ids = Some(&state.ids);
            if look(&Reading::new(&state.index, &state.overlay, moment, ids))? {
                return Ok(found);
            }
            // A look-up may miss a vector that a change has moved meanwhile.
            let (now, last) = self.at_one_moment();
            if Arc::ptr_eq(&now, &state) && last == moment {
                return Ok(found);
            }
        }
        self.reading(look)?;
        Ok(found)
    }

    /// Reads the attributes of vectors by id. The result of an id that is not in the index is
    /// `None`. The call sees the changes of all calls that have returned.
    ///
    /// # Errors
    /// The columns or the table of ids cannot be read.
    pub fn attributes(&self, ids: &[u64]) -> Result<Vec<Option<Row>>, Error> {
        self.by_id(ids, |reading, id, windows| {
            let row = reading.row(id, windows)?;
            row.map(|row| decoded(&row)).transpose()
        })
    }

    /// Checks a filter, like [`Index::check_filter`](crate::Index::check_filter).
    ///
    /// # Errors
    /// Fails as `Index::check_filter` does.
    pub fn check_filter(&self, filter: &Filter) -> Result<(), Error> {
        filter.check(&self.schema()).map(drop)
    }

    /// Counts the vectors that match a filter at one read timestamp. The call first waits for
    /// running changes.
    ///
    /// # Errors
    /// The filter does not fit the columns, or the columns cannot be read.
    pub fn count(&self, filter: &Filter) -> Result<u64, Error> {
        self.reading(|reading| reading.count(filter))
    }

    /// Returns the first `limit` vectors with ids above `after` that match a filter, with
    /// attributes, in ascending order of ids. All vectors are read at one timestamp. The call first
    /// waits for running changes.
    ///
    /// # Errors
    /// Fails as [`count`](LiveIndex::count) does.
    pub fn scroll(
        &self,
        filter: &Filter,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Row)>, Error> {
        self.reading(|reading| reading.scroll(filter, after, limit))
    }

    /// Returns the first `limit` ids above `after` that match a filter, in ascending order, at one
    /// timestamp.
    ///
    /// # Errors
    /// Fails as [`count`](LiveIndex::count) does.
    pub fn ids_matching(
        &self,
        filter: &Filter,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<u64>, Error> {
        self.reading(|reading| reading.ids(&reading.matched(filter)?, after, limit))
    }

    /// Deletes the vectors that match a filter, in batches, and returns their number. A vector that
    /// no longer matches when its batch is deleted stays. A vector that begins to match during the
    /// call may stay.
    ///
    /// # Errors
    /// Fails as [`count`](LiveIndex::count) does, or if the log cannot be written. The error has
    /// the number of deleted vectors.
    pub fn delete_matching(&self, filter: &Filter) -> Result<u64, Error> {
        self.delete_matching_observed(filter, &Silent)
    }

    /// Deletes vectors like [`delete_matching`](LiveIndex::delete_matching). `progress` may
    /// interrupt the call between two batches.
    ///
    /// # Errors
    /// Fails as `delete_matching` does. If `progress` interrupts, the error is
    /// [`Error::Interrupted`] before the first deletion, and later [`Error::PartlyDeleted`].
    pub fn delete_matching_observed(
        &self,
        filter: &Filter,
        progress: &dyn Progress,
    ) -> Result<u64, Error> {
        let (filter, mut left) = self.reading(|reading| {
            let matched = reading.matched(filter)?;
            let ids = reading.ids(&matched, None, usize::MAX)?;
            Ok((matched.into_filter(), ids))
        })?;
        let (matched, mut deleted) = (left.len() as u64, 0);
        let _stage = Stage::begin(progress, "deleting", matched);
        // Ids that other calls were changing are tried last.
        let mut changing = Vec::new();
        while !left.is_empty() || !changing.is_empty() {
            if left.is_empty() {
                std::mem::swap(&mut left, &mut changing);
            }
            let some = left.split_off(left.len().saturating_sub(SOME));
            let gone = match progress.interrupted() {
                true => Err(Error::Interrupted),
                false => self.reserved.free(&some, progress).and_then(|reservation| {
                    let gone = self.delete_if(reservation.ids(), &filter)?;
                    Ok((reservation, gone))
                }),
            };
            let (reservation, gone) = gone.map_err(|error| match deleted {
                0 => error,
                deleted => Error::PartlyDeleted {
                    deleted,
                    matched,
                    source: Box::new(stopped(error)),
                },
            })?;
            deleted += gone;
            progress.advance(reservation.ids().len() as u64);
            // The ids of `reservation` are in the order of `some`.
            let mut taken = reservation.ids().iter().peekable();
            changing.extend(some.iter().filter(|id| taken.next_if_eq(id).is_none()));
        }
        Ok(deleted)
    }

    /// Deletes those reserved ids whose vectors still match.
    fn delete_if(&self, ids: &[u64], filter: &Checked) -> Result<u64, Error> {
        let _gate = self.gate.read();
        self.health.check()?;
        let state = self.state();
        let overlay = &state.overlay;
        let reading = Reading::new(&state.index, overlay, overlay.now(), Some(&state.ids));
        let (mut windows, mut gone) = (Windows::default(), Vec::new());
        for &id in ids {
            if let Some(row) = reading.row(id, &mut windows)?
                && filter.matches(&decoded(&row)?)
            {
                gone.push((id, state.known(id)?.built));
            }
        }
        if !gone.is_empty() {
            self.delete_known(&state, &gone)?;
        }
        Ok(gone.len() as u64)
    }

    /// Checks all rows before the first row is inserted.
    pub(super) fn check_attributes(
        &self,
        attributes: Option<&dyn RowSource>,
        rows: usize,
    ) -> Result<Misspelt, Error> {
        let Some(attributes) = attributes else {
            return Ok(Misspelt::default());
        };
        let mut schema = self.schema();
        let columns = schema.len();
        let name = attributes.name();
        if attributes.rows() != rows {
            return Err(Error::call(
                format!("number of rows of {name}"),
                attributes.rows(),
                format!("the call has {rows} ids or vectors"),
                "Give one row for each id or vector",
            ));
        }
        for at in 0..rows {
            let mut row = attributes.row(at)?;
            let taken = schema.take(&mut row).and_then(|()| encoded(&row));
            taken.map_err(|error| error.within(&format!("row {at} of {name}")))?;
        }
        if schema.len() == columns {
            return Ok(Misspelt::default());
        }
        let before = self.schema();
        Ok(Misspelt(
            before.misspelt(schema.iter().map(|(name, _)| name)),
        ))
    }

    /// Replaces the rows of attributes of vectors, as durably as inserts. To find a vector on
    /// storage without a row, the call reads the file of ids, or all records of the index once.
    ///
    /// # Errors
    /// If an id is not in the index, or is twice in `ids`, no row is changed. The call also fails
    /// for rows that [`insert_rows`](LiveIndex::insert_rows) refuses, and if the log cannot be
    /// written. The error has the number of rows set.
    ///
    /// If the name of a new column is one edit from an older name, `progress` gets a warning.
    pub fn set_attributes(
        &self,
        ids: &[u64],
        rows: &dyn RowSource,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        self.set_rows(ids, rows, Others::Go, progress)
    }

    /// Sets rows like [`set_attributes`](LiveIndex::set_attributes), but keeps attributes and
    /// payload that the new row does not name. An attribute that is named without a value is
    /// removed ([`RowSource::cleared`]). Concurrent calls lose no change.
    ///
    /// # Errors
    /// Fails as `set_attributes` does, or if a row is too long together with the kept attributes
    /// and payload. In this case, the rows before that row are set.
    pub fn update_attributes(
        &self,
        ids: &[u64],
        rows: &dyn RowSource,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        self.set_rows(ids, rows, Others::Stay, progress)
    }

    fn set_rows(
        &self,
        ids: &[u64],
        rows: &dyn RowSource,
        others: Others,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        self.health.check()?;
        check_ids(ids, rows.rows())?;
        let misspelt = self.check_attributes(Some(rows), ids.len())?;
        let _reservation = self.reserved.all(ids, progress)?;
        let there = self.by_id(ids, |reading, id, windows| {
            Ok(reading.contains(id, windows)?.then_some(()))
        })?;
        if let Some((id, _)) = ids.iter().zip(there).find(|(_, there)| there.is_none()) {
            return Err(no_such_id(*id));
        }
        let mut places = Places::default();
        let _stage = Stage::begin(progress, "setting attributes", ids.len() as u64);
        let total = ids.len();
        let mut first = 0;
        while first < total {
            let mut set = match progress.interrupted() {
                true => Err(Error::Interrupted),
                false => self
                    .checkpoint_if_full(progress)
                    .and_then(|()| self.set_some(ids, first, (rows, others), &mut places)),
            };
            // If waiting rows are moved to storage, the memory may suffice for the batch.
            if matches!(set, Err(Error::Memory { .. })) && self.make_room(progress) {
                set = self.set_some(ids, first, (rows, others), &mut places);
            }
            let set = set.map_err(|error| match first {
                0 => error,
                done => Error::PartlySet {
                    done,
                    total,
                    source: Box::new(stopped(error)),
                },
            })?;
            if self.are_rows_due(&self.state()) {
                self.own_files_for_rows(progress);
            }
            self.checkpoint_if_due(progress);
            progress.advance(set as u64);
            first += set;
        }
        misspelt.warn(progress);
        Ok(())
    }

    /// Logs and sets up to [`BATCH`] rows from row `first` on, fewer if rows are long. Returns
    /// their number. If the call fails, no row is set.
    fn set_some(
        &self,
        all: &[u64],
        first: usize,
        (source, others): (&dyn RowSource, Others),
        places: &mut Places,
    ) -> Result<usize, Error> {
        let ids = &all[first..all.len().min(first + BATCH)];
        let mut rows = read_rows(Some(source), first, ids.len())?;
        let ids = &ids[..rows.len()];
        let cleared = (first..first + ids.len()).map(|at| source.cleared(at));
        let cleared: Option<Vec<Cleared>> = match others {
            Others::Go => None,
            Others::Stay => Some(cleared.collect::<Result<_, _>>()?),
        };
        let cleared = cleared.as_deref();
        for _ in 0..TRIES {
            {
                let _gate = self.gate.read();
                let state = self.state();
                let (mut nodes, mut unknown) = stored_nodes(&state, ids)?;
                places.add(&state.index, &mut unknown, &mut nodes);
                if unknown.is_empty() {
                    return self.log_and_set(&state, ids, (&mut rows, cleared), &nodes);
                }
            }
            // This thread does not hold the lock `gate` here. If a merge or a move of vectors to
            // storage finishes meanwhile, the loop tries again.
            let snapshot = self.at_present();
            places.nodes = snapshot.nodes(&all[first..], &Silent)?;
            places.of = Some(snapshot.index);
        }
        let _gate = self.gate.write();
        let snapshot = self.at_present();
        let state = self.state();
        if let Some(direct) = &state.direct {
            direct.check()?;
            direct.settle();
            direct.check()?;
        }
        let (mut nodes, unknown) = stored_nodes(&state, ids)?;
        nodes.extend(snapshot.nodes(&unknown, &Silent)?);
        if let Some(id) = unknown.iter().find(|id| !nodes.contains_key(id)) {
            return Err(Error::Damaged {
                file: self.volume.name(),
                what: format!(
                    "no vector has id {id}, although the index has this id (`stratann verify` reports more)"
                ),
            });
        }
        self.log_and_set(&state, ids, (&mut rows, cleared), &nodes)
    }

    /// The caller holds the lock `gate`. If `cleared` is given, a vector keeps the attributes and
    /// payload that its new row does not name.
    fn log_and_set(
        &self,
        state: &State,
        ids: &[u64],
        (rows, cleared): (&mut [Row], Option<&[Cleared]>),
        nodes: &HashMap<u64, u32>,
    ) -> Result<usize, Error> {
        self.health.check()?;
        let whole = match cleared {
            None => rows.len(),
            Some(cleared) => complete(state, ids, rows, cleared)?,
        };
        let (ids, rows) = (&ids[..whole], &mut rows[..whole]);
        let (columns, rows) = declared(state, rows)?;
        let bytes = rows.iter().map(|row| row_charge(row)).sum();
        self.check_room(state, 0, 0, bytes)?;
        let record = |(&id, row)| LogRecord::Row { id, row };
        let records: Vec<_> = ids
            .iter()
            .zip(rows.iter().map(|row| &**row))
            .map(record)
            .collect();
        self.append(&records)?;
        columns.keep();
        self.charge(0, 0, bytes);
        for (&id, row) in ids.iter().zip(&rows) {
            state.set_row(id, nodes.get(&id).copied(), row.clone());
        }
        Ok(ids.len())
    }
}

/// Adds to each new row the old attributes and payload that the new row does not name. Stops at
/// about [`READ_AT_ONCE`] bytes, or before a row that would be too long. Returns the number of
/// completed rows, at least 1.
fn complete(
    state: &State,
    ids: &[u64],
    rows: &mut [Row],
    cleared: &[Cleared],
) -> Result<usize, Error> {
    let overlay = &state.overlay;
    let reading = Reading::new(&state.index, overlay, overlay.now(), Some(&state.ids));
    let (mut windows, mut bytes) = (Windows::default(), 0);
    for (at, ((&id, row), cleared)) in ids.iter().zip(&mut *rows).zip(cleared).enumerate() {
        if bytes >= READ_AT_ONCE {
            return Ok(at);
        }
        if let Some(before) = reading.row(id, &mut windows)? {
            let mut before = decoded(&before)?;
            for name in &cleared.attributes {
                before.attributes.remove(name);
            }
            before.attributes.append(&mut row.attributes);
            before.payload = match cleared.payload {
                true => None,
                false => row.payload.take().or(before.payload),
            };
            *row = before;
        }
        match encoded(row) {
            Ok(whole) => bytes += whole.len(),
            // The earlier rows are set first. The next call returns the error.
            Err(_) if at > 0 => return Ok(at),
            Err(error) => {
                let whole = format!("the row of id {id}, with its earlier attributes");
                return Err(error.within(&whole));
            }
        }
    }
    Ok(rows.len())
}

/// [`Error::Interrupted`] would say that nothing was changed, but some rows may be set.
fn stopped(error: Error) -> Error {
    match error {
        Error::Interrupted => Error::Stopped,
        error => error,
    }
}

/// Of the ids on storage: the nodes of vectors with rows, and the ids of vectors without rows.
fn stored_nodes(state: &State, ids: &[u64]) -> Result<(HashMap<u64, u32>, Vec<u64>), Error> {
    let mut windows = Windows::default();
    let (mut nodes, mut unknown) = (HashMap::new(), Vec::new());
    for &id in ids {
        let mut fresh = state.overlay.fresh.iter();
        if fresh.any(|fresh| fresh.contains(id)) {
            continue;
        }
        match state.index.columns().node_of(id, &mut windows)? {
            Some(node) => _ = nodes.insert(id, node),
            None => unknown.push(id),
        }
    }
    Ok((nodes, unknown))
}
