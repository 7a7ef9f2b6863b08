//! The thread that measures whenever a sample is full, and rests in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use stratann_tier::{Home, TierError};

use super::RecallWatch;
use crate::Error;
use crate::progress::Progress;

/// The time of rest, as a multiple of the time of a measurement. So it computes and reads a
/// twentieth of the time.
const REST: u32 = 19;
/// The shortest rest, for measurements that end at once in an error.
const LEAST_REST: Duration = Duration::from_secs(1);

/// Measures until it is dropped, in the process that started it. A forked process has no such
/// thread.
pub(crate) struct Measurer {
    watch: RecallWatch,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    home: Home,
}

/// Whether the thread must end.
#[derive(Default)]
pub(super) struct Stop(AtomicBool);

impl Stop {
    fn is_told(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Interrupts a pass if the thread must end, or if `also` returns true.
    pub(super) fn or<'a>(&'a self, also: &'a (dyn Fn() -> bool + Sync)) -> Until<'a> {
        Until { stop: self, also }
    }
}

/// A condition that interrupts a pass.
pub(super) struct Until<'a> {
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
    /// the index is gone.
    ///
    /// # Errors
    /// The system has no thread.
    pub(super) fn start(
        watch: RecallWatch,
        measure: impl Fn(&Stop) -> Option<Result<(), Error>> + Send + 'static,
    ) -> Result<Self, Error> {
        let stop = Arc::<Stop>::default();
        let (told, of_thread) = (stop.clone(), watch.clone());
        let turn = watch.0.turn.fetch_add(1, Ordering::AcqRel) + 1;
        // The previous thread ends.
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
                of_thread.rest(&told, turn, LEAST_REST.max(began.elapsed() * REST));
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
            stop,
            thread: Some(thread),
            home: Home::here(),
        })
    }

    /// The thread.
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
        // This thread itself may drop the last reference to the index.
        let is_here = self.id() == Some(std::thread::current().id());
        if let Some(thread) = self.thread.take().filter(|_| !is_here)
            && thread.join().is_err()
        {
            tracing::error!("the thread that measures recall panicked");
        }
    }
}

impl RecallWatch {
    /// Wakes threads to check whether they must end.
    fn wake(&self) {
        // A thread that is about to wait has checked already, or checks after this.
        let _sample = self.0.sample.lock();
        self.0.changed.notify_all();
    }

    fn ends(&self, stop: &Stop, turn: u64) -> bool {
        stop.is_told() || self.0.turn.load(Ordering::Acquire) != turn
    }

    /// Waits until a sample is full. False if the thread must end.
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

    /// Rests for `time`, unless the thread must end.
    fn rest(&self, stop: &Stop, turn: u64, time: Duration) {
        let until = Instant::now() + time;
        let mut sample = self.0.sample.lock();
        while !self.ends(stop, turn) && !self.0.changed.wait_until(&mut sample, until).timed_out() {
        }
    }
}
