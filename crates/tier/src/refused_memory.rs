//! If the system refuses memory, code returns an error where it can. Elsewhere the process prints a
//! message and ends.
//!
//! Before work whose memory grows with the number of vectors, the engine asks the system for that
//! memory ([`ask_for_memory`]). If the system refuses a small allocation, the standard library
//! aborts the process. A program with this module's allocator and [`explain_aborts`] then prints a
//! line with `error:`, and exits with status 1.
//!
//! ```text
//!   RecordingAllocator ── refused? ──> the thread remembers how many bytes were refused
//!                                           │
//!   standard library aborts: SIGABRT ──> the handler of `explain_aborts` reads it, says so, exits
//! ```
//!
//! The process ends without cleanup, as if it were killed: a committed index is complete, and its
//! next change or build removes unfinished files. A process without [`explain_aborts`], such as the
//! Python interpreter, aborts as usual.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
#[cfg(target_env = "gnu")]
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(target_env = "gnu")]
use rustix::process::{Resource, getrlimit};

use crate::buffer::would_map;
use crate::error::TierError;

/// Requests `bytes` bytes in one mapping and returns them untouched. If the system refuses them,
/// work should not begin. The error names the purpose (`what`) and a remedy (`instead`, an
/// imperative).
///
/// # Errors
/// [`TierError::NoMemory`] if the system refuses the memory.
pub fn ask_for_memory(
    what: impl Into<String>,
    bytes: u64,
    instead: &'static str,
) -> Result<(), TierError> {
    // Bypasses the allocator, which after a large allocation returns less freed memory to the
    // system.
    match usize::try_from(bytes).is_ok_and(would_map) {
        true => Ok(()),
        false => Err(TierError::NoMemory {
            what: what.into(),
            bytes,
            instead,
        }),
    }
}

thread_local! {
    /// The bytes of this thread's last refused request, or 0.
    static REFUSED: Cell<usize> = const { Cell::new(0) };
}

/// A `#[global_allocator]` that records each thread's last refused request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordingAllocator;

#[inline]
fn recorded(pointer: *mut u8, bytes: usize) -> *mut u8 {
    if pointer.is_null() {
        // When a thread is ending, its thread-local variables no longer exist.
        let _ = REFUSED.try_with(|refused| refused.set(bytes.max(1)));
    }
    pointer
}

// SAFETY: each method passes its arguments to the same method of the system's allocator, whose
// contract is the same, and returns its result. A refusal is recorded without allocations or
// panics.
unsafe impl GlobalAlloc for RecordingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        recorded(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`.
        recorded(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`, and `pointer` came from
        // the system's allocator.
        recorded(unsafe { System.realloc(pointer, layout, size) }, size)
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`, and `pointer` came from
        // the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The address space of an arena of glibc, in bytes. If a thread gets no arena, each of its
/// allocations takes whole pages.
#[cfg(target_env = "gnu")]
const ARENA: u64 = 64 << 20;

/// If the limit of address space (`ulimit -v`) is small, makes all threads share one arena of
/// glibc. Call this function before other threads start.
pub fn share_arenas_under_a_limit() {
    #[cfg(target_env = "gnu")]
    {
        let Some(limit) = getrlimit(Resource::As).current else {
            return;
        };
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get) as u64;
        if limit / 2 / ARENA < processors {
            // SAFETY: this sets a parameter of the allocator, which accepts it at any time.
            unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
        }
    }
}

/// Every failure of a valid command line has this exit status.
const FAILED: libc::c_int = 1;

/// If a thread aborts after the system refused it memory, the process exits with status 1 and a
/// line on standard error. Needs [`RecordingAllocator`].
///
/// # Errors
/// Fails if the system refuses the handler.
pub fn explain_aborts() -> io::Result<()> {
    // SAFETY: an all-zero `sigaction` is a valid one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int) = aborted;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_ONSTACK;
    // SAFETY: `action` is valid; its handler neither allocates nor locks (async-signal-safe).
    match unsafe { libc::sigaction(libc::SIGABRT, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

static ENDING: AtomicBool = AtomicBool::new(false);

/// If the handler returns, `abort` of the C library ends the process with SIGABRT.
extern "C" fn aborted(_: libc::c_int) {
    let refused = REFUSED.try_with(Cell::get).unwrap_or(0);
    if refused == 0 {
        return;
    }
    while ENDING.swap(true, Ordering::SeqCst) {
        // Another thread writes the report and ends the process.
        // SAFETY: this call waits for a signal, and touches no memory.
        unsafe { libc::pause() };
    }
    let mut line = Line::default();
    line.add(b"error: memory of ");
    line.add_number(refused);
    line.add(REMEDY);
    // SAFETY: the buffer is valid for its length. If the descriptor is closed, nothing is written.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len) };
    // SAFETY: this call ends the process at once, and is allowed in a handler.
    unsafe { libc::_exit(FAILED) }
}

const REMEDY: &[u8] = b" bytes; the system refused it. Raise the limit of this process (`ulimit -v`, or the memory of its cgroup), \
or ask for less (fewer threads, a smaller --memory). A committed index is intact; its next build or change removes unfinished files\n";

struct Line {
    bytes: [u8; 320],
    len: usize,
}

impl Default for Line {
    fn default() -> Line {
        Line {
            bytes: [0; 320],
            len: 0,
        }
    }
}

impl Line {
    fn add(&mut self, text: &[u8]) {
        for (to, &byte) in self.bytes.iter_mut().skip(self.len).zip(text) {
            *to = byte;
        }
        self.len = (self.len + text.len()).min(self.bytes.len());
    }

    fn add_number(&mut self, mut number: usize) {
        let mut digits = [0; 20];
        let mut first = digits.len();
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
            first -= 1;
            if number == 0 {
                break;
            }
        }
        self.add(&digits[first..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_put_together_without_memory() {
        for number in [0, 7, 10, 12_608, usize::MAX] {
            let mut line = Line::default();
            line.add(b"memory of ");
            line.add_number(number);
            line.add(REMEDY);
            let text = std::str::from_utf8(&line.bytes[..line.len]).unwrap();
            assert!(
                text.starts_with(&format!("memory of {number} bytes; the system")),
                "{text}"
            );
            assert!(text.ends_with("unfinished files\n"), "{text}");
        }
        let mut full = Line::default();
        full.add(&[b'x'; 1000]);
        full.add(b"y");
        assert_eq!(full.bytes[..full.len], [b'x'; 320]);
    }

    #[test]
    fn memory_that_is_asked_for_is_there_or_an_error_names_it() {
        ask_for_memory("nothing", 0, "").unwrap();
        ask_for_memory("a piece", 64 << 20, "").unwrap();
        for bytes in [u64::MAX, 1 << 62] {
            let error = ask_for_memory("all of it", bytes, "ask for less").unwrap_err();
            assert_eq!(error.place(), "all of it");
            let text = error.to_string();
            for words in [&bytes.to_string(), "ulimit -v", "or ask for less"] {
                assert!(text.contains(words), "{text}");
            }
        }
    }

    #[test]
    fn what_was_refused_is_remembered_in_the_thread_that_asked() {
        let allocator = RecordingAllocator;
        let layout = Layout::from_size_align(isize::MAX as usize & !7, 8).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: the layout's size is not zero, and the returned pointer is null.
                let none = unsafe { allocator.alloc(layout) };
                assert!(none.is_null());
                assert_eq!(REFUSED.get(), layout.size());
            });
        });
        assert_eq!(REFUSED.get(), 0);
        let layout = Layout::new::<[u64; 4]>();
        // SAFETY: the layout's size is not zero; the memory is freed with its last layout.
        unsafe {
            let some = allocator.alloc_zeroed(layout);
            let some = allocator.realloc(some, layout, 64);
            assert!(!some.is_null());
            allocator.dealloc(some, Layout::new::<[u64; 8]>());
        }
        assert_eq!(REFUSED.get(), 0);
    }
}
