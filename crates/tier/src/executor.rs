//! The context of a thread: its reads, its buffers, and a cooperative executor for its tasks.
//!
//! ```text
//!   loop:  poll every ready task
//!          some are ready again?  -> start the queued reads, take completions, repeat
//!          none is ready?         -> start queued reads and wait, in one system call
//! ```
//!
//! Tasks are futures that never leave the thread, and waking a task sets a bit. Memory is allocated
//! only when a group of tasks starts. A worker of a [`WorkerPool`](crate::WorkerPool) polls the
//! groups of several runs in turn.

use std::cell::RefCell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Instant;

use crate::backend::{Backend, IoMode};
use crate::error::TierError;
use crate::parking::Parking;
use crate::reactor::{Io, Reactor};
use crate::timers::Precision;

/// A task for [`Thread::run_all`].
pub type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// The context of one thread, through which its tasks read; neither `Send` nor `Sync`.
#[derive(Debug)]
pub struct Thread {
    reactor: Rc<Reactor>,
    io: Arc<Io>,
    /// Only the thread that created a ring can use it.
    _stays: PhantomData<*const ()>,
}

impl std::fmt::Debug for Io {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Io({:?})", self.backend())
    }
}

impl Thread {
    /// Creates a context for the calling thread.
    pub fn local(io: IoMode) -> Result<Thread, TierError> {
        Ok(Thread::with(Io::new(io, false, 1)?))
    }

    pub(crate) fn with(io: Arc<Io>) -> Thread {
        Thread {
            reactor: Reactor::new(io.clone()),
            io,
            _stays: PhantomData,
        }
    }

    pub(crate) fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    /// The backend with which this thread reads files.
    pub fn backend(&self) -> Backend {
        self.io.backend()
    }

    /// The number of reads of this thread that are queued or at the device.
    pub fn reads_in_flight(&self) -> usize {
        self.reactor.in_flight()
    }

    /// Runs tasks until all have ended. If another thread wakes a task, the task runs at once, or
    /// when a read completes. If a task panics, the other tasks are dropped.
    pub fn run_all<'a>(&self, tasks: Vec<Task<'a>>) {
        let parking = Arc::new(Parking::of(thread::current()));
        let mut group = Group::new(self, &parking, tasks);
        while !group.is_done() {
            group.poll();
            if group.is_done() {
                break;
            }
            if group.is_ready() {
                self.reactor.turn();
                continue;
            }
            self.reactor.reap();
            if !group.is_ready() {
                self.reactor.wait(&parking, || group.is_ready());
            }
        }
        self.reactor.settle();
    }

    /// Runs one future to its end and returns its result.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let result = RefCell::new(None);
        self.run_all(vec![Box::pin(async {
            let value = future.await;
            *result.borrow_mut() = Some(value);
        })]);
        result
            .into_inner()
            .expect("run_all returns when the task has finished")
    }

    /// Sleeps until `due` while other tasks run.
    pub fn sleep_until(&self, due: Instant) -> Sleep {
        Sleep::until(&self.reactor, due, Precision::Plain)
    }

    /// Leaves the calling task out of the count of tasks, until the returned value is dropped. By
    /// this count, the thread decides how to wait for reads.
    pub fn set_aside(&self) -> Aside {
        let tasks = &self.reactor.tasks;
        tasks.set(tasks.get().saturating_sub(1));
        Aside {
            reactor: self.reactor.clone(),
        }
    }
}

/// While this value exists, a task is left out of the count ([`Thread::set_aside`]).
#[derive(Debug)]
#[must_use = "the task counts again as soon as this is dropped"]
pub struct Aside {
    reactor: Rc<Reactor>,
}

impl Drop for Aside {
    fn drop(&mut self) {
        let tasks = &self.reactor.tasks;
        tasks.set(tasks.get() + 1);
    }
}

/// The future of [`Thread::sleep_until`]. Dropping it removes the timer.
#[derive(Debug)]
pub struct Sleep {
    reactor: Rc<Reactor>,
    due: Instant,
    precision: Precision,
    timer: Option<u64>,
}

impl Sleep {
    pub(crate) fn until(reactor: &Rc<Reactor>, due: Instant, precision: Precision) -> Sleep {
        Sleep {
            reactor: reactor.clone(),
            due,
            precision,
            timer: None,
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.due {
            return Poll::Ready(());
        }
        let mut timers = self.reactor.timers.borrow_mut();
        let timer = timers.set(self.due, self.timer, self.precision, cx.waker());
        drop(timers);
        self.timer = Some(timer);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            let mut timers = self.reactor.timers.borrow_mut();
            let waker = timers.forget((self.due, timer), self.precision);
            drop(timers);
            drop(waker);
        }
    }
}

pub(crate) struct Group<'a> {
    tasks: Vec<Option<Task<'a>>>,
    wakers: Vec<Waker>,
    ready: Arc<Ready>,
    /// The tasks that have not ended. The reactor counts them too.
    left: usize,
    reactor: Rc<Reactor>,
}

impl<'a> Group<'a> {
    pub(crate) fn new(thread: &Thread, parking: &Arc<Parking>, tasks: Vec<Task<'a>>) -> Self {
        let ready = Arc::new(Ready::new(tasks.len(), parking.clone()));
        let wakers = (0..tasks.len())
            .map(|index| {
                Waker::from(Arc::new(TaskWaker {
                    ready: ready.clone(),
                    index,
                }))
            })
            .collect();
        let reactor = thread.reactor.clone();
        reactor.tasks.set(reactor.tasks.get() + tasks.len());
        Self {
            left: tasks.len(),
            tasks: tasks.into_iter().map(Some).collect(),
            wakers,
            ready,
            reactor,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.left == 0
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready.any()
    }

    pub(crate) fn poll(&mut self) {
        for (word, bits) in self.ready.words.iter().enumerate() {
            if bits.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = bits.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let index = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let Some(task) = &mut self.tasks[index] else {
                    continue;
                };
                let mut context = Context::from_waker(&self.wakers[index]);
                if task.as_mut().poll(&mut context).is_ready() {
                    self.tasks[index] = None;
                    self.left -= 1;
                    self.reactor.tasks.set(self.reactor.tasks.get() - 1);
                }
            }
        }
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        // The tasks are dropped before the subtraction, because a task that was set aside counts
        // again when it is dropped.
        self.tasks.clear();
        let tasks = self.reactor.tasks.get();
        self.reactor.tasks.set(tasks - self.left);
    }
}

struct Ready {
    words: Box<[AtomicU64]>,
    parking: Arc<Parking>,
}

impl Ready {
    fn new(tasks: usize, parking: Arc<Parking>) -> Ready {
        let word = |i: usize| {
            AtomicU64::new(if tasks - i * 64 >= 64 {
                u64::MAX
            } else {
                (1 << (tasks % 64)) - 1
            })
        };
        let words = (0..tasks.div_ceil(64)).map(word).collect();
        Ready { words, parking }
    }

    fn any(&self) -> bool {
        self.words
            .iter()
            .any(|word| word.load(Ordering::SeqCst) != 0)
    }
}

struct TaskWaker {
    ready: Arc<Ready>,
    index: usize,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.words[self.index / 64].fetch_or(1 << (self.index % 64), Ordering::SeqCst);
        self.ready.parking.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_task_that_is_set_aside_counts_again_when_its_turn_comes_or_it_is_gone() {
        let thread = Thread::local(IoMode::Auto).unwrap();
        let count = || thread.reactor.tasks.get();
        let task = || {
            Box::pin(async {
                assert_eq!(count(), 2);
                let aside = thread.set_aside();
                assert_eq!(count(), 1);
                drop(aside);
                assert_eq!(count(), 2);
            }) as Task<'_>
        };
        let waits = Box::pin(async {
            thread.sleep_until(Instant::now()).await;
        });
        thread.run_all(vec![task(), waits]);
        assert_eq!(count(), 0);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let aside = || {
                Box::pin(async {
                    let _aside = thread.set_aside();
                    pending::<()>().await;
                }) as Task<'_>
            };
            thread.run_all(vec![
                aside(),
                aside(),
                Box::pin(async { panic!("on purpose") }),
            ]);
        }));
        assert!(panicked.is_err());
        assert_eq!(count(), 0);
    }
}
