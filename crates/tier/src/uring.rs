//! Reads through io_uring, and waits for sockets: one ring a thread, used by that thread only.
//!
//! The flags matter more than anything else. `SINGLE_ISSUER` and `DEFER_TASKRUN` let the kernel
//! post completions only when this thread enters it, in one batch and without interrupting its
//! computing; `TASKRUN_FLAG` makes it say, in shared memory, that there is something to enter for.
//! Older kernels refuse them with `EINVAL` and get fewer.
//!
//! Registered files and registered buffers were tried with `examples/randread` and left out: over a
//! dozen alternating runs each their processor time a read could not be told from that without
//! them, and buffers cost locked memory.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{IoUring, Probe, opcode, squeue, types};

use crate::parking::{EventSignal, Signal};
use crate::reads::RawRead;

/// Entries of the submission queue; when it is full it is handed to the kernel.
const ENTRIES: u32 = 256;
/// Entries of the completion queue: reads that may be at the device at once.
pub(crate) const DEPTH: usize = 1024;

/// What comes in: a slot, and what became of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Of a read: the bytes that it brought, or a negated errno.
    Read(u32, i32),
    /// Of a socket that was watched: the events that it is ready for, as poll(2) gives them, or a
    /// negated errno.
    Socket(u32, i32),
}

/// How reads of a thread are carried out, and its sockets watched. Used by one thread only.
pub(crate) trait Driver {
    /// Queues a read. Returns false if no more can be in flight; nothing has been queued then.
    ///
    /// # Safety
    /// The read's file and buffer must stay valid, and the buffer untouched, until
    /// [`pop`](Driver::pop) has returned its slot or the process ends.
    unsafe fn push(&mut self, read: RawRead) -> io::Result<bool>;
    /// Starts what is queued, without waiting, and lets completions come in that can.
    fn start(&mut self) -> io::Result<()>;
    /// Starts what is queued and waits until `want` completions can be popped or the time is over.
    fn wait(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()>;
    /// Starts what is queued and stays awake until a completion can be popped, which it says, or
    /// the time is over.
    fn spin(&mut self, limit: Duration) -> io::Result<bool> {
        let _ = limit;
        Ok(false)
    }
    /// Takes a completion that has come in.
    fn pop(&mut self) -> Option<Event>;
    /// True if [`start`](Driver::start) would let completions come in.
    fn stirs(&mut self) -> bool;
    /// What is queued and not started.
    fn queued(&self) -> usize;
    /// Has a descriptor watched for events of poll(2), until [`pop`](Driver::pop) has returned its
    /// slot, once. It is not touched, whatever it is by then.
    fn watch(&mut self, slot: u32, fd: RawFd, events: i16) -> io::Result<()>;
    /// Watches a slot no more: `pop` returns it soon, if it has not yet.
    fn unwatch(&mut self, slot: u32) -> io::Result<()>;
    /// What ends the next [`wait`](Driver::wait), from any thread.
    fn signal(&mut self) -> io::Result<Arc<dyn Signal>>;
}

/// What an entry of the ring is about: the upper half of its user data; the lower one is a slot.
const READ: u64 = 0;
const SOCKET: u64 = 1 << 32;
/// That a socket is watched no more; nobody waits for it.
const UNWATCH: u64 = 2 << 32;
const BELL: u64 = 3 << 32;
/// An entry that does nothing.
const NOTHING: u64 = 4 << 32;

/// An io_uring.
pub(crate) struct Ring {
    ring: IoUring,
    queued: usize,
    in_flight: usize,
    /// Descriptors that the kernel watches, the signal's included.
    watched: usize,
    /// Entries for which the kernel had no room.
    later: VecDeque<squeue::Entry>,
    signal: Option<Arc<EventSignal>>,
    /// Whether the signal is watched.
    hears: bool,
}

impl Ring {
    pub(crate) fn new() -> io::Result<Ring> {
        let attempts: [fn(&mut io_uring::Builder); 3] = [
            |b| {
                b.setup_single_issuer()
                    .setup_defer_taskrun()
                    .setup_coop_taskrun()
                    .setup_taskrun_flag();
            },
            |b| {
                b.setup_coop_taskrun().setup_taskrun_flag();
            },
            |_| {},
        ];
        let mut last = io::Error::from_raw_os_error(libc::EINVAL);
        for flags in attempts {
            let mut builder = IoUring::builder();
            builder.setup_cqsize(DEPTH as u32).dontfork();
            flags(&mut builder);
            match builder.build(ENTRIES) {
                Ok(ring) => return Self::with(ring),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    fn with(ring: IoUring) -> io::Result<Ring> {
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Read::CODE,
            opcode::PollAdd::CODE,
            opcode::AsyncCancel::CODE,
        ];
        if !needed.into_iter().all(|code| probe.is_supported(code)) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let mut ring = Ring {
            ring,
            queued: 0,
            in_flight: 0,
            watched: 0,
            later: VecDeque::new(),
            signal: None,
            hears: false,
        };
        ring.try_out()?;
        Ok(ring)
    }

    /// Has the kernel carry out an entry that does nothing. A sandbox may let a ring be made and
    /// refuse to have it entered: who reads through such a ring would be told that the file cannot
    /// be read.
    fn try_out(&mut self) -> io::Result<()> {
        self.add(opcode::Nop::new().build().user_data(NOTHING))?;
        while self.ring.completion().next().is_none() {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
                _ => {}
            }
        }
        self.queued = 0;
        Ok(())
    }

    /// Queues an entry that leads to no memory, now or as soon as there is room.
    fn add(&mut self, entry: squeue::Entry) -> io::Result<()> {
        if self.ring.submission().is_full() {
            self.start()?;
        }
        self.later.push_back(entry);
        self.add_later();
        Ok(())
    }

    /// Queues what waits for room, as far as there is some.
    fn add_later(&mut self) {
        while let Some(entry) = self.later.front() {
            // SAFETY: only `add` fills the queue, with entries that name descriptors and slots, and
            // no memory.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                return;
            }
            self.later.pop_front();
            self.queued += 1;
        }
    }
}

/// An enter that was interrupted, or for which the kernel has no room now, is simply done again
/// later.
fn tolerate(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME) => Ok(()),
            _ => Err(error),
        },
    }
}

impl Driver for Ring {
    unsafe fn push(&mut self, read: RawRead) -> io::Result<bool> {
        if self.in_flight == DEPTH {
            return Ok(false);
        }
        let entry = opcode::Read::new(types::Fd(read.fd), read.target, read.len)
            .offset(read.offset)
            .build()
            .user_data(READ | u64::from(read.slot));
        // SAFETY: the caller keeps file and buffer valid until the slot has been popped.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.start()?;
            // SAFETY: as above.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                return Ok(false);
            }
        }
        self.queued += 1;
        self.in_flight += 1;
        Ok(true)
    }

    fn start(&mut self) -> io::Result<()> {
        self.add_later();
        tolerate(self.ring.submit())?;
        self.queued = self.ring.submission().len();
        Ok(())
    }

    fn wait(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        self.add_later();
        let want = want.min(self.in_flight + self.watched);
        match timeout {
            Some(limit) if self.ring.params().is_feature_ext_arg() => {
                let limit = types::Timespec::from(limit);
                let args = types::SubmitArgs::new().timespec(&limit);
                tolerate(self.ring.submitter().submit_with_args(want, &args))?;
            }
            Some(limit) => {
                // Before Linux 5.11 the kernel knows no timeout here.
                tolerate(self.ring.submit())?;
                std::thread::sleep(limit.min(Duration::from_micros(50)));
            }
            None => tolerate(self.ring.submit_and_wait(want))?,
        }
        self.queued = self.ring.submission().len();
        Ok(())
    }

    fn spin(&mut self, limit: Duration) -> io::Result<bool> {
        if self.queued > 0 {
            self.start()?;
        }
        let start = Instant::now();
        loop {
            // The kernel says in shared memory that it has something, so that looking costs no
            // system call.
            if self.stirs() {
                self.start()?;
            }
            if !self.ring.completion().is_empty() {
                return Ok(true);
            }
            if start.elapsed() > limit {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    fn pop(&mut self) -> Option<Event> {
        loop {
            let entry = self.ring.completion().next()?;
            let (slot, result) = (entry.user_data() as u32, entry.result());
            match entry.user_data() & !u64::from(u32::MAX) {
                READ => {
                    self.in_flight -= 1;
                    return Some(Event::Read(slot, result));
                }
                SOCKET => {
                    self.watched -= 1;
                    return Some(Event::Socket(slot, result));
                }
                BELL => {
                    self.watched -= 1;
                    self.hears = false;
                    self.signal.iter().for_each(|signal| signal.clear());
                }
                // Of what is watched no more the entry itself tells.
                _ => {}
            }
        }
    }

    fn stirs(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    fn queued(&self) -> usize {
        self.queued + self.later.len()
    }

    fn watch(&mut self, slot: u32, fd: RawFd, events: i16) -> io::Result<()> {
        let entry = opcode::PollAdd::new(types::Fd(fd), events as u32).build();
        self.add(entry.user_data(SOCKET | u64::from(slot)))?;
        self.watched += 1;
        Ok(())
    }

    fn unwatch(&mut self, slot: u32) -> io::Result<()> {
        // Where POLL_REMOVE finds that the socket stirs, it leaves it to itself, which may go on to
        // wait; this ends it.
        let entry = opcode::AsyncCancel::new(SOCKET | u64::from(slot)).build();
        self.add(entry.user_data(UNWATCH))
    }

    fn signal(&mut self) -> io::Result<Arc<dyn Signal>> {
        let signal = match &self.signal {
            Some(signal) => signal.clone(),
            None => self.signal.insert(Arc::new(EventSignal::new()?)).clone(),
        };
        if !self.hears {
            let entry = opcode::PollAdd::new(types::Fd(signal.fd()), libc::POLLIN as u32).build();
            self.add(entry.user_data(BELL))?;
            self.watched += 1;
            self.hears = true;
        }
        Ok(signal)
    }
}
