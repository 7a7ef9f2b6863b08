//! A pool of persistent worker threads. Each worker has its own I/O ring. [`WorkerPool::run`]
//! borrows a closure until all calls have returned, like `std::thread::scope`.
//! [`WorkerPool::submit`] returns at once: the pool owns the work and reports its end.
//!
//! ```text
//!   host thread ── run_tasks(2, job) ──> shares 0 and 1 ─┐
//!   host thread ── run_tasks(1, job) ──> share 0 ────────┼─ queue ──> worker
//!   host thread ── submit(1, work) ────> share 0 ────────┘
//!
//!   worker: job(thread, i) -> tasks; polls the tasks of all its shares in turn
//!           after the last task of submitted work: work.ended(), on this worker
//! ```
//!
//! Several runs may be active at once. A share is the part of a run that one worker executes. An
//! idle worker takes the next share. If no worker is idle, the first worker that checks the queue
//! takes it. A busy worker checks the queue once in each round in which its tasks wait for reads.
//! No worker takes two shares of one run.

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

type Job<'a> = dyn Fn(&'a Thread, usize) -> Vec<Task<'a>> + Sync + 'a;

/// Work that the pool owns until the work has ended ([`WorkerPool::submit`]).
pub trait Work: Send + Sync {
    /// The tasks of a share. They run on the calling thread.
    fn tasks<'t>(self: Arc<Self>, thread: &'t Thread, share: usize) -> Vec<Task<'t>>;

    /// Called once, on the worker that ran the last task. Afterwards the pool has no reference to
    /// the work.
    fn ended(self: Arc<Self>, panic: Option<Panic>);
}

struct Erased(*const Job<'static>);

// SAFETY: the job is `Sync`, so a pointer to it may be used from other threads.
// `WorkerPool::run_tasks`, which makes the pointer, proves that the job lives long enough.
unsafe impl Send for Erased {}
// SAFETY: as for `Send`; other threads only read the pointer.
unsafe impl Sync for Erased {}

struct Run {
    job: Option<Erased>,
    state: Mutex<RunState>,
    end: Condvar,
}

struct RunState {
    left: usize,
    by: Vec<usize>,
    panic: Option<Panic>,
    work: Option<Arc<dyn Work>>,
}

/// The payload of a panic.
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

    fn tasks(&self, thread: &'static Thread, index: usize) -> Vec<Task<'static>> {
        if let Some(job) = &self.job {
            // SAFETY: `WorkerPool::run_tasks` borrows the job until the worker has counted down for
            // this share.
            let job = unsafe { &*job.0 };
            return job(thread, index);
        }
        let work = self.lock().work.clone();
        work.map_or_else(Vec::new, |work| work.tasks(thread, index))
    }

    fn lock(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
                tracing::error!("the callback for the end of submitted work panicked");
            }
        }
    }
}

struct Share {
    run: Arc<Run>,
    index: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Tasks,
    Nothing,
    /// The worker has no tasks, and is awake to check the queue.
    Called,
}

struct Worker {
    doing: Doing,
    parking: Arc<Parking>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Share>,
    workers: BTreeMap<usize, Worker>,
    stop: bool,
}

impl State {
    /// Assigns the first shares to workers without tasks. Any worker may take the remaining shares.
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

    /// The oldest share that worker `me` may run, and that is not assigned to another idle worker.
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
    /// The length of the queue. Workers read this number once in each round, without the lock.
    waiting: AtomicUsize,
}

impl Shared {
    /// Code under this lock calls no code of users, so it does not panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meet(&self, me: usize, thread: &thread::Thread) -> Arc<Parking> {
        let mut state = self.lock();
        let worker = state.workers.entry(me).or_insert_with(|| Worker {
            doing: Doing::Called,
            parking: Arc::new(Parking::of(thread.clone())),
        });
        worker.parking.clone()
    }

    fn take(&self, me: usize) -> Option<Share> {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut state = self.lock();
        let share = state.take(me);
        self.waiting.store(state.queue.len(), Ordering::SeqCst);
        share
    }

    fn add(&self, run: &Arc<Run>, shares: usize) {
        let mut state = self.lock();
        state.queue.extend((0..shares).map(|index| Share {
            run: run.clone(),
            index,
        }));
        self.waiting.store(state.queue.len(), Ordering::SeqCst);
        // A sleeping worker that has tasks waits for other threads, so it can take a share too.
        let assigned = state.assign();
        if assigned.len() < state.queue.len() || assigned.contains(&None) {
            for worker in state.workers.values() {
                worker.parking.wake();
            }
        }
    }

    fn rest(&self, me: usize, parking: &Parking) -> Option<Share> {
        let share = Cell::new(None);
        parking.park(None, || {
            let mut state = self.lock();
            let found = state.take(me);
            self.waiting.store(state.queue.len(), Ordering::SeqCst);
            let awake = found.is_some() || state.stop;
            match found {
                None if state.stop => drop(state.workers.remove(&me)),
                None => state.set(me, Doing::Nothing),
                found => share.set(found),
            }
            awake
        });
        share.take()
    }
}

/// The most shares that a worker takes in one round. Their reads go to the kernel together.
const TAKEN: usize = 8;

/// Worker threads. Each has a context of its own: ring, executor, buffers.
pub struct WorkerPool {
    shared: Arc<Shared>,
    io: Arc<Io>,
    workers: Vec<JoinHandle<()>>,
    process: u32,
}

thread_local! {
    static EMPLOYER: Cell<usize> = const { Cell::new(0) };
}

impl WorkerPool {
    /// Starts `threads` workers (at least one) that read files in mode `io`.
    pub fn new(threads: usize, io: IoMode) -> Result<WorkerPool, TierError> {
        WorkerPool::build(threads, io, false)
    }

    /// Starts workers for which the kernel refuses io_uring, as in many containers.
    #[cfg(feature = "testing")]
    pub fn without_ring(threads: usize, io: IoMode) -> Result<WorkerPool, TierError> {
        WorkerPool::build(threads, io, true)
    }

    fn build(threads: usize, io: IoMode, forbid_ring: bool) -> Result<WorkerPool, TierError> {
        let io = Io::new(io, forbid_ring, threads)?;
        let shared = Arc::new(Shared::default());
        // From here on, dropping the pool ends the workers that were started.
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

    /// The number of workers in the pool.
    pub fn threads(&self) -> usize {
        self.workers.len()
    }

    /// The backend that reads files; it changes if the ring of a worker fails later.
    pub fn backend(&self) -> Backend {
        self.io.backend()
    }

    /// Calls `job(thread, i)` for each `i < threads`, on different workers, and waits for all
    /// calls. Returns the number of these workers. During the calls, these workers run no other
    /// tasks, so searches use [`run_tasks`](WorkerPool::run_tasks).
    ///
    /// # Panics
    /// Panics as [`run_tasks`](WorkerPool::run_tasks) does.
    pub fn run(&self, threads: usize, job: &(dyn Fn(&Thread, usize) + Sync)) -> usize {
        self.run_tasks(threads, &|thread, index| {
            job(thread, index);
            Vec::new()
        })
    }

    /// Runs the tasks that `job(thread, i)` returns for each `i < threads`, on different workers,
    /// and waits for all tasks. Returns the number of these workers.
    ///
    /// # Panics
    /// Panics with the panic of a job or task, after the other shares have ended. Also panics in a
    /// job of this pool, which would wait for itself, and in a fork of the pool's process.
    pub fn run_tasks<'a>(
        &self,
        threads: usize,
        job: &'a (dyn Fn(&'a Thread, usize) -> Vec<Task<'a>> + Sync + 'a),
    ) -> usize {
        assert!(
            !self.employs_me(),
            "WorkerPool::run was called from a job of the same workers, and would wait for itself"
        );
        self.check_process();
        let wanted = threads.clamp(1, self.workers.len());
        // SAFETY: the transmutation changes lifetimes only: of the job, of the thread's context
        // that the job receives, and of the tasks that the job returns. A worker uses the pointer
        // and owns such tasks only until it counts down `left`, even after a panic (`Member`). The
        // context lives until the worker ends, which is later. This function returns only when
        // `left` is 0, and it cannot unwind before: locks ignore poisoning, waiting on a condition
        // variable panics only with two different mutexes, and the allocations are small. So no use
        // outlives the borrow. (The job cannot store the reference to the context: the job is
        // `Sync`, and a reference to a context is not `Send`.)
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

    /// Like [`run_tasks`](WorkerPool::run_tasks), but returns at once. [`Work::ended`] reports the
    /// end, and a panic. When the pool is dropped, the drop waits for all submitted work, unless it
    /// happens on a worker.
    ///
    /// # Panics
    /// Panics in a fork of the pool's process.
    pub fn submit(&self, threads: usize, work: Arc<dyn Work>) -> usize {
        self.check_process();
        let wanted = threads.clamp(1, self.workers.len());
        self.shared.add(&Run::new(None, Some(work), wanted), wanted);
        wanted
    }

    fn employs_me(&self) -> bool {
        EMPLOYER.with(Cell::get) == Arc::as_ptr(&self.shared) as usize
    }

    fn check_process(&self) {
        assert!(
            self.process == std::process::id(),
            "this process was forked after the worker threads were started, so it does not have them. Open the index \
             again in the child, or start the child with spawn instead of fork"
        );
    }
}

/// Whether the calling thread is a worker of any pool. A worker must not block.
pub fn is_worker() -> bool {
    EMPLOYER.with(Cell::get) != 0
}

/// A share that a worker has taken. When the member is dropped, even in a panic, the share has
/// ended.
struct Member {
    run: Arc<Run>,
    /// The lifetimes were erased in `WorkerPool::run_tasks`.
    group: Option<Group<'static>>,
    panic: Option<Panic>,
}

impl Member {
    /// Applies `act` to the tasks. If a task panics, all of them are dropped.
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
        // The members are declared after the context, so that tasks are dropped before the context.
        let mut members = Vec::new();
        let served = catch_unwind(AssertUnwindSafe(|| {
            serve(shared, &thread, &parking, me, &mut members);
        }));
        let Err(panic) = served else { return };
        // The panic came from the context, not from a task, so all runs on this worker get it. When
        // the context is dropped, the drop waits for its reads.
        let mut panic = Some(panic);
        for member in &mut members {
            let told = panic
                .take()
                .unwrap_or_else(|| Box::new("a worker thread that several searches share failed"));
            member.panic.get_or_insert(told);
        }
    }
}

fn serve(
    shared: &Shared,
    thread: &Thread,
    parking: &Arc<Parking>,
    me: usize,
    members: &mut Vec<Member>,
) {
    // SAFETY: `work`, which calls this function, drops the members before the context. Only tasks
    // of members have the reference (see `WorkerPool::run_tasks`).
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
            // The member is added first. So the share also ends if the job panics.
            members.push(Member {
                run,
                group: None,
                panic: None,
            });
            let member = members.last_mut().expect("the member was pushed just now");
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
        // The worker's state is set before the callers learn of the end, so that their next request
        // may be assigned to this worker. After submitted work, the state is not set: this worker
        // reports the end itself, which may take long, or wait for a share that would be assigned
        // to this worker.
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
            return; // The threads are in another process.
        }
        {
            let mut state = self.shared.lock();
            state.stop = true;
            for worker in state.workers.values() {
                worker.parking.wake();
            }
        }
        if self.employs_me() {
            return; // A worker cannot wait for itself. It ends after its work.
        }
        for worker in self.workers.drain(..) {
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
