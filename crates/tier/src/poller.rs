//! A thread that watches sockets with poll(2), where io_uring is forbidden: one for all threads of
//! a pool.
//!
//! ```text
//!   thread A ─┐ watch(fd)                         ┌─ thread A's answers
//!   thread B ─┴──────────> list ── poll(2) ── ready ─┴─ thread B's answers
//!                  rings the signal, which is watched with the others
//! ```
//!
//! A watch ends with its first report, or when it is taken back. What poll(2) says of one that was
//! taken back meanwhile is discarded: watches are told apart by numbers that are never used again.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::home::Home;
use crate::parking::{EventSignal, Signal};
use crate::threads::start;

/// Where the reports of a thread's sockets go.
pub(crate) trait Reports: Send + Sync {
    /// Takes what poll(2) says of a slot, or a negated errno.
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
    /// Nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread, which ends with this.
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

    /// Watches a descriptor, whose one report goes to `to`. Gives the watch's number.
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

    /// Takes a watch back; false if it was reported.
    pub(crate) fn unwatch(&self, number: u64) -> bool {
        let mut state = self.shared.lock();
        let at = state.watches.iter().position(|w| w.number == number);
        let found = at.map(|at| state.watches.swap_remove(at)).is_some();
        drop(state);
        if found {
            // Else poll(2) would keep the socket open.
            self.shared.signal.raise();
        }
        found
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if !self.home.is_here() {
            return; // The thread lives in another process, and so does the signal.
        }
        self.shared.lock().stop = true;
        self.shared.signal.raise();
        if let Some(thread) = self.thread.take() {
            // One that panicked has nothing left to say.
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
        // SAFETY: `polled` is a vector of that many descriptions, which the kernel writes the
        // events of; a descriptor that was closed meanwhile is an event of its own.
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

/// poll(2) refuses what is watched, for example because the process may have fewer descriptors:
/// whoever waits hears of it.
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
