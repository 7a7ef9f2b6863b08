//! `verify`: reads every byte of an index, and reports all damage and all inconsistencies.
//!
//! ```text
//!   manifest.rs   the claims of the MANIFEST: files that the layout needs, segments, sums
//!   pages.rs      files of pages, piece by piece; checks that apply to any node
//!     ├─ records.rs   pages not changed after the build, in any format, and their records
//!     ├─ placed.rs    pages after direct inserts: rewritten records, and pending records
//!     ├─ added.rs     pages of vectors that direct inserts added, if vectors are stored apart
//!     └─ journal.rs   pages that direct inserts write in place, and the journal of these pages
//!   clusters.rs   files of a cluster index: posting lists, and vectors stored by themselves
//!   placement.rs  the table of nodes and pages after direct inserts, and the live ids
//!   streams.rs    byte strings, and the content of the tables among them
//!   ids.rs        external ids that occur twice
//!   columns.rs    attributes of vectors, and the nodes that have them
//!   id_file.rs    the file that maps external ids to nodes
//!   found.rs      whether searches find vectors inserted since the build: only a warning
//! ```
//!
//! `verify` does not change the index. It continues after a damaged part, so that one report has
//! all damage. If a table is damaged, the checksums of the data that needs this table are still
//! checked.
//!
//! `verify` needs memory for a megabyte of pages, the tables of one file, and the ids. Ids that are
//! row numbers take two or three bits for each vector. After direct inserts, the table of nodes and
//! pages takes 4 bytes a node. If an undamaged index has changed and has up to 64 MiB of codes,
//! `verify` opens it and checks searches.

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

/// The most problems in a report, in addition to the first problem of each file.
const MOST: usize = 100;

const MEMORY: u64 = 3 << 20;
/// Ids take at most four bits for each vector.
const NODES_A_BYTE: u64 = 2;

/// A fault in an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The name of the file.
    pub file: String,
    /// The offset in the file, in bytes, if the fault is at one place.
    pub offset: Option<u64>,
    /// The fault, and the remedy.
    pub what: String,
}

/// The amount of data that `verify` read, and the problems that it found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// The layout of the index; empty if the MANIFEST cannot be read.
    pub layout: String,
    /// The number of files that were read to their end.
    pub files: u64,
    /// The bytes of the files that were read to their end.
    pub bytes: u64,
    /// The number of pages with nodes; in the layout csr, of pieces of rows; in a cluster index, of
    /// posting lists.
    pub pages: u64,
    /// The number of nodes whose lists were read; in a cluster index, the number of vectors.
    pub nodes: u64,
    /// The number of links; 0 in a cluster index.
    pub edges: u64,
    /// The number of records in the log after the checkpoint.
    pub log_records: u64,
    /// The first hundred problems, and the first problem of each file.
    pub problems: Vec<Problem>,
    /// The number of all problems.
    pub problem_count: u64,
    /// The number of problems that are no damage: files that this user may not read, and reads that
    /// failed for a reason outside the file.
    pub unread: u64,
    /// The number of problems of the index itself, if copies were read. If it is 0, only the copies
    /// are damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_problems: Option<u64>,
}

impl VerifyReport {
    /// Whether no problem was found.
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
            // If bytes that the manifest names are missing, the index is damaged.
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

/// Checks the whole index at `path`. Damage is in the report, and is no error.
///
/// # Errors
/// The call fails if there is no index, if its manifest cannot be read, if the machine is out of
/// memory or handles, or if the caller interrupts.
pub fn verify(path: impl AsRef<Path>, progress: &dyn Progress) -> Result<VerifyReport, Error> {
    let home: Arc<dyn Volume> = Arc::new(stored::existing(path.as_ref())?);
    let report = verify_in(&*home, progress)?;
    let path = stored::home(path.as_ref())?;
    found::warn(&home, &path, &Places::default(), &report, progress)?;
    Ok(report)
}

/// Checks an index as [`verify`] does, but reads the copies of roles that have a place in `places`.
/// Missing copies are made first. If there is a problem, the index itself is read too, because a
/// copy of a damaged file is damaged.
///
/// # Errors
/// The call fails as [`verify`] does, if a place is in memory, or if the index does not have one of
/// the roles.
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

struct Check<'a> {
    volume: &'a dyn Volume,
    manifest: &'a Manifest,
    layout: Layout,
    composition: &'static Composition,
    report: VerifyReport,
    sums: Sums,
    placement_tables: Option<&'a Tables>,
    placed: OnceCell<Placed>,
    counts: Counts,
    ids: Ids,
    /// The live vectors of a cluster index that has changed. Posting lists must have all of them.
    live: Bits,
    id_file: Option<IdFile>,
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
            // If memory or handles are exhausted, it is unknown whether the file is damaged.
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
            _ if self.extents().is_some() => false,
            // Only direct inserts add pages. If records move, a crash before the first checkpoint
            // may also leave pages.
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
                Records::Clustered => Ok(()),
            },
            Form::Clusters(_) => self.clustered(entry, kind, n, name),
            Form::Lists(_) | Form::Segment => self.built(kind, n, name),
            Form::Stream => self.stream(entry, kind, n, name),
            Form::Log => Ok(()),
        }
    }

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
                    // A torn end is normal after a crash: the log has all durable records.
                    self.progress.warn(&format!(
                        "{}: its last record ends at byte {}; the bytes behind it are ignored ({}), as after a crash. These bytes have {}{} whole records, and none is known to have been durable",
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
