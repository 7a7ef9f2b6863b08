//! Accepts connections, admits clients, and runs a thread for each client of a [`Service`].

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustls::{ServerConnection, StreamOwned};
use stratann_tier::remote::ring::RingListener;
use stratann_tier::remote::ucx::Streams;
use stratann_tier::remote::wire::{Protocol, Side};
use stratann_tier::remote::{Timed, notice_when_gone};

use crate::greeting::greet;
use crate::link::pipe;
use crate::options::{NodeError, Options, resolve};
use crate::stream::Stream;

pub(crate) trait Service: Send + Sync + 'static {
    fn protocol(&self) -> Protocol;

    /// Serves a client until it disconnects, sends an invalid request, or the server stops.
    fn serve(&self, client: Guest<'_>) -> io::Result<()>;
}

pub(crate) struct Guest<'a> {
    pub(crate) number: u64,
    pub(crate) stream: Stream,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) patience: Duration,
}

enum Caller {
    Tcp(TcpStream),
    /// The socket that accompanies the client's rings.
    Unix(UnixStream),
    Local(pipe::Closer),
}

impl Caller {
    fn try_clone(&self) -> io::Result<Caller> {
        Ok(match self {
            Caller::Tcp(socket) => Caller::Tcp(socket.try_clone()?),
            Caller::Unix(socket) => Caller::Unix(socket.try_clone()?),
            Caller::Local(closer) => Caller::Local(closer.clone()),
        })
    }

    fn hang_up(&self) {
        // Fails if the client has closed the connection first.
        let _ = match self {
            Caller::Tcp(socket) => socket.shutdown(Shutdown::Both),
            Caller::Unix(socket) => socket.shutdown(Shutdown::Both),
            Caller::Local(closer) => {
                closer.close();
                Ok(())
            }
        };
    }
}

struct Shared {
    service: Arc<dyn Service>,
    options: Options,
    streams: Option<Streams>,
    /// Whether the server failed to reach the last UCX client. Only the first such failure is
    /// logged.
    no_way: AtomicBool,
    stop: AtomicBool,
    callers: Mutex<Callers>,
    /// Some of these threads may have ended.
    threads: Mutex<Vec<JoinHandle<()>>>,
    next: AtomicU64,
}

impl Shared {
    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn callers(&self) -> MutexGuard<'_, Callers> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a greeting may begin; if too many are in progress, closes the oldest.
    fn let_in(&self, number: u64, caller: Caller) {
        while !self.stop.load(Ordering::SeqCst) {
            let mut callers = self.callers();
            if callers.greeting.len() >= MOST_UNGREETED
                && let Some((&oldest, (began, _))) = callers.greeting.first_key_value()
                && began.elapsed() >= UNGREETED
                && let Some((_, idle)) = callers.greeting.remove(&oldest)
            {
                idle.hang_up();
            }
            if callers.greeting.len() < MOST_UNGREETED {
                callers.greeting.insert(number, (Instant::now(), caller));
                return;
            }
            drop(callers);
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Makes a greeted connection a client, unless there are too many clients.
    fn admit(&self, number: u64) -> bool {
        let mut callers = self.callers();
        let Some((_, caller)) = callers.greeting.remove(&number) else {
            return false;
        };
        let room = callers.clients.len() < self.options.most_clients;
        if room {
            callers.clients.insert(number, caller);
        }
        room
    }
}

#[derive(Default)]
struct Callers {
    /// Connections that are being greeted, oldest first.
    greeting: BTreeMap<u64, (Instant, Caller)>,
    clients: HashMap<u64, Caller>,
}

const STACK: usize = 512 << 10;
const MOST_UNGREETED: usize = 64;
const UNGREETED: Duration = Duration::from_secs(1);

/// A server that listens until it is dropped.
pub(crate) struct Listening {
    address: SocketAddr,
    ring: Option<PathBuf>,
    shared: Arc<Shared>,
    listeners: Vec<JoinHandle<()>>,
}

impl Listening {
    /// # Errors
    /// The address is not available, or is reachable from other machines without a secret. UCX is
    /// not available, has no secret, or is combined with a certificate.
    pub(crate) fn start(
        service: Arc<dyn Service>,
        options: Options,
    ) -> Result<Listening, NodeError> {
        let (found, loopback) = resolve(&options)?;
        options.check_ucx()?;
        // A server of files uses UCX through its store.
        let through_ucx = options.ucx && service.protocol().is_role();
        let streams = through_ucx.then(|| Streams::serving(loopback));
        let streams = streams.transpose().map_err(NodeError::Ucx)?;
        let listener = options.bind(&found)?;
        let address = listener.local_addr().map_err(|source| NodeError::Listen {
            address: options.listen.clone(),
            source,
        })?;
        let bind = |path: &PathBuf| {
            RingListener::bind(path).map_err(|source| NodeError::Ring {
                path: path.clone(),
                source,
            })
        };
        let rings = options.ring.as_ref().map(bind).transpose()?;
        let shared = Arc::new(Shared {
            service,
            options,
            streams,
            no_way: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            callers: Mutex::default(),
            threads: Mutex::default(),
            next: AtomicU64::new(0),
        });
        // If a later step fails, the drop of `listening` ends the threads.
        let mut listening = Listening {
            address,
            ring: shared.options.ring.clone(),
            shared,
            listeners: Vec::new(),
        };
        listening.listen(move || Ok(Caller::Tcp(listener.accept()?.0)))?;
        if let Some(rings) = rings {
            listening.listen(move || Ok(Caller::Unix(rings.accept()?)))?;
        }
        Ok(listening)
    }

    fn listen(
        &mut self,
        accept: impl Fn() -> io::Result<Caller> + Send + 'static,
    ) -> Result<(), NodeError> {
        let shared = self.shared.clone();
        let named = thread::Builder::new().name("stratann-listen".to_owned());
        let listener = stratann_tier::start(named, move || listen(accept, &shared));
        self.listeners.push(listener.map_err(NodeError::Thread)?);
        Ok(())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn door(&self) -> Door {
        Door {
            shared: self.shared.clone(),
        }
    }

    /// Closes all connections. Clients may connect again.
    pub(crate) fn hang_up(&self) {
        let callers = self.shared.callers();
        callers.clients.values().for_each(Caller::hang_up);
        let greeting = callers.greeting.values();
        greeting.for_each(|(_, caller)| caller.hang_up());
    }

    pub(crate) fn wait(mut self) {
        for listener in self.listeners.drain(..) {
            // The panic is already on standard error.
            let _ = listener.join();
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // This connection wakes the listeners.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(path) = &self.ring {
            let _ = UnixStream::connect(path);
        }
        for listener in self.listeners.drain(..) {
            let _ = listener.join();
        }
        self.hang_up();
        // After this, no thread has a reference to the service.
        let threads = std::mem::take(&mut *self.shared.threads());
        for thread in threads {
            let _ = thread.join();
        }
    }
}

/// Connects to a server in the same process, through a pair of queues and without a greeting.
#[derive(Clone)]
pub struct Door {
    shared: Arc<Shared>,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Door({})", self.shared.service.protocol())
    }
}

impl Door {
    pub(crate) fn protocol(&self) -> Protocol {
        self.shared.service.protocol()
    }

    pub(crate) fn connect(&self) -> io::Result<pipe::Pipe> {
        let (ours, theirs) = pipe::pair();
        let shared = &self.shared;
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        // The lock is kept, so that a stop knows both the connection and its thread, or neither.
        let mut callers = shared.callers();
        if shared.stop.load(Ordering::SeqCst) {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        if callers.clients.len() >= shared.options.most_clients {
            return Err(io::Error::other(
                "the server has as many clients as it allows",
            ));
        }
        let closer = Caller::Local(theirs.closer());
        let serving = shared.clone();
        let named = thread::Builder::new().name(format!("stratann-client-{number}"));
        let serve = move || {
            ended(
                number,
                &serving,
                attend(Stream::Local(theirs), number, &serving),
            )
        };
        let thread = stratann_tier::start(named.stack_size(STACK), serve)?;
        callers.clients.insert(number, closer);
        let mut threads = shared.threads();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(ours)
    }
}

fn listen(accept: impl Fn() -> io::Result<Caller>, shared: &Arc<Shared>) {
    loop {
        let accepted = accept();
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let caller = match accepted {
            Ok(caller) => caller,
            Err(error) => {
                tracing::warn!("a connection could not be accepted: {error}");
                // Usually, the process has no free file descriptor.
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        match caller.try_clone() {
            Ok(known) => shared.let_in(number, known),
            Err(error) => {
                tracing::warn!("a connection could not be accepted: {error}");
                continue;
            }
        }
        let theirs = shared.clone();
        let named = thread::Builder::new().name(format!("stratann-client-{number}"));
        let serve = move || welcome(caller, number, &theirs);
        let started = stratann_tier::start(named.stack_size(STACK), serve);
        match started {
            Ok(thread) => {
                let mut threads = shared.threads();
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            Err(error) => {
                tracing::warn!("no thread could be started for a client: {error}");
                shared.callers().greeting.remove(&number);
            }
        }
    }
}

fn welcome(caller: Caller, number: u64, shared: &Shared) {
    ended(number, shared, serve(caller, number, shared));
}

fn ended(number: u64, shared: &Shared, served: io::Result<()>) {
    let mut callers = shared.callers();
    let known = (
        callers.clients.remove(&number),
        callers.greeting.remove(&number),
    );
    drop(callers);
    drop(known);
    if let Err(error) = served
        && error.kind() != ErrorKind::UnexpectedEof
    {
        tracing::debug!("client {number}: {error}");
    }
}

/// Makes the TLS handshake, even if its bytes arrive in small pieces.
fn shake_hands(
    connection: &mut ServerConnection,
    mut socket: &TcpStream,
    until: Instant,
) -> io::Result<()> {
    while connection.is_handshaking() || connection.wants_write() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        if connection.wants_write() {
            socket.set_write_timeout(Some(left))?;
            connection.write_tls(&mut socket)?;
            continue;
        }
        socket.set_read_timeout(Some(left))?;
        if connection.read_tls(&mut socket)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        connection.process_new_packets().map_err(io::Error::other)?;
    }
    Ok(())
}

fn serve(caller: Caller, number: u64, shared: &Shared) -> io::Result<()> {
    let Options {
        greeting, secret, ..
    } = &shared.options;
    let until = Instant::now() + *greeting;
    let mut stream = match (caller, &shared.options.certificate) {
        (Caller::Local(_), _) => return Err(ErrorKind::Unsupported.into()),
        // Rings stay in memory of this machine, so they need no encryption.
        (Caller::Unix(socket), _) => {
            Stream::Ring(Box::new(RingListener::greet(socket, *greeting)?))
        }
        (Caller::Tcp(socket), None) => {
            socket.set_nodelay(true)?;
            notice_when_gone(&socket)?;
            Stream::Plain(socket)
        }
        (Caller::Tcp(socket), Some(certificate)) => {
            socket.set_nodelay(true)?;
            notice_when_gone(&socket)?;
            let mut connection =
                ServerConnection::new(certificate.0.clone()).map_err(io::Error::other)?;
            shake_hands(&mut connection, &socket, until)?;
            Stream::Tls(Box::new(StreamOwned::new(connection, Timed::new(socket))))
        }
    };
    let (protocol, admit) = (shared.service.protocol(), || shared.admit(number));
    let streams = shared.streams.as_ref();
    let streams = streams.filter(|_| matches!(stream, Stream::Plain(_)));
    let seal = greet(
        protocol,
        secret.as_ref(),
        streams.is_some(),
        &mut stream,
        until,
        admit,
    )?;
    let stream = match (stream, streams, seal) {
        (Stream::Plain(socket), Some(streams), Some(seal)) => {
            let left = until.saturating_duration_since(Instant::now());
            let stream = streams.over(socket, Side::Server, &seal, left);
            let failed = stream.is_err();
            let known = shared.no_way.swap(failed, Ordering::Relaxed);
            Stream::Ucx(Box::new(stream.inspect_err(|error| {
                // Such a client connects again every second, so the failure is logged once.
                if !known {
                    tracing::warn!("client {number} cannot be reached through UCX: {error}");
                }
            })?))
        }
        (stream, ..) => stream,
    };
    attend(stream, number, shared)
}

fn attend(stream: Stream, number: u64, shared: &Shared) -> io::Result<()> {
    shared.service.serve(Guest {
        number,
        stream,
        stop: &shared.stop,
        patience: shared.options.patience,
    })
}
