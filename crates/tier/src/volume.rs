//! Where an index is written: a directory of files with exactly the promises that a file system makes.
//!
//! What survives a crash: bytes written before a [`VolumeFile::sync`] that succeeded; names (a creation, a rename, a
//! removal) before a [`Volume::sync`] that succeeded. All else may be lost, kept, kept in part, or kept in another
//! order. [`Directory`] is the real thing, [`SimVolume`](crate::SimVolume) one that crashes when told to.

use std::any::Any;
use std::fmt::{self, Debug};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::TierError;
use crate::pages::PagesFile;
use crate::ssd::FileTier;
use crate::tier::Tier;

/// A flat directory of files. Names have no separators.
pub trait Volume: Send + Sync + Debug {
    /// What to call it in messages: its path.
    fn name(&self) -> String;

    /// Creates a file, empty, in place of any that has the name.
    fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError>;

    /// Opens a file that exists, for writing.
    fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError>;

    /// Opens a file that exists for writing blocks here and there, past the page cache where the file system can do
    /// that. It behaves as one that [`open`](Volume::open) gives.
    fn open_pages(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.open(name)
    }

    /// All bytes of a file.
    fn read(&self, name: &str) -> Result<Vec<u8>, TierError>;

    /// Fills `out` from `offset`; a file that ends earlier is an error. For large files that are read in pieces.
    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError>;

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

    /// Gives a file another name, atomically, in place of any that has it.
    fn rename(&self, from: &str, to: &str) -> Result<(), TierError>;

    /// Removes a file.
    fn remove(&self, name: &str) -> Result<(), TierError>;

    /// The names of all files, sorted.
    fn list(&self) -> Result<Vec<String>, TierError>;

    /// Makes names durable: what was created, renamed and removed.
    fn sync(&self) -> Result<(), TierError>;

    /// Locks the volume for writing; [`TierError::InUse`] if it is locked. Readers need no lock.
    fn lock(&self) -> Result<LockGuard, TierError>;
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

/// A real directory.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// A directory that exists. Needs no permission to write.
    pub fn open(path: impl AsRef<Path>) -> Result<Directory, TierError> {
        let path = path.as_ref();
        let failed = |source| TierError::io("open", path.display().to_string(), 0, 0, source);
        let facts = fs::metadata(path).map_err(failed)?;
        if !facts.is_dir() {
            return Err(failed(std::io::Error::from_raw_os_error(libc::ENOTDIR)));
        }
        Ok(Directory {
            path: path.to_owned(),
        })
    }

    /// A directory that is created, with its parents, unless it exists.
    pub fn create(path: impl AsRef<Path>) -> Result<Directory, TierError> {
        let path = path.as_ref();
        if !path.is_dir() {
            let failed = |source| TierError::io("create", path.display().to_string(), 0, 0, source);
            fs::create_dir_all(path).map_err(failed)?;
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            sync_directory(parent)?;
        }
        Directory::open(path)
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> Result<PathBuf, TierError> {
        check_name(&self.name(), name)?;
        Ok(self.path.join(name))
    }

    fn writer(&self, name: &str, fresh: bool) -> Result<RealFile, TierError> {
        let path = self.file(name)?;
        let place = path.display().to_string();
        let action = if fresh { "create" } else { "open" };
        let failed = |source| TierError::io(action, place.as_str(), 0, 0, source);
        let mut options = OpenOptions::new();
        // Readable as well, so that FileExt works on it; an old file of the name is emptied.
        options.read(true).write(true).create(fresh).truncate(fresh);
        let file = options.open(&path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        Ok(RealFile { file, place, len })
    }
}

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

fn sync_directory(path: &Path) -> Result<(), TierError> {
    let failed = |source| TierError::io("sync", path.display().to_string(), 0, 0, source);
    File::open(path).map_err(failed)?.sync_all().map_err(failed)
}

impl Volume for Directory {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        Ok(Box::new(self.writer(name, true)?))
    }

    fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        Ok(Box::new(self.writer(name, false)?))
    }

    fn open_pages(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        let file = self.writer(name, false)?;
        Ok(Box::new(PagesFile::new(&self.file(name)?, file)?))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, TierError> {
        let path = self.file(name)?;
        fs::read(&path)
            .map_err(|source| TierError::io("read", path.display().to_string(), 0, 0, source))
    }

    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        let path = self.file(name)?;
        let (place, len) = (path.display().to_string(), out.len() as u64);
        File::open(&path)
            .and_then(|file| file.read_exact_at(out, offset))
            .map_err(|source| TierError::io("read", place, offset, len, source))
    }

    fn len(&self, name: &str) -> Result<u64, TierError> {
        let path = self.file(name)?;
        let facts = fs::metadata(&path);
        facts
            .map(|f| f.len())
            .map_err(|source| TierError::io("open", path.display().to_string(), 0, 0, source))
    }

    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
        Ok(Arc::new(FileTier::open(self.file(name)?)?))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), TierError> {
        let (from, to) = (self.file(from)?, self.file(to)?);
        fs::rename(&from, &to)
            .map_err(|source| TierError::io("rename", from.display().to_string(), 0, 0, source))
    }

    fn remove(&self, name: &str) -> Result<(), TierError> {
        let path = self.file(name)?;
        fs::remove_file(&path)
            .map_err(|source| TierError::io("remove", path.display().to_string(), 0, 0, source))
    }

    fn list(&self) -> Result<Vec<String>, TierError> {
        let failed = |source| TierError::io("list", self.name(), 0, 0, source);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // Subdirectories, names that are not UTF-8 and the lock are not ours to list.
            if entry.file_type().map_err(failed)?.is_file()
                && let Ok(name) = entry.file_name().into_string()
                && name != LOCK_FILE
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync(&self) -> Result<(), TierError> {
        sync_directory(&self.path)
    }

    /// Against other processes and within this one. The lock ends with its guard or with the process, so that a crash
    /// leaves none behind.
    fn lock(&self) -> Result<LockGuard, TierError> {
        let path = self.path.join(LOCK_FILE);
        let failed = |source| TierError::io("lock", path.display().to_string(), 0, 0, source);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(LockGuard::new(file)),
            Err(TryLockError::WouldBlock) => Err(TierError::InUse {
                place: self.name(),
                lock: path.display().to_string(),
            }),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }
}

/// A file of a directory, written through the page cache.
#[derive(Debug)]
pub(crate) struct RealFile {
    pub(crate) file: File,
    pub(crate) place: String,
    pub(crate) len: u64,
}

impl VolumeFile for RealFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TierError> {
        let len = bytes.len() as u64;
        let failed = |source| TierError::io("write", self.place.as_str(), offset, len, source);
        self.file.write_all_at(bytes, offset).map_err(failed)?;
        self.len = self.len.max(offset + len);
        Ok(())
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn set_len(&mut self, len: u64) -> Result<(), TierError> {
        self.file
            .set_len(len)
            .map_err(|source| TierError::io("resize", self.place.as_str(), len, 0, source))?;
        self.len = len;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), TierError> {
        self.file
            .sync_all()
            .map_err(|source| TierError::io("sync", self.place.as_str(), 0, 0, source))
    }
}
