//! The failures of an index that is open for changes: the first, the last and the number of each
//! kind.
//!
//! After most failures, no change is lost, and the index tries the operation again. Two failures
//! end all changes through a handle: a failed sync of pages, after which the content of the disk is
//! unknown, and a manifest in the directory that another writer has written. Searches continue, and
//! a process that opens the index again starts from the checkpoint and the log.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;
use stratann_layout::Manifest;
use stratann_tier::{TierError, Volume};

use crate::{Error, stored};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Concern {
    /// The checkpoint is valid, but may not be durable.
    Commit,
    /// An insert into the graph on storage. The vectors wait in memory.
    Vectors,
    /// A write of changes of lists to their pages. The changes wait in memory.
    Pages,
    Checkpoint,
    Merge,
    /// A removal of files that are no longer needed.
    Rest,
}

const CONCERNS: [Concern; 6] = [
    Concern::Commit,
    Concern::Vectors,
    Concern::Pages,
    Concern::Checkpoint,
    Concern::Merge,
    Concern::Rest,
];

impl Concern {
    /// The consequence of the failure, for users.
    fn says(self) -> &'static str {
        match self {
            Self::Commit => {
                "the last checkpoint is in use but may not be durable: a crash of the machine may bring back the checkpoint before it; \
                 the files of both stay until another checkpoint is made"
            }
            Self::Vectors => {
                "vectors wait in memory and in the log until they are inserted into the graph"
            }
            Self::Pages => {
                "changes of lists could not be written to their pages, and wait in memory until a merge"
            }
            Self::Checkpoint => {
                "no checkpoint could be made, so the next open of the index takes longer; in a cluster index, vectors wait in memory until they are moved into clusters"
            }
            Self::Merge => "a merge that was due could not be made, and will be tried again",
            Self::Rest => "files that are no longer needed could not be removed",
        }
    }
}

#[derive(Clone, Debug)]
struct Trouble {
    first: String,
    last: String,
    times: u64,
}

#[derive(Debug)]
pub(crate) struct Health {
    path: PathBuf,
    /// The manifest on which the next checkpoint builds: opened, or last committed, by this handle.
    manifest: Mutex<Manifest>,
    halted: OnceLock<String>,
    troubles: Mutex<[Option<Trouble>; CONCERNS.len()]>,
}

impl Health {
    pub(crate) fn new(path: &Path, manifest: Manifest) -> Self {
        Self {
            path: path.to_owned(),
            manifest: Mutex::new(manifest),
            halted: OnceLock::new(),
            troubles: Mutex::default(),
        }
    }

    pub(crate) fn halt(&self, reason: impl Into<String>) {
        let reason = reason.into();
        tracing::error!(index = %self.path.display(), "no more changes: {reason}");
        self.halted.get_or_init(|| reason);
    }

    /// After a failed sync of pages, the content of their file is unknown.
    pub(crate) fn sync_failed(&self, error: &dyn std::fmt::Display) {
        self.halt(format!(
            "a sync of the index's pages failed ({error}), so the contents of the disk are unknown; the log has all acknowledged changes, and searches continue"
        ));
    }

    /// The path no longer has the directory and the manifest of this handle.
    pub(crate) fn replaced(&self, what: &str) {
        self.halt(format!(
            "{what}, so the path no longer has the index that was opened; nothing more is written there"
        ));
    }

    /// Reads the manifest in the directory, on which the next checkpoint builds. If the manifest is
    /// missing, or is not the manifest that this handle last opened or committed, the handle
    /// accepts no more changes.
    pub(crate) fn standing(&self, volume: &dyn Volume) -> Result<Manifest, Error> {
        self.check()?;
        let held = volume.check_held().map_err(Error::from);
        let found = match held.and_then(|()| stored::manifest(volume)) {
            Ok(manifest) => manifest,
            Err(error) => {
                if let Error::Tier(TierError::Replaced { .. }) = &error {
                    self.replaced("its directory was removed or replaced");
                    self.check()?;
                }
                if matches!(error, Error::NotAnIndex { .. } | Error::Layout(_)) {
                    self.replaced("its MANIFEST is gone, or is not the manifest of an index");
                    self.check()?;
                }
                return Err(error);
            }
        };
        if found != *self.manifest.lock() {
            self.replaced("its MANIFEST was replaced by another program");
            self.check()?;
        }
        Ok(found)
    }

    pub(crate) fn committed(&self, manifest: Manifest) {
        *self.manifest.lock() = manifest;
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.halted.get().is_some()
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.halted.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Halted {
                path: self.path.clone(),
                reason: reason.clone(),
            }),
        }
    }

    /// Records a failure that the current call does not return as its error.
    pub(crate) fn trouble(&self, concern: Concern, error: &dyn std::fmt::Display) {
        let (error, says) = (error.to_string(), concern.says());
        let mut troubles = self.troubles.lock();
        let Some(slot) = troubles.get_mut(concern as usize) else {
            return;
        };
        let known = slot.get_or_insert_with(|| Trouble {
            first: error.clone(),
            last: String::new(),
            times: 0,
        });
        known.times += 1;
        // The same failure is logged again whenever the number of failures is a power of two.
        if known.last != error || known.times.is_power_of_two() {
            tracing::warn!(index = %self.path.display(), times = known.times, "{says}: {error}");
        }
        known.last = error;
    }

    /// Records that a due checkpoint was not made, or may not be durable.
    pub(crate) fn no_checkpoint(&self, error: &Error) {
        let concern = match error {
            Error::Undurable { .. } => Concern::Commit,
            _ => Concern::Checkpoint,
        };
        self.trouble(concern, error);
    }

    pub(crate) fn recovered(&self, concern: Concern) {
        let mut troubles = self.troubles.lock();
        if let Some(trouble) = troubles.get_mut(concern as usize).and_then(Option::take) {
            let (says, times) = (concern.says(), trouble.times);
            tracing::info!(index = %self.path.display(), times, "over: {says}");
        }
    }

    /// The failure that a user should know first.
    pub(crate) fn says(&self) -> Option<String> {
        if let Some(reason) = self.halted.get() {
            return Some(format!(
                "this handle takes no more changes: {reason}. Close this handle, then open the index again"
            ));
        }
        let troubles = self.troubles.lock();
        let mut known = CONCERNS.iter().zip(&*troubles);
        known.find_map(|(concern, trouble)| {
            let Trouble { first, last, times } = trouble.as_ref()?;
            let says = concern.says();
            Some(match times {
                1 => format!("{says}: {last}"),
                _ if first == last => format!("{says}: {last} ({times} times)"),
                _ => format!("{says}: {last} ({times} times; the first: {first})"),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use stratann_tier::testing::SimVolume;
    use stratann_vector::Element;

    use super::*;
    use crate::build::{BuildOptions, build_rows};
    use crate::data::Matrix;

    #[test]
    fn the_first_and_the_last_of_each_kind_are_told_until_they_are_over() {
        let folder = tempfile::tempdir().unwrap();
        let (volume, rows) = (
            SimVolume::new(),
            Matrix::new(vec![7; 32], 2, 16, Element::U8),
        );
        let options = BuildOptions {
            degree: Some(2),
            threads: 1,
            ..BuildOptions::default()
        };
        build_rows(&volume, &rows.unwrap(), &options, folder.path());
        let manifest = stored::manifest(&volume).unwrap();
        let health = Health::new(Path::new("x"), manifest);
        assert_eq!(health.says(), None);
        health.trouble(Concern::Merge, &"no room");
        for error in ["a", "b", "c"] {
            health.trouble(Concern::Checkpoint, &error);
        }
        let says = health.says().unwrap();
        assert!(says.starts_with("no checkpoint could be made"), "{says}");
        assert!(says.ends_with(": c (3 times; the first: a)"), "{says}");
        health.recovered(Concern::Checkpoint);
        assert!(health.says().unwrap().ends_with("tried again: no room"));
        health.recovered(Concern::Merge);
        assert_eq!((health.says(), health.is_halted()), (None, false));
        let undurable = Error::Undurable {
            path: "x".into(),
            source: Box::new(TierError::Crashed { place: "x".into() }),
        };
        health.no_checkpoint(&Error::Interrupted);
        health.no_checkpoint(&undurable);
        let says = health.says().unwrap();
        assert!(says.starts_with("the last checkpoint is in use"), "{says}");
        health.recovered(Concern::Commit);
        assert!(health.says().unwrap().starts_with("no checkpoint"));
        health.recovered(Concern::Checkpoint);
        health.check().unwrap();
        health.sync_failed(&"EIO");
        health.halt("another one");
        let refused = health.check().unwrap_err().to_string();
        assert!(
            refused.contains("EIO") && !refused.contains("another"),
            "{refused}"
        );
        assert!(
            refused.contains("Close this handle, then open"),
            "{refused}"
        );
        assert!(health.says().unwrap().contains("EIO"));
    }
}
