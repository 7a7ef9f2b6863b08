//! The process in which a value was made.
//!
//! A forked process has all memory of its parent and none of its threads. A lock that a parent's
//! thread held stays locked for ever, and a thread that waits for it never returns. A file that the
//! parent writes is the same file in the child. So a value that has threads or owns files records
//! its process, and does not touch them in another one.

/// The process in which a value was made.
///
/// ```
/// assert!(stratann_tier::Home::here().is_here());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home(u32);

impl Home {
    /// The current process.
    pub fn here() -> Home {
        Home(std::process::id())
    }

    /// Whether the current process is this one, and not a process forked from it since.
    pub fn is_here(self) -> bool {
        self.0 == std::process::id()
    }
}
