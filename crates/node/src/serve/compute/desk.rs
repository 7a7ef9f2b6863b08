//! The *desk* of a worker, where other threads put its input.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::link::Outbox;
use crate::wire::Token;

#[derive(Default)]
pub(super) struct Desk {
    pub(super) mail: Mutex<Mail>,
    pub(super) stirs: Condvar,
    /// Whether the worker has space for a search, and waits for input or is about to wait.
    pub(super) room: AtomicBool,
    pub(super) in_flight: AtomicUsize,
}

#[derive(Default)]
pub(super) struct Mail {
    pub(super) news: Vec<News>,
    pub(super) memory: Vec<u8>,
    pub(super) storage: Vec<u8>,
    /// The connection to memory on which a turn of the worker is already counted.
    pub(super) expected: Option<Arc<Outbox>>,
    /// Whether the worker has to look for a waiting search, or for new low codes.
    pub(super) look: bool,
    pub(super) over: bool,
}

#[derive(Clone)]
pub(super) enum News {
    MemoryUp(Arc<Outbox>),
    MemoryDown(String),
    /// The memory server no longer has the state of the low codes.
    Outdated,
    StorageUp(Arc<Outbox>),
    StorageDown(String),
    Gone(u64),
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
