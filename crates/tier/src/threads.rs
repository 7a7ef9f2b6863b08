//! Threads that are started: a system that has none left is an error, never a panic.

use std::cell::Cell;
use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

thread_local! {
    /// Threads that may still be started from this one, for tests; `None`: as many as the system has.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Lets the calling thread start so many more threads; then they are refused as by a system that has none left. For tests.
#[doc(hidden)]
pub fn refuse_threads_after(starts: Option<u64>) {
    LEFT.set(starts);
}

/// Threads that may still be started from the calling thread, where that was limited. For tests.
#[doc(hidden)]
pub fn threads_left() -> Option<u64> {
    LEFT.get()
}

fn allowed() -> io::Result<()> {
    match LEFT.get() {
        None => Ok(()),
        Some(0) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        Some(left) => {
            LEFT.set(Some(left - 1));
            Ok(())
        }
    }
}

/// Starts a thread with what a builder says of it.
///
/// # Errors
/// The system has none left.
pub fn start<T: Send + 'static>(
    builder: Builder,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    allowed().and_then(|()| builder.spawn(work))
}

/// Starts a thread in a scope.
///
/// # Errors
/// The system has none left.
pub fn start_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    allowed().and_then(|()| Builder::new().spawn_scoped(scope, work))
}
