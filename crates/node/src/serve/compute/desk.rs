//! The *desk* of a worker of a compute server: other threads put the worker's input there.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::link::Outbox;
use crate::wire::Token;

/// A worker's input.
#[derive(Default)]
pub(super) struct Desk {
    pub(super) mail: Mutex<Mail>,
    pub(super) stirs: Condvar,
    /// Whether the worker waits for input or is about to wait, and has space for a search.
    pub(super) room: AtomicBool,
    /// The number of searches in progress.
    pub(super) in_flight: AtomicUsize,
}

/// The input on a desk.
#[derive(Default)]
pub(super) struct Mail {
    /// Connections that began or ended, clients that disconnected, and withdrawn changes.
    pub(super) news: Vec<News>,
    /// Frames of the current connections.
    pub(super) memory: Vec<u8>,
    pub(super) storage: Vec<u8>,
    /// The connection to the memory server on which a turn of the worker is already counted.
    pub(super) expected: Option<Arc<Outbox>>,
    /// Whether the worker has work that is not on its desk: a waiting search, or new low codes.
    pub(super) look: bool,
    pub(super) over: bool,
}

/// An event for workers.
#[derive(Clone)]
pub(super) enum News {
    MemoryUp(Arc<Outbox>),
    MemoryDown(String),
    /// The memory server no longer has the state of the low codes.
    Outdated,
    StorageUp(Arc<Outbox>),
    StorageDown(String),
    /// A client has disconnected.
    Gone(u64),
    /// A client has withdrawn a change.
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
