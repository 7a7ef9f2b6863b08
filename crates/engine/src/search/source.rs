//! The seam between what every search does, and how one finds candidates.
//!
//! ```text
//!   Batch     queries, fresh vectors, longer lists, room, progress, counters, answers      the same for every kind of index
//!     │ a source for each task, chosen once by the kind of the index, and compiled with it
//!     ├─ Walker        a graph: its frontier, best-first or pipelined                      walker.rs
//!     ├─ Prober        clusters: those whose heads are nearest, read at once                 probe.rs
//!     └─ Everything    every vector, whatever leads to it                                  scan.rs
//! ```
//!
//! A source takes the query from its [`Ranking`] and ranks there what it finds. A kind of index whose candidates are found otherwise is a source
//! of its own beside [`Walker`](super::walker::Walker) and [`Prober`](super::probe::Prober), and an arm where
//! [`Batch`](super::batch::Batch) chooses.

use stratann_tier::Thread;

use super::Counters;
use super::ranking::Ranking;
use crate::Error;
use crate::progress::Progress;

/// A node that is searched for as if it were not there: that of a row of the index, where it is found out how much searches find.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftOut {
    pub(crate) node: u32,
    /// Whether it leads on.
    pub(crate) leads_on: bool,
}

/// Where candidates come from.
pub(super) trait CandidateSource<'a> {
    /// The query, what may answer it, and what was ranked so far.
    fn ranking(&mut self) -> &mut Ranking<'a>;

    /// A node is to be no answer of the next query, and perhaps not to lead on either. Nobody asks it of a scan.
    fn leave_out(&mut self, _node: Option<LeftOut>) {}

    /// Finds candidates for the query, as far as a list of so many leads, and ranks them.
    ///
    /// # Errors
    /// A read that failed, a page that is damaged, an interruption.
    async fn find(&mut self, list: usize) -> Result<(), Error>;

    /// What that cost since it was asked last.
    fn take_counters(&mut self) -> Counters;
}

/// The source of a kind of index, which finds the nearest first, and leaves the rest to a scan.
pub(super) trait Guided<'a>: CandidateSource<'a> {
    /// Every vector of the index.
    type Scan<'s>: CandidateSource<'a>
    where
        Self: 's;

    /// Finds candidates once more, from the beginning, with a longer list, and to its end, where codes say little of the answers.
    ///
    /// # Errors
    /// As [`find`](CandidateSource::find).
    async fn find_further(&mut self, list: usize) -> Result<(), Error>;

    /// Whether it gave up finding what matches a filter before it had found as much as it was to: others may be nearer.
    fn is_dry(&self) -> bool;

    /// Begins a query that is answered by a scan alone.
    fn begin_at_none(&mut self);

    /// A scan that adds to what has been ranked. What only finding the nearest takes is given back for it.
    fn scan<'s>(&'s mut self, thread: &'s Thread, progress: &'s dyn Progress) -> Self::Scan<'s>;
}
