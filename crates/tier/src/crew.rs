//! Persistent worker threads, and a way to run borrowed work on them.
//!
//! A ring belongs to one thread for its life, so threads are kept, and work travels to them: [`Crew::run`] calls a
//! closure on the first so many workers and returns when all are done, as `std::thread::scope` would.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::error::TierError;
use crate::executor::Thread;
use crate::reactor::Io;

/// How to read files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// io_uring, or the pool of threads where the kernel forbids it. The environment variable `STRATANN_IO`
    /// (`auto`, `uring`, `pread`) overrides it.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// `pread` on a pool of threads.
    Pread,
}

impl IoMode {
    /// What the environment says, if the caller leaves it open.
    pub(crate) fn or_environment(self) -> Result<IoMode, TierError> {
        match (self, std::env::var("STRATANN_IO")) {
            (IoMode::Auto, Ok(value)) if !value.is_empty() => {
                value.parse().map_err(|reason| TierError::Unsupported {
                    what: "the value of the environment variable STRATANN_IO".to_owned(),
                    reason,
                })
            }
            _ => Ok(self),
        }
    }
}

impl FromStr for IoMode {
    type Err = String;

    fn from_str(text: &str) -> Result<IoMode, String> {
        match text.to_ascii_lowercase().as_str() {
            "auto" => Ok(IoMode::Auto),
            "uring" | "io_uring" => Ok(IoMode::Uring),
            "pread" => Ok(IoMode::Pread),
            _ => Err(format!(
                "`{text}` is no way to read files; use auto, uring or pread"
            )),
        }
    }
}

impl fmt::Display for IoMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoMode::Auto => "auto",
            IoMode::Uring => "uring",
            IoMode::Pread => "pread",
        })
    }
}

/// How files are in fact read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Through one io_uring a thread.
    Uring,
    /// Through `pread` on a pool of threads.
    Pread {
        /// Why not io_uring.
        reason: String,
    },
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Uring => f.write_str("io_uring"),
            Backend::Pread { reason } => write!(f, "pread ({reason})"),
        }
    }
}

/// What a run asks of the workers.
type Job<'a> = dyn Fn(&Thread, usize) + Sync + 'a;

/// A job whose lifetime has been erased.
#[derive(Clone, Copy)]
struct Erased(*const Job<'static>);

// SAFETY: the job is `Sync`, so a pointer to it may be used from other threads; that it lives long enough is
// proved where it is made, in `Crew::run`.
unsafe impl Send for Erased {}

#[derive(Default)]
struct State {
    job: Option<Erased>,
    /// Counts runs, so that a worker takes part in each once.
    run: u64,
    /// Workers that take part in this run: the first so many.
    wanted: usize,
    /// Of them, those that have not finished.
    left: usize,
    panic: Option<Box<dyn Any + Send>>,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    begin: Condvar,
    end: Condvar,
}

impl Shared {
    /// Jobs run outside the lock, so nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Worker threads, each with a context of its own: ring, executor, buffers.
pub struct Crew {
    shared: Arc<Shared>,
    io: Arc<Io>,
    workers: Vec<JoinHandle<()>>,
    /// One run at a time; others wait here.
    turn: Mutex<()>,
    /// The process that the workers are threads of.
    process: u32,
}

thread_local! {
    /// Address of the crew that this thread works for.
    static EMPLOYER: Cell<usize> = const { Cell::new(0) };
}

impl Crew {
    /// Starts `threads` workers (at least one) that read as `io` says.
    pub fn new(threads: usize, io: IoMode) -> Result<Crew, TierError> {
        Crew::build(threads, io, false)
    }

    /// A crew to which the kernel refuses io_uring, as it does in many containers; for tests.
    #[doc(hidden)]
    pub fn without_ring(threads: usize, io: IoMode) -> Result<Crew, TierError> {
        Crew::build(threads, io, true)
    }

    fn build(threads: usize, io: IoMode, forbid_ring: bool) -> Result<Crew, TierError> {
        let io = Io::new(io, forbid_ring, threads)?;
        let shared = Arc::new(Shared::default());
        // From here on, dropping the crew ends the workers that there are.
        let mut crew = Crew {
            shared,
            io,
            workers: Vec::with_capacity(threads.max(1)),
            turn: Mutex::new(()),
            process: std::process::id(),
        };
        for index in 0..threads.max(1) {
            let (shared, io) = (crew.shared.clone(), crew.io.clone());
            let worker = thread::Builder::new()
                .name(format!("stratann-{index}"))
                .spawn(move || work(&shared, io, index))
                .map_err(|error| TierError::Unsupported {
                    what: format!("worker thread {} of {threads}", index + 1),
                    reason: format!("{error}; ask for fewer threads, or raise the limit (ulimit -u, cgroup pids)"),
                })?;
            crew.workers.push(worker);
        }
        Ok(crew)
    }

    /// Workers in the crew.
    pub fn threads(&self) -> usize {
        self.workers.len()
    }

    /// How the crew reads files. Workers whose ring fails later change it.
    pub fn backend(&self) -> Backend {
        self.io.backend()
    }

    /// Calls `job(thread, i)` on the workers `i < threads`, and returns when all calls have returned.
    ///
    /// At most [`threads()`](Crew::threads) take part; returns how many did. Runs of several host threads queue up.
    ///
    /// # Panics
    /// With the panic of a job, when the others have finished; the crew remains usable. Also when called from one of
    /// the crew's own jobs, which would never end, and in a process forked from the one that made the crew.
    pub fn run(&self, threads: usize, job: &(dyn Fn(&Thread, usize) + Sync)) -> usize {
        let own = EMPLOYER.with(Cell::get) == Arc::as_ptr(&self.shared) as usize;
        assert!(
            !own,
            "Crew::run called from a job of the same crew: it would wait for itself"
        );
        assert!(
            self.process == std::process::id(),
            "this process was forked after the worker threads were started, and does not have them: open the index \
             again in the child, or start it with spawn instead of fork"
        );
        let wanted = threads.clamp(1, self.workers.len());
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.shared.lock();
        // SAFETY: only the lifetime changes. Workers use the pointer between here and the moment when they count
        // down `left`, panicking or not. This function returns only when `left` is 0 and the pointer is cleared, and
        // nothing between here and there can unwind: locks ignore poisoning, and waiting on a condition variable
        // panics only with two different mutexes. So no use outlives the borrow.
        state.job = Some(Erased(unsafe {
            std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job)
        }));
        state.run += 1;
        state.wanted = wanted;
        state.left = wanted;
        self.shared.begin.notify_all();
        while state.left > 0 {
            state = self
                .shared
                .end
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.job = None;
        let panic = state.panic.take();
        drop(state);
        drop(turn);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
        wanted
    }
}

fn work(shared: &Arc<Shared>, io: Arc<Io>, index: usize) {
    EMPLOYER.with(|employer| employer.set(Arc::as_ptr(shared) as usize));
    let mut thread = Thread::with(io.clone());
    let mut seen = 0;
    let mut state = shared.lock();
    loop {
        if state.stop {
            return;
        }
        if state.run == seen || state.left == 0 || index >= state.wanted {
            seen = state.run;
            state = shared
                .begin
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        seen = state.run;
        let job = state.job.expect("a run with workers left has a job");
        drop(state);
        let result = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: `Crew::run` keeps the job borrowed until this worker has counted down `left`, below.
            let job = unsafe { &*job.0 };
            job(&thread, index);
        }));
        if result.is_err() {
            // What the job left in the context is unknown; a new one waits for its reads and starts afresh.
            thread = Thread::with(io.clone());
        }
        state = shared.lock();
        if let Err(panic) = result {
            state.panic.get_or_insert(panic);
        }
        state.left -= 1;
        if state.left == 0 {
            shared.end.notify_all();
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return; // The threads to be joined live in another process.
        }
        self.shared.lock().stop = true;
        self.shared.begin.notify_all();
        for worker in self.workers.drain(..) {
            // Jobs' panics were caught and passed on; there is nothing left to report.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crew({} threads, {})", self.threads(), self.backend())
    }
}
