//! What a compute server knows of a connection to memory or storage: whether there is one and since when, why not, and which state of the index is
//! behind it. Told on health, and logged when it changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stratann_tier::Span;
use stratann_tier::remote::wire::Protocol;

use crate::link::Outbox;
use crate::serve::Place;
use crate::serve::keeper::Lost;
use crate::wire::{Collection, Head, Message, append_rank};

/// A connection to memory or storage, as others are to know of it.
pub(super) struct Contact {
    protocol: Protocol,
    /// `the memory server at 10.0.0.1:7700`
    name: String,
    known: Mutex<Known>,
    answers: Condvar,
    /// Somebody waits for a sign of life.
    awaited: AtomicBool,
}

struct Known {
    /// The connection, if there is one.
    outbox: Option<Arc<Outbox>>,
    /// Since when there is, or is none.
    since: Instant,
    /// Why there is none, or was none: what was logged. Empty once it has sent something.
    lost: Vec<String>,
    /// The same without its name, for health.
    why: String,
    /// Since when it was asked for a sign of life, and has given none.
    silent: Option<Instant>,
    /// Whether it was logged that it gives none.
    told_silent: bool,
    /// How long it had answered nothing when a worker ended the connection for that.
    given_up: Option<Duration>,
    /// The last such question: its id, and the state that it named.
    question: (u64, u64),
    /// What it said of that state, if it has.
    said: Option<Said>,
    /// What it has, as storage said last.
    collection: Option<Collection>,
    /// It was asked for that, and has not said it yet.
    undescribed: bool,
}

/// What a server says of a state of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// The state; 0: none, which no server has.
    pub(super) of: u64,
    /// Whether it can be asked in it.
    pub(super) serves: bool,
    /// The newest that it has; of a memory server that can be asked in `of`, that one.
    pub(super) newest: u64,
}

/// How a contact is.
pub(super) struct Standing {
    /// What it said last of a state.
    pub(super) said: Option<Said>,
    /// Whether there is a connection.
    pub(super) up: bool,
    /// Why it cannot be asked: what stands behind its name.
    pub(super) trouble: Option<String>,
    /// Since when there is a connection, or is none.
    pub(super) since: Instant,
}

/// How long a server may take for a sign of life.
pub(super) const SIGN: Duration = Duration::from_secs(1);
/// The lane of what no worker asks: there are at most as many workers as lanes below it.
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

    /// What it is called in messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a connection.
    pub(super) fn is_up(&self) -> bool {
        self.known().outbox.is_some()
    }

    /// There is one; who asks goes by this state, or by none yet.
    pub(super) fn up(&self, outbox: Arc<Outbox>, state: u64) {
        let mut known = self.known();
        (known.outbox, known.since, known.silent) = (Some(outbox.clone()), Instant::now(), None);
        known.collection = None;
        drop(known);
        if self.protocol == Protocol::Storage {
            // Before anything else, so that it is known once there is any sign of life.
            self.ask_description();
        }
        self.ask(state);
    }

    /// Asks storage what it has.
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

    /// It has said what it has.
    pub(super) fn describes(&self, collection: Collection) {
        let mut known = self.known();
        (known.collection, known.undescribed) = (Some(collection), false);
        drop(known);
        self.answers.notify_all();
    }

    /// Asks storage what it has now, and waits for the answer until that moment at most: then it is what it said last, if it has said anything.
    pub(super) fn described(&self, until: Instant) -> Option<Collection> {
        self.ask_description();
        let left = until.saturating_duration_since(Instant::now());
        let waits = |known: &mut Known| known.undescribed && known.outbox.is_some();
        let waited = self.answers.wait_timeout_while(self.known(), left, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.collection
    }

    /// What it has, if it has said so since it was connected. Of which state that is may be long past.
    pub(super) fn collection(&self) -> Option<Collection> {
        self.known().collection
    }

    /// A worker ends this connection, if it is the one that there is: it has answered nothing for so long.
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
                    "has answered nothing for {} while queries waited for it, and is connected to anew: it hangs, was stopped, or the network is gone",
                    Span(silence)
                );
                (format!("{} {why}", self.name), why)
            }
        };
        known.why = why;
        (known.silent, known.said) = (None, None);
        // Once for each reason, not for each attempt.
        let new = !known.lost.contains(&text);
        if new {
            known.lost.push(text.clone());
        }
        drop(known);
        self.answers.notify_all();
        if new {
            tracing::warn!("{text}; queries wait for it, and it is tried again");
        }
    }

    /// It sent something.
    pub(super) fn heard(&self) {
        if self.awaited.load(Ordering::Relaxed) && self.awaited.swap(false, Ordering::SeqCst) {
            let mut known = self.known();
            known.silent = None;
            let was_lost = !std::mem::take(&mut known.lost).is_empty();
            let was_silent = std::mem::take(&mut known.told_silent);
            drop(known);
            self.answers.notify_all();
            if was_lost || was_silent {
                // As loud as what it ends: who reads of the one is to read of the other.
                tracing::warn!("{} is connected and answers", self.name());
            }
        }
    }

    /// It answered what [`ask`](Self::ask) asked: whether it serves the state, and its newest. Gives whether it says something else than before.
    pub(super) fn said(&self, id: u64, serves: bool, newest: u64) -> bool {
        let mut known = self.known();
        let of = known.question.1;
        let said = Said { of, serves, newest };
        let new = known.question.0 == id && known.said.replace(said) != Some(said);
        drop(known);
        self.answers.notify_all();
        new
    }

    /// Whether an id is that of a question of this, and of no worker.
    pub(super) fn is_own(id: u64) -> bool {
        id & NO_LANE == NO_LANE
    }

    /// Asks for a sign of life, and whether it can be asked in this state: memory for the low codes of no nodes, storage to rank none, for a row of another
    /// length than any. One of another state, which 0 is always, says so.
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

    /// How it is; where it was [asked](Self::ask), it is waited for until that moment at most.
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
                    "is connected for {up}, and has not answered for {silent}"
                ))
            }
            (Some(_), _) => None,
        };
        if let Some(trouble) = trouble.as_ref().filter(|_| new) {
            tracing::warn!("{} {trouble}; queries wait for it", self.name);
        }
        Standing {
            said: known.said,
            up: known.outbox.is_some(),
            trouble,
            since: known.since,
        }
    }
}
