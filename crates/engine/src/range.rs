//! Range searches, and searches for vectors similar to vectors of the index.
//!
//! ```text
//!   range   the k nearest, k = 64, 128, .. until a result is too far, or a page is full
//!             ──> page, and the place where the next begins
//!   like    ids ──look-up──> vectors ──> the k + 1 nearest, without the id itself
//! ```
//!
//! A range search repeats a search with doubled k, so it costs about twice as much as its last
//! search. For each page, this repetition starts from the beginning. To list most of an index,
//! [`Index::ids`] and [`Index::vectors`] cost less. Results are ordered by distance and id.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::data::{Matrix, VectorSource};
use crate::filter::Filter;
use crate::index::Index;
use crate::lookup::Rows;
use crate::progress::Progress;
use crate::update::LiveIndex;
use crate::{Counters, Error, SearchOptions, SearchResults, bounds};

/// The least number of results to request, and the length of the candidate list for each result.
const FIRST: usize = 64;
const CANDIDATES: usize = 2;

/// The parameters of a range search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The largest distance of a result, as in [`SearchResults::distances`]: squared Euclidean,
    /// minus the inner product, or 1 - cos.
    pub distance: f32,
    /// The most results in a page.
    pub most: usize,
    /// The start of the page: [`RangeResults::next`] of the previous page, or `None`.
    pub after: Option<RangePlace>,
    /// An id that is excluded from the results, for example the query's own.
    pub without: Option<u64>,
}

impl Range {
    /// The first page of all vectors within a distance.
    pub fn of(distance: f32) -> Self {
        Self {
            distance,
            most: 1_000,
            after: None,
            without: None,
        }
    }
}

/// A position in the results of a range search, after which a page begins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RangePlace {
    /// The distance of the result before this position.
    pub distance: f32,
    /// The id of that result.
    pub id: u64,
    /// The approximate number of results before this position.
    pub rank: usize,
}

/// A page of a range search.
#[derive(Clone, Debug)]
pub struct RangeResults {
    /// Ids, nearest first, ties by lower id.
    pub ids: Vec<u64>,
    /// The exact distances of these ids from the query.
    pub distances: Vec<f32>,
    /// The start of the next page, or `None` if this is the last page.
    pub next: Option<RangePlace>,
    /// Whether this page and the earlier pages certainly contain every vector up to the last result
    /// of this page. Otherwise the search may have missed vectors, which appear on no later page.
    pub complete: bool,
    /// The counters of the search.
    pub counters: Counters,
    /// Wall-clock seconds of the search.
    pub seconds: f64,
}

trait Collection {
    fn vectors(&self) -> usize;

    fn nearest(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: Option<&Filter>,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error>;

    fn vectors_of(&self, ids: &[u64], progress: &dyn Progress) -> Result<Rows, Error>;
}

impl Collection for Index {
    fn vectors(&self) -> usize {
        self.live()
    }

    fn nearest(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: Option<&Filter>,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error> {
        match filter {
            Some(filter) => self.search_filtered_unwatched(queries, options, filter, progress),
            None => self.search_unwatched(queries, options, progress),
        }
    }

    fn vectors_of(&self, ids: &[u64], progress: &dyn Progress) -> Result<Rows, Error> {
        Index::vectors(self, ids, progress)
    }
}

impl Collection for LiveIndex {
    fn vectors(&self) -> usize {
        self.len()
    }

    fn nearest(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: Option<&Filter>,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error> {
        match filter {
            Some(filter) => self.search_filtered_unwatched(queries, options, filter, progress),
            None => self.search_unwatched(queries, options, progress),
        }
    }

    fn vectors_of(&self, ids: &[u64], progress: &dyn Progress) -> Result<Rows, Error> {
        LiveIndex::vectors(self, ids, progress)
    }
}

fn within(
    collection: &dyn Collection,
    query: &dyn VectorSource,
    (range, options): (&Range, &SearchOptions),
    filter: Option<&Filter>,
    progress: &dyn Progress,
) -> Result<RangeResults, Error> {
    if query.rows() != 1 {
        let what = format!("number of rows of {}", query.name());
        let reason = "a range search has one query";
        return Err(Error::call(what, query.rows(), reason, "Give one vector"));
    }
    if range.distance.is_nan() {
        let reason = "no distance can be compared with NaN";
        return Err(Error::call(
            "distance",
            range.distance,
            reason,
            "Pass a number other than NaN",
        ));
    }
    if range.most == 0 {
        let reason = "a page has at least one result";
        return Err(Error::call(
            "number of results of a page",
            0,
            reason,
            "Pass at least 1",
        ));
    }
    if options.recall.is_some() {
        let reason = "the number of results of a range search is not known before the search";
        let remedy = "Leave it out, or give a list size instead";
        return Err(Error::call("recall", "given", reason, remedy));
    }
    let begin = Instant::now();
    let mut counters = Counters::default();
    let vectors = collection.vectors();
    let seen = range.after.map_or(0, |after| after.rank.min(vectors));
    // One additional result shows whether there is another page. A second one replaces the excluded
    // id.
    let page = seen.saturating_add(range.most).saturating_add(2);
    let mut k = page.min(FIRST.max(2 * seen)).min(vectors).max(1);
    loop {
        let list = options.list.max(CANDIDATES * k);
        let each = SearchOptions {
            k,
            list: list.min(bounds::MOST_LIST).max(k),
            exact: true,
            ..*options
        };
        let found = collection.nearest(query, &each, filter, progress)?;
        counters += found.counters;
        let there = found.ids.iter().take_while(|&&id| id != u64::MAX).count();
        let answers = found.ids[..there].iter().zip(&found.distances[..there]);
        let mut answers: Vec<(f32, u64)> = answers
            .map(|(&id, &distance)| (distance, id))
            .filter(|&(distance, id)| distance <= range.distance && Some(id) != range.without)
            .collect();
        let met = answers.len();
        answers.retain(|&(distance, id)| is_behind(range.after, distance, id));
        let before = met - answers.len();
        let is_beyond = found.distances[..there]
            .last()
            .is_some_and(|&last| last > range.distance);
        let has_more = answers.len() > range.most;
        if !(has_more || is_beyond || there < k || k >= vectors) {
            k = k.saturating_mul(2).min(vectors);
            continue;
        }
        answers.truncate(range.most);
        let all = match found.explained {
            Some(explained) => explained.matching,
            None => vectors as u64,
        };
        // If this search found a vector that an earlier page missed, more results precede this page
        // than the earlier pages have.
        let none_missed = range.after.is_none_or(|after| after.rank == before);
        let last = answers.last().filter(|_| has_more);
        return Ok(RangeResults {
            next: last.map(|&(distance, id)| RangePlace {
                distance,
                id,
                rank: seen + answers.len(),
            }),
            complete: there as u64 >= all && none_missed,
            ids: answers.iter().map(|answer| answer.1).collect(),
            distances: answers.iter().map(|answer| answer.0).collect(),
            counters,
            seconds: begin.elapsed().as_secs_f64(),
        });
    }
}

fn is_behind(after: Option<RangePlace>, distance: f32, id: u64) -> bool {
    after.is_none_or(|after| {
        distance > after.distance || (distance == after.distance && id > after.id)
    })
}

fn like(
    collection: &dyn Collection,
    ids: &[u64],
    options: &SearchOptions,
    filter: Option<&Filter>,
    progress: &dyn Progress,
) -> Result<SearchResults, Error> {
    let rows = collection.vectors_of(ids, progress)?;
    if let Some(&missing) = rows.missing.first() {
        let reason = "the index has no vector with this id";
        return Err(Error::call(
            "id",
            missing,
            reason,
            "Give an id in the index",
        ));
    }
    if ids.is_empty() {
        let reason = "a search for neighbours needs at least one id";
        return Err(Error::call(
            "the list of ids",
            "empty",
            reason,
            "Give at least one id",
        ));
    }
    let queries = Matrix::new(rows.vectors, ids.len(), rows.dim, rows.element)?;
    let (most, _) = bounds::most_answers(collection.vectors(), "");
    let k = match options.k {
        // An invalid `k` is passed on unchanged, so that the error of the search names it.
        0 => 0,
        k => k.saturating_add(1).min(most.max(k)),
    };
    let one_more = SearchOptions {
        k,
        list: match options.list < options.k {
            true => options.list,
            false => options.list.max(k),
        },
        ..*options
    };
    let mut found = collection.nearest(&queries, &one_more, filter, progress)?;
    let mut of_others = Vec::with_capacity(ids.len() * options.k);
    let rows = found.ids.chunks(k).zip(found.distances.chunks(k));
    for (&own, (ids, distances)) in ids.iter().zip(rows) {
        let all = ids.iter().copied().zip(distances.iter().copied());
        let others = all.filter(|&(id, _)| id != own);
        let padding = std::iter::repeat((u64::MAX, f32::INFINITY));
        of_others.extend(others.chain(padding).take(options.k));
    }
    (found.ids, found.distances) = of_others.into_iter().unzip();
    found.k = options.k;
    Ok(found)
}

/// The methods that `Index` and `LiveIndex` share.
macro_rules! searches {
    ($type:ty) => {
        impl $type {
            /// Returns a page of the vectors within a distance of the single vector `query`,
            /// nearest first by exact distance. `k` is ignored, and [`SearchOptions::list`] is the
            /// least list size.
            ///
            /// # Errors
            /// Fails as a search does, and for several queries, a NaN distance, or
            /// [`SearchOptions::recall`].
            pub fn search_range(
                &self,
                query: &dyn VectorSource,
                range: &Range,
                options: &SearchOptions,
                filter: Option<&Filter>,
                progress: &dyn Progress,
            ) -> Result<RangeResults, Error> {
                within(self, query, (range, options), filter, progress)
            }

            /// Finds the k nearest neighbours of the vectors with these ids. A vector is not its
            /// own neighbour, but another vector with the same elements is.
            ///
            /// # Errors
            /// Fails as a search does, and if there are no ids, or an id is not in the index.
            pub fn search_like(
                &self,
                ids: &[u64],
                options: &SearchOptions,
                filter: Option<&Filter>,
                progress: &dyn Progress,
            ) -> Result<SearchResults, Error> {
                like(self, ids, options, filter, progress)
            }
        }
    };
}

searches!(Index);
searches!(LiveIndex);
