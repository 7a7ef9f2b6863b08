//! Passes the engine's log messages to the logger "stratann" of Python's `logging`.
//!
//! A thread that logs may hold a lock for which a thread with the interpreter's lock waits. So the
//! logging thread must not wait for the interpreter: it puts its message into a queue, and a
//! separate thread passes the message on. A message that `STRATANN_LOG` excludes is dropped after
//! one comparison. Python filters the other messages.
//!
//! A process may fork at any time. The child lacks the separate thread, and its copy of the queue
//! may be locked. So no thread waits for the queue's lock, and a message that cannot be queued is
//! dropped and counted. The locks here are from the standard library, which does not record the
//! waiting threads. `parking_lot` could give a lock to a thread that no longer exists.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;

/// The environment variable with the lowest level of messages to pass on: error, warn, info, debug
/// or off.
const LEVEL: &str = "STRATANN_LOG";
/// The maximum number of messages in the queue. Beyond this number, the oldest message is dropped.
const MOST: usize = 1_000;

/// How long the end of the interpreter waits for a message that is being passed on.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    lines: VecDeque<(Level, String)>,
    /// The process whose thread passes messages on. A forked process has no such thread.
    process: u32,
    /// Whether the separate thread is passing on a message, and may hold the interpreter's lock.
    handing: bool,
    /// Whether the interpreter is ending. Then no other thread may ask for its lock.
    ended: bool,
}

struct Forward {
    state: Mutex<State>,
    wake: Condvar,
    /// Signalled when the current message has been passed on.
    handed: Condvar,
    /// The number of warnings and errors that were dropped since a message was last passed on.
    /// Dropped messages of other levels are not counted.
    lost: AtomicU64,
}

/// How often a thread tries to lock the queue, which other threads lock only briefly.
const TRIES: usize = 1_000;

impl Forward {
    fn queue(&self) -> Option<MutexGuard<'_, State>> {
        for _ in 0..TRIES {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(state)) => return Some(state.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }

    /// Counts a dropped message of this level.
    fn lose(&self, level: Level) {
        if level <= Level::Warn {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

static FORWARD: Forward = Forward {
    state: Mutex::new(State {
        lines: VecDeque::new(),
        process: 0,
        handing: false,
        ended: false,
    }),
    wake: Condvar::new(),
    handed: Condvar::new(),
    lost: AtomicU64::new(0),
};

impl Log for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level() && metadata.target().starts_with("stratann")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let Some(mut state) = self.queue() else {
            self.lose(record.level());
            return;
        };
        if state.process != std::process::id() && state.process != 0 {
            // These messages belong to the parent of this forked process, and the parent passes
            // them on.
            state.lines.clear();
            state.handing = false;
        }
        if state.lines.len() >= MOST {
            let lost = state.lines.pop_front();
            lost.inspect(|(level, _)| self.lose(*level));
        }
        state
            .lines
            .push_back((record.level(), record.args().to_string()));
        if state.process != std::process::id() && !state.ended {
            let named = std::thread::Builder::new().name("stratann-logging".into());
            // If no thread can be started, the messages wait, and the next message tries again.
            if named.spawn(hand_over).is_ok() {
                state.process = std::process::id();
            }
        }
        self.wake.notify_one();
    }

    fn flush(&self) {}
}

/// Passes messages to Python until the interpreter ends.
fn hand_over() {
    loop {
        let (level, line, lost) = {
            let mut state = FORWARD.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.handing = false;
            FORWARD.handed.notify_all();
            loop {
                if state.ended {
                    return;
                }
                match state.lines.pop_front() {
                    Some((level, line)) => {
                        state.handing = true;
                        break (level, line, FORWARD.lost.swap(0, Ordering::Relaxed));
                    }
                    None => {
                        let woken = FORWARD.wake.wait(state);
                        state = woken.unwrap_or_else(PoisonError::into_inner);
                    }
                }
            }
        };
        // An exception of a handler belongs to the host program, and `logging` usually reports it.
        let told = Python::try_attach(|py| tell(py, level, &line, lost));
        if told.is_none() {
            let mut state = FORWARD.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.handing = false;
            state.ended = true;
            FORWARD.handed.notify_all();
            return;
        }
    }
}

/// Passes a message to the logger "stratann".
fn tell(py: Python<'_>, level: Level, line: &str, lost: u64) -> PyResult<()> {
    let logger = py
        .import("logging")?
        .call_method1("getLogger", ("stratann",))?;
    if lost > 0 {
        logger.call_method1(
            "warning",
            (format!("{lost} warnings and errors could not be logged"),),
        )?;
    }
    let level = match level {
        Level::Error => 40,
        Level::Warn => 30,
        Level::Info => 20,
        Level::Debug | Level::Trace => 10,
    };
    // The message is no format string.
    logger.call_method1("log", (level, "%s", line)).map(drop)
}

/// Python calls this function before the interpreter ends. A thread that holds the interpreter's
/// lock, or asks for it, while the interpreter shuts down would crash the process. So this function
/// waits until the logging thread has passed on its message, and then passes on the other messages.
///
/// The function waits at most [`PATIENCE`] for a handler of the logging thread.
#[pyfunction]
fn end_logging(py: Python<'_>) {
    let left = py.detach(|| {
        // In a forked process, a thread that does not exist may hold the lock. The waiting messages
        // belong to the parent.
        let Some(mut state) = FORWARD.queue() else {
            return VecDeque::new();
        };
        state.ended = true;
        if state.process != std::process::id() {
            return VecDeque::new();
        }
        FORWARD.wake.notify_all();
        let waited = FORWARD
            .handed
            .wait_timeout_while(state, PATIENCE, |state| state.handing);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut state.lines)
    });
    for (level, line) in left {
        // As in the loop above, exceptions of a handler are ignored here.
        let _ = tell(py, level, &line, FORWARD.lost.swap(0, Ordering::Relaxed));
    }
}

/// Passes the engine's log messages to Python, except levels that `STRATANN_LOG` excludes, from now
/// on until the interpreter ends.
///
/// # Errors
/// Python has no `logging` or no `atexit`.
pub fn install(py: Python<'_>) -> PyResult<()> {
    let named = std::env::var(LEVEL).ok();
    let level = named.and_then(|name| name.parse().ok());
    // A program in Rust that embeds Python may have set a logger already.
    if log::set_logger(&FORWARD).is_ok() {
        log::set_max_level(level.unwrap_or(LevelFilter::Debug));
    }
    // Imported now, before any thread needs it. If a process forked while another thread imported
    // `logging`, the child would wait for this import for ever.
    py.import("logging")?;
    let end = wrap_pyfunction!(end_logging, py)?;
    py.import("atexit")?.call_method1("register", (end,))?;
    Ok(())
}
