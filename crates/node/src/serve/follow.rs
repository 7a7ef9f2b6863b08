//! Looks for newer checkpoints, and lets a memory server serve them.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Newest;
use crate::options::NodeError;
use crate::role::HighHalf;

/// Returns whether the thread has to end.
pub type Over<'a> = dyn Fn() -> bool + Sync + 'a;

/// A thread that looks for newer checkpoints. On drop, the thread ends after the load in progress.
pub struct Follower {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    stopped: AtomicBool,
    lock: Mutex<()>,
    stirs: Condvar,
}

impl Follower {
    /// [Puts](Newest::put) the results of `look` in place, at intervals of `every`, unless a server
    /// uses the checkpoint before the last. `look` gets a function that returns true when `look`
    /// has to stop early.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start<H, E>(
        newest: Newest<H>,
        every: Duration,
        mut look: impl FnMut(&H, &Over<'_>) -> Result<Option<H>, E> + Send + 'static,
    ) -> Result<Follower, NodeError>
    where
        H: HighHalf,
        E: Display,
    {
        let stop = Arc::<Stop>::default();
        let told = stop.clone();
        let named = thread::Builder::new().name("stratann-follow".into());
        let follow = move || {
            let mut trouble = false;
            while told.wait(every) {
                newest.forget_unused();
                // Otherwise, three checkpoints could be in memory.
                if newest.has_before() {
                    continue;
                }
                let over = || told.stopped.load(Ordering::SeqCst);
                let looked = catch_unwind(AssertUnwindSafe(|| look(&newest.get(), &over)));
                let looked = match looked {
                    Ok(looked) => looked.map_err(|error| error.to_string()),
                    Err(_) => {
                        Err("the follower panicked (the message is on standard error)".to_owned())
                    }
                };
                match looked {
                    Ok(None) => trouble = false,
                    Ok(Some(high)) => {
                        trouble = false;
                        newest.put(Arc::new(high));
                        tracing::info!("the memory server changed to another state of the index");
                    }
                    Err(_) if over() => return,
                    Err(error) if !trouble => {
                        trouble = true;
                        tracing::warn!("the memory server keeps its state of the index: {error}");
                    }
                    Err(_) => {}
                }
            }
        };
        let thread = stratann_tier::start(named, follow).map_err(NodeError::Thread)?;
        Ok(Follower {
            stop,
            thread: Some(thread),
        })
    }
}

impl Stop {
    /// Returns false if the thread has to end.
    fn wait(&self, time: Duration) -> bool {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = |(): &mut ()| !self.stopped.load(Ordering::SeqCst);
        drop(self.stirs.wait_timeout_while(lock, time, goes_on));
        !self.stopped.load(Ordering::SeqCst)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        {
            let _lock = self
                .stop
                .lock
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.stop.stopped.store(true, Ordering::SeqCst);
        }
        self.stop.stirs.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
