//! The storage role: the rankings and changes of one connection.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::changes::{Changes, End, Known};
use super::going::Going;
use super::out::append_refusal;
use super::{HalfError, NotChanged, Ranker, other_row, other_state};
use crate::wire::{Changed, Frame, Head, Ids, Message, Ranked, Reason, Token, Wanted, WireError};

/// The rankings that a server may have at once, over all its connections.
#[derive(Debug)]
pub struct Slots {
    most: usize,
    taken: AtomicUsize,
}

/// A ranking's slot among the [`Slots`]. Drop it last, so that a stalled read keeps its slot.
#[derive(Debug)]
pub struct Slot(Arc<Slots>);

impl Slots {
    /// Creates slots for at most `most` rankings.
    pub fn new(most: usize) -> Arc<Slots> {
        let taken = AtomicUsize::new(0);
        Arc::new(Slots { most, taken })
    }

    /// The number of rankings in progress.
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
    /// If [`StorageState::starts`] returns true, make the change, and pass the result to
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

/// A ranking that the caller has to make.
#[derive(Debug)]
pub struct RankJob<'a> {
    /// The id of the request, for [`StorageState::ranked`].
    pub id: u64,
    /// The state of the index.
    pub state: u64,
    /// The requested number of results.
    pub k: usize,
    /// The query.
    pub row: &'a [u8],
    /// The nodes to rank.
    pub nodes: &'a [u32],
    /// The client's deadline.
    pub until: Duration,
    /// The caller drops the slot when no part of the ranking remains.
    pub slot: Slot,
}

/// The reason why there is no ranking.
#[derive(Clone, Copy, Debug)]
pub struct NotRanked<'a> {
    /// The error of the half.
    pub why: &'a HalfError,
    /// Whether storage gave up the state meanwhile; if so, the search begins again.
    pub gone: bool,
}

/// A connection of the storage role.
#[derive(Debug)]
pub struct StorageState {
    slots: Arc<Slots>,
    changes: Arc<Changes>,
    /// The state and the deadline of each ranking, by id.
    ranking: HashMap<u64, (u64, Duration)>,
    nodes: Vec<u32>,
    /// The table of used states, the number of this connection in it, and its last recorded state.
    line: Option<(Arc<Going>, u64, u64)>,
}

impl StorageState {
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

    /// Makes the connection record the state that it uses in `going`.
    pub fn among(mut self, going: Arc<Going>) -> StorageState {
        let name = going.come();
        self.line = Some((going, name, 0));
        self
    }

    /// Called when the connection has ended, with a time on the clock of the [`Going`].
    pub fn left(&mut self, now: Duration) {
        if let Some((going, name, _)) = self.line.take() {
            going.left(now, name);
        }
    }

    /// The number of rankings in progress.
    pub fn ranking(&self) -> usize {
        self.ranking.len()
    }

    /// Processes a frame. Appends the reply, or returns work for the caller.
    ///
    /// # Errors
    /// The frame is no message of a compute server. The caller has to close the connection.
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
        // A compute server without low codes names the state 0.
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
        // The reply to the first request also answers a repeated request.
        if self.ranking.contains_key(&id) {
            return Ok(None);
        }
        if row.len() != collection.row_bytes as usize {
            return Err((Reason::Invalid, other_row(row.len(), collection.row_bytes)));
        }
        let read = nodes.read(collection.nodes, &mut self.nodes);
        read.map_err(|error| (Reason::Invalid, error.to_string()))?;
        let Some(slot) = self.slots.take() else {
            let text = "this storage server already ranks as many queries as it allows".to_owned();
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

    /// If the change must not be made now, appends the reply, and returns `None`.
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

    /// Appends the reply of a ranking, or a refusal after the deadline.
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
            // A late reply shows the client that storage is alive.
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

    /// Called if there is no space for a change; its client may request it again.
    pub fn no_room(&self, (id, token): (u64, Token), text: &str, out: &mut Vec<u8>) {
        self.changes.back(token);
        append_refusal(head_of(id), Reason::Busy, text, out);
    }

    /// Returns false if the change was withdrawn, or is late and now refused.
    pub fn starts(
        &self,
        now: Duration,
        (id, token, until): (u64, Token, Duration),
        out: &mut Vec<u8>,
    ) -> bool {
        if now >= until {
            // After the deadline, the client may have changed the same ids again.
            let text = "the change waited until its deadline; the change was not made, and will not be made";
            let end = End::not(Reason::GivenUp, text);
            self.changes.end(token, end.clone());
            answer_known(head_of(id), Known::Ended(end), out);
            return false;
        }
        self.changes.starts(token)
    }

    /// Appends the reply of a change that [`starts`](Self::starts) allowed.
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

fn answer_known(head: Head, known: Known, out: &mut Vec<u8>) {
    match known {
        Known::New => {}
        Known::Going => {
            let text = "the server is making this change, which is not durable yet";
            append_refusal(head, Reason::Busy, text, out);
        }
        // The client can send the change to the run that the reply names.
        Known::OtherRun(run) => {
            let text = "this change was sent before the storage server was restarted, or the server has forgotten this client";
            append_refusal(Head { state: run, ..head }, Reason::OtherState, text, out);
        }
        Known::Ended(End::Made(changed)) => Message::Changed(changed).append(head, out),
        Known::Ended(End::Not(reason, text)) => append_refusal(head, reason, &text, out),
    }
}

fn misfit((upserts, rows): (Ids<'_>, &[u8]), deletes: Ids<'_>, row_bytes: u32) -> Option<String> {
    let right = upserts.len() * row_bytes as usize;
    if rows.len() != right {
        return Some(format!(
            "the change has {} bytes of vectors; {} vectors of this collection have {right} bytes",
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
