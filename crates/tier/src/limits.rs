//! How many files a process may have open.

use std::io;

use rustix::process::{Resource, getrlimit, setrlimit};

/// Opens something. Where the process has as many files open as it may, its soft limit is raised to the hard one: a large
/// decoupled index has thousands of segments, each with a descriptor, and many systems start programs with 1024.
/// Not before, since programs that use `select` rely on small numbers.
pub(crate) fn with_descriptors<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match open() {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) && raise() => open(),
        opened => opened,
    }
}

/// Raises the soft limit to the hard one; false if that is where it is.
fn raise() -> bool {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return false;
    }
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).is_ok()
}

/// The soft limit, for messages.
pub(crate) fn open_files() -> String {
    match getrlimit(Resource::Nofile).current {
        Some(limit) => limit.to_string(),
        None => "without a limit of its own".to_owned(),
    }
}
