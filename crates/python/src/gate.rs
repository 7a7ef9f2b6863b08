//! `close` waits for the changes in progress, and new changes wait for a `close`.
//!
//! Callbacks and signal handlers run on a thread that makes a change. Their changes begin at once,
//! even while a `close` waits. Callbacks and handlers cannot call `close`, which would wait for
//! their own change.

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stratann::Progress;

pub const LOOK: Duration = Duration::from_millis(20);

/// The changes in progress, and whether a thread is closing the index.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The threads of the changes in progress, one entry for each change.
    under_way: Vec<ThreadId>,
    closing: bool,
}

/// The right to make a change, until this value is dropped.
#[derive(Debug)]
pub struct Pass {
    gate: Arc<Gate>,
    thread: ThreadId,
}

/// The right to close the index. Until this value is dropped, no change begins.
#[derive(Debug)]
pub struct Closing(Arc<Gate>);

impl Gate {
    /// Begins a change. Waits at most [`LOOK`] for a thread that is closing the index. `None` if
    /// that thread is still closing it.
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

    /// Like [`close`](Gate::close), but returns `None` if a change or a close is in progress.
    pub fn close_if_idle(self: &Arc<Self>) -> Option<Closing> {
        let mut state = self.state.lock();
        if state.closing || !state.under_way.is_empty() {
            return None;
        }
        state.closing = true;
        Some(Closing(self.clone()))
    }

    /// Whether this call comes from a change of this thread, for example from its callback.
    pub fn is_under_way_here(&self) -> bool {
        let thread = std::thread::current().id();
        self.state.lock().under_way.contains(&thread)
    }

    /// Makes later changes wait, and waits for the changes in progress, until `progress` ends the
    /// wait. No other thread may be closing the index.
    pub fn close(self: &Arc<Self>, progress: &dyn Progress) -> Result<Closing, stratann::Error> {
        let closing = Closing(self.clone());
        let mut state = self.state.lock();
        state.closing = true;
        while !state.under_way.is_empty() {
            self.changed.wait_for(&mut state, LOOK);
            if progress.interrupted() {
                // Dropping `closing` takes the lock.
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
