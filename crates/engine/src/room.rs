//! Memory for queries in flight, a part of a memory budget that all running searches share.
//!
//! A search reserves the memory that it needs, and beyond this memory at most half of the free
//! memory. So a batch that chooses its own number of queries leaves memory to other batches.
//!
//! If other searches have all memory, the search waits in the order of arrival. The wait is a
//! future ([`Queued`]), so a submitted search occupies no thread while it waits.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use parking_lot::Mutex;

use crate::Error;
use crate::plan::MemoryPlan;
use crate::progress::Progress;

/// The time after which a waiting thread checks again for an interruption.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(crate) struct Room(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    taken: u64,
    next: u64,
    /// The wakers of the waiting searches, in order of arrival.
    waiting: BTreeMap<u64, Waker>,
}

impl State {
    fn first(&self) -> Option<Waker> {
        self.waiting.values().next().cloned()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The number of queries for which memory is reserved as far as memory is free.
    pub(crate) needed: usize,
    /// The largest number of queries that the search can use. Beyond `needed`, at most half of the
    /// free memory is reserved.
    pub(crate) most: usize,
}

impl Wanted {
    #[cfg(test)]
    pub(crate) fn all(queries: usize) -> Wanted {
        Wanted {
            needed: queries,
            most: queries,
        }
    }

    /// The number of queries that get memory, at least one. `free` queries fit into the free
    /// memory.
    fn of(self, free: usize) -> usize {
        self.needed
            .max(self.most.min(free / 2))
            .clamp(1, free.max(1))
    }
}

#[derive(Debug)]
pub(crate) struct Taken {
    room: Arc<Mutex<State>>,
    bytes: u64,
    pub(crate) queries: usize,
}

impl Room {
    pub(crate) fn queue_bytes(&self, memory_plan: &MemoryPlan, bytes: u64) -> Queued {
        let all = memory_plan.queries.max(1);
        Queued {
            room: self.0.clone(),
            bounds: memory_plan.budget.map(|_| (all, bytes.clamp(1, all))),
            wanted: Wanted { needed: 1, most: 1 },
            number: None,
        }
    }

    /// Reserves memory for queries with `candidates` beyond the list. One query may always be in
    /// flight.
    pub(crate) fn queue(
        &self,
        memory_plan: &MemoryPlan,
        (list, page_bytes, candidates): (usize, usize, usize),
        wanted: Wanted,
    ) -> Queued {
        let bounds = memory_plan.for_queries(list, page_bytes, candidates);
        Queued {
            room: self.0.clone(),
            bounds: bounds.map(|(all, each)| (all.max(1), each.clamp(1, all.max(1)))),
            wanted,
            number: None,
        }
    }
}

/// A search that reserves memory or waits for it. A dropped future does not delay other searches.
#[derive(Debug)]
pub(crate) struct Queued {
    room: Arc<Mutex<State>>,
    /// The bytes for all queries, and the bytes for each query. `None` without a budget.
    bounds: Option<(u64, u64)>,
    wanted: Wanted,
    number: Option<u64>,
}

impl Queued {
    pub(crate) fn at_once(&mut self) -> Option<Taken> {
        match Pin::new(self).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(taken) => Some(taken),
            Poll::Pending => None,
        }
    }

    pub(crate) fn wait(mut self, progress: &dyn Progress) -> Result<Taken, Error> {
        if let Some(taken) = self.at_once() {
            return Ok(taken);
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            let polled = Pin::new(&mut self).poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(taken) = polled {
                return Ok(taken);
            }
            thread::park_timeout(LOOK);
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
        }
    }
}

impl Future for Queued {
    type Output = Taken;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Taken> {
        let taken = |bytes, queries| Taken {
            room: self.room.clone(),
            bytes,
            queries,
        };
        let Some((all, each)) = self.bounds else {
            return Poll::Ready(taken(0, self.wanted.needed.max(self.wanted.most).max(1)));
        };
        let mut state = self.room.lock();
        let first = state.waiting.keys().next().copied();
        let free = all.saturating_sub(state.taken);
        if first != self.number || free < each {
            let number = self.number.unwrap_or(state.next);
            state.next = state.next.max(number + 1);
            match state.waiting.get_mut(&number) {
                Some(known) => known.clone_from(cx.waker()),
                None => _ = state.waiting.insert(number, cx.waker().clone()),
            }
            drop(state);
            self.number = Some(number);
            return Poll::Pending;
        }
        let queries = self.wanted.of((free / each) as usize);
        let bytes = queries as u64 * each;
        state.taken += bytes;
        if let Some(number) = self.number {
            state.waiting.remove(&number);
        }
        // The next search can use memory that is left after this reservation.
        let next = state.first();
        drop(state);
        next.into_iter().for_each(Waker::wake);
        let taken = taken(bytes, queries);
        self.number = None;
        Poll::Ready(taken)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let mut state = self.room.lock();
            let first = state.waiting.keys().next() == Some(&number);
            state.waiting.remove(&number);
            let next = state.first().filter(|_| first);
            drop(state);
            next.into_iter().for_each(Waker::wake);
        }
    }
}

impl Taken {
    pub(crate) fn keep(&mut self, queries: usize) {
        let kept = queries.min(self.queries);
        let bytes = self.bytes / self.queries.max(1) as u64 * kept as u64;
        let back = self.bytes - bytes;
        (self.queries, self.bytes) = (kept, bytes);
        self.give_back(back);
    }

    fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            let mut state = self.room.lock();
            state.taken -= bytes;
            let next = state.first();
            drop(state);
            next.into_iter().for_each(Waker::wake);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::progress::Silent;

    const LIST: usize = 100;
    const PAGE: usize = 4096;

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
            let taken = room
                .queue(&memory_plan, size, Wanted::all(8))
                .wait(&Silent)
                .unwrap();
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
            let queued = room.queue(&memory_plan, (LIST, PAGE, 0), Wanted::all(wanted));
            queued.wait(&Silent).unwrap()
        };
        let first = take(3);
        assert_eq!(first.queries, 3);
        let second = take(4);
        assert_eq!(second.queries, 2);
        drop(first);
        assert_eq!(take(9).queries, 3);
        drop(second);
        // A query that needs more than all memory gets all memory.
        let long = room.queue(&memory_plan, (100_000, PAGE, 0), Wanted::all(2));
        let long = long.wait(&Silent).unwrap();
        assert_eq!((long.queries, long.bytes), (1, memory_plan.queries));
    }

    #[test]
    fn beyond_what_is_needed_half_is_left_for_others() {
        let (room, memory_plan) = (Room::default(), memory_plan(10));
        let take = |wanted| {
            let mut queued = room.queue(&memory_plan, (LIST, PAGE, 0), wanted);
            queued.at_once().map(|taken| (taken.queries, taken))
        };
        let chosen = |needed| Wanted { needed, most: 16 };
        let first = take(chosen(2)).unwrap();
        assert_eq!(
            first.0, 5,
            "the first search gets half of the room for ten queries"
        );
        let second = take(chosen(1)).unwrap();
        assert_eq!(
            second.0, 2,
            "the second search gets half of the remaining room for five"
        );
        let third = take(Wanted::all(1)).unwrap();
        assert_eq!(third.0, 1, "a search of one query gets room for it");
        let last = take(chosen(7)).unwrap();
        assert_eq!(last.0, 2, "the last search gets all of the remaining room");
    }

    #[test]
    fn what_is_not_kept_is_for_others_at_once() {
        let (room, memory_plan) = (Room::default(), memory_plan(8));
        let take = |wanted| {
            let mut queued = room.queue(&memory_plan, (LIST, PAGE, 0), Wanted::all(wanted));
            queued.at_once()
        };
        let mut first = take(8).unwrap();
        assert!(take(1).is_none());
        first.keep(3);
        assert_eq!(first.queries, 3);
        let second = take(9).unwrap();
        assert_eq!(second.queries, 5);
        first.keep(7);
        assert_eq!((first.queries, take(1).is_none()), (3, true));
        drop((first, second));
        assert_eq!(room.0.lock().taken, 0);
    }

    #[test]
    fn without_a_budget_nobody_waits() {
        let room = Room::default();
        let memory_plan = MemoryPlan::default();
        let take = || {
            let queued = room.queue(&memory_plan, (LIST, PAGE, 0), Wanted::all(1_000));
            queued.wait(&Silent).unwrap()
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
                        let queued = room.queue(memory_plan, (LIST, PAGE, 0), Wanted::all(wanted));
                        let taken = queued.wait(&Silent).unwrap();
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
        assert_eq!(room.0.lock().taken, 0);
    }

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
        let one = || room.queue(&memory_plan, (LIST, PAGE, 0), Wanted::all(1));
        let first = one().wait(&Silent).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let outcome = one().wait(&Stop);
                    assert!(matches!(outcome, Err(Error::Interrupted)));
                });
            }
            scope.spawn(|| one().wait(&Silent).unwrap());
            std::thread::sleep(Duration::from_millis(20));
            drop(first);
        });
        assert!(room.0.lock().waiting.is_empty());
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn who_waits_as_a_future_has_its_turn_and_gives_it_up_when_dropped() {
        let (room, memory_plan) = (Room::default(), memory_plan(2));
        let queue = |wanted| room.queue(&memory_plan, (LIST, PAGE, 0), Wanted::all(wanted));
        let woken: [Arc<Woken>; 3] = Default::default();
        let poll = |queued: &mut Queued, at: usize| {
            let waker = Waker::from(woken[at].clone());
            Pin::new(queued).poll(&mut Context::from_waker(&waker))
        };
        let times = |at: usize| woken[at].0.load(Ordering::SeqCst);
        let all = queue(2).at_once().unwrap();
        let (mut a, mut b, mut c) = (queue(1), queue(2), queue(1));
        assert!(poll(&mut a, 0).is_pending());
        assert!(poll(&mut b, 1).is_pending());
        assert!(poll(&mut c, 2).is_pending() && queue(1).at_once().is_none());
        drop(all);
        assert_eq!((times(0), times(1), times(2)), (1, 0, 0));
        assert!(poll(&mut b, 1).is_pending() && poll(&mut c, 2).is_pending());
        let Poll::Ready(first) = poll(&mut a, 0) else {
            panic!("the first waiting search is not woken")
        };
        // The next search is dropped, so the last search gets its turn.
        assert_eq!((first.queries, times(1), times(2)), (1, 1, 0));
        drop(b);
        assert_eq!(times(2), 1);
        let Poll::Ready(last) = poll(&mut c, 2) else {
            panic!("the first waiting search is not woken")
        };
        assert!(queue(1).at_once().is_none());
        drop((first, last));
        let state = room.0.lock();
        assert!(state.taken == 0 && state.waiting.is_empty());
    }
}
