//! The reactor of a thread connects queues to the device. The processor time of a read depends on
//! system calls, so this module decides when to make them. In each round of the executor, one
//! system call starts a batch of reads and collects completions.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::backend::{Backend, IoMode};
use crate::buffer::BufferPool;
use crate::error::TierError;
use crate::home::Home;
use crate::parking::{Parking, Signal};
use crate::pread::{Pool, PreadDriver};
use crate::reads::{Inbox, Outcome, RawRead, Reads};
use crate::remote::Links;
use crate::sockets::Waits;
use crate::tier::Request;
use crate::timers::Timers;
use crate::uring::{Driver, Event, Ring};

/// If this many reads are at the device, a hint to start reads (`flush`) is ignored, unless the
/// thread has one task, or [`BATCH`] reads are queued.
const BUSY: usize = 16;
const BATCH: usize = 8;
/// With at least this number of tasks, a thread waits for several completions at once.
const MANY_TASKS: usize = 8;

/// The next completion of a single task arrives sooner than a sleeping thread wakes. Staying awake
/// makes the search of photo-sift-100k 1.4 times as fast.
const AWAKE: Duration = Duration::from_micros(100);

pub(crate) struct Io {
    backend: Mutex<Backend>,
    pool: OnceLock<Arc<Pool>>,
    pub(crate) forbid_ring: bool,
    /// Whether every thread has a core, and so may stay awake.
    patient: bool,
}

impl Io {
    /// If the kernel gives no ring, `Auto` uses the thread pool, and `Uring` fails.
    pub(crate) fn new(
        mode: IoMode,
        forbid_ring: bool,
        threads: usize,
    ) -> Result<Arc<Io>, TierError> {
        let backend = match mode.or_environment()? {
            IoMode::Pread => Backend::Pread {
                reason: "chosen by the caller".to_owned(),
            },
            mode => match ring(forbid_ring) {
                Ok(_) => Backend::Uring,
                Err(error) if mode == IoMode::Uring => {
                    return Err(TierError::Unsupported {
                        what: "io_uring".to_owned(),
                        reason: format!("{}. Use `auto` or `pread` instead", refusal(&error)),
                    });
                }
                Err(error) => fallback(&error),
            },
        };
        Ok(Arc::new(Io {
            backend: Mutex::new(backend),
            pool: OnceLock::new(),
            forbid_ring,
            patient: std::thread::available_parallelism().is_ok_and(|cores| threads <= cores.get()),
        }))
    }

    pub(crate) fn backend(&self) -> Backend {
        self.backend
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn driver(&self) -> Box<dyn Driver> {
        if self.backend() == Backend::Uring {
            match ring(self.forbid_ring) {
                Ok(ring) => return Box::new(ring),
                // Memory or descriptors have run out since the pool began.
                Err(error) => self.fall_back(&error),
            }
        }
        Box::new(PreadDriver::new(
            self.pool.get_or_init(|| Arc::new(Pool::new())).clone(),
        ))
    }

    fn fall_back(&self, error: &io::Error) {
        *self.backend.lock().unwrap_or_else(PoisonError::into_inner) = fallback(error);
    }
}

fn ring(forbid: bool) -> io::Result<Ring> {
    if forbid {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    } else {
        Ring::new()
    }
}

fn refusal(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            format!(
                "the kernel forbids io_uring ({error}), by a container's seccomp profile or by sysctl kernel.io_uring_disabled"
            )
        }
        Some(libc::ENOSYS | libc::EOPNOTSUPP) => format!("this kernel has no io_uring ({error})"),
        Some(libc::ENOMEM) => {
            format!(
                "the limit of locked memory is too low for io_uring ({error}); raise `ulimit -l`"
            )
        }
        _ => error.to_string(),
    }
}

fn fallback(error: &io::Error) -> Backend {
    static SAID: OnceLock<()> = OnceLock::new();
    let reason = refusal(error);
    SAID.get_or_init(|| {
        tracing::warn!("io_uring is not available: {reason}. A pool of threads reads with pread instead, which takes more processor time");
    });
    Backend::Pread { reason }
}

pub(crate) struct Reactor {
    io: Arc<Io>,
    driver: RefCell<Option<Box<dyn Driver>>>,
    reads: RefCell<Reads>,
    backlog: RefCell<VecDeque<RawRead>>,
    pub(crate) buffers: BufferPool,
    pub(crate) waits: RefCell<Waits>,
    pub(crate) links: RefCell<Links>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) tasks: Cell<usize>,
    /// The number of completions that the task that waited last needs before it continues.
    pub(crate) needed: Cell<usize>,
    home: Home,
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Reactor({:?}, {} reads in flight)",
            self.io.backend(),
            self.in_flight()
        )
    }
}

impl Reactor {
    pub(crate) fn new(io: Arc<Io>) -> Rc<Reactor> {
        Rc::new(Reactor {
            io,
            home: Home::here(),
            driver: RefCell::new(None),
            reads: RefCell::default(),
            backlog: RefCell::default(),
            buffers: BufferPool::default(),
            waits: RefCell::default(),
            links: RefCell::default(),
            timers: RefCell::default(),
            tasks: Cell::new(0),
            needed: Cell::new(1),
        })
    }

    /// Whether this process created the reactor; false after a fork.
    pub(crate) fn is_here(&self) -> bool {
        self.home.is_here()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.reads.borrow().in_flight()
    }

    /// Queues a read, whose completion goes to `inbox`. Fails if the system refuses memory for it.
    pub(crate) fn submit(&self, inbox: &Rc<Inbox>, request: Request) -> Result<(), TierError> {
        let block = self.buffers.take(request.len as usize)?;
        let read = self.reads.borrow_mut().add(inbox, request, block);
        self.push(read);
        Ok(())
    }

    fn push(&self, read: RawRead) {
        let mut slot = self.driver.borrow_mut();
        let driver = slot.get_or_insert_with(|| self.io.driver());
        // SAFETY: the slot in `reads` owns the buffer, and through its inbox the open file, until
        // the driver has reported the slot. `abandon` leaks the buffers of a failed driver, and
        // `drop` waits for all other reads.
        match unsafe { driver.push(read) } {
            Ok(true) => {}
            Ok(false) => self.backlog.borrow_mut().push_back(read),
            Err(error) => {
                drop(slot);
                self.broken(&error);
            }
        }
    }

    #[cold]
    fn broken(&self, error: &io::Error) {
        self.backlog.borrow_mut().clear();
        // The driver is dropped first, so that it starts no read into a leaked buffer.
        *self.driver.borrow_mut() = None;
        self.io.fall_back(error);
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Reads::abandon(&self.reads, errno);
        Waits::fail(&self.waits, errno);
    }

    fn with_driver(&self, act: impl FnOnce(&mut dyn Driver) -> io::Result<()>) {
        let result = match &mut *self.driver.borrow_mut() {
            Some(driver) => act(driver.as_mut()),
            None => Ok(()),
        };
        if let Err(error) = result {
            self.broken(&error);
        }
    }

    pub(crate) fn watch(&self, slot: u32, fd: RawFd, events: i16) -> io::Result<()> {
        let mut driver = self.driver.borrow_mut();
        let driver = driver.get_or_insert_with(|| self.io.driver());
        driver.watch(slot, fd, events)
    }

    pub(crate) fn unwatch(&self, slot: u32) {
        self.with_driver(|driver| driver.unwatch(slot));
    }

    /// Delivers completions that have arrived, without a system call.
    pub(crate) fn reap(&self) {
        loop {
            // The borrow ends before the delivery, which calls foreign code: wakers.
            let popped = match &mut *self.driver.borrow_mut() {
                Some(driver) => driver.pop(),
                None => None,
            };
            match popped {
                None => break,
                Some(Event::Socket(slot, result)) => Waits::report(&self.waits, slot, result),
                Some(Event::Read(slot, result)) => {
                    if let Outcome::Again(read) = Reads::report(&self.reads, slot, result) {
                        self.push(read);
                    }
                    let waiting = self.backlog.borrow_mut().pop_front();
                    if let Some(read) = waiting {
                        self.push(read);
                    }
                }
            }
        }
    }

    /// Like `reap`, but calls the kernel if it signals that it has more completions to post.
    pub(crate) fn look(&self) {
        self.reap();
        let stirs = self
            .driver
            .borrow_mut()
            .as_mut()
            .is_some_and(|driver| driver.stirs());
        if stirs {
            self.with_driver(|driver| driver.start());
            self.reap();
        }
    }

    pub(crate) fn flush(&self) {
        let worth = match &*self.driver.borrow() {
            Some(driver) => {
                let queued = driver.queued();
                queued > 0
                    && (queued >= BATCH
                        || self.tasks.get() <= 1
                        || self.in_flight().saturating_sub(queued) < BUSY)
            }
            None => false,
        };
        if worth {
            self.with_driver(|driver| driver.start());
        }
    }

    pub(crate) fn turn(&self) {
        self.reap();
        let worth = match &mut *self.driver.borrow_mut() {
            Some(driver) => driver.queued() > 0 || driver.stirs(),
            None => false,
        };
        if worth {
            self.with_driver(|driver| driver.start());
            self.reap();
        }
        self.expire();
    }

    /// Sleeps until a completion arrives, a timer ends, or the thread is woken and `awake` returns
    /// true. If the thread waits only for reads, no thread wakes it, because a read completes soon.
    pub(crate) fn wait(&self, parking: &Parking, awake: impl Fn() -> bool) {
        if self.stay_awake(&awake) {
            return;
        }
        let due = self.timers.borrow().alarm();
        let (reads, sockets) = (self.in_flight(), self.waits.borrow().len());
        if reads + sockets == 0 {
            parking.park(due, awake);
            if let Some(due) = due
                && let late = Instant::now().saturating_duration_since(due)
                && !late.is_zero()
            {
                self.timers.borrow_mut().woke(late);
            }
        } else {
            let timeout = due.map(|due| due.saturating_duration_since(Instant::now()));
            let want = if sockets > 0 { 1 } else { self.want(reads) };
            let near = sockets == 0 && want == 1 && timeout.is_none_or(|timeout| timeout > AWAKE);
            let stay = self.io.patient && self.tasks.get() <= 1 && near;
            let wait = || {
                self.with_driver(|driver| {
                    if stay && driver.spin(AWAKE)? {
                        return Ok(());
                    }
                    driver.wait(want, timeout)
                });
            };
            match self.signal(sockets) {
                Some(signal) => parking.wait(&signal, awake, wait),
                None => wait(),
            }
            self.reap();
        }
        self.expire();
    }

    /// A socket may never become ready, so a signal must be able to end the wait.
    fn signal(&self, sockets: usize) -> Option<Arc<dyn Signal>> {
        let mut signal = None;
        if sockets > 0 {
            self.with_driver(|driver| {
                signal = Some(driver.signal()?);
                Ok(())
            });
        }
        signal
    }

    /// Waits until the kernel has released sockets for which no task waits any more.
    pub(crate) fn settle(&self) {
        while self.waits.borrow().given_up() > 0 {
            self.with_driver(|driver| driver.wait(1, None));
            self.reap();
        }
    }

    /// A single task waits for as many completions as it needs. Waiting for several completions
    /// saves system calls. With few tasks, that would leave the device's queue empty. With many
    /// tasks, waiting for an eighth of the reads in flight does no harm.
    fn want(&self, in_flight: usize) -> usize {
        if self.tasks.get() <= 1 {
            self.needed.get().min(in_flight)
        } else if self.tasks.get() < MANY_TASKS {
            1
        } else {
            (in_flight / 8).clamp(1, 8)
        }
    }

    /// If an exact timer ends too soon for a sleep (`timers.rs`), stays awake until it ends.
    fn stay_awake(&self, awake: impl Fn() -> bool) -> bool {
        let Some(due) = self.timers.borrow().exact_due() else {
            return false;
        };
        if due.saturating_duration_since(Instant::now()) > self.timers.borrow().early() {
            return false;
        }
        // The queued reads must not wait for the timer.
        let queued = self
            .driver
            .borrow()
            .as_ref()
            .map_or(0, |driver| driver.queued());
        if queued > 0 {
            self.with_driver(|driver| driver.start());
        }
        loop {
            self.expire();
            self.look();
            if awake() || Instant::now() >= due {
                break;
            }
            std::hint::spin_loop();
        }
        self.expire();
        true
    }

    fn expire(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now = Instant::now();
        loop {
            // The borrow ends before a task is woken, which calls foreign code.
            let ended = self.timers.borrow_mut().ended(now);
            let Some(waker) = ended else { break };
            waker.wake();
        }
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        if !self.is_here() {
            // The completions go to the parent process, which shares no buffers with this process.
            return;
        }
        while self.in_flight() > 0 {
            if self.driver.borrow().is_none() {
                break;
            }
            self.with_driver(|driver| driver.wait(1, None::<Duration>));
            self.reap();
        }
    }
}
