//! `repair`: rebuilds a damaged index from the vectors that can still be read.
//!
//! ```text
//!   MANIFEST ──> choices of the build ───────────────────────────────┐
//!   pages ─────> pages.rs ──┐                                        v
//!   placement ─> placed.rs ─┤
//!   models ────> tables.rs ─┴─> rows.rs ──> a file of rows ──> build::rebuild ──> commit
//!   log-… ─────> log.rs ───────────^
//!
//!   apart.rs     in place of placed.rs, if vectors are stored apart
//!   journaled.rs in place of placed.rs, if pages stay in place
//!   clusters.rs  in place of pages.rs, for posting lists
//!   columns.rs   attributes of vectors
//!   files.rs     reads files that may be damaged, missing, cut short, or of another index
//! ```
//!
//! A repair reads the vectors, their ids, their attributes and the MANIFEST from the index, and
//! recomputes the rest. It skips and counts pages with wrong checksums, and takes a vector
//! unchanged or not at all.
//!
//! The old index is unchanged until the commit, as in every build, so a failed or crashed repair
//! loses no data.

mod apart;
mod clusters;
mod columns;
mod files;
mod journaled;
mod leading;
mod log;
mod pages;
mod placed;
mod rows;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use stratann_layout::header::stored_checksum;
use stratann_layout::inserts::FILE_NAME as INSERTS;
use stratann_layout::manifest::{FILE_NAME as MANIFEST, GIVEN_CODEBOOK};
use stratann_layout::{BLOCK, FileKind, IndexKind, LogFrom, Manifest};
use stratann_tier::Volume;

use self::columns::Salvaged;
use self::log::Changes;
use self::rows::{Fault, Rows};
use crate::build::{self, BuildOptions, CarriedRows, high_bytes};
use crate::codebook::Codebook;
use crate::data::NoRows;
use crate::durable::{inserts, log_number, opened_from};
use crate::progress::{Progress, Stage};
use crate::stores::ids::PLACEHOLDER_ID;
use crate::update::bytes_in;
use crate::verify::{VerifyReport, verify_in};
use crate::{Error, bounds, stored};

/// The options of a repair.
#[derive(Clone, Debug)]
pub struct RepairOptions {
    /// The number of OS threads of the build.
    pub threads: usize,
    /// The most memory that the build may use, in bytes, or `None` for no limit.
    pub memory: Option<u64>,
    /// Whether an index without damage is rebuilt too.
    pub force: bool,
}

impl Default for RepairOptions {
    fn default() -> Self {
        Self {
            threads: crate::threads::processors(),
            memory: None,
            force: false,
        }
    }
}

/// The report of a repair.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RepairReport {
    /// Whether the index was rebuilt. If not, it has no damage and was not changed.
    pub repaired: bool,
    /// The number of vectors in the checkpoint after the repair.
    pub vectors: u64,
    /// The number of these vectors that were only in the log.
    pub from_log: u64,
    /// The number of unreadable vectors of the previous checkpoint that the log neither replaces
    /// nor deletes. If the table of nodes and pages is damaged, the number is an upper bound. If
    /// the garbage of a segment is unknown, the number is a lower bound.
    pub vectors_lost: u64,
    /// The damaged files, with the losses of each.
    pub lost: Vec<Lost>,
    /// The bytes on storage before the repair, including logs.
    pub bytes_before: u64,
    /// The bytes on storage after the repair.
    pub bytes_after: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// A damaged file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// The name of the file.
    pub file: String,
    /// The fault.
    pub what: String,
    /// The most vectors that may be lost with the file. With 0, its content was recomputed. For a
    /// missing log, the number is unknown.
    pub vectors: u64,
}

/// Rebuilds a damaged index from the vectors that can be read.
///
/// # Errors
/// - There is no index, or its manifest cannot be read.
/// - Another process changes the index, a later version wrote it, or this user may not read it.
/// - No vector can be read.
/// - The memory cap is too small, the disk is full, or `progress` interrupts.
///
/// After an error, the index is unchanged.
pub fn repair(
    path: impl AsRef<Path>,
    options: &RepairOptions,
    progress: &dyn Progress,
) -> Result<RepairReport, Error> {
    let volume: Arc<dyn Volume> = Arc::new(stored::existing(path.as_ref())?);
    repair_in(&volume, &stored::home(path.as_ref())?, options, progress)
}

pub(crate) fn repair_in(
    volume: &Arc<dyn Volume>,
    path: &Path,
    options: &RepairOptions,
    progress: &dyn Progress,
) -> Result<RepairReport, Error> {
    bounds::threads(options.threads)?;
    // If there is no index, the call fails here. The lock would leave a file in the directory.
    readable_manifest(&**volume, path)?;
    let _lock = volume.lock()?;
    let manifest = readable_manifest(&**volume, path)?;
    opened_from(&**volume, &manifest)?;
    let (start, bytes_before) = (Instant::now(), bytes_in(&**volume)?);
    // No vector depends on the record of unfinished inserts, so a damaged record is removed.
    if inserts::forget_damaged(&**volume, options.force)? {
        let name = stored::name_of(&**volume, INSERTS);
        progress.warn(&format!(
            "{name}: damaged, or of a later version, and removed"
        ));
    }
    let verified = verify_in(&**volume, progress)?;
    if verified.clean() && !options.force {
        return Ok(RepairReport {
            vectors: live_of(&manifest),
            bytes_before,
            bytes_after: bytes_before,
            seconds: start.elapsed().as_secs_f64(),
            ..RepairReport::default()
        });
    }
    let work = Work {
        volume,
        path,
        manifest: &manifest,
        options,
        progress,
    };
    let mut report = work.rebuild(verified)?;
    report.bytes_before = bytes_before;
    // The repair is committed. So if this count fails, the error is ignored.
    report.bytes_after = bytes_in(&**volume).unwrap_or_default();
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

fn readable_manifest(volume: &dyn Volume, path: &Path) -> Result<Manifest, Error> {
    let manifest = match stored::manifest(volume) {
        Ok(manifest) => manifest,
        // A manifest that a later version wrote is not damaged.
        Err(error @ Error::Layout(_)) if files::is_newer(&error) => return Err(error),
        Err(error @ (Error::Layout(_) | Error::Damaged { .. })) => {
            let error = error.to_string();
            let reason = format!(
                "{}, and without a MANIFEST the other files cannot be read",
                files::first_part(&error)
            );
            let path = path.to_owned();
            return Err(Error::Unrepairable { path, reason });
        }
        Err(error) => return Err(error),
    };
    manifest.check_writable(&stored::name_of(volume, MANIFEST))?;
    Ok(manifest)
}

fn live_of(manifest: &Manifest) -> u64 {
    let built = manifest.built_vectors();
    manifest.placement.map_or(built, |facts| facts.live)
}

struct Work<'a> {
    volume: &'a Arc<dyn Volume>,
    path: &'a Path,
    manifest: &'a Manifest,
    options: &'a RepairOptions,
    progress: &'a dyn Progress,
}

struct Found {
    rows: Rows,
    changes: Changes,
    from_log: u64,
    vectors_lost: u64,
    log_lost: u64,
    lost: Vec<Lost>,
}

impl Work<'_> {
    fn rebuild(&self, verified: VerifyReport) -> Result<RepairReport, Error> {
        let (volume, manifest) = (&**self.volume, self.manifest);
        let scratch = build::ScratchFolder::beside(&**self.volume, self.path)?;
        let Found {
            rows,
            mut changes,
            from_log,
            vectors_lost,
            log_lost,
            mut lost,
        } = self.salvage(scratch.path())?;
        let logged = std::mem::take(&mut changes.rows);
        let mut attributes = Salvaged::read(volume, manifest, logged, self.progress)?;
        if let Some(attributes) = &mut attributes {
            lost.append(&mut attributes.lost);
        }
        let worst = lost.iter().max_by_key(|lost| lost.vectors);
        let nothing_left = rows.ids.is_empty() && (vectors_lost > 0 || log_lost > 0);
        if let Some(Lost { file, what, .. }) = worst.filter(|_| nothing_left) {
            return Err(Error::Unrepairable {
                path: self.path.to_owned(),
                reason: format!("no vector can be read any more ({file}: {what})"),
            });
        }
        // All other damaged files are recomputed. A MANIFEST may name many files, so their names
        // are in a set.
        let mut known: HashSet<String> = lost.iter().map(|lost| lost.file.clone()).collect();
        for problem in verified.problems {
            // Problems of ids and of log records name no single file. Their vectors are counted as
            // lost.
            let of_a_file = problem.file != volume.name();
            if of_a_file && known.insert(problem.file.clone()) {
                let what = problem.what.strip_prefix(&format!("{}: ", problem.file));
                lost.push(Lost {
                    what: files::first_part(what.unwrap_or(&problem.what)).to_owned(),
                    file: problem.file,
                    vectors: 0,
                });
            }
        }
        let codebook = self.codebook();
        let kept = codebook.is_some();
        let (source, ids) = rows.finish()?;
        if let Some(attributes) = &mut attributes {
            attributes.of_ids(&ids);
        }
        let options = BuildOptions {
            code_bytes: match (&codebook, &manifest.kind) {
                (None, IndexKind::Graph(_)) => Some(high_bytes(manifest)?),
                (Some(_), _) | (None, IndexKind::Cluster(_)) => None,
            },
            codebook,
            memory: self.options.memory,
            threads: self.options.threads,
            ids: source.as_ref().map(|_| ids),
            ..BuildOptions::of_manifest(manifest)?
        };
        let carried = build::Carried {
            log_from: self.next_log()?,
            next_id: manifest
                .placement
                .map_or(0, |facts| facts.next_id)
                .max(manifest.next_id)
                .max(changes.next_id),
            known: None,
            kept: &[],
            rows: attributes.as_ref().map(|rows| rows as &dyn CarriedRows),
            // If a user gave the codebook and it is readable, the new index keeps it.
            given_codebook: kept && manifest.writer_features & GIVEN_CODEBOOK != 0,
            placeholder: false,
        };
        let (home, scratch, ready) = (self.volume, scratch.path(), &mut |_: &Manifest| Ok(()));
        let rebuilt = match &source {
            Some(source) => build::rebuild(
                home,
                scratch,
                source,
                &options,
                carried,
                ready,
                self.progress,
            ),
            None => {
                let none = NoRows::new(manifest.element, manifest.dimension as usize);
                build::rebuild_empty(
                    home,
                    scratch,
                    &none,
                    &options,
                    carried,
                    ready,
                    self.progress,
                )
            }
        };
        let (report, committed) = rebuilt?;
        if let Err(error) = committed.durable(volume) {
            // The new checkpoint is valid, although its commit may not be durable.
            tracing::warn!("{error}");
        }
        Ok(RepairReport {
            repaired: true,
            vectors: report.vectors as u64,
            from_log,
            vectors_lost,
            lost,
            ..RepairReport::default()
        })
    }

    fn salvage(&self, folder: &Path) -> Result<Found, Error> {
        let (volume, manifest, progress) = (&**self.volume, self.manifest, self.progress);
        let changes = Changes::read(volume, manifest, progress)?;
        let mut rows = Rows::create(folder, volume, manifest)?;
        let mut lost = Vec::new();
        let mut found = 0;
        let stage = Stage::begin(progress, "reading vectors", live_of(manifest));
        let all = pages::salvage(volume, manifest, progress, &mut lost, &mut |id, vector| {
            if id == PLACEHOLDER_ID && manifest.has_placeholder() {
                return Ok(None);
            }
            progress.advance(1);
            if let Some(fault) = rows.fault(vector) {
                return Ok(Some(fault));
            }
            if !rows.first_of(id) {
                return Ok(Some(Fault::Twice));
            }
            found += 1;
            if !changes.overrules(id) {
                rows.push(id, vector)?;
            }
            Ok(None)
        })?;
        drop(stage);
        // An index that was built of no rows has no vectors to lose, so its placeholder does not
        // count.
        let all = match manifest.placement {
            None => all.min(live_of(manifest)),
            Some(_) => all,
        };
        let kept = rows.ids.len();
        let mut wrong = 0;
        changes.each_vector(
            volume,
            manifest,
            progress,
            &mut |id, vector| match rows.fault(vector) {
                None => rows.push(id, vector),
                Some(_) => {
                    wrong += 1;
                    Ok(())
                }
            },
        )?;
        lost.extend(changes.lost.iter().cloned());
        let in_log = changes.lost.iter().map(|lost| lost.vectors);
        let log_lost = in_log.fold(wrong, u64::saturating_add);
        if wrong > 0 {
            lost.push(Lost {
                file: volume.name(),
                what: format!(
                    "{wrong} vectors of the log have NaN, infinity or no direction; they are dropped"
                ),
                vectors: wrong,
            });
        }
        // A vector that the log replaces or deletes is not lost, even if it cannot be read.
        let known = found + changes.superseded(|id| !rows.has(id));
        Ok(Found {
            from_log: (rows.ids.len() - kept) as u64,
            vectors_lost: all.saturating_sub(known),
            log_lost,
            lost,
            rows,
            changes,
        })
    }

    /// The codebook that the manifest names; `None` if it is damaged.
    fn codebook(&self) -> Option<Codebook> {
        let (volume, manifest) = (&**self.volume, self.manifest);
        let entry = stored::entry(volume, manifest, FileKind::Codebook, None).ok()?;
        let mut first = vec![0; BLOCK];
        volume.read_at(&entry.name, 0, &mut first).ok()?;
        let codebook = Codebook::of_index(volume, manifest).ok()?;
        let named = stored_checksum(&first) == entry.header_crc32c;
        (named && codebook.is_what_it_says()).then_some(codebook)
    }

    fn next_log(&self) -> Result<LogFrom, Error> {
        let names = self.volume.list()?;
        let last = names.iter().filter_map(|name| log_number(name)).max();
        let next = last.map_or(1, |number| number.saturating_add(1));
        Ok(LogFrom {
            number: next.max(self.manifest.log_from.number),
            // The first record of this log may have any sequence number.
            sequence: 0,
        })
    }
}
