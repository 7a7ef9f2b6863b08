//! Stops a submitted search before its end, at its deadline or by a cancellation.
//!
//! After a stop, the future of [`Stop::unless_stopped`] drops its task, together with reads and
//! buffers. A timer or a cancellation wakes this future.

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

#[derive(Debug)]
pub(super) struct Stop {
    reason: AtomicU8,
    deadline: Option<Instant>,
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

    /// Ends each task at once. If the thread of a task waits for a read, ends the task when this
    /// read completes.
    pub(super) fn cancel(&self) {
        self.stop(CANCELLED);
    }

    /// Reads the clock if there is a deadline.
    pub(super) fn reason(&self) -> Option<Error> {
        if self.deadline.is_some_and(|due| due <= Instant::now()) {
            self.stop(LATE);
        }
        self.known()
    }

    fn known(&self) -> Option<Error> {
        match self.reason.load(Ordering::SeqCst) {
            GOES_ON => None,
            LATE => Some(Error::DeadlineExceeded),
            _ => Some(Error::Interrupted),
        }
    }

    /// If the search was stopped before, the earlier reason counts.
    fn stop(&self, reason: u8) {
        let ended =
            self.reason
                .compare_exchange(GOES_ON, reason, Ordering::SeqCst, Ordering::SeqCst);
        if ended.is_ok() {
            let wakers = std::mem::take(&mut *self.wakers.lock());
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Runs `work`. Returns its output, or the reason for which `work` was dropped before its end.
    pub(super) async fn unless_stopped<T>(
        &self,
        thread: &Thread,
        mut work: impl Future<Output = T> + Unpin,
    ) -> Result<T, Error> {
        let mut alarm = self.deadline.map(|due| thread.sleep_until(due));
        let mut known = false;
        poll_fn(|cx| {
            if !known {
                // The waker is registered before the check, so no concurrent stop is missed.
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

/// Reports a stop as an interruption. A search checks for interruption after each query.
impl Progress for Stop {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}

    fn interrupted(&self) -> bool {
        self.reason().is_some()
    }
}
