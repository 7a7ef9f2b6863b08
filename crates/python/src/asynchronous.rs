//! Searches that an event loop awaits (`python/stratann/asynchronous.py`). When a search has ended,
//! its thread writes to a pipe, the loop's `Bell`. The thread neither waits nor takes the
//! interpreter's lock.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use stratann::{Error, Filter, LiveIndex, Matrix, SearchOptions, SearchResults, SubmittedSearch};

use crate::attributes::Beside;
use crate::errors::{StratannError, to_python};
use crate::index::Index;
use crate::reading::{MOST_READS, Source, is_of_replaced_files, live};
use crate::searching::answers_with;

pub fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = timeout else {
        return Ok(None);
    };
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| {
        PyValueError::new_err(format!(
            "timeout={seconds}; it is no time. Pass a number of seconds, 0 or more, or None for no limit"
        ))
    })?;
    // A time beyond the range of the clock is no limit.
    Ok(Instant::now().checked_add(duration))
}

/// Wakes an event loop: the file descriptor of a bell becomes readable when searches have ended.
#[pyclass(frozen, module = "stratann._stratann")]
pub struct Bell {
    reader: Mutex<PipeReader>,
    rung: Arc<Rung>,
}

struct Rung {
    writer: Mutex<PipeWriter>,
    /// The ended searches that the loop has not taken. While there are any, the pipe has a byte.
    ended: Mutex<Vec<u64>>,
}

impl Rung {
    fn ring(&self, search: u64) {
        let mut ended = self.ended.lock();
        ended.push(search);
        if ended.len() == 1 {
            // The pipe is empty, so the write does not block. An error means that no loop waits.
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

    /// The file descriptor that becomes readable when a search has ended.
    fn fileno(&self) -> i32 {
        self.reader.lock().as_raw_fd()
    }

    /// The numbers of the searches that have ended since the last call.
    fn take(&self) -> PyResult<Vec<u64>> {
        let mut ended = self.rung.ended.lock();
        if !ended.is_empty() {
            self.reader.lock().read_exact(&mut [0])?;
        }
        Ok(std::mem::take(&mut *ended))
    }
}

/// A search that runs in the background, or has ended.
#[pyclass(frozen, module = "stratann._stratann")]
pub struct Search {
    state: Mutex<State>,
    shape: Mutex<Option<Shape>>,
    /// The process that has the threads of the search.
    process: u32,
}

enum State {
    Begun(Box<Attempt>),
    Ended(Box<SearchResults>),
    Taken,
}

/// A search as the caller asked for it, so that it can begin again.
pub struct Submitted {
    pub index: Py<Index>,
    pub queries: Matrix,
    pub options: SearchOptions,
    pub filter: Option<Filter>,
    pub deadline: Option<Instant>,
}

/// A search that runs, and the index that it reads.
pub struct Attempt {
    submitted: SubmittedSearch,
    asked: Submitted,
    source: Source,
    /// The number of this attempt.
    number: usize,
}

impl Submitted {
    /// Begins the search of an index. `live`: the index open for changes, if there is one.
    pub fn begin(
        self,
        py: Python<'_>,
        index: &Arc<stratann::Index>,
        live: Option<&Arc<LiveIndex>>,
        number: usize,
    ) -> PyResult<Attempt> {
        let (queries, options, deadline) = (self.queries.clone(), &self.options, self.deadline);
        let submitted = py.detach(|| match (live, &self.filter) {
            (Some(live), None) => live.submit(queries, options, deadline),
            (None, None) => index.submit(queries, options, deadline),
            (Some(live), Some(filter)) => live.submit_filtered(queries, options, filter, deadline),
            (None, Some(filter)) => index.submit_filtered(queries, options, filter, deadline),
        });
        Ok(Attempt {
            submitted: submitted.map_err(to_python)?,
            source: Source::of(index, live),
            asked: self,
            number,
        })
    }
}

/// The form of a search's results.
pub struct Shape {
    pub options: SearchOptions,
    pub single: bool,
    pub return_stats: bool,
    pub beside: Option<(Py<Index>, Beside)>,
}

impl Search {
    fn of(state: State) -> Self {
        Self {
            state: Mutex::new(state),
            shape: Mutex::new(None),
            process: std::process::id(),
        }
    }

    fn is_home(&self) -> bool {
        self.process == std::process::id()
    }

    /// A thread of the parent may hold a lock, so this check comes before a wait for a lock.
    fn check_process(&self) -> PyResult<()> {
        match self.is_home() {
            true => Ok(()),
            false => Err(StratannError::new_err(format!(
                "process {} began this search, and this is process {}, which was forked from it without its threads. Search again here, with an index \
                 that was opened here",
                self.process,
                std::process::id(),
            ))),
        }
    }

    /// The object for a search that was submitted.
    pub fn begun(attempt: Attempt) -> Self {
        Self::of(State::Begun(Box::new(attempt)))
    }

    pub fn ended(results: SearchResults) -> Self {
        Self::of(State::Ended(Box::new(results)))
    }

    /// The coroutine that returns the results of the search.
    pub fn answered(self, py: Python<'_>, shape: Shape) -> PyResult<Bound<'_, PyAny>> {
        *self.shape.lock() = Some(shape);
        let search = Bound::new(py, self)?;
        let asynchronous = py.import("stratann.asynchronous")?;
        asynchronous.call_method1("answers", (search,))
    }
}

#[pymethods]
impl Search {
    /// Reports `number` to `bell` when the search ends, or at once if the search has ended.
    fn ring(&self, bell: &Bell, number: u64) -> PyResult<()> {
        self.check_process()?;
        let rung = bell.rung.clone();
        match &*self.state.lock() {
            State::Begun(attempt) => attempt.submitted.notify(move || rung.ring(number)),
            State::Ended(_) | State::Taken => rung.ring(number),
        }
        Ok(())
    }

    /// Ends the search as soon as its reads complete. In a forked process, the call does nothing.
    fn cancel(&self) {
        if self.is_home()
            && let State::Begun(attempt) = &*self.state.lock()
        {
            attempt.submitted.cancel();
        }
    }

    /// Whether `result` reads attributes or payloads, and so may wait for storage.
    fn reads(&self) -> PyResult<bool> {
        self.check_process()?;
        let shape = self.shape.lock();
        Ok(shape.as_ref().is_some_and(|shape| shape.beside.is_some()))
    }

    /// The result of the search: ids and distances, then attributes, payloads and stats, if the
    /// caller asked for them. Waits until the search has ended. A second call is an error.
    ///
    /// If changes of this process have replaced the index that the search read, the search begins
    /// again with the later index, and the result is None. Then the caller waits for it once more.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.check_process()?;
        let state = std::mem::replace(&mut *self.state.lock(), State::Taken);
        let results = match state {
            State::Begun(attempt) => {
                let Attempt {
                    submitted,
                    asked,
                    source,
                    number,
                } = *attempt;
                match py.detach(|| submitted.wait()) {
                    Ok(results) => results,
                    Err(Error::DeadlineExceeded) => {
                        return Err(PyTimeoutError::new_err(
                            "the search did not end within its timeout",
                        ));
                    }
                    Err(error) => {
                        let error = to_python(error);
                        if number == MOST_READS || !is_of_replaced_files(py, &error) {
                            return Err(error);
                        }
                        let later = asked.index.get().later(py, &source)?.ok_or(error)?;
                        let again = asked.begin(py, later.0.value(), live(&later), number + 1)?;
                        *self.state.lock() = State::Begun(Box::new(again));
                        return Ok(None);
                    }
                }
            }
            State::Ended(results) => *results,
            State::Taken => {
                return Err(PyRuntimeError::new_err(
                    "the results of this search were returned already. Await each search once",
                ));
            }
        };
        let shape = self.shape.lock().take();
        let Some(shape) = shape else {
            return Err(PyRuntimeError::new_err(
                "search_async did not begin this search. Await the result of search_async",
            ));
        };
        let parts = match shape.beside {
            Some((index, beside)) => {
                let rows = index.get().beside(py, &results.ids)?;
                beside.parts(py, rows, results.k, shape.single)?
            }
            None => Vec::new(),
        };
        let (single, return_stats) = (shape.single, shape.return_stats);
        answers_with(py, results, &shape.options, single, return_stats, parts).map(Some)
    }
}
