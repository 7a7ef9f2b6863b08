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

/// When a connection has collected this many bytes of replies, it sends them.
const COLLECTED: usize = 256 << 10;

/// A memory server that runs until it is dropped, with one thread for each connection.
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

/// Counts the popularity of nodes once for all connections.
#[derive(Default)]
struct Counter {
    over: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Counter {
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
                            "the links to each node were counted in {took}, so compute servers without memory for all low codes can be served"
                        );
                    }
                    Err(error) => {
                        return tracing::warn!(
                            "the links to each node cannot be counted, so compute servers need memory for all low codes: {error}"
                        );
                    }
                }
            }
        };
        let named = thread::Builder::new().name("stratann-popular".to_owned());
        match stratann_tier::start(named, counts) {
            Ok(begun) => *thread = Some(begun),
            Err(error) => {
                tracing::warn!(
                    "no thread could be started to count the links to each node: {error}"
                )
            }
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
            // The join waits for some milliseconds.
            let _ = thread.join();
        }
    }
}

/// The time for which an unused earlier checkpoint stays in memory.
const KEPT: Duration = Duration::from_secs(30);

/// The checkpoint that a memory server serves, until a later one replaces it.
pub struct Newest<H> {
    kept: Arc<Mutex<Kept<H>>>,
}

struct Kept<H> {
    checkpoints: Checkpoints<H>,
    /// The last time at which a compute server needed the earlier checkpoint.
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
    /// The lists and codes of the first checkpoint.
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

    /// The lists and codes of the last checkpoint.
    pub fn get(&self) -> Arc<H> {
        self.kept().checkpoints.last().clone()
    }

    /// Whether the checkpoint before the last one is still in memory.
    pub fn has_before(&self) -> bool {
        self.kept().checkpoints.has_before()
    }

    /// Puts a newer checkpoint in place. Walks in progress continue in the earlier checkpoint.
    pub fn put(&self, high: Arc<H>) {
        let mut kept = self.kept();
        kept.checkpoints.go_on(high);
        kept.behind = Instant::now();
    }

    /// Drops the earlier checkpoint if it was not used for half a minute.
    pub fn forget_unused(&self) {
        let mut kept = self.kept();
        if kept.checkpoints.has_before() && kept.behind.elapsed() >= KEPT {
            kept.checkpoints.forget_before();
            tracing::info!(
                "the state of the index before the last one is dropped, since no server uses it any more"
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
            // Taken anew for each batch, so that an idle connection keeps no checkpoint in memory.
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
    /// Starts the server. With `batch`, replies to messages received together are written together.
    ///
    /// # Errors
    /// The errors of [`Running::start`](crate::Running::start).
    pub fn start<H: HighHalf>(
        high: Arc<H>,
        walks: MemoryOptions,
        batch: bool,
        options: Options,
    ) -> Result<MemoryServer, NodeError> {
        MemoryServer::following(Newest::new(high), walks, batch, options)
    }

    /// Starts like [`start`](Self::start), and serves each checkpoint that is [put](Newest::put) in
    /// place.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
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

    /// The address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// The connection point for clients in this process.
    pub fn door(&self) -> Door {
        self.listening.door()
    }

    /// The messages on the server's connections.
    pub fn traffic(&self) -> Traffic {
        self.shared.counts.traffic()
    }

    /// The number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}
