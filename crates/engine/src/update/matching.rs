//! Searches with filters in an index that is open for changes.

use super::LiveIndex;
use crate::data::VectorSource;
use crate::filter::Filter;
use crate::progress::{Progress, Silent};
use crate::search::Matches;
use crate::{Error, SearchOptions, SearchResults};

impl LiveIndex {
    /// Searches with a filter like
    /// [`Index::search_filtered`](crate::Index::search_filtered). The search sees the changes of
    /// all calls that have returned.
    ///
    /// # Errors
    /// Fails as [`Index::search_filtered`](crate::Index::search_filtered) does.
    pub fn search_filtered(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: &Filter,
    ) -> Result<SearchResults, Error> {
        self.search_filtered_observed(queries, options, filter, &Silent)
    }

    /// Searches with a filter like
    /// [`Index::search_filtered_observed`](crate::Index::search_filtered_observed). The search sees
    /// the changes of all calls that have returned.
    ///
    /// # Errors
    /// Fails as [`Index::search_filtered_observed`](crate::Index::search_filtered_observed) does.
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

    /// Searches like [`search_filtered_observed`](LiveIndex::search_filtered_observed), but takes
    /// no samples for the measurement of recall.
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
