//! Servers, of two kinds. A *memory server of files* keeps bytes in memory, and searches in other
//! processes read them. The *roles* of DistVS answer searches together: compute servers, a memory
//! server and a storage server.
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
//! The server of files knows nothing of indexes: it keeps bytes under names. An admitted client may
//! also put files there and remove their names, as [`stratann_tier::remote::Client`] does.
//!
//! The roles know neither vectors nor graphs. During a search they exchange node numbers, and the
//! query's row goes to the memory server and to storage. Low codes are transferred once, from the
//! memory server to a compute server that starts. The engine's part of the computation is in one
//! module (`halves`).
//!
//! This is a separate crate because it forbids `unsafe` and builds another artefact.
//!
//! **Admission.** If a server has a secret, it serves only clients that prove they know it. Without
//! a secret a server listens only on loopback, where all users of the machine reach it. The command
//! and the Python package therefore always give a server on loopback a secret: the user's own, if
//! no other is set. With a certificate all connections are encrypted. A client that expects another
//! kind of server is told which kind this server is.
//!
//! **Hostile clients.** Every size that a client sends is checked against a bound before it is
//! used. A greeting has five seconds, and few greetings run at a time. Frames, names and reads have
//! maximum lengths. A file counts towards the limit from its first byte. The numbers of queries in
//! flight and of clients are bounded. A client that sends an invalid request is disconnected. So is
//! a client that takes longer than half a minute for 64 KiB of a request or of its answers.

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
