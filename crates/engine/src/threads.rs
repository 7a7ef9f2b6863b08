//! Divides work among several threads. If the system refuses threads (`RLIMIT_NPROC`, a cgroup's
//! `pids.max`), fewer threads do all of the work.

use std::num::NonZero;
use std::sync::OnceLock;
use std::thread::{self, ScopedJoinHandle};

use parking_lot::Mutex;

/// The number of processors that this process may use. The number is cached, since a look-up costs
/// a dozen system calls.
pub fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

/// The address space that the standard library reserves for a thread's stack.
const STACK: u64 = 2 << 20;

/// Calls that check for memory include the address space of stacks.
pub(crate) fn stacks(threads: usize) -> u64 {
    (threads as u64).saturating_mul(STACK)
}

/// Does all shares of some work on several threads, including the calling thread. If a share
/// panics, the call panics.
pub(crate) fn shared<S, T: Send>(
    shares: impl ExactSizeIterator<Item = S> + Send,
    work: impl Fn(S) -> T + Sync,
) -> Vec<T> {
    let helpers = shares.len().saturating_sub(1);
    shared_beside(shares, helpers, work, || ()).0
}

/// Uses `helpers` threads in addition to the calling thread, which does `own` before it helps.
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
            // The `let` releases the lock before the work begins.
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
