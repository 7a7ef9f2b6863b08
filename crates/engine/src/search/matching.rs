//! Searches with filters. The matching vectors are found once for a batch of queries.
//!
//! ```text
//!   filter ──check──> indexes of columns ──> nodes on storage ────┐
//!              └────> rows in memory ─────> slots of graphs ──────┴─> search among the matches
//! ```

use crate::data::VectorSource;
use crate::filter::{Checked, Filter, NodeSet};
use crate::index::Index;
use crate::overlay::Matching;
use crate::overlay::Seen;
use crate::progress::{Progress, Silent};
use crate::stores::columns::Looked;
use crate::{Error, SearchOptions, SearchResults};

pub(crate) struct Matches {
    nodes: NodeSet,
    fresh: [NodeSet; 2],
    looked: Looked,
}

impl Matches {
    pub(crate) fn find(
        index: &Index,
        seen: Option<Seen<'_>>,
        filter: &Filter,
    ) -> Result<Self, Error> {
        let filter = filter.check(&index.columns().schema())?;
        Self::of(index, seen, &filter)
    }

    pub(crate) fn of(
        index: &Index,
        seen: Option<Seen<'_>>,
        filter: &Checked,
    ) -> Result<Self, Error> {
        let columns = index.columns();
        let mut fresh = <[NodeSet; 2]>::default();
        for (slots, (graph, moment)) in fresh.iter_mut().zip(seen.iter().flat_map(Seen::fresh)) {
            *slots = graph.matching(moment, filter)?;
        }
        // Vectors in memory are found first, since other threads may move vectors to storage, but
        // never back. If a vector is found twice, a search returns it once.
        let look = || columns.matching(filter, index.nodes() as u32);
        let (nodes, looked) = Looked::of(look);
        Ok(Self {
            nodes: nodes?,
            fresh,
            looked,
        })
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let fresh: usize = self.fresh.iter().map(NodeSet::memory_bytes).sum();
        self.nodes.memory_bytes() + fresh
    }

    pub(crate) fn as_ref(&self) -> Matching<'_> {
        Matching {
            nodes: &self.nodes,
            fresh: self.fresh.each_ref(),
            looked: self.looked,
        }
    }
}

impl Index {
    /// Searches a batch of queries among the vectors that match a filter. If fewer than k match,
    /// the results are padded ([`SearchResults::ids`]).
    ///
    /// The list size adapts to the number of matches. The search chooses the cheapest filter
    /// strategy ([`Way`](crate::Way)): a walk that also passes other vectors, or a comparison with
    /// all matches.
    ///
    /// # Errors
    /// Fails as [`search`](Index::search) does. If the filter does not fit the
    /// [columns](Index::schema), the error is [`Error::Filter`].
    ///
    /// ```no_run
    /// use stratann::{Filter, Index, OpenOptions, SearchOptions, VectorFile};
    ///
    /// # fn main() -> Result<(), stratann::Error> {
    /// let index = Index::open("photos.idx", &OpenOptions::default())?;
    /// let queries = VectorFile::open("queries.u8bin")?;
    /// let filter = Filter::parse("year >= 2020 and tags contains 'sea'")?;
    /// let found = index.search_filtered(&queries, &SearchOptions::default(), &filter)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn search_filtered(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: &Filter,
    ) -> Result<SearchResults, Error> {
        self.search_filtered_observed(queries, options, filter, &Silent)
    }

    /// Searches like [`search_filtered`](Index::search_filtered), and calls `progress` for each
    /// finished query. `progress` may interrupt the batch.
    ///
    /// # Errors
    /// Fails as [`search_filtered`](Index::search_filtered) does. If `progress` interrupts, the
    /// error is [`Error::Interrupted`].
    pub fn search_filtered_observed(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: &Filter,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error> {
        let found = self.search_filtered_unwatched(queries, options, filter, progress)?;
        self.has_served(queries, options, Some(filter));
        Ok(found)
    }

    /// Searches like [`search_filtered_observed`](Index::search_filtered_observed), but takes no
    /// samples for the measurement of recall.
    pub(crate) fn search_filtered_unwatched(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: &Filter,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error> {
        let filter = filter.check(&self.columns().schema())?;
        self.search_checked(queries, options, &filter, progress)
    }

    /// Searches with a filter that the caller has checked.
    pub(crate) fn search_checked(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: &Checked,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error> {
        let seen = self.overlay().map(|overlay| Seen {
            overlay,
            moment: overlay.now(),
        });
        let matches = Matches::of(self, seen, filter)?;
        let found = self.search_matching(queries, options, progress, seen, matches.as_ref());
        found.map_err(|error| self.outdated(error))
    }
}
