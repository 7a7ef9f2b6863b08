//! The client's side of memory servers of files (`stratann memory-server`, crate `stratann-node`).
//! A client reads from such a server over TCP, through a ring in shared memory ([`ring`]), or
//! through UCX ([`ucx`]). [`Server::connect`] connects to the servers of DistVS in the same ways.
//! [`wire`] defines the bytes.
//!
//! ```text
//!   RemoteTier ── queue ──┐
//!   RemoteTier ── queue ──┴─ Link ── connection ──> memory server
//!                              one for each thread and server, with many reads in flight;
//!                              the thread serves other tasks while it waits
//!
//!   RemoteVolume ── Client ── connection ──> memory server: puts, opens and checks files
//!                              one request at a time
//! ```
//!
//! A read requires no knowledge of the index. Through UCX, a read is *one-sided*: the server's
//! processors take no part in it. Clients trust a server as little as a disk: frames and pages have
//! checksums.
//!
//! **No wait is unbounded.** A server counts as stalled if, within [`Server::PATIENCE`], it sends
//! less than 64 KiB and completes no outstanding answer. All reads in flight then fail ([`Fault`]),
//! and the next read connects again. Time in which the client did not check the connection does not
//! count. To reserve or sync a file, a server may take twelve times as long, plus a second for each
//! 16 MiB.
//!
//! **Authentication.** Client and server prove that they know a secret (`STRATANN_SECRET_FILE` or
//! `STRATANN_SECRET`), and never send it. If neither variable is set, processes of one user on one
//! machine share a secret (`own.rs`). The bytes after the proofs are encrypted only with TLS
//! (`transport.rs`).

mod client;
mod link;
mod own;
pub mod ring;
mod state;
mod tier;
mod timed;
mod transport;
#[cfg(feature = "ucx")]
pub mod ucx;
#[cfg(not(feature = "ucx"))]
#[path = "ucx_absent.rs"]
pub mod ucx;
mod volume;
pub mod wire;

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub use client::{Client, RemoteFile};
pub(crate) use link::Links;
pub use tier::RemoteTier;
pub use timed::{Timed, notice_when_gone};
pub use transport::{Tls, Transport};
pub use volume::{CopyNames, RemoteVolume};

use crate::error::TierError;
use crate::span::Span;
use wire::{Binding, Greeting, Protocol, Refusal, Reply, Secret, Side, Status, Welcome};

/// The reasons why a server did not perform a request. A message has this text after the server's
/// name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// There is no connection to the server.
    #[error("cannot be reached ({0}). Start it there, or check address and port")]
    Unreachable(String),
    /// A request was outstanding, and the server sent too little in the given time.
    #[error(
        "sent no usable answer for {span}; it hangs, is overloaded, or the network is down. Try again, or restart it",
        span = Span(*.0)
    )]
    Stalled(Duration),
    /// A process accepts connections at that address, but sends no greeting.
    #[error(
        "accepted the connection and sent no greeting for {span}; it hangs or was stopped, it expects TLS, it is not a server of StratANN, or that is the port of its health and metrics (--http). Check address and port",
        span = Span(*.0)
    )]
    NoGreeting(Duration),
    /// The server ended the connection.
    #[error("ended the connection ({0}); it was stopped or restarted. Try again")]
    Closed(String),
    /// The server sent an invalid answer.
    #[error(
        "sent an invalid answer ({0}); it is not a server of this version, or the server or the network is broken. Run one version of StratANN on both sides, or restart the server"
    )]
    Nonsense(String),
    /// The server has another role or another version.
    #[error("{0}")]
    Protocol(String),
    /// The server's certificate is not trusted.
    #[error(
        "has a certificate that is not trusted ({0}). Let {variable} name a file with this certificate or the certificate of its issuer, and reach the server by a name that the certificate is for",
        variable = Tls::AUTHORITY
    )]
    Certificate(String),
    /// The server shows the certificate of an authority, not of a server.
    #[error(
        "shows the certificate of an authority (CA:TRUE), as `openssl req -x509` makes it; clients trust only the certificate of a server. Make such a certificate, with `-addext basicConstraints=critical,CA:FALSE`"
    )]
    Authority,
    /// The client or the server does not know the secret of the other side.
    #[error(
        "{0}. Give client and server the same secret, in the file that STRATANN_SECRET_FILE names, or in STRATANN_SECRET. If neither is set, all processes of one user on one machine share a secret"
    )]
    Secret(&'static str),
    /// The server refused the request.
    #[error("refused the request ({why:?}); {text}")]
    Refused {
        /// The reason.
        why: Option<Refusal>,
        /// The server's text.
        text: String,
    },
}

/// A memory server, as the client sees it. A clone is a handle to the same server.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Clone, Debug)]
enum Way {
    Tcp(Vec<SocketAddr>),
    Ring(PathBuf),
    /// UCX. Files are opened over TCP and read through UCX. For DistVS, only the greetings use TCP.
    Ucx(Vec<SocketAddr>),
}

pub(crate) type ServerKey = [u8; 32];

struct Inner {
    /// The name as the user gave it: `host:port`, `shm:/path` or `ucx:host:port`.
    name: String,
    way: Way,
    address: AtomicUsize,
    secret: Option<Secret>,
    tls: Option<Tls>,
    patience: Duration,
    key: ServerKey,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.inner.tls.is_some() {
            ", TLS"
        } else {
            ""
        };
        write!(f, "Server({}{tls})", self.inner.name)
    }
}

fn split_way(name: &str) -> Option<(&'static str, &str)> {
    [Server::RING, Server::UCX].into_iter().find_map(|way| {
        let (begin, rest) = name.split_at_checked(way.len())?;
        begin.eq_ignore_ascii_case(way).then_some((way, rest))
    })
}

impl Server {
    /// The time for which a server may send too little while a request is outstanding.
    pub const PATIENCE: Duration = Duration::from_secs(5);
    /// The prefix of the name of a server that is reached through a ring.
    pub const RING: &str = "shm:";
    /// The prefix of the name of a server that is reached through UCX.
    pub const UCX: &str = "ucx:";

    /// Suggests a valid name for a name with an invalid prefix (`UCX:`, or several prefixes).
    pub fn meant(name: &str) -> Option<String> {
        let (way, mut rest) = split_way(name)?;
        if name.starts_with(way) && split_way(rest).is_none() {
            return None;
        }
        let mut meant = way;
        while let Some((inner, behind)) = split_way(rest) {
            (meant, rest) = (inner, behind);
        }
        Some(format!("{meant}{rest}"))
    }

    /// Creates a handle to a server at `host:port`, `shm:/path` (a ring) or `ucx:host:port`. Makes
    /// no connection.
    ///
    /// # Errors
    /// Fails if the host name is unknown, the prefix is invalid, or UCX is not available.
    pub fn new(name: &str, secret: Option<Secret>, tls: Option<Tls>) -> Result<Server, TierError> {
        let failed = |why: String| TierError::Server {
            place: name.to_owned(),
            protocol: None,
            fault: Fault::Unreachable(why),
        };
        if let Some(meant) = Self::meant(name) {
            return Err(TierError::Unsupported {
                what: format!("the server {name}"),
                reason: format!("its prefix is not valid. Did you mean {meant}?"),
            });
        }
        if let Some(path) = name.strip_prefix(Self::RING) {
            return Ok(Self::at(
                name,
                Way::Ring(path.into()),
                secret,
                None,
                Self::PATIENCE,
            ));
        }
        let through_ucx = name.strip_prefix(Self::UCX);
        if through_ucx.is_some() {
            ucx::available().map_err(|reason| TierError::Unsupported {
                what: format!("the server {name}"),
                reason,
            })?;
        }
        let address = through_ucx.unwrap_or(name);
        let port = address.rsplit_once(':').map(|(_, port)| port);
        if port.is_none_or(|port| port.parse::<u16>().is_err()) {
            let what =
                "its name has no port; write HOST:PORT, such as 127.0.0.1:7710 or [::1]:7710";
            return Err(failed(what.to_owned()));
        }
        let found = address
            .to_socket_addrs()
            .map_err(|error| failed(error.to_string()))?;
        let addresses: Vec<SocketAddr> = found.collect();
        if addresses.is_empty() {
            return Err(failed("the host name is unknown".to_owned()));
        }
        let (way, tls) = match through_ucx {
            Some(_) => (Way::Ucx(addresses), None),
            None => (Way::Tcp(addresses), tls),
        };
        Ok(Self::at(name, way, secret, tls, Self::PATIENCE))
    }

    fn at(
        name: &str,
        way: Way,
        secret: Option<Secret>,
        tls: Option<Tls>,
        patience: Duration,
    ) -> Server {
        let mut hasher = blake3::Hasher::new();
        // The zero byte separates the text from the secret and TLS, which are added below.
        let what = format!("{name:?} {way:?} {patience:?} {}\0", secret.is_some());
        hasher.update(what.as_bytes());
        if let Some(secret) = &secret {
            hasher.update(&secret.fingerprint());
        }
        if let Some(tls) = &tls {
            hasher.update(tls.fingerprint());
        }
        Server {
            inner: Arc::new(Inner {
                name: name.to_owned(),
                way,
                address: AtomicUsize::new(0),
                secret,
                tls,
                patience,
                key: hasher.finalize().into(),
            }),
        }
    }

    /// The same server at other addresses, which are tried in turn.
    #[must_use]
    pub fn with_addresses(&self, addresses: Vec<SocketAddr>) -> Server {
        let Inner {
            name,
            way,
            secret,
            tls,
            patience,
            ..
        } = &*self.inner;
        let way = match way {
            Way::Tcp(_) => Way::Tcp(addresses),
            Way::Ucx(_) => Way::Ucx(addresses),
            Way::Ring(path) => Way::Ring(path.clone()),
        };
        Self::at(name, way, secret.clone(), tls.clone(), *patience)
    }

    /// The addresses, beginning with the address that worked last; none for a ring.
    fn addresses(&self) -> Vec<SocketAddr> {
        let (Way::Tcp(addresses) | Way::Ucx(addresses)) = &self.inner.way else {
            return Vec::new();
        };
        let mut addresses = addresses.clone();
        let last = self.inner.address.load(Ordering::Relaxed);
        if last < addresses.len() {
            addresses.rotate_left(last);
        }
        addresses
    }

    fn reached(&self, address: SocketAddr) {
        if let Way::Tcp(addresses) | Way::Ucx(addresses) = &self.inner.way
            && let Some(at) = addresses.iter().position(|&known| known == address)
        {
            self.inner.address.store(at, Ordering::Relaxed);
        }
    }

    /// The time limit for each address. All addresses together take at most the server's patience.
    fn patience_each(&self) -> Duration {
        let addresses = self.addresses().len().max(1);
        self.inner.patience / u32::try_from(addresses).unwrap_or(u32::MAX)
    }

    /// The same server with another time limit ([`Server::PATIENCE`]).
    #[must_use]
    pub fn with_patience(&self, patience: Duration) -> Server {
        let Inner {
            name,
            way,
            secret,
            tls,
            ..
        } = &*self.inner;
        Self::at(name, way.clone(), secret.clone(), tls.clone(), patience)
    }

    /// The name as the user gave it, such as `host:port`.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    fn failed(&self, file: &str, fault: Fault) -> TierError {
        TierError::Server {
            place: format!("{}/{file}", self.inner.name),
            protocol: Some(Protocol::Files),
            fault,
        }
    }

    /// Connects to a server of this protocol. Later reads and writes wait without a limit.
    ///
    /// # Errors
    /// Fails if no server of this protocol, version and secret is reachable.
    pub fn connect(&self, protocol: Protocol) -> Result<Transport, Fault> {
        client::connect(self, protocol)
    }

    /// Whether a UCX server of DistVS is on this machine. `None` for connections that do not
    /// continue through UCX.
    fn streams(&self, protocol: Protocol) -> Option<bool> {
        match &self.inner.way {
            Way::Ucx(all) if protocol.is_role() => {
                Some(all.iter().all(|address| address.ip().is_loopback()))
            }
            _ => None,
        }
    }

    fn reply(
        &self,
        protocol: Protocol,
        greeting: &Greeting,
        channel: &Binding,
    ) -> Result<Reply, Fault> {
        if greeting.version != protocol.version() {
            return Err(Fault::Protocol(protocol.mismatch(greeting.version)));
        }
        let ucx = self.streams(protocol).is_some();
        if ucx && !greeting.ucx {
            let what = format!(
                "was not started with --ucx. Start it with --ucx, or name it without `{}`",
                Self::UCX
            );
            return Err(Fault::Protocol(what));
        }
        if matches!(self.inner.way, Way::Ucx(_)) && self.inner.secret.is_none() {
            return Err(Fault::Secret(
                "is reached through UCX, which requires a secret, and this client has none",
            ));
        }
        let nonce = wire::nonce().map_err(|error| Fault::Unreachable(error.to_string()))?;
        let proof = match (&self.inner.secret, greeting.wants_secret) {
            (Some(secret), true) => secret.proof(Side::Client, [&greeting.nonce, &nonce], channel),
            (None, false) => [0; 32],
            (None, true) => {
                return Err(Fault::Secret("requires a secret, and this client has none"));
            }
            (Some(_), false) => {
                return Err(Fault::Secret(
                    "has no secret, so its identity cannot be checked",
                ));
            }
        };
        Ok(Reply {
            version: protocol.version(),
            ucx,
            nonce,
            proof,
        })
    }

    fn check(
        &self,
        greeting: &Greeting,
        reply: &Reply,
        welcome: &Welcome,
        channel: &Binding,
    ) -> Result<(), Fault> {
        let refused = |text: &str| {
            Err(Fault::Refused {
                why: None,
                text: text.to_owned(),
            })
        };
        match welcome.status {
            Status::Welcome => {}
            Status::WrongSecret => {
                return Err(Fault::Secret("has another secret than this client"));
            }
            Status::Full => {
                return refused(
                    "the server has as many clients as it allows. End some of them, or start the server with a higher limit",
                );
            }
            Status::OtherVersion => {
                return refused(
                    "it speaks another version of the protocol. Use the same version of StratANN on both sides",
                );
            }
        }
        let nonces = [&greeting.nonce, &reply.nonce];
        match &self.inner.secret {
            Some(secret) if !secret.is_shown(&welcome.proof, Side::Server, nonces, channel) => {
                Err(Fault::Secret("does not know the secret of this client"))
            }
            _ => Ok(()),
        }
    }
}

impl Secret {
    /// The environment variable that names a file with the secret.
    pub const FILE: &str = "STRATANN_SECRET_FILE";
    /// The environment variable that contains the secret.
    pub const VARIABLE: &str = "STRATANN_SECRET";

    /// The secret of the environment, from [`FILE`](Secret::FILE) or
    /// [`VARIABLE`](Secret::VARIABLE).
    ///
    /// # Errors
    /// Fails as [`read`](Secret::read) does, and if the variable is too short.
    pub fn of_environment() -> Result<Option<Secret>, TierError> {
        let of = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        if let Some(path) = of(Self::FILE) {
            return Self::read(path.as_ref()).map(Some);
        }
        let Some(value) = of(Self::VARIABLE) else {
            return Ok(None);
        };
        match Secret::new(value.as_encoded_bytes()) {
            Some(secret) => Ok(Some(secret)),
            None => Err(too_short(Self::VARIABLE.to_owned())),
        }
    }

    /// Reads the secret from a file. Only its owner, who must be this user or root, may have access
    /// to the file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is not private, or is too short.
    pub fn read(path: &std::path::Path) -> Result<Secret, TierError> {
        use std::io::Read;
        let place = path.display().to_string();
        let failed = |source: io::Error| TierError::io("read", place.as_str(), 0, 0, source);
        let file = std::fs::File::open(path).map_err(failed)?;
        let facts = file.metadata().map_err(failed)?;
        let user = rustix::process::geteuid().as_raw();
        if facts.mode() & 0o077 != 0 || ![user, 0].contains(&facts.uid()) {
            return Err(TierError::Unsupported {
                what: format!("the secret in {place}"),
                reason: "other users can access the file, or it belongs to another user. Use a file of this user, and run `chmod 600` on it".to_owned(),
            });
        }
        let mut bytes = Vec::new();
        file.take(64 << 10)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        Secret::new(&bytes).ok_or_else(|| too_short(place))
    }
}

fn too_short(what: String) -> TierError {
    TierError::Unsupported {
        what: format!("the secret in {what}"),
        reason: format!(
            "it has less than {} bytes. Make one with `head -c 32 /dev/urandom | base64`",
            Secret::LEAST_BYTES
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_begins_as_none_does_is_refused_with_the_one_that_is_meant() {
        for (name, meant) in [
            ("UCX:127.0.0.1:7700", "ucx:127.0.0.1:7700"),
            ("Shm:/run/x", "shm:/run/x"),
            ("shm:ucx:127.0.0.1:7700", "ucx:127.0.0.1:7700"),
            ("ucx:shm:/run/x", "shm:/run/x"),
            ("ucx:UCX:127.0.0.1:7700", "ucx:127.0.0.1:7700"),
            ("shm:SHM:ucx:[::1]:7700", "ucx:[::1]:7700"),
        ] {
            let error = Server::new(name, None, None)
                .err()
                .map(|error| error.to_string());
            let error = error.unwrap_or_else(|| panic!("{name} is taken"));
            let told = format!("Did you mean {meant}?");
            assert!(error.contains(name) && error.contains(&told), "{error}");
        }
        for name in [
            "127.0.0.1:7700",
            "ucx:127.0.0.1:7700",
            "shm:/run/x",
            "shm:./ucx:x",
            "ucxé:1",
            "sh",
            "",
        ] {
            assert_eq!(Server::meant(name), None, "{name}");
        }
    }

    #[test]
    fn connections_are_in_common_where_all_that_matters_is() {
        let of = |name: &str, secret: Option<&[u8]>| {
            let secret = secret.map(|bytes| Secret::new(bytes).unwrap());
            Server::new(name, secret, None).unwrap()
        };
        let known = of("127.0.0.1:7700", Some(b"a secret of tests"));
        let key = |server: &Server| server.inner.key;
        assert_eq!(
            key(&known),
            key(&of("127.0.0.1:7700", Some(b"a secret of tests")))
        );
        let others = [
            of("127.0.0.1:7700", Some(b"another secret of tests")),
            of("127.0.0.1:7700", None),
            of("127.0.0.1:7701", Some(b"a secret of tests")),
            of("shm:/127.0.0.1:7700", Some(b"a secret of tests")),
            known.with_addresses(vec!["127.0.0.2:7700".parse().unwrap()]),
            known.with_patience(Duration::from_secs(1)),
        ];
        for other in others {
            assert_ne!(key(&known), key(&other), "{other:?}");
        }
    }
}
