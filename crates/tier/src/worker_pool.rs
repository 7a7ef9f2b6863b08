//! Persistent worker threads, and two ways to run work on them: borrowed, while the caller waits,
//! or owned.
//!
//! A ring belongs to one thread for its life, so threads are kept, and work travels to them:
//! [`WorkerPool::run`] calls a closure on so many workers and returns when all are done, as
//! `std::thread::scope` would. [`WorkerPool::submit`] returns at once; the pool owns what it was
//! given, and says when it has ended.
//!
//! ```text
//!   host thread ── run_tasks(2, job) ──> shares 0 and 1 ─┐
//!   host thread ── run_tasks(1, job) ──> share 0 ────────┼─ queue ──> worker: job(thread, i) -> tasks
//!   host thread ── submit(1, work) ────> share 0 ────────┘             polls the tasks of all its shares in turn
//!                                                                      the last one gone: work.ended(), on its worker
//! ```
//!
//! Any number of runs go on at once. A share goes to a worker with nothing to do, if there is one;
//! else to the first that comes by: each looks whether something waits once a turn, while its own
//! tasks wait for reads. No two shares of a run are taken by one worker.

use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::backend::{Backend, IoMode};
use crate::error::TierError;
use crate::executor::{Group, Task, Thread};
use crate::parking::Parking;
use crate::reactor::Io;
use crate::threads::start;
use crate::turns::turn;

/// What a run asks of a worker: the tasks of its share.
type Job<'a> = dyn Fn(&'a Thread, usize) -> Vec<Task<'a>> + Sync + 'a;

/// Work that a pool owns until it has ended: see [`WorkerPool::submit`].
pub trait Work: Send + Sync {
    /// The tasks of a share, which run on the thread that asks for them.
    fn tasks<'t>(self: Arc<Self>, thread: &'t Thread, share: usize) -> Vec<Task<'t>>;

    /// All tasks of all shares are gone, one of them with a panic perhaps. Called once, on the
    /// worker that had the last one: so it should be short. The pool keeps nothing of the work any
    /// more.
    fn ended(self: Arc<Self>, panic: Option<Panic>);
}

/// A job whose lifetime has been erased.
struct Erased(*const Job<'static>);

// SAFETY: the job is `Sync`, so a pointer to it may be used from other threads; that it lives long
// enough is proved where it is made, in `WorkerPool::run_tasks`.
unsafe impl Send for Erased {}
// SAFETY: as above; the pointer itself is only read.
unsafe impl Sync for Erased {}

/// A call of `run_tasks` or `submit`.
struct Run {
    /// What the caller of `run_tasks` lends.
    job: Option<Erased>,
    state: Mutex<RunState>,
    end: Condvar,
}

struct RunState {
    /// Shares that are not finished.
    left: usize,
    /// Workers that took one.
    by: Vec<usize>,
    panic: Option<Panic>,
    /// What was submitted, until it has ended.
    work: Option<Arc<dyn Work>>,
}

/// What a panic says.
pub type Panic = Box<dyn Any + Send>;

impl Run {
    fn new(job: Option<Erased>, work: Option<Arc<dyn Work>>, shares: usize) -> Arc<Run> {
        Arc::new(Run {
            job,
            state: Mutex::new(RunState {
                left: shares,
                by: Vec::with_capacity(shares),
                panic: None,
                work,
            }),
            end: Condvar::new(),
        })
    }

    /// The tasks of a share.
    fn tasks(&self, thread: &'static Thread, index: usize) -> Vec<Task<'static>> {
        if let Some(job) = &self.job {
            // SAFETY: `WorkerPool::run_tasks` keeps the job borrowed until this share has counted
            // down.
            let job = unsafe { &*job.0 };
            return job(thread, index);
        }
        let work = self.lock().work.clone();
        work.map_or_else(Vec::new, |work| work.tasks(thread, index))
    }

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
        if state.left > 0 {
            return;
        }
        self.end.notify_all();
        if let Some(work) = state.work.take() {
            let panic = state.panic.take();
            drop(state);
            let told = catch_unwind(AssertUnwindSafe(|| work.ended(panic)));
            if told.is_err() {
                tracing::error!("what was to be told that submitted work had ended panicked");
            }
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
    /// It has none, and is awake: it has just begun, or was woken for a share, or is about to look
    /// for one.
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
    /// For the first shares in the queue a worker without tasks each, while there are any; calls
    /// those that sleep. Shares behind them are for whoever comes by.
    fn assign(&mut self) -> Vec<Option<usize>> {
        let mut free: Vec<usize> = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.doing != Doing::Tasks)
            .map(|(&index, _)| index)
            .collect();
        let mut assigned = Vec::new();
        for share in &self.queue {
            if free.is_empty() {
                break;
            }
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

    /// Takes a share for a worker: the oldest that it may have, and that no worker with nothing to
    /// do is to have.
    fn take(&mut self, me: usize) -> Option<Share> {
        let assigned = self.assign();
        let at = (0..self.queue.len()).find(|&at| match assigned.get(at).copied().flatten() {
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

    /// Queues the shares of a run.
    fn add(&self, run: &Arc<Run>, shares: usize) {
        let mut state = self.lock();
        state.queue.extend((0..shares).map(|index| Share {
            run: run.clone(),
            index,
        }));
        self.waiting.store(state.queue.len(), Ordering::SeqCst);
        // Workers that sleep though they have tasks wait for other threads: they can take something
        // up meanwhile.
        let assigned = state.assign();
        if assigned.len() < state.queue.len() || assigned.contains(&None) {
            for worker in state.workers.values() {
                worker.parking.wake();
            }
        }
    }

    /// Sleeps until there is a share for a worker without tasks. None: the pool ends, and nothing
    /// is left that the worker may do.
    fn rest(&self, me: usize, parking: &Parking) -> Option<Share> {
        let share = Cell::new(None);
        parking.park(None, || {
            let mut state = self.lock();
            let found = state.take(me);
            self.waiting.store(state.queue.len(), Ordering::SeqCst);
            let awake = found.is_some() || state.stop;
            match found {
                // Nothing is left to it from now on.
                None if state.stop => drop(state.workers.remove(&me)),
                None => state.set(me, Doing::Nothing),
                found => share.set(found),
            }
            awake
        });
        share.take()
    }
}

/// Shares that a worker takes up in one turn, at most: reads of these go to the kernel together,
/// and what ends together is told together.
const TAKEN: usize = 8;

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

    /// Calls `job(thread, i)` for `i < threads`, each on a worker of its own, and returns when all
    /// calls have returned.
    ///
    /// At most [`threads()`](WorkerPool::threads) take part; returns how many did. A job that
    /// computes or waits keeps its worker from the tasks of others: what searches is for
    /// [`run_tasks`](WorkerPool::run_tasks).
    ///
    /// # Panics
    /// As [`run_tasks`](WorkerPool::run_tasks).
    pub fn run(&self, threads: usize, job: &(dyn Fn(&Thread, usize) + Sync)) -> usize {
        self.run_tasks(threads, &|thread, index| {
            job(thread, index);
            Vec::new()
        })
    }

    /// Runs the tasks that `job(thread, i)` gives for `i < threads`, each share on a worker of its
    /// own, and returns when all have finished.
    ///
    /// At most [`threads()`](WorkerPool::threads) take part; returns how many did. The tasks of
    /// several runs take turns on a worker, so that runs of several host threads go on at once.
    ///
    /// # Panics
    /// With the panic of a job or a task, when the other shares of this run have finished; other
    /// runs and the pool go on. Also when called from one of the pool's own jobs, which would never
    /// end, and in a process forked from the one that made the pool.
    pub fn run_tasks<'a>(
        &self,
        threads: usize,
        job: &'a (dyn Fn(&'a Thread, usize) -> Vec<Task<'a>> + Sync + 'a),
    ) -> usize {
        assert!(
            !self.employs_me(),
            "WorkerPool::run called from a job of the same workers: it would wait for itself"
        );
        self.check_process();
        let wanted = threads.clamp(1, self.workers.len());
        // SAFETY: only the lifetime changes: that of the job, of the thread's context that it is
        // given, and of the tasks that it gives. A worker uses the pointer and has such tasks
        // between here and the moment when it counts down `left`, whether anything panics or not
        // (`Member`); the context lives until the worker ends, which is after that. This function
        // returns only when `left` is 0, and nothing between here and there can unwind: locks
        // ignore poisoning, waiting on a condition variable panics only with two different mutexes,
        // and what is allocated is small. So no use outlives the borrow. (That the job keeps the
        // reference to the context is out of the question: it is `Sync`, and a reference to a
        // context is not `Send`.)
        let job =
            Erased(unsafe { std::mem::transmute::<*const Job<'a>, *const Job<'static>>(job) });
        let run = Run::new(Some(job), None, wanted);
        self.shared.add(&run, wanted);
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

    /// Has workers run the tasks that `work` gives for each share, as
    /// [`run_tasks`](WorkerPool::run_tasks) does, and returns at once: [`Work::ended`] says when
    /// they have finished. Returns how many workers take part.
    ///
    /// The pool may be dropped meanwhile: it ends when all that was submitted has ended. Who drops
    /// it waits for that, unless it is a worker of the same pool. A panic of a task reaches
    /// `ended`; other work and the pool go on.
    ///
    /// # Panics
    /// In a process forked from the one that made the pool.
    pub fn submit(&self, threads: usize, work: Arc<dyn Work>) -> usize {
        self.check_process();
        let wanted = threads.clamp(1, self.workers.len());
        self.shared.add(&Run::new(None, Some(work), wanted), wanted);
        wanted
    }

    /// Whether the calling thread is a worker of this pool.
    fn employs_me(&self) -> bool {
        EMPLOYER.with(Cell::get) == Arc::as_ptr(&self.shared) as usize
    }

    fn check_process(&self) {
        assert!(
            self.process == std::process::id(),
            "this process was forked after the worker threads were started, and does not have them: open the index \
             again in the child, or start it with spawn instead of fork"
        );
    }
}

/// Whether the calling thread is a worker of any pool: it must not wait there for what other tasks
/// of its pool are to do.
pub fn is_worker() -> bool {
    EMPLOYER.with(Cell::get) != 0
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
        // Not a task but the context itself: whoever has tasks here hears of it, and a new one
        // waits for its reads and starts afresh.
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
    // SAFETY: `work` keeps the context until `members` is empty, and only tasks of members have the
    // reference (see `WorkerPool::run_tasks`).
    let thread: &'static Thread = unsafe { &*std::ptr::from_ref(thread) };
    let reactor = thread.reactor();
    let taken = Cell::new(None);
    loop {
        let mut share = match members.is_empty() {
            true => match shared.rest(me, parking) {
                None => return,
                share => share,
            },
            false => taken.take().or_else(|| shared.take(me)),
        };
        let mut room = TAKEN;
        while let Some(Share { run, index }) = share {
            // First of all, so that it counts down if the job panics.
            members.push(Member {
                run,
                group: None,
                panic: None,
            });
            let member = members.last_mut().expect("it was pushed just now");
            let run = member.run.clone();
            member.guard(|group| {
                let tasks = run.tasks(thread, index);
                *group = Some(Group::new(thread, parking, tasks));
            });
            room -= 1;
            share = (room > 0).then(|| shared.take(me)).flatten();
        }
        for member in members.iter_mut() {
            member.guard(|group| group.iter_mut().for_each(Group::poll));
        }
        // Before the callers hear of it: what they ask for next may be for this worker. But not
        // where it tells itself of the end of what was submitted, which may take long, and may even
        // wait for a share that would be kept for it.
        if (members.iter()).all(|member| member.is_done() && member.run.job.is_some()) {
            shared.lock().set(me, Doing::Called);
        }
        turn(|| members.retain(|member| !member.is_done()));
        if members.is_empty() {
            reactor.settle();
            continue;
        }
        if members.iter().any(Member::is_ready) {
            reactor.turn();
            continue;
        }
        reactor.reap();
        let ready = || members.iter().any(Member::is_ready);
        if !ready() {
            reactor.wait(parking, || {
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
        if self.employs_me() {
            return; // It cannot wait for itself: all of them end when they have nothing left to do.
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
