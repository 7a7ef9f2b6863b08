//! Where the threads of a compute server leave things for one another: a desk for each worker.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::link::Outbox;
use crate::wire::Token;

/// Where a worker finds what is for it.
#[derive(Default)]
pub(super) struct Desk {
    pub(super) mail: Mutex<Mail>,
    pub(super) stirs: Condvar,
    /// It waits for something to do, or is about to, and has room for a search.
    pub(super) room: AtomicBool,
    /// Searches that it is at.
    pub(super) in_flight: AtomicUsize,
}

/// What lies there.
#[derive(Default)]
pub(super) struct Mail {
    /// Connections that came or went, clients and changes that went.
    pub(super) news: Vec<News>,
    /// Frames of the connections that there are.
    pub(super) memory: Vec<u8>,
    pub(super) storage: Vec<u8>,
    /// Its turn is expected by this connection to the memory server.
    pub(super) expected: Option<Arc<Outbox>>,
    /// There is something elsewhere: a search that waits, other low codes.
    pub(super) look: bool,
    pub(super) over: bool,
}

/// A connection came or went, and why; or what is behind it is another state of the index; or something is not wanted any more.
#[derive(Clone)]
pub(super) enum News {
    MemoryUp(Arc<Outbox>),
    MemoryDown(String),
    /// The memory server does not have the state of the low codes.
    Outdated,
    StorageUp(Arc<Outbox>),
    StorageDown(String),
    /// A client is gone.
    Gone(u64),
    /// A change is given up by its client.
    GivenUp(Token),
}

impl Desk {
    pub(super) fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Mail)) {
        change(&mut self.mail());
        self.stirs.notify_one();
    }
}
