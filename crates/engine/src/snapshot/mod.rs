//! A consistent copy of an index. It can be taken during searches, inserts and merges.
//!
//! ```text
//!   source      MANIFEST ─> all files that it names, opened       source.rs
//!     │         copy pages ── open logs ── MANIFEST unchanged? ──no──> start over
//!     ▼                                           │yes
//!   DEST        SNAPSHOT.new  pages               ▼
//!               .. and files that never change, the logs up to their length at that time
//!               SNAPSHOT.new ─renamed─> MANIFEST                     destination.rs
//! ```
//!
//! **Which state is copied.** While the MANIFEST is unchanged, no process overwrites bytes that the
//! MANIFEST needs. So a copy of the named files, with the log up to any later length, is the index
//! at the time at which the log had this length. A [`LiveIndex`] chooses a time between calls. If
//! another process changes the index, the copy may have some rows of a call, as after a crash.
//!
//! **Which files may change** during the copy:
//!
//! - Pages of lists, and of vectors in segments ([`FileKind::has_pages`]): direct inserts write
//!   to free pages of these files. After the next commit, pages that only the previous checkpoint
//!   names are free, too. So these files are copied first, and the snapshot starts over if the
//!   MANIFEST has changed meanwhile.
//! - Logs grow, and a merge removes them. So logs are opened before the MANIFEST is compared. Marks
//!   are read before the length, so that the marks never declare more bytes durable than the copy
//!   has.
//! - All other files are written once, and a later checkpoint removes them. These files are copied
//!   last. The snapshot has them open, so they stay readable after the removal.
//!
//! If checkpoints of this process are too frequent, the process makes no checkpoint until the pages
//! are copied. A writer in another process cannot be stopped, so the snapshot may fail
//! ([`Error::Restless`]).
//!
//! **No hard links.** A file with a second name is copied before pages are written to it
//! (`tier/src/own.rs`), so a hard link would only postpone the copy. A hard link would also share
//! damage. If the file system can share blocks until a write (a reflink: btrfs, XFS), the copy
//! shares blocks.
//!
//! **Places.** The snapshot copies the index folder, which is complete even if searches read copies
//! ([`Places`](crate::Places)). The copy has the [checkpoint id](stratann_layout::Manifest::state)
//! of the original.

mod destination;
mod source;

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use stratann_layout::inserts::FILE_NAME;
use stratann_tier::{Directory, LOCK_FILE, Volume};

use self::destination::{Unfinished, check_outside, check_vacant};
use self::source::Source;
use crate::progress::{Progress, Stage};
use crate::{Error, LiveIndex, stored};

#[cfg(doc)]
use stratann_layout::FileKind;

/// The largest number of attempts. An attempt fails if the checkpoint changes, a log is removed, or
/// an unfinished insert begins or ends.
const TRIES: usize = 12;
/// After this number of attempts, the writer of this process makes no checkpoint during an attempt.
const UNASKED: usize = 2;

/// The result of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SnapshotReport {
    /// The number of the checkpoint.
    pub checkpoint: u64,
    /// The number of files in the copy, including its MANIFEST.
    pub files: u64,
    /// The bytes of these files.
    pub bytes: u64,
    /// Bytes that share blocks with the original, 0 if the file system cannot share blocks.
    pub shared_bytes: u64,
    /// Changes in the log after the checkpoint, which an open of the copy replays.
    pub log_records: u64,
    /// The number of attempts. It is above 1 if checkpoints or other changes interfered.
    pub tries: u64,
    /// The wall-clock time in seconds.
    pub seconds: f64,
}

/// Copies the index at `path` to `dest`, an empty or new directory, with all changes acknowledged
/// before the call. All processes may search and change the index meanwhile. If this process has
/// the index open for changes, use [`LiveIndex::snapshot`].
///
/// No index opens in `dest` until the copy is complete and synced. If the process is killed, a file
/// `SNAPSHOT.new` stays, and the next snapshot to `dest` removes the unfinished files.
///
/// # Errors
/// - `dest` is not empty ([`Error::Exists`]), or is inside the index ([`Error::Argument`]).
/// - Checkpoints or other changes interfered with every attempt ([`Error::Restless`]).
/// - The disk is full, or `progress` interrupts.
/// - The copy is complete, but a crash of the machine may lose it ([`Error::Undurable`]). After any
///   other error, the copied files are removed.
pub fn snapshot(
    path: impl AsRef<Path>,
    dest: impl AsRef<Path>,
    progress: &dyn Progress,
) -> Result<SnapshotReport, Error> {
    let source = stored::existing(path.as_ref())?;
    // If no index exists at `path`, this read fails before any file is created.
    stored::manifest(&source)?;
    into_folder(path.as_ref(), dest.as_ref(), |dest| {
        take(&source, dest, None, progress)
    })
}

impl LiveIndex {
    /// Copies this index as [`snapshot`](crate::snapshot) does, with all changes of calls that have
    /// returned. Of each concurrent call, the copy has all changes or none. Checkpoints may have to
    /// wait.
    ///
    /// # Errors
    /// Fails as [`snapshot`](crate::snapshot) does. It also fails if the log cannot be made
    /// durable, or if the index is no longer at its path.
    pub fn snapshot(
        &self,
        dest: impl AsRef<Path>,
        progress: &dyn Progress,
    ) -> Result<SnapshotReport, Error> {
        let source = self.home_on_storage()?;
        into_folder(self.path(), dest.as_ref(), |dest| {
            take(&source, dest, Some(self), progress)
        })
    }
}

fn into_folder(
    index: &Path,
    path: &Path,
    fill: impl FnOnce(&dyn Volume) -> Result<SnapshotReport, Error>,
) -> Result<SnapshotReport, Error> {
    crate::bounds::path(path)?;
    check_vacant(path)?;
    check_outside(index, path)?;
    let directory = Directory::create(path)?;
    // New folders in the path may lead to another directory (`new/../index/copy`).
    let lock = check_outside(index, path).and_then(|()| Ok(directory.lock()?));
    let taken = lock.and_then(|lock| {
        let taken = fill(&directory);
        let empty = directory.list().is_ok_and(|names| names.is_empty());
        if taken.is_err() && empty {
            // Another process may have opened the lock file to lock it. After the removal, that
            // process finds that the file is no longer the lock of the directory.
            let _ = directory.remove(LOCK_FILE);
        }
        drop(lock);
        taken
    });
    if taken.is_err() {
        directory.discard();
    }
    taken
}

/// Copies an index to a volume that the caller has locked. If this process has the index open for
/// changes, `live` is this index.
pub(crate) fn take(
    source: &dyn Volume,
    dest: &dyn Volume,
    live: Option<&LiveIndex>,
    progress: &dyn Progress,
) -> Result<SnapshotReport, Error> {
    let began = Instant::now();
    if let Some(live) = live {
        // Changes whose sync failed are only in memory until the next log is written.
        live.flush()?;
    }
    let mut copy = Unfinished::begin(dest)?;
    let mut held = None;
    for tries in 1..=TRIES {
        if let Some(live) = live
            && tries > UNASKED
            && held.is_none()
        {
            held = Some(live.without_checkpoints(progress)?);
        }
        let Some(of) = Source::open(source)? else {
            continue;
        };
        let _stage = Stage::begin(progress, "copying", of.bytes()?);
        copy.clear()?;
        copy.files(of.pages(), progress)?;
        let inserts = of.inserts()?;
        let logs = match live {
            Some(live) => live.while_nobody_changes(|_| of.logs()),
            None => of.logs(),
        };
        let Some(logs) = logs? else {
            continue;
        };
        // Without the record of an unfinished insert, a resume in the copy would insert its rows
        // twice.
        if !of.stands()? || of.inserts()? != inserts {
            continue;
        }
        // The remaining files no longer change, so checkpoints may continue.
        drop(held.take());
        copy.files(of.written_once(), progress)?;
        for log in &logs {
            copy.log(log, progress)?;
        }
        if let Some(inserts) = inserts {
            copy.small(FILE_NAME, &inserts)?;
        }
        let log_records = copy.cut_logs(&of, &logs)?;
        let (files, bytes, shared_bytes) = copy.finish(of.encoded())?;
        return Ok(SnapshotReport {
            checkpoint: of.manifest().checkpoint,
            files,
            bytes,
            shared_bytes,
            log_records,
            tries: tries as u64,
            seconds: began.elapsed().as_secs_f64(),
        });
    }
    Err(Error::Restless {
        path: source.name().into(),
        what: format!("during each of {TRIES} attempts to copy the pages, the index changed: it got another checkpoint, a log was removed, or an unfinished insert began or ended. So no copy is complete; the unfinished files were removed"),
        remedy: "Take the snapshot through the handle that changes the index (in Python `index.snapshot(dest)`), or while fewer vectors are \
                 inserted"
            .into(),
    })
}
