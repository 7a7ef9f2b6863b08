//! The compute role as a server.
//!
//! ```text
//!   clients ──> front.rs ──searches that wait──> work.rs ──messages, many in a write──> memory, storage
//!                          (role::Waiting)         ^
//!                                                  └── desk.rs <── upstream.rs <──answers──
//! ```

mod contact;
mod desk;
mod front;
mod standing;
mod upstream;
mod work;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use stratann_tier::remote::wire::Protocol;

use self::contact::{Contact, NO_LANE};
use self::desk::Desk;
use self::front::Front;
pub use self::standing::Readiness;
use self::upstream::Upstream;
use self::work::Shared;
use super::Place;
use super::keeper::{Destination, Keeper};
use crate::link::{Batching, Traffic};
use crate::listen::{Door, Listening};
use crate::options::{NodeError, Options};
use crate::role::{ComputeOptions, LowHalf, Narrowing, Shelf, Waiting, Worker};

/// How a compute server works.
#[derive(Clone, Debug)]
pub struct ComputeServerOptions {
    /// Threads that search.
    pub workers: usize,
    /// Queries that walk on each at once (§4.1). Those that are being ranked come on top.
    pub in_flight: usize,
    /// How far low codes narrow down what the memory server looks at.
    pub narrowing: Narrowing,
    /// Bytes that low codes may take, with what says of which nodes they are. Where they take more, those of unpopular nodes are offloaded to the memory server (§3.3).
    pub low_memory: u64,
    /// D_high, where a client does not say.
    pub list: u32,
    /// Candidates that a step expands, where a client does not say.
    pub beam: u32,
    /// Queries that wait for a worker at most.
    pub waiting: usize,
    /// How long a client waits that does not say.
    pub patience: Duration,
    /// After how long something that is not answered is asked for again, at first.
    pub retry: Duration,
    /// After how long without any answer a connection to a server is ended, and another one begun.
    pub silence: Duration,
    /// Connections to the memory server, each of which is served by a thread there. Workers share them.
    pub connections: usize,
    /// Whether messages are put together where it can be, as they should be but to compare.
    pub batch: bool,
    /// How it listens.
    pub listen: Options,
}

impl ComputeServerOptions {
    /// Connections to the memory server that so many workers are given: it takes a quarter to two fifths of their CPU time (bench/servers.py).
    pub fn connections_of(workers: usize) -> usize {
        workers.div_ceil(4)
    }
}

impl Default for ComputeServerOptions {
    fn default() -> Self {
        Self {
            workers: thread::available_parallelism().map_or(1, usize::from),
            in_flight: 2,
            narrowing: Narrowing::default(),
            low_memory: u64::MAX,
            list: 80,
            beam: 8,
            waiting: 1024,
            patience: Duration::from_secs(30),
            retry: Duration::from_millis(250),
            silence: Duration::from_secs(5),
            connections: 1,
            batch: true,
            listen: Options::default(),
        }
    }
}

/// What a compute server has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Queries that were answered.
    pub answered: u64,
    /// Queries, and other requests, that were refused, or not answered in time.
    pub refused: u64,
    /// Queries that wait for a worker now.
    pub waiting: usize,
    /// Queries that workers are at now.
    pub in_flight: usize,
}

/// A compute server that runs, until this is dropped.
pub struct ComputeServer<L: LowHalf> {
    /// Dropped in this order: nobody asks any more, nobody answers any more, nobody works any more.
    listening: Listening,
    _keepers: Vec<Keeper>,
    workers: Workers<L>,
}

/// Their threads, which end with this.
struct Workers<L: LowHalf> {
    shared: Arc<Shared<L>>,
    threads: Vec<JoinHandle<()>>,
}

impl<L: LowHalf> ComputeServer<L> {
    /// Works for clients, with a memory server and storage, which need not be there yet. It fetches the low codes when the memory server is.
    ///
    /// # Errors
    /// As those of [`Running::start`](crate::Running::start).
    pub fn start(
        memory: Place,
        storage: Place,
        options: ComputeServerOptions,
    ) -> Result<ComputeServer<L>, NodeError> {
        let workers = options.workers.clamp(1, NO_LANE as usize);
        let connections = options.connections.clamp(1, workers);
        let shelf = Arc::new(Shelf::new(None));
        let waiting = Waiting::new(
            options.waiting,
            options.list,
            options.beam,
            options.patience,
        );
        let contact = |place: &Place, protocol| Arc::new(Contact::new(protocol, place));
        let mut contacts: Vec<_> = (0..connections)
            .map(|_| contact(&memory, Protocol::Memory))
            .collect();
        contacts.push(contact(&storage, Protocol::Storage));
        let shared = Arc::new(Shared {
            began: Instant::now(),
            shelf: shelf.clone(),
            waiting: Mutex::new(waiting),
            desks: (0..workers).map(|_| Desk::default()).collect(),
            next_asked: AtomicUsize::new(0),
            clients: Mutex::default(),
            answered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            memory: Arc::default(),
            storage: Arc::default(),
            outside: Arc::default(),
            contacts,
            told_difference: Mutex::default(),
            silence: options.silence,
        });
        let worker = ComputeOptions {
            in_flight: options.in_flight,
            narrowing: options.narrowing,
            low_memory: options.low_memory,
            retry: options.retry,
            silence: options.silence,
            memory: memory.to_string(),
            storage: storage.to_string(),
            ..ComputeOptions::default()
        };
        // From here on, dropping it ends the threads that there are.
        let mut threads = Workers {
            shared: shared.clone(),
            threads: Vec::new(),
        };
        for lane in 0..workers {
            let first = u64::from_le_bytes(stratann_tier::random().map_err(NodeError::Random)?);
            let (shelf, worker, begun) = (shelf.clone(), worker.clone(), AtomicU64::new(first));
            let begin = move || {
                // None of the ids of before.
                let first = begun.fetch_add(1 << 40, Ordering::Relaxed);
                Worker::new(shelf.clone(), worker.clone(), lane as u16, first)
            };
            let shared = shared.clone();
            let named = thread::Builder::new().name(format!("stratann-search-{lane}"));
            let thread = named.spawn(move || shared.work(begin, &shared.desks[lane]));
            threads.threads.push(thread.map_err(NodeError::Thread)?);
        }
        let in_flight = workers * options.in_flight.max(1);
        let mut keepers = Vec::new();
        for (at, contact) in shared.contacts.iter().enumerate() {
            let protocol = contact.protocol();
            // Storage has one connection for all workers.
            let (place, counts, first, step) = match protocol {
                Protocol::Memory => (&memory, &shared.memory, at, connections),
                _ => (&storage, &shared.storage, 0, 1),
            };
            let destination = Destination {
                places: vec![place.clone()],
                protocol,
                batching: Some(Batching {
                    on: options.batch,
                    enough: (in_flight / step / 2).max(1),
                }),
                counts: counts.clone(),
            };
            let upstream = Upstream {
                shared: shared.clone(),
                first,
                step,
                contact: contact.clone(),
                outbox: None,
                sorted: vec![Vec::new(); workers],
            };
            keepers.push(Arc::new(destination).keep(None, upstream)?);
        }
        let front = Front { shared };
        Ok(ComputeServer {
            listening: Listening::start(Arc::new(front), options.listen)?,
            _keepers: keepers,
            workers: threads,
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

    /// The low codes, once they are there.
    pub fn low(&self) -> Option<Arc<L>> {
        self.workers.shared.shelf.low()
    }

    /// Whether it can answer, and what it waits for if it cannot. Other servers are asked for a sign of life, and have a second for it.
    pub fn readiness(&self) -> Readiness {
        self.workers.shared.asked_readiness()
    }

    /// Connections that there are to the memory server, and to storage.
    pub fn connected(&self) -> [usize; 2] {
        let contacts = self.workers.shared.contacts.iter();
        let of = |protocol| {
            let own = contacts
                .clone()
                .filter(|contact| contact.protocol() == protocol);
            own.filter(|contact| contact.is_up()).count()
        };
        [of(Protocol::Memory), of(Protocol::Storage)]
    }

    /// What it has done, and has to do.
    pub fn served(&self) -> Served {
        let shared = &self.workers.shared;
        let at = |desk: &Desk| desk.in_flight.load(Ordering::Relaxed);
        Served {
            answered: shared.answered.load(Ordering::Relaxed),
            refused: shared.refused.load(Ordering::Relaxed),
            waiting: shared.waiting().len(),
            in_flight: shared.desks.iter().map(at).sum(),
        }
    }

    /// What went between it and the memory server.
    pub fn memory_traffic(&self) -> Traffic {
        self.workers.shared.memory.traffic()
    }

    /// What went between it and storage.
    pub fn storage_traffic(&self) -> Traffic {
        self.workers.shared.storage.traffic()
    }

    /// What went between it and its clients.
    pub fn client_traffic(&self) -> Traffic {
        self.workers.shared.outside.traffic()
    }
}

impl<L: LowHalf> Drop for Workers<L> {
    fn drop(&mut self) {
        self.shared
            .desks
            .iter()
            .for_each(|desk| desk.change(|mail| mail.over = true));
        for thread in self.threads.drain(..) {
            // What it panicked of is on standard error.
            let _ = thread.join();
        }
    }
}
