//! A client of a compute server. The client tracks each request until the answer or the deadline.

use std::collections::BTreeMap;
use std::time::Duration;

use stratann_tier::Span;

use super::Backoff;
use super::meant::{Doubt, Meant, Wants};
use crate::wire::{
    Changed, Collection, Counters, Frame, Head, Message, Reason, WireError, append_change,
    append_give_up,
};

/// The reasons why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The server refused the request.
    #[error("the compute server at {server} {}: {text}", has(*.reason))]
    Refused {
        /// The server's name.
        server: String,
        /// The reason.
        reason: Reason,
        /// The reason, in the server's words.
        text: String,
        /// The possible effects of the change.
        doubt: Doubt,
    },
    /// The deadline passed.
    #[error("the compute server at {server} did not answer within {waited}; {trouble}", waited = Span(*.waited))]
    Deadline {
        /// The server's name.
        server: String,
        /// The time for which the client waited.
        waited: Duration,
        /// The last error before the deadline.
        trouble: String,
        /// The possible effects of the change.
        doubt: Doubt,
    },
}

impl Failure {
    /// The server's reason, if the server answered.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Failure::Refused { reason, .. } => Some(*reason),
            Failure::Deadline { .. } => None,
        }
    }

    /// The possible effects of a change that failed with this error.
    pub fn doubt(&self) -> Doubt {
        match self {
            Failure::Refused { doubt, .. } | Failure::Deadline { doubt, .. } => *doubt,
        }
    }
}

fn has(reason: Reason) -> String {
    match reason {
        Reason::Invalid => "refused the request".to_owned(),
        Reason::Deadline => "did not finish in time".to_owned(),
        Reason::Failed => "failed".to_owned(),
        Reason::GivenUp => "did not make the change".to_owned(),
        Reason::Over => "does not know the outcome of the change".to_owned(),
        other => format!("refused the request for now ({other})"),
    }
}

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// Ids, nearest first.
    pub ids: Vec<u64>,
    /// A distance for each id.
    pub distances: Vec<f32>,
    /// The costs of the search.
    pub counters: Counters,
    /// The state of the index that was searched.
    pub state: u64,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The result of a search.
    Found(Found),
    /// The description of the collection.
    Collection(Collection),
    /// A change was made.
    Changed {
        /// The effect of the change.
        changed: Changed,
        /// Whether an earlier run of storage may have made a part, which `deleted` does not count.
        again: bool,
    },
}

/// The number of a request that has ended, and the answer or the failure.
pub type Ended = (u64, Result<Outcome, Failure>);

/// The requests of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Asks for a description of the collection.
    Describe {
        /// Whether the client wants changes; if so, a compute server needs only storage.
        for_changes: bool,
    },
    /// Asks for the nearest vectors of a query.
    Search {
        /// The requested number of results.
        k: u32,
        /// The length of the high list (D_high), or 0 for the server's default.
        list: u32,
        /// The beam width, or 0 for the server's default.
        beam: u32,
        /// The query.
        row: Vec<u8>,
    },
    /// Vectors to insert or replace, and ids to delete.
    Change {
        /// Ids of `rows`.
        upserts: Vec<u64>,
        /// Rows, one directly after the other.
        rows: Vec<u8>,
        /// Ids to delete, if they exist.
        deletes: Vec<u64>,
    },
}

impl Asked {
    fn is_for_changes(&self) -> bool {
        match self {
            Asked::Describe { for_changes } => *for_changes,
            Asked::Search { .. } => false,
            Asked::Change { .. } => true,
        }
    }
}

/// The deadline that the server gets is earlier by up to this time, so that the server can report
/// in time why there is no answer.
const HEARD: Duration = Duration::from_millis(50);

/// The time for which servers forward a withdrawal whose outcome the client does not need.
const FORGOTTEN: Duration = Duration::from_secs(1);

struct Request {
    /// `None` for a request for the outcome of a withdrawn change.
    asked: Option<Asked>,
    change: Option<Meant>,
    began: Duration,
    deadline: Duration,
    backoff: Backoff,
    busy: Backoff,
    again: Duration,
    trouble: String,
}

/// A client's requests in flight.
pub struct ClientState {
    server: String,
    retry: Duration,
    next: u64,
    up: bool,
    unanswered: Option<Duration>,
    /// The time of an unanswered [`probe`](ClientState::probe).
    probed: Option<Duration>,
    requests: BTreeMap<u64, Request>,
    others: bool,
    /// The server's reason why it cannot answer now.
    waits: Option<String>,
    /// The run of storage that makes changes, or 0 if unknown.
    run: u64,
    client: u64,
    newest: u64,
    /// Changes that storage may still make, although their requests have ended.
    open: BTreeMap<u64, Meant>,
    changes: bool,
}

impl ClientState {
    /// Creates a client without a connection. `first` is random, and makes its ids unique.
    pub fn new(server: &str, retry: Duration, first: u64) -> ClientState {
        ClientState {
            server: server.to_owned(),
            retry,
            next: first,
            up: false,
            unanswered: None,
            probed: None,
            requests: BTreeMap::new(),
            others: false,
            waits: None,
            run: 0,
            client: first,
            newest: 0,
            open: BTreeMap::new(),
            changes: false,
        }
    }

    /// Declares that the client knows other servers. After connecting, and after a silence, the
    /// client then asks its server whether the server can answer now ([`waits`](Self::waits)).
    #[must_use]
    pub fn with_others(self) -> ClientState {
        ClientState {
            others: true,
            ..self
        }
    }

    /// The number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Sends a request and returns its number. If a change ends with [`Doubt::Yet`], the caller
    /// must call [`give_up`](Self::give_up) or [`forget`](Self::forget).
    pub fn ask(
        &mut self,
        now: Duration,
        deadline: Duration,
        asked: Asked,
        out: &mut Vec<u8>,
    ) -> u64 {
        let change = matches!(asked, Asked::Change { .. }).then(|| {
            self.newest += 1;
            Meant {
                number: self.newest,
                run: self.run,
                ..Meant::default()
            }
        });
        self.begin(now, deadline, (Some(asked), change), out)
    }

    fn begin(
        &mut self,
        now: Duration,
        deadline: Duration,
        (asked, change): (Option<Asked>, Option<Meant>),
        out: &mut Vec<u8>,
    ) -> u64 {
        self.next = self.next.wrapping_add(1);
        if self.requests.is_empty() {
            (self.unanswered, self.probed) = (None, None);
        }
        self.changes = asked.as_ref().is_none_or(Asked::is_for_changes);
        let id = self.next;
        let request = Request {
            asked,
            change,
            began: now,
            deadline,
            backoff: Backoff::new(self.retry),
            busy: Backoff::new(self.retry / Backoff::MOST),
            again: Duration::MAX,
            trouble: "there was no connection to it".to_owned(),
        };
        self.requests.insert(id, request);
        if self.up {
            // With thousands of searches in flight, this list takes time, and only changes need it.
            let wants = change.map(|_| self.wants()).unwrap_or_default();
            if let Some(request) = self.requests.get_mut(&id) {
                request.send(now, id, &wants, out);
            }
            self.unanswered.get_or_insert(now);
        }
        id
    }

    /// Includes changes that ended without a withdrawal, so that storage keeps their outcome.
    fn wants(&self) -> Wants {
        let changes = self.requests.values();
        let changes = changes.filter_map(|request| request.change.as_ref());
        let numbers = changes.chain(self.open.values()).map(|meant| meant.number);
        Wants::new(self.client, self.newest, numbers.collect())
    }

    /// Drops a request. If the request is a change, withdraws the change now, and again with the
    /// next change.
    pub fn forget(&mut self, id: u64, out: &mut Vec<u8>) {
        let Some(meant) = self.ended(id).filter(|_| self.up) else {
            return;
        };
        let mut wants = self.wants();
        if meant.doubt() != Doubt::Nothing && wants.add(meant.number) {
            let token = wants.token(&meant);
            self.next = self.next.wrapping_add(1);
            let head = Head::until(self.next, 0, FORGOTTEN);
            append_give_up(head, token, wants.told(), out);
        }
    }

    /// Removes a request. If the request is a change whose outcome is not known, returns the
    /// change.
    fn ended(&mut self, id: u64) -> Option<Meant> {
        let asked = self.requests.remove(&id);
        let asked = asked.and_then(|request| request.change);
        asked.or_else(|| self.open.remove(&id))
    }

    /// Asks storage to withdraw a change, if storage has not begun it, and to report the outcome.
    /// Returns the number of this request.
    ///
    /// The request ends with [`Outcome::Changed`], or with a failure that names the possible
    /// effects ([`Failure::doubt`]). Returns `None` if storage cannot have made the change.
    pub fn give_up(
        &mut self,
        now: Duration,
        deadline: Duration,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Option<u64> {
        let meant = self.ended(id)?;
        if meant.doubt() == Doubt::Nothing {
            return None;
        }
        Some(self.begin(now, deadline, (None, Some(meant)), out))
    }

    /// Called when the server is connected. Sends all unanswered requests again.
    pub fn up(&mut self, now: Duration, out: &mut Vec<u8>) {
        (self.up, self.probed, self.waits) = (true, None, None);
        self.unanswered = (!self.requests.is_empty()).then_some(now);
        let wants = self.wants();
        for (&id, request) in &mut self.requests {
            request.backoff.reset();
            request.send(now, id, &wants, out);
        }
        if self.others {
            self.describe(out);
        }
    }

    /// Called when the connection has ended.
    pub fn down(&mut self, why: &str) {
        self.up = false;
        (self.unanswered, self.probed) = (None, None);
        for request in self.requests.values_mut() {
            request.again = Duration::MAX;
            why.clone_into(&mut request.trouble);
        }
    }

    /// Processes a frame. Returns the answered request and the answer.
    ///
    /// # Errors
    /// The frame is no message of a compute server. The caller has to close the connection.
    pub fn message(
        &mut self,
        now: Duration,
        frame: &Frame<'_>,
    ) -> Result<Option<Ended>, WireError> {
        let message = Message::decode(frame)?;
        // The frame shows that the server is alive. If there are other servers, only answers to
        // requests restart the time limit.
        if !self.others || self.requests.contains_key(&frame.head.id) {
            self.unanswered = self.unanswered.map(|_| now);
        }
        self.probed = None;
        if let Message::Refused {
            reason: Reason::Waiting,
            text,
        } = message
        {
            self.waits = Some(text.to_owned());
        }
        let Some(request) = self.requests.get_mut(&frame.head.id) else {
            return Ok(None);
        };
        let outcome = match (message, &request.asked) {
            (Message::Answers { counters, answers }, Some(Asked::Search { .. })) => {
                Ok(Outcome::Found(Found {
                    ids: answers.ids().collect(),
                    distances: answers.distances().collect(),
                    counters,
                    state: frame.head.state,
                }))
            }
            (Message::Description { collection, .. }, Some(Asked::Describe { .. })) => {
                Ok(Outcome::Collection(collection))
            }
            (Message::Changed(changed), Some(Asked::Change { .. }) | None) => {
                let again = request.change.is_some_and(|meant| meant.before);
                Ok(Outcome::Changed { changed, again })
            }
            (
                Message::Refused {
                    reason: Reason::OtherState,
                    text,
                },
                Some(Asked::Change { .. }),
            ) => {
                // Storage was restarted, so the client sends the change for the new run.
                self.run = frame.head.state;
                text.clone_into(&mut request.trouble);
                let new = request.change.as_mut();
                request.again = match new.is_some_and(|meant| meant.is_for(self.run)) {
                    true => now,
                    false => request.busy.pause(now),
                };
                return Ok(None);
            }
            (
                Message::Refused {
                    reason: Reason::Busy | Reason::Waiting,
                    text,
                },
                _,
            ) => {
                text.clone_into(&mut request.trouble);
                request.again = request.busy.pause(now);
                return Ok(None);
            }
            (Message::Refused { reason, text }, _) => Err(Failure::Refused {
                server: self.server.clone(),
                reason,
                text: text.to_owned(),
                doubt: request.doubt(Some(reason)),
            }),
            _ => return Ok(None),
        };
        let id = frame.head.id;
        let ended = self.requests.remove(&id);
        if let (Some(ended), Err(failure)) = (ended, &outcome) {
            self.keep_open(id, &ended, failure.doubt());
        }
        Ok(Some((id, outcome)))
    }

    fn keep_open(&mut self, id: u64, ended: &Request, doubt: Doubt) {
        let open = doubt == Doubt::Yet && ended.asked.is_some();
        self.open
            .extend(ended.change.filter(|_| open).map(|meant| (id, meant)));
    }

    /// The time since which the server has answered no request and no [`probe`](Self::probe), if
    /// there are requests.
    pub fn unanswered(&self) -> Option<Duration> {
        let since = self.probed.or(self.unanswered);
        since.filter(|_| !self.requests.is_empty())
    }

    /// The server's new reason why it cannot answer now. The client should try another server.
    pub fn waits(&mut self) -> Option<String> {
        self.waits.take()
    }

    /// Asks for a sign of life. Returns false without a connection, or if an earlier call has no
    /// answer yet.
    pub fn probe(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        if self.probed.is_some() || !self.up {
            return false;
        }
        self.probed = Some(now);
        self.describe(out);
        true
    }

    /// A server that waits for another server refuses this request.
    fn describe(&mut self, out: &mut Vec<u8>) {
        self.next = self.next.wrapping_add(1);
        let head = Head {
            id: self.next,
            ..Head::default()
        };
        let mut asked = self.requests.values();
        let for_changes = match self.requests.is_empty() {
            true => self.changes,
            false => asked.all(|request| request.asked.as_ref().is_none_or(Asked::is_for_changes)),
        };
        Message::Describe { for_changes }.append(head, out);
    }

    /// The time at which the caller must call [`timer`](Self::timer).
    pub fn next_timer(&self) -> Option<Duration> {
        let due = |request: &Request| request.again.min(request.deadline);
        self.requests.values().map(due).min()
    }

    /// Repeats the requests that are due, and moves requests past their deadline to `over`.
    pub fn timer(&mut self, now: Duration, out: &mut Vec<u8>, over: &mut Vec<(u64, Failure)>) {
        let late = |(&id, request): (&u64, &Request)| (now >= request.deadline).then_some(id);
        let late: Vec<u64> = self.requests.iter().filter_map(late).collect();
        for id in late {
            let Some(mut request) = self.requests.remove(&id) else {
                continue;
            };
            let doubt = request.doubt(None);
            self.keep_open(id, &request, doubt);
            let failure = Failure::Deadline {
                server: self.server.clone(),
                waited: now - request.began,
                trouble: std::mem::take(&mut request.trouble),
                doubt,
            };
            over.push((id, failure));
        }
        let again = self.requests.values().any(|request| now >= request.again);
        if again {
            let wants = self.wants();
            let due = self.requests.iter_mut();
            for (&id, request) in due.filter(|(_, request)| now >= request.again) {
                request.send(now, id, &wants, out);
            }
        }
        if again && self.others {
            // The server may have lost its connection to memory or storage.
            self.describe(out);
        }
    }
}

impl Request {
    fn doubt(&self, refused: Option<Reason>) -> Doubt {
        let Some(meant) = &self.change else {
            return Doubt::Nothing;
        };
        match refused {
            Some(Reason::Invalid | Reason::GivenUp) => meant.refused(),
            // This reason comes from storage, which makes no further part of the change.
            Some(Reason::Failed) => Doubt::Perhaps,
            // The run of storage that was to make the change has ended, or has forgotten the
            // change.
            Some(Reason::OtherState | Reason::Over) => Doubt::Perhaps,
            _ => meant.doubt(),
        }
    }

    fn send(&mut self, now: Duration, id: u64, wants: &Wants, out: &mut Vec<u8>) {
        self.again = self.backoff.pause(now);
        if self.change.is_some_and(|meant| meant.number > wants.newest) {
            "the client has as many changes in flight as are allowed".clone_into(&mut self.trouble);
            return;
        }
        // The compute server needs time to report which server did not answer.
        let left = self.deadline.saturating_sub(now);
        let head = Head::until(id, 0, left - (left / 10).min(HEARD));
        let token = wants.token(&self.change.unwrap_or_default());
        match self.asked {
            Some(Asked::Describe { for_changes }) => {
                Message::Describe { for_changes }.append(head, out);
            }
            Some(Asked::Search {
                k,
                list,
                beam,
                ref row,
            }) => Message::Search { k, list, beam, row }.append(head, out),
            Some(Asked::Change {
                ref upserts,
                ref rows,
                ref deletes,
            }) => {
                if let Some(change) = &mut self.change {
                    change.sent = true;
                }
                append_change(head, token, wants.told(), (upserts, rows, deletes), out);
            }
            None => append_give_up(head, token, wants.told(), out),
        }
        "the request was sent, and no answer arrived".clone_into(&mut self.trouble);
    }
}
