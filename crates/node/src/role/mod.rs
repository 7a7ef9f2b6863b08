//! The three roles of DistVS (§3.2) and their client, as state machines. Each state machine
//! receives messages and a time, and returns messages and the time of its next call. The roles use
//! no sockets, threads, clocks or random numbers: [`serve`](crate::serve) provides them. In tests a
//! simulation provides them (`tests/distvs/network.rs`, run by `schedules.rs`), so the tests run
//! the same code as the servers.
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
//! query begins again. Each query either gets a correct answer or fails by its deadline. The error
//! names the server that did not answer.
//!
//! **Halves.** The computation of each role is a *half*, behind a small trait ([`HighHalf`],
//! [`LowHalf`], [`Ranker`]), so that this module knows neither vectors nor graphs. The order of the
//! nodes in a message has no meaning: messages list nodes in ascending order.
//!
//! **Time** is a [`Duration`] since a fixed instant, which the process that runs the state machine
//! chooses.

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

/// The reason why a half failed, in the half's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HalfError(pub String);

/// The reasons why storage did not make a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotChanged {
    /// The change can never be made, and storage made no part of it. Examples are an invalid id, a
    /// row that no index accepts, or storage that accepts no changes.
    #[error("{0}")]
    Invalid(String),
    /// A step failed, perhaps after a part of the change became durable. If the client requests the
    /// change again, storage replaces that part.
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
    /// The length of the low list (D_low) as a multiple of the length of the high list; 2 in the
    /// paper (§3.1).
    pub low: f64,
    /// The refinement ratio µ; 0.3 in the paper (§3.1).
    pub ratio: f64,
    /// The number of nodes that a search first scores by low codes. The search begins at the
    /// nearest of these nodes. With 0, the search begins at the graph's entry node, as in the
    /// paper.
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

/// The nodes that a step needs and whose low codes are offloaded, in any order. The compute server
/// requests their estimates from the memory server.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// The nodes, at most [`MOST_NODES`](crate::wire::MOST_NODES). If there are none, no code is
    /// needed.
    pub nodes: Vec<u32>,
    /// The number of nodes to score by high codes. The memory server selects them from `nodes` and
    /// from the nodes that are offered in the same message.
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
    /// The candidates of one query by high codes (the high list, L_high). Later queries reuse the
    /// buffers of this value.
    type Query: Default + Send + 'static;

    /// The collection that is searched.
    fn collection(&self) -> Collection;

    /// The centroids of the low codes. [`LowHalf::load`] needs these and the codes.
    fn low_centroids(&self) -> Vec<u8>;

    /// Appends the low codes of those `nodes` that are among the `kept` most popular nodes of the
    /// collection, `low_bytes` each. The codes follow a bit for each node of `nodes`, from the
    /// lowest bit of the first byte on. If the collection has at most `kept` nodes, there are no
    /// bits, and all codes are appended. A selection by popularity is possible only after
    /// [`knows_popular`](HighHalf::knows_popular) returns true.
    ///
    /// # Errors
    /// The popularity of nodes cannot be determined.
    fn low_codes(&self, nodes: Range<u32>, kept: u32, out: &mut Vec<u8>) -> Result<(), HalfError>;

    /// Whether the popularity of nodes is known, or is known to be unavailable. If it is
    /// unavailable, a request for the codes of only some nodes ([`low_codes`](HighHalf::low_codes))
    /// fails.
    fn knows_popular(&self) -> bool;

    /// Continues to count the popularity of nodes for some milliseconds, since the whole count
    /// takes longer than a client waits. Returns whether the popularity is known now. Any thread
    /// may call this.
    ///
    /// # Errors
    /// The popularity cannot be counted.
    fn count_popular(&self) -> Result<bool, HalfError>;

    /// The length of a query in bytes, in the form in which [`LowHalf::sent`] returns it.
    fn query_bytes(&self) -> usize;

    /// Begins a query of [`query_bytes`](HighHalf::query_bytes) bytes. Its high list is empty until
    /// the first nodes are passed to [`refine`](HighHalf::refine) or [`look`](HighHalf::look).
    ///
    /// # Errors
    /// The bytes are no valid query.
    fn begin(&self, query: &mut Self::Query, sent: &[u8], sizes: Sizes) -> Result<(), HalfError>;

    /// Scores nodes by their high codes and inserts them into the high list. The nodes are
    /// ascending, unique and below the collection's `nodes`. Each node comes with the low half's
    /// estimate of its distance.
    ///
    /// # Errors
    /// The half fails. Then the query has ended.
    fn refine(&self, query: &mut Self::Query, nodes: &[(u32, f32)]) -> Result<(), HalfError>;

    /// Does the work of [`refine`](HighHalf::refine), for a step that needs offloaded low codes.
    /// First it estimates the distances of the nodes in `missing` by their low codes. Then it
    /// refines the nearest nodes of `missing` and `offered`. `offered` has nodes in the form that
    /// `refine` expects. The call overwrites `estimates` with the estimates up to the bound.
    ///
    /// # Errors
    /// The half fails. Then the query has ended.
    fn look(
        &self,
        query: &mut Self::Query,
        offered: &[(u32, f32)],
        missing: &mut Missing,
        estimates: &mut Vec<(u32, f32)>,
    ) -> Result<(), HalfError>;

    /// Visits up to `beam` unvisited candidates of the high list, nearest first, and appends their
    /// packed adjacency lists. If all candidates are visited, it appends nothing and returns false.
    /// The call may leave some candidates for the next step. If the lists exceed a frame, the query
    /// fails.
    fn advance(&self, query: &mut Self::Query, lists: &mut Vec<u8>) -> bool;

    /// Appends the nearest nodes of the high list that the storage server will rank.
    fn best(&self, query: &Self::Query, nodes: &mut Vec<u32>);

    /// The number of distances that the query has computed by high codes so far.
    fn computations(&self, query: &Self::Query) -> u64;

    /// The number of distances by offloaded low codes that this half has computed for the query so
    /// far.
    fn low_computations(&self, query: &Self::Query) -> u64;
}

/// The compute role's half of PRESS: the low-precision codes.
pub trait LowHalf: Sized + Send + Sync + 'static {
    /// The candidates of one query by low codes (the low list, L_low). Later queries reuse the
    /// buffers of this value.
    type Query: Default + Send + 'static;

    /// The number of low codes that fit in `bytes`.
    fn room(collection: &Collection, bytes: u64) -> u32;

    /// Builds the half from the memory role's data: the collection, the centroids, and the low
    /// codes without gaps. Without `bits`, `codes` has the codes of all nodes. With `bits`, it has
    /// only the codes of nodes whose bit is set.
    ///
    /// # Errors
    /// The parts do not belong together.
    fn load(
        collection: Collection,
        centroids: &[u8],
        bits: Option<&[u8]>,
        codes: Vec<u8>,
    ) -> Result<Self, HalfError>;

    /// The number of nodes whose codes this half has, if the other codes are offloaded.
    fn kept(&self) -> Option<u32>;

    /// The bytes of the low codes, and of the table that maps them to nodes.
    fn code_bytes(&self) -> u64;

    /// The collection that is searched.
    fn collection(&self) -> Collection;

    /// Begins a query with a high list of length `list`. Appends the nodes at which the search
    /// begins, with their estimates by low codes: these are the first nodes that the high half
    /// refines. If the low codes of these nodes are offloaded, the call overwrites `missing` with
    /// these nodes.
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

    /// Adds the memory server's estimates of the missing nodes. The query then expands the lists
    /// that came with these estimates.
    fn hear(&self, query: &mut Self::Query, estimates: &[(u32, f32)]);

    /// Appends the nearest unselected nodes of the low list and their distances. Their number is at
    /// most the refinement ratio (µ) times the length of the low list, and may be 0. `missing` is
    /// overwritten with those new nodes whose low codes are offloaded. If `missing` then has nodes,
    /// the appended nodes are only an offer ([`HighHalf::look`]), and no node is marked as
    /// selected. Otherwise the appended nodes are marked as selected.
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

    /// The collection of a state. It must be the state of the last checkpoint, or of the checkpoint
    /// before it while some servers still use that one. `None` if this server cannot rank in the
    /// state.
    fn collection_of(&self, state: u64) -> Option<Collection>;

    /// Ranks `nodes` by their exact distance to a query, and passes the `k` nearest to `done`. `of`
    /// is the state of the nodes, and the query. The ranking includes the vectors of the index that
    /// are in no checkpoint yet.
    ///
    /// The call returns at once. Threads of the ranker then rank the nodes, and one of them calls
    /// `done`. The nodes are ascending, unique and below the collection's `nodes`. Before the first
    /// read, this thread calls `wanted`, and does not rank if the result is false. `done` is called
    /// or dropped only when no other part of the ranking remains in memory.
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

    /// Releases the states that no server needs any more. The server calls this several times a
    /// second, but not while a change is being made. A state is needed as long as some server names
    /// it several times a minute. Compute servers name the state of their memory server, even
    /// without searches. If all compute servers have named the same state, that state is `all_by`
    /// ([`Going::all_by`]), and no other state is needed.
    fn tidy(&self, _all_by: Option<u64>) {}

    /// Puts rows into the index, replaces the vectors that have the same ids, and deletes the ids
    /// in `deletes` if they exist. Returns when the change is durable. Every ranking that begins
    /// later includes the change.
    ///
    /// # Errors
    /// [`NotChanged`]: the index accepts no changes, the change is invalid, or a step failed. In
    /// the last case, a part of the change may have been made.
    fn change(&self, upserts: (&[u64], &[u8]), deletes: &[u64]) -> Result<Changed, NotChanged>;
}

/// The time at which an unanswered request is repeated. Each pause is twice as long as the pause
/// before it. Each pause is twice as long as the last.
#[derive(Clone, Copy, Debug)]
struct Backoff {
    first: Duration,
    next: Duration,
}

impl Backoff {
    /// The longest pause, as a multiple of the first pause.
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

    /// Called when a reply arrives. The next pause has its first length again.
    fn reset(&mut self) {
        self.next = self.first;
    }
}

/// The text that refuses a row of the wrong length.
fn other_row(found: usize, right: u32) -> String {
    format!("the row has {found} bytes; rows of this collection have {right} bytes")
}

/// The text that refuses a request for a state that the server does not have.
fn other_state(own: u64, theirs: u64) -> String {
    format!(
        "this server has state {own:016x} of the index, and the request is for state {theirs:016x}"
    )
}
