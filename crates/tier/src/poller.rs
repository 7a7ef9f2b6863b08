//! A thread that watches sockets with poll(2), for all threads of a pool, if io_uring is forbidden.
//!
//! ```text
//!   thread A ─┐ watch(fd)                         ┌─ thread A's answers
//!   thread B ─┴──────────> list ── poll(2) ── ready ─┴─ thread B's answers
//!                  raises the signal, which poll(2) watches too
//! ```
//!
//! A watch ends with its first report, or when it is withdrawn. Numbers of watches are never
//! reused, so a late report of a withdrawn watch is discarded.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::home::Home;
use crate::parking::{EventSignal, Signal};
use crate::threads::start;

pub(crate) trait Reports: Send + Sync {
    /// Receives the events that poll(2) reports for a slot, or a negated errno.
    fn report(&self, slot: u32, report: i32);
}

struct Watch {
    number: u64,
    fd: RawFd,
    events: i16,
    slot: u32,
    to: Arc<dyn Reports>,
}

#[derive(Default)]
struct State {
    watches: Vec<Watch>,
    next: u64,
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    signal: EventSignal,
}

impl Shared {
    /// No code panics while the lock is held.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Poller {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    home: Home,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Poller> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            signal: EventSignal::new()?,
        });
        let named = Builder::new().name("stratann-poll".to_owned());
        let theirs = shared.clone();
        let thread = start(named.stack_size(64 << 10), move || work(&theirs))?;
        Ok(Poller {
            shared,
            thread: Some(thread),
            home: Home::here(),
        })
    }

    /// `to` gets the only report of the watch. Returns the number of the watch.
    pub(crate) fn watch(&self, (fd, events): (RawFd, i16), slot: u32, to: Arc<dyn Reports>) -> u64 {
        let mut state = self.shared.lock();
        let number = state.next;
        state.next += 1;
        state.watches.push(Watch {
            number,
            fd,
            events,
            slot,
            to,
        });
        drop(state);
        self.shared.signal.raise();
        number
    }

    /// Withdraws a watch; `false` if the watch was reported already.
    pub(crate) fn unwatch(&self, number: u64) -> bool {
        let mut state = self.shared.lock();
        let at = state.watches.iter().position(|w| w.number == number);
        let found = at.map(|at| state.watches.swap_remove(at)).is_some();
        drop(state);
        if found {
            // Without the signal, poll(2) would continue, and keep the socket open.
            self.shared.signal.raise();
        }
        found
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if !self.home.is_here() {
            return; // The thread and the signal are in another process.
        }
        self.shared.lock().stop = true;
        self.shared.signal.raise();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    let mut polled = Vec::new();
    let mut numbers = Vec::new();
    loop {
        polled.clear();
        numbers.clear();
        polled.push(pollfd(shared.signal.fd(), libc::POLLIN));
        {
            let state = shared.lock();
            if state.stop {
                return;
            }
            for watch in &state.watches {
                polled.push(pollfd(watch.fd, watch.events));
                numbers.push(watch.number);
            }
        }
        // SAFETY: `polled` has as many descriptions as its length says, and the kernel writes only
        // their events. If a descriptor was closed meanwhile, the kernel reports an event for it.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
        if ready < 0 {
            let error = io::Error::last_os_error();
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            if errno != libc::EINTR && errno != libc::EAGAIN {
                give_up(shared, errno);
            }
            continue;
        }
        if polled[0].revents != 0 {
            shared.signal.clear();
        }
        for (polled, &number) in polled[1..].iter().zip(&numbers) {
            if polled.revents != 0 {
                let mut state = shared.lock();
                let at = state.watches.iter().position(|w| w.number == number);
                let watch = at.map(|at| state.watches.swap_remove(at));
                drop(state);
                if let Some(watch) = watch {
                    watch.to.report(watch.slot, i32::from(polled.revents));
                }
            }
        }
    }
}

/// Reports an error to all watches. For example, poll(2) fails if the process's limit of
/// descriptors was lowered.
fn give_up(shared: &Shared, errno: i32) {
    let watches = std::mem::take(&mut shared.lock().watches);
    for watch in watches {
        watch.to.report(watch.slot, -errno);
    }
}

fn pollfd(fd: RawFd, events: i16) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}
