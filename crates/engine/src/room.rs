//! Room for queries in flight: what a memory budget sets aside for them, shared by all searches that go on.
//!
//! A search takes as much as it can use and there is, at least what one query takes, and waits for that if others have it all:
//! in the order in which they came, so that none waits for ever.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::Error;
use crate::plan::MemoryPlan;
use crate::progress::Progress;

/// How often one that waits looks whether it is interrupted.
const LOOK: Duration = Duration::from_millis(50);

/// What searches that go on have taken.
#[derive(Debug, Default)]
pub(crate) struct Room {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that are taken.
    taken: u64,
    /// The number of the next search that comes, and of the one whose turn it is.
    next: u64,
    turn: u64,
    /// Searches that gave up waiting before it was their turn.
    gone: Vec<u64>,
}

impl State {
    /// The turn passes to the next one that waits still.
    fn pass(&mut self) {
        self.turn += 1;
        while let Some(at) = self.gone.iter().position(|&gone| gone == self.turn) {
            self.gone.swap_remove(at);
            self.turn += 1;
        }
    }
}

/// Room for some queries, until it is dropped.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    room: &'a Room,
    bytes: u64,
    /// How many.
    pub(crate) queries: usize,
}

impl Room {
    /// Takes room for up to `wanted` queries, each with a candidate list of `list`, on pages of `page_bytes`, and so many `candidates`
    /// beyond it, as a memory budget is divided. One query may always be in flight, whatever it takes.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if `progress` says so while it waits.
    pub(crate) fn take(
        &self,
        memory_plan: &MemoryPlan,
        (list, page_bytes, candidates): (usize, usize, usize),
        wanted: usize,
        progress: &dyn Progress,
    ) -> Result<Taken<'_>, Error> {
        let wanted = wanted.max(1);
        let Some((all, each)) = memory_plan.for_queries(list, page_bytes, candidates) else {
            return Ok(Taken {
                room: self,
                bytes: 0,
                queries: wanted,
            });
        };
        let each = each.clamp(1, all.max(1));
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        while state.turn != number || all.max(1).saturating_sub(state.taken) < each {
            self.changed.wait_for(&mut state, LOOK);
            if progress.interrupted() {
                if state.turn == number {
                    state.pass();
                } else {
                    state.gone.push(number);
                }
                self.changed.notify_all();
                return Err(Error::Interrupted);
            }
        }
        let free = all.max(1) - state.taken;
        let queries = ((free / each) as usize).min(wanted);
        let bytes = queries as u64 * each;
        state.taken += bytes;
        state.pass();
        // There may be some left for the next one.
        self.changed.notify_all();
        Ok(Taken {
            room: self,
            bytes,
            queries,
        })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.room.state.lock().taken -= self.bytes;
            self.room.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::progress::Silent;

    const LIST: usize = 100;
    const PAGE: usize = 4096;

    /// With room for so many queries of the usual kind.
    fn memory_plan(queries: u64) -> MemoryPlan {
        let mut memory_plan = MemoryPlan {
            budget: Some(1 << 30),
            queries: 1,
            ..MemoryPlan::default()
        };
        let (_, each) = memory_plan.for_queries(LIST, PAGE, 0).unwrap();
        memory_plan.queries = queries * each;
        memory_plan
    }

    #[test]
    fn candidates_that_are_deleted_take_room_and_never_more_than_there_is() {
        let (room, memory_plan) = (Room::default(), memory_plan(4));
        let (all, each) = memory_plan.for_queries(LIST, PAGE, 0).unwrap();
        let most = memory_plan.candidates(LIST, PAGE, usize::MAX);
        let (_, with_all) = memory_plan.for_queries(LIST, PAGE, most).unwrap();
        assert!(
            with_all <= all && with_all + 20 > all,
            "{with_all} of {all}"
        );
        assert_eq!(memory_plan.candidates(LIST, PAGE, 9), 9);
        for (candidates, queries) in [(0, 4), (most / 3, 2), (most, 1)] {
            let size = (LIST, PAGE, candidates);
            let taken = room.take(&memory_plan, size, 8, &Silent).unwrap();
            assert_eq!(
                taken.queries, queries,
                "{candidates} candidates, {each} bytes"
            );
        }
    }

    #[test]
    fn what_one_has_the_others_have_not() {
        let (room, memory_plan) = (Room::default(), memory_plan(5));
        let take = |wanted| {
            room.take(&memory_plan, (LIST, PAGE, 0), wanted, &Silent)
                .unwrap()
        };
        let first = take(3);
        assert_eq!(first.queries, 3);
        let second = take(4);
        assert_eq!(second.queries, 2);
        drop(first);
        assert_eq!(take(9).queries, 3);
        drop(second);
        // One that needs more than all of it has all of it.
        let long = room
            .take(&memory_plan, (100_000, PAGE, 0), 2, &Silent)
            .unwrap();
        assert_eq!((long.queries, long.bytes), (1, memory_plan.queries));
    }

    #[test]
    fn without_a_budget_nobody_waits() {
        let room = Room::default();
        let memory_plan = MemoryPlan::default();
        let take = || {
            room.take(&memory_plan, (LIST, PAGE, 0), 1_000, &Silent)
                .unwrap()
        };
        let (first, second) = (take(), take());
        assert_eq!((first.queries, second.queries), (1_000, 1_000));
    }

    #[test]
    fn many_threads_never_have_more_than_there_is() {
        let (room, memory_plan) = (Room::default(), memory_plan(3));
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (room, memory_plan, now, most) = (&room, &memory_plan, &now, &most);
                scope.spawn(move || {
                    for _ in 0..100 {
                        let wanted = 1 + thread % 3;
                        let taken = room
                            .take(memory_plan, (LIST, PAGE, 0), wanted, &Silent)
                            .unwrap();
                        assert!((1..=wanted).contains(&taken.queries));
                        let all = now.fetch_add(taken.queries, Ordering::SeqCst) + taken.queries;
                        most.fetch_max(all, Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(taken.queries, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(most.into_inner() <= 3);
        assert_eq!(room.state.lock().taken, 0);
    }

    /// Asks for a stop at once.
    struct Stop;

    impl Progress for Stop {
        fn begin(&self, _: &str, _: u64) {}
        fn advance(&self, _: u64) {}
        fn end(&self) {}
        fn warn(&self, _: &str) {}
        fn interrupted(&self) -> bool {
            true
        }
    }

    #[test]
    fn one_that_is_interrupted_while_it_waits_keeps_nobody_waiting() {
        let (room, memory_plan) = (Room::default(), memory_plan(1));
        let first = room
            .take(&memory_plan, (LIST, PAGE, 0), 1, &Silent)
            .unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let outcome = room.take(&memory_plan, (LIST, PAGE, 0), 1, &Stop);
                    assert!(matches!(outcome, Err(Error::Interrupted)));
                });
            }
            scope.spawn(|| {
                room.take(&memory_plan, (LIST, PAGE, 0), 1, &Silent)
                    .unwrap()
            });
            std::thread::sleep(Duration::from_millis(20));
            drop(first);
        });
        assert!(room.state.lock().gone.is_empty());
    }
}
