//! The sleep of an idle thread, and how other threads wake it.
//!
//! ```text
//!   AWAKE    the thread checks its ready tasks before it sleeps, and needs no signal
//!   PARKED   the thread has nothing in flight: it sleeps until it is unparked or a timer ends
//!   WAITING  the thread waits in the kernel for a socket: the signal of its driver wakes it
//! ```
//!
//! A thread that waits in the kernel only for reads counts as awake: a read completes soon.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

const AWAKE: u8 = 0;
const PARKED: u8 = 1;
const WAITING: u8 = 2;

pub(crate) trait Signal: Send + Sync {
    /// Ends the current wait, or else the next one.
    fn raise(&self);
}

pub(crate) struct EventSignal(OwnedFd);

impl EventSignal {
    pub(crate) fn new() -> io::Result<EventSignal> {
        Ok(EventSignal(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl Signal for EventSignal {
    fn raise(&self) {
        // If the counter is full, the signal is raised already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

pub(crate) struct Parking {
    state: AtomicU8,
    owner: thread::Thread,
    signal: Mutex<Option<Arc<dyn Signal>>>,
}

impl Parking {
    pub(crate) fn of(owner: thread::Thread) -> Self {
        Self {
            state: AtomicU8::new(AWAKE),
            owner,
            signal: Mutex::new(None),
        }
    }

    /// Sleeps until `awake` returns true, or until `until`. Calls `awake` again after each
    /// [`wake`](Parking::wake).
    pub(crate) fn park(&self, until: Option<Instant>, awake: impl Fn() -> bool) {
        self.state.store(PARKED, Ordering::SeqCst);
        // All accesses are SeqCst or under one lock. So the waker sees this thread's new state, or
        // `awake` sees the waker's change.
        while !awake() {
            match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(left) if left.is_zero() => break,
                Some(left) => thread::park_timeout(left),
            }
        }
        self.state.store(AWAKE, Ordering::SeqCst);
    }

    /// Waits in the kernel, by `wait`. A [`wake`](Parking::wake) ends this wait by `signal`.
    pub(crate) fn wait(
        &self,
        signal: &Arc<dyn Signal>,
        awake: impl Fn() -> bool,
        wait: impl FnOnce(),
    ) {
        *self.signal() = Some(signal.clone());
        self.state.store(WAITING, Ordering::SeqCst);
        if !awake() {
            wait();
        }
        self.state.store(AWAKE, Ordering::SeqCst);
    }

    /// Makes the owner call `awake` again, if it sleeps.
    pub(crate) fn wake(&self) {
        match self.state.load(Ordering::SeqCst) {
            AWAKE => {}
            PARKED => self.owner.unpark(),
            _ => self.call(),
        }
    }

    #[cold]
    fn call(&self) {
        let called =
            self.state
                .compare_exchange(WAITING, AWAKE, Ordering::SeqCst, Ordering::SeqCst);
        match called {
            Ok(_) => {
                let signal = self.signal().clone();
                if let Some(signal) = signal {
                    signal.raise();
                }
            }
            Err(PARKED) => self.owner.unpark(),
            Err(_) => {}
        }
    }

    fn signal(&self) -> std::sync::MutexGuard<'_, Option<Arc<dyn Signal>>> {
        self.signal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
