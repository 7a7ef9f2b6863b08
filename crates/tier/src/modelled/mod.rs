//! Memory that answers with the delay of a slower device, for experiments on any machine.
//!
//! ```text
//!   submit ── the tier under it ── bytes, held back ──┐
//!      └── Device::book ── due ── exact timer ────────┴──> completion, in the order of submission
//! ```
//!
//! [`DeviceModel`] determines the duration of a read ([`device`](self::device) has the sources).
//! All reads of this process on one [`Device`] share its bandwidth. A completion is never early. It
//! is late only if the underlying tier is slower than the model, or the thread is busy.
//!
//! **The cost of waiting.** A thread without other tasks sleeps until at most 50 µs before the next
//! completion, and then stays awake (`timers.rs`). So on the model of an SSD (75 µs), it sleeps for
//! a part of each read. On the models of RDMA, CXL and NVM (0.3 to 2.8 µs), it stays awake.
//!
//! Only reads through a [`ReadQueue`] are delayed, not builds, loads into memory and writes.

mod device;
mod volume;

pub use device::{Cost, Device, DeviceKind, DeviceModel};
pub use volume::ModelledVolume;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::error::TierError;
use crate::executor::{Sleep, Thread};
use crate::reactor::Reactor;
use crate::tier::{Completion, ReadQueue, Request, Tier};
use crate::timers::Precision;

/// A tier whose reads complete at the times at which they would complete on a device.
#[derive(Clone, Debug)]
pub struct ModelledTier {
    inner: Arc<dyn Tier>,
    device: Device,
}

impl ModelledTier {
    /// Makes a tier answer like a device. The tier should be faster than the device.
    pub fn new(inner: Arc<dyn Tier>, device: Device) -> ModelledTier {
        ModelledTier { inner, device }
    }
}

impl Tier for ModelledTier {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn granularity(&self) -> u32 {
        self.device.model().block.max(self.inner.alignment())
    }

    fn alignment(&self) -> u32 {
        self.inner.alignment()
    }

    fn reopen(&self) -> Result<(), TierError> {
        self.inner.reopen()
    }

    fn queue(&self, thread: &Thread) -> Result<Box<dyn ReadQueue>, TierError> {
        Ok(Box::new(ModelledQueue {
            inner: self.inner.queue(thread)?,
            device: self.device.clone(),
            reactor: thread.reactor().clone(),
            waiting: VecDeque::new(),
            first: 0,
            sleep: None,
        }))
    }
}

struct Waiting {
    tag: u64,
    due: Instant,
    answer: Option<Completion>,
}

struct ModelledQueue {
    /// Tags in the underlying queue count from the first read of this queue.
    inner: Box<dyn ReadQueue>,
    device: Device,
    reactor: Rc<Reactor>,
    /// In the order of submission, and so of their due times.
    waiting: VecDeque<Waiting>,
    first: u64,
    sleep: Option<Sleep>,
}

impl ModelledQueue {
    fn keep(&mut self, completion: Completion) {
        let at = completion.tag.wrapping_sub(self.first) as usize;
        if let Some(waiting) = self.waiting.get_mut(at) {
            waiting.answer = Some(completion);
        }
    }

    fn pull(&mut self) {
        while self.inner.in_flight() > 0 {
            let Some(completion) = self.inner.try_next() else {
                return;
            };
            self.keep(completion);
        }
    }

    fn take(&mut self) -> Option<Completion> {
        let front = self.waiting.front()?;
        if front.answer.is_none() || front.due > Instant::now() {
            return None;
        }
        let front = self.waiting.pop_front()?;
        self.first = self.first.wrapping_add(1);
        self.sleep = None;
        let answer = front.answer?;
        Some(Completion {
            tag: front.tag,
            result: answer.result,
        })
    }
}

impl ReadQueue for ModelledQueue {
    fn submit(&mut self, request: Request) -> Result<(), TierError> {
        let number = self.first.wrapping_add(self.waiting.len() as u64);
        self.inner.submit(Request {
            tag: number,
            ..request
        })?;
        let due = self
            .device
            .book(Instant::now(), request.offset, request.len);
        self.waiting.push_back(Waiting {
            tag: request.tag,
            due,
            answer: None,
        });
        Ok(())
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    fn try_next(&mut self) -> Option<Completion> {
        self.pull();
        self.take()
    }

    fn need(&mut self, completions: usize) {
        self.inner.need(completions);
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        self.pull();
        if let Some(completion) = self.take() {
            return Poll::Ready(completion);
        }
        let front = self.waiting.front();
        let front = front.expect("poll_next on a queue with no read in flight would wait for ever");
        if front.due > Instant::now() {
            let (reactor, due) = (&self.reactor, front.due);
            let sleep = self
                .sleep
                .get_or_insert_with(|| Sleep::until(reactor, due, Precision::Exact));
            if Pin::new(sleep).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        self.sleep = None;
        loop {
            if let Some(completion) = self.take() {
                return Poll::Ready(completion);
            }
            match self.inner.poll_next(cx) {
                Poll::Ready(completion) => self.keep(completion),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn reset(&mut self) {
        self.inner.reset();
        self.first = self.first.wrapping_add(self.waiting.len() as u64);
        self.waiting.clear();
        self.sleep = None;
    }
}
