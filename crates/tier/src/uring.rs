//! Reads through io_uring, and waits for sockets, with a ring for each thread.
//!
//! With `SINGLE_ISSUER` and `DEFER_TASKRUN`, the kernel posts completions only when this thread
//! calls the kernel, in one batch. With `TASKRUN_FLAG`, the kernel signals pending completions in
//! shared memory. If a kernel refuses these flags with `EINVAL`, the ring gets fewer flags.
//! Registered files and buffers did not measurably change the processor time of a read
//! (`examples/randread`).

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{IoUring, Probe, opcode, squeue, types};

use crate::parking::{EventSignal, Signal};
use crate::reads::RawRead;

const ENTRIES: u32 = 256;
/// The entries of the completion queue, and so the most reads in flight.
pub(crate) const DEPTH: usize = 1024;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A slot, and the number of bytes or a negated errno.
    Read(u32, i32),
    /// A slot, and the events as poll(2) reports them, or a negated errno.
    Socket(u32, i32),
}

/// Performs the reads of a thread and watches its sockets.
pub(crate) trait Driver {
    /// Queues a read; `false` if the limit of reads in flight is reached.
    ///
    /// # Safety
    /// Until [`pop`](Driver::pop) has returned the slot of the read, or the process ends, `fd` must
    /// stay open. `target` must stay valid for writes of `len` bytes, and no other code may use
    /// these bytes. If `push` returns `false`, the read is not queued, and the conditions end.
    unsafe fn push(&mut self, read: RawRead) -> io::Result<bool>;
    /// Starts queued entries without waiting, and collects available completions.
    fn start(&mut self) -> io::Result<()>;
    /// Like `start`, but waits until `want` completions can be popped, or the timeout ends.
    fn wait(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()>;
    /// Like `start`, but stays awake until a completion can be popped (true), or `limit` ends.
    fn spin(&mut self, limit: Duration) -> io::Result<bool> {
        let _ = limit;
        Ok(false)
    }
    fn pop(&mut self) -> Option<Event>;
    /// Whether [`start`](Driver::start) would collect completions.
    fn stirs(&mut self) -> bool;
    fn queued(&self) -> usize;
    /// Watches a descriptor until [`pop`](Driver::pop) returns the slot. The watch reads and writes
    /// nothing, so the descriptor's number may be reused.
    fn watch(&mut self, slot: u32, fd: RawFd, events: i16) -> io::Result<()>;
    /// Stops watching a slot. If [`pop`](Driver::pop) has not returned the slot yet, it soon does.
    fn unwatch(&mut self, slot: u32) -> io::Result<()>;
    /// A signal that any thread can raise, to end the next [`wait`](Driver::wait).
    fn signal(&mut self) -> io::Result<Arc<dyn Signal>>;
}

/// The kind of a ring entry: the upper half of its user data. The lower half is a slot.
const READ: u64 = 0;
const SOCKET: u64 = 1 << 32;
const UNWATCH: u64 = 2 << 32;
const BELL: u64 = 3 << 32;
const NOTHING: u64 = 4 << 32;

pub(crate) struct Ring {
    ring: IoUring,
    queued: usize,
    in_flight: usize,
    watched: usize,
    later: VecDeque<squeue::Entry>,
    signal: Option<Arc<EventSignal>>,
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

    /// Tries the ring with an entry that has no effect. A sandbox may allow a ring but refuse its
    /// use, and reads would then fail as if the file were unreadable.
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

    fn add(&mut self, entry: squeue::Entry) -> io::Result<()> {
        if self.ring.submission().is_full() {
            self.start()?;
        }
        self.later.push_back(entry);
        self.add_later();
        Ok(())
    }

    fn add_later(&mut self) {
        while let Some(entry) = self.later.front() {
            // SAFETY: only `add` fills this queue. The entries have descriptors and slots, but no
            // pointers.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                return;
            }
            self.later.pop_front();
            self.queued += 1;
        }
    }
}

/// After these errors the reads stay queued or in flight for a later call.
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
        // SAFETY: the caller keeps the file and the buffer valid until the slot has been popped.
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
                // Before Linux 5.11, the system call takes no timeout.
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
            // The kernel announces completions in shared memory, so the check needs no system call.
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
                // If a watch is cancelled, the watch's own entry reports it.
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
        // If `POLL_REMOVE` finds an event of the watch, it leaves the watch in place, perhaps
        // forever.
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
