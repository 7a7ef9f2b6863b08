//! Checkpoints: how a set of files becomes the index, all at once.
//!
//! ```text
//!   graph-000002  codes-000002  …     written and synced; no manifest names them yet
//!   vectors-000002-0000  …            the same, for kinds of which an index has several files
//!   MANIFEST.new                      written and synced
//!   MANIFEST.new -> MANIFEST          renamed, directory synced: this is the commit
//!   graph-000001  …                   removed: nothing names them any more
//!   log-000001  …                     those before the one that the manifest names: removed as well
//! ```
//!
//! No file is ever overwritten, so a crash at any instant leaves either the previous checkpoint or the new one. What a
//! crash leaves behind is removed by the next writer.

use std::str::FromStr;

use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{FileEntry, FileKind, Manifest};
use stratann_tier::{TierError, Volume, VolumeFile};

use super::log::{number_of as log_number, remove_logs_before};
use crate::{Error, stored};

/// A checkpoint being written. Dropped before it is committed, it removes what was written.
pub(crate) struct Checkpoint<'a> {
    volume: &'a dyn Volume,
    /// Part of every file name, and higher than that of any file there is, so that no file is ever overwritten.
    number: u64,
    /// Higher than the number of any log there is.
    next_log: u64,
    /// Set while nobody can tell whether the old manifest or the new one is durable.
    undecided: bool,
    /// Whether its manifest is in place.
    committed: bool,
}

impl<'a> Checkpoint<'a> {
    /// Starts a checkpoint in a volume that the caller has locked; clears what a crash left there.
    ///
    /// # Errors
    /// The volume holds files that are not ours, or an index that is not to be replaced.
    pub(crate) fn begin(volume: &'a dyn Volume, overwrite: bool) -> Result<Self, Error> {
        let refuse = |reason: String| {
            Err(Error::Exists {
                path: volume.name().into(),
                reason,
            })
        };
        let files = volume.list()?;
        if let Some(name) = files.iter().find(|name| !is_ours(name)) {
            return refuse(format!(
                "it holds {name:?}, which is no part of an index; give an empty or new directory"
            ));
        }
        let indexed = files.iter().any(|name| name == MANIFEST);
        if indexed && !overwrite {
            return refuse(
                "it holds an index already; give another directory, or ask to replace it (`--overwrite`, in Python `overwrite=True`)"
                    .into(),
            );
        }
        // From the names of the files, not from the manifest: one that is damaged, or of a later format, must not keep
        // anyone from building the index anew, and what it names stays until the new index is whole.
        // Names that it gives to files that are gone are not given to others: until the commit they would be its own.
        let named = stored::manifest(volume).map_or_else(|_| Vec::new(), |manifest| manifest.files);
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

    /// Its number, counted up from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// A number that no log has: an index that is built anew has nothing of what was logged for the one before it.
    pub(crate) fn next_log(&self) -> u64 {
        self.next_log
    }

    /// A new file of a kind: the `n`-th, from 0, of a kind of which an index has several.
    pub(crate) fn create(
        &self,
        kind: FileKind,
        n: Option<u32>,
    ) -> Result<Box<dyn VolumeFile>, Error> {
        Ok(self.volume.create(&self.name(kind, n))?)
    }

    /// The name of this checkpoint's file of a kind; `n` as in [`Checkpoint::create`].
    pub(crate) fn name(&self, kind: FileKind, n: Option<u32>) -> String {
        let number = self.number;
        match n {
            None => format!("{kind}-{number:06}"),
            Some(n) => format!("{kind}-{number:06}-{n:04}"),
        }
    }

    /// Makes the manifest the index; from here on the new checkpoint is what opens.
    pub(crate) fn commit(&mut self, manifest: &Manifest) -> Result<(), Error> {
        let unfinished = unfinished();
        let mut file = self.volume.create(&unfinished)?;
        file.write_at(0, &manifest.encode())?;
        file.sync()?;
        drop(file);
        self.volume.sync()?;
        self.undecided = true;
        self.volume.rename(&unfinished, MANIFEST)?;
        self.committed = true;
        self.volume.sync()?;
        self.undecided = false;
        Ok(())
    }

    /// Removes the files that the manifest does not name. Failing to is no failure: they are only bytes. Where nobody knows
    /// what the manifest names, because it cannot be read or is damaged, only what this checkpoint wrote goes, and
    /// not even that once it is committed. That there is no manifest has to be certain as well.
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
                (None, _) => name == unfinished(),
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

/// What the manifest in a volume names.
enum Named {
    These(Vec<FileEntry>),
    /// There is certainly none.
    Nothing,
    Unknown,
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        // After a commit, this removes the files of the checkpoint that was replaced.
        if !self.undecided {
            self.remove_unnamed();
        }
    }
}

/// The name of the manifest before it counts.
fn unfinished() -> String {
    format!("{MANIFEST}.new")
}

/// The checkpoint's number in a name that [`Checkpoint::name`] gave.
fn number_of(name: &str) -> Option<u64> {
    let (kind, numbers) = name.split_once('-')?;
    let log = FileKind::Log.name();
    if kind == log || !FileKind::ALL.iter().any(|known| known.name() == kind) {
        return None;
    }
    let (number, n) = match numbers.split_once('-') {
        Some((number, n)) => (number, Some(n)),
        None => (numbers, None),
    };
    if let Some(n) = n {
        decimal::<u32>(n)?;
    }
    decimal(number)
}

/// A number that is written with digits only; `parse` alone would take a sign as well.
fn decimal<T: FromStr>(digits: &str) -> Option<T> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok())?
}

/// Whether a file name is one that this engine gives.
fn is_ours(name: &str) -> bool {
    name == MANIFEST
        || name == unfinished()
        || number_of(name).is_some()
        || log_number(name).is_some()
}

#[cfg(test)]
mod tests {
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
    }

    #[test]
    fn a_checkpoint_knows_the_names_it_gives() {
        let volume = stratann_tier::SimVolume::new();
        volume.create("graph-000041-0007").unwrap();
        let checkpoint = Checkpoint::begin(&volume, false).unwrap();
        assert_eq!(
            checkpoint.number(),
            42,
            "a number that was used is not used again"
        );
        assert!(
            volume.list().unwrap().is_empty(),
            "what a crash left is removed"
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
            "what was not committed is removed"
        );
    }

    /// The manifest of an index of one file, which the checkpoint has, for tests that do not look into it.
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
        let committed = stratann_tier::SimVolume::new();
        let mut checkpoint = Checkpoint::begin(&committed, false).unwrap();
        checkpoint.create(FileKind::Graph, None).unwrap();
        let manifest = manifest_of(&checkpoint);
        checkpoint.commit(&manifest).unwrap();
        drop(checkpoint);
        let before = committed.list().unwrap();
        assert_eq!(before, ["MANIFEST", "graph-000001"]);
        // Whatever fails once, at the begin of a checkpoint, at its commit or at its end.
        for call in 0.. {
            let volume = committed.fork();
            volume.fail_call(call, stratann_tier::Mishap::Undone);
            if let Ok(mut checkpoint) = Checkpoint::begin(&volume, true) {
                let second = manifest_of(&checkpoint);
                if checkpoint.create(FileKind::Graph, None).is_ok() {
                    let _ = checkpoint.commit(&second);
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
}
