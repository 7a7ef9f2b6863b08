//! The storage role: the rankings in progress of one connection, and the changes that it asks for.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::changes::{Changes, End, Known};
use super::going::Going;
use super::out::append_refusal;
use super::{HalfError, NotChanged, Ranker, other_row, other_state};
use crate::wire::{Changed, Frame, Head, Ids, Message, Ranked, Reason, Token, Wanted, WireError};

/// The number of rankings that a server may have at once, for all its connections together.
#[derive(Debug)]
pub struct Slots {
    most: usize,
    taken: AtomicUsize,
}

/// A ranking's place among the [`Slots`], which is free again when this is dropped. That must be
/// after the last resource of the ranking is released. Neither a deadline nor the end of the
/// connection frees a ranking that waits for a stalled device.
#[derive(Debug)]
pub struct Slot(Arc<Slots>);

impl Slots {
    /// At most `most` rankings.
    pub fn new(most: usize) -> Arc<Slots> {
        let taken = AtomicUsize::new(0);
        Arc::new(Slots { most, taken })
    }

    /// Rankings in progress.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }

    fn take(self: &Arc<Self>) -> Option<Slot> {
        let one_more = |taken| (taken < self.most).then_some(taken + 1);
        let taken = self
            .taken
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        taken.ok().map(|_| Slot(self.clone()))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Work for a storage server.
#[derive(Debug)]
pub enum Job<'a> {
    /// Rank nodes.
    Rank(RankJob<'a>),
    /// Make a change, if it is still wanted then ([`StorageState::starts`]). The result goes to
    /// [`StorageState::changed`].
    Change {
        /// The id of the request.
        id: u64,
        /// The change.
        token: Token,
        /// The client's deadline.
        until: Duration,
    },
}

/// A ranking to be made.
#[derive(Debug)]
pub struct RankJob<'a> {
    /// The id of the request, for [`StorageState::ranked`].
    pub id: u64,
    /// The state of the index.
    pub state: u64,
    /// The number of answers wanted.
    pub k: usize,
    /// The query.
    pub row: &'a [u8],
    /// The nodes to rank.
    pub nodes: &'a [u32],
    /// The client's deadline.
    pub until: Duration,
    /// To be dropped when no part of the ranking is left.
    pub slot: Slot,
}

/// Why there is no ranking.
#[derive(Clone, Copy, Debug)]
pub struct NotRanked<'a> {
    /// The half's error.
    pub why: &'a HalfError,
    /// Whether the reason is that storage has given up the state meanwhile. Then the search begins
    /// again.
    pub gone: bool,
}

/// A connection of the storage role.
#[derive(Debug)]
pub struct StorageState {
    slots: Arc<Slots>,
    changes: Arc<Changes>,
    /// Rankings in progress by id: the state, and the client's deadline.
    ranking: HashMap<u64, (u64, Duration)>,
    nodes: Vec<u32>,
    /// Where the connection names the state that it uses, its number there, and the last state that
    /// it named.
    line: Option<(Arc<Going>, u64, u64)>,
}

impl StorageState {
    /// How long a client without a deadline is waited for.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A new connection to a server with these slots and changes.
    pub fn new(slots: Arc<Slots>, changes: Arc<Changes>) -> StorageState {
        StorageState {
            slots,
            changes,
            ranking: HashMap::new(),
            nodes: Vec::new(),
            line: None,
        }
    }

    /// Makes the connection record the state of the index that it uses in `going`, until
    /// [`left`](Self::left).
    pub fn among(mut self, going: Arc<Going>) -> StorageState {
        let name = going.come();
        self.line = Some((going, name, 0));
        self
    }

    /// The connection is over. `now`: a time on the clock of the [`Going`].
    pub fn left(&mut self, now: Duration) {
        if let Some((going, name, _)) = self.line.take() {
            going.left(now, name);
        }
    }

    /// Rankings in progress.
    pub fn ranking(&self) -> usize {
        self.ranking.len()
    }

    /// Takes a frame. Appends the answer, or returns the work to be done first by this ranker.
    ///
    /// # Errors
    /// The frame is nothing that a compute server sends. The connection has to be closed.
    pub fn message<'a, R: Ranker>(
        &'a mut self,
        now: Duration,
        frame: &Frame<'a>,
        ranker: &R,
        out: &mut Vec<u8>,
    ) -> Result<Option<Job<'a>>, WireError> {
        let newest = ranker.collection();
        let head = Head {
            id: frame.head.id,
            state: newest.state,
            left: 0,
        };
        let until = frame.head.deadline(now, Self::PATIENCE);
        let message = Message::decode(frame)?;
        let asked = match message {
            Message::Describe { .. } => {
                let (collection, centroids) = (newest, &[]);
                Message::Description {
                    collection,
                    centroids,
                }
                .append(head, out);
                return Ok(None);
            }
            Message::Rank { .. } => self.rank(frame.head, until, message, ranker),
            Message::Change {
                token,
                wanted,
                upserts,
                deletes,
                rows,
            } => {
                let wrong = misfit((upserts, rows), deletes, newest.row_bytes);
                let wrong = wrong.map(|text| Err((Reason::Invalid, text)));
                wrong.unwrap_or_else(|| Ok(self.change(head, until, token, &wanted, out)))
            }
            Message::GiveUp { token, wanted } => {
                answer_known(head, self.changes.give_up(token, &wanted), out);
                Ok(None)
            }
            _ => {
                let text = "a storage server does not answer requests of this kind".to_owned();
                Err((Reason::Invalid, text))
            }
        };
        Ok(asked.unwrap_or_else(|(reason, text)| {
            append_refusal(head, reason, &text, out);
            None
        }))
    }

    /// The ranking to be made, or `None` if it is in progress already.
    ///
    /// # Errors
    /// The reason and the text of the refusal.
    fn rank<'a, R: Ranker>(
        &'a mut self,
        Head { id, state, .. }: Head,
        until: Duration,
        message: Message<'a>,
        ranker: &R,
    ) -> Result<Option<Job<'a>>, (Reason, String)> {
        let Message::Rank { k, row, nodes } = message else {
            return Ok(None);
        };
        // A compute server without low codes names state 0.
        if let Some((going, name, said)) = self.line.as_mut().filter(|_| state != 0)
            && *said != state
        {
            *said = state;
            going.names(*name, state);
        }
        let Some(collection) = ranker.collection_of(state) else {
            let text = other_state(ranker.collection().state, state);
            return Err((Reason::OtherState, text));
        };
        // A repeated request is answered once.
        if self.ranking.contains_key(&id) {
            return Ok(None);
        }
        if row.len() != collection.row_bytes as usize {
            return Err((Reason::Invalid, other_row(row.len(), collection.row_bytes)));
        }
        let read = nodes.read(collection.nodes, &mut self.nodes);
        read.map_err(|error| (Reason::Invalid, error.to_string()))?;
        let Some(slot) = self.slots.take() else {
            let text = "this server ranks as many queries as it allows".to_owned();
            return Err((Reason::Busy, text));
        };
        self.ranking.insert(id, (state, until));
        Ok(Some(Job::Rank(RankJob {
            id,
            state,
            k: k as usize,
            row,
            nodes: &self.nodes,
            until,
            slot,
        })))
    }

    /// The change to be made, or `None` if its outcome is known or it must not be made any more.
    /// Then the answer is appended.
    fn change<'a>(
        &self,
        head: Head,
        until: Duration,
        token: Token,
        wanted: &Wanted<'_>,
        out: &mut Vec<u8>,
    ) -> Option<Job<'a>> {
        match self.changes.begin(token, wanted) {
            Known::New => Some(Job::Change {
                id: head.id,
                token,
                until,
            }),
            known => {
                answer_known(head, known, out);
                None
            }
        }
    }

    /// Takes the result of a ranking, and appends the answer, or that it is too late.
    pub fn ranked(
        &mut self,
        now: Duration,
        id: u64,
        result: Result<&Ranked, NotRanked<'_>>,
        out: &mut Vec<u8>,
    ) {
        let Some((state, until)) = self.ranking.remove(&id) else {
            return;
        };
        let head = Head { id, state, left: 0 };
        if until < now {
            // Answered all the same, so that the requester knows that storage is alive.
            let text = "the ranking was not done in time";
            let reason = Reason::Deadline;
            return append_refusal(head, reason, text, out);
        }
        match result {
            Ok(ranked) => ranked.append(head, out),
            Err(NotRanked { why, gone: true }) => {
                append_refusal(head, Reason::OtherState, &why.0, out);
            }
            Err(NotRanked { why, .. }) => append_refusal(head, Reason::Failed, &why.0, out),
        }
    }

    /// There is no space for a change that [`message`](Self::message) returned: its client may ask
    /// for it again.
    pub fn no_room(&self, (id, token): (u64, Token), text: &str, out: &mut Vec<u8>) {
        self.changes.back(token);
        append_refusal(head_of(id), Reason::Busy, text, out);
    }

    /// Whether a change that [`message`](Self::message) returned is to be made now. False if its
    /// deadline has passed, in which case the answer is appended. False too if its client has given
    /// it up meanwhile and was told so.
    pub fn starts(
        &self,
        now: Duration,
        (id, token, until): (u64, Token, Duration),
        out: &mut Vec<u8>,
    ) -> bool {
        if now >= until {
            // A client that has given up on the change may have changed the same ids again, so it
            // must not be made now.
            let text = "the change waited until its deadline; it was not made, and will not be";
            let end = End::not(Reason::GivenUp, text);
            self.changes.end(token, end.clone());
            answer_known(head_of(id), Known::Ended(end), out);
            return false;
        }
        self.changes.starts(token)
    }

    /// Takes the outcome of a change for which [`starts`](Self::starts) returned true, and appends
    /// the answer. To be called also if the connection is over.
    pub fn changed(
        &self,
        (id, token): (u64, Token),
        result: Result<Changed, &NotChanged>,
        out: &mut Vec<u8>,
    ) {
        let end = match result {
            Ok(changed) => End::Made(changed),
            Err(NotChanged::Invalid(text)) => End::not(Reason::Invalid, text),
            Err(NotChanged::Failed(text)) => End::not(Reason::Failed, text),
        };
        self.changes.end(token, end);
        match result {
            Ok(changed) => Message::Changed(changed).append(head_of(id), out),
            Err(NotChanged::Invalid(text)) => {
                append_refusal(head_of(id), Reason::Invalid, text, out)
            }
            Err(NotChanged::Failed(text)) => append_refusal(head_of(id), Reason::Failed, text, out),
        }
    }
}

fn head_of(id: u64) -> Head {
    Head {
        id,
        ..Head::default()
    }
}

/// Appends the answer for a change with a known state.
fn answer_known(head: Head, known: Known, out: &mut Vec<u8>) {
    match known {
        Known::New => {}
        Known::Going => {
            let text = "the server is making this change, which is not durable yet";
            append_refusal(head, Reason::Busy, text, out);
        }
        // The answer names this run, so that the client can ask it.
        Known::OtherRun(run) => {
            let text = "this change was sent to an earlier run of storage, or the server has forgotten this client";
            append_refusal(Head { state: run, ..head }, Reason::OtherState, text, out);
        }
        Known::Ended(End::Made(changed)) => Message::Changed(changed).append(head, out),
        Known::Ended(End::Not(reason, text)) => append_refusal(head, reason, &text, out),
    }
}

/// Why a change does not fit a collection with rows of `row_bytes` bytes, if it does not.
fn misfit((upserts, rows): (Ids<'_>, &[u8]), deletes: Ids<'_>, row_bytes: u32) -> Option<String> {
    let right = upserts.len() * row_bytes as usize;
    if rows.len() != right {
        return Some(format!(
            "{} bytes of vectors; {} vectors of this collection have {right}",
            rows.len(),
            upserts.len()
        ));
    }
    if upserts.is_empty() || deletes.is_empty() {
        return None;
    }
    let upserts: HashSet<u64> = upserts.iter().collect();
    let twice = deletes.iter().find(|id| upserts.contains(id))?;
    Some(format!(
        "id {twice} is inserted and deleted in the same change"
    ))
}
