//! Lists the copies of all owners at a place, and removes them.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

use super::folder::{CopyFolder, IN_USE, PREFIX, remove_unused};
use crate::directory::Directory;
use crate::error::TierError;
use crate::volume::Volume;

/// A folder of copies, as it was when it was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCopies {
    /// The path of the folder.
    pub path: PathBuf,
    /// The owner, as passed to [`CopyFolder::open`].
    pub owner: String,
    /// The content, as passed to [`CopyFolder::open`].
    pub content: String,
    /// The number of files.
    pub files: u64,
    /// The total size of all files in bytes.
    pub bytes: u64,
    /// Whether a process has the folder open.
    pub in_use: bool,
}

impl FoundCopies {
    /// Removes the folder, unless a process has it open. Returns whether the folder is gone.
    ///
    /// # Errors
    /// Fails if the path cannot be looked up.
    pub fn remove(&self) -> Result<bool, TierError> {
        remove_unused(&self.path, None);
        let there = self.path.try_exists();
        there
            .map(|there| !there)
            .map_err(failed("look for", &self.path))
    }
}

fn may_not_be_listed(error: &TierError) -> bool {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    match error {
        TierError::Missing { .. } | TierError::Denied { .. } => true,
        TierError::Io { source, .. } => matches!(source.kind(), NotFound | PermissionDenied),
        _ => false,
    }
}

fn failed(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> TierError {
    let place = path.display().to_string();
    move |error| TierError::io(action, place.clone(), 0, 0, error)
}

impl CopyFolder {
    /// Lists the folders of copies at a place, sorted by path, except unreadable ones.
    ///
    /// # Errors
    /// Fails if the place cannot be listed.
    pub fn found_at(place: &Path) -> Result<Vec<FoundCopies>, TierError> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(place).map_err(failed("list", place))? {
            let entry = entry.map_err(failed("list", place))?;
            let name = entry.file_name();
            let parts = (name.to_str())
                .and_then(|name| name.strip_prefix(PREFIX))
                .and_then(|name| name.split_once('-'));
            let Some((owner, content)) = parts else {
                continue;
            };
            // A folder that was removed meanwhile is skipped.
            let Ok(directory) = Directory::open_private(&entry.path()) else {
                continue;
            };
            let names = match directory.list() {
                Ok(names) => names,
                Err(error) if may_not_be_listed(&error) => {
                    tracing::warn!("{error}; these copies are left out of the list");
                    continue;
                }
                Err(error) => return Err(error),
            };
            let lengths = names.iter().filter(|name| *name != IN_USE);
            let lengths: Vec<u64> = lengths
                .filter_map(|name| directory.len(name).ok())
                .collect();
            let lock = directory.open_with(IN_USE, OFlags::RDWR | OFlags::NOFOLLOW);
            let alone = |lock: File| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
            found.push(FoundCopies {
                path: entry.path(),
                owner: owner.to_owned(),
                content: content.to_owned(),
                files: lengths.len() as u64,
                bytes: lengths.iter().sum(),
                in_use: !lock.is_ok_and(alone),
            });
        }
        found.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_that_cannot_be_listed_ends_no_listing() {
        let place = tempfile::tempdir().unwrap();
        for name in ["a-1", "b-2", "c-3"] {
            let path = place.path().join(format!("{PREFIX}{name}"));
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("pages"), [0; 7]).unwrap();
            let mode = if name == "b-2" { 0o300 } else { 0o700 };
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        }
        let closed = place.path().join(format!("{PREFIX}b-2"));
        if std::fs::read_dir(&closed).is_ok() {
            println!("skipped: this user may list folders without read permission");
            return;
        }
        let found = CopyFolder::found_at(place.path()).unwrap();
        std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
        let found: Vec<_> = found.iter().map(|one| (&*one.owner, one.bytes)).collect();
        assert_eq!(found, [("a", 7), ("c", 7)]);
    }
}
