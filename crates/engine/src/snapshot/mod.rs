//! A consistent copy of an index, taken while others search, insert and merge.
//!
//! ```text
//!   source      MANIFEST ─> all files that it names, opened       source.rs
//!     │         pages are copied ── logs are opened ── the same MANIFEST still? ──no──> from the start
//!     ▼                                                          │yes
//!   DEST        SNAPSHOT.new  pages                              ▼
//!               .. and files that never change, the logs as far as they went at that moment
//!               SNAPSHOT.new ─renamed─> MANIFEST                 destination.rs
//! ```
//!
//! **Which state it is.** A crash leaves the files that the MANIFEST names, so nobody writes over them as long as it stands. A copy of
//! these files, with the log as far as it went at a later moment, is the index at this moment. Through a [`LiveIndex`] no
//! call is in the midst of a change then. Where another process changes the index, the moment may be between two rows of a call, as after a crash.
//!
//! **Which files may change** while they are copied:
//!
//! | files | changes | how they are copied |
//! |---|---|---|
//! | pages of lists, of vectors in segments ([`FileKind::has_pages`]) | direct inserts write pages in them; once the next checkpoint counts, also pages that only the checkpoint before names | first; if the MANIFEST is another one afterwards, all is begun anew |
//! | the log | grows; a merge removes it | opened before the MANIFEST is looked at again; its marks before its length, so that these never promise more than there is |
//! | all others | are written once, and removed by the checkpoint after | last, from files that are open and so outlive their names |
//!
//! If checkpoints of this process come too fast, its writer makes none until the pages are copied. Inserts go on
//! meanwhile. A writer of another process cannot be asked: after some tries the snapshot gives up ([`Error::Restless`]).
//!
//! **No hard links.** A file with a second name is copied before pages are written in it (`tier/src/own.rs`), which would only put the copy
//! off; and a writer that has it open already goes on to write to both. A damaged block of a linked file is damaged in both indexes.
//! Some file systems let two files share blocks until one of them is written to (a reflink: btrfs, XFS). There files are shared; elsewhere they are copied.
//!
//! **Places.** An index that is read from copies ([`Places`](crate::Places)) is whole at its home, and the home is copied. The copy has the
//! same [state](stratann_layout::Manifest::state) as the original, as an index has that is copied to several machines.

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

/// How often a snapshot begins anew because a checkpoint was made while pages were copied.
const TRIES: usize = 12;
/// How often it does so before it asks a writer of its own process for none.
const UNASKED: usize = 2;

/// The files that a snapshot copied.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SnapshotReport {
    /// The checkpoint's number.
    pub checkpoint: u64,
    /// Files of the copy, its MANIFEST included.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// How many of these stand on the same blocks as those of the original, where the file system can do that.
    pub shared_bytes: u64,
    /// Changes in the log that came after the checkpoint: who opens the copy finds them.
    pub log_records: u64,
    /// How often it was begun: more than once if checkpoints were made meanwhile.
    pub tries: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// Copies the index at `path` to the directory `dest`, which is made, or is empty. Others may search and change the index meanwhile, from this process or another.
/// The copy has all changes that were acknowledged before the call. Where this process has the index open for changes, take [`LiveIndex::snapshot`].
///
/// The copy is synced, and appears as a whole: until then no index opens there. A process that is killed in the midst of it leaves a
/// file `SNAPSHOT.new`. The next snapshot to that directory removes the files of the unfinished one, and begins anew.
///
/// # Errors
/// `dest` holds something ([`Error::Exists`]), or is within the index ([`Error::Call`]); a checkpoint was made again and again meanwhile ([`Error::Restless`]); a full disk; an interruption through
/// `progress`. The copied files are then removed. [`Error::Undurable`]: the copy is whole, but a crash of the machine may take it away.
pub fn snapshot(
    path: impl AsRef<Path>,
    dest: impl AsRef<Path>,
    progress: &dyn Progress,
) -> Result<SnapshotReport, Error> {
    let source = stored::existing(path.as_ref())?;
    // Looked at before anything is made.
    stored::manifest(&source)?;
    into_folder(path.as_ref(), dest.as_ref(), |dest| {
        take(&source, dest, None, progress)
    })
}

impl LiveIndex {
    /// As [`snapshot`](crate::snapshot), of this index: with all changes whose call has returned when this one begins, and of each call that goes on
    /// meanwhile all changes or none. Searches, changes and merges go on; checkpoints may wait for a while.
    ///
    /// # Errors
    /// As those of [`snapshot`](crate::snapshot); the log cannot be made durable, or the index is not at its path any more.
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

/// Makes the directory of a copy of the index in `index` if it is not there, and removes it again if nothing comes of it.
fn into_folder(
    index: &Path,
    path: &Path,
    fill: impl FnOnce(&dyn Volume) -> Result<SnapshotReport, Error>,
) -> Result<SnapshotReport, Error> {
    crate::bounds::path(path)?;
    check_vacant(path)?;
    check_outside(index, path)?;
    let directory = Directory::create(path)?;
    // Folders that were made just now may lead elsewhere: 'new/../index/copy'.
    let lock = check_outside(index, path).and_then(|()| Ok(directory.lock()?));
    let taken = lock.and_then(|lock| {
        let taken = fill(&directory);
        let empty = directory.list().is_ok_and(|names| names.is_empty());
        if taken.is_err() && empty {
            // Before it is unlocked: who has opened it to lock it next finds that it is not the lock of the directory any more.
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

/// Copies the index in a volume to another one, whose lock the caller holds. `live` is the index itself, where this process changes it.
///
/// # Errors
/// As those of [`snapshot`]. The copied files are removed; those that cannot be removed are cleared by the next snapshot.
pub(crate) fn take(
    source: &dyn Volume,
    dest: &dyn Volume,
    live: Option<&LiveIndex>,
    progress: &dyn Progress,
) -> Result<SnapshotReport, Error> {
    let began = Instant::now();
    if let Some(live) = live {
        // Changes that a sync has failed to keep are in memory alone until the next log has them.
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
        // Rows of an insert of which the copy knows nothing would go in twice there.
        if !of.stands()? || of.inserts()? != inserts {
            continue;
        }
        // From here on nothing that is copied changes.
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
        what: format!("{TRIES} times a checkpoint was made while its pages were copied, so no copy is whole; the unfinished files were removed"),
        remedy: "Take the snapshot through the handle that changes the index (in Python index.snapshot(dest)), or while fewer vectors are \
                 inserted"
            .into(),
    })
}
