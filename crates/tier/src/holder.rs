//! Who has a volume locked, as its lock file says: for whoever finds it locked.
//!
//! ```text
//!   4711 build-7                                                the process, in decimal, and the host or container in which it has that number
//!   a storage server                                            what it is, if it has said so
//!   change the index through it: stratann cluster upsert ...    what others are to do meanwhile
//! ```
//!
//! It is advice and nothing more: the lock itself is the operating system's (`lock.rs`). A line
//! that could not be written is not there; the file is empty when the lock is given back, and what
//! a process left that was killed counts for nothing, since nobody is kept out by it. Numbers of
//! processes are those of one host or container, and are used again: so what is said of one is said
//! with a doubt, but of this process.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};

/// Bytes of a lock file that are read at most.
const MOST: u64 = 1024;
/// What stands in for a name, and for what others are to do, where nothing is said.
const REMEDY: &str =
    "Close that handle (in Python index.close(), or let its with-block end), or wait";

/// Who has something open for changes, as far as is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    process: Option<u32>,
    /// What the host, or the container, is called in which that is its number.
    host: Option<String>,
    what: Option<String>,
    remedy: Option<String>,
}

/// What this host, or this container, is called.
fn host_here() -> Option<String> {
    let name = rustix::system::uname();
    let name = name.nodename().to_str().ok()?.to_owned();
    (!name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control()))
        .then_some(name)
}

impl Holder {
    /// This process.
    pub(crate) fn here() -> Holder {
        Holder {
            process: Some(std::process::id()),
            host: host_here(),
            ..Holder::default()
        }
    }

    /// This process, what it is, and what others are to do who are kept out: one line each.
    pub(crate) fn named(what: &str, remedy: &str) -> Holder {
        Holder {
            what: Some(what.to_owned()),
            remedy: Some(remedy.to_owned()),
            ..Holder::here()
        }
    }

    /// Which process it is, as far as its file says so: a number of the host or container that it
    /// ran in.
    pub fn process(&self) -> Option<u32> {
        self.process
    }

    /// What others are to do.
    pub(crate) fn remedy(&self) -> &str {
        self.remedy.as_deref().unwrap_or(REMEDY)
    }

    /// What a lock file says; nothing where that is not this.
    pub(crate) fn read(file: File) -> Holder {
        let mut text = String::new();
        if file.take(MOST).read_to_string(&mut text).is_err() {
            return Holder::default();
        }
        let mut lines = text.lines();
        let mut first = lines.next().unwrap_or_default().splitn(2, ' ');
        let process = first.next().and_then(|number| number.parse().ok());
        let host = first.next().map(str::to_owned);
        let host = host.filter(|host| !host.is_empty() && !host.chars().any(char::is_control));
        let plain = |line: &&str| !line.is_empty() && !line.chars().any(char::is_control);
        let mut line = || lines.next().filter(plain).map(str::to_owned);
        let (what, remedy) = (line(), line());
        match process {
            None => Holder::default(),
            process => Holder {
                process,
                host,
                what,
                remedy,
            },
        }
    }

    /// Says so in a lock file, in place of what stands there: nothing of nobody.
    pub(crate) fn write(&self, mut file: File) -> io::Result<()> {
        file.set_len(0)?;
        let Some(process) = self.process else {
            return Ok(());
        };
        let [what, remedy] = [&self.what, &self.remedy].map(|line| line.as_deref().unwrap_or(""));
        let host = self.host.iter().map(|host| format!(" {host}"));
        let host: String = host.collect();
        file.write_all(format!("{process}{host}\n{what}\n{remedy}\n").as_bytes())
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_this = self.process == Some(std::process::id()) && self.host == host_here();
        match (self.process, &self.host) {
            (None, _) => f.write_str("another process, or another handle of this one,")?,
            (Some(id), _) if is_this => write!(
                f,
                "another handle of this process ({id}), or a process of that number in another container,"
            )?,
            (Some(id), None) => write!(f, "process {id}, if it still runs,")?,
            (Some(id), Some(host)) => write!(f, "process {id} of host {host}, if it still runs,")?,
        }
        match &self.what {
            None => f.write_str(" has it open for changes"),
            Some(what) => write!(f, " has it open for changes, as {what}"),
        }
    }
}
