//! A tier that wraps another tier and delays its reads, as a distant or busy device does.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::error::TierError;
use crate::executor::{Sleep, Thread};
use crate::reactor::Reactor;
use crate::tier::{Completion, ReadQueue, Request, Tier};
use crate::timers::Precision;

/// A tier whose reads complete only after a latency, while its thread sleeps or serves other reads.
#[derive(Clone, Debug)]
pub struct Slow {
    inner: Arc<dyn Tier>,
    latency: Duration,
    reads: Arc<AtomicU64>,
}

impl Slow {
    /// Wraps a tier.
    pub fn new(inner: Arc<dyn Tier>, latency: Duration) -> Slow {
        Slow {
            inner,
            latency,
            reads: Arc::default(),
        }
    }

    /// The number of reads submitted so far, over all clones.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }
}

impl Tier for Slow {
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
        Ok(Box::new(SlowQueue {
            inner: self.inner.queue(thread)?,
            tier: self.clone(),
            reactor: thread.reactor().clone(),
            due: VecDeque::new(),
            sleep: None,
        }))
    }
}

struct SlowQueue {
    inner: Box<dyn ReadQueue>,
    tier: Slow,
    reactor: Rc<Reactor>,
    due: VecDeque<Instant>,
    sleep: Option<Sleep>,
}

impl SlowQueue {
    fn is_due(&self) -> bool {
        self.due.front().is_some_and(|&due| due <= Instant::now())
    }
}

impl ReadQueue for SlowQueue {
    fn submit(&mut self, request: Request) -> Result<(), TierError> {
        self.inner.submit(request)?;
        self.tier.reads.fetch_add(1, Ordering::SeqCst);
        self.due.push_back(Instant::now() + self.tier.latency);
        Ok(())
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn try_next(&mut self) -> Option<Completion> {
        if !self.is_due() {
            return None;
        }
        let completion = self.inner.try_next()?;
        self.due.pop_front();
        self.sleep = None;
        Some(completion)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        if let Some(&due) = self.due.front()
            && due > Instant::now()
        {
            let reactor = &self.reactor;
            let sleep = self
                .sleep
                .get_or_insert_with(|| Sleep::until(reactor, due, Precision::Plain));
            if Pin::new(sleep).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        self.sleep = None;
        let polled = self.inner.poll_next(cx);
        if polled.is_ready() {
            self.due.pop_front();
        }
        polled
    }

    fn reset(&mut self) {
        self.inner.reset();
        self.due.clear();
        self.sleep = None;
    }
}
