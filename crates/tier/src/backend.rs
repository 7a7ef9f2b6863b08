//! The interfaces through which files are read: the requested interface, and the one that works.

use std::fmt;
use std::str::FromStr;

use crate::error::TierError;

/// The requested interface for reading files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// io_uring, or else `pread`, unless `STRATANN_IO` (`auto`, `uring`, `pread`) is set.
    #[default]
    Auto,
    /// io_uring, or an error if the kernel forbids it.
    Uring,
    /// `pread` on a thread pool.
    Pread,
}

impl IoMode {
    pub(crate) fn or_environment(self) -> Result<IoMode, TierError> {
        match (self, std::env::var("STRATANN_IO")) {
            (IoMode::Auto, Ok(value)) if !value.is_empty() => {
                value.parse().map_err(|reason| TierError::Unsupported {
                    what: "the value of the environment variable STRATANN_IO".to_owned(),
                    reason,
                })
            }
            _ => Ok(self),
        }
    }
}

impl FromStr for IoMode {
    type Err = String;

    fn from_str(text: &str) -> Result<IoMode, String> {
        match text.to_ascii_lowercase().as_str() {
            "auto" => Ok(IoMode::Auto),
            "uring" | "io_uring" => Ok(IoMode::Uring),
            "pread" => Ok(IoMode::Pread),
            _ => Err(format!(
                "`{text}` is not a way to read files. Use auto, uring or pread"
            )),
        }
    }
}

impl fmt::Display for IoMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoMode::Auto => "auto",
            IoMode::Uring => "uring",
            IoMode::Pread => "pread",
        })
    }
}

/// The interface through which files are actually read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Files are read through one io_uring for each thread.
    Uring,
    /// Files are read through `pread` on a thread pool.
    Pread {
        /// The reason why io_uring is not used.
        reason: String,
    },
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Uring => f.write_str("io_uring"),
            Backend::Pread { reason } => write!(f, "pread ({reason})"),
        }
    }
}
