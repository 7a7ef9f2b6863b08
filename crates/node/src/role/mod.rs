//! The three roles of DistVS (§3.2) and their client, as state machines. Each takes messages and a
//! time, and returns messages and the time at which it wants to be called again. The roles use no
//! sockets, threads, clocks or random numbers: [`serve`](crate::serve) provides them. A simulation
//! provides them too (`tests/distvs/network.rs`, run by `schedules.rs`), so that the tests run the
//! code of production.
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
//! server has forgotten a query, was restarted, or serves another checkpoint of the index, the
//! query begins again. Each query either gets a correct answer or fails by its deadline, and the
//! error names the server that it waited for.
//!
//! **Halves.** The computation of each role is behind a small trait ([`HighHalf`], [`LowHalf`],
//! [`Ranker`]), so that this module knows neither vectors nor graphs. The order of the nodes in a
//! message carries no meaning, since messages sort them.
//!
//! **Time** is a [`Duration`] since any fixed instant of the process that runs the state machine.

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

/// Why a half failed, in the half's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HalfError(pub String);

/// Why storage did not make a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotChanged {
    /// The change can never be made, and no part of it was made. Examples: an invalid id, a row
    /// that no index accepts, or storage that takes no changes.
    #[error("{0}")]
    Invalid(String),
    /// Something failed, perhaps after a part of the change became durable. If the change is
    /// requested again, it replaces that part.
    #[error("{0}")]
    Failed(String),
}

/// The list sizes and the beam width of a walk (§3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// D_high: the length of L_high.
    pub list: usize,
    /// D_full: the number of candidates that storage ranks.
    pub full: usize,
    /// Candidates that one step expands.
    pub beam: usize,
}

/// How a compute server uses low codes to narrow the candidates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Narrowing {
    /// D_low as a multiple of D_high; 2 in the paper (§3.1).
    pub low: f64,
    /// The refinement ratio µ; 0.3 in the paper (§3.1).
    pub ratio: f64,
    /// Nodes that a search scores by low codes first. It begins near the nearest of them. 0 begins
    /// at the graph's entry node, as in the paper.
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

/// The nodes of a step whose low codes are offloaded, in any order. The compute server asks the
/// memory server for them.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// The nodes, at most [`MOST_NODES`](crate::wire::MOST_NODES). Empty: no code is needed.
    pub nodes: Vec<u32>,
    /// The number of nodes to score by high codes, out of these and the nodes that are offered with
    /// them.
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
    /// The L_high of one query. Reused from query to query.
    type Query: Default + Send + 'static;

    /// The collection that is searched.
    fn collection(&self) -> Collection;

    /// The centroids of the low codes, which [`LowHalf::load`] needs besides the codes.
    fn low_centroids(&self) -> Vec<u8>;

    /// Appends the low codes of `nodes`, `low_bytes` each, for the nodes among the `kept` most
    /// popular of the collection. Before the codes comes a bit for each node, from the lowest bit
    /// of the first byte on. If the collection has at most `kept` nodes, there are no bits, and all
    /// codes are appended. A selection by popularity is possible only after
    /// [`knows_popular`](HighHalf::knows_popular) returns true.
    ///
    /// # Errors
    /// The popularity of nodes cannot be determined.
    fn low_codes(&self, nodes: Range<u32>, kept: u32, out: &mut Vec<u8>) -> Result<(), HalfError>;

    /// Whether the popularity of nodes is known, or is known to be unavailable. If it is
    /// unavailable, [`low_codes`](HighHalf::low_codes) fails when it is asked for the codes of some
    /// nodes only.
    fn knows_popular(&self) -> bool;

    /// Continues to count the popularity of nodes for some milliseconds, since the whole count
    /// takes longer than a client waits. Returns whether it is known now. May be called from any
    /// thread.
    ///
    /// # Errors
    /// The popularity cannot be counted.
    fn count_popular(&self) -> Result<bool, HalfError>;

    /// Bytes of a query as [`LowHalf::sent`] returns it.
    fn query_bytes(&self) -> usize;

    /// Begins a query of [`query_bytes`](HighHalf::query_bytes) bytes. Its L_high is empty until
    /// the first nodes are passed to [`refine`](HighHalf::refine) or [`look`](HighHalf::look).
    ///
    /// # Errors
    /// The bytes are no valid query.
    fn begin(&self, query: &mut Self::Query, sent: &[u8], sizes: Sizes) -> Result<(), HalfError>;

    /// Scores nodes by their high codes and inserts them into L_high. The nodes are ascending,
    /// unique and below the collection's `nodes`. Each comes with the low half's estimate of its
    /// distance.
    ///
    /// # Errors
    /// The half's own. The query is over then.
    fn refine(&self, query: &mut Self::Query, nodes: &[(u32, f32)]) -> Result<(), HalfError>;

    /// As [`refine`](HighHalf::refine), for a step that asks for low codes. It estimates the
    /// distances of the nodes in `missing` by their low codes. Then it refines the nearest of these
    /// and of the `offered` nodes, which have the form of the nodes of `refine`. `estimates` is
    /// overwritten with the estimates that are within the bound.
    ///
    /// # Errors
    /// The half's own. The query is over then.
    fn look(
        &self,
        query: &mut Self::Query,
        offered: &[(u32, f32)],
        missing: &mut Missing,
        estimates: &mut Vec<(u32, f32)>,
    ) -> Result<(), HalfError>;

    /// Takes up to `beam` unvisited candidates of L_high, nearest first, and appends their packed
    /// adjacency lists. If all candidates are visited, it appends nothing and returns false. It may
    /// leave some candidates for the next step. Lists that exceed a frame end the query.
    fn advance(&self, query: &mut Self::Query, lists: &mut Vec<u8>) -> bool;

    /// Appends the D_full nearest nodes of L_high.
    fn best(&self, query: &Self::Query, nodes: &mut Vec<u32>);

    /// Distances by high codes that the query has computed so far.
    fn computations(&self, query: &Self::Query) -> u64;

    /// Distances by low codes that the query has computed here so far, for offloaded codes.
    fn low_computations(&self, query: &Self::Query) -> u64;
}

/// The compute role's half of PRESS: the low-precision codes.
pub trait LowHalf: Sized + Send + Sync + 'static {
    /// The L_low of one query. Reused from query to query.
    type Query: Default + Send + 'static;

    /// The number of low codes that fit in `bytes`.
    fn room(collection: &Collection, bytes: u64) -> u32;

    /// Builds the half from the memory role's data: the collection, the centroids, and the low
    /// codes back to back. `codes` has the codes of all nodes, or, with `bits`, of the nodes whose
    /// bit is set.
    ///
    /// # Errors
    /// The parts do not belong together.
    fn load(
        collection: Collection,
        centroids: &[u8],
        bits: Option<&[u8]>,
        codes: Vec<u8>,
    ) -> Result<Self, HalfError>;

    /// The number of nodes whose codes are here, if the others are offloaded.
    fn kept(&self) -> Option<u32>;

    /// Bytes of the low codes and of the table that says which nodes they belong to.
    fn code_bytes(&self) -> u64;

    /// The collection that is searched.
    fn collection(&self) -> Collection;

    /// Begins a query with D_high `list`. Appends the nodes at which the search begins and their
    /// estimates by low codes: the first nodes that the high half refines. If the low codes of
    /// these nodes are offloaded, `missing` is overwritten with the nodes.
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

    /// The bytes of a query that was begun, as the memory server expects them.
    fn sent(query: &Self::Query) -> &[u8];

    /// Scores the new neighbours in packed lists and inserts them into L_low.
    ///
    /// # Errors
    /// The bytes are no valid lists.
    fn expand(&self, query: &mut Self::Query, lists: &[u8]) -> Result<(), HalfError>;

    /// Takes the memory server's estimates of the missing nodes, before the query expands the lists
    /// that came with them.
    fn hear(&self, query: &mut Self::Query, estimates: &[(u32, f32)]);

    /// Appends the nearest unvisited nodes of L_low and their distances, at most µ of its length,
    /// and marks them as visited. The result may be empty. `missing` is overwritten with the new
    /// nodes of the lists whose low codes are offloaded. If there are any, the appended nodes are
    /// an offer ([`HighHalf::look`]).
    fn select(&self, query: &mut Self::Query, nodes: &mut Vec<(u32, f32)>, missing: &mut Missing);

    /// Distances by low codes that the query has computed so far.
    fn computations(&self, query: &Self::Query) -> u64;
}

/// Called once with the result of a ranking, on any thread.
pub type Done = Box<dyn FnOnce(Result<Ranked, HalfError>) + Send>;

/// Whether a client still waits for a ranking. May be called from any thread.
pub type Wanted = Box<dyn Fn() -> bool + Send + Sync>;

/// The storage role's half: exact vectors, and changes of the index.
pub trait Ranker: Send + Sync + 'static {
    /// The collection of the last checkpoint of the index.
    fn collection(&self) -> Collection;

    /// The collection of a state: the last checkpoint, or the one before it that some servers still
    /// use. `None` if this server cannot rank in that state.
    fn collection_of(&self, state: u64) -> Option<Collection>;

    /// Finds the `k` nodes nearest to a row by exact distance. `of` is the state of the nodes, and
    /// the row. The ranking includes the vectors of the index that are in no checkpoint yet.
    ///
    /// It returns at once, ranks on threads of its own, and calls `done` on one of them. Nodes are
    /// ascending, unique and below the collection's `nodes`. Before each read it calls `wanted`,
    /// and gives up if that returns false. It drops `done` only when no part of the ranking is left
    /// in memory.
    ///
    /// # Errors
    /// The ranking cannot begin; `done` is not called then.
    fn rank(
        &self,
        of: (u64, &[u8]),
        nodes: &[u32],
        k: usize,
        wanted: Wanted,
        done: Done,
    ) -> Result<(), HalfError>;

    /// Releases the states that no server needs any more. Called several times a second, but not
    /// while a change is being made. A state is needed while some server asks for it several times
    /// a minute. Compute servers do this for the state of their memory server, also without
    /// searches. If all compute servers have named the same state, it is `all_by`
    /// ([`Going::all_by`]), and no other state is needed.
    fn tidy(&self, _all_by: Option<u64>) {}

    /// Puts rows into the index, replaces the vectors that have the same ids, and deletes other ids
    /// if they exist. Returns when the change is durable. Every ranking that begins later sees it.
    ///
    /// # Errors
    /// [`NotChanged`]: the index takes no changes, or not these changes. Or something failed,
    /// perhaps after a part of them.
    fn change(&self, upserts: (&[u64], &[u8]), deletes: &[u64]) -> Result<Changed, NotChanged>;
}

/// When to repeat a request that is not answered: after pauses that double.
#[derive(Clone, Copy, Debug)]
struct Backoff {
    first: Duration,
    next: Duration,
}

impl Backoff {
    /// The longest pause, as a multiple of the first.
    const MOST: u32 = 16;

    fn new(first: Duration) -> Backoff {
        Backoff { first, next: first }
    }

    /// Returns the end of the pause that begins now.
    fn pause(&mut self, now: Duration) -> Duration {
        let end = now + self.next;
        self.next = (self.next * 2).min(self.first * Self::MOST);
        end
    }

    /// An answer arrived: the next pause is the first one again.
    fn reset(&mut self) {
        self.next = self.first;
    }
}

/// The refusal of a row of the wrong length.
fn other_row(found: usize, right: u32) -> String {
    format!("a row of {found} bytes; rows of this collection have {right}")
}

/// The refusal of a request that names another state than the server's.
fn other_state(own: u64, theirs: u64) -> String {
    format!(
        "this server has state {own:016x} of the index, and the request is for state {theirs:016x}"
    )
}
