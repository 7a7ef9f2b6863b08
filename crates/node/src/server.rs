//! Where the server listens, who may come, and a thread for each who does.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use stratann_tier::remote::ring::{RingListener, RingStream};
use stratann_tier::remote::wire::{Binding, CHANNEL, Secret, UNBOUND};
use stratann_tier::remote::{Timed, notice_when_gone};

use crate::session::Session;
use crate::store::{Store, StoreError};

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The address.
    #[error(
        "cannot listen on {address}: {source}; choose another address, as HOST:PORT, such as 127.0.0.1:7700"
    )]
    Listen {
        /// As it was given.
        address: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The socket for rings.
    #[error("cannot make the socket {}: {source}; name another path, in a folder that is there and that you can write to", path.display())]
    Ring {
        /// As it was given.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Others could ask it who do not know a secret.
    #[error(
        "{address} can be reached from other machines: a memory server listens there only with a secret. Put one into a file that only you can \
         read (`umask 077; head -c 32 /dev/urandom | base64 > secret`) and set STRATANN_SECRET_FILE to it, here and for clients; or listen on 127.0.0.1"
    )]
    Open {
        /// As it was given.
        address: String,
    },
    /// Its certificate.
    #[error("the certificate in {} and the key in {} cannot be used: {reason}", certificate.display(), key.display())]
    Certificate {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of its key.
        key: PathBuf,
        /// Why.
        reason: String,
    },
    /// Its files.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// What a server shows that encrypts its connections.
#[derive(Clone, Debug)]
pub struct Certificate(Arc<ServerConfig>);

impl Certificate {
    /// A certificate (with those that it rests on) and its private key, both PEM.
    ///
    /// # Errors
    /// They cannot be read, or do not belong together.
    pub fn read(certificate: &Path, key: &Path) -> Result<Certificate, NodeError> {
        let failed = |reason: String| NodeError::Certificate {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            reason,
        };
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let chain = chain.map_err(|error| failed(error.to_string()))?;
        let secret =
            PrivateKeyDer::from_pem_file(key).map_err(|error| failed(error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(chain, secret));
        match config {
            Ok(config) => Ok(Certificate(Arc::new(config))),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

/// How a server listens.
#[derive(Clone, Debug)]
pub struct Options {
    /// `host:port`; port 0 is any that is free.
    pub listen: String,
    /// Where processes of this user come that read through rings in shared memory, if they may: the path of a socket.
    pub ring: Option<PathBuf>,
    /// Whether files may be read through UCX as well.
    pub ucx: bool,
    /// What clients have to know.
    pub secret: Option<Secret>,
    /// With what connections are encrypted.
    pub certificate: Option<Certificate>,
    /// The most clients at once. Who has not shown the secret is none.
    pub most_clients: usize,
    /// How long a client has for its greeting, all of it, TLS included.
    pub greeting: Duration,
    /// How long a client may take for a request that it has begun, and for taking its answers; each 64 KiB begin the time anew.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".to_owned(),
            ring: None,
            ucx: false,
            secret: None,
            certificate: None,
            most_clients: 256,
            greeting: Duration::from_secs(5),
            patience: Duration::from_secs(30),
        }
    }
}

/// The bytes of a connection.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ServerConnection, Timed>>),
    Ring(Box<RingStream>),
}

impl Stream {
    /// What tells it from every other.
    pub(crate) fn channel(&self) -> io::Result<Binding> {
        match self {
            Stream::Tls(stream) => (stream.conn)
                .export_keying_material(UNBOUND, CHANNEL, None)
                .map_err(io::Error::other),
            Stream::Plain(_) | Stream::Ring(_) => Ok(UNBOUND),
        }
    }

    pub(crate) fn set_read_timeout(&mut self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.set_read_timeout(limit),
            Stream::Tls(stream) => stream.sock.limit(limit),
            Stream::Ring(stream) => {
                stream.set_read_timeout(limit);
                Ok(())
            }
        }
    }

    pub(crate) fn set_write_timeout(&mut self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.set_write_timeout(limit),
            Stream::Tls(stream) => stream.sock.limit(limit),
            Stream::Ring(stream) => {
                stream.set_write_timeout(limit);
                Ok(())
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(out),
            Stream::Tls(stream) => stream.read(out),
            Stream::Ring(stream) => stream.read(out),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
            Stream::Ring(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.flush(),
            Stream::Tls(stream) => stream.flush(),
            Stream::Ring(stream) => stream.flush(),
        }
    }
}

/// A client's socket, as it was accepted.
enum Caller {
    Tcp(TcpStream),
    /// Beside its rings.
    Unix(UnixStream),
}

impl Caller {
    fn try_clone(&self) -> io::Result<Caller> {
        Ok(match self {
            Caller::Tcp(socket) => Caller::Tcp(socket.try_clone()?),
            Caller::Unix(socket) => Caller::Unix(socket.try_clone()?),
        })
    }

    fn hang_up(&self) {
        // It fails where the client has gone, which is as good.
        let _ = match self {
            Caller::Tcp(socket) => socket.shutdown(Shutdown::Both),
            Caller::Unix(socket) => socket.shutdown(Shutdown::Both),
        };
    }
}

struct Shared {
    store: Store,
    options: Options,
    stop: AtomicBool,
    /// Sockets of all connections, by number, to end them with.
    callers: Mutex<Callers>,
    /// Their threads, and some that have ended.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The number of the next client.
    next: AtomicU64,
}

impl Shared {
    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn callers(&self) -> MutexGuard<'_, Callers> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one more connection may begin its greeting: ends the one that has been at it for longest, where all have been for a while.
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

    /// A connection has been greeted: it is a client from now on, unless there are as many as there may be. Others make room here.
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

/// Connections, by number.
#[derive(Default)]
struct Callers {
    /// Those that are being greeted, and since when; the oldest first.
    greeting: BTreeMap<u64, (Instant, Caller)>,
    clients: HashMap<u64, Caller>,
}

/// The most connections that are being greeted at once...
const MOST_UNGREETED: usize = 64;
/// ...and how long each has for certain, however many wait.
const UNGREETED: Duration = Duration::from_secs(1);

/// A server that runs, until this is dropped.
pub struct Running {
    address: SocketAddr,
    ring: Option<PathBuf>,
    shared: Arc<Shared>,
    listeners: Vec<JoinHandle<()>>,
}

impl Running {
    /// Listens, on threads of its own.
    ///
    /// # Errors
    /// An address that cannot be had, or one that others can reach while there is no secret.
    pub fn start(store: Store, options: Options) -> Result<Running, NodeError> {
        let address = options.listen.clone();
        let failed = |source| NodeError::Listen {
            address: address.clone(),
            source,
        };
        let found: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
        if options.secret.is_none() && !found.iter().all(|address| address.ip().is_loopback()) {
            return Err(NodeError::Open { address });
        }
        let store = match options.ucx {
            true => store.with_ucx(found.iter().all(|address| address.ip().is_loopback()))?,
            false => store,
        };
        let listener = TcpListener::bind(&found[..]).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let bind = |path: &PathBuf| {
            RingListener::bind(path).map_err(|source| NodeError::Ring {
                path: path.clone(),
                source,
            })
        };
        let rings = options.ring.as_ref().map(bind).transpose()?;
        let shared = Arc::new(Shared {
            store,
            options,
            stop: AtomicBool::new(false),
            callers: Mutex::default(),
            threads: Mutex::default(),
            next: AtomicU64::new(0),
        });
        // From here on, dropping it ends the threads that there are.
        let mut running = Running {
            address,
            ring: shared.options.ring.clone(),
            shared,
            listeners: Vec::new(),
        };
        running.listen(move || Ok(Caller::Tcp(listener.accept()?.0)))?;
        if let Some(rings) = rings {
            running.listen(move || Ok(Caller::Unix(rings.accept()?)))?;
        }
        Ok(running)
    }

    /// Takes clients on a thread of its own.
    fn listen(
        &mut self,
        accept: impl Fn() -> io::Result<Caller> + Send + 'static,
    ) -> Result<(), NodeError> {
        let shared = self.shared.clone();
        let named = thread::Builder::new().name("stratann-listen".to_owned());
        let listener = named.spawn(move || listen(accept, &shared));
        self.listeners.push(listener.map_err(NodeError::Thread)?);
        Ok(())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its files.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Ends the connections that there are; clients may come again.
    pub fn hang_up(&self) {
        let callers = self.shared.callers();
        callers.clients.values().for_each(Caller::hang_up);
        let greeting = callers.greeting.values();
        greeting.for_each(|(_, caller)| caller.hang_up());
    }

    /// Waits for ever, or until the server fails.
    pub fn wait(mut self) {
        for listener in self.listeners.drain(..) {
            // What it panicked of is on standard error.
            let _ = listener.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // They wait for somebody to come.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(path) = &self.ring {
            let _ = UnixStream::connect(path);
        }
        for listener in self.listeners.drain(..) {
            let _ = listener.join();
        }
        self.hang_up();
        // What they have of the store is free when this returns.
        let threads = std::mem::take(&mut *self.shared.threads());
        for thread in threads {
            let _ = thread.join();
        }
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
                tracing::warn!("a connection could not be taken: {error}");
                // Descriptors, most of the time: others have to be closed first.
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        match caller.try_clone() {
            Ok(known) => shared.let_in(number, known),
            Err(error) => {
                tracing::warn!("a connection could not be taken: {error}");
                continue;
            }
        }
        let theirs = shared.clone();
        let named = thread::Builder::new().name(format!("stratann-client-{number}"));
        let started = named
            .stack_size(512 << 10)
            .spawn(move || welcome(caller, number, &theirs));
        match started {
            Ok(thread) => {
                let mut threads = shared.threads();
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            Err(error) => {
                tracing::warn!("no thread for a client: {error}");
                shared.callers().greeting.remove(&number);
            }
        }
    }
}

/// Serves one client to its end.
fn welcome(caller: Caller, number: u64, shared: &Shared) {
    let served = serve(caller, number, shared);
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

/// Agrees on keys, however small the pieces in which the client sends its part.
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
        greeting,
        patience,
        secret,
        ..
    } = &shared.options;
    let until = Instant::now() + *greeting;
    let stream = match (caller, &shared.options.certificate) {
        // What is in the memory of two processes needs no key.
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
    let admit = || shared.admit(number);
    Session::greet(&shared.store, secret.as_ref(), stream, until, admit)?
        .serve(&shared.stop, *patience)
}
