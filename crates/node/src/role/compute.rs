//! The compute role: one worker's searches, each a walk with the memory server and a ranking by storage, and its changes, which it hands on to storage.
//!
//! A worker has a few searches in flight, its *coroutines* (§4.1): while one waits for an answer the others go on. Workers share nothing but the low codes
//! ([`Shelf`]). Which of them an answer is for stands in its id: the lower 16 bits are the worker's lane.

use std::sync::Arc;
use std::time::Duration;

use stratann_tier::Span;

use super::out::Out;
use super::searching::{Common, Line, Peer, Query, Share, Stage};
use super::vouching::Vouching;
use super::waiting::GIVEN_UP;
use super::{HalfError, LowHalf, Missing, Narrowing, Request, Shelf, Wants};
use crate::wire::{Counters, Frame, HEADER, Head, Message, Reason, Token, WireError};

/// For each search that walks so many may be ranked.
const RANKED: usize = 8;

/// Changes that may wait for storage at once.
const CHANGES: usize = 8;

/// What a worker goes by.
#[derive(Clone, Debug)]
pub struct ComputeOptions {
    /// Searches that walk at once.
    pub in_flight: usize,
    /// What it makes of low codes.
    pub narrowing: Narrowing,
    /// Bytes that low codes may take; those of unpopular nodes are offloaded to the memory server where they take more (§3.3).
    pub low_memory: u64,
    /// After how long something that is not answered is asked for again; the pause doubles each time.
    pub retry: Duration,
    /// After how long without any answer a connection is taken for dead ([`Out::memory_silent`]).
    pub silence: Duration,
    /// How often storage is told which state the memory server has, so that it keeps that: several times a minute. [`Duration::MAX`]: never.
    pub vouch: Duration,
    /// What the memory server is called in messages.
    pub memory: String,
    /// What storage is called.
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
    /// A worker that is not connected yet. `first`: a random number, so that no id is one of another run. Lanes of workers that share a connection differ.
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

    /// Whose answer a frame is: the lane of the worker that asked.
    pub fn lane_of(id: u64) -> u16 {
        id as u16
    }

    /// Whether it can take one more search: it could begin it at once, since the memory server is there and has sent its low codes; less than `in_flight` walk, and not too many more are being ranked. Those that are ranked keep nobody from
    /// walking (§4.3), and changes keep no search from beginning.
    pub fn has_room(&self) -> bool {
        let most = self.common.options.in_flight.max(1);
        // While it waits for the memory server others may have one that answers.
        let begins = self.common.memory.up && self.common.low.is_some();
        let searches = || self.busy().filter(|query| !query.request.is_change());
        let walks =
            |query: &&Query<_>| matches!(query.stage, Stage::Walk(_) | Stage::Held(Peer::Memory));
        begins
            && searches().filter(walks).count() < most
            && searches().count() < most * (1 + RANKED)
    }

    /// Whether it can take one more change, which waits for storage alone.
    pub fn has_room_for_change(&self) -> bool {
        let changes = self.busy().filter(|query| query.request.is_change());
        changes.count() < CHANGES
    }

    /// Searches and changes that are not answered yet.
    pub fn in_flight(&self) -> usize {
        self.busy().count()
    }

    fn busy(&self) -> impl Iterator<Item = &Query<L::Query>> {
        self.queries
            .iter()
            .filter(|query| query.stage != Stage::Free)
    }

    /// What keeps searches from going on, if anything does: what those are told that wait for a worker in vain.
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
                format!("has answered nothing for {}", Span(now - since))
            }
            (true, Some(_), None) => return None,
        };
        Some(format!("the memory server at {} {what}", options.memory))
    }

    /// Begins a search or a change, for which there has to be room ([`has_room`](Self::has_room), [`has_room_for_change`](Self::has_room_for_change)).
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
        // It is this worker's from here on, also where its half panics.
        query.stage = Stage::Held(Peer::Memory);
        match query.request.wants {
            Wants::Change { .. } => self.common.change(now, query, out),
            Wants::Search { list, .. } => {
                query.list = list;
                self.common.begin(now, query, out);
            }
        }
    }

    /// Fails all of its searches: it is not to be used any more, since a half has panicked.
    pub fn abandon(&mut self, out: &mut Out) {
        for query in &mut self.queries {
            if query.stage != Stage::Free {
                let text = "the worker of the compute server that was at it, or at something else beside it, failed";
                // Storage goes on with a change, of which its client asks again.
                let reason = match query.request.is_change() {
                    true => Reason::Busy,
                    false => Reason::Failed,
                };
                self.common.fail(query, reason, text, out);
            }
        }
    }

    /// A client is gone: nobody wants its answers, and storage is not asked again for its changes.
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

    /// A change is not wanted any more: storage is not asked for it again.
    pub fn given_up(&mut self, token: Token, out: &mut Out) {
        for query in &mut self.queries {
            if query.stage != Stage::Free && query.request.is(token) {
                self.common.fail(query, Reason::GivenUp, GIVEN_UP, out);
            }
        }
    }

    /// The memory server is connected. It may have another state than it had: so the low codes are fetched anew, unless they are of the one that it has.
    pub fn memory_up(&mut self, now: Duration, out: &mut Out) {
        self.common.memory.set(true);
        self.common.vouch_from(Some(now));
        self.common.stale = true;
        self.common.renew(now, out);
        self.resume(now, Peer::Memory, out);
    }

    /// The memory server has said to somebody else that it does not have the state of the low codes any more: others are fetched, also while no search is in progress that would
    /// be refused. Clients that wait until others are here would wait for ever.
    pub fn outdated(&mut self, now: Duration, out: &mut Out) {
        // Else others are being fetched already, or will be when a pause is over.
        if !self.common.stale {
            self.common.stale = true;
            self.common.renew(now, out);
        }
    }

    /// The connection to the memory server is over, with all that was asked through it.
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

    /// Something came from the memory server at that time, for this worker or for another one with the same connection.
    pub fn memory_heard(&mut self, at: Duration) {
        self.common.memory.heard(at);
    }

    /// The same of storage.
    pub fn storage_heard(&mut self, at: Duration) {
        self.common.storage.heard(at);
    }

    /// Storage is connected.
    pub fn storage_up(&mut self, now: Duration, out: &mut Out) {
        self.common.storage.set(true);
        self.resume(now, Peer::Storage, out);
    }

    /// The connection to storage is over.
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

    /// What waits for a server goes on.
    fn resume(&mut self, now: Duration, peer: Peer, out: &mut Out) {
        for query in &mut self.queries {
            if query.stage == Stage::Held(peer) {
                self.common.go_on(now, query, out);
            }
        }
    }

    /// Takes a frame of the memory server.
    ///
    /// # Errors
    /// It is nothing that a memory server sends: the connection is over.
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
            // It has another state by now. Walks go on in the one before, which it keeps for a while.
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
                    // Others came meanwhile, which begins all walks anew.
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
                        "the memory server at {} sent {error}",
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
            // Late, or what nobody asked for.
            _ => {}
        }
        Ok(())
    }

    /// Takes a frame of storage.
    ///
    /// # Errors
    /// It is nothing that storage sends: the connection is over.
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
                    // Storage has said that it is at it, and is to be asked again: it may say before that what came of it.
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
            // It was not asked for that.
            Message::Ranked { .. } if query.request.is_change() => {}
            Message::Ranked { answers, .. } if answers.len() > query.k() as usize => {
                let text = format!(
                    "the storage server at {} answers more than was asked for",
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
                // Which run of storage this is.
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

    /// When [`timer`](Self::timer) has something to do.
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

    /// Does what is due: asks again, gives up what is too late, takes low codes that another worker has fetched.
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
        // Where nobody waits for an answer, none is late: what a query asked that has been given up says nothing of a connection that all workers share.
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

    /// Takes the low codes of the shelf: walks by others begin anew.
    fn adopt(&mut self, now: Duration, out: &mut Out) {
        let common = &mut self.common;
        common.low = common.shelf.low();
        (common.stale, common.again) = (false, Duration::MAX);
        common.vouch_soon(now, out);
        for query in &mut self.queries {
            if let Stage::Walk(_) = query.stage {
                Message::End.append(query.head(now), &mut out.memory);
                query.hold(Peer::Memory, "has another state of the index than it had");
            }
            if query.stage == Stage::Held(Peer::Memory) {
                common.go_on(now, query, out);
            }
        }
    }
}

impl<L: LowHalf> Drop for Worker<L> {
    fn drop(&mut self) {
        // Another worker may fetch what this one was about to.
        self.common.give_up_loading();
    }
}
