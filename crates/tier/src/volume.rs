//! The interface for writing an index: a directory of files, with exactly the guarantees of a file
//! system.
//!
//! After a crash, only changes before a successful sync are certain. [`VolumeFile::sync`] makes
//! bytes durable, and [`Volume::sync`] makes names durable (creation, rename, removal). Any other
//! change may be lost, take effect in part, or take effect in another order.
//! [`Directory`](crate::Directory) is a volume of the file system. `SimVolume` (feature `testing`)
//! crashes on demand.

use std::any::Any;
use std::fmt::{self, Debug};
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::error::TierError;
use crate::tier::Tier;

/// A flat directory of files. Names contain no separators.
pub trait Volume: Send + Sync + Debug {
    /// The name of the volume in messages: its path.
    fn name(&self) -> String;

    /// The name of a file in messages: its path.
    fn place(&self, name: &str) -> String {
        format!("{}/{name}", self.name())
    }

    /// Creates an empty file. If another file has this name, it loses the name, but is not
    /// truncated.
    fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError>;

    /// Opens an existing file for writing. Refuses a link ([`TierError::NotPlain`]).
    fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError>;

    /// Opens an existing file for writing single blocks, if possible without the page cache.
    fn open_pages(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.open(name)
    }

    /// Reads all bytes of a file.
    fn read(&self, name: &str) -> Result<Vec<u8>, TierError>;

    /// Fills `out` with the bytes from `offset` on. Fails if the file ends before.
    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError>;

    /// Opens a file for reading in pieces, even after it is renamed or removed.
    fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError>;

    /// The length of a file in bytes.
    fn len(&self, name: &str) -> Result<u64, TierError>;

    /// Whether there is a file of this name; an error if that cannot be determined.
    fn exists(&self, name: &str) -> Result<bool, TierError> {
        match self.len(name) {
            Ok(_) => Ok(true),
            Err(TierError::Missing { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens a file for random reads.
    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError>;

    /// Whether a file has several hard links. If so, a [copy](fn@crate::own) must replace the file
    /// before a write.
    fn has_other_names(&self, _name: &str) -> Result<bool, TierError> {
        Ok(false)
    }

    /// Renames a file, atomically. Replaces another file of the new name.
    fn rename(&self, from: &str, to: &str) -> Result<(), TierError>;

    /// Removes a file.
    fn remove(&self, name: &str) -> Result<(), TierError>;

    /// The names of all files, sorted.
    fn list(&self) -> Result<Vec<String>, TierError>;

    /// Makes all creations, renames and removals of names durable.
    fn sync(&self) -> Result<(), TierError>;

    /// Reserves `bytes` bytes of storage for an empty file of this name, beyond its end. Later
    /// writes there need no free space, even after a rename. A new file replaces a file that is not
    /// empty. `false` if the file system does not support reservations.
    ///
    /// # Errors
    /// [`TierError::NoSpace`], or an error of the volume.
    fn keep_room(&self, name: &str, bytes: u64) -> Result<bool, TierError> {
        let _ = (name, bytes);
        Ok(false)
    }

    /// The bytes that [`keep_room`](Volume::keep_room) reserved beyond a file's end.
    ///
    /// # Errors
    /// Fails if an operation of the volume fails.
    fn kept_room(&self, name: &str) -> Result<u64, TierError> {
        let _ = name;
        Ok(0)
    }

    /// Locks the volume for writing, or returns [`TierError::InUse`]. Readers need no lock.
    fn lock(&self) -> Result<LockGuard, TierError>;

    /// Stores a line that names the lock owner, and a line with the remedy, for
    /// [`TierError::InUse`].
    fn held_as(&self, what: &str, remedy: &str) {
        let _ = (what, remedy);
    }

    /// Checks that the volume, and the lock file of its lock, still exist under their paths.
    ///
    /// # Errors
    /// [`TierError::Replaced`] if either is gone; [`TierError::Forked`] in a fork of the lock
    /// owner.
    fn check_held(&self) -> Result<(), TierError> {
        Ok(())
    }

    /// Checks that the path still leads to this volume, before writing by that path.
    ///
    /// # Errors
    /// [`TierError::Replaced`] if the path leads elsewhere.
    fn check_path(&self, _path: &Path) -> Result<(), TierError> {
        Ok(())
    }

    /// The device and the inode of the volume's directory, if it is one.
    fn identity(&self) -> Option<(u64, u64)> {
        None
    }

    /// The value that the lock owner stores with the lock, empty at first; `None` if there is no
    /// lock.
    fn note(&self) -> Option<Arc<Note>> {
        None
    }
}

/// A value that the owner of a volume's lock stores. It is dropped with the lock.
pub type Note = Mutex<Option<Box<dyn Any + Send>>>;

/// A file that is open for reading.
pub trait VolumeReader: Send + Sync + Debug {
    /// The current length in bytes.
    fn size(&self) -> Result<u64, TierError>;

    /// Fills `out` with the bytes from `offset` on. Fails if the file ends before.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), TierError>;

    /// The underlying file of the operating system, for [`VolumeFile::share`].
    fn as_file(&self) -> Option<&File> {
        None
    }
}

/// A file that is open for writing.
pub trait VolumeFile: Send + Debug {
    /// Writes all of `bytes` at `offset`. A gap before `offset` reads as zeros.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TierError>;

    /// The length in bytes.
    fn len(&self) -> u64;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Truncates the file, or extends it with zeros.
    fn set_len(&mut self, len: u64) -> Result<(), TierError>;

    /// Makes the file's bytes and length durable.
    fn sync(&mut self) -> Result<(), TierError>;

    /// Makes this file a reflink of `source`; `false` if the file system does not support reflinks.
    ///
    /// # Errors
    /// Fails if this process was forked from the process that opened the file.
    fn share(&mut self, source: &dyn VolumeReader) -> Result<bool, TierError> {
        let _ = source;
        Ok(false)
    }

    /// Writes `bytes` at the end, and returns their offset.
    fn append(&mut self, bytes: &[u8]) -> Result<u64, TierError> {
        let offset = self.len();
        self.write_at(offset, bytes)?;
        Ok(offset)
    }
}

pub(crate) fn check_name(volume: &str, name: &str) -> Result<(), TierError> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(TierError::Unsupported {
            what: format!("the file name {name:?} in {volume}"),
            reason: "a file name in an index has one character or more and no separators, so the manifest is damaged"
                .to_owned(),
        });
    }
    Ok(())
}

/// The name of the lock file in a directory. [`Volume::list`] omits it.
pub const LOCK_FILE: &str = "LOCK";

/// A lock of a volume. Dropping the guard releases the lock.
pub struct LockGuard {
    _keeper: Box<dyn Any + Send + Sync>,
}

impl LockGuard {
    pub(crate) fn new(keeper: impl Any + Send + Sync) -> LockGuard {
        LockGuard {
            _keeper: Box::new(keeper),
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockGuard")
    }
}
