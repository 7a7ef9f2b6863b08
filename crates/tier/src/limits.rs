//! The limit of open files of a process.

use std::io;

use rustix::process::{Resource, getrlimit, setrlimit};

/// Opens a file, if necessary after raising the soft limit of open files to the hard limit.
///
/// A large decoupled index has thousands of segments with a descriptor each. The limit is not
/// raised earlier, because programs that use `select` rely on small descriptors.
///
/// # Errors
/// Returns the errors of `open`.
pub fn with_descriptors<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match open() {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) && raise() => open(),
        opened => opened,
    }
}

fn raise() -> bool {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return false;
    }
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).is_ok()
}

/// The largest hard limit for which open files are counted. A higher limit is rarely reached, and
/// counting takes time.
const MANY: u64 = 8 << 10;

/// The number of files that this process may still open, and its hard limit, if known.
pub fn descriptors_left() -> Option<(u64, u64)> {
    let most = (getrlimit(Resource::Nofile).maximum).filter(|&most| most <= MANY)?;
    let list = || std::fs::read_dir(format!("/proc/{}/fd", std::process::id()));
    match with_descriptors(list) {
        Ok(open) => Some((
            most.saturating_sub((open.count() as u64).saturating_sub(1)),
            most,
        )),
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => Some((0, most)),
        Err(_) => None,
    }
}

pub(crate) fn open_files() -> String {
    match getrlimit(Resource::Nofile).current {
        Some(limit) => limit.to_string(),
        None => "none".to_owned(),
    }
}
