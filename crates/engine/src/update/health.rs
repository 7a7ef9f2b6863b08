//! What went wrong with an index that is open for changes, for those who ask: the first and the last of each kind, and how often.
//!
//! Most of it loses nothing and is tried again: a checkpoint that has no room, a vector that waits in memory. Some of it ends the
//! changes of a handle: after a sync of pages that failed nobody knows what the disk has, and a later sync that succeeds does not
//! say so either; and a directory whose manifest is not the one that this handle went on from is somebody else's. Then searches
//! go on, nothing is written any more, and whoever opens the index again starts from what is there: the checkpoint and the log.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;
use stratann_layout::Manifest;
use stratann_tier::{TierError, Volume};

use crate::{Error, stored};

/// What a trouble is with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Concern {
    /// A checkpoint that counts, and of which nobody knows whether it is durable.
    Commit,
    /// Vectors that cannot get into the graph on storage, and wait in memory.
    Vectors,
    /// Changes that cannot get onto their pages, and wait in memory.
    Pages,
    /// A checkpoint that was due.
    Checkpoint,
    /// A merge that was due.
    Merge,
    /// What is left of what is not needed any more.
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
    /// What it means, for whoever reads it.
    fn says(self) -> &'static str {
        match self {
            Self::Commit => {
                "a checkpoint counts, but a crash of the machine may bring back the one before; the files of both stay until \
                 another one is made"
            }
            Self::Vectors => "vectors wait in the log for the graph",
            Self::Pages => "changes of lists wait in memory for their pages, until a merge",
            Self::Checkpoint => {
                "no checkpoint could be made, so that opening the index takes longer; in a cluster index vectors wait in memory for their clusters"
            }
            Self::Merge => "a merge that was due could not be made, and will be tried again",
            Self::Rest => "files that are not needed any more could not be removed",
        }
    }
}

/// The first and the last of what happened, and how often.
#[derive(Clone, Debug)]
struct Trouble {
    first: String,
    last: String,
    times: u64,
}

/// The state of an index that is open for changes.
#[derive(Debug)]
pub(crate) struct Health {
    path: PathBuf,
    /// What this handle went on from: the manifest that it opened, or the last that it committed.
    manifest: Mutex<Manifest>,
    /// Why nothing is changed any more.
    halted: OnceLock<String>,
    troubles: Mutex<[Option<Trouble>; CONCERNS.len()]>,
}

impl Health {
    /// Of an index in a directory that has such a manifest.
    pub(crate) fn new(path: &Path, manifest: Manifest) -> Self {
        Self {
            path: path.to_owned(),
            manifest: Mutex::new(manifest),
            halted: OnceLock::new(),
            troubles: Mutex::default(),
        }
    }

    /// Nothing is changed any more through this handle.
    pub(crate) fn halt(&self, reason: impl Into<String>) {
        let reason = reason.into();
        tracing::error!(index = %self.path.display(), "no more changes: {reason}");
        // The first reason is the one that counts.
        self.halted.get_or_init(|| reason);
    }

    /// A sync of a file of pages failed: what the disk has of them, nobody knows.
    pub(crate) fn sync_failed(&self, error: &dyn std::fmt::Display) {
        self.halt(format!(
            "a sync of its pages failed ({error}), so that nobody knows what the disk has of them; what was acknowledged is in the log, and searches go on"
        ));
    }

    /// The directory is not the one that this handle changes.
    pub(crate) fn replaced(&self, what: &str) {
        self.halt(format!(
            "{what}, so that what is at its path now is not what was opened here; nothing more is written there"
        ));
    }

    /// The manifest in the directory, which a checkpoint goes on from: no other than the one that this handle knows.
    ///
    /// # Errors
    /// It is another one, or gone: nothing is changed any more. Or it cannot be read.
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
                    self.replaced("its MANIFEST is gone, or that of something else");
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

    /// A checkpoint was committed: this is what the next one goes on from.
    pub(crate) fn committed(&self, manifest: Manifest) {
        *self.manifest.lock() = manifest;
    }

    /// Whether nothing is changed any more.
    pub(crate) fn is_halted(&self) -> bool {
        self.halted.get().is_some()
    }

    /// Refuses a change where nothing is changed any more.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.halted.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Halted {
                path: self.path.clone(),
                reason: reason.clone(),
            }),
        }
    }

    /// Something went wrong that the call at hand does not tell of.
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
        // As often as it is new, and then ever more seldom.
        if known.last != error || known.times.is_power_of_two() {
            tracing::warn!(index = %self.path.display(), times = known.times, "{says}: {error}");
        }
        known.last = error;
    }

    /// A checkpoint that was due was not made, or nobody knows whether it is durable.
    pub(crate) fn no_checkpoint(&self, error: &Error) {
        let concern = match error {
            Error::Undurable { .. } => Concern::Commit,
            _ => Concern::Checkpoint,
        };
        self.trouble(concern, error);
    }

    /// It is over.
    pub(crate) fn recovered(&self, concern: Concern) {
        let mut troubles = self.troubles.lock();
        if let Some(trouble) = troubles.get_mut(concern as usize).and_then(Option::take) {
            let (says, times) = (concern.says(), trouble.times);
            tracing::info!(index = %self.path.display(), times, "over: {says}");
        }
    }

    /// What is wrong now, if anything is.
    pub(crate) fn says(&self) -> Option<String> {
        if let Some(reason) = self.halted.get() {
            return Some(format!(
                "it takes no more changes here: {reason}; close this handle, then open the index again"
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
        assert!(says.starts_with("a checkpoint counts"), "{says}");
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
            refused.contains("close this handle, then open"),
            "{refused}"
        );
        assert!(health.says().unwrap().contains("EIO"));
    }
}
