//! Starts threads. If the system refuses a thread, the result is an error and not a panic.

use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

#[cfg(feature = "testing")]
use crate::testing::refused::allowed;

#[cfg(not(feature = "testing"))]
fn allowed() -> io::Result<()> {
    Ok(())
}

/// Starts a thread with the settings of a builder.
///
/// # Errors
/// Fails if the system refuses another thread.
pub fn start<T: Send + 'static>(
    builder: Builder,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    allowed().and_then(|()| builder.spawn(work))
}

/// Starts a thread in a scope.
///
/// # Errors
/// Fails if the system refuses another thread.
pub fn start_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    allowed().and_then(|()| Builder::new().spawn_scoped(scope, work))
}
