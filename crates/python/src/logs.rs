//! What the engine tells goes to Python's `logging`, as the logger "stratann".
//!
//! The threads that tell it may hold locks that a thread with the interpreter waits for. So they wait for nobody: a line is put into
//! a queue, and a thread of its own hands it over. What `STRATANN_LOG` leaves out costs a comparison; the rest is Python's to filter.
//!
//! A process may fork at any moment. Then the thread is gone, perhaps with the queue locked: so nobody waits for that lock, and a
//! line that cannot be put there is lost and counted. (The locks are those of the standard library, which know nothing of who waits:
//! others would hand themselves over to the thread that is gone.)

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;

/// What names the level from which on events are handed over: error, warn, info, debug or off.
const LEVEL: &str = "STRATANN_LOG";
/// Lines that may wait; then the oldest go.
const MOST: usize = 1_000;

/// How long the end of the interpreter waits for a line that is being handed over.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    lines: VecDeque<(Level, String)>,
    /// The process in which there is a thread that hands them over: a forked one has none.
    process: u32,
    /// That thread has a line in hand, and perhaps the interpreter.
    handing: bool,
    /// The interpreter ends: no other thread may ask for it any more.
    ended: bool,
}

struct Forward {
    state: Mutex<State>,
    wake: Condvar,
    /// The line in hand is handed over.
    handed: Condvar,
    /// Warnings and errors that found no place, since the last line that did. Nobody misses others.
    lost: AtomicU64,
}

/// How often a line tries to get into the queue, which others hold for moments only.
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

    /// A line of this level finds no place.
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
            // Those of the process that this one was forked from: it hands them over itself.
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
            // Without a thread they wait for the next line, which tries again.
            if named.spawn(hand_over).is_ok() {
                state.process = std::process::id();
            }
        }
        self.wake.notify_one();
    }

    fn flush(&self) {}
}

/// Hands lines to Python until the interpreter ends.
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
        // A handler that raises is the host's, and is told by `logging` itself as a rule.
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

/// Gives a line to the logger "stratann".
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
    // The line is no format.
    logger.call_method1("log", (level, "%s", line)).map(drop)
}

/// Python calls it before it ends: a thread that has the interpreter, or asks for it, once that is being taken down brings the process
/// down with it. So the thread is waited for, and what it has not handed over yet is handed over here.
///
/// A handler that does not come back within [`PATIENCE`] is not waited for any longer.
#[pyfunction]
fn end_logging(py: Python<'_>) {
    let left = py.detach(|| {
        // In a forked process the lock may be held by a thread that is not there; and what waits is the other process's.
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
        // As above: a handler that raises is the host's.
        let _ = tell(py, level, &line, FORWARD.lost.swap(0, Ordering::Relaxed));
    }
}

/// From now on what the engine tells is handed to Python, whose `logging` says what becomes of it; less if `STRATANN_LOG` says so. It ends
/// before the interpreter does.
///
/// # Errors
/// Python has no `logging` or no `atexit`.
pub fn install(py: Python<'_>) -> PyResult<()> {
    let named = std::env::var(LEVEL).ok();
    let level = named.and_then(|name| name.parse().ok());
    // A host that is written in Rust may have one.
    if log::set_logger(&FORWARD).is_ok() {
        log::set_max_level(level.unwrap_or(LevelFilter::Debug));
    }
    // Here, since a process that forks while a thread imports it leaves a child that waits for that for ever.
    py.import("logging")?;
    let end = wrap_pyfunction!(end_logging, py)?;
    py.import("atexit")?.call_method1("register", (end,))?;
    Ok(())
}
