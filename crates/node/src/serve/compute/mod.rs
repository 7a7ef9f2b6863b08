//! The compute role as a server.
//!
//! ```text
//!   clients ──> front.rs ──waiting searches──> work.rs ──batched messages──> memory, storage
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

/// The options of a compute server.
#[derive(Clone, Debug)]
pub struct ComputeServerOptions {
    /// The number of threads that search.
    pub workers: usize,
    /// The number of queries of each thread that walk at once (§4.1).
    pub in_flight: usize,
    /// The rules by which low codes narrow the candidates for the memory server.
    pub narrowing: Narrowing,
    /// The most bytes of low codes. Codes of unpopular nodes stay on the memory server (§3.3).
    pub low_memory: u64,
    /// The length of the high list (D_high), if a client names none.
    pub list: u32,
    /// The beam width, if a client names none.
    pub beam: u32,
    /// The largest number of queries that wait for a worker.
    pub waiting: usize,
    /// The time for which a client without a deadline waits.
    pub patience: Duration,
    /// The time after which an unanswered message is first repeated.
    pub retry: Duration,
    /// The silence after which a connection to a server is replaced.
    pub silence: Duration,
    /// The number of shared connections to the memory server, each with a thread.
    pub connections: usize,
    /// Whether messages are batched. False is for comparisons only.
    pub batch: bool,
    /// Options for the listening side of the server.
    pub listen: Options,
}

impl ComputeServerOptions {
    /// The default number of connections to the memory server (bench/servers.py).
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

/// The counts of a compute server since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The number of queries that were answered.
    pub answered: u64,
    /// The number of requests that were refused or not answered in time.
    pub refused: u64,
    /// The number of queries that wait for a worker now.
    pub waiting: usize,
    /// The number of queries in progress now.
    pub in_flight: usize,
}

/// A running compute server, until it is dropped.
pub struct ComputeServer<L: LowHalf> {
    /// The fields are dropped in this order: the listener, the connections to other servers, the
    /// workers.
    listening: Listening,
    _keepers: Vec<Keeper>,
    workers: Workers<L>,
}

struct Workers<L: LowHalf> {
    shared: Arc<Shared<L>>,
    threads: Vec<JoinHandle<()>>,
}

impl<L: LowHalf> ComputeServer<L> {
    /// Starts the server. The other servers need not be reachable yet.
    ///
    /// # Errors
    /// The errors of [`Running::start`](crate::Running::start).
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
        // If a later step fails, the drop of `threads` ends the threads.
        let mut threads = Workers {
            shared: shared.clone(),
            threads: Vec::new(),
        };
        for lane in 0..workers {
            let first = u64::from_le_bytes(stratann_tier::random().map_err(NodeError::Random)?);
            let (shelf, worker, begun) = (shelf.clone(), worker.clone(), AtomicU64::new(first));
            let begin = move || {
                let first = begun.fetch_add(1 << 40, Ordering::Relaxed);
                Worker::new(shelf.clone(), worker.clone(), lane as u16, first)
            };
            let shared = shared.clone();
            let named = thread::Builder::new().name(format!("stratann-search-{lane}"));
            let thread =
                stratann_tier::start(named, move || shared.work(begin, &shared.desks[lane]));
            threads.threads.push(thread.map_err(NodeError::Thread)?);
        }
        let in_flight = workers * options.in_flight.max(1);
        let mut keepers = Vec::new();
        for (at, contact) in shared.contacts.iter().enumerate() {
            let protocol = contact.protocol();
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

    /// The address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// The connection point for clients in this process.
    pub fn door(&self) -> Door {
        self.listening.door()
    }

    /// The low codes, if they have arrived.
    pub fn low(&self) -> Option<Arc<L>> {
        self.workers.shared.shelf.low()
    }

    /// Whether the server can answer. Waits up to a second for signs of life of the other servers.
    pub fn readiness(&self) -> Readiness {
        self.workers.shared.asked_readiness()
    }

    /// The number of open connections to the memory server, and to storage.
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

    /// The counts of requests.
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

    /// The messages between this server and the memory server.
    pub fn memory_traffic(&self) -> Traffic {
        self.workers.shared.memory.traffic()
    }

    /// The messages between this server and storage.
    pub fn storage_traffic(&self) -> Traffic {
        self.workers.shared.storage.traffic()
    }

    /// The messages between this server and its clients.
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
            let _ = thread.join();
        }
    }
}
