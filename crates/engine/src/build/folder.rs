//! A folder for scratch files in the directory of an index, while one is built there.

use std::io;
use std::path::{Path, PathBuf};

use stratann_tier::{Home, TierError, Volume};

use crate::Error;

/// Where a build under a memory cap spools what does not fit. Removed when dropped; a folder that a crash left is
/// removed by the next build.
pub(crate) struct ScratchFolder(PathBuf, Home);

impl ScratchFolder {
    /// Creates the folder in the directory of an index, whose lock the caller holds. Nothing is made, and nothing removed, where
    /// another directory has taken its path.
    pub(crate) fn beside(volume: &dyn Volume, index: &Path) -> Result<Self, Error> {
        volume.check_held()?;
        volume.check_path(index)?;
        let folder = Self(index.join("build-scratch"), Home::here());
        folder.remove();
        let failed = |source| TierError::io("create", folder.0.display().to_string(), 0, 0, source);
        std::fs::create_dir(&folder.0).map_err(failed)?;
        Ok(folder)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn remove(&self) {
        match std::fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(folder = %self.0.display(), "cannot remove scratch files; the next build does: {error}");
            }
            _ => {}
        }
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // A process that was forked meanwhile, by who is told of the progress, is to leave the build alone.
        if self.1.is_here() {
            self.remove();
        }
    }
}
