//! Writes all live vectors of an index to files that other programs can read. Ids, attributes and
//! payloads are written as well.
//!
//! ```text
//!   one read timestamp ─> vectors in memory ──────────────┐
//!                      └> nodes, some thousands at a time ├─> rows.fbin  rows.ids  rows.jsonl
//!                         in the order of storage ────────┘   rows.rs    beside.rs
//!                                                             row n of each file: one vector
//! ```
//!
//! **Which vectors.** The export has all vectors that are live at one read timestamp, bit for bit.
//! Changes by this process may continue, because the index keeps the version of the timestamp. If
//! another process changes the index, pages may be gone, and the export fails with
//! [`Error::Outdated`]; a [snapshot](crate::snapshot) can be exported in any case.
//!
//! **Their order** is the order of storage, so each page is read once. If clusters have copies of
//! vectors, the order is arbitrary.
//!
//! **Memory.** The export has some thousands of vectors in memory at a time, and the ids of the
//! vectors that are only in memory. If clusters have copies of vectors, it also has a bit for each
//! vector.

mod beside;
mod rows;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use self::beside::{AttributesFile, IdsFile};
use self::rows::RowsFile;
use crate::bits::Bits;
use crate::index::Index;
use crate::progress::{Progress, Stage};
use crate::stores::columns::{Windows, decoded};
use crate::update::Standing;
use crate::{DataError, Error, LiveIndex, Row};

/// Bytes of vectors in memory at a time, without a memory budget.
const PIECE: usize = 4 << 20;
/// Bytes of vectors in memory at a time under a memory budget.
const SMALL_PIECE: usize = 1 << 19;

/// The number of attempts. An attempt fails if an id is replaced so often that its version at the
/// read timestamp is forgotten.
const TRIES: usize = 3;

/// The other files of an export, in addition to the file of vectors, and whether they may be
/// replaced.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// The file of ids. A `.npy` file is an array of uint64; another file has one decimal number on
    /// each line. With `None`, it is `X.ids.npy` beside the vectors `X.npy`, or `X.ids`.
    pub ids: Option<PathBuf>,
    /// The file of attributes and payloads, with one JSON object on each line. With `None`, it is
    /// `X.jsonl` beside the vectors.
    pub attributes: Option<PathBuf>,
    /// Whether the export may replace existing files.
    pub overwrite: bool,
}

/// The result of an export.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExportReport {
    /// The number of vectors that were written.
    pub vectors: u64,
    /// The number of elements of a vector.
    pub dimension: usize,
    /// The type of an element: `f32`, `f16`, `u8` or `i8`.
    pub element: String,
    /// The file of vectors.
    pub out: PathBuf,
    /// The file of ids, in the same order as the vectors.
    pub ids: PathBuf,
    /// The file of attributes and payloads, in the same order. `None` if there is no such file.
    pub attributes: Option<PathBuf>,
    /// The columns of this file that are times, in microseconds since 1970.
    pub times: Vec<String>,
    /// The key of the payload in this file. `None` if no vector has a payload.
    pub payload: Option<String>,
    /// The wall-clock time in seconds.
    pub seconds: f64,
}

struct Files {
    rows: RowsFile,
    ids: IdsFile,
    attributes: Option<AttributesFile>,
}

impl Index {
    /// Writes to the file `out` all vectors that were live when the index was opened. The extension
    /// of `out` is the format: `.npy`, or one of `.fbin .hbin .u8bin .i8bin` that fits the element
    /// type. Ids, attributes and payloads are written to other files ([`ExportOptions`]).
    ///
    /// The files get their names when all of them are complete, and an old file of vectors is
    /// removed first. So an interrupted export never leaves vectors with the ids of other vectors.
    ///
    /// # Errors
    /// - The extension of a name does not fit the element type, or a file of this name exists.
    /// - The disk is full, or `progress` interrupts.
    /// - [`Error::Outdated`]: another process has changed the index so much during the export that
    ///   pages are gone.
    pub fn export(
        &self,
        out: impl AsRef<Path>,
        options: &ExportOptions,
        progress: &dyn Progress,
    ) -> Result<ExportReport, Error> {
        let out = out.as_ref();
        let exported = self.with_standing(|standing| standing.export(out, options, progress));
        exported.map_err(|error| self.outdated(error))
    }
}

impl LiveIndex {
    /// Exports the vectors that are live now, while searches, changes and merges continue.
    ///
    /// # Errors
    /// The call fails for the reasons of [`Index::export`], and with [`Error::Restless`] if
    /// versions at the read timestamp are forgotten.
    pub fn export(
        &self,
        out: impl AsRef<Path>,
        options: &ExportOptions,
        progress: &dyn Progress,
    ) -> Result<ExportReport, Error> {
        let mut tries = 1;
        loop {
            let held = self.held();
            match held.standing().export(out.as_ref(), options, progress) {
                Err(Error::Restless { .. }) if tries < TRIES => tries += 1,
                exported => return exported,
            }
        }
    }
}

impl Standing<'_> {
    fn export(
        &self,
        out: &Path,
        options: &ExportOptions,
        progress: &dyn Progress,
    ) -> Result<ExportReport, Error> {
        let began = Instant::now();
        let index = self.index;
        let (dim, element) = (index.dim(), index.element());
        let ids = options.ids.clone().unwrap_or_else(|| beside::ids_of(out));
        let has_rows = !index.columns().is_empty();
        let attributes = match &options.attributes {
            Some(path) => Some(path.clone()),
            None => has_rows.then(|| out.with_extension("jsonl")),
        };
        let paths = [Some(out), Some(&*ids), attributes.as_deref()];
        refuse_taken(&paths.map(|path| path.unwrap_or(out)), options.overwrite)?;
        let schema = index.columns().schema();
        let mut files = Files {
            rows: RowsFile::create(out, dim, element)?,
            ids: IdsFile::create(&ids)?,
            attributes: (attributes.as_deref())
                .map(|path| AttributesFile::create(path, &schema))
                .transpose()?,
        };
        let stage = Stage::begin(progress, "exporting", self.live);
        self.write(&mut files, progress)?;
        drop(stage);
        let (vectors, live) = (files.rows.rows(), self.live);
        if vectors != live {
            return Err(Error::Restless {
                path: index.path().to_owned(),
                what: format!(
                    "only {vectors} of its {live} vectors were found, since ids were replaced again and again during the export; the unfinished files were removed"
                ),
                remedy: "Take a snapshot (`stratann snapshot`), and export the snapshot".into(),
            });
        }
        let (times, payload) = files.commit()?;
        Ok(ExportReport {
            vectors,
            dimension: dim,
            element: element.to_string(),
            out: out.to_owned(),
            ids,
            attributes,
            times,
            payload,
            seconds: began.elapsed().as_secs_f64(),
        })
    }

    fn write(&self, files: &mut Files, progress: &dyn Progress) -> Result<(), Error> {
        let fresh = self.write_fresh(files, progress)?;
        let index = self.index;
        let row_bytes = index.dim() * index.element().size();
        let mut windows = Windows::default();
        if index.stands_in_all_clusters() {
            // Any vector may be in any posting list. So each vector is written when it is first
            // found.
            let (mut met, mut failed) = (Bits::new(self.nodes.into()), None);
            let mut each = |node: u32, id: u64, vector: &[u8]| {
                if failed.is_none()
                    && self.counts(node, id)
                    && !fresh.contains(&id)
                    && met.add(node.into())
                {
                    failed = self
                        .put(files, (node, id, vector), &mut windows, progress)
                        .err();
                }
            };
            self.each_node(0, self.nodes, progress, &mut each)?;
            return failed.map_or(Ok(()), Err);
        }
        let piece = match index.memory().budget {
            None => PIECE,
            Some(_) => SMALL_PIECE,
        };
        let step = (piece / row_bytes.max(1)).clamp(64, 1 << 16) as u32;
        let (mut places, mut vectors) = (Vec::new(), Vec::new());
        let mut first = 0;
        while first < self.nodes {
            let end = self.nodes.min(first.saturating_add(step));
            places.clear();
            vectors.clear();
            let mut each = |node: u32, id: u64, vector: &[u8]| {
                if self.counts(node, id) && !fresh.contains(&id) {
                    places.push((node, id, vectors.len()));
                    vectors.extend_from_slice(vector);
                }
            };
            self.each_node(first, end, progress, &mut each)?;
            places.sort_unstable();
            for &(node, id, at) in &places {
                let vector = &vectors[at..at + row_bytes];
                self.put(files, (node, id, vector), &mut windows, progress)?;
            }
            if progress.interrupted() {
                return Err(Error::Stopped);
            }
            first = end;
        }
        Ok(())
    }

    fn write_fresh(
        &self,
        files: &mut Files,
        progress: &dyn Progress,
    ) -> Result<HashSet<u64>, Error> {
        let (mut written, mut failed) = (HashSet::new(), None);
        for (fresh, moment) in self.fresh() {
            fresh.for_each_at(moment, |id, vector, row| {
                if failed.is_none() && written.insert(id) {
                    let row = row.map(|row| decoded(&row)).transpose();
                    let put = row.and_then(|row| files.put(id, vector, row.as_ref()));
                    failed = put.err();
                    progress.advance(1);
                }
            });
        }
        failed.map_or(Ok(written), Err)
    }

    fn put(
        &self,
        files: &mut Files,
        (node, id, vector): (u32, u64, &[u8]),
        windows: &mut Windows,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let row = match &files.attributes {
            Some(_) => self.view.row_of(node, windows)?,
            None => None,
        };
        let row = row.map(|found| decoded(&found.row)).transpose()?;
        files.put(id, vector, row.as_ref())?;
        progress.advance(1);
        Ok(())
    }
}

impl Files {
    fn put(&mut self, id: u64, vector: &[u8], row: Option<&Row>) -> Result<(), Error> {
        self.rows.push(vector)?;
        self.ids.push(id)?;
        if let Some(attributes) = &mut self.attributes {
            attributes.push(row)?;
        }
        Ok(())
    }

    /// First removes the old file of vectors, so that no file of vectors is beside the ids of other
    /// vectors. Returns the columns of times, and the key of the payload.
    fn commit(mut self) -> Result<(Vec<String>, Option<String>), DataError> {
        // A full disk is noticed here, before any file is replaced.
        self.rows.complete()?;
        self.ids.complete(self.rows.rows())?;
        if let Some(attributes) = &mut self.attributes {
            attributes.complete()?;
        }
        self.rows.remove_old()?;
        let said = match self.attributes {
            Some(attributes) => attributes.commit()?,
            None => (Vec::new(), None),
        };
        self.ids.commit()?;
        self.rows.commit()?;
        Ok(said)
    }
}

fn refuse_taken(paths: &[&Path; 3], overwrite: bool) -> Result<(), Error> {
    for (at, path) in paths.iter().enumerate() {
        crate::bounds::path(path)?;
        // Without a file of attributes, the third path equals the first.
        if paths[..at].contains(path) && !(at == 2 && *path == paths[0]) {
            return Err(DataError::argument(
                "a file of the export",
                format!("{}, twice", path.display()),
                "vectors, ids and attributes need a file each",
                "Give different names",
            )
            .into());
        }
        if !overwrite && path.is_file() {
            return Err(Error::Exists {
                path: path.to_path_buf(),
                reason: "it is there already. Give another name, or ask to replace it (`--overwrite`, in Python `overwrite=True`)"
                    .into(),
            });
        }
    }
    Ok(())
}
