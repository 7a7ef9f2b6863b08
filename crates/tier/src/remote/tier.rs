//! A file on a memory server as a tier.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::client::RemoteFile;
use super::link::{Letters, Link};
use super::wire::MOST_READ;
use crate::error::TierError;
use crate::executor::{Sleep, Thread};
use crate::memory::LINE;
use crate::reactor::Reactor;
use crate::tier::{Completion, ReadQueue, Request, Tier, check};
use crate::timers::Precision;

/// An open file in the memory of another process.
#[derive(Clone)]
pub struct RemoteTier {
    file: RemoteFile,
    place: String,
}

impl RemoteTier {
    /// Creates a tier from an open file.
    pub fn new(file: RemoteFile) -> RemoteTier {
        let place = file.place();
        RemoteTier { file, place }
    }
}

impl fmt::Debug for RemoteTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteTier({}, {} bytes)", self.place, self.file.len())
    }
}

impl Tier for RemoteTier {
    fn name(&self) -> &str {
        &self.place
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn granularity(&self) -> u32 {
        LINE as u32
    }

    fn alignment(&self) -> u32 {
        1
    }

    fn queue(&self, thread: &Thread) -> Result<Box<dyn ReadQueue>, TierError> {
        let letters = Rc::new(Letters::new(self.file.name.as_str().into()));
        let reactor = thread.reactor().clone();
        Ok(Box::new(RemoteQueue {
            link: Link::of(&reactor, self.file.client.server()),
            tier: self.clone(),
            reactor,
            letters,
            sleep: None,
        }))
    }
}

struct RemoteQueue {
    tier: RemoteTier,
    link: Rc<Link>,
    reactor: Rc<Reactor>,
    letters: Rc<Letters>,
    sleep: Option<Sleep>,
}

impl ReadQueue for RemoteQueue {
    fn submit(&mut self, request: Request) -> Result<(), TierError> {
        check(&self.tier.place, self.tier.file.len(), 1, request)?;
        if request.len > MOST_READ {
            return Err(TierError::Unsupported {
                what: format!("{}: a read of {} bytes", self.tier.place, request.len),
                reason: format!("one request to a memory server reads at most {MOST_READ} bytes"),
            });
        }
        if self.letters.in_flight.get() == 0 {
            self.link = Link::of(&self.reactor, self.tier.file.client.server());
        }
        let block = self.reactor.buffers.take(request.len as usize)?;
        self.link
            .submit(&self.letters, self.tier.file.id, request, block);
        Ok(())
    }

    fn flush(&mut self) {
        if self.letters.in_flight.get() > 0 {
            self.link.pump();
        }
    }

    fn in_flight(&self) -> usize {
        self.letters.in_flight.get()
    }

    fn try_next(&mut self) -> Option<Completion> {
        let completion = self.letters.take();
        if completion.is_some() || self.in_flight() == 0 {
            return completion;
        }
        self.link.pump();
        self.letters.take()
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        loop {
            let mut completion = self.letters.take();
            if completion.is_none() && self.in_flight() > 0 {
                self.link.pump_waiting();
                completion = self.letters.take();
            }
            if let Some(completion) = completion {
                self.sleep = None;
                return Poll::Ready(completion);
            }
            assert!(
                self.in_flight() > 0,
                "poll_next on a queue with no read in flight would wait for ever"
            );
            let again = self.link.wait(&self.reactor, &self.letters, cx);
            let reactor = &self.reactor;
            let sleep = self
                .sleep
                .get_or_insert_with(|| Sleep::until(reactor, again, Precision::Plain));
            if Pin::new(sleep).poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.sleep = None;
        }
    }

    fn reset(&mut self) {
        if self.in_flight() > 0 {
            self.link.leave(&self.letters);
        }
        self.letters.forget();
        self.sleep = None;
    }
}

impl Drop for RemoteQueue {
    fn drop(&mut self) {
        self.letters.forget();
        self.link.leave(&self.letters);
    }
}
