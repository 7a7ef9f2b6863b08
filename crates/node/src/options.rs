//! How a server listens: its address, its secret, its certificate; and why it does not start.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use stratann_tier::TierError;
use stratann_tier::remote::ucx;
use stratann_tier::remote::wire::Secret;

use crate::store::StoreError;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The address.
    #[error(
        "cannot listen on {address}: {}; choose another address, as HOST:PORT, such as 127.0.0.1:7700",
        taken(source)
    )]
    Listen {
        /// As it was given.
        address: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// Health and metrics are to be where the server itself listens.
    #[error(
        "health and metrics cannot be told at {http}, since the server listens at {server}: name another port for them (--http)"
    )]
    HttpAtServer {
        /// Where they were to be told.
        http: String,
        /// Where the server listens.
        server: String,
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
        "{address} can be reached from other machines: a server listens there only with a secret. Put one into a file that only you can \
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
    /// UCX, which is not there.
    #[error(transparent)]
    Ucx(TierError),
    /// UCX and a certificate.
    #[error(
        "UCX (--ucx) and a certificate; what goes through UCX is not encrypted. Leave one of both out"
    )]
    UcxWithTls,
    /// UCX without a secret.
    #[error(
        "UCX (--ucx) and no secret; UCX believes what comes, and only a secret tells clients from strangers. Put one into a file that only you can \
         read (`umask 077; head -c 32 /dev/urandom | base64 > secret`) and set STRATANN_SECRET_FILE to it, here and for clients; or leave UCX out"
    )]
    UcxWithoutSecret,
    /// Its files.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A server that was to be asked.
    #[error(transparent)]
    Server(TierError),
    /// Several, of which any would do.
    #[error("none of the servers can be asked: {}", said(.0))]
    Servers(Vec<TierError>),
    /// The system's random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(io::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Why an address cannot be had.
fn taken(source: &io::Error) -> String {
    match source.kind() {
        ErrorKind::AddrInUse => "another program, or another server, listens there".to_owned(),
        _ => source.to_string(),
    }
}

/// What is wrong with each.
fn said(errors: &[TierError]) -> String {
    let texts: Vec<String> = errors.iter().map(TierError::to_string).collect();
    texts.join("; ")
}

impl NodeError {
    /// What is wrong with servers of which any would do.
    pub(crate) fn of_servers(mut errors: Vec<TierError>) -> NodeError {
        match (errors.pop(), errors.is_empty()) {
            (Some(alone), true) => NodeError::Server(alone),
            (last, _) => {
                errors.extend(last);
                NodeError::Servers(errors)
            }
        }
    }
}

/// What a server shows that encrypts its connections.
#[derive(Clone, Debug)]
pub struct Certificate(pub(crate) Arc<ServerConfig>);

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
    /// Whether files may be read through UCX as well, and servers of DistVS spoken to through it, behind greetings over TCP. With a secret, and not with a certificate.
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

impl Options {
    /// Of a server that is for this process alone ([`Door`](crate::Door)): whatever else reaches its address would have to know a secret that nobody does.
    ///
    /// # Errors
    /// The operating system has no random numbers.
    pub fn private() -> Result<Self, NodeError> {
        let random: [u8; 32] = stratann_tier::random().map_err(NodeError::Random)?;
        Ok(Self {
            secret: Secret::new(&random),
            ..Self::default()
        })
    }

    /// Whether a server can listen so: an address that there is, that nobody else listens at, and that others can reach only if they know a secret. To be asked before an index is read, which may take
    /// minutes; and whether there is UCX, where it is asked for. The address is free again when this returns, so that clients that come meanwhile hear that nobody is there yet.
    ///
    /// # Errors
    /// It cannot.
    pub fn check(&self) -> Result<(), NodeError> {
        let (found, _) = resolve(self)?;
        self.check_ucx()?;
        self.bind(&found).map(drop)
    }

    /// Takes the address, until what is returned is dropped.
    pub(crate) fn hold(&self) -> Result<TcpListener, NodeError> {
        let (found, _) = resolve(self)?;
        self.bind(&found)
    }

    /// Whether there may be UCX, and is, where it is asked for.
    pub(crate) fn check_ucx(&self) -> Result<(), NodeError> {
        match (self.ucx, &self.certificate, &self.secret) {
            (false, ..) => Ok(()),
            (true, Some(_), _) => Err(NodeError::UcxWithTls),
            (true, None, None) => Err(NodeError::UcxWithoutSecret),
            (true, None, Some(_)) => ucx::available().map_err(|reason| {
                NodeError::Ucx(TierError::Unsupported {
                    what: "a server that is reached through UCX".to_owned(),
                    reason,
                })
            }),
        }
    }

    pub(crate) fn bind(&self, addresses: &[SocketAddr]) -> Result<TcpListener, NodeError> {
        TcpListener::bind(addresses).map_err(|source| NodeError::Listen {
            address: self.listen.clone(),
            source,
        })
    }
}

/// Where an address leads, and whether all of that is on this machine. Others may ask only who know a secret.
pub(crate) fn resolve(options: &Options) -> Result<(Vec<SocketAddr>, bool), NodeError> {
    let address = options.listen.clone();
    let found = address
        .to_socket_addrs()
        .map_err(|source| NodeError::Listen {
            address: address.clone(),
            source,
        })?;
    let found: Vec<SocketAddr> = found.collect();
    let loopback = found.iter().all(|address| address.ip().is_loopback());
    match options.secret.is_none() && !loopback {
        true => Err(NodeError::Open { address }),
        false => Ok((found, loopback)),
    }
}
