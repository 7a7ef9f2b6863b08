//! Persistent worker threads, and a way to run borrowed work on them.
//!
//! A ring belongs to one thread for its life, so threads are kept, and work travels to them: [`WorkerPool::run`] calls a
//! closure on so many workers and returns when all are done, as `std::thread::scope` would.
//!
//! ```text
//!   host thread ── run_tasks(2, job) ──> shares 0 and 1 ── queue ──> worker: job(thread, i) -> tasks
//!   host thread ── run_tasks(1, job) ──> share 0 ───────────┘         polls the tasks of all its shares in turn
//! ```
//!
//! Any number of runs go on at once. A share goes to a worker with nothing to do, if there is one; else to the first that comes by:
//! each looks whether something waits once a turn, while its own tasks wait for reads. No two shares of a run are taken by
//! one worker.

use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::error::TierError;
use crate::executor::{Group, Parking, Task, Thread};
use crate::reactor::Io;
use crate::threads::start;

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

/// What a run asks of a worker: the tasks of its share.
type Job<'a> = dyn Fn(&'a Thread, usize) -> Vec<Task<'a>> + Sync + 'a;

/// A job whose lifetime has been erased.
struct Erased(*const Job<'static>);

// SAFETY: the job is `Sync`, so a pointer to it may be used from other threads; that it lives long enough is
// proved where it is made, in `WorkerPool::run_tasks`.
unsafe impl Send for Erased {}
// SAFETY: as above; the pointer itself is only read.
unsafe impl Sync for Erased {}

/// A call of `run_tasks`.
struct Run {
    job: Erased,
    state: Mutex<RunState>,
    end: Condvar,
}

struct RunState {
    /// Shares that are not finished.
    left: usize,
    /// Workers that took one.
    by: Vec<usize>,
    panic: Option<Panic>,
}

type Panic = Box<dyn Any + Send>;

impl Run {
    fn lock(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts down a share whose tasks are gone.
    fn finish(&self, panic: Option<Panic>) {
        let mut state = self.lock();
        if let Some(panic) = panic {
            state.panic.get_or_insert(panic);
        }
        state.left -= 1;
        if state.left == 0 {
            self.end.notify_all();
        }
    }
}

/// A worker's part of a run.
struct Share {
    run: Arc<Run>,
    index: usize,
}

/// What a worker does, as far as others have to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It has tasks.
    Tasks,
    /// It has none, and sleeps.
    Nothing,
    /// It has none, and is awake: it has just begun, or was woken for a share, or is about to look for one.
    Called,
}

struct Worker {
    doing: Doing,
    parking: Arc<Parking>,
}

#[derive(Default)]
struct State {
    /// Shares that no worker has taken yet, oldest first.
    queue: VecDeque<Share>,
    /// Those that have begun.
    workers: BTreeMap<usize, Worker>,
    stop: bool,
}

impl State {
    /// For each share in the queue a worker without tasks, while there are any; calls those that sleep.
    fn assign(&mut self) -> Vec<Option<usize>> {
        let mut free: Vec<usize> = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.doing != Doing::Tasks)
            .map(|(&index, _)| index)
            .collect();
        let mut assigned = Vec::with_capacity(self.queue.len());
        for share in &self.queue {
            let run = share.run.lock();
            let one = free.iter().position(|index| !run.by.contains(index));
            let one = one.map(|at| free.remove(at));
            if let Some(worker) = one.and_then(|index| self.workers.get_mut(&index))
                && worker.doing == Doing::Nothing
            {
                worker.doing = Doing::Called;
                worker.parking.wake();
            }
            assigned.push(one);
        }
        assigned
    }

    /// Takes a share for a worker: the oldest that it may have, and that no worker with nothing to do is to have.
    fn take(&mut self, me: usize) -> Option<Share> {
        let assigned = self.assign();
        let at = (0..self.queue.len()).find(|&at| match assigned[at] {
            Some(index) => index == me,
            None => !self.queue[at].run.lock().by.contains(&me),
        })?;
        let share = self.queue.remove(at)?;
        share.run.lock().by.push(me);
        self.set(me, Doing::Tasks);
        Some(share)
    }

    fn set(&mut self, me: usize, doing: Doing) {
        if let Some(worker) = self.workers.get_mut(&me) {
            worker.doing = doing;
        }
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Shares in the queue: looked at without the lock, once a turn.
    waiting: AtomicUsize,
}

impl Shared {
    /// Foreign code runs outside the lock, so nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a worker sleeps, which is known from now on.
    fn meet(&self, me: usize, thread: &thread::Thread) -> Arc<Parking> {
        let mut state = self.lock();
        let worker = state.workers.entry(me).or_insert_with(|| Worker {
            doing: Doing::Called,
            parking: Arc::new(Parking::of(thread.clone())),
        });
        worker.parking.clone()
    }

    /// A share for a worker, if one waits that it may have.
    fn take(&self, me: usize) -> Option<Share> {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut state = self.lock();
        let share = state.take(me);
        self.waiting.store(state.queue.len(), Ordering::SeqCst);
        share
    }

    /// Sleeps until there is a share for a worker without tasks. None: the pool ends.
    fn rest(&self, me: usize, parking: &Parking) -> Option<Share> {
        let share = Cell::new(None);
        parking.park(|| {
            let mut state = self.lock();
            if state.stop {
                return true;
            }
            let found = state.take(me);
            self.waiting.store(state.queue.len(), Ordering::SeqCst);
            if found.is_none() {
                state.set(me, Doing::Nothing);
            }
            let awake = found.is_some();
            share.set(found);
            awake
        });
        share.take()
    }
}

/// Worker threads, each with a context of its own: ring, executor, buffers.
pub struct WorkerPool {
    shared: Arc<Shared>,
    io: Arc<Io>,
    workers: Vec<JoinHandle<()>>,
    /// The process that the workers are threads of.
    process: u32,
}

thread_local! {
    /// Address of the pool that this thread works for.
    static EMPLOYER: Cell<usize> = const { Cell::new(0) };
}

impl WorkerPool {
    /// Starts `threads` workers (at least one) that read as `io` says.
    pub fn new(threads: usize, io: IoMode) -> Result<WorkerPool, TierError> {
        WorkerPool::build(threads, io, false)
    }

    /// A workers to which the kernel refuses io_uring, as it does in many containers.
    #[cfg(feature = "testing")]
    pub fn without_ring(threads: usize, io: IoMode) -> Result<WorkerPool, TierError> {
        WorkerPool::build(threads, io, true)
    }

    fn build(threads: usize, io: IoMode, forbid_ring: bool) -> Result<WorkerPool, TierError> {
        let io = Io::new(io, forbid_ring, threads)?;
        let shared = Arc::new(Shared::default());
        // From here on, dropping the pool ends the workers that there are.
        let mut workers = WorkerPool {
            shared,
            io,
            workers: Vec::with_capacity(threads.max(1)),
            process: std::process::id(),
        };
        for index in 0..threads.max(1) {
            let (shared, io) = (workers.shared.clone(), workers.io.clone());
            let named = thread::Builder::new().name(format!("stratann-{index}"));
            let worker = start(named, move || work(&shared, &io, index)).map_err(|source| {
                TierError::NoThread {
                    what: format!("worker {} of {threads}", index + 1),
                    source,
                }
            })?;
            workers.shared.meet(index, worker.thread());
            workers.workers.push(worker);
        }
        Ok(workers)
    }

    /// Workers in the pool.
    pub fn threads(&self) -> usize {
        self.workers.len()
    }

    /// How the pool reads files. Workers whose ring fails later change it.
    pub fn backend(&self) -> Backend {
        self.io.backend()
    }

    /// Calls `job(thread, i)` for `i < threads`, each on a worker of its own, and returns when all calls have returned.
    ///
    /// At most [`threads()`](WorkerPool::threads) take part; returns how many did. A job that computes or waits keeps its worker from the
    /// tasks of others: what searches is for [`run_tasks`](WorkerPool::run_tasks).
    ///
    /// # Panics
    /// As [`run_tasks`](WorkerPool::run_tasks).
    pub fn run(&self, threads: usize, job: &(dyn Fn(&Thread, usize) + Sync)) -> usize {
        self.run_tasks(threads, &|thread, index| {
            job(thread, index);
            Vec::new()
        })
    }

    /// Runs the tasks that `job(thread, i)` gives for `i < threads`, each share on a worker of its own, and returns when all
    /// have finished.
    ///
    /// At most [`threads()`](WorkerPool::threads) take part; returns how many did. The tasks of several runs take turns on a worker, so
    /// that runs of several host threads go on at once.
    ///
    /// # Panics
    /// With the panic of a job or a task, when the other shares of this run have finished; other runs and the pool go on. Also
    /// when called from one of the pool's own jobs, which would never end, and in a process forked from the one that made
    /// the pool.
    pub fn run_tasks<'a>(
        &self,
        threads: usize,
        job: &'a (dyn Fn(&'a Thread, usize) -> Vec<Task<'a>> + Sync + 'a),
    ) -> usize {
        let own = EMPLOYER.with(Cell::get) == Arc::as_ptr(&self.shared) as usize;
        assert!(
            !own,
            "WorkerPool::run called from a job of the same workers: it would wait for itself"
        );
        assert!(
            self.process == std::process::id(),
            "this process was forked after the worker threads were started, and does not have them: open the index \
             again in the child, or start it with spawn instead of fork"
        );
        let wanted = threads.clamp(1, self.workers.len());
        // SAFETY: only the lifetime changes: that of the job, of the thread's context that it is given, and of the tasks that it
        // gives. A worker uses the pointer and has such tasks between here and the moment when it counts down `left`, whether
        // anything panics or not (`Member`); the context lives until the worker ends, which is after that. This function
        // returns only when `left` is 0, and nothing between here and there can unwind: locks ignore poisoning, waiting on a
        // condition variable panics only with two different mutexes, and what is allocated is small. So no use outlives
        // the borrow. (That the job keeps the reference to the context is out of the question: it is `Sync`, and a reference
        // to a context is not `Send`.)
        let job =
            Erased(unsafe { std::mem::transmute::<*const Job<'a>, *const Job<'static>>(job) });
        let run = Arc::new(Run {
            job,
            state: Mutex::new(RunState {
                left: wanted,
                by: Vec::with_capacity(wanted),
                panic: None,
            }),
            end: Condvar::new(),
        });
        {
            let mut state = self.shared.lock();
            state.queue.extend((0..wanted).map(|index| Share {
                run: run.clone(),
                index,
            }));
            self.shared
                .waiting
                .store(state.queue.len(), Ordering::SeqCst);
            // Workers that sleep though they have tasks wait for other threads: they can take something up meanwhile.
            if state.assign().contains(&None) {
                for worker in state.workers.values() {
                    worker.parking.wake();
                }
            }
        }
        let mut state = run.lock();
        while state.left > 0 {
            state = run.end.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let panic = state.panic.take();
        drop(state);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
        wanted
    }
}

/// A share that a worker has taken: it counts down when its tasks are gone, whatever happens.
struct Member {
    run: Arc<Run>,
    /// Erased lifetimes: see `WorkerPool::run_tasks`.
    group: Option<Group<'static>>,
    panic: Option<Panic>,
}

impl Member {
    /// Does something with the tasks; if one panics, all of them go.
    fn guard(&mut self, act: impl FnOnce(&mut Option<Group<'static>>)) {
        let group = &mut self.group;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| act(group))) {
            self.panic.get_or_insert(panic);
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        let group = self.group.take();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(group))) {
            self.panic.get_or_insert(panic);
        }
    }

    fn is_done(&self) -> bool {
        self.group.as_ref().is_none_or(Group::is_done)
    }

    fn is_ready(&self) -> bool {
        self.group.as_ref().is_some_and(Group::is_ready)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.give_up();
        self.run.finish(self.panic.take());
    }
}

fn work(shared: &Arc<Shared>, io: &Arc<Io>, me: usize) {
    EMPLOYER.with(|employer| employer.set(Arc::as_ptr(shared) as usize));
    let parking = shared.meet(me, &thread::current());
    loop {
        let thread = Thread::with(io.clone());
        // Declared after the context, so that tasks go before it.
        let mut members = Vec::new();
        let served = catch_unwind(AssertUnwindSafe(|| {
            serve(shared, &thread, &parking, me, &mut members);
        }));
        let Err(panic) = served else { return };
        // Not a task but the context itself: whoever has tasks here hears of it, and a new one waits for its reads and starts afresh.
        let mut panic = Some(panic);
        for member in &mut members {
            let told = panic
                .take()
                .unwrap_or_else(|| Box::new("a thread that reads for several searches failed"));
            member.panic.get_or_insert(told);
        }
    }
}

/// Takes up shares and polls their tasks until the pool ends.
fn serve(
    shared: &Shared,
    thread: &Thread,
    parking: &Arc<Parking>,
    me: usize,
    members: &mut Vec<Member>,
) {
    // SAFETY: `work` keeps the context until `members` is empty, and only tasks of members have the reference (see
    // `WorkerPool::run_tasks`).
    let thread: &'static Thread = unsafe { &*std::ptr::from_ref(thread) };
    let reactor = thread.reactor();
    let taken = Cell::new(None);
    loop {
        let share = match members.is_empty() {
            true => match shared.rest(me, parking) {
                None => return,
                share => share,
            },
            false => taken.take().or_else(|| shared.take(me)),
        };
        if let Some(Share { run, index }) = share {
            // First of all, so that it counts down if the job panics.
            members.push(Member {
                run,
                group: None,
                panic: None,
            });
            let member = members.last_mut().expect("it was pushed just now");
            let job = member.run.job.0;
            member.guard(|group| {
                // SAFETY: `WorkerPool::run_tasks` keeps the job borrowed until this share has counted down.
                let job = unsafe { &*job };
                let tasks = job(thread, index);
                *group = Some(Group::new(thread, parking, tasks));
            });
        }
        for member in members.iter_mut() {
            member.guard(|group| group.iter_mut().for_each(Group::poll));
        }
        if members.iter().all(Member::is_done) {
            // Before the callers hear of it: what they ask for next may be for this worker.
            shared.lock().set(me, Doing::Called);
        }
        members.retain(|member| !member.is_done());
        if members.is_empty() {
            continue;
        }
        if members.iter().any(Member::is_ready) {
            reactor.turn();
            continue;
        }
        reactor.reap();
        let ready = || members.iter().any(Member::is_ready);
        if !ready() && !reactor.wait() {
            parking.park(|| {
                ready() || {
                    let share = shared.take(me);
                    let found = share.is_some();
                    taken.set(share);
                    found
                }
            });
        }
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return; // The threads to be joined live in another process.
        }
        {
            let mut state = self.shared.lock();
            state.stop = true;
            for worker in state.workers.values() {
                worker.parking.wake();
            }
        }
        for worker in self.workers.drain(..) {
            // Jobs' panics were caught and passed on; there is nothing left to report.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "WorkerPool({} threads, {})",
            self.threads(),
            self.backend()
        )
    }
}
