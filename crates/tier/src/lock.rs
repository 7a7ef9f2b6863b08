//! The lock file of a directory.
//!
//! The lock is taken with `flock`. It ends with the process, so a crash leaves no lock. It belongs
//! to one opening of the file, so a process may open the lock file any number of times. Three cases
//! need more than `flock`:
//!
//! - **A forked process inherits the lock**, and would keep it until its own end. So the child of
//!   every `fork` closes the descriptors of all locks (`pthread_atfork`). The parent's locks stay.
//!   (Locks of `fcntl` are not inherited, but end when *any* descriptor of the file is closed.)
//! - **When the lock is taken, another file may have the lock file's name**, because a failed build
//!   or a user removed the lock file. So the name is looked up again after locking, and before
//!   every write.
//! - **Some file systems have no locks** (some kinds of NFS, FUSE and virtual machines). There
//!   locking fails, unless [`LOCK`] declares that only one process writes.

use std::cell::UnsafeCell;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;

/// An environment variable. With `none`, a user declares that only one process writes to a file
/// system without locks.
pub(crate) const LOCK: &str = "STRATANN_LOCK";

type Identity = (u64, u64);

struct Descriptors {
    /// Set while a thread accesses `held`, or forks.
    busy: AtomicBool,
    held: UnsafeCell<Vec<(RawFd, Identity)>>,
}

// SAFETY: only one thread at a time is between `enter` and `leave`, where `held` is accessed.
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
        // SAFETY: the descriptor is a copy; a `HeldLock` of the parent owns the original. By its
        // field `process`, this `HeldLock` recognises that it belongs to the parent, and does not
        // touch the descriptor. `close` is allowed between fork and exec.
        unsafe { libc::close(fd) };
    }
    held.clear();
    DESCRIPTORS.leave();
}

#[derive(Debug)]
pub(crate) struct HeldLock {
    fd: RawFd,
    process: u32,
}

impl HeldLock {
    /// Opens a file and locks it, without a fork in between; `None` if another owner has locked it.
    /// Fails on a file system without locks ([`is_without_locks`]), unless [`LOCK`] is `none`.
    pub(crate) fn take<E: From<std::io::Error>>(
        open: impl FnOnce() -> Result<File, E>,
    ) -> Result<Option<HeldLock>, E> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the three functions capture nothing, and live as long as the program. They do
            // only what is allowed around a fork: they wait and close descriptors, and free
            // nothing. If memory is too low to register them, locks work without them.
            let refused =
                unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
            if refused != 0 {
                tracing::warn!(
                    "forked processes will keep the locks of indexes; pthread_atfork failed with error {refused}"
                );
            }
        });
        DESCRIPTORS.enter();
        let _leave = Leave;
        let file = open()?;
        let facts = fstat(&file).map_err(std::io::Error::from)?;
        let identity = (facts.st_dev, facts.st_ino);
        // SAFETY: `enter` was called above, and `leave` is called when `_leave` is dropped.
        let held = unsafe { &mut *DESCRIPTORS.held.get() };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) if is_without_locks(error.raw_os_error()) && does_without() => {
                if held.iter().any(|&(_, other)| other == identity) {
                    return Ok(None);
                }
                tracing::warn!(
                    "a lock file is on a file system without locks. {LOCK} is set: make sure that no other process writes to the folder of the lock file"
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

    pub(crate) fn process(&self) -> u32 {
        self.process
    }
}

/// NFS reports `ENOLCK` if no lock service runs.
pub(crate) fn is_without_locks(error: i32) -> bool {
    matches!(error, libc::ENOLCK | libc::ENOSYS | libc::EOPNOTSUPP)
}

fn does_without() -> bool {
    std::env::var_os(LOCK).is_some_and(|value| value == "none")
}

struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        DESCRIPTORS.leave();
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The descriptor was closed at the fork. By now its number may belong to another file.
            return;
        }
        DESCRIPTORS.enter();
        let _leave = Leave;
        // SAFETY: `enter` was called above, and `leave` is called when `_leave` is dropped.
        unsafe { &mut *DESCRIPTORS.held.get() }.retain(|&(fd, _)| fd != self.fd);
        // SAFETY: `take` gave up ownership of the descriptor, which nothing else here has closed.
        let file = unsafe { File::from_raw_fd(self.fd) };
        // Closing the file unlocks it only if no other process has a copy of the descriptor. A
        // process that was forked without libc's `fork` may have one.
        let _ = flock(&file, FlockOperation::Unlock);
        debug_assert_eq!(file.as_raw_fd(), self.fd);
    }
}
