//! The memory role as a server.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use stratann_tier::Span;
use stratann_tier::remote::wire::Protocol;

use crate::link::duplex::Duplex;
use crate::link::{Batching, Broken, Counts, Inbox, Outbox, Traffic};
use crate::listen::{Door, Guest, Listening, Service};
use crate::options::{NodeError, Options};
use crate::role::{Checkpoints, HighHalf, MemoryOptions, MemoryState};
use crate::wire::MOST_ASKED;

/// Answers that are collected before they are sent.
const COLLECTED: usize = 256 << 10;

/// A memory server that runs, until this is dropped. Each connection has a thread, which reads what came, answers all of it from memory
/// and writes once; a compute server that is to use several threads of it makes several connections.
pub struct MemoryServer {
    listening: Listening,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    counts: Arc<Counts>,
    connections: AtomicUsize,
    counter: Counter,
}

/// Has it counted how popular nodes are, once for all connections and on none of their threads: of many nodes that takes longer than a connection may be silent.
#[derive(Default)]
struct Counter {
    over: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Counter {
    /// Begins to count, unless something is being counted: who needs it asks again until it is known.
    fn count<H: HighHalf>(&self, high: Arc<H>) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = thread.as_ref().is_some_and(|thread| !thread.is_finished());
        if counts || self.over.load(Ordering::SeqCst) {
            return;
        }
        let over = self.over.clone();
        let counts = move || {
            let began = Instant::now();
            while !over.load(Ordering::SeqCst) {
                match high.count_popular() {
                    Ok(false) => {}
                    Ok(true) => {
                        let took = Span(began.elapsed());
                        return tracing::info!(
                            "it is known how popular nodes are, for compute servers without room for all low codes: counted in {took}"
                        );
                    }
                    Err(error) => {
                        return tracing::warn!(
                            "how popular nodes are cannot be counted, and compute servers need room for all low codes: {error}"
                        );
                    }
                }
            }
        };
        let named = thread::Builder::new().name("stratann-popular".to_owned());
        match named.spawn(counts) {
            Ok(begun) => *thread = Some(begun),
            // Whoever asks again tries again.
            Err(error) => tracing::warn!("no thread to count how popular nodes are: {error}"),
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let thread = self
            .thread
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // Some milliseconds. What it panicked of is on standard error.
            let _ = thread.join();
        }
    }
}

/// How long the checkpoint before the last is kept that nobody goes by.
const KEPT: Duration = Duration::from_secs(30);

/// The lists and codes that a memory server has by now: those of a later checkpoint may take their place while it runs.
pub struct Newest<H> {
    kept: Arc<Mutex<Kept<H>>>,
}

struct Kept<H> {
    checkpoints: Checkpoints<H>,
    /// When somebody last went by the checkpoint before the last, or could not know of the last yet.
    behind: Instant,
}

impl<H> Clone for Newest<H> {
    fn clone(&self) -> Newest<H> {
        Newest {
            kept: self.kept.clone(),
        }
    }
}

impl<H: HighHalf> Newest<H> {
    /// With those of the first checkpoint.
    pub fn new(high: Arc<H>) -> Newest<H> {
        let kept = Kept {
            checkpoints: Checkpoints::of(high),
            behind: Instant::now(),
        };
        Newest {
            kept: Arc::new(Mutex::new(kept)),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept<H>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last ones.
    pub fn get(&self) -> Arc<H> {
        self.kept().checkpoints.last().clone()
    }

    /// Whether others are kept besides, which somebody goes by.
    pub fn has_before(&self) -> bool {
        self.kept().checkpoints.has_before()
    }

    /// Puts others in their place. Walks go on in those of before as long as a compute server asks for them.
    pub fn put(&self, high: Arc<H>) {
        let mut kept = self.kept();
        kept.checkpoints.go_on(high);
        kept.behind = Instant::now();
    }

    /// Gives up those of before that nobody has gone by for half a minute. To be called now and then.
    pub fn forget_unused(&self) {
        let mut kept = self.kept();
        if kept.checkpoints.has_before() && kept.behind.elapsed() >= KEPT {
            kept.checkpoints.forget_before();
            tracing::info!(
                "the state of the index before the last one is given up: nobody goes by it any more"
            );
        }
    }

    fn checkpoints(&self) -> Checkpoints<H> {
        self.kept().checkpoints.clone()
    }

    fn behind(&self) {
        self.kept().behind = Instant::now();
    }
}

struct Memory<H> {
    high: Newest<H>,
    options: MemoryOptions,
    batching: Batching,
    shared: Arc<Shared>,
}

/// What ends a service's connection, as its caller takes it.
pub(super) fn ended(broken: Broken) -> io::Result<()> {
    match broken {
        Broken::Over | Broken::Waits(_) => Ok(()),
        Broken::Io(error) => Err(error),
        Broken::Wire(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    }
}

impl<H: HighHalf> Service for Memory<H> {
    fn protocol(&self) -> Protocol {
        Protocol::Memory
    }

    fn serve(&self, client: Guest<'_>) -> io::Result<()> {
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        let served = self.attend(client);
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        served.or_else(ended)
    }
}

impl<H: HighHalf> Memory<H> {
    fn attend(&self, client: Guest<'_>) -> Result<(), Broken> {
        let counts = &self.shared.counts;
        let Duplex {
            receiver,
            sender,
            closer,
        } = Duplex::of_stream(client.stream, Some(client.patience))?;
        let outbox = Outbox::new(sender, closer, self.batching, counts.clone());
        let mut inbox = Inbox::new(receiver, counts.clone(), client.patience, MOST_ASKED);
        let mut state = MemoryState::new(self.options);
        let (began, mut out) = (Instant::now(), Vec::new());
        while !client.stop.load(Ordering::SeqCst) {
            inbox.read()?;
            let now = began.elapsed();
            state.expire(now);
            // For as long as these messages take: a connection that rests keeps none of them in memory.
            let checkpoints = self.high.checkpoints();
            while let Some(frame) = inbox.frame()? {
                state.message(now, &frame, &checkpoints, &mut out)?;
                if out.len() >= COLLECTED {
                    outbox.post(&out);
                    out.clear();
                }
            }
            drop(checkpoints);
            if let Some(high) = state.take_uncounted() {
                self.shared.counter.count(high);
            }
            if state.was_behind() {
                self.high.behind();
            }
            outbox.post(&out);
            out.clear();
            out.shrink_to(2 * COLLECTED);
        }
        Ok(())
    }
}

impl MemoryServer {
    /// Listens, on threads of its own. `batch`: whether answers to what came together are written together, as they should be but to compare.
    ///
    /// # Errors
    /// As those of [`Running::start`](crate::Running::start).
    pub fn start<H: HighHalf>(
        high: Arc<H>,
        walks: MemoryOptions,
        batch: bool,
        options: Options,
    ) -> Result<MemoryServer, NodeError> {
        MemoryServer::following(Newest::new(high), walks, batch, options)
    }

    /// As [`start`](Self::start), and goes on to what is [put](Newest::put) in the place of what there is: compute servers hear of it, and fetch other low codes.
    ///
    /// # Errors
    /// As those of [`start`](Self::start).
    pub fn following<H: HighHalf>(
        high: Newest<H>,
        walks: MemoryOptions,
        batch: bool,
        options: Options,
    ) -> Result<MemoryServer, NodeError> {
        let shared = Arc::new(Shared::default());
        let service = Memory {
            high,
            options: walks,
            batching: Batching {
                on: batch,
                enough: 1,
            },
            shared: shared.clone(),
        };
        Ok(MemoryServer {
            listening: Listening::start(Arc::new(service), options)?,
            shared,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// The way to it within this process.
    pub fn door(&self) -> Door {
        self.listening.door()
    }

    /// What went through its connections.
    pub fn traffic(&self) -> Traffic {
        self.shared.counts.traffic()
    }

    /// Connections that there are.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}
