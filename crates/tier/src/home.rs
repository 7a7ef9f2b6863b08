//! The process in which a value was created.
//!
//! A forked process has all memory of its parent and none of its threads. If a thread of the parent
//! had a lock at the fork, the lock stays locked in the child, and a thread that waits for it never
//! returns. A file that the parent writes is the same file in the child. So a value that has
//! threads or owns files records its process. In another process, it uses neither its threads nor
//! its files.

/// The process in which a value was created.
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

    /// Whether the current process is the recorded process, and not a process that was forked from
    /// it.
    pub fn is_here(self) -> bool {
        self.0 == std::process::id()
    }
}
