//! Inserts that can be resumed after an interruption. A resumed insert inserts each missing row,
//! and no row twice.
//!
//! - **Given ids**: the index keeps no record. All rows up to the last row whose id is in the index
//!   count as inserted.
//! - **Automatic ids**: before the first row is logged, the file INSERTS durably records the insert
//!   and its first id. Row n has the id first + n, also after a resume. The record is marked as
//!   done when all rows are durable, and stays until the next insert begins.
//!
//! Rows are logged in order, so the inserted rows are always the first rows. Automatic ids stay
//! reserved until the insert is done, and no other call can insert the id of a missing row.
//!
//! Other calls may delete rows before the resume. With automatic ids, such rows stay deleted, but
//! if the last inserted rows were deleted, the resume inserts them again. With given ids, a resume
//! fails if a row before the last inserted row is missing.

use stratann_layout::inserts::BegunInsert;
use stratann_vector::Element;

use super::LiveIndex;
use super::changes::check_ids;
use crate::data::{DataError, RowSource, VectorSource};
use crate::durable::inserts;
use crate::progress::{Progress, Silent};
use crate::stores::columns::encoded;
use crate::{Error, ErrorKind};

/// The maximum number of evenly spaced rows that identify an insert.
const TOLD_BY: usize = 1_024;

/// The maximum number of rows that a resume compares with vectors of the index.
const COMPARED: usize = 64;

/// The number of ids that are looked up between two checks for an interruption.
const LOOKED_FOR: usize = 1_024;

/// The treatment of an interrupted earlier insert of the same rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOff {
    /// With automatic ids, the call fails, since some rows would be inserted twice. With given ids,
    /// the call inserts all rows, and fails if an id is in the index.
    Refuse,
    /// Only the missing rows are inserted.
    Resume,
    /// All rows are inserted, and the interrupted insert is forgotten.
    Forget,
}

/// An insert with automatic ids that was interrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutOffInsert {
    /// The name of the source of the vectors: the absolute path of a file, or another name.
    pub file: String,
    /// The number of rows of the insert, including missing rows.
    pub rows: u64,
    /// The id of the first row. Each later row has the next id.
    pub first_id: u64,
    /// Whether the rows have attributes or payloads.
    pub attributes: bool,
}

/// The result of a resumable insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// The number of rows that were inserted before this call.
    pub before: usize,
    /// The number of rows that this call inserted.
    pub inserted: usize,
    /// The id of the first row if ids are automatic, otherwise `None`.
    pub first_id: Option<u64>,
}

struct Rest<S> {
    source: S,
    first: usize,
}

impl VectorSource for Rest<&dyn VectorSource> {
    fn rows(&self) -> usize {
        self.source.rows() - self.first
    }

    fn dim(&self) -> usize {
        self.source.dim()
    }

    fn element(&self) -> Element {
        self.source.element()
    }

    fn name(&self) -> &str {
        self.source.name()
    }

    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        self.source.read(self.first + first, out)
    }

    fn has_random_access(&self) -> bool {
        self.source.has_random_access()
    }
}

impl RowSource for Rest<&dyn RowSource> {
    fn rows(&self) -> usize {
        self.source.rows() - self.first
    }

    fn name(&self) -> &str {
        self.source.name()
    }

    fn row(&self, at: usize) -> Result<crate::Row, DataError> {
        self.source.row(self.first + at)
    }
}

pub(super) fn behind(inserts: &[BegunInsert]) -> u64 {
    let open = inserts.iter().filter(|insert| !insert.done);
    let ends = open.map(|insert| insert.first_id + insert.rows);
    ends.max().unwrap_or(0)
}

impl LiveIndex {
    /// Inserts vectors like [`insert_rows`](LiveIndex::insert_rows), durably, and with attributes
    /// if given. After an interruption at any time, the same call with [`CutOff::Resume`] inserts
    /// the missing rows.
    ///
    /// # Errors
    /// Fails as [`insert_rows`](LiveIndex::insert_rows) does, and with [`Error::CutOff`] if an
    /// earlier insert of the same rows was interrupted. A resume fails if the index knows no insert
    /// of these rows, or has other vectors under the ids of the rows.
    pub fn insert_resumable(
        &self,
        vectors: &dyn VectorSource,
        attributes: Option<&dyn RowSource>,
        ids: Option<&[u64]>,
        cut_off: CutOff,
        progress: &dyn Progress,
    ) -> Result<Resumed, Error> {
        let misspelt = self.check_all(vectors, attributes)?;
        let put = self.insert_or_resume((vectors, attributes), ids, cut_off, progress);
        misspelt.warn_after(&put, progress);
        put
    }

    fn insert_or_resume(
        &self,
        source: (&dyn VectorSource, Option<&dyn RowSource>),
        ids: Option<&[u64]>,
        cut_off: CutOff,
        progress: &dyn Progress,
    ) -> Result<Resumed, Error> {
        let (vectors, attributes) = source;
        let Some(ids) = ids else {
            return self.insert_counted(source, cut_off, progress);
        };
        check_ids(ids, vectors.rows())?;
        let rest_of = self.check_unclaimed(ids, vectors, attributes.is_some())?;
        let before = match cut_off {
            CutOff::Resume => {
                let before = self.in_before(vectors, ids, progress)?;
                self.check_all_in(vectors, &ids[..before], progress)?;
                before
            }
            CutOff::Refuse | CutOff::Forget => 0,
        };
        self.insert_behind(source, ids, before, progress)?;
        match rest_of {
            Some(insert) => self.end(&insert)?,
            None => self.flush()?,
        }
        Ok(Resumed {
            before,
            inserted: ids.len() - before,
            first_id: None,
        })
    }

    /// The inserts with automatic ids that were interrupted or are running.
    pub fn cut_off_inserts(&self) -> Vec<CutOffInsert> {
        let begun = self.begun.lock();
        let open = begun.iter().filter(|insert| !insert.done);
        let named = |insert: &BegunInsert| CutOffInsert {
            file: insert.file.clone(),
            rows: insert.rows,
            first_id: insert.first_id,
            attributes: insert.beside.is_some(),
        };
        open.map(named).collect()
    }

    /// Forgets the interrupted inserts of a `file` of
    /// [`cut_off_inserts`](LiveIndex::cut_off_inserts), and returns them. The ids of missing rows
    /// become free, and inserted rows stay. No insert of this file may be running.
    ///
    /// # Errors
    /// No insert with that name was interrupted. After a [`TierError`](stratann_tier::TierError),
    /// the file INSERTS may or may not have the inserts.
    pub fn forget_cut_off(&self, file: &str) -> Result<Vec<CutOffInsert>, Error> {
        let mut cut = self.cut_off_inserts();
        let names: Vec<&str> = cut.iter().map(|insert| &*insert.file).collect();
        let remedy = match names.is_empty() {
            true => "Leave this call out, since no insert was cut off in this index".to_owned(),
            false => format!("Give one of these: {}", names.join(", ")),
        };
        cut.retain(|insert| insert.file == file);
        if cut.is_empty() {
            return Err(Error::call(
                "the insert to forget",
                file,
                "no insert of this file was cut off",
                remedy,
            ));
        }
        let mut begun = self.begun.lock();
        let kept = begun
            .iter()
            .filter(|insert| insert.done || insert.file != file);
        let kept: Vec<BegunInsert> = kept.cloned().collect();
        inserts::write_fewer(&*self.volume, &kept)?;
        *begun = kept;
        Ok(cut)
    }

    /// Fails if `ids` has the id of a missing row of an unfinished insert, since it would be
    /// unknown which rows are inserted. If `ids` and `vectors` are exactly the missing rows of an
    /// insert, the call resumes this insert, and the result is this insert.
    pub(super) fn check_unclaimed(
        &self,
        ids: &[u64],
        vectors: &dyn VectorSource,
        attributes: bool,
    ) -> Result<Option<BegunInsert>, Error> {
        let open: Vec<BegunInsert> = {
            let begun = self.begun.lock();
            begun
                .iter()
                .filter(|insert| !insert.done)
                .cloned()
                .collect()
        };
        for insert in open {
            let of_it = insert.first_id..insert.first_id + insert.rows;
            for (row, id) in ids.iter().enumerate().filter(|(_, id)| of_it.contains(id)) {
                if self.contains(*id)? {
                    continue;
                }
                let is_alike = insert.beside.is_some() == attributes;
                if is_alike && self.are_the_rest(ids, vectors, &insert)? {
                    return Ok(Some(insert));
                }
                return Err(Error::call(
                    format!("ids: row {row}"),
                    id,
                    format!(
                        "an insert of {} was cut off or is still running, and it uses the ids from {} to {}",
                        insert.file,
                        of_it.start,
                        of_it.end - 1,
                    ),
                    format!(
                        "Resume it first (`stratann insert {index} FILE --resume`, with the file of its vectors and its options; in Python `insert(vectors, resume=True)`). Or give all missing rows, with their ids, attributes and payloads. Or forget it \
                         (`stratann insert {index} {file} --forget`; `forget_cut_off()`). Or give other ids",
                        file = insert.file,
                        index = self.path.display(),
                    ),
                ));
            }
        }
        Ok(None)
    }

    /// Whether `ids` and `vectors` are the last rows of an insert, in order, with all missing rows.
    fn are_the_rest(
        &self,
        ids: &[u64],
        vectors: &dyn VectorSource,
        insert: &BegunInsert,
    ) -> Result<bool, Error> {
        let of_it = insert.first_id..insert.first_id + insert.rows;
        let first = of_it.end.saturating_sub(ids.len() as u64);
        if first < of_it.start || !ids.iter().copied().eq(first..of_it.end) {
            return Ok(false);
        }
        let mut to_come = false;
        for &id in ids {
            let is_in = self.contains(id)?;
            if is_in && to_come {
                return Ok(false);
            }
            to_come |= !is_in;
        }
        let before = (first - of_it.start) as usize;
        let mut row = |at: usize, row: &mut [u8]| {
            if at >= before {
                vectors.read(at - before, row)?;
                return Ok(true);
            }
            let found = self.vectors(&[of_it.start + at as u64], &Silent)?;
            let found = found.vector(0).map(|found| row.copy_from_slice(found));
            Ok(found.is_some())
        };
        let content = content_of(insert.rows as usize, vectors, &mut row)?;
        Ok(content.is_some_and(|content| content == insert.content))
    }

    /// Syncs the log, and records that all rows of an insert are inserted.
    pub(super) fn end(&self, insert: &BegunInsert) -> Result<(), Error> {
        self.flush()?;
        self.note_end(insert, true);
        Ok(())
    }

    fn insert_counted(
        &self,
        (vectors, attributes): (&dyn VectorSource, Option<&dyn RowSource>),
        cut_off: CutOff,
        progress: &dyn Progress,
    ) -> Result<Resumed, Error> {
        let rows = vectors.rows();
        let content = content(vectors)?;
        let beside = attributes.map(beside).transpose()?;
        let known = {
            let begun = self.begun.lock();
            let known = begun.iter().find(|insert| insert.content == content);
            known.cloned()
        };
        if let Some(known) = &known
            && known.beside != beside
            && self.goes_on(known, vectors, cut_off, progress)?
        {
            let given = match (&known.beside, &beside) {
                (Some(_), None) => "not given",
                (None, _) => "given",
                _ => "different from before",
            };
            return Err(Error::call(
                format!("the set of attributes of the rows of {}", vectors.name()),
                given,
                format!(
                    "an earlier insert of these vectors gave {}; its rows have the ids from {} on, and some of them are in the index",
                    match known.beside {
                        Some(_) =>
                            "each row attributes or a payload (`--attributes`, `--payload`, `--times`)",
                        None => "no attributes",
                    },
                    known.first_id,
                ),
                "Give the same options as that insert to resume it",
            ));
        }
        let known = known.filter(|known| known.beside == beside);
        let (insert, before) = match (known, cut_off) {
            // All rows were inserted. If ids are missing now, other calls have deleted them.
            (Some(known), CutOff::Resume) if known.done => {
                self.check_same(vectors, &ids_of(&known), progress)?;
                return Ok(Resumed {
                    before: rows,
                    inserted: 0,
                    first_id: Some(known.first_id),
                });
            }
            (Some(known), CutOff::Resume) => {
                let before = self.in_before(vectors, &ids_of(&known), progress)?;
                (known, before)
            }
            (None, CutOff::Resume) => {
                return Err(Error::call(
                    format!("the insert of {}", vectors.name()),
                    "not known to this index",
                    "it never began, it was not recorded (in Python inserts of fewer than 1,000 vectors are not recorded), it ended and another insert has begun since, or the file INSERTS is damaged",
                    "Check which of its rows the index has (`stratann get`; in Python `index.ids()`), and insert the missing rows without resuming",
                ));
            }
            (Some(known), CutOff::Refuse) if !known.done => {
                match self.in_before(vectors, &ids_of(&known), progress)? {
                    0 => (known, 0),
                    done => {
                        return Err(Error::CutOff {
                            file: vectors.name().to_owned(),
                            done,
                            total: rows,
                            first_id: known.first_id,
                        });
                    }
                }
            }
            _ => {
                // If this call fails, no insert must be recorded as interrupted. So the call comes
                // before `begin`.
                self.own_files_for(rows, progress)?;
                (self.begin(vectors, content, beside)?, 0)
            }
        };
        let ids = ids_of(&insert);
        let put = self.insert_behind((vectors, attributes), &ids, before, progress);
        put.map_err(|error| match error {
            Error::Partly {
                done,
                total,
                source,
                ..
            } => Error::Partly {
                given: ids[..done]
                    .first()
                    .copied()
                    .zip(ids[..done].last().copied()),
                done,
                total,
                source,
            },
            error => {
                // After these errors, no row was inserted. After other errors, the log may have
                // some rows.
                if matches!(
                    error.kind(),
                    ErrorKind::Call | ErrorKind::Data | ErrorKind::Memory | ErrorKind::Interrupted
                ) {
                    self.note_end(&insert, false);
                }
                error
            }
        })?;
        self.end(&insert)?;
        Ok(Resumed {
            before,
            inserted: rows - before,
            first_id: Some(insert.first_id),
        })
    }

    /// Whether the call resumes `known`, or must fail because of `known`, as `cut_off` says.
    /// Otherwise the call inserts all rows.
    fn goes_on(
        &self,
        known: &BegunInsert,
        vectors: &dyn VectorSource,
        cut_off: CutOff,
        progress: &dyn Progress,
    ) -> Result<bool, Error> {
        Ok(match cut_off {
            CutOff::Resume => true,
            CutOff::Forget => false,
            CutOff::Refuse => !known.done && self.in_before(vectors, &ids_of(known), progress)? > 0,
        })
    }

    /// Reserves ids for an insert, and records the insert durably. The written file leaves out
    /// finished inserts.
    fn begin(
        &self,
        vectors: &dyn VectorSource,
        content: String,
        beside: Option<String>,
    ) -> Result<BegunInsert, Error> {
        let rows = vectors.rows() as u64;
        // Later automatic ids are larger, so the reservation can end here. If another call takes
        // one of these ids before the insert is recorded, this insert fails.
        let (ids, reservation) = self.reserve_next(rows)?;
        drop(reservation);
        let insert = BegunInsert {
            file: vectors.name().to_owned(),
            rows,
            first_id: ids.first().copied().unwrap_or(0),
            content,
            beside,
            done: false,
            replaced_by: None,
        };
        let mut begun = self.begun.lock();
        let others = begun.iter().filter(|other| !other.done);
        let others = others.filter(|other| other.content != insert.content);
        let now: Vec<BegunInsert> = others.chain([&insert]).cloned().collect();
        inserts::write(&*self.volume, &now)?;
        *begun = now;
        Ok(insert)
    }

    /// Records that an insert is done. If `done` is false, removes the record of the insert. If the
    /// file cannot be written, a resume finds the inserted rows.
    fn note_end(&self, insert: &BegunInsert, done: bool) {
        let mut begun = self.begun.lock();
        let mut now = begun.clone();
        match now.iter().position(|other| other == insert) {
            Some(at) if done => now[at].done = true,
            Some(at) => _ = now.remove(at),
            None => {}
        }
        let written = inserts::write(&*self.volume, &now).or_else(|error| {
            // The file can be removed even if the disk is full.
            match now.iter().all(|other| other.done) {
                true => inserts::forget(&*self.volume),
                false => Err(error),
            }
        });
        if let Err(error) = written {
            tracing::warn!(index = %self.path.display(), "cannot write to INSERTS that an insert ended: {error}");
        }
        *begun = now;
    }

    fn insert_behind(
        &self,
        (vectors, attributes): (&dyn VectorSource, Option<&dyn RowSource>),
        ids: &[u64],
        before: usize,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let total = vectors.rows();
        if before == total {
            return Ok(());
        }
        let rest = Rest {
            source: vectors,
            first: before,
        };
        let rows = attributes.map(|source| Rest {
            source,
            first: before,
        });
        let rows = rows.as_ref().map(|rows| rows as &dyn RowSource);
        let put = self.insert_checked(&rest, rows, Some(&ids[before..]), progress);
        put.map(drop).map_err(|error| match error {
            Error::Partly {
                done,
                given,
                source,
                ..
            } => Error::Partly {
                done: before + done,
                total,
                given,
                source,
            },
            error if before == 0 => error,
            error => Error::Partly {
                done: before,
                total,
                given: None,
                source: Box::new(match error {
                    // [`Error::Interrupted`] would say that nothing was changed.
                    Error::Interrupted => Error::Stopped,
                    error => error,
                }),
            },
        })
    }

    fn in_before(
        &self,
        vectors: &dyn VectorSource,
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<usize, Error> {
        let mut before = 0;
        'found: for (part, some) in ids.chunks(LOOKED_FOR).enumerate().rev() {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            for (at, &id) in some.iter().enumerate().rev() {
                if self.contains(id)? {
                    before = part * LOOKED_FOR + at + 1;
                    break 'found;
                }
            }
        }
        self.check_same(vectors, &ids[..before], progress)?;
        Ok(before)
    }

    /// Fails if an id is missing: its row was deleted, or the last ids belong to other vectors.
    fn check_all_in(
        &self,
        vectors: &dyn VectorSource,
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        for (part, some) in ids.chunks(LOOKED_FOR).enumerate() {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            for (at, &id) in some.iter().enumerate() {
                if self.contains(id)? {
                    continue;
                }
                let (row, last) = (part * LOOKED_FOR + at, ids.len() - 1);
                return Err(Error::call(
                    format!("the id of row {row} of {}", vectors.name()),
                    format!("{id}, which is not in the index, though the id of row {last} is"),
                    "some rows were deleted after the insert, or other calls inserted these ids",
                    "Insert all rows with `--upsert` (in Python `upsert`), which replaces rows that are in the index",
                ));
            }
        }
        Ok(())
    }

    /// Compares some rows with the vectors of their ids, and fails if all differ. Other calls may
    /// have replaced some vectors.
    fn check_same(
        &self,
        vectors: &dyn VectorSource,
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let mut row = vec![0; vectors.row_bytes()];
        let mut other = None;
        for at in spread(ids.len(), COMPARED) {
            let found = self.vectors(&ids[at..=at], progress)?;
            let Some(found) = found.vector(0) else {
                continue;
            };
            vectors.read(at, &mut row)?;
            if found == row {
                return Ok(());
            }
            other.get_or_insert(at);
        }
        match other {
            None => Ok(()),
            Some(at) => Err(Error::call(
                format!("row {at} of {}", vectors.name()),
                format!(
                    "another vector than the index has under its id, {}",
                    ids[at]
                ),
                "these are not the rows and ids of the insert that was cut off",
                "Give the file and ids of that insert",
            )),
        }
    }
}

fn ids_of(insert: &BegunInsert) -> Vec<u64> {
    (insert.first_id..insert.first_id + insert.rows).collect()
}

/// Up to `most` evenly spaced numbers from 0 to `count` - 1.
fn spread(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let number = count.min(most);
    (0..number).map(move |n| match number {
        1 => count - 1,
        _ => (n as u128 * (count as u128 - 1) / (number as u128 - 1)) as usize,
    })
}

/// A hash of the number, dimension and element type of the vectors, and of a sample of the vectors.
fn content(vectors: &dyn VectorSource) -> Result<String, Error> {
    let mut row = |at: usize, row: &mut [u8]| {
        vectors.read(at, row)?;
        Ok(true)
    };
    let content = content_of(vectors.rows(), vectors, &mut row)?;
    Ok(content.unwrap_or_default())
}

/// Reads the vector of a row, or returns `false` if the row has no vector.
type ReadRow<'a> = dyn FnMut(usize, &mut [u8]) -> Result<bool, Error> + 'a;

/// `None` if a sampled vector is missing.
fn content_of(
    rows: usize,
    like: &dyn VectorSource,
    read: &mut ReadRow<'_>,
) -> Result<Option<String>, Error> {
    let mut hasher = blake3::Hasher::new();
    let form = (rows, like.dim(), like.element());
    hasher.update(format!("{form:?}").as_bytes());
    let mut row = vec![0; like.row_bytes()];
    for at in spread(rows, TOLD_BY) {
        if !read(at, &mut row)? {
            return Ok(None);
        }
        hasher.update(&row);
    }
    Ok(Some(hasher.finalize().to_hex().to_string()))
}

fn beside(attributes: &dyn RowSource) -> Result<String, Error> {
    let mut hasher = blake3::Hasher::new();
    for at in spread(attributes.rows(), TOLD_BY) {
        let row = encoded(&attributes.row(at)?)?;
        hasher.update(&(row.len() as u64).to_le_bytes());
        hasher.update(&row);
    }
    Ok(hasher.finalize().to_hex().to_string())
}
