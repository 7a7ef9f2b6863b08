//! A client of a compute server: what it has asked, until it is answered or too late.

use std::collections::BTreeMap;
use std::time::Duration;

use stratann_tier::Span;

use super::Backoff;
use super::meant::{Doubt, Meant, Wants};
use crate::wire::{
    Changed, Collection, Counters, Frame, Head, Message, Reason, WireError, append_change,
    append_give_up,
};

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The server refused.
    #[error("the compute server at {server} {}: {text}", has(*.reason))]
    Refused {
        /// Which.
        server: String,
        /// Why.
        reason: Reason,
        /// In its words.
        text: String,
        /// What may have become of a change.
        doubt: Doubt,
    },
    /// The time was over.
    #[error("the compute server at {server} did not answer within {waited}: {trouble}", waited = Span(*.waited))]
    Deadline {
        /// Which.
        server: String,
        /// How long it was waited for.
        waited: Duration,
        /// What went wrong on the way.
        trouble: String,
        /// What may have become of a change.
        doubt: Doubt,
    },
}

impl Failure {
    /// Why a server refused; `None` where it said nothing.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Failure::Refused { reason, .. } => Some(*reason),
            Failure::Deadline { .. } => None,
        }
    }

    /// What may have become of a change that ended so.
    pub fn doubt(&self) -> Doubt {
        match self {
            Failure::Refused { doubt, .. } | Failure::Deadline { doubt, .. } => *doubt,
        }
    }
}

/// What a server has done that refuses something for this reason.
fn has(reason: Reason) -> String {
    match reason {
        Reason::Invalid => "refuses what can never be done".to_owned(),
        Reason::Deadline => "gave it up when its time was over".to_owned(),
        Reason::Failed => "could not do it".to_owned(),
        Reason::GivenUp => "gave it up before it was made".to_owned(),
        Reason::Over => "knows no more what became of it".to_owned(),
        other => format!("does not do it ({other})"),
    }
}

/// What a search found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// Ids, nearest first.
    pub ids: Vec<u64>,
    /// A distance each.
    pub distances: Vec<f32>,
    /// What it took.
    pub counters: Counters,
    /// The state of the index that was searched.
    pub state: u64,
}

/// What a client asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// What a search found.
    Found(Found),
    /// What is searched.
    Collection(Collection),
    /// A change was made.
    Changed {
        /// What it did.
        changed: Changed,
        /// A run of storage that is no more may have made it before, or some of it: then `deleted` counts what was still there.
        again: bool,
    },
}

/// How a request ended, and which.
pub type Ended = (u64, Result<Outcome, Failure>);

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// What is searched?
    Describe {
        /// It is to be changed, for which a compute server needs storage alone.
        for_changes: bool,
    },
    /// Which are nearest?
    Search {
        /// How many are wanted.
        k: u32,
        /// D_high; 0: what the server takes.
        list: u32,
        /// 0: what the server takes.
        beam: u32,
        /// The query.
        row: Vec<u8>,
    },
    /// Vectors that are to be in the index, in place of what has their ids, and ids that are to be no more.
    Change {
        /// Ids of `rows`.
        upserts: Vec<u64>,
        /// One row behind the other.
        rows: Vec<u8>,
        /// Ids that are deleted, if they are there.
        deletes: Vec<u64>,
    },
}

impl Asked {
    /// Whether it is, or is for, a change.
    fn is_for_changes(&self) -> bool {
        match self {
            Asked::Describe { for_changes } => *for_changes,
            Asked::Search { .. } => false,
            Asked::Change { .. } => true,
        }
    }
}

/// What is kept at most of a query's time to hear why it has no answer.
const HEARD: Duration = Duration::from_millis(50);

/// How long servers pass on that a change is not wanted any more, where nobody waits to hear what became of it.
const FORGOTTEN: Duration = Duration::from_secs(1);

struct Request {
    /// `None`: what became of a change that is given up.
    asked: Option<Asked>,
    /// Which change that is.
    change: Option<Meant>,
    began: Duration,
    deadline: Duration,
    backoff: Backoff,
    /// Where the server has too much to do, or is about to start.
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
    /// Since when the server has answered nothing that it was asked.
    unanswered: Option<Duration>,
    /// When it was asked for a sign of run, and has given none.
    probed: Option<Duration>,
    requests: BTreeMap<u64, Request>,
    /// There are others that could be asked.
    others: bool,
    /// Why this one cannot answer now, as it says.
    waits: Option<String>,
    /// Which run of storage makes changes, as far as is known.
    run: u64,
    /// What tells its changes from those of others: drawn at random.
    client: u64,
    /// The number of its last change.
    newest: u64,
    /// Changes that ended, of which it is not known whether they are made yet.
    open: BTreeMap<u64, Meant>,
    /// Whether what was asked last is, or is for, a change.
    changes: bool,
}

impl ClientState {
    /// A client that is not connected yet. `first`: a random number, so that no id and no change is one of another client.
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

    /// The same where another server could be asked: each is asked whether it can answer now ([`waits`](Self::waits)), when it is connected and when it says nothing.
    #[must_use]
    pub fn with_others(self) -> ClientState {
        ClientState {
            others: true,
            ..self
        }
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Asks, and gives the number of the request. A change that ends with [`Doubt::Yet`] is to be [given up](Self::give_up) or [forgotten](Self::forget).
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
            // It was asked for nothing meanwhile, and did not have to say anything.
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
            trouble: "there was no connection".to_owned(),
        };
        self.requests.insert(id, request);
        if self.up {
            // Only changes say it, and there may be thousands of searches.
            let wants = change.map(|_| self.wants()).unwrap_or_default();
            if let Some(request) = self.requests.get_mut(&id) {
                request.send(now, id, &wants, out);
            }
            self.unanswered.get_or_insert(now);
        }
        id
    }

    /// For which changes it waits: also those that ended and are not given up yet, or storage would forget what it is to say of them then.
    fn wants(&self) -> Wants {
        let changes = self.requests.values();
        let changes = changes.filter_map(|request| request.change.as_ref());
        let numbers = changes.chain(self.open.values()).map(|meant| meant.number);
        Wants::new(self.client, self.newest, numbers.collect())
    }

    /// Nobody wants the answer any more. A change is not to be made any more then, which is said once: the next change says it again.
    pub fn forget(&mut self, id: u64, out: &mut Vec<u8>) {
        let Some(meant) = self.ended(id).filter(|_| self.up) else {
            return;
        };
        let mut wants = self.wants();
        if meant.doubt() != Doubt::Nothing && wants.add(meant.number) {
            let token = wants.token(&meant);
            // Nobody listens to the answer; servers tell such requests apart by their ids, and drop them soon.
            self.next = self.next.wrapping_add(1);
            let head = Head::until(self.next, 0, FORGOTTEN);
            append_give_up(head, token, wants.told(), out);
        }
    }

    /// The change that a request was for, of which it is not known what became.
    fn ended(&mut self, id: u64) -> Option<Meant> {
        let asked = self.requests.remove(&id);
        let asked = asked.and_then(|request| request.change);
        asked.or_else(|| self.open.remove(&id))
    }

    /// Nobody wants a change any more: asks what became of it, and that it is not made where that has not begun. Gives the number of this request, which ends with [`Outcome::Changed`] where it was made, and
    /// with what is in doubt otherwise ([`Failure::doubt`]). `None`: that is nothing, or it is no change.
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

    /// The server is connected: what is not answered is asked again.
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

    /// The connection is over.
    pub fn down(&mut self, why: &str) {
        self.up = false;
        (self.unanswered, self.probed) = (None, None);
        for request in self.requests.values_mut() {
            request.again = Duration::MAX;
            why.clone_into(&mut request.trouble);
        }
    }

    /// Takes a frame; gives which request it ends, and how.
    ///
    /// # Errors
    /// It is nothing that a compute server sends: the connection is over.
    pub fn message(
        &mut self,
        now: Duration,
        frame: &Frame<'_>,
    ) -> Result<Option<Ended>, WireError> {
        let message = Message::decode(frame)?;
        // The server lives. What else was asked may take its time from now on; that it can answer is no answer where another one could be asked.
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
                // Storage was started since: what was sent to the one before it never makes. This is asked of that which there is now, since it is still wanted.
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

    /// A request has ended: of a change that may be made yet it is known which it is, until that is given up.
    fn keep_open(&mut self, id: u64, ended: &Request, doubt: Doubt) {
        let open = doubt == Doubt::Yet && ended.asked.is_some();
        self.open
            .extend(ended.change.filter(|_| open).map(|meant| (id, meant)));
    }

    /// Since when the server has answered nothing that it was asked, or given no sign of run ([`probe`](Self::probe)), if it was asked for anything.
    pub fn unanswered(&self) -> Option<Duration> {
        let since = self.probed.or(self.unanswered);
        since.filter(|_| !self.requests.is_empty())
    }

    /// Why the server cannot answer now, if it has said so since it was last asked for this: where there is another, that one is to be connected.
    pub fn waits(&mut self) -> Option<String> {
        self.waits.take()
    }

    /// Asks for a sign of run: a server answers what is searched at once, however many queries wait. False: it was asked before, and has said nothing.
    pub fn probe(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        if self.probed.is_some() || !self.up {
            return false;
        }
        self.probed = Some(now);
        self.describe(out);
        true
    }

    /// Asks for a description, which a server that waits for another one refuses: for the memory server it need not wait where all that is asked are changes.
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

    /// When [`timer`](Self::timer) has something to do.
    pub fn next_timer(&self) -> Option<Duration> {
        let due = |request: &Request| request.again.min(request.deadline);
        self.requests.values().map(due).min()
    }

    /// Asks again where it is time, and gives up what is too late: those are appended to `over`.
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
            // It may have lost what it needs.
            self.describe(out);
        }
    }
}

impl Request {
    /// What may become of it that is refused, or not answered.
    fn doubt(&self, refused: Option<Reason>) -> Doubt {
        let Some(meant) = &self.change else {
            return Doubt::Nothing;
        };
        match refused {
            Some(Reason::Invalid | Reason::GivenUp) => meant.refused(),
            // Only storage says so of a change, perhaps behind a part of it, and makes nothing more of it then.
            Some(Reason::Failed) => Doubt::Perhaps,
            // To who gives it up: the run that was to make it is no more, or does not know it any more.
            Some(Reason::OtherState | Reason::Over) => Doubt::Perhaps,
            _ => meant.doubt(),
        }
    }

    fn send(&mut self, now: Duration, id: u64, wants: &Wants, out: &mut Vec<u8>) {
        self.again = self.backoff.pause(now);
        if self.change.is_some_and(|meant| meant.number > wants.newest) {
            "as many changes of this client are on their way as may be"
                .clone_into(&mut self.trouble);
            return;
        }
        // A little less, so that a server that knows who did not answer can still say so.
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
        "it was asked and said nothing".clone_into(&mut self.trouble);
    }
}
