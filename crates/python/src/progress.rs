//! Runs long work beside the calling thread, so that Python stays responsive.
//!
//! Python delivers signals only to its main thread, and a callback needs the interpreter's lock. So
//! the engine works on a separate thread, and writes counters. The calling thread wakes twenty
//! times a second without this lock, checks for signals, and passes the counters on.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use pyo3::exceptions::{
    PyKeyboardInterrupt, PyRuntimeError, PyRuntimeWarning, PyTypeError, PyWarning,
};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use stratann::{Error, Progress};

use crate::errors::{Interrupted, said, to_python};

const PAUSE: Duration = Duration::from_millis(50);

/// The receiver is a callable `(stage, done, total)`. An unknown total is 0.
pub struct Listener {
    callable: Option<Py<PyAny>>,
    /// Warnings that the user got before the work began.
    told: Vec<String>,
}

impl Listener {
    /// The argument `progress`: `True` draws a bar on standard error.
    pub fn new(value: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let of = |callable| Self {
            callable,
            told: Vec::new(),
        };
        let Some(value) = value else {
            return Ok(of(None));
        };
        if let Ok(flag) = value.cast::<PyBool>() {
            if !flag.is_true() {
                return Ok(of(None));
            }
            let bar = value
                .py()
                .import("stratann.progress")?
                .getattr("Bar")?
                .call0()?;
            return Ok(of(Some(bar.unbind())));
        }
        if value.is_callable() {
            return Ok(of(Some(value.clone().unbind())));
        }
        Err(PyTypeError::new_err(
            "progress is of another type. Pass True, False, None or a callable that takes (stage, done, total)",
        ))
    }

    /// The same receiver, without the warnings `told`, which the user has already got.
    pub fn after(self, told: Vec<String>) -> Self {
        Self { told, ..self }
    }

    fn is_new(&self, warning: &String) -> bool {
        !self.told.contains(warning)
    }

    fn tell(&self, py: Python<'_>, news: News) -> PyResult<()> {
        for warning in news.warnings.iter().filter(|warning| self.is_new(warning)) {
            warn(py, warning)?;
        }
        if let Some(callable) = &self.callable {
            for (stage, done, total) in news.stages {
                callable.call1(py, (stage, done, total))?;
            }
        }
        Ok(())
    }
}

/// Shows a warning that names the line of the user's call. If the user turns warnings into
/// exceptions, returns the exception.
pub fn warn(py: Python<'_>, message: &str) -> PyResult<()> {
    let warn = py.import("warnings")?.getattr("warn")?;
    let kind = py.get_type::<PyRuntimeWarning>();
    warn.call1((message, kind, frames_to_user(py)?))?;
    Ok(())
}

/// Like [`warn`]. If the warning is an exception, its note says that nothing was written.
pub fn warn_first(py: Python<'_>, message: &str) -> PyResult<()> {
    warn(py, message).inspect_err(|raised| note(py, raised, "Nothing was written"))
}

/// Adds a note to an exception. Before Python 3.11, the note is appended to the text of a warning.
/// Other exceptions, which are the user's own, stay unchanged.
pub fn note(py: Python<'_>, raised: &PyErr, note: &str) {
    let value = raised.value(py);
    if value.call_method1("add_note", (note,)).is_ok() {
        return;
    }
    let text = value
        .getattr("args")
        .and_then(|args| args.extract::<(String,)>());
    if raised.is_instance_of::<PyWarning>(py)
        && let Ok((text,)) = text
    {
        // An exception that cannot be changed is raised as it is.
        let _unchanged = value.setattr("args", (format!("{text}. {note}"),));
    }
}

/// The number of frames up to the nearest line outside this package.
fn frames_to_user(py: Python<'_>) -> PyResult<usize> {
    let mut frame = py.import("sys")?.call_method0("_getframe")?;
    for level in 1.. {
        let module = frame
            .getattr("f_globals")?
            .call_method1("get", ("__name__", ""))?;
        let module: String = module.extract()?;
        let above = frame.getattr("f_back")?;
        if module.split('.').next() != Some("stratann") || above.is_none() {
            return Ok(level);
        }
        frame = above;
    }
    Ok(1)
}

struct News {
    warnings: Vec<String>,
    stages: Vec<(String, u64, u64)>,
}

#[derive(Default)]
struct State {
    stage: Option<(String, u64)>,
    ended: Vec<(String, u64, u64)>,
    warnings: Vec<String>,
    finished: bool,
}

/// The engine writes the counters, and the calling thread reads them.
#[derive(Default)]
struct Board {
    state: Mutex<State>,
    done: AtomicU64,
    stop: AtomicBool,
    wake: Condvar,
}

impl Board {
    /// After a panic, wrong counters do no harm.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns each ended stage as complete, and the current stage unless it is complete. So a
    /// listener gets `done == total` once for each stage.
    fn news(&self) -> News {
        let mut state = self.state();
        let mut stages = std::mem::take(&mut state.ended);
        if let Some((stage, total)) = &state.stage {
            let done = self.done.load(Ordering::Relaxed);
            if *total == 0 || done < *total {
                stages.push((stage.clone(), done, *total));
            }
        }
        News {
            warnings: std::mem::take(&mut state.warnings),
            stages,
        }
    }

    fn close_stage(&self, state: &mut State) {
        if let Some((stage, total)) = state.stage.take() {
            // At the end of a stage, an unknown total becomes the amount of work done.
            let total = match total {
                0 => self.done.load(Ordering::Relaxed).max(1),
                total => total,
            };
            state.ended.push((stage, total, total));
        }
    }

    /// Sleeps at most [`PAUSE`]. Returns whether the work is done.
    fn pause(&self) -> bool {
        let state = self.state();
        if state.finished {
            return true;
        }
        let (state, _) = self
            .wake
            .wait_timeout(state, PAUSE)
            .unwrap_or_else(PoisonError::into_inner);
        state.finished
    }
}

impl Progress for Board {
    fn begin(&self, stage: &str, total: u64) {
        let mut state = self.state();
        self.close_stage(&mut state);
        self.done.store(0, Ordering::Relaxed);
        state.stage = Some((stage.to_owned(), total));
    }

    fn advance(&self, n: u64) {
        self.done.fetch_add(n, Ordering::Relaxed);
    }

    fn end(&self) {
        let mut state = self.state();
        self.close_stage(&mut state);
    }

    fn interrupted(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn warn(&self, message: &str) {
        self.state().warnings.push(message.to_owned());
    }
}

/// Marks the work as finished on drop, even after a panic. Otherwise the calling thread would wait
/// for ever.
struct Finish<'a>(&'a Board);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.state().finished = true;
        self.0.wake.notify_all();
    }
}

pub trait Stopped: Display + Send {
    /// The number of rows that were inserted before the error. They are the first rows of the call.
    fn done(&self) -> usize;

    /// The outcome of the work, and how to continue.
    fn said(&self) -> String {
        self.to_string()
    }

    /// The exception, if neither a signal nor a callback raised another one.
    fn raise(self) -> PyErr;
}

impl Stopped for Error {
    fn done(&self) -> usize {
        match self {
            Error::Partly { done, .. } | Error::PartlySet { done, .. } => *done,
            _ => 0,
        }
    }

    fn said(&self) -> String {
        said(self)
    }

    fn raise(self) -> PyErr {
        to_python(self)
    }
}

/// Checks for signals on the calling thread. The check takes the interpreter's lock, so the caller
/// must hold no lock that a thread with the interpreter's lock waits for.
struct Signals {
    caller: ThreadId,
    raised: Mutex<Option<PyErr>>,
    warnings: Mutex<Vec<String>>,
}

impl Progress for Signals {
    fn begin(&self, _: &str, _: u64) {}

    fn advance(&self, _: u64) {}

    fn end(&self) {}

    fn interrupted(&self) -> bool {
        let mut raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
        if raised.is_none() && std::thread::current().id() == self.caller {
            *raised = Python::attach(|py| py.check_signals()).err();
        }
        raised.is_some()
    }

    fn warn(&self, message: &str) {
        let warnings = self.warnings.lock();
        let mut warnings = warnings.unwrap_or_else(PoisonError::into_inner);
        warnings.push(message.to_owned());
    }
}

/// Runs work that may wait, without the interpreter's lock. The work asks on this thread whether to
/// continue. If a signal handler raises an exception, the work ends, and the exception is returned.
/// Warnings of the work are shown at its end.
pub fn waited<T: Send, E: Send>(
    py: Python<'_>,
    work: impl FnOnce(&dyn Progress) -> Result<T, E> + Send,
) -> PyResult<Result<T, E>> {
    let signals = Signals {
        caller: std::thread::current().id(),
        raised: Mutex::default(),
        warnings: Mutex::default(),
    };
    let ended = py.detach(|| work(&signals));
    let raised = signals
        .raised
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let warnings = signals
        .warnings
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    match (raised, ended) {
        (None, ended) => {
            for warning in warnings {
                warn(py, &warning)?;
            }
            Ok(ended)
        }
        (Some(raised), ended) => {
            drop(ended);
            Err(stopped(py, raised, None, Some(Error::Interrupted), &[]))
        }
    }
}

/// Runs `work` without the interpreter's lock. If a signal handler or a callback raises an
/// exception, the work stops, and the exception is returned with the outcome. A `KeyboardInterrupt`
/// becomes [`Interrupted`], and other exceptions get a note.
pub fn run<T: Send, E: Into<Error> + Send>(
    py: Python<'_>,
    listener: &Listener,
    work: impl FnOnce(&dyn Progress) -> Result<T, E> + Send,
) -> PyResult<T> {
    run_rows(py, listener, None, work)
}

/// Like [`run`], for work that changes `rows` rows in their order.
pub fn run_rows<T: Send, E: Into<Error> + Send>(
    py: Python<'_>,
    listener: &Listener,
    rows: Option<usize>,
    work: impl FnOnce(&dyn Progress) -> Result<T, E> + Send,
) -> PyResult<T> {
    let work = |progress: &dyn Progress| work(progress).map_err(Into::<Error>::into);
    run_stoppable(py, listener, rows, work)
}

/// Like [`run_rows`], for work with its own error type.
pub fn run_stoppable<T: Send, E: Stopped>(
    py: Python<'_>,
    listener: &Listener,
    rows: Option<usize>,
    work: impl FnOnce(&dyn Progress) -> Result<T, E> + Send,
) -> PyResult<T> {
    let board = Board::default();
    py.detach(|| {
        std::thread::scope(|scope| {
            let (board, named) = (&board, std::thread::Builder::new());
            let started = named.spawn_scoped(scope, move || {
                let _finish = Finish(board);
                work(board)
            });
            let worker = started.map_err(|error| {
                PyRuntimeError::new_err(format!(
                    "no thread can be started for this call ({error}). Raise the limit of threads (ulimit -u, cgroup pids)"
                ))
            })?;
            let mut raised = None;
            loop {
                let finished = board.pause();
                if raised.is_none() {
                    let told = Python::attach(|py| {
                        py.check_signals()?;
                        listener.tell(py, board.news())
                    });
                    if let Err(error) = told {
                        board.stop.store(true, Ordering::Relaxed);
                        raised = Some(error);
                    }
                }
                if finished {
                    break;
                }
            }
            let result = match worker.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            match raised {
                Some(error) => {
                    // These warnings were not passed on yet.
                    let mut last = board.news().warnings;
                    last.retain(|warning| listener.is_new(warning));
                    Python::attach(|py| Err(stopped(py, error, rows, result.err(), &last)))
                }
                None => result.map_err(Stopped::raise),
            }
        })
    })
}

/// Adds the outcome of the work to `raised`, which stopped the work. `error` is `None` if the work
/// was complete. `last` has warnings that the user did not get yet.
fn stopped(
    py: Python<'_>,
    raised: PyErr,
    rows: Option<usize>,
    error: Option<impl Stopped>,
    last: &[String],
) -> PyErr {
    let (done, mut said) = match &error {
        None => (
            rows,
            "the work was done already, and its result is kept".to_owned(),
        ),
        Some(error) => (Some(error.done()), error.said()),
    };
    for warning in last {
        said.push_str("; ");
        said.push_str(warning);
    }
    if !raised.get_type(py).is(py.get_type::<PyKeyboardInterrupt>()) {
        note(py, &raised, &format!("stratann: {said}"));
        return raised;
    }
    let interrupted = Interrupted::new_err(said);
    let facts = interrupted.value(py);
    let set = facts
        .setattr("done", rows.and(done))
        .and_then(|()| facts.setattr("total", rows))
        .and_then(|()| facts.setattr("complete", error.is_none()));
    match set {
        Ok(()) => {
            interrupted.set_cause(py, Some(raised));
            interrupted
        }
        Err(_) => raised,
    }
}
