//! A folder for scratch files that a build creates in the directory of the index.

use std::io;
use std::path::{Path, PathBuf};

use stratann_tier::{Home, TierError, Volume};

use crate::Error;

/// A folder for data that a build under a memory cap cannot have in memory. After a crash, the next
/// build removes the folder.
pub(crate) struct ScratchFolder(PathBuf, Home);

impl ScratchFolder {
    /// The caller must have the lock of the index. If `index` is no longer the path of the locked
    /// directory, the call fails before it creates a file.
    pub(crate) fn beside(volume: &dyn Volume, index: &Path) -> Result<Self, Error> {
        volume.check_held()?;
        volume.check_path(index)?;
        let folder = Self(index.join("build-scratch"), Home::here());
        folder.remove();
        let failed = |source| TierError::io("create", folder.0.display().to_string(), 0, 0, source);
        std::fs::create_dir(&folder.0).map_err(failed)?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn remove(&self) {
        match std::fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(folder = %self.0.display(), "scratch files cannot be removed ({error}); the next build removes them");
            }
            _ => {}
        }
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // A forked process must leave the files of the build unchanged.
        if self.1.is_here() {
            self.remove();
        }
    }
}
