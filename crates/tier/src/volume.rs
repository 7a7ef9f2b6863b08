//! Where an index is written: a directory of files with exactly the promises that a file system
//! makes.
//!
//! What survives a crash: bytes written before a [`VolumeFile::sync`] that succeeded; names (a
//! creation, a rename, a removal) before a [`Volume::sync`] that succeeded. All else may be lost,
//! kept, kept in part, or kept in another order. [`Directory`](crate::Directory) is the real thing,
//! `SimVolume` (feature `testing`) one that crashes when told to.

use std::any::Any;
use std::fmt::{self, Debug};
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::error::TierError;
use crate::tier::Tier;

/// A flat directory of files. Names have no separators.
pub trait Volume: Send + Sync + Debug {
    /// What to call it in messages: its path.
    fn name(&self) -> String;

    /// What to call a file in messages: its path.
    fn place(&self, name: &str) -> String {
        format!("{}/{name}", self.name())
    }

    /// Creates a file, empty, in place of any that has the name: that one loses the name, and is
    /// not emptied.
    fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError>;

    /// Opens a file that exists, for writing. What is not a regular file of this volume alone (a
    /// link to another place, a file with other names) is [`TierError::NotPlain`].
    fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError>;

    /// Opens a file that exists for writing blocks here and there, past the page cache where the
    /// file system can do that. It behaves as one that [`open`](Volume::open) gives.
    fn open_pages(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.open(name)
    }

    /// All bytes of a file.
    fn read(&self, name: &str) -> Result<Vec<u8>, TierError>;

    /// Fills `out` from `offset`; a file that ends earlier is an error. For large files that are
    /// read in pieces.
    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError>;

    /// Opens a file for reading it in pieces, which goes on whatever becomes of its name.
    fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError>;

    /// Length of a file in bytes.
    fn len(&self, name: &str) -> Result<u64, TierError>;

    /// Whether there is a file of this name: an error is not an answer, least of all "no".
    fn exists(&self, name: &str) -> Result<bool, TierError> {
        match self.len(name) {
            Ok(_) => Ok(true),
            Err(TierError::Missing { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens a file for random reads.
    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError>;

    /// Whether a file has other names as well, in this volume or elsewhere (hard links): then it is
    /// not opened for writing, before it is made one of its [own](fn@crate::own).
    fn has_other_names(&self, _name: &str) -> Result<bool, TierError> {
        Ok(false)
    }

    /// Gives a file another name, atomically, in place of any that has it.
    fn rename(&self, from: &str, to: &str) -> Result<(), TierError>;

    /// Removes a file.
    fn remove(&self, name: &str) -> Result<(), TierError>;

    /// The names of all files, sorted.
    fn list(&self) -> Result<Vec<String>, TierError>;

    /// Makes names durable: what was created, renamed and removed.
    fn sync(&self) -> Result<(), TierError>;

    /// Keeps room on storage for `bytes` bytes: an empty file of this name, with blocks beyond its
    /// end. Once the file is opened, what is written below that needs no more room, whatever name
    /// it has by then. A file that has the room already keeps it; one of this name that is not
    /// empty is replaced. False, and nothing is kept, where the file system does not give blocks
    /// ahead.
    ///
    /// # Errors
    /// [`TierError::NoSpace`]: there is not so much; what was kept before stays. Or the volume fails.
    fn keep_room(&self, name: &str, bytes: u64) -> Result<bool, TierError> {
        let _ = (name, bytes);
        Ok(false)
    }

    /// Bytes of storage that a file has beyond its end, since [`keep_room`](Volume::keep_room) gave
    /// them to it; 0 where there is no such file.
    ///
    /// # Errors
    /// The volume fails.
    fn kept_room(&self, name: &str) -> Result<u64, TierError> {
        let _ = name;
        Ok(0)
    }

    /// Locks the volume for writing; [`TierError::InUse`] if it is locked. Readers need no lock.
    fn lock(&self) -> Result<LockGuard, TierError>;

    /// Says to whom the lock keeps out what has it, and what they are to do meanwhile: a line each,
    /// with which [`TierError::InUse`] is told. Of a volume that is not locked through this handle
    /// nothing is said; nor where it cannot be, since nothing hangs on it.
    fn held_as(&self, what: &str, remedy: &str) {
        let _ = (what, remedy);
    }

    /// Whether what this handle has locked is still what stands there, if it has locked anything:
    /// what changes names asks by itself.
    ///
    /// # Errors
    /// [`TierError::Replaced`] where the volume, or its lock, has been removed since;
    /// [`TierError::Forked`] in a process that was forked from the one that took the lock.
    fn check_held(&self) -> Result<(), TierError> {
        Ok(())
    }

    /// Whether the volume is (still) what a path leads to: before something is written by its path,
    /// as scratch files are.
    ///
    /// # Errors
    /// [`TierError::Replaced`] if it is not.
    fn check_path(&self, _path: &Path) -> Result<(), TierError> {
        Ok(())
    }

    /// Device and inode of a directory, which tell it from all others for as long as it is open,
    /// wherever it is moved; `None` of a volume that is none.
    fn identity(&self) -> Option<(u64, u64)> {
        None
    }

    /// What the holder of the lock keeps in mind, empty at first; `None` while this handle has not
    /// locked it.
    fn note(&self) -> Option<Arc<Note>> {
        None
    }
}

/// What the holder of a volume's lock keeps in mind, and forgets with the lock.
pub type Note = Mutex<Option<Box<dyn Any + Send>>>;

/// A file being read.
pub trait VolumeReader: Send + Sync + Debug {
    /// Its length in bytes, as it is now.
    fn size(&self) -> Result<u64, TierError>;

    /// Fills `out` from `offset`; a file that ends earlier is an error.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), TierError>;

    /// The file of the operating system that is read, where it is one: [`VolumeFile::share`] asks
    /// for it.
    fn as_file(&self) -> Option<&File> {
        None
    }
}

/// A file being written.
pub trait VolumeFile: Send + Debug {
    /// Writes all of `bytes` at `offset`; a gap reads as zeros.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TierError>;

    /// Length in bytes.
    fn len(&self) -> u64;

    /// True if it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cuts the file, or fills it up with zeros.
    fn set_len(&mut self, len: u64) -> Result<(), TierError>;

    /// Makes the file's bytes and length durable.
    fn sync(&mut self) -> Result<(), TierError>;

    /// Makes the file what `source` is now, with the same blocks on storage until one of the two is
    /// written to (a reflink). False, and nothing is changed, where the file system cannot do that:
    /// then the bytes are to be copied.
    ///
    /// # Errors
    /// A forked process.
    fn share(&mut self, source: &dyn VolumeReader) -> Result<bool, TierError> {
        let _ = source;
        Ok(false)
    }

    /// Writes `bytes` at the end; returns where they begin.
    fn append(&mut self, bytes: &[u8]) -> Result<u64, TierError> {
        let offset = self.len();
        self.write_at(offset, bytes)?;
        Ok(offset)
    }
}

/// A name must stay inside its directory.
pub(crate) fn check_name(volume: &str, name: &str) -> Result<(), TierError> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(TierError::Unsupported {
            what: format!("the file name {name:?} in {volume}"),
            reason: "a name within an index is not empty and has no separators; the manifest that has it is damaged"
                .to_owned(),
        });
    }
    Ok(())
}

/// Name of the lock file in a directory; [`Volume::list`] leaves it out.
pub const LOCK_FILE: &str = "LOCK";

/// Holds a volume's lock until it is dropped.
pub struct LockGuard {
    /// Whatever releases the lock when it is dropped; for a directory the open lock file.
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
