//! A compute server's connection to memory or storage: whether it is connected, since when, the
//! last error, and the other server's state of the index. The health page shows these facts, and
//! the log reports their changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stratann_tier::Span;
use stratann_tier::remote::wire::Protocol;

use crate::link::Outbox;
use crate::serve::Place;
use crate::serve::keeper::Lost;
use crate::wire::{Collection, Head, Message, append_rank};

pub(super) struct Contact {
    protocol: Protocol,
    /// The name in messages, such as `the memory server at 10.0.0.1:7700`.
    name: String,
    known: Mutex<Known>,
    answers: Condvar,
    awaited: AtomicBool,
}

struct Known {
    outbox: Option<Arc<Outbox>>,
    /// The time of the last connect or disconnect.
    since: Instant,
    /// The logged reasons of lost connections since the server's last message.
    lost: Vec<String>,
    /// The reason of the last lost connection, without the server's name, for the health page.
    why: String,
    /// The time of an unanswered request for a sign of life.
    silent: Option<Instant>,
    told_silent: bool,
    /// The silence after which a worker closed the connection.
    given_up: Option<Duration>,
    /// The id and the named state of the last request for a sign of life.
    question: (u64, u64),
    /// Whether the reply to the last request has not arrived. Other messages may arrive before it.
    unanswered: bool,
    said: Option<Said>,
    collection: Option<Collection>,
    undescribed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// The state that the request named, or 0 for none. No server has state 0.
    pub(super) of: u64,
    pub(super) serves: bool,
    /// The newest state, or `of` if a memory server serves it.
    pub(super) newest: u64,
}

pub(super) struct Standing {
    pub(super) said: Option<Said>,
    pub(super) up: bool,
    /// The text after the server's name.
    pub(super) trouble: Option<String>,
    pub(super) since: Instant,
}

pub(super) const SIGN: Duration = Duration::from_secs(1);
/// The lane of a contact's own requests, above the lanes of workers.
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
                unanswered: false,
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

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_up(&self) -> bool {
        self.known().outbox.is_some()
    }

    /// `state` is the state that this compute server uses, or 0.
    pub(super) fn up(&self, outbox: Arc<Outbox>, state: u64) {
        let mut known = self.known();
        (known.outbox, known.since, known.silent) = (Some(outbox.clone()), Instant::now(), None);
        (known.collection, known.unanswered) = (None, false);
        drop(known);
        if self.protocol == Protocol::Storage {
            // Asked first, so that the description arrives before any sign of life.
            self.ask_description();
        }
        self.ask(state);
    }

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

    pub(super) fn describes(&self, collection: Collection) {
        let mut known = self.known();
        (known.collection, known.undescribed) = (Some(collection), false);
        drop(known);
        self.answers.notify_all();
    }

    /// Waits until a deadline for a new description of storage. If none arrives, returns the last
    /// description.
    pub(super) fn described(&self, until: Instant) -> Option<Collection> {
        self.ask_description();
        let left = until.saturating_duration_since(Instant::now());
        let waits = |known: &mut Known| known.undescribed && known.outbox.is_some();
        let waited = self.answers.wait_timeout_while(self.known(), left, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.collection
    }

    pub(super) fn collection(&self) -> Option<Collection> {
        self.known().collection
    }

    /// Called after a worker has closed a silent connection. If a new connection has replaced it,
    /// the call does nothing.
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
                    "has not answered for {} while queries waited for it (it hangs or was stopped, or the network is down)",
                    Span(silence)
                );
                (format!("{} {why}", self.name), why)
            }
        };
        known.why = why;
        (known.silent, known.said) = (None, None);
        // Each reason is logged once.
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

    pub(super) fn heard(&self) {
        if self.awaited.load(Ordering::Relaxed) && self.awaited.swap(false, Ordering::SeqCst) {
            let mut known = self.known();
            known.silent = None;
            let was_lost = !std::mem::take(&mut known.lost).is_empty();
            let was_silent = std::mem::take(&mut known.told_silent);
            drop(known);
            self.answers.notify_all();
            if was_lost || was_silent {
                // The level is the same as for the lost connection, so that the log shows both.
                tracing::warn!("{} is connected and answers", self.name());
            }
        }
    }

    /// Handles the reply to [`ask`](Self::ask). Returns whether the reply differs from the last
    /// reply.
    pub(super) fn said(&self, id: u64, serves: bool, newest: u64) -> bool {
        let mut known = self.known();
        let of = known.question.1;
        let said = Said { of, serves, newest };
        let last = known.question.0 == id;
        known.unanswered &= !last;
        let new = last && known.said.replace(said) != Some(said);
        drop(known);
        self.answers.notify_all();
        new
    }

    pub(super) fn is_own(id: u64) -> bool {
        id & NO_LANE == NO_LANE
    }

    /// Asks for a sign of life, and whether the server serves a state. No server has state 0. While
    /// the server has not replied to the last request, the same question is not sent again.
    /// Otherwise, each reply could arrive after the next request, and would never count.
    pub(super) fn ask(&self, state: u64) {
        let mut known = self.known();
        let Some(outbox) = known.outbox.clone() else {
            return;
        };
        known.silent.get_or_insert_with(Instant::now);
        self.awaited.store(true, Ordering::SeqCst);
        if known.unanswered && known.question.1 == state {
            return;
        }
        let id = known.question.0.wrapping_add(NO_LANE + 1);
        (known.question, known.unanswered) = ((id, state), true);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::duplex::Duplex;
    use crate::link::{Batching, pipe};

    #[test]
    fn a_reply_counts_if_another_message_and_another_request_come_before_it() {
        let place = Place::of("127.0.0.1:1", None, crate::serve::Encryption::None).unwrap();
        let contact = Contact::new(Protocol::Storage, &place);
        let (own, _theirs) = pipe::pair();
        let Duplex { sender, closer, .. } = Duplex::local(own, None);
        let batching = Batching {
            on: false,
            enough: 1,
        };
        let outbox = Outbox::new(sender, closer, batching, Arc::default());
        contact.up(Arc::new(outbox), 7);
        let (first, _) = contact.known().question;
        contact.heard();
        contact.ask(7);
        assert!(contact.said(first, true, 7));
        contact.heard();
        let standing = contact.standing(Instant::now());
        assert_eq!(standing.said.map(|said| said.newest), Some(7));
        // The reply to a question about another state does not count.
        contact.ask(7);
        let (second, _) = contact.known().question;
        assert_ne!(first, second);
        contact.ask(8);
        assert!(!contact.said(second, true, 9));
        // After a new connection, the old question is sent again.
        let (third, _) = contact.known().question;
        let again = contact.known().outbox.clone().unwrap();
        contact.up(again, 8);
        assert_ne!(contact.known().question.0, third);
    }
}
