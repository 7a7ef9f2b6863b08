//! Changes that are under way, and who waits for their end: `close` waits for those that have begun, and those that come meanwhile wait for it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stratann::Progress;

/// How often who waits looks whether it is to wait no longer.
const LOOK: Duration = Duration::from_millis(20);

/// Counts changes, and lets one close at a time.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    under_way: usize,
    closing: bool,
}

/// The right to change something, until it is dropped.
#[derive(Debug)]
pub struct Pass(Arc<Gate>);

/// The right to close: nobody changes anything until it is dropped.
#[derive(Debug)]
pub struct Closing(Arc<Gate>);

impl Gate {
    /// Waits while somebody closes.
    pub fn enter(self: &Arc<Self>) -> Pass {
        let mut state = self.state.lock();
        while state.closing {
            self.changed.wait(&mut state);
        }
        state.under_way += 1;
        Pass(self.clone())
    }

    /// Lets no more changes in, and waits for those that are.
    ///
    /// # Errors
    /// `progress` ended the wait: everything goes on.
    pub fn close(self: &Arc<Self>, progress: &dyn Progress) -> Result<Closing, stratann::Error> {
        let mut state = self.state.lock();
        while state.closing {
            self.changed.wait_for(&mut state, LOOK);
            if progress.interrupted() {
                return Err(stratann::Error::Interrupted);
            }
        }
        state.closing = true;
        let closing = Closing(self.clone());
        while state.under_way > 0 {
            self.changed.wait_for(&mut state, LOOK);
            if progress.interrupted() {
                // What is dropped below takes the lock.
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
        self.0.state.lock().under_way -= 1;
        self.0.changed.notify_all();
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.state.lock().closing = false;
        self.0.changed.notify_all();
    }
}
