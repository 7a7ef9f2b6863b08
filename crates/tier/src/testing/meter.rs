//! A tier that wraps another tier and counts its reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::error::TierError;
use crate::executor::Thread;
use crate::tier::{Completion, ReadQueue, Request, Tier};

/// The counts of a [`Meter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The number of reads submitted.
    pub reads: u64,
    /// The number of bytes requested.
    pub bytes: u64,
    /// The number of completions with an error.
    pub errors: u64,
    /// The sum of the times in flight, if the meter is [`timed`](Meter::timed).
    pub in_flight: Duration,
}

#[derive(Debug, Default)]
struct Counters {
    reads: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    nanos: AtomicU64,
}

/// Counts the reads of a tier.
#[derive(Clone, Debug)]
pub struct Meter {
    inner: Arc<dyn Tier>,
    counters: Arc<Counters>,
    timed: bool,
}

impl Meter {
    /// Creates a meter that counts reads and bytes.
    pub fn new(inner: Arc<dyn Tier>) -> Meter {
        Meter {
            inner,
            counters: Arc::default(),
            timed: false,
        }
    }

    /// Creates a meter that also counts the time in flight.
    pub fn timed(inner: Arc<dyn Tier>) -> Meter {
        Meter {
            timed: true,
            ..Meter::new(inner)
        }
    }

    /// The counts so far, over all clones of this meter.
    pub fn snapshot(&self) -> Reading {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        Reading {
            reads: load(&counters.reads),
            bytes: load(&counters.bytes),
            errors: load(&counters.errors),
            in_flight: Duration::from_nanos(load(&counters.nanos)),
        }
    }

    /// Resets the counts, and returns their values before the reset.
    pub fn reset(&self) -> Reading {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        let counters = &self.counters;
        Reading {
            reads: take(&counters.reads),
            bytes: take(&counters.bytes),
            errors: take(&counters.errors),
            in_flight: Duration::from_nanos(take(&counters.nanos)),
        }
    }
}

impl Tier for Meter {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn granularity(&self) -> u32 {
        self.inner.granularity()
    }

    fn alignment(&self) -> u32 {
        self.inner.alignment()
    }

    fn reopen(&self) -> Result<(), TierError> {
        self.inner.reopen()
    }

    fn queue(&self, thread: &Thread) -> Result<Box<dyn ReadQueue>, TierError> {
        let inner = self.inner.queue(thread)?;
        let since = self.timed.then(Instant::now);
        Ok(Box::new(MeterQueue {
            inner,
            counters: self.counters.clone(),
            since,
        }))
    }
}

struct MeterQueue {
    inner: Box<dyn ReadQueue>,
    counters: Arc<Counters>,
    since: Option<Instant>,
}

impl MeterQueue {
    /// Adds the time since the last call once for each read in flight. So the sum needs no table of
    /// start times.
    fn tick(&mut self, in_flight: usize) {
        if let Some(since) = &mut self.since {
            let now = Instant::now();
            let nanos = now.duration_since(*since).as_nanos() as u64 * in_flight as u64;
            *since = now;
            self.counters.nanos.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    fn taken(&mut self, completion: &Completion) {
        self.tick(self.inner.in_flight() + 1);
        if completion.result.is_err() {
            self.counters.errors.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl ReadQueue for MeterQueue {
    fn submit(&mut self, request: Request) -> Result<(), TierError> {
        self.tick(self.inner.in_flight());
        self.inner.submit(request)?;
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.counters
            .bytes
            .fetch_add(u64::from(request.len), Ordering::Relaxed);
        Ok(())
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn need(&mut self, completions: usize) {
        self.inner.need(completions);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn try_next(&mut self) -> Option<Completion> {
        let completion = self.inner.try_next()?;
        self.taken(&completion);
        Some(completion)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        let polled = self.inner.poll_next(cx);
        if let Poll::Ready(completion) = &polled {
            self.taken(completion);
        }
        polled
    }

    fn reset(&mut self) {
        self.tick(self.inner.in_flight());
        self.inner.reset();
    }
}
