//! The interface for writing an index: a directory of files, with exactly the guarantees of a file
//! system.
//!
//! Two things survive a crash. Bytes survive if a later [`VolumeFile::sync`] succeeded. Changes of
//! names (creation, rename, removal) survive if a later [`Volume::sync`] succeeded. Any other
//! change may be lost, kept, kept in part, or kept in another order.
//!
//! [`Directory`](crate::Directory) is a directory of the file system. `SimVolume` (feature
//! `testing`) is a simulation that crashes on demand.

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

    /// Creates an empty file. If another file has this name, that file loses the name, and is not
    /// truncated.
    fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError>;

    /// Opens an existing file for writing. The file must be regular, and have no other names. A
    /// symbolic link, or a file with hard links, is refused with [`TierError::NotPlain`].
    fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError>;

    /// Opens an existing file for writing single blocks. If the file system allows it, the page
    /// cache is bypassed. Otherwise the file is like one from [`open`](Volume::open).
    fn open_pages(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.open(name)
    }

    /// Reads all bytes of a file.
    fn read(&self, name: &str) -> Result<Vec<u8>, TierError>;

    /// Fills `out` with the bytes of a file that begin at `offset`. It is an error if the file ends
    /// before `out` is full. Use this call for large files, which are read in pieces.
    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError>;

    /// Opens a file for reading in pieces. The reader stays valid if the file is renamed or
    /// removed.
    fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError>;

    /// The length of a file in bytes.
    fn len(&self, name: &str) -> Result<u64, TierError>;

    /// Whether there is a file of this name. If that cannot be determined, the result is an error
    /// and not `false`.
    fn exists(&self, name: &str) -> Result<bool, TierError> {
        match self.len(name) {
            Ok(_) => Ok(true),
            Err(TierError::Missing { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens a file for random reads.
    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError>;

    /// Whether a file has other names, in this volume or elsewhere (hard links). Such a file is not
    /// opened for writing until a [copy](fn@crate::own) has replaced it.
    fn has_other_names(&self, _name: &str) -> Result<bool, TierError> {
        Ok(false)
    }

    /// Renames a file, atomically. If another file has the new name, that file is replaced.
    fn rename(&self, from: &str, to: &str) -> Result<(), TierError>;

    /// Removes a file.
    fn remove(&self, name: &str) -> Result<(), TierError>;

    /// The names of all files, sorted.
    fn list(&self) -> Result<Vec<String>, TierError>;

    /// Makes all creations, renames and removals of names durable.
    fn sync(&self) -> Result<(), TierError>;

    /// Reserves `bytes` bytes of storage in an empty file of this name, as blocks beyond its end.
    /// Later writes below that offset need no free space, even if the file was renamed. If an empty
    /// file of this name has such a reservation already, it keeps the reservation. If a file of
    /// this name is not empty, a new file replaces it. The result is `false`, and nothing is
    /// reserved, if the file system does not support reservations.
    ///
    /// # Errors
    /// The call returns [`TierError::NoSpace`] if there is too little free space. An earlier
    /// reservation stays. The call also fails if an operation of the volume fails.
    fn keep_room(&self, name: &str, bytes: u64) -> Result<bool, TierError> {
        let _ = (name, bytes);
        Ok(false)
    }

    /// The number of bytes that [`keep_room`](Volume::keep_room) reserved for a file beyond its
    /// end; 0 if there is no such file.
    ///
    /// # Errors
    /// The call fails if an operation of the volume fails.
    fn kept_room(&self, name: &str) -> Result<u64, TierError> {
        let _ = name;
        Ok(0)
    }

    /// Locks the volume for writing. Returns [`TierError::InUse`] if it is locked already. Readers
    /// need no lock.
    fn lock(&self) -> Result<LockGuard, TierError>;

    /// Stores a description of the lock owner for other processes: a line that names the owner, and
    /// a line with the remedy for a user who finds the volume locked. [`TierError::InUse`] reports
    /// both lines. If this handle has not locked the volume, or the description cannot be stored,
    /// the call does nothing.
    fn held_as(&self, what: &str, remedy: &str) {
        let _ = (what, remedy);
    }

    /// Checks that the volume still exists under its path. If this handle has the lock, the lock
    /// file must exist under its name too. Operations that change names perform this check
    /// themselves.
    ///
    /// # Errors
    /// The call returns [`TierError::Replaced`] if the volume or its lock has been removed. It
    /// returns [`TierError::Forked`] in a process that was forked from the lock owner.
    fn check_held(&self) -> Result<(), TierError> {
        Ok(())
    }

    /// Checks that the path still leads to this volume. Call it before writing by that path, for
    /// example scratch files.
    ///
    /// # Errors
    /// The call returns [`TierError::Replaced`] if the path leads elsewhere.
    fn check_path(&self, _path: &Path) -> Result<(), TierError> {
        Ok(())
    }

    /// The device and the inode of the volume's directory. They identify the directory as long as
    /// this handle is open, even if the directory is moved. `None` if the volume is not a
    /// directory.
    fn identity(&self) -> Option<(u64, u64)> {
        None
    }

    /// The value that the lock owner stores with the lock. It is empty at first. The result is
    /// `None` if this handle has not locked the volume.
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

    /// Fills `out` with the bytes that begin at `offset`. It is an error if the file ends before
    /// `out` is full.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), TierError>;

    /// The underlying file of the operating system, if there is one. [`VolumeFile::share`] needs
    /// it.
    fn as_file(&self) -> Option<&File> {
        None
    }
}

/// A file that is open for writing.
pub trait VolumeFile: Send + Debug {
    /// Writes all of `bytes` at `offset`. If the file ended before `offset`, the gap reads as
    /// zeros.
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

    /// Makes this file a reflink of `source`: both files share blocks on storage until one of them
    /// is written to. The result is `false`, and nothing is changed, if the file system does not
    /// support reflinks. The caller must then copy the bytes.
    ///
    /// # Errors
    /// The call fails if this process was forked from the process that opened the file.
    fn share(&mut self, source: &dyn VolumeReader) -> Result<bool, TierError> {
        let _ = source;
        Ok(false)
    }

    /// Writes `bytes` at the end. Returns the offset of their first byte.
    fn append(&mut self, bytes: &[u8]) -> Result<u64, TierError> {
        let offset = self.len();
        self.write_at(offset, bytes)?;
        Ok(offset)
    }
}

/// Checks that a name does not lead out of its directory.
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

/// A lock of a volume. Its drop releases the lock.
pub struct LockGuard {
    /// The value whose drop releases the lock.
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
