//! Folders for copies of an index's files, in a directory that the user names.
//!
//! ```text
//!   PLACE/                                   made for this user alone, if missing
//!   PLACE/stratann-OWNER-CONTENT/            copies of one index in one state, named by CONTENT
//!   PLACE/stratann-OWNER-CONTENT/graph-000001
//!   PLACE/stratann-OWNER-CONTENT/graph-000001.copy-PID-N       a copy in progress
//!   PLACE/stratann-OWNER-CONTENT/IN-USE      a shared lock for each process with the folder open
//! ```
//!
//! **The name.** OWNER identifies the index (a hash of the path of its folder), and CONTENT its
//! checkpoint (a hash of its MANIFEST). So two processes that open one index share a folder.
//!
//! **Removal.** A process that opens a folder removes unused folders of the same owner. If the
//! process gets the exclusive lock of a folder's IN-USE, the folder is unused. A lock ends with its
//! process, even in a crash.
//!
//! **Concurrent copies.** A process copies a file under a lock of the folder. A second process
//! waits for the lock, and then uses the copy.
//!
//! **Permissions.** A place must be a directory of this user, and no other user may write to it.
//! Other users cannot read a folder of copies.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, fstatvfs, mkdirat, statat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::directory::Directory;
use crate::error::TierError;
use crate::home::Home;
use crate::volume::Volume;

pub(super) const IN_USE: &str = "IN-USE";
pub(super) const PREFIX: &str = "stratann-";
pub(super) const UNFINISHED: &str = ".copy-";
/// The most attempts to open a folder that other processes remove again and again.
const TRIES: usize = 100;

/// The lifetime of a folder's copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Copies stay for processes that later open the index with the same checkpoint.
    ForOthers,
    /// Copies change with the index, and are removed when the handle is dropped.
    ForNow,
}

/// An open folder for copies. No process removes it while it is open.
#[derive(Debug)]
pub struct CopyFolder {
    directory: Directory,
    path: PathBuf,
    in_use: File,
    kept: Kept,
    home: Home,
    #[cfg(test)]
    pub(super) free: Option<u64>,
}

fn failed(action: &'static str, path: &Path) -> impl Fn(Errno) -> TierError {
    let place = path.display().to_string();
    move |error| TierError::io(action, place.clone(), 0, 0, error.into())
}

fn check_private(path: &Path, facts: &Stat, mask: u32) -> Result<(), TierError> {
    let refuse = |what: String| {
        Err(TierError::NotPrivate {
            place: path.display().to_string(),
            what,
        })
    };
    let (owner, user) = (facts.st_uid, geteuid().as_raw());
    if FileType::from_raw_mode(facts.st_mode) != FileType::Directory {
        return refuse("it is not a directory".to_owned());
    }
    if owner != user {
        return refuse(format!(
            "it belongs to user {owner}, and this process runs as user {user}"
        ));
    }
    match facts.st_mode & mask {
        0 => Ok(()),
        _ => refuse(format!(
            "its permissions {:o} give other users access",
            facts.st_mode & 0o7777
        )),
    }
}

/// Refuses a device, and a new folder beside devices, which would take kernel memory. A user who
/// names `/dev/dax0.0` means the device.
fn check_beside_devices(place: &Path) -> Result<(), TierError> {
    let refuse = || {
        Err(TierError::Unsupported {
            what: format!("{}, a device or a new folder among the devices,", place.display()),
            reason: "copies are files in a folder. For a device, mount a file system on it (with DAX, if it is persistent or CXL memory). For \
                     the memory of NUMA node N, mount a tmpfs with `mpol=bind:N`. Then name a folder in it"
                .to_owned(),
        })
    };
    let look = |path: &Path| statat(rustix::fs::CWD, path, AtFlags::empty());
    if let Ok(facts) = look(place) {
        let is_device = matches!(
            FileType::from_raw_mode(facts.st_mode),
            FileType::CharacterDevice | FileType::BlockDevice
        );
        return if is_device { refuse() } else { Ok(()) };
    }
    let devices = |path: &str| look(Path::new(path)).map(|facts| facts.st_dev);
    let parent = place
        .parent()
        .map(|parent| match parent.as_os_str().is_empty() {
            true => look(Path::new(".")),
            false => look(parent),
        });
    match (devices("/dev"), devices("/"), parent) {
        (Ok(devices), Ok(root), Some(Ok(parent)))
            if devices != root && parent.st_dev == devices =>
        {
            refuse()
        }
        _ => Ok(()),
    }
}

fn make(path: &Path) -> Result<(), TierError> {
    match mkdirat(rustix::fs::CWD, path, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(failed("create", path)(error)),
    }
}

fn identity(facts: &Stat) -> (u64, u64) {
    (facts.st_dev, facts.st_ino)
}

impl CopyFolder {
    /// Creates the directory `place` if missing (its parent must exist), and checks its
    /// permissions.
    ///
    /// # Errors
    /// [`TierError::NotPrivate`] if other users can write to it. Fails for a device, too.
    pub fn prepare(place: &Path) -> Result<(), TierError> {
        check_beside_devices(place)?;
        make(place)?;
        let facts = statat(rustix::fs::CWD, place, AtFlags::empty());
        check_private(place, &facts.map_err(failed("look at", place))?, 0o022)
    }

    /// Opens or creates the folder of `owner` and `content` (letters and digits) at a place, and
    /// removes unused folders of the same owner.
    ///
    /// # Errors
    /// Fails as [`prepare`](CopyFolder::prepare) does.
    pub fn open(
        place: &Path,
        owner: &str,
        content: &str,
        kept: Kept,
    ) -> Result<CopyFolder, TierError> {
        Self::prepare(place)?;
        let mine = format!("{PREFIX}{owner}-{content}");
        let path = place.join(&mine);
        for _ in 0..TRIES {
            make(&path)?;
            if let Some(folder) = Self::enter(&path, kept)? {
                sweep(place, &format!("{PREFIX}{owner}-"), &mine);
                return Ok(folder);
            }
        }
        Err(TierError::Replaced {
            place: path.display().to_string(),
            what: "another process removes it again and again".to_owned(),
        })
    }

    /// Opens a folder; `None` if another process removed the folder meanwhile.
    fn enter(path: &Path, kept: Kept) -> Result<Option<CopyFolder>, TierError> {
        let directory = match Directory::open_private(path) {
            Err(TierError::Missing { .. }) => return Ok(None),
            directory => directory?,
        };
        let facts = fstat(directory.fd()).map_err(failed("look at", path))?;
        check_private(path, &facts, 0o077)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW;
        let in_use = match directory.open_with(IN_USE, flags) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(TierError::io(
                    "lock",
                    path.display().to_string(),
                    0,
                    0,
                    error,
                ));
            }
            Ok(file) => file,
        };
        // With the exclusive lock, this process may remove unfinished copies.
        let alone = flock(&in_use, FlockOperation::NonBlockingLockExclusive).is_ok();
        let folder = CopyFolder {
            directory,
            path: path.to_owned(),
            in_use,
            kept,
            home: Home::here(),
            #[cfg(test)]
            free: None,
        };
        if alone && folder.is_there() {
            folder.remove_unfinished();
        }
        flock(&folder.in_use, FlockOperation::LockShared).map_err(failed("lock", path))?;
        Ok(folder.is_there().then_some(folder))
    }

    fn is_there(&self) -> bool {
        let here = fstat(&self.in_use).map(|facts| identity(&facts));
        let there = statat(
            rustix::fs::CWD,
            self.path.join(IN_USE),
            AtFlags::SYMLINK_NOFOLLOW,
        );
        matches!((here, there), (Ok(here), Ok(there)) if here == identity(&there))
    }

    fn remove_unfinished(&self) {
        for name in self.directory.list().unwrap_or_default() {
            if name.contains(UNFINISHED) {
                let _ = self.directory.remove(&name);
            }
        }
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn kept(&self) -> Kept {
        self.kept
    }

    /// Until the returned value is dropped, no other process or thread makes a copy here.
    pub(super) fn make_alone(&self) -> Result<MakingAlone, TierError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let opened = self.directory.open_with(".", flags);
        let opened = opened
            .map_err(|error| TierError::io("lock", self.path.display().to_string(), 0, 0, error))?;
        loop {
            match flock(&opened, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(MakingAlone(opened)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed("lock", &self.path)(error)),
            }
        }
    }

    pub(super) fn free_bytes(&self) -> Result<u64, TierError> {
        #[cfg(test)]
        if let Some(free) = self.free {
            return Ok(free);
        }
        let facts = fstatvfs(&self.in_use).map_err(failed("look at", &self.path))?;
        Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
    }

    pub(super) fn check_room(&self, len: u64) -> Result<(), TierError> {
        let free = self.free_bytes()?;
        if free < len {
            let place = self.path.display().to_string();
            return Err(TierError::NoRoom { place, len, free });
        }
        Ok(())
    }
}

pub(super) struct MakingAlone(#[expect(dead_code, reason = "held, not looked at")] File);

impl Drop for CopyFolder {
    fn drop(&mut self) {
        if self.kept == Kept::ForNow && self.home.is_here() {
            remove_unused(&self.path, Some(&self.in_use));
        }
    }
}

/// Removes the unused folders whose name begins with `prefix`, except `but`. Failures are ignored.
fn sweep(place: &Path, prefix: &str, but: &str) {
    let Ok(entries) = std::fs::read_dir(place) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let ours = name
            .to_str()
            .is_some_and(|name| name.starts_with(prefix) && name != but);
        if ours {
            remove_unused(&entry.path(), None);
        }
    }
}

/// Removes a folder that no process uses. If the caller has the folder open, `own` is the folder's
/// lock file, and its shared lock becomes exclusive.
pub(super) fn remove_unused(path: &Path, own: Option<&File>) {
    let Ok(directory) = Directory::open_private(path) else {
        return;
    };
    let private =
        fstat(directory.fd()).is_ok_and(|facts| check_private(path, &facts, 0o077).is_ok());
    let opened;
    let lock = match own {
        Some(own) => own,
        None => match directory.open_with(IN_USE, OFlags::RDWR | OFlags::NOFOLLOW) {
            Ok(file) => {
                opened = file;
                &opened
            }
            // Another process is about to create the folder.
            Err(_) => return,
        },
    };
    if !private || flock(lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    for name in directory.list().unwrap_or_default() {
        if name != IN_USE {
            let _ = directory.remove(&name);
        }
    }
    // The lock file is removed last: a process that waits for its lock then finds another name.
    let _ = unlinkat(directory.fd(), IN_USE, AtFlags::empty());
    let _ = std::fs::remove_dir(path);
}
