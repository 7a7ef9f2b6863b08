//! Passes the engine's log messages to the logger "stratann" of Python's `logging`.
//!
//! A thread that logs may hold a lock for which a thread with the interpreter's lock waits. So the
//! logging thread puts its message into a queue, and a separate thread passes the message on.
//! `STRATANN_LOG` drops messages first, and Python filters the others.
//!
//! A forked child lacks the separate thread, and its copy of the queue may be locked. So no thread
//! waits for the queue's lock, and messages that cannot be queued are dropped and counted. The
//! locks are of the standard library: `parking_lot` could give a lock to a missing thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;

/// The variable with the lowest level to pass on: error, warn, info, debug or off.
const LEVEL: &str = "STRATANN_LOG";
/// The largest number of messages in the queue. Beyond it, the oldest message is dropped.
const MOST: usize = 1_000;

/// How long the interpreter's end waits for a message.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    lines: VecDeque<(Level, String)>,
    /// The process whose thread passes messages on.
    process: u32,
    /// Whether the separate thread is passing on a message, and may hold the interpreter's lock.
    handing: bool,
    /// At the interpreter's end, no other thread may ask for its lock.
    ended: bool,
}

struct Forward {
    state: Mutex<State>,
    wake: Condvar,
    handed: Condvar,
    /// The number of warnings and errors that were dropped since a message was last passed on.
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
            // The parent passes these messages on.
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
            // If no thread can be started, the next message tries again.
            if named.spawn(hand_over).is_ok() {
                state.process = std::process::id();
            }
        }
        self.wake.notify_one();
    }

    fn flush(&self) {}
}

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
        // `logging` usually reports an exception of a handler.
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
    logger.call_method1("log", (level, "%s", line)).map(drop)
}

/// Python calls this before the interpreter ends. A thread that has or wants the interpreter's lock
/// during the end would crash the process. So this function waits for the logging thread, and
/// passes the other messages on.
///
/// The wait lasts at most [`PATIENCE`].
#[pyfunction]
fn end_logging(py: Python<'_>) {
    let left = py.detach(|| {
        // In a forked process, a missing thread may hold the lock, and the messages belong to the
        // parent.
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
        let _ = tell(py, level, &line, FORWARD.lost.swap(0, Ordering::Relaxed));
    }
}

/// Passes the engine's log messages to Python until the interpreter ends.
pub fn install(py: Python<'_>) -> PyResult<()> {
    let named = std::env::var(LEVEL).ok();
    let level = named.and_then(|name| name.parse().ok());
    // A program in Rust that embeds Python may have set a logger already.
    if log::set_logger(&FORWARD).is_ok() {
        log::set_max_level(level.unwrap_or(LevelFilter::Debug));
    }
    // If a process forked while another thread imported `logging`, the child would wait for ever.
    py.import("logging")?;
    let end = wrap_pyfunction!(end_logging, py)?;
    py.import("atexit")?.call_method1("register", (end,))?;
    Ok(())
}
