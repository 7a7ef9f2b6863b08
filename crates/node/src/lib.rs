//! Two kinds of servers. A *memory server of files* keeps files in memory for searches in other
//! processes. The compute, memory and storage servers of DistVS answer a search together.
//!
//! ```text
//!   Running (server, session, store)             files in memory, for stratann_tier::remote
//!   MemoryServer, ComputeServer, StorageServer,  DistVS: computation is behind small traits
//!   Client (serve)                               (role), messages in wire, connections in link
//!
//!     serve   threads, clocks, connections ──> role   state machines: messages and a time in,
//!       │                                             messages out ──> wire   bytes
//!       └───> link   many queries' messages in one write; a connection's two directions
//!     listen, options  for both kinds: address, admission, and a thread for each client
//! ```
//!
//! The server of files keeps named files and knows nothing of indexes. An admitted client may also
//! write and remove files, as [`stratann_tier::remote::Client`] does.
//!
//! The roles know neither vectors nor graphs: servers exchange node numbers and the query's row.
//! Low codes are transferred once, to a compute server that starts. Only the module `halves` calls
//! the engine.
//!
//! The crate is separate because it forbids `unsafe`, and the engine must not depend on servers.
//!
//! **Admission.** A server with a secret serves only clients that prove that they know the secret.
//! A server without a secret listens only on loopback, where all users of the machine can connect.
//! So on loopback, the command and the Python package use a secret that the user's processes share,
//! if no other is set. A certificate encrypts all connections.
//!
//! **Hostile clients.** Every size from a client is checked against a bound before its use, and the
//! numbers of clients and queries are bounded. A greeting must end within five seconds, and at most
//! 64 run at a time. The announced length of a file counts towards the server's limit at once. A
//! client is disconnected after an invalid request, or if it needs more than half a minute to send
//! 64 KiB of a request or to receive 64 KiB of replies.

#![forbid(unsafe_code)]

mod greeting;
mod halves;
mod link;
mod listen;
mod options;
pub mod role;
pub mod serve;
mod server;
mod session;
mod store;
mod stream;
pub mod wire;

pub use link::Traffic;
pub use listen::Door;
pub use options::{Certificate, NodeError, Options};
pub use server::Running;
pub use store::{Store, StoreError};
pub use stratann_tier::TierError;
pub use stratann_tier::remote::wire::Secret;
pub use stratann_tier::remote::{Server, Tls};
