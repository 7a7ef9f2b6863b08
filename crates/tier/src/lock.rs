//! The lock file of a directory, and who holds it.
//!
//! The lock is `flock`'s: it ends with the process, so that a crash leaves none behind, and it is
//! asked for through any number of descriptors of one process. What it does not do by itself:
//!
//! - **A forked process inherits it**, and would keep it for as long as it lives, without knowing.
//!   So the descriptors of all locks are closed in the child of every `fork` (`pthread_atfork`),
//!   which leaves the parent's lock as it is. (Locks of `fcntl` are not inherited, but end when
//!   *any* descriptor of the file is closed, by whomever; its open-file locks are inherited as
//!   these are.) A process that the program starts gets none of them: they are closed on `exec`.
//! - **The file may be another one by the time it is locked**: a build that failed removes it
//!   before it unlocks, and a user may. So the name is looked up again afterwards, and before
//!   everything that is written.
//! - **There are file systems without locks** (some of NFS, FUSE and virtual machines). A lock is
//!   refused there, unless the user says with [`LOCK`] that one process alone writes: then it holds
//!   within this process.

use std::cell::UnsafeCell;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;

/// The variable that says `none` where one process alone writes to what is on a file system without
/// locks.
pub(crate) const LOCK: &str = "STRATANN_LOCK";

/// What a file is, whatever its name: its device and its number there.
type Identity = (u64, u64);

/// Descriptors of the locks of this process.
struct Descriptors {
    /// Set while somebody has `held`, or forks.
    busy: AtomicBool,
    held: UnsafeCell<Vec<(RawFd, Identity)>>,
}

// SAFETY: `held` is only touched between `enter` and `leave`, which one thread at a time is.
unsafe impl Sync for Descriptors {}

static DESCRIPTORS: Descriptors = Descriptors {
    busy: AtomicBool::new(false),
    held: UnsafeCell::new(Vec::new()),
};

impl Descriptors {
    fn enter(&self) {
        while self.busy.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    fn leave(&self) {
        self.busy.store(false, Ordering::Release);
    }
}

extern "C" fn before_fork() {
    DESCRIPTORS.enter();
}

extern "C" fn in_parent() {
    DESCRIPTORS.leave();
}

extern "C" fn in_child() {
    // SAFETY: `before_fork` has entered, in the thread that forked, which is the only one here.
    let held = unsafe { &mut *DESCRIPTORS.held.get() };
    for &(fd, _) in held.iter() {
        // SAFETY: the descriptor is a copy of one that a `HeldLock` of the parent owns; the one of
        // this process is told apart by `process`, and does not touch it. Closing it is allowed
        // between fork and exec.
        unsafe { libc::close(fd) };
    }
    held.clear();
    DESCRIPTORS.leave();
}

/// A locked file, of this process.
#[derive(Debug)]
pub(crate) struct HeldLock {
    fd: RawFd,
    process: u32,
}

impl HeldLock {
    /// Opens a file and locks it; `None` if another has locked it. No fork comes between the two.
    /// On a file system without locks an error that [`is_without_locks`] knows, or a lock of this
    /// process alone, if the user has it so.
    pub(crate) fn take<E: From<std::io::Error>>(
        open: impl FnOnce() -> Result<File, E>,
    ) -> Result<Option<HeldLock>, E> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the three are functions without captures that live as long as the program,
            // and do what may be done around a fork: they wait, close descriptors and free nothing.
            // Out of memory, locks are as without it.
            let refused =
                unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
            if refused != 0 {
                tracing::warn!(
                    "forked processes will keep the locks of indexes: pthread_atfork: {refused}"
                );
            }
        });
        DESCRIPTORS.enter();
        let _leave = Leave;
        let file = open()?;
        let facts = fstat(&file).map_err(std::io::Error::from)?;
        let identity = (facts.st_dev, facts.st_ino);
        // SAFETY: entered above, and left when `_leave` is dropped.
        let held = unsafe { &mut *DESCRIPTORS.held.get() };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) if is_without_locks(error.raw_os_error()) && does_without() => {
                if held.iter().any(|&(_, other)| other == identity) {
                    return Ok(None);
                }
                tracing::warn!(
                    "a lock file is on a file system without locks: as {LOCK} says, no other process is to write there"
                );
            }
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        let fd = file.into_raw_fd();
        held.push((fd, identity));
        Ok(Some(HeldLock {
            fd,
            process: std::process::id(),
        }))
    }

    /// The process that took it.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }
}

/// Whether an error of the operating system says that the file system has no locks: of NFS
/// `ENOLCK`, where nobody there keeps any.
pub(crate) fn is_without_locks(error: i32) -> bool {
    matches!(error, libc::ENOLCK | libc::ENOSYS | libc::EOPNOTSUPP)
}

/// Whether the user says that no lock is needed where there is none.
fn does_without() -> bool {
    std::env::var_os(LOCK).is_some_and(|value| value == "none")
}

/// Leaves, also if something in between panics.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        DESCRIPTORS.leave();
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Closed when it forked; the number may be that of another file by now.
            return;
        }
        DESCRIPTORS.enter();
        let _leave = Leave;
        // SAFETY: entered above, and left when `_leave` is dropped.
        unsafe { &mut *DESCRIPTORS.held.get() }.retain(|&(fd, _)| fd != self.fd);
        // SAFETY: `take` gave the descriptor up, and this process has closed it nowhere else.
        let file = unsafe { File::from_raw_fd(self.fd) };
        // Not only closed: a process that was forked in another way than libc's may still have a
        // copy. Closing it unlocks it in all other cases, so that there is nothing to say if this
        // fails.
        let _ = flock(&file, FlockOperation::Unlock);
        debug_assert_eq!(file.as_raw_fd(), self.fd);
    }
}
