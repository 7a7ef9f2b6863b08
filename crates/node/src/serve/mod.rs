//! The roles of DistVS on threads, and a client: [`role`](crate::role) with clocks and connections.
//!
//! ```text
//!   MemoryServer    a thread a connection: reads all messages, answers them, writes once
//!   ComputeServer   workers, each with several queries in flight; a thread for each connection
//!                   to memory and storage; a thread for each client
//!   StorageServer   a thread a connection; ranks on the ranker's threads; one thread makes changes
//!   Follower        a thread that makes a memory server go on to the next checkpoint
//!   Http            a thread that accepts requests for health and metrics, and a few that answer
//!   Client          a thread that keeps the connection; many queries, from any number of threads
//! ```
//!
//! Each of these values ends its threads on drop.

mod changing;
mod client;
mod compute;
mod follow;
mod http;
mod index;
mod keeper;
mod many;
mod memory;
mod storage;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use stratann_tier::TierError;
use stratann_tier::remote::wire::{Protocol, Secret};
use stratann_tier::remote::{Fault, Server, Tls};

pub use changing::{ChangeError, Done, Unfinished, twice};
pub use client::{Client, ClientOptions, Pending};
pub use compute::{ComputeServer, ComputeServerOptions, Readiness, Served};
pub use follow::{Follower, Over};
pub use http::{Figure, Http, Page, Report};
pub use index::{MemoryOfIndex, StartError, StorageOfIndex};
pub use many::{Answered, Asking, Means, Unanswered};
pub use memory::{MemoryServer, Newest};
pub use storage::StorageServer;

use crate::link::duplex::Duplex;
use crate::listen::Door;

/// The location of a server.
#[derive(Clone, Debug)]
pub enum Place {
    /// `host:port`, with or without TLS, `shm:/path`, or `ucx:host:port`.
    Remote(Server),
    /// A server in this process.
    Local(Door),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Remote(server) => f.write_str(server.name()),
            Place::Local(_) => f.write_str("this process"),
        }
    }
}

/// Whether a connection is encrypted, and the certificates to trust.
#[derive(Clone, Copy, Debug)]
pub enum Encryption<'a> {
    /// No encryption.
    None,
    /// Trusts the certificates in the file that the environment names ([`Tls::AUTHORITY`]).
    OfEnvironment,
    /// Trusts the certificates in a file (PEM).
    By(&'a Path),
}

impl Place {
    /// A server by its name: `host:port`, `[address]:port`, `shm:/path` or `ucx:host:port`. `shm:`
    /// is never encrypted, and `ucx:` cannot be encrypted. This call sends nothing.
    ///
    /// # Errors
    /// The name has no known form, or the certificates cannot be read. UCX is not available, or is
    /// combined with encryption.
    pub fn of(
        name: &str,
        secret: Option<&Secret>,
        encryption: Encryption<'_>,
    ) -> Result<Place, TierError> {
        let host = name.rsplit_once(':').map_or(name, |(host, _)| host);
        // Certificates contain the address without brackets.
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        let tls = match encryption {
            _ if name.starts_with(Server::RING) => None,
            Encryption::None => None,
            _ if name.starts_with(Server::UCX) => {
                return Err(TierError::Unsupported {
                    what: format!("the server {name} with TLS"),
                    reason: format!(
                        "bytes through UCX are not encrypted. Leave out TLS, or `{}`",
                        Server::UCX
                    ),
                });
            }
            Encryption::OfEnvironment => Some(Tls::of_environment(host)?),
            Encryption::By(authority) => Some(Tls::new(host, authority)?),
        };
        Ok(Place::Remote(Server::new(name, secret.cloned(), tls)?))
    }

    /// The limit is for connecting and greeting.
    fn within(&self, limit: Duration) -> Place {
        match self {
            Place::Remote(server) => {
                Place::Remote(server.with_patience(limit.min(Server::PATIENCE)))
            }
            local => local.clone(),
        }
    }

    /// `limit` is the time that the server has to receive one send.
    fn connect(&self, protocol: Protocol, limit: Duration) -> Result<Duplex, Fault> {
        let failed = |error: std::io::Error| Fault::Unreachable(error.to_string());
        match self {
            Place::Remote(server) => {
                Duplex::of_transport(server.connect(protocol)?, Some(limit)).map_err(failed)
            }
            Place::Local(door) if door.protocol() != protocol => Err(Fault::Protocol(
                protocol.mismatch(door.protocol().version()),
            )),
            Place::Local(door) => Ok(Duplex::local(door.connect().map_err(failed)?, Some(limit))),
        }
    }
}
