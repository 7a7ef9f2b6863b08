//! Starts threads. If the system refuses a thread, the result is an error and not a panic.
//!
//! A new thread of a program with a Rust `main` maps an alternative stack, and the standard library
//! aborts the process if the system refuses this mapping. So under a limit of address space, no
//! thread is started unless there is room for more than its stack.

use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use crate::buffer::would_map;

#[cfg(feature = "testing")]
use crate::testing::refused::allowed;

#[cfg(not(feature = "testing"))]
fn allowed() -> io::Result<()> {
    Ok(())
}

/// The address space of a thread: 2 MiB for its stack, unless its builder has another size, and
/// room for its alternative stack, its variables and the first allocations. Several threads may
/// start at the same time, so the room is a multiple of the need.
const ROOM: usize = (2 << 20) + (1 << 20);

fn has_room() -> io::Result<()> {
    match would_map(ROOM) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::OutOfMemory,
            "the system refuses memory for its stack (the limit is `ulimit -v`)",
        )),
    }
}

/// Starts a thread with the settings of a builder.
///
/// # Errors
/// Fails if the system refuses another thread.
pub fn start<T: Send + 'static>(
    builder: Builder,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    allowed()?;
    has_room()?;
    builder.spawn(work)
}

/// Starts a thread in a scope.
///
/// # Errors
/// Fails if the system refuses another thread.
pub fn start_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    allowed()?;
    has_room()?;
    Builder::new().spawn_scoped(scope, work)
}
