//! Changes that are under way, and who waits for their end: `close` waits for those that have begun, and those that come meanwhile wait for it.
//!
//! A thread that changes something runs Python meanwhile: callbacks of progress, and handlers of signals. What these change goes in at once, whoever
//! waits, and they cannot close: both would wait for themselves.

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stratann::Progress;

/// How often who waits looks whether it is to wait no longer.
pub const LOOK: Duration = Duration::from_millis(20);

/// Knows the changes that are under way, and whether somebody closes: one at a time.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The threads of the changes that are under way, one for each.
    under_way: Vec<ThreadId>,
    closing: bool,
}

/// The right to change something, until it is dropped.
#[derive(Debug)]
pub struct Pass {
    gate: Arc<Gate>,
    thread: ThreadId,
}

/// The right to close: nobody changes anything until it is dropped.
#[derive(Debug)]
pub struct Closing(Arc<Gate>);

impl Gate {
    /// Waits [`LOOK`] at most while somebody closes; `None` if that was not enough.
    pub fn enter(self: &Arc<Self>) -> Option<Pass> {
        let thread = std::thread::current().id();
        let mut state = self.state.lock();
        if state.closing && !state.under_way.contains(&thread) {
            self.changed.wait_for(&mut state, LOOK);
            if state.closing {
                return None;
            }
        }
        state.under_way.push(thread);
        Some(Pass {
            gate: self.clone(),
            thread,
        })
    }

    /// As [`close`](Gate::close), where nobody changes anything and nobody closes; `None` elsewhere.
    pub fn close_if_idle(self: &Arc<Self>) -> Option<Closing> {
        let mut state = self.state.lock();
        if state.closing || !state.under_way.is_empty() {
            return None;
        }
        state.closing = true;
        Some(Closing(self.clone()))
    }

    /// Whether this thread changes something just now, which it is called from.
    pub fn is_under_way_here(&self) -> bool {
        let thread = std::thread::current().id();
        self.state.lock().under_way.contains(&thread)
    }

    /// Lets no more changes in, and waits for those that are. Nobody else may be closing.
    ///
    /// # Errors
    /// `progress` ended the wait: everything goes on.
    pub fn close(self: &Arc<Self>, progress: &dyn Progress) -> Result<Closing, stratann::Error> {
        let closing = Closing(self.clone());
        let mut state = self.state.lock();
        state.closing = true;
        while !state.under_way.is_empty() {
            self.changed.wait_for(&mut state, LOOK);
            if progress.interrupted() {
                // What is dropped next takes the lock.
                drop(state);
                return Err(stratann::Error::Interrupted);
            }
        }
        drop(state);
        Ok(closing)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        let at = state
            .under_way
            .iter()
            .position(|&thread| thread == self.thread);
        at.map(|at| state.under_way.swap_remove(at));
        self.gate.changed.notify_all();
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.state.lock().closing = false;
        self.0.changed.notify_all();
    }
}
