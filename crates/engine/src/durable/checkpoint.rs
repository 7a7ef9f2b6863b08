//! Checkpoints: how a set of files becomes the index, all at once.
//!
//! ```text
//!   graph-000002  codes-000002  …     written and synced; no manifest names them yet
//!   MANIFEST.new                      written and synced
//!   MANIFEST.new -> MANIFEST          renamed, directory synced: this is the commit
//!   graph-000001  …                   removed: nothing names them any more
//! ```
//!
//! No file is ever overwritten, so a crash at any instant leaves either the previous checkpoint or the new one. What a
//! crash leaves behind is removed by the next writer.

use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{FileKind, Manifest};
use stratann_tier::{Volume, VolumeFile};

use crate::{Error, stored};

/// A checkpoint being written. Dropped before it is committed, it removes what was written.
pub(crate) struct Checkpoint<'a> {
    volume: &'a dyn Volume,
    /// Part of every file name, so that no file is ever overwritten.
    number: u64,
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
                "it holds an index already; give another directory, or `--overwrite` to replace it"
                    .into(),
            );
        }
        // A damaged manifest must not keep anyone from building the index anew.
        let last = stored::manifest(volume).map_or(0, |manifest| manifest.checkpoint);
        let checkpoint = Self {
            volume,
            number: last + 1,
        };
        checkpoint.remove_unnamed();
        Ok(checkpoint)
    }

    /// Its number, counted up from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// A new file of a kind.
    pub(crate) fn create(&self, kind: FileKind) -> Result<Box<dyn VolumeFile>, Error> {
        Ok(self.volume.create(&self.name(kind))?)
    }

    /// The name of this checkpoint's file of a kind.
    pub(crate) fn name(&self, kind: FileKind) -> String {
        format!("{}-{:06}", kind.name(), self.number)
    }

    /// Makes the manifest the index; from here on the new checkpoint is what opens.
    pub(crate) fn commit(&self, manifest: &Manifest) -> Result<(), Error> {
        let unfinished = format!("{MANIFEST}.new");
        let mut file = self.volume.create(&unfinished)?;
        file.write_at(0, &manifest.encode())?;
        file.sync()?;
        drop(file);
        self.volume.sync()?;
        self.volume.rename(&unfinished, MANIFEST)?;
        self.volume.sync()?;
        Ok(())
    }

    /// Removes the files that no manifest names. Failing to is no failure: they are only bytes.
    fn remove_unnamed(&self) {
        let manifest = stored::manifest(self.volume).ok();
        let named = |name: &str| {
            manifest
                .as_ref()
                .is_some_and(|m| m.files.iter().any(|entry| entry.name == name))
        };
        for name in self.volume.list().unwrap_or_default() {
            let keep = name == MANIFEST || named(&name);
            if is_ours(&name) && !keep {
                let _ = self.volume.remove(&name);
            }
        }
    }
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        // After a commit, this removes the files of the checkpoint that was replaced.
        self.remove_unnamed();
    }
}

/// Whether a file name is one that this engine gives.
fn is_ours(name: &str) -> bool {
    let numbered = |kind: FileKind| {
        name.strip_prefix(kind.name())
            .and_then(|rest| rest.strip_prefix('-'))
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    };
    name == MANIFEST
        || name.strip_prefix(MANIFEST) == Some(".new")
        || FileKind::ALL.into_iter().any(numbered)
}
