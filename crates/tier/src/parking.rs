//! Where a thread sleeps that has nothing to do, and how other threads wake it.
//!
//! ```text
//!   AWAKE    it looks at what is ready before it sleeps: nobody has to wake it
//!   PARKED   nothing of it is in flight: it is unparked, or its first timer ends
//!   WAITING  it waits in the kernel for a socket, nobody knows how long: who wakes it rings the signal of its driver
//! ```
//!
//! A thread that waits in the kernel for reads alone counts as awake: one comes in soon, and to be
//! woken earlier is not worth a system call.

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

/// Ends the wait of a thread in the kernel.
pub(crate) trait Signal: Send + Sync {
    /// Has the wait end that goes on, or else the next one.
    fn raise(&self);
}

/// A signal that can be waited for as a socket can.
pub(crate) struct EventSignal(OwnedFd);

impl EventSignal {
    pub(crate) fn new() -> io::Result<EventSignal> {
        Ok(EventSignal(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// What becomes readable when it rings.
    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Has it rung no more.
    pub(crate) fn clear(&self) {
        // It fails where it has not rung, which is as good.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl Signal for EventSignal {
    fn raise(&self) {
        // It fails where it has rung 2^64 times already, which is as good.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// A thread's sleep.
pub(crate) struct Parking {
    state: AtomicU8,
    owner: thread::Thread,
    /// What wakes it while it waits in the kernel.
    signal: Mutex<Option<Arc<dyn Signal>>>,
}

impl Parking {
    /// That of a thread.
    pub(crate) fn of(owner: thread::Thread) -> Self {
        Self {
            state: AtomicU8::new(AWAKE),
            owner,
            signal: Mutex::new(None),
        }
    }

    /// Sleeps until `awake` says so, or until a time; it is asked again after each
    /// [`wake`](Parking::wake).
    pub(crate) fn park(&self, until: Option<Instant>, awake: impl Fn() -> bool) {
        self.state.store(PARKED, Ordering::SeqCst);
        // Either the waker sees the state after it has changed what `awake` looks at, or the change
        // is seen here: all of it is SeqCst, or under one lock.
        while !awake() {
            match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(left) if left.is_zero() => break,
                Some(left) => thread::park_timeout(left),
            }
        }
        self.state.store(AWAKE, Ordering::SeqCst);
    }

    /// Calls `wait` unless `awake` says that there is something to do; `signal` ends it when the
    /// thread is woken.
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

    /// Has the owner look again, if it sleeps.
    pub(crate) fn wake(&self) {
        match self.state.load(Ordering::SeqCst) {
            AWAKE => {}
            PARKED => self.owner.unpark(),
            _ => self.call(),
        }
    }

    /// Wakes the owner from a wait in the kernel: one who wakes it is enough.
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
