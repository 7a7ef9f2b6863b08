//! One search of a worker, and the data that all its searches share.

use std::sync::Arc;
use std::time::Duration;

use super::loading::{Loaded, Loading};
use super::out::{Out, refuse};
use super::vouching::Vouching;
use super::{
    Backoff, ComputeOptions, HalfError, LowHalf, Missing, Request, Shelf, Waiting, Wants, other_row,
};
use crate::wire::{
    Counters, Frame, Head, MOST_NODES, Message, Reason, append_begin, append_change_body,
    append_look, append_rank, append_refine,
};

/// The bits of an id that name the worker.
pub(super) const LANES: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Memory,
    Storage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Free,
    /// The search continues when the server is connected, or when a pause ends.
    Held(Peer),
    /// The search requested this step from the memory server.
    Walk(u32),
    Rank,
    /// The request asked storage for a change or its outcome.
    Change,
}

const NOTHING: Wants = Wants::Search {
    k: 0,
    list: 0,
    beam: 0,
    row: Vec::new(),
};

pub(super) struct Query<Q> {
    pub(super) stage: Stage,
    pub(super) request: Request,
    pub(super) low: Q,
    pub(super) began: Duration,
    /// D_high of this attempt, which grows if many results were deleted.
    pub(super) list: u32,
    pub(super) id: u64,
    pub(super) state: u64,
    /// The nodes that the walk has found; empty before the end of the walk.
    pub(super) found: Vec<u32>,
    /// The last message, for a repetition.
    pub(super) asked: Vec<u8>,
    pub(super) backoff: Backoff,
    pub(super) again: Duration,
    pub(super) counters: Counters,
    /// The distances by low codes in abandoned walks.
    pub(super) low_before: u64,
    pub(super) trouble: Option<String>,
}

#[derive(Default)]
pub(super) struct Line {
    pub(super) up: bool,
    /// The time since which the server answered no request. Time without requests does not count.
    pub(super) unanswered: Option<Duration>,
    /// The length of the server's silence when the worker gave up the last request.
    before: Duration,
}

impl Line {
    pub(super) fn set(&mut self, up: bool) {
        *self = Line {
            up,
            ..Line::default()
        };
    }

    pub(super) fn asked(&mut self, now: Duration) {
        let since = now.saturating_sub(self.before);
        self.unanswered.get_or_insert(since);
    }

    pub(super) fn answered(&mut self) {
        self.set(self.up);
    }

    /// Called after a message to another worker on the same connection.
    pub(super) fn heard(&mut self, at: Duration) {
        if let Some(since) = self.unanswered.filter(|&since| since < at) {
            (self.unanswered, self.before) = (Some(since.max(at)), Duration::ZERO);
        }
    }

    pub(super) fn settle(&mut self, now: Duration) {
        if let Some(since) = self.unanswered.take() {
            self.before = now.saturating_sub(since);
        }
    }

    pub(super) fn dead(&self, silence: Duration) -> Duration {
        self.unanswered
            .map_or(Duration::MAX, |since| since + silence)
    }
}

/// The share of deleted or replaced nodes among the nodes that walks find, as a moving mean over
/// some tens of walks.
#[derive(Debug, Default)]
pub(super) struct Share(f32);

impl Share {
    pub(super) fn add(&mut self, refused: u32, of: usize) {
        if of > 0 {
            self.0 += (refused as f32 / of as f32 - self.0) / 32.0;
        }
    }

    fn beyond(&self, list: u32, nodes: u32) -> u32 {
        if self.0 < 0.01 {
            return list;
        }
        let longer = list as f32 / (1.0 - self.0).max(0.5);
        (longer as u32).clamp(list, list.max(nodes))
    }
}

pub(super) struct Common<L> {
    pub(super) options: ComputeOptions,
    pub(super) shelf: Arc<Shelf<L>>,
    pub(super) low: Option<Arc<L>>,
    pub(super) lane: u16,
    pub(super) refused_share: Share,
    pub(super) scored: Vec<(u32, f32)>,
    pub(super) missing: Missing,
    pub(super) estimates: Vec<(u32, f32)>,
    pub(super) next: u64,
    pub(super) memory: Line,
    pub(super) storage: Line,
    pub(super) loading: Option<Loading>,
    pub(super) vouching: Vouching,
    /// Whether the worker has to fetch other low codes at the time `again`.
    pub(super) stale: bool,
    pub(super) again: Duration,
}

impl<Q: Default> Query<Q> {
    pub(super) fn new(retry: Duration) -> Query<Q> {
        Query {
            stage: Stage::Free,
            request: Request {
                client: 0,
                id: 0,
                deadline: Duration::MAX,
                wants: NOTHING,
            },
            low: Q::default(),
            began: Duration::ZERO,
            list: 0,
            id: 0,
            state: 0,
            found: Vec::new(),
            asked: Vec::new(),
            backoff: Backoff::new(retry),
            again: Duration::MAX,
            counters: Counters::default(),
            low_before: 0,
            trouble: None,
        }
    }

    pub(super) fn head(&self, now: Duration) -> Head {
        Head::until(
            self.id,
            self.state,
            self.request.deadline.saturating_sub(now),
        )
    }

    pub(super) fn k(&self) -> u32 {
        match self.request.wants {
            Wants::Search { k, .. } => k,
            Wants::Change { .. } => 0,
        }
    }

    /// Frees large buffers, because a change needs up to two mebibytes.
    pub(super) fn free(&mut self) {
        self.stage = Stage::Free;
        self.request.wants = NOTHING;
    }

    pub(super) fn hold(&mut self, peer: Peer, why: &str) {
        self.stage = Stage::Held(peer);
        self.again = Duration::MAX;
        self.trouble = Some(why.to_owned());
    }
}

impl<L: LowHalf> Common<L> {
    pub(super) fn id(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next << LANES | u64::from(self.lane)
    }

    pub(super) fn low_of(&self, state: u64) -> Option<Arc<L>> {
        let low = self.low.as_ref();
        low.filter(|low| low.collection().state == state).cloned()
    }

    pub(super) fn begin(&mut self, now: Duration, query: &mut Query<L::Query>, out: &mut Out) {
        let Some(low) = self.low.clone() else {
            return query.hold(Peer::Memory, "has not sent the low codes yet");
        };
        if !self.memory.up {
            return query.hold(Peer::Memory, "is not connected");
        }
        let collection = low.collection();
        let Wants::Search {
            k, beam, ref row, ..
        } = query.request.wants
        else {
            return;
        };
        let list = self.refused_share.beyond(query.list, collection.nodes);
        if row.len() != collection.row_bytes as usize {
            let text = other_row(row.len(), collection.row_bytes);
            return self.fail(query, Reason::Invalid, &text, out);
        }
        let list = list.clamp(1, MOST_NODES as u32);
        let full = (list / 2).max(k).min(list);
        if query.id != 0 {
            query.low_before += low.computations(&query.low);
        }
        self.scored.clear();
        let (narrowing, scored) = (self.options.narrowing, &mut self.scored);
        let (long, missing) = (list as usize, &mut self.missing);
        let begun = low.begin(&mut query.low, row, long, narrowing, scored, missing);
        if let Err(HalfError(text)) = begun {
            return self.fail(query, Reason::Invalid, &text, out);
        }
        query.id = self.id();
        query.state = collection.state;
        query.found.clear();
        query.stage = Stage::Walk(0);
        let head = query.head(now);
        query.asked.clear();
        let beam = beam.clamp(1, MOST_NODES as u32);
        (query.counters.list, query.counters.beam) = (list, beam);
        append_begin(
            head,
            [list, full, beam],
            (
                &mut self.missing.nodes,
                self.missing.most,
                self.missing.bound,
            ),
            L::sent(&query.low),
            &mut self.scored,
            &mut query.asked,
        );
        self.ask(now, query, out);
    }

    /// Whether a search walks again with a longer list, because too many of its results were
    /// deleted.
    pub(super) fn walks_again(
        &self,
        now: Duration,
        query: &mut Query<L::Query>,
        refused: u32,
    ) -> bool {
        let Some(low) = self.low_of(query.state).filter(|_| refused > 0) else {
            return false;
        };
        let most = low.collection().nodes.min(Waiting::MOST_LIST);
        let (Wants::Search { k, list, .. }, deadline) =
            (&query.request.wants, query.request.deadline)
        else {
            return false;
        };
        let (k, list) = (*k, *list);
        let counted = (query.found.len() as u32).saturating_sub(refused);
        // Without deletes, a ranking has about half as many nodes as the list.
        let enough = (list / 2).max(k);
        let is_enough = counted >= enough || refused <= enough / 4 && counted >= k;
        // A walk with a larger list takes longer than all walks so far.
        let took = now.saturating_sub(query.began);
        if is_enough || query.list >= most || now + 2 * took >= deadline {
            return false;
        }
        let longer = query.list.saturating_add(refused.saturating_mul(2));
        query.list = longer.max(query.list.saturating_mul(2)).min(most);
        query.found.clear();
        true
    }

    pub(super) fn next_step(
        &mut self,
        now: Duration,
        query: &mut Query<L::Query>,
        low: &L,
        taken: Result<(), HalfError>,
        out: &mut Out,
    ) {
        let Stage::Walk(step) = query.stage else {
            return;
        };
        if let Err(HalfError(text)) = taken {
            let memory = &self.options.memory;
            let text = format!("the memory server at {memory} sent invalid lists: {text}");
            return self.fail(query, Reason::Failed, &text, out);
        }
        self.scored.clear();
        low.select(&mut query.low, &mut self.scored, &mut self.missing);
        let head = query.head(now);
        query.asked.clear();
        let Missing { nodes, most, bound } = &mut self.missing;
        match nodes.is_empty() {
            true => append_refine(head, step + 1, &mut self.scored, &mut query.asked),
            false => append_look(
                head,
                step + 1,
                (nodes, *most, *bound),
                &mut self.scored,
                &mut query.asked,
            ),
        }
        query.stage = Stage::Walk(step + 1);
        query.counters.steps += 1;
        query.backoff.reset();
        self.ask(now, query, out);
    }

    pub(super) fn rank(&mut self, now: Duration, query: &mut Query<L::Query>, out: &mut Out) {
        if !self.storage.up {
            return query.hold(Peer::Storage, "is not connected");
        }
        let head = query.head(now);
        let Wants::Search { k, ref row, .. } = query.request.wants else {
            return;
        };
        query.stage = Stage::Rank;
        query.asked.clear();
        append_rank(head, k, row, &mut query.found, &mut query.asked);
        self.ask(now, query, out);
    }

    /// Neither waits for a connection nor repeats the change after a restart of storage. Otherwise,
    /// storage could make the change long after the client got its reply, and undo later changes.
    pub(super) fn change(&mut self, now: Duration, query: &mut Query<L::Query>, out: &mut Out) {
        if !self.storage.up {
            return self.no_storage(query, "is not connected", out);
        }
        // All attempts have the same id, so a reply to any of them is enough.
        if query.id == 0 {
            query.id = self.id();
        }
        query.stage = Stage::Change;
        self.ask(now, query, out);
    }

    pub(super) fn no_storage(&mut self, query: &mut Query<L::Query>, why: &str, out: &mut Out) {
        let text = format!("the storage server at {} {why}", self.options.storage);
        self.fail(query, Reason::Busy, &text, out);
    }

    pub(super) fn ask(&mut self, now: Duration, query: &mut Query<L::Query>, out: &mut Out) {
        query.again = query.backoff.pause(now);
        let head = query.head(now);
        let (line, bytes, to) = match query.stage {
            Stage::Rank | Stage::Change => (
                &mut self.storage,
                &mut query.counters.storage_wire,
                &mut out.storage,
            ),
            _ => (&mut self.memory, &mut query.counters.wire, &mut out.memory),
        };
        line.asked(now);
        let before = to.len();
        match query.request.wants {
            // The body of a change is only in the request.
            Wants::Change {
                gives_up, ref body, ..
            } => append_change_body(head, gives_up, body, to),
            Wants::Search { .. } => to.extend(&query.asked),
        }
        *bytes += (to.len() - before) as u64;
    }

    pub(super) fn go_on(&mut self, now: Duration, query: &mut Query<L::Query>, out: &mut Out) {
        match query.stage {
            Stage::Free => {}
            Stage::Walk(_) | Stage::Rank | Stage::Change => self.ask(now, query, out),
            // Storage was busy. The connection is the same, because a lost connection ends the
            // change (`no_storage`).
            Stage::Held(_) if query.request.is_change() => self.change(now, query, out),
            Stage::Held(_) if !query.found.is_empty() => self.rank(now, query, out),
            Stage::Held(_) => {
                if query.id != 0 {
                    query.counters.restarts += 1;
                }
                self.begin(now, query, out);
            }
        }
    }

    pub(super) fn fail(
        &mut self,
        query: &mut Query<L::Query>,
        reason: Reason,
        text: &str,
        out: &mut Out,
    ) {
        let head = Head {
            id: query.request.id,
            state: query.state,
            left: 0,
        };
        refuse(out, query.request.client, head, reason, text);
        query.free();
    }

    pub(super) fn refused(
        &mut self,
        now: Duration,
        query: &mut Query<L::Query>,
        peer: Peer,
        (reason, text): (Reason, &str),
        out: &mut Out,
    ) {
        match reason {
            Reason::Invalid | Reason::Failed | Reason::GivenUp | Reason::Over => {
                let (role, place) = match peer {
                    Peer::Memory => ("memory", &self.options.memory),
                    Peer::Storage => ("storage", &self.options.storage),
                };
                let text = format!("the {role} server at {place}: {text}");
                self.fail(query, reason, &text, out);
            }
            Reason::Unknown | Reason::Busy | Reason::Deadline | Reason::Waiting => {
                query.hold(peer, &format!("answered: {text}"));
                query.again = match query.request.wants {
                    // A client that withdraws a change waits only briefly.
                    Wants::Change { gives_up: true, .. } => now + self.options.retry / 8,
                    _ => query.backoff.pause(now),
                };
            }
            Reason::OtherState => {
                if peer == Peer::Storage {
                    // The walk's nodes are of another state, so the search begins again.
                    query.found.clear();
                }
                query.hold(peer, &format!("has another state of the index: {text}"));
                query.again = query.backoff.pause(now);
                self.stale = true;
                self.renew(now, out);
            }
        }
    }

    pub(super) fn too_late(&mut self, now: Duration, query: &mut Query<L::Query>, out: &mut Out) {
        let (role, name) = match query.stage {
            Stage::Rank | Stage::Change | Stage::Held(Peer::Storage) => {
                ("storage", &self.options.storage)
            }
            _ => ("memory", &self.options.memory),
        };
        let trouble = match (&query.trouble, query.stage) {
            (Some(trouble), Stage::Held(_)) => trouble.clone(),
            (Some(trouble), _) => format!("did not answer in time; last problem: it {trouble}"),
            (None, _) => "did not answer in time".to_owned(),
        };
        if let Stage::Walk(_) = query.stage {
            Message::End.append(query.head(now), &mut out.memory);
        }
        let text = format!("the {role} server at {name} {trouble}");
        self.fail(query, Reason::Deadline, &text, out);
    }

    pub(super) fn differs(&self) -> bool {
        match (self.shelf.low(), &self.low) {
            (Some(new), Some(own)) => !Arc::ptr_eq(&new, own),
            (new, own) => new.is_some() != own.is_some(),
        }
    }

    pub(super) fn renew(&mut self, now: Duration, out: &mut Out) {
        if !self.stale || self.loading.is_some() {
            return;
        }
        self.again = now + self.options.retry;
        if !self.memory.up {
            return;
        }
        let mut kept = self.shelf.kept();
        if kept.loader.is_none() {
            kept.loader = Some(self.lane);
            drop(kept);
            self.again = Duration::MAX;
            let id = self.id();
            self.memory.asked(now);
            let (retry, room) = (self.options.retry, self.options.low_memory);
            self.loading = Some(Loading::begin(now, id, retry, room, &mut out.memory));
        }
    }

    /// Warns if no low code fits. Does not warn again if no code fitted before either.
    fn warn_of_none(&self, low: &L) {
        let keeps_none = |low: &L| low.kept() == Some(0) && low.collection().nodes > 0;
        if !keeps_none(low) || self.low.as_deref().is_some_and(keeps_none) {
            return;
        }
        let (room, of) = (self.options.low_memory, low.collection());
        let all = u64::from(of.nodes) * u64::from(of.low_bytes);
        tracing::warn!(
            "no low codes fit into {room} bytes (--low-memory), so the memory server at {} computes all distances by low codes. Allow more memory: the codes of all {} nodes take {all} bytes",
            self.options.memory,
            of.nodes
        );
    }

    pub(super) fn give_up_loading(&mut self) {
        if self.loading.take().is_some() {
            self.shelf.kept().loader = None;
        }
    }

    /// Returns whether the shelf has new codes now.
    pub(super) fn load(
        &mut self,
        now: Duration,
        frame: &Frame<'_>,
        message: &Message<'_>,
        out: &mut Out,
    ) -> bool {
        let Some(loading) = &mut self.loading else {
            return false;
        };
        let known = self.low.as_ref().map_or(0, |low| low.collection().state);
        match loading.message::<L>(now, frame, message, known, &mut out.memory) {
            Loaded::Not => false,
            Loaded::Same => {
                self.give_up_loading();
                self.stale = false;
                false
            }
            Loaded::All(begun) => {
                let bits = begun.offloads().then_some(&begun.bits[..]);
                let low = L::load(begun.collection, &begun.centroids, bits, begun.codes);
                self.give_up_loading();
                match low {
                    Ok(low) => {
                        self.warn_of_none(&low);
                        self.shelf.kept().low = Some(Arc::new(low));
                        out.renewed = true;
                        true
                    }
                    Err(HalfError(text)) => {
                        tracing::warn!(
                            "the low codes of {} cannot be used: {text}",
                            self.options.memory
                        );
                        self.again = now + self.options.retry * Backoff::MOST;
                        false
                    }
                }
            }
        }
    }
}
