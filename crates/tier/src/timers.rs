//! The timers of one thread. The thread sleeps until a plain timer ends, and is awake shortly
//! before an exact timer ends.
//!
//! ```text
//!   plain   ──────── sleeps ──────────────────────> due, plus the kernel's delay
//!   exact   ──────── sleeps ───> alarm ── awake ──> due
//!                                  └── early ───────┘
//! ```
//!
//! A sleeping thread wakes some microseconds late: 75 to 89 µs on the measured machine (2 virtual
//! cores), and 27 to 40 µs without the kernel's timer slack. A modelled device must complete reads
//! at the right microsecond. So the thread stays awake for a little more than its recent delays,
//! and at most [`EARLY`].

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::task::Waker;
use std::time::{Duration, Instant};

/// A little more than the delay on the measured machine without timer slack.
pub(crate) const EARLY: Duration = Duration::from_micros(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// The thread sleeps. The timer ends some tens of microseconds late.
    Plain,
    /// The thread is awake for the last part of the wait.
    Exact,
}

/// The time of the end, and a number that distinguishes timers with the same end.
pub(crate) type Timer = (Instant, u64);

#[derive(Debug)]
pub(crate) struct Timers {
    plain: BTreeMap<Timer, Waker>,
    exact: BTreeMap<Timer, Waker>,
    next: u64,
    punctual: bool,
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
    /// Notes the delay of a wake-up. A longer delay takes effect at once, a shorter delay slowly.
    pub(crate) fn woke(&mut self, late: Duration) {
        let with_room = late + late / 4;
        self.early = (self.early - self.early / 16).max(with_room).min(EARLY);
    }

    pub(crate) fn early(&self) -> Duration {
        self.early
    }

    /// Registers `waker` in timer `number` or in a new timer, and returns the number of the timer.
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
            // The kernel may delay a wake-up by 50 µs. If the kernel refuses this setting, only
            // accuracy suffers.
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

    /// A waker is foreign code, so the caller must drop it while no `RefCell` is borrowed.
    pub(crate) fn forget(&mut self, timer: Timer, precision: Precision) -> Option<Waker> {
        self.of(precision).remove(&timer)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.exact.is_empty()
    }

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

    pub(crate) fn alarm(&self) -> Option<Instant> {
        let plain = self.plain.keys().next().map(|&(due, _)| due);
        let exact = self
            .exact_due()
            .map(|due| due.checked_sub(self.early).unwrap_or(due));
        [plain, exact].into_iter().flatten().min()
    }

    pub(crate) fn exact_due(&self) -> Option<Instant> {
        self.exact.keys().next().map(|&(due, _)| due)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    use super::*;

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
            "the thread must be awake early for the exact timer, although the plain timer ends first"
        );
        assert_eq!(timers.exact_due(), Some(at(1010)));
        assert!(timers.ended(at(999)).is_none());
        assert!(timers.ended(at(1000)).is_some() && timers.ended(at(1000)).is_none());
        for _ in 0..100 {
            timers.woke(Duration::from_micros(4));
        }
        assert_eq!(timers.early(), Duration::from_micros(5));
        timers.woke(Duration::from_micros(20));
        assert_eq!(timers.alarm(), Some(at(1010 - 25)));
        timers.woke(Duration::from_secs(1));
        assert_eq!(timers.early(), EARLY);
        timers.set(at(1010), Some(soon), Precision::Exact, Waker::noop());
        assert!(timers.forget((at(1010), soon), Precision::Exact).is_some());
        assert!(timers.is_empty());
    }
}
