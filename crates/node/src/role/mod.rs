//! The three roles of DistVS (§3.2) and their client, as state machines: each takes messages and a time, and gives messages and the time at
//! which it wants to be asked again. No sockets, no threads, no clocks, no random numbers: [`serve`](crate::serve) has these, and so has a simulation
//! (`tests/distvs/network.rs`, run by `schedules.rs`), which therefore tests what runs.
//!
//! ```text
//!   client ──search──> compute ──begin──────> memory    L_high: the graph, high codes
//!                      L_low    <──lists 0────
//!                               ──refine 1───>          scores the chosen by the rests of their codes, expands the nearest
//!                               <──lists 1────
//!                                    ...
//!                               <──done s─────          all of L_high is visited
//!                               ──end────────>
//!                               ──rank───────────────────────────> storage    exact vectors
//!          <──answers──         <──ranked─────────────────────────
//!
//!          ──change──>          ──change─────────────────────────> storage    log, durable
//!          <──changed──         <──changed────────────────────────
//! ```
//!
//! What is lost on the way is asked for again, with growing pauses, until the query's deadline; a query whose memory server has forgotten it, was restarted or is of
//! another state of the index begins anew. Each query is answered rightly or fails by its deadline, and says for whom it waited.
//!
//! **Halves.** What a role computes is behind three small traits, so that nothing here knows vectors or graphs: [`HighHalf`], [`LowHalf`], [`Ranker`].
//! All that matters of nodes that are handed from one to another is which they are, never their order: they are sorted on the way.
//!
//! **Time** is a [`Duration`] since any fixed moment of the process that has the state machine.

mod changes;
mod client;
mod compute;
mod going;
mod loading;
mod meant;
mod memory;
mod out;
mod searching;
mod shelf;
mod storage;
mod vouching;
mod waiting;

use std::ops::Range;
use std::time::Duration;

pub use changes::Changes;
pub use client::{Asked, ClientState, Ended, Failure, Found, Outcome};
pub use compute::{ComputeOptions, Worker};
pub use going::Going;
pub use meant::Doubt;
pub use memory::{Checkpoints, MemoryOptions, MemoryState};
pub use out::Out;
pub use shelf::Shelf;
pub use storage::{Job, NotRanked, RankJob, Slot, Slots, StorageState};
pub use waiting::{Request, Taken, Waiting, Wants};

use crate::wire::{Changed, Collection, Ranked};

/// What a half could not do, in its words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HalfError(pub String);

/// Why storage did not make a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotChanged {
    /// It can never be made, and nothing of it was: an id that is none, a row that no index takes, storage that takes no changes.
    #[error("{0}")]
    Invalid(String),
    /// Something failed, perhaps behind a part of it, which is durable then: asked for again it replaces what is there.
    #[error("{0}")]
    Failed(String),
}

/// How long the lists of a walk are (§3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// D_high.
    pub list: usize,
    /// D_full.
    pub full: usize,
    /// Candidates that a step expands.
    pub beam: usize,
}

/// What a compute server makes of low codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Narrowing {
    /// D_low as a multiple of D_high; 2 in the paper (§3.1).
    pub low: f64,
    /// The refinement ratio µ; 0.3 in the paper (§3.1).
    pub ratio: f64,
    /// Nodes that are looked at first: near the nearest of them a search begins. 0: at the graph's entry node, as in the paper.
    pub seeds: usize,
}

impl Default for Narrowing {
    fn default() -> Self {
        Self {
            low: 3.0,
            ratio: 0.2,
            seeds: 64,
        }
    }
}

/// Nodes that a step asks for, since their low codes are offloaded. In any order.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// Which, at most [`MOST_NODES`](crate::wire::MOST_NODES). None: there is nothing to ask for.
    pub nodes: Vec<u32>,
    /// Of these and of what is offered with them, so many are to be looked at by high codes.
    pub most: u32,
    /// Estimates above this are of no use.
    pub bound: f32,
}

impl Default for Missing {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            most: 0,
            bound: f32::INFINITY,
        }
    }
}

/// The memory role's half of PRESS: the graph and the high-precision codes.
pub trait HighHalf: Send + Sync + 'static {
    /// One query's L_high. Reused from query to query.
    type Query: Default + Send + 'static;

    /// What is searched.
    fn collection(&self) -> Collection;

    /// What [`LowHalf::load`] needs besides codes.
    fn low_centroids(&self) -> Vec<u8>;

    /// Appends the low codes of some nodes, `low_bytes` each: of those among the `kept` most popular of the collection, behind a bit for each node, from the lowest of the first
    /// byte on. Without bits where the collection has no more nodes than that. Of some nodes alone only once it [knows](HighHalf::knows_popular) which are popular.
    ///
    /// # Errors
    /// It cannot know how popular nodes are.
    fn low_codes(&self, nodes: Range<u32>, kept: u32, out: &mut Vec<u8>) -> Result<(), HalfError>;

    /// Whether it knows how popular nodes are, or that it cannot, which it says when it is asked for what goes by that: low codes of some nodes alone.
    fn knows_popular(&self) -> bool;

    /// Counts on with that, for some milliseconds: all of it takes longer than anybody waits for an answer. Gives whether it is known now. From any thread.
    ///
    /// # Errors
    /// It cannot be counted.
    fn count_popular(&self) -> Result<bool, HalfError>;

    /// Bytes of a query as [`LowHalf::sent`] gives it.
    fn query_bytes(&self) -> usize;

    /// Begins a query, which is [`query_bytes`](HighHalf::query_bytes) long: its L_high is empty before the first nodes are [refined](HighHalf::refine) or [looked](HighHalf::look) at.
    ///
    /// # Errors
    /// It is none that can be searched for.
    fn begin(&self, query: &mut Self::Query, sent: &[u8], sizes: Sizes) -> Result<(), HalfError>;

    /// Scores nodes by their high codes and inserts them into L_high; they are ascending, each once and below the collection's `nodes`, and come with what the
    /// low half says of their distances.
    ///
    /// # Errors
    /// What the half says; the query is over then.
    fn refine(&self, query: &mut Self::Query, nodes: &[(u32, f32)]) -> Result<(), HalfError>;

    /// As [`refine`](HighHalf::refine) where low codes are asked for: estimates by low codes the distances of the nodes in `missing`, and refines the nearest of these and of what is `offered`, which come as those that are
    /// refined. `estimates` gets, in place of what was there, those that are within the bound.
    ///
    /// # Errors
    /// What the half says; the query is over then.
    fn look(
        &self,
        query: &mut Self::Query,
        offered: &[(u32, f32)],
        missing: &mut Missing,
        estimates: &mut Vec<(u32, f32)>,
    ) -> Result<(), HalfError>;

    /// Takes up to `beam` unvisited candidates of L_high, nearest first, and appends their adjacency lists, packed. Where all are visited it appends
    /// nothing and gives false. It may leave some for the next step; more than a frame carries ends the query.
    fn advance(&self, query: &mut Self::Query, lists: &mut Vec<u8>) -> bool;

    /// Appends the D_full nearest of L_high.
    fn best(&self, query: &Self::Query, nodes: &mut Vec<u32>);

    /// Distances by high codes that the query has taken so far.
    fn computations(&self, query: &Self::Query) -> u64;

    /// By low codes, where these are offloaded.
    fn low_computations(&self, query: &Self::Query) -> u64;
}

/// The compute role's half: the low-precision codes.
pub trait LowHalf: Sized + Send + Sync + 'static {
    /// One query's L_low. Reused from query to query.
    type Query: Default + Send + 'static;

    /// How many low codes fit in so many bytes.
    fn room(collection: &Collection, bytes: u64) -> u32;

    /// Of what the memory role gives: a collection, its centroids and low codes, one behind the other, of all nodes, or where there are `bits`, of those that have one.
    ///
    /// # Errors
    /// They do not belong together.
    fn load(
        collection: Collection,
        centroids: &[u8],
        bits: Option<&[u8]>,
        codes: Vec<u8>,
    ) -> Result<Self, HalfError>;

    /// Of how many nodes it has codes, where the others are offloaded.
    fn kept(&self) -> Option<u32>;

    /// Bytes of low codes, and of what says of which nodes they are.
    fn code_bytes(&self) -> u64;

    /// What is searched.
    fn collection(&self) -> Collection;

    /// Begins a query, of which `list` is D_high, and appends the nodes at which it begins, with what low codes say of their distances: the
    /// first that the high half is to refine. Where their codes are offloaded they are in `missing`, in place of what was there.
    ///
    /// # Errors
    /// The row is none that can be searched for.
    fn begin(
        &self,
        query: &mut Self::Query,
        row: &[u8],
        list: usize,
        narrowing: Narrowing,
        nodes: &mut Vec<(u32, f32)>,
        missing: &mut Missing,
    ) -> Result<(), HalfError>;

    /// A query that was begun, as the memory server is to have it.
    fn sent(query: &Self::Query) -> &[u8];

    /// Scores the neighbours in packed lists that were not seen before, and inserts them into L_low.
    ///
    /// # Errors
    /// They are no such lists.
    fn expand(&self, query: &mut Self::Query, lists: &[u8]) -> Result<(), HalfError>;

    /// Hears what the memory server said of what was asked for, before it expands the lists that came with that.
    fn hear(&self, query: &mut Self::Query, estimates: &[(u32, f32)]);

    /// Appends the nearest unvisited of L_low and their distances, at most µ of its length: they count as visited from now on. May be none. `missing` gets, in place of what was there, the
    /// nodes in lists that were not seen before and whose low codes are offloaded: where there are any, what is appended is an offer ([`HighHalf::look`]).
    fn select(&self, query: &mut Self::Query, nodes: &mut Vec<(u32, f32)>, missing: &mut Missing);

    /// Distances by low codes that the query has taken so far.
    fn computations(&self, query: &Self::Query) -> u64;
}

/// Called once with what storage found, on any thread.
pub type Done = Box<dyn FnOnce(Result<Ranked, HalfError>) + Send>;

/// Whether anybody still waits for a ranking, from any thread.
pub type Wanted = Box<dyn Fn() -> bool + Send + Sync>;

/// The storage role's half: exact vectors, and what changes of them.
pub trait Ranker: Send + Sync + 'static {
    /// What is searched: the last checkpoint of the index.
    fn collection(&self) -> Collection;

    /// What is searched in a state: that of the last checkpoint, or one before it that others still go by. `None` where it cannot rank in that state.
    fn collection_of(&self, state: u64) -> Option<Collection>;

    /// Finds the `k` nearest of some nodes to a row, by exact distance; `of` is the state that they are of, and the row. It takes them together with what is in the index and in no checkpoint yet, on threads of its own, and calls `done`
    /// on one of them. Returns at once. Nodes are ascending, each once and below the collection's `nodes`. Before it reads anything it asks whether that is still `wanted`,
    /// and gives up where it is not. It drops `done` when nothing of the ranking is left in memory, not before.
    ///
    /// # Errors
    /// It cannot begin; `done` is not called then.
    fn rank(
        &self,
        of: (u64, &[u8]),
        nodes: &[u32],
        k: usize,
        wanted: Wanted,
        done: Done,
    ) -> Result<(), HalfError>;

    /// Is called several times a second, but not while a change is being made: to give up what nobody needs any more. A state is needed as long as somebody asks for it several times a minute:
    /// compute servers do so for that of their memory server, also while nobody searches. `all_by`: the state by which all of
    /// them have said that they go, if it is one ([`Going::all_by`]): then nobody needs another.
    fn tidy(&self, _all_by: Option<u64>) {}

    /// Puts rows into the index, in place of what has their ids, and deletes other ids, where they are there. Returns when that is durable, and every ranking that begins
    /// sees it.
    ///
    /// # Errors
    /// [`NotChanged`]: the index takes no changes, or not these; or something failed, perhaps behind a part of them.
    fn change(&self, upserts: (&[u64], &[u8]), deletes: &[u64]) -> Result<Changed, NotChanged>;
}

/// When something is to be asked for again that is not answered: after pauses that double.
#[derive(Clone, Copy, Debug)]
struct Backoff {
    first: Duration,
    next: Duration,
}

impl Backoff {
    /// A pause is at most so many times the first.
    const MOST: u32 = 16;

    fn new(first: Duration) -> Backoff {
        Backoff { first, next: first }
    }

    /// The end of the pause that begins now.
    fn pause(&mut self, now: Duration) -> Duration {
        let end = now + self.next;
        self.next = (self.next * 2).min(self.first * Self::MOST);
        end
    }

    /// Something came: the next pause is the first again.
    fn reset(&mut self) {
        self.next = self.first;
    }
}

/// What is said to who asks with a row of another length.
fn other_row(found: usize, right: u32) -> String {
    format!("a row of {found} bytes, and those of this collection have {right}")
}

/// What a server of one state says to who goes by another.
fn other_state(own: u64, theirs: u64) -> String {
    format!(
        "this server has state {own:016x} of the index, and was asked by one that goes by {theirs:016x}"
    )
}
