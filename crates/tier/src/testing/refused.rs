//! Simulates a system that refuses to start threads.

use std::cell::Cell;
use std::io;

thread_local! {
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Lets the calling thread start `starts` more threads, or with `None` any number.
pub fn refuse_threads_after(starts: Option<u64>) {
    LEFT.set(starts);
}

/// The number of threads that the calling thread may still start, if it is limited.
pub fn threads_left() -> Option<u64> {
    LEFT.get()
}

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
