//! The memory role: the walks of one connection. Connections share only the [`HighHalf`], so they
//! need no lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::out::append_refusal;
use super::{HalfError, HighHalf, Missing, Sizes, other_state};
use crate::wire::{
    Collection, Frame, HEADER, Head, MOST_BODY, Message, MissingNodes, Reason, Scored, WireError,
    append_codes, append_done, append_lists, append_met,
};

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// The largest number of walks at once.
    pub most: usize,
    /// The time for which the server keeps a walk that gets no message.
    pub idle: Duration,
    /// The largest number of bytes of low codes in one reply, less than [`MOST_BODY`].
    pub piece: usize,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            most: 1024,
            idle: Duration::from_secs(30),
            piece: 1 << 20,
        }
    }
}

#[derive(Default)]
struct Walk<Q> {
    state: u64,
    query: Q,
    /// The last answered step and its answer, for a repeated request.
    step: u32,
    answer: Vec<u8>,
    done: bool,
    until: Duration,
    /// The list size (D_high), which determines the size of the buffers.
    list: usize,
}

#[derive(Default)]
struct Room {
    nodes: Vec<u32>,
    scored: Vec<(u32, f32)>,
    missing: Missing,
    estimates: Vec<(u32, f32)>,
}

impl Room {
    /// Reads the nodes with missing low codes, and the nodes that are to be refined or are offered.
    ///
    /// # Errors
    /// The nodes are no valid set for a collection of `end` nodes.
    fn read(
        &mut self,
        end: u32,
        missing: MissingNodes<'_>,
        scored: Scored<'_>,
    ) -> Result<(), HalfError> {
        (self.missing.most, self.missing.bound) = (missing.most, missing.bound);
        let read = missing.nodes.read(end, &mut self.missing.nodes);
        read.and_then(|()| scored.read(end, &mut self.scored))
            .map_err(|error| HalfError(error.to_string()))
    }
}

struct Held<H> {
    high: Arc<H>,
    collection: Collection,
}

impl<H> Clone for Held<H> {
    fn clone(&self) -> Held<H> {
        Held {
            high: self.high.clone(),
            collection: self.collection,
        }
    }
}

/// The last checkpoint of an index, and the checkpoint before it while a compute server uses that.
pub struct Checkpoints<H> {
    last: Held<H>,
    before: Option<Held<H>>,
}

impl<H> Clone for Checkpoints<H> {
    fn clone(&self) -> Checkpoints<H> {
        Checkpoints {
            last: self.last.clone(),
            before: self.before.clone(),
        }
    }
}

impl<H: HighHalf> Checkpoints<H> {
    /// A single checkpoint, without an earlier one.
    pub fn of(high: Arc<H>) -> Checkpoints<H> {
        Checkpoints {
            last: Held {
                collection: high.collection(),
                high,
            },
            before: None,
        }
    }

    /// The last checkpoint.
    pub fn last(&self) -> &Arc<H> {
        &self.last.high
    }

    /// Whether there is a checkpoint before the last one.
    pub fn has_before(&self) -> bool {
        self.before.is_some()
    }

    /// Adds the newer checkpoint `high`. The last checkpoint becomes the checkpoint before it.
    pub fn go_on(&mut self, high: Arc<H>) {
        let next = Checkpoints::of(high).last;
        self.before = Some(std::mem::replace(&mut self.last, next));
    }

    /// Drops the checkpoint before the last one. Requests that name this earlier checkpoint are
    /// then refused.
    pub fn forget_before(&mut self) {
        self.before = None;
    }

    fn held(&self, state: u64) -> Option<&Held<H>> {
        let mut both = std::iter::once(&self.last).chain(&self.before);
        both.find(|held| held.collection.state == state)
    }
}

/// A connection of the memory role.
pub struct MemoryState<H: HighHalf> {
    told: u64,
    behind: bool,
    options: MemoryOptions,
    walks: HashMap<u64, Walk<H::Query>>,
    /// Ended walks, whose buffers the next walks reuse.
    spare: Vec<Walk<H::Query>>,
    room: Room,
    sweep: Duration,
    /// A half whose popularity of nodes must be counted.
    uncounted: Option<Arc<H>>,
}

const COUNTS: &str = "this server is still counting the links to each node, as it does once after its start. Ask again";

impl<H: HighHalf> MemoryState<H> {
    const SPARE: usize = 64;
    /// The largest list size and reply of a walk whose buffers later walks reuse.
    const SPARE_LIST: usize = 1024;
    const SPARE_ANSWER: usize = 64 << 10;

    /// Creates the state of a new connection.
    pub fn new(options: MemoryOptions) -> MemoryState<H> {
        MemoryState {
            told: 0,
            behind: false,
            options,
            walks: HashMap::new(),
            spare: Vec::new(),
            room: Room::default(),
            sweep: Duration::MAX,
            uncounted: None,
        }
    }

    /// A half whose popularity of nodes a request needs, for
    /// [`count_popular`](HighHalf::count_popular). Until the count is complete, such requests are
    /// refused.
    pub fn take_uncounted(&mut self) -> Option<Arc<H>> {
        self.uncounted.take()
    }

    /// If the popularity of nodes is not known, refuses the request.
    fn knows_popular(&mut self, held: &Held<H>, head: Head, out: &mut Vec<u8>) -> bool {
        let knows = held.high.knows_popular();
        if !knows {
            self.uncounted = Some(held.high.clone());
            append_refusal(head, Reason::Waiting, COUNTS, out);
        }
        knows
    }

    /// Whether the client has used the earlier checkpoint since the previous call of this method.
    pub fn was_behind(&mut self) -> bool {
        std::mem::take(&mut self.behind)
    }

    /// The number of walks in progress.
    pub fn walks(&self) -> usize {
        self.walks.len()
    }

    /// The time at which the caller must call [`expire`](Self::expire), if there are walks.
    pub fn next_expiry(&self) -> Option<Duration> {
        (self.sweep < Duration::MAX).then_some(self.sweep)
    }

    /// Ends walks that are idle too long or past their deadline.
    pub fn expire(&mut self, now: Duration) {
        if now < self.sweep {
            return;
        }
        let over = self.walks.extract_if(|_, walk| walk.until <= now);
        let over: Vec<_> = over.map(|(_, walk)| walk).collect();
        over.into_iter().for_each(|walk| self.keep(walk));
        let next = self.walks.values().map(|walk| walk.until).min();
        self.sweep = next.unwrap_or(Duration::MAX);
    }

    fn keep(&mut self, walk: Walk<H::Query>) {
        let small = walk.list <= Self::SPARE_LIST && walk.answer.capacity() <= Self::SPARE_ANSWER;
        if small && self.spare.len() < Self::SPARE {
            self.spare.push(walk);
        }
    }

    /// Processes a frame. Appends a reply, unless frames of this kind get no reply.
    ///
    /// # Errors
    /// The frame is no message of a compute server. The caller has to close the connection.
    pub fn message(
        &mut self,
        now: Duration,
        frame: &Frame<'_>,
        checkpoints: &Checkpoints<H>,
        out: &mut Vec<u8>,
    ) -> Result<(), WireError> {
        let (last, asked) = (&checkpoints.last, frame.head.state);
        let head = Head {
            id: frame.head.id,
            state: last.collection.state,
            left: 0,
        };
        let message = Message::decode(frame)?;
        let is_behind = |held: &Held<H>| held.collection.state == asked;
        if checkpoints.before.as_ref().is_some_and(is_behind) {
            self.behind = true;
        }
        if self.behind && self.told != head.state {
            self.told = head.state;
            let (collection, centroids) = (last.collection, &[]);
            Message::Description {
                collection,
                centroids,
            }
            .append(Head { id: 0, ..head }, out);
        }
        if let Message::Describe { .. } = message {
            let centroids = last.high.low_centroids();
            Message::Description {
                collection: last.collection,
                centroids: &centroids,
            }
            .append(head, out);
            return Ok(());
        }
        let Some(held) = checkpoints.held(asked) else {
            if message != Message::End {
                append_refusal(
                    head,
                    Reason::OtherState,
                    &other_state(head.state, asked),
                    out,
                );
            }
            return Ok(());
        };
        let head = Head {
            state: asked,
            ..head
        };
        match message {
            Message::LowCodes { from, count, kept } => {
                if kept < held.collection.nodes && !self.knows_popular(held, head, out) {
                    return Ok(());
                }
                let most = self.options.piece.min(MOST_BODY / 2)
                    / (held.collection.low_bytes as usize).max(1);
                // The count is a multiple of 8, so that the bits fill whole bytes.
                let count = count.min((most as u32).next_multiple_of(8).max(8));
                let end = from.saturating_add(count).min(held.collection.nodes);
                let from = from.min(end);
                let appended = append_codes(head, [from, end - from], out, |out| {
                    held.high.low_codes(from..end, kept, out)
                });
                if let Err(HalfError(text)) = appended {
                    append_refusal(head, Reason::Failed, &text, out);
                }
            }
            Message::Begin {
                list,
                full,
                beam,
                missing,
                query,
                nodes,
            } => {
                let sizes = Sizes {
                    list: list as usize,
                    full: full as usize,
                    beam: beam as usize,
                };
                self.begin(now, held, frame.head, (query, sizes, missing, nodes), out);
            }
            Message::Refine { step, nodes } => {
                self.step(now, held, head, (step, MissingNodes::NONE, nodes), out);
            }
            Message::Look {
                step,
                missing,
                offered,
            } => self.step(now, held, head, (step, missing, offered), out),
            Message::End => {
                if let Some(walk) = self.walks.remove(&frame.head.id) {
                    self.keep(walk);
                }
            }
            _ => append_refusal(
                head,
                Reason::Invalid,
                "a memory server does not answer requests of this kind",
                out,
            ),
        }
        Ok(())
    }

    fn begin(
        &mut self,
        now: Duration,
        held: &Held<H>,
        asked: Head,
        (query, sizes, missing, nodes): (&[u8], Sizes, MissingNodes<'_>, Scored<'_>),
        out: &mut Vec<u8>,
    ) {
        let head = Head { left: 0, ..asked };
        self.expire(now);
        if let Some(walk) = self.walks.get(&head.id) {
            if walk.step == 0 {
                out.extend(&walk.answer);
            }
            return;
        }
        if self.walks.len() >= self.options.most {
            let text = format!(
                "{} queries of this connection are in progress, which is the limit",
                self.walks.len()
            );
            return append_refusal(head, Reason::Busy, &text, out);
        }
        let right = held.high.query_bytes();
        if query.len() != right {
            let text = format!(
                "the query has {} bytes; queries of this collection have {right} bytes",
                query.len()
            );
            return append_refusal(head, Reason::Invalid, &text, out);
        }
        let mut walk = self.spare.pop().unwrap_or_default();
        walk.until = asked.deadline(now, self.options.idle);
        (walk.list, walk.state) = (sizes.list, head.state);
        self.sweep = self.sweep.min(walk.until);
        let room = &mut self.room;
        let begun = (room.read(held.collection.nodes, missing, nodes))
            .and_then(|()| held.high.begin(&mut walk.query, query, sizes))
            .and_then(|()| walk.take(&*held.high, room));
        if let Err(HalfError(text)) = begun {
            append_refusal(head, Reason::Invalid, &text, out);
            return self.keep(walk);
        }
        match walk.answer(&*held.high, head, 0, room, out) {
            Ok(()) => drop(self.walks.insert(head.id, walk)),
            Err(HalfError(text)) => {
                append_refusal(head, Reason::Failed, &text, out);
                self.keep(walk);
            }
        }
    }

    fn step(
        &mut self,
        now: Duration,
        held: &Held<H>,
        head: Head,
        (step, missing, nodes): (u32, MissingNodes<'_>, Scored<'_>),
        out: &mut Vec<u8>,
    ) {
        let walk = self.walks.get_mut(&head.id);
        let Some(walk) = walk.filter(|walk| walk.state == head.state) else {
            return append_refusal(head, Reason::Unknown, "no such query is in progress", out);
        };
        walk.until = walk.until.max(now + self.options.idle);
        let (reason, text) = match step.checked_sub(walk.step) {
            None => return,
            Some(0) => return out.extend(&walk.answer),
            Some(1) if !walk.done => {
                let room = &mut self.room;
                let read = room.read(held.collection.nodes, missing, nodes);
                match read.and_then(|()| walk.take(&*held.high, room)) {
                    Ok(()) => match walk.answer(&*held.high, head, step, room, out) {
                        Ok(()) => return,
                        Err(HalfError(text)) => (Reason::Failed, text),
                    },
                    Err(HalfError(text)) => (Reason::Invalid, text),
                }
            }
            Some(_) => (
                Reason::Unknown,
                "this memory server lacks earlier steps of the query".to_owned(),
            ),
        };
        append_refusal(head, reason, &text, out);
        if let Some(walk) = self.walks.remove(&head.id) {
            self.keep(walk);
        }
    }
}

impl<Q> Walk<Q> {
    fn take<H: HighHalf<Query = Q>>(&mut self, high: &H, room: &mut Room) -> Result<(), HalfError> {
        let Room {
            scored,
            missing,
            estimates,
            ..
        } = room;
        match missing.nodes.is_empty() {
            true => high.refine(&mut self.query, scored),
            false => high.look(&mut self.query, scored, missing, estimates),
        }
    }

    /// Expands the nearest candidates. Appends a frame with their adjacency lists and the
    /// estimates, or with the end of the walk.
    ///
    /// # Errors
    /// The reply exceeds a frame, and would end the connection.
    fn answer<H: HighHalf<Query = Q>>(
        &mut self,
        high: &H,
        head: Head,
        step: u32,
        room: &mut Room,
        out: &mut Vec<u8>,
    ) -> Result<(), HalfError> {
        self.answer.clear();
        self.step = step;
        let (query, answer) = (&mut self.query, &mut self.answer);
        let pack = |lists: &mut Vec<u8>| high.advance(query, lists);
        self.done = !match room.missing.nodes.is_empty() {
            true => append_lists(head, step, answer, pack),
            false => append_met(head, step, &mut room.estimates, answer, pack),
        };
        let nodes = &mut room.nodes;
        if self.done {
            nodes.clear();
            high.best(&self.query, nodes);
            let query = &self.query;
            let computations = [high.computations(query), high.low_computations(query)];
            append_done(head, step, computations, nodes, &mut self.answer);
        }
        if self.answer.len() > HEADER + MOST_BODY {
            return Err(HalfError(format!(
                "a step of this query makes a message of {} bytes; a frame has at most {MOST_BODY}. Ask with a smaller list size or a smaller beam width",
                self.answer.len()
            )));
        }
        out.extend(&self.answer);
        Ok(())
    }
}
