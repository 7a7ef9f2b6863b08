//! Candidate sources: the interface of all searches to the part that finds candidates.
//!
//! ```text
//!   Batch     queries, fresh vectors, longer lists, memory,       the same for every kind of index
//!             progress, counters, results
//!     │ a source for each task, chosen once by the kind of the index, and compiled with it
//!     ├─ Walker        a graph: its frontier, best-first or pipelined             walker.rs
//!     ├─ Prober        clusters: posting lists of the nearest heads, together     probe.rs
//!     └─ Everything    every vector, without a graph or heads                     scan.rs
//! ```
//!
//! A source takes the query from its [`Ranking`], and hands its candidates to the same [`Ranking`].
//! [`Batch`](super::batch::Batch) chooses the source.

use stratann_tier::Thread;

use super::Counters;
use super::ranking::Ranking;
use crate::Error;
use crate::progress::Progress;

/// The node that is excluded from a query's results. A measurement of recall excludes each query's
/// own vector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftOut {
    pub(crate) node: u32,
    pub(crate) leads_on: bool,
}

pub(super) trait CandidateSource<'a> {
    /// The query's bytes, the nodes that may be results, and the candidates ranked so far.
    fn ranking(&mut self) -> &mut Ranking<'a>;

    /// Excludes a node from the results of the next query, and from the walk unless
    /// [`leads_on`](LeftOut::leads_on) is set. Not called for a scan.
    fn leave_out(&mut self, _node: Option<LeftOut>) {}

    async fn find(&mut self, list: usize) -> Result<(), Error>;

    /// The counters of the work since the last call.
    fn take_counters(&mut self) -> Counters;
}

/// The source for one kind of index, which can pass the query on to a scan of all vectors.
pub(super) trait Guided<'a>: CandidateSource<'a> {
    type Scan<'s>: CandidateSource<'a>
    where
        Self: 's;

    /// Searches again from the start, with a longer list and without an early end.
    async fn find_further(&mut self, list: usize) -> Result<(), Error>;

    /// Whether the source ended before it had found enough matches.
    fn is_dry(&self) -> bool;

    fn has_all(&self) -> bool {
        false
    }

    fn is_wider(&self) -> bool {
        false
    }

    fn begin_at_none(&mut self);

    /// Releases memory of the traversal, and returns a scan that adds to the vectors ranked so far.
    fn scan<'s>(&'s mut self, thread: &'s Thread, progress: &'s dyn Progress) -> Self::Scan<'s>;
}
