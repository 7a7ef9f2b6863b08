//! The state of a compute server's connection to memory or storage. It records whether the server
//! is connected, since when, and the reason if it is not. It also records the server's state of the
//! index. The health page shows this record, and the log reports its changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stratann_tier::Span;
use stratann_tier::remote::wire::Protocol;

use crate::link::Outbox;
use crate::serve::Place;
use crate::serve::keeper::Lost;
use crate::wire::{Collection, Head, Message, append_rank};

/// A connection to memory or storage, as other threads see it.
pub(super) struct Contact {
    protocol: Protocol,
    /// The server's name in messages, such as `the memory server at 10.0.0.1:7700`.
    name: String,
    known: Mutex<Known>,
    answers: Condvar,
    /// Whether a thread waits for a sign of life.
    awaited: AtomicBool,
}

struct Known {
    /// The connection, if there is one.
    outbox: Option<Arc<Outbox>>,
    /// The time since which the server is connected, or is not connected.
    since: Instant,
    /// The logged reasons why the connection was lost. The list is emptied when the server sends a
    /// message.
    lost: Vec<String>,
    /// The last such reason without the server's name, for the health page.
    why: String,
    /// The time at which this compute server requested a sign of life that has not arrived.
    silent: Option<Instant>,
    /// Whether the missing sign of life was logged.
    told_silent: bool,
    /// If a worker closed the connection because the server was silent: the length of that silence.
    given_up: Option<Duration>,
    /// The last request for a sign of life: its id, and the state that it named.
    question: (u64, u64),
    /// The server's answer about the state in `question`.
    said: Option<Said>,
    /// The collection, as storage last described it.
    collection: Option<Collection>,
    /// Whether a description was requested and has not arrived.
    undescribed: bool,
}

/// A server's answer about a state of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// The state, or 0 for none. No server has state 0.
    pub(super) of: u64,
    /// Whether the server serves the state `of`.
    pub(super) serves: bool,
    /// The newest state of the server. If a memory server serves the state `of`, this field is
    /// `of`.
    pub(super) newest: u64,
}

/// The condition of a contact.
pub(super) struct Standing {
    /// The last answer about a state.
    pub(super) said: Option<Said>,
    /// Whether there is a connection.
    pub(super) up: bool,
    /// The reason why the server cannot be asked: the text after its name.
    pub(super) trouble: Option<String>,
    /// The time since which the server is connected, or is not connected.
    pub(super) since: Instant,
}

/// The time that a server has for a sign of life.
pub(super) const SIGN: Duration = Duration::from_secs(1);
/// The lane in the ids of a contact's own requests. All workers have lower lanes.
pub(super) const NO_LANE: u64 = 0xFFFF;

impl Contact {
    pub(super) fn new(protocol: Protocol, place: &Place) -> Contact {
        Contact {
            protocol,
            name: match place {
                Place::Remote(_) => format!("{} at {place}", protocol.role()),
                Place::Local(_) => format!("{} in {place}", protocol.role()),
            },
            known: Mutex::new(Known {
                outbox: None,
                since: Instant::now(),
                lost: Vec::new(),
                why: "is not connected yet".to_owned(),
                silent: None,
                told_silent: false,
                given_up: None,
                question: (NO_LANE, 0),
                said: None,
                collection: None,
                undescribed: false,
            }),
            answers: Condvar::new(),
            awaited: AtomicBool::new(false),
        }
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The server's name in messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the server is connected.
    pub(super) fn is_up(&self) -> bool {
        self.known().outbox.is_some()
    }

    /// Called when the server is connected. `state` is the state that this compute server uses, or
    /// 0 if it has none yet.
    pub(super) fn up(&self, outbox: Arc<Outbox>, state: u64) {
        let mut known = self.known();
        (known.outbox, known.since, known.silent) = (Some(outbox.clone()), Instant::now(), None);
        known.collection = None;
        drop(known);
        if self.protocol == Protocol::Storage {
            // The request for a description is sent first, so that the description is known before
            // any sign of life.
            self.ask_description();
        }
        self.ask(state);
    }

    /// Asks storage for a description.
    fn ask_description(&self) {
        let mut known = self.known();
        let Some(outbox) = known.outbox.clone() else {
            return;
        };
        known.undescribed = true;
        drop(known);
        let (mut out, for_changes) = (Vec::new(), false);
        let head = Head {
            id: NO_LANE,
            ..Head::default()
        };
        Message::Describe { for_changes }.append(head, &mut out);
        outbox.post(&out);
    }

    /// Called when the description has arrived.
    pub(super) fn describes(&self, collection: Collection) {
        let mut known = self.known();
        (known.collection, known.undescribed) = (Some(collection), false);
        drop(known);
        self.answers.notify_all();
    }

    /// Asks storage for its current description, and waits for the description until a deadline. If
    /// none arrives in time, returns the last description, if there was one.
    pub(super) fn described(&self, until: Instant) -> Option<Collection> {
        self.ask_description();
        let left = until.saturating_duration_since(Instant::now());
        let waits = |known: &mut Known| known.undescribed && known.outbox.is_some();
        let waited = self.answers.wait_timeout_while(self.known(), left, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.collection
    }

    /// The last description on this connection, if one has arrived. It may be out of date.
    pub(super) fn collection(&self) -> Option<Collection> {
        self.known().collection
    }

    /// Called when a worker closes this connection because the server was silent for `silence`.
    /// Does nothing if the connection was replaced.
    pub(super) fn give_up(&self, outbox: &Arc<Outbox>, silence: Duration) {
        let mut known = self.known();
        let own = known.outbox.as_ref();
        if own.is_some_and(|own| Arc::ptr_eq(own, outbox)) {
            known.given_up = Some(silence);
        }
    }

    pub(super) fn down(&self, lost: &Lost) {
        let mut known = self.known();
        if known.outbox.take().is_some() {
            known.since = Instant::now();
        }
        let (text, why) = match known.given_up.take() {
            None => (lost.to_string(), lost.why()),
            Some(silence) => {
                let why = format!(
                    "has not answered for {} while queries waited for it, so this server connects to it again; it hangs, was stopped, or the network is down",
                    Span(silence)
                );
                (format!("{} {why}", self.name), why)
            }
        };
        known.why = why;
        (known.silent, known.said) = (None, None);
        // Each reason is logged once, and not at each attempt.
        let new = !known.lost.contains(&text);
        if new {
            known.lost.push(text.clone());
        }
        drop(known);
        self.answers.notify_all();
        if new {
            tracing::warn!(
                "{text}; queries wait for this server, and the compute server tries to connect again"
            );
        }
    }

    /// Called when the server has sent a message.
    pub(super) fn heard(&self) {
        if self.awaited.load(Ordering::Relaxed) && self.awaited.swap(false, Ordering::SeqCst) {
            let mut known = self.known();
            known.silent = None;
            let was_lost = !std::mem::take(&mut known.lost).is_empty();
            let was_silent = std::mem::take(&mut known.told_silent);
            drop(known);
            self.answers.notify_all();
            if was_lost || was_silent {
                // This message has the level of the message about the lost connection, so that a
                // reader of the log who sees the loss also sees the new connection.
                tracing::warn!("{} is connected and answers", self.name());
            }
        }
    }

    /// Called with the reply to [`ask`](Self::ask): whether the server serves the state, and its
    /// newest state. Returns whether the reply differs from the last one.
    pub(super) fn said(&self, id: u64, serves: bool, newest: u64) -> bool {
        let mut known = self.known();
        let of = known.question.1;
        let said = Said { of, serves, newest };
        let new = known.question.0 == id && known.said.replace(said) != Some(said);
        drop(known);
        self.answers.notify_all();
        new
    }

    /// Whether the id belongs to a request of a contact, and not of a worker.
    pub(super) fn is_own(id: u64) -> bool {
        id & NO_LANE == NO_LANE
    }

    /// Asks the server for a sign of life, and whether it serves a state. A memory server gets a
    /// request for the low codes of no nodes. Storage gets a request to rank no nodes, for a row of
    /// an invalid length. A server without the state says so in its reply. No server has state 0.
    pub(super) fn ask(&self, state: u64) {
        let mut known = self.known();
        let waits = known.silent.is_some() && known.question.1 == state;
        let Some(outbox) = known.outbox.clone().filter(|_| !waits) else {
            return;
        };
        let id = known.question.0.wrapping_add(NO_LANE + 1);
        known.question = (id, state);
        known.silent.get_or_insert_with(Instant::now);
        self.awaited.store(true, Ordering::SeqCst);
        drop(known);
        let head = Head {
            id,
            state,
            ..Head::default()
        };
        let mut out = Vec::new();
        match self.protocol {
            Protocol::Storage => append_rank(head, 1, &[0], &mut Vec::new(), &mut out),
            _ => {
                let (from, count, kept) = (0, 0, u32::MAX);
                Message::LowCodes { from, count, kept }.append(head, &mut out);
            }
        }
        outbox.post(&out);
    }

    /// The condition of the connection. If [`ask`](Self::ask) was called, waits for the reply until
    /// a deadline.
    pub(super) fn standing(&self, until: Instant) -> Standing {
        let left = until.saturating_duration_since(Instant::now());
        let waits = |known: &mut Known| known.silent.is_some();
        let waited = self.answers.wait_timeout_while(self.known(), left, waits);
        let mut known = waited.unwrap_or_else(PoisonError::into_inner).0;
        let hangs =
            known.outbox.is_some() && known.silent.is_some_and(|since| since.elapsed() >= SIGN);
        let new = hangs && !known.told_silent;
        known.told_silent |= hangs;
        let trouble = match (&known.outbox, known.silent) {
            (None, _) => Some(known.why.clone()),
            (Some(_), Some(since)) if since.elapsed() >= SIGN => {
                let (up, silent) = (Span(known.since.elapsed()), Span(since.elapsed()));
                Some(format!(
                    "has been connected for {up}, and has not answered for {silent}"
                ))
            }
            (Some(_), _) => None,
        };
        if let Some(trouble) = trouble.as_ref().filter(|_| new) {
            tracing::warn!("{} {trouble}; queries wait for this server", self.name);
        }
        Standing {
            said: known.said,
            up: known.outbox.is_some(),
            trouble,
            since: known.since,
        }
    }
}
