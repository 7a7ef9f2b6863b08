//! A thread's context: its reads, its buffers, and a cooperative executor for its tasks.
//!
//! ```text
//!   loop:  poll every ready task
//!          some are ready again?  -> start what they queued, let in what has come, go on
//!          none is?               -> start and wait in one system call
//! ```
//!
//! Tasks are futures that never leave the thread. Waking one sets a bit; nothing is allocated after the start.

use std::cell::RefCell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Instant;

use crate::crew::{Backend, IoMode};
use crate::error::TierError;
use crate::reactor::{Io, Reactor};

/// A task for [`Thread::run_all`].
pub type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// The context of one thread: what tasks on it read with. Neither `Send` nor `Sync`.
///
/// A [`Crew`](crate::Crew) gives one to each of its workers; [`Thread::local`] makes one for the calling thread.
#[derive(Debug)]
pub struct Thread {
    reactor: Rc<Reactor>,
    io: Arc<Io>,
    /// Explicit, though the Rc says it too: rings refuse other threads than their own.
    _stays: PhantomData<*const ()>,
}

impl std::fmt::Debug for Io {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Io({:?})", self.backend())
    }
}

impl Thread {
    /// A context for the calling thread.
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

    /// How this thread reads files.
    pub fn backend(&self) -> Backend {
        self.io.backend()
    }

    /// Reads at the device or on their way to it, of all lanes of this thread.
    pub fn reads_in_flight(&self) -> usize {
        self.reactor.in_flight()
    }

    /// Runs tasks until all have finished.
    ///
    /// A task that is woken from another thread runs when this one next turns, at the latest when one of the reads
    /// in flight comes in. If a task panics, the others are dropped, and the context remains usable.
    pub fn run_all<'a>(&self, tasks: Vec<Task<'a>>) {
        let ready = Arc::new(Ready::new(tasks.len()));
        let wakers: Vec<Waker> = (0..tasks.len())
            .map(|index| {
                Waker::from(Arc::new(TaskWaker {
                    ready: ready.clone(),
                    index,
                }))
            })
            .collect();
        let mut tasks: Vec<Option<Task<'a>>> = tasks.into_iter().map(Some).collect();
        let live = Live::add(&self.reactor, tasks.len());
        while live.left.get() > 0 {
            for (word, bits) in ready.words.iter().enumerate() {
                if bits.load(Ordering::Relaxed) == 0 {
                    continue;
                }
                let mut bits = bits.swap(0, Ordering::AcqRel);
                while bits != 0 {
                    let index = word * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    let Some(task) = &mut tasks[index] else {
                        continue;
                    };
                    if task
                        .as_mut()
                        .poll(&mut Context::from_waker(&wakers[index]))
                        .is_ready()
                    {
                        tasks[index] = None;
                        live.finish();
                    }
                }
            }
            if live.left.get() == 0 {
                break;
            }
            if ready.any() {
                self.reactor.turn();
                continue;
            }
            self.reactor.reap();
            if !ready.any() && !self.reactor.wait() {
                ready.park();
            }
        }
    }

    /// Runs one future to its end and returns what it gives.
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
        Sleep {
            reactor: self.reactor.clone(),
            due,
            waits: false,
        }
    }
}

/// The future of [`Thread::sleep_until`].
#[derive(Debug)]
pub struct Sleep {
    reactor: Rc<Reactor>,
    due: Instant,
    waits: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.due {
            return Poll::Ready(());
        }
        if !self.waits {
            self.waits = true;
            self.reactor.sleep(self.due, cx.waker().clone());
        }
        Poll::Pending
    }
}

/// Counts the tasks that are left, also for the reactor, and takes them back if one panics.
struct Live<'a> {
    reactor: &'a Reactor,
    left: std::cell::Cell<usize>,
}

impl<'a> Live<'a> {
    fn add(reactor: &'a Reactor, count: usize) -> Live<'a> {
        reactor.tasks.set(reactor.tasks.get() + count);
        Live {
            reactor,
            left: std::cell::Cell::new(count),
        }
    }

    fn finish(&self) {
        self.left.set(self.left.get() - 1);
        self.reactor.tasks.set(self.reactor.tasks.get() - 1);
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        self.reactor
            .tasks
            .set(self.reactor.tasks.get() - self.left.get());
    }
}

/// The tasks that are to be polled: one bit each.
struct Ready {
    words: Box<[AtomicU64]>,
    /// True while the owner sleeps with nothing in flight.
    parked: AtomicBool,
    owner: thread::Thread,
}

impl Ready {
    /// All tasks are ready at first.
    fn new(tasks: usize) -> Ready {
        let word = |i: usize| {
            AtomicU64::new(if tasks - i * 64 >= 64 {
                u64::MAX
            } else {
                (1 << (tasks % 64)) - 1
            })
        };
        let words = (0..tasks.div_ceil(64)).map(word).collect();
        Ready {
            words,
            parked: AtomicBool::new(false),
            owner: thread::current(),
        }
    }

    fn any(&self) -> bool {
        self.words
            .iter()
            .any(|word| word.load(Ordering::SeqCst) != 0)
    }

    /// Sleeps until a task is woken from another thread.
    fn park(&self) {
        self.parked.store(true, Ordering::SeqCst);
        // Either the waker sees `parked` after it has set its bit, or the bit is seen here: both are SeqCst.
        while !self.any() {
            thread::park();
        }
        self.parked.store(false, Ordering::SeqCst);
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
        if self.ready.parked.load(Ordering::SeqCst) {
            self.ready.owner.unpark();
        }
    }
}
