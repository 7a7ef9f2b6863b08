//! Servers, of two kinds. A *memory server of files* keeps bytes in memory for searches in other processes to read. The *roles* of DistVS answer searches
//! together: compute servers, a memory server, storage.
//!
//! ```text
//!   Running (server, session, store)             files in memory; the client is a tier: stratann_tier::remote
//!   MemoryServer, ComputeServer, StorageServer,  DistVS: what is computed is behind small traits (role), what goes between them is in
//!   Client (serve)                               wire, how it goes is in link
//!
//!     serve   threads, clocks, connections ──> role   state machines: messages and a time in, messages out ──> wire   bytes
//!       └───> link   many queries' messages in one write; a connection's two directions
//!     listen, options  where a server listens, who may come, and a thread for each who does: of both kinds
//! ```
//!
//! The server of files knows nothing of indexes: it keeps bytes under names. Whoever may ask may also put files there and take their names away, as
//! [`stratann_tier::remote::Client`] does. Nor do the roles know vectors or graphs: in a search node numbers go from one to another, and the query's row
//! to memory and to storage; low codes go once, from the memory server to a compute server that starts. What the engine computes for them is in one module (`halves`). This is a crate of its own because it may not have `unsafe`, and is another artefact.
//!
//! **Who may ask.** Where a server has a secret, only who knows it. Without one no server listens but on loopback, where all users of the machine reach it.
//! The command and Python therefore give each server on loopback a secret: that of its user, where there is no other. With a certificate all connections are encrypted. Who comes to a server of another kind than he wants is told which it is.
//!
//! **What it takes to misbehave.** Everything that comes from a client is bounded before it is believed: greetings have five seconds and are few at a time,
//! frames, names and reads have largest lengths, files count towards the limit when they are begun, queries in flight and clients have a number. Who sends what is no
//! request is disconnected, and so is who does not end his request, or take his answers, at 64 KiB in half a minute.

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
