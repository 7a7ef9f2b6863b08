//! In which process something was made.
//!
//! A forked process has all memory of its parent and none of its threads: a lock that one of them held stays locked for ever, who
//! waits for one waits for ever, and a file that the parent writes is the same file here. So whoever has threads or owns files
//! remembers its home, and leaves them alone elsewhere.

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

/// Whether `child` says true in a forked process, for tests. One that takes longer than `seconds` is ended, and says false.
#[doc(hidden)]
pub fn forked(seconds: u32, child: impl FnOnce() -> bool) -> bool {
    // SAFETY: libc's fork makes the allocator usable in the child, which ends in this block whatever `child` does: no frame of the
    // caller is left in it. That the locks of other threads stay held there is what such tests are about.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: the signal's default ends the process.
            unsafe { libc::alarm(seconds) };
            let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            let code = i32::from(!matches!(said, Ok(true)));
            // SAFETY: it ends the process, without what the parent would do at its end.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is an integer of ours that the kernel fills in.
            let waited = unsafe { libc::waitpid(child, &mut status, 0) };
            waited == child && status == 0
        }
    }
}
