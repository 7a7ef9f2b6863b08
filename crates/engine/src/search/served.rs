//! The searches that serve callers. Each offers its queries to the sample of live recall.

use crate::index::Index;

/// The methods that `Index` and `LiveIndex` share. Each type has `search_unwatched`,
/// `search_filtered_unwatched` and `has_served`. The attributes end the documentation of
/// `search_filtered`.
macro_rules! serves {
    ($type:ident $(#[$example:meta])*) => {
        impl $type {
            /// Searches a batch of queries. In an index that is open for changes, the search sees
            /// the changes of all calls that have returned.
            ///
            /// # Errors
            /// Arguments are wrong ([`Error::is_call_wrong`](crate::Error::is_call_wrong)), a read
            /// fails, a page is damaged, or the inserts of another process have overwritten needed
            /// pages ([`Error::Outdated`](crate::Error::Outdated)). A failed call returns no
            /// partial results.
            pub fn search(
                &self,
                queries: &dyn $crate::data::VectorSource,
                options: &$crate::SearchOptions,
            ) -> Result<$crate::SearchResults, $crate::Error> {
                self.search_observed(queries, options, &$crate::progress::Silent)
            }

            /// Searches as [`search`](Self::search) does, and calls `progress` for each finished
            /// query. `progress` may interrupt the batch.
            ///
            /// # Errors
            /// Fails as [`search`](Self::search) does, and with
            /// [`Error::Interrupted`](crate::Error::Interrupted).
            pub fn search_observed(
                &self,
                queries: &dyn $crate::data::VectorSource,
                options: &$crate::SearchOptions,
                progress: &dyn $crate::progress::Progress,
            ) -> Result<$crate::SearchResults, $crate::Error> {
                let found = self.search_unwatched(queries, options, progress)?;
                self.has_served(queries, options, None);
                Ok(found)
            }

            /// Searches a batch of queries among the vectors that match a filter. If fewer than k
            /// match, the results are padded
            /// ([`SearchResults::ids`](crate::SearchResults::ids)). In an index that is open for
            /// changes, the search sees the changes of all calls that have returned.
            ///
            /// The list size adapts to the number of matches. The search chooses the cheapest
            /// filter strategy ([`Way`](crate::Way)): a walk that also passes other vectors, or a
            /// comparison with all matches.
            ///
            /// # Errors
            /// Fails as [`search`](Self::search) does. If the filter does not fit the columns
            /// ([`schema`](Self::schema)), the error is
            /// [`Error::Filter`](crate::Error::Filter).
            $(#[$example])*
            pub fn search_filtered(
                &self,
                queries: &dyn $crate::data::VectorSource,
                options: &$crate::SearchOptions,
                filter: &$crate::Filter,
            ) -> Result<$crate::SearchResults, $crate::Error> {
                self.search_filtered_observed(queries, options, filter, &$crate::progress::Silent)
            }

            /// Searches as [`search_filtered`](Self::search_filtered) does, and calls `progress`
            /// for each finished query. `progress` may interrupt the batch.
            ///
            /// # Errors
            /// Fails as [`search_filtered`](Self::search_filtered) does, and with
            /// [`Error::Interrupted`](crate::Error::Interrupted).
            pub fn search_filtered_observed(
                &self,
                queries: &dyn $crate::data::VectorSource,
                options: &$crate::SearchOptions,
                filter: &$crate::Filter,
                progress: &dyn $crate::progress::Progress,
            ) -> Result<$crate::SearchResults, $crate::Error> {
                let found = self.search_filtered_unwatched(queries, options, filter, progress)?;
                self.has_served(queries, options, Some(filter));
                Ok(found)
            }
        }
    };
}

pub(crate) use serves;

serves! {
    Index
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
}
