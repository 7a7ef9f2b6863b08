//! The searches of an index that is open for changes.

use super::LiveIndex;
use crate::data::VectorSource;
use crate::filter::Filter;
use crate::progress::Progress;
use crate::search::{Matches, serves};
use crate::{Error, SearchOptions, SearchResults};

serves!(LiveIndex);

impl LiveIndex {
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
