//! Reads through io_uring: one ring a thread, used by that thread only.
//!
//! The flags matter more than anything else. `SINGLE_ISSUER` and `DEFER_TASKRUN` let the kernel post completions
//! only when this thread enters it, in one batch and without interrupting its computing; `TASKRUN_FLAG` makes it say,
//! in shared memory, that there is something to enter for. Older kernels refuse them with `EINVAL` and get fewer.
//!
//! Registered files and registered buffers were tried with `examples/randread` and left out: over a dozen alternating
//! runs each their processor time a read could not be told from that without them, and buffers cost locked memory.

use std::io;
use std::time::{Duration, Instant};

use io_uring::{IoUring, Probe, opcode, types};

use crate::reads::RawRead;

/// Entries of the submission queue; when it is full it is handed to the kernel.
const ENTRIES: u32 = 256;
/// Entries of the completion queue: reads that may be at the device at once.
pub(crate) const DEPTH: usize = 1024;

/// How reads of a thread are carried out. Used by one thread only.
pub(crate) trait Driver {
    /// Queues a read. Returns false if no more can be in flight; nothing has been queued then.
    ///
    /// # Safety
    /// The read's file and buffer must stay valid, and the buffer untouched, until [`pop`](Driver::pop) has returned
    /// its slot or the process ends.
    unsafe fn push(&mut self, read: RawRead) -> io::Result<bool>;
    /// Starts what is queued, without waiting, and lets completions come in that can.
    fn start(&mut self) -> io::Result<()>;
    /// Starts what is queued and waits until `want` completions can be popped or the time is over.
    fn wait(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()>;
    /// Starts what is queued and stays awake until a completion can be popped, which it says, or the time is over.
    fn spin(&mut self, limit: Duration) -> io::Result<bool> {
        let _ = limit;
        Ok(false)
    }
    /// Takes a completion that has come in: its slot, and the bytes read or a negated errno.
    fn pop(&mut self) -> Option<(u32, i32)>;
    /// True if [`start`](Driver::start) would let completions come in.
    fn stirs(&mut self) -> bool;
    /// Reads queued and not started.
    fn queued(&self) -> usize;
}

/// An io_uring.
pub(crate) struct Ring {
    ring: IoUring,
    queued: usize,
    in_flight: usize,
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
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        Ok(Ring {
            ring,
            queued: 0,
            in_flight: 0,
        })
    }
}

/// An enter that was interrupted, or for which the kernel has no room now, is simply done again later.
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
            .user_data(u64::from(read.slot));
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
        tolerate(self.ring.submit())?;
        self.queued = self.ring.submission().len();
        Ok(())
    }

    fn wait(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        let want = want.min(self.in_flight);
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
            // The kernel says in shared memory that it has something, so that looking costs no system call.
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

    fn pop(&mut self) -> Option<(u32, i32)> {
        let entry = self.ring.completion().next()?;
        self.in_flight -= 1;
        Some((entry.user_data() as u32, entry.result()))
    }

    fn stirs(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    fn queued(&self) -> usize {
        self.queued
    }
}
