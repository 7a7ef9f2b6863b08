//! A directory of the file system, opened by a descriptor.
//!
//! ```text
//!   path ──once──> descriptor ──openat, renameat, unlinkat, statat──> files
//!                     └── LOCK, while open for changes ── before each change: still the same file?
//! ```
//!
//! **A handle stays with the directory that was opened**, even if another directory gets its path.
//! If the directory or its lock was removed, every change fails with [`TierError::Replaced`].
//!
//! **No write goes through a link.** A new file is created, and no file is truncated. A file for
//! writing must be a regular file with one name. If a file has several names (hard links), a
//! [copy](fn@crate::own) replaces it first. *Reads* may go through symbolic links, for example to
//! large files of an index on another disk.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::error::TierError;
use crate::holder::Holder;
use crate::home::Home;
use crate::limits::with_descriptors;
use crate::lock::{HeldLock, LOCK, is_without_locks};
use crate::pages::PagesFile;
use crate::room::{allocate, beyond_end};
use crate::ssd::FileTier;
use crate::tier::Tier;
use crate::volume::{LOCK_FILE, LockGuard, Note, Volume, VolumeFile, VolumeReader, check_name};

/// A directory of the file system. Clones share its lock.
#[derive(Clone, Debug)]
pub struct Directory {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    fd: OwnedFd,
    new: bool,
    /// Permissions of new files, before the process's umask.
    mode: u32,
    held: Mutex<Option<Held>>,
    said: AtomicBool,
}

#[derive(Debug)]
struct Held {
    lock: HeldLock,
    file: (u64, u64),
    note: Arc<Note>,
}

fn identity(facts: &Stat) -> (u64, u64) {
    (facts.st_dev, facts.st_ino)
}

fn is_no_sync(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)
    )
}

fn unusual(facts: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(facts.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some("a directory"),
        FileType::Symlink => Some("a symbolic link"),
        FileType::Fifo => Some("a pipe"),
        FileType::Socket => Some("a socket"),
        _ => Some("a device"),
    }
}

impl Directory {
    /// Opens an existing directory, without write permission.
    pub fn open(path: impl AsRef<Path>) -> Result<Directory, TierError> {
        Self::open_made(path.as_ref(), false, 0o666)
    }

    /// Opens a directory of this user, or creates it. Only this user can access its new files.
    ///
    /// # Errors
    /// [`TierError::NotPrivate`] if another user owns the directory, or others can write to it.
    pub fn private(path: &Path) -> Result<Directory, TierError> {
        crate::copies::CopyFolder::prepare(path)?;
        Self::open_private(path)
    }

    pub(crate) fn open_private(path: &Path) -> Result<Directory, TierError> {
        Self::open_made(path, false, 0o600)
    }

    fn open_made(path: &Path, new: bool, mode: u32) -> Result<Directory, TierError> {
        let failed =
            |source: io::Error| TierError::io("open", path.display().to_string(), 0, 0, source);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || openat(rustix::fs::CWD, path, flags, Mode::empty());
        let fd = with_descriptors(|| Ok(open()?)).map_err(failed)?;
        Ok(Directory {
            inner: Arc::new(Inner {
                path: path.to_owned(),
                fd,
                new,
                mode,
                held: Mutex::new(None),
                said: AtomicBool::new(false),
            }),
        })
    }

    /// Opens a directory. If the directory is missing, creates it and its parents durably.
    pub fn create(path: impl AsRef<Path>) -> Result<Directory, TierError> {
        let path = path.as_ref();
        let failed =
            |path: &Path, source| TierError::io("create", path.display().to_string(), 0, 0, source);
        let mut missing = Vec::new();
        for level in path.ancestors() {
            // The last ancestor of a relative path is the empty path.
            if level.as_os_str().is_empty() {
                break;
            }
            match std::fs::metadata(level) {
                Ok(facts) if facts.is_dir() => break,
                Ok(_) => return Err(failed(level, Errno::NOTDIR.into())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(level),
                Err(error) => return Err(failed(level, error)),
            }
        }
        for level in missing.iter().rev() {
            match std::fs::create_dir(level) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(level, error)),
            }
            let parent = level
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            Directory::open(parent.unwrap_or(Path::new(".")))?.sync()?;
        }
        Self::open_made(path, !missing.is_empty(), 0o666)
    }

    /// Removes the directory if [`create`](Directory::create) created it, and it is empty.
    pub fn discard(self) {
        if self.inner.new && self.check_path(&self.inner.path).is_ok() {
            // If the directory is not empty, the removal fails, as intended.
            let _ = std::fs::remove_dir(&self.inner.path);
        }
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.inner
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, name: &str) -> String {
        self.inner.path.join(name).display().to_string()
    }

    fn failed(&self, action: &'static str, name: &str, source: impl Into<io::Error>) -> TierError {
        TierError::io(action, self.place(name), 0, 0, source.into())
    }

    fn not_plain(&self, action: &'static str, name: &str, found: &str) -> TierError {
        TierError::NotPlain {
            action,
            place: self.place(name),
            found: found.to_owned(),
        }
    }

    fn replaced(&self, what: &str) -> TierError {
        TierError::Replaced {
            place: self.name(),
            what: what.to_owned(),
        }
    }

    /// The directory's descriptor. It was opened with `O_PATH`, so it is only for look-ups.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.inner.fd
    }

    pub(crate) fn open_with(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        let open = || {
            openat(
                &self.inner.fd,
                name,
                flags,
                Mode::from_raw_mode(self.inner.mode),
            )
        };
        Ok(File::from(with_descriptors(|| Ok(open()?))?))
    }

    /// Opens a file for reading. The name may be a symbolic link to a regular file.
    pub(crate) fn reader(&self, action: &'static str, name: &str) -> Result<File, TierError> {
        check_name(&self.name(), name)?;
        // Without `NONBLOCK`, opening a pipe would wait for a writer.
        let file = self
            .open_with(name, OFlags::RDONLY | OFlags::NONBLOCK)
            .map_err(|source| self.failed(action, name, source))?;
        let facts = fstat(&file).map_err(|source| self.failed(action, name, source))?;
        match unusual(&facts) {
            None => Ok(file),
            Some(found) => Err(self.not_plain(action, name, found)),
        }
    }

    fn writer(&self, name: &str) -> Result<RealFile, TierError> {
        check_name(&self.name(), name)?;
        self.check_held()?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match self.open_with(name, flags) {
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                return Err(self.not_plain("write", name, "a symbolic link"));
            }
            opened => opened.map_err(|source| self.failed("open", name, source))?,
        };
        let facts = fstat(&file).map_err(|source| self.failed("open", name, source))?;
        if let Some(found) = unusual(&facts) {
            return Err(self.not_plain("write", name, found));
        }
        if facts.st_nlink > 1 {
            return Err(self.not_plain("write", name, "a file with other names (hard links)"));
        }
        Ok(RealFile::new(file, self.place(name), facts.st_size as u64))
    }

    fn facts(&self, name: &str, follow: bool) -> Result<Stat, Errno> {
        let flags = match follow {
            true => AtFlags::empty(),
            false => AtFlags::SYMLINK_NOFOLLOW,
        };
        statat(&self.inner.fd, name, flags)
    }

    fn holder(&self) -> Holder {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = self.open_with(LOCK_FILE, flags);
        file.map_or_else(|_| Holder::default(), Holder::read)
    }

    /// Writes through another descriptor than the lock has, because a forked process would keep the
    /// lock by a duplicate of the descriptor.
    fn say_holder(&self, holder: &Holder) {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let said = self.open_with(LOCK_FILE, flags);
        // On a full disk the write may fail, but operations that need no space must still work.
        if let Err(error) = said.and_then(|file| holder.write(file)) {
            tracing::debug!(
                "{}: cannot record the lock owner: {error}",
                self.place(LOCK_FILE)
            );
        }
    }

    fn readable(&self, action: &'static str) -> Result<File, TierError> {
        self.open_with(".", OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|source| TierError::io(action, self.name(), 0, 0, source))
    }

    fn is_file(&self, name: &CStr, kind: FileType) -> Result<bool, Errno> {
        let follow = match kind {
            FileType::RegularFile => return Ok(true),
            FileType::Symlink | FileType::Unknown => AtFlags::empty(),
            _ => return Ok(false),
        };
        match statat(&self.inner.fd, name, follow) {
            Ok(facts) => Ok(unusual(&facts).is_none()),
            // The link leads nowhere, or the entry was removed.
            Err(Errno::NOENT | Errno::LOOP) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Volume for Directory {
    fn name(&self) -> String {
        self.inner.path.display().to_string()
    }

    fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        check_name(&self.name(), name)?;
        self.check_held()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mut created = self.open_with(name, flags);
        if matches!(&created, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
            match unlinkat(&self.inner.fd, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => created = self.open_with(name, flags),
                Err(error) => return Err(self.failed("create", name, error)),
            }
        }
        let file = created.map_err(|source| self.failed("create", name, source))?;
        Ok(Box::new(RealFile::new(file, self.place(name), 0)))
    }

    fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        Ok(Box::new(self.writer(name)?))
    }

    fn open_pages(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        let plain = self.writer(name)?;
        let open = |flags| self.open_with(name, flags | OFlags::RDWR | OFlags::NOFOLLOW);
        Ok(Box::new(PagesFile::new(&open, plain)?))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, TierError> {
        let mut bytes = Vec::new();
        self.reader("read", name)?
            .read_to_end(&mut bytes)
            .map_err(|source| self.failed("read", name, source))?;
        Ok(bytes)
    }

    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        let (place, len) = (self.place(name), out.len() as u64);
        self.reader("read", name)?
            .read_exact_at(out, offset)
            .map_err(|source| TierError::io("read", place, offset, len, source))
    }

    fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError> {
        Ok(Box::new(RealReader {
            file: self.reader("open", name)?,
            place: self.place(name),
        }))
    }

    fn len(&self, name: &str) -> Result<u64, TierError> {
        check_name(&self.name(), name)?;
        let facts = self.facts(name, true);
        let facts = facts.map_err(|error| self.failed("look for", name, error))?;
        match unusual(&facts) {
            None => Ok(facts.st_size as u64),
            Some(found) => Err(self.not_plain("read", name, found)),
        }
    }

    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
        check_name(&self.name(), name)?;
        let (directory, file) = (self.clone(), name.to_owned());
        let open =
            move |flags| directory.open_with(&file, flags | OFlags::RDONLY | OFlags::NONBLOCK);
        let tier = FileTier::open_with(self.place(name), Arc::new(open))?;
        Ok(Arc::new(tier))
    }

    fn has_other_names(&self, name: &str) -> Result<bool, TierError> {
        check_name(&self.name(), name)?;
        let facts = self.facts(name, false);
        let facts = facts.map_err(|error| self.failed("look for", name, error))?;
        Ok(unusual(&facts).is_none() && facts.st_nlink > 1)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), TierError> {
        check_name(&self.name(), from)?;
        check_name(&self.name(), to)?;
        self.check_held()?;
        let fd = self.inner.fd.as_fd();
        renameat(fd, from, fd, to).map_err(|error| self.failed("rename", from, error))
    }

    fn remove(&self, name: &str) -> Result<(), TierError> {
        check_name(&self.name(), name)?;
        self.check_held()?;
        unlinkat(&self.inner.fd, name, AtFlags::empty())
            .map_err(|error| self.failed("remove", name, error))
    }

    fn list(&self) -> Result<Vec<String>, TierError> {
        let failed = |error: Errno| TierError::io("list", self.name(), 0, 0, error.into());
        let mut names = Vec::new();
        for entry in Dir::read_from(self.readable("list")?).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if name != LOCK_FILE
                && self
                    .is_file(entry.file_name(), entry.file_type())
                    .map_err(failed)?
            {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// If the file system cannot sync directories (vboxsf, SMB), the call only warns, once.
    fn sync(&self) -> Result<(), TierError> {
        match self.readable("sync")?.sync_all() {
            Err(error) if is_no_sync(&error) => {
                if !self.inner.said.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "{}: its file system does not sync directories ({error}). If the machine loses power, the last acknowledged changes of an \
                         index may be lost, and after a merge the whole index. A killed process loses nothing. Put the index on a local disk, or \
                         keep a copy of it",
                        self.name()
                    );
                }
                Ok(())
            }
            synced => synced.map_err(|source| TierError::io("sync", self.name(), 0, 0, source)),
        }
    }

    fn keep_room(&self, name: &str, bytes: u64) -> Result<bool, TierError> {
        check_name(&self.name(), name)?;
        self.check_held()?;
        let failed = |error| TierError::io("reserve space in", self.place(name), 0, bytes, error);
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = self.open_with(name, flags).ok();
        // A file with several names may also belong to another index. If a file has bytes, its
        // reservation is unknown.
        let is_ours = |file: &File| {
            let facts = fstat(file);
            facts.is_ok_and(|facts| {
                unusual(&facts).is_none() && facts.st_nlink == 1 && facts.st_size == 0
            })
        };
        if let Some(file) = opened.filter(is_ours) {
            return allocate(&file, bytes).map_err(failed);
        }
        drop(self.create(name)?);
        let file = self.open_with(name, flags).map_err(failed)?;
        let kept = allocate(&file, bytes).map_err(failed);
        if !matches!(kept, Ok(true)) {
            let _ = unlinkat(&self.inner.fd, name, AtFlags::empty());
        }
        kept
    }

    fn kept_room(&self, name: &str) -> Result<u64, TierError> {
        check_name(&self.name(), name)?;
        match self.facts(name, false) {
            Ok(facts) if unusual(&facts).is_none() => Ok(beyond_end(&facts)),
            Ok(_) | Err(Errno::NOENT) => Ok(0),
            Err(error) => Err(self.failed("look for", name, error)),
        }
    }

    /// The lock excludes other processes and other handles. It ends with its guard or with the
    /// process, so no lock remains after a crash. A forked process does not have the lock.
    fn lock(&self) -> Result<LockGuard, TierError> {
        let failed = |source: io::Error| match source.raw_os_error() {
            Some(error) if is_without_locks(error) => TierError::Unsupported {
                what: format!("a lock on {}", self.place(LOCK_FILE)),
                reason: format!(
                    "its file system has no locks ({source}), so two processes could change the index at once. Put the index on a local disk, or turn \
                     locks on (NFS: version 4, or rpc.statd on both sides, or the mount option local_lock=flock for a single machine). If you make \
                     sure that one process at a time changes the index, set {LOCK}=none; then no other process is kept out"
                ),
            },
            _ => self.failed("lock", LOCK_FILE, source),
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        // Another file may get the name before the opened file is locked.
        for _ in 0..LOCK_TRIES {
            let mut found = None;
            let lock = HeldLock::take(|| {
                let file = self.open_with(LOCK_FILE, flags)?;
                found = Some(fstat(&file)?);
                Ok::<_, io::Error>(file)
            });
            let lock = match lock {
                Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                    return Err(self.not_plain("lock", LOCK_FILE, "a symbolic link"));
                }
                lock => lock.map_err(failed)?,
            };
            let (Some(lock), Some(locked)) = (lock, found) else {
                return Err(TierError::InUse {
                    place: self.name(),
                    lock: self.place(LOCK_FILE),
                    holder: self.holder(),
                });
            };
            if let Some(found) = unusual(&locked) {
                return Err(self.not_plain("lock", LOCK_FILE, found));
            }
            match self.facts(LOCK_FILE, false) {
                // A backup by hard links shares the lock file, but is another index. So this index
                // gets a new lock file.
                Ok(now) if identity(&now) == identity(&locked) && now.st_nlink > 1 => {
                    match unlinkat(&self.inner.fd, LOCK_FILE, AtFlags::empty()) {
                        Ok(()) | Err(Errno::NOENT) => continue,
                        Err(error) => return Err(failed(error.into())),
                    }
                }
                Ok(now) if identity(&now) == identity(&locked) => {}
                Ok(_) | Err(Errno::NOENT) => continue,
                Err(error) => return Err(failed(error.into())),
            }
            *self.held() = Some(Held {
                lock,
                file: identity(&locked),
                note: Arc::default(),
            });
            self.say_holder(&Holder::here());
            return Ok(LockGuard::new(Unlock(self.clone(), Home::here())));
        }
        Err(self.replaced("another process removes its lock file again and again"))
    }

    fn held_as(&self, what: &str, remedy: &str) {
        if self.check_held().is_ok() && self.held().is_some() {
            self.say_holder(&Holder::named(what, remedy));
        }
    }

    fn check_held(&self) -> Result<(), TierError> {
        let held = self.held();
        let Some(held) = &*held else {
            return Ok(());
        };
        let (opener, here) = (held.lock.process(), std::process::id());
        if opener != here {
            return Err(TierError::Forked {
                place: self.name(),
                opener,
                here,
            });
        }
        match self.facts(LOCK_FILE, false) {
            Ok(now) if identity(&now) == held.file => Ok(()),
            Ok(_) => {
                Err(self.replaced("its lock file was replaced after the directory was opened"))
            }
            Err(Errno::NOENT) => Err(self.replaced("the directory or its lock file was removed")),
            Err(error) => Err(self.failed("look for", LOCK_FILE, error)),
        }
    }

    fn check_path(&self, path: &Path) -> Result<(), TierError> {
        let failed = |error: Errno| {
            TierError::io("look for", path.display().to_string(), 0, 0, error.into())
        };
        let own = fstat(&self.inner.fd).map_err(failed)?;
        match statat(rustix::fs::CWD, path, AtFlags::empty()) {
            Ok(there) if identity(&there) == identity(&own) => Ok(()),
            Ok(_) | Err(Errno::NOENT) => Err(self
                .replaced("the directory was moved or removed, or another directory has its path")),
            Err(error) => Err(failed(error)),
        }
    }

    fn identity(&self) -> Option<(u64, u64)> {
        fstat(&self.inner.fd).ok().map(|facts| identity(&facts))
    }

    fn note(&self) -> Option<Arc<Note>> {
        self.held().as_ref().map(|held| held.note.clone())
    }
}

/// The most attempts to lock, if other files get the name of the lock file meanwhile.
const LOCK_TRIES: usize = 100;

struct Unlock(Directory, Home);

impl Drop for Unlock {
    fn drop(&mut self) {
        if !self.1.is_here() {
            // In a fork, this copy of the lock is closed, and the mutex may stay locked forever.
            return;
        }
        if self.0.check_held().is_ok() {
            self.0.say_holder(&Holder::default());
        }
        *self.0.held() = None;
    }
}

#[derive(Debug)]
struct RealReader {
    file: File,
    place: String,
}

impl VolumeReader for RealReader {
    fn size(&self) -> Result<u64, TierError> {
        let failed = |source| TierError::io("look at", self.place.as_str(), 0, 0, source);
        Ok(self.file.metadata().map_err(failed)?.len())
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        let len = out.len() as u64;
        let failed = |source| TierError::io("read", self.place.as_str(), offset, len, source);
        self.file.read_exact_at(out, offset).map_err(failed)
    }

    fn as_file(&self) -> Option<&File> {
        Some(&self.file)
    }
}

#[derive(Debug)]
pub(crate) struct RealFile {
    pub(crate) file: File,
    pub(crate) place: String,
    pub(crate) len: u64,
    process: u32,
}

impl RealFile {
    pub(crate) fn new(file: File, place: String, len: u64) -> RealFile {
        RealFile {
            file,
            place,
            len,
            process: std::process::id(),
        }
    }

    /// Refuses a forked process, because two processes would then write to one file.
    pub(crate) fn check_process(&self) -> Result<(), TierError> {
        let here = std::process::id();
        if here == self.process {
            return Ok(());
        }
        Err(TierError::Forked {
            place: self.place.clone(),
            opener: self.process,
            here,
        })
    }
}

impl VolumeFile for RealFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TierError> {
        self.check_process()?;
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
        self.check_process()?;
        self.file
            .set_len(len)
            .map_err(|source| TierError::io("resize", self.place.as_str(), len, 0, source))?;
        self.len = len;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), TierError> {
        self.check_process()?;
        self.file
            .sync_all()
            .map_err(|source| TierError::io("sync", self.place.as_str(), 0, 0, source))
    }

    fn share(&mut self, source: &dyn VolumeReader) -> Result<bool, TierError> {
        self.check_process()?;
        let Some(source) = source.as_file() else {
            return Ok(false);
        };
        if !reflink(&self.file, source) {
            return Ok(false);
        }
        let facts = self.file.metadata();
        let failed = |source| TierError::io("look at", self.place.as_str(), 0, 0, source);
        self.len = facts.map_err(failed)?.len();
        Ok(true)
    }
}

#[cfg(target_os = "linux")]
fn reflink(file: &File, source: &File) -> bool {
    rustix::fs::ioctl_ficlone(file, source).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn reflink(_: &File, _: &File) -> bool {
    false
}
