//! Folders for copies of an index' files, at a place that a user names.
//!
//! ```text
//!   PLACE/                                   made for this user alone, if it is not there
//!   PLACE/stratann-OWNER-CONTENT/            copies of one index in one state; CONTENT says which
//!   PLACE/stratann-OWNER-CONTENT/graph-000001
//!   PLACE/stratann-OWNER-CONTENT/graph-000001.copy-PID-N       one that is being made
//!   PLACE/stratann-OWNER-CONTENT/IN-USE      held by a shared lock by whoever has the folder open
//! ```
//!
//! **Whose it is.** OWNER says which index (the engine takes a hash of the path of its home),
//! CONTENT in which state (a hash of its MANIFEST), so two processes that open one index use one
//! folder, those of different indexes or states different ones.
//!
//! **What nobody uses any more** goes when somebody opens a folder of the same owner: whoever gets
//! the lock of IN-USE for himself alone knows that nobody has the folder open. A lock ends with its
//! process, so that a crash leaves nothing that stays for ever.
//!
//! **Who comes second waits.** A copy is made under a lock of the folder: who opens the same index
//! meanwhile finds it made.
//!
//! **Who may look.** A place has to be a directory of this user that nobody else can write to, a
//! folder in it one that nobody else can even look into; so nobody can put files there, or read
//! what stands there.

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

/// Name of the file whose lock says that a folder is in use.
pub(super) const IN_USE: &str = "IN-USE";
/// What the names of all folders begin with.
pub(super) const PREFIX: &str = "stratann-";
/// What stands in the name of a file that is being made.
pub(super) const UNFINISHED: &str = ".copy-";
/// How often another process may remove a folder while it is being opened.
const TRIES: usize = 100;

/// For how long a folder's copies are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// For whoever opens the index in the same state later.
    ForOthers,
    /// Until the handle is dropped: they change with the index.
    ForNow,
}

/// A folder for copies that is open. While it is, nobody removes it.
#[derive(Debug)]
pub struct CopyFolder {
    directory: Directory,
    path: PathBuf,
    /// Its lock, held.
    in_use: File,
    kept: Kept,
    home: Home,
    /// What a test says is free.
    #[cfg(test)]
    pub(super) free: Option<u64>,
}

fn failed(action: &'static str, path: &Path) -> impl Fn(Errno) -> TierError {
    let place = path.display().to_string();
    move |error| TierError::io(action, place.clone(), 0, 0, error.into())
}

/// Refuses a directory of somebody else, and one that others have a permission of `mask` for.
fn check_private(path: &Path, facts: &Stat, mask: u32) -> Result<(), TierError> {
    let refuse = |what: String| {
        Err(TierError::NotPrivate {
            place: path.display().to_string(),
            what,
        })
    };
    let (owner, user) = (facts.st_uid, geteuid().as_raw());
    if FileType::from_raw_mode(facts.st_mode) != FileType::Directory {
        return refuse("it is no directory".to_owned());
    }
    if owner != user {
        return refuse(format!(
            "it belongs to user {owner}, and this is user {user}"
        ));
    }
    match facts.st_mode & mask {
        0 => Ok(()),
        _ => refuse(format!("its permissions are {:o}", facts.st_mode & 0o7777)),
    }
}

/// Refuses a device, and a folder that would be made among devices: who names `/dev/dax0.0` means
/// what is behind it, and a folder of that name would take the memory of the kernel.
fn check_beside_devices(place: &Path) -> Result<(), TierError> {
    let refuse = || {
        Err(TierError::Unsupported {
            what: format!("{}, which is a device or would stand among them,", place.display()),
            reason: "copies are files in a folder: mount a file system on the device (of persistent or CXL memory: one with DAX), or a tmpfs \
                     with `mpol=bind:N` for the memory of NUMA node N, and name a folder in it"
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

/// Makes a directory for this user alone, unless it is there.
fn make(path: &Path) -> Result<(), TierError> {
    match mkdirat(rustix::fs::CWD, path, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(failed("create", path)(error)),
    }
}

/// What a file is, whatever its name.
fn identity(facts: &Stat) -> (u64, u64) {
    (facts.st_dev, facts.st_ino)
}

impl CopyFolder {
    /// Makes the directory `place` if it is not there (its parent must be), and checks that nobody
    /// else can write to it.
    ///
    /// # Errors
    /// [`TierError::NotPrivate`]; it is a device, or would stand among devices; it cannot be made.
    pub fn prepare(place: &Path) -> Result<(), TierError> {
        check_beside_devices(place)?;
        make(place)?;
        let facts = statat(rustix::fs::CWD, place, AtFlags::empty());
        check_private(place, &facts.map_err(failed("look at", place))?, 0o022)
    }

    /// Opens the folder of `owner` and `content` at a place, which is made where it is not there;
    /// removes what nobody uses any more of the same owner. Both names are of letters and digits.
    ///
    /// # Errors
    /// As [`prepare`](CopyFolder::prepare).
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
            what: "it is removed again and again".to_owned(),
        })
    }

    /// Opens a folder and takes its lock; `None` if it was removed meanwhile.
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
        // Whoever has it for himself alone may remove what was left half made.
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

    /// Whether its lock file is still the one of its name.
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
                // It takes room, and does no other harm.
                let _ = self.directory.remove(&name);
            }
        }
    }

    /// Its files.
    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// For how long its copies are.
    pub(super) fn kept(&self) -> Kept {
        self.kept
    }

    /// Waits until nobody else makes a copy in it, and keeps others from making one until this is
    /// dropped.
    pub(super) fn make_alone(&self) -> Result<MakingAlone, TierError> {
        // The directory itself carries the lock, through a descriptor of its own.
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

    /// Bytes that are free on its device, for this user.
    pub(super) fn free_bytes(&self) -> Result<u64, TierError> {
        #[cfg(test)]
        if let Some(free) = self.free {
            return Ok(free);
        }
        let facts = fstatvfs(&self.in_use).map_err(failed("look at", &self.path))?;
        Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
    }

    /// Refuses bytes that its device has no room for.
    pub(super) fn check_room(&self, len: u64) -> Result<(), TierError> {
        let free = self.free_bytes()?;
        if free < len {
            let place = self.path.display().to_string();
            return Err(TierError::NoRoom { place, len, free });
        }
        Ok(())
    }
}

/// A folder's lock for who makes a copy in it. It ends when the descriptor is closed.
pub(super) struct MakingAlone(#[expect(dead_code, reason = "held, not looked at")] File);

impl Drop for CopyFolder {
    fn drop(&mut self) {
        if self.kept == Kept::ForNow && self.home.is_here() {
            remove_unused(&self.path, Some(&self.in_use));
        }
    }
}

/// Removes the folders that begin with `prefix` and that nobody uses, but for one. That some stay
/// is no failure.
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

/// Removes a folder if nobody has it open; `own` is the lock of who calls, which is let go.
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
            // Somebody is about to make it.
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
    // The lock goes last: who waits for it finds that it is not that of the folder any more.
    let _ = unlinkat(directory.fd(), IN_USE, AtFlags::empty());
    let _ = std::fs::remove_dir(path);
}
