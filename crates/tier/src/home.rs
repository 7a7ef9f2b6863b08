//! In which process something was made.
//!
//! A forked process has all memory of its parent and none of its threads: a lock that one of them
//! held stays locked for ever, who waits for one waits for ever, and a file that the parent writes
//! is the same file here. So whoever has threads or owns files remembers its home, and leaves them
//! alone elsewhere.

/// The process in which something was made.
///
/// ```
/// assert!(stratann_tier::Home::here().is_here());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home(u32);

impl Home {
    /// This process.
    pub fn here() -> Home {
        Home(std::process::id())
    }

    /// Whether this is that process, and not one that was forked from it since.
    pub fn is_here(self) -> bool {
        self.0 == std::process::id()
    }
}
