//! Submitted searches: `submit` returns at once, and the caller gets the results through a handle.
//!
//! ```text
//!   submit ── filter? ── no ────> memory? ──┬─ yes ─────────────────────────────> queries
//!                └─ a task finds ──^        └─ no ──> a task waits for it ────────────^ │
//!                   matches │                            │                              v
//!                           │                            │                       last task ended
//!                           │                            │                              v
//!                           └── wrong columns, deadline, cancelled ──────────────────> outcome
//!                                                                                       v
//!                                                                              wait, await, notify
//! ```
//!
//! A search thread finds the matches of a filter, because `submit` must not block. The needed
//! memory depends on these matches. The pool owns the [`Submitted`] search until the last task of
//! the search has ended, and releases index, queries and memory before it reports the end.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use stratann_tier::{Home, Panic, Task, Thread, Work, WorkerPool};

use super::Matches;
use super::batch::{Answers, Batch, Clock, Shares};
use super::stop::Stop;
use crate::data::{Matrix, VectorSource};
use crate::filter::{Checked, Filter};
use crate::index::Index;
use crate::overlay::{Moment, Seen};
use crate::room::{Queued, Taken};
use crate::{Error, SearchOptions, SearchResults};

pub(crate) trait Searched: Send + Sync {
    fn index(&self) -> &Index;
    /// The overlay, as it was at the submission.
    fn seen(&self) -> Option<Seen<'_>>;
    fn settle(
        &self,
        options: &SearchOptions,
        outcome: Result<SearchResults, Error>,
    ) -> Result<SearchResults, Error>;
}

struct Opened {
    index: Arc<Index>,
    moment: Option<Moment>,
}

impl Searched for Opened {
    fn index(&self) -> &Index {
        &self.index
    }

    fn seen(&self) -> Option<Seen<'_>> {
        let overlay = self.index.overlay();
        let seen = overlay.zip(self.moment);
        seen.map(|(overlay, moment)| Seen { overlay, moment })
    }

    fn settle(
        &self,
        _: &SearchOptions,
        outcome: Result<SearchResults, Error>,
    ) -> Result<SearchResults, Error> {
        outcome.map_err(|error| self.index.outdated(error))
    }
}

impl Index {
    /// Searches a batch of queries as [`search`](Index::search) does, but returns at once. The
    /// index stays open until the search has ended.
    ///
    /// After `deadline`, the search ends with [`Error::DeadlineExceeded`]. After a
    /// [cancellation](SubmittedSearch::cancel), or a drop of the handle, the search ends with
    /// [`Error::Interrupted`]. In each case, the search first completes the reads for which its
    /// threads are waiting.
    ///
    /// Without a memory budget, every submitted search begins at once, and the caller must bound
    /// the number of submitted searches.
    ///
    /// # Errors
    /// An argument is wrong, as [`search`](Index::search) describes, or threads cannot be started.
    /// The handle returns all other errors.
    ///
    /// # Panics
    /// Panics in a process that was forked from the process that opened the index.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use std::time::{Duration, Instant};
    /// use stratann::{Index, Matrix, OpenOptions, SearchOptions, VectorFile};
    ///
    /// # fn main() -> Result<(), stratann::Error> {
    /// let index = Arc::new(Index::open("photos.idx", &OpenOptions::default())?);
    /// let queries = Matrix::read(&VectorFile::open("queries.u8bin")?)?;
    /// let deadline = Instant::now() + Duration::from_millis(50);
    /// let search = index.submit(queries, &SearchOptions::default(), Some(deadline))?;
    /// // `search.await?` in a task of an async server.
    /// let found = search.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit(
        self: &Arc<Self>,
        queries: Matrix,
        options: &SearchOptions,
        deadline: Option<Instant>,
    ) -> Result<SubmittedSearch, Error> {
        submitted(self.opened(), queries, options, None, deadline)
    }

    /// Searches as [`search_filtered`](Index::search_filtered) does, but returns at once, as
    /// [`submit`](Index::submit) does. While a search thread finds the matches of the filter,
    /// neither a deadline nor [`cancel`](SubmittedSearch::cancel) takes effect.
    ///
    /// # Errors
    /// Fails as [`submit`](Index::submit) does, and with [`Error::Filter`] if the filter does not
    /// fit the [columns](Index::schema). The handle returns errors of reading columns.
    ///
    /// # Panics
    /// Panics as [`submit`](Index::submit) does.
    pub fn submit_filtered(
        self: &Arc<Self>,
        queries: Matrix,
        options: &SearchOptions,
        filter: &Filter,
        deadline: Option<Instant>,
    ) -> Result<SubmittedSearch, Error> {
        submitted(self.opened(), queries, options, Some(filter), deadline)
    }

    fn opened(self: &Arc<Self>) -> Box<Opened> {
        Box::new(Opened {
            index: self.clone(),
            moment: self.overlay().map(|overlay| overlay.now()),
        })
    }
}

pub(crate) fn submitted(
    searched: Box<dyn Searched>,
    queries: Matrix,
    options: &SearchOptions,
    filter: Option<&Filter>,
    deadline: Option<Instant>,
) -> Result<SubmittedSearch, Error> {
    let index = searched.index();
    let overlay = searched.seen().map(|seen| seen.overlay);
    let fitting = filter.map(|filter| filter.check(&index.columns().schema()));
    let fitting = fitting.transpose()?;
    let is_watched = index.offers_to().is_some();
    let filter = filter.filter(|_| is_watched).cloned();
    let checked = SearchOptions {
        // `way` applies to the matches of the filter, so it is left out until these matches are
        // known.
        way: options.way.filter(|_| fitting.is_none()),
        ..*options
    };
    let answers = Answers::new(index, &queries, &checked, overlay, None)?;
    let worker_pool = answers.workers(index, options, options.threads.min(queries.rows()))?;
    let ending = Arc::new(Ending {
        stop: Stop::new(deadline),
        outcome: Mutex::default(),
        done: Condvar::new(),
    });
    let handle = SubmittedSearch {
        ending: ending.clone(),
        home: Home::here(),
    };
    if let Some(late) = ending.stop.reason() {
        drop((searched, queries, answers));
        ending.finish(Ok(Err(late)));
        return Ok(handle);
    }
    let (found, phase) = match fitting {
        None => {
            let all = Found {
                answers,
                matches: None,
            };
            (OnceLock::from(all), Phase::Looked)
        }
        Some(filter) => {
            let looks = Box::new(Looks { answers, filter });
            (OnceLock::new(), Phase::Looks(Some(looks)))
        }
    };
    let submitted = Submitted {
        searched,
        queries,
        options: *options,
        filter,
        found,
        ending,
        worker_pool,
        phase: Mutex::new(phase),
    };
    Arc::new(submitted).go_on();
    Ok(handle)
}

struct Submitted {
    searched: Box<dyn Searched>,
    queries: Matrix,
    options: SearchOptions,
    /// The filter of the search, if live recall may sample its queries.
    filter: Option<Filter>,
    /// Set when the matches of the filter are known, or at once without a filter.
    found: OnceLock<Found>,
    ending: Arc<Ending>,
    /// If a larger pool has replaced this pool, this pool ends with its last search.
    worker_pool: Arc<WorkerPool>,
    phase: Mutex<Phase>,
}

struct Found {
    answers: Answers,
    matches: Option<Matches>,
}

struct Looks {
    answers: Answers,
    filter: Checked,
}

enum Phase {
    /// A task takes this value, and finds the matches of the filter.
    Looks(Option<Box<Looks>>),
    /// The matches are known, so the search may request memory.
    Looked,
    /// A task takes this value, and waits for memory.
    Waits(Option<Queued>),
    /// The search has reserved its memory and may begin.
    HasRoom(Taken),
    /// The queries have been running since the time `begun`.
    Runs { shares: Shares, begun: Instant },
    /// The matches of the filter could not be found, so the search does not begin.
    Failed(Error),
    /// The search was stopped before its queries ran.
    Over,
}

impl Submitted {
    fn batch(&self) -> Option<Batch<'_>> {
        let Found { answers, matches } = self.found.get()?;
        let (index, seen, stop) = (
            self.searched.index(),
            self.searched.seen(),
            &self.ending.stop,
        );
        let batch = Batch::new(index, &self.queries, answers, stop, None, seen).until(stop);
        Some(match matches {
            Some(matches) => batch.among(matches.as_ref()),
            None => batch,
        })
    }

    fn go_on(self: Arc<Self>) {
        let mut phase = self.phase.lock();
        let mut threads = 1;
        let queued = match (&*phase, self.batch()) {
            (Phase::Looked, Some(batch)) => Some(batch.room(&self.options)),
            _ => None,
        };
        if let Some(mut queued) = queued {
            *phase = match queued.at_once() {
                Some(taken) => Phase::HasRoom(taken),
                None => Phase::Waits(Some(queued)),
            };
        }
        *phase = match (
            std::mem::replace(&mut *phase, Phase::Over),
            self.found.get(),
        ) {
            (Phase::HasRoom(taken), Some(Found { answers, .. })) => {
                let shares = answers.begin(&self.options, self.queries.rows(), taken);
                threads = shares.threads;
                Phase::Runs {
                    shares,
                    begun: Instant::now(),
                }
            }
            (phase, _) => phase,
        };
        drop(phase);
        let worker_pool = self.worker_pool.clone();
        worker_pool.submit(threads, self);
    }

    async fn look(&self, thread: &Thread, looks: Box<Looks>) {
        let look = Box::pin(async { self.matching(*looks) });
        let looked = self.ending.stop.unless_stopped(thread, look).await;
        *self.phase.lock() = match looked {
            Ok(Ok(found)) => {
                // This task runs once, so the cell is empty.
                self.found.get_or_init(|| found);
                Phase::Looked
            }
            Ok(Err(error)) => Phase::Failed(error),
            Err(_) => Phase::Over,
        };
    }

    fn matching(&self, Looks { answers, filter }: Looks) -> Result<Found, Error> {
        let index = self.searched.index();
        let matches = Matches::of(index, self.searched.seen(), &filter)?;
        let answers = answers.among(index, matches.as_ref(), self.options.way);
        Ok(Found {
            answers,
            matches: Some(matches),
        })
    }

    async fn wait(&self, thread: &Thread, queued: Queued) {
        let waited = self.ending.stop.unless_stopped(thread, queued).await;
        *self.phase.lock() = match waited {
            Ok(taken) => Phase::HasRoom(taken),
            Err(_) => Phase::Over,
        };
    }

    fn outcome(self) -> Result<SearchResults, Error> {
        let Self {
            searched,
            queries,
            options,
            filter,
            found,
            ending,
            phase,
            ..
        } = self;
        let outcome = match (phase.into_inner(), found.into_inner()) {
            (Phase::Runs { begun, .. }, Some(found)) => {
                let answered = found.answers.into_results(begun.elapsed());
                answered.inspect(|_| {
                    let index = searched.index();
                    index.has_served(&queries, &options, filter.as_ref());
                })
            }
            (Phase::Failed(error), _) => Err(error),
            _ => Err(Error::Interrupted),
        };
        match outcome {
            Err(Error::Interrupted) => Err(ending.stop.reason().unwrap_or(Error::Interrupted)),
            outcome => searched.settle(&options, outcome),
        }
    }
}

impl Work for Submitted {
    fn tasks<'t>(self: Arc<Self>, thread: &'t Thread, share: usize) -> Vec<Task<'t>> {
        let tasks = match &mut *self.phase.lock() {
            Phase::Looks(looks) => match looks.take() {
                Some(looks) => {
                    let search = self.clone();
                    return vec![Box::pin(async move { search.look(thread, looks).await })];
                }
                None => 0,
            },
            Phase::Waits(queued) => match queued.take() {
                Some(queued) => {
                    let waits = self.clone();
                    return vec![Box::pin(async move { waits.wait(thread, queued).await })];
                }
                None => 0,
            },
            Phase::Runs { shares, .. } => shares.tasks(share),
            Phase::Looked | Phase::HasRoom(_) | Phase::Failed(_) | Phase::Over => 0,
        };
        let clock = Clock::new();
        let task = |number| {
            let (search, clock) = (self.clone(), clock.clone());
            let run = async move {
                if let Some(batch) = search.batch() {
                    batch.run(thread, number, clock).await;
                }
            };
            Box::pin(run) as Task<'t>
        };
        (0..tasks).map(task).collect()
    }

    fn ended(self: Arc<Self>, panic: Option<Panic>) {
        let goes_on = matches!(*self.phase.lock(), Phase::Looked | Phase::HasRoom(_));
        if panic.is_none() && goes_on {
            return self.go_on();
        }
        let ending = self.ending.clone();
        // The resources of the search are released before its end is reported.
        let outcome = match (panic, Arc::into_inner(self)) {
            (None, Some(search)) => catch_unwind(AssertUnwindSafe(|| search.outcome())),
            (Some(panic), _) => Err(panic),
            (None, None) => Err(Box::new("a search ended twice") as Panic),
        };
        ending.finish(outcome);
    }
}

struct Ending {
    stop: Stop,
    outcome: Mutex<Outcome>,
    done: Condvar,
}

#[derive(Default)]
struct Outcome {
    /// `Some` from the end of the search until the caller takes it.
    result: Option<Result<Result<SearchResults, Error>, Panic>>,
    is_there: bool,
    waker: Option<Waker>,
    notify: Option<Box<dyn FnOnce() + Send>>,
}

impl Outcome {
    /// Takes the result of the search. If the search panicked, this call panics too.
    fn take(&mut self) -> Result<SearchResults, Error> {
        match self.result.take() {
            Some(Ok(result)) => result,
            Some(Err(panic)) => resume_unwind(panic),
            None => panic!("the results of a submitted search were taken before"),
        }
    }
}

impl Ending {
    fn finish(&self, result: Result<Result<SearchResults, Error>, Panic>) {
        let mut outcome = self.outcome.lock();
        outcome.result = Some(result);
        outcome.is_there = true;
        let (waker, notify) = (outcome.waker.take(), outcome.notify.take());
        drop(outcome);
        self.done.notify_all();
        waker.into_iter().for_each(Waker::wake);
        if let Some(notify) = notify {
            notify();
        }
    }
}

/// A submitted search ([`Index::submit`], [`LiveIndex::submit`](crate::LiveIndex::submit)).
///
/// [`wait`](SubmittedSearch::wait) blocks the thread, `.await` suspends a task of any executor, and
/// [`notify`](SubmittedSearch::notify) calls a function. A drop of the handle cancels the search.
///
/// # Panics
/// If the search panicked, the call that takes its results panics with the same payload. In a
/// process that was forked after the submission, waiting panics, and dropping the handle does
/// nothing.
#[must_use = "a search whose handle is dropped is cancelled"]
pub struct SubmittedSearch {
    ending: Arc<Ending>,
    home: Home,
}

impl SubmittedSearch {
    /// Waits until the search has ended, and returns its results.
    ///
    /// # Errors
    /// Fails as [`Index::search`] does, with [`Error::DeadlineExceeded`] after the deadline, and
    /// with [`Error::Interrupted`] after a [cancellation](SubmittedSearch::cancel).
    pub fn wait(self) -> Result<SearchResults, Error> {
        self.check_process();
        let mut outcome = self.ending.outcome.lock();
        while !outcome.is_there {
            self.ending.done.wait(&mut outcome);
        }
        outcome.take()
    }

    /// Waits until the search has ended, or returns the handle after `timeout`.
    ///
    /// # Errors
    /// After `timeout`, the error is the handle. The inner result fails as
    /// [`wait`](SubmittedSearch::wait) does.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<SearchResults, Error>, Self> {
        self.check_process();
        let until = Instant::now().checked_add(timeout);
        let mut outcome = self.ending.outcome.lock();
        while !outcome.is_there {
            let over = match until {
                None => {
                    self.ending.done.wait(&mut outcome);
                    false
                }
                Some(until) => self.ending.done.wait_until(&mut outcome, until).timed_out(),
            };
            if over && !outcome.is_there {
                drop(outcome);
                return Err(self);
            }
        }
        Ok(outcome.take())
    }

    /// Whether the search has ended.
    pub fn is_done(&self) -> bool {
        self.check_process();
        self.ending.outcome.lock().is_there
    }

    /// Cancels the search, which ends when its reads in flight have completed. If the search had
    /// not ended before, its result is [`Error::Interrupted`].
    pub fn cancel(&self) {
        self.check_process();
        self.ending.stop.cancel();
    }

    /// Calls `told` once, when the search has ended. `told` should only signal another thread,
    /// because a search thread may run it. A later call replaces `told`.
    pub fn notify(&self, told: impl FnOnce() + Send + 'static) {
        self.check_process();
        let mut outcome = self.ending.outcome.lock();
        if !outcome.is_there {
            let before = outcome.notify.replace(Box::new(told));
            drop(outcome);
            drop(before);
            return;
        }
        drop(outcome);
        told();
    }

    fn check_process(&self) {
        assert!(
            self.home.is_here(),
            "this process was forked after the search was submitted, and does not have the searching threads. Submit the search \
             again in the child"
        );
    }
}

impl Future for SubmittedSearch {
    type Output = Result<SearchResults, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.check_process();
        let mut outcome = self.ending.outcome.lock();
        if outcome.is_there {
            return Poll::Ready(outcome.take());
        }
        match &mut outcome.waker {
            Some(known) => known.clone_from(cx.waker()),
            None => outcome.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for SubmittedSearch {
    fn drop(&mut self) {
        if self.home.is_here() && !self.ending.outcome.lock().is_there {
            self.ending.stop.cancel();
        }
    }
}

impl fmt::Debug for SubmittedSearch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SubmittedSearch")
    }
}
