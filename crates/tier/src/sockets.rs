//! Waits for sockets, in addition to reads and timers.
//!
//! ```text
//!   thread.readable(&socket) ── slot ──> driver: POLL_ADD of the ring, or the poller of the pool
//!                            <── woken ── its only report: the result as of poll(2), or an error
//! ```
//!
//! A slot belongs to one wait until the driver has reported the slot. If a future is dropped, it
//! gives up its slot. The driver then stops watching the socket, and soon reports the slot. So no
//! report arrives at a reused slot.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::error::TierError;
use crate::executor::Thread;
use crate::reactor::Reactor;

impl Thread {
    /// Waits until a socket, or another descriptor for poll(2), has bytes to read, a connection to
    /// accept, or has failed or ended. Any number of tasks may wait for one socket.
    ///
    /// # Errors
    /// [`TierError::Socket`] if the system cannot watch the socket.
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use std::os::unix::net::UnixStream;
    /// use stratann_tier::{IoMode, Thread};
    ///
    /// let (mut here, mut there) = UnixStream::pair()?;
    /// let thread = Thread::local(IoMode::Auto).unwrap();
    /// there.write_all(b"hello")?;
    /// let mut bytes = [0; 5];
    /// thread.block_on(thread.readable(&here)).unwrap();
    /// here.read_exact(&mut bytes)?;
    /// # assert_eq!(&bytes, b"hello");
    /// # std::io::Result::Ok(())
    /// ```
    pub fn readable<'fd>(&self, socket: &'fd impl AsFd) -> SocketReady<'fd> {
        self.when(socket.as_fd(), libc::POLLIN)
    }

    /// Waits until a socket is connected or has space for bytes to send.
    ///
    /// # Errors
    /// Fails as the future of [`readable`](Thread::readable) does.
    pub fn writable<'fd>(&self, socket: &'fd impl AsFd) -> SocketReady<'fd> {
        self.when(socket.as_fd(), libc::POLLOUT)
    }

    fn when<'fd>(&self, fd: BorrowedFd<'fd>, events: i16) -> SocketReady<'fd> {
        SocketReady::new(self.reactor(), fd, events)
    }
}

impl<'fd> SocketReady<'fd> {
    pub(crate) fn new(reactor: &Rc<Reactor>, fd: BorrowedFd<'fd>, events: i16) -> Self {
        SocketReady {
            reactor: reactor.clone(),
            fd,
            events,
            slot: None,
        }
    }
}

/// The future of [`Thread::readable`] and [`Thread::writable`]. Dropping it ends the watch.
#[derive(Debug)]
pub struct SocketReady<'fd> {
    reactor: Rc<Reactor>,
    fd: BorrowedFd<'fd>,
    events: i16,
    slot: Option<u32>,
}

impl SocketReady<'_> {
    fn failed(&self, source: io::Error) -> TierError {
        TierError::Socket {
            place: format!("socket {}", self.fd.as_raw_fd()),
            what: match self.events {
                libc::POLLIN => "readable",
                _ => "writable",
            },
            source,
        }
    }
}

impl Future for SocketReady<'_> {
    type Output = Result<(), TierError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(slot) = self.slot else {
            let slot = self.reactor.waits.borrow_mut().add(cx.waker());
            let (fd, events) = (self.fd.as_raw_fd(), self.events);
            if let Err(error) = self.reactor.watch(slot, fd, events) {
                self.reactor.waits.borrow_mut().remove(slot);
                return Poll::Ready(Err(self.failed(error)));
            }
            self.slot = Some(slot);
            return Poll::Pending;
        };
        let Some(report) = self.reactor.waits.borrow_mut().take(slot, cx.waker()) else {
            return Poll::Pending;
        };
        self.slot = None;
        Poll::Ready(match report {
            ..0 => Err(self.failed(io::Error::from_raw_os_error(-report))),
            // With `POLLNVAL`, poll(2) reports a closed descriptor.
            _ if report & i32::from(libc::POLLNVAL) != 0 => {
                Err(self.failed(io::Error::from_raw_os_error(libc::EBADF)))
            }
            _ => Ok(()),
        })
    }
}

impl Drop for SocketReady<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot
            && self.reactor.is_here()
            && self.reactor.waits.borrow_mut().give_up(slot)
        {
            self.reactor.unwatch(slot);
        }
    }
}

#[derive(Debug)]
enum Slot {
    Free,
    Waiting(Waker),
    /// The events as poll(2) gives them, or a negated errno.
    Reported(i32),
    GivenUp,
}

#[derive(Debug, Default)]
pub(crate) struct Waits {
    slots: Vec<Slot>,
    free: Vec<u32>,
    unreported: usize,
    given_up: usize,
}

impl Waits {
    pub(crate) fn len(&self) -> usize {
        self.unreported
    }

    pub(crate) fn given_up(&self) -> usize {
        self.given_up
    }

    fn add(&mut self, waker: &Waker) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize] = Slot::Waiting(waker.clone());
        self.unreported += 1;
        slot
    }

    fn remove(&mut self, slot: u32) {
        self.unreported -= 1;
        self.release(slot);
    }

    fn release(&mut self, slot: u32) {
        self.slots[slot as usize] = Slot::Free;
        self.free.push(slot);
    }

    /// The report of a slot. If there is no report yet, its arrival will wake `waker`.
    fn take(&mut self, slot: u32, waker: &Waker) -> Option<i32> {
        match &mut self.slots[slot as usize] {
            Slot::Waiting(known) => {
                known.clone_from(waker);
                None
            }
            Slot::Reported(report) => {
                let report = *report;
                self.release(slot);
                Some(report)
            }
            Slot::Free | Slot::GivenUp => {
                unreachable!("a wait keeps its slot until it takes the report")
            }
        }
    }

    fn give_up(&mut self, slot: u32) -> bool {
        match self.slots[slot as usize] {
            Slot::Waiting(_) => {
                self.slots[slot as usize] = Slot::GivenUp;
                self.given_up += 1;
                true
            }
            _ => {
                self.release(slot);
                false
            }
        }
    }

    pub(crate) fn report(this: &RefCell<Waits>, slot: u32, report: i32) {
        let mut waits = this.borrow_mut();
        waits.unreported -= 1;
        let was = std::mem::replace(&mut waits.slots[slot as usize], Slot::Reported(report));
        if let Slot::GivenUp = was {
            waits.given_up -= 1;
            waits.release(slot);
        }
        drop(waits);
        if let Slot::Waiting(waker) = was {
            waker.wake();
        }
    }

    pub(crate) fn fail(this: &RefCell<Waits>, errno: i32) {
        let slots = this.borrow().slots.len() as u32;
        for slot in 0..slots {
            let waits = matches!(
                this.borrow().slots[slot as usize],
                Slot::Waiting(_) | Slot::GivenUp
            );
            if waits {
                Self::report(this, slot, -errno);
            }
        }
    }
}
