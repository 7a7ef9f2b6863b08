//! Candidate sources: the interface between the work that every search does and the part that finds
//! candidates.
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
//! A source takes the query from its [`Ranking`], and hands its candidates to that [`Ranking`]. If
//! a new kind of index finds candidates in another way, it needs a source of its own, beside
//! [`Walker`](super::walker::Walker) and [`Prober`](super::probe::Prober).
//! [`Batch`](super::batch::Batch), which chooses the source, then needs an arm for it.

use stratann_tier::Thread;

use super::Counters;
use super::ranking::Ranking;
use crate::Error;
use crate::progress::Progress;

/// The node that is excluded from the results of a query.
///
/// A recall measurement takes rows of the index as queries, and each such query leaves its own row
/// out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftOut {
    pub(crate) node: u32,
    /// Whether a walk still traverses the node.
    pub(crate) leads_on: bool,
}

/// A part of a search that finds candidates.
pub(super) trait CandidateSource<'a> {
    /// The state of the query: its bytes, the nodes that may be results, and the candidates ranked
    /// so far.
    fn ranking(&mut self) -> &mut Ranking<'a>;

    /// Excludes a node from the results of the next query, and from its walk unless
    /// [`leads_on`](LeftOut::leads_on) is set. It is not called on a scan.
    fn leave_out(&mut self, _node: Option<LeftOut>) {}

    /// Finds candidates for the query with a candidate list of size `list`, and ranks them.
    ///
    /// # Errors
    /// A failed read, a damaged page, or an interruption.
    async fn find(&mut self, list: usize) -> Result<(), Error>;

    /// The counters of the work since the last call of this function.
    fn take_counters(&mut self) -> Counters;
}

/// The source for one kind of index. It ranks the most promising vectors, and can hand the query
/// over to a scan of all others.
pub(super) trait Guided<'a>: CandidateSource<'a> {
    /// A scan of every vector of the index.
    type Scan<'s>: CandidateSource<'a>
    where
        Self: 's;

    /// Finds candidates again from the start, with a longer list and no early end. It is called if
    /// codes say little about the results.
    ///
    /// # Errors
    /// Fails as [`find`](CandidateSource::find) does.
    async fn find_further(&mut self, list: usize) -> Result<(), Error>;

    /// Whether the source ended before it had found as many matches of the filter as requested. If
    /// so, nearer matches may be missing.
    fn is_dry(&self) -> bool;

    /// Whether the source met every match of the filter. A scan would then find no more.
    fn has_all(&self) -> bool {
        false
    }

    /// Whether the source looked beyond its list, because matches of the filter are elsewhere.
    fn is_wider(&self) -> bool {
        false
    }

    /// Begins a query whose results a scan alone will find.
    fn begin_at_none(&mut self);

    /// Makes a scan that adds its results to the vectors ranked so far. The source first releases
    /// memory that only its own traversal needs.
    fn scan<'s>(&'s mut self, thread: &'s Thread, progress: &'s dyn Progress) -> Self::Scan<'s>;
}
