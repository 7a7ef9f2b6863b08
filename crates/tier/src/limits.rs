//! The limit of open files of a process.

use std::io;

use rustix::process::{Resource, getrlimit, setrlimit};

/// Opens a file. If the process has reached its soft limit of open files, raises the soft limit to
/// the hard limit and opens the file again.
///
/// A large decoupled index has thousands of segments, each with a descriptor, and many systems
/// start programs with a limit of 1024. The limit is not raised earlier, since programs that use
/// `select` rely on small descriptors.
///
/// # Errors
/// The function returns the errors of `open`.
pub fn with_descriptors<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match open() {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) && raise() => open(),
        opened => opened,
    }
}

/// Raises the soft limit to the hard limit. The result is `false` if they are equal already, or the
/// system refuses it.
fn raise() -> bool {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return false;
    }
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).is_ok()
}

/// If the hard limit of a process is higher than this number, its open files are not counted. Such
/// a limit is rarely reached, and counting takes time.
const MANY: u64 = 8 << 10;

/// The number of files that this process may still open, and its hard limit of open files. The
/// result is `None` if the limit is above `MANY`, or the system does not report the open files.
pub fn descriptors_left() -> Option<(u64, u64)> {
    let most = (getrlimit(Resource::Nofile).maximum).filter(|&most| most <= MANY)?;
    let list = || std::fs::read_dir(format!("/proc/{}/fd", std::process::id()));
    match with_descriptors(list) {
        // One of these descriptors belongs to the listing itself.
        Ok(open) => Some((
            most.saturating_sub((open.count() as u64).saturating_sub(1)),
            most,
        )),
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => Some((0, most)),
        Err(_) => None,
    }
}

/// The soft limit, as text for messages.
pub(crate) fn open_files() -> String {
    match getrlimit(Resource::Nofile).current {
        Some(limit) => limit.to_string(),
        None => "none".to_owned(),
    }
}
