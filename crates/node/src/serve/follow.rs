//! A memory server's lists and codes are those of a checkpoint. This looks whether there is another one, and has the server go on to it.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Newest;
use crate::options::NodeError;
use crate::role::HighHalf;

/// Whether the thread that looks is to end.
pub type Over<'a> = dyn Fn() -> bool + Sync + 'a;

/// A thread that looks for other lists and codes, and ends with this, behind what it is loading.
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
    /// Calls `look` again and again, so long after the last time, and [puts](Newest::put) what it gives; not while somebody still goes by what was there before the last. Where
    /// it cannot tell, it is called again; the first of such errors is logged. `look` may take long: it is told whether it is to give up.
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
                // A third checkpoint would be in memory at once.
                if newest.has_before() {
                    continue;
                }
                let over = || told.stopped.load(Ordering::SeqCst);
                let looked = catch_unwind(AssertUnwindSafe(|| look(&newest.get(), &over)));
                let looked = match looked {
                    Ok(looked) => looked.map_err(|error| error.to_string()),
                    Err(_) => Err("it panicked (standard error says of what)".to_owned()),
                };
                match looked {
                    Ok(None) => trouble = false,
                    Ok(Some(high)) => {
                        trouble = false;
                        newest.put(Arc::new(high));
                        tracing::info!("the memory server goes on to another state of the index");
                    }
                    Err(_) if over() => return,
                    Err(error) if !trouble => {
                        trouble = true;
                        tracing::warn!(
                            "the memory server stays with the state of the index that it has: {error}"
                        );
                    }
                    Err(_) => {}
                }
            }
        };
        let thread = named.spawn(follow).map_err(NodeError::Thread)?;
        Ok(Follower {
            stop,
            thread: Some(thread),
        })
    }
}

impl Stop {
    /// Waits; false: it is over.
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
            // What it panicked of is on standard error.
            let _ = thread.join();
        }
    }
}
