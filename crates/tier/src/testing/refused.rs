//! Threads that are refused, as by a system that has none left.

use std::cell::Cell;
use std::io;

thread_local! {
    /// Threads that may still be started from this one; `None`: as many as the system has.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Lets the calling thread start so many more threads; then they are refused.
pub fn refuse_threads_after(starts: Option<u64>) {
    LEFT.set(starts);
}

/// Threads that may still be started from the calling thread, where that was limited.
pub fn threads_left() -> Option<u64> {
    LEFT.get()
}

/// Counts a thread that is about to be started, or refuses it.
pub(crate) fn allowed() -> io::Result<()> {
    match LEFT.get() {
        None => Ok(()),
        Some(0) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        Some(left) => {
            LEFT.set(Some(left - 1));
            Ok(())
        }
    }
}
