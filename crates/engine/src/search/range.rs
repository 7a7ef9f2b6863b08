//! Searches by a distance instead of a number of answers, and searches for what is like a vector of the index.
//!
//! ```text
//!   range   the k nearest, k = 64, 128, ..  until one is farther than the distance, or a page is full ──> page, where the next begins
//!   like    ids ──look-up──> vectors ──> the k + 1 nearest, without the id itself
//! ```
//!
//! A range search is searches for the k nearest one after the other, twice as many each time, so that all of it takes at most about twice the last. What
//! it holds is what that one holds. How far a page goes is counted from the query: page after page of a wide range reads more each time. Whoever wants
//! most of an index has [`Index::ids`] and [`Index::vectors`].
//!
//! A page begins behind the last answer of the one before, by distance and id, so that no answer comes twice as long as nothing is changed.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{Counters, SearchOptions, SearchResults};
use crate::data::{Matrix, VectorSource};
use crate::filter::Filter;
use crate::index::Index;
use crate::lookup::Rows;
use crate::progress::Progress;
use crate::update::LiveIndex;
use crate::{Error, bounds};

/// Answers that a range search looks for at first, and candidates for each of them.
const FIRST: usize = 64;
const CANDIDATES: usize = 2;

/// What a range search is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// How far an answer may be, by the distances of [`SearchResults::distances`]: squared Euclidean, minus the inner product, or 1 - cos.
    pub distance: f32,
    /// Answers of a page, at most.
    pub most: usize,
    /// Where the page begins: [`RangeResults::next`] of the one before.
    pub after: Option<RangePlace>,
    /// An id that is no answer: that of the query, if it is in the index.
    pub without: Option<u64>,
}

impl Range {
    /// The first page of all that is within a distance.
    pub fn of(distance: f32) -> Self {
        Self {
            distance,
            most: 1_000,
            after: None,
            without: None,
        }
    }
}

/// A place among the answers of a range search, behind which a page begins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RangePlace {
    /// The distance of the answer before it.
    pub distance: f32,
    /// Its id.
    pub id: u64,
    /// How many answers are before it, about.
    pub rank: usize,
}

/// A page of a range search.
#[derive(Clone, Debug)]
pub struct RangeResults {
    /// Outside ids, nearest first, ties by lower id.
    pub ids: Vec<u64>,
    /// Their exact distances.
    pub distances: Vec<f32>,
    /// Where the next page begins; `None` if this is the last.
    pub next: Option<RangePlace>,
    /// Whether it is certain that no vector within the distance was missed up to the last answer of the page, on those before it as well: all that
    /// may be answers were met. Otherwise some may have been, as in any search by a graph or by clusters, and what a page missed does not come on a later one.
    pub complete: bool,
    /// What it cost.
    pub counters: Counters,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// What is searched.
trait Collection {
    /// Vectors that can be found.
    fn vectors(&self) -> usize;

    /// The nearest of queries, among what matches a filter if there is one.
    fn nearest(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: Option<&Filter>,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error>;

    /// The vectors of ids.
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

/// A page of what is within a distance of a query.
fn within(
    collection: &dyn Collection,
    query: &dyn VectorSource,
    (range, options): (&Range, &SearchOptions),
    filter: Option<&Filter>,
    progress: &dyn Progress,
) -> Result<RangeResults, Error> {
    if query.rows() != 1 {
        let expected = "one vector: a range search is of one query";
        return Err(Error::call(query.name(), query.rows(), expected));
    }
    if range.distance.is_nan() {
        return Err(Error::call("distance", range.distance, "a number"));
    }
    if range.most == 0 {
        return Err(Error::call("answers of a page", 0, "at least 1"));
    }
    if options.recall.is_some() {
        let expected =
            "a list size instead: of a range search nobody knows before how many answers it has";
        return Err(Error::call("recall", "given", expected));
    }
    let begin = Instant::now();
    let mut counters = Counters::default();
    let vectors = collection.vectors();
    let seen = range.after.map_or(0, |after| after.rank.min(vectors));
    // One more says whether there is another page.
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
        // What a page before this one missed would come before its last answer.
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

/// Whether an answer belongs to a page that begins behind a place.
fn is_behind(after: Option<RangePlace>, distance: f32, id: u64) -> bool {
    after.is_none_or(|after| {
        distance > after.distance || (distance == after.distance && id > after.id)
    })
}

/// The k nearest to vectors of the index.
fn like(
    collection: &dyn Collection,
    ids: &[u64],
    options: &SearchOptions,
    filter: Option<&Filter>,
    progress: &dyn Progress,
) -> Result<SearchResults, Error> {
    let rows = collection.vectors_of(ids, progress)?;
    if let Some(&missing) = rows.missing.first() {
        let expected = "the id of a vector that is in the index";
        return Err(Error::call("id", missing, expected));
    }
    if ids.is_empty() {
        return Err(Error::call("ids", "none", "one at least"));
    }
    let queries = Matrix::new(rows.vectors, ids.len(), rows.dim, rows.element)?;
    let (most, _) = bounds::most_answers(collection.vectors(), "");
    let k = match options.k {
        // Refused as it was given, as is one that is too large.
        0 => 0,
        k => k.saturating_add(1).min(most.max(k)),
    };
    let one_more = SearchOptions {
        k,
        list: match options.list < options.k {
            // Refused as it was given.
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

/// What an index and one that is open for changes have alike.
macro_rules! searches {
    ($type:ty) => {
        impl $type {
            /// A page of the vectors that are within a distance of a query, a single row: nearest first, by exact distances. [`SearchOptions::list`] is the least
            /// that is looked at, `k` is not; the result says whether some may have been missed.
            ///
            /// # Errors
            /// As those of a search by k; several queries, a distance that is no number, [`SearchOptions::recall`].
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

            /// The k nearest to each of some vectors of the index, by their ids: the vector itself is no answer, others that are the same are.
            ///
            /// # Errors
            /// As those of a search; no id at all, or one that is not in the index.
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
