//! Searches that an event loop awaits (`python/stratann/asynchronous.py`). When a search ends, its
//! thread writes to the loop's bell, which is a pipe. The thread neither takes the interpreter's
//! lock nor waits.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use stratann::{Error, SearchOptions, SearchResults, SubmittedSearch};

use crate::errors::{StratannError, to_python};
use crate::searching::answers;

/// The deadline of a search with a timeout in seconds.
pub fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = timeout else {
        return Ok(None);
    };
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| {
        PyValueError::new_err(format!(
            "timeout={seconds}: it must be seconds, 0 or more, or None for no limit"
        ))
    })?;
    // A time beyond the range of the clock is never reached.
    Ok(Instant::now().checked_add(duration))
}

/// What wakes an event loop: a file descriptor that can be read when searches have ended.
#[pyclass(frozen, module = "stratann._stratann")]
pub struct Bell {
    reader: Mutex<PipeReader>,
    rung: Arc<Rung>,
}

struct Rung {
    writer: Mutex<PipeWriter>,
    /// Searches that have ended and were not reported yet. While there are any, the pipe has a
    /// byte.
    ended: Mutex<Vec<u64>>,
}

impl Rung {
    fn ring(&self, search: u64) {
        let mut ended = self.ended.lock();
        ended.push(search);
        if ended.len() == 1 {
            // The pipe is empty, so this does not block. An error means that its reader is closed,
            // so that no loop waits.
            let _ = self.writer.lock().write(&[0]);
        }
    }
}

#[pymethods]
impl Bell {
    #[new]
    fn new() -> PyResult<Self> {
        let (reader, writer) = std::io::pipe()?;
        Ok(Self {
            reader: Mutex::new(reader),
            rung: Arc::new(Rung {
                writer: Mutex::new(writer),
                ended: Mutex::default(),
            }),
        })
    }

    /// The descriptor that can be read when a search has ended.
    fn fileno(&self) -> i32 {
        self.reader.lock().as_raw_fd()
    }

    /// The numbers of the searches that have ended since it was asked last.
    fn take(&self) -> PyResult<Vec<u64>> {
        let mut ended = self.rung.ended.lock();
        if !ended.is_empty() {
            self.reader.lock().read_exact(&mut [0])?;
        }
        Ok(std::mem::take(&mut *ended))
    }
}

/// A search that goes on by itself, or has ended.
#[pyclass(frozen, module = "stratann._stratann")]
pub struct Search {
    state: Mutex<State>,
    /// The shape of its answers.
    shape: Mutex<Option<Shape>>,
    /// The process that began it, which has the threads that search.
    process: u32,
}

enum State {
    Begun(SubmittedSearch),
    Ended(Box<SearchResults>),
    Taken,
}

#[derive(Clone, Copy)]
struct Shape {
    options: SearchOptions,
    single: bool,
    return_stats: bool,
}

impl Search {
    fn of(state: State) -> Self {
        Self {
            state: Mutex::new(state),
            shape: Mutex::new(None),
            process: std::process::id(),
        }
    }

    /// Whether this process has the threads that search.
    fn is_home(&self) -> bool {
        self.process == std::process::id()
    }

    /// Refuses a forked process before it takes a lock, since a thread of the parent may hold it.
    fn check_process(&self) -> PyResult<()> {
        match self.is_home() {
            true => Ok(()),
            false => Err(StratannError::new_err(format!(
                "a search of process {}: this is process {}, which was forked from it without the threads that search. Search again here, with an index \
                 that was opened here",
                self.process,
                std::process::id(),
            ))),
        }
    }

    /// A search that was submitted.
    pub fn begun(submitted: SubmittedSearch) -> Self {
        Self::of(State::Begun(submitted))
    }

    /// A search whose answers are known.
    pub fn ended(results: SearchResults) -> Self {
        Self::of(State::Ended(Box::new(results)))
    }

    /// The coroutine that returns its answers.
    pub fn answered(
        self,
        py: Python<'_>,
        options: SearchOptions,
        single: bool,
        return_stats: bool,
    ) -> PyResult<Bound<'_, PyAny>> {
        *self.shape.lock() = Some(Shape {
            options,
            single,
            return_stats,
        });
        let search = Bound::new(py, self)?;
        let asynchronous = py.import("stratann.asynchronous")?;
        asynchronous.call_method1("answers", (search,))
    }
}

#[pymethods]
impl Search {
    /// Rings a bell with a number when it has ended: at once, if it has.
    fn ring(&self, bell: &Bell, number: u64) -> PyResult<()> {
        self.check_process()?;
        let rung = bell.rung.clone();
        match &*self.state.lock() {
            State::Begun(submitted) => submitted.notify(move || rung.ring(number)),
            State::Ended(_) | State::Taken => rung.ring(number),
        }
        Ok(())
    }

    /// Ends it as soon as its reads come in; a forked process leaves it alone.
    fn cancel(&self) {
        if self.is_home()
            && let State::Begun(submitted) = &*self.state.lock()
        {
            submitted.cancel();
        }
    }

    /// What it found, once: ids, distances, and stats if those were wanted. Waits for it, if it has not ended.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.check_process()?;
        let state = std::mem::replace(&mut *self.state.lock(), State::Taken);
        let results = match state {
            State::Begun(submitted) => match py.detach(|| submitted.wait()) {
                Ok(results) => results,
                Err(Error::DeadlineExceeded) => {
                    return Err(PyTimeoutError::new_err(
                        "the search was not done within its timeout",
                    ));
                }
                Err(error) => return Err(to_python(error)),
            },
            State::Ended(results) => *results,
            State::Taken => {
                return Err(PyRuntimeError::new_err(
                    "the answers of this search were taken before: await it once",
                ));
            }
        };
        let shape = *self.shape.lock();
        let Some(shape) = shape else {
            return Err(PyRuntimeError::new_err("nobody asked for this search"));
        };
        answers(
            py,
            results,
            &shape.options,
            shape.single,
            shape.return_stats,
        )
    }
}
