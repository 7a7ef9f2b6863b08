//! Candidate sources: the interface between the common part of all searches and the part that finds
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
//! A source takes the query from its [`Ranking`], and hands its candidates to that [`Ranking`]. A
//! new kind of index that finds candidates in another way needs its own source, beside
//! [`Walker`](super::walker::Walker) and [`Prober`](super::probe::Prober), and an arm in
//! [`Batch`](super::batch::Batch), which chooses the source.

use stratann_tier::Thread;

use super::Counters;
use super::ranking::Ranking;
use crate::Error;
use crate::progress::Progress;

/// The node that is excluded from the results of a query.
///
/// A measurement of recall takes vectors of the index as queries. Each of these queries excludes
/// its own vector.
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

    /// Excludes a node from the results of the next query. Unless [`leads_on`](LeftOut::leads_on)
    /// is set, the walk does not traverse the node either. This function is not called for a scan.
    fn leave_out(&mut self, _node: Option<LeftOut>) {}

    /// Finds candidates for the query with a candidate list of size `list`, and ranks them.
    ///
    /// # Errors
    /// A read fails, a page is damaged, or the search is interrupted.
    async fn find(&mut self, list: usize) -> Result<(), Error>;

    /// Returns the counters of the work since the last call.
    fn take_counters(&mut self) -> Counters;
}

/// The source for one kind of index. It finds and ranks only a part of the vectors, and can pass
/// the query on to a scan of all vectors.
pub(super) trait Guided<'a>: CandidateSource<'a> {
    /// A scan of every vector of the index.
    type Scan<'s>: CandidateSource<'a>
    where
        Self: 's;

    /// Finds candidates again from the start, with a longer candidate list and without an early
    /// end. It is called if codes hardly distinguish the results.
    ///
    /// # Errors
    /// Fails as [`find`](CandidateSource::find) does.
    async fn find_further(&mut self, list: usize) -> Result<(), Error>;

    /// Whether the source ended before it had found the requested number of matches of the filter.
    /// Nearer matches may then be missing.
    fn is_dry(&self) -> bool;

    /// Whether the source read every match of the filter. A scan would then find no further match.
    fn has_all(&self) -> bool {
        false
    }

    /// Whether the source read more than its list size asks for, because of the filter.
    fn is_wider(&self) -> bool {
        false
    }

    /// Begins a query for which only a scan finds results.
    fn begin_at_none(&mut self);

    /// Makes a scan that adds its results to the vectors ranked so far. Before that, the source
    /// releases the memory that only its traversal needs.
    fn scan<'s>(&'s mut self, thread: &'s Thread, progress: &'s dyn Progress) -> Self::Scan<'s>;
}
