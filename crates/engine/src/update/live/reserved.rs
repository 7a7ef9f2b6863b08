//! The ids that calls are changing. Two calls never change the same id at the same time.
//!
//! ```text
//!   upsert [1, 2]    has 1, 2 ───────────> done
//!   upsert [2, 3]       waits for 2 ─────> has 2, 3 ─────────> done
//!   upsert [3]          waits behind [2, 3] ─────────────────> has 3 ──> done
//! ```
//!
//! A call reserves all of its ids or none, so no two calls wait for each other. Calls get an id in
//! the order of their arrival.
//!
//! A callback of a change may begin an inner change on the same thread. If the inner change waited,
//! it could wait for its own thread. So an inner change fails instead.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::Error;
use crate::progress::Progress;

const LOOK: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(super) struct Reserved {
    state: Mutex<State>,
    /// Signals that ids were released, or that a call has stopped waiting.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    held: HashSet<u64>,
    /// The threads of calls that have ids, or that are calling their `progress`.
    threads: Vec<ThreadId>,
    /// The waiting calls, in the order of their arrival.
    waiting: Vec<Waiting>,
    next_ticket: u64,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    ids: HashSet<u64>,
}

pub(in crate::update) struct Reservation<'a> {
    reserved: &'a Reserved,
    ids: Cow<'a, [u64]>,
    thread: ThreadId,
}

impl Reservation<'_> {
    pub(super) fn ids(&self) -> &[u64] {
        &self.ids
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut state = self.reserved.state.lock();
        for id in &*self.ids {
            state.held.remove(id);
        }
        state.leaves(self.thread);
        drop(state);
        self.reserved.changed.notify_all();
    }
}

impl State {
    /// Whether no call has any of the ids, and no call with a lower ticket waits for any of the
    /// ids.
    fn are_free(&self, ids: &[u64], ticket: u64) -> bool {
        let before = |waiting: &&Waiting| waiting.ticket < ticket;
        let waits = |id: &u64| {
            let mut before = self.waiting.iter().filter(before);
            before.any(|waiting| waiting.ids.contains(id))
        };
        !ids.iter().any(|id| self.held.contains(id) || waits(id))
    }

    fn leaves(&mut self, thread: ThreadId) {
        if let Some(at) = self.threads.iter().position(|it| *it == thread) {
            self.threads.swap_remove(at);
        }
    }
}

impl Reserved {
    /// Waits until no other call has any of these ids, which are distinct, and reserves all of
    /// them. An inner change fails instead of waiting.
    pub(super) fn all<'a>(
        &'a self,
        ids: &'a [u64],
        progress: &dyn Progress,
    ) -> Result<Reservation<'a>, Error> {
        let mut state = self.state.lock();
        let thread = std::thread::current().id();
        if state.threads.contains(&thread) {
            if let Some(id) = ids.iter().find(|id| state.held.contains(id)) {
                return Err(refused_within(*id));
            }
            return Ok(self.take(&mut state, ids.into(), thread));
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        if state.are_free(ids, ticket) {
            return Ok(self.take(&mut state, ids.into(), thread));
        }
        let waiting = ids.iter().copied().collect();
        state.waiting.push(Waiting {
            ticket,
            ids: waiting,
        });
        loop {
            self.changed.wait_for(&mut state, LOOK);
            let free = state.are_free(ids, ticket);
            if free || is_ended(&mut state, progress) {
                state.waiting.retain(|waiting| waiting.ticket != ticket);
                // Later calls may have waited only for this call.
                self.changed.notify_all();
                return match free {
                    true => Ok(self.take(&mut state, ids.into(), thread)),
                    false => Err(Error::Interrupted),
                };
            }
        }
    }

    /// Reserves `count` consecutive ids from `next` on, and advances `next` under the same lock. If
    /// another call has or waits for one of these ids, the range begins after that id. If the ids
    /// would exceed `last`, the error is the first id of the range.
    pub(super) fn next(
        &self,
        count: u64,
        next: &AtomicU64,
        last: u64,
    ) -> Result<(Vec<u64>, Reservation<'_>), u64> {
        let mut state = self.state.lock();
        let mut first = next.load(Ordering::Relaxed);
        let behind = loop {
            let behind = first.checked_add(count);
            let behind = behind.filter(|&behind| count == 0 || behind - 1 <= last);
            let behind = behind.ok_or(first)?;
            let waits = |id: &u64| state.waiting.iter().any(|waiting| waiting.ids.contains(id));
            let taken = |id: &u64| state.held.contains(id) || waits(id);
            match (first..behind).rev().find(taken) {
                Some(taken) => first = taken + 1,
                None => break behind,
            }
        };
        next.fetch_max(behind, Ordering::Relaxed);
        let ids: Vec<u64> = (first..behind).collect();
        let reservation = self.take(&mut state, ids.clone().into(), std::thread::current().id());
        Ok((ids, reservation))
    }

    /// Waits until at least one of these ids, which are distinct, is free, and reserves all free
    /// ids. An inner change fails instead of waiting.
    pub(super) fn free(
        &self,
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<Reservation<'_>, Error> {
        let mut state = self.state.lock();
        let thread = std::thread::current().id();
        loop {
            let free = ids.iter().filter(|id| !state.held.contains(id));
            let free: Vec<u64> = free.copied().collect();
            match ids.first() {
                Some(id) if free.is_empty() => {
                    if state.threads.contains(&thread) {
                        return Err(refused_within(*id));
                    }
                }
                _ => return Ok(self.take(&mut state, free.into(), thread)),
            }
            self.changed.wait_for(&mut state, LOOK);
            if is_ended(&mut state, progress) {
                return Err(Error::Interrupted);
            }
        }
    }

    fn take<'a>(
        &'a self,
        state: &mut State,
        ids: Cow<'a, [u64]>,
        thread: ThreadId,
    ) -> Reservation<'a> {
        state.held.extend(&*ids);
        state.threads.push(thread);
        Reservation {
            reserved: self,
            ids,
            thread,
        }
    }
}

/// The lock is released while `progress` is called, since the callback may begin another change.
fn is_ended(state: &mut MutexGuard<'_, State>, progress: &dyn Progress) -> bool {
    let thread = std::thread::current().id();
    state.threads.push(thread);
    let ended = MutexGuard::unlocked(state, || progress.interrupted());
    state.leaves(thread);
    ended
}

fn refused_within(id: u64) -> Error {
    let reason = "another call is changing this id, and the callback of a change cannot wait for another change";
    let remedy = "Make this call after the other call has returned";
    Error::call("id", id, reason, remedy)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use super::*;
    use crate::progress::Silent;

    #[derive(Default)]
    struct Ends(AtomicBool);

    impl Progress for Ends {
        fn begin(&self, _: &str, _: u64) {}
        fn advance(&self, _: u64) {}
        fn end(&self) {}
        fn warn(&self, _: &str) {}
        fn interrupted(&self) -> bool {
            self.0.store(true, Ordering::Relaxed);
            true
        }
    }

    impl Reserved {
        fn wait_for(&self, waiting: usize) {
            while self.state.lock().waiting.len() != waiting {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn calls_have_an_id_in_the_order_in_which_they_came() {
        let reserved = Reserved::default();
        let (said, heard) = mpsc::channel();
        let first = reserved.all(&[1, 2], &Silent).unwrap();
        std::thread::scope(|scope| {
            for (at, ids) in [&[2, 3][..], &[3], &[1, 3]].into_iter().enumerate() {
                let (reserved, said) = (&reserved, said.clone());
                scope.spawn(move || {
                    let held = reserved.all(ids, &Silent).unwrap();
                    said.send(at).unwrap();
                    drop(held);
                });
                reserved.wait_for(at + 1);
            }
            drop(reserved.all(&[4], &Silent));
            assert!(heard.try_recv().is_err());
            drop(first);
            let order: Vec<usize> = heard.iter().take(3).collect();
            assert_eq!(order, [0, 1, 2]);
        });
        assert!(reserved.state.lock().held.is_empty() && reserved.state.lock().threads.is_empty());
    }

    #[test]
    fn a_wait_can_be_ended() {
        let reserved = Reserved::default();
        let held = reserved.all(&[1], &Silent).unwrap();
        std::thread::scope(|scope| {
            let waits = || {
                let ends = Ends::default();
                let all = matches!(reserved.all(&[1, 2], &ends), Err(Error::Interrupted));
                let free = matches!(reserved.free(&[1], &ends), Err(Error::Interrupted));
                all && free && ends.0.load(Ordering::Relaxed)
            };
            assert!(scope.spawn(waits).join().unwrap());
        });
        assert!(reserved.state.lock().waiting.is_empty());
        drop(held);
        drop(reserved.all(&[1, 2], &Silent).unwrap());
    }

    struct Changes<'a>(&'a Reserved);

    impl Progress for Changes<'_> {
        fn begin(&self, _: &str, _: u64) {}
        fn advance(&self, _: u64) {}
        fn end(&self) {}
        fn warn(&self, _: &str) {}
        fn interrupted(&self) -> bool {
            assert!(self.0.state.try_lock().is_some());
            assert!(self.0.all(&[1, 2], &Silent).is_err());
            assert!(self.0.free(&[1], &Silent).is_err());
            drop(self.0.all(&[2, 3], &Silent).unwrap());
            true
        }
    }

    #[test]
    fn whoever_is_asked_whether_a_wait_goes_on_may_make_another_change() {
        let reserved = Reserved::default();
        let held = reserved.all(&[1], &Silent).unwrap();
        std::thread::scope(|scope| {
            let waits = || {
                let asked = Changes(&reserved);
                let all = matches!(reserved.all(&[1, 2], &asked), Err(Error::Interrupted));
                all && matches!(reserved.free(&[1], &asked), Err(Error::Interrupted))
            };
            assert!(scope.spawn(waits).join().unwrap());
        });
        drop(held);
        let state = reserved.state.lock();
        assert!(state.held.is_empty() && state.threads.is_empty() && state.waiting.is_empty());
    }

    #[test]
    fn a_call_within_a_call_never_waits() {
        let reserved = Reserved::default();
        let _held = reserved.all(&[1], &Silent).unwrap();
        for refused in [reserved.all(&[2, 1], &Silent), reserved.free(&[1], &Silent)] {
            let text = refused.err().unwrap().to_string();
            assert!(
                text.contains("the callback of a change cannot wait"),
                "{text}"
            );
        }
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| drop(reserved.all(&[1, 2], &Ends::default())));
            waits.join().unwrap();
            assert_eq!(reserved.all(&[2], &Silent).unwrap().ids(), [2]);
            assert_eq!(reserved.free(&[1, 3], &Silent).unwrap().ids(), [3]);
        });
    }
}
