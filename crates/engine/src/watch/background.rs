//! The background thread that measures live recall. It measures whenever a sample is full, and
//! pauses after each measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use stratann_tier::{Home, TierError};

use super::RecallWatch;
use crate::Error;
use crate::progress::Progress;

/// The pause is this many times as long as the last measurement. So the thread computes and reads
/// for a twentieth of the time.
const REST: u32 = 19;
/// The shortest pause. It applies to a measurement that fails at once.
const LEAST_REST: Duration = Duration::from_secs(1);

/// The pause after a measurement that took `took`.
fn rest_after(took: Duration) -> Duration {
    LEAST_REST.max(took.saturating_mul(REST))
}

/// A thread that measures until this value is dropped, in the process that started the thread. A
/// process that was forked from it has no such thread.
pub(crate) struct Measurer {
    watch: RecallWatch,
    /// The number of this thread among all threads that have measured for the watch.
    turn: u64,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    home: Home,
}

/// The order to a thread to end.
#[derive(Default)]
pub(crate) struct Stop(AtomicBool);

impl Stop {
    fn is_told(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Returns a [`Progress`] that interrupts a pass if the thread must end, or if `also` returns
    /// true.
    pub(crate) fn or<'a>(&'a self, also: &'a (dyn Fn() -> bool + Sync)) -> Until<'a> {
        Until { stop: self, also }
    }
}

/// A condition that interrupts a pass.
pub(crate) struct Until<'a> {
    stop: &'a Stop,
    also: &'a (dyn Fn() -> bool + Sync),
}

impl Progress for Until<'_> {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}

    fn interrupted(&self) -> bool {
        self.stop.is_told() || (self.also)()
    }
}

impl Measurer {
    /// Starts a thread that calls `measure` whenever a sample is full. `measure` returns `None` if
    /// the index was dropped.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(crate) fn start(
        watch: RecallWatch,
        measure: impl Fn(&Stop) -> Option<Result<(), Error>> + Send + 'static,
    ) -> Result<Self, Error> {
        Self::start_with_rests(watch, measure, rest_after)
    }

    /// Does the same as [`start`](Self::start), with other lengths of the pauses.
    fn start_with_rests(
        watch: RecallWatch,
        measure: impl Fn(&Stop) -> Option<Result<(), Error>> + Send + 'static,
        rest_after: impl Fn(Duration) -> Duration + Send + 'static,
    ) -> Result<Self, Error> {
        let stop = Arc::<Stop>::default();
        let (told, of_thread) = (stop.clone(), watch.clone());
        let turn = watch.0.turn.fetch_add(1, Ordering::AcqRel) + 1;
        // An earlier thread of this watch wakes up, and ends.
        watch.wake();
        let named = Builder::new().name("stratann-recall".into());
        let thread = stratann_tier::start(named, move || {
            while of_thread.wait(&told, turn) {
                let began = Instant::now();
                match measure(&told) {
                    None | Some(Err(Error::Interrupted | Error::Stopped)) => return,
                    Some(Ok(())) => {}
                    Some(Err(error)) => tracing::warn!("recall was not measured: {error}"),
                }
                of_thread.rest(&told, turn, rest_after(began.elapsed()));
            }
        });
        let thread = thread.map_err(|source| {
            let what = "live recall".into();
            let error = Error::from(TierError::NoThread { what, source });
            watch.failed(&error);
            error
        })?;
        Ok(Self {
            watch,
            turn,
            stop,
            thread: Some(thread),
            home: Home::here(),
        })
    }

    /// Whether the thread measures the sample of this watch.
    pub(crate) fn is_of(&self, watch: &RecallWatch) -> bool {
        self.watch == *watch
    }

    /// Whether the thread still measures. It does until another thread of the same watch is
    /// started.
    pub(crate) fn measures(&self) -> bool {
        self.watch.0.turn.load(Ordering::Acquire) == self.turn
    }

    fn id(&self) -> Option<ThreadId> {
        Some(self.thread.as_ref()?.thread().id())
    }
}

impl Drop for Measurer {
    fn drop(&mut self) {
        if !self.home.is_here() {
            std::mem::forget(self.thread.take());
            return; // That thread lives in another process.
        }
        self.stop.0.store(true, Ordering::Release);
        self.watch.wake();
        // The measuring thread itself may run this drop, if it drops the last reference to the
        // index. It must not wait for itself.
        let is_here = self.id() == Some(std::thread::current().id());
        if let Some(thread) = self.thread.take().filter(|_| !is_here)
            && thread.join().is_err()
        {
            tracing::error!("the thread that measures recall panicked");
        }
    }
}

impl RecallWatch {
    /// Wakes waiting threads, so that they check whether they must end.
    fn wake(&self) {
        // Because of the lock, each thread either waits already and is woken, or checks after this
        // call.
        let _sample = self.0.sample.lock();
        self.0.changed.notify_all();
    }

    fn ends(&self, stop: &Stop, turn: u64) -> bool {
        stop.is_told() || self.0.turn.load(Ordering::Acquire) != turn
    }

    /// Waits until a sample is full. Returns false if the thread must end.
    fn wait(&self, stop: &Stop, turn: u64) -> bool {
        let mut sample = self.0.sample.lock();
        while !self.ends(stop, turn) {
            if sample.is_full() {
                return true;
            }
            self.0.changed.wait(&mut sample);
        }
        false
    }

    /// Pauses for `time`, unless the thread must end.
    fn rest(&self, stop: &Stop, turn: u64, time: Duration) {
        let until = Instant::now() + time;
        let mut sample = self.0.sample.lock();
        while !self.ends(stop, turn) && !self.0.changed.wait_until(&mut sample, until).timed_out() {
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::channel;

    use stratann_vector::Element;

    use super::*;
    use crate::SearchOptions;
    use crate::data::Matrix;

    /// A time that a step of this test exceeds only if it hangs.
    const LONG: Duration = Duration::from_secs(300);

    fn serve(watch: &RecallWatch) {
        let queries = Matrix::new(vec![0; 4], 1, 4, Element::U8).unwrap();
        watch.has_served(&queries, &SearchOptions::default(), None);
    }

    #[test]
    fn it_rests_nineteen_times_as_long_as_a_sample_took_and_at_least_a_second() {
        let seconds = Duration::from_secs;
        assert_eq!(rest_after(Duration::ZERO), seconds(1));
        assert_eq!(rest_after(Duration::from_millis(50)), seconds(1));
        assert_eq!(rest_after(seconds(3)), seconds(57));
        assert_eq!(rest_after(Duration::MAX), Duration::MAX);
    }

    /// Each pause lasts until the test ends it. A full sample does not end a pause, and is measured
    /// after the pause.
    #[test]
    fn a_full_sample_is_measured_after_the_rest_and_an_error_ends_nothing() {
        let watch = RecallWatch::new(1).unwrap();
        let measured = Arc::<AtomicUsize>::default();
        let (rests, resting) = channel();
        let (wake, woken) = channel();
        let (of_thread, count) = (watch.clone(), measured.clone());
        let measure = move |_: &Stop| {
            assert_eq!(of_thread.take().len(), 1);
            // The sample is full again before the pause begins.
            serve(&of_thread);
            match count.fetch_add(1, Ordering::AcqRel) {
                1 => Some(Err(Error::call(
                    "a query",
                    "lost",
                    "of a test",
                    "Ask again",
                ))),
                _ => Some(Ok(())),
            }
        };
        let rest = move |_: Duration| {
            rests.send(()).unwrap();
            woken.recv().unwrap()
        };
        let measurer = Measurer::start_with_rests(watch.clone(), measure, rest).unwrap();
        serve(&watch);
        for times in 1..4 {
            resting.recv_timeout(LONG).unwrap();
            assert_eq!(measured.load(Ordering::Acquire), times);
            // The last pause is longer than the test.
            wake.send(if times < 3 { Duration::ZERO } else { LONG * 12 })
                .unwrap();
        }
        // A full sample does not end the last pause. The drop ends it.
        drop(measurer);
        assert_eq!(measured.load(Ordering::Acquire), 3);
        assert_eq!(watch.found().waiting, 1);
    }
}
