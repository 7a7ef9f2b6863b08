//! A memory server: files in the memory of one process, which searches in others read over TCP or, on the same machine, a ring in shared memory. The clients are
//! [`stratann_tier::remote`], and so is the format of what goes between ([`stratann_tier::remote::wire`]).
//!
//! ```text
//!   client ── connection ──> a thread: greetings, then requests one after the other, answered from memory
//!   client ── connection ──> ...                                  │
//!                                                               Store: files by name and by id, with a limit on their bytes
//! ```
//!
//! The server knows nothing of indexes: it keeps bytes under names. Whoever may ask may also put files there and take their names away, as
//! [`stratann_tier::remote::Client`] does. It belongs to a crate of its own because it needs no engine, and may not have `unsafe`; the
//! client is a tier, and thereby in `stratann-tier`, and the format is where both can have it.
//!
//! **Who may ask.** On loopback everybody on the machine, unless there is a secret; on any other address only who knows the secret, without
//! which the server does not start there. With a certificate all connections are encrypted.
//!
//! **What it takes to misbehave.** Everything that comes from a client is bounded before it is believed: greetings have five seconds and are few at a time,
//! frames, names and reads have largest lengths, files count towards the limit when they are begun, clients have a number. Who sends what is no
//! request is disconnected, and so is who does not end his request, or take his answers, at 64 KiB in half a minute.

#![forbid(unsafe_code)]

mod server;
mod session;
mod store;

pub use server::{Certificate, NodeError, Options, Running};
pub use store::{Store, StoreError};
pub use stratann_tier::TierError;
pub use stratann_tier::remote::wire::Secret;
