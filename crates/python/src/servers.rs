//! `stratann.MemoryServer`, `StorageServer` and `ComputeServer`: servers of DistVS in a Python
//! process. Their threads never call Python, and end when the server is closed or freed. `atexit`
//! closes all servers, so that the interpreter's end cuts off no merge. A forked process lacks the
//! threads, and leaves its parent's servers alone.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};

use parking_lot::RwLock;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use stratann::press::Low;
use stratann::{Error, Progress, bounds};
use stratann_node::role::Narrowing;
use stratann_node::serve::{
    ComputeServerOptions, MemoryOfIndex, Page, Report, StartError, StorageOfIndex,
};
use stratann_node::{Certificate, NodeError, Options, Secret};

use crate::arguments::{existing, named, size};
use crate::client::{place_of, secret_of, tls_of};
use crate::errors::{ServerError, StratannError};
use crate::process::{Opened, detached};
use crate::progress::{Listener, run};

fn not_started(error: NodeError) -> PyErr {
    let text = error.to_string();
    match error {
        NodeError::Open { .. } | NodeError::Certificate { .. } => PyValueError::new_err(text),
        NodeError::Listen { source, .. } if source.kind() == ErrorKind::InvalidInput => {
            PyValueError::new_err(text)
        }
        _ => ServerError::new_err(text),
    }
}

trait Role: Send + Sync {
    /// For [`Page::Health`], the server may ask other servers.
    fn report(&self, page: Page) -> Report;
}

impl Role for MemoryOfIndex {
    fn report(&self, _: Page) -> Report {
        MemoryOfIndex::report(self)
    }
}

impl Role for StorageOfIndex {
    fn report(&self, _: Page) -> Report {
        StorageOfIndex::report(self)
    }
}

impl Role for stratann_node::serve::ComputeServer<Low> {
    fn report(&self, page: Page) -> Report {
        stratann_node::serve::ComputeServer::report(self, page)
    }
}

/// The server, or `None` after it was closed.
type Slot = RwLock<Option<Opened<Box<dyn Role>>>>;

/// The running servers, with the processes that started them.
static RUNNING: Mutex<Vec<(u32, Weak<Slot>)>> = Mutex::new(Vec::new());

#[pyfunction]
fn end_servers(py: Python<'_>) {
    py.detach(|| {
        let running = match RUNNING.try_lock() {
            Ok(mut running) => std::mem::take(&mut *running),
            Err(TryLockError::Poisoned(running)) => std::mem::take(&mut *running.into_inner()),
            // Another thread, perhaps of the parent, is just starting a server. The running servers
            // end with the process.
            Err(TryLockError::WouldBlock) => Vec::new(),
        };
        // The server that was started last is closed first, because it may need earlier servers.
        for (process, server) in running.into_iter().rev() {
            if process == std::process::id()
                && let Some(server) = server.upgrade()
            {
                close(&server);
            }
        }
    });
}

/// Makes running servers end before the interpreter and its logging.
pub fn install(py: Python<'_>) -> PyResult<()> {
    let end = wrap_pyfunction!(end_servers, py)?;
    py.import("atexit")?.call_method1("register", (end,))?;
    Ok(())
}

fn close(slot: &Slot) {
    let server = slot.write().take();
    drop(server);
}

/// A server that was started in this process: a memory server, a storage server or a compute
/// server.
#[pyclass(frozen, subclass, module = "stratann")]
pub struct Server {
    slot: Arc<Slot>,
    process: u32,
    address: SocketAddr,
    role: &'static str,
}

impl Server {
    fn of(server: impl Role + 'static, address: SocketAddr, role: &'static str) -> Server {
        let server: Box<dyn Role> = Box::new(server);
        let slot = Arc::new(RwLock::new(Some(Opened::new(Arc::new(server)))));
        let process = std::process::id();
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|(_, server)| server.strong_count() > 0);
        running.push((process, Arc::downgrade(&slot)));
        Server {
            slot,
            process,
            address,
            role,
        }
    }

    /// A forked process must not touch the server: a missing thread may hold its lock.
    fn is_home(&self) -> bool {
        std::process::id() == self.process
    }

    fn name(&self) -> String {
        format!("the {} server at {}", self.role, self.address)
    }

    fn report(&self, py: Python<'_>, page: Page) -> PyResult<Report> {
        if !self.is_home() {
            return Err(StratannError::new_err(format!(
                "{} runs in process {}, and this is process {}, which was forked from it without its threads. Start a server here",
                self.name(),
                self.process,
                std::process::id()
            )));
        }
        let report = py.detach(|| self.slot.read().as_ref().map(|server| server.report(page)));
        report.ok_or_else(|| {
            PyValueError::new_err(format!("{} is closed. Start another one", self.name()))
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.is_home() {
            // `close` waits for the server's threads.
            detached(|| close(&self.slot));
        }
    }
}

#[pymethods]
impl Server {
    /// The address on which the server listens: "host:port". If the server was started with port 0,
    /// the address has the port that the system chose.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns whether the server can work now: a dict of "well" (bool), "trouble" (the reason why
    /// the server cannot work, or None) and "lines" (texts about the servers that it needs).
    ///
    /// A compute server asks its memory server and its storage server, and waits up to a second for
    /// their answers.
    fn health<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        health(py, self.report(py, Page::Health)?)
    }

    /// The server's counters: a dict of the figures of `/metrics` (docs/servers.md) by name. A
    /// figure about connections is a dict by the kind of peer, such as "memory".
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats(py, self.report(py, Page::Metrics)?)
    }

    /// Ends the server. When this call returns, the port is closed and all threads of the server
    /// have ended. A second call does nothing. The end of a `with` block also closes the server.
    fn close(&self, py: Python<'_>) {
        if self.is_home() {
            py.detach(|| close(&self.slot));
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let server = slf.get();
        // Another thread with the lock is closing the server.
        let runs = server.is_home() && server.slot.try_read().is_some_and(|slot| slot.is_some());
        let state = if runs { "" } else { ", closed" };
        let class = slf.get_type().name()?;
        Ok(format!("stratann.{class}({}{state})", server.address))
    }
}

fn health<'py>(py: Python<'py>, report: Report) -> PyResult<Bound<'py, PyDict>> {
    let health = PyDict::new(py);
    health.set_item("well", report.trouble.is_none())?;
    health.set_item("trouble", report.trouble)?;
    health.set_item("lines", report.lines)?;
    Ok(health)
}

fn stats<'py>(py: Python<'py>, report: Report) -> PyResult<Bound<'py, PyDict>> {
    let stats = PyDict::new(py);
    for figure in report.figures {
        let Some(peer) = figure.peer else {
            stats.set_item(figure.name, figure.value)?;
            continue;
        };
        let peers = match stats.get_item(figure.name)? {
            Some(peers) => peers.cast_into::<PyDict>()?,
            None => {
                let peers = PyDict::new(py);
                stats.set_item(figure.name, &peers)?;
                peers
            }
        };
        peers.set_item(peer, figure.value)?;
    }
    Ok(stats)
}

/// Serves the adjacency lists and high-precision codes of an index from memory, for compute
/// servers. It does the same as `stratann memory-server INDEX`, but in this process.
///
/// The call starts the server. The server runs until `close`, the end of a `with` block, or the end
/// of the interpreter. Its threads never wait for Python.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     The folder of an index with the preset "distvs".
/// listen : str
///     The address to listen on: "host:port". Port 0 means any free port; `address` then has its
///     number. An address other than loopback needs a secret.
/// follow : bool
///     Whether the server loads the new checkpoint after each merge of the index. If the storage
///     server accepts changes, `follow` must be True. If no search has used the old checkpoint for
///     half a minute, the server frees it.
/// secret : bytes or str, optional
///     The secret that compute servers must know. With None, the server takes the secret from
///     `secret_file`, or else from the environment (STRATANN_SECRET_FILE, STRATANN_SECRET).
/// secret_file : str or os.PathLike, optional
///     A file with the secret. Only its owner may have permission to read it.
/// certificate : tuple of two str or os.PathLike, optional
///     The files (PEM) of a certificate and its private key. With them, the server encrypts
///     connections with TLS.
/// clients : int
///     The maximum number of connections at the same time.
/// progress : bool or callable
///     As in `stratann.build`. Progress counts the part of the index that the server has read.
///
/// Raises
/// ------
/// ServerError
///     The server cannot listen on this address.
/// ValueError
///     The address can be reached from other machines and the server has no secret, or the index
///     has another preset.
#[pyclass(frozen, extends = Server, module = "stratann")]
pub struct MemoryServer;

#[pymethods]
impl MemoryServer {
    #[new]
    #[pyo3(signature = (path, *, listen="127.0.0.1:0", follow=false, secret=None, secret_file=None, certificate=None, clients=256, progress=None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python class"
    )]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        listen: &str,
        follow: bool,
        secret: Option<&Bound<'_, PyAny>>,
        secret_file: Option<PathBuf>,
        certificate: Option<(PathBuf, PathBuf)>,
        #[pyo3(from_py_with = crate::arguments::count::clients)] clients: usize,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyClassInitializer<MemoryServer>> {
        let options = listening(listen, secret, secret_file.as_deref(), certificate, clients)?;
        let path = existing(path, "index")?;
        let server = started(py, &Listener::new(progress)?, |progress| {
            MemoryOfIndex::start(&path, follow, true, options, progress)
        })?;
        let address = server.server().address();
        let server = Server::of(server, address, "memory");
        Ok(PyClassInitializer::from(server).add_subclass(MemoryServer))
    }
}

/// Serves the exact vectors of an index, for compute servers. It does the same as `stratann
/// storage-server INDEX`, but in this process.
///
/// The call starts the server. The server runs until `close`, the end of a `with` block, or the end
/// of the interpreter, and then closes the index.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     The folder of an index with the preset "distvs".
/// listen : str
///     The address to listen on: "host:port". Port 0 means any free port; `address` then has its
///     number. An address other than loopback needs a secret.
/// changes : bool
///     Whether the server accepts upserts and deletes from clients, and merges them when a merge is
///     due. No other object or process may have the index open for changes.
/// threads : int
///     The number of threads that re-rank candidates.
/// io : str
///     The interface for reads of the SSD: "auto", "uring" or "pread".
/// secret, secret_file, certificate, clients
///     As in `MemoryServer`.
///
/// Raises
/// ------
/// InUseError
///     Another object or process has the index open for changes.
/// ServerError
///     The server cannot listen on this address.
/// ValueError
///     The address can be reached from other machines and the server has no secret, or the index
///     has another preset.
#[pyclass(frozen, extends = Server, module = "stratann")]
pub struct StorageServer;

#[pymethods]
impl StorageServer {
    #[new]
    #[pyo3(signature = (path, *, listen="127.0.0.1:0", changes=false, threads=2, io="auto", secret=None, secret_file=None, certificate=None, clients=256))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python class"
    )]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        listen: &str,
        changes: bool,
        #[pyo3(from_py_with = crate::arguments::count::threads)] threads: usize,
        io: &str,
        secret: Option<&Bound<'_, PyAny>>,
        secret_file: Option<PathBuf>,
        certificate: Option<(PathBuf, PathBuf)>,
        #[pyo3(from_py_with = crate::arguments::count::clients)] clients: usize,
    ) -> PyResult<PyClassInitializer<StorageServer>> {
        bounded("threads", threads, bounds::MOST_THREADS)?;
        let io = named(io, "io")?;
        let options = listening(listen, secret, secret_file.as_deref(), certificate, clients)?;
        let path = existing(path, "index")?;
        let server = started(py, &Listener::new(None)?, |_| {
            StorageOfIndex::start(&path, threads, io, changes, options)
        })?;
        let address = server.server().address();
        let server = Server::of(server, address, "storage");
        Ok(PyClassInitializer::from(server).add_subclass(StorageServer))
    }
}

/// Searches for clients (`stratann.connect`) with the help of a memory server and a storage server.
/// It does the same as `stratann compute-server`, but in this process.
///
/// The server needs no file. It may be started before the memory server and the storage server;
/// `health` names the servers that it waits for. The call starts the server. The server runs until
/// `close`, the end of a `with` block, or the end of the interpreter.
///
/// Parameters
/// ----------
/// memory, storage : str
///     The addresses of the memory server and the storage server: "host:port", "[address]:port" or
///     "shm:/path". All three servers must have the same secret.
/// listen : str
///     The address to listen on: "host:port". Port 0 means any free port; `address` then has its
///     number. An address other than loopback needs a secret.
/// threads : int, optional
///     The number of threads that search. None is one for each core.
/// in_flight : int
///     The number of queries that share a thread. While one query waits for the memory server, the
///     thread works on another query.
/// list_size : int
///     D_high, the number of candidates that codes of high precision rank, for clients that do not
///     pass a `list_size`.
/// beam : int
///     The maximum number of nodes that a search visits in a round, for clients that do not pass a
///     `beam`.
/// low_list : float
///     The maximum number of candidates that codes of low precision rank, as a multiple of
///     `list_size`. DistVS uses 2.
/// refine : float
///     Of the candidates ranked by codes of low precision, the share that each round ranks again by
///     codes of high precision. DistVS uses 0.3.
/// seeds : int
///     The number of nodes whose codes of low precision a search compares with the query first.
///     Then the search starts near the nearest of these nodes. With 0, the search starts at the
///     graph's entry node, as in DistVS.
/// low_memory : int or str, optional
///     The maximum memory for codes of low precision: bytes, or "64MiB". If this memory is too
///     small for all codes, the codes of the nodes with the fewest incoming links stay on the
///     memory server, which computes distances with them (DistVS §3.3). None is enough for all
///     codes.
/// connections : int, optional
///     The number of connections to the memory server. Each connection takes one thread of the
///     memory server. None is one for every four threads.
/// waiting : int
///     The maximum number of queries that wait for a thread.
/// tls : bool, str or os.PathLike
///     As in `stratann.connect`, for the connections to the memory server and the storage server.
/// secret, secret_file, certificate, clients
///     As in `MemoryServer`.
///
/// Raises
/// ------
/// ServerError
///     The server cannot listen on this address, or the address of the memory server or the storage
///     server cannot be resolved.
/// ValueError
///     A number is out of its range, or the address can be reached from other machines and the
///     server has no secret.
#[pyclass(frozen, extends = Server, module = "stratann")]
pub struct ComputeServer;

#[pymethods]
impl ComputeServer {
    #[new]
    #[pyo3(signature = (memory, storage, *, listen="127.0.0.1:0", threads=None, in_flight=2, list_size=80, beam=8, low_list=3.0, refine=0.2, seeds=64,
        low_memory=None, connections=None, waiting=1024, tls=None, secret=None, secret_file=None, certificate=None, clients=256))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python class"
    )]
    fn new(
        py: Python<'_>,
        memory: String,
        storage: String,
        listen: &str,
        #[pyo3(from_py_with = crate::arguments::count_or_none::threads)] threads: Option<usize>,
        #[pyo3(from_py_with = crate::arguments::count::in_flight)] in_flight: usize,
        #[pyo3(from_py_with = crate::arguments::count::list_size)] list_size: usize,
        #[pyo3(from_py_with = crate::arguments::count::beam)] beam: usize,
        low_list: f64,
        refine: f64,
        #[pyo3(from_py_with = crate::arguments::count::seeds)] seeds: usize,
        low_memory: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = crate::arguments::count_or_none::connections)] connections: Option<
            usize,
        >,
        #[pyo3(from_py_with = crate::arguments::count::waiting)] waiting: usize,
        tls: Option<&Bound<'_, PyAny>>,
        secret: Option<&Bound<'_, PyAny>>,
        secret_file: Option<PathBuf>,
        certificate: Option<(PathBuf, PathBuf)>,
        #[pyo3(from_py_with = crate::arguments::count::clients)] clients: usize,
    ) -> PyResult<PyClassInitializer<ComputeServer>> {
        let options = ComputeServerOptions::default();
        let workers = bounded(
            "threads",
            threads.unwrap_or(options.workers),
            bounds::MOST_THREADS,
        )?;
        if !(refine > 0.0 && refine <= 1.0) {
            return Err(PyValueError::new_err(format!(
                "refine={refine}; it is a share, and with 0 nothing would be found. Pass a number above 0 and up to 1 (0.2 is usual)"
            )));
        }
        if !(1.0..=bounds::MOST_LOW).contains(&low_list) {
            return Err(PyValueError::new_err(format!(
                "low_list={low_list}; it is a multiple of list_size. Pass 1 to {} (3 is usual)",
                bounds::MOST_LOW
            )));
        }
        if seeds > bounds::MOST_SEEDS {
            return Err(PyValueError::new_err(format!(
                "seeds={seeds}; it is too large. Pass at most {} (64 is usual)",
                bounds::MOST_SEEDS
            )));
        }
        let connections =
            connections.unwrap_or_else(|| ComputeServerOptions::connections_of(workers));
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let known = secret_of(secret, secret_file.as_deref())?;
        let listen = listening(listen, secret, secret_file.as_deref(), certificate, clients)?;
        let tls = tls_of(tls)?;
        let options = ComputeServerOptions {
            workers,
            in_flight: bounded("in_flight", in_flight, bounds::MOST_IN_FLIGHT)?,
            narrowing: Narrowing {
                low: low_list,
                ratio: refine,
                seeds,
            },
            low_memory: size(low_memory, "low_memory", "as much as they take")?
                .unwrap_or(options.low_memory),
            list: number(bounded("list_size", list_size, bounds::MOST_LIST)?),
            beam: number(bounded("beam", beam, bounds::MOST_BEAM)?),
            waiting: bounded("waiting", waiting, usize::MAX)?,
            connections: bounded("connections", connections, workers)?,
            listen,
            ..options
        };
        let server = started(py, &Listener::new(None)?, |_| {
            // Resolving the names may take a while.
            let place = |name: &str| {
                let place = place_of(name, known.as_ref(), &tls);
                place.map_err(|error| StartError::Node(NodeError::Server(error)))
            };
            let (memory, storage) = (place(&memory)?, place(&storage)?);
            Ok(stratann_node::serve::ComputeServer::start(
                memory, storage, options,
            )?)
        })?;
        let address = server.address();
        let server = Server::of(server, address, "compute");
        Ok(PyClassInitializer::from(server).add_subclass(ComputeServer))
    }
}

fn bounded(name: &str, value: usize, most: usize) -> PyResult<usize> {
    match (1..=most).contains(&value) {
        true => Ok(value),
        false => Err(PyValueError::new_err(format!(
            "{name}={value}; it is out of range. Pass 1 to {most}"
        ))),
    }
}

fn listening(
    listen: &str,
    secret: Option<&Bound<'_, PyAny>>,
    secret_file: Option<&Path>,
    certificate: Option<(PathBuf, PathBuf)>,
    clients: usize,
) -> PyResult<Options> {
    let given: Option<Secret> = secret_of(secret, secret_file)?;
    let own = Secret::given_or_own(given.as_ref(), listen);
    let secret = own.map_err(|error| not_started(NodeError::Server(error)))?;
    let certificate = certificate
        .map(|(certificate, key)| Certificate::read(&certificate, &key))
        .transpose()
        .map_err(not_started)?;
    Ok(Options {
        listen: listen.to_owned(),
        secret,
        certificate,
        most_clients: bounded("clients", clients, usize::MAX)?,
        ..Options::default()
    })
}

/// The start runs on a separate thread, so the calling thread can receive Ctrl-C.
fn started<T: Send>(
    py: Python<'_>,
    listener: &Listener,
    start: impl FnOnce(&dyn Progress) -> Result<T, StartError> + Send,
) -> PyResult<T> {
    let server = run(py, listener, |progress| match start(progress) {
        Ok(server) => Ok(Ok(server)),
        Err(StartError::Index(error)) => Err(error),
        Err(StartError::Node(error)) => Ok::<_, Error>(Err(error)),
    })?;
    server.map_err(not_started)
}
