//! The transports of a connection: TCP (plain, or encrypted with TLS), shared memory, and UCX.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::Fault;
use super::ring::RingStream;
use super::timed::Timed;
use super::ucx::UcxStream;
use super::wire::{Binding, CHANNEL, UNBOUND};
use crate::error::TierError;

/// A client's settings for encryption: the trusted certificates, and the expected host.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    host: ServerName<'static>,
    fingerprint: [u8; 32],
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({:?})", self.host)
    }
}

impl Tls {
    /// The environment variable that names a file with the certificates (PEM) that clients trust.
    pub const AUTHORITY: &str = "STRATANN_TLS_CA";

    /// Settings for a server at `host`. The server's certificate must be in the file that
    /// [`AUTHORITY`](Tls::AUTHORITY) names, or be signed by a certificate in this file.
    ///
    /// # Errors
    /// Fails if the variable is not set, or the file or the name is invalid.
    pub fn of_environment(host: &str) -> Result<Tls, TierError> {
        match std::env::var_os(Self::AUTHORITY).filter(|path| !path.is_empty()) {
            Some(path) => Self::new(host, path.as_ref()),
            None => Err(TierError::Unsupported {
                what: format!("TLS with {host}"),
                reason: format!(
                    "no trusted certificates are named. Set {} to a file of certificates (PEM)",
                    Self::AUTHORITY
                ),
            }),
        }
    }

    /// Like [`of_environment`](Tls::of_environment), with the certificates in the given file.
    ///
    /// # Errors
    /// Fails as [`of_environment`](Tls::of_environment) does.
    pub fn new(host: &str, authority: &Path) -> Result<Tls, TierError> {
        let failed = |reason: String| TierError::Unsupported {
            what: format!(
                "TLS with {host} and the certificates in {}",
                authority.display()
            ),
            reason,
        };
        let read = CertificateDer::pem_file_iter(authority);
        let mut roots = RootCertStore::empty();
        let mut hasher = blake3::Hasher::new();
        for certificate in read.map_err(|error| failed(error.to_string()))? {
            let certificate = certificate.map_err(|error| failed(error.to_string()))?;
            hasher.update(blake3::hash(&certificate).as_bytes());
            roots
                .add(certificate)
                .map_err(|error| failed(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(failed("the file has no certificate".to_owned()));
        }
        hasher.update(host.as_bytes());
        let host =
            ServerName::try_from(host.to_owned()).map_err(|error| failed(error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Tls {
            config: Arc::new(config),
            host,
            fingerprint: hasher.finalize().into(),
        })
    }

    pub(super) fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }
}

pub(super) fn garbled(error: &io::Error) -> Fault {
    let said = error.get_ref();
    match said.and_then(|said| said.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(_)) => Fault::Protocol(format!(
            "does not use TLS ({error}). Connect without TLS, or start the server with a certificate"
        )),
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(why)))
            if why.to_string().contains("CaUsedAsEndEntity") =>
        {
            Fault::Authority
        }
        Some(rustls::Error::InvalidCertificate(_)) => Fault::Certificate(error.to_string()),
        _ => Fault::Nonsense(error.to_string()),
    }
}

/// The client's side of a connection, returned by [`Server::connect`](super::Server::connect).
pub enum Transport {
    /// TCP.
    Plain(TcpStream),
    /// TLS over TCP.
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
    /// Memory that two processes share.
    Ring(Box<RingStream>),
    /// UCX, with a socket beside it.
    Ucx(Box<UcxStream>),
}

impl Transport {
    pub(super) fn new(socket: TcpStream, tls: Option<&Tls>) -> io::Result<Transport> {
        let Some(tls) = tls else {
            return Ok(Transport::Plain(socket));
        };
        let connection = ClientConnection::new(tls.config.clone(), tls.host.clone());
        let connection = connection.map_err(io::Error::other)?;
        Ok(Transport::Tls(Box::new(StreamOwned::new(
            connection,
            Timed::new(socket),
        ))))
    }

    pub(super) fn is_connected(&self) -> io::Result<bool> {
        let socket = match self {
            Transport::Plain(socket) => socket,
            Transport::Tls(stream) => stream.sock.socket(),
            Transport::Ring(_) | Transport::Ucx(_) => return Ok(true),
        };
        if let Some(error) = socket.take_error()? {
            return Err(error);
        }
        match socket.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The binding of this channel, after both sides have agreed on keys.
    pub(super) fn channel(&self) -> io::Result<Binding> {
        match self {
            Transport::Tls(stream) => (stream.conn)
                .export_keying_material(UNBOUND, CHANNEL, None)
                .map_err(io::Error::other),
            Transport::Plain(_) | Transport::Ring(_) | Transport::Ucx(_) => Ok(UNBOUND),
        }
    }

    /// Limits the wait of a read. Over TLS, limits all reads and writes together until the next
    /// call.
    pub(super) fn set_read_timeout(&mut self, limit: Duration) -> io::Result<()> {
        match self {
            Transport::Plain(socket) => socket.set_read_timeout(Some(limit)),
            Transport::Tls(stream) => stream.sock.limit(Some(limit)),
            Transport::Ring(stream) => {
                stream.set_read_timeout(Some(limit));
                Ok(())
            }
            Transport::Ucx(stream) => {
                stream.set_read_timeout(Some(limit));
                Ok(())
            }
        }
    }

    pub(super) fn lift_timeouts(&mut self) -> io::Result<()> {
        match self {
            Transport::Plain(socket) => {
                socket.set_read_timeout(None)?;
                socket.set_write_timeout(None)
            }
            Transport::Tls(stream) => stream.sock.limit(None),
            Transport::Ring(stream) => {
                stream.set_read_timeout(None);
                stream.set_write_timeout(None);
                Ok(())
            }
            Transport::Ucx(stream) => {
                stream.set_read_timeout(None);
                stream.set_write_timeout(None);
                Ok(())
            }
        }
    }

    pub(super) fn set_write_timeout(&mut self, limit: Duration) -> io::Result<()> {
        match self {
            Transport::Plain(socket) => socket.set_write_timeout(Some(limit)),
            Transport::Tls(stream) => stream.sock.limit(Some(limit)),
            Transport::Ring(stream) => {
                stream.set_write_timeout(Some(limit));
                Ok(())
            }
            Transport::Ucx(stream) => {
                stream.set_write_timeout(Some(limit));
                Ok(())
            }
        }
    }

    /// The events to wait for. If `more` is true, there are more bytes to write. A ring and UCX
    /// signal space and bytes by the same event.
    pub(super) fn events(&self, more: bool) -> i16 {
        let more = match self {
            Transport::Plain(_) => more,
            Transport::Tls(stream) => more || stream.conn.wants_write(),
            Transport::Ring(_) | Transport::Ucx(_) => false,
        };
        if more {
            libc::POLLIN | libc::POLLOUT
        } else {
            libc::POLLIN
        }
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Transport::Plain(socket) => socket.as_fd(),
            Transport::Tls(stream) => stream.sock.as_fd(),
            Transport::Ring(stream) => stream.as_fd(),
            Transport::Ucx(stream) => stream.as_fd(),
        }
    }
}

impl Read for Transport {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => socket.read(out),
            Transport::Tls(stream) => stream.read(out),
            Transport::Ring(stream) => stream.read(out),
            Transport::Ucx(stream) => stream.read(out),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => socket.write(bytes),
            Transport::Tls(stream) => stream.write(bytes),
            Transport::Ring(stream) => stream.write(bytes),
            Transport::Ucx(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Transport::Plain(socket) => socket.flush(),
            Transport::Tls(stream) => stream.flush(),
            Transport::Ring(stream) => stream.flush(),
            Transport::Ucx(stream) => stream.flush(),
        }
    }
}
