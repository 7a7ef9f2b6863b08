//! The owner of a volume's lock, as the lock file describes it to other processes.
//!
//! ```text
//!   4711 build-7                              the process id, and its host or container
//!   a storage server                          its description, if it has set one
//!   change the index through it: stratann ..  advice to other processes meanwhile
//! ```
//!
//! The text is only information: the lock belongs to the operating system (`lock.rs`). A line that
//! could not be written is missing. A release empties the file; after a kill the text stays,
//! without effect. A process number is valid within one host or container, and is reused, so
//! messages say "if it still runs".

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};

const MOST: u64 = 1024;
const REMEDY: &str =
    "Close that handle (in Python index.close(), or the end of its with block), or wait";

/// The owner of a lock, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    process: Option<u32>,
    /// The host or container in which the number of the process is valid.
    host: Option<String>,
    what: Option<String>,
    remedy: Option<String>,
}

fn host_here() -> Option<String> {
    let name = rustix::system::uname();
    let name = name.nodename().to_str().ok()?.to_owned();
    (!name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control()))
        .then_some(name)
}

impl Holder {
    pub(crate) fn here() -> Holder {
        Holder {
            process: Some(std::process::id()),
            host: host_here(),
            ..Holder::default()
        }
    }

    /// `what` is the kind of this process; `remedy` is for processes that find the index locked.
    pub(crate) fn named(what: &str, remedy: &str) -> Holder {
        Holder {
            what: Some(what.to_owned()),
            remedy: Some(remedy.to_owned()),
            ..Holder::here()
        }
    }

    /// The number of the process, in its host or container, if the lock file has one.
    pub fn process(&self) -> Option<u32> {
        self.process
    }

    pub(crate) fn remedy(&self) -> &str {
        self.remedy.as_deref().unwrap_or(REMEDY)
    }

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
            (None, _) => f.write_str("another process, or another handle of this process,")?,
            (Some(id), _) if is_this => write!(
                f,
                "another handle of this process ({id}), or the process {id} of another container,"
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
