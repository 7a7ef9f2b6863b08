//! `stratann.connect`: a client of compute servers, with the search methods of an index.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyString, PyTuple};
use stratann::{Element, Error, Metric, Progress, VectorSource};
use stratann_node::role::Failure;
use stratann_node::serve::{
    Answered, Asking, ChangeError, ClientOptions, Encryption, Means, Place, Unanswered, Unfinished,
    twice,
};
use stratann_node::wire::{Collection, Reason};
use stratann_node::{NodeError, Secret, TierError};

use crate::arrays::{self, Rows, dtype_name};
use crate::errors::{ServerError, ServerTimeoutError, StratannError, to_python};
use crate::process::Opened;
use crate::progress::{Listener, Stopped, run, run_stoppable};
use crate::searching::{latency, results};

const IN_FLIGHT: usize = 16;

/// A client of compute servers, which searches and changes the index that they serve.
#[pyclass(frozen, module = "stratann")]
pub struct Client {
    /// `None` after `close`.
    inner: Mutex<Option<Arc<Opened<stratann_node::serve::Client>>>>,
    servers: Vec<String>,
    patience: Duration,
    collection: Collection,
    element: Element,
    metric: Metric,
}

fn unreached(error: NodeError) -> PyErr {
    ServerError::new_err(error.to_string())
}

fn unanswered(failure: &Failure) -> PyErr {
    of_failure(failure, failure.to_string())
}

fn of_failure(failure: &Failure, text: String) -> PyErr {
    match failure {
        Failure::Refused {
            reason: Reason::Invalid,
            ..
        } => PyValueError::new_err(text),
        Failure::Deadline { .. }
        | Failure::Refused {
            reason: Reason::Deadline | Reason::GivenUp,
            ..
        } => ServerTimeoutError::new_err(text),
        Failure::Refused { .. } => ServerError::new_err(text),
    }
}

impl Stopped for Unfinished {
    fn done(&self) -> usize {
        self.acknowledged
    }

    fn raise(self) -> PyErr {
        let text = self.to_string();
        let error = match &self.why {
            ChangeError::Server(failure) => of_failure(failure, text),
            ChangeError::Wrong(_) => PyValueError::new_err(text),
            // The user never sees this exception: `run_stoppable` raises the exception that
            // interrupted the change.
            ChangeError::Interrupted => ServerError::new_err(text),
        };
        let told = Python::attach(|py| error.value(py).setattr("yet", self.yet));
        told.err().unwrap_or(error)
    }
}

fn different(ids: Vec<u64>) -> PyResult<Vec<u64>> {
    match twice(&ids) {
        None => Ok(ids),
        Some(id) => Err(PyValueError::new_err(format!(
            "ids has {id} twice. Pass each id once"
        ))),
    }
}

fn goes_on(progress: &dyn Progress) -> Result<(), Error> {
    match progress.interrupted() {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}

impl Client {
    fn names(&self) -> String {
        self.servers.join(", ")
    }

    fn rows<'py>(&self, value: &Bound<'py, PyAny>, name: &'static str) -> PyResult<Rows<'py>> {
        Rows::matrix_or_row(value, name, self.element, self.collection.dim as usize)
    }

    /// The client with a time limit of `timeout` seconds for each query, or with the limit of
    /// `connect`. Fails in a forked process.
    fn within(
        &self,
        inner: &Opened<stratann_node::serve::Client>,
        timeout: Option<f64>,
    ) -> PyResult<stratann_node::serve::Client> {
        let client = inner.at_home(Path::new(&self.names()), "stratann.connect")?;
        Ok(client.within(match timeout {
            Some(timeout) => patience_of(timeout)?,
            None => self.patience,
        }))
    }

    fn inner(&self) -> PyResult<Arc<Opened<stratann_node::serve::Client>>> {
        let inner = self.inner.lock().clone();
        inner.ok_or_else(|| {
            PyValueError::new_err(format!(
                "the client of {} is closed. Call stratann.connect again",
                self.names()
            ))
        })
    }
}

#[pymethods]
impl Client {
    /// Finds the `k` nearest vectors of each query.
    ///
    /// Several Python threads may search with one client at the same time. A search releases the
    /// interpreter's lock, and Ctrl-C ends it within a tenth of a second.
    ///
    /// Parameters
    /// ----------
    /// queries : array-like
    ///     (nq, d), or (d,) for one query. A C-contiguous array of the index's dtype is read in
    ///     place: do not write to it until this call returns. Other values are converted as in
    ///     `Index.search`.
    /// k : int
    ///     The number of nearest vectors to return for each query.
    /// list_size : int, optional
    ///     D_high, the number of candidates that codes of high precision rank. A larger number
    ///     raises recall and the cost of the search. `list_size` must be at least `k`. None takes
    ///     the default of the compute server, or `k` if `k` is larger. `stats["list"]` is the size
    ///     that the search used.
    /// beam : int, optional
    ///     The maximum number of nodes that a search visits in a round. None takes the default of
    ///     the compute server.
    /// in_flight : int, optional
    ///     The number of queries that the client has in flight. None is 16. With 1, latency is
    ///     lowest.
    /// return_stats : bool
    ///     Whether to return a dict of counters and latencies as well.
    /// timeout : float, optional
    ///     The time limit of each query, in seconds. None takes the `timeout` of `connect`.
    ///
    /// Returns
    /// -------
    /// ids : numpy.ndarray
    ///     uint64, (nq, k), or (k,) for one query; nearest first. If the index has fewer than k
    ///     vectors, the rest of each row is 2^64 - 1, an id that no vector has.
    /// distances : numpy.ndarray
    ///     float32, of the same shape; exact. Squared Euclidean, minus the inner product, or 1 -
    ///     cos: smaller is nearer. The distance of a missing result is infinite.
    /// stats : dict
    ///     Only with `return_stats`: the keys of `stratann cluster search --json`. `per_query` has
    ///     means: distances by codes of low and of high precision, exact distances, rounds, bytes
    ///     between servers, and reads. `queries` and `seconds` describe the call. `latencies_us`
    ///     has a float32 for each query, in microseconds.
    ///
    /// Raises
    /// ------
    /// ServerTimeoutError
    ///     A query was not answered within its `timeout`. The message names the server that did not
    ///     answer.
    /// ServerError
    ///     A server failed, or can no longer be reached.
    #[pyo3(signature = (queries, k=10, *, list_size=None, beam=None, in_flight=None, return_stats=false, timeout=None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python method"
    )]
    fn search<'py>(
        &self,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = crate::arguments::count::k)] k: usize,
        #[pyo3(from_py_with = crate::arguments::count_or_none::list_size)] list_size: Option<usize>,
        #[pyo3(from_py_with = crate::arguments::count_or_none::beam)] beam: Option<usize>,
        #[pyo3(from_py_with = crate::arguments::count_or_none::in_flight)] in_flight: Option<usize>,
        return_stats: bool,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let rows = self.rows(queries, "queries")?;
        for (name, value) in [
            ("k", Some(k)),
            ("list_size", list_size),
            ("beam", beam),
            ("in_flight", in_flight),
        ] {
            if value == Some(0) {
                return Err(PyValueError::new_err(format!(
                    "{name}=0; it must be at least 1. Pass a larger number"
                )));
            }
        }
        if let Some(list) = list_size.filter(|&list| list < k) {
            return Err(PyValueError::new_err(format!(
                "list_size={list} is smaller than k={k}; a search returns the k best of its list. Pass at least {k}"
            )));
        }
        let inner = self.inner()?;
        let client = self.within(&inner, timeout)?;
        let asking = Asking {
            k,
            list: list_size,
            beam,
            in_flight: in_flight.unwrap_or(IN_FLIGHT),
        };
        let answered = match rows.rows() {
            0 => Ok(Answered::default()),
            _ => ask(py, &client, &rows, &asking)?,
        };
        let answered = answered.map_err(|failure| unanswered(&failure))?;
        let stats = return_stats
            .then(|| stats(py, &answered, &asking))
            .transpose()?;
        let stats = stats.map(Bound::into_any).into_iter().collect();
        let found = (answered.ids, answered.distances);
        results(py, found, k, rows.is_single(), stats)
    }

    /// Inserts vectors into the servers' index. If an id is in the index already, the call replaces
    /// its vector.
    ///
    /// When this call returns, the vectors are durable on storage. Every search that begins later
    /// finds them, through any of the compute servers. The servers must accept changes (`stratann
    /// cluster up --changes`, `stratann storage-server --changes`).
    ///
    /// Parameters
    /// ----------
    /// vectors : array-like
    ///     (n, d), or (d,) for one vector, converted like the queries of `search`.
    /// ids : array-like of int
    ///     A different id for each vector.
    /// timeout : float, optional
    ///     The time limit of each batch of 1 MiB, in seconds. The call sends its vectors in such
    ///     batches. None takes the `timeout` of `connect`.
    ///
    /// Raises
    /// ------
    /// ServerTimeoutError
    ///     A batch of 1 MiB was not answered within its `timeout`, so its vectors may or may not be
    ///     in the index. Making the same call again is safe: it replaces vectors that are in the
    ///     index.
    /// ServerError
    ///     The servers failed, or can no longer be reached. The message says how many rows were
    ///     certainly written, and how many more may have been written.
    /// Interrupted
    ///     Ctrl-C was pressed. The first `done` rows are certainly in the index. The message says
    ///     how many of the following rows may also be in the index.
    /// ValueError
    ///     The servers accept no changes, or refuse a vector with NaN or the id 2^64 - 1. Then no
    ///     vector of the same batch was written.
    #[pyo3(signature = (vectors, ids, *, timeout=None))]
    fn upsert<'py>(
        &self,
        py: Python<'py>,
        vectors: &Bound<'py, PyAny>,
        ids: &Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let rows = self.rows(vectors, "vectors")?;
        let ids = different(arrays::ids(ids, Some(rows.rows()))?)?;
        let inner = self.inner()?;
        let client = self.within(&inner, timeout)?;
        let (source, row_bytes) = (rows.source()?, self.collection.row_bytes as usize);
        let changes = |progress: &dyn Progress| {
            let read = |first, rows: &mut [u8]| {
                (source.read(first, rows)).map_err(|error| error.to_string())
            };
            let goes_on = |_| goes_on(progress).is_ok();
            client.upsert(&ids, row_bytes, read, goes_on)
        };
        run_stoppable(py, &Listener::new(None)?, Some(ids.len()), changes).map(drop)
    }

    /// Deletes the vectors with these ids from the servers' index. `ids` is an array or a list of
    /// different integers, or a single integer. Returns the number of ids that were in the index;
    /// the call ignores ids that were not. If the storage server was restarted during the call, the
    /// number may omit ids that were deleted just before the restart. Everything else is as in
    /// `upsert`.
    #[pyo3(signature = (ids, *, timeout=None))]
    fn delete(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let ids = different(arrays::ids(ids, None)?)?;
        let inner = self.inner()?;
        let client = self.within(&inner, timeout)?;
        let changes = |progress: &dyn Progress| client.delete(&ids, |_| goes_on(progress).is_ok());
        let done = run_stoppable(py, &Listener::new(None)?, Some(ids.len()), changes)?;
        Ok(done.deleted)
    }

    /// Closes the connections to the servers, as the end of a `with` block does.
    fn close(&self, py: Python<'_>) {
        let inner = self.inner.lock().take();
        py.detach(|| drop(inner));
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

    /// The dimension: the number of elements of a vector.
    #[getter]
    fn dim(&self) -> usize {
        self.collection.dim as usize
    }

    /// The metric that measures distances: "l2", "ip" or "cosine".
    #[getter]
    fn metric(&self) -> &'static str {
        self.metric.name()
    }

    /// The numpy dtype of the vectors. Queries are converted to it.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("numpy")?
            .call_method1("dtype", (dtype_name(self.element),))
    }

    /// Whether the servers accept `upsert` and `delete`. The servers reported this at the time of
    /// `connect`.
    #[getter]
    fn changes(&self) -> bool {
        self.collection.changes
    }

    /// The addresses of the compute servers, as they were passed to `connect`.
    #[getter]
    fn servers(&self) -> Vec<String> {
        self.servers.clone()
    }

    /// The number of vectors that a search can find now. Each call asks the storage server.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let (inner, listener) = (self.inner()?, Listener::new(None)?);
        let client = self.within(&inner, None)?;
        let told = run(py, &listener, |progress| {
            let told = client.changeable_while(|| goes_on(progress).is_ok());
            told.ok_or(Error::Interrupted)
        })?;
        let collection = told.map_err(|failure| unanswered(&failure))?;
        Ok(collection.vectors as usize)
    }

    /// A client is always true. Otherwise Python would ask the servers for its length.
    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "stratann.Client({}, dim={}, dtype={}, metric={:?})",
            PyString::new(py, &self.names()).repr()?,
            self.collection.dim,
            dtype_name(self.element),
            self.metric.name(),
        ))
    }
}

fn patience_of(timeout: f64) -> PyResult<Duration> {
    let patience = Duration::try_from_secs_f64(timeout).ok();
    patience
        .filter(|patience| !patience.is_zero())
        .ok_or_else(|| {
            PyValueError::new_err(format!(
                "timeout={timeout}; no query can be answered in this time. Pass a number of seconds above 0, such as 0.5"
            ))
        })
}

/// The queries are sent from a separate thread, so the calling thread can receive Ctrl-C.
fn ask(
    py: Python<'_>,
    client: &stratann_node::serve::Client,
    rows: &Rows<'_>,
    asking: &Asking,
) -> PyResult<Result<Answered, Failure>> {
    let source = rows.source()?;
    run(py, &Listener::new(None)?, |progress| {
        let read = |at: usize, row: &mut Vec<u8>| {
            row.resize(source.row_bytes(), 0);
            Ok::<_, Error>(source.read(at, row)?)
        };
        match client.search_all(source.rows(), read, asking, || goes_on(progress)) {
            Ok(answered) => Ok(Ok(answered)),
            Err(Unanswered::Server(failure)) => Ok(Err(failure)),
            Err(Unanswered::Caller(error)) => Err(error),
        }
    })
}

/// The stats have the keys of `stratann cluster search --json`, and the costs of the batch.
fn stats<'py>(
    py: Python<'py>,
    answered: &Answered,
    asking: &Asking,
) -> PyResult<Bound<'py, PyDict>> {
    let queries = answered.latencies_us.len();
    let stats = PyDict::new(py);
    stats.set_item("list", answered.list)?;
    stats.set_item("beam", answered.beam)?;
    stats.set_item("k", asking.k)?;
    let qps = if queries == 0 {
        0.0
    } else {
        queries as f64 / answered.seconds.max(1e-9)
    };
    stats.set_item("qps", qps)?;
    stats.set_item("latency_us", latency(py, &answered.latencies_us)?)?;
    let Means {
        low,
        high,
        full,
        steps,
        wire,
        storage_wire,
        reads,
        read_bytes,
        restarts,
    } = answered.means;
    let per_query = PyDict::new(py);
    for (name, mean) in [
        ("low", low),
        ("high", high),
        ("full", full),
        ("steps", steps),
        ("wire", wire),
        ("storage_wire", storage_wire),
        ("reads", reads),
        ("read_bytes", read_bytes),
        ("restarts", restarts),
    ] {
        per_query.set_item(name, mean)?;
    }
    stats.set_item("per_query", per_query)?;
    stats.set_item("in_flight", asking.in_flight)?;
    stats.set_item("queries", queries)?;
    stats.set_item("seconds", answered.seconds)?;
    stats.set_item(
        "latencies_us",
        numpy::PyArray1::from_slice(py, &answered.latencies_us),
    )?;
    Ok(stats)
}

/// The names of servers are a text with commas, or several texts.
fn names(servers: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let wrong = || {
        PyTypeError::new_err(format!(
            "servers={}; it is of another type. Pass a text such as \"127.0.0.1:7710\", or a list of such texts",
            servers
                .repr()
                .map_or_else(|_| "?".into(), |shown| shown.to_string())
        ))
    };
    let names: Vec<String> = match servers.cast::<PyString>() {
        Ok(text) => text
            .extract::<String>()?
            .split(',')
            .map(|name| name.trim().to_owned())
            .collect(),
        Err(_) => servers.extract().map_err(|_| wrong())?,
    };
    match names.is_empty() || names.iter().any(String::is_empty) {
        true => Err(PyValueError::new_err(
            "servers names no server. Pass for example \"127.0.0.1:7710\"",
        )),
        false => Ok(names),
    }
}

/// The secret comes from `secret`, or else from `file`, or else from the environment.
pub fn secret_of(
    secret: Option<&Bound<'_, PyAny>>,
    file: Option<&Path>,
) -> PyResult<Option<Secret>> {
    let Some(secret) = secret else {
        return match file {
            Some(path) => Secret::read(path).map(Some),
            None => Secret::of_environment(),
        }
        .map_err(to_python);
    };
    if file.is_some() {
        return Err(PyValueError::new_err(
            "secret and secret_file are both given, and both set the secret. Pass one of them",
        ));
    }
    let bytes: Vec<u8> = match (secret.cast::<PyBytes>(), secret.cast::<PyString>()) {
        (Ok(bytes), _) => bytes.as_bytes().to_vec(),
        (_, Ok(text)) => text.extract::<String>()?.into_bytes(),
        // The message must not show the value.
        _ => {
            return Err(PyTypeError::new_err(
                "secret is of another type. Pass bytes or a str",
            ));
        }
    };
    match Secret::new(&bytes) {
        Some(secret) => Ok(Some(secret)),
        None => Err(PyValueError::new_err(format!(
            "secret is shorter than {} bytes; it could be guessed. Pass a longer secret",
            Secret::LEAST_BYTES
        ))),
    }
}

/// For a server on this machine, the default secret is the secret of the user.
pub fn place_of(
    name: &str,
    secret: Option<&Secret>,
    tls: &EncryptionOf,
) -> Result<Place, TierError> {
    let secret = Secret::given_or_own(secret, name)?;
    Place::of(name, secret.as_ref(), tls.encryption())
}

pub enum EncryptionOf {
    /// One of the choices of [`Encryption`] that need no file.
    Known(Encryption<'static>),
    /// The connection is encrypted, and the server is checked by the certificates in this file.
    By(PathBuf),
}

impl EncryptionOf {
    pub fn encryption(&self) -> Encryption<'_> {
        match self {
            EncryptionOf::Known(encryption) => *encryption,
            EncryptionOf::By(authority) => Encryption::By(authority),
        }
    }
}

/// The argument `tls` is `None`, a bool, or a path.
pub fn tls_of(tls: Option<&Bound<'_, PyAny>>) -> PyResult<EncryptionOf> {
    Ok(match tls {
        None => EncryptionOf::Known(Encryption::None),
        Some(flag) if flag.is_instance_of::<PyBool>() => {
            EncryptionOf::Known(match flag.is_truthy()? {
                true => Encryption::OfEnvironment,
                false => Encryption::None,
            })
        }
        Some(path) => EncryptionOf::By(path.extract()?),
    })
}

/// Connects to compute servers, which `stratann cluster up` and `stratann compute-server` start.
///
/// Queries go to the first server that can be reached. If this server ends, does not answer, or
/// waits for its own memory server or storage server, new queries and queries in flight go to the
/// next server, within their time limit.
///
/// Parameters
/// ----------
/// servers : str or sequence of str
///     "host:port", "[address]:port" or, on this machine, "shm:/path". Pass several servers as a
///     list, or separated by commas.
/// secret : bytes or str, optional
///     The secret of the servers, if they have a secret. With None, `connect` takes the secret from
///     `secret_file`, or else from the environment (STRATANN_SECRET_FILE, STRATANN_SECRET).
/// secret_file : str or os.PathLike, optional
///     A file with the secret. Only its owner may have permission to read it.
/// tls : bool, str or os.PathLike
///     Whether connections are encrypted with TLS. True trusts the certificates in the file (PEM)
///     that STRATANN_TLS_CA names. A path names such a file directly. Connections to "shm:" are
///     never encrypted.
/// timeout : float
///     The time limit of each query in seconds, from the time when the client sends it. `connect`
///     may take up to twice this time: once to connect, and once to ask for the properties of the
///     index.
///
/// Returns
/// -------
/// Client
///
/// Raises
/// ------
/// ServerError
///     No server can be reached. The message has the reason for each server.
/// ServerTimeoutError
///     The servers can be reached, but did not return the properties of the index in time, because
///     they wait for the storage server. A missing memory server does not delay `connect` and
///     changes, but only searches.
#[pyfunction]
#[pyo3(signature = (servers, *, secret=None, secret_file=None, tls=None, timeout=10.0))]
pub fn connect(
    py: Python<'_>,
    servers: &Bound<'_, PyAny>,
    secret: Option<&Bound<'_, PyAny>>,
    secret_file: Option<PathBuf>,
    tls: Option<&Bound<'_, PyAny>>,
    timeout: f64,
) -> PyResult<Client> {
    let names = names(servers)?;
    let patience = patience_of(timeout)?;
    let secret = secret_of(secret, secret_file.as_deref())?;
    let tls = tls_of(tls)?;
    let options = ClientOptions {
        patience,
        ..ClientOptions::default()
    };
    let connected = run(py, &Listener::new(None)?, |progress| {
        // Resolving the names may take a while.
        let places = names
            .iter()
            .map(|name| place_of(name, secret.as_ref(), &tls));
        let places = match places.collect::<Result<Vec<Place>, _>>() {
            Ok(places) => places,
            Err(error) => return Ok(Err(unreached(NodeError::Server(error)))),
        };
        let goes_on = || goes_on(progress).is_ok();
        let client = stratann_node::serve::Client::connect_while(places, options, goes_on);
        let client = match client {
            Ok(client) => client.ok_or(Error::Interrupted)?,
            Err(error) => return Ok(Err(unreached(error))),
        };
        // Only storage is asked, so changes work without a memory server.
        let told = client.changeable_while(goes_on).ok_or(Error::Interrupted)?;
        let told = told.map_err(|failure| unanswered(&failure));
        Ok::<_, Error>(told.map(|collection| (client, collection)))
    })?;
    let (client, collection) = connected?;
    let unknown = |what| {
        StratannError::new_err(format!(
            "the servers have vectors of {what} that this version does not know. Install a later version"
        ))
    };
    Ok(Client {
        inner: Mutex::new(Some(Arc::new(Opened::new(Arc::new(client))))),
        servers: names,
        patience,
        element: Element::from_code(collection.element).ok_or_else(|| unknown("a type"))?,
        metric: Metric::from_code(collection.metric).ok_or_else(|| unknown("a metric"))?,
        collection,
    })
}
