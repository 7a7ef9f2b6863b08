//! A helper for tests of forked processes.

/// Runs `child` in a forked process, and returns whether it returned true. If the child needs
/// longer than `seconds`, it is killed, and the result is false.
pub fn forked(seconds: u32, child: impl FnOnce() -> bool) -> bool {
    // SAFETY: libc's fork makes the allocator usable in the child, which ends in this block
    // whatever `child` does: no frame of the caller is left in it. That the locks of other threads
    // stay held there is what such tests are about.
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
