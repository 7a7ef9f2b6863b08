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
//! **Which state is copied.** An index must survive a crash at any time. So while the MANIFEST is
//! unchanged, no process overwrites bytes that the MANIFEST needs. The copy has the files that the
//! MANIFEST names, and the log up to the length that it has at a later time. This copy is the index
//! at that later time. A [`LiveIndex`] chooses a time at which no call has done only a part of its
//! changes. If another process changes the index, a call may have done a part of them, as after a
//! crash. Then the copy has some rows of the call.
//!
//! **Which files may change** during the copy:
//!
//! - Pages of lists, and of vectors in segments ([`FileKind::has_pages`]). Direct inserts write to
//!   them. After the next commit, direct inserts also write to pages that only the previous
//!   checkpoint names. So these files are copied first. If the MANIFEST has changed after this, the
//!   snapshot starts over.
//! - Logs. A log grows, and a merge removes it. So logs are opened before the MANIFEST is compared.
//!   The marks of a log are read before its length. So the marks never declare more bytes durable
//!   than the copy has.
//! - All other files are written once, and a later checkpoint removes them. They are copied last.
//!   The snapshot has them open, so it can read them even after they are removed.
//!
//! If checkpoints of this process are too frequent, its writer makes no checkpoints until the pages
//! are copied. Inserts continue during this time. A writer in another process cannot be stopped. So
//! the snapshot fails after some attempts ([`Error::Restless`]).
//!
//! **No hard links.** If a file has a second name, it is copied before pages are written to it
//! (`tier/src/own.rs`). So a hard link would only postpone the copy, and a writer that has the file
//! open would still change both files. A damaged block would also be damaged in both indexes. If
//! the file system can share blocks until a file is written to (a reflink: btrfs, XFS), the copy
//! shares blocks with the original. Otherwise the bytes are copied.
//!
//! **Places.** If an index is read from copies ([`Places`](crate::Places)), its index folder is
//! complete, and the snapshot copies this folder. The snapshot has the same [checkpoint
//! id](stratann_layout::Manifest::state) as the original, like an index that is copied to several
//! machines.

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

/// The largest number of attempts of a snapshot. An attempt fails if the index gets another
/// checkpoint, if a log is removed, or if an unfinished insert begins or ends.
const TRIES: usize = 12;
/// The number of attempts before the writer of the same process is asked to make no checkpoints.
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
    /// The number of bytes that share blocks with the original. It is 0 if the file system cannot
    /// share blocks.
    pub shared_bytes: u64,
    /// The number of changes in the log after the checkpoint. They are replayed when the copy is
    /// opened.
    pub log_records: u64,
    /// The number of attempts. It is more than one if checkpoints or other changes interfered with
    /// an attempt.
    pub tries: u64,
    /// The wall-clock time in seconds.
    pub seconds: f64,
}

/// Copies the index at `path` to the directory `dest`, which must be empty or not exist yet. During
/// the call, this process and other processes may search and change the index. The copy has all
/// changes that were acknowledged before the call. If this process has the index open for changes,
/// use [`LiveIndex::snapshot`].
///
/// The copy is synced, and no index opens in `dest` until the copy is complete. If the process is
/// killed, a file `SNAPSHOT.new` stays in `dest`. The next snapshot to `dest` removes the
/// unfinished files and starts over.
///
/// # Errors
/// - `dest` is not empty ([`Error::Exists`]), or is inside the index ([`Error::Argument`]).
/// - Checkpoints or other changes interfered with every attempt ([`Error::Restless`]).
/// - The disk is full, or `progress` interrupts.
/// - [`Error::Undurable`]: the copy is complete, but a crash of the machine may lose it.
///
/// After any error except [`Error::Undurable`], the copied files are removed.
pub fn snapshot(
    path: impl AsRef<Path>,
    dest: impl AsRef<Path>,
    progress: &dyn Progress,
) -> Result<SnapshotReport, Error> {
    let source = stored::existing(path.as_ref())?;
    // The manifest is read before any file is created.
    stored::manifest(&source)?;
    into_folder(path.as_ref(), dest.as_ref(), |dest| {
        take(&source, dest, None, progress)
    })
}

impl LiveIndex {
    /// Copies this index as [`snapshot`](crate::snapshot) does. The copy has all changes of calls
    /// that returned before this call began. Of each concurrent call, it has all changes or none.
    /// Searches, changes and merges continue, but checkpoints may have to wait for the copy.
    ///
    /// # Errors
    /// The call fails for the reasons of [`snapshot`](crate::snapshot). It also fails if the log
    /// cannot be made durable, or if the index is no longer at its path.
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

/// Creates the directory for a copy of the index at `index`, if it does not exist. If the copy
/// fails, removes the directory that it created.
fn into_folder(
    index: &Path,
    path: &Path,
    fill: impl FnOnce(&dyn Volume) -> Result<SnapshotReport, Error>,
) -> Result<SnapshotReport, Error> {
    crate::bounds::path(path)?;
    check_vacant(path)?;
    check_outside(index, path)?;
    let directory = Directory::create(path)?;
    // The path is checked again, since folders that were just created may lead to another directory
    // ('new/../index/copy').
    let lock = check_outside(index, path).and_then(|()| Ok(directory.lock()?));
    let taken = lock.and_then(|lock| {
        let taken = fill(&directory);
        let empty = directory.list().is_ok_and(|names| names.is_empty());
        if taken.is_err() && empty {
            // The lock file is removed before the unlock. Another process may have opened the file
            // to lock it. That process then finds that the file is no longer the lock of the
            // directory.
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

/// Copies the index in a volume to another volume, whose lock the caller has. `live` is the index,
/// if this process has it open for changes.
///
/// # Errors
/// The call fails for the reasons of [`snapshot`], and removes the copied files. If a file cannot
/// be removed, the next snapshot removes it.
pub(crate) fn take(
    source: &dyn Volume,
    dest: &dyn Volume,
    live: Option<&LiveIndex>,
    progress: &dyn Progress,
) -> Result<SnapshotReport, Error> {
    let began = Instant::now();
    if let Some(live) = live {
        // If a sync of changes has failed, these changes are only in memory until the next log is
        // written.
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
        // If the copy did not record an unfinished insert, a resume would insert the rows of this
        // insert twice.
        if !of.stands()? || of.inserts()? != inserts {
            continue;
        }
        // The files that are copied after this no longer change.
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
