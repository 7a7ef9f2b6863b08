//! Reads by `pread` on a small thread pool, used if io_uring is forbidden.
//!
//! ```text
//!   thread A ─┐                      ┌─ worker ─ pread ─┐
//!   thread B ─┴─> queue (one a pool) ┼─ worker ─ pread ─┼─> the asking thread's own answers
//!                                    └─ worker ─ pread ─┘
//! ```
//!
//! Workers start on demand, up to [`WORKERS`], and end with the pool, as does the
//! [`poller`](crate::poller).

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::home::Home;
use crate::parking::Signal;
use crate::poller::{Poller, Reports};
use crate::reads::RawRead;
use crate::threads::start;
use crate::uring::{DEPTH, Driver, Event};

/// This number of blocking reads keeps a device busy.
const WORKERS: usize = 32;

struct Job {
    read: RawRead,
    answers: Arc<Answers>,
}

// SAFETY: the job's raw pointer is a buffer that the caller of `Driver::push` keeps valid and
// untouched until the answer has been popped. Only the one worker that took the job writes to it.
unsafe impl Send for Job {}

#[derive(Default)]
struct Answers {
    ready: Mutex<Ready>,
    count: AtomicUsize,
    arrived: Condvar,
}

#[derive(Default)]
struct Ready {
    events: Vec<Event>,
    /// Whether the signal was raised. If so, a thread that waits for answers must check again.
    rung: bool,
}

impl Answers {
    fn add(&self, event: Event) {
        let mut ready = lock(&self.ready);
        ready.events.push(event);
        self.count.store(ready.events.len(), Ordering::Release);
        drop(ready);
        self.arrived.notify_one();
    }
}

impl Reports for Answers {
    fn report(&self, slot: u32, report: i32) {
        self.add(Event::Socket(slot, report));
    }
}

impl Signal for Answers {
    fn raise(&self) {
        lock(&self.ready).rung = true;
        self.arrived.notify_one();
    }
}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    idle: usize,
    workers: Vec<JoinHandle<()>>,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    work: Condvar,
}

/// No code panics while it has one of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Pool {
    shared: Arc<Shared>,
    poller: Mutex<Option<Arc<Poller>>>,
    home: Home,
}

impl Pool {
    pub(crate) fn new() -> Pool {
        Pool {
            shared: Arc::default(),
            poller: Mutex::new(None),
            home: Home::here(),
        }
    }

    fn poller(&self) -> io::Result<Arc<Poller>> {
        let mut poller = lock(&self.poller);
        match &*poller {
            Some(poller) => Ok(poller.clone()),
            None => Ok(poller.insert(Arc::new(Poller::new()?)).clone()),
        }
    }

    fn add(&self, jobs: &mut Vec<Job>) -> io::Result<()> {
        let count = jobs.len();
        let mut state = lock(&self.shared.jobs);
        state.queue.extend(jobs.drain(..));
        let missing = state
            .queue
            .len()
            .saturating_sub(state.idle)
            .min(WORKERS - state.workers.len());
        for _ in 0..missing {
            let shared = self.shared.clone();
            let name = format!("stratann-read-{}", state.workers.len());
            let named = thread::Builder::new().name(name).stack_size(64 << 10);
            match start(named, move || work(&shared)) {
                Ok(worker) => state.workers.push(worker),
                // The existing workers perform the reads, only more slowly.
                Err(_) if !state.workers.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        drop(state);
        if count == 1 {
            self.shared.work.notify_one();
        } else {
            self.shared.work.notify_all();
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // At the fork, a thread of the parent process may have had the lock, which then stays
            // locked.
            return;
        }
        let workers = {
            let mut state = lock(&self.shared.jobs);
            state.stop = true;
            std::mem::take(&mut state.workers)
        };
        self.shared.work.notify_all();
        for worker in workers {
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared) {
    let mut state = lock(&shared.jobs);
    loop {
        if let Some(job) = state.queue.pop_front() {
            drop(state);
            let result = read(&job.read);
            job.answers.add(Event::Read(job.read.slot, result));
            state = lock(&shared.jobs);
        } else if state.stop {
            return;
        } else {
            state.idle += 1;
            state = shared
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

fn read(read: &RawRead) -> i32 {
    let Ok(offset) = libc::off_t::try_from(read.offset) else {
        return -libc::EINVAL;
    };
    // SAFETY: the caller of `Driver::push` keeps the file open, and the buffer of `len` bytes
    // valid, until the answer has been popped. No other code touches the buffer meanwhile.
    let got = unsafe { libc::pread(read.fd, read.target.cast(), read.len as usize, offset) };
    if got < 0 {
        -io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO)
    } else {
        got as i32
    }
}

pub(crate) struct PreadDriver {
    pool: Arc<Pool>,
    answers: Arc<Answers>,
    queue: Vec<Job>,
    taken: Vec<Event>,
    in_flight: usize,
    poller: Option<Arc<Poller>>,
    watched: Vec<(u32, u64)>,
}

impl PreadDriver {
    pub(crate) fn new(pool: Arc<Pool>) -> PreadDriver {
        PreadDriver {
            pool,
            answers: Arc::default(),
            queue: Vec::new(),
            taken: Vec::new(),
            in_flight: 0,
            poller: None,
            watched: Vec::new(),
        }
    }
}

impl Driver for PreadDriver {
    unsafe fn push(&mut self, read: RawRead) -> io::Result<bool> {
        if self.in_flight == DEPTH {
            return Ok(false);
        }
        self.queue.push(Job {
            read,
            answers: self.answers.clone(),
        });
        self.in_flight += 1;
        Ok(true)
    }

    fn start(&mut self) -> io::Result<()> {
        if self.queue.is_empty() {
            Ok(())
        } else {
            self.pool.add(&mut self.queue)
        }
    }

    fn wait(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        self.start()?;
        let want = want.min(self.in_flight + self.watched.len());
        let deadline = timeout.map(|limit| Instant::now() + limit);
        let mut ready = lock(&self.answers.ready);
        while ready.events.len() + self.taken.len() < want && !ready.rung {
            match deadline {
                None => {
                    ready = self
                        .answers
                        .arrived
                        .wait(ready)
                        .unwrap_or_else(PoisonError::into_inner)
                }
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    ready = self
                        .answers
                        .arrived
                        .wait_timeout(ready, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
            }
        }
        ready.rung = false;
        Ok(())
    }

    fn pop(&mut self) -> Option<Event> {
        if self.taken.is_empty() && self.answers.count.load(Ordering::Acquire) > 0 {
            let mut ready = lock(&self.answers.ready);
            std::mem::swap(&mut ready.events, &mut self.taken);
            self.answers.count.store(0, Ordering::Release);
        }
        let answer = self.taken.pop()?;
        match answer {
            Event::Read(..) => self.in_flight -= 1,
            Event::Socket(slot, _) => self.watched.retain(|&(watched, _)| watched != slot),
        }
        Some(answer)
    }

    fn stirs(&mut self) -> bool {
        false
    }

    fn queued(&self) -> usize {
        self.queue.len()
    }

    fn watch(&mut self, slot: u32, fd: RawFd, events: i16) -> io::Result<()> {
        let poller = match &self.poller {
            Some(poller) => poller,
            None => self.poller.insert(self.pool.poller()?),
        };
        let number = poller.watch((fd, events), slot, self.answers.clone());
        self.watched.push((slot, number));
        Ok(())
    }

    fn unwatch(&mut self, slot: u32) -> io::Result<()> {
        let watched = self.watched.iter().find(|&&(watched, _)| watched == slot);
        if let (Some(poller), Some(&(_, number))) = (&self.poller, watched)
            && poller.unwatch(number)
        {
            self.taken.push(Event::Socket(slot, -libc::ECANCELED));
        }
        Ok(())
    }

    fn signal(&mut self) -> io::Result<Arc<dyn Signal>> {
        Ok(self.answers.clone())
    }
}

impl Drop for PreadDriver {
    fn drop(&mut self) {
        // If a future was leaked, the poller still watches its socket.
        if let Some(poller) = self.poller.take().filter(|_| self.pool.home.is_here()) {
            for (_, number) in self.watched.drain(..) {
                poller.unwatch(number);
            }
        }
    }
}
