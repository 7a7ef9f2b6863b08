//! The changes that compute servers requested from storage. Storage makes each change at most once,
//! and does not make a withdrawn change.
//!
//! A client without an answer asks again, perhaps through another compute server. If a request for
//! a withdrawn change arrives late, it must not undo a later change of the same client.
//!
//! So clients number their changes, and each request lists the changes that its client still waits
//! for ([`Wanted`]), as in Lee et al., *Implementing Linearizability at Large Scale and Low
//! Latency*, SOSP 2015, §3. Storage keeps the outcome of each wanted change, even a failure. To any
//! other change, storage answers [`Reason::Over`].
//!
//! After a restart, storage knows no changes. So a token names the run of storage that is to make
//! the change, and every other run refuses the token. Only the client knows whether to send the
//! change to the new run.
//!
//! Anyone who knows the secret can invent clients, so memory for their changes is bounded. Over the
//! bound, storage forgets the clients that were silent longest, except clients with a change in
//! progress.
//!
//! When storage forgets clients, another *run* begins in the same process, and refuses their
//! changes as changes of an earlier run. So these clients learn that an earlier run may have made
//! the change. Other clients keep their run.
//!
//! **Guarantees** after a call of a client has returned:
//!
//! - With an answer: the change is durable, this run of storage made it once, and never makes it
//!   again.
//! - After a failure or an interruption: storage does not make the change after a later
//!   acknowledged change of this client, nor after storage has confirmed the withdrawal
//!   ([`Message::GiveUp`](crate::wire::Message::GiveUp)). A client whose call ends in this way
//!   sends that message and waits briefly. Without an answer, storage may still make the change,
//!   perhaps after another client's change.
//! - Compute servers ask for a change for as long as its client said that it would wait, 30 s by
//!   default, or until the client disconnects. Storage counts that time from the arrival of a
//!   request, because a request can stay in a connection's buffers for any time.
//! - If a client dies without a message, storage still makes the changes that it received before
//!   the connection ended.
//!
//! Not guaranteed: if storage is killed between a change and its answer, the next run makes the
//! change again if the client still waits. The reply says so
//! ([`Outcome::Changed`](super::Outcome::Changed)).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::wire::{Changed, Reason, Token, Wanted};

/// The most clients that storage remembers, far more than connect during one change.
const MOST: usize = 1 << 16;
/// The most changes that clients wait for: about 15 MB, or 60 MB with long error texts.
const MOST_OPEN: usize = 1 << 18;
/// The bytes of an error text that are kept for repeated answers.
const MOST_KEPT: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Made(Changed),
    /// Storage made no part, or only a part, of the change.
    Not(Reason, Box<str>),
}

impl End {
    pub(super) fn not(reason: Reason, text: &str) -> End {
        let mut end = text.len().min(MOST_KEPT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        End::Not(reason, text[..end].into())
    }

    fn given_up() -> End {
        End::not(
            Reason::GivenUp,
            "the client has given up this change; the change was not made, and will not be made",
        )
    }

    fn over() -> End {
        End::not(
            Reason::Over,
            "the client no longer waits for this change; the outcome of the change is unknown, and no further part of it will be made",
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// The caller has to make the change now.
    New,
    /// The change waits, or is being made.
    Going,
    Ended(End),
    /// The change is for another run. The number is the current run, which the reply may name.
    OtherRun(u64),
}

/// The changes of a storage server.
#[derive(Debug)]
pub struct Changes {
    kept: Mutex<Clients>,
}

#[derive(Debug)]
struct Clients {
    run: u64,
    most: (usize, usize),
    open: usize,
    of: HashMap<u64, Client>,
    /// The clients by the time of their last message, oldest first.
    recent: BTreeMap<u64, u64>,
    next: u64,
}

#[derive(Debug)]
struct Client {
    run: u64,
    /// The time of the last message, as a count of messages.
    at: u64,
    /// All changes up to this number have ended, except those in `open`.
    newest: u64,
    open: BTreeMap<u64, Stage>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// The client listed the change but has not requested it, or storage had no space.
    Named,
    Waits,
    /// Storage is making the change.
    Made,
    Ended(End),
}

impl Client {
    fn new(run: u64) -> Client {
        Client {
            run,
            at: 0,
            newest: 0,
            open: BTreeMap::new(),
        }
    }

    fn is_being_served(&self) -> bool {
        let mut stages = self.open.values();
        stages.any(|stage| matches!(stage, Stage::Waits | Stage::Made))
    }

    /// Lists may arrive out of order. A change that is being made stays, because it has not ended.
    fn hear(&mut self, wanted: &Wanted<'_>) {
        let before = self.newest;
        self.open.retain(|&number, stage| {
            number > wanted.newest || wanted.has(number) || *stage == Stage::Made
        });
        if wanted.newest > before {
            let new = wanted.numbers.iter();
            let new = new.filter(|&number| number > before && number <= wanted.newest);
            self.open.extend(new.map(|number| (number, Stage::Named)));
            self.newest = wanted.newest;
        }
    }
}

impl Changes {
    /// Creates a table without changes. `run` is a random number.
    pub fn new(run: u64) -> Changes {
        Changes::bounded(run, MOST, MOST_OPEN)
    }

    /// Creates a table for at most `clients` clients, which together wait for at most `open`
    /// changes. A single client may wait for more.
    pub fn bounded(run: u64, clients: usize, open: usize) -> Changes {
        let kept = Clients {
            // No run has the number 0, which a client sends if it knows no run.
            run: run.max(1),
            most: (clients, open),
            open: 0,
            of: HashMap::new(),
            recent: BTreeMap::new(),
            next: 0,
        };
        Changes {
            kept: Mutex::new(kept),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Clients> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After [`Known::New`], the caller calls [`starts`](Self::starts) before it makes the change,
    /// or [`back`](Self::back) if it has no space for the change.
    pub(super) fn begin(&self, token: Token, wanted: &Wanted<'_>) -> Known {
        let mut kept = self.kept();
        if let Some(run) = kept.hear(token, wanted) {
            return Known::OtherRun(run);
        }
        match kept.open(token) {
            None => Known::Ended(End::over()),
            Some(stage @ Stage::Named) => {
                *stage = Stage::Waits;
                Known::New
            }
            Some(Stage::Waits | Stage::Made) => Known::Going,
            Some(Stage::Ended(end)) => Known::Ended(end.clone()),
        }
    }

    /// Withdraws a change that has not begun. Never returns [`Known::New`].
    pub(super) fn give_up(&self, token: Token, wanted: &Wanted<'_>) -> Known {
        let mut kept = self.kept();
        if let Some(run) = kept.hear(token, wanted) {
            return Known::OtherRun(run);
        }
        match kept.open(token) {
            None => Known::Ended(End::over()),
            Some(stage @ (Stage::Named | Stage::Waits)) => {
                *stage = Stage::Ended(End::given_up());
                Known::Ended(End::given_up())
            }
            Some(Stage::Made) => Known::Going,
            Some(Stage::Ended(end)) => Known::Ended(end.clone()),
        }
    }

    /// Whether the caller has to make the change now, and then call [`end`](Self::end).
    pub(super) fn starts(&self, token: Token) -> bool {
        let mut kept = self.kept();
        match kept.open(token) {
            Some(stage @ Stage::Waits) => {
                *stage = Stage::Made;
                true
            }
            _ => false,
        }
    }

    /// Called if there is no space for a change, which its client may request again.
    pub(super) fn back(&self, token: Token) {
        if let Some(stage @ Stage::Waits) = self.kept().open(token) {
            *stage = Stage::Named;
        }
    }

    pub(super) fn end(&self, token: Token, end: End) {
        if let Some(stage @ (Stage::Waits | Stage::Made)) = self.kept().open(token) {
            *stage = Stage::Ended(end);
        }
    }
}

impl Clients {
    fn open(&mut self, token: Token) -> Option<&mut Stage> {
        let client = self.of.get_mut(&token.client);
        let client = client.filter(|client| client.run == token.run);
        client?.open.get_mut(&token.number)
    }

    /// If the token is for another run, returns this run's number and ignores the list.
    fn hear(&mut self, token: Token, wanted: &Wanted<'_>) -> Option<u64> {
        let known = self.of.get(&token.client);
        let run = known.map_or(self.run, |client| client.run);
        if token.run != run {
            return Some(run);
        }
        self.next += 1;
        let client = (self.of.entry(token.client)).or_insert_with(|| Client::new(run));
        self.recent.remove(&client.at);
        client.at = self.next;
        self.recent.insert(self.next, token.client);
        self.open -= client.open.len();
        client.hear(wanted);
        self.open += client.open.len();
        if self.of.len() > self.most.0 || self.open > self.most.1 {
            self.forget(token.client);
        }
        None
    }

    /// Begins another run, and forgets the clients that were silent longest and have no change in
    /// progress.
    fn forget(&mut self, but: u64) {
        let enough = |most: usize| most - most / 8;
        let (clients, open) = (enough(self.most.0), enough(self.most.1));
        let oldest: Vec<(u64, u64)> = self.recent.iter().map(|(&at, &of)| (at, of)).collect();
        let before = self.of.len();
        for (at, of) in oldest {
            if self.of.len() <= clients && self.open <= open {
                break;
            }
            let served = self.of.get(&of).is_some_and(Client::is_being_served);
            if of == but || served {
                continue;
            }
            self.recent.remove(&at);
            self.open -= self.of.remove(&of).map_or(0, |client| client.open.len());
        }
        if self.of.len() < before {
            self.run = self.run.wrapping_add(1).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Head, Message, append_give_up};

    const DONE: Changed = Changed {
        upserted: 3,
        deleted: 1,
    };

    fn token(client: u64, number: u64) -> Token {
        Token {
            run: 1,
            client,
            number,
        }
    }

    fn told<T>(newest: u64, numbers: &[u64], then: impl FnOnce(&Wanted<'_>) -> T) -> T {
        let mut bytes = Vec::new();
        let of = token(1, numbers[0]);
        append_give_up(Head::default(), of, (newest, numbers), &mut bytes);
        let frame = crate::wire::Frame::decode(&bytes).unwrap().unwrap();
        match Message::decode(&frame).unwrap() {
            Message::GiveUp { wanted, .. } => then(&wanted),
            other => panic!("{other:?}"),
        }
    }

    fn begin(changes: &Changes, client: u64, newest: u64, numbers: &[u64], of: u64) -> Known {
        told(newest, numbers, |wanted| {
            changes.begin(token(client, of), wanted)
        })
    }

    fn make(changes: &Changes, token: Token) {
        assert!(changes.starts(token));
        changes.end(token, End::Made(DONE));
    }

    #[test]
    fn a_change_is_made_once_and_one_that_failed_is_not_made_again() {
        let changes = Changes::new(1);
        assert_eq!(begin(&changes, 1, 1, &[1], 1), Known::New);
        assert_eq!(begin(&changes, 1, 1, &[1], 1), Known::Going);
        assert_eq!(begin(&changes, 2, 1, &[1], 1), Known::New);
        make(&changes, token(1, 1));
        assert_eq!(
            begin(&changes, 1, 1, &[1], 1),
            Known::Ended(End::Made(DONE))
        );
        changes.back(token(2, 1));
        assert!(!changes.starts(token(2, 1)));
        assert_eq!(begin(&changes, 2, 1, &[1], 1), Known::New);
        assert!(changes.starts(token(2, 1)));
        let failed = End::not(Reason::Failed, &"ü".repeat(MOST_KEPT));
        changes.end(token(2, 1), failed.clone());
        assert_eq!(begin(&changes, 2, 1, &[1], 1), Known::Ended(failed));
    }

    #[test]
    fn what_its_client_does_not_wait_for_is_over_whenever_it_comes() {
        let changes = Changes::new(1);
        let over = Known::Ended(End::over());
        assert_eq!(begin(&changes, 1, 2, &[1, 2], 2), Known::New);
        assert_eq!(begin(&changes, 1, 5, &[2, 4, 5], 5), Known::New);
        assert_eq!(begin(&changes, 1, 1, &[1], 1), over);
        assert_eq!(begin(&changes, 1, 3, &[1, 3], 3), over);
        // The client waits for this change, which arrives with an older list.
        assert_eq!(begin(&changes, 1, 4, &[2, 3, 4], 4), Known::New);
        assert!(changes.starts(token(1, 4)));
        // The next list lacks change 2, so the change is withdrawn.
        assert_eq!(begin(&changes, 1, 6, &[6], 6), Known::New);
        assert!(!changes.starts(token(1, 2)) && !changes.starts(token(1, 5)));
        // A withdrawn change that is being made has not ended.
        let give_up = |number| {
            told(6, &[number], |wanted| {
                changes.give_up(token(1, number), wanted)
            })
        };
        assert_eq!(give_up(4), Known::Going);
        changes.end(token(1, 4), End::Made(DONE));
        assert_eq!(give_up(4), Known::Ended(End::Made(DONE)));
        assert_eq!(begin(&changes, 1, 7, &[7], 7), Known::New);
        assert_eq!(begin(&changes, 1, 5, &[4, 5], 4), over);
        make(&changes, token(1, 7));
        assert_eq!(
            changes.kept().of[&1].open.len(),
            1,
            "a change that is over is still kept"
        );
    }

    #[test]
    fn who_gives_up_is_told_what_became_of_it() {
        let changes = Changes::new(1);
        let give_up = |number| {
            told(9, &[number], |wanted| {
                changes.give_up(token(1, number), wanted)
            })
        };
        let over = Known::Ended(End::given_up());
        assert_eq!(give_up(1), over);
        assert_eq!(begin(&changes, 1, 9, &[1], 1), over);
        let changes = Changes::new(1);
        let give_up = |number| {
            told(9, &[number], |wanted| {
                changes.give_up(token(1, number), wanted)
            })
        };
        assert_eq!(begin(&changes, 1, 2, &[2], 2), Known::New);
        assert_eq!(give_up(2), over);
        assert!(!changes.starts(token(1, 2)));
        assert_eq!(give_up(2), over);
        let changes = Changes::new(1);
        let give_up = || told(3, &[3], |wanted| changes.give_up(token(1, 3), wanted));
        assert_eq!(begin(&changes, 1, 3, &[3], 3), Known::New);
        assert!(changes.starts(token(1, 3)));
        assert_eq!(give_up(), Known::Going);
        changes.end(token(1, 3), End::Made(DONE));
        assert_eq!(give_up(), Known::Ended(End::Made(DONE)));
    }

    #[test]
    fn clients_of_which_nothing_has_come_for_long_are_forgotten_and_told_so() {
        let changes = Changes::bounded(1, 16, 1000);
        for client in 0..16 {
            assert_eq!(begin(&changes, client, 1, &[1], 1), Known::New);
            if client != 1 {
                make(&changes, token(client, 1));
            }
        }
        assert_eq!(
            begin(&changes, 0, 1, &[1], 1),
            Known::Ended(End::Made(DONE))
        );
        assert!(changes.starts(token(1, 1)));
        assert_eq!(begin(&changes, 99, 1, &[1], 1), Known::New);
        assert_eq!(changes.kept().of.len(), 14);
        assert_eq!(
            begin(&changes, 0, 1, &[1], 1),
            Known::Ended(End::Made(DONE))
        );
        changes.end(token(1, 1), End::Made(DONE));
        assert_eq!(
            begin(&changes, 1, 1, &[1], 1),
            Known::Ended(End::Made(DONE))
        );
        assert_eq!(begin(&changes, 99, 1, &[1], 1), Known::Going);
        for client in 2..5 {
            assert!(!changes.starts(token(client, 1)));
            assert_eq!(begin(&changes, client, 1, &[1], 1), Known::OtherRun(2));
            let asked = told(1, &[1], |wanted| changes.give_up(token(client, 1), wanted));
            assert_eq!(asked, Known::OtherRun(2));
        }
        assert_eq!(changes.kept().of.len(), 14);
        let anew = |client| Token {
            run: 2,
            ..token(client, 1)
        };
        let known = told(1, &[1], |wanted| changes.begin(anew(2), wanted));
        assert_eq!(known, Known::New);
        assert!(!changes.starts(token(2, 1)) && changes.starts(anew(2)));
    }

    #[test]
    fn clients_that_somebody_invents_take_no_more_room_than_there_is() {
        let changes = Changes::bounded(1, 1000, 100);
        let numbers: Vec<u64> = (1..=30).collect();
        let (mut run, mut most) = (1, 0);
        for client in 0..200 {
            let asked = Token {
                run,
                ..token(client, 1)
            };
            let known = told(30, &numbers, |wanted| changes.begin(asked, wanted));
            match known {
                Known::OtherRun(other) => run = other,
                _ => make(&changes, asked),
            }
            let kept = changes.kept();
            let open: usize = kept.of.values().map(|client| client.open.len()).sum();
            assert_eq!(open, kept.open);
            assert_eq!(kept.of.len(), kept.recent.len());
            most = most.max(open);
        }
        assert!(run > 10 && most == 90, "{run} {most}");
        let each = size_of::<(u64, Stage)>() + MOST_KEPT;
        assert!(MOST_OPEN * each + MOST * size_of::<(u64, Client)>() < 100 << 20);
    }
}
