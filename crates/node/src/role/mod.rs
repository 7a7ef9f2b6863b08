//! The three roles of DistVS (§3.2) and their client, as state machines. Each state machine
//! receives messages and a time, and returns messages and the time of its next call. Sockets,
//! threads, clocks and random numbers come from [`serve`](crate::serve), or from a simulation in
//! tests (`tests/distvs/network.rs`).
//!
//! ```text
//!   client ──search──> compute ──begin──────> memory    L_high: the graph, high codes
//!                      L_low    <──lists 0────
//!                               ──refine 1───>          scores by high codes, expands the nearest
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
//! A lost message is sent again, after growing pauses, until the query's deadline. If the memory
//! server no longer knows the query, or the checkpoint of the query, the query begins again. Each
//! query either gets a correct answer or fails by its deadline, and the error names the silent
//! server.
//!
//! **Halves.** The computation of each role is a *half*, behind a trait ([`HighHalf`], [`LowHalf`],
//! [`Ranker`]), so this module knows neither vectors nor graphs. Messages list nodes in ascending
//! order.
//!
//! **Time** is a [`Duration`] since an instant that the caller chooses.

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

/// The reason why a half failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HalfError(pub String);

/// The reasons why storage did not make a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotChanged {
    /// The change can never be made, and storage made no part of it.
    #[error("{0}")]
    Invalid(String),
    /// A step failed, perhaps after a part became durable. If the client repeats the request,
    /// storage makes that part again, with the same effect.
    #[error("{0}")]
    Failed(String),
}

/// The list sizes and the beam width of a walk (§3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The length of the high list (D_high): the candidates by high codes.
    pub list: usize,
    /// The number of candidates that the storage server ranks (D_full).
    pub full: usize,
    /// The number of candidates that one step expands.
    pub beam: usize,
}

/// The rules by which a compute server narrows the candidates by their low codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Narrowing {
    /// D_low as a multiple of D_high; 2 in the paper (§3.1).
    pub low: f64,
    /// The refinement ratio µ; 0.3 in the paper (§3.1).
    pub ratio: f64,
    /// The number of nodes that a search first scores by low codes, to begin its walk near the
    /// nearest of these nodes. With 0, the walk begins at the graph's entry node, as in the paper.
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

/// Those nodes of a step whose low codes are offloaded, in any order. The memory server computes
/// the estimates of their distances.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// The nodes, at most [`MOST_NODES`](crate::wire::MOST_NODES), or none.
    pub nodes: Vec<u32>,
    /// The number of nodes scored by high codes, from `nodes` and the offered nodes.
    pub most: u32,
    /// The largest useful estimate of a distance.
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
    /// The candidates of one query by high codes (L_high). Later queries reuse the buffers.
    type Query: Default + Send + 'static;

    /// The collection that is searched.
    fn collection(&self) -> Collection;

    /// The centroids of the low codes, for [`LowHalf::load`].
    fn low_centroids(&self) -> Vec<u8>;

    /// Appends to `out` the low codes of some of `nodes`: of the nodes that are among the `kept`
    /// most popular nodes of the collection. A low code has [`Collection::low_bytes`] bytes. A node
    /// is popular if many adjacency lists contain it. If the collection has more than `kept` nodes,
    /// a bit for each node (lowest bit first) precedes the codes, and the call needs
    /// [`knows_popular`](HighHalf::knows_popular).
    ///
    /// # Errors
    /// The popularity of nodes cannot be determined.
    fn low_codes(&self, nodes: Range<u32>, kept: u32, out: &mut Vec<u8>) -> Result<(), HalfError>;

    /// Whether the count of the popularity of nodes has ended, with or without success. Without
    /// success, [`low_codes`](HighHalf::low_codes) of only the popular nodes fails.
    fn knows_popular(&self) -> bool;

    /// Continues the count of the popularity for some milliseconds. Returns whether the count is
    /// complete.
    ///
    /// # Errors
    /// The popularity cannot be counted.
    fn count_popular(&self) -> Result<bool, HalfError>;

    /// The number of bytes that [`LowHalf::sent`] returns.
    fn query_bytes(&self) -> usize;

    /// Begins a query of [`query_bytes`](HighHalf::query_bytes) bytes, with an empty high list.
    ///
    /// # Errors
    /// The bytes are no valid query.
    fn begin(&self, query: &mut Self::Query, sent: &[u8], sizes: Sizes) -> Result<(), HalfError>;

    /// Scores ascending, unique nodes by high codes, and inserts them into the high list. `nodes`
    /// has the low half's estimate of each node's distance.
    ///
    /// # Errors
    /// The half fails. This ends the query.
    fn refine(&self, query: &mut Self::Query, nodes: &[(u32, f32)]) -> Result<(), HalfError>;

    /// Like [`refine`](HighHalf::refine), but first estimates the distances of `missing` by low
    /// codes. Then refines the nearest of `missing` and `offered` together. Overwrites `estimates`
    /// with the estimates of `missing` up to the bound.
    ///
    /// # Errors
    /// The half fails. This ends the query.
    fn look(
        &self,
        query: &mut Self::Query,
        offered: &[(u32, f32)],
        missing: &mut Missing,
        estimates: &mut Vec<(u32, f32)>,
    ) -> Result<(), HalfError>;

    /// Visits the nearest candidates, at most `beam`, and appends their packed adjacency lists.
    /// Returns false if no candidate is left. If the lists do not fit into a frame, the query
    /// fails.
    fn advance(&self, query: &mut Self::Query, lists: &mut Vec<u8>) -> bool;

    /// Appends the nearest nodes of the high list, which storage will rank.
    fn best(&self, query: &Self::Query, nodes: &mut Vec<u32>);

    /// The number of distances that the query has computed by high codes so far.
    fn computations(&self, query: &Self::Query) -> u64;

    /// The number of distances that this half has computed by offloaded low codes.
    fn low_computations(&self, query: &Self::Query) -> u64;
}

/// The compute role's half of PRESS: the low-precision codes.
pub trait LowHalf: Sized + Send + Sync + 'static {
    /// The candidates of one query by low codes (L_low). Later queries reuse the buffers.
    type Query: Default + Send + 'static;

    /// The number of low codes that fit in `bytes`.
    fn room(collection: &Collection, bytes: u64) -> u32;

    /// Builds the half from the memory role's data. With `bits`, `codes` has only the codes of the
    /// nodes whose bit is set, without gaps.
    ///
    /// # Errors
    /// The parts do not belong together.
    fn load(
        collection: Collection,
        centroids: &[u8],
        bits: Option<&[u8]>,
        codes: Vec<u8>,
    ) -> Result<Self, HalfError>;

    /// The number of nodes whose codes this half has, or `None` if no codes are offloaded.
    fn kept(&self) -> Option<u32>;

    /// The bytes of the low codes, and of the table that maps them to nodes.
    fn code_bytes(&self) -> u64;

    /// The collection that is searched.
    fn collection(&self) -> Collection;

    /// Begins a query with a high list of length `list`. Appends the first nodes, with estimates.
    /// If their low codes are offloaded, overwrites `missing` with these nodes instead.
    ///
    /// # Errors
    /// The row is no valid query.
    fn begin(
        &self,
        query: &mut Self::Query,
        row: &[u8],
        list: usize,
        narrowing: Narrowing,
        nodes: &mut Vec<(u32, f32)>,
        missing: &mut Missing,
    ) -> Result<(), HalfError>;

    /// The bytes of a query after `begin`, in the form that the memory server expects.
    fn sent(query: &Self::Query) -> &[u8];

    /// Scores the new neighbours in packed lists and inserts them into the low list.
    ///
    /// # Errors
    /// The bytes are no valid lists.
    fn expand(&self, query: &mut Self::Query, lists: &[u8]) -> Result<(), HalfError>;

    /// Adds the memory server's estimates of the missing nodes, before [`expand`](LowHalf::expand).
    fn hear(&self, query: &mut Self::Query, estimates: &[(u32, f32)]);

    /// Appends the nearest unselected nodes of the low list and their distances, at most µ times
    /// the length of the list. Overwrites `missing` with new nodes whose low codes are offloaded.
    /// If there are no such nodes, marks the appended nodes as selected. Otherwise, the appended
    /// nodes are only offered to the high half ([`HighHalf::look`]).
    fn select(&self, query: &mut Self::Query, nodes: &mut Vec<(u32, f32)>, missing: &mut Missing);

    /// The number of distances that the query has computed by low codes so far.
    fn computations(&self, query: &Self::Query) -> u64;
}

/// Called once with the result of a ranking, on any thread.
pub type Done = Box<dyn FnOnce(Result<Ranked, HalfError>) + Send>;

/// Whether a client still waits for a ranking. Any thread may call this.
pub type Wanted = Box<dyn Fn() -> bool + Send + Sync>;

/// The storage role's half: exact vectors, and changes of the index.
pub trait Ranker: Send + Sync + 'static {
    /// The collection of the last checkpoint of the index.
    fn collection(&self) -> Collection;

    /// The collection in `state`: the last checkpoint, or the checkpoint before it while a server
    /// uses that checkpoint. `None` if this server cannot rank in `state`.
    fn collection_of(&self, state: u64) -> Option<Collection>;

    /// Ranks `nodes` and the vectors that are not in a checkpoint yet, and passes the `k` nearest
    /// to `done`.
    ///
    /// Threads of the ranker call `wanted` before the first read, and do not rank if it is false.
    /// The nodes are ascending and unique. `done` is called or dropped last, after all other data
    /// of the ranking is freed.
    ///
    /// # Errors
    /// The ranking cannot begin. `done` is not called in this case.
    fn rank(
        &self,
        of: (u64, &[u8]),
        nodes: &[u32],
        k: usize,
        wanted: Wanted,
        done: Done,
    ) -> Result<(), HalfError>;

    /// Releases the states that no server has named for a while. Called several times a second,
    /// never during a change. If all servers name the same state, only this state stays.
    fn tidy(&self, _all_by: Option<u64>) {}

    /// Inserts or replaces rows, and deletes ids. On return, the change is durable and visible.
    ///
    /// # Errors
    /// [`NotChanged`]: the change is refused, or a step failed, perhaps after a part.
    fn change(&self, upserts: (&[u64], &[u8]), deletes: &[u64]) -> Result<Changed, NotChanged>;
}

/// The pause before an unanswered request is repeated. Each pause is twice as long as the last.
#[derive(Clone, Copy, Debug)]
struct Backoff {
    first: Duration,
    next: Duration,
}

impl Backoff {
    const MOST: u32 = 16;

    fn new(first: Duration) -> Backoff {
        Backoff { first, next: first }
    }

    fn pause(&mut self, now: Duration) -> Duration {
        let end = now + self.next;
        self.next = (self.next * 2).min(self.first * Self::MOST);
        end
    }

    fn reset(&mut self) {
        self.next = self.first;
    }
}

fn other_row(found: usize, right: u32) -> String {
    format!("the row has {found} bytes; rows of this collection have {right} bytes")
}

fn other_state(own: u64, theirs: u64) -> String {
    format!(
        "this server has state {own:016x} of the index, and the request is for state {theirs:016x}"
    )
}
