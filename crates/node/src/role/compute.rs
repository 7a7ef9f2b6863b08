//! The compute role of one worker. A search is a walk together with the memory server, and then a
//! ranking by storage. Changes are forwarded to storage.
//!
//! A worker has a few searches in flight, its *coroutines* (§4.1). Workers share only the low codes
//! ([`Shelf`]). The lower 16 bits of a request's id are its *lane*: the number of the worker that
//! gets the reply.

use std::sync::Arc;
use std::time::Duration;

use stratann_tier::Span;

use super::out::Out;
use super::searching::{Common, Line, Peer, Query, Share, Stage};
use super::vouching::Vouching;
use super::waiting::GIVEN_UP;
use super::{HalfError, LowHalf, Missing, Narrowing, Request, Shelf, Wants};
use crate::wire::{Counters, Frame, HEADER, Head, Message, Reason, Token, WireError};

const RANKED: usize = 8;

const CHANGES: usize = 8;

/// The parameters of a worker.
#[derive(Clone, Debug)]
pub struct ComputeOptions {
    /// The number of searches that may walk at once.
    pub in_flight: usize,
    /// The rules by which low codes narrow the candidates.
    pub narrowing: Narrowing,
    /// The most bytes of low codes. Codes of unpopular nodes stay on the memory server (§3.3).
    pub low_memory: u64,
    /// The time after which an unanswered message is repeated. The time doubles with each
    /// repetition.
    pub retry: Duration,
    /// The time after which a connection without any reply counts as dead ([`Out::memory_silent`]).
    pub silence: Duration,
    /// The interval at which the worker tells storage which state the memory server has, so that
    /// storage keeps this state. [`Duration::MAX`] means never.
    pub vouch: Duration,
    /// The memory server's name in error texts.
    pub memory: String,
    /// Storage's name in error texts.
    pub storage: String,
}

impl Default for ComputeOptions {
    fn default() -> Self {
        Self {
            in_flight: 2,
            narrowing: Narrowing::default(),
            low_memory: u64::MAX,
            retry: Duration::from_millis(250),
            silence: Duration::from_secs(5),
            vouch: Duration::from_secs(15),
            memory: "memory".to_owned(),
            storage: "storage".to_owned(),
        }
    }
}

/// A worker of the compute role.
pub struct Worker<L: LowHalf> {
    common: Common<L>,
    queries: Vec<Query<L::Query>>,
}

impl<L: LowHalf> Worker<L> {
    /// Creates a worker without connections. The random number `first` makes the worker's ids
    /// unique among runs. Workers that share a connection need different lanes.
    pub fn new(shelf: Arc<Shelf<L>>, options: ComputeOptions, lane: u16, first: u64) -> Worker<L> {
        Worker {
            queries: Vec::new(),
            common: Common {
                low: shelf.low(),
                shelf,
                options,
                lane,
                scored: Vec::new(),
                refused_share: Share::default(),
                missing: Missing::default(),
                estimates: Vec::new(),
                next: first,
                memory: Line::default(),
                storage: Line::default(),
                loading: None,
                vouching: Vouching::default(),
                stale: false,
                again: Duration::MAX,
            },
        }
    }

    /// The lane of the worker whose request a frame answers.
    pub fn lane_of(id: u64) -> u16 {
        id as u16
    }

    /// Whether the worker can begin one more search at once (§4.3).
    pub fn has_room(&self) -> bool {
        let most = self.common.options.in_flight.max(1);
        // Without memory server or codes, the worker leaves the search to other workers.
        let begins = self.common.memory.up && self.common.low.is_some();
        let searches = || self.busy().filter(|query| !query.request.is_change());
        let walks =
            |query: &&Query<_>| matches!(query.stage, Stage::Walk(_) | Stage::Held(Peer::Memory));
        begins
            && searches().filter(walks).count() < most
            && searches().count() < most * (1 + RANKED)
    }

    /// Whether the worker can begin one more change, which needs only storage.
    pub fn has_room_for_change(&self) -> bool {
        let changes = self.busy().filter(|query| query.request.is_change());
        changes.count() < CHANGES
    }

    /// The number of searches and changes that are not answered yet.
    pub fn in_flight(&self) -> usize {
        self.busy().count()
    }

    fn busy(&self) -> impl Iterator<Item = &Query<L::Query>> {
        self.queries
            .iter()
            .filter(|query| query.stage != Stage::Free)
    }

    /// The reason why searches cannot continue now.
    pub fn trouble(&self, now: Duration) -> Option<String> {
        let Common {
            options,
            memory,
            low,
            ..
        } = &self.common;
        let late = |since: &Duration| now >= *since + options.retry;
        let what = match (memory.up, low, memory.unanswered.filter(late)) {
            (false, ..) => "is not connected".to_owned(),
            (true, None, _) => "has not sent the low codes yet".to_owned(),
            (true, Some(_), Some(since)) => {
                format!("has not answered for {}", Span(now - since))
            }
            (true, Some(_), None) => return None,
        };
        Some(format!("the memory server at {} {what}", options.memory))
    }

    /// Begins a request. The caller first checks [`has_room`](Self::has_room) or
    /// [`has_room_for_change`](Self::has_room_for_change).
    pub fn take(&mut self, now: Duration, request: Request, out: &mut Out) {
        let free = self
            .queries
            .iter()
            .position(|query| query.stage == Stage::Free);
        let at = free.unwrap_or_else(|| {
            self.queries.push(Query::new(self.common.options.retry));
            self.queries.len() - 1
        });
        let query = &mut self.queries[at];
        query.request = request;
        query.counters = Counters::default();
        (query.id, query.low_before) = (0, 0);
        query.began = now;
        query.trouble = None;
        query.backoff.reset();
        query.found.clear();
        // From here on the request belongs to this worker, even if the low half panics.
        query.stage = Stage::Held(Peer::Memory);
        match query.request.wants {
            Wants::Change { .. } => self.common.change(now, query, out),
            Wants::Search { list, .. } => {
                query.list = list;
                self.common.begin(now, query, out);
            }
        }
    }

    /// Fails all requests of a worker in which a half panicked.
    pub fn abandon(&mut self, out: &mut Out) {
        for query in &mut self.queries {
            if query.stage != Stage::Free {
                let text = "a worker of the compute server failed at this request, or at another request that it handled at the same time";
                // Storage may still make the change, so the client asks for the outcome again.
                let reason = match query.request.is_change() {
                    true => Reason::Busy,
                    false => Reason::Failed,
                };
                self.common.fail(query, reason, text, out);
            }
        }
    }

    /// Called when a client has disconnected. Drops its answers and changes.
    pub fn gone(&mut self, now: Duration, client: u64, out: &mut Out) {
        for query in &mut self.queries {
            if query.stage != Stage::Free && query.request.client == client {
                if let Stage::Walk(_) = query.stage {
                    Message::End.append(query.head(now), &mut out.memory);
                }
                query.free();
            }
        }
    }

    /// Called when a change is withdrawn. The worker no longer asks storage for it.
    pub fn given_up(&mut self, token: Token, out: &mut Out) {
        for query in &mut self.queries {
            if query.stage != Stage::Free && query.request.is(token) {
                self.common.fail(query, Reason::GivenUp, GIVEN_UP, out);
            }
        }
    }

    /// Called when the memory server is connected. If the memory server's state is not the state of
    /// the low codes, fetches new codes.
    pub fn memory_up(&mut self, now: Duration, out: &mut Out) {
        self.common.memory.set(true);
        self.common.vouch_from(Some(now));
        self.common.stale = true;
        self.common.renew(now, out);
        self.resume(now, Peer::Memory, out);
    }

    /// Called when another worker has learnt that the memory server no longer has the state of the
    /// low codes. Fetches new codes.
    pub fn outdated(&mut self, now: Duration, out: &mut Out) {
        // If `stale` is set, a worker already fetches new codes, or will after a pause.
        if !self.common.stale {
            self.common.stale = true;
            self.common.renew(now, out);
        }
    }

    /// Called when the connection to the memory server has ended.
    pub fn memory_down(&mut self, why: &str) {
        self.common.memory.set(false);
        self.common.vouch_from(None);
        self.common.give_up_loading();
        for query in &mut self.queries {
            if let Stage::Walk(_) = query.stage {
                query.hold(Peer::Memory, why);
            }
        }
    }

    /// Called when the memory server sent a message on a shared connection at time `at`.
    pub fn memory_heard(&mut self, at: Duration) {
        self.common.memory.heard(at);
    }

    /// Called when storage sent a message on a shared connection at time `at`.
    pub fn storage_heard(&mut self, at: Duration) {
        self.common.storage.heard(at);
    }

    /// Called when storage is connected.
    pub fn storage_up(&mut self, now: Duration, out: &mut Out) {
        self.common.storage.set(true);
        self.resume(now, Peer::Storage, out);
    }

    /// Called when the connection to storage has ended.
    pub fn storage_down(&mut self, why: &str, out: &mut Out) {
        self.common.storage.set(false);
        for query in &mut self.queries {
            if query.request.is_change() && query.stage != Stage::Free {
                self.common.no_storage(query, why, out);
            } else if query.stage == Stage::Rank {
                query.hold(Peer::Storage, why);
            }
        }
    }

    fn resume(&mut self, now: Duration, peer: Peer, out: &mut Out) {
        for query in &mut self.queries {
            if query.stage == Stage::Held(peer) {
                self.common.go_on(now, query, out);
            }
        }
    }

    /// Processes a frame of the memory server.
    ///
    /// # Errors
    /// The frame is no message of a memory server. The caller has to close the connection.
    pub fn memory(
        &mut self,
        now: Duration,
        frame: &Frame<'_>,
        out: &mut Out,
    ) -> Result<(), WireError> {
        let message = Message::decode(frame)?;
        self.common.memory.answered();
        if let Some(differs) = self.common.vouched(frame, &message, out) {
            if differs {
                self.outdated(now, out);
            }
            return Ok(());
        }
        if self.common.load(now, frame, &message, out) {
            self.adopt(now, out);
        }
        if let Message::Description { collection, .. } = message
            && frame.head.id == 0
        {
            // Walks continue in the earlier state, which the server keeps for a while.
            let known = self.common.low.as_ref();
            if known.is_some_and(|low| low.collection().state != collection.state) {
                self.common.stale = true;
                self.common.renew(now, out);
            }
            return Ok(());
        }
        let walks = |query: &&mut Query<L::Query>| {
            query.id == frame.head.id && matches!(query.stage, Stage::Walk(_))
        };
        let Some(query) = self.queries.iter_mut().find(walks) else {
            return Ok(());
        };
        query.counters.wire += frame.bytes() as u64;
        let Stage::Walk(current) = query.stage else {
            return Ok(());
        };
        let common = &mut self.common;
        match message {
            Message::Met {
                step,
                lists,
                estimates,
            } if step == current => {
                let Some(low) = common.low_of(query.state) else {
                    return Ok(());
                };
                let heard = &mut common.estimates;
                let read = estimates.read(low.collection().nodes, heard);
                let read = read.map_err(|error| HalfError(error.to_string()));
                let expanded = read.and_then(|()| {
                    low.hear(&mut query.low, heard);
                    low.expand(&mut query.low, lists)
                });
                common.next_step(now, query, &*low, expanded, out);
            }
            Message::Lists { step, lists } if step == current => {
                let Some(low) = common.low_of(query.state) else {
                    // New low codes arrived first, and all walks began again.
                    return Ok(());
                };
                let expanded = low.expand(&mut query.low, lists);
                common.next_step(now, query, &*low, expanded, out);
            }
            Message::Done {
                step,
                computations,
                low: offloaded,
                nodes,
            } if step == current => {
                let Some(low) = common.low_of(query.state) else {
                    return Ok(());
                };
                query.low_before += u64::from(offloaded);
                query.counters.low = query.low_before + low.computations(&query.low);
                query.counters.high += u64::from(computations);
                query.counters.steps += 1;
                query.counters.wire += HEADER as u64;
                let end = Head {
                    left: 0,
                    ..query.head(now)
                };
                Message::End.append(end, &mut out.memory);
                if let Err(error) = nodes.read(low.collection().nodes, &mut query.found) {
                    let text = format!(
                        "the memory server at {} sent an invalid answer: {error}",
                        common.options.memory
                    );
                    common.fail(query, Reason::Failed, &text, out);
                    return Ok(());
                }
                query.backoff.reset();
                common.rank(now, query, out);
            }
            Message::Refused { reason, text } => {
                common.refused(now, query, Peer::Memory, (reason, text), out);
            }
            _ => {}
        }
        Ok(())
    }

    /// Processes a frame of storage.
    ///
    /// # Errors
    /// The frame is no message of storage. The caller has to close the connection.
    pub fn storage(
        &mut self,
        now: Duration,
        frame: &Frame<'_>,
        out: &mut Out,
    ) -> Result<(), WireError> {
        let message = Message::decode(frame)?;
        self.common.storage.answered();
        let asked = |query: &&mut Query<L::Query>| {
            query.id == frame.head.id
                && match query.stage {
                    Stage::Rank | Stage::Change => true,
                    // Storage was busy, but may answer before the worker asks again.
                    Stage::Held(Peer::Storage) => query.request.is_change(),
                    _ => false,
                }
        };
        let Some(query) = self.queries.iter_mut().find(asked) else {
            return Ok(());
        };
        query.counters.storage_wire += frame.bytes() as u64;
        let common = &mut self.common;
        match message {
            Message::Ranked { .. } if query.request.is_change() => {}
            Message::Ranked { answers, .. } if answers.len() > query.k() as usize => {
                let text = format!(
                    "the storage server at {} returned more answers than requested",
                    common.options.storage
                );
                common.fail(query, Reason::Failed, &text, out);
            }
            Message::Ranked {
                reads,
                bytes,
                computations,
                refused,
                answers,
            } => {
                query.counters = Counters {
                    full: query.counters.full + computations,
                    reads: query.counters.reads + reads,
                    read_bytes: query.counters.read_bytes + bytes,
                    ..query.counters
                };
                common.refused_share.add(refused, query.found.len());
                if common.walks_again(now, query, refused) {
                    common.begin(now, query, out);
                    return Ok(());
                }
                let counters = query.counters;
                let head = Head {
                    id: query.request.id,
                    state: query.state,
                    left: 0,
                };
                let (client, id) = (query.request.client, query.request.id);
                out.client(client, id, head, &Message::Answers { counters, answers });
                query.free();
            }
            Message::Changed(_) if query.request.is_change() => {
                let (client, id) = (query.request.client, query.request.id);
                let head = Head {
                    id,
                    ..Head::default()
                };
                out.client(client, id, head, &message);
                query.free();
            }
            Message::Refused {
                reason: reason @ Reason::OtherState,
                text,
            } if query.request.is_change() => {
                // The reply to a change has the number of storage's run as its state.
                query.state = frame.head.state;
                common.fail(query, reason, text, out);
            }
            Message::Refused { reason, text } => {
                common.refused(now, query, Peer::Storage, (reason, text), out);
            }
            _ => {}
        }
        Ok(())
    }

    /// The time at which the caller must call [`timer`](Self::timer).
    pub fn next_timer(&self) -> Option<Duration> {
        let busy = self
            .queries
            .iter()
            .filter(|query| query.stage != Stage::Free);
        let queries = busy
            .map(|query| query.again.min(query.request.deadline))
            .min();
        let loading = self.common.loading.as_ref().map(|loading| loading.again);
        let Common {
            options,
            memory,
            storage,
            again,
            vouching,
            ..
        } = &self.common;
        let lines = [memory, storage].map(|line| line.dead(options.silence));
        let next = queries
            .into_iter()
            .chain(loading)
            .chain(lines)
            .chain([*again, vouching.next])
            .min();
        next.filter(|&next| next < Duration::MAX)
    }

    /// Repeats messages, fails late requests, and adopts low codes that another worker has fetched.
    pub fn timer(&mut self, now: Duration, out: &mut Out) {
        if let Some(loading) = &mut self.common.loading {
            loading.timer(now, &mut out.memory);
        }
        if self.common.differs() {
            self.adopt(now, out);
        } else if now >= self.common.again {
            self.common.renew(now, out);
        }
        self.common.vouch(now, out);
        let Common {
            options,
            memory,
            storage,
            ..
        } = &mut self.common;
        for (line, silent) in [
            (memory, &mut out.memory_silent),
            (storage, &mut out.storage_silent),
        ] {
            if now >= line.dead(options.silence) {
                line.answered();
                *silent = true;
            }
        }
        for query in &mut self.queries {
            if query.stage == Stage::Free {
                continue;
            }
            if now >= query.request.deadline {
                self.common.too_late(now, query, out);
            } else if now >= query.again {
                self.common.go_on(now, query, out);
            }
        }
        // The unanswered message of an abandoned query does not count as silence.
        let asked =
            |stage: fn(&Stage) -> bool| self.queries.iter().any(|query| stage(&query.stage));
        let walks = asked(|stage| matches!(stage, Stage::Walk(_)));
        let ranks = asked(|stage| matches!(stage, Stage::Rank | Stage::Change));
        if !walks && self.common.loading.is_none() {
            self.common.memory.settle(now);
        }
        if !ranks {
            self.common.storage.settle(now);
        }
    }

    fn adopt(&mut self, now: Duration, out: &mut Out) {
        let common = &mut self.common;
        common.low = common.shelf.low();
        (common.stale, common.again) = (false, Duration::MAX);
        common.vouch_soon(now, out);
        for query in &mut self.queries {
            if let Stage::Walk(_) = query.stage {
                Message::End.append(query.head(now), &mut out.memory);
                query.hold(
                    Peer::Memory,
                    "has another state (checkpoint) of the index than before",
                );
            }
            if query.stage == Stage::Held(Peer::Memory) {
                common.go_on(now, query, out);
            }
        }
    }
}

impl<L: LowHalf> Drop for Worker<L> {
    fn drop(&mut self) {
        self.common.give_up_loading();
    }
}
