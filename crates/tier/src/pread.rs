//! Reads through `pread` on a small pool of threads, where io_uring is forbidden.
//!
//! ```text
//!   thread A ─┐                      ┌─ worker ─ pread ─┐
//!   thread B ─┴─> queue (one a pool) ┼─ worker ─ pread ─┼─> the asking thread's own answers
//!                                    └─ worker ─ pread ─┘
//! ```
//!
//! Workers start as they are needed, up to [`WORKERS`], and end with the pool.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::home::Home;
use crate::reads::RawRead;
use crate::threads::start;
use crate::uring::{DEPTH, Driver};

/// A device's queue is kept filled by this many blocking reads.
const WORKERS: usize = 32;

struct Job {
    read: RawRead,
    answers: Arc<Answers>,
}

// SAFETY: the job's raw pointer is a buffer that `Driver::push`'s caller keeps valid and untouched until the answer
// has been popped; only the one worker that took the job writes to it.
unsafe impl Send for Job {}

#[derive(Default)]
struct Answers {
    ready: Mutex<Vec<(u32, i32)>>,
    /// Length of `ready`, to be looked at without the lock.
    count: AtomicUsize,
    arrived: Condvar,
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

/// No code panics while it holds these locks; if one did, the queues would still be consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads that read.
pub(crate) struct Pool(Arc<Shared>, Home);

impl Pool {
    pub(crate) fn new() -> Pool {
        Pool(Arc::default(), Home::here())
    }

    fn add(&self, jobs: &mut Vec<Job>) -> io::Result<()> {
        let count = jobs.len();
        let mut state = lock(&self.0.jobs);
        state.queue.extend(jobs.drain(..));
        let missing = state
            .queue
            .len()
            .saturating_sub(state.idle)
            .min(WORKERS - state.workers.len());
        for _ in 0..missing {
            let shared = self.0.clone();
            let name = format!("stratann-read-{}", state.workers.len());
            let named = thread::Builder::new().name(name).stack_size(64 << 10);
            match start(named, move || work(&shared)) {
                Ok(worker) => state.workers.push(worker),
                // Those that there are do the work, only slower.
                Err(_) if !state.workers.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        drop(state);
        if count == 1 {
            self.0.work.notify_one();
        } else {
            self.0.work.notify_all();
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.1.is_here() {
            return; // The threads to be joined live in another process, and one may have held the lock.
        }
        let workers = {
            let mut state = lock(&self.0.jobs);
            state.stop = true;
            std::mem::take(&mut state.workers)
        };
        self.0.work.notify_all();
        for worker in workers {
            // A worker that panicked has nothing left to say.
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
            let mut ready = lock(&job.answers.ready);
            ready.push((job.read.slot, result));
            job.answers.count.store(ready.len(), Ordering::Release);
            drop(ready);
            job.answers.arrived.notify_one();
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
    // SAFETY: `Driver::push`'s caller keeps the file open and the buffer of `len` bytes valid until the answer has
    // been popped, and nobody else touches the buffer meanwhile.
    let got = unsafe { libc::pread(read.fd, read.target.cast(), read.len as usize, offset) };
    if got < 0 {
        -io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO)
    } else {
        got as i32
    }
}

/// One thread's door to the pool.
pub(crate) struct PreadDriver {
    pool: Arc<Pool>,
    answers: Arc<Answers>,
    queue: Vec<Job>,
    /// Answers taken over from `answers` and not yet popped.
    taken: Vec<(u32, i32)>,
    in_flight: usize,
}

impl PreadDriver {
    pub(crate) fn new(pool: Arc<Pool>) -> PreadDriver {
        PreadDriver {
            pool,
            answers: Arc::default(),
            queue: Vec::new(),
            taken: Vec::new(),
            in_flight: 0,
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
        let want = want.min(self.in_flight);
        let deadline = timeout.map(|limit| Instant::now() + limit);
        let mut ready = lock(&self.answers.ready);
        while ready.len() + self.taken.len() < want {
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
        Ok(())
    }

    fn pop(&mut self) -> Option<(u32, i32)> {
        if self.taken.is_empty() && self.answers.count.load(Ordering::Acquire) > 0 {
            let mut ready = lock(&self.answers.ready);
            std::mem::swap(&mut *ready, &mut self.taken);
            self.answers.count.store(0, Ordering::Release);
        }
        let answer = self.taken.pop()?;
        self.in_flight -= 1;
        Some(answer)
    }

    fn stirs(&mut self) -> bool {
        false
    }

    fn queued(&self) -> usize {
        self.queue.len()
    }
}
