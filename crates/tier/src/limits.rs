//! How many files a process may have open.

use std::io;

use rustix::process::{Resource, getrlimit, setrlimit};

/// Opens something. Where the process has as many files open as it may, its soft limit is raised to
/// the hard one: a large decoupled index has thousands of segments, each with a descriptor, and
/// many systems start programs with 1024. Not before, since programs that use `select` rely on
/// small numbers.
///
/// # Errors
/// Those of `open`.
pub fn with_descriptors<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
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

/// Processes that may have more files open than this are not counted: that many are rarely open,
/// and to count takes time.
const MANY: u64 = 8 << 10;

/// How many files this process may open yet, and how many it may have open. `None` where it may
/// have many thousands, or the system does not say.
pub fn descriptors_left() -> Option<(u64, u64)> {
    let most = (getrlimit(Resource::Nofile).maximum).filter(|&most| most <= MANY)?;
    let list = || std::fs::read_dir(format!("/proc/{}/fd", std::process::id()));
    match with_descriptors(list) {
        // One of them is that of the list itself.
        Ok(open) => Some((
            most.saturating_sub((open.count() as u64).saturating_sub(1)),
            most,
        )),
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => Some((0, most)),
        Err(_) => None,
    }
}

/// The soft limit, for messages.
pub(crate) fn open_files() -> String {
    match getrlimit(Resource::Nofile).current {
        Some(limit) => limit.to_string(),
        None => "without a limit of its own".to_owned(),
    }
}
