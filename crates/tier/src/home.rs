//! The process in which a value was created. A forked process has its parent's memory and files,
//! but not its threads, and a lock that one of them had stays locked. So a value with threads or
//! files records its process, and uses neither in another process.

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

    /// Whether the current process is the recorded one, and not a fork of it.
    pub fn is_here(self) -> bool {
        self.0 == std::process::id()
    }
}
