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
use crate::progress::Progress;
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
