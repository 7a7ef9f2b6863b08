//! A helper for tests of forked processes.

/// Runs `child` in a forked process, and returns whether it returned true within `seconds`.
pub fn forked(seconds: u32, child: impl FnOnce() -> bool) -> bool {
    // SAFETY: libc's fork makes the allocator usable in the child. Whatever `child` does, the child
    // process ends in this block and never returns to the caller. In the child, the locks of the
    // parent's other threads stay locked: such tests examine this case.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: the signal's default ends the process.
            unsafe { libc::alarm(seconds) };
            let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            let code = i32::from(!matches!(said, Ok(true)));
            // SAFETY: this call ends the process, without the cleanup that the parent will do at
            // its own end.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is a local integer that the kernel fills in.
            let waited = unsafe { libc::waitpid(child, &mut status, 0) };
            waited == child && status == 0
        }
    }
}
