//! Changes that storage was asked for, through whichever connection: each is made once, and none that its client does not want any more.
//!
//! A client that hears nothing asks again, perhaps through another compute server, while the first one goes on asking as well; and what a client has asked for may come when it has long given it
//! up. A change that was made then could undo another one that its client made meanwhile. So clients number their changes, and say with each for which of them they wait
//! ([`Wanted`]): all others up to there are over for ever, and nothing more need be known of them (as in Lee et al., *Implementing Linearizability at Large Scale and Low Latency*, SOSP 2015, §3).
//! Of those that are waited for it is known how they ended, also where they failed: who asks again is told the same. Of all others nothing is said but that they are over ([`Reason::Over`]).
//!
//! Storage that was started anew knows of none. So a token says for which run of storage it is, and another one refuses it; then its client, which alone
//! knows whether it was told of it already, asks for it again.
//!
//! Whoever knows the secret may invent clients, and what is known of them has to have room: of many those are forgotten of which nothing has come for longest, but for those of which a change waits or is being made. Another *run* begins with
//! that, though the process is the same: what a client that was forgotten asked for is refused as one of a run before, so that it is not made again without its client's hearing that it may have been. Clients that are known keep their run.
//!
//! **What is guaranteed.** After a call of a client has returned,
//!
//! - answered: the change is durable, was made once by this run of storage, and is made no second time;
//! - failed or interrupted: whatever became of it, it is not made behind a later change of the same client that was acknowledged, nor behind the client's being told that it is given up
//!   ([`Message::GiveUp`](crate::wire::Message::GiveUp), of which a client that ends so asks and waits a moment for the answer). Who was not told so knows that it may still be made: then another client's change may come before it. It is asked for as long
//!   as its client has said that it waits (30 s by default), and no longer than its client is connected to the compute server that asks. Storage counts that time from when a request arrives: how
//!   long one lies in the buffers of a connection has no bound.
//! - A client that died without a word is gone for a compute server when its connection is over: it does not ask for its changes any more. Storage still makes what it has got by then.
//!
//! Not guaranteed: that a change that storage made, and was killed before it said so, is made once: the next run makes it again where its client still waits, and its client is told that this may be so
//! ([`Outcome::Changed`](super::Outcome::Changed)).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::wire::{Changed, Reason, Token, Wanted};

/// Clients of which something is known, at most: far more than come while anybody asks for a change of one.
const MOST: usize = 1 << 16;
/// Changes of all of them that they wait for, at most: some 15 MB, and four times that where each has failed with a long text.
const MOST_OPEN: usize = 1 << 18;
/// Bytes of a text that is kept to be said again.
const MOST_KEPT: usize = 256;

/// How a change ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It was made.
    Made(Changed),
    /// It was not, or not all of it; why, and in words.
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
            "its client has given it up: it was not made, and will not be",
        )
    }

    fn over() -> End {
        End::not(
            Reason::Over,
            "its client did not wait for it any more: what became of it is not known, and nothing more of it is made",
        )
    }
}

/// What is known of a change that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing: whoever asks has to make it now.
    New,
    /// It waits to be made, or is being made.
    Going,
    /// It is over.
    Ended(End),
    /// It was to be made by another run than this one, to which it may be told.
    OtherRun(u64),
}

/// The changes of a storage server.
#[derive(Debug)]
pub struct Changes {
    kept: Mutex<Clients>,
}

#[derive(Debug)]
struct Clients {
    /// What tells this run of the server from every other, which know other tokens: a change is for one of them, and refused by the next.
    run: u64,
    /// Clients, and changes that they wait for, at most.
    most: (usize, usize),
    /// Changes that they wait for.
    open: usize,
    of: HashMap<u64, Client>,
    /// When something came of each: the oldest first.
    recent: BTreeMap<u64, u64>,
    next: u64,
}

/// What is known of a client's changes.
#[derive(Debug)]
struct Client {
    /// The run in which it came first.
    run: u64,
    /// When something came of it.
    at: u64,
    /// Of its changes up to this one those are over that are not in `open`.
    newest: u64,
    open: BTreeMap<u64, Stage>,
}

/// How far a change is for which its client waits.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// It was not asked for, or there was no room for it.
    Named,
    /// It waits to be made.
    Waits,
    /// It is being made.
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

    /// Whether a change of it is being made, or is about to be: of no more clients than changes may wait at once.
    fn is_being_served(&self) -> bool {
        let mut stages = self.open.values();
        stages.any(|stage| matches!(stage, Stage::Waits | Stage::Made))
    }

    /// Takes what it says that it waits for. What it said earlier may come later. What is being made stays, whoever waits: it is not over.
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
    /// None yet. `run`: a random number.
    pub fn new(run: u64) -> Changes {
        Changes::bounded(run, MOST, MOST_OPEN)
    }

    /// The same, that knows of so many clients at most, and of so many changes that these wait for; one may wait for more.
    pub fn bounded(run: u64, clients: usize, open: usize) -> Changes {
        let kept = Clients {
            // 0 is what clients say that know none.
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

    /// Somebody asks for a change. Where it is new, it is to be [made](Self::starts), or [`back`](Self::back) said of it.
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

    /// Its client does not want a change any more: it is not made, unless that has begun. Never [`Known::New`].
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

    /// Whether a change that has waited is to be made now: then [`end`](Self::end) is to be said of it.
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

    /// There is no room for a change: it may be asked for again.
    pub(super) fn back(&self, token: Token) {
        if let Some(stage @ Stage::Waits) = self.kept().open(token) {
            *stage = Stage::Named;
        }
    }

    /// It was made, or is not to be made any more.
    pub(super) fn end(&self, token: Token, end: End) {
        if let Some(stage @ (Stage::Waits | Stage::Made)) = self.kept().open(token) {
            *stage = Stage::Ended(end);
        }
    }
}

impl Clients {
    /// A change that is not over.
    fn open(&mut self, token: Token) -> Option<&mut Stage> {
        let client = self.of.get_mut(&token.client);
        let client = client.filter(|client| client.run == token.run);
        client?.open.get_mut(&token.number)
    }

    /// Takes what a client says with a change, unless that is for another run than this: then it gives which this is.
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

    /// Forgets some of those of which nothing has come for longest, all at once, and goes on as another run, in which these are not known. Not the one that is served just now, nor one of which a change waits or is being
    /// made: it would be told that nothing more is made of it.
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

    /// What a client says that waits for these, through bytes.
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

    /// Asks for the last of some changes that a client waits for.
    fn begin(changes: &Changes, client: u64, newest: u64, numbers: &[u64], of: u64) -> Known {
        told(newest, numbers, |wanted| {
            changes.begin(token(client, of), wanted)
        })
    }

    /// Makes a change that waits.
    fn make(changes: &Changes, token: Token) {
        assert!(changes.starts(token));
        changes.end(token, End::Made(DONE));
    }

    #[test]
    fn a_change_is_made_once_and_one_that_failed_is_not_made_again() {
        let changes = Changes::new(1);
        assert_eq!(begin(&changes, 1, 1, &[1], 1), Known::New);
        assert_eq!(begin(&changes, 1, 1, &[1], 1), Known::Going);
        // Of another client.
        assert_eq!(begin(&changes, 2, 1, &[1], 1), Known::New);
        make(&changes, token(1, 1));
        assert_eq!(
            begin(&changes, 1, 1, &[1], 1),
            Known::Ended(End::Made(DONE))
        );
        // No room for it, and then it fails.
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
        // Those that it gave up before they came, and one that comes again.
        assert_eq!(begin(&changes, 1, 1, &[1], 1), over);
        assert_eq!(begin(&changes, 1, 3, &[1, 3], 3), over);
        // It waits for this one, which comes now, with what was said earlier.
        assert_eq!(begin(&changes, 1, 4, &[2, 3, 4], 4), Known::New);
        assert!(changes.starts(token(1, 4)));
        // The one that waited is given up by the next that comes: it is not made.
        assert_eq!(begin(&changes, 1, 6, &[6], 6), Known::New);
        assert!(!changes.starts(token(1, 2)) && !changes.starts(token(1, 5)));
        // What is being made is not over before it is made.
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
            "nothing is kept of what is over"
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
        // One that never came, does not later either.
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
        // Something comes of the first again; of the second a change is being made.
        assert_eq!(
            begin(&changes, 0, 1, &[1], 1),
            Known::Ended(End::Made(DONE))
        );
        assert!(changes.starts(token(1, 1)));
        assert_eq!(begin(&changes, 99, 1, &[1], 1), Known::New);
        // Fourteen are left, with all that is known of them.
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
        // What was forgotten is not made without a word, and nothing is kept of who asks for it.
        for client in 2..5 {
            assert!(!changes.starts(token(client, 1)));
            assert_eq!(begin(&changes, client, 1, &[1], 1), Known::OtherRun(2));
            let asked = told(1, &[1], |wanted| changes.give_up(token(client, 1), wanted));
            assert_eq!(asked, Known::OtherRun(2));
        }
        assert_eq!(changes.kept().of.len(), 14);
        // Asked for anew it is made, and not by what asked for it before.
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
        // The room that there is by default, in bytes.
        let each = size_of::<(u64, Stage)>() + MOST_KEPT;
        assert!(MOST_OPEN * each + MOST * size_of::<(u64, Client)>() < 100 << 20);
    }
}
