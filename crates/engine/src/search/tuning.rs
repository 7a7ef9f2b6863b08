//! Chooses how many queries of a batch are in flight, by measuring the first queries of the batch.
//!
//! While one query of a thread waits for a read, the other queries in flight compute (second-tier
//! memory, §5: the software pipeline). With too many queries, their data no longer fit the
//! processor's cache. So a long batch tries numbers on its own queries.
//!
//! ```text
//!   in flight  1    2    4    8    16   32   |  4 again  |  8 until the end
//!              climb: until two in a row     |  is it better, or was it only
//!              are no better than the best   |  later, with more in caches?
//! ```
//!
//! - A number is *better* if its throughput is [`BETTER`] times as high.
//! - A query in flight during a change of the number counts for neither number.
//! - At the latest when half of the batch is done, the best number so far is chosen. Tasks beyond
//!   this number end, and release their memory.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use stratann_tier::Thread;

use super::batch::Shares;
use crate::room::Taken;

/// The least number of queries for each thread with which a batch measures.
pub(super) const FROM: usize = 256;

pub(super) const MOST: usize = 64;

const BETTER: f64 = 1.08;

/// After this many successive trials without improvement, no larger number is tried.
const WORSE: usize = 2;

/// Each number in flight is measured with at least this many queries per thread.
const MEASURED: usize = 32;
/// Each number in flight is measured for at least this time.
const MEASURED_FOR: Duration = Duration::from_millis(2);

/// A number of queries in flight that was tried, and its throughput.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// Queries in flight on each thread.
    pub in_flight: usize,
    /// Queries answered per second, by all threads together.
    pub qps: f64,
}

/// Chooses numbers without reading a clock.
#[derive(Debug)]
struct Climb {
    most: usize,
    now: usize,
    tried: Vec<Tried>,
    best: Option<Tried>,
    worse: usize,
    descends: bool,
}

impl Climb {
    fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            now: 1,
            tried: Vec::new(),
            best: None,
            worse: 0,
            descends: false,
        }
    }

    /// Returns the next number to try, or `None` if the best is chosen.
    fn measured(&mut self, qps: f64) -> Option<usize> {
        let this = Tried {
            in_flight: self.now,
            qps,
        };
        self.tried.push(this);
        let better = |a: &Tried, b: &Tried| a.qps > b.qps * BETTER;
        let next = match self.best {
            // Tried again with more pages in memory, the smaller number is as good as the best.
            Some(best) if self.descends && !better(&best, &this) => {
                self.best = Some(this);
                self.smaller()
            }
            Some(_) if self.descends => None,
            best => {
                if best.is_none_or(|best| better(&this, &best)) {
                    self.best = Some(this);
                    self.worse = 0;
                } else {
                    self.worse += 1;
                }
                if self.worse < WORSE && self.now < self.most {
                    Some((2 * self.now).min(self.most))
                } else {
                    self.descends = true;
                    self.smaller()
                }
            }
        };
        self.now = next.unwrap_or(self.now);
        next
    }

    fn smaller(&self) -> Option<usize> {
        let best = self.best?.in_flight;
        let below = self.tried.iter().map(|tried| tried.in_flight);
        below.filter(|&number| number < best).max()
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The number of finished queries to ignore, because they may have begun before the change.
    Changes(usize),
    /// The finished queries since the time `since` are counted.
    Counts { answers: usize, since: Instant },
}

#[derive(Debug)]
struct Tuning {
    climb: Climb,
    phase: Phase,
    /// The number of queries that may still finish before a number must be chosen.
    left: usize,
}

impl Tuning {
    /// Returns whether the number in flight must change or be chosen now.
    fn answered(&mut self, threads: usize, now: Instant) -> bool {
        self.left = self.left.saturating_sub(1);
        match &mut self.phase {
            Phase::Changes(left) => {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.phase = Phase::Counts {
                        answers: 0,
                        since: now,
                    };
                }
                self.left == 0
            }
            Phase::Counts { answers, since } => {
                *answers += 1;
                let took = now.saturating_duration_since(*since);
                let before = self.climb.now;
                if *answers < MEASURED.max(before) * threads || took < MEASURED_FOR {
                    return self.left == 0;
                }
                let next = self.climb.measured(*answers as f64 / took.as_secs_f64());
                match next {
                    Some(next) => self.phase = Phase::Changes(before.max(next) * threads),
                    None => self.left = 0,
                }
                true
            }
        }
    }

    fn is_over(&self) -> bool {
        self.left == 0
    }
}

#[derive(Debug)]
pub(super) struct Turns {
    threads: usize,
    /// On each thread, the tasks with smaller numbers may take queries.
    now: AtomicUsize,
    is_tuning: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    room: Taken,
    tuning: Option<Tuning>,
    tried: Vec<Tried>,
    waiting: Vec<Waker>,
}

impl Turns {
    /// If `tunes` is set, a long batch measures the best number in flight.
    pub(super) fn new(shares: Shares, rows: usize, room: Taken, tunes: bool) -> Self {
        let (threads, most) = (shares.threads, shares.most());
        let tunes = tunes && most > 1 && rows / threads >= FROM;
        let tuning = tunes.then(|| Tuning {
            climb: Climb::new(most),
            phase: Phase::Changes(threads),
            left: rows / 2,
        });
        Self {
            threads,
            now: AtomicUsize::new(if tunes { 1 } else { most }),
            is_tuning: AtomicBool::new(tunes),
            state: Mutex::new(State {
                room,
                tuning,
                tried: Vec::new(),
                waiting: Vec::new(),
            }),
        }
    }

    /// Waits until the task may take queries. Returns false if the task never may.
    pub(super) async fn wait(&self, thread: &Thread, task: usize) -> bool {
        if task < self.now.load(Ordering::Acquire) {
            return true;
        }
        let _aside = thread.set_aside();
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if task < self.now.load(Ordering::Acquire) {
                return Poll::Ready(true);
            }
            if state.tuning.is_none() {
                return Poll::Ready(false);
            }
            if !state
                .waiting
                .iter()
                .any(|waker| waker.will_wake(cx.waker()))
            {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    pub(super) fn answered(&self) {
        if !self.is_tuning.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        let Some(tuning) = &mut state.tuning else {
            return;
        };
        if !tuning.answered(self.threads, Instant::now()) {
            return;
        }
        if tuning.is_over() {
            return self.choose(state);
        }
        self.now.store(tuning.climb.now, Ordering::Release);
        self.tell(state);
    }

    pub(super) fn end(&self) {
        if self.is_tuning.load(Ordering::Relaxed) {
            self.choose(self.state.lock());
        }
    }

    fn choose(&self, mut state: MutexGuard<'_, State>) {
        let Some(Tuning { climb, .. }) = state.tuning.take() else {
            return;
        };
        let chosen = climb.best.map_or(climb.now, |best| best.in_flight);
        state.tried = climb.tried;
        state.room.keep(chosen * self.threads);
        self.now.store(chosen, Ordering::Release);
        self.is_tuning.store(false, Ordering::Relaxed);
        self.tell(state);
    }

    fn tell(&self, mut state: MutexGuard<'_, State>) {
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        // Wakers run foreign code, so the lock is released first.
        waiting.into_iter().for_each(Waker::wake);
    }

    pub(super) fn into_chosen(self) -> (usize, Vec<Tried>) {
        (self.now.into_inner(), self.state.into_inner().tried)
    }
}

/// The right of a task to take queries. When the right is dropped, a number is chosen, so that
/// waiting tasks end.
pub(super) struct Turn<'a> {
    pub(super) turns: &'a Turns,
    pub(super) number: usize,
}

impl Turn<'_> {
    pub(super) async fn again(&self, thread: &Thread) -> bool {
        self.turns.wait(thread, self.number).await
    }

    pub(super) fn answered(&self) {
        self.turns.answered();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chosen number, and all that were tried. `qps` gets the number in flight and the number
    /// of earlier trials.
    fn chosen(most: usize, qps: impl Fn(usize, usize) -> f64) -> (usize, Vec<usize>) {
        let mut climb = Climb::new(most);
        for n in 0.. {
            assert!(n < 20, "the climb does not end: {climb:?}");
            if climb.measured(qps(climb.now, n)).is_none() {
                break;
            }
        }
        let tried = climb.tried.iter().map(|tried| tried.in_flight).collect();
        (climb.best.unwrap().in_flight, tried)
    }

    /// The throughput if a device answers after `latency`, and a query computes for the time 1.
    fn waits(latency: f64) -> impl Fn(usize, usize) -> f64 {
        move |in_flight, _| (in_flight as f64 / (1.0 + latency)).min(1.0)
    }

    #[test]
    fn as_many_as_hide_the_latency_and_no_more() {
        assert_eq!(chosen(64, waits(0.0)), (1, vec![1, 2, 4]));
        assert_eq!(
            chosen(64, waits(0.05)).0,
            1,
            "a gain within the noise was accepted"
        );
        assert_eq!(chosen(64, waits(1.0)), (2, vec![1, 2, 4, 8, 1]));
        assert_eq!(chosen(64, waits(7.0)), (8, vec![1, 2, 4, 8, 16, 32, 4]));
        assert_eq!(chosen(64, waits(1_000.0)).0, 64);
        // Here the largest number that the memory allows is no power of two.
        assert_eq!(chosen(6, waits(7.0)), (6, vec![1, 2, 4, 6, 4]));
        assert_eq!(chosen(1, waits(7.0)), (1, vec![1]));
    }

    #[test]
    fn more_than_caches_hold_are_too_many() {
        let falls =
            |in_flight: usize, n| waits(7.0)(in_flight, n) / (1.0 + in_flight as f64 / 32.0);
        assert_eq!(chosen(64, falls).0, 8);
    }

    #[test]
    fn what_only_came_later_is_not_better() {
        // Each trial is faster than the last, with any number, because more pages are in memory.
        let warms = |_, n| 1.0 - 0.6_f64.powi(n as i32 + 1);
        let (number, tried) = chosen(64, warms);
        assert_eq!(number, 1, "{tried:?}");
    }

    #[test]
    fn one_that_was_disturbed_does_not_end_it() {
        let disturbed = |in_flight, n| waits(7.0)(in_flight, n) * if n == 2 { 0.3 } else { 1.0 };
        assert_eq!(chosen(64, disturbed).0, 8);
    }

    fn tune(
        threads: usize,
        most: usize,
        rows: usize,
        qps: impl Fn(usize) -> f64,
    ) -> (Tuning, usize) {
        let mut tuning = Tuning {
            climb: Climb::new(most),
            phase: Phase::Changes(threads),
            left: rows / 2,
        };
        let mut now = Instant::now();
        for answers in 1..=rows {
            now += Duration::from_secs_f64(1.0 / qps(tuning.climb.now));
            if tuning.answered(threads, now) && tuning.is_over() {
                return (tuning, answers);
            }
        }
        panic!("the tuning does not end: {tuning:?}");
    }

    #[test]
    fn rates_are_as_they_were_and_half_of_a_batch_is_enough() {
        let rate = |in_flight: usize| 10_000.0 * waits(7.0)(in_flight, 0);
        let (tuning, answers) = tune(2, 64, 2_000, rate);
        assert_eq!(tuning.climb.best.unwrap().in_flight, 8);
        assert!(answers <= 1_000, "{answers}");
        for tried in &tuning.climb.tried {
            let expected = rate(tried.in_flight);
            assert!(
                (tried.qps / expected - 1.0).abs() < 0.05,
                "{tried:?}, {expected}"
            );
        }
        // Half of this batch does not suffice for the measurement.
        let (tuning, answers) = tune(1, 64, FROM, |in_flight| 100.0 * in_flight as f64);
        assert_eq!(
            (tuning.climb.best.unwrap().in_flight, answers),
            (4, FROM / 2)
        );
        // Queries that finish too fast to be measured give no throughput.
        let (tuning, _) = tune(1, 64, FROM, |_| 1e6);
        assert_eq!((tuning.climb.best, tuning.climb.now), (None, 1));
    }
}
