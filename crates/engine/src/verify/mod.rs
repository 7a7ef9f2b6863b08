//! `verify`: reads every byte of an index and reports everything that is wrong with it.
//!
//! ```text
//!   manifest.rs   the claims of the MANIFEST: files that the layout needs, segments, sums
//!   pages.rs      files of pages, piece by piece; checks that apply to any node
//!     ├─ records.rs   pages as their build left them, whatever their format, and their records
//!     ├─ placed.rs    pages after direct inserts: rewritten records, and pending ones
//!     ├─ added.rs     pages of vectors that direct inserts added, if vectors are stored apart
//!     └─ journal.rs   pages that direct inserts write in place, and the journal before them
//!   clusters.rs   files of a cluster index: posting lists, and vectors stored by themselves
//!   placement.rs  the table of nodes and pages after direct inserts, and the live ids
//!   streams.rs    byte strings, and the content of the tables among them
//!   ids.rs        external ids that occur twice
//!   columns.rs    attributes of vectors, and the nodes that have them
//!   id_file.rs    the file that maps external ids to nodes
//!   found.rs      whether searches find vectors inserted since the build: only a warning
//! ```
//!
//! The checks cover the manifest, and each file's length, header and block checksums. Pages must
//! hold the nodes that the directory and the chunks name. Each list and each vector must decode,
//! and each node's degree and links must be valid. External ids must be unique, and the sums in the
//! manifest correct. Files that no manifest names are reported.
//!
//! Nothing is changed. Damaged parts are skipped, so that one report names all damage. If a table
//! is damaged, the checksums of the data that needs it are still checked.
//!
//! Memory holds a megabyte of pages, the tables of one file, and the ids. These take two bits a
//! vector if they are row numbers, and a bit a vector more, with a megabyte, if there is a file of
//! ids. For an index that took direct inserts, the tables are 4 bytes a node and the pending
//! changes; these stay in memory. An index that changed since its build is opened after all of it
//! was read and is whole, if its codes take up to 64 MiB.

mod added;
mod clusters;
mod columns;
mod found;
mod id_file;
mod ids;
mod journal;
mod manifest;
mod pages;
mod placed;
mod placement;
mod records;
mod streams;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use stratann_layout::inserts::{FILE_NAME, Unreadable, decode};
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{FileEntry, FileKind, Form, IndexKind, LogShape, Manifest};
use stratann_tier::{TierError, Volume, ask_for_memory};
use stratann_vector::first_invalid;

use self::id_file::IdFile;
use self::ids::Ids;
use self::manifest::Sums;
pub(crate) use self::placement::added_wrong;
use self::placement::{Counts, Tables};
use crate::bits::Bits;
use crate::durable::{self, LogPosition, log_number};
use crate::places::{Places, Purpose};
use crate::progress::{Progress, Stage};
use crate::stores::columns::decoded;
use crate::stores::composition::{Records, Rewritten};
use crate::stores::{Composition, Placed};
use crate::{Error, ErrorKind, Layout, stored};

/// The most problems listed, except the first of each file. A file of damage only would fill the
/// terminal.
const MOST: usize = 100;

/// About how many bytes of memory it takes: pages, the tables of a file, and a megabyte of ids.
const MEMORY: u64 = 3 << 20;
/// The fewest vectors whose bits fit into a byte.
const NODES_A_BYTE: u64 = 2;

/// A fault of an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// The offset in the file, in bytes, if the fault has one place.
    pub offset: Option<u64>,
    /// The fault, and the remedy.
    pub what: String,
}

/// The data that `verify` read, and the problems it found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// The layout of the index; empty if its MANIFEST cannot be read.
    pub layout: String,
    /// Files that were read to their end.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Pages of nodes: of lists, of vectors, or of both. In the layout csr, pieces of rows; in a
    /// cluster index, its posting lists.
    pub pages: u64,
    /// Nodes whose lists were read; vectors of a cluster index.
    pub nodes: u64,
    /// Links of nodes; 0 in a cluster index, which has none.
    pub edges: u64,
    /// Records of the log, which are not in the checkpoint yet.
    pub log_records: u64,
    /// The problems: the first hundred, and the first of each file.
    pub problems: Vec<Problem>,
    /// How many problems there are.
    pub problem_count: u64,
    /// How many of them are no damage: files that could not be read, because this user may not, or
    /// the machine failed.
    pub unread: u64,
    /// If copies have problems: how many the index itself has. 0 means that only the copies are
    /// damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_problems: Option<u64>,
}

impl VerifyReport {
    /// Whether there is no problem.
    pub fn clean(&self) -> bool {
        self.problem_count == 0
    }

    fn problem(&mut self, file: &str, offset: Option<u64>, what: impl Into<String>) {
        self.problem_count += 1;
        let of_another = self.problems.last().is_none_or(|last| last.file != file);
        if self.problems.len() < MOST || of_another {
            self.problems.push(Problem {
                file: file.to_owned(),
                offset,
                what: what.into(),
            });
        }
    }

    fn refused(&mut self, file: &str, error: &Error) {
        let unread = match error {
            // Bytes are missing although the manifest names them.
            Error::Tier(error) => !matches!(
                error,
                TierError::Missing { .. } | TierError::Short { .. } | TierError::OutOfRange { .. }
            ),
            _ => false,
        };
        self.unread += u64::from(unread);
        let offset = match error {
            Error::Layout(error) => error.offset(),
            _ => None,
        };
        self.problem(file, offset, error.to_string());
    }
}

/// Checks everything in the index at `path`.
///
/// # Errors
/// There is no index, a file cannot be read at all, or the caller interrupted. Damage is no error:
/// the report has it.
pub fn verify(path: impl AsRef<Path>, progress: &dyn Progress) -> Result<VerifyReport, Error> {
    let home: Arc<dyn Volume> = Arc::new(stored::existing(path.as_ref())?);
    let report = verify_in(&*home, progress)?;
    let path = stored::home(path.as_ref())?;
    found::warn(&home, &path, &Places::default(), &report, progress)?;
    Ok(report)
}

/// Checks as [`verify`] does, but reads the copies at `places` for the roles that searches read
/// there, and the index itself for all others. Missing copies are made. If there is a problem, the
/// index itself is read as well, since a copy of a damaged file is damaged too.
///
/// # Errors
/// As for [`verify`]; a place in memory, which cannot be checked; a role that the index does not
/// have.
pub fn verify_placed(
    path: impl AsRef<Path>,
    places: &Places,
    progress: &dyn Progress,
) -> Result<VerifyReport, Error> {
    places.check_for_verify()?;
    let home: Arc<dyn Volume> = Arc::new(stored::existing(path.as_ref())?);
    let path = stored::home(path.as_ref())?;
    let volume = places.over(&home, &path, Purpose::Search, None)?;
    let mut report = verify_in(&*volume, progress)?;
    if !places.is_empty() && report.problem_count > 0 {
        report.original_problems = Some(verify_in(&*home, progress)?.problem_count);
    }
    found::warn(&home, &path, places, &report, progress)?;
    Ok(report)
}

/// Checks the index in a volume.
pub(crate) fn verify_in(
    volume: &dyn Volume,
    progress: &dyn Progress,
) -> Result<VerifyReport, Error> {
    let mut report = VerifyReport::default();
    let manifest =
        stored::manifest(volume).and_then(|found| Ok((stored::layout(volume, &found)?, found)));
    let (layout, manifest) = match manifest {
        Ok(found) => found,
        Err(error @ (Error::Layout(_) | Error::Damaged { .. })) => {
            report.refused(&stored::name_of(volume, MANIFEST), &error);
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    let nodes = stored::most_nodes(volume, &manifest);
    ask_for_memory(
        format!("verifying {nodes} vectors"),
        MEMORY + nodes / NODES_A_BYTE,
        "verify the index on a machine with more memory",
    )?;
    report.layout = layout.to_string();
    report.files += 1;
    report.bytes += volume.len(MANIFEST)?;
    let lengths = manifest.files.iter().map(|entry| entry.length);
    let total = lengths.fold(0, u64::saturating_add);
    let _stage = Stage::begin(progress, "verifying", total);
    // If they cannot be read, that is a problem of their own files.
    let placement_tables = Tables::read(volume, &manifest);
    let id_file = IdFile::open(volume, &manifest);
    let mut check = Check {
        volume,
        manifest: &manifest,
        layout,
        composition: layout.composition(),
        report,
        sums: Sums::default(),
        placement_tables: placement_tables.as_ref(),
        placed: OnceCell::new(),
        counts: Counts::default(),
        ids: Ids::new(nodes),
        live: Bits::new(match (&manifest.kind, &manifest.placement) {
            (IndexKind::Cluster(_), Some(_)) => nodes,
            _ => 0,
        }),
        id_file,
        whole_columns: HashSet::new(),
        progress,
    };
    check.claims();
    for entry in &manifest.files {
        check.file(entry)?;
    }
    check.log();
    check.current_clusters()?;
    check.columns()?;
    check.sums();
    check.totals();
    check.repeated_ids();
    check.unmatched_ids();
    check.inserts()?;
    check.strays()?;
    Ok(check.report)
}

/// The state of a check of an index.
struct Check<'a> {
    volume: &'a dyn Volume,
    manifest: &'a Manifest,
    layout: Layout,
    /// The abilities of its stores.
    composition: &'static Composition,
    report: VerifyReport,
    sums: Sums,
    /// The table of nodes and pages, if direct inserts were made and it can be read.
    placement_tables: Option<&'a Tables>,
    /// The same table for readers of pages, once it was asked for.
    placed: OnceCell<Placed>,
    counts: Counts,
    ids: Ids,
    /// In a cluster index that changed since its build: live vectors that were found stored by
    /// themselves.
    live: Bits,
    /// The file of ids, if it exists and opens.
    id_file: Option<IdFile>,
    /// Files of columns with correct checksums.
    whole_columns: HashSet<(FileKind, Option<u32>)>,
    progress: &'a dyn Progress,
}

impl Check<'_> {
    fn file(&mut self, entry: &FileEntry) -> Result<(), Error> {
        let name = stored::name_of(self.volume, &entry.name);
        let Some((kind, n)) = entry.kind() else {
            self.report.problem(
                &name,
                None,
                format!("the MANIFEST gives it an unknown role {:?}", entry.role),
            );
            return Ok(());
        };
        if !self.belongs(kind, n) {
            let (role, layout) = (&entry.role, self.layout);
            let placed = matches!(
                kind,
                FileKind::Placement | FileKind::Pending | FileKind::Journal | FileKind::Amended
            );
            let what = match placed && self.manifest.placement.is_none() {
                true => format!(
                    "the MANIFEST gives it the role {role:?}, but names no rewritten records"
                ),
                false => format!(
                    "the MANIFEST gives it the role {role:?}, which the {layout} layout of this index does not have"
                ),
            };
            self.report.problem(&name, None, what);
            return Ok(());
        }
        match self.contents(entry, kind, n, &name) {
            Ok(()) => {
                self.report.files += 1;
                self.report.bytes += entry.length;
                Ok(())
            }
            Err(Error::Interrupted) => Err(Error::Interrupted),
            // A failure of the machine, not a fault of the file.
            Err(error) if error.kind() == ErrorKind::Exhausted => Err(error),
            Err(error) => {
                self.report.refused(&name, &error);
                Ok(())
            }
        }
    }

    fn contents(
        &mut self,
        entry: &FileEntry,
        kind: FileKind,
        n: Option<u32>,
        name: &str,
    ) -> Result<(), Error> {
        stored::check_file(self.volume, entry, kind)?;
        let may_grow = match kind {
            FileKind::Vectors => self.may_grow(n),
            // Files of clusters are never written to again.
            _ if self.extents().is_some() => false,
            // If pages stay in place, pages are added only after a checkpoint was committed.
            _ => self.composition.records_move() || self.manifest.placement.is_some(),
        };
        if !may_grow {
            stored::check_length(self.volume, entry, self.volume.len(&entry.name)?)?;
        }
        match kind.form() {
            Form::Lists(_) if self.manifest.placement.is_some() => match self.composition.records {
                Records::Fixed {
                    format,
                    rewritten: Rewritten::InPlace,
                    ..
                } => self.journaled(format, entry, name),
                Records::Slotted
                | Records::Fixed {
                    rewritten: Rewritten::Elsewhere | Rewritten::Nowhere,
                    ..
                } => self.placed(entry, kind, name),
                // A manifest of clusters with a placement is refused.
                Records::Clustered => Ok(()),
            },
            Form::Clusters(_) => self.clustered(entry, kind, n, name),
            Form::Lists(_) | Form::Segment => self.built(kind, n, name),
            Form::Stream => self.stream(entry, kind, n, name),
            // No manifest names a log; `log` checks the records.
            Form::Log => Ok(()),
        }
    }

    /// Checks the records of the log: their vectors must be valid, and only the end may be torn.
    fn log(&mut self) {
        let (volume, manifest) = (self.volume, self.manifest);
        let shape = LogShape::new(manifest.element, manifest.dimension as usize);
        let from = LogPosition::from(manifest.log_from);
        let (mut records, mut wrong) = (0, Vec::new());
        let replayed = shape.map_err(Error::from).and_then(|shape| {
            durable::replay(volume, shape, from, &mut |sequence, record| {
                records += 1;
                let invalid = |vector| first_invalid(manifest.element, vector);
                if record.vector().and_then(invalid).is_some() {
                    wrong.push((
                        sequence,
                        record.id(),
                        "the vector",
                        "has an element that is NaN or infinite",
                    ));
                }
                if record.row().is_some_and(|row| decoded(row).is_err()) {
                    wrong.push((sequence, record.id(), "the row", "does not decode"));
                }
                Ok(())
            })
        });
        self.report.log_records = records;
        let name = self.volume.name();
        for (sequence, id, part, why) in wrong {
            let what = format!("record {sequence} of the log, {part} of id {id}, {why}");
            self.report.problem(&name, None, what);
        }
        match replayed {
            Ok(replayed) => {
                if let Some(torn) = replayed.torn {
                    // This is normal after a crash: all durable records are there.
                    self.progress.warn(&format!(
                        "{}: its last record ends at byte {}; the bytes behind it are ignored ({}), as after a crash. They have {}{} whole records, and none is known to have been durable",
                        torn.file,
                        torn.offset,
                        torn.reason,
                        if torn.more { "at least " } else { "" },
                        torn.whole
                    ));
                }
            }
            Err(error) => self.report.refused(&name, &error),
        }
    }

    /// Checks the record of interrupted inserts.
    fn inserts(&mut self) -> Result<(), Error> {
        let Some(text) = durable::inserts::text(self.volume)? else {
            return Ok(());
        };
        let name = stored::name_of(self.volume, FILE_NAME);
        let begun = match decode(&text) {
            Ok(begun) => begun,
            Err(Unreadable::Damaged) => {
                self.report.problem(
                    &name,
                    None,
                    "damaged: it is not known which inserts of the command were cut off. No vector depends on this file. Check with `stratann get` whether the last insert is complete; `stratann repair` removes this file",
                );
                return Ok(());
            }
            Err(Unreadable::Later(version)) => {
                self.progress.warn(&format!(
                    "{name}: version {version} of a later StratANN, so this program does not know which inserts were cut off, and takes no changes of the index. Use the later StratANN, or `stratann repair --force`, which removes this file"
                ));
                return Ok(());
            }
        };
        let state = self.manifest.state.as_deref();
        let open = begun
            .iter()
            .filter(|insert| !insert.done && !durable::inserts::is_replaced(insert, state));
        for insert in open {
            self.progress.warn(&format!(
                "{name}: an insert of '{}' was cut off, or is running. To resume it, run `stratann insert` with its vectors, its options and `--resume`; to forget it, use `--forget` (in Python `insert(vectors, resume=True)` and `forget_cut_off()`)",
                insert.file
            ));
        }
        Ok(())
    }

    /// Reports files that no manifest names: harmless, but the user should know.
    fn strays(&mut self) -> Result<(), Error> {
        for name in self.volume.list()? {
            let known = name == MANIFEST
                || name == FILE_NAME
                || log_number(&name).is_some()
                || durable::is_room(&name)
                || self.manifest.files.iter().any(|e| e.name == name);
            if !known {
                let whose = match durable::is_ours(&name) {
                    true => "left by an interrupted writer",
                    false => "not ours",
                };
                let name = stored::name_of(self.volume, &name);
                self.progress
                    .warn(&format!("{name}: no part of the index; {whose}"));
            }
        }
        Ok(())
    }

    fn advance(&self, bytes: u64) -> Result<(), Error> {
        self.progress.advance(bytes);
        if self.progress.interrupted() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }
}
