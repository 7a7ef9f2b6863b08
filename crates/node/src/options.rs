//! Options for the listening side of a server, and errors of its start.

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

/// The reasons why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The address is not available.
    #[error(
        "cannot listen on {address}; {}. Choose another address, as HOST:PORT, such as 127.0.0.1:7700",
        taken(source)
    )]
    Listen {
        /// The address, as the user wrote it.
        address: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The addresses of HTTP and of the server are the same.
    #[error(
        "cannot serve health and metrics at {http}; the server itself listens at {server}. Name another port with --http"
    )]
    HttpAtServer {
        /// The address for HTTP.
        http: String,
        /// The address of the server.
        server: String,
    },
    /// The socket for rings cannot be made.
    #[error("cannot make the socket {}; {source}. Name a path in a folder that exists and that you can write to", path.display())]
    Ring {
        /// The path, as the user wrote it.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The address is reachable from other machines, and there is no secret.
    #[error(
        "{address} can be reached from other machines; a server listens there only with a secret. Put one into a file that only you can \
         read (`umask 077; head -c 32 /dev/urandom | base64 > secret`) and set STRATANN_SECRET_FILE to it, here and for clients; or listen on 127.0.0.1"
    )]
    Open {
        /// The address, as the user wrote it.
        address: String,
    },
    /// The certificate cannot be used.
    #[error("cannot use the certificate in {} with the key in {}; {reason}", certificate.display(), key.display())]
    Certificate {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the certificate's key.
        key: PathBuf,
        /// The reason.
        reason: String,
    },
    /// UCX is not available.
    #[error(transparent)]
    Ucx(TierError),
    /// UCX is combined with a certificate.
    #[error(
        "UCX (--ucx) is combined with a certificate; UCX does not encrypt. Leave out one of the two"
    )]
    UcxWithTls,
    /// UCX is requested without a secret.
    #[error(
        "UCX (--ucx) without a secret; UCX does not authenticate clients. Put a secret into a file that only you can \
         read (`umask 077; head -c 32 /dev/urandom | base64 > secret`) and set STRATANN_SECRET_FILE to it, here and for clients; or leave UCX out"
    )]
    UcxWithoutSecret,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another server cannot be reached.
    #[error(transparent)]
    Server(TierError),
    /// None of several servers can be reached.
    #[error("none of the servers can be reached; {}", said(.0))]
    Servers(Vec<TierError>),
    /// The system has no random numbers.
    #[error(
        "the system has no random numbers; {0}. Allow this process to use getrandom or /dev/urandom"
    )]
    Random(io::Error),
    /// A thread cannot be started.
    #[error(
        "cannot start a thread; {0}. Use fewer threads, or raise the limit of this user (`ulimit -u`)"
    )]
    Thread(io::Error),
}

fn taken(source: &io::Error) -> String {
    match source.kind() {
        ErrorKind::AddrInUse => "another program or server listens there".to_owned(),
        _ => source.to_string(),
    }
}

fn said(errors: &[TierError]) -> String {
    let texts: Vec<String> = errors.iter().map(TierError::to_string).collect();
    texts.join("; ")
}

impl NodeError {
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

/// The certificate and key with which a server encrypts its connections.
#[derive(Clone, Debug)]
pub struct Certificate(pub(crate) Arc<ServerConfig>);

impl Certificate {
    /// Reads a certificate with its chain, and its private key, both in PEM form.
    ///
    /// # Errors
    /// A file cannot be read, or the key does not belong to the certificate.
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

/// Options for the listening side of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// `host:port`. With port 0 the server listens at any free port.
    pub listen: String,
    /// The path of a socket for processes of this user that read through rings in shared memory.
    pub ring: Option<PathBuf>,
    /// Whether clients may use UCX after the greeting. UCX needs a secret, and excludes a
    /// certificate.
    pub ucx: bool,
    /// The secret that clients have to know.
    pub secret: Option<Secret>,
    /// The certificate with which connections are encrypted.
    pub certificate: Option<Certificate>,
    /// The largest number of clients at once. Connections that are still in the greeting do not
    /// count.
    pub most_clients: usize,
    /// The time for a whole greeting, TLS included.
    pub greeting: Duration,
    /// The time for each 64 KiB of a request or of its replies.
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
    /// Options of a server for this process only ([`Door`](crate::Door)), with a random secret.
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

    /// Checks, before an index is read, that a server can listen with these options.
    ///
    /// # Errors
    /// The server cannot listen.
    pub fn check(&self) -> Result<(), NodeError> {
        let (found, _) = resolve(self)?;
        self.check_ucx()?;
        self.bind(&found).map(drop)
    }

    pub(crate) fn hold(&self) -> Result<TcpListener, NodeError> {
        let (found, _) = resolve(self)?;
        self.bind(&found)
    }

    pub(crate) fn check_ucx(&self) -> Result<(), NodeError> {
        match (self.ucx, &self.certificate, &self.secret) {
            (false, ..) => Ok(()),
            (true, Some(_), _) => Err(NodeError::UcxWithTls),
            (true, None, None) => Err(NodeError::UcxWithoutSecret),
            (true, None, Some(_)) => ucx::available().map_err(|reason| {
                NodeError::Ucx(TierError::Unsupported {
                    what: "a server for UCX".to_owned(),
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

/// The addresses of a host name, and whether all are local. Addresses that other machines can reach
/// need a secret.
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
