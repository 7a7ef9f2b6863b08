//! Searches with filters: what matches is found once for a batch, then each query is searched among that.
//!
//! ```text
//!   filter ──check──> columns' index parts ──> nodes on storage ──┐
//!              └────> rows in memory ─────> slots of graphs ───┴─> search among these (`search/ways.rs`)
//! ```

use super::overlay::Seen;
use crate::data::VectorSource;
use crate::filter::{Checked, Filter, NodeSet};
use crate::index::Index;
use crate::progress::{Progress, Silent};
use crate::search::Matching;
use crate::stores::columns::Looked;
use crate::update::LiveIndex;
use crate::{Error, SearchOptions, SearchResults};

/// What matches a filter when a search begins.
pub(crate) struct Matches {
    nodes: NodeSet,
    fresh: [NodeSet; 2],
    looked: Looked,
}

impl Matches {
    /// Of an index and what changed since its checkpoint.
    ///
    /// # Errors
    /// A filter that does not fit the columns; columns that cannot be read.
    pub(crate) fn find(
        index: &Index,
        seen: Option<Seen<'_>>,
        filter: &Filter,
    ) -> Result<Self, Error> {
        let filter = filter.check(&index.columns().schema())?;
        Self::of(index, seen, &filter)
    }

    /// The same of a filter that fits the columns.
    ///
    /// # Errors
    /// Columns that cannot be read.
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
        // Memory first: vectors go from there to storage, and one that is met twice is one answer.
        let look = || columns.matching(filter, index.nodes() as u32);
        let (nodes, looked) = Looked::of(look);
        Ok(Self {
            nodes: nodes?,
            fresh,
            looked,
        })
    }

    /// Bytes that it takes, about.
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
    /// Searches a batch of queries among the vectors that match a filter: k answers whenever k match, and where fewer do, padding behind them
    /// ([`SearchResults::ids`]).
    ///
    /// The list adapts to how many match; whether a walk goes through the others or what matches is looked at itself, is chosen by what each would
    /// cost.
    ///
    /// # Errors
    /// As [`search`](Index::search), and [`Error::Filter`] for a filter that does not fit the [columns](Index::schema).
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

    /// As [`search_filtered`](Index::search_filtered); `progress` is told of each query that is done and may interrupt the batch.
    ///
    /// # Errors
    /// As there, and [`Error::Interrupted`].
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

    /// The same; live recall is not of it.
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

    /// The same by a filter that fits the columns.
    ///
    /// # Errors
    /// As there.
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

impl LiveIndex {
    /// As [`Index::search_filtered`]; sees every change whose call returned before this one began.
    ///
    /// # Errors
    /// As there.
    pub fn search_filtered(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: &Filter,
    ) -> Result<SearchResults, Error> {
        self.search_filtered_observed(queries, options, filter, &Silent)
    }

    /// As [`Index::search_filtered_observed`]; sees every change whose call returned before this one began.
    ///
    /// # Errors
    /// As there.
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

    /// The same; live recall is not of it.
    pub(crate) fn search_filtered_unwatched(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: &Filter,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error> {
        self.at_a_moment(|index, seen| {
            let matches = Matches::find(index, Some(seen), filter)?;
            index.search_matching(queries, options, progress, Some(seen), matches.as_ref())
        })
    }
}
