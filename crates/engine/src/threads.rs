//! Divides work among several threads, as far as the system provides them.
//!
//! A system may refuse a thread at any time (`RLIMIT_NPROC`, a cgroup's `pids.max`). The existing
//! threads, at least the calling one, then do all of the work.

use std::num::NonZero;
use std::sync::OnceLock;
use std::thread::{self, ScopedJoinHandle};

use parking_lot::Mutex;

/// The number of processors that this process may use, cached at the first call. Finding the number
/// takes a dozen system calls. A server with one query a call would otherwise find it thousands of
/// times a second.
pub fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

/// Address space of a thread's stack, in bytes, as the standard library reserves it.
const STACK: u64 = 2 << 20;

/// Address space of the stacks of `threads` threads, in bytes. A check for memory before threads
/// start includes this number.
pub(crate) fn stacks(threads: usize) -> u64 {
    (threads as u64).saturating_mul(STACK)
}

/// Does each share of some work on its own thread. One of these threads is the calling one. Returns
/// the results in order.
///
/// # Panics
/// If a share panics, with the same panic.
pub(crate) fn shared<S, T: Send>(
    shares: impl ExactSizeIterator<Item = S> + Send,
    work: impl Fn(S) -> T + Sync,
) -> Vec<T> {
    let helpers = shares.len().saturating_sub(1);
    shared_beside(shares, helpers, work, || ()).0
}

/// Does the same as [`shared`], with `helpers` threads besides the calling one. The calling thread
/// does `own` before it helps.
pub(crate) fn shared_beside<S, T: Send, O>(
    shares: impl ExactSizeIterator<Item = S> + Send,
    helpers: usize,
    work: impl Fn(S) -> T + Sync,
    own: impl FnOnce() -> O,
) -> (Vec<T>, O) {
    let count = shares.len();
    if helpers == 0 {
        let own = own();
        return (shares.map(work).collect(), own);
    }
    let shares = Mutex::new(shares.enumerate());
    let run = || {
        let mut done = Vec::new();
        loop {
            // The lock is released before the work begins.
            let share = shares.lock().next();
            let Some((at, share)) = share else {
                return done;
            };
            done.push((at, work(share)));
        }
    };
    let (mut done, own) = thread::scope(|scope| {
        let helpers: Vec<_> = (0..helpers.min(count))
            .map_while(|_| started(scope, run))
            .collect();
        let own = own();
        let mut done = run();
        for helper in helpers {
            match helper.join() {
                Ok(theirs) => done.extend(theirs),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        (done, own)
    });
    done.sort_unstable_by_key(|&(at, _)| at);
    (done.into_iter().map(|(_, done)| done).collect(), own)
}

/// A thread in a scope; `None` if the system has none left.
fn started<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, T>> {
    match stratann_tier::start_scoped(scope, work) {
        Ok(helper) => Some(helper),
        Err(error) => {
            tracing::warn!("the system has no thread left ({error}), so fewer threads do the work");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_done_in_any_number_of_threads_and_come_back_in_order() {
        for refused in [None, Some(0), Some(1), Some(2)] {
            stratann_tier::testing::refuse_threads_after(refused);
            let done = shared(0..5, |share| 10 * share);
            assert_eq!(done, [0, 10, 20, 30, 40], "{refused:?}");
            let (done, own) = shared_beside([1, 2].iter(), 2, |share| share + 1, || "own");
            assert_eq!((done, own), (vec![2, 3], "own"), "{refused:?}");
        }
        stratann_tier::testing::refuse_threads_after(None);
        assert!(shared(0..0, |share: u32| share).is_empty());
    }
}
