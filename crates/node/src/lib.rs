//! Two kinds of servers. A *memory server of files* keeps files in memory, and searches in other
//! processes read these files. The servers of DistVS have three *roles*, and answer a search
//! together: compute servers, a memory server and a storage server.
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
//! The server of files knows nothing of indexes: it keeps named files. An admitted client may also
//! write files to the server, and remove their names, as [`stratann_tier::remote::Client`] does.
//!
//! The code of the roles knows neither vectors nor graphs. During a search the servers exchange
//! node numbers, and a compute server sends the query's row to the memory server and to storage.
//! Low codes are transferred once, from the memory server to a compute server that starts. The
//! module `halves` has all calls of the engine.
//!
//! This is a separate crate because it forbids `unsafe`, and because the engine must not depend on
//! servers.
//!
//! **Admission.** If a server has a secret, it serves only clients that prove that they know this
//! secret. Without a secret, a server listens only on loopback, where all users of the machine can
//! connect. The command and the Python package therefore always give a server on loopback a secret.
//! If no secret is set, they use a secret that the user's own processes share. With a certificate
//! all connections are encrypted. If a client expects another kind of server, the greeting tells
//! the client the kind of this server.
//!
//! **Hostile clients.** Every size that a client sends is checked against a bound before it is
//! used. A greeting must end within five seconds, and at most 64 greetings run at a time. Frames,
//! names and reads have maximum lengths. The announced length of a file counts towards the server's
//! limit in bytes as soon as the client begins the file. The numbers of queries in flight and of
//! clients are bounded. A client that sends an invalid request is disconnected. A client is also
//! disconnected if it needs more than half a minute to send 64 KiB of a request, or to receive 64
//! KiB of replies.

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
