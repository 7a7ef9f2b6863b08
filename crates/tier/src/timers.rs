//! What is to be woken when, of one thread: plain timers, for which it sleeps, and exact ones,
//! before which it is awake.
//!
//! ```text
//!   plain   ──────── sleeps ──────────────────────> due, and later by what the kernel takes to wake it
//!   exact   ──────── sleeps ───> alarm ── awake ──> due
//!                                  └── early ───────┘
//! ```
//!
//! A thread that is asleep is back 27 to 40 µs after its time on the machine where this was
//! measured (2 virtual cores, the kernel's own slack of 50 µs taken away; 75 to 89 µs with it), and
//! elsewhere after a few. What has to come at its microsecond, as the answers of a modelled device
//! do, is therefore waited for awake at last: as long as this thread was late before, [`EARLY`] at
//! most.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::task::Waker;
use std::time::{Duration, Instant};

/// How long before an exact timer ends its thread is to be awake at most, and therefore the longest
/// that it may spin for it. It is a little more than what a thread is late by when it is woken
/// (module documentation), until this one knows better.
pub(crate) const EARLY: Duration = Duration::from_micros(50);

/// How a timer is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// Asleep: it ends some ten microseconds late.
    Plain,
    /// Awake at last.
    Exact,
}

/// A timer: when it ends, and a number that tells it from others of the same time.
pub(crate) type Timer = (Instant, u64);

/// The timers of one thread.
#[derive(Debug)]
pub(crate) struct Timers {
    plain: BTreeMap<Timer, Waker>,
    exact: BTreeMap<Timer, Waker>,
    next: u64,
    /// Whether the kernel was told that this thread's sleeps are to end in time.
    punctual: bool,
    /// How long before an exact timer the thread is to be awake.
    early: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            plain: BTreeMap::new(),
            exact: BTreeMap::new(),
            next: 0,
            punctual: false,
            early: EARLY,
        }
    }
}

impl Timers {
    /// The thread slept until an alarm, and was late. What it is late by counts at once if it is
    /// more than was allowed for, and slowly if it is less.
    pub(crate) fn woke(&mut self, late: Duration) {
        let with_room = late + late / 4;
        self.early = (self.early - self.early / 16).max(with_room).min(EARLY);
    }

    /// How long before an exact timer the thread is to be awake.
    pub(crate) fn early(&self) -> Duration {
        self.early
    }

    /// Has `waker` woken at a time, by the timer that has this number or by a new one; gives its
    /// number.
    pub(crate) fn set(
        &mut self,
        due: Instant,
        number: Option<u64>,
        precision: Precision,
        waker: &Waker,
    ) -> u64 {
        let number = number.unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        if precision == Precision::Exact && !self.punctual {
            self.punctual = true;
            // The kernel may delay the end of a sleep by 50 µs, to wake several threads at once. It
            // does so to other sleeps of this thread no more either. Where it refuses, sleeps are
            // late, which costs accuracy and nothing else.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        }
        match self.of(precision).get_mut(&(due, number)) {
            Some(known) => known.clone_from(waker),
            None => _ = self.of(precision).insert((due, number), waker.clone()),
        }
        number
    }

    fn of(&mut self, precision: Precision) -> &mut BTreeMap<Timer, Waker> {
        match precision {
            Precision::Plain => &mut self.plain,
            Precision::Exact => &mut self.exact,
        }
    }

    /// Takes a timer back, if it has not ended. The waker is foreign code: drop it when nothing is
    /// borrowed.
    pub(crate) fn forget(&mut self, timer: Timer, precision: Precision) -> Option<Waker> {
        self.of(precision).remove(&timer)
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.exact.is_empty()
    }

    /// Takes a timer that has ended by now.
    pub(crate) fn ended(&mut self, now: Instant) -> Option<Waker> {
        for timers in [&mut self.exact, &mut self.plain] {
            if let Some(first) = timers.first_entry()
                && first.key().0 <= now
            {
                return Some(first.remove());
            }
        }
        None
    }

    /// Until when the thread may sleep; `None`: no timer ends.
    pub(crate) fn alarm(&self) -> Option<Instant> {
        let plain = self.plain.keys().next().map(|&(due, _)| due);
        let exact = self
            .exact_due()
            .map(|due| due.checked_sub(self.early).unwrap_or(due));
        [plain, exact].into_iter().flatten().min()
    }

    /// When the next exact timer ends.
    pub(crate) fn exact_due(&self) -> Option<Instant> {
        self.exact.keys().next().map(|&(due, _)| due)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    use super::*;

    /// Says its number when it is woken.
    struct Said(u64, Arc<Mutex<Vec<u64>>>);

    impl Wake for Said {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    #[test]
    fn those_that_are_due_together_are_woken_in_the_order_of_their_times() {
        let now = Instant::now();
        let at = |millis| now + Duration::from_millis(millis);
        let said = Arc::new(Mutex::new(Vec::new()));
        let mut timers = Timers::default();
        for millis in [20, 5, 30, 10] {
            let waker = Waker::from(Arc::new(Said(millis, said.clone())));
            timers.set(at(millis), None, Precision::Plain, &waker);
        }
        let mut woken = |until| {
            while let Some(waker) = timers.ended(at(until)) {
                waker.wake();
            }
            std::mem::take(&mut *said.lock().unwrap())
        };
        assert_eq!(woken(4), []);
        assert_eq!(woken(20), [5, 10, 20]);
        assert_eq!(woken(29), []);
        assert_eq!(woken(30), [30]);
    }

    #[test]
    fn a_thread_is_awake_early_for_exact_timers_and_for_no_others() {
        let now = Instant::now();
        let at = |micros| now + Duration::from_micros(micros);
        let mut timers = Timers::default();
        assert_eq!((timers.alarm(), timers.is_empty()), (None, true));
        let late = timers.set(at(1000), None, Precision::Plain, Waker::noop());
        assert_eq!((timers.alarm(), timers.exact_due()), (Some(at(1000)), None));
        let soon = timers.set(at(1010), None, Precision::Exact, Waker::noop());
        assert_ne!(late, soon);
        assert_eq!(
            timers.alarm(),
            Some(at(960)),
            "the later one needs it awake first"
        );
        assert_eq!(timers.exact_due(), Some(at(1010)));
        assert!(timers.ended(at(999)).is_none());
        assert!(timers.ended(at(1000)).is_some() && timers.ended(at(1000)).is_none());
        // A thread that is woken sooner sleeps longer, and one that is late once does not again.
        for _ in 0..100 {
            timers.woke(Duration::from_micros(4));
        }
        assert_eq!(timers.early(), Duration::from_micros(5));
        timers.woke(Duration::from_micros(20));
        assert_eq!(timers.alarm(), Some(at(1010 - 25)));
        timers.woke(Duration::from_secs(1));
        assert_eq!(timers.early(), EARLY);
        // Set again under its number, it is still one.
        timers.set(at(1010), Some(soon), Precision::Exact, Waker::noop());
        assert!(timers.forget((at(1010), soon), Precision::Exact).is_some());
        assert!(timers.is_empty());
    }
}
