//! What ends a submitted search before it is done: its deadline, or whoever submitted it.
//!
//! Each task of such a search is polled through [`Stop::unless_stopped`], which asks first. It has a timer for the deadline, and is
//! woken when the search is cancelled; then it drops the task, and with it all that the task holds. Nothing is asked per hop.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Poll, Waker};
use std::time::Instant;

use parking_lot::Mutex;
use stratann_tier::Thread;

use crate::Error;
use crate::progress::Progress;

const GOES_ON: u8 = 0;
const CANCELLED: u8 = 1;
const LATE: u8 = 2;

/// Whether a search is to end, and why.
#[derive(Debug)]
pub(super) struct Stop {
    reason: AtomicU8,
    deadline: Option<Instant>,
    /// Of its tasks, until it is to end.
    wakers: Mutex<Vec<Waker>>,
}

impl Stop {
    pub(super) fn new(deadline: Option<Instant>) -> Self {
        Self {
            reason: AtomicU8::new(GOES_ON),
            deadline,
            wakers: Mutex::default(),
        }
    }

    /// Ends the search: its tasks see it at once, or when the read comes in that their thread waits for.
    pub(super) fn cancel(&self) {
        self.stop(CANCELLED);
    }

    /// Why the search is to end; `None` if it goes on. Looks at the clock if there is a deadline.
    pub(super) fn reason(&self) -> Option<Error> {
        if self.deadline.is_some_and(|due| due <= Instant::now()) {
            self.stop(LATE);
        }
        self.known()
    }

    /// As [`reason`](Stop::reason), without a look at the clock.
    fn known(&self) -> Option<Error> {
        match self.reason.load(Ordering::SeqCst) {
            GOES_ON => None,
            LATE => Some(Error::DeadlineExceeded),
            _ => Some(Error::Interrupted),
        }
    }

    /// The first reason counts.
    fn stop(&self, reason: u8) {
        let ended =
            self.reason
                .compare_exchange(GOES_ON, reason, Ordering::SeqCst, Ordering::SeqCst);
        if ended.is_ok() {
            let wakers = std::mem::take(&mut *self.wakers.lock());
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// What `work` gives, or why it was dropped before it gave anything.
    pub(super) async fn unless_stopped<T>(
        &self,
        thread: &Thread,
        mut work: impl Future<Output = T> + Unpin,
    ) -> Result<T, Error> {
        let mut alarm = self.deadline.map(|due| thread.sleep_until(due));
        let mut known = false;
        poll_fn(|cx| {
            if !known {
                // Before it asks: either it sees that it is to end, or whoever ends it sees the waker.
                self.wakers.lock().push(cx.waker().clone());
                known = true;
            }
            if let Some(alarm) = &mut alarm
                && Pin::new(alarm).poll(cx).is_ready()
            {
                self.stop(LATE);
            }
            if let Some(error) = self.known() {
                return Poll::Ready(Err(error));
            }
            Pin::new(&mut work).poll(cx).map(Ok)
        })
        .await
    }
}

/// A search asks after each query, as any does that its caller may interrupt.
impl Progress for Stop {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}

    fn interrupted(&self) -> bool {
        self.reason().is_some()
    }
}
