//! The commit of a checkpoint, which atomically replaces the files of the index.
//!
//! ```text
//!   graph-000002  codes-000002  …     written and synced; no manifest names them yet
//!   vectors-000002-0000  …            the same, for kinds with several files
//!   MANIFEST.new                      written and synced
//!   MANIFEST.new -> MANIFEST          renamed, directory synced: this is the commit
//!   graph-000001  …                   removed: nothing names them any more
//!   log-000001  …                     logs before the first one that the manifest names: removed
//! ```
//!
//! Until the commit, no byte of the previous checkpoint is overwritten: pages to be rewritten in
//! place are first written to a journal. So after a crash, the index is the previous or the new
//! checkpoint. The next writer removes the files that a crash left.
//!
//! **A commit of unknown durability.** If the rename or the sync of the directory fails, a crash
//! may leave either manifest. Until one manifest is durable, no file or page of either checkpoint
//! is removed or overwritten. A later sync alone does not help, since the kernel may have dropped
//! the rename. So the process writes and renames the valid manifest again, at once or before the
//! next commit ([`Known`]). A process that takes the lock rewrites the manifest that it finds,
//! before any other change ([`opened_from`]).
//!
//! **A manifest of another writer.** If the manifest is not the manifest that the lock owner last
//! read or wrote, the lock owner writes and removes no file.

use std::str::FromStr;
use std::sync::PoisonError;

use stratann_layout::inserts::{FILE_NAME as INSERTS, UNFINISHED as UNFINISHED_INSERTS};
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{FileEntry, FileKind, Manifest};
use stratann_tier::{TierError, Volume, VolumeFile, copy_of, random};

use super::inserts;
use super::log::{number_of as log_number, remove_logs_before, unfinished as unfinished_log};
use super::room::{is_room, replace_in_room};
use crate::savepoint::is_savepoint;
use crate::{Error, stored};

/// A checkpoint that is being written. A drop before the commit removes the files of the
/// checkpoint.
#[derive(Debug)]
pub(crate) struct Checkpoint<'a> {
    volume: &'a dyn Volume,
    /// The number in the names of the checkpoint's files, above the numbers of all existing files.
    number: u64,
    /// A number above the numbers of all existing logs.
    next_log: u64,
    /// Whether it is unknown which manifest is durable, or which files belong to which manifest.
    undecided: bool,
    committed: bool,
}

impl<'a> Checkpoint<'a> {
    /// Starts a checkpoint in a volume that the caller has locked, and removes files that a crash
    /// left.
    ///
    /// # Errors
    /// The volume has files of other programs and no index, or has an index that may not be
    /// replaced.
    pub(crate) fn begin(volume: &'a dyn Volume, overwrite: bool) -> Result<Self, Error> {
        volume.check_held()?;
        // The next step writes the manifest again, so the volume is checked first.
        check_replaceable(&volume.name(), &volume.list()?, overwrite)?;
        let manifest = Known::settled(volume)?;
        let files = volume.list()?;
        check_replaceable(&volume.name(), &files, overwrite)?;
        // The number is above the numbers of all existing files and of all files that the manifest
        // names. A new file with the name of a missing file would count as a file of the old index
        // until the commit.
        let file = stored::name_of(volume, MANIFEST);
        let decoded = manifest.and_then(|bytes| Manifest::decode(&bytes, &file).ok());
        if let Some(manifest) = &decoded {
            // Recorded inserts belong to a checkpoint id, and must be settled before this id
            // changes.
            inserts::settle(volume, manifest.state.as_deref())?;
        }
        let named = decoded.map_or_else(Vec::new, |manifest| manifest.files);
        let named = named.iter().map(|entry| &entry.name);
        let last = files.iter().chain(named).filter_map(|name| number_of(name));
        let last = last.max();
        let checkpoint = Self {
            volume,
            number: last.unwrap_or(0).saturating_add(1),
            next_log: files
                .iter()
                .filter_map(|name| log_number(name))
                .max()
                .map_or(1, |number| number.saturating_add(1)),
            undecided: false,
            committed: false,
        };
        checkpoint.remove_unnamed();
        Ok(checkpoint)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// A number that no log has, so that a rebuilt index uses no record of the old index's logs.
    pub(crate) fn next_log(&self) -> u64 {
        self.next_log
    }

    /// If an index has several files of this kind, `n` is the number of the file, from 0.
    pub(crate) fn create(
        &self,
        kind: FileKind,
        n: Option<u32>,
    ) -> Result<Box<dyn VolumeFile>, Error> {
        Ok(self.volume.create(&self.name(kind, n))?)
    }

    pub(crate) fn name(&self, kind: FileKind, n: Option<u32>) -> String {
        let number = self.number;
        match n {
            None => format!("{kind}-{number:06}"),
            Some(n) => format!("{kind}-{number:06}-{n:04}"),
        }
    }

    /// Renames the new manifest to `MANIFEST`. If the call fails, the previous checkpoint stays
    /// valid in this process. After a crash, the previous checkpoint is valid too, unless the
    /// rename caused the error.
    pub(crate) fn commit(&mut self, manifest: &Manifest) -> Result<Committed, Error> {
        let (bytes, volume) = (manifest.encode(), self.volume);
        let before = Known::check(volume).inspect_err(|_| self.undecided = true)?;
        write_unfinished(volume, &bytes)?;
        self.undecided = true;
        if let Err(error) = volume.rename(&unfinished(), MANIFEST)
            && !matches!(volume.read(MANIFEST), Ok(now) if now == bytes)
        {
            // On a remote file system, the rename may still take effect later.
            Known::set(volume, before, true);
            return Err(error.into());
        }
        self.committed = true;
        let durable = volume.sync().or_else(|_| put_in_place(volume, &bytes));
        Known::set(volume, Some(bytes), durable.is_err());
        self.undecided = durable.is_err();
        Ok(Committed {
            trouble: durable.err(),
        })
    }

    /// Removes the files that the manifest does not name. If the manifest cannot be read, the
    /// function removes only the files of this checkpoint, and after the commit no file. A file
    /// that cannot be removed only takes space.
    fn remove_unnamed(&self) {
        let (named, log_from) = match self.volume.read(MANIFEST) {
            Ok(bytes) => match Manifest::decode(&bytes, &stored::name_of(self.volume, MANIFEST)) {
                Ok(manifest) => (Named::These(manifest.files), Some(manifest.log_from.number)),
                Err(_) => (Named::Unknown, None),
            },
            Err(TierError::Missing { .. }) => (Named::Nothing, None),
            Err(_) => (Named::Unknown, None),
        };
        if let Some(number) = log_from {
            let _ = remove_logs_before(self.volume, number);
        }
        for name in self.volume.list().unwrap_or_default() {
            let stale = match (number_of(&name), &named) {
                (None, _) => name == unfinished() || is_copy(&name),
                (_, Named::Nothing) => true,
                (_, Named::These(files)) => !files.iter().any(|entry| entry.name == name),
                (Some(number), Named::Unknown) => number == self.number && !self.committed,
            };
            if stale {
                let _ = self.volume.remove(&name);
            }
        }
    }
}

pub(crate) fn check_replaceable(
    volume: &str,
    files: &[String],
    overwrite: bool,
) -> Result<(), Error> {
    let refuse = |reason: String| {
        Err(Error::Exists {
            path: volume.into(),
            reason,
        })
    };
    let indexed = files.iter().any(|name| name == MANIFEST);
    // Files of other programs may stay in an index. NFS, for example, leaves a removed file in the
    // directory while a process has it open.
    if let Some(name) = files.iter().find(|name| !indexed && !is_ours(name)) {
        return refuse(format!(
            "it holds {name:?}, which is no part of an index. Give an empty or new directory"
        ));
    }
    if indexed && !overwrite {
        return refuse(
            "it holds an index already. Give another directory, or ask to replace it (`--overwrite`, in Python `overwrite=True`)"
                .into(),
        );
    }
    if let Some(name) = files.iter().find(|name| !indexed && is_of_changes(name))
        && !overwrite
    {
        return refuse(format!(
            "it holds {name:?}, with changes of an index whose {MANIFEST} is missing, as in an unfinished copy. Put the {MANIFEST} back, give another directory, or ask to replace the files (`--overwrite`, in Python `overwrite=True`)"
        ));
    }
    Ok(())
}

/// Gives the manifest a new checkpoint id ([`Manifest::state`]), by which machines recognise
/// copies.
pub(crate) fn begin_state(manifest: &mut Manifest) -> Result<(), Error> {
    let drawn =
        random().map_err(|source| TierError::io("draw", "a random number", 0, 0, source))?;
    manifest.begin_state(drawn);
    Ok(())
}

#[derive(Debug)]
#[must_use = "it may not be durable"]
pub(crate) struct Committed {
    /// The reason why the commit may not be durable, so that a crash may restore the previous
    /// checkpoint. Until the next checkpoint begins, no page of either checkpoint may be
    /// overwritten.
    pub(crate) trouble: Option<TierError>,
}

impl Committed {
    /// Fails with [`Error::Undurable`] if a crash might restore the previous checkpoint.
    pub(crate) fn durable(self, volume: &dyn Volume) -> Result<(), Error> {
        match self.trouble {
            None => Ok(()),
            Some(source) => Err(Error::Undurable {
                path: volume.name().into(),
                source: Box::new(source),
            }),
        }
    }
}

#[derive(Debug)]
struct Known {
    /// The bytes of the manifest, as last read or written. `None` if there was no manifest.
    manifest: Option<Vec<u8>>,
    /// Whether a crash might restore a different manifest.
    undecided: bool,
}

impl Known {
    /// If this handle has not locked the volume, `work` gets `None`.
    fn with<T>(volume: &dyn Volume, work: impl FnOnce(Option<&mut Known>) -> T) -> T {
        let note = volume.note();
        let Some(mut note) = note
            .as_ref()
            .map(|note| note.lock().unwrap_or_else(PoisonError::into_inner))
        else {
            return work(None);
        };
        work(note.as_mut().and_then(|known| known.downcast_mut()))
    }

    fn set(volume: &dyn Volume, manifest: Option<Vec<u8>>, undecided: bool) {
        if let Some(note) = volume.note() {
            let known = Known {
                manifest,
                undecided,
            };
            *note.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(known));
        }
    }

    /// Reads the manifest, and fails if it differs from the manifest that this process last read or
    /// wrote.
    fn check(volume: &dyn Volume) -> Result<Option<Vec<u8>>, Error> {
        volume.check_held()?;
        let now = match volume.read(MANIFEST) {
            Ok(bytes) => Some(bytes),
            Err(TierError::Missing { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Known::with(volume, |known| match known {
            Some(known) if known.manifest != now => Err(replaced(volume)),
            _ => Ok(now),
        })
    }

    /// Checks like [`check`](Known::check), and makes the manifest durable if necessary.
    fn settled(volume: &dyn Volume) -> Result<Option<Vec<u8>>, Error> {
        let undecided = Known::with(volume, |known| match known {
            Some(known) if known.undecided => Some(Some(known.manifest.clone())),
            Some(_) => Some(None),
            None => None,
        });
        match undecided {
            Some(Some(Some(manifest))) => {
                put_in_place(volume, &manifest)?;
                Known::set(volume, Some(manifest), false);
            }
            // The rename of a first build failed, so the volume must have no manifest.
            Some(Some(None)) => {
                match volume.remove(MANIFEST) {
                    Ok(()) | Err(TierError::Missing { .. }) => volume.sync()?,
                    Err(error) => return Err(error.into()),
                }
                Known::set(volume, None, false);
            }
            // An earlier lock owner may have failed to make the manifest durable.
            None => match Known::check(volume)? {
                Some(manifest) => make_sure(volume, &manifest)?,
                None => volume.sync()?,
            },
            Some(None) => {}
        }
        let now = Known::check(volume)?;
        Known::set(volume, now.clone(), false);
        Ok(now)
    }
}

/// Remembers the manifest of an opened index, for [`Known::check`] at later commits. Makes the
/// manifest durable, so that files and pages that only the previous checkpoint needs may be removed
/// or overwritten.
///
/// # Errors
/// Another manifest is in place now, or the manifest cannot be made durable.
pub(crate) fn opened_from(volume: &dyn Volume, manifest: &Manifest) -> Result<(), Error> {
    let bytes = Known::check(volume)?;
    let file = stored::name_of(volume, MANIFEST);
    match &bytes {
        Some(now) if Manifest::decode(now, &file)? == *manifest => make_sure(volume, now)?,
        _ => return Err(replaced(volume)),
    }
    Known::set(volume, bytes, false);
    Ok(())
}

fn replaced(volume: &dyn Volume) -> Error {
    Error::Tier(TierError::Replaced {
        place: volume.name(),
        what: "this handle neither opened nor wrote its MANIFEST, so another index has replaced it"
            .into(),
    })
}

fn write_unfinished(volume: &dyn Volume, bytes: &[u8]) -> Result<(), TierError> {
    let mut file = volume.create(&unfinished())?;
    file.write_at(0, bytes)?;
    file.sync()?;
    drop(file);
    volume.sync()
}

fn put_in_place(volume: &dyn Volume, bytes: &[u8]) -> Result<(), TierError> {
    write_unfinished(volume, bytes)?;
    volume.rename(&unfinished(), MANIFEST)?;
    volume.sync()
}

/// Writes the manifest again, since after a failed sync, another sync would not make the manifest
/// durable. On a full disk, the manifest is written to the blocks that are reserved for deletes.
fn make_sure(volume: &dyn Volume, bytes: &[u8]) -> Result<(), TierError> {
    let Err(error) = put_in_place(volume, bytes) else {
        return Ok(());
    };
    let _ = volume.remove(&unfinished());
    match error {
        TierError::NoSpace { .. } if replace_in_room(volume, MANIFEST, bytes)? => Ok(()),
        error => Err(error),
    }
}

enum Named {
    These(Vec<FileEntry>),
    /// The volume certainly has no manifest.
    Nothing,
    Unknown,
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        // After a commit, this call removes the files of the replaced checkpoint.
        if !self.undecided {
            self.remove_unnamed();
        }
    }
}

fn unfinished() -> String {
    format!("{MANIFEST}.new")
}

fn number_of(name: &str) -> Option<u64> {
    FileKind::of_name(name).filter(|&kind| kind != FileKind::Log)?;
    let (_, numbers) = name.split_once('-')?;
    let (number, n) = match numbers.split_once('-') {
        Some((number, n)) => (number, Some(n)),
        None => (numbers, None),
    };
    if let Some(n) = n {
        decimal::<u32>(n)?;
    }
    decimal(number)
}

/// Whether the file is a copy of a checkpoint's file, and still has its temporary name.
fn is_copy(name: &str) -> bool {
    copy_of(name).is_some_and(|name| number_of(name).is_some())
}

/// `parse` alone would accept a sign, too.
fn decimal<T: FromStr>(digits: &str) -> Option<T> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok())?
}

pub(crate) fn is_ours(name: &str) -> bool {
    name == MANIFEST
        || is_savepoint(name)
        || name == unfinished()
        || name == unfinished_log()
        || is_room(name)
        || name == INSERTS
        || name == UNFINISHED_INSERTS
        || is_copy(name)
        || number_of(name).is_some()
        || log_number(name).is_some()
}

/// Whether a first build never writes a file of this name. If such a file exists, the volume had an
/// index, even if the manifest is missing.
fn is_of_changes(name: &str) -> bool {
    let kind = FileKind::of_name(name).filter(|_| number_of(name).is_some());
    let changes = matches!(
        kind,
        Some(FileKind::Placement | FileKind::Pending | FileKind::Journal | FileKind::Amended)
    );
    changes || name == INSERTS || log_number(name).is_some()
}

/// Whether the files, if any, may come from a first build that stopped before it wrote its
/// manifest.
pub(crate) fn are_of_first_build<'n>(mut names: impl Iterator<Item = &'n str>) -> bool {
    names.all(|name| name != MANIFEST && is_ours(name) && !is_of_changes(name))
}

#[cfg(test)]
mod tests {
    use stratann_tier::testing::{Crash, Mishap, Operation, SimVolume};

    use super::*;

    #[test]
    fn names_are_told_from_those_of_other_programs() {
        for (name, number) in [
            ("graph-000001", Some(1)),
            ("codes-1000000", Some(1_000_000)),
            ("navigation-000012-0003", Some(12)),
            ("navigation-000012-10000", Some(12)),
            ("navigation-000012-", None),
            ("navigation--0003", None),
            ("navigation-000012-0003-0004", None),
            ("navigation-000012-4294967296", None),
            ("graph-+00001", None),
            ("graph-", None),
            ("graph", None),
            ("graphs-000001", None),
            ("notes-000001", None),
        ] {
            assert_eq!(number_of(name), number, "{name}");
        }
        assert!(is_ours("MANIFEST") && is_ours("MANIFEST.new") && !is_ours("MANIFEST.old"));
        assert!(is_ours("log.new") && !is_ours("log") && !is_ours("graph.new"));
    }

    #[test]
    fn a_checkpoint_knows_the_names_it_gives() {
        let volume = SimVolume::new();
        volume.create("graph-000041-0007").unwrap();
        let checkpoint = Checkpoint::begin(&volume, false).unwrap();
        assert_eq!(
            checkpoint.number(),
            42,
            "the new checkpoint has a number that was used"
        );
        assert!(
            volume.list().unwrap().is_empty(),
            "files of a crashed checkpoint are left"
        );
        for kind in FileKind::ALL
            .into_iter()
            .filter(|&kind| kind != FileKind::Log)
        {
            for n in [None, Some(0), Some(12_345)] {
                assert_eq!(number_of(&checkpoint.name(kind, n)), Some(42));
                checkpoint.create(kind, n).unwrap();
            }
        }
        drop(checkpoint);
        assert!(
            volume.list().unwrap().is_empty(),
            "files of an uncommitted checkpoint are left"
        );
    }

    #[test]
    fn what_took_changes_is_not_replaced_unasked_where_its_manifest_is_away() {
        for name in [
            "log-000003",
            "placement-000002",
            "pending-000002",
            "journal-000002",
            "amended-000002",
        ] {
            let volume = SimVolume::new();
            volume.create("graph-000001").unwrap();
            volume.create(name).unwrap();
            let error = Checkpoint::begin(&volume, false).unwrap_err().to_string();
            assert!(
                error.contains(name) && error.contains("MANIFEST"),
                "{error}"
            );
            assert_eq!(
                volume.list().unwrap().len(),
                2,
                "a refused checkpoint removed a file"
            );
            drop(Checkpoint::begin(&volume, true).unwrap());
        }
    }

    fn manifest_of(checkpoint: &Checkpoint<'_>) -> Manifest {
        let fixture = include_bytes!("../../../../fixtures/index-v1/MANIFEST");
        let mut manifest = Manifest::decode(fixture, "fixture").unwrap();
        manifest.checkpoint = checkpoint.number();
        manifest
            .files
            .retain(|entry| entry.role == FileKind::Graph.name());
        manifest.files[0].name = checkpoint.name(FileKind::Graph, None);
        manifest
    }

    #[test]
    fn a_manifest_that_cannot_be_looked_at_is_not_one_that_is_not_there() {
        let committed = SimVolume::new();
        let mut checkpoint = Checkpoint::begin(&committed, false).unwrap();
        checkpoint.create(FileKind::Graph, None).unwrap();
        let manifest = manifest_of(&checkpoint);
        assert!(checkpoint.commit(&manifest).unwrap().trouble.is_none());
        drop(checkpoint);
        let before = committed.list().unwrap();
        assert_eq!(before, ["MANIFEST", "graph-000001"]);
        for call in 0.. {
            let volume = committed.fork();
            volume.fail_call(call, Mishap::Undone);
            if let Ok(mut checkpoint) = Checkpoint::begin(&volume, true) {
                let second = manifest_of(&checkpoint);
                if checkpoint.create(FileKind::Graph, None).is_ok() {
                    // Even if the commit failed, the volume must have an intact manifest.
                    drop(checkpoint.commit(&second));
                }
            }
            let failed = volume.failed();
            let now = Manifest::decode(&volume.read(MANIFEST).unwrap(), "MANIFEST").unwrap();
            let names = volume.list().unwrap();
            for entry in &now.files {
                assert!(names.contains(&entry.name), "{failed:?}: {names:?}");
            }
            if failed.is_none() {
                assert!(call > 8);
                break;
            }
        }
    }

    fn locked() -> (SimVolume, stratann_tier::LockGuard) {
        let volume = SimVolume::new();
        let lock = volume.lock().unwrap();
        let mut checkpoint = Checkpoint::begin(&volume, false).unwrap();
        checkpoint.create(FileKind::Graph, None).unwrap();
        let manifest = manifest_of(&checkpoint);
        checkpoint
            .commit(&manifest)
            .unwrap()
            .durable(&volume)
            .unwrap();
        drop(checkpoint);
        (volume, lock)
    }

    fn crash_leaves(volume: &SimVolume, numbers: &[u64], what: &str) {
        for mode in Crash::ALL {
            for seed in 0..20 {
                let image = volume.crash_image(seed, mode);
                let bytes = image.read(MANIFEST).unwrap();
                let manifest = Manifest::decode(&bytes, "MANIFEST").unwrap();
                let names = image.list().unwrap();
                assert!(
                    numbers.contains(&manifest.checkpoint),
                    "{what}: {manifest:?}"
                );
                for entry in &manifest.files {
                    assert!(
                        names.contains(&entry.name),
                        "{what}, {mode:?} {seed}: {names:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn until_a_commit_is_durable_both_checkpoints_are_there() {
        for discards in [false, true] {
            // A commit syncs the directory at its start, before the rename and after the rename. A
            // repeated commit syncs twice more.
            for (operation, calls) in [(Operation::SyncNames, 0..6), (Operation::Rename, 0..2)] {
                for (call, mishap) in
                    calls.flat_map(|call| Mishap::ALL.map(|mishap| (call, mishap)))
                {
                    let what = format!("{operation:?} {call} {mishap:?}, discards: {discards}");
                    let (volume, _lock) = locked();
                    volume.discard_failed_syncs(discards, discards);
                    volume.fail_nth(operation, call, mishap);
                    let mut numbers = vec![1];
                    if let Ok(mut checkpoint) = Checkpoint::begin(&volume, true) {
                        checkpoint.create(FileKind::Graph, None).unwrap();
                        let manifest = manifest_of(&checkpoint);
                        if let Ok(committed) = checkpoint.commit(&manifest) {
                            if committed.trouble.is_none() {
                                numbers.clear();
                            }
                            numbers.push(2);
                        } else {
                            numbers.push(2);
                        }
                    }
                    crash_leaves(&volume, &numbers, &what);
                    let failed = volume.failed();
                    let checkpoint = Checkpoint::begin(&volume, true).unwrap();
                    let now = stored::manifest(&volume).unwrap().checkpoint;
                    crash_leaves(&volume, &[now], &what);
                    drop(checkpoint);
                    crash_leaves(&volume, &[now], &what);
                    assert_eq!(volume.list().unwrap().len(), 2, "{what} {failed:?}");
                }
            }
        }
    }

    #[test]
    fn a_commit_that_is_not_durable_says_so_and_removes_nothing() {
        let (volume, _lock) = locked();
        let mut checkpoint = Checkpoint::begin(&volume, true).unwrap();
        checkpoint.create(FileKind::Graph, None).unwrap();
        let manifest = manifest_of(&checkpoint);
        // After the rename, each operation fails: create, write, sync, sync of the directory,
        // rename.
        volume.fail_after(5, stratann_tier::testing::Failure::Io);
        let committed = checkpoint.commit(&manifest).unwrap();
        drop(checkpoint);
        let error = committed.durable(&volume).unwrap_err();
        assert!(matches!(error, Error::Undurable { .. }), "{error}");
        assert!(Checkpoint::begin(&volume, true).is_err());
        crash_leaves(&volume, &[1, 2], "while the disk fails");
        volume.heal();
        crash_leaves(&volume, &[1, 2], "when the disk works again");
        drop(Checkpoint::begin(&volume, true).unwrap());
        crash_leaves(&volume, &[2], "when a checkpoint has begun");
        assert_eq!(volume.list().unwrap(), ["MANIFEST", "graph-000002"]);
    }

    #[test]
    fn nothing_is_committed_on_the_manifest_of_somebody_else() {
        let (volume, _lock) = locked();
        let other = {
            let mut manifest = stored::manifest(&volume).unwrap();
            manifest.checkpoint = 77;
            manifest.encode()
        };
        let mut checkpoint = Checkpoint::begin(&volume, true).unwrap();
        checkpoint.create(FileKind::Graph, None).unwrap();
        let manifest = manifest_of(&checkpoint);
        volume.create(MANIFEST).unwrap().append(&other).unwrap();
        let error = checkpoint.commit(&manifest).unwrap_err();
        assert!(
            error.to_string().contains("open the index again"),
            "{error}"
        );
        drop(checkpoint);
        let replaced = |error| matches!(error, Error::Tier(TierError::Replaced { .. }));
        assert!(replaced(Checkpoint::begin(&volume, true).unwrap_err()));
        assert!(replaced(opened_from(&volume, &manifest).unwrap_err()));
        assert_eq!(volume.read(MANIFEST).unwrap(), other);
        volume.remove(MANIFEST).unwrap();
        assert!(replaced(Checkpoint::begin(&volume, true).unwrap_err()));
        assert_eq!(
            volume.list().unwrap(),
            ["graph-000001", "graph-000002"],
            "the refused checkpoint removed a file"
        );
    }
}
